"""Names of weights: how Hugging Face RoFormer and BERT checkpoints call what a RoFormer here holds."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor, nn

from ropewalk.errors import RopeError
from ropewalk.models.roformer import RoFormer
from ropewalk.models.roformer_config import RoFormerConfig

#: (theirs, ours) without the leading "roformer." or "bert.", longest first where one begins another
ENCODER_NAMES = (
    ("embeddings.word_embeddings.", "embeddings.words."),
    ("embeddings.token_type_embeddings.", "embeddings.types."),
    ("embeddings.position_embeddings.", "embeddings.encoding.table."),
    ("embeddings.LayerNorm.", "embeddings.norm."),
    ("embeddings_project.", "embeddings.project."),
)
LAYER_NAMES = (
    ("attention.self.query.", "attention.q_proj."),
    ("attention.self.key.", "attention.k_proj."),
    ("attention.self.value.", "attention.v_proj."),
    ("attention.output.dense.", "attention.o_proj."),
    ("attention.output.LayerNorm.", "attention_norm."),
    ("intermediate.dense.", "up."),
    ("output.dense.", "down."),
    ("output.LayerNorm.", "down_norm."),
)
_LANGUAGE_MODEL = (
    ("cls.predictions.transform.dense.", "head.transform."),
    ("cls.predictions.transform.LayerNorm.", "head.norm."),
)
#: head -> (theirs, ours), of RoFormer and of BERT
HEAD_NAMES: dict[str, dict[str, tuple[tuple[str, str], ...]]] = {
    "roformer": {
        "none": (),
        "masked_lm": _LANGUAGE_MODEL,
        "causal_lm": _LANGUAGE_MODEL,
        "classification": (("classifier.dense.", "head.dense."), ("classifier.out_proj.", "head.out.")),
        "token_classification": (("classifier.", "head.out."),),
        "multiple_choice": (("sequence_summary.summary.", "head.summary."), ("classifier.", "head.out.")),
        "question_answering": (("qa_outputs.", "head.out."),),
        "similarity": (("roformer.pooler.dense.", "head.pooler."),),
    },
    "bert": {
        "none": (),
        "masked_lm": _LANGUAGE_MODEL,
        "causal_lm": _LANGUAGE_MODEL,
        "classification": (("bert.pooler.dense.", "head.dense."), ("classifier.", "head.out.")),
        "token_classification": (("classifier.", "head.out."),),
        "multiple_choice": (("bert.pooler.dense.", "head.summary."), ("classifier.", "head.out.")),
        "question_answering": (("qa_outputs.", "head.out."),),
        "similarity": (("bert.pooler.dense.", "head.pooler."),),
    },
}
#: entries that are no weights of ours, whatever the head: tables a rotation does not need, and what only pretraining used
IGNORED = re.compile(r"(encoder\.embed_positions\.weight|embeddings\.(position|token_type)_ids|cls\.seq_relationship\.\w+)$")
#: entries of another head than the model's
OTHER_HEADS = re.compile(r"^(cls|classifier|qa_outputs|sequence_summary|pooler)\.")
_LAYER = re.compile(r"^encoder\.layer\.(\d+)\.(.+)$")


def to_ours(key: str, config: RoFormerConfig, model_type: str = "roformer") -> str | None:
    """Our name of a checkpoint's entry; None for what a model of this config does not hold.

    Entries of another head are left out too, so that any head can be put on any checkpoint. A name that no such
    checkpoint has comes back as it is, for the loader to call surplus.
    """
    if IGNORED.search(key):
        return None
    # an old conversion from TensorFlow
    key = key.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
    prefix = model_type + "."
    pooled = prefix + key if key.startswith("pooler.") else key
    for theirs, ours in (*HEAD_NAMES[model_type][config.head], *_table_names(config)):
        if pooled.startswith(theirs):
            return ours + pooled.removeprefix(theirs)
    bare = key.removeprefix(prefix)
    if OTHER_HEADS.match(bare):
        return None
    layer = _LAYER.match(bare)
    start, rest, names = ("", bare, ENCODER_NAMES) if layer is None else (f"layers.{layer[1]}.", layer[2], LAYER_NAMES)
    for theirs, ours in names:
        if rest.startswith(theirs):
            return start + ours + rest.removeprefix(theirs)
    return key


def to_theirs(key: str, config: RoFormerConfig, model_type: str = "roformer") -> str:
    """The name transformers knows our weight by; a weight it has no name for (a trained bias, say) keeps ours."""
    for theirs, ours in (*HEAD_NAMES[model_type][config.head], *_table_names(config)):
        if key.startswith(ours):
            return theirs + key.removeprefix(ours)
    layer = re.match(r"^layers\.(\d+)\.(.+)$", key)
    start, rest, names = ("", key, ENCODER_NAMES) if layer is None else (f"encoder.layer.{layer[1]}.", layer[2], LAYER_NAMES)
    for theirs, ours in names:
        if rest.startswith(ours):
            return f"{model_type}.{start}{theirs}{rest.removeprefix(ours)}"
    return key


def _table_names(config: RoFormerConfig) -> tuple[tuple[str, str], ...]:
    """Where the language model keeps its word table and bias: tied, the table is the embeddings' and `decoder` repeats it."""
    if not config.head.endswith("_lm"):
        return ()
    if config.tie_embeddings:
        return (("cls.predictions.bias", "head.bias"),)
    # untied, transformers adds the bias inside `decoder` and leaves the other one unused
    return (("cls.predictions.decoder.weight", "head.decoder.weight"), ("cls.predictions.decoder.bias", "head.bias"))


def load_weights(model: RoFormer, weights: Mapping[str, Tensor], model_type: str = "roformer") -> None:
    """Put the entries of a checkpoint, under transformers' names, into `model`; a missing or surplus one is named."""
    renamed = ((to_ours(key, model.config, model_type), value) for key, value in weights.items())
    named = {key: value for key, value in renamed if key is not None}
    expected = model.state_dict()
    for rule, keys in (("lack", expected.keys() - named.keys()), ("have no place for", named.keys() - expected.keys())):
        if keys:
            raise RopeError("weights", f"{rule} {', '.join(sorted(keys)[:6])}", len(keys))
    for key, value in named.items():
        if value.shape != expected[key].shape:
            raise RopeError("weights", f"{key} must be {list(expected[key].shape)}", list(value.shape))
    model.load_state_dict(named)


def from_transformers(model: nn.Module) -> RoFormer:
    """A RoFormer with the config and weights of a transformers RoFormer or BERT, in its dtype and on its device."""
    config, model_type = _config_of(model)
    first = next(model.parameters())
    ours = RoFormer(config).to(device=first.device, dtype=first.dtype)
    load_weights(ours, model.state_dict(), model_type)
    return ours.train(model.training)


def left_out(model: nn.Module) -> tuple[str, ...]:
    """The weights of a transformers model that `from_transformers` has no place for: poolers and heads of pretraining."""
    config, model_type = _config_of(model)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}  # a tied one counts once
    return tuple(name for name in model.state_dict() if name in trained and to_ours(name, config, model_type) is None)


def _config_of(model: nn.Module) -> tuple[RoFormerConfig, str]:
    raw = getattr(model, "config", None)
    if raw is None or not hasattr(raw, "to_dict"):
        raise RopeError("model", "must be a transformers model, with its config", type(model).__name__)
    given = raw.to_dict() | {"architectures": [type(model).__name__]}
    return RoFormerConfig.from_hf(given), given["model_type"]
