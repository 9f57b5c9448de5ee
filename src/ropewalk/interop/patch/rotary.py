"""Rotary modules, recognised by what they compute: a spec fits if it gives the module's own cos and sin."""

from __future__ import annotations

import copy
import inspect
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.errors import RopeError
from ropewalk.interop.config.hf import from_hf
from ropewalk.interop.patch.angles import BY_AXIS, FORMS, Angles, tables_of
from ropewalk.interop.patch.follow import MARK, FollowLength, followed
from ropewalk.interop.patch.methods import Stand
from ropewalk.rope import Rope
from ropewalk.spec import RopeSpec

#: short enough for any trained length, and past it: some ropes change with the length
PROBES = ((0, 1, 2, 5, 17, 63), (0, 1, 2, 5, 17, 63, 4095, 131071))


@dataclass(frozen=True)
class Plan:
    """A rope that gives what the module gives, and the form it gives it in; `casts` to the dtype of the states, or float32."""

    rope: Rope
    form: str
    casts: bool = True


class StandingRotary(Stand):
    """A rotary module's forward that returns positions in the clothes of cos and sin."""

    def __init__(self, module: nn.Module, plans: dict[str | None, Plan]) -> None:
        super().__init__(module, "forward")
        self.plans = plans

    def __call__(self, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> Any:
        plan = self.plans.get(layer_type)
        if plan is None or position_ids.is_floating_point():
            return _own_forward(self.module, x, position_ids, layer_type, followed(self.module))
        return Angles(plan.rope, position_ids, plan.form, x.dtype if plan.casts else torch.float32).handles()


def is_rotary(module: nn.Module) -> bool:
    """Whether a module makes tables from positions, by the shape of its forward."""
    takes = inspect.signature(type(module).forward).parameters
    made_from = any(name.endswith("inv_freq") for name, _ in module.named_buffers(recurse=False))
    return made_from and "position_ids" in takes and set(takes) <= {"self", "x", "position_ids", "layer_type"}


def plans_of(module: nn.Module, backend: str | None) -> dict[str | None, Plan]:
    """A plan for each layer type whose tables some spec of the module's config reproduces; {} if none."""
    specs, twin, hook = _specs(getattr(module, "config", None)), _twin(module), followed(module)
    if hook is not None:
        specs |= hook.specs
    if "layer_type" not in inspect.signature(type(module).forward).parameters:
        types: dict[str | None, list[RopeSpec]] = {None: list(dict.fromkeys(specs.values()))}
    else:
        types = {name: [spec] for name, spec in specs.items()}
    plans = {}
    for name, candidates in types.items():
        for spec in candidates:
            if (form := _form(twin, name, spec, hook)) is not None:
                plans[name] = Plan(Rope(spec, backend=backend), form, _casts(twin, name, spec, hook))
                break
    return plans


def _specs(config: Any) -> dict[str, RopeSpec]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what a config says in vain is said by from_hf, not by a patch
            found = from_hf(config, per_layer=True)
    except RopeError:
        return {}
    return {name: spec for name, spec in found.items() if spec is not None}  # type: ignore[union-attr]  # per layer


def _twin(module: nn.Module) -> nn.Module:
    """A copy to try out: forward of some ropes writes to its buffers.

    half() rounds the frequencies of a module, which no checkpoint means; then the copy is made anew from the config.
    """
    rounded = any(buffer.dtype in (torch.float16, torch.bfloat16) for buffer in module.buffers())
    if rounded and hasattr(module, "config"):
        return type(module)(module.config)
    # an extension knows the whole model, which is no part of the copy
    twin = copy.deepcopy(module, {id(found): found for name, found in vars(module).items() if name == MARK})
    for slot in ("forward", "_old_forward"):
        vars(twin).pop(slot, None)
    return twin


def _form(twin: nn.Module, layer_type: str | None, spec: RopeSpec, hook: FollowLength | None) -> str | None:
    """The form in which the module gives this spec's tables; None if it gives others."""
    buffer = next(iter(twin.buffers()))
    if buffer.is_meta:
        raise RopeError(type(twin).__name__, "must have its frequencies on a device: load the weights before patching", "meta")
    rope, forms = Rope(spec), {*FORMS, BY_AXIS} if spec.num_axes > 1 else set(FORMS)
    for probe in PROBES:
        positions = torch.tensor([probe], device=buffer.device)
        if spec.num_axes > 1:
            positions = torch.stack([positions + axis for axis in range(spec.num_axes)])
        theirs = _tables(twin, positions, layer_type, hook)
        # a float32 angle is off by up to its own size times the last bit, and its frequency by a few
        slack = (1e-5 + positions.reshape(-1, positions.shape[-1])[0] * 2.0**-21)[:, None]
        forms = {form for form in forms if _all_near(tables_of(rope, positions, form), theirs, slack)}
    return min(forms) if forms else None


def _casts(twin: nn.Module, layer_type: str | None, spec: RopeSpec, hook: FollowLength | None) -> bool:
    """Whether the tables come in the dtype of the states; OLMo's and Ernie's stay in float32."""
    where = torch.zeros(*(spec.num_axes,) * (spec.num_axes > 1), 1, 1, dtype=torch.long, device=next(iter(twin.buffers())).device)
    return all(table.dtype == torch.bfloat16 for table in _tables(twin, where, layer_type, hook, torch.bfloat16))


def _tables(
    twin: nn.Module,
    positions: Tensor,
    layer_type: str | None,
    hook: FollowLength | None,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, ...]:
    try:
        found = _own_forward(twin, torch.zeros(1, device=positions.device, dtype=dtype), positions, layer_type, hook)
    except (RuntimeError, ValueError, LookupError, TypeError, AttributeError):
        return ()  # positions of this shape are not for this module
    return tuple(found) if isinstance(found, tuple) else (found,)


def _own_forward(module: nn.Module, x: Tensor, positions: Tensor, layer_type: str | None, hook: FollowLength | None) -> Any:
    """What the module's class computes, with the frequencies of this length if they follow it."""
    if hook is not None:
        hook.follow(module, positions, layer_type)
    named = () if layer_type is None else (layer_type,)
    return type(module).forward(module, x, positions, *named)


def _all_near(ours: tuple[Tensor, ...], theirs: tuple[Tensor, ...], slack: Tensor) -> bool:
    if [x.shape for x in ours] != [x.shape for x in theirs]:
        return False
    return all(bool(((a - b).abs() <= slack).all()) for a, b in zip(ours, theirs, strict=True))
