"""Give a loaded transformers model, or a config, a longer context, and undo it exactly."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from ropewalk.errors import RopeError
from ropewalk.interop.config import file as config_file
from ropewalk.interop.config.layers import layer_types as layer_types_of
from ropewalk.interop.extend.keys import ConfigChange, config_change
from ropewalk.interop.extend.search import search_factors
from ropewalk.interop.extend.swap import ConfigSwap, ModuleSwap
from ropewalk.interop.patch.length_hook import EXTENSION, LengthHook
from ropewalk.interop.patch.model import patch_again
from ropewalk.interop.patch.rotary import has_frequencies, is_rotary, matches_of
from ropewalk.spec import RopeSpec


@dataclass(eq=False)
class Extension:
    """What `extend` changed; `undo()` restores it.

    changes        {config key: (before, after)}, None for a config key that was absent
    disagreements  engines that compute something else from the same config keys, and why
    notes          other remarks for the user
    saved          whether `save_pretrained` writes the change; only dynamic_yarn cannot be written to a config
    """

    kind: str
    factor: float | None
    specs: dict[str, RopeSpec]
    changes: dict[str, tuple[Any, Any]]
    disagreements: tuple[str, ...]
    notes: tuple[str, ...]
    saved: bool
    _swaps: list[ConfigSwap | ModuleSwap] = field(repr=False)
    _model: nn.Module | None = field(repr=False, default=None)

    def undo(self) -> None:
        """Restore the config and the rotary modules; a second call does nothing."""
        for swap in self._swaps:
            swap.remove()
        self._patch_again()

    def _install(self) -> None:
        for swap in self._swaps:
            swap.install()
        self._patch_again()

    def _patch_again(self) -> None:
        if self._model is not None:
            patch_again(self._model)  # a patched model still has the ropes of the old config

    def __str__(self) -> str:
        title = f"{self.kind} x {self.factor:g}" if self.factor is not None else self.kind
        lines = [f"{title} on {', '.join(self.specs)}" + ("" if self.saved else " (not saved with the model)")]
        lines += [f"  {key}: {before!r} -> {after!r}" for key, (before, after) in self.changes.items()]
        return "\n".join([*lines, *(f"  note: {note}" for note in (*self.disagreements, *self.notes))])


def extend(
    model: Any,
    kind: str | None,
    *,
    factor: float | None = None,
    original_length: int | None = None,
    layer_types: Sequence[str] | None = None,
    overwrite: bool = False,
    search: Callable[[tuple[float, ...]], float] | None = None,
    search_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> Extension | None:
    """Give a loaded transformers model, a transformers config or a config dict a longer context, in place.

    kind             linear, ntk, dynamic, yarn, dynamic_yarn, longrope, llama3; None undoes the extension of a model
    factor           how many times longer; not for dynamic_yarn, which adapts to each sequence
    original_length  the trained length; None reads it from the config
    layer_types      the layer types to extend, if they have separate ropes; None: those with full attention
    overwrite        replace a scaling that the config already has, instead of raising an error
    search           longrope: a loss as a function of the long factors, minimised by `search_factors` with `search_options`;
                     while it runs, the model uses the factors it is called with
    options          of the scaling: beta_fast, attention_factor, ..., long_factor, short_factor, low_freq_factor, ...

    The model uses the new frequencies at once, and `save_pretrained` writes them with the config keys of its version. Warns
    if other engines compute something else from these config keys. A second call replaces the first extension. Attention
    keys in a cache filled earlier keep the old rotation.
    """
    target = _Target(model)
    previous = target.extension()
    if kind is None and previous is None:
        raise RopeError("kind", "must be given: the model is not extended, so there is nothing to undo", None)
    if previous is not None:
        previous.undo()
    if kind is None:
        return None
    try:
        arguments = {
            "factor": factor, "original_length": original_length, "layer_types": layer_types, "overwrite": overwrite,
        }  # fmt: skip
        if kind == "longrope":
            options = _longrope_options(target, arguments, options, search, dict(search_options or {}))
        elif search is not None:
            raise RopeError("search", "must be left out: it finds the factors of longrope only", kind)
        change = config_change(target.config, kind, **arguments, options=options)
        extension = target.apply(kind, factor, change, change.disagreements())
    except BaseException:
        if previous is not None:
            previous._install()
        raise
    for text in extension.disagreements:
        warnings.warn(text, UserWarning, stacklevel=2)
    return extension


def _longrope_options(
    target: _Target, arguments: dict[str, Any], options: dict[str, Any], search: Callable | None, search_options: dict[str, Any]
) -> dict[str, Any]:
    """Return the options of longrope with both lists of factors, after a search if there is one."""
    if (search is None) == ("long_factor" not in options):
        rule = "must be given for longrope (CLI: --set long_factor=[...]), or else search=, but not both"
        raise RopeError("long_factor", rule, options.get("long_factor"))
    # an NTK change needs no factor per pair, so it can be computed first and gives the number of pairs
    specs = config_change(target.config, "ntk", **{**arguments, "factor": arguments["factor"] or 1.0}).specs
    pairs = next(iter(specs.values())).pairs
    options = {"short_factor": (1.0,) * pairs, **options}
    if search is None:
        return options

    def loss(factors: tuple[float, ...]) -> float:
        change = config_change(target.config, "longrope", **arguments, options={**options, "long_factor": factors})
        trial = target.apply("longrope", arguments["factor"], change)
        try:
            return search(factors)
        finally:
            trial.undo()

    if arguments["factor"] is None:
        raise RopeError("factor", "must be given for longrope: how many times longer the context becomes", None)
    return {**options, "long_factor": search_factors(loss, pairs, arguments["factor"], **search_options)}


class _Target:
    """The text config to extend and the rotary modules that were built from it."""

    def __init__(self, model: Any) -> None:
        self.model = model if isinstance(model, nn.Module) else None
        root = getattr(model, "config", None) if self.model is not None else model
        if root is None or not (isinstance(root, MutableMapping) or callable(getattr(root, "to_dict", None))):
            rule = "must be a transformers model, a transformers config or a config as a dict"
            raise RopeError("model", rule, type(model).__name__)
        self.root, self.owner = root, _text_owner(root)
        named = () if self.model is None else self.model.named_modules()
        modules = {name: module for name, module in named if getattr(module, "config", None) is self.owner}
        self.rotary = {name: module for name, module in modules.items() if has_frequencies(module)}
        if self.model is not None and not self.rotary:
            rule = "must have a rotary module with an inv_freq buffer, built from its config; this model has none"
            raise RopeError("model", rule, type(model).__name__)

    @property
    def config(self) -> Mapping[str, Any]:
        """The current text config."""
        # the text part of a dict may take its model_type from the whole; a config object has its own
        return config_file.text_part(self.root) if isinstance(self.root, Mapping) else config_file.load(self.owner)

    def extension(self) -> Extension | None:
        """Return the current extension of the model."""
        return next((vars(module)[EXTENSION] for module in self.rotary.values() if EXTENSION in vars(module)), None)

    def apply(self, kind: str, factor: float | None, change: ConfigChange, disagreements: tuple[str, ...] = ()) -> Extension:
        """Change the config and the rotary modules; on an error everything is restored."""
        config, keys = self.config, _accepted_keys(self.owner, self.config, copy.deepcopy(change.keys))
        swaps: list[ConfigSwap | ModuleSwap] = [ConfigSwap(self.owner, keys)] if keys else []
        if self.model is not None:
            _refuse_softmax_change(config, change)
        changes = {key: (config.get(key), keys[key]) for key in keys}
        # OLMo 3 in transformers 4 has one rotary module for each layer type, named after it
        unchanged = set(layer_types_of(config)) - change.specs.keys()
        modules = [module for name, module in self.rotary.items() if name.rpartition(".")[2] not in unchanged]
        recognised = [module for module in modules if keys and _is_recognised(module)]
        extension = Extension(kind, factor, change.specs, changes, disagreements, change.notes, bool(keys), swaps, self.model)
        try:
            for swap in swaps:
                swap.install()  # before the modules, which are rebuilt from the changed config
            hook = None if keys else LengthHook(change.specs)
            rebuilt = [ModuleSwap(module, extension, hook) for module in modules]
            swaps += rebuilt
            extension._install()
            for swap in rebuilt if keys else ():
                _refuse_other_frequencies(swap, change, swap.module in recognised)
        except BaseException:
            extension.undo()
            raise
        return extension


def _text_owner(config: Any) -> Any:
    """Return the config object or dict that the text model reads, to be written in place."""
    for name in config_file.TEXT_PARTS:
        part = config.get(name) if isinstance(config, Mapping) else vars(config).get(name)
        if isinstance(part, MutableMapping) or callable(getattr(part, "to_dict", None)):
            return _text_owner(part)
    return config


def _accepted_keys(owner: Any, config: Mapping[str, Any], keys: dict[str, Any]) -> dict[str, Any]:
    """Return the config keys in a spelling that the config's class accepts.

    Phi-3's class accepts no other scaling than longrope, and OLMo's in transformers 4 reads `type` instead of `rope_type`.
    """
    if not keys or isinstance(owner, Mapping):
        return keys
    try:
        _refuse_by_class(owner, config, keys)
    except RopeError:
        if "rope_type" not in (keys.get("rope_scaling") or {}):
            raise
        older = {"type" if key == "rope_type" else key: value for key, value in keys["rope_scaling"].items()}
        keys = {**keys, "rope_scaling": older}
        _refuse_by_class(owner, config, keys)
    return keys


def _refuse_by_class(owner: Any, config: Mapping[str, Any], keys: Mapping[str, Any]) -> None:
    name = type(owner).__name__
    try:
        rebuilt = type(owner).from_dict(copy.deepcopy({**config, **keys}))
    except Exception as error:  # config classes raise errors of many types
        rule = f"must be a scaling that {name} accepts ({' '.join(str(error).split())})"
        raise RopeError("kind", rule, keys.get("rope_parameters") or keys.get("rope_scaling")) from None
    theirs = config_file.load(rebuilt)
    changed = [key for key, value in keys.items() if value is not None and theirs.get(key) != value]
    if changed:
        rule = f"must be a scaling that {name} keeps as written; it changes {', '.join(changed)}"
        raise RopeError("kind", rule, theirs.get(changed[0]))


def _is_recognised(module: nn.Module) -> bool:
    """Return whether a rotary module computes what its config specifies, so that it can be compared again after a change."""
    on_device = not any(buffer.is_meta for buffer in module.buffers())
    return on_device and is_rotary(module) and bool(matches_of(module, None))


def _refuse_other_frequencies(swap: ModuleSwap, change: ConfigChange, recognised: bool) -> None:
    """Refuse a change that the rebuilt module does not compute: releases of transformers differ in the keys they read."""
    if recognised:
        specs = {match.rope.spec for match in matches_of(swap.module, None).values()}
        agrees = bool(specs & set(change.specs.values()))
    else:
        agrees = swap.changes_angles()
    if not agrees:
        rule = f"must be what the installed transformers computes from these config keys, but its {type(swap.module).__name__}"
        raise RopeError("kind", f"{rule} computes something else; leave out options or upgrade transformers", change.keys)


def _refuse_softmax_change(config: Mapping[str, Any], change: ConfigChange) -> None:
    """Refuse mscale_all_dim for a loaded model with latent attention."""
    latent = config.get("qk_rope_head_dim") is not None
    if latent and any(getattr(spec.scaling, "mscale_all_dim", None) for spec in change.specs.values()):
        rule = "must be left out for a loaded model with latent attention, which fixed its softmax scale when it was built"
        raise RopeError("mscale_all_dim", f"{rule}; extend the config first and load the model from it", True)
