"""How the decode kernels divide their work; the numbers come from sweeps on an H200. Importing this
does not import Triton.

Words of this module:
  tile       what a program of a product computes: rows x columns results, `depth` terms at a time
  depth      of a product: the number of terms of each sum; of a tile: how many at a time
  stages     how many tiles of the operands are in shared memory at once, so that loads overlap
             with the arithmetic
  heads      those of q, k and v together, in the QKV product
  gate       the product has two columns for each result: silu(first) * second
  norm       the RMS norm of the product's input; head_norm: that of the heads of q and k after it
  bytes      element_size: of one number; shared_bytes: of shared memory, as argument what a program
             can use
  available  the number of multiprocessors of the GPU
  splits     among how many programs a long sum or search is divided; each computes a part
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ropewalk.kernels.support import (
    interpreting,
    multiprocessors,
    power_of_two,
    shared_memory,
)

#: the most rows of a tile
MOST_TILE_ROWS = 64
#: the pairs of most tiles of `qkv_product` with several rows; others have half or twice as many
QKV_PAIRS = 32
#: fewer tiles than this in shared memory at once would make the products wait for their loads
FEWEST_STAGES = 3
#: the tiles of `qkv_product` for many rows of a small model: (pairs, depth, stages). The first
#: whose programs all run at the same time is taken, if a program sums at most MOST_TERMS terms and
#: reads at most MOST_WEIGHTS weights for the first members of its pairs
SMALL_QKV_TILES = ((16, 128, 6), (32, 128, 4), (64, 64, 5))
MOST_TERMS, MOST_WEIGHTS = 2048, 64 * 1024
#: a product with more columns than this is taken to compute the logits
MOST_HIDDEN = 32768
#: above MOST_TILE_ROWS rows, the most results of a product that is faster than torch's
MOST_RESULTS = 128 * 1024
#: the keys of one row and head are divided into at most MOST_PARTS parts, and into more than
#: FEW_PARTS only if each has at least LARGE_PART keys
FEW_PARTS, MOST_PARTS, LARGE_PART = 16, 64, 256
#: the bytes of the keys in a large tile of `attend`, and the most keys of any tile
LARGE_KEY_TILE, MOST_KEYS = 32 << 10, 256


@dataclass(frozen=True)
class ProductTile:
    """How a product is divided: a program computes `rows` x `columns` results, `depth` terms of
    their sums at a time.

    Rows of the last tile that x does not have are masked if `masked`; otherwise they read rows of x
    again, which is faster unless many of them read the same row.
    """

    rows: int
    columns: int
    depth: int = 128
    stages: int = 5
    warps: int = 4
    masked: bool = False

    def options(self) -> dict[str, int]:
        """Return the stages and warps as options of a Triton launch."""
        return {"num_stages": self.stages, "num_warps": self.warps}

    def masks(self, rows: int) -> bool:
        """Return whether a product of `rows` rows needs the mask."""
        return self.masked and rows % self.rows != 0

    def shared_bytes(self, element_size: int) -> int:
        """Return the most bytes of shared memory that a program takes: a stage has a block of x and
        up to two blocks of weights. A single row needs none: it is computed in registers.
        """
        stage = (self.rows + 2 * self.columns) * self.depth * element_size
        return 0 if self.rows == 1 else self.stages * stage

    def fitted(self, element_size: int, shared_bytes: int) -> ProductTile:
        """Return this tile if it fits into `shared_bytes` of a GPU's shared memory, otherwise one
        with less depth, fewer stages or both: less depth where fewer than FEWEST_STAGES fit.
        """
        if self.shared_bytes(element_size) <= shared_bytes:
            return self
        stage = self.shared_bytes(element_size) // self.stages
        # a matrix instruction adds up 16 terms of 16 bits, so a tile has at least this depth
        if shared_bytes // stage < FEWEST_STAGES and self.depth > 16:
            return replace(self, depth=self.depth // 2).fitted(element_size, shared_bytes)
        return replace(self, stages=max(1, shared_bytes // stage))


def library_is_faster(rows: int, columns: int, depth: int, element_size: int, gate: bool) -> bool:
    """Return whether torch's matrix product (cuBLAS) is faster than our kernel for a product
    without a norm, of rows x columns results that are sums of `depth` terms; from sweeps on an
    H200.

    cuBLAS divides long sums among programs, which helps where there are few columns. It is also
    faster in float32.
    """
    if gate:
        return rows > MOST_TILE_ROWS
    if rows == 1:
        return columns > MOST_HIDDEN
    many = rows > MOST_TILE_ROWS and rows * columns > MOST_RESULTS
    return many or columns > MOST_HIDDEN or depth > 4 * columns or element_size > 2


def pick_tile(rows: int, columns: int, depth: int, gate: bool, available: int) -> ProductTile:
    """Return the tile of a product with `columns` results for each row, sums of `depth` terms, on
    `available` multiprocessors.

    The numbers come from sweeps on an H200. A single row is fastest with many programs of few
    warps, each with enough loads under way. Several rows need small tiles where there are few
    columns, so that there are enough programs for the multiprocessors.
    """
    if gate and rows > 1:
        height = 16 if rows <= 16 else 32 if rows <= 32 else MOST_TILE_ROWS
        # the width with which the multiprocessor that has the most tiles computes the fewest
        # columns
        width = min((64, 32), key=lambda width: -(-columns // (width * available)) * width)
        return ProductTile(height, width, stages=4 if width == 64 else 6, masked=rows <= 16)
    if rows > 16:
        if columns <= 4096:
            return ProductTile(MOST_TILE_ROWS, 16 if columns <= 2048 else 32, stages=8)
        return ProductTile(MOST_TILE_ROWS, 64, 64, stages=8)
    if rows > 1:
        return ProductTile(16, 16 if columns <= 1024 else 32, 256, warps=2)
    if gate:
        if depth < 1024:
            return ProductTile(1, 2, 1024)
        return (
            ProductTile(1, 1, 1024)
            if depth in (2048, 3072)
            else ProductTile(1, 1, 512, warps=2 if depth < 2048 else 1)
        )
    if depth <= 2048:
        return ProductTile(1, 2, 2048)
    return ProductTile(1, 1, 1024, warps=2) if columns >= 4096 else ProductTile(1, 1, 2048)


def pick_qkv_tile(
    rows: int, depth: int, heads: int, head_dim: int, *, norm: bool, head_norm: bool, available: int
) -> ProductTile | None:
    """Return the tile of `qkv_product`, or None where torch's product and a second launch are
    faster; from sweeps on an H200 over more than twenty models. The columns of the tile are pairs.

    norm       the product also norms its input, which must be a single row
    head_norm  the programs of a head exchange sums, which is faster among few of them
    available  the multiprocessors of the GPU
    """
    if norm:
        if depth == 1024:
            return ProductTile(1, 2, 1024, warps=1)
        return (
            ProductTile(1, 1, 1024)
            if depth < 1024 or depth in (2048, 3072)
            else ProductTile(1, 1, 512, warps=4 if depth <= 4096 else 1)
        )
    if rows == 1:
        if depth <= 1024:
            return ProductTile(1, 2, 1024)
        return ProductTile(1, 1, 512 if depth % 1024 else 1024)
    programs = _programs(heads, head_dim, QKV_PAIRS)
    # with more programs than multiprocessors, two share one multiprocessor and its memory
    crowded = programs > available
    if rows <= 32:
        height, stages = 16 if rows <= 16 else 32, 4 if crowded else 6
        return ProductTile(height, QKV_PAIRS, stages=stages, masked=rows <= 16)
    # large tiles are slow if heads do not fill them, or if the last programs leave multiprocessors
    # without work
    fills = head_dim % (2 * QKV_PAIRS) == 0
    # the share of the multiprocessors' time in which they have a program, if each runs two at once
    busy = programs / (-(-programs // (2 * available)) * 2 * available)
    if rows > MOST_TILE_ROWS or not fills or (crowded and busy <= 0.8):
        return _small_qkv_tile(rows, depth, heads, head_dim, head_norm, available)
    if not head_norm and _programs(heads, head_dim, QKV_PAIRS // 2) <= available:
        return ProductTile(MOST_TILE_ROWS, QKV_PAIRS // 2, stages=6)
    return ProductTile(MOST_TILE_ROWS, QKV_PAIRS, stages=3 if crowded else 6)


def _small_qkv_tile(
    rows: int, depth: int, heads: int, head_dim: int, head_norm: bool, available: int
) -> ProductTile | None:
    """Return the tile of `qkv_product` for more than 32 rows of a small model, or None: every tile
    of rows reads the weights again, which takes large models longer than a second launch.
    """
    for pairs, tile_depth, stages in SMALL_QKV_TILES:
        # more programs of a head would exchange more sums, and a DecodeWorkspace has no room for
        # them
        if head_norm and pairs < QKV_PAIRS:
            continue
        programs = _programs(heads, head_dim, pairs) * -(-rows // MOST_TILE_ROWS)
        small = depth <= MOST_TERMS and depth * pairs <= MOST_WEIGHTS
        if programs <= available and small:
            return ProductTile(MOST_TILE_ROWS, pairs, tile_depth, stages)
    return None


def _programs(heads: int, head_dim: int, pairs: int) -> int:
    """Return how many programs compute a tile of rows if each takes `pairs` pairs of one head."""
    return heads * -(-head_dim // (2 * pairs))


def can_run_concurrently(programs: int, tile: ProductTile, x: Tensor) -> bool:
    """Return whether the GPU can run all programs of a product of x at the same time: it has room
    for one on each multiprocessor, or for two if their tiles are small and they have few warps. The
    interpreter runs one at a time.
    """
    small = 2 * tile.shared_bytes(x.element_size()) <= shared_memory(x.device) and tile.warps <= 4
    return programs <= (2 if small else 1) * multiprocessors(x.device) and not interpreting()


def few_programs(rows: int, k_heads: int, device: torch.device) -> bool:
    """Return whether `attend` has a multiprocessor for each key head of each row."""
    return rows * k_heads <= multiprocessors(device)


def pick_keys(
    few: bool, dim_block: int, element_size: int, shared_bytes: int, part: int
) -> tuple[int, int, int]:
    """Return how many keys `attend` reads at a time, how many such tiles of k and v are in shared
    memory at once, and its warps. dim_block is head_dim, rounded up to the width of a tile.

    With `few` programs each may use all shared memory of a multiprocessor, and has large tiles if
    the `part` of the cache that it may have to read, in keys, is several of them. Otherwise three
    share a multiprocessor, so that one computes while another waits for its keys.
    """
    # `stages` tiles of k and as many of v must fit into `bytes_left`
    keys, stages, warps, bytes_left = (
        (64, 3, 8, shared_bytes) if few else (64, 2, 4, shared_bytes // 3)
    )
    large = min(MOST_KEYS, LARGE_KEY_TILE // (dim_block * element_size))
    if few and large > keys and part >= 4 * large:
        keys, warps = large, 4
    # fewer than 16 keys would not fill a matrix instruction
    while keys > 16 and stages * 2 * keys * dim_block * element_size > bytes_left:
        keys //= 2
    return keys, stages, warps


def pick_splits(rows: int, k_heads: int, capacity: int, device: torch.device) -> int:
    """Return the most programs among which the keys of one row and key head are divided, for a
    cache of `capacity` keys.

    With `few_programs` there is at most one program for each multiprocessor of the GPU, of at least
    64 keys; otherwise there are at least two for each, unless they would have fewer than 256 keys.
    More than FEW_PARTS have at least LARGE_PART keys, because adding up parts takes time.
    """
    # `pairs` are those of a row and a key head
    pairs, available = rows * k_heads, multiprocessors(device)
    if few_programs(rows, k_heads, device):
        # the largest power of two up to available / pairs
        wanted, fewest_keys = 1 << (available // pairs).bit_length() - 1, 64
    else:
        wanted, fewest_keys = power_of_two(-(-2 * available // pairs)), 256
    most = max(min(capacity // fewest_keys, FEW_PARTS), min(capacity // LARGE_PART, MOST_PARTS))
    return max(1, min(wanted, most))


def pick_vocabulary_splits(rows: int, device: torch.device) -> int:
    """Return among how many programs the logits of a row are divided: enough for every
    multiprocessor, at most 64.
    """
    return min(64, power_of_two(-(-multiprocessors(device) // rows)))
