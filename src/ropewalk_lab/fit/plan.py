"""The plan of a fit: the windows of text and the pass keys that every method reads, and what
identifies the measurement.

Words of this module:
  to        the length to read, in tokens
  window    a piece of the text of `to` tokens
  pass key  a number that is stated once in a long text, at a depth from 0 (start) to 1 (end), and
            asked for at its end
  search    that for LongRoPE's factors, with the loss of one window
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ropewalk.errors import RopeError, flag, integer
from ropewalk.models.decoder import Decoder
from ropewalk_lab.fit.fingerprint import model_fingerprint
from ropewalk_lab.fit.open_model import Subject
from ropewalk_lab.fit.passkeys import (
    Encode,
    depths,
    make_passkey,
    passkey_lengths,
    shortest_passkey,
    wording,
)
from ropewalk_lab.fit.text import Band, bands_of, read_text, windows_of
from ropewalk_lab.machine import versions

#: upper bound for pass keys of one length and candidates of a search; catches typos
MOST = 100_000
#: packages that compute a loss: what other versions of them measured is measured again
CODE = ("ropewalk", "torch", "transformers")
#: increased when a measurement changes its meaning, so that it is not read from older rows
MEASUREMENT = 2


@dataclass(frozen=True, eq=False)
class Samples:
    """What every method is measured on.

    trained, to   the trained length and the length to read, in tokens
    windows       tokens [count, to]
    bands         of positions, the last ends at `to`
    passkeys      (length, depth) of every pass key
    encode        text -> tokens, for pass keys; None: there are none
    seed          of the pass keys and of the search
    spare         a window [to] for the search of LongRoPE's factors, which no method is measured
                  on; None without a search
    """

    trained: int
    to: int
    windows: Tensor
    bands: tuple[Band, ...]
    passkeys: tuple[tuple[int, float], ...] = ()
    encode: Encode | None = None
    seed: int = 0
    spare: Tensor | None = None

    @property
    def factor(self) -> float:
        """How many times longer the context becomes."""
        return self.to / self.trained


@dataclass(frozen=True)
class FitSize:
    """How much a fit measures.

    windows   the number of windows of `to` tokens
    passkeys  the number of pass keys for each length, at depths from 0 to 1
    search    about how many candidates the search for LongRoPE's factors tries; 0: no search
    long_ppl  whether the key tokens of LongPPL are looked for
    seed      of the pass keys and of the search
    """

    windows: int
    passkeys: int
    search: int
    long_ppl: bool
    seed: int

    def __post_init__(self) -> None:
        """Check the numbers, which may be NumPy integers, and store them as Python integers."""
        bounds = {
            "windows": {"low": 1},
            "passkeys": {"low": 0, "high": MOST},
            "search": {"low": 0, "high": MOST},
            "seed": {"low": 0},
        }
        for name, bound in bounds.items():
            object.__setattr__(self, name, integer(name, getattr(self, name), **bound))
        flag("long_ppl", self.long_ppl)


@dataclass(frozen=True, eq=False)
class Plan:
    """What a fit measures, and `facts` that identify it: only rows that were measured with equal
    facts are used again.
    """

    samples: Samples
    facts: dict[str, Any]


def make_plan(subject: Subject, to: int, text: Any, size: FitSize) -> Plan:
    """Return the plan of a fit: samples from the texts for a context of `to` tokens.

    text  files or folders, or a tensor of tokens; None: Python's documentation
    """
    to = integer("to", to, low=subject.trained + 1)
    tokens = _tokens(text, subject.encode)
    samples = make_samples(tokens, subject.encode, subject.trained, to, size)
    first = _first_passkey(samples)
    # tokens of another tokenizer may lie outside the model's vocabulary
    for each in tokens if first is None else (*tokens, first):
        _check_tokens(each, subject.model)
    weight = next(subject.model.parameters())
    facts = {
        "model": subject.name,
        "fingerprint": model_fingerprint(subject.model),
        "dtype": str(weight.dtype),
        "device": weight.device.type,
        "trained": samples.trained,
        "to": samples.to,
        "bands": samples.bands,
        "windows": len(samples.windows),
        "text": _text_names(text),
        "tokens": [len(each) for each in tokens],
        "samples": _digest(samples.windows),
        "spare": None if samples.spare is None else _digest(samples.spare),
        "passkeys": len(samples.passkeys),
        "passkey_wording": wording(),
        "passkey_tokens": None if first is None else _digest(first),
        "seed": size.seed,
        "long_ppl": size.long_ppl,
        "search": size.search,
        "code": {"measurement": MEASUREMENT, **versions(CODE)},
    }
    return Plan(samples, facts)


def _tokens(text: Any, encode: Encode | None) -> list[Tensor]:
    """Return the tokens of every text: of the given tokens, of files or folders, or, if None, of
    Python's documentation; raise an error if there is text and no tokenizer.
    """
    if isinstance(text, Tensor):
        return [text.flatten().cpu()]
    if encode is None:
        raise RopeError(
            "tokenizer", "must be given to read text, or text must be a tensor of tokens", None
        )
    if text is None:
        from pydoc_data.topics import topics

        return [torch.tensor(encode("\n\n".join(topics[name] for name in sorted(topics))))]
    paths = [text] if isinstance(text, str | Path) else list(text)
    if not paths or not all(isinstance(path, str | Path) for path in paths):
        rule = (
            "must name at least one file or folder, or be a tensor of tokens; None takes Python's "
            "documentation"
        )
        raise RopeError("text", rule, paths)
    return [torch.tensor(encode(read_text(path))) for path in paths]


def _check_tokens(tokens: Tensor, model: Any) -> None:
    """Raise an error unless the tokens are integers, and of the model's vocabulary if its size is
    known.
    """
    if tokens.is_floating_point() or tokens.is_complex() or tokens.dtype == torch.bool:
        raise RopeError("text", "must be a tensor of integers, the tokens", str(tokens.dtype))
    counts = _vocabulary(model)
    if not counts or not tokens.numel():
        return
    # tokens must be in both vocabularies, that of the input and that of the output
    count, low, high = min(counts), int(tokens.min()), int(tokens.max())
    if low < 0 or high >= count:
        rule = f"must have tokens from 0 to {count - 1}, those of the model's vocabulary"
        raise RopeError("text", f"{rule}; encode it with the model's tokenizer", f"{low} to {high}")


def _vocabulary(model: Any) -> list[int]:
    """Return the number of tokens that a model has embeddings for, and the number that its head
    predicts, each if the model tells it.
    """
    if isinstance(model, Decoder):
        return [model.embed_tokens.num_embeddings, model.head_weight.shape[0]]
    ends = [getattr(model, f"get_{end}_embeddings", lambda: None)() for end in ("input", "output")]
    return [each.weight.shape[0] for each in ends if each is not None]


def make_samples(
    tokens: Sequence[Tensor], encode: Encode | None, trained: int, to: int, size: FitSize
) -> Samples:
    """Return the samples of a fit: windows spread over the texts, whose `tokens` are [length] each,
    one more window for the search if there is one, and the pass keys.
    """
    count, spare = size.windows, size.search > 0
    # windows of each text; the first texts have one more if the number is not a multiple
    counts = [count // len(tokens) + (text < count % len(tokens)) for text in range(len(tokens))]
    counts[0] += spare  # the spare window is the last of the first text
    windows = [
        windows_of(each, to, number) for each, number in zip(tokens, counts, strict=True) if number
    ]
    spare_window = windows[0][-1] if spare else None
    if spare:
        windows[0] = windows[0][:-1]
    asked: list[tuple[int, float]] = []
    if encode is not None and size.passkeys:
        lengths = [
            length for length in passkey_lengths(trained, to) if length >= shortest_passkey(encode)
        ]
        asked = [(length, depth) for length in lengths for depth in depths(size.passkeys)]
    bands = tuple(bands_of(trained, to))
    return Samples(
        trained, to, torch.cat(windows), bands, tuple(asked), encode, size.seed, spare_window
    )


def _first_passkey(samples: Samples) -> Tensor | None:
    """Return the tokens of the first pass key, which tell tokenizers apart; None without one."""
    if samples.encode is None or not samples.passkeys:
        return None
    return make_passkey(samples.encode, *samples.passkeys[0], samples.seed).tokens


def _digest(tokens: Tensor) -> str:
    return hashlib.sha256(tokens.contiguous().numpy().tobytes()).hexdigest()[:16]


def _text_names(text: Any) -> list[str]:
    """Return the names of the texts for the report."""
    if text is None:
        return ["Python's documentation"]
    if isinstance(text, Tensor):
        return ["tokens"]
    return [Path(each).name for each in ([text] if isinstance(text, str | Path) else text)]
