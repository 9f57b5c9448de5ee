"""Studies on pretrained models, with a tiny random Llama: rows equal the written-out definitions."""

import copy
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from ropewalk.config.hf import from_hf
from ropewalk.errors import RopeError
from ropewalk.interop.patch import patched
from ropewalk.spec import RopeSpec
from ropewalk_lab.fit.methods import extended
from ropewalk_lab.fit.reader import Reader
from ropewalk_lab.long_ce import chunked_loss, token_weights
from ropewalk_lab.studies import STUDIES, real_extend, real_kv, real_precision, real_tune, run_study
from ropewalk_lab.studies.findings import FAILS, HOLDS, TIED
from ropewalk_lab.studies.jobs import Workspace
from ropewalk_lab.studies.real import known_methods, make_meter, open_real, real_windows
from ropewalk_lab.studies.rows import row

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def tiny():
    return open_real("tiny", CPU)


def test_long_ce_gives_the_weights_and_loss_of_the_reference_implementation():
    """The weights and the loss of three tokens, as the reference implementation gives them."""
    short, full = torch.tensor([5.0, 3.0, 1.0]), torch.tensor([1.5, 2.5, 0.2])
    weights = token_weights(short, full, 1)
    torch.testing.assert_close(weights, torch.tensor([5.0, math.exp(0.5), math.exp(0.8)]))
    assert float((weights * full).mean()) == pytest.approx(4.022304, abs=1e-6)
    assert token_weights(short, full, 3).tolist() == pytest.approx([1.0, 1.0, math.exp(0.8)])


@pytest.mark.parametrize("weighted", [False, True])
def test_a_chunked_loss_has_the_value_and_gradient_of_the_whole(weighted, monkeypatch):
    torch.manual_seed(0)
    hidden, weight, targets = (
        torch.randn(11, 5, dtype=torch.float64),
        torch.randn(7, 5, dtype=torch.float64),
        torch.arange(11) % 7,
    )
    short = torch.rand(11, dtype=torch.float64) * 4 if weighted else None
    whole, parts = hidden.clone().requires_grad_(), hidden.clone().requires_grad_()
    losses = F.cross_entropy(whole @ weight.T, targets, reduction="none")
    factors = 1.0
    if short is not None:
        factors = torch.minimum(
            (short - losses).detach().exp(), torch.tensor(5.0, dtype=torch.float64)
        )
        factors[:2] = 1.0  # a context of 3: tokens 1 and 2
    (losses * factors).mean().backward()
    monkeypatch.setattr("ropewalk_lab.long_ce.MAX_LOGITS", 7 * 2)
    loss = chunked_loss(parts, lambda x: x @ weight.T, targets, 7, short, 3)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(
        float((losses * factors).mean().detach()), rel=1e-5
    )
    torch.testing.assert_close(parts.grad, whole.grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("most", "sizes"), [(14, [2, 2, 2, 2, 2, 1]), (6, [1] * 11)])
def test_a_chunk_has_as_many_tokens_as_logits_fit_and_at_least_one(most, sizes, monkeypatch):
    monkeypatch.setattr("ropewalk_lab.long_ce.MAX_LOGITS", most)
    seen, hidden = [], torch.randn(11, 7)
    chunked_loss(hidden, lambda x: seen.append(len(x)) or x, torch.arange(11) % 7, 7)
    assert seen == sizes


def test_mean_kl_equals_the_kl_of_all_logits_at_once(tiny):
    model, encode = tiny
    # the KL of the float16 model, 1e-6, would be near the rounding errors of float32
    rounded = copy.deepcopy(model).to(torch.bfloat16)
    tokens = real_windows(["python"], encode, 33, 2)[:1]
    with torch.no_grad():
        exact, other = (
            each(tokens).logits[0].double().log_softmax(-1) for each in (model, rounded)
        )
    expected = float((exact.exp() * (exact - other)).sum(-1).mean())
    assert real_precision.mean_kl(model, rounded, tokens, 0) == pytest.approx(expected, rel=1e-2)
    assert real_precision.mean_kl(model, model, tokens, 0) == pytest.approx(0.0, abs=1e-7)


def test_the_kl_is_that_of_the_rounded_model_from_the_reference(tiny):
    """Of two models that are far apart, the KL of one from the other is not that of the other."""
    model, encode = tiny
    sharper = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in sharper.parameters():
            parameter.mul_(1.5)
        tokens = real_windows(["python"], encode, 33, 2)[:1]
        of_model, of_sharper = (
            each(tokens).logits[0].double().log_softmax(-1) for each in (model, sharper)
        )
    kl = lambda p, q: float((p.exp() * (p - q)).sum(-1).mean())
    there, back = kl(of_model, of_sharper), kl(of_sharper, of_model)
    assert abs(there - back) > 0.05 * there
    assert real_precision.mean_kl(model, sharper, tokens, 0) == pytest.approx(there, rel=1e-4)
    assert real_precision.mean_kl(sharper, model, tokens, 0) == pytest.approx(back, rel=1e-4)


def test_positions_from_10_million_change_nothing_with_exact_angles(tiny):
    """transformers computes the angles in float32, which at ten million differs; ours do not."""
    model, encode = tiny
    tokens = real_windows(["python"], encode, 33, 2)[:1]
    own = copy.deepcopy(model)
    theirs = real_precision.mean_kl(model, own, tokens, 10_000_000)
    with patched(own):
        ours = real_precision.mean_kl(model, own, tokens, 10_000_000)
    assert ours < 1e-6
    assert theirs > 100 * ours


def test_continuing_a_shifted_cache_gives_the_loss_of_reading_again(tiny):
    model, encode = tiny
    window = real_windows(["python"], encode, 40, 2)[0]
    with patched(model):
        losses = real_kv.Continuation(model).losses(window, 8, 4, 1000)
    with torch.no_grad():
        logits = model(window[None]).logits[0]
    expected = float(F.cross_entropy(logits[31:39], window[32:40]))
    assert losses["read again"] == pytest.approx(expected, rel=1e-5)
    assert losses["shift"] == pytest.approx(expected, rel=1e-4)
    shorter = torch.cat([window[:4], window[16:]])
    with torch.no_grad():
        logits = model(shorter[None]).logits[0]
    expected = float(F.cross_entropy(logits[-9:-1], shorter[-8:]))
    assert losses["read again, without the dropped tokens"] == pytest.approx(expected, rel=1e-5)


def test_one_layer_has_no_hidden_context_so_re_rotated_keys_are_exact(tiny):
    """A key of the first layer depends on its own token only, so after re-rotation it equals the key
    that reading the shorter text again would give.
    """
    model, encode = tiny
    window = real_windows(["python"], encode, 40, 2)[1]
    with patched(model):
        losses = real_kv.Continuation(model).losses(window, 8, 4, 1000)
    assert losses["evict, gap closed"] == pytest.approx(
        losses["read again, without the dropped tokens"], rel=1e-4
    )
    assert losses["reuse, re-rotated"] == pytest.approx(losses["read again"], rel=1e-4)
    assert abs(losses["reuse, as cached"] - losses["read again"]) > 1e-3


@pytest.mark.parametrize("objective", [real_tune.CE, real_tune.LONG_CE])
def test_training_lowers_the_loss_and_leaves_the_model_unextended(objective):
    model, encode = open_real("tiny", CPU)
    tokens = real_windows(["python"], encode, 512, 2).flatten()
    before = Reader(model).losses(tokens[None, :256]).mean()
    curve = real_tune.train(
        model, known_methods(["linear"])["linear"], tokens, 64, 4.0, objective, 12, 1e-2, 0, encode
    )
    assert len(curve) == 12
    assert np.mean(curve[-3:]) < np.mean(curve[:3])
    assert not model.training
    assert model.config.max_position_embeddings == 64
    assert Reader(model).losses(tokens[None, :256]).mean() < before


# torch warns if this CPU lacks the instructions for bfloat16
@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed:UserWarning")
def test_mixed_precision_computes_with_the_weights_of_the_last_step():
    model, encode = open_real("tiny", CPU)
    tokens = real_windows(["python"], encode, 512, 2).flatten()
    with real_tune.mixed_precision(CPU, enabled=True):
        before = Reader(model).losses(tokens[None, :256]).mean()
        real_tune.train(
            model,
            known_methods(["linear"])["linear"],
            tokens,
            64,
            4.0,
            real_tune.CE,
            12,
            1e-2,
            0,
            encode,
        )
        after = Reader(model).losses(tokens[None, :256]).mean()
    assert after < before
    # float32, outside
    assert after == pytest.approx(float(Reader(model).losses(tokens[None, :256]).mean()), rel=2e-2)


@pytest.mark.parametrize(("name", "options"), [("clipped", {"pairs": 2}), ("longrope", None)])
def test_clipped_pairs_and_longrope_factors_follow_from_the_model(name, options, tmp_path):
    """SmolLM2's clipped pairs are those with a wavelength beyond the trained length; LongRoPE's
    factors come from a search.
    """
    model, encode = open_real("tiny", CPU)
    meter = make_meter(
        Workspace(tmp_path, CPU),
        model,
        encode,
        ["python"],
        name="tiny",
        trained=64,
        factor=2.0,
        windows=2,
        search=16,
    )
    spec = from_hf(model.config)
    method = real_tune._method(name, meter, 16, spec)
    if options is not None:
        wavelengths = [2 * np.pi * spec.theta ** (pair / spec.pairs) for pair in range(spec.pairs)]
        assert method.options == options
        assert sum(each > 64 for each in wavelengths) == options["pairs"]
    window = meter.samples.windows[:1]
    before = meter.reader.losses(window)
    with extended(model, method, 2.0, 64):
        assert not torch.equal(meter.reader.losses(window), before)
    torch.testing.assert_close(meter.reader.losses(window), before)
    with pytest.raises(RopeError, match="search"):
        real_tune._method("longrope", meter, 0, spec)


@pytest.mark.parametrize("trained", [7, 30, 300, 5000])
def test_the_clipped_pairs_are_those_that_complete_no_turn_in_training(trained):
    spec = RopeSpec(20, 500.0)
    meter = SimpleNamespace(samples=SimpleNamespace(trained=trained))
    method = real_tune._method("clipped", meter, 0, spec)  # type: ignore[arg-type]
    turns = [trained / (2 * math.pi * 500 ** (pair / 10)) for pair in range(10)]
    assert method.options == {"pairs": sum(each < 1 for each in turns)}


TUNED = sorted({method for preset in real_tune.PRESETS.values() for method in preset["methods"]})


@pytest.mark.parametrize("method", TUNED)
def test_every_method_of_the_presets_is_trained_and_measured(method, tmp_path):
    """The smallest preset has two of these methods; after the training, each is measured on windows
    of the new length.
    """
    names = (
        "model",
        "text",
        "factor",
        "steps",
        "rate",
        "train_text",
        "codes",
        "windows",
        "depths",
        "search",
    )
    settings = {name: real_tune.PRESETS["smoke"][name] for name in names}
    found = real_tune.measure(
        Workspace(tmp_path, CPU), method=method, objective=real_tune.CE, seed=0, **settings
    )
    bands = {each["band"]: each["values"] for each in found if each["metric"] == "loss"}
    assert list(bands) == ["0-32", "32-64", "64-128", "128-256"]
    assert np.isfinite(list(bands.values())).all()


def test_a_larger_search_does_not_reuse_the_losses_of_a_smaller_one(tmp_path):
    """A first run with a smaller search has found other factors, whose losses lie in the same
    workspace.
    """

    def losses(folder: str, search: int) -> list[list[float]]:
        settings = {
            "model": "tiny",
            "text": ["python"],
            "methods": ["longrope"],
            "factor": 4.0,
            "windows": 2,
            "search": search,
        }
        rows = real_extend.measure(Workspace(tmp_path / folder, CPU), **settings)
        return [each["values"] for each in rows if each["metric"] == "loss"]

    small = losses("one", 8)
    assert losses("one", 128) == losses("another", 128) != small


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("norms", "norms=['LayerNorm afer']"),
        ("real_tune", "objectives=['longce']"),
        ("real_extend", "methods=['yarm', 'none']"),
        ("real_passkey", "methods=['yarm', 'none']"),
        ("real_tune", "methods=['yarm']"),
    ],
)
def test_a_mistyped_name_is_refused(name, change, tmp_path):
    field, wrong = change.partition("=")[0], change.split("'")[1]
    with pytest.raises(RopeError, match=f"(?s){field}.*must be one of .*{wrong}"):
        run_study(STUDIES[name], "smoke", tmp_path, changes=[change], workers=1, quiet=True)


def test_claims_of_tuning_are_judged_with_two_standard_errors():
    fields = {"method": "yarn", "objective": "LongCE", "seed": 0, "trained": 64, "steps": 9}
    rows = [
        row("loss", [3.0, 3.2, 3.1], band="0-32", end=32, **fields),
        row("loss", [3.0, 3.2, 3.1], band="32-64", end=64, **fields),
        row("loss", [3.01, 3.21, 3.11], band="64-128", end=128, **fields),
        row("found", [1.0] * 9 + [0.0], length=120, **fields),
    ]
    close, found = real_tune.claims(rows, {"trained": 64})
    assert close.verdict == HOLDS
    assert found.verdict == TIED
    rows[2] = row("loss", [3.5, 3.7, 3.6], band="64-128", end=128, **fields)
    rows[3] = row("found", [0.0] * 9 + [1.0], length=120, **fields)
    assert [claim.verdict for claim in real_tune.claims(rows, {"trained": 64})] == [FAILS, FAILS]


def test_claims_of_tuning_pair_far_and_near_losses_within_each_seed():
    rows = []
    for seed, loss in enumerate((2.0, 3.0)):
        fields = {"method": "yarn", "objective": "LongCE", "seed": seed, "trained": 64, "steps": 9}
        rows += [
            row("loss", [loss] * 3, band=band, end=end, **fields)
            for band, end in (("32-64", 64), ("64-128", 128))
        ]
        rows.append(row("found", [1.0 - seed] * 4, length=120, **fields))
    close, found = real_tune.claims(rows, {"trained": 64})
    assert (close.verdict, close.evidence) == (HOLDS, "+0.0% ± 0.0%")
    assert found.evidence == "50% ± 50%"  # the model of one seed found all keys, the other none


def test_a_second_run_of_real_kv_measures_nothing_again(tmp_path, monkeypatch):
    workspace = Workspace(Path(tmp_path), CPU)
    settings = {
        "model": "tiny",
        "text": ["python"],
        "length": 24,
        "next": 4,
        "sinks": 2,
        "shift": 9,
        "windows": 2,
    }
    first = real_kv.measure(workspace, **settings)
    monkeypatch.setattr(real_kv.Continuation, "losses", lambda *_: pytest.fail("measured again"))
    assert real_kv.measure(workspace, **settings) == first


def test_a_model_of_another_dtype_is_measured_again(tmp_path, monkeypatch):
    settings = {
        "model": "tiny",
        "text": ["python"],
        "length": 24,
        "next": 4,
        "sinks": 2,
        "shift": 9,
        "windows": 2,
    }
    first = real_kv.measure(Workspace(tmp_path / "one", CPU), **settings)
    monkeypatch.setattr(
        real_kv, "open_real", lambda name, device: open_real(name, device, torch.float16)
    )
    rounded = real_kv.measure(Workspace(tmp_path / "one", CPU), **settings)
    assert rounded == real_kv.measure(Workspace(tmp_path / "another", CPU), **settings) != first


def test_too_little_text_to_train_on_is_refused(tiny):
    model, encode = tiny
    with pytest.raises(RopeError, match=r"train_text.*at least 256 tokens"):
        real_tune.train(
            model,
            known_methods(["none"])["none"],
            torch.zeros(255).long(),
            64,
            4.0,
            real_tune.CE,
            1,
            1e-3,
            0,
            encode,
        )


def test_a_short_text_is_measured_on_the_windows_it_has(tmp_path, monkeypatch):
    """A text of 255 bytes has six windows of 40 bytes, and ten of 24."""
    monkeypatch.setattr(
        "ropewalk_lab.studies.real.real_text", lambda name: "a rope is walked " * 15
    )
    workspace, source = (
        Workspace(tmp_path, CPU),
        {"model": "tiny", "text": ["short"], "windows": 12},
    )
    rows = real_kv.measure(workspace, **source, length=32, next=8, sinks=2, shift=9)
    assert {len(each["values"]) for each in rows} == {255 // 40}
    rows = real_precision.measure(
        workspace, **source, dtypes=["float16"], lengths=[24, 40], offsets=[0]
    )
    assert [(each["length"], len(each["values"])) for each in rows] == [
        (24, 255 // 24),
        (40, 255 // 40),
    ] * 2


@pytest.mark.parametrize(
    ("length", "count", "spare", "starts"),
    [
        (100, 4, 1, "aabba"),
        (100, 3, 0, "aab"),
        (400, 8, 1, "abbbbbbba"),
        (600, 12, 0, "abbbbbbbb"),
        (1200, 5, 0, "bbbb"),
    ],
)
def test_where_one_text_is_too_short_other_texts_give_more_windows(
    monkeypatch, length, count, spare, starts
):
    texts = {"first": "a" * 1000, "second": "b" * 5000}
    monkeypatch.setattr("ropewalk_lab.studies.real.real_text", texts.__getitem__)
    take = lambda: real_windows(
        ["first", "second"], lambda text: list(text.encode()), length, count, spare
    )
    if len(starts) < min(5, count):
        with pytest.raises(RopeError, match="text"):
            take()
    else:
        assert [chr(window[0]) for window in take()] == list(starts)


def test_a_missing_loss_shifts_no_other_point_of_the_figure(monkeypatch):
    drawn = {}
    monkeypatch.setattr(real_tune, "line_figure", lambda series, **_: drawn.update(series))
    fields = {"method": "yarn", "steps": 2}
    bands = {"0-16": 1.0, "16-32": 2.0, "32-64": 3.0}
    rows = [
        row("loss", mean, band=band, end=end, objective=objective, **fields)
        for objective in ("ce", "longce")
        for (band, mean), end in zip(bands.items(), (16, 32, 64), strict=True)
        if (objective, band) != ("longce", "16-32")
    ]
    real_tune.findings(rows, {"model": "m", "text": ["t"], "trained": 16, "seeds": 1})
    assert drawn["yarn, ce"] == ([0.0, 1.0, 2.0], [1.0, 2.0, 3.0])
    assert drawn["yarn, longce"] == ([0.0, 2.0], [1.0, 3.0])
