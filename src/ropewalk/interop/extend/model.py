"""`extend`: give a loaded model, or a config, a longer context; for a transformers model, check that
its rotary modules compute the new angles.

Words of this module:
  target      what `extend` was called with: the text config to change, and the rotary modules that
              compute angles from it (none for a config alone)
  change      the keys to set in the text config, with the specs before and after, a ConfigChange
  spec        a RopeSpec: theta, scaling and the other settings of a layer type's rotation
  serve       a rotary module serves a layer type if it computes the angles of its spec
  Served      {a `layer_type` that the module's forward takes, or None if it takes none: the layer
              types that it serves}
  kind        the name of a scaling or of a remapping, such as "yarn" or "rerope"
  root        the whole config, an object or a dict
  owner       root, or the part of it that holds the values of the text model
"""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

from torch import nn

from ropewalk.attention.remap import REMAPPINGS
from ropewalk.config import file as config_file
from ropewalk.errors import RopeError, choice
from ropewalk.interop.extend.angles import Served, lengths_around, served_layers
from ropewalk.interop.extend.extension import Extension, Swap
from ropewalk.interop.extend.keys import ConfigChange, all_kinds, config_change
from ropewalk.interop.extend.longrope2 import search_longrope2
from ropewalk.interop.extend.remap import is_ours
from ropewalk.interop.extend.remapped_model import extend_decoder, remap_transformers
from ropewalk.interop.extend.search import search_factors
from ropewalk.interop.extend.swap import ConfigSwap, ModuleSwap
from ropewalk.interop.patch.length_hook import EXTENSION, LengthHook
from ropewalk.interop.patch.rotary import has_frequencies
from ropewalk.spec import RopeSpec


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
    """Give a loaded transformers model, a transformers config or a config dict a longer context, in
    place.

    kind             a scaling: linear, ntk, dynamic, yarn, dynamic_yarn, longrope, llama3; clipped,
                     only to train further at the new length; or a remapping, for a loaded model or
                     a Decoder: rerope, leaky_rerope, self_extend, dca; None undoes the extension of
                     a model
    factor           how many times longer than the trained length, which is less than the config's
                     length if the config already has a scaling; not for dynamic_yarn, which adapts
                     to each sequence, nor for clipped; a remapping needs it or options
    original_length  the trained length; None reads it from the config
    layer_types      the layer types to extend, if they have separate ropes; None: those that the
                     model's family scales, mostly the ones with full attention; with a remapping,
                     those without a window
    overwrite        replace a scaling that the config already has, instead of raising an error
    search           longrope: a loss as a function of the long factors, minimised by
                     `search_factors` with `search_options`; while the loss runs, the model uses the
                     factors that the loss was called with. search_options={"method": "longrope2"}
                     searches as LongRoPE2 does (`search_longrope2`)
    options          of the scaling: beta_fast, attention_factor, ..., long_factor, short_factor,
                     low_freq_factor, ...; of the remapping: window, log_n_length, slowdown, group,
                     chunk, local, length, and for a transformers model on a GPU backend="flex"

    Returns a report of what was changed, or None if an extension was undone. A model uses the new
    frequencies at once, and `save_pretrained` writes them in the spelling of its config. The angles
    of its rotary modules are compared with the new spec at several lengths; if they differ,
    everything is restored and an error raised. Warns if the change is not written into the config,
    so that it is not saved and other engines do not have it, or if the new length is shorter than
    the config's. A second call on a model replaces the first extension; a config that already has a
    scaling needs `overwrite`. Attention keys in a cache filled earlier keep the old rotation.
    """
    _refuse_unused(model, kind, search, search_options, overwrite, layer_types)
    if is_ours(model):
        return extend_decoder(model, kind, factor, original_length, options)
    if kind is not None:
        choice("kind", kind, (*all_kinds(), *REMAPPINGS))
    target = _Target(model)
    previous = target.extension()
    if kind is None and previous is None:
        raise RopeError(
            "kind", "must be given: the model is not extended, so there is nothing to undo", None
        )
    if previous is not None:
        previous.undo()
    if kind is None:
        return None
    extension, shorter = None, ()
    try:
        arguments = {
            "factor": factor,
            "original_length": original_length,
            "layer_types": layer_types,
            "overwrite": overwrite,
        }
        if kind in REMAPPINGS:
            extension = remap_transformers(
                target, kind, factor, original_length, layer_types, options
            )
        else:
            if kind == "longrope":
                options = _longrope_options(
                    target, arguments, options, search, dict(search_options or {})
                )
            change = config_change(target.config, kind, **arguments, options=options)
            extension = target.apply(kind, factor, change, change.disagreements())
            shorter = change.shorter
        for text in (*extension.disagreements, *shorter):
            warnings.warn(text, UserWarning, stacklevel=2)  # an error, if the user's filter says so
    except BaseException:
        if extension is not None:
            extension.undo()
        if previous is not None:
            previous._install()
        raise
    return extension


def _refuse_unused(
    model: Any,
    kind: str | None,
    search: Any,
    search_options: Any,
    overwrite: bool,
    layer_types: Sequence[str] | None,
) -> None:
    """Raise an error if an argument of `extend` is given that has no effect for this kind or this
    model, or if search_options is no dict.
    """
    for name, value in {"search": search, "search_options": search_options}.items():
        if value is not None and kind != "longrope":
            raise RopeError(name, "must be left out: it finds the factors of longrope only", kind)
    if search_options is not None and search is None:
        raise RopeError("search_options", "must be left out without a search=", search_options)
    if not isinstance(search_options, Mapping | None):
        rule = "must be a dict, such as {'rounds': 20}"
        raise RopeError("search_options", rule, search_options)
    if overwrite and kind in REMAPPINGS:
        raise RopeError("overwrite", "must be left out: a remapping replaces no scaling", kind)
    if layer_types is not None and is_ours(model):
        raise RopeError(
            "layer_types",
            "must be left out for a model of this package: it has none",
            list(layer_types),
        )


def _longrope_options(
    target: _Target,
    arguments: dict[str, Any],
    options: dict[str, Any],
    search: Callable | None,
    search_options: dict[str, Any],
) -> dict[str, Any]:
    """Return the options of longrope with both lists of factors; the long ones are given or found
    by `search`. Raise an error if long_factor and `search` are both given, or neither is.

    arguments  of `config_change`: factor, original_length, layer_types, overwrite
    search     the user's loss as a function of the long factors, or None
    """
    is_given = "long_factor" in options
    if (search is not None) == is_given:
        rule = "must be given for longrope (CLI: --set long_factor=[...]), or search= instead, not both"
        raise RopeError("long_factor", rule, options.get("long_factor"))
    # an NTK change needs no factors of pairs; it is computed only for its specs, which tell the
    # number of pairs
    ntk_change = config_change(
        target.config, "ntk", **{**arguments, "factor": arguments["factor"] or 1.0}
    )
    name, spec = next(iter(ntk_change.specs.items()))
    pairs = spec.pairs
    options = {"short_factor": (1.0,) * pairs, **options}
    if search is None:
        return options

    def loss(factors: tuple[float, ...]) -> float:
        """Return the loss of the model with these factors, which are removed afterwards."""
        change = config_change(
            target.config, "longrope", **arguments, options={**options, "long_factor": factors}
        )
        trial = target.apply("longrope", arguments["factor"], change)
        try:
            return search(factors)  # the user's loss, of the model that has them now
        finally:
            trial.undo()

    if arguments["factor"] is None:
        raise RopeError(
            "factor", "must be given for longrope: how many times longer the context becomes", None
        )
    method = choice("method", search_options.pop("method", "longrope"), ("longrope", "longrope2"))
    if method == "longrope2":
        search_options = {
            "theta": ntk_change.before[name].theta,
            "length": ntk_change.trained,
            **search_options,
        }
    run_search = search_factors if method == "longrope" else search_longrope2
    known = [
        name
        for name, each in inspect.signature(run_search).parameters.items()
        if each.kind is each.KEYWORD_ONLY
    ]
    for option in search_options:
        choice("search_options", option, ("method", *known))
    return {
        **options,
        "long_factor": run_search(loss, pairs, arguments["factor"], **search_options),
    }


class _Target:
    """The text config to extend and the rotary modules that were built from it.

    model   None if only a config is extended
    root    the whole config
    owner   the object or dict in it, or itself, that holds the values of the text model
    rotary  {path: rotary module}
    """

    def __init__(self, model: Any) -> None:
        """Find the text config and the rotary modules of a model, or the text config of a config."""
        self.model = model if isinstance(model, nn.Module) else None
        root = getattr(model, "config", None) if self.model is not None else model
        if root is None or not (
            isinstance(root, MutableMapping) or callable(getattr(root, "to_dict", None))
        ):
            rule = "must be a transformers model, a transformers config or a config as a dict"
            raise RopeError("model", rule, type(model).__name__)
        self.root, self.owner = root, config_file.text_owner(root)
        # some modules have a copy of the config: Granite SWA has one for each theta
        all_modules = () if self.model is None else self.model.named_modules()
        modules = {
            name: module
            for name, module in all_modules
            if type(getattr(module, "config", None)) is type(self.owner)
        }
        self.rotary = {name: module for name, module in modules.items() if has_frequencies(module)}
        self._served: dict[str, Served] | None = None
        if self.model is not None and not self.rotary:
            rule = (
                "must have a rotary module with an inv_freq buffer, built from its config; this "
                "model has none"
            )
            raise RopeError("model", rule, type(model).__name__)

    @property
    def config(self) -> Mapping[str, Any]:
        """The current text config."""
        # `text_part` gives a part without a model_type the one of the whole dict; a config object
        # has its own
        return (
            config_file.text_part(self.root)
            if isinstance(self.root, Mapping)
            else config_file.load(self.owner)
        )

    def extension(self) -> Extension | None:
        """Return the current extension of the model, or None."""
        return next(
            (
                vars(module)[EXTENSION]
                for module in self.rotary.values()
                if EXTENSION in vars(module)
            ),
            None,
        )

    def served(self, change: ConfigChange) -> dict[str, Served]:
        """Return, by the name of each rotary module, the layer types whose angles it computes.

        Raise an error if a module's angles are those of no layer type, or if no module computes
        those of a layer type that `change` changes.
        """
        if self._served is None:  # a search calls this for each candidate
            self._served = _served_by_module(self.rotary, change.before, change.trained)
        for name, served in self._served.items():
            if not all(served.values()):
                # a set of layer types is empty: the module computes the angles of no layer type
                rule = "must compute the angles of its config to be extended, but its rotary module"
                raise RopeError(
                    "model", f"{rule} {name} computes others", type(self.rotary[name]).__name__
                )
        known = {
            layer
            for served in self._served.values()
            for layers in served.values()
            for layer in layers
        }
        if self.rotary and not change.specs.keys() <= known:
            raise RopeError(
                "layer_types",
                f"must be among those of the model's rotary modules: {', '.join(sorted(map(str, known)))}",
                list(change.specs),
            )
        return self._served

    def apply(
        self,
        kind: str,
        factor: float | None,
        change: ConfigChange,
        disagreements: tuple[str, ...] = (),
    ) -> Extension:
        """Change the config and the rotary modules, and return an `Extension` that can undo this;
        on an error everything is restored.
        """
        config = self.config
        keys = _respelled_keys(self.owner, config, copy.deepcopy(change.keys))
        if self.model is not None:
            _refuse_softmax_change(change)
        before = self.served(change)
        # the rotary modules of the layer types that change, and every config that such a module or
        # the model has, once
        modules = [
            self.rotary[name]
            for name, served in before.items()
            if change.specs.keys() & set().union(*served.values())
        ]
        # by id: an object is taken once, but a copy with equal values is another config
        configs = {id(each): each for each in (self.owner, *(module.config for module in modules))}
        swaps: list[Swap] = [ConfigSwap(each, keys) for each in configs.values()] if keys else []
        changes = {key: (config.get(key), keys[key]) for key in keys}
        extension = Extension(
            kind,
            factor,
            change.specs,
            changes,
            disagreements,
            (*change.shorter, *change.notes),
            bool(keys),
            swaps,
            self.model,
        )
        try:
            for swap in swaps:
                # first, because each ModuleSwap builds a module from the changed config; `_install`
                # repeats it, without effect
                swap.install()
            # if no config key is written for the scaling, a hook computes the tables at each call
            hook = None if keys else LengthHook(change.specs)
            swaps += [ModuleSwap(module, extension, hook) for module in modules]
            extension._install()
            _refuse_other_angles(before, self.rotary, change)
        except BaseException:
            extension._remove()
            raise
        return extension


def _respelled_keys(owner: Any, config: Mapping[str, Any], keys: dict[str, Any]) -> dict[str, Any]:
    """Return the config keys with `rope_type`, or else with `type`: the first spelling that the
    config's class accepts; raise an error if it accepts neither. A dict has no class to ask: its
    keys are returned as they are.

    OLMo's class in transformers 4 reads `type`. Phi-3's accepts no scaling but longrope.
    """
    if not keys or isinstance(owner, Mapping):
        return keys
    try:
        _check_class_keeps(owner, config, keys)
    except RopeError:
        if "rope_type" not in (keys.get("rope_scaling") or {}):
            raise
        older = {
            "type" if key == "rope_type" else key: value
            for key, value in keys["rope_scaling"].items()
        }
        keys = {**keys, "rope_scaling": older}
        _check_class_keeps(owner, config, keys)
    return keys


def _check_class_keeps(owner: Any, config: Mapping[str, Any], keys: Mapping[str, Any]) -> None:
    """Raise an error if the config class of the model refuses or changes the new keys."""
    name = type(owner).__name__
    try:
        rebuilt = type(owner).from_dict(copy.deepcopy({**config, **keys}))
    except Exception as error:  # config classes raise errors of many types
        rule = f"must be a scaling that {name} accepts ({' '.join(str(error).split())})"
        raise RopeError(
            "kind", rule, keys.get("rope_parameters") or keys.get("rope_scaling")
        ) from None
    accepted = config_file.load(rebuilt)
    # a key that is set to null may be absent from what the class writes
    changed = [
        key for key, value in keys.items() if value is not None and accepted.get(key) != value
    ]
    if changed:
        rule = f"must be a scaling that {name} keeps as written; it changes {', '.join(changed)}"
        raise RopeError("kind", rule, accepted.get(changed[0]))


def _served_by_module(
    rotary: Mapping[str, nn.Module], specs: Mapping[str, RopeSpec], trained: int
) -> dict[str, Served]:
    """Return, by the name of each rotary module, the layer types whose spec gives its angles."""
    return {
        name: served_layers(name, module, specs, lengths_around(trained))
        for name, module in rotary.items()
    }


def _refuse_other_angles(
    before: Mapping[str, Served], rotary: Mapping[str, nn.Module], change: ConfigChange
) -> None:
    """Refuse a change after which a rotary module does not compute the new spec of the layer types
    that it serves; `before` has what each of the `rotary` modules served before the change.
    """
    after = _served_by_module(rotary, change.after, change.trained)
    for name, served in before.items():
        for layer_type, layers in served.items():
            if not layers & after[name].get(layer_type, set()):
                rule = (
                    "must be what the installed transformers computes, but the rotary module "
                    f"{name} computes other angles"
                )
                raise RopeError(
                    "kind",
                    f"{rule}; leave out options, upgrade transformers, or choose another kind",
                    change.keys,
                )


def _refuse_softmax_change(change: ConfigChange) -> None:
    """Refuse another softmax factor for a loaded model: latent attention fixes it when the model is
    built.
    """
    for name, spec in change.specs.items():
        old = change.before[name].extra_softmax_factor
        if spec.extra_softmax_factor != old:
            rule = (
                f"must leave the softmax factor {old:g} that the loaded model fixed when it was "
                "built"
            )
            hint = "extend the config first and load the model from it"
            raise RopeError("mscale_all_dim", f"{rule}; {hint}", spec.extra_softmax_factor)
