"""Load and save Hugging Face folders and GGUF files, without transformers. No code is run, and
every size is checked.

Words of this module:
  state        a model's weights by our names, as of `state_dict`
  source       the Hugging Face folder or the GGUF file that is read
  hf_name      the name of a tensor in the source, which is that of transformers
  format       a CheckpointFormat: how a model_type names its weights and writes its config
  part         one of the tensors that a file may store in place of a whole weight, which is these
               tensors concatenated by rows: q, k and v of a packed projection, or each expert's
               matrix
  pair layout  which two dims of a head rotate together: (i, i + n) or (2i, 2i + 1)
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ropewalk.config.families import family_of
from ropewalk.errors import RopeError
from ropewalk.gguf import is_gguf
from ropewalk.interop.checkpoint.layout_record import stated_layout
from ropewalk.interop.checkpoint.shards import (
    Folder,
    NewTensor,
    check_names,
    open_folder,
    write_folder,
)
from ropewalk.interop.checkpoint.tokenizer_files import FolderTokenizerFiles
from ropewalk.interop.gguf.weights import GgufWeights
from ropewalk.models.checkpoint_formats import CheckpointFormat
from ropewalk.models.decoder_checkpoint import DECODER_FORMATS
from ropewalk.models.decoder_config import DecoderConfig
from ropewalk.models.gguf_checkpoint import write_gguf
from ropewalk.models.roformer_checkpoint import ROFORMER_FORMATS
from ropewalk.models.roformer_config import RoFormerConfig
from ropewalk.rope import Rope
from ropewalk.spec import RopeSpec

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
Weights = Folder | GgufWeights
#: model_type -> its format; `load` reads every model_type in this dict
FORMATS: dict[str, CheckpointFormat] = {**DECODER_FORMATS, **ROFORMER_FORMATS}
#: the class of a model's config -> a format whose `config_to_hf` chooses the model_type that `save`
#: writes
SAVED_AS = {DecoderConfig: FORMATS["llama"], RoFormerConfig: FORMATS["roformer"]}


def load(
    folder: str | os.PathLike[str],
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> nn.Module:
    """Load the model in a Hugging Face folder (config.json and safetensors files) as a Decoder or
    RoFormer in eval mode.

    folder  the folder, or the path of a .gguf file with a Llama, Qwen 2 or Qwen 3, whose weights
            are dequantised
    dtype   dtype of the weights; None: the one in which all are stored, and float32 for a .gguf
            file
    device  where each tensor is moved as it is read; None: torch's default device

    Raises a RopeError for a `model_type` that is not supported (the message lists those that are),
    a folder that states the other pair layout, a missing or unexpected weight, a wrong shape or a
    wrong dtype. Rotary frequencies and tables in old files are ignored.
    """
    source = GgufWeights(folder) if is_gguf(folder) else open_folder(folder)
    model_type = source.config.get("model_type")
    if not isinstance(model_type, str) or model_type not in FORMATS:
        rule = (
            f"must be one of {', '.join(FORMATS)}; load other models with transformers and call "
            "rw.patch(model)"
        )
        raise RopeError("model_type", rule, model_type)
    checkpoint_format = FORMATS[model_type]
    config = checkpoint_format.config_from_hf(source.config)
    if isinstance(source, GgufWeights):
        config = config.with_(encoding=source.rope)  # the RopeSpec that the file describes
    else:
        _check_layout(source, model_type)
    # every layer has at least one tensor, so the files bound how many layers a config can make us
    # build
    if config.num_layers > len(source.names):
        rule = f"must not exceed the number of tensors in the folder, {len(source.names)}"
        raise RopeError("num_hidden_layers", rule, config.num_layers)
    model = _build_empty(checkpoint_format, config)
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    names_in_file = _match_names(source, checkpoint_format, config, shapes)
    dtype = _common_dtype(source, names_in_file) if dtype is None else dtype
    if dtype not in DTYPES:
        raise RopeError(
            "dtype", "must be torch.float32, torch.bfloat16, torch.float16 or torch.float64", dtype
        )
    device = torch.get_default_device() if device is None else device
    state = {
        name: _read(source, hf_names, shapes[name], dtype, device)
        for name, hf_names in names_in_file.items()
    }
    model.load_state_dict(state, assign=True)
    # `save` writes them
    model.tokenizer_files = (  # type: ignore[assignment]
        source.tokenizer_files
        if isinstance(source, GgufWeights)
        else FolderTokenizerFiles.of(source.path, source.config)
    )
    return model.eval()


def save(
    model: nn.Module,
    folder: str | os.PathLike[str],
    *,
    extra_config: Mapping[str, Any] | None = None,
    max_shard_bytes: int = 5_000_000_000,
    tensor_type: str | None = None,
) -> None:
    """Save a Decoder or a RoFormer atomically as a new Hugging Face folder from which transformers
    builds the same model, or a Decoder as a new GGUF file from which llama.cpp does.

    folder           the folder, or the path of a .gguf file for a Llama, a Mistral without window,
                     a Qwen 2 or a Qwen 3, which needs the extra `gguf`
    extra_config     further keys of config.json, such as {"eos_token_id": 2}; not those that
                     describe the model
    max_shard_bytes  weights of more bytes than this become several files and an index
    tensor_type      of the matrices in a .gguf file: "F32", "F16", "BF16" or "Q8_0"; None: that of
                     the weights' dtype

    Before anything is written, the config is read back and compared with the model. Raises a
    RopeError that names a config field whose value no transformers model has, or a weight or
    rotation of the model that model.config does not describe. If `load` read the model, the new
    folder or file also gets its tokenizer and the tokens at which generation ends; a tokenizer that
    cannot be saved is left out, with a warning.
    """
    config = getattr(model, "config", None)
    if type(config) not in SAVED_AS:
        raise RopeError("model", "must be a Decoder or a RoFormer", type(model).__name__)
    extra_config = dict(extra_config or {})
    if is_gguf(folder):
        if extra_config:
            raise RopeError("extra_config", "must not be given for a GGUF file", extra_config)
        return _save_gguf(model, folder, tensor_type)
    if tensor_type is not None:
        raise RopeError("tensor_type", "must be None unless a .gguf file is written", tensor_type)
    hf_config = SAVED_AS[type(config)].config_to_hf(config)
    checkpoint_format = FORMATS[hf_config["model_type"]]
    restored = checkpoint_format.config_from_hf(hf_config)
    state = model.state_dict()
    _check_model(model, state, _build_empty(checkpoint_format, restored))
    dtypes = {str(value.dtype).removeprefix("torch.") for value in state.values()}
    if len(dtypes) == 1:
        hf_config |= {"dtype": dtypes.pop()}
    if repeated := sorted(extra_config.keys() & hf_config.keys()):
        raise RopeError(
            "extra_config", "must not contain keys that the model itself sets", repeated
        )
    # without these keys transformers would use its default token ids, which may exceed the
    # vocabulary
    token_ids = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    tokenizer_files = getattr(model, "tokenizer_files", None)
    if tokenizer_files is not None:
        token_ids |= tokenizer_files.token_ids()
    written = token_ids | hf_config | extra_config
    if checkpoint_format.config_from_hf(written) != restored:
        raise RopeError(
            "extra_config",
            "must not contain keys that describe another model",
            sorted(extra_config),
        )
    tensors = _named_tensors(state, checkpoint_format, config)
    files = {}
    if tokenizer_files is not None:
        files = tokenizer_files.files({key: written[key] for key in token_ids})
    write_folder(folder, tensors, written, max_shard_bytes=max_shard_bytes, files=files)


def _save_gguf(model: nn.Module, path: str | os.PathLike[str], tensor_type: str | None) -> None:
    """Save a Decoder as a GGUF file; `tensor_type` as in `save`. Raise an error for another model,
    and for one whose weights or rotations its config does not describe.
    """
    config: Any = model.config
    if not isinstance(config, DecoderConfig):
        rule = "must be a Decoder (Llama, Mistral, Qwen 2, Qwen 3) to be written to a GGUF file"
        raise RopeError("model", rule, type(model).__name__)
    # the format of a Llama: all Decoders have the same names of weights in transformers, which
    # write_gguf translates
    checkpoint_format, state = SAVED_AS[DecoderConfig], model.state_dict()
    _check_model(model, state, _build_empty(checkpoint_format, config))
    write_gguf(
        path,
        config,
        _named_tensors(state, checkpoint_format, config),
        tokenizer=getattr(model, "tokenizer_files", None),
        tensor_type=tensor_type,
    )


def _check_layout(folder: Folder, model_type: str) -> None:
    """Raise an error if a folder states, in a file that `ropewalk convert` writes or by a flag of
    its config, that its weights have another pair layout than this model_type has.
    """
    stated, layout = stated_layout(folder), family_of(model_type).layout
    if stated is not None and stated.layout != layout:
        rule = (
            f"must state the {layout} layout of a {model_type}; convert the folder back (`ropewalk "
            "convert`)"
        )
        raise RopeError(stated.source, rule, stated.layout)


def _build_empty(checkpoint_format: CheckpointFormat, config: Any) -> nn.Module:
    """Return the model of a config, without memory for its weights."""
    with torch.device("meta"), _SkipInit():
        return checkpoint_format.build(config)


def _check_model(model: nn.Module, state: Mapping[str, Tensor], described: nn.Module) -> None:
    """Raise an error unless the model has the weights, shapes and rotations of `described`, the
    model built from its config.
    """
    shapes = {name: value.shape for name, value in described.state_dict().items()}
    missing = [name for name in shapes if name not in state]
    unexpected = [name for name in state if name not in shapes]
    if missing or unexpected:
        rule = "must have exactly the weights that model.config describes"
        raise RopeError("model", rule, missing + unexpected)
    for name, shape in shapes.items():
        if state[name].shape != shape:
            raise RopeError(
                name, f"must have the shape {list(shape)}, by model.config", list(state[name].shape)
            )
    rotations, expected = _rotations(model), _rotations(described)
    for name in rotations | expected:
        if rotations.get(name) != expected.get(name):
            rule = (
                f"must rotate as model.config describes, {expected.get(name)}; build the model "
                "from a new config instead"
            )
            raise RopeError(name, rule, rotations.get(name))


def _rotations(model: nn.Module) -> dict[str, RopeSpec]:
    """Return {name of the module: its spec} of every Rope in the model."""
    return {name: module.spec for name, module in model.named_modules() if isinstance(module, Rope)}


class _SkipInit(TorchFunctionMode):
    """Skip weight initialisation: nothing reads the initial weights, and random init on meta
    tensors imports torch's compiler.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        """Return the tensor unchanged if `func` would initialise it; call any other `func`."""
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init" or func in (
            Tensor.normal_,
            Tensor.uniform_,
        ):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def _match_names(
    source: Weights,
    checkpoint_format: CheckpointFormat,
    config: Any,
    shapes: Mapping[str, torch.Size],
) -> dict[str, list[str]]:
    """Return {our name: names in the file, in row order}; all names, shapes and dtypes are checked
    before any read.
    """
    in_file: dict[str, str] = {}  # our name -> name in the file
    for hf_name in source.names:
        name = checkpoint_format.name_from_hf(hf_name, config)
        if name is None:
            continue
        if name in in_file:
            raise RopeError(
                hf_name,
                "must not be stored twice; these two are the same weight",
                [in_file[name], hf_name],
            )
        in_file[name] = hf_name
    names_in_file: dict[str, list[str]] = {}
    missing: list[str] = []
    # find every weight of the model, whole or in parts; what is left in `in_file` at the end is
    # unexpected
    for name, shape in shapes.items():
        parts = {} if name in in_file else checkpoint_format.parts(name, config)
        expected: dict[str, tuple[int, ...]] = {name: tuple(shape)}
        if parts:
            columns = tuple(shape[-1:]) if len(shape) > 1 else ()  # a bias has rows only
            expected = {part: (rows, *columns) for part, rows in parts.items()}
        absent = [part for part in expected if part not in in_file]
        missing += absent
        if not absent:
            names_in_file[name] = [in_file.pop(part) for part in expected]
            for hf_name, part_shape in zip(names_in_file[name], expected.values(), strict=True):
                if source.shape(hf_name) != part_shape:
                    rule = f"must have the shape {list(part_shape)}, by the config"
                    raise RopeError(hf_name, rule, list(source.shape(hf_name)))
                if source.dtype(hf_name) not in DTYPES:
                    raise RopeError(
                        hf_name,
                        "must be float32, bfloat16, float16 or float64",
                        source.dtype(hf_name),
                    )
    check_names(
        str(source.path),
        [checkpoint_format.name_to_hf(name, config) for name in missing],
        in_file.values(),
    )
    return names_in_file


def _common_dtype(source: Weights, names_in_file: Mapping[str, list[str]]) -> torch.dtype:
    """Return the dtype that all weights of a checkpoint have; raise an error if they have several."""
    by_dtype = {
        source.dtype(hf_name): hf_name
        for hf_names in names_in_file.values()
        for hf_name in hf_names
    }
    if len(by_dtype) > 1:
        examples = " and ".join(
            f"{hf_name} is {dtype}" for dtype, hf_name in list(by_dtype.items())[:2]
        )
        raise RopeError("dtype", f"must be given, because {examples}", None)
    return next(iter(by_dtype))


def _read(
    source: Weights, hf_names: list[str], shape: torch.Size, dtype: torch.dtype, device: Any
) -> Tensor:
    """Return one weight of the given shape, read from the tensors `hf_names`; if these are several,
    they are its parts and are concatenated by rows.
    """
    if len(hf_names) == 1:
        # the part of a mixture of one expert is a matrix, and the weight is [1, rows, columns]
        return source.read(hf_names[0]).to(dtype=dtype, device=device).view(shape)
    rows = [source.shape(hf_name)[0] for hf_name in hf_names]
    whole = torch.empty((sum(rows), *source.shape(hf_names[0])[1:]), dtype=dtype, device=device)
    for part, hf_name in zip(whole.split(rows), hf_names, strict=True):
        part.copy_(source.read(hf_name))
    # the matrices of experts, concatenated by rows, become [experts, rows, columns]
    return whole.view(shape)


def _named_tensors(
    state: Mapping[str, Tensor], checkpoint_format: CheckpointFormat, config: Any
) -> Iterator[NewTensor]:
    """Yield (name in the file, shape, dtype, function that returns the tensor) of every weight, in
    the parts of its format.
    """
    for name, value in state.items():
        # {name of the part: its rows}; empty if the weight is stored whole
        part_rows = checkpoint_format.parts(name, config)
        # [experts, rows, columns] as one matrix
        matrix = value.flatten(0, -2) if value.ndim == 3 else value
        parts = (
            zip(part_rows, matrix.split(list(part_rows.values())), strict=True)
            if part_rows
            else [(name, value)]
        )
        for part_name, part in parts:
            yield (
                checkpoint_format.name_to_hf(part_name, config),
                tuple(part.shape),
                part.dtype,
                lambda part=part: part,
            )
