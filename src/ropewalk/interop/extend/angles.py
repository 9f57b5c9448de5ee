"""Read the angles that a rotary module computes, and find the layer types whose spec gives the same
angles.

A module serves a layer type if it computes the angles of its spec, the RopeSpec with its
frequencies and magnitude. The tables of a module are what its forward returns: cos and sin, or one
complex tensor; () where it raises an error.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from ropewalk.interop.patch.rotary import probe_of
from ropewalk.spec import RopeSpec
from ropewalk.tensor_frequencies import ladder

#: relative tolerance of a frequency and of a magnitude
TOLERANCE = 1e-5
#: relative tolerance of an angle that is rounded to float32, as its frequency is
FLOAT32_ANGLE = 2.0**-21

#: for each `layer_type` that a module's forward takes, or for None if it takes none: the layer
#: types whose spec gives the angles that it computes
Served = dict[str | None, set[str]]


def lengths_around(trained: int) -> list[int]:
    """Return lengths of at least 8, below, at and above a trained length, where scalings change
    their frequencies.
    """
    # 8: a short text, yet longer than the positions 0, 1 and 2 at which angles are compared
    return sorted(
        {max(8, length) for length in (8, trained, trained + 1, 2 * trained + 1, 16 * trained)}
    )


def served_layers(
    name: str, module: nn.Module, specs: Mapping[str, RopeSpec], lengths: Sequence[int]
) -> Served:
    """Return for each `layer_type` that the module's forward takes, or for None if it takes none,
    which layer types' specs give its angles. A `layer_type` for which the module has no tables is
    left out.

    name, module  the path of a rotary module in the model, and the module
    specs         the spec of each layer type, as the config describes it; angles are compared at
                  each of `lengths`
    """
    probe = probe_of(_on_a_device(module))
    if "layer_type" in inspect.signature(type(module).forward).parameters:
        candidates: dict[str | None, list[str]] = {layer: [layer] for layer in specs}
    else:
        # OLMo 3 in transformers 4 has one module for each layer type, named after it
        last = name.rpartition(".")[2]
        candidates = {None: [last] if last in specs else [*specs]}
    served: Served = {}
    for layer_type, names in candidates.items():
        axes = specs[names[0]].num_axes
        # in ascending order, because dynamic NTK in transformers keeps the frequencies of the
        # longest call
        tables = {
            length: probe.tables(_positions(length, axes).to(probe.device), layer_type)
            for length in lengths
        }
        # a module without tables for a `layer_type` has no rope for it; one that takes no
        # `layer_type` and has no tables gets an empty set, which is an error
        if layer_type is None or any(tables.values()):
            agrees = {
                each: all(_agree(specs[each], length, tables[length]) for length in lengths)
                for each in names
            }
            served[layer_type] = {each for each in names if agrees[each]}
    return served


def _on_a_device(module: nn.Module) -> nn.Module:
    """Return the module itself, or one built from its config if its buffers are on the meta device
    and have no values.
    """
    if not any(buffer.is_meta for buffer in module.buffers()):
        return module
    with torch.device("cpu"):
        built = type(module)(module.config)
    # a hook may set the frequencies for each length
    built._forward_hooks.update(module._forward_hooks)
    return built


def _positions(length: int, axes: int = 1) -> Tensor:
    """Return the positions 0, 1, 2 and length - 1 as [1, 4], or as [axes, 1, 4] with the same
    positions on every axis.

    A frequency is at most about 1, so the angle at position 1 determines it, however slow the pair
    is.
    """
    positions = torch.tensor([[0, 1, 2, length - 1]])
    return positions if axes == 1 else positions.expand(axes, -1, -1)


def _agree(spec: RopeSpec, length: int, tables: tuple[Tensor, ...]) -> bool:
    """Return whether tables, (cos, sin) or one complex tensor, hold the angles of `spec` at the
    positions of `_positions(length)`, in one or two entries for each pair.

    length  that of the sequence, on which the frequencies of some scalings depend
    """
    if len(tables) not in (1, 2):
        return False
    cos, sin = (tables[0].real, tables[0].imag) if len(tables) == 1 else tables
    cos, sin = (table.to("cpu", torch.float64) for table in (cos, sin))
    frequencies = ladder(spec, length)
    angles = _positions(length)[0][:, None] * frequencies.radians  # [tokens, pairs]
    # tables have one entry for each pair, or two that are half of the row apart, or two neighbours
    forms = [angles, torch.cat([angles, angles], dim=-1), angles.repeat_interleave(2, dim=-1)]
    fitting = [form for form in forms if cos.shape[-2:] == sin.shape[-2:] == form.shape]
    return any(_near(cos, sin, form, float(frequencies.magnitude)) for form in fitting)


def _near(cos: Tensor, sin: Tensor, angles: Tensor, magnitude: float) -> bool:
    """Return whether cos and sin are magnitude * cos(angles) and magnitude * sin(angles), up to
    rounding.
    """
    # where the angles agree, this is the magnitude, with angle 0
    rotated_back = torch.complex(cos, sin) * torch.polar(torch.ones_like(angles), -angles)
    # relative error TOLERANCE up to 1 rad (the angle at position 1 is the frequency itself), beyond
    # that TOLERANCE rad, plus what float32 rounding adds to a large angle
    allowed = angles.abs().clamp(max=1) * TOLERANCE + angles.abs() * FLOAT32_ANGLE
    same_angles = (rotated_back.angle().abs() <= allowed).all()
    same_magnitude = ((rotated_back.abs() / magnitude - 1).abs() <= TOLERANCE).all()
    return bool(same_angles) and bool(same_magnitude)
