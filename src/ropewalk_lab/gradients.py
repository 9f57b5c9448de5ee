"""Parameter groups of the optimizer, gradient norms by group, and clipping; no value is read from
the device, since the program would wait for it.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn

from ropewalk.encodings.base import Encoding
from ropewalk.rope import Rope
from ropewalk_lab.distributed import Parallel, local

#: groups of the parameters that belong to positions: learned frequencies, and all others of an
#: encoding
FREQUENCIES, ENCODING = "frequencies", "encoding"


def group_names(model: nn.Module) -> dict[str, str]:
    """Return {name of a parameter: its group}: FREQUENCIES if a Rope has it, ENCODING if it is
    another parameter of an encoding, else the name of its module in the layer or the model.
    """
    of_encodings = {}
    for module in model.modules():
        if isinstance(module, Rope | Encoding):
            # modules() yields a Rope after the encoding that contains it, so FREQUENCIES overwrites
            # ENCODING
            group = FREQUENCIES if isinstance(module, Rope) else ENCODING
            of_encodings |= {id(parameter): group for parameter in module.parameters()}
    groups = {}
    for name, parameter in model.named_parameters():
        # layers.3.attention.q_proj.weight -> attention; embedding.weight -> embedding
        module_name = re.sub(r"^.*\.\d+\.", "", name).split(".")[0]
        groups[name] = of_encodings.get(id(parameter), module_name)
    return groups


def parameter_groups(
    model: nn.Module, *, learning_rate: float, weight_decay: float, frequency_rate: float
) -> list[dict]:
    """Return AdamW's parameter groups. Weight decay applies only to parameters that have two or
    more dimensions and do not belong to an encoding.

    Learned frequencies have `frequency_rate` times the learning rate. A group keeps its multiple of
    the learning rate as "rate".
    """
    group_of, groups = group_names(model), {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            positional = group_of[name] in (FREQUENCIES, ENCODING)
            rate = frequency_rate if group_of[name] == FREQUENCIES else 1.0
            decay = 0.0 if positional or parameter.ndim < 2 else weight_decay
            groups.setdefault((rate, decay), []).append(parameter)
    return [
        {"params": params, "lr": learning_rate * rate, "rate": rate, "weight_decay": decay}
        for (rate, decay), params in groups.items()
    ]


class GradientNorms:
    """Norms of a model's gradients, in total and by group."""

    def __init__(self, model: nn.Module, parallel: Parallel) -> None:
        """Find the group of each parameter that is trained."""
        trained = {
            name: parameter
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }
        group_of = group_names(model)
        self.names = sorted({group_of[name] for name in trained})
        self.parameters = list(trained.values())
        self.parallel = parallel
        # the group of each parameter, as an index of `names`
        self._group = torch.tensor([self.names.index(group_of[name]) for name in trained])

    def measure(self) -> Tensor:
        """Return the norm of all gradients, then those of the groups in the order of `names`,
        float32 [1 + groups], on the device.
        """
        grads = [None if p.grad is None else local(p.grad) for p in self.parameters]
        # which parameters have a gradient here; with FSDP a rank's shard may be empty
        present = [i for i, grad in enumerate(grads) if grad is not None and grad.numel()]
        first = local(self.parameters[0])
        squares = torch.zeros(len(self.names), dtype=torch.float32, device=first.device)
        if present:
            self._group = self._group.to(first.device)
            norms = torch.stack(
                [n.float() for n in torch._foreach_norm([grads[i] for i in present])]  # type: ignore
            )  # type: ignore[misc]
            # an index is copied to the device, so it is used only if a gradient is missing
            group = self._group if len(present) == len(grads) else self._group[present]
            squares.index_add_(0, group, norms.square())
        # with FSDP these are only the squares of this rank's shards
        squares = self.parallel.sum_of_shards(squares)
        return torch.cat((squares.sum().sqrt()[None], squares.sqrt()))

    @torch.no_grad()
    def clip(self, norm: Tensor, max_norm: float) -> None:
        """Scale all gradients in place by max_norm / norm if `norm`, their total, is above
        `max_norm`.
        """
        # 1e-6 avoids a division by 0, as in torch's clip_grad_norm_
        factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_([local(p.grad) for p in self.parameters if p.grad is not None], factor)  # type: ignore[attr-defined]
