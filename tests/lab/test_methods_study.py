"""The study `methods`: every method changes the model as its name says, and all are trained and
measured alike.
"""

import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from lab_tiny import write_text

from ropewalk.interop.extend.longrope2 import rescale_factors
from ropewalk.models import Decoder, DecoderConfig
from ropewalk_lab.needle import answer_loss
from ropewalk_lab.schedule import Stage
from ropewalk_lab.studies import method_costs, methods, training
from ropewalk_lab.studies.findings import FAILS, HOLDS
from ropewalk_lab.studies.jobs import JobRunner, Workspace
from ropewalk_lab.studies.method_models import (
    APPLIED,
    TRAINED,
    adapted,
    new_model,
    preset_of,
    searched_factors,
)
from ropewalk_lab.studies.rows import row, select
from ropewalk_lab.studies.study import Study, run_study

LENGTH = 96
CPU = torch.device("cpu")


def decoder(method: str = "rope", seed: int = 0, **changes) -> Decoder:
    fields = {"init_std": 0.3, **TRAINED[method].fields(2), **changes}
    torch.manual_seed(3)
    model = Decoder(DecoderConfig(264, 32, 64, 2, 2, length=LENGTH, **fields))
    return new_model(method, model, seed)  # type: ignore[return-value]


# torch warns if this CPU lacks the instructions for bfloat16
@pytest.mark.filterwarnings("ignore:mkldnn_matmul")
@pytest.mark.parametrize("method", TRAINED)
def test_every_method_trains_in_both_precisions(method):
    model, tokens = decoder(method), torch.randint(256, (2, 70))
    exact = model.loss(tokens)
    with torch.autocast("cpu", torch.bfloat16):
        loss = model.loss(tokens)
    loss.backward()
    torch.testing.assert_close(loss, exact, rtol=0.03, atol=0)
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


def test_the_new_weights_depend_on_the_seed_alone():
    for method in ("rope++", "selective", "path"):
        first, again, other = (decoder(method, seed).state_dict() for seed in (1, 1, 2))
        assert all(torch.equal(first[name], again[name]) for name in first)
        assert any(not torch.equal(first[name], other[name]) for name in first)
    model = decoder()
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    new_model("path", model, 5)
    assert torch.equal(torch.rand(3), expected)  # the caller's generator is as it was


def test_every_fourth_layer_has_no_positions():
    types = TRAINED["nope layers"].fields(6)["layer_types"]
    assert [int(each == "full") for each in types] == [1, 1, 1, 0, 1, 1]
    assert TRAINED["nope layers"].fields(2)["layer_types"] == ("full", "nope")


def test_every_applied_method_changes_distances_or_scores_and_no_weights():
    model = decoder().eval()
    tokens = torch.randint(256, (1, 4 * LENGTH), generator=torch.Generator().manual_seed(0))
    plain = model(tokens)
    for method in (*APPLIED, "longrope2"):
        longer: Decoder = adapted(model, method, 4, LENGTH)  # type: ignore[assignment]
        assert all(
            torch.equal(value, longer.state_dict()[name])
            for name, value in model.state_dict().items()
        )
        assert not torch.allclose(longer(tokens)[:, -1], plain[:, -1], atol=1e-4), method
    # a turn takes 2 pi / omega tokens; the pairs for which that is longer than the trained length
    slow = sum(2 * math.pi * 10_000 ** (2 * i / 16) > LENGTH for i in range(8))
    cope = adapted(model, "cope", 4, LENGTH).layers[0].self_attn.encoding.rope.spec.scaling  # type: ignore[union-attr, index]
    assert cope.pairs == slow
    positions = torch.arange(4 * LENGTH)
    for name in ("rerope", "leaky_rerope", "self_extend", "dca"):
        remapping = adapted(model, name, 4, LENGTH).config.remapping  # type: ignore[union-attr]
        assert remapping.distances(positions, positions).tril().max() < LENGTH, name


@pytest.mark.parametrize("length", [6, 7, 19, 20, 31, 62, 63, 96, 628, 629])
def test_cope_clips_the_pairs_that_complete_no_turn_in_training(length):
    """The wavelengths of the eight pairs are 2 pi 10^(i/2): 6.28, 19.87, 62.83, 198.7, ..."""
    scaling = adapted(decoder(), "cope", 4, length).layers[0].self_attn.encoding.rope.spec.scaling  # type: ignore[union-attr, index]
    wavelengths = (6.2832, 19.8692, 62.8319, 198.692, 628.319, 1986.92, 6283.19, 19869.2)
    assert scaling.pairs == sum(wavelength > length for wavelength in wavelengths)


def test_costs_are_of_a_training_step_and_of_reading_the_longest_text(monkeypatch):
    calls = []
    for name in ("_step", "_read"):
        monkeypatch.setattr(
            method_costs,
            name,
            lambda model, tokens, *rest, name=name: calls.append((name, tuple(tokens.shape))),
        )
    rows = method_costs.costs(
        Workspace(Path("unused"), CPU),
        methods=["rope", "yarn", "drope"],
        multiple=3,
        preset="smoke",
        changes=["train.stages=[{length=20, batch=5, steps=9}]"],
        repeats=2,
    )
    # once before the two that are counted; a method that begins with a trained model has no step
    step, read = ("_step", (5, 20)), ("_read", (1, 60))
    assert calls == [step] * 3 + [read] * 9
    assert [(each["metric"], each["what"], each["model"]) for each in rows] == [
        ("milliseconds", "step", "rope"),
        *(("milliseconds", "read", method) for method in ("rope", "yarn", "drope")),
    ]
    assert all(len(each["values"]) == 2 for each in rows)


def test_the_search_finds_factors_with_a_low_loss_of_the_answer():
    model = decoder().eval()
    found = searched_factors(model, 2, LENGTH, population=8, rounds=1, seed=0)
    wavelengths = [
        2 * math.pi * model.layers[0].self_attn.encoding.rope.spec.theta ** (pair / 8)
        for pair in range(8)
    ]
    critical = sum(each <= LENGTH for each in wavelengths)  # the first pair that completes no turn
    tried = rescale_factors(critical, (2.0,) * (8 - critical))
    losses = [
        answer_loss(adapted(model, "longrope2", 2, LENGTH, factors), 2 * LENGTH)
        for factors in (found, tried)
    ]
    assert losses[0] <= losses[1]


@pytest.fixture
def trainings(monkeypatch) -> list[SimpleNamespace]:
    """Return a list of the trainings that the study asks for; none is run: the study gets back the
    model to start from, or a new one.
    """
    asked: list[SimpleNamespace] = []

    def watched(workspace, name, preset, *, start=None, change=lambda model: model, **options):
        asked.append(SimpleNamespace(name=name, preset=preset, start=start, **options))
        return SimpleNamespace(model=(start or change(decoder())).eval())

    monkeypatch.setattr(training, "train_or_load", watched)
    return asked


def test_drope_trains_further_without_rotation_at_the_trained_length(trainings, tmp_path):
    changes = [
        "train.stages=[{length=96, batch=4, steps=9}]",
        f"data.source={write_text(tmp_path / 'text')}",
        f"data.cache={tmp_path / 'cache'}",
    ]
    shared = {"preset": "smoke", "changes": changes, "share": 0.5, "seed": 1}
    sizes = {"multiples": [1, 2], "windows": 2, "depths": [0.0], "count": 2}
    options = {"recalibrated": 5, "search": {"population": 8, "rounds": 0}}
    rows = methods.apply(
        Workspace(Path("unused"), CPU), method="drope", **shared, **sizes, **options
    )
    first, second = trainings
    assert (first.start, first.preset.train.stages, first.preset.train.seed) == (
        None,
        (Stage(96, 4, 9),),
        1,
    )
    assert second.preset.train.stages == (Stage(96, 4, 5),)
    assert second.preset.train.seed != 1
    assert second.batches.fingerprint != first.batches.fingerprint
    assert {type(layer.self_attn.encoding).__name__ for layer in second.start.layers} == {
        "Encoding"
    }
    assert [each["length"] for each in select(rows, "loss", model="drope")] == [96, 192]
    rows = methods.apply(Workspace(Path("unused"), CPU), method="dca", **shared, **sizes, **options)
    assert [each["length"] for each in select(rows, "found", model="dca")] == [192]
    name = preset_of("pope", "smoke", changes, 0).model["encoding"]
    assert name == "pope"


def test_each_claim_of_methods_compares_the_models_and_length_in_its_text():
    def loss(model, length, value):
        return row("loss", [value, value + 0.01, value - 0.01], model=model, seed=0, length=length)

    rows = [
        loss("rope", 64, 2.0),
        loss("pope", 64, 1.5),
        loss("fope", 64, 2.5),
        loss("rope", 128, 4.0),
        loss("dca", 128, 2.0),
    ]
    for model, hits in {"yarn": [0.0] * 30, "drope": [1.0] * 30}.items():
        rows += [
            row("found", hits, model=model, seed=0, length=128, depth=depth) for depth in (0.0, 1.0)
        ]
    verdicts = {claim.text: claim.verdict for claim in methods.claims(rows, [64, 128])}
    assert verdicts["At 64, pope has a lower loss than rope"] == HOLDS
    assert verdicts["At 64, fope has a lower loss than rope"] == FAILS
    assert verdicts["At 128, dca has a lower loss than rope as it is"] == HOLDS
    assert verdicts["At 128, drope misses fewer pass keys than rope with yarn"] == HOLDS


def test_costs_are_medians_and_quartiles_divided_by_the_median_of_rope():
    rows = [
        row("milliseconds", times, model=name, what="step")
        for name, times in {"rope": [2, 4, 90], "path": [8, 12, 16, 70, 4]}.items()
    ]
    table = methods._costs_table(
        [*rows, row("parameters", 1234.0, model="path", seed=0)], ["rope", "path"], 128
    )
    assert [cells[:3] for cells in table.rows] == [
        ("rope", "as rope", "1.00 (0.75 to 11.75)"),
        ("path", "1,234", "3.00 (2.00 to 4.00)"),
    ]


def test_a_gpu_trains_one_model_at_a_time_unless_asked(tmp_path):
    seen = []

    def run(runner: JobRunner):
        seen.append(runner.workers)
        return {}

    study = Study("seen", "?", {"smoke": {"seeds": 1}}, run, lambda rows, facts: methods.Findings())
    run_study(study, "smoke", tmp_path, device="meta", quiet=True)
    run_study(study, "smoke", tmp_path, device="meta", workers=5, quiet=True)
    assert seen == [1, 5]


def test_with_one_length_every_claim_of_methods_is_about_it():
    texts = [claim.text for claim in methods.claims([], [96])]
    assert texts
    assert all(text.startswith("At 96, ") for text in texts)
