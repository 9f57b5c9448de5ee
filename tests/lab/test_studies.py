"""Every study runs, its rows are what the definition gives for the saved models, and work that is done is not done again."""

import cmath
import json
import math
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
import torch
from study_cases import run_tiny, tiny
from torch.nn import functional as F

from ropewalk import RopeSpec
from ropewalk.errors import RopeError
from ropewalk.frequencies import Given
from ropewalk.interop.checkpoint.safetensors_file import read_header, read_rows
from ropewalk.lab.corpus import open_corpus
from ropewalk.lab.studies import STUDIES, read_study
from ropewalk.lab.studies.findings import FAILS, HOLDS, TIED, UNKNOWN
from ropewalk.lab.studies.rows import distinct, select
from ropewalk.lab.studies.study import FACTS, ROWS
from ropewalk.models import Decoder, DecoderConfig

SIZES: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_layers": 2, "num_heads": 2}
#: wide weights, or attention is even and no position matters in models that were hardly trained
SHARP = ["model.init_std=0.4"]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("studies")


def saved_decoder(models: Path, name: str, encoding) -> Decoder:
    """A trained model from its checkpoint alone."""
    (path,) = models.glob(f"{name}-*/step-*/model.safetensors")
    header = read_header(path)
    model = Decoder(DecoderConfig(vocab_size=264, encoding=encoding, length=32, **SIZES))
    missing = model.load_state_dict({key: read_rows(path, header, key) for key in header.entries}, strict=False)
    assert not missing.unexpected_keys
    return model.eval()


def tail_losses(model: Decoder, windows: np.ndarray, length: int, tail: int) -> list[float]:
    """The mean loss of the last `tail` tokens of each window, token by token."""
    found = []
    for window in torch.from_numpy(windows.astype(np.int64)):
        seen = window[-(length + 1) :]
        with torch.no_grad():
            logits = model(seen[None, :-1])[0]
        losses = [-F.log_softmax(logits[t].double(), -1)[seen[t + 1]].item() for t in range(length - tail, length)]
        found.append(sum(losses) / tail)
    return found


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_runs_and_writes_rows_facts_and_figures(name, place):
    folder = run_tiny(name, place)
    rows, facts = read_study(folder)
    assert rows == [json.loads(line) for line in (folder / ROWS).read_text().splitlines()]
    assert (facts["study"], facts["preset"]) == (name, "smoke")
    findings = STUDIES[name].findings(rows, facts)
    assert all(len(cells) == len(table.columns) for table in findings.tables for cells in table.rows)
    assert findings.claims
    assert {claim.verdict for claim in findings.claims} <= {HOLDS, TIED, FAILS, UNKNOWN}
    assert findings.figures, "a study has at least one figure"
    for figure in findings.figures:
        pixels = matplotlib.image.imread(folder / f"{figure}.png")
        assert min(pixels.shape[:2]) > 200
        assert len(np.unique(pixels.reshape(-1, pixels.shape[-1]), axis=0)) > 10, "an empty picture has a single colour"
        assert (folder / f"{figure}.svg").read_text().rstrip().endswith("</svg>")
    assert set(findings.ours) <= set(STUDIES[name].published)


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_has_every_preset_and_refuses_unknown_settings(name):
    study = STUDIES[name]
    assert list(study.presets) == ["smoke", "cpu", "gpu", "cluster"]
    assert all(preset.keys() == study.presets["smoke"].keys() and preset["seeds"] >= 1 for preset in study.presets.values())
    assert study.settings("cpu", ["seeds=7"])["seeds"] == 7
    with pytest.raises(RopeError, match=f"a setting of {name}"):
        study.settings("cpu", ["nonsense=1"])
    with pytest.raises(RopeError, match="preset"):
        study.settings("huge")


@pytest.mark.parametrize("encoding", ["rope", "sinusoidal"])
def test_losses_of_encodings_are_those_of_the_saved_models(encoding, place):
    rows, facts = read_study(run_tiny("encodings", place, "sharp", changes=SHARP))
    windows = open_corpus(place / "text", cache=place / "cache").valid.windows(6, 129)
    model = saved_decoder(place / "sharp" / "models", f"{encoding}-0", encoding)
    for length in (32, 128):
        (row,) = select(rows, "loss", model=encoding, length=length)
        np.testing.assert_allclose(row["values"], tail_losses(model, windows, length, 32), rtol=2e-5)
    assert facts["corpus"]["fingerprint"] == open_corpus(place / "text", cache=place / "cache").fingerprint


def test_the_sliding_window_is_a_window(place):
    rows, _ = read_study(run_tiny("encodings", place, "sharp", changes=SHARP))
    plain, windowed = (select(rows, "loss", model=m, length=32)[0]["values"] for m in ("rope", "rope, sliding window"))
    assert plain == windowed
    windows = open_corpus(place / "text", cache=place / "cache").valid.windows(6, 129)
    model = saved_decoder(place / "sharp" / "models", "rope-0", "rope")
    for layer in model.layers:
        layer.self_attn.window = 32  # type: ignore[union-attr, assignment]
    (row,) = select(rows, "loss", model="rope, sliding window", length=128)
    np.testing.assert_allclose(row["values"], tail_losses(model, windows, 128, 32), rtol=2e-5)


def test_interpolation_divides_every_frequency(place):
    rows, _ = read_study(run_tiny("extend", place, "sharp", changes=SHARP))
    windows = open_corpus(place / "text", cache=place / "cache").valid.windows(6, 129)
    slower = tuple(float(10_000.0 ** (-2 * pair / 16)) / 4 for pair in range(8))
    model = saved_decoder(place / "sharp" / "models", "rope-0", RopeSpec(head_dim=16, scaling=Given(radians=slower)))
    (row,) = select(rows, "loss", method="linear", factor=4, tuned=0, length=128)
    np.testing.assert_allclose(row["values"], tail_losses(model, windows, 128, 32), rtol=2e-5)


@pytest.mark.parametrize("base", [100.0, 10_000.0])
def test_every_base_has_frequencies_of_its_own(base, place):
    rows, _ = read_study(run_tiny("base", place, "sharp", changes=SHARP, seeds=1))
    windows = open_corpus(place / "text", cache=place / "cache").valid.windows(6, 65)
    ladder = tuple(base ** (-pair / 8) for pair in range(8))
    model = saved_decoder(place / "sharp" / "models", f"base-{base:g}-0", RopeSpec(head_dim=16, scaling=Given(radians=ladder)))
    for length in (32, 64):
        (row,) = select(rows, "loss", base=base, length=length)
        np.testing.assert_allclose(row["values"], tail_losses(model, windows, length, 32), rtol=2e-5)


def test_pass_keys_are_asked_of_models_with_the_base_that_the_rows_name(place, monkeypatch):
    asked = []

    def watched(model, lengths, depths, count, **options):
        spec = model.layers[0].self_attn.encoding.rope.spec
        asked.append((spec.theta, lengths, spec.scaling.name))
        return {(lengths[0], depth): np.ones(count) for depth in depths}

    monkeypatch.setattr("ropewalk.lab.studies.passkey.depth_grid", watched)
    rows, _ = read_study(run_tiny("passkey", place, "watched"))
    expected = [
        (base, [length], scaling)
        for base in (10_000.0, 500_000.0)
        for length, scaling in ((96, "default"), (192, "default"), (192, "yarn"))
    ]
    assert asked == expected
    methods = {"default": "none", "yarn": "yarn"}
    for base, (length,), scaling in expected:
        assert len(select(rows, "found", base=base, length=length, method=methods[scaling])) == 2


def test_the_decay_study_has_the_bound_and_the_turns_of_128_dimensions(place):
    rows, _ = read_study(run_tiny("decay", place))
    steps = [10_000.0 ** (-2 * i / 128) for i in range(64)]

    def mean_of_sums(distance):
        return np.abs(np.cumsum([cmath.exp(1j * distance * step) for step in steps])).mean()

    bounds = select(rows, "bound")
    assert [row["distance"] for row in bounds] == [1, 2, 4, 8, 16]
    for row in bounds:
        assert row["mean"] == pytest.approx(mean_of_sums(row["distance"]) / mean_of_sums(0), rel=1e-5)
    found = {row["pair"]: row["mean"] for row in select(rows, "wavelength")}
    assert found == pytest.approx({"fastest": 2 * math.pi, "slowest": 2 * math.pi / steps[-1]}, rel=1e-5)


def test_norms_are_where_the_rows_say(place):
    """The saved weights of every model, put into an attention that is written out here."""
    rows, _ = read_study(run_tiny("norms", place, "sharp", changes=SHARP))
    windows = open_corpus(place / "text", cache=place / "cache").valid.windows(6, 65)
    for name in ("none", "norm not kept", "LayerNorm before", "LayerNorm after", "RMSNorm before", "RMSNorm after"):
        saved = "rope-0" if name == "none" else f"{name.replace(' ', '-')}-0"
        model, norms = saved_with_norms(place / "sharp" / "models", saved)
        for index, layer in enumerate(model.layers):
            layer.self_attn.attend = Written(layer.self_attn, name, norms, index)  # type: ignore[union-attr, assignment]
        (row,) = select(rows, "loss", norm=name, length=64)
        np.testing.assert_allclose(row["values"], tail_losses(model, windows, 64, 32), rtol=5e-5)


def saved_with_norms(models: Path, name: str) -> tuple[Decoder, dict[str, torch.Tensor]]:
    """A plain RoPE model from a checkpoint, and the weights that only a model with norms has."""
    (path,) = models.glob(f"{name}-*/step-*/model.safetensors")
    header = read_header(path)
    weights = {key: read_rows(path, header, key) for key in header.entries}
    model = Decoder(DecoderConfig(vocab_size=264, length=32, **SIZES))
    plain = model.state_dict()
    model.load_state_dict({key: weights.pop(key) for key in plain})
    return model.eval(), weights


class Written:
    """Causal attention with RoPE token by token in complex numbers, and a norm before or after the rotation."""

    def __init__(self, attention, name: str, norms: dict[str, torch.Tensor], layer: int) -> None:
        self.attention, self.name = attention, name
        own = {key: value for key, value in norms.items() if key.startswith(f"layers.{layer}.")}
        self.weights = {part: {k.rsplit(".", 1)[1]: v for k, v in own.items() if f".{part}_norm." in k} for part in "qk"}
        assert bool(own) == ("Norm " in name)

    def __call__(self, x, positions, padding, documents, cache):
        q, k, v = self.attention.project(x)
        if self.name.endswith("before"):
            q, k = self.norm(q, "q"), self.norm(k, "k")
        q, k = self.turned(q), self.turned(k)
        if self.name.endswith("after"):
            q, k = self.norm(q, "q"), self.norm(k, "k")
        scores = (q @ k.transpose(-1, -2) / 4).masked_fill(torch.ones(q.shape[-2], q.shape[-2]).triu(1).bool(), -math.inf)
        return self.attention.o_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(-2))

    def norm(self, x, part: str):
        weights = self.weights[part]
        if self.name.startswith("LayerNorm"):
            x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
            return x * weights["weight"] + weights["bias"]
        assert "bias" not in weights
        return x / (x.square().mean(-1, keepdim=True) + torch.finfo(torch.float32).eps).sqrt() * weights["weight"]

    def turned(self, x):
        angles = torch.outer(torch.arange(x.shape[-2]), 10_000.0 ** (-torch.arange(8) / 8))
        if self.name == "norm not kept":
            # dimension j has the angle of pair j mod 8, as in the half layout, but its partner is its neighbour
            cos, sin = (table.repeat(1, 2) for table in (angles.cos(), angles.sin()))
            partner = x.view(*x.shape[:-1], 8, 2).flip(-1) * torch.tensor([-1.0, 1.0])
            return x * cos + partner.flatten(-2) * sin
        turned = torch.complex(x[..., :8], x[..., 8:]) * torch.polar(torch.ones_like(angles), angles)
        return torch.cat((turned.real, turned.imag), dim=-1)


def test_studies_share_their_models(place):
    for name in ("encodings", "extend", "decay", "norms"):
        run_tiny(name, place)
    assert len(list((place / "out" / "models").glob("rope-0-*"))) == 1


def test_work_that_is_done_is_not_done_again(place, monkeypatch):
    first = read_study(run_tiny("encodings", place))[0]

    def fails(*_, **__):
        raise AssertionError("worked again")

    with monkeypatch.context() as patch:
        patch.setattr("ropewalk.lab.studies.encodings.measure", fails)
        assert read_study(run_tiny("encodings", place))[0] == first
    # a job that is gone is measured again, with the model that is still there
    next((place / "out" / "encodings" / "jobs").glob("rope-*")).unlink()
    monkeypatch.setattr("ropewalk.lab.studies.training.Trainer.take_step", fails)
    assert read_study(run_tiny("encodings", place))[0] == first
    with pytest.raises(AssertionError, match="worked again"):
        run_tiny("encodings", place, encodings=["rope", "kerple_log"])


def test_a_study_that_was_killed_goes_on_to_the_same_rows(tmp_path):
    script = Path(__file__).parent / "study_cases.py"
    run = subprocess.Popen([sys.executable, str(script), str(tmp_path), "killed"], cwd=script.parent)
    jobs = tmp_path / "killed" / "base" / "jobs"
    deadline = time.monotonic() + 120
    while not list(jobs.glob("base-100-*.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.01)
    run.send_signal(signal.SIGKILL)
    run.wait()
    done = {path: path.stat().st_mtime_ns for path in jobs.glob("base-*.jsonl")}
    assert done
    assert not (tmp_path / "killed" / "base" / FACTS).exists(), "too late to be killed midway"
    settings = {"bases": [100.0, 1000.0, 10000.0], "seeds": 1}
    found = read_study(run_tiny("base", tmp_path, "killed", **settings))[0]
    assert {path: path.stat().st_mtime_ns for path in done} == done
    assert found == read_study(run_tiny("base", tmp_path, "whole", **settings))[0]


def test_two_workers_give_the_rows_of_one(place):
    alone = read_study(run_tiny("base", place, "alone"))[0]
    assert read_study(run_tiny("base", place, "together", workers=2))[0] == alone
    assert distinct(alone, "loss", "seed") == [0, 1]


def test_real_triplets_come_from_a_file(place):
    lines = [{"A": f"case {n} of theft", "B": f"again theft {n}", "C": f"fraud {n}", "label": "B"} for n in range(60)]
    path = place / "cail.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines), encoding="utf-8-sig")
    rows, facts = read_study(run_tiny("matching", place, "real", data=str(path)))
    assert facts["triplets"]["source"] == str(path)
    assert facts["triplets"]["train"] + facts["triplets"]["valid"] == 60
    assert {len(row["values"]) for row in rows} == {facts["triplets"]["valid"]}
    assert STUDIES["matching"].findings(rows, facts).tables[0].rows[0][3] == "-"


def test_a_broken_file_of_rows_is_named(place):
    folder = run_tiny("precision", place, "broken")
    (folder / ROWS).write_text('{"metric": "error"')
    with pytest.raises(RopeError, match="must be JSON lines"):
        read_study(folder)


def test_a_setting_of_a_list_is_toml(place):
    assert tiny("extend", place).settings("smoke", ["factors=[2, 8]", "preset=cpu"])["factors"] == [2, 8]
