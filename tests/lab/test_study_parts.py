"""The parts of studies against their definitions: generated cases, grids, objectives, attention by
distance, verdicts.
"""

import json
import math
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from ropewalk import RopeSpec
from ropewalk.models import Decoder, DecoderConfig
from ropewalk_lab.batches import IGNORED, Batch, mask_tokens
from ropewalk_lab.matching import TripletBatches
from ropewalk_lab.scores import Score
from ropewalk_lab.studies import (
    decay,
    extension_methods,
    linear,
    matching,
    mlm_lengths,
    multimodal,
    passkey,
    relative,
)
from ropewalk_lab.studies.findings import (
    FAILS,
    HOLDS,
    TIED,
    UNKNOWN,
    claim_not_higher,
    claim_order,
    claim_threshold,
    claim_within,
    seed_noise,
)
from ropewalk_lab.studies.jobs import Workspace
from ropewalk_lab.studies.rows import NOT_FINITE, row, select
from ropewalk_lab.studies.training import scale_embeddings
from ropewalk_lab.tokenizer import Bytes
from tensor_forms import tensors


def noisy(mean: float, spread: float, seeds: int = 1, windows: int = 40, salt: int = 0) -> Score:
    return Score(np.random.default_rng(salt).normal(mean, spread, (seeds, windows)))


def test_an_order_holds_only_beyond_the_noise():
    scores = {
        "a": noisy(1.0, 0.01, salt=1),
        "b": noisy(1.2, 0.01, salt=2),
        "c": noisy(1.21, 0.01, salt=3),
    }
    assert claim_order("", scores, ["a", "b"]).verdict == HOLDS
    assert claim_order("", scores, ["b", "a"]).verdict == FAILS
    # with one seed each: two trainings of the same model may differ by more than 0.01
    assert claim_order("", scores, ["a", "b", "c"]).verdict == TIED
    assert claim_order("", scores, ["b", "c"], same_model=True).verdict == HOLDS
    assert claim_order("", scores, ["a", "d"]).verdict == UNKNOWN
    several = {
        name: noisy(mean, 0.001, seeds=3, salt=9) for name, mean in (("a", 1.0), ("b", 1.01))
    }
    assert claim_order("", several, ["a", "b"]).verdict == HOLDS


def test_claims_about_a_limit_are_within_noise_unless_two_errors_from_it():
    base = noisy(1.0, 0.0)
    assert claim_within("", noisy(1.01, 0.001), base, 0.05).verdict == HOLDS
    assert claim_within("", noisy(0.8, 0.001), base, 0.05).verdict == FAILS
    assert claim_within("", noisy(1.04, 0.1), base, 0.05).verdict == TIED
    assert claim_not_higher("", noisy(0.8, 0.001), base, 0.05).verdict == HOLDS
    assert claim_not_higher("", noisy(1.2, 0.001), base, 0.05).verdict == FAILS
    assert claim_not_higher("", noisy(1.04, 0.1), base, 0.05).verdict == TIED  # 0.04 ± 0.03
    assert claim_not_higher("", None, base, 0.05).verdict == UNKNOWN


def test_claim_not_higher_fails_only_if_the_excess_is_two_errors_above_the_limit():
    other = Score(np.zeros((1, 4)))
    for values, verdict in (
        ([0.0, 0.1, 0.0, 0.2], TIED),
        ([0.07, 0.08, 0.07, 0.08], FAILS),
        ([-0.1, -0.1, 0.0, 0.0], HOLDS),
    ):
        assert (
            claim_not_higher("no higher", Score(np.array([values])), other, 0.05).verdict == verdict
        )


def test_two_single_trainings_differ_by_the_noise_of_both():
    one, several = noisy(1.0, 0.1), noisy(1.0, 0.1, seeds=3)
    assert seed_noise([one, one]) == pytest.approx(math.sqrt(0.015**2 + 0.015**2))
    assert seed_noise([several, one]) == seed_noise([one])
    assert seed_noise([several, None]) == seed_noise([one, one], same_model=True) == 0.0


@pytest.mark.parametrize(
    ("value", "above", "verdict"),
    [(0.1, True, HOLDS), (0.01, True, FAILS), (0.01, False, HOLDS), (0.1, False, FAILS)],
)
def test_a_claim_about_a_threshold_holds_on_the_claimed_side(value, above, verdict):
    assert claim_threshold("", value, 0.05, above=above).verdict == verdict
    assert claim_threshold("", math.nan, 0.05, above=above).verdict == UNKNOWN


def test_generated_cases_name_their_subject_within_or_after_the_short_length():
    cases = matching.generated(400, 32, 80, seed=3)
    early = 0
    for case in cases:
        places = {}
        for name, text in (("a", case.a), ("b", case.b), ("c", case.c)):
            assert len(text) == 80
            (matter,) = [m for m in matching.MATTERS if f"[{m}]" in text]
            begin = text.index(f"[{matter}]")
            places[name] = (matter, begin, begin + len(matter) + 2)
        nearer, farther = ("b", "c") if case.label == "B" else ("c", "b")
        assert places["a"][0] == places[nearer][0] != places[farther][0]
        inside = {end <= 32 for _, _, end in places.values()}
        assert len(inside) == 1
        early += inside == {True}
        assert all(end <= 32 or begin >= 32 for _, begin, end in places.values())
    assert abs(early / 400 - matching.EARLY) < 0.08
    assert matching.reachable(80, {"long": 80}) == 1.0
    assert matching.reachable(32, {"long": 80}) == matching.EARLY + (1 - matching.EARLY) / 2


def test_a_model_that_finds_the_subject_reaches_the_best_possible_accuracy():
    """The model here finds the subject in brackets if it is among the tokens that it reads."""
    cases = matching.generated(300, 32, 80, seed=4)

    class Counts(torch.nn.Module):
        def forward(self, tokens, padding=None):
            # which subject stands in brackets, as one of eight directions; a constant vector if
            # none does
            found = torch.full((*tokens.shape, len(matching.MATTERS)), 0.01)
            for i, letters in enumerate(tokens):
                text = bytes(letters.tolist()).decode()
                for place, matter in enumerate(matching.MATTERS):
                    found[i, :, place] += 5.0 * (f"[{matter}]" in text)
            return found

    batches = TripletBatches(cases, "triplets", shuffle=False)
    seen = matching.right(Counts(), batches, 80, torch.device("cpu"))
    assert seen.mean() == 1.0
    cut = matching.right(Counts(), batches, 32, torch.device("cpu"))
    assert abs(cut.mean() - matching.reachable(32, {"long": 80})) < 0.1


@pytest.mark.parametrize("nearer", [0, 1])
def test_the_contrast_of_matching_is_the_softmax_of_both_cosines(nearer):
    """A model that reads three angles: A at 0, one text at 0.1, the other at 0.5 radians; padding
    must not count.
    """
    near, far = math.cos(0.1), math.cos(0.5)

    class Angles(torch.nn.Module):
        def forward(self, tokens, padding):
            angles = torch.where(padding, tokens / 10, 99.0)
            return torch.stack((angles.cos(), angles.sin()), dim=-1) * 3

    texts = [[0, 0], [1, 1], [5, 5]] if nearer == 0 else [[0, 0], [5, 5], [1, 1]]
    tokens = torch.tensor([[*text, 7] for text in texts])
    padding = torch.tensor([[True, True, False]] * 3)
    batch = Batch(tokens, torch.tensor([nearer]), 1, padding=padding)
    by_hand = math.log(1 + math.exp((far - near) / 0.05))
    assert matching.contrast(Angles(), batch).item() == pytest.approx(by_hand, rel=1e-4)
    wrong = Batch(tokens, torch.tensor([1 - nearer]), 1, padding=padding)
    assert matching.contrast(Angles(), wrong).item() == pytest.approx(
        by_hand + (near - far) / 0.05, rel=1e-4
    )


def test_a_grid_asks_for_the_patch_below_the_mark():
    batch = multimodal.GridBatches(seed=5, axes=2).batch(np.arange(7), 25)
    assert batch.positions is not None
    assert batch.positions.shape == (2, 7, 25)
    for tokens, targets, rows, columns in zip(
        batch.inputs, batch.targets, *batch.positions, strict=True
    ):
        (place,) = (targets != IGNORED).nonzero().flatten().tolist()
        assert tokens[place] == multimodal.MARK
        (below,) = (
            ((rows == rows[place] + 1) & (columns == columns[place])).nonzero().flatten().tolist()
        )
        assert targets[place] == tokens[below]
    again = multimodal.GridBatches(seed=5).batch(np.arange(7), 25)
    assert again.positions is None
    assert torch.equal(again.inputs, batch.inputs)


def test_row_by_row_loss_weighs_rows_alike_whatever_their_targets():
    logits = torch.randn(3, 4, 9, dtype=torch.float64)
    targets = torch.randint(9, (3, 4))
    targets[1, 1:] = IGNORED
    count = int((targets != IGNORED).sum())
    means = [F.cross_entropy(logits[i].float(), targets[i], ignore_index=IGNORED) for i in range(3)]
    model = torch.nn.Identity()
    model.forward = lambda tokens: logits  # type: ignore[method-assign]
    found = passkey.row_by_row(model, Batch(targets, targets, count))
    torch.testing.assert_close(found / count, sum(means) / 3)


def test_masked_tokens_are_the_same_at_every_length():
    text = np.random.default_rng(0).integers(0, 256, (5, 24))
    seen: dict[int, list] = {}

    class Watched(torch.nn.Module):
        def forward(self, tokens):
            seen.setdefault(tokens.shape[1], []).append(tokens)
            # the answer depends on the whole piece, by the sum of its tokens
            return F.one_hot((tokens.sum(1, keepdim=True) + tokens) % 264, 264).float()

    rows = {
        n: mlm_lengths.masked_rows(Watched(), text, Bytes(), n, torch.device("cpu"), stage=1)
        for n in (8, 24)
    }
    masked, targets = mask_tokens(text, np.arange(5), Bytes(), seed=1)
    assert torch.equal(torch.cat(seen[8]).flatten(), masked.long().flatten())
    assert torch.equal(torch.cat(seen[24]), masked.long())
    asked = targets != IGNORED
    for length, found in rows.items():
        (measured,) = select(found, "loss", length=length)
        for value, window, tokens, wanted in zip(
            measured["values"], text, masked, asked, strict=True
        ):
            losses = []
            for at in wanted.nonzero().flatten().tolist():
                piece = tokens[at // length * length :][:length]
                logits = F.one_hot((piece.sum() + tokens[at]) % 264, 264).double()
                losses.append(-F.log_softmax(logits, -1)[window[at]].item())
            assert value == pytest.approx(sum(losses) / len(losses), rel=1e-5)


@pytest.mark.parametrize("answer", ["text", "input", "next"])
def test_masked_accuracy_is_the_share_of_targets_that_are_predicted(answer):
    """A model that predicts the text is right at every masked token, one that predicts its input at
    few, and one that predicts the byte above that of the text at none.
    """
    text = np.random.default_rng(1).integers(0, 256, (6, 64))
    inputs, targets = mask_tokens(text, np.arange(6), Bytes(), seed=1)
    given = {"text": text, "input": inputs.numpy(), "next": (text + 1) % 256}[answer]

    class Fixed(torch.nn.Module):
        def forward(self, tokens):
            return F.one_hot(torch.from_numpy(given).long(), 264).float()

    found = mlm_lengths.masked_rows(Fixed(), text, Bytes(), 64, torch.device("cpu"), stage=1)
    (measured,) = select(found, "accuracy", length=64)
    for window in range(6):
        asked = [at for at in range(64) if targets[window, at] != IGNORED]
        right = [given[window, at] == text[window, at] for at in asked]
        assert measured["values"][window] == pytest.approx(sum(right) / len(asked), abs=1e-6)
    if answer != "input":
        assert measured["mean"] == pytest.approx(1.0 if answer == "text" else 0.0)


def test_attention_by_distance_is_that_of_the_definition():
    """The mean over two layers, two heads and the queries 7 and 8."""
    torch.manual_seed(3)
    model = Decoder(
        DecoderConfig(20, 12, 16, num_layers=2, num_heads=2, head_dim=6, init_std=0.5, length=9)
    ).eval()
    tokens = torch.randint(20, (3, 9))
    found = decay.weights_by_distance(model, tokens, 7)
    layers: list[Any] = list(model.layers)
    read = []
    hooks = [
        layer.input_layernorm.register_forward_hook(lambda *parts: read.append(parts[-1]))
        for layer in layers
    ]
    with torch.no_grad():
        model(tokens)
        projected = [
            [t.double() for t in layer.self_attn.project(x)[:2]]
            for layer, x in zip(layers, read, strict=True)
        ]
    for hook in hooks:
        hook.remove()
    frequencies = [10_000.0 ** (-2 * i / 6) for i in range(3)]
    expected = torch.zeros(3, 8, dtype=torch.float64)
    for (q, k), text, query, head in product(projected, range(3), (7, 8), range(2)):
        scores = []
        for key in range(query + 1):
            a, b = (
                torch.complex(t[text, head, at, :3], t[text, head, at, 3:])
                for t, at in ((q, query), (k, key))
            )
            angle = torch.tensor(
                [(query - key) * frequency for frequency in frequencies], dtype=torch.float64
            )
            scores.append((a * b.conj() * torch.exp(1j * angle)).real.sum() / math.sqrt(6))
        weights = torch.stack(scores).softmax(0)
        expected[text] += torch.stack([weights[query - d] for d in range(8)]) / 8
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_yarn_keeps_its_ramp_within_the_turns_of_a_short_training():
    for length in (32, 128, 256, 4096):
        scaling = extension_methods.yarn(4.0, length)
        assert scaling.beta_slow < scaling.beta_fast <= 32
        assert scaling.beta_fast < length / (2 * math.pi) or length == 4096
    plain = RopeSpec(head_dim=32)
    found = tensors(extension_methods.spec_for("ntk", plain, 4, 128)).radians
    base = 10_000 * 4 ** (32 / 30)
    torch.testing.assert_close(
        found, torch.tensor([base ** (-2 * i / 32) for i in range(16)], dtype=torch.float64)
    )
    assert extension_methods.spec_for("none", plain, 4, 128) == plain


def test_searched_factors_are_no_worse_than_all_ones_or_all_the_factor():
    torch.manual_seed(1)
    model = Decoder(
        DecoderConfig(30, 16, 24, num_layers=1, num_heads=2, head_dim=8, init_std=0.5, length=8)
    ).eval()
    windows = np.random.default_rng(0).integers(0, 30, (3, 33))
    found = extension_methods.search_longrope(model, windows, 4, 8, population=8, rounds=2, seed=0)
    assert [layer.self_attn.encoding.rope.spec for layer in model.layers] == [RopeSpec(head_dim=8)]
    assert len(found) == 4
    assert list(found) == sorted(found)

    def loss(factors):
        spec = extension_methods.spec_for("longrope", RopeSpec(head_dim=8), 4, 8, factors)
        other = Decoder(model.config.with_(encoding=spec)).eval()
        other.load_state_dict(model.state_dict())
        tokens = torch.from_numpy(windows)
        with torch.no_grad():
            return F.cross_entropy(
                other(tokens[:, :-1])[:, -8:].flatten(0, 1), tokens[:, -8:].flatten()
            ).item()

    assert loss(found) <= min(loss((1.0,) * 4), loss((4.0,) * 4)) + 1e-6


@pytest.mark.parametrize("name", ["rope", "alibi", "sinusoidal", "fire"])
def test_logits_of_relative_encodings_alone_are_unchanged_by_a_shift(name):
    workspace = Workspace(Path("unused"), torch.device("cpu"))
    rows = relative.measure(workspace, seed=0, names=[name], shifts=[1000], windows=2, length=9)
    assert (rows[0]["mean"] < relative.UNCHANGED) == (name in ("rope", "alibi"))


def test_values_that_are_not_finite_become_the_largest_json_number():
    found = row("loss", [1.23456789, float("nan"), float("inf")], seed=0)
    assert found["values"] == [1.23457, NOT_FINITE, NOT_FINITE]
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_embeddings_begin_with_a_deviation_of_1_unless_tied_to_the_output():
    for tied in (False, True):
        torch.manual_seed(0)
        config = DecoderConfig(
            300, 40, 16, num_layers=1, num_heads=2, init_std=0.05, tie_embeddings=tied
        )
        found = scale_embeddings(Decoder(config)).embed_tokens.weight.std().item()  # type: ignore[union-attr]
        assert found == pytest.approx(0.05 if tied else 1.0, rel=0.05)


def test_a_cache_of_softmax_attention_grows_and_one_of_linear_attention_does_not():
    sizes = {"num_layers": 2, "num_heads": 2, "head_dim": 6}
    held = {}
    for attention in ("softmax", "linear"):
        model = Decoder(DecoderConfig(20, 12, 16, attention=attention, **sizes)).eval()  # type: ignore[arg-type]
        for length in (5, 10):
            caches = model.caches()
            with torch.no_grad():
                model.features(torch.zeros(1, length, dtype=torch.int64), caches=caches)
            held[attention, length] = sum(linear.held_bytes(cache) for cache in caches)
    assert held["linear", 5] == held["linear", 10]
    # keys and values of two heads of six floats, in two layers, beside small numbers for positions
    assert held["softmax", 10] - held["softmax", 5] >= 5 * 2 * 2 * 2 * 6 * 4


def test_an_order_that_is_wrong_at_one_place_does_not_hold_whatever_is_tied():
    scores = {
        "a": noisy(1.2, 0.01, salt=1),
        "b": noisy(1.0, 0.01, salt=2),
        "c": noisy(1.001, 0.01, salt=3),
    }
    for order in (["a", "b", "c"], ["c", "b", "a"][::-1]):
        assert claim_order("", scores, order).verdict == FAILS
    assert claim_order("", scores, ["b", "c", "a"]).verdict == TIED


def test_a_value_at_the_threshold_is_at_least_the_threshold():
    assert claim_threshold("", 0.05, 0.05, above=True).verdict == HOLDS
    assert claim_threshold("", 0.05, 0.05, above=False).verdict == FAILS
    assert claim_threshold("", 0.05, 0.05, above=True).evidence == "5.0e-02, threshold 0.05"
