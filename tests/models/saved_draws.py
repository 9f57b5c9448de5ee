"""Values for every field of the two model configs, drawn alone and together, and the transformers
model of a saved folder.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import torch
import transformers
from transformers.utils import logging

import ropewalk as rw
from ropewalk import frequencies
from ropewalk.attention.remap import SelfExtend
from ropewalk.encodings import ENCODINGS
from ropewalk.errors import RopeError
from ropewalk.models import HEADS, Decoder, DecoderConfig, RoFormer, RoFormerConfig
from ropewalk.models.activations import ACTIVATIONS
from ropewalk.temperatures import FloorLog, LogN

logging.set_verbosity_error()
logging.disable_progress_bar()

VOCAB, SEQ, HEAD_DIM, PAIRS = 37, 15, 10, 5
YARN = frequencies.Yarn(factor=4.0, original_length=6)
#: scalings whose frequencies or magnitude differ from the plain ones before token SEQ
SCALINGS = (
    frequencies.Linear(3.0),
    frequencies.Ntk(4.0),
    YARN,
    frequencies.Yarn(factor=4.0, original_length=6, attention_factor=1.3),
    frequencies.Dynamic(factor=2.0, original_length=6),
    frequencies.XPos(),
    frequencies.Learnable(),
    frequencies.Llama3(factor=8.0, original_length=8, low_freq_factor=1.0, high_freq_factor=4.0),
    frequencies.LongRope((1.0,) * PAIRS, (3.0,) * PAIRS, original_length=8, factor=4.0),
    frequencies.Given((0.5,) * PAIRS),
)


def specs(layout: str) -> list[rw.RopeSpec]:
    """Return one spec for each thing in which a spec can differ from the plain rotation."""
    plain, other = (
        rw.RopeSpec(HEAD_DIM, layout=layout),
        "half" if layout == "interleaved" else "interleaved",
    )
    changes = (
        {},
        {"precision": "hf"},
        {"precision": "hf_frequencies"},
        {"theta": 300.0},
        {"layout": other},
        {"layout_out": other},
        {"rotary_dim": 6},
        {"rotary_dim": 6, "rotary_start": 2},
        {"extra_softmax_factor": 1.5},
        {"scaling": YARN, "magnitude_on": "q"},
        {"scaling": YARN, "magnitude_on": "scale"},
        *({"scaling": scaling} for scaling in SCALINGS),
    )
    return [plain.with_(**each) for each in changes]


FLAG = [False, True]
#: field -> its values; the first is used where the field is not drawn
ROFORMER: dict[str, list[Any]] = {
    "vocab_size": [VOCAB, 41],
    "hidden_size": [30, 20],
    "num_layers": [2, 1],
    "num_heads": [3, 1],
    "intermediate_size": [22, 9],
    "embedding_size": [None, 14],
    "encoding": ["rope", "learned", *sorted(ENCODINGS), *specs("interleaved")],
    "attention": ["softmax", "linear"],
    "head": ["none", *HEADS],
    "length": [16, 40],
    "activation": ["gelu", *ACTIVATIONS],
    "dropout": [0.1, 0.0],
    "attention_dropout": [0.1, 0.3],
    "type_vocab_size": [2, 1, 3],
    "initializer_range": [0.02, 0.5],
    "norm": ["layer_norm", "rms_norm"],
    "norm_eps": [1e-12, 1e-2],
    "bias": [True, False],
    "pad_token": [0, None, 5],
    "rotary_value": FLAG,
    "causal": FLAG,
    "tie_embeddings": [True, False],
    "num_labels": [2, 1, 5],
    "summary": ["last", "first", "mean"],
    "summary_projection": FLAG,
    "summary_activation": [None, "tanh", "relu"],
    "classifier_activation": [None, "tanh", "relu"],
    "pooler_activation": ["tanh", "relu"],
    "head_dropout": ["roformer", "bert"],
}
DECODER: dict[str, list[Any]] = {
    "vocab_size": [VOCAB, 41],
    "hidden_size": [24, 20],
    "intermediate_size": [38, 16],
    "num_layers": [2],
    "num_heads": [6, 2],
    "num_kv_heads": [2, None, 1],
    "head_dim": [HEAD_DIM, None],
    "window": [None, 3],
    "attention": ["softmax", "linear"],
    "encoding": [
        "rope",
        *sorted(ENCODINGS),
        *specs("half"),
        {"full": rw.RopeSpec(HEAD_DIM), "sliding": None},
        {"full": rw.RopeSpec(HEAD_DIM), "sliding": rw.RopeSpec(HEAD_DIM, theta=100.0)},
    ],
    "layer_types": [
        None,
        ("full", "sliding"),
        ("full", "nope"),
        ("sliding", "nope"),
        ("nope", "nope"),
    ],
    "qk_norm": FLAG,
    "qkv_bias": FLAG,
    "o_bias": FLAG,
    "mlp_bias": FLAG,
    "norm_eps": [1e-6, 1e-2],
    "tie_embeddings": [True, False],
    "activation": ["silu", *ACTIVATIONS],
    "dropout": [0.0, 0.2],
    "attention_dropout": [None, 0.3],
    "length": [24, 64],
    "num_experts": [0, 4],
    "experts_per_token": [1, 2],
    "moe_intermediate_size": [None, 8],
    "norm_topk": [True, False],
    "router_aux_coef": [0.0, 0.1],
    "dense_layers": [(), (0,), (0, 1)],
    "init_std": [0.02, 0.5],
    "temperature": [None, FloorLog(0.3, 2), LogN(2), {"full": FloorLog(0.3, 2)}],
    "remapping": [None, SelfExtend(2, 2)],
}
#: config class -> (its model, values of its fields)
CONFIGS = {RoFormerConfig: (RoFormer, ROFORMER), DecoderConfig: (Decoder, DECODER)}


def alone(kind: type, count: int | None, seed: int = 0) -> list[dict[str, Any]]:
    """Return dicts that change one field each, to each of its values but the first; with a `count`,
    only that many of them, drawn at random.
    """
    draws = [{name: value} for name, values in CONFIGS[kind][1].items() for value in values[1:]]
    return draws if count is None else random.Random(seed).sample(draws, count)


def together(kind: type, count: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield dicts that change a few fields at once; half of them change no encoding, attention, norm
    or bias, so that more of the models can be saved.
    """
    draw, values = random.Random(seed), CONFIGS[kind][1]
    for _ in range(count):
        names = draw.sample(sorted(values), draw.randint(2, 6))
        if draw.random() < 0.5:
            names = [
                name for name in names if name not in ("encoding", "attention", "norm", "bias")
            ]
        yield {name: draw.choice(values[name]) for name in names}


def build(kind: type, changes: dict[str, Any], seed: int) -> torch.nn.Module | None:
    """Return a model whose weights are large enough for every part to matter; None if the fields
    contradict each other.
    """
    maker, values = CONFIGS[kind]
    fields = {name: each[0] for name, each in values.items()} | changes
    try:
        model = maker(kind(**fields)).eval()
    except RopeError:
        return None
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(float(parameter.ndim == 1), 0.3)
    return model


def tokens_for(model: torch.nn.Module) -> torch.Tensor:
    shape = (2, 3, SEQ) if getattr(model.config, "head", None) == "multiple_choice" else (2, SEQ)
    return torch.randint(1, VOCAB, shape)


def peer_of(folder) -> torch.nn.Module:
    """Return the transformers model of a saved folder; tables that follow from the config may be
    absent from it.
    """
    config = json.loads((folder / "config.json").read_text())
    experts = {"experts_implementation": "eager"} if config["model_type"] == "qwen3_moe" else {}
    kind = getattr(transformers, config["architectures"][0])
    model, report = kind.from_pretrained(folder, output_loading_info=True, **experts)
    allowed = (
        "embed_positions.weight",
        "pooler.dense.weight",
        "pooler.dense.bias",
        "cls.predictions.bias",
    )
    assert all(
        name.endswith(allowed) for name in (*report["missing_keys"], *report["unexpected_keys"])
    ), report
    assert not report["mismatched_keys"]
    return model.eval()


def answer(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Return the output of a transformers model as one tensor."""
    found = model(tokens)
    if hasattr(found, "start_logits"):
        return torch.stack((found.start_logits, found.end_logits), dim=-1)
    return found.logits if hasattr(found, "logits") else found.last_hidden_state
