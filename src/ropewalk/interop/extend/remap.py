"""Remapped distances on a loaded model: ReRoPE, Leaky ReRoPE, Self-Extend and DCA, without a change
of weights.

A transformers model gets a registered attention function. It receives q and k as the model has
rotated them, and re-rotates them for each piece of the remapping. The positions travel with each
call, as an argument that a hook on the attention module adds, and those of cached keys are in the
cache: nothing about a call is kept in the model.

A remapping changes the distance by which q and k are rotated against each other. It is made of
pieces: in each, some pairs of tokens attend, at positions of the piece, with frequencies divided by
its `slowdown`. A rotary module computes cos and sin in forward(x, position_ids). A spec, a
RopeSpec, describes the rotation of a layer. `args` and `kwargs` are the arguments with which torch
calls a hook: those of the module's forward.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Container, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.attention.masks import Visibility
from ropewalk.attention.remap import REMAPPINGS, Remapping
from ropewalk.attention.remapped import attend_remapped, slowed_spec
from ropewalk.attention.softmax import SoftmaxAttention
from ropewalk.encodings.rotary import Rotary
from ropewalk.errors import RopeError, choice, number
from ropewalk.interop.extend.cached_positions import keep_positions, positions_of_keys
from ropewalk.rotation import rerotate
from ropewalk.spec import RopeSpec

#: the name under which transformers knows our attention function
ATTENTION_NAME = "ropewalk_remapped"
#: the attribute of a module that holds its remapping
REMAPPED = "_ropewalk_remapped"
#: the keyword argument by which the positions of a call reach the attention function
POSITIONS_ARGUMENT = "ropewalk_positions"
#: the attribute of a rotary module's result that holds the positions of the call
ROTATED_AT = "_ropewalk_positions"
#: the names under which attention modules take a cache
CACHE_NAMES = ("past_key_values", "past_key_value", "layer_past")
#: options of an attention function that change the scores in other ways
OTHER_SCORES = ("softcap", "s_aux", "position_bias")
#: what follows from a change that `extend` cannot write into the config
UNSAVED = (
    "extend writes no config key for it, so it is not saved with the model, and an engine that loads "
    "the model does not have it"
)


def make_remapping(
    kind: str, trained: int, factor: float | None, options: Mapping[str, Any]
) -> Remapping:
    """Return the remapping `kind` with the given options; the others are chosen for `factor` times
    the trained length, or have their defaults if `factor` is None. Raise an error if neither is
    given.
    """
    remapping_class = REMAPPINGS[choice("kind", kind, REMAPPINGS)]
    # all remappings are dataclasses
    names = [field.name for field in fields(remapping_class)]  # type: ignore[arg-type]
    for name, value in options.items():
        if name not in names:
            raise RopeError(name, f"must be an option of {kind}: {', '.join(names)}", value)
    if factor is None and not options:
        rule = f"must be given for {kind}, or options instead ({', '.join(names)})"
        raise RopeError("factor", rule, None)
    if factor is None:
        return remapping_class(**options)
    chosen = remapping_class.for_length(trained, int(trained * number("factor", factor, low=1)))
    return replace(chosen, **options)  # type: ignore[type-var]


@dataclass(frozen=True, eq=False)
class TokenPositions:
    """The positions [B, S] of the tokens of one call of an attention module, and its cache."""

    positions: Tensor
    cache: Any = None


@dataclass(eq=False)
class PassPositions:
    """A pre-hook of an attention module: it adds the positions of each call to the keyword
    arguments, which the module passes on to our attention function.

    Nothing is kept between calls, so that threads may share a model and a layer may be computed
    again in backward. `order` holds the names of the positional arguments of the module's forward.
    """

    order: tuple[str, ...]

    def __call__(
        self, module: nn.Module, args: tuple, kwargs: dict[str, Any]
    ) -> tuple[tuple, dict[str, Any]]:
        """Return the arguments of the call, with `POSITIONS_ARGUMENT` if it has positions."""
        given = dict(zip(self.order, args, strict=False)) | kwargs
        positions = given.get("position_ids")
        if positions is None:  # some layers get only the result of the rotary module
            tables = given.get("position_embeddings")
            first = tables[0] if isinstance(tables, tuple) else tables
            positions = getattr(first, ROTATED_AT, None)
        # a module that is no attention, or a model that passes no positions; for such a model the
        # attention function raises an error
        if positions is None:
            return args, kwargs
        cache = next((given[name] for name in CACHE_NAMES if given.get(name) is not None), None)
        if cache is not None:
            keep_positions(cache, module.layer_idx, positions)  # type: ignore[arg-type]
        return args, {**kwargs, POSITIONS_ARGUMENT: TokenPositions(positions, cache)}


def mark_positions(module: nn.Module, args: tuple, kwargs: dict[str, Any], output: Any) -> None:
    """A hook of a rotary module: sets the positions of a call as an attribute of its result, which
    the model hands on to the layers.
    """
    positions = kwargs["position_ids"] if "position_ids" in kwargs else args[1]
    setattr(output[0] if isinstance(output, tuple) else output, ROTATED_AT, positions)


def attention_modules(model: nn.Module, layers: Container[int]) -> dict[nn.Module, PassPositions]:
    """Return the innermost modules of the given layers that may be attention modules, each with a
    hook for it. A decoder layer, which holds an attention module, is left out.

    They have one of the `layers` as layer_idx, and take a mask and further keyword arguments, which
    attention modules pass on to the attention function.
    """
    found = {}
    for module in model.modules():
        layer: Any = getattr(module, "layer_idx", None)
        if layer not in layers:
            continue
        parameters = inspect.signature(type(module).forward).parameters
        if "attention_mask" in parameters and any(
            each.kind is each.VAR_KEYWORD for each in parameters.values()
        ):
            found[module] = PassPositions(tuple(parameters)[1:])  # without self
    return {
        module: hook
        for module, hook in found.items()
        if not any(part in found for part in module.modules() if part is not module)
    }


@dataclass(eq=False)
class RemappedLayers:
    """What the attention function needs to know about one model.

    specs    {layer: its spec} of the layers that are remapped
    backend  that of the attention of each piece; None: chosen for each call
    called   {layer: the positions it was called with} of a trial call; None outside of one
    """

    remapping: Remapping
    specs: dict[int, RopeSpec]
    backend: str | None = None
    called: dict[int, Tensor] | None = None

    def attend(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        scale: float,
        tokens: TokenPositions,
    ) -> Tensor:
        """Return the attention output [B, H, S, D] of one layer; q and k are already rotated, and
        `tokens` are those of q.
        """
        spec = self.specs[layer]
        if q.shape[-1] != spec.head_dim:
            rule = (
                f"must rotate whole heads of {spec.head_dim} dimensions; latent attention cannot "
                "be remapped"
            )
            raise RopeError("model", rule, list(q.shape))
        positions = tokens.positions.to(q.device).expand(len(q), -1)
        k_positions = positions
        if tokens.cache is not None:
            k_positions = positions_of_keys(tokens.cache, layer, positions, k.shape[-2])

        def rotate(key: bool, at: Tensor, slowdown: int) -> Tensor:
            """Return the keys or queries, rotated at the positions `at` with frequencies divided by
            `slowdown`.
            """
            x, x_positions = (k, k_positions) if key else (q, positions)
            # the model has rotated x at these very positions
            if at is x_positions and slowdown == 1:
                return x
            return rerotate(
                x, spec, x_positions, at, to=slowed_spec(spec, slowdown) if slowdown > 1 else None
            )

        # without a mask, transformers means causality, aligned at the first key; a single query
        # sees all keys
        visible = Visibility(causal=mask is None and q.shape[-2] > 1, mask=mask)
        return attend_remapped(
            self.remapping, rotate, v, positions, k_positions, scale, visible, self.backend
        )


def remapped_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The attention function that transformers calls; a layer that is not remapped runs torch's
    fused kernel. Return the output [B, S, H, D], and None in place of the attention weights.
    """
    layers: RemappedLayers | None = vars(module).get(REMAPPED)
    layer: Any = getattr(module, "layer_idx", None)
    if layers is None or layer not in layers.specs:
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        arguments = {"scaling": scaling, "dropout": dropout, **kwargs}
        return ALL_ATTENTION_FUNCTIONS["sdpa"](
            module, query, key, value, attention_mask, **arguments
        )
    for name in OTHER_SCORES:
        if kwargs.get(name) is not None:
            raise RopeError(
                "model",
                f"must not use {name} in its attention to be remapped",
                type(module).__name__,
            )
    if dropout:
        raise RopeError("dropout", "must be 0 with a remapping; call model.eval()", dropout)
    is_causal = kwargs.get("is_causal")
    if not (getattr(module, "is_causal", True) if is_causal is None else is_causal):
        raise RopeError("model", "must have causal attention to be remapped", type(module).__name__)
    tokens: TokenPositions | None = kwargs.get(POSITIONS_ARGUMENT)
    if tokens is None:
        rule = (
            "must give position_ids to its attention modules, which must pass keyword arguments on "
            "to the attention function, to be remapped"
        )
        raise RopeError("model", rule, type(module).__name__)
    if layers.called is not None:
        layers.called[layer] = tokens.positions
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    out = layers.attend(layer, query, key, value, attention_mask, scale, tokens)
    return out.transpose(1, 2).contiguous(), None


class AttentionSwap:
    """Sets and restores the attention function of a transformers model, and the hooks and
    attributes of its modules.

    `extension_mark` is an attribute (name, value) of the rotary modules, by which `extend` finds
    the current extension.
    """

    def __init__(
        self,
        model: Any,
        layers: RemappedLayers,
        rotary: list[nn.Module],
        extension_mark: tuple[str, Any],
    ) -> None:
        """Keep what `install` needs, and note the attention implementations that `remove` restores.

        `extension_mark` is the (name, value) of an attribute to set on the `rotary` modules.
        """
        self.model, self.layers, self.rotary, self.mark = model, layers, rotary, extension_mark
        config = model.config
        parts = {name: getattr(config, name, None) for name in getattr(config, "sub_configs", ())}
        #: the attention implementation of the whole model, under "", and of each part, such as a
        #: vision tower
        self.before = {"": config._attn_implementation} | {
            name: part._attn_implementation for name, part in parts.items() if part is not None
        }
        self.handles: list[Any] = []

    def install(self) -> None:
        """Route the attention of all layers through `remapped_attention_forward`."""
        if self.handles:
            return
        from transformers import AttentionInterface
        from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

        AttentionInterface.register(ATTENTION_NAME, remapped_attention_forward)
        # our function takes the masks that transformers makes for torch's fused kernel
        AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)
        self.model.set_attn_implementation(ATTENTION_NAME)
        for module in self.model.modules():
            if isinstance(getattr(module, "layer_idx", None), int):
                setattr(module, REMAPPED, self.layers)
        for module in self.rotary:
            setattr(module, *self.mark)
            self.handles.append(module.register_forward_hook(mark_positions, with_kwargs=True))
        for module, hook in attention_modules(self.model, self.layers.specs).items():
            self.handles.append(module.register_forward_pre_hook(hook, with_kwargs=True))

    def remove(self) -> None:
        """Restore the model's own attention."""
        for handle in self.handles:
            handle.remove()
        self.handles.clear()
        for module in self.model.modules():
            vars(module).pop(REMAPPED, None)
        for module in self.rotary:
            vars(module).pop(self.mark[0], None)
        self.model.set_attn_implementation(self.before)


class DecoderSwap:
    """Sets and restores the remapping of every SoftmaxAttention with RoPE in a model of this
    package, and in the model's config if that has one.
    """

    def __init__(self, model: nn.Module, remapping: Remapping) -> None:
        """Record what `install` is to set, `remapping`, and what `remove` is to restore: the
        present remappings of the SoftmaxAttention modules with RoPE, and the model's config if any.
        """
        self.model, self.remapping = model, remapping
        self.modules = remappable(model)
        self.before = [module.remapping for module in self.modules]
        self.config: Any = getattr(model, "config", None)

    def install(self) -> None:
        """Give the modules and the config the new remapping."""
        self._set([self.remapping] * len(self.modules))
        if hasattr(self.config, "remapping"):
            self.model.config = self.config.with_(remapping=self.remapping)  # type: ignore[assignment]

    def remove(self) -> None:
        """Give the modules and the model their earlier remappings and config."""
        self._set(self.before)
        if hasattr(self.config, "remapping"):
            self.model.config = self.config

    def _set(self, remappings: list[Remapping | None]) -> None:
        """Give each of the modules its remapping; None: none."""
        for module, remapping in zip(self.modules, remappings, strict=True):
            module.remapping = remapping


def is_ours(model: Any) -> bool:
    """Return whether a model has this package's SoftmaxAttention, with or without RoPE."""
    return isinstance(model, nn.Module) and any(
        isinstance(module, SoftmaxAttention) for module in model.modules()
    )


def remappable(model: nn.Module) -> list[SoftmaxAttention]:
    """Return the SoftmaxAttention modules with RoPE; empty for a transformers model."""
    return [
        module
        for module in model.modules()
        if isinstance(module, SoftmaxAttention) and isinstance(module.encoding, Rotary)
    ]


def check_effect(model: Any, layers: RemappedLayers, rotary: list[nn.Module]) -> None:
    """Run three tokens through the model and raise an error unless every layer to be remapped
    called our attention function, with positions at which one of the `rotary` modules rotated. A
    model on the meta device is not run.
    """
    device = next(model.parameters()).device
    if device.type == "meta":
        return
    rotated_at: list[Tensor] = []

    def note(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        """A hook of a rotary module: notes the positions of the call."""
        rotated_at.append(kwargs["position_ids"] if "position_ids" in kwargs else args[1])

    layers.called = {}
    handles = [module.register_forward_pre_hook(note, with_kwargs=True) for module in rotary]
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model(torch.zeros(1, 3, dtype=torch.long, device=device), use_cache=False)
        if missing := sorted(layers.specs.keys() - layers.called):
            rule = (
                "must call the attention function of its config in every layer to be remapped; "
                "these layers do not"
            )
            raise RopeError("model", rule, missing)
        for positions in layers.called.values():
            if not any(torch.equal(positions, each) for each in rotated_at):
                rule = "must rotate at the position_ids of its attention modules to be remapped"
                raise RopeError("model", rule, positions.tolist())
    finally:
        for handle in handles:
            handle.remove()
        layers.called = None
