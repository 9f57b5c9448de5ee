"""The steps of a fit: how many passes it reads in, what it measures again, which search it makes,
and what it refuses.
"""

import copy
import json
import math
import warnings

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

import ropewalk as rw
from ropewalk.errors import RopeError
from ropewalk.frequencies import Yarn
from ropewalk_lab.fit import measure
from ropewalk_lab.fit import reader as reader_module
from ropewalk_lab.fit.methods import config_with, extended, methods
from ropewalk_lab.fit.reader import Reader

TOKENS = torch.randint(256, (3000,), generator=torch.Generator().manual_seed(1))


def encode(text: str) -> list[int]:
    return list(text.encode())


def llama(**keys):
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=24,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=3,
        head_dim=8,
        max_position_embeddings=512,
        initializer_range=0.4,
        **keys,
    )
    return LlamaForCausalLM(config).eval()


def decoder():
    """A random Decoder with large weights, so that its losses depend on every angle."""
    torch.manual_seed(0)
    model = rw.Decoder(
        rw.models.DecoderConfig(256, 24, 32, num_layers=2, num_heads=3, length=32)
    ).eval()
    for weight in model.parameters():
        weight.data *= 20 if weight.ndim > 1 else 1
    return model


def loss_of(model, tokens):
    with torch.no_grad():
        return float(F.cross_entropy(model(tokens[None])[0, :-1].double(), tokens[1:]))


def row_of(found, **fields):
    (row,) = (
        row for row in found.rows if all(row.get(name) == value for name, value in fields.items())
    )
    return row


def test_pass_keys_of_one_length_are_one_pass_and_missing_ones_are_measured_later(
    tmp_path, monkeypatch
):
    says, shapes = Reader.says, []
    monkeypatch.setattr(
        Reader,
        "says",
        lambda self, tokens, answer: (shapes.append(len(tokens)), says(self, tokens, answer))[1],
    )
    fit = lambda: rw.fit(
        llama(),
        1024,
        text=TOKENS,
        tokenizer=encode,
        windows=2,
        passkeys=3,
        methods=[],
        long_ppl=False,
        out=tmp_path,
    )
    first = fit()
    lengths = [round(0.95 * length) for length in (512, 768, 1024)]
    assert [row["length"] for row in first.rows if row["metric"] == "passkey"] == [
        each for each in lengths for _ in range(3)
    ]
    assert shapes == [3, 3, 3]
    path = tmp_path / "rows.jsonl"
    kept = [
        line
        for line in path.read_text().splitlines()
        if json.loads(line).get("length") != lengths[1]
    ]
    path.write_text("".join(f"{line}\n" for line in kept))
    again = fit()
    assert shapes == [3, 3, 3, 3]
    in_order = lambda rows: sorted(json.dumps(row) for row in rows)
    assert in_order(again.rows) == in_order(first.rows)


def test_a_decoder_searches_longrope_with_as_many_candidates_as_it_says(monkeypatch):
    model, reported, read = decoder(), [], []
    losses = Reader.losses
    monkeypatch.setattr(
        Reader, "losses", lambda self, tokens: (read.append(tokens.shape), losses(self, tokens))[1]
    )
    found = rw.fit(
        model,
        64,
        text=TOKENS,
        windows=2,
        methods=["longrope"],
        search=32,
        long_ppl=False,
        report=reported.append,
    )
    # two rounds of 16 after the first candidates
    assert reported[0].text == "longrope: search with up to 48 candidates"
    # passes that measure two windows: one for each with the unchanged model, whose loss on the short
    # text is read from the long one, and two for each with longrope
    measured = 2 * 1 + 2 * 2
    assert 6 < len(read) - measured <= 48
    factors = tuple(row_of(found, metric="factors")["values"])
    assert len(factors) == 4
    scaling = rw.frequencies.LongRope((1.0,) * 4, factors, original_length=32, factor=2.0)
    other = rw.models.migrate(
        model, model.layers[0].self_attn.encoding.rope.spec.with_(scaling=scaling)
    ).model.eval()
    for length in (32, 64):
        row = row_of(found, metric="text", method="longrope", window=0, length=length)
        assert row["loss"] == pytest.approx(loss_of(other, TOKENS[:length]), rel=1e-5)


def test_a_decoder_is_measured_with_remappings():
    model = decoder()
    found = rw.fit(model, 64, text=TOKENS, windows=2, methods=["self_extend"])
    own = copy.deepcopy(model)
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        rw.extend(own, "self_extend", factor=2.0, original_length=32)
    assert not found.skipped
    row = row_of(found, metric="text", method="self_extend", window=0, length=64)
    assert row["loss"] == pytest.approx(loss_of(own, TOKENS[:64]), rel=1e-5)


def test_config_with_is_none_for_methods_that_no_config_can_express():
    model, known = llama(), methods()
    assert config_with(model, known["yarn"], 2.0, 512)["rope_parameters"]["rope_type"] == "yarn"
    for name in ("none", "dynamic_yarn", "self_extend"):
        assert config_with(model, known[name], 2.0, 512) is None
    assert config_with(decoder(), known["yarn"], 2.0, 32) is None


def test_integers_of_numpy_are_those_of_python(tmp_path):
    given = {"windows": 2, "passkeys": 0, "seed": 5}
    plain = rw.fit(llama(), 1024, text=TOKENS, methods=[], long_ppl=False, **given)
    other = {name: np.int64(value) for name, value in given.items()}
    found = rw.fit(
        llama(), np.int64(1024), text=TOKENS, methods=[], long_ppl=False, out=tmp_path, **other
    )
    assert found.rows[0]["run"] == plain.rows[0]["run"]
    facts = (tmp_path / "fit.json").read_text()
    assert facts.startswith('{\n  "model": "LlamaForCausalLM",\n')
    assert json.loads(facts)["to"] == 1024


def test_without_a_text_the_documentation_of_python_is_read():
    found = rw.fit(
        llama(), 1024, tokenizer=encode, windows=2, passkeys=0, methods=[], long_ppl=False
    )
    assert found.facts["text"] == ["Python's documentation"]
    assert found.facts["tokens"][0] > 100_000


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"passkeys": 100_001}, "passkeys: must be an integer from 0 to 100000"),
        ({"search": 100_001}, "search: must be an integer from 0 to 100000"),
        ({"seed": -1}, "seed: must be an integer from 0"),
    ],
)
def test_numbers_that_are_typing_errors_are_refused(given, message):
    with pytest.raises(RopeError, match=message):
        rw.fit(llama(), 1024, text=TOKENS, windows=2, **given)


def test_a_model_with_a_large_vocabulary_is_read_token_by_token(monkeypatch):
    model = llama()
    whole = Reader(model).losses(TOKENS[None, :20])
    assert Reader(model).vocab_size == 256
    monkeypatch.setattr(reader_module, "MAX_LOGITS", 1)
    torch.testing.assert_close(Reader(model).losses(TOKENS[None, :20]), whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("scale", "is_read"), [(1.0, True), (1.001, True), (1.025, False), (math.inf, False)]
)
def test_a_model_that_changes_its_logits_after_its_head_is_refused(scale, is_read):
    """Rounding in bfloat16 is below 1 %; a temperature of 2.5 % is none."""

    class Scaled(LlamaForCausalLM):
        def forward(self, *given, **keys):
            out = super().forward(*given, **keys)
            out.logits = out.logits.tanh() if math.isinf(scale) else out.logits * scale
            return out

    model = llama()
    model.__class__ = Scaled
    if is_read:
        assert Reader(model).vocab_size == 256
    else:
        with pytest.raises(RopeError, match="must compute its logits by one matrix product"):
            Reader(model)


@pytest.mark.parametrize("make", [llama, decoder])
def test_an_extended_model_is_refused_and_stays_extended(make):
    model = make()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        extension = rw.extend(model, "rerope", factor=2)
    with pytest.raises(
        RopeError,
        match=r"must have no extension before it is measured; call extend\(model, None\) first; got 'rerope'",
    ):
        rw.fit(model, 1024, text=TOKENS, windows=2, methods=["linear"], long_ppl=False)
    assert extension._installed
    rw.extend(model, None)
    assert (
        rw.fit(
            model, 1024, text=TOKENS, windows=2, methods=[], long_ppl=False
        ).recommendation.method
        == "none"
    )


def test_methods_with_losses_that_are_not_finite_are_listed(monkeypatch):
    losses, kinds = Reader.losses, {"linear": math.nan}
    spoil = lambda self, tokens, first=1: (
        losses(self, tokens, first)
        + kinds.get((self.model.config.rope_parameters or {}).get("rope_type"), 0.0)
    )
    monkeypatch.setattr(Reader, "losses", spoil)
    found = rw.fit(
        llama(), 1024, text=TOKENS, windows=2, methods=["linear", "dynamic"], long_ppl=False
    )
    assert found.skipped == {"linear": "its loss is not finite"}
    assert "Not measured: linear (its loss is not finite)." in str(found)
    kinds |= {"default": math.inf, "dynamic": math.inf}
    with pytest.raises(
        RopeError, match=r"must have one that can be measured .*dynamic: its loss is not finite"
    ):
        rw.fit(llama(), 1024, text=TOKENS, windows=2, methods=["linear", "dynamic"], long_ppl=False)


@pytest.mark.parametrize("methods", [["longrope", "linear"], None])
def test_a_search_that_fails_leaves_longrope_out(methods, monkeypatch):
    def fail(*args, **kwargs):
        raise RopeError("search", "must give a finite loss for some factors", math.inf)

    monkeypatch.setattr(measure, "search_longrope", fail)
    found = rw.fit(
        decoder(), 64, text=TOKENS, windows=2, methods=methods, search=16, long_ppl=False
    )
    assert "must give a finite loss" in found.skipped["longrope"]
    assert {row["method"] for row in found.rows} >= {"none", "linear"}


def test_rows_of_another_search_are_not_kept(tmp_path):
    fit = lambda search, out: rw.fit(
        decoder(),
        64,
        text=TOKENS,
        windows=2,
        methods=["longrope"],
        search=search,
        long_ppl=False,
        out=out,
    )
    fit(16, tmp_path / "one")
    again, alone = fit(64, tmp_path / "one"), fit(64, None)
    losses = lambda found: [
        row["loss"] for row in found.rows if row["method"] == "longrope" and row["metric"] == "text"
    ]
    assert losses(again) == losses(alone)
    assert losses(again) != losses(fit(16, None))


def test_the_rope_of_a_decoder_keeps_its_backend_and_a_scaled_one_is_not_replaced():
    model = decoder()
    encodings = [layer.self_attn.encoding for layer in model.layers]
    for encoding in encodings:
        encoding.rope = rw.Rope(encoding.rope.spec, backend="reference", tables="none")
    with extended(model, methods()["linear"], 2.0, 32):
        assert {
            (each.rope.backend, each.rope.tables, each.rope.spec.scaling.name) for each in encodings
        } == {("reference", "none", "linear")}
    encodings[1].rope = rope = rw.Rope(
        encodings[1].rope.spec.with_(scaling=Yarn(original_length=32, factor=2.0))
    )
    with (
        pytest.raises(RopeError, match="must have no scaling of its own"),
        extended(model, methods()["linear"], 2.0, 32),
    ):
        pass
    assert encodings[1].rope is rope


def test_every_module_has_its_own_mode_again():
    model = llama().train()
    model.model.layers[0].eval()
    modes = [module.training for module in model.modules()]
    assert len(set(modes)) == 2
    with reader_module.reading(model):
        assert not any(module.training for module in model.modules())
    assert [module.training for module in model.modules()] == modes


def test_no_text_at_all_is_refused():
    with pytest.raises(RopeError, match="text: must name at least one file or folder"):
        rw.fit(llama(), 1024, text=[], tokenizer=encode)
