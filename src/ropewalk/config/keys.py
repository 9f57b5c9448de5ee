"""Names in configs: all names of each value, the standard one first, and the names of scalings and
of their keys.
"""

from __future__ import annotations

from ropewalk.frequencies import SCALINGS, Scaling
from ropewalk.frequencies.scaling import SERVED_LENGTH_KEY, settings_of

#: the longest sequence that the model is used with
LENGTH_KEYS = (
    SERVED_LENGTH_KEY,
    "n_positions",
    "max_sequence_length",
    "max_seq_len",
    "seq_length",
    "n_ctx",
    "model_max_length",
)
THETA_KEYS = ("rope_theta", "rotary_emb_base")
#: the theta of one layer type
LAYER_TYPE_THETA_KEYS = (
    "rope_local_base_freq",
    "global_rope_theta",
    "local_rope_theta",
    "compress_rope_theta",
)
#: the fraction of the head that rotates
FRACTION_KEYS = ("partial_rotary_factor", "rotary_pct", "rotary_emb_fraction")
#: the part of the head that latent attention (DeepSeek) splits off and rotates
LATENT_KEY = "qk_rope_head_dim"
HEAD_DIM_KEYS = ("head_dim", "attention_head_dim", "kv_channels")
HIDDEN_SIZE_KEYS = ("hidden_size", "n_embd", "d_model")
HEAD_COUNT_KEYS = ("num_attention_heads", "n_head", "n_heads")
LAYER_COUNT_KEYS = ("num_hidden_layers", "n_layer", "n_layers")
#: the sizes in class_sizes.toml
CLASS_SIZE_KEYS = (HIDDEN_SIZE_KEYS, HEAD_COUNT_KEYS, LAYER_COUNT_KEYS)
#: a config with any of these keys belongs to a model that rotates
ROPE_KEYS = (
    "rope_parameters",
    "rope_scaling",
    *THETA_KEYS,
    *FRACTION_KEYS,
    "rotary_dim",
    "rope_local_base_freq",
    "global_rope_theta",
)
#: two names of the number of pairs of each axis
SECTION_KEYS = ("mrope_section", "xdrope_section")
#: keys of a rope object that every scaling has, and keys that map pairs to axes
COMMON_KEYS = frozenset(("rope_type", "type", "rope_theta", FRACTION_KEYS[0]))
AXIS_KEYS = frozenset((*SECTION_KEYS, "mrope_interleaved", "interleaved"))
#: keys that the rope objects of Ministral 3 have and its rotation does not read: a number of its
#: temperature, and the served length
TEMPERATURE_KEY = "llama_4_scaling_beta"
OTHER_KEYS = frozenset((TEMPERATURE_KEY, SERVED_LENGTH_KEY))
#: keys of a rope object that checkpoints have for other engines or for their own code; transformers
#: does not read them
UNREAD_KEYS = frozenset(("attn_factor", "extrapolation_factor", "apply_yarn_scaling", "finetuned"))
#: one theta for each layer, 0 for layers that are not rotated; it takes precedence over the theta
#: of the rope (Granite SWA)
LAYER_THETA_KEY = "layer_rope_theta"
#: older names of a `rope_type`
ROPE_TYPE_ALIASES = {"su": "longrope", "mrope": "default", "xdrope": "dynamic"}
#: PhiMoE's names of the magnitude
MSCALE_KEYS = ("short_mscale", "long_mscale")
#: CoPE's config keys and whether they clip softly; its code clips 20 pairs, which no key says
CLIP_KEYS = {"use_cope": True, "use_hardclip": False}
CLIPPED_PAIRS = 20


def rope_types() -> dict[str, type[Scaling]]:
    """Return the scalings that a config can name, by `rope_type`."""
    return {name: scaling for name, scaling in SCALINGS.items() if scaling.in_configs}


def keys_of(scaling: Scaling | type[Scaling]) -> dict[str, str]:
    """Return {config key: name of the field that is read from it} of a scaling."""
    return {setting.key or name: name for name, setting in settings_of(scaling).items()}


def inner_keys() -> set[str]:
    """Return every key that the object of one rope may have.

    `rope_parameters` may instead have one such object for each layer type, so a key that is not
    among these and holds an object is the name of a layer type.
    """
    of_scalings = {key for scaling in rope_types().values() for key in keys_of(scaling)}
    return {
        *COMMON_KEYS,
        *AXIS_KEYS,
        *OTHER_KEYS,
        *UNREAD_KEYS,
        *MSCALE_KEYS,
        *of_scalings,
        "alpha",
    }
