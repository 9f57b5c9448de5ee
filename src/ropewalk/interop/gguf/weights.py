"""The weights of a GGUF file under the names, shapes and layout that they have in a Hugging Face
folder. The rope of a file is a RopeSpec: theta, scaling and the other settings of its rotation.
"""

from __future__ import annotations

import os
import re
import warnings
from typing import Any

import torch
from torch import Tensor

from ropewalk.errors import RopeError, choice, number
from ropewalk.gguf.architectures import architecture_of
from ropewalk.gguf.file import GgufFile
from ropewalk.gguf.read import FREQS, FULL, LONG, SHORT, GgufSource, read_ropes
from ropewalk.gguf.write import sizes_of
from ropewalk.interop.gguf.tensors import read_tensor
from ropewalk.interop.gguf.tokenizer_files import GgufTokenizerFiles
from ropewalk.layout import convert_layout
from ropewalk.spec import RopeSpec

#: architectures whose weights a Decoder holds
LOADED = ("llama", "qwen2", "qwen3")
ROPE_TENSORS = (FREQS, LONG, SHORT)
#: metadata key of the epsilon of the norms, without the architecture before it
EPSILON = "attention.layer_norm_rms_epsilon"
#: name in the file, without its suffix -> name in Hugging Face folders
NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class GgufWeights:
    """A GGUF file as a source of weights under their Hugging Face names: read as float32, q and k
    in the half layout; `rope` is the spec for q and k as `read` returns them, and `stored_layout`
    is the layout that they have in the file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open a file, read its rope and find the Hugging Face names of its weights."""
        file = self.file = GgufFile(path)
        self.path = file.path
        self.architecture = choice("general.architecture", file.architecture, LOADED)
        specs, explanation = read_ropes(file)
        for text in explanation.warnings:
            warnings.warn(text, UserWarning, stacklevel=3)
        # all layers of these architectures have full attention and rotate
        spec = specs[FULL]
        assert spec is not None
        self.stored_layout = architecture_of(self.architecture).layout
        self.rope: RopeSpec = spec.with_(layout="half")
        #: Hugging Face's name -> name in the file
        self.files = {_hf_name(name): name for name in file.tensors if name not in ROPE_TENSORS}

    @property
    def tokenizer_files(self) -> GgufTokenizerFiles:
        """The tokenizer and the special tokens of the file."""
        return GgufTokenizerFiles(self.file)

    @property
    def names(self) -> tuple[str, ...]:
        """The Hugging Face names of all weights."""
        return tuple(self.files)

    @property
    def config(self) -> dict[str, Any]:
        """The keys of a config.json that describe the model, without its scaling: `rope` has it."""
        return config_of(self.file, self.rope)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a weight."""
        return self.file.tensors[self.files[name]].shape

    def dtype(self, name: str) -> torch.dtype:
        """Return the dtype of the weights that `read` returns."""
        return torch.float32

    def read(self, name: str) -> Tensor:
        """Return a weight, read and dequantised; rows of q and k are permuted to the half layout."""
        weight = torch.from_numpy(read_tensor(self.file, self.files[name]))
        if re.search(r"\.[qk]_proj\.", name) and self.stored_layout != "half":
            head = {"head_dim": self.rope.head_dim, "rotary_dim": self.rope.rotated_dims}
            return convert_layout(weight, self.stored_layout, "half", dim=0, **head)
        return weight


def config_of(source: GgufSource, rope: RopeSpec) -> dict[str, Any]:
    """Return the keys of a config.json that describe the model in a GGUF file, without the scaling
    of its rope.

    source  a GGUF file, or its contents in memory with a shape for each tensor
    """
    name, metadata = source.architecture, source.metadata
    if metadata.get(f"{name}.expert_count"):
        rule = "must be 0: the experts of a GGUF file are not loaded"
        raise RopeError(f"{name}.expert_count", rule, metadata[f"{name}.expert_count"])
    if "token_embd.weight" not in source.tensors:
        raise RopeError("token_embd.weight", "must be in the file", None)
    epsilon = f"{name}.{EPSILON}"
    if epsilon not in metadata:
        raise RopeError(epsilon, "must be in the file: llama.cpp has no default for it", None)
    config = {
        "num_key_value_heads": None,  # as many as of queries if the file does not say
        **sizes_of(source),
        "model_type": name,
        "vocab_size": source.tensors["token_embd.weight"].shape[0],
        "rms_norm_eps": number(epsilon, metadata[epsilon], low=0),
        "head_dim": rope.head_dim,
        "rope_theta": rope.theta,
        "tie_word_embeddings": "output.weight" not in source.tensors,
        "attention_bias": "blk.0.attn_q.bias" in source.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in source.tensors,
    }
    config.pop("sliding_window", None)  # llama.cpp has none for these architectures
    return config


def _hf_name(name: str) -> str:
    """Return the Hugging Face name of a tensor; `name` itself if a Decoder has no such tensor."""
    stem, _, suffix = name.rpartition(".")
    if stem in NAMES:
        return f"{NAMES[stem]}.{suffix}"
    layer = re.fullmatch(r"blk\.(0|[1-9]\d{0,5})\.(\w+)", stem)
    if layer is None or layer[2] not in LAYER_NAMES:
        return name
    return f"model.layers.{layer[1]}.{LAYER_NAMES[layer[2]]}.{suffix}"
