"""`extend` with a remapping: which layers of a model it applies to, and what it refuses.

A remapping changes the distance by which q and k are rotated against each other, by rotating them
again to other positions; some remappings also divide frequencies by a `slowdown`. A spec, a
RopeSpec, describes the rotation of a layer. A target is what `extend` was called with, a `_Target`
of model.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from ropewalk.attention.lse import LSE_BACKENDS
from ropewalk.attention.remap import REMAPPINGS, Remapping
from ropewalk.attention.remapped import check_remapping, slowed_spec
from ropewalk.config.checks import layer_types as layer_types_of
from ropewalk.config.hf import layer_specs
from ropewalk.config.temperatures import WINDOWED
from ropewalk.errors import RopeError, choice, integer
from ropewalk.interop.extend.extension import Extension
from ropewalk.interop.extend.keys import ConfigChange, specs_and_length
from ropewalk.interop.extend.remap import (
    UNSAVED,
    AttentionSwap,
    DecoderSwap,
    RemappedLayers,
    check_effect,
    make_remapping,
    remappable,
)
from ropewalk.interop.patch.length_hook import EXTENSION
from ropewalk.spec import RopeSpec

DUAL_CHUNK_KEY = "dual_chunk_attention_config"


def extend_decoder(
    model: nn.Module,
    kind: str | None,
    factor: float | None,
    length: int | None,
    options: Mapping[str, Any],
) -> Extension | None:
    """Give a model of this package the remapping `kind`, for `factor` times the trained `length`,
    and return the report; kind None undoes the model's remapping and returns None.

    length  None: the length in the model's config, or else in its encoding
    """
    previous: Extension | None = vars(model).get(EXTENSION)
    if kind is None and previous is None:
        raise RopeError(
            "kind", "must be given: the model is not extended, so there is nothing to undo", None
        )
    if kind is not None and kind not in REMAPPINGS:
        rule = (
            f"must be one of {', '.join(REMAPPINGS)} for a {type(model).__name__}; for a scaling, "
            "build it from a config whose spec has the scaling"
        )
        raise RopeError("kind", rule, kind)
    layers = remappable(model)
    if kind is not None:
        if not layers:
            raise RopeError(
                "model", "must have layers with RoPE to be remapped", type(model).__name__
            )
        if length is None:
            length = (
                getattr(getattr(model, "config", None), "length", None)
                or layers[0].encoding.sizes.length
            )
        remapping = make_remapping(kind, integer("original_length", length, low=1), factor, options)
        for module in layers:
            check_remapping(remapping, module.encoding, module.causal)
            if module.backend is not None:
                # torch's fused kernel does not return the log-sum-exp, which a remapping needs
                choice("backend", module.backend, LSE_BACKENDS)
    if previous is not None:
        previous.undo()
    if kind is None:
        return None
    specs: dict[str, RopeSpec] = {"full_attention": layers[0].encoding.rope.spec}  # type: ignore[dict-item, union-attr]
    swap = DecoderSwap(model, remapping)
    extension = Extension(
        kind,
        factor,
        specs,
        changes={},
        disagreements=(),
        notes=(_note(remapping),),
        saved=False,
        _swaps=[swap],
        _model=model,
    )
    extension._install()
    setattr(model, EXTENSION, extension)
    return extension


def remap_transformers(
    target: Any,
    kind: str,
    factor: float | None,
    original_length: int | None,
    names: Sequence[str] | None,
    options: dict[str, Any],
) -> Extension:
    """Give the model of `target` the remapping `kind` in layers of the types `names`; on an error
    everything is restored.
    """
    if target.model is None:
        rule = (
            f"{kind} changes the attention of a loaded model; {UNSAVED}; pass a model instead of a "
            "config"
        )
        raise RopeError("model", rule, type(target.root).__name__)
    before, trained = specs_and_length(target.config, original_length)
    options = dict(options)
    backend = options.pop("backend", None)
    if backend is not None:
        choice("backend", backend, LSE_BACKENDS)
    if kind == "dca" and factor is None and not options:
        options = _dual_chunk_options(target.config)
    remapping = make_remapping(kind, trained, factor, options)
    by_layer = _layers_to_remap(target.config, names)  # the spec of each layer
    for spec in dict.fromkeys(by_layer.values()):
        _refuse_spec(spec, remapping)
    specs = {
        name: spec
        for name, spec in before.items()
        if spec is not None and spec in by_layer.values()
    }
    # raises an error for a model whose rotary modules compute other angles than its config says;
    # the change has no keys, since nothing is written
    target.served(
        ConfigChange(
            {}, specs, (), target.config, served=None, trained=trained, before=specs, after=specs
        )
    )
    layers = RemappedLayers(remapping, by_layer, backend)
    extension = Extension(
        kind,
        factor,
        specs,
        changes={},
        disagreements=(f"{kind}: {UNSAVED}",),
        notes=(_note(remapping),),
        saved=False,
        _swaps=[],
        _model=target.model,
    )
    extension._swaps.append(
        AttentionSwap(target.model, layers, list(target.rotary.values()), (EXTENSION, extension))
    )
    try:
        extension._install()
        check_effect(target.model, layers, list(target.rotary.values()))
    except BaseException:
        extension._remove()
        raise
    return extension


def _note(remapping: Remapping) -> str:
    """Return a remark for the user: the remapping with its options."""
    return f"distances by {remapping}"


def _dual_chunk_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of dual chunk attention that the config of a long-context Qwen has: chunk,
    local and length; {} for any other config.
    """
    sizes = config.get(DUAL_CHUNK_KEY)
    if not isinstance(sizes, Mapping):
        return {}
    options = {"chunk": sizes.get("chunk_size"), "local": sizes.get("local_size")}
    # 0 means that it is not given
    options["length"] = sizes.get("original_max_position_embeddings") or None
    return {name: size for name, size in options.items() if size is not None}


def _layers_to_remap(config: Mapping[str, Any], names: Sequence[str] | None) -> dict[int, RopeSpec]:
    """Return {layer: spec} of the layers to remap: the rotated layers of the types `names`, or all
    rotated layers if the config has no layer_types. Raise an error if no layer of `names` rotates.

    names  None: the rotated layers without a window or, if there are none, all rotated layers
    """
    declared = layer_types_of(config)
    for name in names or ():
        choice("layer_types", name, declared)
    types = config.get("layer_types")
    rotated = {layer: spec for layer, spec in enumerate(layer_specs(config)) if spec is not None}
    if types is None:
        return rotated
    chosen_types = names or [name for name in declared if name not in WINDOWED]
    chosen = {layer: spec for layer, spec in rotated.items() if types[layer] in chosen_types}
    if not chosen and names:
        raise RopeError("layer_types", "must have layers that rotate", list(names))
    return chosen or rotated


def _refuse_spec(spec: RopeSpec, remapping: Remapping) -> None:
    """Raise an error if rotated keys of this spec cannot be moved to other positions."""
    if spec.num_axes > 1:
        raise RopeError("model", "must have positions on one axis to be remapped", spec.axes)
    if spec.needs_length:
        rule = (
            "must not have a length-dependent scaling to be remapped, because cached keys keep "
            "their rotation"
        )
        raise RopeError("rope", rule, spec.scaling)
    if spec.layout != spec.output_layout or spec.learned:
        raise RopeError(
            "rope",
            "must have fixed frequencies and keep its pair layout to be remapped",
            spec.output_layout,
        )
    # only some remappings have a slowdown; 1 is none
    if (slowdown := getattr(remapping, "slowdown", 1)) > 1:
        slowed_spec(spec, slowdown)  # raises an error if this spec has no slower form
