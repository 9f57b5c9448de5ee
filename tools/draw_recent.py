"""Draw configs of recent families as people publish them: the usual rope of the family with an
ordinary scaling, length or part of the head, and no mistake.

A seed gives the same configs everywhere.
"""

from __future__ import annotations

from random import Random

from draw_configs import PARTIAL, TRAINED_KEY
from engines.matrix import VISION, Config, ServedConfig
from engines.matrix_rows import by_type, config_of, longrope

#: the families to draw from: decoders that people serve in 2025 and 2026
DRAWN = (
    "llama", "llama4_text", "mistral", "mixtral", "ministral3", "qwen2", "qwen2_moe", "qwen2_vl",
    "qwen2_5_vl", "qwen3", "qwen3_moe", "qwen3_next", "qwen3_vl", "gemma2", "gemma3_text",
    "gemma3n_text", "gemma4_text", "phi3", "phimoe", "deepseek_v2", "deepseek_v3", "deepseek_v32",
    "kimi_k2", "glm4", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "gpt_oss", "olmo2", "olmo3",
    "olmoe", "smollm3", "granite", "granitemoe", "granitemoehybrid", "cohere", "cohere2",
    "exaone4", "exaone_moe", "seed_oss", "hunyuan_v1_dense", "hunyuan_v1_moe", "ernie4_5",
    "ernie4_5_moe", "minimax", "minimax_m2", "nemotron", "falcon_h1", "lfm2", "lfm2_moe", "dots1",
    "longcat_flash", "apertus", "arcee", "afmoe", "minicpm3", "starcoder2", "stablelm",
    "helium", "bitnet",
)  # fmt: skip
#: families with a rope for each layer type, and the theta of their sliding layers
LAYERED = {
    "gemma3_text": 1e4,
    "gemma3n_text": 1e4,
    "gemma4_text": 1e4,
    "olmo3": 5e5,
}
#: family -> the part of the head that rotates, if it is not the whole head
PARTS = {**PARTIAL, "qwen3_next": 0.25}
THETAS = (1e4, 1e5, 5e5, 1e6, 5e6)
TRAINED = (4096, 8192, 32768)
FACTORS = (2.0, 4.0, 8.0)
SCALINGS = (*["none"] * 5, *["yarn"] * 3, "linear", "llama3", "dynamic")
#: families whose checkpoints have one scaling alone, and the keys of it
OWN: dict[str, Config] = {
    "gpt_oss": {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": False},
    "ministral3": {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1},
}
DEEPSEEK = ("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "glm_moe_dsa")


def draw(seed: int, count: int) -> list[ServedConfig]:
    """Return the first `count` rows of a seed; every family has its turn."""
    random = Random(seed)
    return [
        _row(random, DRAWN[index % len(DRAWN)], f"recent {seed}.{index}") for index in range(count)
    ]


def _row(random: Random, model_type: str, name: str) -> ServedConfig:
    """Return a config of a family, and how it is served."""
    spelling, trained = random.choice((4, 5)), random.choice(TRAINED)
    spelling = 5 if model_type == "gemma4_text" else spelling
    factor, theta = random.choice(FACTORS), random.choice(THETAS)
    kind = "yarn" if model_type in OWN else random.choice(SCALINGS)
    if model_type in ("phi3", "phimoe", "minicpm3"):
        kind = random.choice(("none", "longrope"))
    keys: Config = {}
    scaling = _scaling(random, model_type, kind, factor, trained)
    if kind == "longrope":
        keys[TRAINED_KEY] = trained
    if model_type in VISION:
        sections = [24, 20, 20] if model_type == "qwen3_vl" else [16, 24, 24]
        scaling = {"rope_type": "default", **scaling, "mrope_section": sections}
        scaling |= {"mrope_interleaved": True} if model_type == "qwen3_vl" else {}
    served = trained if kind == "none" else int(trained * factor)
    if spelling == 4 and scaling and random.random() < 0.4:
        scaling = by_type(scaling)
    if model_type in LAYERED and spelling == 5:
        config = config_of(model_type, 4, served, None, **keys)
        config["rope_parameters"] = _layer_types(model_type, theta, scaling)
    else:
        if model_type in ("gemma3_text", "gemma3n_text"):
            keys["rope_local_base_freq"] = 1e4
        part = PARTS.get(model_type)
        config = config_of(model_type, spelling, served, theta, scaling or None, part, **keys)
    title = f"{name}: {model_type} {kind} v{spelling}"
    length = random.choice((served, trained))
    return ServedConfig(title, config, length, None, axes=3 if model_type in VISION else 1)


def _scaling(random: Random, model_type: str, kind: str, factor: float, trained: int) -> Config:
    """Return the keys of a scaling as checkpoints have them; {} for none."""
    if kind == "none":
        return {}
    if kind == "longrope":
        mscales = {"short_mscale": 1.2, "long_mscale": 1.2} if model_type == "phimoe" else {}
        return longrope(16 if model_type == "minicpm3" else 32, **mscales)
    rope: Config = {"rope_type": kind, "factor": factor}
    if kind == "llama3":
        rope |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    if kind in ("yarn", "llama3"):
        rope[TRAINED_KEY] = trained
    if kind == "yarn" and model_type in DEEPSEEK:
        mscale = random.choice((0.707, 1.0))
        rope |= {"beta_fast": 32, "beta_slow": 1, "mscale": mscale, "mscale_all_dim": mscale}
    return rope | OWN.get(model_type, {})


def _layer_types(model_type: str, theta: float, scaling: Config) -> Config:
    """Return `rope_parameters` with the rope of full layers and that of sliding ones."""
    full = {"rope_type": "default", "rope_theta": theta, **scaling}
    if model_type == "gemma4_text":
        full = {"rope_type": "proportional", "rope_theta": theta, "partial_rotary_factor": 0.25}
    sliding = {"rope_type": "default", "rope_theta": LAYERED[model_type]}
    return {"full_attention": full, "sliding_attention": sliding}
