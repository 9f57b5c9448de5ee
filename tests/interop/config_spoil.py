"""Spoil exactly one field of a valid config, so that no reading is left."""

from __future__ import annotations

import copy
import random
from typing import Any

NAN, INF = float("nan"), float("inf")
NO_NUMBER = ("abc", "64", "", True, False, [1.0], [], {"a": 1}, {}, NAN, INF, -INF, 10**400, 4j)
NO_COUNT = (*NO_NUMBER, 0, -1, -8, 3.5, 64.0, 2**63)
NO_LENGTH = (*NO_COUNT, 2**41)
NO_HEAD = (*NO_COUNT, 65537, 2**40)
NO_THETA = (*NO_NUMBER, 0, -1, -1e4, 1e-308, 5e-324)
NO_FRACTION = (*NO_NUMBER, 0, -0.5, 1.5, 2)
NO_FACTOR = (*NO_NUMBER, 0, -1, -0.5)
NO_TURNS = (*NO_FACTOR, 1e-308, 5e-324, 1.7e308)
NO_MAGNITUDE = (*NO_FACTOR, 1e-19, 1e19)
NO_WEIGHT = (*NO_NUMBER, -1, -0.01, 1e18)
NO_FLAG = (0, 1, "true", "", [True], NAN, 1.0, {})
NO_NAME = (5, "yam", "", "YARN", ["yarn"], {"yarn": 1}, True, NAN)
NO_LIST = (
    "abc",
    1.0,
    7,
    True,
    {"a": 1},
    [],
    [NAN, 1.0],
    [1.0, "x"],
    [1.0, None],
    [True],
    [0],
    [-1.0],
    [1e-308],
    [1.7e308],
    [[1.0]],
)
NO_SECTIONS = (
    "422",
    3,
    True,
    {"t": 4},
    [],
    [4, 0, 4],
    [4, -2, 6],
    [4, "2", 2],
    [2.5, 2, 3.5],
    [NAN, 1, 1],
    [10**9] * 3,
    [None],
    [1],
)
NO_OBJECT = ("yarn", 5, True, [], [1], ["rope_type"], 1.5, "")

#: any config, whether its rope needs the key or not -> what no config may say
CONFIG: dict[str, tuple] = {
    **dict.fromkeys(
        ("hidden_size", "n_embd", "d_model", "num_attention_heads", "n_head", "n_heads"), NO_COUNT
    ),
    **dict.fromkeys(
        ("num_hidden_layers", "n_layer", "n_layers", "no_rope_layer_interval"), NO_COUNT
    ),
    **dict.fromkeys(
        ("head_dim", "attention_head_dim", "kv_channels", "qk_rope_head_dim", "global_head_dim"),
        NO_HEAD,
    ),
    **dict.fromkeys(
        ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx"), NO_LENGTH
    ),
    **dict.fromkeys(
        ("max_sequence_length", "model_max_length", "original_max_position_embeddings"), NO_LENGTH
    ),
    **dict.fromkeys(("rope_theta", "rotary_emb_base"), (*NO_THETA, None)),
    **dict.fromkeys(
        ("rope_local_base_freq", "global_rope_theta", "local_rope_theta", "compress_rope_theta"),
        NO_THETA,
    ),
    **dict.fromkeys(("partial_rotary_factor", "rotary_pct", "rotary_emb_fraction"), NO_FRACTION),
    "rotary_dim": NO_HEAD,
    "rope_interleave": NO_FLAG,
    "inference_rope_scaling": NO_FLAG,
    "layer_types": ("full_attention", 3, {"a": 1}, [1], [None], [["full_attention"]], True),
    "layer_rope_theta": ("1e4", 1e4, {}, True, [-1.0], ["x"], [NAN], [True], [1e-308], [None]),
    "rope_scaling": NO_OBJECT,
    "rope_parameters": NO_OBJECT,
    "model_type": (5, True, ["llama"], {"a": 1}, 1.5),
    "position_embedding_type": ("alibi", 5, True, ["rope"]),
    "alibi": (1, "no", [False], True),
}
#: any rope, whichever its rope_type
ROPE: dict[str, tuple] = {
    "rope_theta": (*NO_THETA, None),
    "partial_rotary_factor": NO_FRACTION,
    "factor": NO_FACTOR,
    "original_max_position_embeddings": NO_LENGTH,
    "max_position_embeddings": NO_LENGTH,
    "beta_fast": NO_TURNS,
    "beta_slow": NO_TURNS,
    "low_freq_factor": NO_TURNS,
    "high_freq_factor": NO_TURNS,
    "attention_factor": NO_MAGNITUDE,
    "short_mscale": NO_MAGNITUDE,
    "long_mscale": NO_MAGNITUDE,
    "mscale": NO_WEIGHT,
    "mscale_all_dim": NO_WEIGHT,
    "alpha": (*NO_FACTOR, 0.5),
    "attn_factor": NO_WEIGHT[:-1],
    "llama_4_scaling_beta": NO_WEIGHT[:-1],
    "truncate": NO_FLAG,
    "mrope_interleaved": NO_FLAG,
    "short_factor": NO_LIST,
    "long_factor": NO_LIST,
    "mrope_section": NO_SECTIONS,
    "xdrope_section": NO_SECTIONS,
    "rope_type": NO_NAME,
    "type": NO_NAME,
}
#: what a key must be for one rope_type, beyond the above
OWN: dict[str, dict[str, tuple]] = {
    "linear": {"factor": (0.5, None, "absent", 1e31)},
    "dynamic": {"factor": (0.5, None, "absent", 2**21)},
    "yarn": {"factor": (0.5, 1e31), "beta_slow": (1e6,), "beta_fast": (1e-6,)},
    "llama3": {
        "factor": (0.5, None, "absent"),
        "low_freq_factor": (None, "absent"),
        "high_freq_factor": (None, "absent", 1e-6),
    },
    "longrope": {"short_factor": (None, "absent"), "long_factor": (None, "absent")},
    "proportional": {"factor": (0.5, 1e31)},
}
LAST_LETTERS = "abcdefghijklmnopqrstuvwxyz_"


def spoil(draw: random.Random, config: dict) -> tuple[str, ...]:
    """Spoil one field in place; return the names that the error may have."""
    named = "model_type" in config
    for part in ("text_config", "llm_config", "language_config"):
        if part in config:
            if draw.random() < 0.1:
                config[part] = draw.choice(NO_OBJECT)
                return (part,)
            config = config[part]
            named |= "model_type" in config
    ropes = [rope for rope in (config.get("rope_parameters"), config.get("rope_scaling")) if rope]
    ropes = [inner for rope in ropes for inner in (layers_of(rope) or [rope])]
    ways = [
        spoil_config,
        spoil_config,
        *(4 * [spoil_rope] if ropes else []),
        *([add_unknown] if ropes else []),
    ]
    ways += [contradict] if ropes else []
    names = draw.choice(ways)(draw, config, ropes)
    if named and names == ("position_embedding_type",):
        # position_embedding_type is read only for models without a model_type and for a few with
        # one, `alibi` for all: spoil that instead
        del config["position_embedding_type"]
        config["alibi"] = draw.choice(CONFIG["alibi"])
        return ("alibi",)
    return names


def layers_of(rope: dict) -> list[dict]:
    return [value for value in rope.values() if isinstance(value, dict)]


def spoil_config(draw: random.Random, config: dict, ropes: list[dict]) -> tuple[str, ...]:
    """Spoil a key of the config, half of the time one that it has; return its name."""
    present = [key for key in CONFIG if config.get(key) is not None]
    key = draw.choice(present if draw.random() < 0.5 else [*CONFIG])
    config[key] = copy.deepcopy(draw.choice(CONFIG[key]))
    return (key,)


def spoil_rope(draw: random.Random, config: dict, ropes: list[dict]) -> tuple[str, ...]:
    """Spoil a key of a rope: one that it has, one that its rope_type requires, or an optional one;
    return the names.
    """
    rope = draw.choice(ropes)
    name = rope.get("rope_type") or rope.get("type") or "default"
    name = "longrope" if "short_factor" in rope else name
    own = OWN.get(name, {}) if "alpha" not in rope else {}
    if own and draw.random() < 0.3:
        key = draw.choice([*own])
        value = draw.choice(own[key])
    else:
        present = [key for key in ROPE if rope.get(key) is not None]
        key = draw.choice(present if present and draw.random() < 0.5 else [*ROPE])
        value = copy.deepcopy(draw.choice(ROPE[key]))
        lists = [
            each
            for each in ("short_factor", "long_factor", "mrope_section")
            if each == key and rope.get(each)
        ]
        if lists and draw.random() < 0.5:
            value = spoiled_list(draw, rope[key])
    if value in ("absent", None) and key != "rope_theta":
        for each in (
            rope,
            config.get("rope_parameters"),
            config.get("rope_scaling"),
        ):
            # the key may be given in both spellings of the rope
            (each or {}).pop(key, None)
    if value != "absent":
        rope[key] = value
    # if the two ends of a band are swapped, the error names the one that should be the larger
    pairs = {"beta_slow": "beta_fast", "low_freq_factor": "high_freq_factor"}
    return (key, pairs[key]) if key in pairs else (key,)


def spoiled_list(draw: random.Random, values: list) -> Any:
    place = draw.randrange(len(values))
    wrong = draw.choice([0, -1.0, NAN, INF, "x", None, True, [1.0]])
    return draw.choice(
        [
            values[:-1],
            [*values, 1.0],
            [*values[:place], wrong, *values[place + 1 :]],
            {},
            "abc",
            2.0,
        ]
    )


def add_unknown(draw: random.Random, config: dict, ropes: list[dict]) -> tuple[str, ...]:
    """Add a key that no scaling has, most often a misspelt one; return it."""
    rope = draw.choice(ropes)
    known = draw.choice([*ROPE])
    place = draw.randrange(len(known))
    typos = [
        known[:place] + known[place + 1 :],
        known[:place] + draw.choice(LAST_LETTERS) + known[place:],
        known.upper(),
        known[:place] + known[place : place + 2][::-1] + known[place + 2 :],
        "ntk_alpha",
        "colour",
        "rope_dim",
    ]
    key = draw.choice(
        [
            typo
            for typo in typos
            if typo and typo not in ROPE and typo not in ("interleaved", "finetuned")
        ]
    )
    rope[key] = draw.choice([1.0, 4, "yarn", True, [1.0], 8192, rope.get(known) or 2.0])
    return (key,)


def contradict(draw: random.Random, config: dict, ropes: list[dict]) -> tuple[str, ...]:
    """Write two keys that contradict each other, or a scaling without its name; return the names."""
    rope = draw.choice(ropes)
    name = rope.get("rope_type") or rope.get("type") or "default"
    other = draw.choice(
        [each for each in ("linear", "llama3", "proportional", "dynamic") if each != name]
    )
    if name not in ("default", "proportional", "mrope") and draw.random() < 0.3:
        for each in (rope, config.get("rope_parameters"), config.get("rope_scaling")):
            for key in ("rope_type", "type") if each else ():
                each.pop(key, None)
        return ("rope_type",)
    if not ({"rope_type", "type"} & rope.keys()):
        rope["rope_type"] = name
    rope["type" if "rope_type" in rope else "rope_type"] = other
    return ("rope_type", "type")
