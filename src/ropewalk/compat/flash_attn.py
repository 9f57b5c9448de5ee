"""Drop-in for flash-attn's rotary API: x [batch, tokens, heads, dim] or packed [tokens, heads,
dim], on any device.

`RotaryEmbedding` needs no table and rotates at positions of any size. The functions that take
tables raise an error for positions past the end of the table, where the original silently leaves
tokens unrotated.

Words of this module:
  interleaved  the pairs are neighbouring dimensions (2i, 2i + 1); otherwise pair i of P is (i, i + P)
  P            how many pairs rotate; tables have one entry for each pair
  B, S, H, D   the sizes of x: batch, tokens of a row, heads, dimensions of a head; T packed tokens
  xPos         queries are multiplied by a factor of their position, keys by the inverse of theirs;
               the center is the position where both are 1
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ropewalk import positions, rotation
from ropewalk.caches import cached
from ropewalk.checks import check_no_overlap, check_tables, check_tensor
from ropewalk.errors import RopeError, integer, number
from ropewalk.frequencies import Default, XPos
from ropewalk.kernels.rotation.definition import join_pairs, split_pairs
from ropewalk.positions.text import check_integers
from ropewalk.rope import Rope
from ropewalk.rotation import table_rows
from ropewalk.spec import RopeSpec
from ropewalk.tensor_frequencies import ladder

__all__ = [
    "RotaryEmbedding",
    "apply_rotary_emb",
    "apply_rotary_emb_func",
    "apply_rotary_emb_kv_",
    "apply_rotary_emb_qkv_",
    "apply_rotary_emb_torch",
    "rotate_half",
]


def rotate_half(x: Tensor, interleaved: bool = False) -> Tensor:
    """Return x rotated by a quarter turn: (-x2, x1) of its two halves, or with `interleaved` of
    every two neighbouring dimensions.
    """
    first, second = split_pairs(x, _layout(interleaved))
    return join_pairs(-second, first, _layout(interleaved))


def apply_rotary_emb_torch(
    x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False
) -> Tensor:
    """Rotate x [B, S, H, D] by tables [S, P] or [B, S, P], which hold one row per token."""
    return rotation.rotate_by(x, cos, sin, layout=_layout(interleaved), seq_dim=-3)


def apply_rotary_emb(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool = False,
    inplace: bool = False,
    seqlen_offsets: int | Tensor = 0,
    cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None,
) -> Tensor:
    """Rotate the first 2P dimensions of x by tables [positions, P]: each token uses the row of its
    position.

    x               [B, S, H, D], or packed [T, H, D] where `cu_seqlens` [B + 1] gives the
                    boundaries
    seqlen_offsets  the position of the first token of each sequence: an int, or [B]
    max_seqlen      accepted and ignored, since positions follow from the boundaries
    """
    rows = _rows(x, seqlen_offsets, cu_seqlens)
    cos, sin = (
        table_rows(name, table, "seqlen_offsets", rows)
        for name, table in (("cos", cos), ("sin", sin))
    )
    return rotation.rotate_by(x, cos, sin, layout=_layout(interleaved), seq_dim=-3, inplace=inplace)


#: the original's older name
apply_rotary_emb_func = apply_rotary_emb


def apply_rotary_emb_qkv_(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    cos_k: Tensor | None = None,
    sin_k: Tensor | None = None,
    interleaved: bool = False,
    seqlen_offsets: int | Tensor = 0,
    num_heads_q: int | None = None,
) -> Tensor:
    """Rotate the queries and keys of a fused projection in place and return it; keys by `cos_k`,
    `sin_k` if given.

    qkv             [B, S, 3, H, D], or [B, S, q heads + 2 * k heads, D] with `num_heads_q`
    seqlen_offsets  the position of the first token of each row: an int, or [B]
    """
    q, k = _queries_and_keys(qkv, num_heads_q)
    rows = _rows(q, seqlen_offsets, cu_seqlens=None)
    given = {
        "cos": cos,
        "sin": sin,
        "cos_k": cos if cos_k is None else cos_k,
        "sin_k": sin if sin_k is None else sin_k,
    }
    cos, sin, cos_k, sin_k = (
        table_rows(name, table, "seqlen_offsets", rows) for name, table in given.items()
    )
    # all tables are checked before the queries are overwritten
    with _errors_about("qkv"):
        check_tables(q, cos, sin, 0, -3)  # the first dimension that rotates, the axis of tokens
    with _errors_about("qkv", "_k"):
        check_tables(k, cos_k, sin_k, 0, -3)
    rotation.rotate_by(q, cos, sin, layout=_layout(interleaved), seq_dim=-3, inplace=True)
    rotation.rotate_by(k, cos_k, sin_k, layout=_layout(interleaved), seq_dim=-3, inplace=True)
    return qkv


def apply_rotary_emb_kv_(
    kv: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool = False,
    seqlen_offsets: int | Tensor = 0,
) -> Tensor:
    """Rotate the keys of kv [B, S, 2, H, D] in place and return it; `seqlen_offsets` is the position
    of the first token of each row, an int or [B].
    """
    keys = _keys(kv)
    with _errors_about("kv"):
        apply_rotary_emb(keys, cos, sin, interleaved, inplace=True, seqlen_offsets=seqlen_offsets)
    return kv


@contextmanager
def _errors_about(packed: str, suffix: str = "") -> Iterator[None]:
    """Context manager: an error about `x`, a part of the argument `packed`, is raised as one about
    that; the names of other arguments get the suffix.
    """
    try:
        yield
    except RopeError as error:
        field = packed if error.field == "x" else error.field + suffix
        raise RopeError(field, error.rule, error.value) from None


@cached("flash_attn ropes", entries=256)
def _rope(
    head_dim: int, dim: int, base: float, interleaved: bool, scale_base: float | None, center: int
) -> Rope:
    """Return the Rope of a head whose first `dim` dimensions rotate; `scale_base` and `center` are
    those of xPos, and a `scale_base` of None means no xPos.
    """
    scaling = Default() if scale_base is None else XPos(scale_base, center)
    layout = _layout(interleaved)
    return Rope(
        RopeSpec(head_dim, base, scaling, layout, rotary_dim=dim, precision="hf_frequencies")
    )


class RotaryEmbedding(nn.Module):
    """Rotate queries and keys in place, at any position; with `scale_base` it is xPos.

    If `xpos_center` is None, the center of xPos is the middle of each call's own sequence (or of
    `max_seqlen` tokens), as in a new module of the original. Cached keys would then not match, so a
    call with an offset requires `xpos_center` or `max_seqlen`.
    """

    def __init__(
        self,
        dim: int,
        base: float = 10000.0,
        interleaved: bool = False,
        scale_base: float | None = None,
        pos_idx_in_fp32: bool = True,
        device: torch.device | str | None = None,
        *,
        xpos_center: int | None = None,
    ) -> None:
        """Keep and check the settings. `device` is ignored, because no tensor is made, and
        `pos_idx_in_fp32` must be True.

        dim          how many leading dimensions of a head are rotated
        base         theta: pair i turns by base^(-2i / dim) radians per position
        scale_base   the number of positions over which xPos multiplies the factor of a query's
                     pair i by (2i + 0.4 dim) / (1.4 dim); None: no xPos
        xpos_center  the center of xPos; None: the middle of each call's sequence
        """
        super().__init__()
        if not pos_idx_in_fp32:
            raise RopeError(
                "pos_idx_in_fp32",
                "must be true: bfloat16 cannot represent all integers above 256",
                pos_idx_in_fp32,
            )
        self.dim, self.base, self.interleaved = (
            integer("dim", dim, low=2),
            number("base", base, above=0),
            interleaved,
        )
        self.scale_base = None if scale_base is None else number("scale_base", scale_base, above=0)
        self.xpos_center = (
            None if xpos_center is None else integer("xpos_center", xpos_center, low=-(2**62))
        )
        # raises an error for a bad combination now, not at the first call; any center will do
        self._rope_for(dim, 0)

    def _rope_for(self, head_dim: int, center: int) -> Rope:
        """Return the Rope for heads of `head_dim` dimensions; `center` is the position at which
        xPos's multiplier is 1.
        """
        return _rope(head_dim, self.dim, self.base, self.interleaved, self.scale_base, center)

    @property
    def inv_freq(self) -> Tensor:
        """Radians per position of each pair, float32; computed on access, so that no cast of the
        module can round them.
        """
        # any center will do: the frequencies do not depend on it
        return ladder(self._rope_for(self.dim, 0).spec).radians.to(torch.float32)

    def cos_sin(
        self,
        seqlen: int,
        device: torch.device | None = None,
        dtype: torch.dtype = torch.float32,
        *,
        key: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Return cos and sin [seqlen, P] for the functions of this module or of flash-attn.

        key  True: the tables for keys, which with xPos differ from those for queries
        """
        return self._rope_for(self.dim, self._center(seqlen)).cos_sin(
            torch.arange(seqlen, device=device), dtype, key=key
        )

    def forward(
        self,
        qkv: Tensor,
        kv: Tensor | None = None,
        seqlen_offset: int | Tensor = 0,
        max_seqlen: int | None = None,
        num_heads_q: int | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Rotate in place and return the arguments: qkv, or q [B, S, H, D] and kv [B, S, 2, H, D].

        qkv            [B, S, 3, H, D], or [B, S, q heads + 2 * k heads, D] with `num_heads_q`
        seqlen_offset  the position of the first token of each row: an int, or [B]
        max_seqlen     gives the center of xPos, if the module has none: half of it
        """
        q, k = _queries_and_keys(qkv, num_heads_q) if kv is None else (qkv, _keys(kv))
        rope = self._rope_for(q.shape[-1], self._center(qkv.shape[1], seqlen_offset, max_seqlen))
        if q.shape[1] == k.shape[1]:
            rope(q, k, offset=seqlen_offset, seq_dim=-3, inplace=True)
        else:
            # cross attention: q and k have different numbers of tokens, both from the offset on. The
            # keys are checked before the queries are overwritten
            check_tensor("kv", k, -3, q.shape[-1])
            # whether k alone overlaps itself is seen in its strides, without addresses
            check_no_overlap((k,), addresses=False)
            if k.shape[0] != q.shape[0] or k.device != q.device:
                rule = f"must have the {q.shape[0]} rows of q, on its device {q.device}"
                raise RopeError("kv", rule, [list(k.shape), str(k.device)])
            rope.rotate(q, offset=seqlen_offset, seq_dim=-3, inplace=True)
            rope.rotate(k, offset=seqlen_offset, seq_dim=-3, inplace=True, key=True)
        return qkv if kv is None else (qkv, kv)

    def _center(self, seq: int, offset: int | Tensor = 0, max_seqlen: int | None = None) -> int:
        """Return the position at which xPos's multiplier is 1 in a call with `seq` tokens; raise an
        error if an offset is given and neither a center nor `max_seqlen`.
        """
        if self.scale_base is None or self.xpos_center is not None:
            return self.xpos_center or 0  # without xPos the center has no effect
        if max_seqlen is None and (isinstance(offset, Tensor) or offset):
            rule = (
                "must be given (or max_seqlen) for xPos with an offset, because cached keys need a "
                "fixed center"
            )
            raise RopeError("xpos_center", rule, None)
        return (seq if max_seqlen is None else max_seqlen) // 2

    def extra_repr(self) -> str:
        return (
            f"dim={self.dim}, base={self.base:g}, interleaved={self.interleaved}, "
            f"scale_base={self.scale_base}"
        )


def _layout(interleaved: bool) -> str:
    return "interleaved" if interleaved else "half"


def _queries_and_keys(qkv: Tensor, num_heads_q: int | None) -> tuple[Tensor, Tensor]:
    """Return views of q and k of packed qkv, either [B, S, 3, H, D] or [B, S, all heads, D]; raise
    an error for another shape.
    """
    if qkv.ndim == 5 and qkv.shape[2] == 3:
        return qkv[:, :, 0], qkv[:, :, 1]
    # heads of k and of v together
    kv_heads = 0 if qkv.ndim != 4 or num_heads_q is None else qkv.shape[2] - num_heads_q
    if num_heads_q is None or kv_heads < 2 or kv_heads % 2:
        rule = "must be [B, S, 3, H, D], or [B, S, q heads + 2 * k heads, D] with num_heads_q"
        raise RopeError("qkv", rule, [list(qkv.shape), num_heads_q])
    return qkv[:, :, :num_heads_q], qkv[:, :, num_heads_q : num_heads_q + kv_heads // 2]


def _keys(kv: Tensor) -> Tensor:
    if kv.ndim != 5 or kv.shape[2] != 2:
        raise RopeError("kv", "must be [B, S, 2, H, D]", list(kv.shape))
    return kv[:, :, 0]


def _rows(x: Tensor, offset: int | Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """Return the table row of every token, which is its position: [S], or [B, S] for an offset per
    row; packed [T] if `cu_seqlens`, the boundaries of the sequences, are given.
    """
    if isinstance(offset, Tensor):
        check_integers("seqlen_offsets", offset, "B")
    else:
        integer("seqlen_offsets", offset, low=-(2**62))
    if cu_seqlens is None:
        if x.ndim != 4:
            raise RopeError("x", "must be [B, S, H, D] without cu_seqlens", list(x.shape))
        # a tensor of offsets has a device itself
        return positions.consecutive(
            x.shape[1], offset, None if isinstance(offset, Tensor) else x.device
        )
    if x.ndim != 3:
        raise RopeError("x", "must be packed [T, H, D] with cu_seqlens", list(x.shape))
    rows = positions.packed(cu_seqlens, x.shape[0])
    if not isinstance(offset, Tensor):
        return rows + offset
    if offset.shape != (len(cu_seqlens) - 1,):
        raise RopeError(
            "seqlen_offsets",
            f"must have one offset for each of the {len(cu_seqlens) - 1} sequences",
            list(offset.shape),
        )
    token = torch.arange(x.shape[0], device=x.device)
    # the sequence of each token
    sequence = torch.searchsorted(cu_seqlens.to(torch.int64), token, right=True) - 1
    # tokens past the last boundary are one more sequence, which has no offset
    return rows + torch.nn.functional.pad(offset.to(torch.int64), (0, 1))[sequence]
