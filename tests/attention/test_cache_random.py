"""Random sequences of operations on a cache, compared with the same operations on a list of tokens
for each row.
"""

import random

import torch

from door import as_users_call
from ropewalk.attention import Attention, KVCache
from whole_sequence import random_padding, rotated, softmax

HEADS, KV_HEADS, HEAD_DIM, MODEL_DIM = 2, 1, 4, 6


class Token:
    """The key and value of one token, unrotated, [Hk, D]; its position, and whether it is real."""

    def __init__(self, k, v, position, real):
        self.k, self.v, self.position, self.real = k, v, position, real

    def moved(self, by):
        return Token(self.k, self.v, self.position + by, self.real)


class Rows:
    """What a cache must hold: a list of tokens for each row."""

    def __init__(self, batch, kind, capacity, sinks):
        self.rows, self.kind, self.capacity, self.sinks = (
            [[] for _ in range(batch)],
            kind,
            capacity,
            sinks,
        )

    def next_position(self, row):
        return max((token.position for token in row if token.real), default=-1) + 1

    def attend(self, layer, x, padding):
        """Return the layer's output for new tokens x and add them to the rows; for a sliding cache,
        drop the oldest tokens afterwards.
        """
        heads = lambda proj: (x @ proj.weight.T).view(*x.shape[:2], -1, HEAD_DIM)  # [B, S, H, D]
        q, k, v = (heads(proj) for proj in (layer.q_proj, layer.k_proj, layer.v_proj))
        outs = [
            self._attend_row(layer, b, q[b], k[b], v[b], padding[b].tolist())
            for b in range(len(self.rows))
        ]
        return torch.stack(outs).flatten(-2) @ layer.o_proj.weight.T

    def _attend_row(self, layer, b, q, k, v, real):
        row, position, new = self.rows[b], self.next_position(self.rows[b]), len(real)
        at = []
        for i in range(new):
            at.append(position)
            row.append(Token(k[i], v[i], position, real[i]))
            position += real[i]
        if not new:
            return q
        places = torch.arange(len(row))
        behind = places[-new:, None] - places[None, :]
        allowed = (
            (behind >= 0)
            & (behind < (layer.window or len(row) + 1))
            & torch.tensor([token.real for token in row])
        )
        keys = rotated(
            torch.stack([token.k for token in row], dim=1)[None],
            torch.tensor([[token.position for token in row]]),
        )
        values = torch.stack([token.v for token in row], dim=1)[None]
        out = softmax(
            rotated(q.transpose(0, 1)[None], torch.tensor([at])),
            keys,
            values,
            allowed,
            HEAD_DIM**-0.5,
        )[0]
        self._slide(b)
        return out.transpose(0, 1) * torch.tensor(real)[:, None, None]

    def _slide(self, b):
        """Drop all tokens of a row but its first real ones and the latest, which may be padding."""
        row = self.rows[b]
        if self.kind != "sliding" or len(row) <= self.capacity:
            return
        sinks = [i for i, token in enumerate(row) if token.real][: self.sinks]
        latest = [i for i in range(len(row)) if i not in sinks][len(row) - self.capacity :]
        self.rows[b] = [row[i] for i in sorted(sinks + latest)]

    def change(self, function):
        self.rows = [function(b, row) for b, row in enumerate(self.rows)]

    def compact(self):
        def count(b, row):
            seen, found = 0, []
            for token in row:
                found.append(Token(token.k, token.v, seen, token.real))
                seen += token.real
            return found

        self.change(count)


def assert_holds(cache, rows, rotates, message):
    """Check that the cache holds the tokens of `rows`; padding may have any key and position."""
    assert len(cache) == len(rows.rows[0]), message
    if not len(cache):
        return
    seen = cache.seen
    real = torch.tensor([[token.real for token in row] for row in rows.rows])
    assert torch.equal(seen.valid, real), message
    positions = torch.tensor([[token.position for token in row] for row in rows.rows])
    assert torch.equal(seen.positions[real], positions[real]), message
    k, v = (
        torch.stack(
            [torch.stack([getattr(token, name) for token in row], dim=1) for row in rows.rows]
        )
        for name in "kv"
    )
    k = rotated(k, positions) if rotates else k
    for got, expected in ((seen.k, k), (seen.v, v)):
        torch.testing.assert_close(
            got.transpose(1, 2)[real],
            expected.transpose(1, 2)[real],
            atol=1e-10,
            rtol=0,
            msg=message,
        )
    expected = [rows.next_position(row) for row in rows.rows]
    # the next position of a row that is only padding is 0
    assert cache.next_positions.tolist() == expected, message


def random_step(draw, cache, rows, layer):
    """Do one random thing to the cache and to the rows; return its name."""
    size, batch = len(cache), len(rows.rows)
    name = draw.choice(["evict", "rollback", "reorder", "shift", "shift rows", "compact", "extend"])
    if name == "evict":
        start, stop = sorted(draw.choices(range(size + 1), k=2))
        cache.evict(start, stop)
        rows.change(lambda b, row: row[:start] + row[stop:])
    elif name == "rollback":
        tokens = draw.randint(0, size // 2)
        cache.rollback(tokens)
        rows.change(lambda b, row: row[: len(row) - tokens])
    elif name == "reorder":
        chosen = [draw.randrange(batch) for _ in range(batch)]
        cache.reorder(torch.tensor(chosen))
        rows.rows = [list(rows.rows[b]) for b in chosen]
    elif name == "shift":
        by = draw.randint(-20, 5)
        cache.shift(by, layer.encoding)
        rows.change(lambda b, row: [token.moved(by) for token in row])
    elif name == "shift rows":
        by = [draw.randint(-20, 5) for _ in range(batch)]
        cache.shift(torch.tensor(by), layer.encoding)
        rows.change(lambda b, row: [token.moved(by[b]) for token in row])
    elif name == "compact":
        cache.compact(layer.encoding)
        rows.compact()
    elif cache.kind == "growing":  # append a copy of the cache's tokens at later positions
        by = draw.randint(0, 9)
        cache.extend(cache, cache.seen.positions + by, layer.encoding)
        rows.change(lambda b, row: row + [token.moved(by) for token in row])
    return name


def random_cache(draw):
    kind = draw.choice(["growing", "static", "sliding", "sliding"])
    capacity = {"growing": None, "static": 40, "sliding": draw.randint(1, 8)}[kind]
    sinks = draw.randint(0, capacity - 1) if kind == "sliding" else 0
    return kind, capacity, sinks, draw.choice([None, False])


def life(seed, layer):
    """Return (outputs, expected outputs, inputs) of the appended tokens in one random life of a
    cache.
    """
    torch.manual_seed(seed)
    draw = random.Random(seed)
    batch = draw.randint(1, 3)
    kind, capacity, sinks, rotates = random_cache(draw)
    cache, rows, done = (
        KVCache(kind, capacity, sinks, rotated=rotates),
        Rows(batch, kind, capacity, sinks),
        [],
    )
    outs, expected, inputs = [], [], []
    for _ in range(draw.randint(2, 6)):
        if len(cache) and draw.random() < 0.4:
            done.append(random_step(draw, cache, rows, layer))
        else:
            new = draw.randint(1, 5)
            padding = random_padding(draw, batch, new)
            x = torch.randn(batch, new, MODEL_DIM, dtype=torch.float64, requires_grad=True)
            outs.append(layer(x, padding=padding, cache=cache).out)
            real = torch.ones(batch, new, dtype=torch.bool) if padding is None else padding
            expected.append(rows.attend(layer, x, real))
            inputs.append(x)
            done.append(f"append {new}")
        assert_holds(
            cache, rows, rotates is not False, f"seed {seed}: {kind} {capacity} {sinks} {done}"
        )
    return outs, expected, inputs


def test_random_caches_equal_a_list_of_tokens(request):
    torch.manual_seed(0)
    layers = [
        Attention(MODEL_DIM, HEADS, KV_HEADS, HEAD_DIM, window=window).double()
        for window in (None, 3)
    ]
    with as_users_call():
        for seed in range(1000 if request.config.getoption("--full") else 60):
            outs, expected, inputs = life(seed, layers[seed % 2])
            both = (
                torch.cat([out.flatten() for out in outs]),
                torch.cat([out.flatten() for out in expected]),
            )
            torch.testing.assert_close(
                *both, atol=1e-10, rtol=0, msg=lambda text, seed=seed: f"seed {seed}: {text}"
            )
            weights = torch.arange(1.0, len(both[0]) + 1, dtype=torch.float64).cos()
            grads = [
                torch.autograd.grad((out * weights).sum(), inputs, retain_graph=True)
                for out in both
            ]
            for a, b in zip(*grads, strict=True):
                torch.testing.assert_close(
                    a, b, atol=1e-8, rtol=0, msg=lambda text, seed=seed: f"seed {seed}: {text}"
                )
