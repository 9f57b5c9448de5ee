"""Give a GGUF file a longer context: the metadata keys to change, and the flags with which
llama.cpp runs the unchanged file as if the keys were changed. A spec, a RopeSpec, describes the
rotation of a layer type: its frequencies, and the magnitude by which it multiplies q and k.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ropewalk.config.hf import read_specs
from ropewalk.errors import RopeError
from ropewalk.gguf import GgufFile, GgufMetadata, hf_config, read_ropes, to_gguf_metadata
from ropewalk.gguf.factors import all_close
from ropewalk.gguf.file import Array
from ropewalk.interop.extend import extend as extend_config
from ropewalk.spec import RopeSpec

#: relative difference that rounding to float32 explains
SAME = 1e-5


@dataclass(frozen=True)
class GgufExtension:
    """What a GGUF file needs for a longer context.

    changes   {metadata key: (before, after)}; before is None for a key that the file does not have
    metadata  all keys and tensors of the new rope, and the new context length
    """

    changes: dict[str, tuple[Any, Any]]
    metadata: GgufMetadata

    @property
    def flags(self) -> list[str]:
        """The flags with which llama.cpp computes the new rope from the old file; none if the new
        rope has tensors, which no flag gives.
        """
        if self.metadata.tensors:
            return []
        pairs = [f"{key}={_typed(after)}" for key, (_, after) in self.changes.items()]
        length = next(
            (value for key, value in self.metadata.keys.items() if key.endswith(".context_length")),
            None,
        )
        flags = [] if length is None else ["--ctx-size", str(length)]
        return [*flags, "--override-kv", ",".join(pairs)] if pairs else flags

    def as_dict(self) -> dict[str, Any]:
        """Return the extension as the contents of a JSON file: the keys that change, all keys and
        tensors of the new rope with the context length, and the flags of llama.cpp.
        """
        return {
            "changes": {
                key: {"before": before, "after": after}
                for key, (before, after) in self.changes.items()
            },
            "keys": self.metadata.keys,
            "tensors": {name: list(values) for name, values in self.metadata.tensors.items()},
            "llama_cpp_flags": self.flags,
        }

    def __str__(self) -> str:
        lines = [f"{key}: {before} -> {after}" for key, (before, after) in self.changes.items()]
        lines += [
            f"{name}: a tensor of {len(values)} numbers (float32), which --json prints; write it to"
            " the file with the gguf package, since llama.cpp has no flag for it"
            for name, values in self.metadata.tensors.items()
        ]
        if self.flags:
            lines.append("start llama.cpp with: " + " ".join(self.flags))
        return "\n".join(lines)


def extend_gguf(
    path: str | os.PathLike[str], kind: str, *, factor: float, **options: Any
) -> GgufExtension:
    """Return what a GGUF file needs for a longer context; the file itself is not changed.

    kind, factor, options  as in `rw.extend`

    A RopeError names a scaling that llama.cpp cannot compute for the file's architecture.
    """
    file = GgufFile(path)
    old_specs, _ = read_ropes(file)
    config = hf_config(file)
    served = config.get("max_position_embeddings") or options.get("original_length")
    if served is None:
        key = f"{file.architecture}.context_length"
        raise RopeError(key, "must be in the file, or original_length must be given", None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # they are about other engines
        extend_config(config, kind, factor=factor, **options)  # in place
    new_specs = {
        layer_type: old.with_(theta=new.theta, scaling=new.scaling)
        for layer_type, new in read_specs(config)[0].items()
        if new is not None and (old := old_specs.get(layer_type)) is not None
    }
    # the keys are written for one spec; `_check` raises an error if another layer type needs others
    spec = next(iter(new_specs.values()))
    trained = getattr(spec.scaling, "original_length", None) or options.get("original_length")
    # where neither gives the trained length, the file's own length is taken for it
    length = math.floor((trained or served) * factor)
    metadata = to_gguf_metadata(spec, file.architecture, context_length=length)
    _check(_Changed(file, metadata), new_specs, kind)
    changes = {
        key: (file.metadata.get(key), value)
        for key, value in metadata.keys.items()
        if not _has(file, key, value)
    }
    return GgufExtension(changes, metadata)


class _Changed:
    """A GGUF file as it would be with the metadata keys and tensors of the new rope; `read_ropes`
    reads it like a file.
    """

    def __init__(self, file: GgufFile, metadata: GgufMetadata) -> None:
        self.file, self.given = file, metadata
        self.metadata = {**file.metadata, **metadata.keys}
        self.tensors = {**file.tensors, **metadata.tensors}
        self.architecture = file.architecture

    def array(self, key: str) -> list[Any]:
        """Return the entries of an array, the new ones if it has been changed."""
        value = self.given.keys.get(key)
        return self.file.array(key) if value is None else list(value)

    def floats(self, name: str) -> Sequence[float]:
        """Return the numbers of a tensor, the new ones if it has been changed."""
        return self.given.tensors.get(name) or self.file.floats(name)


def _check(changed: _Changed, wanted: dict[str, RopeSpec], kind: str) -> None:
    """Raise an error about `kind` if llama.cpp would compute other frequencies or another magnitude
    than those of `wanted`, {layer type: its new spec}, from the changed file.
    """
    found, _ = read_ropes(changed)
    for layer_type, spec in wanted.items():
        read = found[layer_type]
        trained = getattr(spec.scaling, "original_length", 1)
        for length in (trained, trained + 1):  # LongRoPE has other factors beyond the trained one
            ours = spec.ladder_frequencies(length)
            theirs = None if read is None else read.ladder_frequencies(length)
            # atol: a pair that does not rotate is written with the divisor 1e30, not with infinity
            if (
                theirs is None
                or not all_close(theirs.radians, ours.radians, rtol=SAME, atol=1e-25)
                or not math.isclose(float(theirs.magnitude), float(ours.magnitude), rel_tol=SAME)
            ):
                rule = (
                    f"must leave {layer_type} layers the rope that llama.cpp computes for "
                    f"{changed.architecture}, but it would compute another one there; if it scales "
                    "all layer types together, name each of them (layer_types=, CLI: --layer-type)"
                )
                raise RopeError("kind", rule, kind)


def _has(file: GgufFile, key: str, value: Any) -> bool:
    """Return whether a file has `key` with this value, or llama.cpp assumes the value of a key that
    the file does not have.
    """
    name, given = file.architecture, file.metadata.get(key)
    if isinstance(given, Array):
        # the only array is that of sections, whose last ones may be left out if they are 0
        entries = file.array(key)
        return [*entries, *[0] * (len(value) - len(entries))] == value
    if isinstance(given, float) and isinstance(value, int | float):
        return math.isclose(given, value, rel_tol=1e-7)  # a file has float32
    if given is not None:
        return type(given) is type(value) and given == value
    # without a type llama.cpp takes "linear", which is the same as "none" without a factor
    if key == f"{name}.rope.scaling.type" and value == "none":
        keys = (f"{name}.rope.scaling.factor", f"{name}.rope.scale_linear")
        return not any(each in file.metadata for each in keys)
    # llama.cpp's defaults: the sizes of the old rope, and a theta
    spec = next(spec for spec in read_ropes(file)[0].values() if spec is not None)
    assumed = {
        f"{name}.attention.key_length": spec.head_dim,
        f"{name}.rope.dimension_count": spec.rotated_dims,
        f"{name}.rope.freq_base": 10_000.0,
    }
    return assumed.get(key) == value


def _typed(value: Any) -> str:
    """Return a value as --override-kv takes it, such as float:4.0."""
    kind = {bool: "bool", int: "int", float: "float", str: "str"}[type(value)]
    return f"{kind}:{value}"
