"""The sizes of the presets: as the page says, as the committed runs have them, and such that a
study can run.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ropewalk.encodings import ENCODINGS
from ropewalk_lab.schedule import roformer_stages
from ropewalk_lab.studies import (
    STUDIES,
    extend,
    methods,
    multimodal,
    norms,
    relative,
    rope_variants,
)
from ropewalk_lab.studies.extension_methods import METHODS
from ropewalk_lab.studies.presets import ABOUT, presets_of

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results" / "lab"
PAGE = (ROOT / "docs" / "lab-studies.md").read_text(encoding="utf-8")

#: committed runs, and the settings in which they differ from the preset today (h200_mlm_lengths: a
#: larger model, fewer steps)
RUNS: dict[str, set[str]] = {
    "cpu_base": set(),
    "cpu_decay": {"encodings"},
    "cpu_frequencies": set(),
    "cpu_linear": set(),
    "cpu_mlm_lengths": set(),
    "cpu_precision": set(),
    "cpu_real_kv": set(),
    "cpu_relative": {"names"},
    "h200_base": set(),
    "h200_encodings": set(),
    "h200_extend": {"tuned_factors"},
    "h200_frequencies": {"changes"},
    "h200_matching": {"seeds"},
    "h200_migrate": set(),
    "h200_mlm_lengths": {"changes", "stages"},
    "h200_multimodal": set(),
    "h200_norms": {"norms", "seeds"},
    "h200_passkey": {"bases", "seeds"},
    "h200_real_extend": set(),
    "h200_real_kv": set(),
    "h200_real_passkey": set(),
    "h200_real_precision": set(),
    "h200_real_tune_codes": set(),
}


@pytest.mark.skipif(not RESULTS.is_dir(), reason="results/ is not part of an installation")
@pytest.mark.parametrize("run", RUNS)
def test_a_committed_run_has_the_settings_of_its_preset_but_for_those_named_here(run):
    facts = json.loads((RESULTS / run / "study.json").read_text(encoding="utf-8"))
    preset = json.loads(json.dumps(STUDIES[facts["study"]].presets[facts["preset"]]))
    assert {name for name in preset if preset[name] != facts["settings"].get(name)} == RUNS[run]


def sizes() -> list[tuple[str, str, str, int]]:
    """(study, setting, preset, number) of every cell in the page's table of sizes."""
    rows = re.findall(
        r"^\| (`.*?`) \| ([^|]*?) `(\w+)` \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|$",
        PAGE,
        re.MULTILINE,
    )
    return [
        (study, setting, preset, int(number.replace(",", "")))
        for studies, _, setting, *numbers in rows
        for study in re.findall(r"`(\w+)`", studies)
        for preset, number in zip(("cpu", "gpu", "cluster"), numbers, strict=True)
    ]


def test_preset_sizes_are_those_of_the_table_on_the_page():
    assert {study for study, *_ in sizes()} == set(STUDIES) - {"real_tune"}
    for study, setting, preset, number in sizes():
        assert STUDIES[study].presets[preset][setting] == number, (study, preset)


def test_presets_have_one_seed_on_a_cpu_and_three_on_a_cluster():
    """As the page says. Exceptions with one seed on a cluster: two studies that train nothing, and
    one that trains for very long.
    """
    small = {name: study.presets for name, study in STUDIES.items() if not name.startswith("real_")}
    for name, presets in small.items():
        assert presets["smoke"]["seeds"] >= 1
        assert presets["cpu"]["seeds"] == 1
        assert presets["cluster"]["seeds"] == (
            1 if name in ("precision", "relative", "mlm_lengths") else 3
        ), name


def test_gpu_presets_list_every_entry_of_a_registry():
    """Presets are data, so a new encoding or method must be written into them too."""
    text = [name for name in ENCODINGS if name not in ("rope_2d", "rope_3d", "t5")]
    presets = {name: STUDIES[name].presets["gpu"] for name in STUDIES}
    assert presets["encodings"]["encodings"] == text
    shifted = [name for name in text if name != "learned"]
    assert presets["relative"]["names"] == [*shifted, relative.FLOAT32]
    zero_shot = [extend.NONE, *METHODS]
    assert presets["extend"]["methods"] == [*zero_shot, extend.LONGROPE]
    assert presets["passkey"]["methods"] == zero_shot
    assert presets["methods"]["methods"] == methods.ALL
    assert presets["norms"]["norms"] == norms._ALL
    assert presets["frequencies"]["frequencies"] == list(
        rope_variants.TABLES["frequencies"].variants
    )


@pytest.mark.parametrize(
    ("preset", "factor"), [("smoke", 8), ("cpu", 4), ("gpu", 2), ("cluster", 1)]
)
def test_the_stages_are_roformers_made_smaller(preset, factor):
    stages = [[s.length, s.batch, s.steps] for s in roformer_stages(factor)]
    assert STUDIES["mlm_lengths"].presets[preset]["stages"] == stages


def test_changing_a_preset_does_not_change_the_next_copy_of_it():
    first, second = presets_of("base"), presets_of("base")
    first["cpu"]["bases"].append(7.0)
    assert second["cpu"]["bases"] == STUDIES["base"].presets["cpu"]["bases"]


@pytest.mark.parametrize("study", STUDIES)
def test_multiples_of_the_trained_length_are_powers_of_two(study):
    """Otherwise the lengths of two presets, and of the published tables, have none in common."""
    if not study.startswith("real_"):
        for preset in STUDIES[study].presets.values():
            multiples = [
                *preset.get("multiples", []),
                *preset.get("factors", []),
                *preset.get("tuned_factors", []),
            ]
            assert set(multiples) <= {1, 2, 4, 8, 16}
            assert multiples.count(1) == ("multiples" in preset)


def test_offsets_of_real_precision_ascend_from_0():
    for preset in STUDIES["real_precision"].presets.values():
        assert preset["offsets"][0] == 0
        assert preset["offsets"] == sorted(preset["offsets"])


def test_the_vocabulary_of_images_has_every_colour_and_the_mark_rounded_up_to_eight():
    colours, mark = set(range(multimodal.COLOURS)), multimodal.MARK
    assert mark not in colours
    assert -(-len(colours | {mark}) // 8) * 8 == multimodal.GridBatches().vocab_size


def test_the_list_of_studies_is_that_of_the_questions_and_needs_no_torch():
    assert [(name, study.about) for name, study in STUDIES.items()] == list(ABOUT.items())
    assert all(study.presets == presets_of(name) for name, study in STUDIES.items())
    code = (
        "import sys; sys.modules['torch'] = None; import ropewalk_cli; "
        "ropewalk_cli.main(('lab', 'list'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in STUDIES)
