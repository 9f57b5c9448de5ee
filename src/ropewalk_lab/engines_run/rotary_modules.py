"""Rotate unit vectors with the rotary modules that vLLM and SGLang give the layers of a model.

Words of this module:
  rope   what a rotary module does, as plain data: frequencies, axis of each pair, magnitude, layout
  table  the cos and sin of some positions
  axes   the position axes of a token: 1, or 3 for M-RoPE
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from typing import Any

import probe
import torch
import transformers_tables

#: in the name of a module, the index of the layer that it is in
LAYER = re.compile(r"(?:layers|h|blocks)\.(\d+)\.")


class Rotated(Exception):  # a signal, not an error
    """The rotary module of a layer was called."""


def layers_of(
    model: torch.nn.Module,
    package: str,
    length: int,
    axes: int,
    reached_attention: Callable[[Exception], bool],
    **call: Any,
) -> list[dict[str, Any] | None]:
    """Return the rope of each layer, read back from its rotary module, or from the cos and sin that
    the model passes to it; None for a layer that does not rotate.

    length, axes       the length of the sequence, and the number of position axes, 1 or 3
    package            the package of the engine's rotary modules
    reached_attention  a function that says of an error whether an attention module raised it
                       because it reached its attention
    call               arguments of attention modules besides positions and hidden states
    """
    if (passed := _passed_tables(model, length)) is not None:
        return passed
    ropes: dict[int, dict[str, Any] | None] = {}  # by layer
    layers = set()
    # duplicates too: one rotary module may belong to several layers
    for name, module in model.named_modules(remove_duplicate=False):
        number = LAYER.search(name + ".")  # the layer itself, such as "layers.3", is one too
        if number is None or "vis" in name:  # outside the layers, or in an image tower
            continue
        layers.add(int(number[1]))
        if type(module).__module__.startswith(package) and hasattr(module, "rotary_dim"):
            owner = model.get_submodule(name.rpartition(".")[0])
            used = _uses(owner, module, axes, reached_attention, call)
            ropes[int(number[1])] = (
                probe.rope_of_matrices(_matrices(module, axes, length)) if used else None
            )
    if not ropes:  # transformers' own code, run by the engine
        return transformers_tables.layers_of(model, length)
    return [ropes.get(layer) for layer in range(max(layers) + 1)]


class Passed(Exception):  # a signal, not an error
    """The attention of a layer was called with cos and sin."""

    def __init__(self, table: tuple[torch.Tensor, torch.Tensor]) -> None:
        super().__init__()
        self.table = table


def _passed_tables(model: torch.nn.Module, length: int) -> list[dict[str, Any] | None] | None:
    """Return the rope of each layer of a model that computes cos and sin itself and passes them to
    its layers, None for a layer that does not rotate; None in place of the list if the layers
    rotate with modules of their own. `length` is that of the sequence.

    Such a layer may have a rotary module too, which its forward does not call (SGLang's Gemma 3 on
    all but some CPUs). So the model's own forward runs, on zeros, and what reaches each attention
    is read. The layers keep their replaced forwards, so the model cannot be used after that.
    """
    for name, module in model.named_modules():
        if "vis" in name:  # an image tower
            continue
        layers: Any = getattr(module, "layers", None)
        attention: Any = getattr(layers[0], "self_attn", None) if layers else None
        if type(attention).__module__.startswith("transformers."):
            continue  # transformers' own code, which `transformers_tables` reads
        forward = getattr(attention, "forward_native", None) or getattr(attention, "forward", None)
        if forward is None or "position_embeddings" not in inspect.signature(forward).parameters:
            continue
        rotate = sys.modules[type(attention).__module__].apply_rotary_pos_emb
        tables: list[tuple[torch.Tensor, torch.Tensor]] = []
        for layer in layers:
            _stop_at_attention(layer, tables)
        hidden = torch.zeros(2, module.config.hidden_size)  # type: ignore[union-attr]
        # nothing but the tables is read, so the last norm passes its input on
        module.norm.forward = lambda x, residual=None: (x, residual)  # type: ignore[union-attr]
        # position 1 is read; the last one makes a scaling that depends on the length see `length`
        positions = torch.tensor([1, length - 1])
        module(input_ids=None, positions=positions, forward_batch=None, input_embeds=hidden)
        size = int(attention.head_dim)  # type: ignore[union-attr]
        return [_rope_of_table(rotate, size, *table) for table in tables]
    return None


def _stop_at_attention(
    layer: torch.nn.Module, tables: list[tuple[torch.Tensor, torch.Tensor]]
) -> None:
    """Replace a layer's forward by one that runs up to its attention and appends the (cos, sin)
    that the attention gets to `tables`.
    """

    def attend(*_: Any, position_embeddings: Any, **__: Any) -> None:
        raise Passed(position_embeddings)

    whole = layer.forward
    # nothing but the tables is read, so the norm passes its input on
    layer.self_attn.forward = attend  # type: ignore[union-attr]
    layer.input_layernorm.forward = (  # type: ignore[union-attr]
        lambda x, residual=None: x if residual is None else (x, residual)
    )

    def forward(*args: Any, hidden_states: torch.Tensor, **named: Any) -> Any:
        """Run the layer up to its attention, record the table, and pass the input on."""
        try:
            whole(*args, hidden_states=hidden_states, **named)
        except Passed as passed:
            tables.append(passed.table)
        return hidden_states, hidden_states  # the output and the residual

    layer.forward = forward


def _rope_of_table(
    rotate: Callable[..., Any], size: int, cos: torch.Tensor, sin: torch.Tensor
) -> dict[str, Any] | None:
    """Return the rope that the function `rotate` makes of the cos and sin of positions 1 and length
    - 1, for heads of `size` dimensions; it is read at position 1.
    """
    cos, sin = (each.reshape(-1, each.shape[-1]).float() for each in (cos, sin))
    units = torch.eye(size)[None].repeat(2, 1, 1)  # [tokens, heads, size]
    rotated, _ = rotate(units, units.clone(), cos, sin)
    return probe.rope_of_matrices([rotated[0].T.numpy()])


def _uses(
    owner: torch.nn.Module,
    rotary: torch.nn.Module,
    axes: int,
    reached_attention: Callable[[Exception], bool],
    call: dict[str, Any],
) -> bool:
    """Return whether the attention module `owner` calls its module `rotary`: run it with zeros
    until it calls that module or reaches its attention.

    The result is True if it fails before either, and False if it returns without either. `axes`,
    `reached_attention` and `call` are as in `layers_of`.
    """

    def stop(*_: Any, **__: Any) -> None:
        raise Rotated

    rotary.forward = stop
    positions = torch.zeros((3, 2) if axes == 3 else (2,), dtype=torch.long)
    weights = (
        value
        for name, value in owner.named_parameters()
        if name.endswith("weight") and value.ndim == 2
    )
    # the size of hidden states, which the first matrix takes
    width = next((weight.shape[1] for weight in weights), 1)
    try:
        owner(positions=positions, hidden_states=torch.zeros(2, width), **call)
    except Rotated:
        return True
    except Exception as error:
        return not reached_attention(error)
    finally:
        del rotary.forward  # the forward of its class is found again
    return False


def _matrices(rotary: torch.nn.Module, axes: int, length: int) -> list[Any]:
    """Return a matrix for each axis, whose column i is the unit vector e_i, rotated by one step on
    that axis by the module `rotary`.

    A second token is at the end of the sequence of `length` tokens, because SGLang's LongRoPE looks
    at all positions of a batch.
    """
    size = int(rotary.head_size)  # type: ignore[arg-type]  # an attribute of every one here
    # each unit vector is a head; the rope of latent attention takes heads on an axis of their own
    units = (
        torch.eye(size)[None]
        if "Deepseek" in type(rotary).__name__
        else torch.eye(size).reshape(1, size * size)
    )
    units = units.repeat(2, *[1] * (units.ndim - 1))  # the same for both tokens
    rotate = getattr(rotary, "forward_native", rotary.forward)
    table_lengths = (table.shape[0] for name, table in rotary.named_buffers() if "cache" in name)
    # a module without a table has no limit
    last = min(length, max(table_lengths, default=length)) - 1
    matrices = []
    for axis in range(axes):
        positions = torch.tensor([1, last])
        if axes == 3:
            positions = torch.stack(
                [torch.eye(3, dtype=torch.long)[:, axis], torch.full((3,), last)], dim=1
            )
        rotated, _ = rotate(positions, units.clone(), units.clone())
        # some put an axis before that of the tokens
        matrices.append(rotated.reshape(2, size, size)[0].T.float().numpy())
    return matrices
