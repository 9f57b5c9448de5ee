"""Inputs for the tiny model of any family: tokens for text, random pixels, features or waves for
the others.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator
from itertools import product
from typing import Any

import torch
from tiny_configs import HIDDEN, PLAIN_TOKENS, VOCAB
from torch import Tensor, nn
from transformers import PreTrainedModel

ROWS, TOKENS = 2, 11
#: patches of one image
GRID = (1, 4, 4)


def part_of(model: PreTrainedModel) -> nn.Module:
    """Return the part of a model to run: all of it, or the memory attention of a video tracker,
    which needs no session.
    """
    return getattr(model, "memory_attention", model)


def inputs_for(model: PreTrainedModel) -> Iterator[dict[str, Any]]:
    """Yield arguments that the model may accept: tokens first, then other inputs, then both."""
    names = inspect.signature(part_of(model).forward).parameters
    quiet = {name: False for name in ("use_cache",) if name in names}
    text = {"input_ids": tokens(), **positions_for(model)} if "input_ids" in names else {}
    texts = [text]
    if "decoder_input_ids" in names:  # the second: nine channels of audio
        texts = [
            {**text, "decoder_input_ids": each}
            for each in (tokens(7), tokens(7 * 9).unflatten(-1, (7, 9)))
        ]
    if text:
        yield from ({**each, **quiet} for each in texts)
    makers = {name: OTHERS[name] for name in names if name in OTHERS}
    if len(makers) > 1:
        makers.pop("inputs_embeds", None)
    for chosen in (
        product(*(make(model.config, names) for make in makers.values())) if makers else ()
    ):
        others = {**dict(zip(makers, chosen, strict=True)), **quiet}
        yield from ({**others, **each} for each in ([{}, *texts] if text else texts))


def tokens(count: int = TOKENS, rows: int = ROWS) -> Tensor:
    """Return ids of ordinary tokens."""
    return torch.randint(
        PLAIN_TOKENS, VOCAB, (rows, count), generator=torch.Generator().manual_seed(3)
    )


def positions_for(model: PreTrainedModel) -> dict[str, Tensor]:
    """Return positions that differ on every axis, for models with several axes; {} for all others."""
    axes = axes_of(model)
    if axes == 1 or "position_ids" not in inspect.signature(model.forward).parameters:
        return {}
    drawn = torch.randint(0, 40, (axes, ROWS, TOKENS), generator=torch.Generator().manual_seed(4))
    return {"position_ids": drawn.sort(dim=-1).values}


def axes_of(model: PreTrainedModel) -> int:
    """Return how many axes the text positions of a model have."""
    rope = getattr(model.config.get_text_config(), "rope_parameters", None) or {}
    for part in (rope, *(each for each in rope.values() if isinstance(each, dict))):
        if part.get("mrope_section"):
            return len(part["mrope_section"])
    return 1


def _random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(5))


def _patches(config: Any, names: Collection[str]) -> list[Tensor]:
    """Return the patches of GRID, flat or as small images; whole images for a tower that takes no
    grid.
    """
    side, size = getattr(config, "image_size", 16), getattr(config, "patch_size", 4)
    images = [_random(ROWS, 3, *((side, side) if isinstance(side, int) else side))]
    if not {"grid_thw", "hidden_states", "pixel_position_ids"} & set(names):
        return [*images, _random(ROWS, 1, 3, 16, 16), _random(ROWS, 2, 3, 16, 16)]
    channels = getattr(config, "in_channels", None) or getattr(config, "num_channels", 3)
    frames = getattr(config, "temporal_patch_size", None) or getattr(config, "patch_temporal", 1)
    count, area = GRID[0] * GRID[1] * GRID[2], channels * size * size
    return [
        _random(count, frames * area),
        _random(count, channels, size, size),
        _random(count, area),
        _random(1, count, area),
    ]


def _grid_places(config: Any, names: Collection[str]) -> list[Tensor]:
    """Row and column of each patch of GRID."""
    return [torch.cartesian_prod(torch.arange(GRID[1]), torch.arange(GRID[2]))[None]]


#: parameters of forward -> tensors that it may accept
OTHERS: dict[str, Callable[[Any, Collection[str]], list[Any]]] = {
    "hidden_states": _patches,
    "pixel_values": _patches,
    "grid_thw": lambda config, names: [torch.tensor([GRID])],
    "pixel_position_ids": _grid_places,
    "merge_sizes": lambda config, names: [torch.tensor([1])],
    "image_sizes": lambda config, names: [torch.tensor([[16, 16]] * ROWS)],
    "inputs_embeds": lambda config, names: [_random(ROWS, TOKENS, HIDDEN)],
    "noise_embeds": lambda config, names: [_random(ROWS, 5, HIDDEN)],
    "context_hidden_states": lambda config, names: [
        _random(ROWS, 6, HIDDEN * len(config.target_layer_ids))
    ],
    "input_features": lambda config, names: [
        _random(ROWS, *shape) for shape in ((64, 16), (16, 64), (64, 160))
    ],
    "input_values": lambda config, names: [_random(ROWS, 1, 1920 * 8), _random(ROWS, 3200)],
    "image_attention_mask": lambda config, names: [torch.ones(ROWS, TOKENS, 1)],
    "current_vision_features": lambda config, names: [_random(16, 1, HIDDEN)],
    "memory": lambda config, names: [_random(2 * 16 + 4, 1, 64)],
    "memory_posision_embeddings": lambda config, names: [_random(2 * 16 + 4, 1, 64)],
    "num_object_pointer_tokens": lambda config, names: [4],
    "past_values": lambda config, names: [_random(ROWS, 256)],
}
