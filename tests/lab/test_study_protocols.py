"""What each study trains, on which data, and what it measures on: the trainings are watched, not
run.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from lab_tiny import WORDS, write_text
from study_cases import run_tiny, saved_decoder, tail_losses

import ropewalk as rw
from ropewalk.errors import RopeError
from ropewalk.frequencies import SCALINGS, Given, Linear
from ropewalk.interop.checkpoint.safetensors_file import read_header, read_rows
from ropewalk.models import Decoder, DecoderConfig
from ropewalk_lab.corpus import open_corpus
from ropewalk_lab.matching import split_triplets
from ropewalk_lab.schedule import Stage
from ropewalk_lab.studies import (
    STUDIES,
    decay,
    encodings,
    extend,
    linear,
    matching,
    migrate,
    mlm_lengths,
    multimodal,
    norms,
    passkey,
    precision,
    read_study,
    relative,
    rope_variants,
    run_study,
    training,
)
from ropewalk_lab.studies.extension_methods import METHODS
from ropewalk_lab.studies.jobs import Workspace
from ropewalk_lab.studies.rows import row, select
from tensor_forms import tensors

SMALL = ["model.hidden_size=32", "model.intermediate_size=64", "train.warmup=2"]
WORKSPACE = Workspace(Path("unused"), torch.device("cpu"))
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_layers": 2,
    "num_heads": 2,
}


def decoder(encoding="rope", **changes) -> Decoder:
    torch.manual_seed(3)
    return Decoder(
        DecoderConfig(264, encoding=encoding, length=32, init_std=0.4, **(SIZES | changes))
    ).eval()


@pytest.fixture
def text(tmp_path) -> list[str]:
    """Changes of a preset that make it read a small folder of text."""
    return [f"data.source={write_text(tmp_path / 'text')}", f"data.cache={tmp_path / 'cache'}"]


@pytest.fixture
def trainings(monkeypatch) -> list[SimpleNamespace]:
    """Return a list of the trainings that a study asks for; none is run: the study gets back the
    model to start from, or a new one.
    """
    asked: list[SimpleNamespace] = []

    def watched(workspace, name, preset, *, start=None, change=lambda model: model, **options):
        model = start if start is not None else decoder(preset.model.get("encoding", "rope"))
        asked.append(SimpleNamespace(name=name, preset=preset, start=start, **options))
        rows = [
            {"step": 10, "seconds": 3.0},
            {"step": 20, "seconds": 5.0},
            {"step": 20, "evaluation": {}},
        ]
        return SimpleNamespace(
            model=change(model).eval(), step=20, log=SimpleNamespace(rows=lambda: rows)
        )

    for module in (training, matching, multimodal):
        monkeypatch.setattr(module, "train_or_load", watched)
    return asked


COMMON: dict[str, Any] = {"preset": "smoke", "seed": 2, "windows": 3}


def test_fine_tuning_is_at_the_longer_length_with_as_many_tokens_on_other_text(text, trainings):
    extend.tuned(
        WORKSPACE,
        **COMMON,
        changes=text,
        method="linear",
        factor=2,
        factors=None,
        steps=7,
        rate=1e-4,
        multiples=[1, 2],
    )
    first, second = trainings
    assert first.preset.train.stages == (Stage(32, 4, 20),)
    assert second.preset.train.stages == (Stage(64, 2, 7),)  # half as many rows of twice the length
    assert second.preset.train.learning_rate == 1e-4
    assert second.preset.train.seed != first.preset.train.seed == 2
    # interpolation: every frequency of the model that is trained further is halved
    found = tensors(second.start.layers[0].self_attn.encoding.rope.spec).radians
    torch.testing.assert_close(
        found, torch.tensor([10_000.0 ** (-i / 8) / 2 for i in range(8)], dtype=torch.float64)
    )
    assert "linear" in second.origin


def test_longrope_is_searched_on_text_that_is_trained_on(text, trainings, monkeypatch, tmp_path):
    searched = []

    def watched(model, windows, factor, length, **options):
        searched.append((windows, factor, length, options))
        return (1.0,) * 8

    monkeypatch.setattr(extend, "search_longrope", watched)
    search = {"population": 5, "rounds": 3, "windows": 4}
    rows = extend.zero_shot(
        WORKSPACE, **COMMON, changes=text, methods=["longrope"], factors=[2], search=search
    )
    ((windows, factor, length, options),) = searched
    assert (windows.shape, factor, length) == ((4, 65), 2, 32)
    assert options == {"population": 5, "rounds": 3, "seed": 2}
    corpus = open_corpus(tmp_path / "text", cache=tmp_path / "cache")
    train, valid = (bytes(split.tokens) for split in (corpus.train, corpus.valid))
    assert all(bytes(window) in train and bytes(window) not in valid for window in windows)
    assert select(rows, "factors")[0]["values"] == [1.0] * 8


def test_extend_measures_every_method_at_the_trained_and_the_longer_length(
    text, trainings, monkeypatch
):
    seen = []

    def watched(model, windows, lengths, tail, /, **fields):
        spec = model.layers[0].self_attn.encoding.rope.spec
        seen.append(
            (
                spec.scaling.name,
                getattr(spec.scaling, "factor", None),
                lengths,
                tail,
                fields["method"],
                fields["factor"],
            )
        )
        return []

    monkeypatch.setattr(training, "loss_rows", watched)
    methods = ["none", "linear", "ntk", "by_parts", "yarn", "dynamic", "dynamic_yarn"]
    extend.zero_shot(
        WORKSPACE, **COMMON, changes=text, methods=methods, factors=[4], search={"windows": 1}
    )
    names = ["default", "linear", "ntk", "yarn", "yarn", "dynamic", "dynamic_yarn"]
    factors = [None, 4, 4, 4, 4, 4, None]
    assert seen[0] == ("default", None, [32], 32, "none", 1)
    assert seen[1:] == [
        (n, f, [32, 128], 32, m, 4) for n, f, m in zip(names, factors, methods, strict=True)
    ]


def test_by_parts_is_yarn_without_its_temperature():
    by_parts, yarn = (
        extend.spec_for(name, extend.rope_spec(decoder()), 4, 128) for name in ("by_parts", "yarn")
    )
    assert tensors(by_parts).magnitude == 1.0
    assert tensors(yarn).magnitude == pytest.approx(0.1 * np.log(4) + 1)
    torch.testing.assert_close(tensors(by_parts).radians, tensors(yarn).radians)


@pytest.mark.parametrize("variant", [migrate.KEPT, migrate.MOVED, migrate.FRESH])
def test_only_the_migrated_model_has_old_weights_and_rope(variant, text, trainings):
    migrate.measure(
        WORKSPACE, **COMMON, changes=text, variant=variant, steps=5, source="sinusoidal", rate=1e-3
    )
    *before, last = trainings
    assert last.name == "migrate-5-2"
    assert last.preset.model["encoding"] == ("sinusoidal" if variant == migrate.KEPT else "rope")
    assert last.preset.train.stages == (Stage(32, 4, 5),)
    if variant == migrate.FRESH:
        assert not before
        assert last.start is None
        return
    (first,) = before
    assert first.preset.model["encoding"] == "sinusoidal"
    assert last.start.config.encoding == ("sinusoidal" if variant == migrate.KEPT else "rope")
    old = decoder("sinusoidal")
    torch.testing.assert_close(
        last.start.layers[1].mlp.down_proj.weight, old.layers[1].mlp.down_proj.weight
    )  # type: ignore[union-attr]
    assert last.preset.train.seed != first.preset.train.seed


def test_each_stage_of_pre_training_ends_where_the_next_begins(monkeypatch, tmp_path, text):
    stops, texts = [], []

    class Watched:
        folder, model = tmp_path, None

        def run(self, stop):
            stops.append(stop)
            return SimpleNamespace(step=stop)

    def measured(model, windows, tokenizer, length, device, **fields):
        texts.append(windows)
        return [row("loss", [1.0], length=length, **fields)]

    monkeypatch.setattr(mlm_lengths, "make_trainer", lambda *_: Watched())
    monkeypatch.setattr(mlm_lengths, "masked_rows", measured)
    stages = [[16, 4, 6], [48, 4, 3], [8, 4, 4]]
    rows = mlm_lengths.measure(
        WORKSPACE, seed=0, preset="mlm", changes=text, stages=stages, windows=2
    )
    assert stops == [6, 9, 13]
    assert [(r["stage"], r["trained"], r["length"]) for r in rows] == [
        (stage, trained, length)
        for stage, trained in ((1, 16), (2, 48), (3, 8))
        for length in (8, 16, 48)
    ]
    # the same held-out windows of the longest length at every measurement
    corpus = open_corpus(tmp_path / "text", cache=tmp_path / "cache")
    train, valid = (bytes(split.tokens) for split in (corpus.train, corpus.valid))
    for windows in texts:
        assert windows.shape == (2, 48)
        assert all(bytes(window) in valid and bytes(window) not in train for window in windows)
        assert np.array_equal(windows, texts[0])


def test_stages_are_measured_on_as_many_windows_as_are_asked_for(text, tmp_path):
    """A study in the folder of an earlier one finds its trained models, but measures anew with more
    windows: it gives the rows of a study in an empty folder.
    """
    settings = {
        "preset": "mlm",
        "changes": [*text, *SMALL],
        "stages": [[8, 2, 1], [16, 2, 1]],
    }
    run = lambda folder, windows: mlm_lengths.measure(
        Workspace(folder, torch.device("cpu")), seed=0, windows=windows, **settings
    )
    assert {len(each["values"]) for each in run(tmp_path / "one", 2)} == {2}
    assert run(tmp_path / "one", 3) == run(tmp_path / "another", 3)


@pytest.mark.parametrize("stages", [[[16, 4, 6], [24, 4, 3]], [[8, 4, 1], [16, 4, 1], [24, 4, 1]]])
def test_stages_whose_lengths_do_not_divide_the_longest_are_refused(stages, tmp_path):
    with pytest.raises(RopeError, match="divide the longest"):
        run_study(
            mlm_lengths.STUDY,
            "smoke",
            tmp_path,
            changes=[f"stages={stages}"],
            workers=1,
            quiet=True,
        )


def test_models_are_measured_with_the_tokenizer_they_train_with(text, tmp_path, monkeypatch):
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    (tmp_path / "vocab.txt").write_text("\n".join(vocab))
    changes = [*text, f"data.tokenizer={tmp_path / 'vocab.txt'}", *SMALL]
    (found,) = training.held_out_windows(training.make_preset("smoke", changes[:3], 0), 1, 8)
    assert set(found) <= {vocab.index(word) for word in (*WORDS, "[SEP]")}
    seen = []
    mask = mlm_lengths.mask_tokens
    monkeypatch.setattr(
        mlm_lengths,
        "mask_tokens",
        lambda *rows, **options: seen.append(mask(*rows, **options)) or seen[-1],
    )
    settings = {"preset": "mlm", "changes": changes, "stages": [[8, 2, 1]], "windows": 9}
    mlm_lengths.measure(Workspace(tmp_path, torch.device("cpu")), seed=0, **settings)
    inputs, targets = seen[0]
    assert (inputs[targets != -100] == vocab.index("[MASK]")).any()
    assert inputs.max() < len(vocab)
    with pytest.raises(RopeError, match="must be bytes"):
        passkey.passkey_batches(training.make_preset("smoke", changes[:3], 0), 0.5)


def test_matching_is_measured_on_cases_that_were_not_trained_on(monkeypatch, trainings):
    tested = []
    monkeypatch.setattr(
        matching,
        "right",
        lambda model, batches, cut, device: tested.append((batches, cut)) or np.ones(3),
    )
    common = {
        "preset": "mlm",
        "changes": [],
        "short": 24,
        "long": 56,
        "batch": 4,
        "steps": 6,
        "count": 120,
        "data": "",
    }
    rows = matching.measure(WORKSPACE, cut=24, encoding="rope", seed=1, **common)
    (asked,) = trainings
    ((batches, cut),) = tested
    train, valid = (
        [replace(each, a=each.a[:24], b=each.b[:24], c=each.c[:24]) for each in triplets]
        for triplets in split_triplets(matching.generated(120, 24, 56))
    )
    assert list(asked.batches.triplets) == train
    assert list(batches.triplets) == valid
    assert not batches.shuffle
    assert cut == 24
    assert asked.preset.model["encoding"] == "rope"
    assert asked.preset.train.stages == (Stage(24, 4, 6),)
    assert asked.objective is matching.contrast
    assert rows[0]["mean"] == 0.0  # all right, none wrong
    assert matching.models({"short": 24, "long": 56}) == {
        "BERT-512": (24, "learned"),
        "RoFormer-512": (24, "rope"),
        "RoFormer-1024": (56, "rope"),
    }


def test_images_are_tested_with_a_seed_that_no_training_has(monkeypatch, trainings):
    tested = []
    monkeypatch.setattr(
        multimodal,
        "wrong",
        lambda model, batches, side, *_: tested.append((batches, side)) or np.zeros(2),
    )
    common = {
        "preset": "mlm",
        "changes": [],
        "side": 4,
        "sides": [4, 6],
        "batch": 8,
        "steps": 6,
        "count": 20,
    }
    multimodal.measure(WORKSPACE, encoding="rope_2d", seed=1, **common)
    (asked,) = trainings
    assert (asked.batches.axes, asked.batches.seed) == (2, 1)
    assert asked.preset.train.stages == (Stage(16, 8, 6),)
    assert [side for _, side in tested] == [4, 6]
    trained = {
        bytes(r.numpy().astype(np.uint8)) for r in asked.batches.batch(np.arange(200), 16).inputs
    }
    for batches, _ in tested:
        assert not trained & {
            bytes(r.numpy().astype(np.uint8)) for r in batches.batch(np.arange(200), 16).inputs
        }


@pytest.mark.parametrize(
    ("encoding", "sides"), [("learned", [2, 4]), ("rope", [2, 4, 6]), ("rope_2d", [2, 4, 6])]
)
def test_learned_positions_are_tested_up_to_the_size_of_the_training(
    encoding, sides, monkeypatch, trainings
):
    monkeypatch.setattr(multimodal, "wrong", lambda *_: np.zeros(2))
    sizes = {"side": 4, "sides": [2, 4, 6], "batch": 8, "steps": 6, "count": 20}
    rows = multimodal.measure(
        WORKSPACE, encoding=encoding, seed=1, preset="mlm", changes=[], **sizes
    )
    assert [each["side"] for each in rows] == sides


def test_an_answer_is_wrong_if_another_colour_is_likelier():
    class Knows(torch.nn.Module):
        def forward(self, tokens, positions=None):
            side = int(tokens.shape[1] ** 0.5)
            below = torch.roll(tokens, -side, dims=1)
            below[0] = (below[0] + 1) % 16  # the first image is misread
            return torch.nn.functional.one_hot(below, 24).float()

    found = multimodal.wrong(Knows(), multimodal.GridBatches(5), 4, 6, torch.device("cpu"))
    assert found.tolist() == [1, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("kind", linear.MODELS)
def test_each_model_of_linear_has_the_attention_and_encoding_of_its_name(kind, text, monkeypatch):
    chosen = []
    monkeypatch.setattr(
        training,
        "train_and_measure",
        lambda workspace, name, preset, *_, **__: chosen.append(preset) or [],
    )
    linear.quality(WORKSPACE, **COMMON, changes=text, kind=kind, multiples=[1])
    attention, encoding = kind.split(", ")
    assert chosen[0].model.get("attention", "softmax") == attention
    assert chosen[0].model["encoding"] == encoding


def test_the_time_of_a_pass_is_that_of_the_fastest(monkeypatch):
    """By a clock that is read before and after each of three passes, of 80, 2 and 50 ms."""
    clock = iter((0.0, 0.08, 1.0, 1.002, 2.0, 2.05))
    monkeypatch.setattr(linear, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    model: Any = SimpleNamespace(features=lambda tokens: None)
    assert linear._milliseconds(model, torch.zeros(1, 1)) == pytest.approx(2.0, rel=1e-9)
    assert next(clock, None) is None


def test_costs_are_in_milliseconds_and_mebibytes():
    facts = {"settings": {}}
    rows = []
    for model in linear.MODELS:
        rows += [row("loss", [1.0, 1.1], model=model, seed=0, length=8)]
        rows += [
            row("milliseconds", 12.34, model=model, length=64),
            row("remembered", 3 * 2**20, model=model, length=64),
        ]
    found = linear.findings(rows, facts)
    assert found.tables[1].rows[0] == ("softmax, rope", "12.3")
    assert found.tables[2].rows[0] == ("softmax, rope", "3.00")


def test_the_rows_of_an_encoding_have_its_time_and_parameters(text, trainings):
    rows = encodings.measure(
        WORKSPACE, **COMMON, changes=text, encoding="learned", multiples=[1, 2]
    )
    assert select(rows, "seconds per step")[0]["mean"] == pytest.approx((3.0 + 5.0) / 20)
    assert select(rows, "parameters")[0]["mean"] == 32 * 32  # positions times dimensions, once
    assert {r["length"] for r in select(rows, "loss")} == {32}  # it has no other positions


@pytest.mark.parametrize(
    ("encoding", "count"), [("rope", 0), ("t5_causal", 2 * 32 * 2), ("rope_learnable", 2 * 8)]
)
def test_positional_parameters_are_those_of_the_encodings(encoding, count):
    assert encodings.positional_parameters(decoder(encoding)) == count


def test_a_shift_of_a_sinusoidal_model_is_seen_and_one_of_rope_is_not():
    tokens = torch.randint(264, (3, 9), generator=torch.Generator().manual_seed(0))
    assert norms.change_by_shift(decoder(), tokens, 1000).max() < 1e-4
    model = decoder("sinusoidal")
    found = norms.change_by_shift(model, tokens, 1000)
    with torch.no_grad():
        before, after = (model(tokens, torch.arange(9) + shift) for shift in (0, 1000))
    expected = [(after[i] - before[i]).abs().max() / before.double().std() for i in range(3)]
    assert found == pytest.approx([float(each) for each in expected], rel=1e-4)


def test_the_longest_stage_is_the_trained_length():
    stages = (
        "train.stages=[{length=16, batch=2, steps=1}, {length=48, batch=2, steps=1}, {length=8, "
        "batch=2, steps=1}]"
    )
    assert training.trained_length(training.make_preset("smoke", [stages], 0)) == 48


def test_decay_measures_queries_of_the_last_quarter_at_powers_of_two(text, trainings, monkeypatch):
    seen = []

    def watched(model, tokens, first):
        seen.append((tuple(tokens.shape), first))
        return torch.zeros(3, first + 1)

    monkeypatch.setattr(decay, "weights_by_distance", watched)
    rows = decay.measure(WORKSPACE, **COMMON, changes=text, encoding="alibi")
    assert seen == [((3, 32), 24)]
    assert [r["distance"] for r in rows] == [1, 2, 4, 8, 16]


def test_every_study_is_listed_here_or_tested_elsewhere():
    modules = (
        decay,
        encodings,
        extend,
        linear,
        matching,
        migrate,
        mlm_lengths,
        multimodal,
        norms,
        passkey,
        precision,
        relative,
    )
    # the studies on pretrained models have tests of their own: test_real_studies.py
    real = {name for name in STUDIES if name.startswith("real_")}
    others = {"base", "frequencies", "methods"}
    assert {module.STUDY.name for module in modules} | others | real == set(STUDIES)


@dataclass(frozen=True)
class Harmonics(rw.frequencies.Scaling):
    """Pair i rotates by `first` / (i + 1)."""

    first: float = 1.0
    name: ClassVar[str] = "harmonics"

    def _radians(self, dim, theta, length, ops):
        return [self.first / (i + 1) for i in range(dim // 2)]


SHARPER = ["model.init_std=0.4"]


def test_a_scaling_of_the_users_own_is_trained_and_read_by_its_name(tmp_path, monkeypatch):
    monkeypatch.setitem(SCALINGS, "harmonics", Harmonics)
    monkeypatch.setitem(METHODS, "slower", lambda factor, length: Linear(factor=3 * factor))
    chosen = {"frequencies": ["geometric", "harmonics", "geometric + slower"], "texts": [""]}
    folder = run_tiny("frequencies", tmp_path, changes=SHARPER, **chosen)
    rows, facts = read_study(folder)
    windows = open_corpus(tmp_path / "text", cache=tmp_path / "cache").valid.windows(6, 65)
    # the factor is 2 at twice the trained length; at the trained length no method acts
    radians = {
        "geometric": [10_000.0 ** (-i / 8) for i in range(8)],
        "harmonics": [1 / (i + 1) for i in range(8)],
        "geometric + slower": [10_000.0 ** (-i / 8) / 6 for i in range(8)],
    }
    for name in chosen["frequencies"]:
        for length in (32, 64):
            read_with = radians["geometric" if length == 32 and "+" in name else name]
            spec = rw.RopeSpec(16, scaling=Given(tuple(read_with)))
            trained = "harmonics-0" if name == "harmonics" else "geometric-0"
            model = saved_decoder(tmp_path / "out" / "models", trained, spec)
            (measured,) = select(rows, "loss", frequencies=name, length=length)
            expected = tail_losses(model, windows, length, 32)
            np.testing.assert_allclose(measured["values"], expected, rtol=2e-5)
    assert len(list((tmp_path / "out" / "models").glob("geometric*"))) == 1
    claims = [claim.text for claim in STUDIES["frequencies"].findings(rows, facts).claims]
    assert [text for text in claims if text.startswith("At 64")] == [
        "At 64, geometric has a lower loss than harmonics",
        "At 64, geometric has a lower loss than geometric + slower",
        "At 64, harmonics has a lower loss than geometric + slower",
    ]


def test_a_changed_formula_with_the_same_name_is_trained_again(tmp_path, monkeypatch):
    chosen = {"frequencies": ["harmonics"], "texts": [""], "changes": SHARPER}
    losses = []
    for first in (1.0, 1.0, 0.5):
        # the class has one name and no fields that differ, so that its repr is the same
        formula = lambda self, dim, *_, by=first: [by / (i + 1) for i in range(dim // 2)]
        own = type("Own", (rw.frequencies.Scaling,), {"name": "harmonics", "_radians": formula})
        # forget what was computed for the class before
        rw.caches.clear_caches()
        monkeypatch.setitem(SCALINGS, "harmonics", own)
        rows, _ = read_study(run_tiny("frequencies", tmp_path, **chosen))
        losses.append(select(rows, "loss", length=64)[0]["values"])
    assert losses[0] == losses[1] != losses[2]
    assert len(list((tmp_path / "out" / "models").glob("harmonics-0-*"))) == 2


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("harmonic", "must be one of geometric, linear"),
        ("given", "one frequency for each of the 8 pairs"),
        ("geometric + harmonics", "must be one of linear, ntk"),
        ("linear + yarn", "after variants of plain RoPE only"),
        ("demanding", "made without arguments"),
    ],
)
def test_a_name_that_cannot_be_trained_is_refused_before_the_first_training(
    name, rule, tmp_path, monkeypatch
):
    demanding = type("Demanding", (), {"__init__": lambda self, factor: None})
    monkeypatch.setitem(SCALINGS, "demanding", demanding)
    with pytest.raises(RopeError, match=rule):
        run_tiny("frequencies", tmp_path, frequencies=["geometric", name], texts=[""])
    assert not (tmp_path / "out" / "models").exists()


def test_kinds_of_frequencies_are_those_of_the_table_and_alpha_is_what_was_learned(tmp_path):
    kinds = ["geometric", "linear", "learned"]
    folder = run_tiny("frequencies", tmp_path, frequencies=kinds, texts=[""])
    rows, _ = read_study(folder)
    (alphas,) = select(rows, "alpha")
    assert alphas["frequencies"] == "learned"
    (path,) = (tmp_path / "out" / "models").glob("learned-0-*/step-*/model.safetensors")
    header = read_header(path)
    learned = [
        value
        for key in header.entries
        if key.endswith("log_scale")
        for value in read_rows(path, header, key).tolist()
    ]
    assert alphas["values"] == pytest.approx(learned, abs=1e-5)
    assert max(map(abs, learned)) > 0
    linear_rope = rope_variants.TABLES["frequencies"].rope("linear")
    radians = [float(each) for each in rw.RopeSpec(8, **linear_rope).frequencies().radians]
    assert radians == pytest.approx([1, 1 / 3, 1 / 5, 1 / 7])
    same_range = rope_variants.TABLES["frequencies"].rope("geometric, 1 to 1/31")
    radians = [float(each) for each in rw.RopeSpec(32, **same_range).frequencies().radians]
    assert (radians[0], radians[-1]) == (1.0, pytest.approx(1 / 31, rel=1e-4))
