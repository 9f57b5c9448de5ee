"""What each family of checkpoints calls things: configs and weights, theirs to ours and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from torch import nn

from ropewalk.models import checkpoints_decoder as decoder
from ropewalk.models import roformer_keys
from ropewalk.models.decoder import Decoder
from ropewalk.models.decoder_config import DecoderConfig
from ropewalk.models.roformer import RoFormer
from ropewalk.models.roformer_config import RoFormerConfig


class Piece(NamedTuple):
    """A tensor of a checkpoint that is a part of one of ours: its name in our words, and how many of our rows it is."""

    name: str
    rows: int


def no_pieces(key: str, config: Any) -> tuple[Piece, ...]:
    """Every weight is whole."""
    return ()


@dataclass(frozen=True)
class Family:
    """How to read and write the checkpoints of one `model_type`.

    config_from_hf  the object of a config.json -> our config
    config_to_hf    our config -> that object, its own `model_type` included
    build           our config -> the model
    to_ours         (their key, our config) -> our key, or None for an entry that is no weight of ours
    to_theirs       (our key, our config) -> their key
    pieces          (our key, our config) -> what stands for it in a file, row after row; none: it stands there whole
    """

    config_from_hf: Callable[[Mapping[str, Any]], Any]
    config_to_hf: Callable[[Any], dict[str, Any]]
    build: Callable[[Any], nn.Module]
    to_ours: Callable[[str, Any], str | None]
    to_theirs: Callable[[str, Any], str]
    pieces: Callable[[str, Any], tuple[Piece, ...]] = no_pieces


def _decoder_pieces(key: str, config: DecoderConfig) -> tuple[Piece, ...]:
    return tuple(Piece(*piece) for piece in decoder.pieces(key, config))


_DECODER = Family(
    decoder.config_from_hf, decoder.config_to_hf, Decoder, decoder.to_ours, decoder.to_theirs, _decoder_pieces
)  # fmt: skip

FAMILIES: dict[str, Family] = {
    **dict.fromkeys(decoder.MODEL_TYPES, _DECODER),
    **{
        name: Family(
            RoFormerConfig.from_hf,
            RoFormerConfig.to_hf,
            RoFormer,
            partial(roformer_keys.to_ours, model_type=name),
            partial(roformer_keys.to_theirs, model_type="roformer"),
        )
        for name in ("roformer", "bert")
    },
}
#: the model_type a config of ours is written by
WRITERS: dict[type, str] = {DecoderConfig: "llama", RoFormerConfig: "roformer"}
