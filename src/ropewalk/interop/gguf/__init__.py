"""Weights and tokenizers of GGUF files; they need the extra `gguf`.

`tensors` dequantises tensors with the gguf package, `weights` gives them the names and layout of a
Hugging Face folder, `tokenizer` builds a tokenizer.
"""

from ropewalk.interop.gguf.tokenizer import tokenizer
from ropewalk.interop.gguf.weights import GgufWeights

__all__ = ["GgufWeights", "tokenizer"]
