"""Open a causal language model for a measurement: a loaded one, a folder or a GGUF file, with its
tokenizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ropewalk.config import file as config_file
from ropewalk.config.values import find, served_length
from ropewalk.errors import MissingExtra, RopeError, integer
from ropewalk.frequencies.scaling import TRAINED_LENGTH_KEY
from ropewalk.gguf import hf_config
from ropewalk.interop.gguf import tokenizer as gguf_tokenizer
from ropewalk.interop.gguf.weights import GgufWeights
from ropewalk.interop.patch.length_hook import EXTENSION
from ropewalk.models.decoder import Decoder
from ropewalk_lab.fit.passkeys import Encode


@dataclass(frozen=True, eq=False)
class Subject:
    """A loaded model that is measured.

    name     what rows and tables call the model
    encode   text -> tokens without special tokens; None without a tokenizer
    trained  the trained length in tokens
    """

    name: str
    model: nn.Module
    encode: Encode | None
    trained: int


def open_subject(
    source: Any, tokenizer: Any, device: str | torch.device | None, trained: int | None
) -> Subject:
    """Return the Subject of `source`, a loaded model or a path; raise an error if it is extended.

    tokenizer  that of a loaded model, or a function from text to tokens; None: there is none. A
               path has its own
    device     None: that of a loaded model; for a path a GPU if there is one
    trained    the trained length; None reads it from the config
    """
    name = _name(source)
    if isinstance(source, str | Path):
        model, encode = open_model(
            source, device or ("cuda" if torch.cuda.is_available() else "cpu")
        )
    else:
        if not isinstance(source, nn.Module):
            rule = "must be a causal language model of transformers, a Decoder, or a path of one"
            raise RopeError("model", rule, type(source).__name__)
        model = source if device is None else source.to(device)
        # a tokenizer of transformers has this method, a function has not
        encode = encoder(tokenizer) if hasattr(tokenizer, "add_special_tokens") else tokenizer
    # at least 8, because a fit also reads texts of a quarter of this length
    length = trained_length(model) if trained is None else integer("trained", trained, low=8)
    _refuse_extended(model)
    return Subject(name, model, encode, length)


def _name(source: Any) -> str:
    """Return the name that rows and tables have for a model."""
    config = getattr(source, "config", None)
    path = source if isinstance(source, str | Path) else getattr(config, "_name_or_path", "")
    return Path(path or type(source).__name__).name


def trained_length(model: Any) -> int:
    """Return the length in tokens that the config of a model, or `model` itself if it is a config,
    says it was trained with; raise an error if it says none.
    """
    config = getattr(model, "config", model)
    if isinstance(model, Decoder):
        return config.length
    of_text = config_file.load(config_file.text_owner(config))  # without the parts for images
    # a config with a scaling may name both lengths; without one they are the same
    length = find(of_text, TRAINED_LENGTH_KEY) or served_length(of_text)
    if length is None:
        raise RopeError("trained", "must be given: the config has no max_position_embeddings", None)
    return integer("trained", length.value, low=1)


def _refuse_extended(model: Any) -> None:
    """Raise an error if the model has an extension, which would be undone by the first method that
    is measured.
    """
    for module in model.modules():
        # where `extend` keeps what it did to a module, also after that was undone
        extension = vars(module).get(EXTENSION)
        if extension is not None and extension._installed:
            raise RopeError(
                "model",
                "must have no extension before it is measured; call extend(model, None) first",
                extension.kind,
            )


def open_model(
    path: str | Path, device: str | torch.device = "cpu", dtype: torch.dtype | None = None
) -> tuple[nn.Module, Encode]:
    """Return a transformers model in evaluation mode, and a function from text to tokens without
    special tokens.

    path   a Hugging Face folder, a GGUF file, or a folder with one GGUF file
    dtype  by default bfloat16 on a GPU and float32 on a CPU
    """
    path = Path(path)
    if dtype is None:
        dtype = torch.bfloat16 if torch.device(device).type == "cuda" else torch.float32
    if path.is_dir() and not (path / "config.json").exists():
        files = sorted(path.rglob("*.gguf"))
        if len(files) != 1:
            raise RopeError(
                "model", "must be a folder with a config.json, or with one .gguf file", str(path)
            )
        path = files[0]
    if not path.exists():
        raise RopeError(
            "model", "must be a Hugging Face folder or a .gguf file on this machine", str(path)
        )
    model, encode = _from_folder(path, dtype) if path.is_dir() else _from_gguf(path, dtype)
    return model.to(device).eval(), encode


def _from_folder(path: Path, dtype: torch.dtype) -> tuple[Any, Encode]:
    """Return the model of a transformers folder, and the function that encodes text for it."""
    transformers = import_transformers()
    with (
        _refused(path, "must be a folder that transformers loads, with its tokenizer"),
        _no_progress_bar(transformers),
    ):
        tokenizer = transformers.AutoTokenizer.from_pretrained(path, local_files_only=True)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype, local_files_only=True
        )
        return model, encoder(tokenizer)


@contextmanager
def _refused(path: Path, rule: str) -> Iterator[None]:
    """Context manager: any error inside, such as one of the many types of transformers, becomes a
    RopeError that quotes its first 200 characters; `rule` says what the path must be.
    """
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise RopeError("model", f"{rule} ({reason})", str(path)) from None


@contextmanager
def _no_progress_bar(transformers: Any) -> Iterator[None]:
    """Context manager: transformers shows no progress bars inside; stderr is for one line of an
    error, or for the progress of the fit.
    """
    logging = transformers.utils.logging
    had_bar = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if had_bar:
            logging.enable_progress_bar()


def _from_gguf(path: Path, dtype: torch.dtype) -> tuple[Any, Encode]:
    """Return a model with the dequantised weights of a GGUF file, and the function text -> tokens
    of its tokenizer.
    """
    weights, transformers = GgufWeights(path), import_transformers()
    # `hf_config` gives the keys of the rope as transformers writes them, theta among them
    fields = {
        key: value for key, value in weights.config.items() if key != "rope_theta"
    } | hf_config(weights.file)
    if fields.get("num_hidden_layers", 0) > len(weights.names):
        # every layer has at least one tensor
        rule = f"must not exceed the number of tensors in the file, {len(weights.names)}"
        raise RopeError(f"{weights.architecture}.block_count", rule, fields["num_hidden_layers"])
    # a model on the meta device has a class, names and shapes, but no weights: to draw those at
    # random would take seconds
    with (
        _refused(path, "must be a GGUF file whose sizes transformers accepts"),
        torch.device("meta"),
    ):
        config = transformers.AutoConfig.for_model(**fields)
        outline = transformers.AutoModelForCausalLM.from_config(config)
    shapes = {name: tuple(value.shape) for name, value in outline.state_dict().items()}
    found = set(weights.names)
    # a file without an output matrix belongs to a model whose output uses the embedding matrix
    if wrong := sorted((shapes.keys() ^ found) - ({"lm_head.weight"} - found)):
        raise RopeError("model", "must hold the weights of its architecture and no others", wrong)
    for name in found:
        if weights.shape(name) != shapes[name]:
            rule = f"must have the shape {list(shapes[name])} that the sizes in the file give"
            raise RopeError(weights.files[name], rule, list(weights.shape(name)))
    state = {name: weights.read(name) for name in weights.names}
    with _no_progress_bar(transformers):
        model = type(outline).from_pretrained(None, config=config, state_dict=state, dtype=dtype)
    tokenizer = gguf_tokenizer(path)
    encode = lambda text: tokenizer.encode(text, add_special_tokens=False).ids  # noqa: E731 - one line
    return model, Codec(encode, tokenizer.decode)


def cast_weights(model: Any, dtype: torch.dtype) -> Any:
    """Cast the weights of a transformers model and return it; its frequencies stay float32, as
    from_pretrained leaves them.

    `model.to(dtype)` would round the frequencies too, by up to 0.4 % in bfloat16.
    """
    for weight in model.parameters():
        weight.data = weight.data.to(dtype)
    return model


def import_transformers() -> Any:
    """Import transformers, or raise an error that names the extra."""
    try:
        import transformers
    except ImportError:
        raise MissingExtra("model", "transformers", "hf") from None
    return transformers


def encoder(tokenizer: Any) -> Encode:
    """Return text -> tokens of a transformers tokenizer, without special tokens and without its
    warning about long texts.
    """
    encode = lambda text: tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]  # noqa: E731 - one line
    return Codec(encode, tokenizer.decode)


@dataclass(frozen=True)
class Codec:
    """A tokenizer as a function from text to tokens, with `decode` from tokens to text."""

    encode: Encode
    decode: Callable[[list[int]], str]

    def __call__(self, text: str) -> Sequence[int]:
        return self.encode(text)
