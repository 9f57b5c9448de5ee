"""The study of norms: its saved models give its losses in an attention that is written out here."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from study_cases import SHARP, SIZES, run_tiny, tail_losses

from ropewalk.interop.checkpoint.safetensors_file import read_header, read_rows
from ropewalk.models import Decoder, DecoderConfig
from ropewalk_lab.corpus import open_corpus
from ropewalk_lab.studies import read_study
from ropewalk_lab.studies.rows import select


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("norms")


def test_each_model_of_norms_computes_its_norm_before_or_after_the_rotation(place):
    """The saved weights of every model, put into an attention that is written out here."""
    rows, _ = read_study(run_tiny("norms", place, "sharp", changes=SHARP))
    windows = open_corpus(place / "text", cache=place / "cache").valid.windows(6, 65)
    for name in (
        "none",
        "norm not kept",
        "LayerNorm before",
        "LayerNorm after",
        "RMSNorm before",
        "RMSNorm after",
    ):
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
    """Causal attention with RoPE token by token in complex numbers, and a norm before or after the
    rotation.
    """

    def __init__(self, attention, name: str, norms: dict[str, torch.Tensor], layer: int) -> None:
        self.attention, self.name = attention, name
        own = {key: value for key, value in norms.items() if key.startswith(f"layers.{layer}.")}
        self.weights = {
            part: {k.rsplit(".", 1)[1]: v for k, v in own.items() if f".{part}_norm." in k}
            for part in "qk"
        }
        assert bool(own) == ("Norm " in name)

    def __call__(self, x, positions, padding, documents, cache):
        q, k, v = self.attention.project(x)
        if self.name.endswith("before"):
            q, k = self.norm(q, "q"), self.norm(k, "k")
        q, k = self.rotated(q), self.rotated(k)
        if self.name.endswith("after"):
            q, k = self.norm(q, "q"), self.norm(k, "k")
        scores = (q @ k.transpose(-1, -2) / 4).masked_fill(
            torch.ones(q.shape[-2], q.shape[-2]).triu(1).bool(), -math.inf
        )
        return self.attention.o_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(-2))

    def norm(self, x, part: str):
        weights = self.weights[part]
        if self.name.startswith("LayerNorm"):
            x = (x - x.mean(-1, keepdim=True)) / (
                x.var(-1, correction=0, keepdim=True) + 1e-5
            ).sqrt()
            return x * weights["weight"] + weights["bias"]
        assert "bias" not in weights
        return (
            x
            / (x.square().mean(-1, keepdim=True) + torch.finfo(torch.float32).eps).sqrt()
            * weights["weight"]
        )

    def rotated(self, x):
        angles = torch.outer(torch.arange(x.shape[-2]), 10_000.0 ** (-torch.arange(8) / 8))
        if self.name == "norm not kept":
            # dimension j has the angle of pair j mod 8, as in the half layout, but its partner is
            # its neighbour
            cos, sin = (table.repeat(1, 2) for table in (angles.cos(), angles.sin()))
            partner = x.view(*x.shape[:-1], 8, 2).flip(-1) * torch.tensor([-1.0, 1.0])
            return x * cos + partner.flatten(-2) * sin
        rotated = torch.complex(x[..., :8], x[..., 8:]) * torch.polar(
            torch.ones_like(angles), angles
        )
        return torch.cat((rotated.real, rotated.imag), dim=-1)
