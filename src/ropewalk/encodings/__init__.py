"""Every encoding by name. Add a class here and attention, tests, models, studies and the comparison table pick it up."""

from __future__ import annotations

from ropewalk.encodings.absolute import Learned, Sinusoidal
from ropewalk.encodings.base import Encoding, Sizes
from ropewalk.encodings.bias import Alibi, Fire, Kerple, KerplePower, RelativeBias, RelativeVectors, T5Bias, T5CausalBias
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

#: every encoding by name; the class says which of the three doors it uses
ENCODINGS: dict[str, type[Encoding]] = {
    "none": Encoding,
    "learned": Learned,
    "sinusoidal": Sinusoidal,
    "rope": Rotary,
    "xpos": XPosRotary,
    "rope_learnable": LearnableRotary,
    "rope_alibi": RotaryAlibi,
    "rope_bias": RotaryRelativeBias,
    "rope_2d": ImageRotary,
    "rope_3d": VideoRotary,
    "alibi": Alibi,
    "t5": T5Bias,
    "t5_causal": T5CausalBias,
    "kerple_log": Kerple,
    "kerple_power": KerplePower,
    "relative_bias": RelativeBias,
    "nezha": RelativeVectors,
    "fire": Fire,
}


def make_encoding(name: str, *, num_heads: int, head_dim: int, model_dim: int | None = None, length: int = 2048) -> Encoding:
    """The encoding of that name for an attention of these sizes."""
    choice("encoding", name, ENCODINGS)
    return ENCODINGS[name](Sizes(num_heads, head_dim, model_dim or num_heads * head_dim, length))


__all__ = ["ENCODINGS", "Encoding", "Sizes", "make_encoding"]
