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


#: settings that say how much is measured: a larger machine measures at least as much
AMOUNTS = (
    *("windows", "count", "seeds", "steps", "tuned_steps", "recalibrated", "side", "repeats"),
    *("short", "long", "length", "next", "multiples", "factors", "sides", "tuned_factors"),
    *("search", "depths", "timed"),
)
#: (study, setting, smaller preset) where the larger one has less, on purpose
LESS = {
    ("base", "seeds", "smoke"),  # two, to try the comparison of seeds
    ("extend", "tuned_steps", "cpu"),  # a GPU's batches are eight times as large
    ("methods", "recalibrated", "cpu"),
    ("real_extend", "windows", "smoke"),  # of a tiny model
    ("real_extend", "factors", "smoke"),
    ("real_tune", "depths", "smoke"),  # left out on a CPU, as the search is
    ("real_tune", "search", "smoke"),
}


def amount(value):
    """How much a setting asks for: a number, the largest of a list, or the numbers of a search."""
    if isinstance(value, dict):
        return tuple(amount(each) for each in value.values())
    return (max(value, default=0) if isinstance(value, list) else value,)


@pytest.mark.parametrize("study", STUDIES)
def test_a_larger_machine_measures_at_least_as_much(study):
    presets = STUDIES[study].presets
    for smaller, larger in (("smoke", "cpu"), ("cpu", "gpu"), ("gpu", "cluster")):
        for name in AMOUNTS:
            if name in presets[smaller] and name in presets[larger]:
                few, many = (amount(presets[each][name]) for each in (smaller, larger))
                if (study, name, smaller) in LESS:
                    continue
                assert all(a <= b for a, b in zip(few, many, strict=False)), (name, smaller, larger)


#: settings of `cluster`, which no committed run has, and of `smoke` and `cpu` where none has
WRITTEN = {
    "cluster": {
        "extend": {
            "tuned_rate": 3e-4,
            "tuned_steps": 100,
            "search": {"population": 64, "rounds": 40, "windows": 16},  # as LongRoPE's own
        },
        "passkey": {"share": 0.2, "multiples": [1, 2, 4, 8, 16], "bases": [1e4, 5e5]},
        "matching": {"short": 512, "long": 1024, "steps": 3000, "count": 20_000, "batch": 64},
        "linear": {"timed": [4096, 16_384, 65_536], "multiples": [1, 2, 4]},
        "migrate": {"steps": [0, 50, 200], "rate": 3e-4, "from": "sinusoidal"},
        "multimodal": {"side": 16, "sides": [16, 20, 24, 32], "steps": 3000, "batch": 256},
        "methods": {
            "recalibrated": 2000,
            "multiples": [1, 2, 4, 8, 16],
            "search": {"population": 64, "rounds": 20},
            "depths": [0.0, 0.5, 1.0],
            "repeats": 20,
        },
        "norms": {"multiples": [1, 2, 4, 8], "shift": 1000},
        "base": {"bases": [100, 1000, 10_000, 100_000], "multiples": [1, 2, 4, 8, 16]},
        "frequencies": {"multiples": [1, 2, 4, 8], "texts": ["stdlib", "prose"]},
        "real_extend": {"factors": [4, 2, 8], "search": 256, "model": "smollm2"},
        "real_passkey": {"factor": 8, "depths": 20, "lengths": []},
        "real_tune": {"steps": 1000, "windows": 12, "rate": 2e-5, "train_text": "sotu"},
        "real_precision": {
            "lengths": [512, 2048, 8192],
            "offsets": [0, 100_000, 1_000_000, 10_000_000],
            "dtypes": ["bfloat16", "float16", "float32"],
        },
        "real_kv": {"length": 7168, "next": 1024, "shift": 100_000, "sinks": 4},
        "relative": {"shifts": [1, 1000, 1_000_000], "windows": 8, "length": 48},
        "precision": {"head_dim": 128, "width": 5},
        "mlm_lengths": {"preset": "roformer-paper", "changes": []},
    },
    "cpu": {
        "encodings": {"multiples": [1, 2, 4, 8]},
        "extend": {
            "factors": [2, 4, 8],
            "tuned_methods": ["none", "linear", "yarn"],
            "tuned_factors": [4],
            "tuned_steps": 60,
            "tuned_rate": 6e-4,
            "search": {"population": 8, "rounds": 5, "windows": 4},
        },
        "norms": {"multiples": [1, 2, 4]},
        "passkey": {"multiples": [1, 2, 4], "share": 0.5, "depths": [0, 0.25, 0.5, 0.75, 1]},
        "matching": {"short": 48, "long": 96, "batch": 16, "steps": 600},
        "migrate": {"steps": [0, 60], "rate": 1e-3},
        "multimodal": {"side": 6, "sides": [6, 8, 10], "batch": 64, "steps": 600},
        "methods": {"recalibrated": 300, "repeats": 5, "multiples": [1, 2, 4]},
        "real_extend": {"factors": [1.25], "methods": ["none", "yarn"]},
        "real_passkey": {"factor": 4, "depths": 5, "lengths": [1900]},
        "real_tune": {"factor": 1.25, "steps": 2, "rate": 2e-5, "methods": ["yarn"]},
        "real_precision": {"dtypes": ["float16"], "lengths": [256], "offsets": [0, 1_000_000]},
    },
    "gpu": {
        "real_tune": {"steps": 200, "rate": 1e-4, "codes": 128, "factor": 4, "depths": 20},
        "passkey": {"bases": [1e4, 5e5], "share": 0.5},
        "norms": {"seeds": 2, "shift": 1000},
        "matching": {"seeds": 2, "data": ""},
        "mlm_lengths": {"windows": 256, "preset": "mlm"},
    },
}


@pytest.mark.parametrize(("preset", "study"), [(p, s) for p in WRITTEN for s in WRITTEN[p]])
def test_settings_that_no_committed_run_has_are_written_out_here(preset, study):
    settings = STUDIES[study].presets[preset]
    wanted = WRITTEN[preset][study]
    assert {name: settings[name] for name in wanted} == wanted


def changes_of(study: str, preset: str) -> dict[str, str]:
    """The changes of a preset by setting; a later one replaces an earlier one."""
    return dict(each.split("=", 1) for each in STUDIES[study].presets[preset]["changes"])


STAGES_OF = {
    ("passkey", "smoke"): (96, 4, 20),
    ("passkey", "cpu"): (128, 16, 1200),
    ("passkey", "gpu"): (256, 128, 1200),
    ("methods", "smoke"): (96, 2, 2),
    ("methods", "cpu"): (128, 16, 1200),
    ("methods", "gpu"): (256, 64, 800),
    ("frequencies", "cpu"): (64, 8, 300),
    ("encodings", "gpu"): (256, 128, 600),
}


@pytest.mark.parametrize(("study", "preset"), STAGES_OF)
def test_a_model_is_trained_for_as_long_as_it_is_written_here(study, preset):
    length, batch, steps = STAGES_OF[study, preset]
    stage = changes_of(study, preset)["train.stages"]
    assert stage == f"[{{length={length}, batch={batch}, steps={steps}}}]"


def test_small_models_begin_with_large_weights_and_untied_embeddings():
    """Near 1 / sqrt(width), as the file says."""
    widths = {("cpu", "base"): 0.05, ("gpu", "base"): 0.04, ("cpu", "frequencies"): 0.08}
    for (preset, study), deviation in widths.items():
        changes = changes_of(study, preset)
        assert float(changes["model.init_std"]) == deviation
        assert changes["model.tie_embeddings"] == "false"
    for study in ("base", "passkey", "methods"):
        gpu = changes_of(study, "gpu")
        assert (gpu["train.learning_rate"], gpu["train.warmup"]) == ("2e-3", "100")
        assert gpu["train.save_every"] == "1000"
    masked = changes_of("mlm_lengths", "gpu")
    assert (masked["train.learning_rate"], masked["train.warmup"]) == ("7e-4", "400")
    assert masked["data.source"] == "code"
    rates = {preset: changes_of("matching", preset) for preset in ("gpu", "cluster")}
    assert {p: each["train.learning_rate"] for p, each in rates.items()} == {
        "gpu": "5e-4",
        "cluster": "3e-4",
    }
    assert {each["train.warmup"] for each in rates.values()} == {"200"}


#: words that the question of each study has
ASKED = {
    "encodings": "encoding learns best at the trained length",
    "extend": "beyond its trained length can a RoPE model be used",
    "base": "base of plain RoPE change",
    "frequencies": "linear or learned frequencies read further than 10000^(-2i/d)",
    "norms": "q and k be normed after the rotation, before it",
    "passkey": "find five digits that were stated once",
    "mlm_lengths": "alternating lengths, as in RoFormer",
    "matching": "as in CAIL2019-SCM",
    "linear": "linear attention cost in loss, and save in time and memory",
    "migrate": "trained model change to RoPE",
    "multimodal": "positions of an image be rows and columns, or one sequence",
    "decay": "attention fall with distance",
    "relative": "scores depend only on distance",
    "precision": "errors of cos and sin at large positions",
    "methods": "recent position methods gain over RoPE",
    "real_extend": "a pretrained model read, and with which method",
    "real_passkey": "lengths and depths does a pretrained model find a pass key",
    "real_tune": "a little training at the new length",
    "real_precision": "in 16 bits from the same model in float32",
    "real_kv": "shifted or reused cache",
}


def test_every_study_asks_its_question():
    assert list(ASKED) == list(ABOUT)
    for name, words in ASKED.items():
        assert words in ABOUT[name]
        assert ABOUT[name].endswith("?")
