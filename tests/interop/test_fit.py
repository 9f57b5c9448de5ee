"""`fit` on a tiny random Llama: its figures equal the written-out definitions, work resumes, and no
method beats the choice.
"""

import copy
import json
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

import ropewalk as rw
from ropewalk.attention.remap import REMAPPINGS
from ropewalk.errors import RopeError
from ropewalk.interop.extend.keys import kinds
from ropewalk_lab.fit import reader as reader_module
from ropewalk_lab.fit import session
from ropewalk_lab.fit.decide import Decision, MethodChoice, beats, choose, scores_of
from ropewalk_lab.fit.passkeys import make_passkey
from ropewalk_lab.fit.reader import Reader
from ropewalk_lab.fit.text import bands_of, key_tokens, limited_losses, windows_of


def encode(text: str) -> list[int]:
    return list(text.encode())


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=24,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=32,
        initializer_range=0.4,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def tokens():
    return torch.randint(256, (2000,), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fit")


@pytest.fixture(scope="module")
def fitted(model, tokens, folder):
    return rw.fit(model, 128, text=tokens, windows=3, out=folder)


def true_losses(model, window):
    """The loss of every token from all logits at once, in float64, by the model without our
    kernels.
    """
    with torch.no_grad():
        logits = model(window[None]).logits[0, :-1].double()
    return F.cross_entropy(logits, window[1:], reduction="none")


def extended_copy(model, name):
    """A copy of the model, extended four times by the method of this name."""
    own = copy.deepcopy(model)
    if name != "none":
        with warnings.catch_warnings(action="ignore", category=UserWarning):
            rw.extend(own, name, **({} if name == "dynamic_yarn" else {"factor": 4}))
    return own


def test_without_a_search_fit_measures_every_method_but_longrope(fitted):
    assert set(fitted.facts["methods"]) == {"none", "by_parts", *kinds(), *REMAPPINGS} - {
        "longrope"
    }
    assert not fitted.skipped


@pytest.mark.parametrize("name", ["none", "linear", "yarn", "dynamic_yarn", "self_extend", "dca"])
def test_losses_by_band_are_those_of_transformers(fitted, model, tokens, name):
    losses = true_losses(extended_copy(model, name), windows_of(tokens, 128, 3)[1])
    (row,) = (
        r
        for r in fitted.rows
        if (r["method"], r["metric"], r.get("window"), r["length"]) == (name, "text", 1, 128)
    )
    expected = [losses[:15].mean(), losses[15:31].mean(), losses[31:63].mean(), losses[63:].mean()]
    np.testing.assert_allclose(row["bands"], [float(each) for each in expected], rtol=1e-4)
    assert bands_of(32, 128) == [(0, 16), (16, 32), (32, 64), (64, 128)]


def test_the_table_has_mean_and_standard_error_of_the_rows(fitted):
    columns, cells = fitted.table()
    assert columns[:6] == ["method", "0-16", "16-32", "32-64", "64-128", "LongPPL"]
    assert all(len(each) == len(columns) for each in cells)
    (linear,) = (each for each in cells if each[0] == "linear")
    far = [
        row
        for row in fitted.rows
        if row["method"] == "linear" and row["metric"] == "text" and row["length"] == 128
    ]
    last = [row["bands"][-1] for row in far]
    assert linear[4] == f"{np.mean(last):.3f} ± {np.std(last, ddof=1) / 3**0.5:.3f}"
    assert str(fitted).splitlines()[0].startswith("method")
    assert "Recommended for 128" in str(fitted)


def test_the_model_is_left_as_it_was(fitted, model, tokens):
    assert model.config.max_position_embeddings == 32
    assert model.config.rope_parameters["rope_type"] == "default"
    again = copy.deepcopy(model)
    assert torch.equal(again(tokens[None, :40]).logits, model(tokens[None, :40]).logits)


def test_losses_do_not_depend_on_the_chunks(model, tokens, monkeypatch):
    whole = Reader(model).losses(tokens[None, :61])
    monkeypatch.setattr(reader_module, "MAX_LOGITS", 256 * 7)
    torch.testing.assert_close(Reader(model).losses(tokens[None, :61]), whole, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(whole[0], true_losses(model, tokens[:61]), rtol=1e-4)


@pytest.mark.parametrize(
    ("length", "context", "stride"), [(41, 8, 3), (43, 8, 3), (20, 8, 3), (32, 8, 8), (9, 8, 3)]
)
def test_each_token_is_read_with_at_least_context_tokens_before_it(
    model, tokens, length, context, stride
):
    """Each token is read with at least `context` tokens before it and fewer than `context + stride`,
    or with all where there are fewer.
    """
    window = tokens[:length]
    found = limited_losses(Reader(model), window, context, stride)
    for token in range(1, length):
        begin = 0 if token < context + stride else (token - context) // stride * stride
        assert token - begin >= min(token, context)
        expected = float(true_losses(model, window[begin : token + 1])[-1])
        assert float(found[token - 1]) == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_key_tokens_are_those_that_a_longer_context_helps(model, tokens):
    window = tokens[:100]
    mask = key_tokens(Reader(model), window, 32).mask
    short, long = (limited_losses(Reader(model), window, *each) for each in ((8, 2), (24, 8)))
    expected = [
        float(s - f) > 2 and float(f) < 2 and place >= 7
        for place, (s, f) in enumerate(zip(short, long, strict=True))
    ]
    assert mask.tolist() == expected


def test_a_pass_key_is_found_if_greedy_decoding_says_it(model):
    made = make_passkey(encode, 300, 0.5)
    reader, prompt = Reader(model), made.tokens[: -made.answer]
    said = model.generate(
        prompt[None], max_new_tokens=made.answer, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    assert bool(reader.says(said, made.answer))
    assert bool(reader.says(made.tokens[None], made.answer)) == bool(said[0].equal(made.tokens))
    wrong = said.clone()
    wrong[0, -1] = (wrong[0, -1] + 1) % 256
    assert not bool(reader.says(wrong, made.answer))


def test_fit_measures_pass_keys_at_three_depths(model, tokens, tmp_path):
    found = rw.fit(
        model,
        512,
        trained=256,
        text=tokens,
        tokenizer=encode,
        methods=["linear"],
        windows=2,
        passkeys=3,
        out=tmp_path,
    )
    keys = [row for row in found.rows if row["metric"] == "passkey"]
    assert len(keys) == found.facts["passkeys"] * 2
    assert {row["found"] for row in keys} <= {0, 1}
    assert {row["depth"] for row in keys} == {0.0, 0.5, 1.0}


def test_a_fit_that_was_stopped_measures_only_the_missing_rows(
    fitted, model, tokens, folder, monkeypatch
):
    path = folder / "rows.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:5]) + '\n{"metric": "te')  # stopped while it wrote a row
    before, calls = Reader.losses, []
    monkeypatch.setattr(
        Reader,
        "losses",
        lambda self, t, first=1: (calls.append(t.shape), before(self, t, first))[1],
    )
    again = rw.fit(model, 128, text=tokens, windows=3, out=folder)
    strip = lambda rows: [
        {k: v for k, v in row.items() if k not in ("seconds", "memory")} for row in rows
    ]
    assert strip(again.rows) == strip(fitted.rows)
    calls.clear()
    rw.fit(model, 128, text=tokens, windows=3, out=folder)
    assert calls == []
    other = rw.fit(model, 128, text=tokens.flip(0), windows=3, methods=["linear"], out=folder)
    assert len({row["run"] for row in other.rows}) == 1
    assert other.rows[0]["run"] != again.rows[0]["run"]


def rows_for(losses: dict, keys: dict) -> list[dict]:
    """Rows of methods with the given losses and shares of pass keys beyond and within, for 8
    windows and 10 depths.
    """
    random = np.random.default_rng(4)
    noise, rows = random.normal(0, 0.3, 8), []
    for name, (far, near) in losses.items():
        for window in range(8):
            row = {"metric": "text", "method": name, "window": window}
            rows.append(
                row | {"length": 400, "bands": [0, far + noise[window] + random.normal(0, 0.002)]}
            )
            rows.append(row | {"length": 100, "loss": near + noise[window]})
        for length, share in zip((90, 380), keys[name], strict=True):
            row = {"metric": "passkey", "method": name, "length": length}
            rows += [
                row | {"depth": depth, "found": int(depth < share * 10)} for depth in range(10)
            ]
    return rows


def test_the_choice_is_judged_by_both_loss_and_pass_keys():
    """The figures of a real model: static YaRN has the smallest loss but no pass keys within the
    trained length.
    """
    losses = {
        "none": (7.7, 3.5),
        "ntk": (3.79, 3.56),
        "yarn": (3.746, 3.58),
        "dynamic_yarn": (3.746, 3.5),
        "dynamic": (4.19, 3.5),
    }
    keys = {
        "none": (1.0, 0.0),
        "ntk": (0.9, 0.6),
        "yarn": (0.0, 0.9),
        "dynamic_yarn": (1.0, 0.9),
        "dynamic": (1.0, 0.9),
    }
    found = choose(scores_of(rows_for(losses, keys), 100, 400), ["ntk", "yarn", "dynamic"])
    assert found.method == "dynamic_yarn"
    assert not found.equal
    assert set(found.beats) == {"ntk", "yarn", "dynamic", "none"}
    assert "90%" in found.reason
    assert "no difference" in found.reason


def test_methods_whose_losses_differ_by_noise_are_equal():
    losses = {"none": (3.500, 3.5), "yarn": (3.4999, 3.5), "ntk": (3.5001, 3.5)}
    found = choose(scores_of(rows_for(losses, dict.fromkeys(losses, (1.0, 1.0))), 100, 400))
    assert found.method == "none"
    assert set(found.equal) == {"yarn", "ntk"}
    assert not found.beats


def test_a_method_that_is_no_better_than_none_is_not_recommended_though_a_config_can_express_it():
    losses = {"none": (3.500, 3.5), "yarn": (3.4999, 3.5)}
    scores = scores_of(rows_for(losses, dict.fromkeys(losses, (1.0, 1.0))), 100, 400)
    assert choose(scores, ["yarn"]).method == "none"


def test_a_config_that_can_be_saved_is_preferred_among_equals():
    losses = {"none": (5.0, 3.5), "dynamic_yarn": (3.49999, 3.5), "yarn": (3.5, 3.5)}
    keys = {"none": (1.0, 0.0), "dynamic_yarn": (1.0, 1.0), "yarn": (1.0, 1.0)}
    assert choose(scores_of(rows_for(losses, keys), 100, 400), ["yarn"]).method == "yarn"


def test_no_other_method_beats_the_choice_on_random_rows():
    random = np.random.default_rng(7)
    for _ in range(8):
        names = "abcde"
        losses = {name: tuple(random.choice([3.5, 3.6, 3.9], 2)) for name in names}
        keys = {name: tuple(random.choice([0.0, 0.5, 1.0], 2)) for name in names}
        scores = scores_of(rows_for(losses, keys), 100, 400)
        best = choose(scores).method
        assert not any(beats(scores[name], scores[best]) for name in names)


def test_a_method_that_was_not_measured_in_full_is_not_chosen():
    rows = rows_for(
        {"none": (5.0, 3.5), "yarn": (3.0, 3.5)}, {"none": (1.0, 0.0), "yarn": (1.0, 1.0)}
    )
    assert scores_of(rows[:-1], 100, 400).keys() == {"none"}


def test_the_config_file_is_that_of_extend_and_is_removed_if_none_is_recommended(
    model, tokens, tmp_path, monkeypatch
):
    expected = model.config.to_dict()
    rw.extend(expected, "yarn", factor=4, attention_factor=1.0)
    by_parts = MethodChoice("by_parts", "", (), ())
    decision = Decision(by_parts, by_parts, by_parts)
    monkeypatch.setattr(session, "decide", lambda scores, in_config: decision)
    found = rw.fit(model, 128, text=tokens, windows=2, methods=["by_parts"], out=tmp_path)
    assert (tmp_path / "fit-config.json").read_text() == json.dumps(found.config, indent=2) + "\n"
    assert found.config["rope_parameters"] == expected["rope_parameters"]
    assert found.config["max_position_embeddings"] == 128
    decision = replace(decision, in_config=replace(by_parts, method="none"))
    rw.fit(model, 128, text=tokens, windows=2, methods=["by_parts"], out=tmp_path)
    assert not (tmp_path / "fit-config.json").exists()


def test_longrope_is_searched_on_a_window_of_its_own(model, tokens):
    found = rw.fit(model, 64, text=tokens, windows=3, methods=["longrope"], search=16)
    assert {row["method"] for row in found.rows} == {"none", "longrope"}
    (factors,) = (row["values"] for row in found.rows if row["metric"] == "factors")
    assert len(factors) == 4
    assert factors == sorted(factors)


def test_fit_refuses_wrong_arguments_by_name(model, tokens, tmp_path):
    with pytest.raises(RopeError, match="to: must be an integer from 33"):
        rw.fit(model, 32, text=tokens)
    with pytest.raises(RopeError, match="text: must have at least 6 x 512"):
        rw.fit(model, 512, text=tokens)
    with pytest.raises(RopeError, match="search: must be given"):
        rw.fit(model, 64, text=tokens, methods=["longrope"])
    with pytest.raises(RopeError, match="model: must be a causal language model"):
        rw.fit(model.model, 64, text=tokens)
    with pytest.raises(RopeError, match=r"model: must be a Hugging Face folder or a \.gguf file"):
        rw.fit(tmp_path / "nothing", 64)


def test_fit_measures_a_decoder(tokens):
    torch.manual_seed(0)
    config = rw.models.DecoderConfig(
        vocab_size=256, hidden_size=24, intermediate_size=32, num_layers=2, num_heads=3, length=32
    )
    model = rw.Decoder(config).eval()
    found = rw.fit(model, 64, text=tokens, windows=2, methods=["linear", "dynamic_yarn"])
    (row,) = (
        r
        for r in found.rows
        if (r["method"], r["metric"], r.get("window"), r["length"]) == ("linear", "text", 0, 64)
    )
    spec = model.layers[0].self_attn.encoding.rope.spec
    slower = rw.models.migrate(model, spec.with_(scaling=rw.frequencies.Linear(factor=2.0))).model
    with torch.no_grad():
        logits = slower.eval()(tokens[None, :64])[0, :-1].double()
    assert row["loss"] == pytest.approx(float(F.cross_entropy(logits, tokens[1:64])), rel=1e-5)


@pytest.mark.parametrize("name", ["none", "linear", "yarn", "dynamic", "dynamic_yarn", "rerope"])
def test_the_loss_within_the_trained_length_is_that_of_the_text_cut_there(
    fitted, model, tokens, name
):
    window = windows_of(tokens, 128, 3)[2]
    (row,) = (
        r
        for r in fitted.rows
        if (r["method"], r["metric"], r.get("window"), r["length"]) == (name, "text", 2, 32)
    )
    np.testing.assert_allclose(
        row["loss"], float(true_losses(extended_copy(model, name), window[:32]).mean()), rtol=1e-4
    )
    # the cut text is read by itself only with these methods; with others the long text has its losses
    assert ("seconds" in row) == (name in ("dynamic", "dynamic_yarn", "rerope"))


def test_without_long_ppl_no_key_tokens_are_looked_for(model, tokens, monkeypatch):
    monkeypatch.setattr(
        "ropewalk_lab.fit.measure.key_tokens",
        lambda *_: pytest.fail("key tokens are looked for"),
    )
    found = rw.fit(model, 64, text=tokens, windows=2, methods=["linear"], long_ppl=False)
    columns, cells = found.table()
    assert "LongPPL" not in columns
    assert all(len(each) == len(columns) for each in cells)
