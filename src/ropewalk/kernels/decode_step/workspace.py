"""DecodeWorkspace: memory in which the programs of one kernel launch exchange partial results."""

from __future__ import annotations

import torch

from ropewalk.caches import Cache
from ropewalk.kernels.decode_step.config import MOST_TILE_ROWS, QKV_PAIRS
from ropewalk.kernels.support import captured_graph

#: the workspaces of `kept_workspace`: one for each stream and each captured graph
_KEPT = Cache("workspaces of QKV products", entries=16)


class DecodeWorkspace:
    """Memory for the partial results of one launch; launches on one stream may share it, and each
    leaves its counters at zero.

    It is large enough for `attend` that reads the cache in `splits` parts, for the head norm of
    `qkv_product` with the same rows and heads, and for `next_token` that reads the vocabulary in
    `vocabulary_splits` parts.
    """

    def __init__(
        self, rows: int, q_heads: int, k_heads: int, head_dim: int, *, splits: int = 1, vocabulary_splits: int = 1,
        device: torch.device | str,
    ) -> None:  # fmt: skip
        """Allocate the memory on `device`, for `rows` rows and heads of `head_dim` dims.

        splits             in how many parts `attend` reads the cache
        vocabulary_splits  in how many parts `next_token` reads the vocabulary
        """
        # `partial` and `statistics` hold the parts of each program of `attend`, `highest` and
        # `places` those of `next_token`; `arrived` counts the programs that have stored their
        # parts. `sums` has the sums of squares for which the programs of a head wait: each is the
        # bits of a float32 plus 1, as an integer, and 0 says that it is not there yet
        self.splits, self.vocabulary_splits = splits, vocabulary_splits
        heads = q_heads + k_heads
        # the parts of `attend`, or the heads of `qkv_product`
        size = max(rows * q_heads * splits, _padded(rows) * heads) * head_dim
        self.partial = torch.empty(size, dtype=torch.float32, device=device)
        self.statistics = torch.empty(
            rows * q_heads * splits * 2, dtype=torch.float32, device=device
        )
        self.highest = torch.empty(rows * vocabulary_splits, dtype=torch.float32, device=device)
        self.places = torch.empty(rows * vocabulary_splits, dtype=torch.int32, device=device)
        # both must be 0 before a launch, so one tensor of zeros is divided between them
        sizes = (rows * heads, _sums(rows, heads, head_dim))
        self.arrived, self.sums = torch.zeros(sum(sizes), dtype=torch.int32, device=device).split(
            sizes
        )

    def holds(self, rows: int, heads: int, head_dim: int, device: torch.device) -> bool:
        """Return whether this workspace is on the device and large enough for the norm of each
        head in `qkv_product`: `rows` rows, and `heads` heads of q and k together.
        """
        size = _padded(rows) * heads * head_dim
        return (
            self.partial.device == device
            and self.partial.numel() >= size
            and self.arrived.numel() >= rows * heads
            and self.sums.numel() >= _sums(rows, heads, head_dim)
        )


def kept_workspace(
    rows: int, q_heads: int, k_heads: int, head_dim: int, device: torch.device
) -> DecodeWorkspace:
    """Return the workspace of the current stream for a head norm; make one if there is none or it
    is too small.

    The launches of a stream run one after another, so they can share it. Graphs that were captured
    on one stream may later run side by side, so every captured graph has its own.
    """
    graph = captured_graph(device)
    # a graph is being captured, but the driver does not say which: use a new workspace that no
    # other call gets
    if graph is None:
        return DecodeWorkspace(rows, q_heads, k_heads, head_dim, device=device)
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    key = (device, stream, graph)
    kept = _KEPT.get(key)
    if kept is None or not kept.holds(rows, q_heads + k_heads, head_dim, device):
        kept = _KEPT.keep(key, DecodeWorkspace(rows, q_heads, k_heads, head_dim, device=device))
    return kept


def _sums(rows: int, heads: int, head_dim: int) -> int:
    """Return how many sums of squares the programs of `qkv_product` exchange: `parts` programs
    share a head, and each has a place for what every one of them gives it (its own is not used).
    """
    parts = -(-head_dim // (2 * QKV_PAIRS))
    return _padded(rows) * heads * parts * parts


def _padded(rows: int) -> int:
    """Return the most rows that `qkv_product` stores for `rows` rows: it stores whole tiles."""
    return -(-rows // MOST_TILE_ROWS) * MOST_TILE_ROWS
