"""Positional encodings by name, for use in attention.

A class added to `ENCODINGS` can be named in attention and models, and is also in every test, study
and table that loops over `ENCODINGS`.
"""

from __future__ import annotations

from ropewalk.encodings.absolute import LearnedPositions, Sinusoidal
from ropewalk.encodings.base import Encoding, Sizes
from ropewalk.encodings.bias import (
    Alibi,
    Fire,
    Kerple,
    KerplePower,
    RelativeBias,
    RelativeVectors,
    T5Bias,
    T5CausalBias,
)
from ropewalk.encodings.fourier import Fourier
from ropewalk.encodings.plus import RotaryPlus
from ropewalk.encodings.polar import Polar
from ropewalk.encodings.rotary import (
    ImageRotary,
    LearnableRotary,
    Rotary,
    RotaryAlibi,
    RotaryRelativeBias,
    VideoRotary,
    XPosRotary,
)
from ropewalk.errors import choice

#: every encoding by name; the class attribute `entry` says where it acts
ENCODINGS: dict[str, type[Encoding]] = {
    "none": Encoding,
    "learned": LearnedPositions,
    "sinusoidal": Sinusoidal,
    "rope": Rotary,
    "xpos": XPosRotary,
    "rope_learnable": LearnableRotary,
    "rope_alibi": RotaryAlibi,
    "rope_bias": RotaryRelativeBias,
    "rope_2d": ImageRotary,
    "rope_3d": VideoRotary,
    "pope": Polar,
    "fope": Fourier,
    "alibi": Alibi,
    "t5": T5Bias,
    "t5_causal": T5CausalBias,
    "kerple_log": Kerple,
    "kerple_power": KerplePower,
    "relative_bias": RelativeBias,
    "nezha": RelativeVectors,
    "fire": Fire,
}


def make_encoding(
    name: str, *, num_heads: int, head_dim: int, model_dim: int | None = None, length: int = 2048
) -> Encoding:
    """Create the encoding called `name` for attention of these sizes.

    model_dim  the width of the embeddings; None: num_heads * head_dim
    length     the longest trained sequence
    """
    model_dim = num_heads * head_dim if model_dim is None else model_dim
    return ENCODINGS[choice("encoding", name, ENCODINGS)](
        Sizes(num_heads, head_dim, model_dim, length)
    )


__all__ = ["ENCODINGS", "Encoding", "Fourier", "Polar", "RotaryPlus", "Sizes", "make_encoding"]
