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

    per_layer  return {layer type: spec} instead; None for a layer type that is not rotated. False:
               all layers that rotate must have the same spec
    precision  see RopeSpec

    `layout` is that of q and k in the file: interleaved for Llama, whose converter permutes them.
    A key or tensor of the rope that llama.cpp does not read gives a warning. If llama.cpp reads the
    tensor rope_freqs and a divisor in it is not 1, the scaling is Llama3 if the divisors are those
    of a Llama 3 scaling and the keys give no scaling or magnitude, else Given.
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
            "must be a file with one rope for all layers, but this one has different ropes for "
            f"{' and '.join(specs)}; call from_gguf(path, per_layer=True)",
            str(path),
        )
    if not distinct:
        raise RopeError(
            "path",
            "must be a file with layers that rotate; call from_gguf(path, per_layer=True)",
            str(path),
        )
    return distinct.pop()
