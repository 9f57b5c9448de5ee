"""Draw random configs for the engines: the small models of the matrix, with random rope keys and
lengths.

A seed gives the same configs everywhere. Most are unusual, some are wrong: keys are missing, null
or in an unusual place.
"""

from __future__ import annotations

from random import Random
from typing import Any

from engines.matrix import FAMILIES, RECENT, VISION, Config, ServedConfig
from engines.matrix_rows import by_type, config_of, longrope

#: the families to draw from; a family that is added here changes the configs of every seed
DRAWN = tuple(name for name in FAMILIES if name not in ("gptj", "minicpm3", *RECENT))
#: families that have a rope for each layer type in transformers 5
BY_LAYER_TYPE = ("gemma3_text", "gemma4_text", "olmo3")
#: families whose weights fit one size of the head alone
FIXED_HEAD = ("gemma4_text", "helium")
#: families whose checkpoints rotate a part of the head, and which part
PARTIAL = {
    "phi": 0.5,
    "glm": 0.5,
    "glm4": 0.5,
    "glm4_moe": 0.5,
    "nemotron": 0.5,
    "gpt_neox": 0.25,
    "stablelm": 0.25,
}
SERVED = (2048, 5000, 8192, 16384, 40000, 163840)
TRAINED = (512, 900, 2048, 3000, 8192)
THETAS = (1e4, 10000, 7e4, 2e5, 1e6, 8e6)
FACTORS = (1.0, 1.25, 2, 3.0, 4.0, 10.0, 40.0)
#: the scalings, the common ones several times; None: the config has none
SCALINGS = (
    None,
    None,
    "default",
    *["linear"] * 3,
    *["yarn"] * 4,
    *["llama3"] * 3,
    "dynamic",
    "longrope",
)
TRAINED_KEY = "original_max_position_embeddings"
#: key: how likely a YaRN has it, and the values it may have
YARN_KEYS: dict[str, tuple[float, tuple[Any, ...]]] = {
    "attention_factor": (0.2, (0.6, 1.0, 1.2, None)),
    "mscale": (0.3, (0, 0.6, 1.0, 1, None)),
    "mscale_all_dim": (0.3, (0, 0.3, 0.707, 1, None)),
    "attn_factor": (0.1, (0.5, 1.0, None)),
    "truncate": (0.2, (True, False, None)),
    "beta_fast": (0.3, (16, 32, 64.0, None)),
    "beta_slow": (0.3, (1, 1.0, 4, None)),
}
#: (model_type, scaling): keys that the checkpoints of the family have
USUAL: dict[tuple[str, str], Config] = {
    ("gpt_oss", "yarn"): {"beta_fast": 32.0, "beta_slow": 1.0},
    ("ministral3", "yarn"): {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1},
    ("phimoe", "longrope"): {"short_mscale": 1.2, "long_mscale": 1.3},
}


def draw(seed: int, count: int) -> list[ServedConfig]:
    """Return the first `count` rows of a seed."""
    random = Random(seed)
    return [_row(random, f"draw {seed}.{index}") for index in range(count)]


def _row(random: Random, name: str) -> ServedConfig:
    """Return a random config, the length of its sequence and the length that engines are started
    for.
    """
    model_type, spelling, kind = (
        random.choice(DRAWN),
        random.choice((4, 5)),
        random.choice(SCALINGS),
    )
    served, trained = random.choice(SERVED), random.choice(TRAINED)
    theta = random.choice(THETAS) if random.random() < 0.9 else None
    keys = _head(random, model_type)
    partial = PARTIAL.get(model_type)
    if random.random() < 0.25 and model_type not in VISION:
        partial = random.choice((0.25, 0.5, 0.75, 1.0))
    scaling = _scaling(
        random, model_type, kind, served, trained, int(_pairs(model_type, keys) * (partial or 1.0))
    )
    if kind == "longrope" and (
        TRAINED_KEY not in scaling or (model_type in ("phi3", "phimoe") and random.random() < 0.8)
    ):
        keys[TRAINED_KEY] = trained
    if model_type in VISION:
        scaling = {"rope_type": "default", **scaling, **_sections(random, model_type)}
    if spelling == 4:
        if scaling and partial is not None and model_type not in PARTIAL and random.random() < 0.25:
            scaling, partial = {**scaling, "partial_rotary_factor": partial}, None
        scaling = _named_as_before(random, scaling)
        if not scaling and random.random() < 0.3:
            keys["rope_scaling"] = None
        if model_type == "gemma3_text" and random.random() < 0.8:
            keys["rope_local_base_freq"] = random.choice((1e4, 2e4))
    if model_type in BY_LAYER_TYPE and spelling == 5 and random.random() < 0.85:
        config = config_of(model_type, 4, served, None, **keys)
        config["rope_parameters"] = _layer_types(
            random, model_type, {"rope_theta": theta or 1e6, **scaling}
        )
    else:
        config = config_of(model_type, spelling, served, theta, scaling or None, partial, **keys)
    length, limit = _lengths(random, kind, served, trained)
    title = f"{name}: {model_type} {kind or 'unscaled'} v{spelling}"
    return ServedConfig(title, config, length, limit, axes=3 if model_type in VISION else 1)


def _head(random: Random, model_type: str) -> Config:
    """Return a key with another size of the head, in 3 of 10 cases, if the family's config has such a
    key; else {}.
    """
    family_keys = FAMILIES[model_type][1]
    if "qk_rope_head_dim" in family_keys and random.random() < 0.3:
        return {"qk_rope_head_dim": 64}
    if "head_dim" in family_keys and model_type not in FIXED_HEAD and random.random() < 0.3:
        return {"head_dim": random.choice((32, 96, 128))}
    return {}


def _pairs(model_type: str, keys: Config) -> int:
    """Return how many pairs a whole head has, or its rotated part in latent attention."""
    config = config_of(model_type, 4, 1, **keys)
    config = config.get("text_config", config)
    head_dim = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
    return config.get("qk_rope_head_dim", head_dim) // 2


def _scaling(
    random: Random, model_type: str, kind: str | None, served: int, trained: int, pairs: int
) -> Config:
    """Return the keys of a scaling; {} if the config has none."""
    if kind is None:
        return {}
    factor = random.choice(FACTORS)
    scaling: Config = {"rope_type": kind, "factor": factor}
    if kind == "dynamic":
        scaling["factor"] = max(factor, 1.5)
    elif kind == "llama3":
        scaling |= {
            "low_freq_factor": random.choice((1, 1.0, 2.0)),
            "high_freq_factor": random.choice((3.0, 4.0, 8)),
        }
    elif kind == "yarn":
        scaling |= {
            key: random.choice(values)
            for key, (chance, values) in YARN_KEYS.items()
            if random.random() < chance
        }
    elif kind == "longrope":
        scaling = longrope(pairs)
        if random.random() < 0.5:
            scaling["factor"] = random.choice((served / trained, 4.0))
        if random.random() < 0.2:
            scaling["attention_factor"] = 1.3
        if random.random() < 0.15:
            scaling |= {"short_mscale": 1.1, "long_mscale": 1.4}
    if kind in ("yarn", "llama3", "longrope") and random.random() < 0.8:
        scaling[TRAINED_KEY] = trained
    if random.random() < 0.75:
        scaling |= USUAL.get((model_type, kind), {})
    return scaling


def _sections(random: Random, model_type: str) -> Config:
    """Return how many pairs each of the three axes of images and video has."""
    if model_type == "qwen3_vl":
        return {
            "mrope_section": [24, 20, 20],
            **({"mrope_interleaved": True} if random.random() < 0.6 else {}),
        }
    return {"mrope_section": random.choice(([16, 24, 24], [24, 20, 20]))}


def _named_as_before(random: Random, scaling: Config) -> Config:
    """Return the scaling of a config for transformers 4: named by `rope_type`, by the old key
    `type`, or by both.
    """
    chance = random.random()
    if not scaling or chance < 0.55:
        return scaling
    return by_type(scaling) if chance < 0.9 else {**scaling, "type": scaling["rope_type"]}


def _layer_types(random: Random, model_type: str, full: Config) -> Config:
    """Return `rope_parameters` with a rope for full layers, and one for those with a sliding
    window.
    """
    full = {"rope_type": "default", **full}
    theta = full["rope_theta"]
    if model_type == "gemma4_text" and random.random() < 0.6:
        full = {
            "rope_type": "proportional",
            "rope_theta": theta,
            "partial_rotary_factor": random.choice((0.25, 0.5)),
        }
        if random.random() < 0.4:
            full["factor"] = random.choice(FACTORS)
    sliding = {
        "rope_type": "default",
        "rope_theta": theta if model_type == "olmo3" else random.choice((1e4, 3e4)),
    }
    if random.random() < 0.15:
        sliding |= {"rope_type": "linear", "factor": 2.0}
    return {"full_attention": full, "sliding_attention": sliding}


def _lengths(random: Random, kind: str | None, served: int, trained: int) -> tuple[int, int | None]:
    """Return the length of a sequence, and the length that engines are started for; None: their own
    choice.
    """
    if kind == "dynamic":
        return random.choice((served, served // 2, served * 3 // 2)), None
    length = random.choice((served, served, trained, trained + 1, served // 2))
    if random.random() < 0.75:
        return length, None
    limit = random.choice((served, max(length, trained), served + 1, served * 5 // 4))
    return min(length, limit), limit
