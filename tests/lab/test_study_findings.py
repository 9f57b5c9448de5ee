"""Findings from rows that were made up: which row a cell comes from, and when a claim holds."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ropewalk.encodings import Sizes
from ropewalk.encodings.rotary import Rotary
from ropewalk.spec import RopeSpec
from ropewalk_lab.scores import Score
from ropewalk_lab.studies import (
    encodings,
    migrate,
    mlm_lengths,
    multimodal,
    norms,
    passkey,
    precision,
    relative,
)
from ropewalk_lab.studies.findings import FAILS, HOLDS, TIED, cell, percent
from ropewalk_lab.studies.rows import row, score


def test_each_row_of_the_stated_norm_ablation_gets_our_model_of_that_kind():
    rows = []
    for place, name in enumerate(("none", "norm not kept", "LayerNorm before", "LayerNorm after")):
        rows += [
            row(metric, [place + 1.0, place + 1.0], norm=name, seed=0, length=8)
            for metric in ("loss", "accuracy")
        ]
        rows += [row("moved", [10.0**-place, 0.0], norm=name, seed=0, shift=5)]
    cells = norms.findings(rows, {}).ours["norm-ablation"].cells
    assert {name: text[0].split()[0] for name, text in cells.items()} == {
        "plain RoPE": "1.000",
        "no norm": "2.000",
        "LayerNorm after the rotation": "4.000",
    }
    assert cells["LayerNorm after the rotation"][2] == "1.0e-03"


def found_rows(base, seed, length, shares):
    return [
        row("found", values, base=base, method="none", seed=seed, length=length, depth=depth)
        for depth, values in enumerate(shares)
    ]


def test_missed_pass_keys_are_one_minus_the_found_over_all_depths():
    rows = found_rows(1e4, 0, 96, [[1, 1, 0], [0, 1, 1]]) + found_rows(
        1e4, 1, 96, [[1, 1, 1], [1, 1, 1]]
    )
    rows += found_rows(5e5, 0, 96, [[0, 0, 0], [0, 0, 0]])
    missed = passkey.missed(rows, 1e4, 96)
    assert missed is not None
    assert missed.values.tolist() == [[0, 0, 1, 1, 0, 0], [0] * 6]
    assert passkey.missed(rows, 1e4, 97) is None


def test_a_larger_base_is_better_only_if_it_misses_fewer():
    none, all_ = [[0.0] * 30, [0.0] * 30], [[1.0] * 30, [1.0] * 30]
    for larger, verdict in ((all_, HOLDS), (none, FAILS)):
        rows = found_rows(1e4, 0, 96, all_) + found_rows(5e5, 0, 96, all_)
        usual = none if larger is all_ else all_
        rows += found_rows(1e4, 0, 192, usual) + found_rows(5e5, 0, 192, larger)
        claims = {claim.text: claim.verdict for claim in passkey.findings(rows, {}).claims}
        assert claims["At 192, base 500,000 misses fewer pass keys than base 10,000"] == verdict


def test_the_longest_working_length_is_the_one_before_the_first_failure():
    assert passkey._reach({96: 1.0, 192: 0.96, 384: 0.5, 768: 1.0}) == "192"
    assert passkey._reach({96: 0.94, 192: 1.0}) == "none"
    assert passkey._reach({96: 1.0, 192: None}) == "96"


def test_pass_keys_stand_beside_published_ones_at_twice_the_trained_length():
    found = {"none": [1, 0, 0, 0], "linear": [1, 1, 0, 0], "yarn": [1, 1, 1, 0]}
    rows = found_rows(1e4, 0, 96, [[1, 1, 1, 1]])
    for length in (192, 384):
        for method, values in found.items():
            hits = values if length == 192 else [0, 0, 0, 0]
            fields = {"base": 1e4, "method": method, "seed": 0, "depth": 0.5}
            rows.append(row("found", hits, length=length, **fields))
    ours = passkey.findings(rows, {}).ours["drope-needle"]
    assert ours.columns == ("pass keys at 192",)
    assert ours.cells == {
        "RoPE": ("25.0 %",),
        "PI": ("50.0 %",),
        "NTK": ("-",),
        "YaRN": ("75.0 %",),
    }


def test_a_relative_encoding_whose_logits_change_fails_the_claim_and_is_named():
    rows = [
        row("moved", [1e-6], model="rope", shift=5, seed=0),
        row("moved", [1.0], model="sinusoidal", shift=5, seed=0),
    ]
    assert relative.findings(rows, {}).claims[0].verdict == HOLDS
    moved = [row("moved", [1.0], model="alibi", shift=5, seed=0)]
    claim = relative.findings(rows + moved, {}).claims[0]
    assert (claim.verdict, claim.evidence) == (FAILS, "except alibi")


def test_the_claim_of_precision_fails_if_the_exact_method_has_a_large_error():
    rows = [row("error", 1e-7, way=way, position=5) for way in precision.COS_SIN_METHODS]
    assert precision.findings(rows, {}).claims[0].verdict == HOLDS
    rows[0] = row("error", 1e-5, way="exact", position=5)
    assert precision.findings(rows, {}).claims[0].verdict == FAILS


def test_the_mean_of_a_row_is_the_mean_of_its_values():
    assert row("loss", [1.0, 2.0, 6.0])["mean"] == 3.0


def test_a_score_has_its_rows_in_the_order_of_their_seeds():
    rows = [row("loss", [float(seed), 2.0 * seed], model="a", seed=seed) for seed in (2, 0, 1)]
    found = score(rows, "loss", model="a")
    assert found is not None
    assert found.values.tolist() == [[0, 0], [1, 2], [2, 4]]


def test_cells_show_mean_and_error():
    values = Score(np.array([[0.1, 0.3, 0.2]]))
    assert cell(values) == "0.200 ± 0.058"
    assert percent(values) == "20.0% ± 5.8%"
    assert cell(None) == percent(None) == "-"


def test_encodings_are_sorted_by_their_loss_as_a_number():
    losses = {"rope": 9.5, "none": 10.5, "alibi": 1.5}
    rows = []
    for name, loss in losses.items():
        fields = {"model": name, "seed": 0}
        rows += [row("loss", [loss, loss], length=n, **fields) for n in (8, 16)]
        rows += [
            row("accuracy", [0.5], length=8, **fields),
            row("parameters", 1, **fields),
            row("seconds per step", 1.0, **fields),
        ]
    table = encodings.findings(rows, {}).tables[0]
    assert [cells[0] for cells in table.rows] == ["alibi", "rope", "none"]


def test_the_note_on_images_names_the_trained_size_of_the_settings():
    rows = [
        row("wrong", [0.0, 1.0], model=name, seed=0, side=side)
        for name in ("rope", "rope_2d")
        for side in (4, 8)
    ]
    (table,) = multimodal.findings(rows, {"settings": {"side": 8}}).tables
    assert table.note.startswith("Trained on 8 x 8;")


def test_a_count_is_exact_and_a_loss_has_six_digits():
    assert row("parameters", 100_891_392)["values"] == [100_891_392]
    assert row("loss", [1.23456789])["values"] == [1.23457]


def test_the_last_claim_of_stages_is_that_longer_inputs_have_a_lower_loss():
    def verdict(at_8, at_16):
        rows = [
            row("loss", [loss, loss + 0.01], stage=1, length=length, trained=16, seed=0)
            for length, loss in ((8, at_8), (16, at_16))
        ]
        return mlm_lengths.claims(rows, [1], {1: 16})[-1].verdict

    assert verdict(3.0, 2.0) == HOLDS
    assert verdict(2.0, 3.0) == FAILS


@pytest.mark.parametrize(
    ("found", "count", "verdict"),
    [(1000, 1000, HOLDS), (97, 100, TIED), (94, 100, TIED), (100, 100, HOLDS), (50, 100, FAILS)],
)
def test_pass_keys_are_found_only_beyond_two_standard_errors(found, count, verdict):
    """At least 95 %: 97 and 94 of 100 are off by 1.7 and 2.4 %, and so within two errors of it."""
    values = [1.0] * found + [0.0] * (count - found)
    rows = [row("found", values, base=1e4, method="none", length=64, depth=0.0, seed=0)]
    (claim,) = passkey.claims(rows, [64], [1e4])
    share = found / count
    error = math.sqrt(max(share * (1 - share), 1 / count) / count)
    assert claim.verdict == verdict
    assert claim.evidence == f"{share:.1%} ± {error:.1%} of {count}"
    assert "at least 95% of the pass keys" in claim.text


def test_the_change_by_a_shift_is_the_largest_of_each_window(monkeypatch):
    """The change is divided by the deviation of all logits; in this model a shift by 5 changes one
    logit of each window by 0.5.
    """

    class Sums(torch.nn.Module):
        def __init__(self, config):
            super().__init__()

        def forward(self, tokens, positions):
            logits = torch.zeros(*tokens.shape, 2)
            logits[..., 0] = tokens
            logits[:, 3, 1] = positions[3].float() / 10  # one logit of every row follows positions
            return logits

    monkeypatch.setattr(relative, "Decoder", Sums)
    workspace = SimpleNamespace(device=torch.device("cpu"))
    rows = relative.measure(workspace, seed=0, names=["rope"], shifts=[5], windows=3, length=6)
    tokens = torch.randint(64, (3, 6), generator=torch.Generator().manual_seed(0))
    plain = Sums(None)(tokens, torch.arange(6)).double()
    assert rows[0]["values"] == pytest.approx([0.5 / plain.std().item()] * 3, rel=1e-4)


def test_a_migrated_model_is_trained_at_the_rate_of_the_study(monkeypatch):
    asked = []

    class Stop(Exception):
        pass

    def fine_tuning(original, *given):
        asked.append(given)
        raise Stop

    monkeypatch.setattr(migrate.training, "fine_tuning", fine_tuning)
    stage = "train.stages=[{length=24, batch=3, steps=7}]"
    with pytest.raises(Stop):
        migrate.measure(
            None,
            variant=migrate.FRESH,
            steps=5,
            seed=2,
            preset="smoke",
            changes=[stage, "train.learning_rate=0.5"],
            source="sinusoidal",
            rate=0.25,
            windows=2,
        )
    # the length and the batch of the model's own training; steps, rate and seed of the study
    assert asked == [(24, 3, 5, 0.25, 2)]


def test_the_window_of_the_rope_model_is_its_trained_length(monkeypatch):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList([torch.nn.Identity() for _ in range(3)])

    trainer = SimpleNamespace(model=Model(), log=SimpleNamespace(rows=list), step=1)
    asked, measured = [], []
    monkeypatch.setattr(encodings.training, "train_or_load", lambda *given: trainer)
    monkeypatch.setattr(encodings.training, "held_out_windows", lambda *given: given[1:])
    monkeypatch.setattr(
        encodings.training,
        "loss_rows",
        lambda reader, text, lengths, tail, /, **named: (
            measured.append((text, lengths, tail)) or []
        ),
    )
    monkeypatch.setattr(
        encodings, "migrate", lambda *given, **named: asked.append((given[1:], named)) or trainer
    )
    encodings.measure(
        None,
        encoding="rope",
        seed=0,
        preset="smoke",
        changes=["train.stages=[{length=24, batch=3, steps=7}]"],
        multiples=[1, 2],
        windows=5,
    )
    assert asked == [(("rope",), {"window": 24, "layer_types": ("sliding",) * 3})]
    # five windows as long as the longest context; the loss of the same last 24 tokens
    assert measured == [((5, 48), [24, 48], 24)] * 2


def test_a_norm_after_the_rotation_has_weights_for_queries_and_others_for_keys():
    sizes = Sizes(num_heads=2, head_dim=4, model_dim=8, length=8)
    encoding = norms.NormedRotary(sizes, RopeSpec(4), torch.nn.RMSNorm)
    torch.nn.init.constant_(encoding.q_norm.norm.weight, 2.0)
    torch.nn.init.constant_(encoding.k_norm.norm.weight, 3.0)
    x = torch.randn(1, 2, 3, 4)
    plain = Rotary(sizes, RopeSpec(4)).rotate(x, torch.arange(3), key=False)
    size = plain.square().mean(-1, keepdim=True).sqrt()
    for key, weight in ((False, 2.0), (True, 3.0)):
        found = encoding.rotate(x, torch.arange(3), key=key)
        torch.testing.assert_close(found, weight * plain / size, atol=1e-4, rtol=1e-4)


def test_a_norm_of_heads_is_computed_in_float32():
    norm = norms.LearnedHeadNorm(torch.nn.LayerNorm, 4)
    x = torch.tensor([[1.0, 2.0, 3.0, 200.0]]).bfloat16()
    seen = []
    norm.norm.register_forward_hook(lambda module, given, out: seen.append(given[0].dtype))
    assert norm(x).dtype == torch.bfloat16
    assert seen == [torch.float32]


def test_the_share_of_a_preset_is_that_of_the_pass_keys(monkeypatch):
    corpus = SimpleNamespace(train=None, vocab_size=264, fingerprint="text")
    monkeypatch.setattr(passkey.training, "corpus_of", lambda preset: corpus)
    preset = SimpleNamespace(train=SimpleNamespace(seed=6), data={})
    mixed = passkey.passkey_batches(preset, 0.2)
    text, keys = mixed.parts
    assert (text.fingerprint, keys.task) == ("text", "passkey")
    assert mixed.shares == (0.8, 0.2)
    assert (mixed.seed, text.seed, keys.seed) == (6, 6, 6)
