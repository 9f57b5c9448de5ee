"""What a patched model passes from its rotary module to its layers: positions, that pass for cos and sin where asked to.

A layer that is patched reads the positions and turns q and k by exact angles. Any other code finds tensors: the tables
are made when something first touches them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ropewalk.kernels.reference import join_pairs
from ropewalk.rope import Rope

#: how a family's rotary module returns its tables: each entry twice, as halves or as neighbours, once, or as complex numbers
FORMS: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, ...]]] = {
    "half": lambda cos, sin: (join_pairs(cos, cos, "half"), join_pairs(sin, sin, "half")),
    "interleaved": lambda cos, sin: (join_pairs(cos, cos, "interleaved"), join_pairs(sin, sin, "interleaved")),
    "pairs": lambda cos, sin: (cos, sin),
    "complex": lambda cos, sin: (torch.complex(cos, sin),),
}


class Angles:
    """The angles of some tokens: whose rope, which positions; as tables only on demand."""

    def __init__(self, rope: Rope, positions: Tensor, form: str, dtype: torch.dtype) -> None:
        self.rope, self.positions, self.form, self.dtype = rope, positions, form, dtype
        self.key = rope.spec.key
        self.made: tuple[Tensor, ...] | None = None

    def tables(self) -> tuple[Tensor, ...]:
        """The tables as the family's own module returns them."""
        if self.made is None:
            made = FORMS[self.form](*self.rope.cos_sin(self.positions))
            self.made = made if self.form == "complex" else tuple(table.to(self.dtype) for table in made)
        return self.made

    def on(self, device: Any) -> Angles:
        """The same angles with their positions on `device`."""
        return Angles(self.rope, self.positions.to(device), self.form, self.dtype)

    def handles(self) -> Any:
        """What takes the place of (cos, sin), or of the one complex table."""
        return AngleTable(self, 0) if self.form == "complex" else (AngleTable(self, 0), AngleTable(self, 1))


class AngleTable:
    """One table of `Angles` that nobody has computed yet; whatever treats it as a tensor gets the tensor."""

    def __init__(self, angles: Angles, index: int) -> None:
        self.angles, self.index = angles, index

    def tensor(self) -> Tensor:
        """The table itself."""
        return self.angles.tables()[self.index]

    def to(self, *args: Any, **kwargs: Any) -> AngleTable | Tensor:
        """On another device the positions move; any other wish is one for the tensor."""
        target = args[0] if args else kwargs.get("device")
        if not isinstance(target, str | int | torch.device) or len(args) > 1 or "dtype" in kwargs:
            return self.tensor().to(*args, **kwargs)
        if self.angles.positions.device == torch.device(target):
            return self
        return AngleTable(self.angles.on(target), self.index)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("angles", "index"):
            raise AttributeError(name)
        return getattr(self.tensor(), name)

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        args, kwargs = pytree.tree_map(lambda value: value.tensor() if isinstance(value, cls) else value, (args, kwargs or {}))
        return function(*args, **kwargs)


def _as_on_the_tensor(name: str) -> Callable:
    def operator(self: AngleTable, *args: Any) -> Any:
        return getattr(self.tensor(), name)(*args)

    return operator


# python looks operators up on the class, past __getattr__
for _name in ("neg", "getitem", "mul", "rmul", "add", "radd", "sub", "rsub", "truediv", "len"):
    setattr(AngleTable, f"__{_name}__", _as_on_the_tensor(f"__{_name}__"))
