"""Set and restore what `extend` changes: config keys, and the attributes and buffers of rotary
modules.

The state of a module is (attributes, buffers): its plain attributes by name, and its buffers by
name, each with whether it is saved with the weights.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.errors import RopeError
from ropewalk.interop.patch.length_hook import EXTENSION, LengthHook


class _MissingKey:
    """Stands for the value of a config key that the config does not have. It is a class and is
    compared by `is`: a copy of an extension has the same class, but would have another object.
    """


class ConfigSwap:
    """The values of some config keys before and after an extension; `_MissingKey` for a key that is
    absent.

    `installed` has the values that the config had right after `install`: its class may change some.
    """

    def __init__(self, config: Any, keys: dict[str, Any]) -> None:
        self.config, self.after = config, keys
        self.before, self.installed = self._current(), {}

    def install(self) -> None:
        """Set the new values."""
        self._set(copy.deepcopy(self.after))
        self.installed = copy.deepcopy(self._current())

    def remove(self) -> None:
        """Restore the old values."""
        self._set(self.before)

    def check(self) -> None:
        """Raise an error if a config key no longer has the value that `install` set."""
        for key, value in self._current().items():
            if not _is_as_expected(value, self.installed[key]):
                rule = (
                    f"must still be {self.installed[key]!r}, as extend set it, to be undone; set "
                    "it back"
                )
                raise RopeError(
                    key,
                    f"{rule}, or first undo the extension that changed it",
                    None if value is _MissingKey else value,
                )

    def _current(self) -> dict[str, Any]:
        """Return the values that the config keys have now; _MissingKey for absent ones."""
        values = self.config if isinstance(self.config, Mapping) else vars(self.config)
        return {key: values.get(key, _MissingKey) for key in self.after}

    def _set(self, values: dict[str, Any]) -> None:
        """Set config keys, in a dict or an object; a value of _MissingKey deletes the key."""
        for key, value in values.items():
            is_dict = isinstance(self.config, MutableMapping)
            if value is _MissingKey:
                (self.config if is_dict else vars(self.config)).pop(key, None)
            elif is_dict:
                self.config[key] = value
            else:
                setattr(self.config, key, value)


def _is_as_expected(value: Any, expected: Any) -> bool:
    """Return whether a value is the expected one; objects may have further keys, because
    transformers adds some.
    """
    if isinstance(value, Mapping) and isinstance(expected, Mapping):
        return all(
            key in value and _is_as_expected(value[key], each) for key, each in expected.items()
        )
    return value is expected or value == expected


#: plain attributes of a rotary module, and its buffers, each with whether it is saved with the
#: weights
State = tuple[dict[str, Any], dict[str, tuple[Tensor, bool]]]


class ModuleSwap:
    """The state of a rotary module before and after an extension; with a `hook`, which computes the
    tables at each call, the state stays the same. The module holds `extension` until `remove`.
    """

    def __init__(self, module: nn.Module, extension: Any, hook: LengthHook | None = None) -> None:
        self.module, self.extension, self.hook, self.handle = module, extension, hook, None
        self.before = _state(module)
        self.after = self.before if hook is not None else self._rebuilt()

    def install(self) -> None:
        """Set the new state and mark the module as extended."""
        _set_state(self.module, self.after)
        setattr(self.module, EXTENSION, self.extension)
        if self.hook is not None and self.handle is None:
            self.handle = self.module.register_forward_hook(self.hook, with_kwargs=True)

    def remove(self) -> None:
        """Restore the old state, and remove the mark and the hook."""
        _set_state(self.module, self.before)
        vars(self.module).pop(EXTENSION, None)
        if self.handle is not None:
            self.handle.remove()
            self.handle = None

    def _rebuilt(self) -> State:
        """Return the state of a module built from the current config, on the device of the old one;
        raise an error if its class cannot build it.
        """
        name = type(self.module).__name__
        with torch.device("cpu"):
            try:
                attributes, buffers = _state(type(self.module)(self.module.config))
            except TypeError as error:
                rule = (
                    "must have rotary modules that can be built from the config alone, unlike its "
                    f"{name}"
                )
                raise RopeError("model", rule, str(error)) from None
            except Exception as error:  # constructors raise errors of many types
                rule = f"must be a scaling that {name} accepts ({' '.join(str(error).split())})"
                raise RopeError(
                    "kind", rule, getattr(self.module.config, "rope_parameters", None)
                ) from None
        device = next((buffer.device for buffer, _ in self.before[1].values()), None)
        return attributes, {
            name: (buffer.to(device), saved) for name, (buffer, saved) in buffers.items()
        }


def _state(module: nn.Module) -> State:
    """Return the plain attributes of a module, and its buffers with whether they are saved with the
    weights.
    """
    saved = module.state_dict()
    buffers = {name: (buffer, name in saved) for name, buffer in _buffers(module)}
    return {name: value for name, value in vars(module).items() if _is_plain(name, value)}, buffers


def _buffers(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Return the buffers of a module by name; transformers may give one tensor two names."""
    return list(module.named_buffers(recurse=False, remove_duplicate=False))


def _is_plain(name: str, value: Any) -> bool:
    """Return whether an attribute is a plain value: not the config, a submodule, a forward set on
    the instance, or what belongs to torch.
    """
    # torch's own attributes begin with _, except `training`; a patch or an accelerate hook sets
    # "forward"
    return (
        not name.startswith("_")
        and name not in ("training", "config", "forward")
        and not isinstance(value, nn.Module)
    )


def _set_state(module: nn.Module, state: State) -> None:
    """Give a module exactly the plain attributes and buffers of `state`."""
    attributes, buffers = state
    for name, value in [*vars(module).items()]:
        if _is_plain(name, value) and name not in attributes:
            delattr(module, name)  # for example the long frequencies that a forward cached
    vars(module).update(attributes)
    for name, _ in _buffers(module):
        delattr(module, name)
    for name, (buffer, saved) in buffers.items():
        module.register_buffer(name, buffer, persistent=saved)
