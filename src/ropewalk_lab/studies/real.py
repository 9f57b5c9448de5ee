"""What the studies on pretrained models share: the model, the texts, and rows that are stored while
a job runs.

Words of this module:
  window  consecutive tokens of a text, which a model reads at once
  spare   a window that is not measured, for a search
  meter   measures a model on windows and pass keys, and keeps the rows in a ledger
  ledger  a file of rows that grows row by row
  encode  the function from text to tokens; a Codec decodes too
  facts   what a report says of a run beside its rows
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.errors import RopeError, choice
from ropewalk_lab.downloads import find_fetched
from ropewalk_lab.fit.fingerprint import model_fingerprint
from ropewalk_lab.fit.ledger import Ledger
from ropewalk_lab.fit.measure import Meter
from ropewalk_lab.fit.methods import LONGROPE, methods
from ropewalk_lab.fit.open_model import Codec, cast_weights, import_transformers, open_model
from ropewalk_lab.fit.passkeys import Encode, depths, wording
from ropewalk_lab.fit.plan import Samples
from ropewalk_lab.fit.reader import Reader
from ropewalk_lab.fit.text import bands_of, read_text, windows_of
from ropewalk_lab.studies.jobs import JobRunner, Workspace
from ropewalk_lab.studies.rows import digest

#: a random Llama of bytes and Python's documentation: enough to run every line of a study, not to
#: conclude anything
TINY, PYTHON = "tiny", "python"
#: windows to measure are taken from at most this many characters of each text
CHARACTERS = 3_000_000
#: texts that have fewer windows than this are refused, unless fewer are asked for: a loss over so
#: few says little
FEWEST_WINDOWS = 5


def open_real(
    name: str, device: torch.device, dtype: torch.dtype | None = None
) -> tuple[nn.Module, Encode]:
    """Return a model by its name in DOWNLOADS or its path, and its function from text to tokens;
    TINY is a random model, whose tokens are bytes.

    dtype  of the weights, by default as in `open_model`; TINY is float32 by default
    """
    if name != TINY:
        return open_model(find_fetched(name), device, dtype)
    transformers = import_transformers()
    config = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(config)
    codec = Codec(lambda text: list(text.encode()), lambda tokens: bytes(tokens).decode("latin-1"))
    return cast_weights(model, dtype or torch.float32).to(device).eval(), codec


def real_text(name: str, first: int = 0, count: int = CHARACTERS) -> str:
    """Return at most `count` characters of a text from the character `first` on; of PYTHON at most
    60,000.
    """
    if name == PYTHON:
        from pydoc_data.topics import topics

        count = min(count, 60_000)  # enough for the small model
        return "\n\n".join(topics[each] for each in sorted(topics))[first : first + count]
    return read_text(find_fetched(name))[first : first + count]


def real_windows(
    texts: Sequence[str], encode: Encode, length: int, count: int, spare: int = 0
) -> Tensor:
    """Return windows [count + spare, length], `count` of them shared equally among the texts; the
    `spare` ones are the last, and from the first text.

    A text that is too short for its share gives fewer and the others more. If all are too short,
    there are fewer than `count` windows; fewer than FEWEST_WINDOWS of them are an error, and so is
    a first text that is too short for the `spare` ones.
    """
    tokens = [encode(real_text(text)) for text in texts]
    available = [len(each) // length for each in tokens]  # windows of each text
    available[0] -= spare  # a negative number if the first text has too few
    if sum(available) < min(count, FEWEST_WINDOWS) or available[0] < 0:
        rule = (
            f"must have at least {min(count, FEWEST_WINDOWS) + spare} windows of {length} tokens; "
            "use a longer text"
        )
        raise RopeError("text", rule, f"{[len(each) for each in tokens]} tokens")
    shares = [0] * len(texts)
    for _ in range(min(count, sum(available))):
        # one window more of the text that has the fewest yet
        unfinished = [i for i in range(len(texts)) if shares[i] < available[i]]
        shares[min(unfinished, key=lambda i: shares[i])] += 1
    shares[0] += spare
    by_text = [
        windows_of(each, length, share) for each, share in zip(tokens, shares, strict=True) if share
    ]
    first_spare = len(by_text[0]) - spare
    return torch.cat([by_text[0][:first_spare], *by_text[1:], by_text[0][first_spare:]])


def make_meter(
    workspace: Workspace,
    model: nn.Module,
    encode: Encode,
    texts: Sequence[str],
    *,
    name: str,
    trained: int,
    factor: float,
    windows: int = 0,
    lengths: Sequence[int] = (),
    num_depths: int = 10,
    search: int = 0,
    seed: int = 0,
) -> Meter:
    """Return a meter of `ropewalk_lab.fit` whose rows are kept in the workspace.

    name                 the model's name or path in the settings, which the rows' file is named by
    trained, factor      the trained length, and how many times longer the measured windows are
    windows              the number of these windows; 0: no text is read
    lengths, num_depths  of the pass keys that the model is asked for: lengths in tokens, and how
                         many depths at each
    search               candidates of the search for LongRoPE's factors; its window is not measured
    seed                 of the pass keys and of the search
    """
    to, spare = round(factor * trained), int(search > 0)
    tokens = (
        real_windows(texts, encode, to, windows, spare)
        if windows
        else torch.empty(0, to, dtype=torch.long)
    )
    passkeys = tuple((length, depth) for length in lengths for depth in depths(num_depths))
    samples = Samples(
        trained,
        to,
        tokens[: len(tokens) - spare],
        tuple(bands_of(trained, to)),
        passkeys,
        encode,
        seed,
        tokens[-1] if spare else None,
    )
    dtype = str(next(model.parameters()).dtype)
    setting = {
        "model": name,
        "fingerprint": model_fingerprint(model),
        "dtype": dtype,
        "text": list(texts),
        "to": to,
        "windows": windows,
        "search": search,
        "asked": passkeys,
        "wording": wording(),
        "seed": seed,
    }
    ledger = Ledger(
        workspace.models / "real" / f"{Path(name).name}-{digest(setting)}.jsonl", setting
    )
    return Meter(Reader(model), samples, ledger)


def known_methods(
    names: Sequence[str], long_factor: tuple[float, ...] | None = None
) -> dict[str, Any]:
    """Return the methods of `ropewalk_lab.fit` by name, in the given order. An unknown name is an
    error.

    long_factor  LongRoPE's factors, one for each pair; None leaves longrope out
    """
    known = methods(long_factor)
    for name in names:
        choice("methods", name, dict.fromkeys((*known, LONGROPE)))
    return {name: known[name] for name in names if name in known}


def real_facts(runner: JobRunner, trained: int) -> dict[str, Any]:
    """Return what the tables of a study on a pretrained model name: model, trained length and
    texts.
    """
    names = [Path(name).name for name in (runner.settings["model"], *runner.settings["text"])]
    return {"model": names[0], "trained": trained, "text": names[1:]}


def source_note(facts: dict[str, Any]) -> str:
    """Return a sentence with model, texts and seeds, for the notes of tables."""
    return (
        f"Model {facts['model']}, trained to {facts['trained']:,} tokens; text "
        f"{', '.join(facts['text'])}; {facts['seeds']} seed{'s' if facts['seeds'] != 1 else ''}."
    )
