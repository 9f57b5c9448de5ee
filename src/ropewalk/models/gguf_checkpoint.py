"""Write a Decoder as a GGUF file, which llama.cpp loads; needs the extra `gguf`.

Words of this module:
  gguf       as a variable, the package that writes the file
  name       of an architecture of llama.cpp ("llama", "qwen2" or "qwen3"), with which metadata keys
             begin
  keys       metadata of the file
  spec       a RopeSpec, which describes the rotation; the rope of a file is its keys and tensors
  layout     which dims of a head rotate together: "half" is (i, i + n), which transformers and our
             weights have, "interleaved" is (2i, 2i + 1), which llama.cpp has for some architectures
  or 0       after a field of a DecoderConfig, which sets every size, this only satisfies the type
             checker
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ropewalk.errors import RopeError, choice
from ropewalk.gguf import GgufMetadata, InMemory, to_gguf_metadata
from ropewalk.gguf.write import SIZE_KEYS
from ropewalk.interop.checkpoint.atomic_folder import atomic_file
from ropewalk.interop.checkpoint.shards import NewTensor
from ropewalk.interop.checkpoint.tokenizer_files import FolderTokenizerFiles
from ropewalk.interop.gguf.tensors import import_gguf
from ropewalk.interop.gguf.tokenizer_files import GgufTokenizerFiles
from ropewalk.interop.gguf.tokenizer_keys import tokenizer_keys
from ropewalk.interop.gguf.weights import EPSILON, config_of
from ropewalk.layout import convert_layout
from ropewalk.models.decoder_checkpoint import HF_KEYS, config_from_hf, model_type_of
from ropewalk.models.decoder_config import DecoderConfig
from ropewalk.spec import RopeSpec

#: model_type -> general.architecture
ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
#: fields of a DecoderConfig that only training reads; a GGUF file has no keys for them
TRAINING = ("dropout", "attention_dropout", "init_std", "router_aux_coef")
#: types of matrices that can be written; vectors are always F32
TENSOR_TYPES = ("F32", "F16", "BF16", "Q8_0")
TYPE_OF = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
#: metadata of a file without a tokenizer
NO_TOKENIZER = {"tokenizer.ggml.model": "none"}


@dataclass(frozen=True)
class _Weight:
    """One tensor to write: its shape, its type in the file, and a function that returns its float
    values, which `write_gguf` converts to that type.
    """

    shape: tuple[int, ...]
    type: str
    make: Callable[[], np.ndarray]


def write_gguf(
    path: str | os.PathLike[str],
    config: DecoderConfig,
    tensors: Iterable[NewTensor],
    *,
    tokenizer: FolderTokenizerFiles | GgufTokenizerFiles | None = None,
    tensor_type: str | None = None,
) -> None:
    """Write a Decoder atomically as a new GGUF file, with one tensor in memory at a time.

    tensors      the weights, under the names that transformers has for them
    tokenizer    the tokenizer files of a loaded model; None: the file has no tokenizer
    tensor_type  a name from TENSOR_TYPES for all matrices; None: the type of each weight's dtype

    Before anything is written, the metadata is read back and compared with the config. A RopeError
    names a field that llama.cpp has no key for.
    """
    gguf = import_gguf()
    if tensor_type is not None:
        choice("tensor_type", tensor_type, TENSOR_TYPES)
    model_type = model_type_of(config)
    if model_type not in ARCHITECTURES:
        rule = f"must be one of {', '.join(ARCHITECTURES)} to be written to a GGUF file"
        raise RopeError("model_type", rule, model_type)
    name = ARCHITECTURES[model_type]
    spec = _spec_of(config, name)
    rope = to_gguf_metadata(spec, name, context_length=config.length)
    weights = _weights(gguf, name, config, rope, tensors, tensor_type)
    keys = _keys(name, config) | rope.keys
    _check_round_trip(config, InMemory(name, keys, {**rope.tensors, **weights}), spec)  # type: ignore[arg-type]
    keys |= _tokenizer_keys(tokenizer, config.vocab_size) or NO_TOKENIZER
    writer = gguf.GGUFWriter(None, name)
    types = {weight.type for weight in weights.values() if len(weight.shape) > 1}
    if len(types) == 1:
        file_type = f"MOSTLY_{types.pop()}".replace("MOSTLY_F32", "ALL_F32")
        writer.add_file_type(gguf.LlamaFileType[file_type])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    for key, value in keys.items():
        _add(gguf, writer, key, value)
    for tensor, weight in weights.items():
        kind = gguf.GGMLQuantizationType[weight.type]
        block, size = gguf.GGML_QUANT_SIZES[kind]
        count = prod(weight.shape) // block * size
        writer.add_tensor_info(tensor, weight.shape, np.dtype(np.float32), count, kind)
    with atomic_file(path) as draft:
        try:
            writer.write_header_to_file(draft)
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            for weight in weights.values():
                kind = gguf.GGMLQuantizationType[weight.type]
                writer.write_tensor_data(gguf.quants.quantize(weight.make(), kind))
        finally:
            writer.close()


def _spec_of(config: DecoderConfig, name: str) -> RopeSpec:
    """Return the rope of a Decoder; raise an error for what the code of llama.cpp does not compute
    for the architecture `name`, though a file can describe it.
    """
    spec = RopeSpec(config.head_dim or 0) if config.encoding == "rope" else config.encoding
    if not isinstance(spec, RopeSpec):
        rule = "must be 'rope' or one RopeSpec for all layers to be written to a GGUF file"
        raise RopeError("encoding", rule, spec)
    if spec.layout != "half" or spec.output_layout != "half":
        rule = "must be 'half'; convert the rows of q and k with rw.convert_layout"
        raise RopeError("layout", rule, spec.layout)
    if spec.rotated_dims != config.head_dim:
        rule = (
            f"must be the whole head, {config.head_dim}: llama.cpp has no partial rope for {name}"
        )
        raise RopeError("rotary_dim", rule, spec.rotated_dims)
    if config.qkv_bias and name == "qwen3":
        rule = "must be False: llama.cpp's qwen3 has no o_bias, which a Qwen 3 has with qkv_bias"
        raise RopeError("qkv_bias", rule, config.qkv_bias)
    width = config.num_heads * (config.head_dim or 0)
    if name == "qwen2" and width != config.hidden_size:
        rule = f"must be num_heads * head_dim = {width}, as llama.cpp has it for qwen2"
        raise RopeError("hidden_size", rule, config.hidden_size)
    return spec


def _weights(
    gguf: Any,
    name: str,
    config: DecoderConfig,
    rope: GgufMetadata,
    tensors: Iterable[NewTensor],
    tensor_type: str | None,
) -> dict[str, _Weight]:
    """Return the tensors to write, by their names in the file; rows of q and k are put into the
    layout of the file, which `rope` names. `tensor_type` as in `write_gguf`.
    """
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[name.upper()], config.num_layers)
    weights = {}
    for hf_name, shape, dtype, make in tensors:
        written_type = "F32" if len(shape) == 1 else tensor_type or TYPE_OF.get(dtype)
        if written_type is None:
            raise RopeError("tensor_type", f"must be given for weights of {dtype}", None)
        # how many weights of a row are quantised together; 1 if they are not quantised
        block, _ = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[written_type]]
        if shape[-1] % block:
            rule = (
                f"must be F32, F16 or BF16: rows of {hf_name} have {shape[-1]} weights, which is no "
                f"multiple of {block}"
            )
            raise RopeError("tensor_type", rule, written_type)
        # only the rows of q and k depend on the layout; "half" leaves a weight as it is
        is_rotated = re.search(r"\.[qk]_proj\.", hf_name) is not None
        layout = rope.layout if is_rotated else "half"
        # the package translates a name without its ending, which both names have
        weights[names.get_name(hf_name, (".weight", ".bias"))] = _Weight(
            shape,
            written_type,
            lambda make=make, layout=layout: _numbers(make(), layout, config.head_dim or 0),
        )
    # factors of the frequencies that the file holds as tensors
    for tensor, values in rope.tensors.items():
        weights[tensor] = _Weight((len(values),), "F32", lambda values=values: np.asarray(values))
    return weights


def _numbers(weight: Tensor, layout: str, head_dim: int) -> np.ndarray:
    """Return a weight as float32; rows of heads are permuted if `layout` is not "half"."""
    weight = weight.detach().to("cpu", torch.float32)
    if layout != "half":
        weight = convert_layout(weight, "half", layout, head_dim=head_dim, dim=0)
    return weight.contiguous().numpy()


def _keys(name: str, config: DecoderConfig) -> dict[str, Any]:
    """Return the metadata of a config, without its rope; every key begins with `name`, the
    architecture.
    """
    # by the names of transformers' config keys, which SIZE_KEYS has too
    values = {key: getattr(config, ours) for ours, key in HF_KEYS.items()}
    keys = {suffix: values[key] for key, suffix in SIZE_KEYS.items() if key in values}
    keys |= {
        EPSILON: float(config.norm_eps),
        "vocab_size": config.vocab_size,
        "attention.value_length": config.head_dim,
    }
    return {f"{name}.{key}": value for key, value in keys.items()}


def _tokenizer_keys(
    files: FolderTokenizerFiles | GgufTokenizerFiles | None, vocab_size: int
) -> dict[str, Any] | None:
    """Return the metadata of a model's tokenizer. None if the model has none; also None, with a
    warning, if a GGUF file cannot hold it.
    """
    try:
        if isinstance(files, GgufTokenizerFiles):
            return files.gguf_keys(vocab_size)
        if files is None or not any(name.startswith("tokenizer.") for name in files.names):
            return None
        return tokenizer_keys(files.files(files.ids), files.ids, vocab_size)
    except (RopeError, OSError) as error:
        # a GgufTokenizerFiles has the path in `file`, a FolderTokenizerFiles has it itself
        path = getattr(files, "file", files).path  # type: ignore[union-attr]
        text = f"{path.name}: its tokenizer is not saved ({error})"
        # 5 levels up is the caller of `save`
        warnings.warn(text, UserWarning, stacklevel=5)
        return None


def _check_round_trip(config: DecoderConfig, written: InMemory, spec: RopeSpec) -> None:
    """Read the metadata `written` back and raise an error for a field of the config that it does
    not describe. `spec` is the config's rope, which `to_gguf_metadata` has compared already.
    """
    restored = config_from_hf(config_of(written, spec))
    # the window first: it decides `layer_types` too, and the error shall name the window
    for field in ("window", *restored.__dataclass_fields__):
        ours, theirs = getattr(config, field), getattr(restored, field)
        if ours != theirs and field not in ("encoding", *TRAINING):
            rule = f"must be {theirs!r} to be written to a GGUF file as {written.architecture}"
            raise RopeError(field, rule, ours)


def _add(gguf: Any, writer: Any, key: str, value: Any) -> None:
    """Add one metadata key, with the GGUF type that fits its value; a tuple (entries, GGUF type of
    each) is an array that another GGUF file had.
    """
    if isinstance(value, tuple):
        entries, kind = value
        if entries:  # the package writes no empty arrays
            kinds = gguf.GGUFValueType
            writer.add_key_value(key, entries, kinds.ARRAY, sub_type=kinds(kind))
        return
    add = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    add[type(value)](key, value)
