"""The API of rotary-embedding-torch on our kernels: the same frequencies, exact angles, no cache to go stale.

Pairs are neighbouring dimensions. `rotate_*` turn at integer positions without a table, so they are as exact in bfloat16
and at position 10^7 as at 10; tensors of angles (`forward`, `get_axial_freqs`) are float32, as in the original.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk import rotation
from ropewalk.compat.broadcast import pair_entries, turn_broadcast
from ropewalk.errors import RopeError, choice, flag, integer, number
from ropewalk.frequencies import Given
from ropewalk.frequencies.scaling import CPU, ntk_theta, periods
from ropewalk.kernels.reference import join_pairs, split_pairs
from ropewalk.spec import RopeSpec

__all__ = ["RotaryEmbedding", "apply_learned_rotations", "apply_rotary_emb", "broadcat", "rotate_half"]
FREQS_FOR = ("lang", "pixel", "constant")


def broadcat(tensors: Sequence[Tensor], dim: int = -1) -> Tensor:
    """Broadcast tensors against each other and concatenate them."""
    return torch.cat(torch.broadcast_tensors(*tensors), dim=dim)


def rotate_half(x: Tensor) -> Tensor:
    """(-x1, x0) of every two neighbours: a quarter turn."""
    first, second = split_pairs(x, "interleaved")
    return join_pairs(-second, first, "interleaved")


def apply_rotary_emb(
    freqs: Tensor,
    t: Tensor,
    start_index: int = 0,
    scale: float | Tensor = 1.0,
    seq_dim: int = -2,
    freqs_seq_dim: int | None = None,
) -> Tensor:
    """Turn the dims of t from `start_index` by the angles `freqs` [..., 2P], each entry given twice; times `scale`.

    freqs broadcast against t. Where they are [S, 2P], or t has three axes, or `freqs_seq_dim` says which axis counts
    tokens, the last as many as t has are taken.
    """
    if freqs_seq_dim is None and (freqs.ndim == 2 or t.ndim == 3):
        freqs_seq_dim = 0
    if freqs_seq_dim is not None:
        seq, known = t.shape[seq_dim], freqs.shape[freqs_seq_dim]
        if known < seq:
            raise RopeError("freqs", f"must hold angles for the {seq} tokens of t", list(freqs.shape))
        freqs = freqs.narrow(freqs_seq_dim, known - seq, seq)
    if start_index + freqs.shape[-1] > t.shape[-1]:
        raise RopeError("t", f"must have at least {start_index + freqs.shape[-1]} dimensions for these angles", list(t.shape))
    angles = pair_entries("freqs", freqs).to(torch.float64)
    size = pair_entries("scale", scale).to(torch.float64) if isinstance(scale, Tensor) and scale.ndim else scale
    return turn_broadcast(t, angles.cos() * size, angles.sin() * size, "interleaved", start_index)


def apply_learned_rotations(rotations: Tensor, t: Tensor, start_index: int = 0, freq_ranges: Tensor | None = None) -> Tensor:
    """Turn t by trained angles [..., R], one a pair; `freq_ranges` [F] makes R * F angles of them."""
    if freq_ranges is not None:
        rotations = (rotations.unsqueeze(-1) * freq_ranges).flatten(-2)
    return apply_rotary_emb(join_pairs(rotations, rotations, "interleaved"), t, start_index)


@lru_cache(maxsize=256)
def _spec(radians: tuple[float, ...], head_dim: int) -> RopeSpec:
    return RopeSpec(head_dim, scaling=Given(radians), rotary_dim=2 * len(radians), layout="interleaved")


class RotaryEmbedding(nn.Module):
    """Rotary embedding of neighbouring pairs; the parameters of the original.

    `freqs` stays in the state dict, so checkpoints of the original load and save; only where `learned_freq` is set is it
    a parameter, so half() cannot round it and DDP does not wait for its gradient. `cache_if_possible` and
    `cache_max_seq_len` are accepted and not needed. `t`, `q`, `k` are [..., S, D], or [..., S, H, D] with
    `seq_before_head_dim`.
    """

    apply_rotary_emb = staticmethod(apply_rotary_emb)

    def __init__(
        self,
        dim: int,
        custom_freqs: Tensor | None = None,
        freqs_for: str = "lang",
        theta: float = 10000,
        max_freq: float = 10,
        num_freqs: int = 1,
        learned_freq: bool = False,
        use_xpos: bool = False,
        xpos_scale_base: float = 512,
        interpolate_factor: float = 1.0,
        theta_rescale_factor: float = 1.0,
        seq_before_head_dim: bool = False,
        cache_if_possible: bool = True,
        cache_max_seq_len: int = 8192,
    ) -> None:
        super().__init__()
        integer("dim", dim, low=2)
        self.dim, self.freqs_for = dim, choice("freqs_for", freqs_for, FREQS_FOR)
        self.learned_freq, self.use_xpos = flag("learned_freq", learned_freq), flag("use_xpos", use_xpos)
        self.interpolate_factor = number("interpolate_factor", interpolate_factor, low=1)
        self.seq_before_head_dim = flag("seq_before_head_dim", seq_before_head_dim)
        self.default_seq_dim = -3 if seq_before_head_dim else -2
        self.scale_base = number("xpos_scale_base", xpos_scale_base, above=0)
        # an integer that knows the module's device and that no cast can change
        self.register_buffer("dummy", torch.zeros((), dtype=torch.int64), persistent=False)
        freqs = self._start(custom_freqs, theta * 1.0, theta_rescale_factor, max_freq, num_freqs)
        if learned_freq:
            self.freqs = nn.Parameter(freqs)
        else:
            self._radians = tuple(freqs.double().tolist())

    def _start(self, given: Tensor | None, theta: float, rescale: float, max_freq: float, num_freqs: int) -> Tensor:
        if given is not None:
            if given.ndim != 1 or not given.is_floating_point():
                raise RopeError("custom_freqs", "must be floats [pairs]", [given.dtype, list(given.shape)])
            return given.detach().clone()
        if self.freqs_for == "pixel":
            return torch.linspace(1.0, max_freq / 2, self.dim // 2, device=CPU) * math.pi
        if self.freqs_for == "constant":
            return torch.ones(num_freqs, device=CPU)
        base = ntk_theta(number("theta", theta, above=0), number("theta_rescale_factor", rescale, above=0), self.dim)
        return 1.0 / periods(self.dim, base, torch.float32)[: self.dim // 2]

    def __getattr__(self, name: str) -> Any:
        # the original's tensors, made when asked for: a module without them has nothing to round or to lose
        if name == "freqs" and "_radians" in self.__dict__:
            return torch.tensor(self._radians, dtype=torch.float32, device=self.device)
        if name == "scale" and self.__dict__.get("use_xpos"):
            return self._zeta().to(torch.float32)
        return super().__getattr__(name)

    @property
    def device(self) -> torch.device:
        return self.dummy.device  # type: ignore[return-value]  # a buffer

    def get_seq_pos(
        self, seq_len: int, device: torch.device | None = None, dtype: torch.dtype | None = None, offset: float | Tensor = 0
    ) -> Tensor:
        """offset, offset + 1, ... over `interpolate_factor`; never below float32, which cannot count past 256 in bfloat16."""
        counted = torch.arange(seq_len, device=device or self.device, dtype=torch.float64) + offset
        wide = dtype if dtype in (torch.float32, torch.float64) else torch.float32
        return (counted / self.interpolate_factor).to(wide)

    def forward(self, t: Tensor, seq_len: int | None = None, offset: int = 0) -> Tensor:
        """The angles [..., 2P] of positions t [...], every one twice; from t alone, whatever was asked before."""
        angles = self._angles(t)
        return join_pairs(angles, angles, "interleaved").to(torch.float32)

    def rotate_queries_or_keys(
        self, t: Tensor, seq_dim: int | None = None, offset: float | Tensor = 0, scale: float | Tensor | None = None
    ) -> Tensor:
        """t turned at positions offset, offset + 1, ...; `scale` multiplies the result (xPos)."""
        if self.use_xpos and scale is None:
            raise RopeError("scale", "must be given under use_xpos; call rotate_queries_and_keys with both", None)
        seq_dim = self.default_seq_dim if seq_dim is None else seq_dim
        if scale is None and not self.learned_freq and not isinstance(offset, float):
            slowed = tuple(radians / self.interpolate_factor for radians in self._radians)
            return rotation.rotate(t, _spec(slowed, t.shape[-1]), offset=offset, seq_dim=seq_dim)
        size = 1.0 if scale is None else scale
        if isinstance(size, Tensor) and size.ndim:
            if size.ndim != 2:
                raise RopeError("scale", "must be a number or [tokens, dimensions]", list(size.shape))
            size = pair_entries("scale", size)
        return self._turn(t, self._steps(t.shape[seq_dim], offset, t.device), seq_dim, size)

    def rotate_queries_with_cached_keys(
        self, q: Tensor, k: Tensor, seq_dim: int | None = None, offset: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Queries at the end of keys that were kept unturned: k from position 0, q from k's length - q's + offset.

        Under xPos both are centred on the middle of k, so the scores are those of the whole sequence turned at once.
        """
        seq_dim = self.default_seq_dim if seq_dim is None else seq_dim
        q_len, k_len = q.shape[seq_dim], k.shape[seq_dim]
        if q_len > k_len:
            raise RopeError("q", f"must not have more tokens than the {k_len} keys", q_len)
        start = k_len - q_len
        if not self.use_xpos:
            rotated = self.rotate_queries_or_keys(q, seq_dim, start + offset)
            return rotated, self.rotate_queries_or_keys(k, seq_dim)
        steps = self._steps(k_len, 0, k.device)
        growth = self._growth(steps, k_len // 2)
        rotated = self._turn(q, self._steps(q_len, start + offset, q.device), seq_dim, growth[start:])
        return rotated, self._turn(k, steps, seq_dim, 1 / growth)

    def rotate_queries_and_keys(self, q: Tensor, k: Tensor, seq_dim: int | None = None) -> tuple[Tensor, Tensor]:
        """xPos: queries grow and keys shrink with position, both from the middle of the sequence."""
        if not self.use_xpos:
            raise RopeError("use_xpos", "must be set for rotate_queries_and_keys; else call rotate_queries_or_keys", False)
        return self.rotate_queries_with_cached_keys(q, k, seq_dim)

    def get_scale(self, t: Tensor, seq_len: int | None = None, offset: int = 0) -> Tensor:
        """xPos's growth [S, dim] at positions t [S], centred on the middle of t; every entry twice, float32."""
        if not self.use_xpos:
            raise RopeError("use_xpos", "must be set for get_scale", False)
        growth = self._growth(t.to(torch.float64), len(t) // 2)
        return join_pairs(growth, growth, "interleaved").to(torch.float32)

    def get_axial_freqs(self, *dims: int, offsets: Sequence[float] | Tensor | None = None) -> Tensor:
        """Angles [*dims, 2P * axes] of a grid, a ladder of frequencies for each axis; for `apply_rotary_emb`.

        "pixel" frequencies run from -1 to 1 along each axis, the others count; `offsets` shifts each axis.
        """
        if offsets is not None and len(offsets) != len(dims):
            raise RopeError("offsets", f"must have one offset for each of the {len(dims)} axes", list(offsets))
        parts = []
        for axis, size in enumerate(dims):
            line = torch.linspace(-1, 1, size) if self.freqs_for == "pixel" else torch.arange(size)
            angles = self(line.to(self.device) + (0 if offsets is None else offsets[axis]))
            parts.append(angles.reshape(*(size if a == axis else 1 for a in range(len(dims))), -1))
        return broadcat(parts)

    def _angles(self, positions: Tensor) -> Tensor:
        """float64 angles [..., P] with a gradient to trained frequencies; plain products, which autocast leaves alone."""
        freqs = self.freqs if self.learned_freq else torch.tensor(self._radians, dtype=torch.float64, device=CPU)
        return positions.to(torch.float64).unsqueeze(-1) * freqs.to(positions.device, torch.float64)

    def _steps(self, seq: int, offset: float | Tensor, device: torch.device) -> Tensor:
        return self.get_seq_pos(seq, device, torch.float64, offset)

    def _turn(self, x: Tensor, positions: Tensor, seq_dim: int, size: float | Tensor) -> Tensor:
        angles = self._angles(positions)
        cos, sin = angles.cos() * size, angles.sin() * size
        return rotation.rotate_by(x, cos, sin, layout="interleaved", seq_dim=seq_dim)

    def _zeta(self) -> Tensor:
        return (torch.arange(0, self.dim, 2, dtype=torch.float64, device=self.device) + 0.4 * self.dim) / (1.4 * self.dim)

    def _growth(self, positions: Tensor, center: int) -> Tensor:
        return self._zeta().to(positions.device) ** ((positions - center) / self.scale_base).unsqueeze(-1)

    def _save_to_state_dict(self, destination, prefix, keep_vars) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if not self.learned_freq:
            destination[prefix + "freqs"] = self.freqs

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs):
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)
        key = prefix + "freqs"
        if self.learned_freq or key not in state_dict:
            return
        unexpected_keys[:] = [name for name in unexpected_keys if name != key]
        found = state_dict[key]
        if found.shape != self.freqs.shape:
            error_msgs.append(f"{key}: must be {list(self.freqs.shape)}; got {list(found.shape)}")
        else:
            self._radians = tuple(found.double().tolist())
