"""RoFormerConfig: everything that defines a RoFormer or BERT, read from and written to Hugging Face configs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from ropewalk.encodings import ENCODINGS, Encoding, Sizes
from ropewalk.encodings.rotary import Rotary
from ropewalk.errors import RopeError, choice, flag, integer, number
from ropewalk.interop.config.hf import from_hf as spec_from_hf
from ropewalk.interop.config.hf import to_hf as spec_to_hf
from ropewalk.models.activations import ACTIVATIONS
from ropewalk.spec import RopeSpec

NORMS = ("layer_norm", "rms_norm")
ATTENTIONS = ("softmax", "linear")
SUMMARIES = ("first", "last", "mean")
MAX_SIZE = 2**24

#: head -> the end of its class name in transformers, after RoFormer or Bert
HEAD_CLASSES = {
    "none": "Model",
    "masked_lm": "ForMaskedLM",
    "causal_lm": "ForCausalLM",
    "classification": "ForSequenceClassification",
    "token_classification": "ForTokenClassification",
    "multiple_choice": "ForMultipleChoice",
    "question_answering": "ForQuestionAnswering",
    "similarity": "ForCausalLM",  # roformer-sim stores its pooler beside a language model
}

#: our field -> the config key of Hugging Face
HF_KEYS = {
    "vocab_size": "vocab_size", "hidden_size": "hidden_size", "embedding_size": "embedding_size",
    "num_layers": "num_hidden_layers", "num_heads": "num_attention_heads", "intermediate_size": "intermediate_size",
    "activation": "hidden_act", "dropout": "hidden_dropout_prob", "attention_dropout": "attention_probs_dropout_prob",
    "length": "max_position_embeddings", "type_vocab_size": "type_vocab_size", "initializer_range": "initializer_range",
    "norm_eps": "layer_norm_eps", "pad_token": "pad_token_id", "rotary_value": "rotary_value", "causal": "is_decoder",
    "tie_embeddings": "tie_word_embeddings", "norm": "norm_type", "bias": "use_bias", "num_labels": "num_labels",
    "summary": "summary_type", "summary_projection": "summary_use_proj", "summary_activation": "summary_activation",
    "pooler_activation": "pooler_activation",
}  # fmt: skip
#: fields stored under "ropewalk" in config.json, which only this package reads
OWN_KEYS = ("encoding", "attention", "head", "classifier_activation")
#: defaults of transformers' BertConfig that differ from ours
BERT_DEFAULTS = {"vocab_size": 30522, "max_position_embeddings": 512}
#: BERT's heads read the first token through a dense layer and tanh
BERT_HEADS: dict[str, Any] = {
    "classifier_activation": "tanh", "summary": "first", "summary_projection": True, "summary_activation": "tanh",
}  # fmt: skip


@dataclass(frozen=True)
class RoFormerConfig:
    """Everything that defines a RoFormer, or a BERT (`encoding="learned"`); the defaults are roformer_chinese_base.

    encoding      a name from ENCODINGS or a RopeSpec; rotary names are interleaved, (2i, 2i + 1), as in RoFormer
    length        the longest sequence trained on; only encodings with a table are limited to it
    norm, bias    "layer_norm" and biases: RoFormer v1; "rms_norm", without weights, and no biases: v2
    causal        queries attend to no later keys: RoFormer as a decoder
    head          a name from HEADS; `num_labels` is for those that classify
    summary       how the multiple-choice head summarises a choice: by its "last" or "first" token or their "mean"
    *_activation  of the classifier (None: `activation`), of the summary (None: none) and of the similarity pooler
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

    def __post_init__(self) -> None:
        put = lambda name, value: object.__setattr__(self, name, value)  # noqa: E731 - the dataclass is frozen
        put("embedding_size", self.hidden_size if self.embedding_size is None else self.embedding_size)
        sizes = "vocab_size hidden_size num_layers num_heads intermediate_size embedding_size length type_vocab_size num_labels"
        for name in sizes.split():
            put(name, integer(name, getattr(self, name), low=1, high=MAX_SIZE))
        for name in ("dropout", "attention_dropout"):
            put(name, number(name, getattr(self, name), low=0, high=1))
        for name in ("initializer_range", "norm_eps"):
            put(name, number(name, getattr(self, name), low=0))
        for name in ("bias", "rotary_value", "causal", "tie_embeddings", "summary_projection"):
            flag(name, getattr(self, name))
        for name, allowed in (("norm", NORMS), ("attention", ATTENTIONS), ("head", HEAD_CLASSES), ("summary", SUMMARIES)):
            choice(name, getattr(self, name), allowed)
        for name in ("activation", "summary_activation", "classifier_activation", "pooler_activation"):
            if getattr(self, name) is not None or name == "activation":
                choice(name, getattr(self, name), ACTIVATIONS)
        if self.pad_token is not None:
            integer("pad_token", self.pad_token, low=0, high=self.vocab_size - 1)
        if self.hidden_size % self.num_heads:
            raise RopeError("num_heads", f"must divide hidden_size = {self.hidden_size}", self.num_heads)
        self._check_encoding()
        if self.norm == "rms_norm" and self.head.endswith("_lm") and self.embedding_size != self.hidden_size:
            rule = f"must equal hidden_size = {self.hidden_size}, because the language model head of v2 has no projection"
            raise RopeError("embedding_size", rule, self.embedding_size)

    def _check_encoding(self) -> None:
        if not isinstance(self.encoding, RopeSpec):
            choice("encoding", self.encoding, ENCODINGS)
        encoding = self.encoding_class
        if encoding.causal_only and not self.causal:
            raise RopeError("encoding", "must be used with causal=True", self.encoding)
        if self.attention == "linear" and not encoding.linear:
            names = ", ".join(name for name, each in ENCODINGS.items() if each.linear)
            rule = f"must not be a bias on the scores, which linear attention never computes; use one of {names}"
            raise RopeError("encoding", rule, self.encoding)
        if self.rotary_value and (encoding.entry != "qk" or self.attention == "linear"):
            raise RopeError("rotary_value", "must be false without a rotary encoding and softmax attention", self.rotary_value)

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def encoding_class(self) -> type[Encoding]:
        return Rotary if isinstance(self.encoding, RopeSpec) else ENCODINGS[self.encoding]

    @property
    def sizes(self) -> Sizes:
        """The sizes for the encoding, which acts on the embeddings or on hidden states."""
        width = self.embedding_size if self.encoding_class.entry == "input" else self.hidden_size
        return Sizes(self.num_heads, self.head_dim, width, self.length)  # type: ignore[arg-type]  # resolved in __post_init__

    def with_(self, **changes: Any) -> RoFormerConfig:
        """Return a copy with some fields changed."""
        return replace(self, **changes)

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> RoFormerConfig:
        """Return the RoFormerConfig of a Hugging Face RoFormer or BERT; raise an error for what is not supported."""
        model_type = choice("model_type", config.get("model_type", "roformer"), ("roformer", "bert"))
        hf_config = (BERT_DEFAULTS if model_type == "bert" else {}) | dict(config)
        for key in ("add_cross_attention", "is_encoder_decoder"):
            if hf_config.get(key):
                raise RopeError(key, "must be false, because cross-attention is not supported", hf_config[key])
        if hf_config.get("position_embedding_type", "absolute") != "absolute":
            raise RopeError("position_embedding_type", "must be 'absolute'", hf_config["position_embedding_type"])
        values: dict[str, Any] = {ours: hf_config[key] for ours, key in HF_KEYS.items() if hf_config.get(key) is not None}
        values |= {"pad_token": hf_config["pad_token_id"]} if "pad_token_id" in hf_config else {}
        labels: Any = hf_config.get("id2label")
        if isinstance(labels, Mapping) and labels:
            values["num_labels"] = len(labels)
        # any norm_type but layer_norm means the norm without weights
        values["norm"] = "layer_norm" if values.get("norm", "layer_norm") == "layer_norm" else "rms_norm"
        values["head"] = _head_of(hf_config.get("architectures"))
        if model_type == "bert":
            values |= {"encoding": "learned", "rotary_value": False, "embedding_size": None} | BERT_HEADS
        elif any(hf_config.get(key) for key in ("rope_parameters", "rope_theta", "rope_scaling")):
            values["encoding"] = spec_from_hf(hf_config, precision="exact")
        own = hf_config.get("ropewalk", {})
        if not isinstance(own, Mapping) or not set(own) <= set(OWN_KEYS):
            raise RopeError("ropewalk", f"must be an object with no keys but {', '.join(OWN_KEYS)}", own)
        return cls(**(values | dict(own)))

    def to_hf(self) -> dict[str, Any]:
        """Return the contents of a config.json; `from_hf` reads it back, and transformers too if it has the same options."""
        hf_config = {key: getattr(self, ours) for ours, key in HF_KEYS.items()}
        labels = {i: f"LABEL_{i}" for i in range(hf_config.pop("num_labels"))}
        hf_config |= {"id2label": {str(i): label for i, label in labels.items()}, "label2id": {v: k for k, v in labels.items()}}
        own = {name: getattr(self, name) for name in OWN_KEYS if getattr(self, name) != _DEFAULTS[name]}
        # the class name implies the head, except that two of our heads share a class
        if _head_of(["RoFormer" + HEAD_CLASSES[self.head]]) == self.head:
            own.pop("head", None)
        if isinstance(self.encoding, RopeSpec):
            del own["encoding"]
            hf_config |= {k: v for k, v in spec_to_hf(self.encoding, model_type="roformer").items() if k != "head_dim"}
        hf_config |= {"model_type": "roformer", "architectures": ["RoFormer" + HEAD_CLASSES[self.head]]}
        return hf_config | ({"ropewalk": own} if own else {})


_DEFAULTS = {field.name: field.default for field in fields(RoFormerConfig)}


def _head_of(architectures: Any) -> str:
    """Return the head named in a config's `architectures`, or "none"."""
    if architectures is None or architectures == []:
        return "none"
    if not isinstance(architectures, list | tuple) or not isinstance(architectures[0], str):
        raise RopeError("architectures", "must be a list of class names", architectures)
    name = architectures[0].replace("ForPreTraining", "ForMaskedLM").replace("LMHeadModel", "ForCausalLM")
    return next((head for head, ending in HEAD_CLASSES.items() if name.endswith(ending) and head != "none"), "none")
