"""Rope: the module to put into a model. It holds a spec and, unless frequencies are learned, no
tensors, so casts, copies and sharding cannot change it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Inexact, Shaped
from torch import Tensor, nn

from ropewalk import fast_path, rotation
from ropewalk.axes import MixedAxes
from ropewalk.checks import (
    FLOATS,
    check_no_overlap,
    check_strategy,
    make_request,
    request_for_tokens,
)
from ropewalk.errors import RopeError, choice, integer
from ropewalk.kernels import BACKENDS
from ropewalk.kernels.request import Request, TableRequest
from ropewalk.kernels.rotation.definition import join_pairs
from ropewalk.ops import request_tables
from ropewalk.spec import RopeSpec
from ropewalk.strategies import memory
from ropewalk.table import with_magnitude
from ropewalk.tensor_frequencies import Length, ladder
from ropewalk.tracing import is_traced

#: names under which other implementations save frequencies or tables in checkpoints; here they
#: follow from the spec
LEGACY_STATE = (
    "inv_freq",
    "original_inv_freq",
    "long_inv_freq",
    "freqs",
    "freqs_cis",
    "freqs_cos",
    "freqs_sin",
    "cos_cached",
    "sin_cached",
    "embed_positions.weight",
    "rotary_emb.inv_freq",
    "weight",
)


class Rope(nn.Module):
    """Rotary position embedding as `spec` defines it.

    It has no parameters and no buffers, so half(), meta init, deepcopy, pickle and sharding cannot
    change a result. A spec with learned frequencies gives a `LearnedRope`, which has one parameter.

    backend  a name in BACKENDS; None = the fastest that supports the tensors
    tables   which cos and sin are kept between calls: "auto" a two-level table and the first rows,
             "two-level" that table alone, "full" a float32 row for every position up to the largest
             one used (below 2^20), "none" no table. `table_bytes` says how many bytes they take
    """

    def __new__(cls, spec: RopeSpec | None = None, *args: Any, **options: Any) -> Rope:
        # copy and pickle call this without a spec, and with the right class already
        if cls is Rope and isinstance(spec, RopeSpec) and spec.learned:
            cls = LearnedRope
        return super().__new__(cls)  # type: ignore

    def __init__(self, spec: RopeSpec, *, backend: str | None = None, tables: str = "auto") -> None:
        """Check and keep the arguments; `backend` names the kernels, `tables` which cos and sin are
        kept between calls.
        """
        super().__init__()
        if not isinstance(spec, RopeSpec):
            raise RopeError(
                "spec", "must be a RopeSpec; rw.from_hf(config) makes one from a config", spec
            )
        if backend is not None:
            choice("backend", backend, BACKENDS)
        self.spec, self.backend, self.tables = spec, backend, check_strategy(tables, spec)
        # the fast path has fixed frequencies, unlike LearnedRope, and reads the tables of "auto"
        self._has_fast_path = type(self) is Rope and tables == "auto"
        # `rerotate` makes an equal spec unless `match_magnitude` is given. Nothing reads this one; it
        # is kept alive because a compiled graph finds a spec by its fingerprint among those in use,
        # and cannot rebuild one whose scaling is a class of the user's own
        self._without_magnitude = spec.with_(magnitude_on="scale")

    def reset_parameters(self) -> None:
        """Do nothing: there is nothing to initialise. FSDP and similar wrappers call this after
        `to_empty`.
        """

    def __call__(
        self,
        q,
        k=None,
        positions=None,
        offset: int | Tensor = 0,
        seq_dim=-2,
        length=None,
        *,
        inplace=False,
    ) -> Any:
        """Call `forward`, or the prepared kernel of an earlier call with the same shapes, dtypes
        and options.
        """
        # only calls with q and k and without a length of their own are prepared
        if k is not None and length is None and self._has_fast_path:
            rotated = fast_path.rotate_prepared(
                self, self.spec, self.backend, q, k, positions, offset, seq_dim, inplace
            )
            if rotated is not None:
                return rotated
        return super().__call__(q, k, positions, offset, seq_dim, length, inplace=inplace)

    def forward(
        self,
        q: Inexact[Tensor, "... D"],
        k: Inexact[Tensor, "... D"] | None = None,
        positions: Shaped[Tensor, "..."] | None = None,
        offset: int | Tensor = 0,
        seq_dim: int = -2,
        length: Length = None,
        *,
        inplace: bool = False,
    ):
        """Return q, or the tuple (q, k), rotated by their tokens' angles.

        q, k       [B, H, S, D]; seq_dim=-3 for [B, S, H, D]; k may have fewer heads
        positions  integers [S] or [B, S], or [axes, B, S] if the spec has several axes; floats only
                   if its axes have real coordinates; None counts from `offset`, an int or [B]
        length     int or [B], read only by length-dependent scalings; None = each row's largest
                   position + 1
        inplace    write the result into q and k
        """
        xs = (q,) if k is None else (q, k)
        request = make_request(xs, self.spec, positions, offset, seq_dim, length, self.tables)
        rotated = self._run(xs, request, inplace)
        if length is None and self.tables == "auto":
            fast_path.prepare(request, self.backend, xs, rotated, positions, seq_dim)
        return rotated[0] if k is None else rotated

    def rotate(
        self, x: Inexact[Tensor, "... D"], positions: Shaped[Tensor, "..."] | None = None, **options
    ) -> Inexact[Tensor, "... D"]:
        """Rotate one tensor; the options are `offset`, `seq_dim`, `length`, `key` and `inplace`, as
        in `rotation.rotate`.
        """
        return rotation.rotate(
            x, self.spec, positions, backend=self.backend, tables=self.tables, **options
        )

    def unrotate(
        self, x: Inexact[Tensor, "... D"], positions: Shaped[Tensor, "..."] | None = None, **options
    ) -> Inexact[Tensor, "... D"]:
        """Invert `rotate`, whose options it takes."""
        return rotation.unrotate(
            x, self.spec, positions, backend=self.backend, tables=self.tables, **options
        )

    def rerotate(
        self,
        k: Inexact[Tensor, "... D"],
        from_positions: Shaped[Tensor, "..."],
        to_positions: Shaped[Tensor, "..."],
        to: Rope | None = None,
        **options,
    ) -> Inexact[Tensor, "... D"]:
        """Move keys rotated at `from_positions` to `to_positions` (under `to`, if given); see
        `rotation.rerotate`.
        """
        specs = [self.spec] if to is None else [self.spec, to.spec]
        for spec in specs:
            if spec.learned:
                rule = "needs fixed frequencies, but these are learned; compute the keys again"
                raise RopeError("rerotate", rule, spec.axes if spec.mixed else spec.scaling)
        chosen = {"to": specs[-1], "backend": self.backend, "tables": self.tables}
        return rotation.rerotate(k, self.spec, from_positions, to_positions, **chosen, **options)

    def cos_sin(
        self,
        positions: Shaped[Tensor, "..."],
        dtype: torch.dtype = torch.float32,
        length: Length = None,
        *,
        key: bool = False,
    ) -> tuple[Inexact[Tensor, "... P"], Inexact[Tensor, "... P"]]:
        """Return new tensors cos and sin [..., S, pairs] of positions, magnitude included; [B,
        heads, S, pairs] if the frequencies differ from head to head.

        positions  integers [S] or [B, S], or [axes, B, S] if the spec has several axes; floats only
                   if `spec.fractional`
        dtype      that of the result
        length     the length of the sequence, which only length-dependent scalings read
        key        return the tables of keys; they differ for xPos and if spec.magnitude_on is "q"
        """
        if not isinstance(positions, Tensor):
            raise RopeError("positions", "must be a tensor", type(positions))
        if not positions.ndim:
            raise RopeError(
                "positions", "must be [tokens], [batch, tokens] or [axes, batch, tokens]", []
            )
        if dtype not in FLOATS:
            raise RopeError("dtype", "must be torch.float16, bfloat16, float32 or float64", dtype)
        batch = 1 if positions.ndim < 2 else positions.shape[-2]
        seq, device = positions.shape[-1], positions.device
        # 0 is the offset and -2 the axis of the tokens, both without effect on tables
        request = request_for_tokens(
            self.spec, positions, 0, length, -2, seq, batch, device, self.tables
        )
        return self._tables(request, seq, device, dtype, key)

    def table_bytes(self, length: int) -> int:
        """Return how many bytes are kept at most on each device once queries at positions 0 ...
        length - 1 were rotated: tables, and the phase step of each pair, its angle at position 1 as
        an integer in units of 2^-64 turns.

        Ropes with equal specs share these tables. The rows that keys have of their own, where their
        magnitude differs from that of queries, come on top.
        """
        return memory(self.spec, integer("length", length, low=1))[self.tables]

    def cos_sin_hf(
        self,
        positions: Shaped[Tensor, "..."],
        dtype: torch.dtype = torch.float32,
        length: Length = None,
    ) -> tuple[Inexact[Tensor, "... R"], Inexact[Tensor, "... R"]]:
        """Return cos and sin as transformers has them, [..., S, rotary_dim]: each entry in both
        dimensions of its pair. The arguments are those of `cos_sin`.
        """
        cos, sin = self.cos_sin(positions, dtype, length)
        return join_pairs(cos, cos, self.spec.layout), join_pairs(sin, sin, self.spec.layout)

    def extra_repr(self) -> str:
        backend = "" if self.backend is None else f", backend={self.backend!r}"
        return f"{self.spec}{backend}" + (
            "" if self.tables == "auto" else f", tables={self.tables!r}"
        )

    def _run(self, xs: tuple[Tensor, ...], request: Request, inplace: bool) -> tuple[Tensor, ...]:
        """Return the rotated tensors of a request."""
        return rotation.run(xs, request, inplace, self.backend)

    def _tables(
        self, request: Request, seq: int, device: torch.device, dtype: torch.dtype, key: bool
    ) -> tuple[Tensor, Tensor]:
        """Return cos and sin of the `seq` positions of a request, in `dtype` on `device`; of keys
        if `key` is True.
        """
        return request_tables(request, seq, device, dtype, key)

    def _load_from_state_dict(
        self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
    ):
        """Load parameters as any module does, but accept and ignore the names in LEGACY_STATE,
        under which other implementations save frequencies or tables.
        """
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        legacy = {prefix + name for name in LEGACY_STATE}
        unexpected_keys[:] = [name for name in unexpected_keys if name not in legacy]


class LearnedRope(Rope):
    """A rope whose frequencies are trained, in one parameter.

    log_scale  [pairs], with the scaling `Learnable`: frequencies are those of the spec times
               exp(log_scale)
    mixed      [heads, pairs, axes], with `MixedAxes`: the frequencies themselves
    """

    def __init__(self, spec: RopeSpec, *, backend: str | None = None, tables: str = "auto") -> None:
        super().__init__(spec, backend=backend, tables=tables)
        if isinstance(spec.axes, MixedAxes):
            self.mixed = nn.Parameter(torch.empty(spec.axes.num_heads, spec.pairs, spec.num_axes))
        elif spec.learned:
            self.log_scale = nn.Parameter(torch.empty(spec.pairs))
        else:
            raise RopeError("spec", "must have learned frequencies; use Rope(spec)", spec.scaling)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the learned frequencies; FSDP and similar wrappers call this after `to_empty`."""
        if isinstance(self.spec.axes, MixedAxes):
            with torch.no_grad():
                self.mixed.copy_(mixed_start(self.spec.axes))
        else:
            nn.init.zeros_(self.log_scale)  # exp(0) = 1: the frequencies of the spec

    def rotate(
        self, x: Inexact[Tensor, "... D"], positions: Shaped[Tensor, "..."] | None = None, **options
    ) -> Inexact[Tensor, "... D"]:
        """Rotate one tensor; gradients reach the frequencies."""
        return self._rotate_one(x, positions, 1, **options)

    def unrotate(
        self, x: Inexact[Tensor, "... D"], positions: Shaped[Tensor, "..."] | None = None, **options
    ) -> Inexact[Tensor, "... D"]:
        """Invert `rotate`, whose options it takes."""
        return self._rotate_one(x, positions, -1, **options)

    def _tables(
        self, request: Request, seq: int, device: torch.device, dtype: torch.dtype, key: bool
    ) -> tuple[Tensor, Tensor]:
        """Return cos and sin of the `seq` positions of a request by the learned frequencies, in
        `dtype` on `device`; of keys if `key` is True.
        """
        positions = request.explicit_positions(seq, device)
        cos, sin = self._trained_tables(positions, key, magnitude_power=1)
        return cos.to(dtype), sin.to(dtype)

    def _rotate_one(
        self, x, positions, sign, *, offset=0, seq_dim=-2, length=None, key=False, inplace=False
    ):
        """Return x rotated by learned frequencies if `sign` is 1, unrotated if it is -1; the
        options are those of `Rope.rotate`.
        """
        request = make_request((x,), self.spec, positions, offset, seq_dim, length)
        # to unrotate, the opposite angles and one over the magnitude
        return self._run((x,), replace(request, sign=sign, magnitude_power=sign, key=key), inplace)[
            0
        ]

    def _run(self, xs: tuple[Tensor, ...], request: Request, inplace: bool) -> tuple[Tensor, ...]:
        """Return xs rotated by tables whose gradients reach the learned frequencies; `inplace`: the
        result is also written into xs.
        """
        if inplace:
            check_no_overlap(xs, addresses=not is_traced(xs))
        rotated = []
        for i, x in enumerate(xs):
            positions = request.explicit_positions(x.shape[request.seq_dim], x.device)
            cos, sin = self._trained_tables(positions, request.is_key(i), request.magnitude_power)
            sin = sin if request.sign > 0 else -sin
            by_table = TableRequest(
                cos,
                sin,
                request.seq_dim,
                request.layout_in,
                request.layout_out,
                start=request.start,
            )
            rotated += rotation.run((x,), by_table, inplace, self.backend)
        return tuple(rotated)

    def _trained_tables(
        self, positions: Tensor, key: bool, magnitude_power: int
    ) -> tuple[Tensor, Tensor]:
        """Return float64 cos and sin of positions with the learned frequencies: [..., S, pairs], or
        [B, heads, S, pairs] with `MixedAxes`.

        positions        [S], [B, S] or [axes, B, S]
        key              return the tables of keys, whose magnitude may differ from that of queries
        magnitude_power  1 applies the magnitude, -1 divides by it

        The angles are elementwise products, which autocast leaves in float64.
        """
        positions = positions.to(torch.float64)
        if isinstance(self.spec.axes, MixedAxes):
            mixed = self.mixed.to(torch.float64)  # [H, P, 2]
            first, second = (
                positions[axis][:, None, :, None] * mixed[:, None, :, axis] for axis in (0, 1)
            )
            angles = first + second  # [B, H, S, P]
            # MixedAxes have no scaling, so the magnitude is 1
            return angles.cos(), angles.sin()
        # the learned frequencies are those of the spec times exp(log_scale)
        initial, device = ladder(self.spec), positions.device
        if initial.growth is not None:
            initial = replace(initial, growth=initial.growth.to(device))
        if self.spec.num_axes > 1:
            positions = positions[list(self.spec.axis_of_pair)].movedim(0, -1)
        else:
            positions = positions.unsqueeze(-1)
        angles = positions * (initial.radians.to(device) * self.log_scale.to(torch.float64).exp())
        return with_magnitude(
            self.spec,
            initial,
            positions,
            angles.cos(),
            angles.sin(),
            magnitude_power,
            key,
            torch.float64,
        )


def mixed_start(axes: MixedAxes) -> Tensor:
    """Return the frequencies of `MixedAxes` before training, float32 [heads, pairs, 2]: a random
    direction per head, half of the pairs along it and half perpendicular to it, as in rope-vit.
    """
    generator = torch.Generator().manual_seed(axes.seed)
    turns = torch.rand(axes.num_heads, 1, generator=generator, dtype=torch.float64, device="cpu")
    direction = turns * 2 * math.pi  # of each head, an angle in radians
    half = axes.pairs // 2
    # the ladder of either half, [pairs / 2]
    radians = axes.theta ** -(torch.arange(half, dtype=torch.float64, device="cpu") / half)
    along = direction.expand(-1, half)
    angle = torch.cat([along, along + math.pi / 2], dim=-1)  # [heads, pairs]
    unit_vectors = torch.stack([angle.cos(), angle.sin()], dim=-1)
    return (unit_vectors * radians.repeat(2)[:, None]).float()
