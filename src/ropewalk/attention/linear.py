"""Linear attention with RoPE, in O(n): the n x n weights are never materialised.

    numerator   out_i = sum_j [R_i phi(q_i)].[R_j phi(k_j)] v_j / sum_j phi(q_i).phi(k_j)
                rotation in the numerator only
    cosine      out_i = sum_j (1 + a cos_ij) v_j / sum_j (1 + a cos_ij), cos_ij = (R_i
                q_i/|q_i|).(R_j k_j/|k_j|)
    rotated     out_i = sum_j [R_i phi(q_i)].[R_j phi(k_j)] v_j / sum_j [R_i phi(q_i)].[R_j
                phi(k_j)]
                for comparison: its denominator may be near 0 or negative

R_i rotates by the position of token i, phi is the feature map, and a is the argument `scale`. All
are sums over keys of a feature times a value, so a chunk of queries needs only its own scores and
the sums over earlier chunks.

Words of this module:
  features  the vectors whose dot products are the weights: phi(q) and phi(k); in the form "cosine"
            unit vectors with a further entry 1
  state     the sums over all tokens so far (`linear_sums.State`), from which a later call continues
  padding   [B, S], True for real tokens; documents: [B, S], the document index of each token
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.attention.documents import (
    attend_in_documents,
    in_last_document,
    positions_in_documents,
)
from ropewalk.attention.head_sizes import head_sizes
from ropewalk.attention.linear_sums import (
    CHUNK,
    FEATURE_MAPS,
    FORMS,
    State,
    attend,
    checked_state,
    key_sums,
    make_features,
)
from ropewalk.attention.masks import check_token_masks
from ropewalk.errors import RopeError, choice, integer, number
from ropewalk.frequencies import Linear
from ropewalk.kernels import linear_attention as kernels
from ropewalk.kernels.linear_attention import LinearCall
from ropewalk.positions import left_padded
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
    """Return the attention of q, k [B, H, S, D] and v [B, H, S, Dv], in time and memory linear in
    S, and the new state.

    positions  by default 0, 1, 2, ... over the real tokens of each row, continuing after those in
               `state`; with `documents`, over the real tokens of each document
    form       "numerator", "cosine" or "rotated": the formulas at the top of this file
    phi        the feature map, except of the form "cosine": "elu" (elu(x) + 1), "relu", or a
               function of q and k
    scale      a of the form "cosine": a number, or a tensor with one number, with one for each head
               [H], or with one for each row and head [B, H, 1, 1]
    chunk      for plain torch, tokens in a chunk; scores are formed only between tokens of the same
               chunk
    eps        the output of a query is 0 if the absolute value of its denominator is at most this,
               as for a query without keys
    padding    [B, S], True for real tokens
    documents  [B, S], the document index of each token; tokens with equal indices are one document,
               neighbours or not. The returned state is that of the document of each row's last real
               token
    state      the state that an earlier call returned for the preceding tokens
    backend    "triton", "torch", or None for Triton if it can run this call
    """
    feature = check_linear(q, k, v, rope, form, phi, state, chunk)
    check_token_masks(q.shape[0], q.shape[-2], padding, documents)
    if documents is not None and state is not None:
        raise RopeError(
            "documents",
            "cannot be used with a state; give each document its own row",
            list(documents.shape),
        )
    state, scale = checked_state(state, q, v, form), checked_scale(scale, q, form)
    if positions is None:
        positions = _default_positions(q, padding, documents) + state.count[:, None]
    reason = why_not_triton(q, v, rope, feature, scale, causal, documents)
    if backend == "triton" and reason is not None:
        raise RopeError("backend", f"'triton' cannot run this call: {reason}; use 'torch'", backend)
    # the tokens whose sums the returned state holds
    counted = padding if documents is None else in_last_document(documents, padding)
    count = state.count + (q.shape[-2] if counted is None else counted.sum(-1))
    if choice("backend", backend or "triton", ("triton", "torch")) == "triton" and reason is None:
        # with backend=None, Triton runs every call that it can run. `feature` is a name here: there
        # is a reason against a call without one
        call = LinearCall(rope.spec, feature or "", positions, padding, eps)
        scale = torch.full((), scale, device=q.device) if isinstance(scale, float | int) else scale
        scale_or_none = scale if form == "cosine" else None
        sums = state.kv_sum, state.k_sum
        # three outputs
        out, kv_sum, k_sum = _KernelAttention.apply(q, k, v, *sums, scale_or_none, call)  # type: ignore[misc]
        return out, State(kv_sum, k_sum, count)
    features = make_features(q, k, rope, positions, padding, form, phi, scale)
    if documents is None:
        out, kv_sum, k_sum = attend(features, v, state, causal, chunk, eps)
    else:
        out = attend_in_documents(features, v, documents, causal, chunk, eps)
        mask = counted[:, None, :, None]  # type: ignore[index]  # set with documents
        kv_sum, k_sum = key_sums(
            features._replace(k=features.k * mask, k_plain=features.k_plain * mask), v
        )
    return out.to(v.dtype), State(kv_sum, k_sum, count)


def _default_positions(q: Tensor, padding: Tensor | None, documents: Tensor | None) -> Tensor:
    """Return positions from 0 on, [S] or [B, S]: over the real tokens of each row, or of each
    document.
    """
    if documents is not None:
        return positions_in_documents(documents, padding)
    return torch.arange(q.shape[-2], device=q.device) if padding is None else left_padded(padding)


def check_linear(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    rope: Rope,
    form: str,
    phi: str | Callable,
    state: State | None,
    chunk: int,
) -> str | None:
    """Raise an error for bad arguments of `linear_attention`; return the name of the feature that
    the Triton kernels compute for this call: "cosine" or the name of `phi`. None if they have none.
    """
    choice("form", form, FORMS)
    if isinstance(phi, str):
        choice("phi", phi, FEATURE_MAPS)
    integer("chunk", chunk, low=1)
    if q.shape != k.shape or q.shape[:-1] != v.shape[:-1]:
        rule = (
            "must match q in batch, heads, tokens and (k only) head_dim; repeat shared heads first"
        )
        raise RopeError("k, v", rule, [list(t.shape) for t in (q, k, v)])
    if state is not None and rope.spec.needs_length:
        rule = (
            "must be None with a scaling that depends on the length, as it holds keys rotated for "
            "an earlier length; use softmax attention"
        )
        raise RopeError("state", rule, rope.spec.scaling)
    if form == "cosine":
        return form
    # the kernels do not have the form "rotated"
    return phi if isinstance(phi, str) and form == "numerator" else None


def checked_scale(scale: Tensor | float, q: Tensor, form: str) -> Tensor | float:
    """Return the scale: a tensor [H] as [H, 1, 1], anything else as it is. Raise an error if the
    result does not broadcast to [B, H, 1, 1], or if the form has no scale (all but "cosine") and
    the scale is not 1.
    """
    if form != "cosine" and (isinstance(scale, Tensor) or scale != 1):
        raise RopeError(
            "scale",
            f"must be the number 1 for the form {form!r}, which has no scale; use form='cosine'",
            scale,
        )
    if not isinstance(scale, Tensor) or not scale.ndim:
        return scale
    shaped = scale.view(-1, 1, 1) if scale.ndim == 1 else scale
    batch, heads = q.shape[:2]
    if not 3 <= shaped.ndim <= 4 or any(
        # from the last axis to the first; shaped may lack the axis of the batch
        size not in (1, allowed)
        for size, allowed in zip(shaped.shape[::-1], (1, 1, heads, batch), strict=False)
    ):
        rule = f"must be one number, one for each head [{heads}], or [{batch}, {heads}, 1, 1]"
        raise RopeError("scale", rule, list(scale.shape))
    return shaped


def why_not_triton(
    q: Tensor,
    v: Tensor,
    rope: Rope,
    feature: str | None,
    scale: Tensor | float,
    causal: bool,
    documents: Tensor | None,
) -> str | None:
    """Return why the Triton kernels cannot run this call; None if they can. `feature` is what
    `check_linear` returns: the name of the feature that they compute, or None.
    """
    if not causal:
        return "the kernels are causal; a bidirectional pass is two matrix products in torch"
    if documents is not None:
        return "the kernels do not support packed documents"
    if torch.compiler.is_compiling():
        return "torch.compile compiles the torch code instead"
    return kernels.why_not(q, v, rope.spec, feature, scale)


class _KernelAttention(torch.autograd.Function):
    """Runs the Triton kernels in forward; backward recomputes in plain torch, which is also linear
    in the length.
    """

    @staticmethod
    def forward(
        ctx,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        kv_sum: Tensor,
        k_sum: Tensor,
        scale: Tensor | None,
        call: LinearCall,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the output and the sums after the last token, both from the kernels.

        kv_sum, k_sum  the two sums of the state before the first token
        scale          a of the form "cosine"; None for the other forms
        call           the other arguments: spec, feature, positions, padding (`real`) and eps
        """
        ctx.call = call
        ctx.save_for_backward(q, k, v, kv_sum, k_sum, scale)
        return kernels.run(q, k, v, kv_sum, k_sum, scale, call)

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients, by autograd through the sums in plain torch (`linear_sums.attend`),
        which are computed here from the saved inputs.
        """
        call: LinearCall = ctx.call
        needed: tuple[bool, ...] = ctx.needs_input_grad[:6]
        inputs: Any = [
            t if t is None else t.detach().requires_grad_(need)
            for t, need in zip(ctx.saved_tensors, needed, strict=True)
        ]
        q, k, v, kv_sum, k_sum, scale = inputs
        # the kernels name one feature; plain torch has a form and, for "numerator", its feature
        # map; "cosine" reads no feature map
        form, phi = ("cosine", "elu") if call.feature == "cosine" else ("numerator", call.feature)
        with torch.enable_grad():
            scale = 1.0 if scale is None else scale
            features = make_features(
                q, k, Rope(call.spec), call.positions, call.real, form, phi, scale
            )
            # in place of the state's count, which `attend` does not read, any tensor
            out, *state = attend(
                features, v, State(kv_sum, k_sum, call.positions), causal=True, eps=call.eps
            )
            out = out.to(v.dtype)
        with_grad = [t for t in inputs if t is not None and t.requires_grad]
        # an output may depend on nothing that needs a gradient, as k_sum does if only q needs one
        outputs, output_grads = zip(
            *((t, g) for t, g in zip((out, *state), grads, strict=True) if t.requires_grad),
            strict=True,
        )
        # `needed` says which of the six inputs get the next gradient; `call` has none
        input_grads = iter(torch.autograd.grad(outputs, with_grad, output_grads, allow_unused=True))
        return *(next(input_grads) if need else None for need in needed), None


def identity_rope(head_dim: int) -> Rope:
    """Return a Rope that rotates by 0 everywhere, for linear attention whose positions are added
    elsewhere, or that has no positions.
    """
    # only one pair rotates, by a frequency far below 2^-64 turns per step, which is rounded to 0
    return Rope(RopeSpec(head_dim=head_dim, rotary_dim=2, scaling=Linear(factor=1e30)))


class LinearAttention(nn.Module):
    """Multi-head linear attention with RoPE and the projections of `Attention`; time and memory are
    linear in the length.

    form "numerator" rotates the numerator only; "cosine" has weights 1 + a cos >= 0, 0 <= a <= 1;
    "rotated" rotates the denominator too, for comparison.
    `phi`, `chunk`: as in `linear_attention`.
    `scale` is a in the "cosine" form: a number from 0 to 1; None: learned, one for each head.
    With `out_norm` each head's output is normed, since the weights of the "numerator" form do not
    sum to one.
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
        scale: float | None = None,
        causal: bool = True,
        bias: bool = False,
        out_norm: bool = True,
        chunk: int = CHUNK,
    ) -> None:
        """Create the projections and the norm of each head's output (none if `out_norm` is False).

        spec         the rotation; None: plain RoPE
        scale        a of the form "cosine"; None: learned, one for each head
        phi, chunk   as in `linear_attention`
        """
        super().__init__()
        self.num_heads, _, self.head_dim = head_sizes(
            model_dim, num_heads, num_kv_heads=None, head_dim=head_dim
        )
        choice("form", form, FORMS)
        if isinstance(phi, str):
            choice("phi", phi, FEATURE_MAPS)
        self.rope = Rope(RopeSpec(head_dim=self.head_dim) if spec is None else spec)
        self.form, self.phi, self.causal, self.chunk = form, phi, causal, chunk
        self.q_proj, self.k_proj, self.v_proj = (
            nn.Linear(model_dim, num_heads * self.head_dim, bias=bias) for _ in range(3)
        )
        self.o_proj = nn.Linear(num_heads * self.head_dim, model_dim, bias=bias)
        self.norm = nn.RMSNorm(self.head_dim, eps=1e-6) if out_norm else nn.Identity()
        if scale is not None and form != "cosine":
            raise RopeError(
                "scale",
                f"must be None for the form {form!r}, which has no scale; use form='cosine'",
                scale,
            )
        self.scale = None if scale is None else number("scale", scale, low=0, high=1)
        if form == "cosine" and scale is None:
            # the sigmoid of 3, 0.95, is the first scale
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
        """Return the output for x [B, S, model_dim] and the state; pass the state to the next call
        to continue the sequence. Other arguments as in `linear_attention`.
        """
        q, k, v = (
            proj(x).unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        scale = 1.0 if self.scale is None else self.scale
        if self.form == "cosine" and self.scale is None:
            scale = torch.sigmoid(self.raw_scale)
        out, state = linear_attention(
            q,
            k,
            v,
            self.rope,
            positions,
            form=self.form,
            phi=self.phi,
            scale=scale,
            causal=self.causal,
            padding=padding,
            documents=documents,
            state=state,
            chunk=self.chunk,
        )
        return self.o_proj(self.norm(out).transpose(1, 2).flatten(-2)), state
