"""Feed-forward networks: one gated network per layer, or a mixture of experts as in Qwen3-MoE and
MiniMind.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ropewalk.models.activations import ACTIVATIONS
from ropewalk.models.decoder_config import DecoderConfig


class Routes(NamedTuple):
    """The routing of T tokens in a layer: probabilities [T, experts] in float32 (float64 in a
    float64 model) and the k chosen experts of each, [T, k].
    """

    probabilities: Tensor
    chosen: Tensor


class _Gated(torch.autograd.Function):
    """silu(gate) * up that saves only its packed input; autograd would also save silu(gate) and
    concatenate two gradients.
    """

    @staticmethod
    def forward(ctx, packed: Tensor) -> Tensor:
        ctx.save_for_backward(packed)
        gate, up = packed.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor) -> Tensor:
        """Return the gradient of packed [gate | up] for silu(gate) * up."""
        (packed,) = ctx.saved_tensors
        gate, up = packed.chunk(2, dim=-1)
        out = torch.empty_like(packed)
        gate_grad, up_grad = out.chunk(2, dim=-1)
        torch.mul(grad, F.silu(gate), out=up_grad)
        torch.ops.aten.silu_backward.grad_input(grad * up, gate, grad_input=gate_grad)
        return out


def gated(packed: Tensor, activation: str) -> Tensor:
    """Return activation(gate) * up of packed [..., 2 I] = [gate, up]."""
    if activation in ("silu", "swish") and not torch.compiler.is_compiling():
        # torch.compile fuses the formula below itself
        return _Gated.apply(packed)  # type: ignore[return-value]
    gate, up = packed.chunk(2, dim=-1)
    return ACTIVATIONS[activation](gate) * up


class GatedNetwork(nn.Module):
    """down(activation(gate(x)) * up(x)), with gate and up in one matrix."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.activation = config.activation
        self.gate_up_proj = nn.Linear(
            config.hidden_size, 2 * config.intermediate_size, bias=config.mlp_bias
        )
        self.down_proj = nn.Linear(
            config.intermediate_size, config.hidden_size, bias=config.mlp_bias
        )

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        """Return the output, and None where a mixture of experts returns its routes."""
        return self.down_proj(gated(self.gate_up_proj(x), self.activation)), None


class Experts(nn.Module):
    """The matrices of all E experts: gate_up [E, 2 I, hidden] and down [E, hidden, I], with I =
    `moe_intermediate_size`.
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        count, size, hidden = (
            config.num_experts,
            config.moe_intermediate_size or 0,  # set by the config; `or 0` is for the type checker
            config.hidden_size,
        )
        self.activation = config.activation
        self.gate_up_proj = nn.Parameter(torch.empty(count, 2 * size, hidden))
        self.down_proj = nn.Parameter(torch.empty(count, hidden, size))

    def run_expert(self, x: Tensor, expert: int) -> Tensor:
        """Apply the expert with index `expert` to x [T, hidden]."""
        return F.linear(
            gated(F.linear(x, self.gate_up_proj[expert]), self.activation), self.down_proj[expert]
        )

    def forward(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """Return the weighted sum of each token's chosen experts; x [T, hidden], weights and chosen
        [T, k].
        """
        if torch.compiler.is_compiling() or not x.shape[0]:
            # the sizes below depend on values, which a compiled graph cannot have; without tokens
            # there is nothing to sort
            return self._run_all(x, weights, chosen)
        count, per_token = self.gate_up_proj.shape[0], chosen.shape[-1]
        # sort all (token, expert) choices by expert, so that each expert runs once, over all of its
        # tokens
        order = chosen.flatten().argsort(stable=True)
        token = order // per_token
        # the host needs the sizes, so it waits for the device here
        sizes = chosen.flatten().bincount(minlength=count).tolist()
        inputs = x[token].split(sizes)  # the tokens of each expert
        outputs = [
            self.run_expert(inputs[expert], expert) for expert in range(count) if sizes[expert]
        ]
        weighted = torch.cat(outputs) * weights.flatten()[order].unsqueeze(-1)
        return torch.zeros_like(x).index_add(0, token, weighted.to(x.dtype))

    def _run_all(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """Return what `forward` returns by applying every expert to every token: no shape depends
        on values, so it compiles to one graph.
        """
        count = self.gate_up_proj.shape[0]
        # [T, E], 0 for experts not chosen
        all_weights = weights.new_zeros(x.shape[0], count).scatter(1, chosen, weights)
        return sum(
            (self.run_expert(x, i) * all_weights[:, i : i + 1] for i in range(count)),
            torch.zeros_like(x),
        )


class MixtureOfExperts(nn.Module):
    """A router picks a few experts for each token and weights their outputs by its softmax over all
    experts, divided by its sum over the chosen ones if `norm_topk`.
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.per_token, self.norm_topk = config.experts_per_token, config.norm_topk
        self.gate = nn.Linear(config.hidden_size, config.num_experts, bias=False)
        self.experts = Experts(config)

    def forward(self, x: Tensor) -> tuple[Tensor, Routes]:
        """Return the weighted sum of the chosen experts' outputs for each token of x [..., hidden],
        and the routes.
        """
        flat = x.flatten(0, -2)
        scores = self.gate(flat)
        dtype = torch.float64 if scores.dtype == torch.float64 else torch.float32
        probabilities = scores.softmax(dim=-1, dtype=dtype)
        weights, chosen = probabilities.topk(self.per_token, dim=-1)
        if self.norm_topk:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        out = self.experts(flat, weights.to(scores.dtype), chosen)
        return out.view_as(x), Routes(probabilities, chosen)


def balance_loss(routes: list[Routes], padding: Tensor | None = None) -> Tensor:
    """Return the load-balancing loss: E * the sum over the E experts of (choices per token * mean
    router probability).

    It is k, the number of experts per token, if all are used evenly, and mostly larger otherwise.
    The means are over the tokens of all layers; `padding` [B, S] is False for tokens that are left
    out. Without any token the loss is 0.
    """
    probabilities = torch.cat([route.probabilities for route in routes])  # [layers T, E]
    chosen = torch.cat([route.chosen for route in routes])  # [layers T, k]
    count = probabilities.shape[-1]
    real = (
        torch.ones_like(probabilities[:, :1])
        if padding is None
        else padding.flatten().repeat(len(routes)).unsqueeze(-1)
    )
    real = real.to(probabilities.dtype)
    # how often each token chose each expert; padding counts 0
    counts = probabilities.new_zeros(chosen.shape[0], count).scatter_add(
        1, chosen, real.expand_as(chosen)
    )
    return (
        count
        * (counts.sum(0) * (probabilities * real).sum(0)).sum()
        / real.sum().clamp(min=1).square()
    )
