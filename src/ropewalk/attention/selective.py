"""Selective RoPE: the tokens themselves say by how much q and k rotate at each step.

    angle_p = tau * (phi_1 + ... + phi_p),  tau_i = theta^(-2i/d)

phi_p is computed from token p and the three before it; phi = 1 everywhere is RoPE.

With linear attention the sum of angles need not be kept: the state itself rotates back by each
step, and the newest key is added unrotated.

Words of this module:
  step, angle  the angle that one token adds, tau phi_p, and the sum of the steps up to a token
  P            the number of pairs of a head, D / 2: dims i and i + D / 2 are a pair (the layout
               "half"), and rotate by an angle of their own
  order        how the tokens of each row were sorted by document, with padding last
               (`row_order.RowOrder`); None: there are neither documents nor padding
  kv_state     the sum of key times value over the tokens so far, rotated and decayed at each step
  log_decay    the logarithm of the factor by which each token multiplies this state
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ropewalk.attention.row_order import RowOrder, real_tokens, visible_keys
from ropewalk.attention.short_conv import ShortConv
from ropewalk.attention.token_driven import TokenDrivenAttention
from ropewalk.errors import RopeError, choice, integer
from ropewalk.kernels.rotation.definition import rotate
from ropewalk.rotation import rotate_by_phase
from ropewalk.spec import RopeSpec
from ropewalk.tensor_frequencies import ladder


class PhaseState(NamedTuple):
    """What the angles of later tokens depend on: the convolution's last three inputs [B, 3, H P],
    and the angles so far [B, H, P].
    """

    tokens: Tensor
    angles: Tensor


class SelectivePhases(nn.Module):
    """The angle by which each token rotates each pair of each head: two small projections, a
    convolution, a running sum.

    `rank` is the width between the two projections; `theta` gives the frequencies tau that multiply
    the sum.
    """

    def __init__(
        self, model_dim: int, num_heads: int, head_dim: int, *, rank: int = 16, theta: float = 5e5
    ) -> None:
        """Create the two projections, with `rank` numbers between them, and the convolution; each
        of `num_heads` has angles of its own.
        """
        super().__init__()
        if model_dim % num_heads:
            raise RopeError(
                "model_dim",
                f"must be a multiple of {num_heads}, the number of heads with angles of their own: "
                "x is divided into as many parts, and each is normed",
                model_dim,
            )
        self.spec, self.num_heads = RopeSpec(head_dim=head_dim, theta=theta), num_heads
        self.down = nn.Linear(model_dim, integer("rank", rank, low=1), bias=False)
        self.up = nn.Linear(rank, num_heads * self.spec.pairs, bias=False)
        self.conv = ShortConv(num_heads * self.spec.pairs, 4)  # over the last four tokens

    def forward(
        self, x: Tensor, state: PhaseState | None = None, order: RowOrder | None = None
    ) -> tuple[Tensor, Tensor, PhaseState]:
        """Return, for x [B, S, model_dim], the steps [B, H, S, P] (the angle that each token adds)
        and the angles (their running sums), in float64, and the state after x.

        With an `order`, x is sorted by it already; padding takes no step.
        """
        # the part of x that belongs to each head becomes a unit vector
        normed = F.normalize(x.unflatten(-1, (self.num_heads, -1)), dim=-1).flatten(-2)
        phi, tokens = self.conv(
            self.up(self.down(normed)), None if state is None else state.tokens, order
        )
        if order is not None and order.real is not None:
            phi = phi.masked_fill(~order.real.unsqueeze(-1), 0.0)
        phi = phi.unflatten(-1, (self.num_heads, -1)).transpose(1, 2).double()
        steps = phi * ladder(self.spec).radians.to(x.device)  # phi tau
        angles = steps.cumsum(dim=-2)
        if state is not None:
            angles = angles + state.angles.unsqueeze(-2)
        return steps, angles, PhaseState(tokens, angles[..., -1, :])


def linear_by_sums(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    steps: Tensor,
    log_decay: Tensor,
    kv_state: Tensor | None = None,
    seen: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return linear attention with rotated q and k, without a denominator, and its state after the
    last token.

    The state is the decayed sum of k v^T, with keys rotated relative to the last token, whose angle
    is 0. Output and state are computed here from sums of angles, in time quadratic in S.

    q, k, v    [B, H, S, D] and [B, H, S, Dv]; S is at least 1
    steps      [B, H, S, P], the angle in radians by which each token rotates each pair
    log_decay  [B, H, S], the logarithm of the factor by which each token multiplies the state
    kv_state   [B, H, D, Dv], the state after the tokens before this call
    seen       boolean [B, 1, S, S], the keys that each query sees; the returned state ignores it,
               so it must not be used with `seen`
    """
    angles, decay = steps.cumsum(dim=-2), log_decay.cumsum(dim=-1)
    rotated_q, rotated_k = (rotate_by_phase(x, angles) for x in (q, k))
    # the decay between each key and each later query; the first tril keeps exp from overflowing
    # above the diagonal
    kept = (decay.unsqueeze(-1) - decay.unsqueeze(-2)).tril().exp().tril().to(q.dtype)
    out = ((rotated_q @ rotated_k.mT) * (kept if seen is None else kept * seen)) @ v
    back = angles - angles[..., -1:, :]  # from the last token back to each key
    kept_at_end = (decay[..., -1:] - decay).exp().unsqueeze(-1).to(k.dtype)
    new_kv_state = (rotate_by_phase(k, back) * kept_at_end).mT @ v
    if kv_state is not None:
        out = out + (rotated_q * decay.exp().unsqueeze(-1).to(q.dtype)) @ kv_state
        new_kv_state = new_kv_state + _rotated_state(kv_state, angles[..., -1, :], decay[..., -1])
    return out, new_kv_state


def linear_by_steps(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    steps: Tensor,
    log_decay: Tensor,
    kv_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the same as `linear_by_sums`, token by token:
    kv_state <- decay * R(-step) kv_state + k v^T, out = q^T kv_state.

    Takes time linear in S and keeps no growing sum of angles. Arguments as in `linear_by_sums`.
    """
    kv_state = (
        q.new_zeros(*k.shape[:-2], k.shape[-1], v.shape[-1]) if kv_state is None else kv_state
    )
    outs = []
    for t in range(q.shape[-2]):
        kv_state = _rotated_state(kv_state, steps[..., t, :], log_decay[..., t])
        kv_state = kv_state + k[..., t, :].unsqueeze(-1) * v[..., t, :].unsqueeze(-2)
        outs.append((q[..., t, :].unsqueeze(-2) @ kv_state).squeeze(-2))
    return torch.stack(outs, dim=-2), kv_state


def _rotated_state(kv_state: Tensor, angles: Tensor, log_decay: Tensor) -> Tensor:
    """Return a state [B, H, D, Dv] rotated back by angles [B, H, P] and multiplied by the decay,
    whose logarithm is [B, H].
    """
    # the opposite sine turns back; the pairs are along D, which `rotate` expects last
    cos, sin = angles.cos().unsqueeze(-2), -angles.sin().unsqueeze(-2)
    return rotate(kv_state.mT, cos, sin, "half").mT * log_decay.exp()[..., None, None].to(
        kv_state.dtype
    )


class SelectiveState(NamedTuple):
    """What later tokens depend on.

    phases  the state of SelectivePhases
    memory  (rotated keys, values), both [B, Hk, N, D], of the form "softmax", or (the rotating
            state [B, H, D, D],) of "linear"
    real    [B, N], False for keys that are padding; None: all are real, or the form is "linear"
    """

    phases: PhaseState
    memory: tuple[Tensor, ...]
    real: Tensor | None = None


class SelectiveAttention(TokenDrivenAttention[SelectiveState]):
    """Causal attention with Selective RoPE; `form` is "softmax", or "linear" with a decay of each
    head and a rotating state.

    num_kv_heads < num_heads shares keys, values and angles between heads (GQA). `phases` are the
    options of SelectivePhases.
    """

    def __init__(
        self,
        model_dim: int,
        num_heads: int,
        head_dim: int | None = None,
        *,
        num_kv_heads: int | None = None,
        form: str = "softmax",
        **phases,
    ) -> None:
        """Create the layer; `phases` are the options of SelectivePhases. With fewer `num_kv_heads`,
        heads share keys, values and angles; a decay is each head's own.
        """
        super().__init__(model_dim, num_heads, num_kv_heads, head_dim)
        self.form = choice("form", form, ("softmax", "linear"))
        self.phases = SelectivePhases(model_dim, self.num_kv_heads, self.head_dim, **phases)
        if form == "linear":
            self.decay_proj = nn.Linear(model_dim, num_heads)
            # without a denominator the weights do not sum to one, so each head is normed
            self.norm = nn.RMSNorm(self.head_dim, eps=1e-6)

    def _attend(
        self,
        x: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        order: RowOrder | None,
        state: SelectiveState | None,
    ) -> tuple[Tensor, SelectiveState]:
        """Return the output of every head [B, H, S, D], and the state after the last token; for the
        arguments see `TokenDrivenAttention._attend`.
        """
        steps, angles, phases = self.phases(x, None if state is None else state.phases, order)
        if self.form == "linear":
            out, kv_state = self._linear(x, q, k, v, steps, order, state)
            return out, SelectiveState(phases, (kv_state,))
        q, k = rotate_by_phase(q, self._for_every_head(angles)), rotate_by_phase(k, angles)
        earlier = 0 if state is None else state.memory[0].shape[-2]
        if state is not None:
            k, v = (
                torch.cat((old, new), dim=-2) for old, new in zip(state.memory, (k, v), strict=True)
            )
        real = real_tokens(None if state is None else state.real, earlier, order, x)
        visible = visible_keys(q.shape[-2], k.shape[-2], order, real, x.device)
        scale, grouped = 1 / math.sqrt(self.head_dim), self.num_kv_heads < self.num_heads
        out = F.scaled_dot_product_attention(q, k, v, visible, scale=scale, enable_gqa=grouped)
        return out, SelectiveState(phases, (k, v), real)

    def _linear(
        self,
        x: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        steps: Tensor,
        order: RowOrder | None,
        state: SelectiveState | None,
    ) -> tuple[Tensor, Tensor]:
        """Return the normed output of every head of the form "linear", and its rotating state after
        the last token.
        """
        # / 16, as in gated linear attention: a decay near 1 at first, so that the state remembers
        # many tokens
        log_decay = F.logsigmoid(self.decay_proj(x)).transpose(1, 2).double() / 16
        k, v, steps = (self._for_every_head(each) for each in (k, v, steps))
        if order is not None and order.real is not None:
            # padding adds nothing to the state, which does not decay there either
            k, log_decay = k * order.real[:, None, :, None], log_decay * order.real[:, None]
        if order is not None and order.documents is not None:
            # real=None: the keys of padding are 0, so they need not be hidden
            seen = visible_keys(x.shape[1], x.shape[1], order, real=None, device=x.device)
            out, kv_state = linear_by_sums(q, k, v, steps, log_decay, seen=seen)
        else:
            # one token needs no sums
            linear = linear_by_sums if x.shape[1] > 1 else linear_by_steps
            out, kv_state = linear(
                q, k, v, steps, log_decay, None if state is None else state.memory[0]
            )
        return self.norm(out), kv_state
