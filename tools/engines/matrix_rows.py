"""The rows of the matrix: ropes of real checkpoints in both spellings, and configs that engines may
read differently.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from engines.matrix import FAMILIES, HEADS, VISION, Config, ServedConfig
from ropewalk.config.examples import EXAMPLES
from ropewalk_lab.engines_run.small import complete_config

#: how the names of rows with the very rope of a checkpoint begin
EXAMPLE = "checkpoint "

LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
DEEPSEEK_YARN = {
    "rope_type": "yarn",
    "factor": 40.0,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
GPT_OSS_YARN = {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 4096,
}  # fmt: skip
LINEAR = {"rope_type": "linear", "factor": 8.0}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0}
SECTIONS = {"rope_type": "default", "mrope_section": [16, 24, 24]}


def longrope(pairs: int, **more: Any) -> Config:
    """Return the config keys of a LongRoPE whose factors grow from pair to pair; `more` are further
    keys of it.
    """
    short = [round(1 + 0.02 * pair, 4) for pair in range(pairs)]
    long = [round(1 + 0.9 * pair, 4) for pair in range(pairs)]
    return {"rope_type": "longrope", "short_factor": short, "long_factor": long, **more}


def by_type(scaling: Config) -> Config:
    """Return a scaling that is named by the old key `type`."""
    return {
        "type": scaling["rope_type"],
        **{key: value for key, value in scaling.items() if key != "rope_type"},
    }


def config_of(
    model_type: str,
    spelling: int,
    length: int,
    theta: float | None = 1e4,
    scaling: Config | None = None,
    partial: float | None = None,
    **keys: Any,
) -> Config:
    """Return a small config of a family whose rope is spelled as transformers 4 or 5 writes it.

    length   the served length
    theta    None: the config has no theta
    partial  the fraction of the head that rotates; None: the config has no such key
    keys     further keys of the text model
    """
    architecture, family_keys = FAMILIES[model_type]
    is_old_neox = model_type == "gpt_neox" and spelling == 4
    theta_key, partial_key = (
        ("rotary_emb_base", "rotary_pct")
        if is_old_neox
        else ("rope_theta", "partial_rotary_factor")
    )
    rope: Config = {
        key: value
        for key, value in {theta_key: theta, partial_key: partial}.items()
        if value is not None
    }
    if spelling == 5:
        rope = {"rope_parameters": {"rope_type": "default", **rope, **(scaling or {})}}
    elif scaling is not None:
        rope["rope_scaling"] = dict(scaling)
    text = {**HEADS, **family_keys, "max_position_embeddings": length, **rope, **keys}
    if model_type not in VISION:
        return {"model_type": model_type, "architectures": [architecture], **text}
    name, tower = VISION[model_type]
    text = {**text, "hidden_size": 256, "head_dim": 128, "model_type": name}
    outer = {
        "image_token_id": 5,
        "video_token_id": 6,
        "vision_start_token_id": 7,
        "vision_end_token_id": 8,
    }
    return {
        "model_type": model_type,
        "architectures": [architecture],
        **outer,
        "text_config": text,
        "vision_config": dict(tower),
    }


#: name: (model_type, served length, theta, scaling, partial, more keys); each becomes two rows, one
#: per spelling
REAL: dict[str, tuple[str, int, float, Config | None, float | None, Config]] = {
    "llama-2": ("llama", 4096, 1e4, None, None, {}),
    "llama-3": ("llama", 8192, 5e5, None, None, {}),
    "llama-3.1": ("llama", 131072, 5e5, LLAMA3, None, {}),
    "llama linear": ("llama", 16384, 1e4, LINEAR, None, {}),
    "vicuna-16k": ("llama", 4096, 1e4, {**LINEAR, "factor": 4.0}, None, {}),
    "mistral": ("mistral", 32768, 1e6, None, None, {}),
    "mixtral": ("mixtral", 32768, 1e6, None, None, {}),
    "qwen2": ("qwen2", 131072, 1e6, None, None, {}),
    "qwen2.5 yarn": ("qwen2", 131072, 1e6, YARN, None, {}),
    "qwen2 moe": ("qwen2_moe", 8192, 1e6, None, None, {}),
    "qwen3": ("qwen3", 40960, 1e6, None, None, {}),
    "qwen3 yarn": ("qwen3", 131072, 1e6, YARN, None, {}),
    "qwen3 moe yarn": ("qwen3_moe", 131072, 1e6, YARN, None, {}),
    "phi-2": ("phi", 2048, 1e4, None, 0.5, {}),
    "phi-3 4k": ("phi3", 4096, 1e4, None, None, {}),
    "phi-4": ("phi3", 16384, 250000.0, None, None, {}),
    "gemma": ("gemma", 8192, 1e4, None, None, {}),
    "gemma-2": ("gemma2", 8192, 1e4, None, None, {}),
    "glm": ("glm", 8192, 1e4, None, 0.5, {}),
    "glm-4": ("glm4", 32768, 1e4, None, 0.5, {}),
    "glm-4.5": ("glm4_moe", 131072, 1e6, None, 0.5, {"rope_scaling": None}),
    "deepseek-v2": (
        "deepseek_v2",
        163840,
        1e4,
        {**DEEPSEEK_YARN, "mscale": 0.707, "mscale_all_dim": 0.707},
        None,
        {"scoring_func": "softmax"},
    ),
    "deepseek-v3": ("deepseek_v3", 163840, 1e4, DEEPSEEK_YARN, None, {}),
    "deepseek-v3 unscaled": ("deepseek_v3", 4096, 1e4, None, None, {}),
    "gpt-oss": ("gpt_oss", 131072, 150000.0, GPT_OSS_YARN, None, {"initial_context_length": 4096}),
    "pythia": ("gpt_neox", 2048, 1e4, None, 0.25, {}),
    "falcon": ("falcon", 2048, 1e4, None, None, {}),
    "command-r": ("cohere", 8192, 8e6, None, None, {}),
    "command-r7b": ("cohere2", 132096, 5e4, None, None, {}),
    "olmo": ("olmo", 2048, 1e4, None, None, {}),
    "olmo-2": ("olmo2", 4096, 5e5, None, None, {}),
    "smollm3": ("smollm3", 65536, 5e6, None, None, {}),
    "starcoder2": ("starcoder2", 16384, 1e6, None, None, {}),
    "stablelm": ("stablelm", 4096, 1e4, None, 0.25, {}),
    "granite": ("granite", 131072, 1e7, None, None, {}),
    "exaone-4": ("exaone4", 131072, 1e6, {**LLAMA3, "factor": 16.0}, None, {}),
    "seed-oss": ("seed_oss", 524288, 1e7, None, None, {}),
    "ernie-4.5": ("ernie4_5", 131072, 5e5, None, None, {}),
    "nemotron": ("nemotron", 4096, 1e4, None, 0.5, {}),
    "minimax-m2": ("minimax_m2", 196608, 5e6, None, None, {}),
    "apertus": ("apertus", 65536, 1.2e7, LLAMA3, None, {}),
    "ministral-3": (
        "ministral3",
        262144,
        1e6,
        {
            "rope_type": "yarn",
            "factor": 16.0,
            "original_max_position_embeddings": 16384,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "llama_4_scaling_beta": 0.1,
        },
        None,
        {},
    ),
    "qwen2-vl": ("qwen2_vl", 32768, 1e6, SECTIONS, None, {}),
    "qwen2.5-vl": ("qwen2_5_vl", 128000, 1e6, SECTIONS, None, {}),
    "qwen3-vl": (
        "qwen3_vl",
        262144,
        5e6,
        {**SECTIONS, "mrope_section": [24, 20, 20], "mrope_interleaved": True},
        None,
        {},
    ),
}


def _real() -> Iterator[ServedConfig]:
    """Yield the configs of real models, in the spelling of transformers 4 and of 5."""
    # config_of(model_type, 4 or 5 for the spelling, served length, theta, scaling, fraction of the
    # head that rotates)
    for name, (model_type, length, theta, scaling, partial, keys) in REAL.items():
        for spelling in (4, 5):
            config = config_of(model_type, spelling, length, theta, scaling, partial, **keys)
            yield ServedConfig(
                f"{name}, v{spelling}", config, length, axes=3 if model_type in VISION else 1
            )
    hunyuan = {
        "type": "dynamic",
        "alpha": 1000.0,
        "factor": 1.0,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
    }
    yield ServedConfig("hunyuan, v4", config_of("hunyuan_v1_dense", 4, 32768, 1e4, hunyuan), 32768)
    gemma: dict[str, Any] = {"rope_theta": 1e6, "rope_local_base_freq": 1e4}
    yield ServedConfig("gemma-3, v4", config_of("gemma3_text", 4, 32768, None, **gemma), 32768)
    yield ServedConfig(
        "gemma-3 linear, v4", config_of("gemma3_text", 4, 131072, None, LINEAR, **gemma), 131072
    )
    local = {"rope_type": "default", "rope_theta": 1e4}
    full = {"rope_type": "default", "rope_theta": 1e6}
    yield _row_by_layer_type("gemma-3, v5", "gemma3_text", 32768, full, local)
    yield _row_by_layer_type("gemma-3 linear, v5", "gemma3_text", 131072, {**full, **LINEAR}, local)
    proportional = {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25}
    yield _row_by_layer_type("gemma-4, v5", "gemma4_text", 131072, proportional, local)
    yield _row_by_layer_type(
        "gemma-4 factor 4, v5", "gemma4_text", 131072, {**proportional, "factor": 4.0}, local
    )
    olmo = {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 8192,
        "attention_factor": 1.2079441541679836,
    }
    yield ServedConfig("olmo-3, v4", config_of("olmo3", 4, 65536, 5e5, olmo), 65536)
    yield _row_by_layer_type(
        "olmo-3, v5", "olmo3", 65536, {**olmo, "rope_theta": 5e5}, {**local, "rope_theta": 5e5}
    )


def _row_by_layer_type(
    name: str, model_type: str, length: int, full: Config, sliding: Config
) -> ServedConfig:
    """Return a row whose `rope_parameters` hold one rope for full and one for sliding attention."""
    config = config_of(model_type, 4, length, theta=None)
    return ServedConfig(
        name,
        {**config, "rope_parameters": {"full_attention": full, "sliding_attention": sliding}},
        length,
    )


def _lengths(name: str, config: Config, original: int) -> Iterator[ServedConfig]:
    """Yield rows at lengths around `original`, where a scaling changes, some of them with the
    length an engine is started for.
    """
    served = config["max_position_embeddings"]
    for length in (original - 1, original, original + 1, served):
        yield ServedConfig(name, config, length)
    yield ServedConfig(name, config, original, max_model_len=original)
    yield ServedConfig(name, config, original, max_model_len=original + 1)
    yield ServedConfig(name, config, served, max_model_len=served)


def _length_dependent() -> Iterator[ServedConfig]:
    """Yield configs whose frequencies depend on the length, each at several lengths."""
    # config_of(model_type, 4 or 5 for the spelling, served length, theta, scaling, fraction of the
    # head that rotates)
    for spelling in (4, 5):
        # Phi's configs have the trained length outside the rope object, and name the scaling by
        # `type` in transformers 4
        outside = {"original_max_position_embeddings": 4096}
        phi = config_of(
            "phi3",
            spelling,
            131072,
            1e4,
            by_type(longrope(32)) if spelling == 4 else longrope(32),
            **outside,
        )
        yield from _lengths(f"phi-3 128k, v{spelling}", phi, 4096)
        factors = by_type(longrope(24)) if spelling == 4 else longrope(24)
        mini = config_of("phi3", spelling, 131072, 1e4, factors, 0.75, **outside)
        yield from _lengths(f"phi-4-mini, v{spelling}", mini, 4096)
        moe = longrope(32, short_mscale=1.2, long_mscale=1.2, original_max_position_embeddings=4096)
        yield from _lengths(
            f"phi-3.5 moe, v{spelling}",
            config_of("phimoe", spelling, 131072, 1e4, moe, **outside),
            4096,
        )
        dynamic = config_of("llama", spelling, 4096, 1e4, DYNAMIC)
        for length in (2048, 4096, 4097, 8192):
            yield ServedConfig(f"llama dynamic, v{spelling}", dynamic, length)
        yield ServedConfig(f"llama dynamic, v{spelling}", dynamic, 8192, max_model_len=8192)
        inside = longrope(32, original_max_position_embeddings=4096, factor=8.0)
        yield from _lengths(
            f"llama longrope, v{spelling}", config_of("llama", spelling, 32768, 1e4, inside), 4096
        )
    old = {**by_type(longrope(32)), "type": "su"}
    for length in (4096, 131072):
        yield ServedConfig(
            "phi-3 type su",
            config_of("phi3", 4, 131072, 1e4, old, original_max_position_embeddings=4096),
            length,
        )
        missing = config_of("phi3", 4, 131072, 1e4, by_type(longrope(32)))
        yield ServedConfig("phi-3 without original length", missing, length)
        plain = config_of(
            "phi3", 4, 131072, 1e4, longrope(32), original_max_position_embeddings=4096
        )
        yield ServedConfig("phi-3 128k by rope_type, v4", plain, length)


#: unusual keys of YaRN that engines may read differently
YARN_VARIANTS: dict[str, Config] = {
    "attention_factor": {"attention_factor": 1.0},
    "attention_factor 0.8": {"attention_factor": 0.8},
    "mscale": {"mscale": 0.5},
    "mscale_all_dim": {"mscale_all_dim": 0.8},
    "mscale both": {"mscale": 0.5, "mscale_all_dim": 0.8},
    "attn_factor": {"attn_factor": 0.5},
    "truncate false": {"truncate": False},
    "betas": {"beta_fast": 16, "beta_slow": 2},
    "factor 1": {"factor": 1.0},
}


def _easily_misread() -> Iterator[ServedConfig]:
    """Yield configs that engines are likely to read differently: missing keys, unusual keys and
    rare combinations.
    """
    # config_of(model_type, 4 or 5 for the spelling, served length, theta, scaling, fraction of the
    # head that rotates)
    short_yarn = {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 2048}
    for name, keys in YARN_VARIANTS.items():
        for model_type in ("llama", "qwen2", "qwen3", "deepseek_v3"):
            yield ServedConfig(
                f"{model_type} yarn {name}",
                config_of(model_type, 4, 32768, 1e4, {**short_yarn, **keys}),
                32768,
            )
        yield ServedConfig(
            f"llama yarn {name}, v5",
            config_of("llama", 5, 32768, 1e4, {**short_yarn, **keys}),
            32768,
        )
        yield ServedConfig(
            f"mistral yarn {name}, v5",
            config_of("mistral", 5, 32768, 1e4, {**short_yarn, **keys}),
            32768,
        )
    for spelling in (4, 5):
        no_length = {"rope_type": "yarn", "factor": 4.0}
        for model_type in ("llama", "qwen2", "mistral", "qwen3"):
            config = config_of(model_type, spelling, 8192, 1e4, no_length)
            yield ServedConfig(
                f"{model_type} yarn without original length, v{spelling}", config, 8192
            )
        no_length = {
            key: value for key, value in LLAMA3.items() if key != "original_max_position_embeddings"
        }
        yield ServedConfig(
            f"llama3 without original length, v{spelling}",
            config_of("llama", spelling, 16384, 5e5, no_length),
            16384,
        )
        for model_type in (
            "llama",
            "qwen2",
            "mistral",
            "phi3",
            "gpt_neox",
            "phi",
            "falcon",
            "granite",
            "starcoder2",
            "olmo2",
            "cohere",
            "glm4",
            "stablelm",
            "gemma",
            "qwen3",
            "smollm3",
            "ernie4_5",
            "seed_oss",
        ):
            yield ServedConfig(
                f"{model_type} linear, v{spelling}",
                config_of(model_type, spelling, 8192, 1e4, LINEAR),
                8192,
            )
        for model_type in (
            "llama",
            "mistral",
            "qwen2",
            "qwen3",
            "phi3",
            "glm4",
            "stablelm",
            "phi",
            "gpt_neox",
            "nemotron",
        ):
            config = config_of(model_type, spelling, 8192, 1e4, None, 0.25)
            yield ServedConfig(f"{model_type} partial, v{spelling}", config, 8192)
            config = config_of(model_type, spelling, 8192, 1e4, LINEAR, 0.25)
            yield ServedConfig(f"{model_type} partial linear, v{spelling}", config, 8192)
        for model_type in ("llama", "qwen2", "phi3"):
            config = config_of(model_type, spelling, 32768, 1e4, short_yarn, 0.5)
            yield ServedConfig(f"{model_type} partial yarn, v{spelling}", config, 32768)
        for model_type in ("mistral", "qwen3", "gemma2", "granite", "cohere2", "olmo2"):
            yield ServedConfig(
                f"{model_type} llama3, v{spelling}",
                config_of(model_type, spelling, 131072, 5e5, LLAMA3),
                131072,
            )
            yield ServedConfig(
                f"{model_type} yarn, v{spelling}",
                config_of(model_type, spelling, 32768, 5e5, short_yarn),
                32768,
            )
        for model_type in (
            "llama",
            "qwen2",
            "gemma2",
            "mistral",
            "phi3",
            "stablelm",
            "gpt_oss",
            "falcon",
            "cohere",
        ):
            config = config_of(model_type, spelling, 8192, None)
            yield ServedConfig(f"{model_type} without theta, v{spelling}", config, 8192)
        vision = {"rope_type": "default", "mrope_section": [24, 20, 20]}
        yield ServedConfig(
            f"qwen3-vl without flag, v{spelling}",
            config_of("qwen3_vl", spelling, 32768, 5e6, vision),
            32768,
            axes=3,
        )
        scaled = {**YARN, "mrope_section": [16, 24, 24]}
        yield ServedConfig(
            f"qwen2-vl yarn, v{spelling}",
            config_of("qwen2_vl", spelling, 131072, 1e6, scaled),
            131072,
            axes=3,
        )
    old = {"type": "mrope", "mrope_section": [16, 24, 24]}
    yield ServedConfig(
        "qwen2-vl type mrope", config_of("qwen2_vl", 4, 32768, 1e6, old), 32768, axes=3
    )
    for scaling in (LINEAR, short_yarn, LLAMA3):
        yield ServedConfig(
            f"llama {scaling['rope_type']} by type",
            config_of("llama", 4, 65536, 1e4, by_type(scaling)),
            65536,
        )
    half = config_of("deepseek_v3", 4, 4096, 1e4, rope_interleave=False)
    yield ServedConfig("deepseek-v3 rope_interleave false", half, 4096)
    pct = config_of("stablelm", 4, 4096, 1e4)
    yield ServedConfig("stablelm rotary_pct", {**pct, "rotary_pct": 0.25}, 4096)
    minimax = config_of("minimax_m2", 4, 4096, 5e6, None, 0.5)
    yield ServedConfig(
        "minimax-m2 without rotary_dim",
        {key: value for key, value in minimax.items() if key != "rotary_dim"},
        4096,
    )
    yield ServedConfig(
        "exaone-4 without window",
        config_of(
            "exaone4",
            4,
            32768,
            1e6,
            None,
            sliding_window=None,
            layer_types=["full_attention"] * 30,
            num_hidden_layers=30,
            sliding_window_pattern=None,
            rope_scaling=None,
        ),
        32768,
    )
    yield ServedConfig(
        "smollm3 all rotate",
        config_of("smollm3", 4, 65536, 5e6, no_rope_layers=[1, 1, 1, 1]),
        65536,
    )


#: model_type: the pairs of its small model, for families that are run with scalings that their
#: checkpoints do not have
UNUSUAL = {
    "deepseek_v3": 16,
    "cohere": 32,
    "qwen2_vl": 64,
    "qwen3_vl": 64,
    "ministral3": 32,
    "exaone4": 32,
}


def _unusual() -> Iterator[ServedConfig]:
    """Yield rows with a scaling that the checkpoints of their family do not have in this form, so
    engines may expect another one or none.
    """
    yarn = {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 1024,
        "mscale": 0.9,
        "mscale_all_dim": 0.6,
    }
    for spelling, (model_type, pairs) in itertools.product((4, 5), UNUSUAL.items()):
        long = longrope(pairs, original_max_position_embeddings=1024, factor=4.0)
        sections = {
            "qwen2_vl": {"mrope_section": [16, 24, 24]},
            "qwen3_vl": {"mrope_section": [24, 20, 20]},
        }.get(model_type, {})
        for name, scaling in (
            ("linear", LINEAR),
            ("llama3", LLAMA3),
            ("longrope", long),
            ("yarn mscale", yarn),
        ):
            config = config_of(
                model_type, spelling, 4096, theta=2e5, scaling={**scaling, **sections}
            )
            yield ServedConfig(
                f"{model_type} unusual {name}, v{spelling}",
                config,
                4096,
                axes=3 if model_type in VISION else 1,
            )
    local = {"rope_type": "default", "rope_theta": 1e4}
    partial = {"rope_type": "default", "partial_rotary_factor": 0.5}
    for name, scaling in (("linear", LINEAR), ("yarn", yarn), ("partial", partial)):
        yield _row_by_layer_type(
            f"gemma4_text unusual {name}, v5",
            "gemma4_text",
            4096,
            {"rope_theta": 1e6, **scaling},
            local,
        )


#: name: the rope of the full layers of a Gemma 3 config
GEMMA_ROPES: dict[str, Config] = {
    "linear": LINEAR,
    "yarn": {**YARN, "original_max_position_embeddings": 2048},
    "yarn attention_factor": {
        **YARN,
        "original_max_position_embeddings": 2048,
        "attention_factor": 1.0,
    },
    "yarn truncate false": {**YARN, "original_max_position_embeddings": 2048, "truncate": False},
    "llama3": {**LLAMA3, "original_max_position_embeddings": 2048},
    "longrope": longrope(32, original_max_position_embeddings=2048),
    "dynamic": DYNAMIC,
    "partial linear": {**LINEAR, "partial_rotary_factor": 0.5},
}


def _gemma_3() -> Iterator[ServedConfig]:
    """Yield Gemma 3 with each of GEMMA_ROPES, in the spelling of transformers 4 and of 5, and some
    configs with one rope for all layer types.
    """
    local = {"rope_type": "default", "rope_theta": 1e4}
    for name, rope in GEMMA_ROPES.items():
        keys = {"rope_theta": 1e6, "rope_local_base_freq": 1e4}
        config = config_of("gemma3_text", 4, 8192, None, rope, **keys)
        yield ServedConfig(f"gemma-3 scaled {name}, v4", config, 8192)
        full = {"rope_theta": 1e6, **rope}
        yield _row_by_layer_type(f"gemma-3 scaled {name}, v5", "gemma3_text", 8192, full, local)
    keys = {"rope_theta": 1e6, "rope_local_base_freq": 1e4}
    by_old_name = config_of("gemma3_text", 4, 8192, None, by_type(LINEAR), **keys)
    yield ServedConfig("gemma-3 linear by type, v4", by_old_name, 8192)
    full = {"rope_type": "default", "rope_theta": 1e6}
    sliding = {**local, **LINEAR}
    yield _row_by_layer_type("gemma-3 sliding linear, v5", "gemma3_text", 8192, full, sliding)
    for name, rope in {"default": full, "linear": {**full, **LINEAR}}.items():
        one = {"rope_parameters": {**rope, "rope_theta": 5e5}}
        config = config_of("gemma3_text", 4, 8192, None, **one)
        yield ServedConfig(f"gemma-3 one rope {name}, v5", config, 8192)
        config = config_of("gemma3_text", 4, 8192, None, **one, rope_local_base_freq=2e4)
        yield ServedConfig(f"gemma-3 one rope {name} with a local theta, v5", config, 8192)


def _read_by_some() -> Iterator[ServedConfig]:
    """Yield configs that one engine runs and another refuses, or that `from_hf` refuses."""
    layered = {
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    for model_type in ("llama", "mistral", "qwen2", "qwen3"):
        config = config_of(model_type, 4, 8192, None, rope_parameters=layered)
        yield ServedConfig(f"{model_type} ropes by layer type, v5", config, 8192)
        yield ServedConfig(
            f"{model_type} rotary_pct, v4",
            config_of(model_type, 4, 8192, 1e4, rotary_pct=0.25),
            8192,
        )
    pct = config_of("llama", 4, 8192, 1e4, LINEAR, rotary_pct=0.25)
    yield ServedConfig("llama rotary_pct linear, v4", pct, 8192)
    for model_type in ("qwen2", "llama"):
        axes = {"type": "mrope", "mrope_section": [8, 12, 12]}
        yield ServedConfig(
            f"{model_type} type mrope", config_of(model_type, 4, 8192, 1e6, axes), 8192
        )
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
    for model_type in ("llama", "qwen3"):
        real = {**yarn, "original_max_position_embeddings": 2048.0}
        yield ServedConfig(
            f"{model_type} yarn with a float length",
            config_of(model_type, 4, 8192, 1e4, real),
            8192,
        )
        for spelling in (4, 5):
            other = {**yarn, "type": "linear"}
            config = config_of(model_type, spelling, 8192, 1e4, other)
            yield ServedConfig(f"{model_type} yarn with type linear, v{spelling}", config, 8192)
    config = config_of("llama", 4, 8192, 1e4, {**yarn, "rope_type": "linear", "type": "yarn"})
    yield ServedConfig("llama linear with type yarn, v4", config, 8192)
    config = config_of("llama", 4, 8192, 1e4, max_position_embeddings=8192.0)
    yield ServedConfig("llama with a float served length", config, 8192)
    factors = {"short_factor": [1.0] * 32, "long_factor": [2.0] * 32}
    keys = {"original_max_position_embeddings": 2048, "pad_token_id": 0}
    config = config_of("phi3", 4, 8192, 1e4, {"type": "yarn", **factors}, **keys)
    yield ServedConfig("phi-3 type yarn with factors, v4", config, 8192)
    config = config_of("phi3", 4, 8192, 1e4, by_type(yarn), pad_token_id=0)
    yield ServedConfig("phi-3 type yarn, v4", config, 8192)
    yield ServedConfig("gpt-j, v4", config_of("gptj", 4, 2048, None), 2048)
    yield ServedConfig("minicpm3, v4", config_of("minicpm3", 4, 8192, 1e4), 8192)
    long = longrope(16, original_max_position_embeddings=2048)
    for name, scaling in {"longrope": long, "longrope by type": by_type(long)}.items():
        config = config_of("minicpm3", 4, 8192, 1e4, scaling)
        yield from _lengths(f"minicpm3 {name}, v4", config, 2048)


def _examples() -> Iterator[ServedConfig]:
    """Yield small models with the very ropes of well-known checkpoints, as their configs have them."""
    for name, checkpoint in EXAMPLES.items():
        small = complete_config(checkpoint)
        if small is None:
            continue
        length = small["max_position_embeddings"]
        trained = small.get("original_max_position_embeddings", length)
        for tokens in dict.fromkeys((trained, length)):
            yield ServedConfig(f"{EXAMPLE}{name}", small, tokens)


def rows() -> list[ServedConfig]:
    """Return every row of the matrix."""
    return [
        *_real(),
        *_length_dependent(),
        *_easily_misread(),
        *_unusual(),
        *_gemma_3(),
        *_read_by_some(),
        *_examples(),
    ]
