"""RoFormer checkpoints: the weight names of Hugging Face RoFormer and BERT, and conversion of
loaded transformers models.

Words of this module:
  ours, theirs  the beginning of a name of our weight, and of the same weight in transformers
  hf_name       the whole name of a weight in transformers
  model_type    "roformer" or "bert", with which most of their names begin
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

from torch import Tensor, nn

from ropewalk.errors import RopeError
from ropewalk.interop.checkpoint.shards import check_names
from ropewalk.models.checkpoint_formats import CheckpointFormat, is_legacy
from ropewalk.models.roformer import RoFormer
from ropewalk.models.roformer_config import RoFormerConfig

#: (prefix in the file after "roformer." or "bert.", our prefix)
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
_COMMON_HEADS: dict[str, tuple[tuple[str, str], ...]] = {
    "none": (),
    "masked_lm": _LANGUAGE_MODEL,
    "causal_lm": _LANGUAGE_MODEL,
    "token_classification": (("classifier.", "head.out."),),
    "question_answering": (("qa_outputs.", "head.out."),),
}
#: model_type -> head -> (prefix in the file, our prefix)
HEAD_NAMES = {
    "roformer": _COMMON_HEADS
    | {
        "classification": (
            ("classifier.dense.", "head.dense."),
            ("classifier.out_proj.", "head.out."),
        ),
        "multiple_choice": (
            ("sequence_summary.summary.", "head.summary."),
            ("classifier.", "head.out."),
        ),
        "similarity": (("roformer.pooler.dense.", "head.pooler."),),
    },
    "bert": _COMMON_HEADS
    | {
        "classification": (("bert.pooler.dense.", "head.dense."), ("classifier.", "head.out.")),
        "multiple_choice": (("bert.pooler.dense.", "head.summary."), ("classifier.", "head.out.")),
        "similarity": (("bert.pooler.dense.", "head.pooler."),),
    },
}
#: index buffers, and the head that only pretraining used
IGNORED = re.compile(r"(embeddings\.(position|token_type)_ids|cls\.seq_relationship\.\w+)$")
#: the names of the weights of heads
ANY_HEAD = re.compile(r"^(cls|classifier|qa_outputs|sequence_summary|pooler)\.")
_HF_LAYER = re.compile(r"^encoder\.layer\.(\d+)\.(.+)$")
_LAYER = re.compile(r"^layers\.(\d+)\.(.+)$")


def name_from_hf(hf_name: str, config: RoFormerConfig, model_type: str = "roformer") -> str | None:
    """Return our name of the tensor that transformers calls `hf_name`, or None if a model of this
    config does not use it.

    It is None for the weights of other heads too, so that they do not keep a model from loading a
    checkpoint. An unknown name is returned as transformers calls it, and the caller reports it as
    unexpected.
    """
    if is_legacy(hf_name) or IGNORED.search(hf_name):
        return None
    # names of an old conversion from TensorFlow
    hf_name = hf_name.replace("LayerNorm.gamma", "LayerNorm.weight").replace(
        "LayerNorm.beta", "LayerNorm.bias"
    )
    prefix = model_type + "."
    # a bare encoder has "pooler." where a model with a head has "roformer.pooler.", and HEAD_NAMES
    # has only the latter
    name_with_prefix = prefix + hf_name if hf_name.startswith("pooler.") else hf_name
    for theirs, ours in _head_prefixes(config, model_type):
        if name_with_prefix.startswith(theirs):
            return ours + name_with_prefix.removeprefix(theirs)
    bare = hf_name.removeprefix(prefix)
    if ANY_HEAD.match(bare):
        return None
    start, name, prefixes = "", bare, ENCODER_NAMES
    if layer := _HF_LAYER.match(bare):  # encoder.layer.<number>.<name in the layer>
        start, name, prefixes = f"layers.{layer[1]}.", layer[2], LAYER_NAMES
    for theirs, ours in prefixes:
        if name.startswith(theirs):
            return start + ours + name.removeprefix(theirs)
    return hf_name


def name_to_hf(name: str, config: RoFormerConfig, model_type: str = "roformer") -> str:
    """Return the name of our weight in transformers; a weight that transformers does not have keeps
    our name.
    """
    for theirs, ours in _head_prefixes(config, model_type):
        if name.startswith(ours):
            return theirs + name.removeprefix(ours)
    start, name_in_layer, prefixes = "", name, ENCODER_NAMES
    if layer := _LAYER.match(name):  # layers.<number>.<name in the layer>
        start, name_in_layer, prefixes = f"encoder.layer.{layer[1]}.", layer[2], LAYER_NAMES
    for theirs, ours in prefixes:
        if name_in_layer.startswith(ours):
            return f"{model_type}.{start}{theirs}{name_in_layer.removeprefix(ours)}"
    return name


def _head_prefixes(config: RoFormerConfig, model_type: str) -> tuple[tuple[str, str], ...]:
    """Return the (prefix in the file, our prefix) pairs of the config's head."""
    prefixes = HEAD_NAMES[model_type][config.head]
    if not config.head.endswith("_lm"):
        return prefixes
    if config.tie_embeddings:
        # the output matrix is the word embedding, and `decoder` is a copy of it
        return *prefixes, ("cls.predictions.bias", "head.bias")
    # if untied, transformers uses the bias inside `decoder` and ignores cls.predictions.bias
    return (
        *prefixes,
        ("cls.predictions.decoder.weight", "head.decoder.weight"),
        ("cls.predictions.decoder.bias", "head.bias"),
    )


def load_weights(
    model: RoFormer, weights: Mapping[str, Tensor], model_type: str = "roformer"
) -> None:
    """Load weights with transformers' names into `model`; raise an error that names the weights
    that are missing, unexpected or of another shape. Weights that `name_from_hf` maps to None are
    skipped.
    """
    renamed = (
        (name_from_hf(hf_name, model.config, model_type), value)
        for hf_name, value in weights.items()
    )
    named = {name: value for name, value in renamed if name is not None}
    expected = model.state_dict()
    check_names(
        "weights", sorted(expected.keys() - named.keys()), sorted(named.keys() - expected.keys())
    )
    for name, value in named.items():
        if value.shape != expected[name].shape:
            raise RopeError(
                "weights", f"{name} must be {list(expected[name].shape)}", list(value.shape)
            )
    model.load_state_dict(named)


def from_transformers(model: nn.Module) -> RoFormer:
    """Return a RoFormer with the config and weights of a transformers RoFormer or BERT, with its
    dtype and device.
    """
    config, model_type = _config_of(model)
    parameter = next(model.parameters())
    ours = RoFormer(config).to(device=parameter.device, dtype=parameter.dtype)
    load_weights(ours, model.state_dict(), model_type)
    return ours.train(model.training)


def unused_weights(model: nn.Module) -> tuple[str, ...]:
    """Return the names of the weights of a transformers model that need gradients and that
    `from_transformers` ignores, such as those of poolers and pretraining heads.
    """
    config, model_type = _config_of(model)
    # named_parameters lists a tied weight once, so its second name is not reported; weights without
    # gradients, such as sinusoidal position tables, are not reported either
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    return tuple(
        name
        for name in model.state_dict()
        if name in trained and name_from_hf(name, config, model_type) is None
    )


def _config_of(model: nn.Module) -> tuple[RoFormerConfig, str]:
    """Return the RoFormerConfig and the model_type ("roformer" or "bert") of a transformers model;
    raise an error if the model has no config.
    """
    hf_config = getattr(model, "config", None)
    if hf_config is None or not hasattr(hf_config, "to_dict"):
        raise RopeError("model", "must be a transformers model with a config", type(model).__name__)
    fields = hf_config.to_dict() | {"architectures": [type(model).__name__]}
    return RoFormerConfig.from_hf(fields), fields["model_type"]


ROFORMER_FORMATS = {
    model_type: CheckpointFormat(
        RoFormerConfig.from_hf,
        RoFormerConfig.to_hf,
        RoFormer,
        partial(name_from_hf, model_type=model_type),
        partial(name_to_hf, model_type=model_type),
    )
    for model_type in ("roformer", "bert")
}
