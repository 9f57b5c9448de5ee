"""A lazy (cos, sin) that carries the positions from a patched rotary module to the layers.

A patched layer reads the positions and rotates q and k by exact angles. For any other code the
tables act as tensors, which are computed on first use. The tables are what a rotary module returns:
cos and sin, or one complex tensor, in one of FORMS.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._guards import TracingContext
from torch.utils import _pytree as pytree

from ropewalk.kernels.rotation.definition import join_pairs
from ropewalk.rope import Rope

#: the forms in which rotary modules return cos and sin: each entry twice (as halves or
#: interleaved), once, or as complex numbers
FORMS: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, ...]]] = {
    "half": lambda cos, sin: (join_pairs(cos, cos, "half"), join_pairs(sin, sin, "half")),
    "interleaved": lambda cos, sin: (
        join_pairs(cos, cos, "interleaved"),
        join_pairs(sin, sin, "interleaved"),
    ),
    "pairs": lambda cos, sin: (cos, sin),
    "complex": lambda cos, sin: (torch.complex(cos, sin),),
}
#: the half form once for each position axis: in transformers 4 the layers choose the axis of each
#: pair
BY_AXIS = "by axis"


def tables_of(rope: Rope, positions: Tensor, form: str) -> tuple[Tensor, ...]:
    """Return the tables of `positions` in one form, a name of FORMS or BY_AXIS."""
    if form != BY_AXIS:
        return FORMS[form](*rope.cos_sin(positions))
    # a table for each axis, as if it were the only one: the layers choose the axis of each pair
    one_axis = Rope(rope.spec.with_(axes=None), backend=rope.backend)
    tables = FORMS["half"](*one_axis.cos_sin(positions.flatten(0, -2)))
    return tuple(table.unflatten(0, positions.shape[:-1]) for table in tables)


class LazyAngles:
    """A rope and positions, whose tables are computed only when needed; `fingerprint` is text that
    identifies the rope's spec.
    """

    def __init__(self, rope: Rope, positions: Tensor, form: str, dtype: torch.dtype) -> None:
        self.rope, self.positions, self.form, self.dtype = rope, positions, form, dtype
        self.fingerprint = rope.spec.fingerprint
        self._tables: tuple[Tensor, ...] | None = None

    def tables(self) -> tuple[Tensor, ...]:
        """Return the tables in the form and dtype of the model's own rotary module."""
        if self._tables is None:
            tables = tables_of(self.rope, self.positions, self.form)
            self._tables = (
                tables
                if self.form == "complex"
                else tuple(table.to(self.dtype) for table in tables)
            )
        return self._tables

    def output(self) -> Any:
        """Return what a patched rotary module returns: lazy (cos, sin), or one lazy complex table."""
        return (
            LazyTable(self, 0)
            if self.form == "complex"
            else (LazyTable(self, 0), LazyTable(self, 1))
        )


class LazyTable:
    """One table of `LazyAngles`, materialised as soon as it is used as a tensor."""

    def __init__(self, angles: LazyAngles, index: int) -> None:
        self.angles, self.index = angles, index

    @property
    def __class__(self) -> type:  # type: ignore[override]
        """Tensor, because isinstance must see one; under torch.compile LazyTable, because dynamo
        must reach the positions.
        """
        return LazyTable if TracingContext.try_get() is not None else Tensor

    def __reduce__(self):
        # the default would read __class__ and rebuild a Tensor
        return LazyTable, (self.angles, self.index)

    def tensor(self) -> Tensor:
        """Return the materialised table."""
        return self.angles.tables()[self.index]

    def to(self, *args: Any, **kwargs: Any) -> LazyTable | Tensor:
        """Move the positions if only a device is given; anything else materialises the tensor."""
        device = args[0] if args else kwargs.get("device")
        if not isinstance(device, str | int | torch.device) or len(args) > 1 or "dtype" in kwargs:
            return self.tensor().to(*args, **kwargs)
        angles = self.angles
        if angles.positions.device == torch.device(device):
            return self
        return LazyTable(
            LazyAngles(angles.rope, angles.positions.to(device), angles.form, angles.dtype),
            self.index,
        )

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the materialised table."""
        if name.startswith("__"):  # asked for by Python itself; operators are defined below
            raise AttributeError(name)
        return getattr(self.tensor(), name)

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        """Call a torch function with every lazy table materialised."""
        args, kwargs = pytree.tree_map(
            lambda value: value.tensor() if isinstance(value, cls) else value, (args, kwargs or {})
        )
        return function(*args, **kwargs)


def _forwarded(name: str) -> Callable:
    """Return a method that calls the tensor's method of this name."""

    def operator(self: LazyTable, *args: Any) -> Any:
        return getattr(self.tensor(), name)(*args)

    return operator


# python looks operators up on the class and skips __getattr__
_OPERATORS = (
    "neg pos abs invert add radd sub rsub mul rmul truediv rtruediv pow rpow matmul rmatmul"
    " eq ne lt le gt ge getitem len iter bool float array repr"
)
for _name in _OPERATORS.split():
    setattr(LazyTable, f"__{_name}__", _forwarded(f"__{_name}__"))
LazyTable.__hash__ = object.__hash__  # like a tensor: == compares entries, the hash is by identity
