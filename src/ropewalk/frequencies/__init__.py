"""Frequencies: how fast each pair rotates, computed by one frozen dataclass per scaling.

`scaling` holds the base class, `formulas` the shared mathematics and `decimals` the numbers with 40
digits that it is computed in; the scalings themselves are in `basic`, `banded`, `per_pair` and
`wrapping`, and SCALINGS lists them by name.
"""

from ropewalk.frequencies.banded import DynamicYarn, Llama3, NtkByParts, Yarn
from ropewalk.frequencies.basic import (
    Default,
    Dynamic,
    Linear,
    LinearFrequencies,
    Ntk,
    Proportional,
    Riflex,
)
from ropewalk.frequencies.per_pair import Given, Learnable, LongRope, XPos, geometric
from ropewalk.frequencies.scaling import Frequencies, Scaling
from ropewalk.frequencies.wrapping import Clipped, Learned

#: every scaling by name. Add a class here, and the tests use it; configs and `extend` use it if its
#: `in_configs` and `in_extend` are True
SCALINGS: dict[str, type[Scaling]] = {
    scaling.name: scaling
    for scaling in (
        Default,
        Linear,
        Ntk,
        NtkByParts,
        Dynamic,
        Yarn,
        DynamicYarn,
        LongRope,
        Llama3,
        Proportional,
        LinearFrequencies,
        Riflex,
        XPos,
        Given,
        Learnable,
        Clipped,
        Learned,
    )
}

__all__ = [
    "SCALINGS",
    "Clipped",
    "Default",
    "Dynamic",
    "DynamicYarn",
    "Frequencies",
    "Given",
    "Learnable",
    "Learned",
    "Linear",
    "LinearFrequencies",
    "Llama3",
    "LongRope",
    "Ntk",
    "NtkByParts",
    "Proportional",
    "Riflex",
    "Scaling",
    "XPos",
    "Yarn",
    "geometric",
]
