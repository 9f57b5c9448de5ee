"""The pictures of the pages about methods, one for each page, from what the library computes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import ropewalk as rw
from ropewalk.attention.path import path_scores
from ropewalk.config import layer_specs
from ropewalk.encodings import Fourier, Sizes
from ropewalk.frequencies import Clipped, Default, Learned, LongRope, Riflex, Yarn
from ropewalk.interop.extend import rescale_factors
from ropewalk.positions import Text, Video
from ropewalk_lab.plots import Look, methods

AXES = ("time", "height", "width")


def _radians(scaling: Any, head_dim: int = 128, theta: float = 1e4) -> list[float]:
    """Return the radians per token of every pair of a scaling, for a long sequence."""
    return rw.RopeSpec(head_dim, theta=theta, scaling=scaling).frequencies(length=1 << 20).radians


def cope(look: Look) -> Any:
    """Draw the frequencies of every pair: plain, clipped softly and hard, and with learned factors."""
    waves = tuple(0.3 * math.sin(i / 5) for i in range(64))
    scalings = {
        "RoPE": Default(),
        "CoPE, 20 pairs": Clipped(Default(), 20),
        "hard, 20 pairs": Clipped(Default(), 20, soft=False),
        "LeRoPE, some factors": Learned(Default(), waves),
    }
    series = {}
    for name, scaling in scalings.items():
        # a logarithmic axis has no 0
        series[name] = (
            range(64),
            [value or float("nan") for value in _radians(scaling)],
        )
    title = "Frequencies after clipping, or times a learned factor"
    return methods.method_lines(
        series, title=title, x="pair", y="radians per token", look=look, log_y=True
    )


def derotated(look: Look) -> Any:
    """Draw what a value's first dimension contributes, by its distance to the query."""
    distances = torch.arange(0, 65)
    series = {"not rotated": (distances.tolist(), [1.0] * 65)}
    for pair, omega in enumerate((1.0, 0.1, 0.01)):
        series[f"pair {pair}"] = distances.tolist(), (omega * distances).cos().tolist()
    title = "A value (1, 0) as the query sees it"
    return methods.method_lines(
        series, title=title, x="distance", y="first dimension of the pair", look=look
    )


def diffusion(look: Look) -> Any:
    """Draw the axis of every pair of a head."""
    dims = {
        "Flux, Qwen-Image, HunyuanVideo": (8, 28, 28),
        "Wan": (22, 21, 21),
        "Flux-2, with an axis for text": (16, 16, 16, 16),
    }
    rows = {
        name: [axis for axis, count in enumerate(counts) for _ in range(count)]
        for name, counts in dims.items()
    }
    return methods.stripes(
        rows, (*AXES, "text"), title="The axis of every pair", x="pair", look=look
    )


def fope(look: Look) -> Any:
    """Draw the cosine of one pair, plain and mixed."""
    torch.manual_seed(0)
    encoding = Fourier(Sizes(num_heads=1, head_dim=32, model_dim=32, length=256))
    at = torch.arange(256)
    plain = encoding.rope.cos_sin(at, torch.float64)[0]
    mixed = encoding._mixed(plain, encoding.cos_mix.detach())
    series = {
        "RoPE": (at.tolist(), plain[:, 4].tolist()),
        "FoPE": (at.tolist(), mixed[:, 4].tolist()),
    }
    return methods.method_lines(
        series, title="The cosine of pair 4", x="position", y="cos", look=look
    )


def golden(look: Look) -> Any:
    """Draw the direction along which every pair of three heads rotates."""
    scaling = rw.frequencies.geometric(16, slowest=0.2, fastest=2.0)
    spec = rw.RopeSpec(32, axes=rw.axes.GoldenAxes(num_heads=3, pairs=16), scaling=scaling)
    return methods.directions(
        torch.tensor(spec.frequencies().radians), title="The direction of every pair", look=look
    )


def image_encoders(look: Look) -> Any:
    """Draw the coordinate of every row in images of two sizes."""
    series = {}
    for rows in (14, 28):
        dino, eva = (
            rw.positions.patch_centres(rows, 1)[0, 0],
            rw.positions.stretched_grid(rows, 1, pretrained=16)[0, 0],
        )
        series |= {
            f"DINOv3, {rows} rows": (range(rows), dino.tolist()),
            f"EVA-02 / 16, {rows} rows": (range(rows), (eva / 16).tolist()),
        }
    return methods.method_lines(
        series, title="The coordinate of a row", x="row", y="coordinate", look=look
    )


def latent(look: Look) -> Any:
    """Draw how many numbers a cache holds for one token and layer, with 128 heads of 128
    dimensions.
    """
    values = {
        "every head": 2 * 128 * 128,
        "8 heads of keys (GQA)": 2 * 8 * 128,
        "1 head (MQA)": 2 * 128,
        "latent 512 + 64 (MLA)": 576,
    }
    return methods.bars(
        values, title="What a cache holds", x="numbers for each token and layer", look=look
    )


def unrotated(look: Look) -> Any:
    """Draw which layers rotate, in models of twelve layers."""
    rows = {}
    for name, family in {"SmolLM3, Llama 4": "smollm3", "Muse Spark": "muse_spark_text"}.items():
        specs = layer_specs({"model_type": family, "head_dim": 64, "num_hidden_layers": 12})
        rows[name] = [-1 if spec is None else 0 for spec in specs]
    rows |= {"DroPE": [-1] * 12, "Llama 3": [0] * 12}
    return methods.stripes(
        rows, ("rotated",), title="Which layers are rotated", x="layer", look=look
    )


def longrope2(look: Look) -> Any:
    """Draw the factor of every pair for four times the length."""
    plain = torch.tensor(_radians(Default(), theta=5e5))
    critical = 30
    factors = rescale_factors(critical, tuple(4 + 2 * i / 33 for i in range(64 - critical)))
    scalings = {
        "YaRN": Yarn(8192, factor=4.0),
        "LongRoPE2, critical pair 30": LongRope(
            (1.0,) * 64, factors, original_length=8192, factor=4.0
        ),
    }
    divided = {
        name: (plain / torch.tensor(_radians(each, theta=5e5))).tolist()
        for name, each in scalings.items()
    }
    divided = {"interpolation": [4.0] * 64} | divided
    series = {name: (range(64), values) for name, values in divided.items()}
    title = "What frequencies are divided by, for four times the length"
    return methods.method_lines(series, title=title, x="pair", y="factor", look=look)


def mrope(look: Look) -> Any:
    """Draw the axis of every pair, and of every head."""
    rows = {
        "M-RoPE": [0] * 8 + [1] * 12 + [2] * 12,
        "MRoPE-I": list(rw.axes.interleaved([12, 10, 10]).axis_of_pair),
        "MHRoPE, heads": [0] * 2 + [1] * 3 + [2] * 3,
    }
    return methods.stripes(
        rows, AXES, title="The axis of every pair, or of every head", x="pair, or head", look=look
    )


def path(look: Look) -> Any:
    """Draw the scores of equal q and k: by RoPE, and by PaTH with reflections at two tokens."""
    size, dim = 48, 16
    q = torch.ones(1, 1, size, dim, dtype=torch.float64)
    rotated = rw.Rope(rw.RopeSpec(dim)).rotate(q, torch.arange(size))[0, 0]
    w = torch.nn.functional.one_hot(torch.arange(size) % dim, dim).double()
    beta = torch.zeros(size, dtype=torch.float64)
    w[16], w[32], beta[16], beta[32] = 1 / math.sqrt(dim), 1 / math.sqrt(dim), 2.0, 1.0
    by_path = path_scores(q[0, 0], q[0, 0], w, beta)
    maps = {"RoPE": (rotated @ rotated.mT).tril(), "PaTH, β = 2 at 16 and 1 at 32": by_path}
    return methods.score_maps(maps, label="score", look=look)


def _kernel(
    omega: Tensor, phase: float = 0.0, longest: int = 512
) -> tuple[list[float], list[float]]:
    """Return distances, and the mean of cos(distance omega + phase) over all pairs at each of them."""
    at = torch.arange(longest, dtype=torch.float64)
    return at.tolist(), (at[:, None] * omega + phase).cos().mean(-1).tolist()


def pope(look: Look) -> Any:
    """Draw the score of equal vectors of ones by distance."""
    series = {
        name: _kernel(torch.tensor(rw.RopeSpec(width).frequencies().radians, dtype=torch.float64))
        for name, width in {"RoPE, 32 pairs": 64, "PoPE, 64 channels": 128}.items()
    }
    return methods.method_lines(
        series,
        title="The score of equal channels by distance",
        x="distance",
        y="score / score at 0",
        look=look,
    )


def riflex(look: Look) -> Any:
    """Draw the pair that repeats, before and after."""
    at = range(67)
    plain, slowed = (
        _radians(each, 16, 256.0)[3] for each in (Default(), Riflex(frames=66, repeat=48))
    )
    series = {
        name: (at, [math.cos(omega * t) for t in at])
        for name, omega in {"before": plain, "RIFLEx, 66 frames": slowed}.items()
    }
    return methods.method_lines(
        series, title="The pair of the time axis that repeats", x="latent frame", y="cos", look=look
    )


def plus(look: Look) -> Any:
    """Draw the real and the imaginary score of equal vectors by distance."""
    omega = torch.tensor(rw.RopeSpec(64).frequencies().radians, dtype=torch.float64)
    series = {"real, as RoPE": _kernel(omega), "imaginary": _kernel(omega, -math.pi / 2)}
    return methods.method_lines(
        series,
        title="Both scores of equal vectors",
        x="distance",
        y="score / score at 0",
        look=look,
    )


def selective(look: Look) -> Any:
    """Draw the angle of one pair after each token."""
    at = torch.arange(48)
    phi = torch.where((at // 8) % 2 == 0, 1.6, 0.1)
    series = {
        "RoPE, φ = 1": (at.tolist(), (at + 1).tolist()),
        "some φ of the tokens": (at.tolist(), phi.cumsum(0).tolist()),
    }
    return methods.method_lines(
        series,
        title="The angle is the sum of the tokens' steps",
        x="token",
        y="angle / τ",
        look=look,
    )


def videorope(look: Look) -> Any:
    """Draw time, height and width of the tokens of a text with a video."""
    at, _ = rw.positions.multimodal([[Text(4), Video(4, 3, 3, interval=2), Text(4)]], origin="time")
    tokens = range(at.shape[-1])
    series = {"token": (tokens, list(tokens))} | {
        name: (tokens, at[axis, 0].tolist()) for axis, name in enumerate(AXES)
    }
    return methods.method_lines(
        series, title="Text, four frames of 3 x 3, text", x="token", y="position", look=look
    )


#: page -> the function that draws its picture
METHOD_PICTURES: dict[str, Callable[[Look], Any]] = {
    "cope": cope,
    "derotated-output": derotated,
    "diffusion-transformers": diffusion,
    "fope": fope,
    "golden-gate": golden,
    "image-encoders": image_encoders,
    "latent-attention": latent,
    "layers-without-positions": unrotated,
    "longrope2": longrope2,
    "mrope-i": mrope,
    "path": path,
    "pope": pope,
    "riflex": riflex,
    "rope-plus": plus,
    "selective-rope": selective,
    "videorope": videorope,
}
