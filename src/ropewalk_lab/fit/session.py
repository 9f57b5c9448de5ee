"""`fit`: measure every method of extending a model's context on a text, and recommend one."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.errors import RopeError, choice, integer
from ropewalk.interop.patch import patched
from ropewalk.interop.patch.length_hook import EXTENSION
from ropewalk.models.decoder import Decoder
from ropewalk_lab.fit import methods as registry
from ropewalk_lab.fit import summary
from ropewalk_lab.fit.decide import Recommendation, decide, scores_of
from ropewalk_lab.fit.ledger import Ledger, Row
from ropewalk_lab.fit.measure import Meter, Samples
from ropewalk_lab.fit.methods import LONGROPE, NONE, Method, config_with
from ropewalk_lab.fit.native_attention import native_attention
from ropewalk_lab.fit.open_model import encoder, open_model
from ropewalk_lab.fit.passkeys import Encode, depths, passkey_lengths, shortest_passkey, wording
from ropewalk_lab.fit.reader import Reader, evaluating, trained_length
from ropewalk_lab.fit.text import bands_of, read_text, windows_of
from ropewalk_lab.fit.weight_layout import weights_by_columns
from ropewalk_lab.machine import machine

#: files in the folder of a fit; none has a name that a folder with a model has
ROWS, FACTS, CONFIG = "rows.jsonl", "fit.json", "fit-config.json"
#: more pass keys for one length, or candidates of a search, would be a typing error
MOST = 100_000


@dataclass(frozen=True, eq=False)
class Fit:
    """What `fit` measured: rows, facts about model, text and machine, and the recommendation.

    config  the model's config with the best method that a config can express; None if the unchanged
            model is the best
    skipped methods that could not be measured, and why
    """

    rows: list[Row]
    facts: dict[str, Any]
    recommendation: Recommendation
    in_config: Recommendation
    config: dict[str, Any] | None
    skipped: dict[str, str]

    def __str__(self) -> str:
        columns, cells = self.table()
        widths = [
            max(len(line[column]) for line in (columns, *cells)) for column in range(len(columns))
        ]
        lines = [
            "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True))
            for line in (columns, *cells)
        ]
        return "\n".join([*lines, "", *self.sentences()])

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return the titles of the columns, and the cells of each method."""
        return summary.table(self.rows, self.facts)

    def sentences(self) -> list[str]:
        """Return the recommendation in words."""
        return summary.sentences(
            self.recommendation, self.in_config, self.facts, self.skipped, self.rows
        )


def fit(
    model: Any,
    to: int,
    *,
    text: str | Path | Sequence[str | Path] | Tensor | None = None,
    tokenizer: Any = None,
    methods: Iterable[str] | None = None,
    windows: int = 6,
    passkeys: int = 10,
    search: int = 0,
    long_ppl: bool = True,
    trained: int | None = None,
    out: str | Path | None = None,
    device: str | torch.device | None = None,
    seed: int = 0,
    report: Callable[[str], None] | None = None,
) -> Fit:
    """Measure every method of giving a model a context of `to` tokens, without training, and
    recommend one.

    model      a loaded transformers causal language model, a Decoder, a Hugging Face folder or a
               GGUF file
    text       files or folders of text, from which windows are taken alike; or tokens. None:
               Python's own documentation
    tokenizer  of a loaded model, or a function from text to tokens; without one there are no pass
               keys and text must be tokens
    methods    names; None: every scaling and remapping that `extend` offers, and the entries of
               METHODS
    windows    windows of `to` tokens, which all methods read
    passkeys   pass keys for each length, at depths from 0 to 1
    search     candidates of a search for LongRoPE's factors, on a window of its own; 0 leaves
               longrope out
    long_ppl   whether to measure LongPPL; the tokens that it counts take as long to find as four
               readings of every window
    trained    the trained length; None reads it from the config
    out        a folder for the rows; a second call with the same settings measures only what is
               missing
    report     called with a text before each measurement; None prints to stderr if it is a terminal

    Each method is judged by its loss in the last band of positions, by pass keys beyond the trained
    length, and by both within it. Differences are paired over windows and pass keys, and count only
    beyond two standard errors.
    """
    name = _name(model)
    if isinstance(model, str | Path):
        model, encode = open_model(
            model, device or ("cuda" if torch.cuda.is_available() else "cpu")
        )
    else:
        model = model if device is None else model.to(device)
        encode = (
            tokenizer
            if tokenizer is None or not hasattr(tokenizer, "add_special_tokens")
            else encoder(tokenizer)
        )
    trained = trained_length(model) if trained is None else integer("trained", trained, low=8)
    _refuse_extended(model)
    to, windows = integer("to", to, low=trained + 1), integer("windows", windows, low=1)
    passkeys = integer("passkeys", passkeys, low=0, high=MOST)
    search, seed = integer("search", search, low=0, high=MOST), integer("seed", seed, low=0)
    tokens = _tokens(text, encode)
    samples, spare = _samples(tokens, encode, trained, to, windows, passkeys, seed, bool(search))
    facts = _facts(name, model, text, tokens, samples) | {"long_ppl": long_ppl, "search": search}
    with (
        evaluating(model),
        weights_by_columns(model),
        _on_our_kernels(model) as kernels,
        native_attention(model) as attention,
    ):
        reader = Reader(model)
        ledger = Ledger(None if out is None else Path(out) / ROWS, facts)
        meter = Meter(reader, samples, ledger, report or _to_terminal, long_ppl)
        factors, skipped = None, {}
        if spare is not None:
            pairs = _pairs(model, search)
            try:
                factors = meter.find_longrope(spare, search, pairs)
            except RopeError as error:
                skipped[LONGROPE] = str(error)
        chosen = _chosen(
            methods if methods is None else [each for each in methods if each not in skipped],
            factors,
        )
        for each, method in chosen.items():
            try:
                meter.measure(each, method)
            except RopeError as error:
                skipped[each] = str(error)
    facts |= {
        "kernels": kernels,
        "attention": attention,
        "machine": machine(reader.device),
        "methods": list(chosen),
    }
    result = _result(model, ledger.rows, facts, chosen, skipped)
    if out is not None:
        Path(out).mkdir(parents=True, exist_ok=True)
        kept = facts | {"recommended": vars(result.recommendation), "skipped": skipped}
        (Path(out) / FACTS).write_text(
            json.dumps(kept, indent=2, default=str) + "\n", encoding="utf-8"
        )
        path = Path(out) / CONFIG
        path.unlink(missing_ok=True)  # of an earlier call with other settings
        if result.config is not None:
            path.write_text(
                json.dumps(result.config, indent=2, default=str) + "\n", encoding="utf-8"
            )
    return result


def _refuse_extended(model: nn.Module) -> None:
    """Raise an error if the model has an extension, which would be undone by the first method that
    is measured.
    """
    for module in model.modules():
        extension = vars(module).get(EXTENSION)
        if extension is not None and extension._installed:
            raise RopeError(
                "model",
                "must not be extended to be measured; call extend(model, None) first",
                extension.kind,
            )


def _tokens(text: Any, encode: Encode | None) -> list[Tensor]:
    """Return the tokens of every text: of the given tokens, of files or folders, or, if None, of
    Python's documentation.
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
    if not paths:
        raise RopeError(
            "text",
            "must name at least one file or folder; None takes Python's documentation",
            paths,
        )
    return [torch.tensor(encode(read_text(path))) for path in paths]


def _samples(
    tokens: Sequence[Tensor],
    encode: Encode | None,
    trained: int,
    to: int,
    count: int,
    passkeys: int,
    seed: int,
    spare: bool,
) -> tuple[Samples, Tensor | None]:
    """Return samples with `count` windows, spread over the texts, and one more window for a search
    if `spare`, else None.
    """
    counts = [count // len(tokens) + (text < count % len(tokens)) for text in range(len(tokens))]
    counts[0] += spare  # the spare window is the last of the first text
    windows = [
        windows_of(each, to, number) for each, number in zip(tokens, counts, strict=True) if number
    ]
    spare_window = windows[0][-1] if spare else None
    if spare:
        windows[0] = windows[0][:-1]
    asked: list[tuple[int, float]] = []
    if encode is not None and passkeys:
        lengths = [
            length for length in passkey_lengths(trained, to) if length >= shortest_passkey(encode)
        ]
        asked = [(length, depth) for length in lengths for depth in depths(passkeys)]
    return Samples(
        trained, to, torch.cat(windows), tuple(bands_of(trained, to)), tuple(asked), encode, seed
    ), spare_window


def _facts(
    name: str, model: nn.Module, text: Any, tokens: Sequence[Tensor], samples: Samples
) -> dict[str, Any]:
    """Return what identifies a measurement: rows of other models, texts or seeds are not mixed with
    its rows.
    """
    weights = sum(float(each.detach().double().abs().sum()) for each in model.parameters())
    return {
        "model": name,
        "weights": f"{weights:.9g}",
        "dtype": str(next(model.parameters()).dtype),
        "trained": samples.trained,
        "to": samples.to,
        "bands": samples.bands,
        "windows": len(samples.windows),
        "text": _text_names(text),
        "tokens": [len(each) for each in tokens],
        "samples": hashlib.sha256(samples.windows.numpy().tobytes()).hexdigest()[:16],
        "passkeys": len(samples.passkeys),
        "passkey_wording": wording(),
        "seed": samples.seed,
    }


def _name(model: Any) -> str:
    """Return the name that rows and tables have for a model."""
    if isinstance(model, str | Path):
        return Path(model).name
    return Path(
        getattr(getattr(model, "config", None), "_name_or_path", "") or type(model).__name__
    ).name


def _text_names(text: Any) -> list[str]:
    """Return the names of the texts for the report."""
    if text is None:
        return ["Python's documentation"]
    if isinstance(text, Tensor):
        return ["tokens"]
    return [Path(each).name for each in ([text] if isinstance(text, str | Path) else text)]


def _pairs(model: nn.Module, search: int) -> int:
    """Return the number of pairs of each head, one for each factor that is searched."""
    specs = registry.rope_specs(model)
    if not specs:
        raise RopeError(
            "search",
            "must be 0 for a model without RoPE, which has no frequencies to search",
            search,
        )
    return specs[0].pairs


def _chosen(names: Iterable[str] | None, factors: tuple[float, ...] | None) -> dict[str, Method]:
    """Return the methods to measure by name; the unchanged model is always among them."""
    known = registry.methods(factors)
    if names is None:
        return known
    wanted = dict.fromkeys((NONE, *names))  # every method is compared with the model as it is
    if LONGROPE in wanted and factors is None:
        raise RopeError(
            "search",
            "must be given to measure longrope, whose factors are searched; such as search=96",
            0,
        )
    return {choice("methods", name, known): known[name] for name in wanted}


@contextmanager
def _on_our_kernels(model: nn.Module) -> Iterator[str]:
    """Context manager: a transformers model is patched; one that cannot be patched is measured as
    it is.
    """
    if isinstance(model, Decoder):
        yield "ropewalk"
        return
    try:
        context = patched(model)
        context.__enter__()
    except RopeError:
        yield "the model's own"
        return
    try:
        yield "ropewalk"
    finally:
        context.__exit__(None, None, None)


def _result(
    model: nn.Module,
    rows: list[Row],
    facts: dict[str, Any],
    chosen: dict[str, Method],
    skipped: dict[str, str],
) -> Fit:
    """Return the fit: the best method, and the best one that a config can name."""
    trained, to = facts["trained"], facts["to"]
    scores = {name: each for name, each in scores_of(rows, trained, to).items() if name in chosen}
    for name in chosen:
        if name not in scores:
            skipped.setdefault(name, "its loss is not finite")
    if not scores:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in skipped.items())
        raise RopeError("methods", f"must have one that can be measured ({reasons})", list(chosen))
    configs = {name: config_with(model, chosen[name], to / trained, trained) for name in scores}
    saved = [name for name, config in configs.items() if config is not None]
    best = decide(scores, prefer=saved)
    in_config = decide(
        {name: each for name, each in scores.items() if name in (NONE, *saved)} or scores
    )
    return Fit(rows, facts, best, in_config, configs[in_config.method], skipped)


def _to_terminal(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
