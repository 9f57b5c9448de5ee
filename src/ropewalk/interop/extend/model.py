"""A longer context for a loaded transformers model, or for a config: set on both at once, and undone bit for bit."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.errors import RopeError
from ropewalk.interop.config import file as config_file
from ropewalk.interop.config.layers import layer_types
from ropewalk.interop.extend.keys import Plan, make_plan
from ropewalk.interop.extend.search import search_factors
from ropewalk.interop.patch.follow import MARK, FollowLength
from ropewalk.interop.patch.methods import Stand
from ropewalk.interop.patch.model import patch
from ropewalk.interop.patch.rotary import StandingRotary, is_rotary, plans_of
from ropewalk.spec import RopeSpec


class _ABSENT:
    """Stands for a key that a config does not have; a class, so that a copy of an extension still knows it."""


@dataclass(eq=False)
class Extension:
    """What `extend` changed; `undo()` puts everything back as it was.

    changes        {config key: (before, after)}, None for a key that was absent
    disagreements  where other engines compute something else from the same keys
    notes          what else to know
    saved          whether `save_pretrained` writes it: false for dynamic_yarn alone, which no config can say
    """

    kind: str
    factor: float | None
    specs: dict[str, RopeSpec]
    changes: dict[str, tuple[Any, Any]]
    disagreements: tuple[str, ...]
    notes: tuple[str, ...]
    saved: bool
    _swaps: list[_ConfigSwap | _ModuleSwap] = field(repr=False)
    _model: nn.Module | None = field(repr=False, default=None)

    def undo(self) -> None:
        """Put config and rotary modules back as they were; a second call does nothing."""
        self._swap(back=True)

    def _swap(self, back: bool) -> None:
        for swap in self._swaps:
            swap.leave() if back else swap.place()
            if isinstance(swap, _ModuleSwap):
                vars(swap.module).pop(MARK, None) if back else setattr(swap.module, MARK, self)
        if self._model is not None:
            _patch_again(self._model)

    def __str__(self) -> str:
        scaled = f"{self.kind} x {self.factor:g}" if self.factor is not None else self.kind
        lines = [f"{scaled} on {', '.join(self.specs)}" + ("" if self.saved else " (not saved with the model)")]
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
    factor           how much longer; not for dynamic_yarn, which follows each sequence
    original_length  the trained length; None: what the config says
    layer_types      which layers, where layer types have ropes of their own; None: those with full attention
    overwrite        replace the scaling a config already has, instead of refusing
    search           longrope: a loss of the long factors, minimised by `search_factors` with `search_options`; a model has
                     the factors it is called with
    options          those of the scaling: beta_fast, attention_factor, ..., long_factor, short_factor, low_freq_factor, ...

    The model computes it at once and `save_pretrained` writes it in the spelling of its config. A warning tells where
    other engines compute something else from the same keys. Extending again replaces the first extension. Keys in a
    cache that was filled before were turned at the old frequencies.
    """
    target = _Target(model)
    previous = target.extension()
    if kind is None:
        if previous is None:
            raise RopeError("kind", "must be given: this was not extended before, so there is nothing to undo", None)
        previous.undo()
        return None
    if previous is not None:
        previous.undo()
    try:
        where = {
            "factor": factor, "original_length": original_length, "layer_types": layer_types, "overwrite": overwrite,
        }  # fmt: skip
        if kind == "longrope":
            options = _with_factors(target, where, options, search, dict(search_options or {}))
        elif search is not None:
            raise RopeError("search", "must be given for longrope alone", kind)
        plan = make_plan(target.config, kind, **where, options=options)
        done = target.place(kind, factor, plan, plan.disagreements())
    except BaseException:
        if previous is not None:
            previous._swap(back=False)
        raise
    for text in done.disagreements:
        warnings.warn(text, UserWarning, stacklevel=2)
    return done


def _with_factors(
    target: _Target, where: dict[str, Any], options: dict[str, Any], search: Callable | None, search_options: dict[str, Any]
) -> dict[str, Any]:
    """The options of longrope with both lists of factors, searched for if asked."""
    if (search is None) == ("long_factor" not in options):
        raise RopeError("long_factor", "must be given, or a search for it, for longrope", options.get("long_factor"))
    # NTK needs no factors, and tells how many pairs the chosen layers have
    specs = make_plan(target.config, "ntk", **{**where, "factor": where["factor"] or 1.0}).specs
    pairs = next(iter(specs.values())).pairs
    options = {"short_factor": (1.0,) * pairs, **options}
    if search is None:
        return options

    def loss(factors: tuple[float, ...]) -> float:
        plan = make_plan(target.config, "longrope", **where, options={**options, "long_factor": factors})
        trial = target.place("longrope", where["factor"], plan)
        try:
            return search(factors)
        finally:
            trial.undo()

    if where["factor"] is None:
        raise RopeError("factor", "must be given for longrope: how much longer the context shall be", None)
    return {**options, "long_factor": search_factors(loss, pairs, where["factor"], **search_options)}


class _Target:
    """What is extended: one text config, and the rotary modules that were built from it."""

    def __init__(self, model: Any) -> None:
        self.model = model if isinstance(model, nn.Module) else None
        root = getattr(model, "config", None) if self.model is not None else model
        if root is None or not (isinstance(root, MutableMapping) or callable(getattr(root, "to_dict", None))):
            rule = "must be a transformers model, a transformers config or a config as a dict"
            raise RopeError("model", rule, type(model).__name__)
        self.root, self.owner = root, _text_owner(root)
        named = () if self.model is None else self.model.named_modules()
        self.rotary = {name: module for name, module in named if self._is_rotary(module)}
        if self.model is not None and not self.rotary:
            rule = "must have a rotary module that is built from its config; what this one has cannot be scaled"
            raise RopeError("model", rule, type(model).__name__)

    @property
    def config(self) -> Mapping[str, Any]:
        """The text config as it is now."""
        # a part in a dict may leave its model_type to the whole; a part that is an object has its own
        return config_file.text_part(self.root) if isinstance(self.root, Mapping) else config_file.load(self.owner)

    def _is_rotary(self, module: nn.Module) -> bool:
        made_from = any(name.endswith("inv_freq") for name, _ in module.named_buffers(recurse=False))
        return made_from and getattr(module, "config", None) is self.owner

    def extension(self) -> Extension | None:
        """The extension that the model is under."""
        return next((vars(module)[MARK] for module in self.rotary.values() if MARK in vars(module)), None)

    def reached(self, plan: Plan) -> list[nn.Module]:
        """The rotary modules that a plan changes: OLMo 3 has one for each layer type in transformers 4, and names it so."""
        others = set(layer_types(self.config)) - plan.specs.keys()
        return [module for name, module in self.rotary.items() if name.rpartition(".")[2] not in others]

    def place(self, kind: str, factor: float | None, plan: Plan, disagreements: tuple[str, ...] = ()) -> Extension:
        """Carry a plan out, all of it or none."""
        keys, config = copy.deepcopy(plan.keys), self.config
        swaps: list[_ConfigSwap | _ModuleSwap] = []
        if keys:
            keys = _as_its_class_takes(self.owner, config, keys)
            swaps.append(_ConfigSwap(self.owner, keys))
        if self.model is not None:
            _refuse_late_scale(config, plan)
        changes = {key: (config.get(key), keys[key]) for key in keys}
        modules = self.reached(plan)
        understood = [module for module in modules if keys and _is_understood(module)]
        done = Extension(kind, factor, plan.specs, changes, disagreements, plan.notes, bool(keys), swaps, self.model)
        try:
            for swap in swaps:
                swap.place()
            for module in modules:
                swaps.append(_rebuilt(module, self.owner) if keys else _ModuleSwap(module, None, FollowLength(plan.specs)))
            done._swap(back=False)
            for swap in swaps:
                if isinstance(swap, _ModuleSwap) and keys:
                    _refuse_other_frequencies(swap, plan, swap.module in understood)
        except BaseException:
            done.undo()
            raise
        return done


class _ConfigSwap:
    """Keys of a config, before and after."""

    def __init__(self, owner: Any, keys: dict[str, Any]) -> None:
        self.owner, self.after = owner, keys
        self.before = {key: self._get(key) for key in keys}

    def _get(self, key: str) -> Any:
        return self.owner.get(key, _ABSENT) if isinstance(self.owner, Mapping) else vars(self.owner).get(key, _ABSENT)

    def place(self) -> None:
        self._set(self.after)

    def leave(self) -> None:
        self._set(self.before)

    def _set(self, values: dict[str, Any]) -> None:
        for key, value in values.items():
            if isinstance(self.owner, MutableMapping):
                self.owner.pop(key, None) if value is _ABSENT else self.owner.update({key: value})
            elif value is _ABSENT:
                vars(self.owner).pop(key, None)
            else:
                setattr(self.owner, key, value)


class _ModuleSwap:
    """The plain attributes and buffers of a rotary module, before and after, and a hook that may come with them."""

    def __init__(self, module: nn.Module, made: nn.Module | None, hook: FollowLength | None = None) -> None:
        self.module, self.hook, self.handle = module, hook, None
        self.before = _state(module)
        self.after = self.before if made is None else _moved(_state(made), self.before)

    def place(self) -> None:
        _set_state(self.module, self.after)
        if self.hook is not None and self.handle is None:
            self.handle = self.module.register_forward_pre_hook(self.hook, with_kwargs=True)

    def leave(self) -> None:
        _set_state(self.module, self.before)
        if self.handle is not None:
            self.handle.remove()
            self.handle = None


State = tuple[dict[str, Any], dict[str, Tensor | None]]


def _state(module: nn.Module) -> State:
    plain = {name: value for name, value in vars(module).items() if _is_plain(name, value)}
    return plain, dict(module._buffers)


def _is_plain(name: str, value: Any) -> bool:
    # "forward" may be a patch or a hook's, which is not the rope's
    return not name.startswith("_") and name not in ("training", "config", "forward") and not isinstance(value, nn.Module)


def _moved(made: State, old: State) -> State:
    """A freshly built state on the device of the old one."""
    device = next((each.device for each in old[1].values() if each is not None), None)
    return made[0], {name: None if each is None else each.to(device) for name, each in made[1].items()}


def _set_state(module: nn.Module, state: State) -> None:
    plain, buffers = state
    for name, value in [*vars(module).items()]:
        if _is_plain(name, value) and name not in plain:
            delattr(module, name)  # such as the long frequencies that a forward remembered
    vars(module).update(plain)
    module._buffers.clear()
    module._buffers.update(buffers)
    module._non_persistent_buffers_set.update(buffers)


def _rebuilt(module: nn.Module, config: Any) -> _ModuleSwap:
    """The module as its class builds it from the config as it is now."""
    with torch.device("cpu"):
        try:
            made = type(module)(config)
        except TypeError as error:
            raise RopeError("model", f"has a {type(module).__name__} that a config alone does not build", str(error)) from None
    return _ModuleSwap(module, made)


def _text_owner(config: Any) -> Any:
    """The config object, or dict, that the text model reads; written to in place."""
    for name in config_file.TEXT_PARTS:
        part = config.get(name) if isinstance(config, Mapping) else vars(config).get(name)
        if isinstance(part, MutableMapping) or callable(getattr(part, "to_dict", None)):
            return _text_owner(part)
    return config


def _as_its_class_takes(owner: Any, config: Mapping[str, Any], keys: dict[str, Any]) -> dict[str, Any]:
    """Ask the config's own class first: Phi-3's takes longrope alone, and OLMo's in transformers 4 knows `type` alone."""
    if isinstance(owner, Mapping):
        return keys
    scaling = keys.get("rope_scaling")
    if scaling and "rope_type" in scaling:
        older = {"type" if key == "rope_type" else key: value for key, value in scaling.items()}
        try:
            _refuse_by_class(owner, config, keys)
        except RopeError:
            keys = {**keys, "rope_scaling": older}
    _refuse_by_class(owner, config, keys)
    return keys


def _refuse_by_class(owner: Any, config: Mapping[str, Any], keys: Mapping[str, Any]) -> None:
    try:
        read = type(owner).from_dict(copy.deepcopy({**config, **keys}))
    except Exception as error:  # a config class may raise anything, and does
        reason, given = " ".join(str(error).split()), keys.get("rope_parameters") or keys.get("rope_scaling")
        raise RopeError("kind", f"is refused by {type(owner).__name__} ({reason})", given) from None
    theirs = config_file.load(read)
    changed = [key for key, value in keys.items() if value is not None and theirs.get(key) != value]
    if changed:
        raise RopeError("kind", f"is read otherwise by {type(owner).__name__}: {', '.join(changed)}", theirs.get(changed[0]))


def _is_understood(module: nn.Module) -> bool:
    """Whether a module computes what its config says, so that it can be asked again after a change."""
    on_device = not any(buffer.is_meta for buffer in module.buffers())
    return on_device and is_rotary(module) and bool(plans_of(module, None))


def _refuse_other_frequencies(swap: _ModuleSwap, plan: Plan, understood: bool) -> None:
    """Ask the module last: releases of transformers differ in the keys they read."""
    if understood:
        found = {each.rope.spec for each in plans_of(swap.module, None).values()}
        follows = bool(found & set(plan.specs.values()))
    else:
        follows = _rope_state(swap.after) != _rope_state(swap.before)
    if not follows:
        rule = f"must be what the installed transformers computes from such keys; its {type(swap.module).__name__} does not"
        raise RopeError("kind", f"{rule}. Leave out options or upgrade transformers", plan.keys)


def _rope_state(state: State) -> dict[str, Any]:
    """What decides which angles a module gives."""
    said = {name: value for name, value in state[0].items() if name.endswith(("rope_type", "attention_scaling"))}
    return {**said, **{name: None if each is None or each.is_meta else each.tolist() for name, each in state[1].items()}}


def _refuse_late_scale(config: Mapping[str, Any], plan: Plan) -> None:
    latent = config.get("qk_rope_head_dim") is not None
    if latent and any(getattr(spec.scaling, "mscale_all_dim", None) for spec in plan.specs.values()):
        rule = "must not be given for a loaded model with latent attention, which took it into its softmax scale when it was"
        raise RopeError("mscale_all_dim", f"{rule} built; extend the config and load the model from it", True)


def _patch_again(model: nn.Module) -> None:
    """A patched model holds the old rope: patching again reads the config again."""
    stands = [found for module in model.modules() for found in vars(module).values() if isinstance(found, Stand)]
    if stands:
        plans = [plan for stand in stands if isinstance(stand, StandingRotary) for plan in stand.plans.values()]
        patch(model, backend=plans[0].rope.backend if plans else None)
