"""Measure one method on a loaded model: losses on windows of text and pass keys, one row each.

Words of this module:
  window    a piece of the text that every method reads, at the length `to`, which is wanted, and cut
            at the length `trained`; called by its index
  row       one measurement in the ledger, identified by the fields that `_text`, `_passkey` or
            `_search` returns
  key       of "pass key", a number to be found in a text; a "key token" is one that needs a long
            context, and is not about pass keys
  name      that of a method, under which its rows are stored
  variant   a digest of a method's options
  samples   the windows and pass keys that every method reads, a `Samples`
  reader    gives the loss of every token, and whether the model finds a pass key, a `Reader`
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ropewalk.errors import RopeError, integer
from ropewalk_lab.fit.ledger import Ledger, Row
from ropewalk_lab.fit.methods import LONGROPE, Method, extended, rope_specs, search_longrope
from ropewalk_lab.fit.passkeys import make_passkey
from ropewalk_lab.fit.plan import Samples
from ropewalk_lab.fit.reader import Reader
from ropewalk_lab.fit.text import KeyTokens, band_means, key_tokens

#: the most tokens in one forward pass over pass keys, unless one pass key has more
BATCH_TOKENS = 1 << 16
#: candidates of each round of a search for LongRoPE's factors
POPULATION = 16


@dataclass(frozen=True)
class Step:
    """One step that is about to begin, a measurement or a search: its number from 1, how many there
    are in all, and what it does.
    """

    number: int
    total: int
    text: str

    def __str__(self) -> str:
        return f"{self.number}/{self.total} {self.text}"


#: called with each step that is about to begin
Report = Callable[[Step], None]


def print_step(step: Step) -> None:
    """Print a step to stderr: on a terminal it replaces the one before, a pipe gets a line for
    each.
    """
    if sys.stderr.isatty():
        print(f"\r\033[K{step}", end="", file=sys.stderr, flush=True)
    else:
        print(step, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Missing:
    """What of a method is not yet measured.

    texts     (index of the window, length) of texts that must be read
    passkeys  (length, depths) of pass keys that are measured together, in one step
    """

    texts: tuple[tuple[int, int], ...]
    passkeys: tuple[tuple[int, tuple[float, ...]], ...]

    def __len__(self) -> int:
        """Return the number of steps; with none, the object is False as a condition."""
        return len(self.texts) + len(self.passkeys)


@dataclass
class Meter:
    """Measures methods and stores a row for each pass key, for each window of text at each of its
    two lengths, and for a search for LongRoPE's factors.

    reader    of the model; `samples` are what it reads, and `ledger` stores the rows
    report    called with a step before each text, each batch of pass keys, the search for key
              tokens in each window, and the search for LongRoPE's factors
    long_ppl  whether the key tokens of LongPPL are looked for, which takes as long as reading every
              window four times
    """

    reader: Reader
    samples: Samples
    ledger: Ledger
    report: Report = lambda step: None
    long_ppl: bool = True
    _found_key_tokens: dict[int, KeyTokens] = field(default_factory=dict)  # by window
    _done: int = 0
    _total: int = 0

    def __post_init__(self) -> None:
        """Read the model's own ropes, before it is extended; None if its family cannot be read."""
        try:
            self._ropes = rope_specs(self.reader.model)
        except RopeError:
            self._ropes = None

    def expect(self, methods: Mapping[str, Method], *, search: int = 0) -> None:
        """Count the steps that are still missing, so that they can be reported as 3/20.

        search  about how many candidates for LongRoPE's factors are tried before the best is
                measured; 0: no search. The search counts as one step
        """
        if search and self._ropes == []:  # None is a model whose ropes are not known
            rule = "must be 0 for a model without RoPE, which has no frequencies to search"
            raise RopeError("search", rule, search)
        missing = [self.missing(name, method) for name, method in methods.items()]
        count = sum(map(len, missing)) + bool(search)
        if search:
            # the search will give new factors, so no row of longrope with them is stored yet
            count += len(self.missing(LONGROPE, Method(LONGROPE)))
        if self.long_ppl:
            # finding the key tokens of a window is a step too, once for each window that must be
            # read; after a search longrope reads them all
            windows = {window for each in missing for window in self._far_windows(each)}
            found = self._found_key_tokens.keys()
            count += len(self.samples.windows) if search else len(windows - found)
        self._total = self._done + count

    def measure(self, name: str, method: Method) -> None:
        """Measure the texts and pass keys of a method that are not in the ledger yet, and add them."""
        missing = self.missing(name, method)
        if self.long_ppl:
            for window in self._far_windows(missing):
                self._key_tokens(window)  # before the model is extended
        end = self._done + len(missing)
        try:
            if missing:
                with extended(self.reader.model, method, self.samples.factor, self.samples.trained):
                    self._measure(name, method, missing)
        finally:
            self._done = end  # a method that cannot be measured is passed over

    def rows_of(self, methods: Mapping[str, Method]) -> list[Row]:
        """Return the rows of methods with these options, in the order of measurement."""
        variants = {name: method.variant() for name, method in methods.items()}
        return [
            row
            for row in self.ledger.rows
            # the row of a search for LongRoPE's factors has no variant; it is returned if longrope
            # is among the methods, whatever its factors
            if row["method"] in variants
            and row.get("variant", variants[row["method"]]) == variants[row["method"]]
        ]

    def missing(self, name: str, method: Method) -> Missing:
        """Return what of a method is not in the ledger yet and must be read: windows at the lengths
        `to` and `trained`, and pass keys.
        """
        to, trained = self.samples.to, self.samples.trained
        windows = range(len(self.samples.windows))
        far = [
            (window, to) for window in windows if not self._stored(_text(name, method, window, to))
        ]
        near = [
            (window, trained)
            for window in windows
            if trained != to and not self._stored(_text(name, method, window, trained))
        ]
        # the long text gives the loss of the short one too, if it must be read anyway
        if self._is_fixed(method):
            near = [(window, length) for window, length in near if (window, to) not in far]
        depths: dict[int, list[float]] = {}
        for length, depth in self.samples.passkeys:
            if not self._stored(_passkey(name, method, length, depth)):
                depths.setdefault(length, []).append(depth)
        batches = []
        for length, each in depths.items():
            size = max(1, BATCH_TOKENS // length)  # pass keys in one forward pass
            for start in range(0, len(each), size):
                batches.append((length, tuple(each[start : start + size])))
        return Missing((*far, *near), tuple(batches))

    def _is_fixed(self, method: Method) -> bool:
        """Return whether the model with a method rotates a token alike in texts of every length;
        False if the ropes of the model are not known.

        Then the losses of a short text are the first losses of a longer one that begins with it.
        """
        ropes = self._ropes
        return method.is_fixed and ropes is not None and not any(r.needs_length for r in ropes)

    def _far_windows(self, missing: Missing) -> list[int]:
        """Return the indices of the windows whose text of the full length must be read."""
        return [window for window, length in missing.texts if length == self.samples.to]

    def _stored(self, measured: Mapping[str, Any]) -> bool:
        return self.ledger.find(**measured) is not None

    def _step(self, text: str) -> None:
        """Report the measurement that begins now."""
        self._done += 1
        self.report(Step(self._done, max(self._total, self._done), text))

    def _measure(self, name: str, method: Method, missing: Missing) -> None:
        """Measure texts and pass keys on the extended model."""
        for window, length in missing.texts:
            count = len(self.samples.windows)
            self._step(f"{name}: window {window + 1} of {count}, {length:,} tokens")
            self._measure_text(name, method, window, length)
        for length, depths in missing.passkeys:
            self._step(f"{name}: pass keys in {length:,} tokens")
            self._measure_passkeys(name, method, length, depths)

    def _measure_text(self, name: str, method: Method, window: int, length: int) -> None:
        """Measure the loss of one window of text and add it to the ledger; also that of the text
        cut at the trained length, if the method gives it the same losses.
        """
        samples = self.samples
        tokens = samples.windows[window, :length]
        began = self._start_clock()
        losses = self.reader.losses(tokens[None])[0]
        seconds, memory = time.perf_counter() - began, self._memory()
        values: dict[str, Any] = {"loss": _mean(losses)}
        if length == samples.to:
            values["bands"] = band_means(losses, samples.bands)
            if self.long_ppl:
                values["key_sum"], values["key_count"] = self._key_tokens(window).total(losses)
        text = _text(name, method, window, length)
        self.ledger.add(text, **values, seconds=round(seconds, 4), memory=memory)
        near = _text(name, method, window, samples.trained)
        # the losses begin with that of token 1, so a text of n tokens has n - 1
        if (
            length == samples.to > samples.trained
            and not self._stored(near)
            and self._is_fixed(method)
        ):
            self.ledger.add(near, loss=_mean(losses[: samples.trained - 1]))

    def _measure_passkeys(
        self, name: str, method: Method, length: int, depths: Sequence[float]
    ) -> None:
        """Measure which pass keys are found and add them to the ledger; as one batch if their token
        counts are equal.
        """
        assert self.samples.encode is not None  # else there are no pass keys
        prompts = [
            make_passkey(self.samples.encode, length, depth, self.samples.seed) for depth in depths
        ]
        token_counts = {(len(each.tokens), each.answer) for each in prompts}
        if len(token_counts) == 1:
            found = self.reader.says(
                torch.stack([each.tokens for each in prompts]), prompts[0].answer
            ).tolist()
        else:
            found = [bool(self.reader.says(each.tokens[None], each.answer)) for each in prompts]
        for depth, is_found in zip(depths, found, strict=True):
            self.ledger.add(_passkey(name, method, length, depth), found=int(is_found))

    def _key_tokens(self, window: int) -> KeyTokens:
        """Return the key tokens of a window. The first call finds them with the model, which must
        not be extended then.
        """
        if window not in self._found_key_tokens:
            self._step(f"key tokens of window {window + 1}")
            tokens, trained = self.samples.windows[window], self.samples.trained
            self._found_key_tokens[window] = key_tokens(self.reader, tokens, trained)
        return self._found_key_tokens[window]

    def stored_longrope(self, candidates: int) -> tuple[float, ...] | None:
        """Return the LongRoPE factors of an earlier search; None if there was none."""
        stored = self.ledger.find(**_search(candidates))
        return None if stored is None else tuple(stored["values"])

    def find_longrope(self, candidates: int) -> tuple[float, ...]:
        """Return LongRoPE factors with a small loss in the last band of the spare window: those of
        an earlier search, or of a new one over about `candidates`, whose result is stored.
        """
        stored = self.stored_longrope(candidates)
        if stored is not None:
            return stored
        samples, last = self.samples, self.samples.bands[-1:]  # the last band alone
        window = samples.spare
        assert window is not None  # a search has one
        rounds = max(1, integer("search", candidates, low=1) // POPULATION)
        # the first population, and one more in each round
        self._step(f"longrope: search with up to {POPULATION * (rounds + 1)} candidates")
        factors = search_longrope(
            self.reader.model,
            lambda: band_means(self.reader.losses(window[None])[0], last)[0],
            samples.factor,
            samples.trained,
            population=POPULATION,
            rounds=rounds,
            seed=samples.seed,
        )
        self.ledger.add(_search(candidates), values=list(factors))
        return factors

    def _start_clock(self) -> float:
        """Return the time in seconds, after a GPU has finished its work; `_memory` counts the peak
        from here on.
        """
        if self.reader.device.type == "cuda":
            torch.cuda.synchronize(self.reader.device)
            torch.cuda.reset_peak_memory_stats(self.reader.device)
        return time.perf_counter()

    def _memory(self) -> int | None:
        """Return the peak of GPU memory in bytes; None on a CPU."""
        return (
            torch.cuda.max_memory_allocated(self.reader.device)
            if self.reader.device.type == "cuda"
            else None
        )


def _text(name: str, method: Method, window: int, length: int) -> Row:
    """Return the fields that identify the row of a text."""
    fields = {"metric": "text", "method": name, "variant": method.variant()}
    return {**fields, "window": window, "length": length}


def _passkey(name: str, method: Method, length: int, depth: float) -> Row:
    """Return the fields that identify the row of a pass key."""
    fields = {"metric": "passkey", "method": name, "variant": method.variant()}
    return {**fields, "length": length, "depth": depth}


def _search(candidates: int) -> Row:
    """Return the fields that identify the row of a search for LongRoPE's factors."""
    return {"metric": "factors", "method": LONGROPE, "candidates": candidates}


def _mean(losses: Tensor) -> float:
    return float(losses.double().mean())
