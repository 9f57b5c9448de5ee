"""Facts that only llama.cpp's code contains, by general.architecture: pair layout, and which rope
keys are read.

Read in its sources, llama-model.cpp and src/models, in August 2026; tests run a part of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from ropewalk.errors import RopeError


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """How llama.cpp rotates one architecture.

    layout              pairs as q and k are stored in the file
    model_type          the Hugging Face `model_type` of the same model; None if there is not
                        exactly one
    axis_order          order of rope.dimension_sections along the pairs; None: not read
    has_freqs           reads rope_freqs, has_long_factors: reads rope_factors_long and
                        rope_factors_short
    has_betas           reads the betas of YaRN, has_yarn_factors: also its extrapolation and
                        attention factors
    beta_fast           YaRN's beta_fast if the file has none
    log_multiplier      what yarn_log_multiplier is multiplied by to give mscale_all_dim; 0: not
                        read
    has_alpha           reads rope.scaling.alpha
    latent              rotates a part of the head that latent attention splits off; it has
                        dimension_count dimensions
    has_sliding         has sliding layers if attention.sliding_window is given
    sliding_unscaled    sliding layers have their own theta, 10,000 by default, and no scaling
    full_unrotated      full layers do not rotate if there are sliding ones
    """

    layout: str
    model_type: str | None = None
    axis_order: str | None
    has_freqs: bool
    has_long_factors: bool
    has_betas: bool
    has_yarn_factors: bool
    beta_fast: float = 32.0
    log_multiplier: float = 0.0
    has_alpha: bool
    latent: bool
    has_sliding: bool
    sliding_unscaled: bool
    full_unrotated: bool


_INTERLEAVED = (
    "llama llada llama4 deci baichuan starcoder internlm2 minicpm xverse command-r cohere2 cohere2moe olmo arctic deepseek "  # noqa: E501
    "deepseek2 deepseek2-ocr deepseek32 plm chatglm granite granitemoe granitehybrid granite_swa chameleon bailingmoe "  # noqa: E501
    "bailingmoe3 neo-bert smollm3 arcee ernie4_5 ernie4_5-moe mistral3 eagle3 mistral4 llama-embed maincoder glm-dsa glm4 "  # noqa: E501
    "nanbeige"
)
_HALF = (
    "falcon falcon-h1 grok dbrx jina-bert-v3 modern-bert nomic-bert nomic-bert-moe eurobert stablelm bitnet qwen qwen2 dream "  # noqa: E501
    "qwen2moe qwen3 qwen3moe llada-moe rnd1 olmo2 olmoe phi2 phi3 phimoe plamo plamo2 plamo3 gemma gemma2 gemma3 gemma3n gemma4 "  # noqa: E501
    "gemma-embedding starcoder2 openelm gptneox codeshell orion nemotron exaone exaone4 exaone-moe minicpm3 bailingmoe2 dots1 "  # noqa: E501
    "hunyuan-moe hunyuan-dense jais2 gpt-oss hy_v3 lfm2 lfm2moe smallthinker seed_oss grovemoe apertus minimax-01 minimax-m2 "  # noqa: E501
    "minimax-m3 cogvlm pangu-embedded afmoe laguna qwen3next mimo2 step35 talkie mellum glm4moe"
)
_SECTIONS = {
    "qwen2vl": "chunked",
    "paddleocr": "chunked",
    "qwen3vl": "interleaved",
    "qwen3vlmoe": "interleaved",
    "qwen35": "interleaved",
    "qwen35moe": "interleaved",
}
#: fact -> the architectures it holds for
_FACTS = {
    "has_freqs": "apertus arcee cogvlm deci eagle3 exaone exaone4 exaone-moe falcon-h1 gemma4 granite granitemoe granitehybrid "  # noqa: E501
    "granite_swa llada llama llama-embed llama4 minicpm mistral3 nanbeige pangu-embedded step35",
    "has_long_factors": "apertus deci granite granitemoe granite_swa llama llama-embed minicpm minicpm3 mistral3 pangu-embedded "  # noqa: E501
    "phi3 phimoe step35",
    "has_betas": "grok mistral3",
    "has_yarn_factors": "grok",
    "has_alpha": "hunyuan-dense",
    "latent": "deepseek2 deepseek32 glm-dsa minicpm3 mistral4 plm",
    "has_sliding": "afmoe cohere2 cohere2moe exaone4 exaone-moe gemma2 gemma3 gemma3n gemma4 gemma-embedding gpt-oss laguna "  # noqa: E501
    "mellum mimo2 modern-bert olmo2 plamo3 smallthinker step35",
    "sliding_unscaled": "gemma3 gemma3n gemma4 gemma-embedding mimo2 modern-bert plamo3",
    "full_unrotated": "cohere2 cohere2moe exaone4 exaone-moe afmoe",
}
_VALUES = {
    "beta_fast": {"grok": 8.0},
    "log_multiplier": {"deepseek2": 10.0, "deepseek32": 10.0, "mistral4": 10.0, "mistral3": 1.0},
    "model_type": {
        "llama": "llama",
        "qwen2": "qwen2",
        "qwen2moe": "qwen2_moe",
        "qwen3": "qwen3",
        "qwen3moe": "qwen3_moe",
        "phi3": "phi3",
        "gemma": "gemma",
        "gemma2": "gemma2",
        "gemma3": "gemma3_text",
        "smollm3": "smollm3",
        "olmo": "olmo",
        "olmo2": "olmo2",
        "olmoe": "olmoe",
        "granite": "granite",
        "granitemoe": "granitemoe",
        "starcoder2": "starcoder2",
        "gpt-oss": "gpt_oss",
        "falcon": "falcon",
        "gptneox": "gpt_neox",
        "stablelm": "stablelm",
        "command-r": "cohere",
        "cohere2": "cohere2",
        "glm4": "glm4",
        "glm4moe": "glm4_moe",
        "ernie4_5": "ernie4_5",
        "nemotron": "nemotron",
        "seed_oss": "seed_oss",
        "apertus": "apertus",
        "exaone4": "exaone4",
        "qwen2vl": "qwen2_vl_text",
        "qwen3vl": "qwen3_vl_text",
        "arcee": "arcee",
        "phi2": "phi",
        "phimoe": "phimoe",
        "hunyuan-dense": "hunyuan_v1_dense",
        "minimax-m2": "minimax_m2",
        "dbrx": "dbrx",
    },
}


def _architecture(name: str) -> Architecture:
    """Return the facts about a llama.cpp architecture."""
    facts = {fact: name in names.split() for fact, names in _FACTS.items()}
    values = {fact: by_name[name] for fact, by_name in _VALUES.items() if name in by_name}
    layout = "interleaved" if name in _INTERLEAVED.split() else "half"
    return Architecture(layout=layout, axis_order=_SECTIONS.get(name), **facts, **values)


ARCHITECTURES: dict[str, Architecture] = {
    name: _architecture(name) for name in (*_INTERLEAVED.split(), *_HALF.split(), *_SECTIONS)
}


def architecture_of(name: str) -> Architecture:
    """Return the facts of a general.architecture; refuse one that does not rotate or is not known."""
    if name not in ARCHITECTURES:
        rule = (
            "must be an architecture that rotates and whose pair layout is known: "
            f"{', '.join(sorted(ARCHITECTURES))}"
        )
        raise RopeError("general.architecture", rule, name)
    return ARCHITECTURES[name]
