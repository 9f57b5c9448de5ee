"""The report of `extend`: what was changed, and how it is undone.

A patched model is one whose rotations `patch` has replaced by those of this library; they hold the
ropes of the config that they were made from. A spec, a RopeSpec, describes the rotation of a layer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import nn

from ropewalk.config import file as config_file
from ropewalk.errors import RopeError
from ropewalk.interop.extend.swap import ConfigSwap
from ropewalk.interop.patch.model import patch_again
from ropewalk.spec import RopeSpec


class Swap(Protocol):
    """A change that can be made and undone."""

    def install(self) -> None: ...

    def remove(self) -> None: ...


@dataclass(eq=False)
class Extension:
    """What `extend` changed; `undo()` restores it.

    kind, factor   those that `extend` was called with
    specs          {layer type: its spec} of the layer types that were changed
    changes        {config key: (before, after)}; before is None for a key that was absent
    disagreements  a line if the change is not in the config, so that engines do not have it
    notes          other remarks for the user
    saved          whether `save_pretrained` writes the change; for dynamic_yarn, clipped and
                   remappings `extend` writes no config key
    """

    kind: str
    factor: float | None
    specs: dict[str, RopeSpec]
    changes: dict[str, tuple[Any, Any]]
    disagreements: tuple[str, ...]
    notes: tuple[str, ...]
    saved: bool
    _swaps: list[Swap] = field(repr=False)
    _model: nn.Module | None = field(repr=False, default=None)
    _installed: bool = field(repr=False, default=False)

    def undo(self) -> None:
        """Restore the config keys, the rotary modules and the attention that `extend` changed.

        Does nothing if the extension was undone before, or replaced by a later one of the same
        model. Config keys that `extend` did not set keep their values. If one that it set has
        another value by now, an error names it and nothing changes.
        """
        if not self._installed:
            return
        configs = [swap for swap in self._swaps if isinstance(swap, ConfigSwap)]
        if (
            configs
            and self._model is not None
            and config_file.text_owner(self._model.config) is not configs[0].config
        ):
            rule = "must be the object that extend changed; set model.config back to it"
            raise RopeError("config", rule, type(self._model).__name__)
        for swap in configs:
            swap.check()
        self._remove()

    def _remove(self) -> None:
        """Undo the changes, and patch a patched model again."""
        for swap in self._swaps:
            swap.remove()
        self._installed = False
        self._patch_again()

    def _install(self) -> None:
        """Make the changes, and patch a patched model again."""
        for swap in self._swaps:
            swap.install()
        self._installed = True
        self._patch_again()

    def _patch_again(self) -> None:
        """Patch a patched model again, so that its ropes follow the config that was changed."""
        if self._model is not None:
            patch_again(self._model)

    def __str__(self) -> str:
        """Return what was changed as text, with disagreements and notes."""
        title = f"{self.kind} x {self.factor:g}" if self.factor is not None else self.kind
        lines = [
            f"{title} on {', '.join(self.specs)}"
            + ("" if self.saved else " (not saved with the model)")
        ]
        lines += [
            f"  {key}: {before!r} -> {after!r}" for key, (before, after) in self.changes.items()
        ]
        return "\n".join(
            [*lines, *(f"  note: {note}" for note in (*self.disagreements, *self.notes))]
        )
