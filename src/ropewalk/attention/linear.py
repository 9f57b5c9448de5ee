"""LinearAttention: RoPE in O(n). The n x n weights are never formed.

    numerator   out_i = sum_j [R_i phi(q_i)].[R_j phi(k_j)] v_j / sum_j phi(q_i).phi(k_j)       rotation in the numerator only
    cosine      out_i = sum_j (1 + a cos_ij) v_j / sum_j (1 + a cos_ij), cos_ij = (R_i q_i/|q_i|).(R_j k_j/|k_j|)

Both are sums over keys of a feature times a value, so a chunk needs only the state left by those before it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.attention.linear_sums import CHUNK, FEATURES, FORMS, State, attend, empty_state, features
from ropewalk.errors import RopeError, choice, integer
from ropewalk.frequencies import Linear
from ropewalk.kernels.linear import api as kernels
from ropewalk.kernels.linear.api import Ask
from ropewalk.rope import Rope
from ropewalk.spec import RopeSpec


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rope: Rope,
    positions: Tensor | None = None,
    *,
    form: str = "numerator",
    phi: str | Callable[[Tensor], Tensor] = "elu",
    scale: Tensor | float = 1.0,
    causal: bool = True,
    padding: Tensor | None = None,
    documents: Tensor | None = None,
    state: State | None = None,
    chunk: int = CHUNK,
    eps: float = 1e-6,
    backend: str | None = None,
) -> tuple[Tensor, State]:
    """Attend q, k [B, H, S, D], v [B, H, S, Dv] in time and memory linear in S; also the state to go on from.

    positions default to the order of the real tokens behind `state`. padding [B, S] is True for real tokens.
    backend None takes the Triton kernels where they can, "torch" and "triton" insist.
    """
    feature = check_linear(q, k, v, rope, form, phi, state, chunk)
    if documents is not None and state is not None:
        raise RopeError("documents", "are packed into whole sequences; a state goes on with one", list(documents.shape))
    seq = q.shape[-2]
    if state is None:
        state = empty_state(q, v, form)
    if positions is None:
        order = torch.arange(seq, device=q.device) if padding is None else (padding.long().cumsum(-1) - 1).clamp(min=0)
        positions = order + state.count[:, None]
    reason = why_not_triton(q, v, rope, feature, scale, causal, documents)
    if backend == "triton" and reason is not None:
        raise RopeError("backend", f"'triton' cannot take this call: {reason}", backend)
    seen = state.count + (seq if padding is None else padding.sum(-1))
    if choice("backend", backend or "triton", ("triton", "torch")) == "triton" and reason is None:
        ask = Ask(rope.spec, feature or "", positions, padding, eps)
        trained = torch.full((), scale, device=q.device) if isinstance(scale, float | int) else scale
        trained = trained if form == "cosine" else None
        out, mixed, total = _InKernels.apply(q, k, v, state.mixed, state.total, trained, ask)  # type: ignore[misc]  # three
        return out, State(mixed, total, seen)
    found = features(q, k, rope, positions, form, FEATURES[phi] if isinstance(phi, str) else phi, scale)
    out, mixed, total = attend(found, v, padding, state, causal, documents, chunk, eps)
    return out.to(v.dtype), State(mixed, total, seen)


def check_linear(
    q: Tensor, k: Tensor, v: Tensor, rope: Rope, form: str, phi: str | Callable, state: State | None, chunk: int
) -> str | None:
    """Refuse what no backend takes; the name of the features, None where they are the user's own."""
    choice("form", form, FORMS)
    if isinstance(phi, str):
        choice("phi", phi, FEATURES)
    integer("chunk", chunk, low=1)
    if q.shape != k.shape or q.shape[:-1] != v.shape[:-1]:
        rule = "must have q's batch, heads, tokens and (k) head_dim; repeat shared heads first"
        raise RopeError("k, v", rule, [list(t.shape) for t in (q, k, v)])
    if state is not None and rope.spec.needs_length:
        raise RopeError(
            "state", "holds keys turned for one length; a scaling that follows it needs softmax attention", rope.spec.scaling
        )
    if form == "cosine":
        return form
    return phi if isinstance(phi, str) else None


def why_not_triton(
    q: Tensor, v: Tensor, rope: Rope, feature: str | None, scale: Tensor | float, causal: bool, documents: Tensor | None
) -> str | None:
    """The reason why the Triton kernels cannot take this call, or None."""
    if not causal:
        return "a bidirectional pass is two matrix products, which torch has"
    if documents is not None:
        return "their sums run through the whole row; packed documents go through torch"
    if torch.compiler.is_compiling():
        return "torch.compile makes its own kernels of the definition"
    return kernels.why_not(q, v, rope.spec, feature, scale)


class _InKernels(torch.autograd.Function):
    """Forward by the Triton kernels; backward by the definition, computed once more: still linear in the length."""

    @staticmethod
    def forward(
        ctx, q: Tensor, k: Tensor, v: Tensor, mixed: Tensor, total: Tensor, scale: Tensor | None, ask: Ask
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.ask = ask
        ctx.save_for_backward(q, k, v, mixed, total, scale)
        return kernels.run(q, k, v, mixed, total, scale, ask)

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        ask: Ask = ctx.ask
        wanted: tuple[bool, ...] = ctx.needs_input_grad[:6]
        inputs: Any = [
            t if t is None else t.detach().requires_grad_(need) for t, need in zip(ctx.saved_tensors, wanted, strict=True)
        ]
        q, k, v, mixed, total, scale = inputs
        form, phi = ("cosine", "elu") if ask.feature == "cosine" else ("numerator", ask.feature)
        with torch.enable_grad():
            found = features(q, k, Rope(ask.spec), ask.positions, form, FEATURES[phi], 1.0 if scale is None else scale)
            out, *state = attend(found, v, ask.real, State(mixed, total, ask.positions), causal=True, eps=ask.eps)
        trained = [t for t in inputs if t is not None and t.requires_grad]
        got = iter(torch.autograd.grad((out.to(v.dtype), *state), trained, grads, allow_unused=True))
        return *(next(got) if need else None for need in wanted), None


def still_rope(head_dim: int) -> Rope:
    """A rope that turns nothing, by its spec alone: for linear attention whose positions come in elsewhere, or not at all."""
    # a frequency below 2^-64 turns is zero at every position
    return Rope(RopeSpec(head_dim=head_dim, rotary_dim=2, scaling=Linear(factor=1e30)))


class LinearAttention(nn.Module):
    """Multi-head linear attention with RoPE; the same projections as `Attention`, memory and time linear in the length.

    form "numerator" rotates the numerator only; "cosine" weighs by 1 + a cos with a trained 0 < a <= 1, always >= 0.
    A norm follows the heads by default, since the weights of the first form do not sum to one.
    """

    def __init__(
        self,
        model_dim: int,
        num_heads: int,
        head_dim: int | None = None,
        *,
        spec: RopeSpec | None = None,
        form: str = "numerator",
        phi: str | Callable[[Tensor], Tensor] = "elu",
        causal: bool = True,
        bias: bool = False,
        out_norm: bool = True,
        chunk: int = CHUNK,
    ) -> None:
        super().__init__()
        self.num_heads = integer("num_heads", num_heads, low=1)
        if head_dim is None and model_dim % num_heads:
            raise RopeError("head_dim", f"must be given: {num_heads} heads do not divide model_dim", model_dim)
        self.head_dim = model_dim // num_heads if head_dim is None else head_dim
        choice("form", form, FORMS)
        if isinstance(phi, str):
            choice("phi", phi, FEATURES)
        self.rope = Rope(RopeSpec(head_dim=self.head_dim) if spec is None else spec)
        self.form, self.phi, self.causal, self.chunk = form, phi, causal, chunk
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(model_dim, num_heads * self.head_dim, bias=bias) for _ in range(3))
        self.o_proj = nn.Linear(num_heads * self.head_dim, model_dim, bias=bias)
        self.norm = nn.RMSNorm(self.head_dim, eps=1e-6) if out_norm else nn.Identity()
        if form == "cosine":
            self.raw_scale = nn.Parameter(torch.full((num_heads, 1, 1), 3.0))

    def forward(
        self,
        x: Tensor,
        positions: Tensor | None = None,
        *,
        padding: Tensor | None = None,
        documents: Tensor | None = None,
        state: State | None = None,
    ) -> tuple[Tensor, State]:
        """Attend over x [B, S, model_dim]; pass the returned state to go on, one token or many at a time."""
        q, k, v = (
            proj(x).unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        scale = torch.sigmoid(self.raw_scale) if self.form == "cosine" else 1.0
        out, state = linear_attention(
            q, k, v, self.rope, positions, form=self.form, phi=self.phi, scale=scale, causal=self.causal,
            padding=padding, documents=documents, state=state, chunk=self.chunk,
        )  # fmt: skip
        return self.o_proj(self.norm(out).transpose(1, 2).flatten(-2)), state
