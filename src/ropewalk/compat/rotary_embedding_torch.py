"""Drop-in for rotary-embedding-torch: the same frequencies, exact angles, and no cache that can
become stale.

Pairs are neighbouring dimensions. The `rotate_*` methods need no table: at integer positions their
angles are as exact at position 10^7 as at 10, also for bfloat16 tensors. Tensors of angles
(`forward`, `get_axial_freqs`) are float32, as in the original.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk import rotation
from ropewalk.caches import cached
from ropewalk.compat.broadcast import pair_entries, rotate_broadcast
from ropewalk.errors import RopeError, choice, flag, integer, number
from ropewalk.frequencies import Given
from ropewalk.frequencies.formulas import ntk_theta, periods
from ropewalk.kernels.rotation.definition import join_pairs, split_pairs
from ropewalk.spec import RopeSpec
from ropewalk.tensor_frequencies import CPU, TorchNumbers

__all__ = [
    "RotaryEmbedding",
    "apply_learned_rotations",
    "apply_rotary_emb",
    "broadcat",
    "rotate_half",
]
FREQS_FOR = ("lang", "pixel", "constant")


def broadcat(tensors: Sequence[Tensor], dim: int = -1) -> Tensor:
    """Broadcast tensors against each other, and concatenate them along `dim`."""
    return torch.cat(torch.broadcast_tensors(*tensors), dim=dim)


def rotate_half(x: Tensor) -> Tensor:
    """Rotate every two neighbouring dimensions by a quarter turn: (-x1, x0)."""
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
    """Rotate t from dimension `start_index` on by the angles `freqs` [..., 2P] and multiply by
    `scale`.

    freqs hold each angle twice, once for each dimension of a pair, and broadcast against t.

    scale          a number, or a tensor [..., 2P] that also holds each factor twice
    freqs_seq_dim  the token axis of freqs: if it has more entries than t has tokens, only the last
                   ones are used. None: axis 0 if freqs have two axes or t has three; otherwise
                   freqs are used whole
    """
    if freqs_seq_dim is None and (freqs.ndim == 2 or t.ndim == 3):
        freqs_seq_dim = 0
    if freqs_seq_dim is not None:
        seq, available = t.shape[seq_dim], freqs.shape[freqs_seq_dim]
        freqs = freqs.narrow(freqs_seq_dim, max(available - seq, 0), min(available, seq))
    if start_index + freqs.shape[-1] > t.shape[-1]:
        raise RopeError(
            "t",
            f"must have at least {start_index + freqs.shape[-1]} entries in its last dimension",
            list(t.shape),
        )
    angles = pair_entries("freqs", freqs).to(torch.float64)
    multiplier = (
        pair_entries("scale", scale).to(torch.float64)
        if isinstance(scale, Tensor) and scale.ndim
        else scale
    )
    return rotate_broadcast(
        t, angles.cos() * multiplier, angles.sin() * multiplier, "interleaved", start_index
    )


def apply_learned_rotations(
    rotations: Tensor, t: Tensor, start_index: int = 0, freq_ranges: Tensor | None = None
) -> Tensor:
    """Rotate t from dimension `start_index` on by learned angles [..., R], one per pair. With
    `freq_ranges` [F] there are R * F angles: the product of each angle with each of its entries.
    """
    if freq_ranges is not None:
        rotations = (rotations.unsqueeze(-1) * freq_ranges).flatten(-2)
    return apply_rotary_emb(join_pairs(rotations, rotations, "interleaved"), t, start_index)


@cached("rotary_embedding_torch specs", entries=256)
def _spec(radians: tuple[float, ...], head_dim: int) -> RopeSpec:
    return RopeSpec(
        head_dim, scaling=Given(radians), rotary_dim=2 * len(radians), layout="interleaved"
    )


class RotaryEmbedding(nn.Module):
    """Rotary embedding of neighbouring pairs, with the parameters of the original.

    `freqs` is in the state dict, so checkpoints of the original load and save. It is a parameter
    only if `learned_freq` is set; otherwise half() does not round it and DDP expects no gradient
    for it. `cache_if_possible` and `cache_max_seq_len` are accepted and ignored. `t`, `q`, `k` are
    [..., S, D], or [..., S, H, D] with `seq_before_head_dim`.
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
        """Take the arguments of the original.

        dim                   how many dimensions rotate with the frequencies "lang" or "pixel"
        custom_freqs          the frequencies [pairs], in place of those that `freqs_for` names
        freqs_for             "lang": the powers of `theta`; "pixel": from pi to pi / 2 * max_freq;
                              "constant": `num_freqs` times 1
        learned_freq          the frequencies are a parameter
        use_xpos              xPos with the base `xpos_scale_base`
        interpolate_factor    positions are divided by it
        theta_rescale_factor  how many times longer the context becomes by a larger theta (NTK)
        seq_before_head_dim   tensors are [..., S, H, D], not [..., S, D]
        cache_...             ignored
        """
        super().__init__()
        integer("dim", dim, low=2)
        self.dim, self.freqs_for = dim, choice("freqs_for", freqs_for, FREQS_FOR)
        self.learned_freq = flag("learned_freq", learned_freq)
        self.use_xpos = flag("use_xpos", use_xpos)
        self.interpolate_factor = number("interpolate_factor", interpolate_factor, low=1)
        self.seq_before_head_dim = flag("seq_before_head_dim", seq_before_head_dim)
        self.default_seq_dim = -3 if seq_before_head_dim else -2
        self.scale_base = number("xpos_scale_base", xpos_scale_base, above=0)
        # an integer buffer tracks the device of the module, and no cast changes it
        self.register_buffer("dummy", torch.zeros((), dtype=torch.int64), persistent=False)
        freqs = self._initial_freqs(custom_freqs, theta, theta_rescale_factor, max_freq, num_freqs)
        if learned_freq:
            self.freqs = nn.Parameter(freqs)
        else:
            self._keep(freqs)

    def _keep(self, freqs: Tensor) -> None:
        """Keep frequencies that are not learned, and the dtype in which `freqs` returns them:
        float64, or else float32.
        """
        self._radians = tuple(freqs.double().tolist())
        self._dtype = torch.promote_types(freqs.dtype, torch.float32)

    def _initial_freqs(
        self, given: Tensor | None, theta: float, rescale: float, max_freq: float, num_freqs: int
    ) -> Tensor:
        """Return the frequencies that the arguments of the constructor select, [pairs] in radians
        per position; `given` are its `custom_freqs`, `rescale` is its `theta_rescale_factor`.
        """
        if given is not None:
            if given.ndim != 1 or not given.is_floating_point():
                raise RopeError(
                    "custom_freqs", "must be floats [pairs]", [given.dtype, list(given.shape)]
                )
            return given.detach().clone()
        if self.freqs_for == "pixel":
            return torch.linspace(1.0, max_freq / 2, self.dim // 2, device=CPU) * math.pi
        if self.freqs_for == "constant":
            return torch.ones(num_freqs, device=CPU)
        base = ntk_theta(
            number("theta", theta, above=0),
            number("theta_rescale_factor", rescale, above=0),
            self.dim,
        )
        # as in the original, the last dimension of an odd `dim` has no frequency
        return 1.0 / periods(self.dim, base, TorchNumbers(torch.float32))[: self.dim // 2]

    def __getattr__(self, name: str) -> Any:
        # torch calls this for a name that is no plain attribute. `freqs` and `scale` are tensors of
        # the original, computed on access, so that no cast of the module can round them
        if name == "freqs" and "_radians" in self.__dict__:
            return torch.tensor(self._radians, dtype=self._dtype, device=self.device)
        if name == "scale" and self.__dict__.get("use_xpos"):
            return self._zeta().to(torch.float32)
        return super().__getattr__(name)

    @property
    def device(self) -> torch.device:
        return self.dummy.device  # type: ignore[return-value]  # a buffer

    def get_seq_pos(
        self,
        seq_len: int,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        offset: float | Tensor = 0,
    ) -> Tensor:
        """Return (offset, offset + 1, ...) / interpolate_factor, in float32 unless `dtype` is
        float64, because bfloat16 skips integers above 256.

        Offsets [B], one for each row, give [B, seq_len].
        """
        first = offset.unsqueeze(-1) if isinstance(offset, Tensor) and offset.ndim else offset
        positions = torch.arange(seq_len, device=device or self.device, dtype=torch.float64) + first
        out_dtype = dtype if dtype in (torch.float32, torch.float64) else torch.float32
        return (positions / self.interpolate_factor).to(out_dtype)

    def forward(self, t: Tensor, seq_len: int | None = None, offset: int = 0) -> Tensor:
        """Return the angles [..., 2P] of positions t [...], each twice: once for each dimension of
        its pair. `seq_len` and `offset` are ignored.
        """
        angles = self._angles(t)
        return join_pairs(angles, angles, "interleaved").to(torch.float32)

    def rotate_queries_or_keys(
        self,
        t: Tensor,
        seq_dim: int | None = None,
        offset: float | Tensor = 0,
        scale: float | Tensor | None = None,
    ) -> Tensor:
        """Rotate t at positions offset, offset + 1, ... and multiply it by `scale`, the multipliers
        of xPos [tokens, dim] or a number. An `offset` [B] has one number for each row, an integer
        or a real one.
        """
        if self.use_xpos and scale is None:
            raise RopeError(
                "scale", "must be given with use_xpos; or call rotate_queries_and_keys", None
            )
        seq_dim = self.default_seq_dim if seq_dim is None else seq_dim
        is_real = isinstance(offset, Tensor) and offset.is_floating_point()
        # fixed frequencies at integer positions: the exact rotation, without a table
        if scale is None and not self.learned_freq and not (is_real or isinstance(offset, float)):
            interpolated = tuple(radians / self.interpolate_factor for radians in self._radians)
            return rotation.rotate(
                t, _spec(interpolated, t.shape[-1]), offset=offset, seq_dim=seq_dim
            )
        multiplier = 1.0 if scale is None else scale
        if isinstance(multiplier, Tensor) and multiplier.ndim:
            if multiplier.ndim != 2:
                raise RopeError(
                    "scale", "must be a number or a tensor [tokens, dim]", list(multiplier.shape)
                )
            multiplier = pair_entries("scale", multiplier)
        return self._rotate(
            t,
            self.get_seq_pos(t.shape[seq_dim], t.device, torch.float64, offset),
            seq_dim,
            multiplier,
        )

    def rotate_queries_with_cached_keys(
        self, q: Tensor, k: Tensor, seq_dim: int | None = None, offset: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Rotate q and unrotated cached keys k: k from position 0 on, q from (k's length - q's
        length + offset) on.

        With xPos the multipliers of both are 1 at the same position, so the scores are those of the
        whole sequence, if `offset` is 0.
        """
        seq_dim = self.default_seq_dim if seq_dim is None else seq_dim
        q_len, k_len = q.shape[seq_dim], k.shape[seq_dim]
        if q_len > k_len:
            raise RopeError("q", f"must not have more tokens than the {k_len} keys", q_len)
        start = k_len - q_len
        if not self.use_xpos:
            rotated = self.rotate_queries_or_keys(q, seq_dim, start + offset)
            return rotated, self.rotate_queries_or_keys(k, seq_dim)
        # the multipliers of xPos do not follow `offset`, as in the original
        key_positions = self.get_seq_pos(k_len, k.device, torch.float64)
        multipliers = self._xpos_multipliers(key_positions, k_len // 2)
        rotated = self._rotate(
            q,
            self.get_seq_pos(q_len, q.device, torch.float64, start + offset),
            seq_dim,
            multipliers[start:],
        )
        return rotated, self._rotate(k, key_positions, seq_dim, 1 / multipliers)

    def rotate_queries_and_keys(
        self, q: Tensor, k: Tensor, seq_dim: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Rotate q and k with xPos: queries shrink and keys grow with position; both multipliers are
        1 at position (tokens of k) // 2.
        """
        if not self.use_xpos:
            raise RopeError(
                "use_xpos",
                "must be True for rotate_queries_and_keys; otherwise call rotate_queries_or_keys",
                False,
            )
        return self.rotate_queries_with_cached_keys(q, k, seq_dim)

    def get_scale(self, t: Tensor, seq_len: int | None = None, offset: int = 0) -> Tensor:
        """Return xPos's multipliers of queries [S, dim], float32, at positions t [S]; they are 1 at
        position S // 2, as in the original. Both dimensions of a pair have the same; `seq_len` and
        `offset` are ignored.
        """
        if not self.use_xpos:
            raise RopeError("use_xpos", "must be True for get_scale", False)
        multipliers = self._xpos_multipliers(t.to(torch.float64), len(t) // 2)
        return join_pairs(multipliers, multipliers, "interleaved").to(torch.float32)

    def get_axial_freqs(
        self, *dims: int, offsets: Sequence[float] | Tensor | None = None
    ) -> Tensor:
        """Return the angles [*dims, 2P * axes] of a grid, for `apply_rotary_emb`; each axis has all
        frequencies.

        With "pixel" frequencies positions run from -1 to 1 along each axis, else 0, 1, 2 ...;
        `offsets` shifts each axis.
        """
        if offsets is not None and len(offsets) != len(dims):
            raise RopeError(
                "offsets", f"must have one offset for each of the {len(dims)} axes", list(offsets)
            )
        parts = []
        for axis, size in enumerate(dims):
            coordinates = (
                torch.linspace(-1, 1, size) if self.freqs_for == "pixel" else torch.arange(size)
            )
            angles = self(coordinates.to(self.device) + (0 if offsets is None else offsets[axis]))
            axes_after = len(dims) - 1 - axis
            parts.append(angles.reshape(*[1] * axis, size, *[1] * axes_after, -1))
        return broadcat(parts)

    def _angles(self, positions: Tensor) -> Tensor:
        """Return float64 angles [..., P], differentiable for learned frequencies; autocast does not
        affect this product.
        """
        freqs = (
            self.freqs
            if self.learned_freq
            else torch.tensor(self._radians, dtype=torch.float64, device=CPU)
        )
        return positions.to(torch.float64).unsqueeze(-1) * freqs.to(positions.device, torch.float64)

    def _rotate(
        self, x: Tensor, positions: Tensor, seq_dim: int, multiplier: float | Tensor
    ) -> Tensor:
        """Return x rotated at `positions` and multiplied by a number or by [S, P], one for each
        pair.
        """
        angles = self._angles(positions)
        cos, sin = angles.cos() * multiplier, angles.sin() * multiplier
        return rotation.rotate_by(x, cos, sin, layout="interleaved", seq_dim=seq_dim)

    def _zeta(self) -> Tensor:
        """Return xPos's base (2i + 0.4 dim) / (1.4 dim) of each pair i, float64 [P]."""
        return (
            torch.arange(0, self.dim, 2, dtype=torch.float64, device=self.device) + 0.4 * self.dim
        ) / (1.4 * self.dim)

    def _xpos_multipliers(self, positions: Tensor, center: int) -> Tensor:
        """Return xPos's multipliers zeta^((position - center) / scale_base) [S, P], where zeta is the
        base of each pair: queries are multiplied by them, keys divided.
        """
        return self._zeta().to(positions.device) ** (
            (positions - center) / self.scale_base
        ).unsqueeze(-1)

    def _save_to_state_dict(self, destination, prefix, keep_vars) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if not self.learned_freq:
            destination[prefix + "freqs"] = self.freqs

    def _load_from_state_dict(
        self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
    ):
        """Load a state dict; frequencies that are not learned are no parameter here, so they are
        read from it separately.
        """
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        name = prefix + "freqs"
        if self.learned_freq or name not in state_dict:
            return
        unexpected_keys[:] = [each for each in unexpected_keys if each != name]
        freqs = state_dict[name]
        if freqs.shape != self.freqs.shape:
            error_msgs.append(f"{name}: must be {list(self.freqs.shape)}; got {list(freqs.shape)}")
        else:
            self._keep(freqs)
