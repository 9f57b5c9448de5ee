"""Rotary modules, recognised by behaviour: a spec matches if it gives the same cos and sin as the
module.

Words of this module:
  tables  what the forward of a rotary module returns: cos and sin, or one complex tensor
  form    how the tables hold the entries, a name of FORMS or BY_AXIS in angles.py
  hook    the LengthHook of an extended module, which computes the tables for the longest sequence
          of the batch; None for a module without one
  match   a rope that computes what the module computes, and the form in which to return it
  spec    a RopeSpec: theta, scaling and the other settings of a rotation, as the config has them
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.config.hf import read_specs
from ropewalk.errors import RopeError
from ropewalk.interop.patch.angles import BY_AXIS, FORMS, LazyAngles, tables_of
from ropewalk.interop.patch.conventions import Convention
from ropewalk.interop.patch.length_hook import EXTENSION, LengthHook, length_hook
from ropewalk.interop.patch.methods import HOOKED, Replacement
from ropewalk.rope import Rope
from ropewalk.spec import RopeSpec

#: positions below any trained length, and then also positions above most trained lengths, since
#: some ropes change with the length
PROBES = ((0, 1, 2, 5, 17, 63), (0, 1, 2, 5, 17, 63, 4095, 131071))
#: the numbers of position axes that are tried
AXES = (2, 3, 4)


@dataclass(frozen=True)
class RotaryMatch:
    """A rope that computes what a rotary module computes.

    form    of the tables that the module returns, a name of FORMS or BY_AXIS
    casts   whether the tables have the dtype of the hidden states; otherwise float32
    """

    rope: Rope
    form: str
    casts: bool = True


class RotaryReplacement(Replacement):
    """A replacement for the forward of a rotary module, which returns a lazy (cos, sin) that
    carries the positions.
    """

    def __init__(self, module: nn.Module, matches: dict[str | None, RotaryMatch]) -> None:
        super().__init__(module, "forward")
        self.matches = matches

    def __call__(self, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> Any:
        """Return lazy tables at `position_ids`, or the module's own where our rope does not apply."""
        match = self.matches.get(layer_type)
        # our ropes take integers, on the axes of their spec; a layer type without a match keeps its
        # own tables
        if (
            match is None
            or position_ids.is_floating_point()
            or not _fits(match.rope.spec, position_ids)
        ):
            return _own_forward(self.module, x, position_ids, layer_type, length_hook(self.module))
        dtype = x.dtype if match.casts else torch.float32
        return LazyAngles(match.rope, position_ids, match.form, dtype).output()


def is_rotary(module: nn.Module) -> bool:
    """Return whether a module computes tables from positions: it has an inv_freq buffer and
    forward(x, position_ids).
    """
    parameters = set(inspect.signature(type(module).forward).parameters)
    return has_frequencies(module) and {"position_ids"} <= parameters <= {
        "self",
        "x",
        "position_ids",
        "layer_type",
    }


def has_frequencies(module: nn.Module) -> bool:
    """Return whether a module itself has an inv_freq buffer."""
    return any(name.endswith("inv_freq") for name, _ in module.named_buffers(recurse=False))


def matches_of(module: nn.Module, backend: str | None) -> dict[str | None, RotaryMatch]:
    """Return {layer type: match} of the layer types whose tables a spec of the module's config
    reproduces; the key is None if the module's forward takes no layer type.
    """
    specs, hook = _specs(getattr(module, "config", None)), length_hook(module)
    if hook is not None:
        specs |= hook.specs  # no config key describes these
    if "layer_type" in inspect.signature(type(module).forward).parameters:
        candidates: dict[str | None, list[RopeSpec]] = {
            name: [spec] for name, spec in specs.items()
        }
    else:
        candidates = {None: list(dict.fromkeys(specs.values()))}
    probe = _Probe(module, hook)
    matches = {}
    for layer_type, layer_specs in candidates.items():
        for spec in layer_specs:
            if (form := probe.form(layer_type, spec)) is not None:
                matches[layer_type] = RotaryMatch(
                    Rope(spec, backend=backend), form, probe.casts(layer_type, spec)
                )
                break
    return matches


def unequal_members(module: nn.Module, conventions: Sequence[Convention]) -> RopeError | None:
    """Return an error if the tables of a rotary module fit a rotation only while all axes of a
    position are equal; None otherwise.

    HunYuan-VL rotates the two members of a pair by different axes, which is no rotation.
    """
    # the conventions whose tables have an entry for each member of a pair
    doubled = [each for each in conventions if each.reads_both and not each.joined_heads]
    probe = probe_of(module)
    # a module on the meta device has no values, and a function that reads one entry for each pair
    # rotates whatever the other entry is
    if probe.device.type == "meta" or len(doubled) < len(conventions):
        return None
    generator = torch.Generator("cpu").manual_seed(0)
    for axes, layer_type in product(AXES, _layer_types(module)):
        positions = torch.randint(0, 99, (axes, 1, 7), generator=generator, device="cpu").to(
            probe.device
        )
        # all axes of a position are equal
        same = probe.tables(positions[:1].expand_as(positions), layer_type)
        distinct = probe.tables(positions, layer_type)
        is_rotation = any(_has_equal_members(each, distinct, axes) for each in doubled)
        if not is_rotation and any(_has_equal_members(each, same, axes) for each in doubled):
            rule = (
                "gives the two members of a pair different angles where the axes of a position "
                "differ, which is no rotation, so the model is left unchanged"
            )
            return RopeError(type(module).__name__, rule, f"{axes} axes")
    return None


def _has_equal_members(convention: Convention, tables: tuple[Tensor, ...], axes: int) -> bool:
    """Return whether cos and sin have equal entries for both members of each pair, as the
    convention pairs them; False if the convention does not fit the tables.

    axes  how many axes the positions have, and so how many blocks of dimensions, if the convention
          has blocks
    """
    blocks = axes if convention.blocks else 1
    if len(tables) != 2 or any(table.shape[-1] % (2 * blocks) for table in tables):
        return False
    members = convention.doubled(list(tables), blocks)
    return all(bool(((first - second).abs() <= 1e-5).all()) for first, second in members)


def _layer_types(module: nn.Module) -> list[str | None]:
    """Return the layer types that a rotary module has frequencies for; [None] if it does not
    distinguish them.

    A module that does names its buffers after them: full_attention_inv_freq,
    full_attention_original_inv_freq.
    """
    if "layer_type" not in inspect.signature(type(module).forward).parameters:
        return [None]
    names = (
        name.removesuffix("inv_freq").removesuffix("original_").removesuffix("_")
        for name, _ in module.named_buffers()
    )
    return list(dict.fromkeys(names))


def _fits(spec: RopeSpec, positions: Tensor) -> bool:
    """Return whether positions are [rows, tokens], or [axes, rows, tokens] with the axes of a spec."""
    return positions.ndim == 2 or (positions.ndim == 3 and positions.shape[0] == spec.num_axes > 1)


def _specs(config: Any) -> dict[str, RopeSpec]:
    """Return the specs of a config by layer type; {} if it cannot be read."""
    try:
        specs, _ = read_specs(config)
    except RopeError:
        return {}
    return {name: spec for name, spec in specs.items() if spec is not None}


class _Probe:
    """Runs a copy of a rotary module on trial positions; a copy, because some forwards write to
    their buffers.
    """

    def __init__(self, module: nn.Module, hook: LengthHook | None) -> None:
        self.module, self.hook = _copy(module), hook
        self.device = next(iter(self.module.buffers())).device

    def form(self, layer_type: str | None, spec: RopeSpec) -> str | None:
        """Return the form in which the module returns cos and sin, a name of FORMS ("half",
        "interleaved", "pairs", "complex") or BY_AXIS; None if its tables are not those of `spec`.

        `layer_type` is passed to a module that has one rope for each layer type. Raise a RopeError
        if the module is on the meta device, where it has no values.
        """
        if self.device.type == "meta":
            name = type(self.module).__name__
            raise RopeError(
                name,
                "must have its frequencies on a device: load the weights before patching",
                "meta",
            )
        rope, forms = Rope(spec), {*FORMS, BY_AXIS} if spec.num_axes > 1 else set(FORMS)
        for probe in PROBES:
            positions = torch.tensor([probe], device=self.device)
            if spec.num_axes > 1:
                # other positions on each axis, so that no axis passes for another
                positions = torch.stack([positions + axis for axis in range(spec.num_axes)])
            theirs = self.tables(positions, layer_type)
            # a float32 angle is off by up to one unit in its last place, and its frequency by a few
            tolerance = (1e-5 + positions.reshape(-1, positions.shape[-1])[0] * 2.0**-21)[:, None]
            forms = {
                form
                for form in forms
                if _all_near(tables_of(rope, positions, form), theirs, tolerance)
            }
        return min(forms) if forms else None  # several may fit; the choice must not vary

    def casts(self, layer_type: str | None, spec: RopeSpec) -> bool:
        """Return whether the module casts its tables to the dtype of the hidden states, as most do;
        those of OLMo and Ernie stay float32.

        layer_type  what the module's forward takes as its `layer_type`; None: it takes none
        spec        tells how many axes the positions must have
        """
        shape = (spec.num_axes, 1, 1) if spec.num_axes > 1 else (1, 1)
        positions = torch.zeros(shape, dtype=torch.long, device=self.device)
        return all(
            table.dtype == torch.bfloat16
            for table in self.tables(positions, layer_type, torch.bfloat16)
        )

    def tables(
        self, positions: Tensor, layer_type: str | None, dtype: torch.dtype = torch.float32
    ) -> tuple[Tensor, ...]:
        """Return what the module's own forward returns for `positions` and hidden states of
        `dtype`, as a tuple; () if it raises an error for positions of this shape.
        """
        x = torch.zeros(1, device=positions.device, dtype=dtype)
        try:
            tables = _own_forward(self.module, x, positions, layer_type, self.hook)
        except (RuntimeError, ValueError, LookupError, TypeError, AttributeError):
            return ()
        return tuple(tables) if isinstance(tables, tuple) else (tables,)


def probe_of(module: nn.Module) -> _Probe:
    """Return a copy of a rotary module, with its length hook, that can be run on trial positions."""
    return _Probe(module, length_hook(module))


def _copy(module: nn.Module) -> nn.Module:
    """Return a copy of a rotary module that has the forward of its class.

    If half() or bfloat16() has rounded the frequencies of the config, which no checkpoint intends,
    the copy is built from the config. Other frequencies are the user's own, and stay.
    """
    rounded = any(buffer.dtype in (torch.float16, torch.bfloat16) for buffer in module.buffers())
    if rounded and hasattr(module, "config"):
        exact = type(module)(module.config)
        if _has_rounded_buffers_of(module, exact):
            return exact
    # an extension refers to the whole model, which must not be copied
    clone = copy.deepcopy(
        module, {id(value): value for name, value in vars(module).items() if name == EXTENSION}
    )
    for slot in ("forward", HOOKED):
        vars(clone).pop(slot, None)
    return clone


def _has_rounded_buffers_of(module: nn.Module, exact: nn.Module) -> bool:
    """Return whether the buffers of a rotary module are those of `exact`, rounded to the module's
    dtype; buffers that one of the two lacks do not count.
    """
    ours, theirs = dict(module.named_buffers()), dict(exact.named_buffers())
    pairs = [
        (ours[name], theirs[name]) for name in theirs if name in ours and not ours[name].is_meta
    ]
    return all(torch.equal(mine.cpu(), its.cpu().to(mine.dtype)) for mine, its in pairs)


def _own_forward(
    module: nn.Module, x: Tensor, positions: Tensor, layer_type: str | None, hook: LengthHook | None
) -> Any:
    """Return what the forward of the module's class returns for hidden states x and positions;
    with a `hook`, that of a copy of the module with the frequencies for this length.
    """
    if hook is not None:
        module = hook.at_length(module, positions, layer_type)
    arguments = (x, positions) if layer_type is None else (x, positions, layer_type)
    return type(module).forward(module, *arguments)


def _all_near(ours: tuple[Tensor, ...], theirs: tuple[Tensor, ...], tolerance: Tensor) -> bool:
    """Return whether two lists of tables have the same shapes, and entries that differ by at most
    `tolerance`.
    """
    if [x.shape for x in ours] != [x.shape for x in theirs]:
        return False
    return all(
        bool(((our - their).abs() <= tolerance).all())
        for our, their in zip(ours, theirs, strict=True)
    )
