"""GGUF files, as llama.cpp reads them: their rope as a spec, and a spec as their metadata.

`file` reads a file as untrusted data, `read` and `write` translate metadata and specs,
`architectures` holds what only llama.cpp's code says. Weights and tokenizers are in
`ropewalk.interop.gguf`.
"""

from __future__ import annotations

import os
import warnings

from ropewalk.config.file import is_gguf
from ropewalk.errors import RopeError
from ropewalk.gguf.file import GgufFile
from ropewalk.gguf.read import GgufSource, read_ropes
from ropewalk.gguf.write import GgufMetadata, InMemory, hf_config, to_gguf_metadata
from ropewalk.spec import RopeSpec

__all__ = [
    "GgufFile",
    "GgufMetadata",
    "GgufSource",
    "InMemory",
    "from_gguf",
    "hf_config",
    "is_gguf",
    "read_ropes",
    "to_gguf_metadata",
]


def from_gguf(
    path: str | os.PathLike[str], per_layer: bool = False, *, precision: str = "hf_frequencies"
) -> RopeSpec | dict[str, RopeSpec | None]:
    """Return the spec that llama.cpp computes from a GGUF file.

    per_layer  return {layer type: spec} instead; None for layers that are not rotated
    precision  see RopeSpec

    `layout` is that of q and k in the file: interleaved for Llama, whose converter permutes them.
    Keys that llama.cpp ignores give a warning. With rope_freqs the scaling is Llama3 if that is
    what the tensor holds, else Given.
    """
    specs, explanation = read_ropes(GgufFile(path), precision)
    for text in explanation.warnings:
        warnings.warn(text, UserWarning, stacklevel=2)
    if per_layer:
        return specs
    distinct = {spec for spec in specs.values() if spec is not None}
    if len(distinct) > 1:
        raise RopeError(
            "path",
            f"has different ropes for {' and '.join(specs)}; call from_gguf(path, per_layer=True)",
            str(path),
        )
    if not distinct:
        raise RopeError(
            "path", "has no layer that rotates; call from_gguf(path, per_layer=True)", str(path)
        )
    return distinct.pop()
