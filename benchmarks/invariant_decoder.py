"""Count sequences whose logits from an invariant Decoder differ between batches, and time what
invariance costs.

Random texts run through models of random weights. The reference of a text is the forward over it
alone. Its logits must have the same bits in batches of other texts, at any place, padded on the
left, in chunks with a cache, and in captured decode steps. For all but the largest model, the
log-probabilities of a forward with gradients, as a trainer computes them, are compared with those
of the decode steps. Then greedy generation is timed with and without invariance, in turn.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from decode import _on_gpu, step_milliseconds
from kernel_worth import shapes
from ropewalk.caches import clear_caches
from ropewalk.models import Decoder, DecoderConfig
from ropewalk.models.decode_step import captured_step
from ropewalk_lab.bench.rows import run_script

NAMES = ("Qwen3-0.6B shape", "Llama-3.2-1B shape", "Llama-3-8B shape")
TEXTS, LONGEST, BATCHES = 72, 90, 180
ROUNDS = 4


def chunks(pick: random.Random, tokens: int) -> list[int]:
    """Return sizes of chunks that sum to `tokens`."""
    sizes = []
    while sum(sizes) < tokens:
        sizes.append(min(pick.choice((1, 2, 7, 16, 33, 64)), tokens - sum(sizes)))
    return sizes


def batch_logits(model: Decoder, rows: list[Tensor], pick: random.Random) -> list[Tensor]:
    """Return the logits of each row, computed together: padded on the left, in random chunks."""
    longest = max(map(len, rows))
    tokens = torch.zeros(len(rows), longest, dtype=torch.int64, device=rows[0].device)
    padding = torch.zeros_like(tokens, dtype=torch.bool)
    for index, row in enumerate(rows):
        tokens[index, longest - len(row) :], padding[index, longest - len(row) :] = row, True
    shortest = min(map(len, rows))
    # the first chunk holds all padding
    first = longest - shortest + pick.randrange(1, shortest + 1)
    caches, parts, start = model.caches(), [], 0
    for size in [first, *chunks(pick, longest - first)]:
        part = slice(start, start + size)
        parts.append(
            model(tokens[:, part], padding=padding[:, part] if not start else None, caches=caches)
        )
        start += size
    logits = torch.cat(parts, dim=1)
    return [logits[index, longest - len(row) :] for index, row in enumerate(rows)]


def stepped_logits(model: Decoder, tokens: Tensor, prompt: int) -> Tensor:
    """Return the logits after each token from the last of the prompt on, by captured decode
    steps.
    """
    caches = model.caches()
    found = [model(tokens[:, :prompt], caches=caches)[:, -1]]
    with captured_step(model, *tokens.shape) as step:
        step.start(caches)
        found += [step(token).clone() for token in tokens[:, prompt:].unbind(1)]
    return torch.stack(found, dim=1)


@torch.no_grad()
def differences(model: Decoder) -> dict[str, Any]:
    """Return how many sequences were compared in batches (`rows`) and in captured decode steps
    (`stepped_rows`), and how many of both had other bits than alone.
    """
    pick = random.Random(7)
    vocabulary = model.config.vocab_size
    texts = [
        torch.randint(0, vocabulary, (pick.randrange(2, LONGEST),), device="cuda")
        for _ in range(TEXTS)
    ]
    alone = [model(text[None])[0] for text in texts]
    rows = different = 0
    for _ in range(BATCHES):
        chosen = pick.sample(range(TEXTS), pick.choice((2, 3, 16, 17, 33, 64)))
        for index, found in zip(
            chosen, batch_logits(model, [texts[i] for i in chosen], pick), strict=True
        ):
            rows += 1
            different += not torch.equal(found, alone[index])
    stepped = 0
    for size in (1, 2, 16, 33, 64):
        tokens = torch.randint(0, vocabulary, (size, 560), device="cuda")
        found = stepped_logits(model, tokens, 530)
        for index in range(size):
            stepped += 1
            different += not torch.equal(found[index], model(tokens[index : index + 1])[0, 529:])
    return {"rows": rows, "stepped_rows": stepped, "different_rows": different}


def trainer_and_sampler(model: Decoder) -> float:
    """Return the largest difference of a token's log-probability: a forward with gradients minus
    decode steps.
    """
    tokens = torch.randint(0, model.config.vocab_size, (8, 48), device="cuda")
    trained = model(tokens)
    assert trained.requires_grad
    with torch.no_grad():
        sampled = stepped_logits(model, tokens, 5)
        a, b = (t.float().log_softmax(-1) for t in (trained[:, 4:], sampled))
        return float((a - b).abs().max())


def measure() -> Iterator[dict[str, Any]]:
    """Yield the rows of all models."""
    torch.manual_seed(0)
    for name in NAMES:
        clear_caches()
        config = DecoderConfig(**shapes()[name])
        model = _on_gpu(partial(Decoder, config, invariant=True))
        row = {"model": name, "dtype": "bfloat16"}
        yield row | {"what": "invariance", **differences(model)}
        if name != "Llama-3-8B shape":
            yield row | {
                "what": "log-probabilities of trainer and sampler",
                "largest_difference": trainer_and_sampler(model),
            }
        for rows, prompt in ((1, 128), (1, 4096), (1, 32768), (16, 128), (64, 128), (16, 4096)):
            tokens = torch.randint(0, config.vocab_size, (rows, prompt), device="cuda")
            times: dict[bool, list[float]] = {True: [], False: []}
            for turn in range(ROUNDS + 1):
                for model.invariant in (True, False):
                    taken = step_milliseconds(model, tokens, 48)
                    if turn:  # the first compiles and captures
                        times[model.invariant].append(taken)
            model.invariant = True
            plain, invariant = (statistics.median(times[way]) for way in (False, True))
            yield row | {
                "what": "step of greedy generation",
                "rows": rows,
                "prompt": prompt,
                "plain_ms": round(plain, 4),
                "invariant_ms": round(invariant, 4),
                "cost_percent": round(100 * (invariant / plain - 1), 1),
            }
        del model
        torch.cuda.empty_cache()


if __name__ == "__main__":
    run_script(__doc__, {"cuda": measure})
