"""What a patched model passes from its rotary module to its layers: positions, that pass for cos and sin where asked to.

A layer that is patched reads the positions and turns q and k by exact angles. Any other code finds tensors: the tables
are made when something first touches them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._guards import TracingContext
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
#: halves again, one table for each axis of the positions: transformers 4 leaves it to the layers to pick an axis for each pair
BY_AXIS = "by axis"


def tables_of(rope: Rope, positions: Tensor, form: str) -> tuple[Tensor, ...]:
    """The tables of these positions in one form."""
    if form != BY_AXIS:
        return FORMS[form](*rope.cos_sin(positions))
    alone = Rope(rope.spec.with_(axes=None), backend=rope.backend)
    made = FORMS["half"](*alone.cos_sin(positions.flatten(0, -2)))
    return tuple(table.unflatten(0, positions.shape[:-1]) for table in made)


class Angles:
    """The angles of some tokens: whose rope, which positions; as tables only on demand."""

    def __init__(self, rope: Rope, positions: Tensor, form: str, dtype: torch.dtype) -> None:
        self.rope, self.positions, self.form, self.dtype = rope, positions, form, dtype
        self.fingerprint = rope.spec.fingerprint
        self.made: tuple[Tensor, ...] | None = None

    def tables(self) -> tuple[Tensor, ...]:
        """The tables as the family's own module returns them."""
        if self.made is None:
            made = tables_of(self.rope, self.positions, self.form)
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

    @property
    def __class__(self) -> type:  # type: ignore[override]  # the way of every proxy
        """What isinstance hears: a tensor. A compiler must see the object, to find the positions in it."""
        return AngleTable if TracingContext.try_get() is not None else Tensor

    def __reduce__(self):
        return AngleTable, (self.angles, self.index)  # or a copy would ask __class__ what to make

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
_OPERATORS = (
    "neg pos abs invert add radd sub rsub mul rmul truediv rtruediv pow rpow matmul rmatmul"
    " eq ne lt le gt ge getitem len iter bool float array repr"
)
for _name in _OPERATORS.split():
    setattr(AngleTable, f"__{_name}__", _as_on_the_tensor(f"__{_name}__"))
AngleTable.__hash__ = object.__hash__  # compared entry by entry, found in a set as itself: like any tensor
