"""Frequencies: how fast each pair rotates, one frozen dataclass for every scaling rule.

`scaling` holds the base class, `formulas` the shared mathematics, and the other modules the rules; SCALINGS lists them by name.
"""

from ropewalk.frequencies.scaling import Frequencies, Length, Scaling
from ropewalk.frequencies.scalings import (
    SCALINGS,
    Default,
    Dynamic,
    DynamicYarn,
    Given,
    Learnable,
    Linear,
    LinearFrequencies,
    Llama3,
    LongRope,
    Ntk,
    NtkByParts,
    Proportional,
    XPos,
    Yarn,
)

__all__ = [
    "SCALINGS",
    "Default",
    "Dynamic",
    "DynamicYarn",
    "Frequencies",
    "Given",
    "Learnable",
    "Length",
    "Linear",
    "LinearFrequencies",
    "Llama3",
    "LongRope",
    "Ntk",
    "NtkByParts",
    "Proportional",
    "Scaling",
    "XPos",
    "Yarn",
]
