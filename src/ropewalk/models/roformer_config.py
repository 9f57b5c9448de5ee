"""RoFormerConfig: everything that defines a RoFormer or BERT, read from and written to Hugging Face
configs.

Words of this module:
  v1, v2        RoFormer has layer norms and biases; RoFormer v2 norms without weights, no biases
  hf_config     the contents of a config.json
  "ropewalk"    the key of config.json for fields that transformers has no key for
  ours, theirs  the name or value of this package, and that of transformers
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

from ropewalk.config.hf import from_hf as spec_from_hf
from ropewalk.encodings import ENCODINGS, Encoding, Polar, Sizes
from ropewalk.encodings.rotary import Rotary
from ropewalk.errors import RopeError, choice, flag, integer, number
from ropewalk.models.activations import ACTIVATIONS
from ropewalk.spec import RopeSpec

NORMS = ("layer_norm", "rms_norm")
ATTENTIONS = ("softmax", "linear")
SUMMARIES = ("first", "last", "mean")
HEAD_DROPOUTS = ("roformer", "bert")
#: the largest width, vocabulary or other size that a config may give
MAX_SIZE = 2**24

#: head -> the end of its class name in transformers, after RoFormer or Bert; transformers has no
#: similarity head
HEAD_CLASSES = {
    "none": "Model",
    "masked_lm": "ForMaskedLM",
    "causal_lm": "ForCausalLM",
    "classification": "ForSequenceClassification",
    "token_classification": "ForTokenClassification",
    "multiple_choice": "ForMultipleChoice",
    "question_answering": "ForQuestionAnswering",
    "similarity": "Model",
}
#: model_type -> the start of its class names
PREFIXES = {"roformer": "RoFormer", "bert": "Bert"}

#: our field -> the config key of Hugging Face
HF_KEYS = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "embedding_size": "embedding_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "activation": "hidden_act",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "length": "max_position_embeddings",
    "type_vocab_size": "type_vocab_size",
    "initializer_range": "initializer_range",
    "norm_eps": "layer_norm_eps",
    "pad_token": "pad_token_id",
    "rotary_value": "rotary_value",
    "causal": "is_decoder",
    "tie_embeddings": "tie_word_embeddings",
    "num_labels": "num_labels",
    "summary": "summary_type",
    "summary_projection": "summary_use_proj",
    "summary_activation": "summary_activation",
    "pooler_activation": "pooler_activation",
}
#: our field -> the config key of RoFormer v2; these keys are read but never written, because
#: transformers ignores them and builds a v1
V2_KEYS = {"norm": "norm_type", "bias": "use_bias"}
#: keys of HF_KEYS that a BERT does not have
ROFORMER_ONLY = (
    "embedding_size",
    "rotary_value",
    "summary_type",
    "summary_use_proj",
    "summary_activation",
    "pooler_activation",
)
#: field -> the heads that read it; with any other head its value may be stored under "ropewalk" in
#: config.json
FIELDS_OF_HEADS = {
    "num_labels": ("classification", "token_classification"),
    "summary": ("multiple_choice",),
    "summary_projection": ("multiple_choice",),
    "summary_activation": ("multiple_choice",),
    "classifier_activation": ("classification",),
    "head_dropout": ("classification", "multiple_choice"),
    "pooler_activation": ("similarity",),
}
ROPE_KEYS = ("rope_parameters", "rope_theta", "rope_scaling")
#: defaults of transformers' BertConfig that differ from ours
BERT_DEFAULTS = {"vocab_size": 30522, "max_position_embeddings": 512}
#: what BERT's heads with one output per row have: they read the first token through a dense layer
#: and tanh
BERT_HEAD_FIELDS: dict[str, Any] = {
    "classifier_activation": "tanh",
    "summary": "first",
    "summary_projection": True,
    "summary_activation": "tanh",
    "head_dropout": "bert",
}


@dataclass(frozen=True)
class RoFormerConfig:
    """Everything that defines a RoFormer, or a BERT (`encoding="learned"`); the defaults are
    roformer_chinese_base.

    encoding      a name from ENCODINGS or a RopeSpec; a rotary encoding given by name pairs
                  dimensions (2i, 2i + 1), as in RoFormer
    length        the longest sequence trained on; only encodings with a table are limited to it
    embedding_size  the width of the word embeddings; None = hidden_size
    norm, bias    "layer_norm" and biases: RoFormer v1; "rms_norm", without weights, and no biases:
                  v2
    pad_token     its embedding begins as 0 and is not trained; None = no such token
    rotary_value  rotate v too
    causal        queries attend to no later keys: RoFormer as a decoder
    head          a name from HEADS; `num_labels` is for those that classify
    summary       how the multiple-choice head summarises a choice: by its "last" or "first" token
                  or their "mean"
    head_dropout  "roformer": before and after the dense layer of the classifier, and none in the
                  multiple-choice head; "bert": in both heads before the last layer
    *_activation  of the classifier (None: `activation`), of the summary (None: none) and of the
                  similarity pooler
    """

    vocab_size: int = 50_000
    hidden_size: int = 768
    num_layers: int = 12
    num_heads: int = 12
    intermediate_size: int = 3072
    embedding_size: int | None = None
    encoding: str | RopeSpec = "rope"
    attention: str = "softmax"
    head: str = "none"
    length: int = 1536
    activation: str = "gelu"
    dropout: float = 0.1
    attention_dropout: float = 0.1
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    norm: str = "layer_norm"
    norm_eps: float = 1e-12
    bias: bool = True
    pad_token: int | None = 0
    rotary_value: bool = False
    causal: bool = False
    tie_embeddings: bool = True
    num_labels: int = 2
    summary: str = "last"
    summary_projection: bool = False
    summary_activation: str | None = None
    classifier_activation: str | None = None
    pooler_activation: str = "tanh"
    head_dropout: str = "roformer"

    def __post_init__(self) -> None:
        """Check every field, and set `embedding_size` if it is None."""
        set_field = partial(object.__setattr__, self)  # the dataclass is frozen
        set_field(
            "embedding_size",
            self.hidden_size if self.embedding_size is None else self.embedding_size,
        )
        sizes = (
            "vocab_size hidden_size num_layers num_heads intermediate_size embedding_size length "
            "type_vocab_size num_labels"
        )
        for name in sizes.split():
            set_field(name, integer(name, getattr(self, name), low=1, high=MAX_SIZE))
        for name in ("dropout", "attention_dropout"):
            set_field(name, number(name, getattr(self, name), low=0, high=1))
        for name in ("initializer_range", "norm_eps"):
            set_field(name, number(name, getattr(self, name), low=0))
        for name in ("bias", "rotary_value", "causal", "tie_embeddings", "summary_projection"):
            flag(name, getattr(self, name))
        choices = {
            "norm": NORMS,
            "attention": ATTENTIONS,
            "head": HEAD_CLASSES,
            "summary": SUMMARIES,
            "head_dropout": HEAD_DROPOUTS,
        }
        for name, allowed in choices.items():
            choice(name, getattr(self, name), allowed)
        for name in (
            "activation",
            "summary_activation",
            "classifier_activation",
            "pooler_activation",
        ):
            if getattr(self, name) is not None or name == "activation":
                choice(name, getattr(self, name), ACTIVATIONS)
        if self.pad_token is not None:
            integer("pad_token", self.pad_token, low=0, high=self.vocab_size - 1)
        if self.hidden_size % self.num_heads:
            raise RopeError(
                "num_heads", f"must divide hidden_size = {self.hidden_size}", self.num_heads
            )
        self._check_encoding()
        if (
            self.norm == "rms_norm"
            and self.head.endswith("_lm")
            and self.embedding_size != self.hidden_size
        ):
            rule = (
                f"must equal hidden_size = {self.hidden_size}, because the language model head of "
                "v2 has no projection"
            )
            raise RopeError("embedding_size", rule, self.embedding_size)

    def _check_encoding(self) -> None:
        """Raise an error if the encoding is unknown or does not fit `attention`, `causal` or
        `rotary_value`.
        """
        if not isinstance(self.encoding, RopeSpec):
            choice("encoding", self.encoding, ENCODINGS)
        encoding = self.encoding_class
        if encoding.causal_only and not self.causal:
            raise RopeError("encoding", "must be used with causal=True", self.encoding)
        if self.attention == "linear" and not encoding.linear:
            names = ", ".join(name for name, encoding in ENCODINGS.items() if encoding.linear)
            rule = f"must be one that linear attention can compute; use one of {names}"
            raise RopeError("encoding", rule, self.encoding)
        # an encoding enters at "qk" if it rotates q and k
        if self.rotary_value and (encoding.entry != "qk" or self.attention == "linear"):
            raise RopeError(
                "rotary_value",
                "must be false without a rotary encoding and softmax attention",
                self.rotary_value,
            )
        if self.rotary_value and issubclass(encoding, Polar):
            rule = (
                f"must be false with the encoding {self.encoding!r}, which makes rotated vectors "
                "twice as wide as the head"
            )
            raise RopeError("rotary_value", rule, self.rotary_value)
        # with a cache, which only a causal model has, the length grows from call to call, and with
        # it the angles of all values
        if (
            self.rotary_value
            and self.causal
            and isinstance(self.encoding, RopeSpec)
            and self.encoding.needs_length
        ):
            rule = (
                f"must be false with causal=True and {self.encoding.scaling.name} scaling, whose "
                "angles depend on the length"
            )
            raise RopeError("rotary_value", f"{rule}; use another scaling", True)

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def encoding_class(self) -> type[Encoding]:
        return Rotary if isinstance(self.encoding, RopeSpec) else ENCODINGS[self.encoding]

    @property
    def sizes(self) -> Sizes:
        """The sizes for the encoding, which acts on the word embeddings (entry "input") or on
        hidden states.
        """
        width = self.embedding_size if self.encoding_class.entry == "input" else self.hidden_size
        # resolved in __post_init__
        return Sizes(self.num_heads, self.head_dim, width, self.length)  # type: ignore[arg-type]

    def with_(self, **changes: Any) -> RoFormerConfig:
        """Return a copy with some fields changed."""
        return replace(self, **changes)

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> RoFormerConfig:
        """Return the RoFormerConfig of a Hugging Face RoFormer or BERT; raise an error for what is
        not supported.
        """
        model_type = choice(
            "model_type", config.get("model_type", "roformer"), ("roformer", "bert")
        )
        hf_config = (BERT_DEFAULTS if model_type == "bert" else {}) | dict(config)
        for key in ("add_cross_attention", "is_encoder_decoder"):
            if hf_config.get(key):
                raise RopeError(
                    key, "must be false, because cross-attention is not supported", hf_config[key]
                )
        if hf_config.get("position_embedding_type", "absolute") != "absolute":
            raise RopeError(
                "position_embedding_type",
                "must be 'absolute'",
                hf_config["position_embedding_type"],
            )
        keys = HF_KEYS | V2_KEYS
        values: dict[str, Any] = {
            ours: hf_config[key] for ours, key in keys.items() if hf_config.get(key) is not None
        }
        if "pad_token_id" in hf_config:
            values["pad_token"] = hf_config["pad_token_id"]  # may be None, for no padding token
        labels: Any = hf_config.get("id2label")
        if isinstance(labels, Mapping) and labels:
            values["num_labels"] = len(labels)
        # any norm_type but layer_norm means the norm without weights
        values["norm"] = (
            "layer_norm" if values.get("norm", "layer_norm") == "layer_norm" else "rms_norm"
        )
        values["head"] = _head_of(hf_config.get("architectures"))
        if model_type == "bert":
            values |= {
                "encoding": "learned",
                "rotary_value": False,
                "embedding_size": None,
            } | BERT_HEAD_FIELDS
        result = cls(**(values | _ropewalk_fields(hf_config, values["head"])))
        if model_type == "roformer":
            _check_rope_keys(hf_config, result.head_dim)
        return result

    def to_hf(self) -> dict[str, Any]:
        """Return a config.json from which transformers and `from_hf` build the same model; raise an
        error if no config can.

        With learned positions it is the config of a BERT, otherwise of a RoFormer. transformers has
        no similarity head: it reads such a model as its encoder, and `from_hf` finds the head under
        "ropewalk".
        """
        model_type = "bert" if self.encoding == "learned" else "roformer"
        hf_config = {key: getattr(self, ours) for ours, key in HF_KEYS.items()}
        count = hf_config.pop("num_labels")  # transformers counts the entries of id2label instead
        hf_config["id2label"] = {str(i): f"LABEL_{i}" for i in range(count)}
        hf_config["label2id"] = {f"LABEL_{i}": i for i in range(count)}
        if model_type == "bert":
            hf_config = {key: value for key, value in hf_config.items() if key not in ROFORMER_ONLY}
        class_name = PREFIXES[model_type] + HEAD_CLASSES[self.head]
        class_name = "BertLMHeadModel" if class_name == "BertForCausalLM" else class_name
        hf_config |= {"model_type": model_type, "architectures": [class_name]}
        # the key "ropewalk" holds what transformers has no key for; reading the config back shows
        # which fields those are
        own_fields = {"head": self.head} if self.head == "similarity" else {}
        own_fields |= self._unwritten(
            self.from_hf(hf_config | {"ropewalk": own_fields}), model_type
        )
        return hf_config | ({"ropewalk": own_fields} if own_fields else {})

    def _unwritten(self, restored: RoFormerConfig, model_type: str) -> dict[str, Any]:
        """Return the fields that differ in `restored`, the config read back; raise an error if the
        model uses one of them.
        """
        unwritten: dict[str, Any] = {}
        for field in fields(self):
            ours, theirs = getattr(self, field.name), getattr(restored, field.name)
            # the spec of a plain RoFormer is read back as the name of the same encoding, "rope"
            if ours == theirs or (
                field.name == "encoding" and ours == plain_rope(self.head_dim) and theirs == "rope"
            ):
                continue
            # a field that belongs to no head is used with every head
            if self.head in FIELDS_OF_HEADS.get(field.name, (self.head,)):
                rule = (
                    f"must be {theirs!r} to be saved as a {model_type}, the closest transformers "
                    "model"
                )
                raise RopeError(
                    field.name,
                    f"{rule}; for this one, store model.state_dict() beside its config",
                    ours,
                )
            unwritten[field.name] = ours
        return unwritten


def plain_rope(head_dim: int) -> RopeSpec:
    """Return the rotation of every RoFormer in transformers, which is also our encoding "rope"."""
    return RopeSpec(head_dim, layout="interleaved")


def _ropewalk_fields(hf_config: Mapping[str, Any], head: str) -> dict[str, Any]:
    """Return the fields under "ropewalk", which only this package writes; raise an error for
    unknown ones.

    Known are those that transformers' config of a model with `head` has no place for, because that
    model does not use them. `head` is the one that the config's `architectures` name.
    """
    own_fields = hf_config.get("ropewalk", {})
    # transformers has no similarity head, so its `architectures` name a model without one
    if (
        isinstance(own_fields, Mapping)
        and own_fields.get("head") == "similarity"
        and head == "none"
    ):
        head = "similarity"
    allowed = {name for name, heads in FIELDS_OF_HEADS.items() if head not in heads}
    if head == "similarity":
        allowed.add("head")
    if not isinstance(own_fields, Mapping) or not set(own_fields) <= allowed:
        rule = (
            f"must be an object with fields that the head {head!r} does not use "
            f"({', '.join(sorted(allowed))})"
        )
        raise RopeError("ropewalk", rule, own_fields)
    return dict(own_fields)


def _check_rope_keys(hf_config: Mapping[str, Any], head_dim: int) -> None:
    """Refuse rope keys unless they describe the one rotation of transformers' RoFormer, which reads
    none of them.
    """
    given = {key: hf_config[key] for key in ROPE_KEYS if hf_config.get(key) is not None}
    spec = spec_from_hf(
        {"model_type": "roformer", "head_dim": head_dim, **given}, precision="exact"
    )
    if spec != plain_rope(head_dim):
        rule = (
            "must be absent or describe the rotation of theta 10000 without scaling: transformers' "
            "RoFormer has no other"
        )
        # without rope keys the spec is the plain one, so `given` is not empty here
        raise RopeError(next(iter(given)), rule, given)


def _head_of(architectures: Any) -> str:
    """Return the head of the first class in a config's `architectures`; "none" if it has no head.
    Raise an error if `architectures` is no list of names.
    """
    if architectures is None or architectures == []:
        return "none"
    if not isinstance(architectures, list | tuple) or not isinstance(architectures[0], str):
        raise RopeError("architectures", "must be a list of class names", architectures)
    # some classes of masked and of causal language models have another ending
    name = (
        architectures[0]
        .replace("ForPreTraining", "ForMaskedLM")
        .replace("LMHeadModel", "ForCausalLM")
    )
    # "Model" is the ending of a class without a head
    return next(
        (
            head
            for head, ending in HEAD_CLASSES.items()
            if name.endswith(ending) and ending != "Model"
        ),
        "none",
    )
