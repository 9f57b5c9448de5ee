"""Measure one method on a loaded model: losses on windows of text and pass keys, one row each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ropewalk.errors import integer
from ropewalk_lab.fit.ledger import Ledger, Row
from ropewalk_lab.fit.methods import LONGROPE, Method, extended, is_fixed, search_longrope
from ropewalk_lab.fit.passkeys import Encode, make_passkey
from ropewalk_lab.fit.reader import Reader
from ropewalk_lab.fit.text import Band, KeyTokens, band_means, key_tokens

#: tokens in one forward pass over pass keys
BATCH_TOKENS = 1 << 16
#: candidates of each round of a search for LongRoPE's factors
POPULATION = 16


@dataclass(frozen=True, eq=False)
class Samples:
    """What every method is measured on.

    windows       tokens [count, to]
    bands         of positions, the last ends at `to`
    passkeys      (length, depth) of every pass key
    encode        text -> tokens, for pass keys; None leaves them out
    """

    trained: int
    to: int
    windows: Tensor
    bands: tuple[Band, ...]
    passkeys: tuple[tuple[int, float], ...] = ()
    encode: Encode | None = None
    seed: int = 0

    @property
    def factor(self) -> float:
        """How many times longer the context becomes."""
        return self.to / self.trained


@dataclass
class Meter:
    """Measures methods and stores a row for each window, each pass key and each length.

    report    called with a text before each measurement
    long_ppl  whether the key tokens of LongPPL are looked for, which takes as long as four readings
    """

    reader: Reader
    samples: Samples
    ledger: Ledger
    report: Callable[[str], None] = lambda text: None
    long_ppl: bool = True
    _keys: dict[int, KeyTokens] = field(default_factory=dict)

    def measure(self, name: str, method: Method) -> None:
        """Measure the texts and pass keys of a method that are not in the ledger yet, and add them."""
        texts, batches = list(self._missing_texts(name)), list(self._missing_passkeys(name))
        if self.long_ppl:
            for window in {window for window, length in texts if length == self.samples.to}:
                self._key_tokens(window)  # before the model is extended
        if texts or batches:
            fixed = is_fixed(self.reader.model, method)
            with extended(self.reader.model, method, self.samples.factor, self.samples.trained):
                for window, length in texts:
                    if self._text_row(name, window, length) is None:
                        self.report(
                            f"{name}: window {window + 1} of {len(self.samples.windows)}, "
                            f"{length:,} tokens"
                        )
                        self._measure_text(name, window, length, fixed)
                for length, depths in batches:
                    self.report(f"{name}: pass keys in {length:,} tokens")
                    self._measure_passkeys(name, length, depths)

    def _missing_texts(self, name: str) -> Iterator[tuple[int, int]]:
        """Yield (window, length) of the texts that are not yet measured."""
        for length in dict.fromkeys((self.samples.to, self.samples.trained)):
            for window in range(len(self.samples.windows)):
                if self._text_row(name, window, length) is None:
                    yield window, length

    def _text_row(self, name: str, window: int, length: int) -> Row | None:
        """Return the row of a text, or None if it was not measured."""
        return self.ledger.find(metric="text", method=name, window=window, length=length)

    def _missing_passkeys(self, name: str) -> Iterator[tuple[int, list[float]]]:
        """Yield (length, depths) of the pass keys that are not yet measured, in batches."""
        missing: dict[int, list[float]] = {}
        for length, depth in self.samples.passkeys:
            if self.ledger.find(metric="passkey", method=name, length=length, depth=depth) is None:
                missing.setdefault(length, []).append(depth)
        for length, depths in missing.items():
            size = max(1, BATCH_TOKENS // length)
            for start in range(0, len(depths), size):
                yield length, depths[start : start + size]

    def _measure_text(self, name: str, window: int, length: int, fixed: bool) -> None:
        """Measure the loss of one window of text and add it to the ledger.

        fixed  whether the text cut at the trained length would have the same losses, so that it
               need not be read
        """
        samples = self.samples
        tokens = samples.windows[window, :length]
        began = self._start_clock()
        losses = self.reader.losses(tokens[None])[0]
        seconds, memory = time.perf_counter() - began, self._memory()
        fields = {"metric": "text", "method": name, "window": window}
        row = {**fields, "length": length, "loss": _mean(losses)}
        if length == samples.to:
            row["bands"] = band_means(losses, samples.bands)
            if self.long_ppl:
                row["key_sum"], row["key_count"] = self._key_tokens(window).total(losses)
        self.ledger.add(**row, seconds=round(seconds, 4), memory=memory)
        if (
            fixed
            and length == samples.to > samples.trained
            and self._text_row(name, window, samples.trained) is None
        ):
            self.ledger.add(
                **fields, length=samples.trained, loss=_mean(losses[: samples.trained - 1])
            )

    def _measure_passkeys(self, name: str, length: int, depths: Sequence[float]) -> None:
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
            self.ledger.add(
                metric="passkey", method=name, length=length, depth=depth, found=int(is_found)
            )

    def _key_tokens(self, window: int) -> KeyTokens:
        """Return the key tokens of a window, which the unextended model finds once."""
        if window not in self._keys:
            self.report(f"key tokens of window {window + 1}")
            self._keys[window] = key_tokens(
                self.reader, self.samples.windows[window], self.samples.trained
            )
        return self._keys[window]

    def find_longrope(self, window: Tensor, candidates: int, pairs: int) -> tuple[float, ...]:
        """Return LongRoPE factors with a small loss in the last band of a window that is not among
        the samples.
        """
        stored = self.ledger.find(metric="factors", candidates=candidates)
        if stored is not None:
            return tuple(stored["values"])
        samples, last = self.samples, self.samples.bands[-1:]  # the last band alone
        rounds = max(1, integer("search", candidates, low=1) // POPULATION)
        self.report(f"longrope: search with up to {POPULATION * (rounds + 1)} candidates")
        factors = search_longrope(
            self.reader.model,
            lambda: band_means(self.reader.losses(window[None])[0], last)[0],
            samples.factor,
            samples.trained,
            pairs,
            population=POPULATION,
            rounds=rounds,
            seed=samples.seed,
        )
        self.ledger.add(
            metric="factors", method=LONGROPE, candidates=candidates, values=list(factors)
        )
        return factors

    def _start_clock(self) -> float:
        """Return the time, after the GPU has finished its work; its peak memory starts again from
        here.
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


def _mean(losses: Tensor) -> float:
    return float(losses.double().mean())
