"""The rows of the vectors: which configs, what each means, and why a group exists.

A config is what a project reads; "rope" beside it says what it means, written by hand. The tests
compare the rows with the package, and with transformers where it has the model.
"""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]

#: the functions of a project that can be tested with a rope
ROPE = ["inv_freq", "cos_sin", "rotate"]
NEAR = [0, 1, 17, 4095, 131071]
FAR = [0, 131071, 1048575, 16777217, 268435455, 2147483647, 2147483648]


def llama(**changes: Any) -> Row:
    """Return the keys of a small Llama with some changed; `...` as a value leaves a key out."""
    keys: Row = {
        "model_type": "llama",
        "hidden_size": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "max_position_embeddings": 131072,
        "rope_theta": 10000.0,
    }
    return {key: value for key, value in (keys | changes).items() if value is not ...}


def rope(
    head_dim: int = 64, theta: float = 10000.0, scaling: Row | None = None, **more: Any
) -> Row:
    """Return what a config means, as the key "rope" of a case holds it."""
    return {
        "head_dim": head_dim,
        "rotary_dim": head_dim,
        "rotary_start": 0,
        "layout": "half",
        "theta": theta,
        "max_length": 131072,
        "scaling": scaling or {"type": "default"},
        "axes": None,
        "scales_softmax": False,
    } | more


def yarn(factor: float, original: int, **more: Any) -> Row:
    """Return the scaling of a rope: YaRN, with its defaults."""
    return {
        "type": "yarn",
        "factor": factor,
        "original_length": original,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": True,
        "attention_factor": None,
        "mscale": None,
        "mscale_all_dim": None,
    } | more


def yarn_keys(factor: float, original: int, **more: Any) -> Row:
    """Return the config keys of YaRN: its name, factor and trained length, and `more`."""
    keys = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
    return keys | more


def llama3(factor: float, low: float = 1.0, high: float = 4.0, original: int = 8192) -> Row:
    """Return the scaling of a rope: Llama 3's."""
    return {
        "type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_length": original,
    }


def llama3_keys(factor: float, low: float = 1.0, high: float = 4.0, original: int = 8192) -> Row:
    """Return the config keys of Llama 3's scaling."""
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }


def case(id: str, comment: str, config: Row, means: Row, **more: Any) -> Row:
    """Return one case of a rope."""
    return {"id": id, "comment": comment, "config": config, "rope": means} | more


LINEAR4 = {"type": "linear", "factor": 4.0}
YARN4_KEYS = yarn_keys(4.0, 32768)
YARN4 = yarn(4.0, 32768)
OSS_KEYS = yarn_keys(32.0, 4096, beta_fast=32.0, beta_slow=1.0, truncate=False)
OSS = yarn(32.0, 4096, truncate=False)
DEEPSEEK_KEYS = {
    "type": "yarn",
    "factor": 40.0,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
DEEPSEEK = yarn(40.0, 4096, mscale=1.0, mscale_all_dim=1.0)
SHORT = [round(1 + 0.03125 * i, 5) for i in range(24)]
LONG = [1 + 0.5 * i for i in range(24)]
LONGROPE_KEYS = {"rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG}
LONGROPE = {
    "type": "longrope",
    "factor": 32.0,
    "original_length": 4096,
    "short_factor": SHORT,
    "long_factor": LONG,
    "attention_factor": None,
}


def phi(rope_scaling: Row | None = None, **changes: Any) -> Row:
    """Return the keys of a Phi-4-mini with heads of 64, three quarters of which rotate."""
    keys = llama(
        model_type="phi3",
        original_max_position_embeddings=4096,
        partial_rotary_factor=0.75,
        rope_scaling=rope_scaling or LONGROPE_KEYS,
    )
    keys.pop("head_dim")
    return keys | changes


def phi_rope(**changes: Any) -> Row:
    """Return the rope that the keys of `phi` mean, with changes of its scaling."""
    return rope(rotary_dim=48, scaling=LONGROPE | changes)


def deepseek(model_type: str = "deepseek_v3", **changes: Any) -> Row:
    """Return the keys of a small DeepSeek: heads of 32 + 32 dimensions, of which the last 32
    rotate; `...` as a value leaves a key out.
    """
    keys: Row = {
        "model_type": model_type,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 32,
        "v_head_dim": 32,
        "q_lora_rank": 64,
        "kv_lora_rank": 64,
        "max_position_embeddings": 163840,
        "rope_theta": 10000.0,
        "rope_scaling": DEEPSEEK_KEYS,
    }
    return {key: value for key, value in (keys | changes).items() if value is not ...}


def deepseek_rope(scaling: Row = DEEPSEEK, **changes: Any) -> Row:
    """Return the rope that the keys of `deepseek` mean, with changes."""
    means = rope(
        rotary_dim=32,
        rotary_start=32,
        layout="interleaved",
        scaling=scaling,
        max_length=163840,
        scales_softmax=scaling["type"] == "yarn",
    )
    return means | changes


GEMMA3 = {
    "model_type": "gemma3_text",
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 131072,
    "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
}
GEMMA3_ROPES = {
    "sliding_attention": rope(),
    "full_attention": rope(theta=1000000.0, scaling={"type": "linear", "factor": 8.0}),
}
GEMMA4 = {
    "model_type": "gemma4_text",
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "global_head_dim": 64,
    "max_position_embeddings": 131072,
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {
            "rope_type": "proportional",
            "partial_rotary_factor": 0.25,
            "rope_theta": 1000000.0,
        },
    },
}
GEMMA4_ROPES = {
    "sliding_attention": rope(head_dim=32),
    "full_attention": rope(
        theta=1000000.0, scaling={"type": "proportional", "fraction": 0.25, "factor": 1.0}
    ),
}
MODERNBERT = {
    "model_type": "modernbert",
    "hidden_size": 256,
    "num_attention_heads": 4,
    "max_position_embeddings": 8192,
    "global_rope_theta": 160000.0,
    "local_rope_theta": 10000.0,
    "num_hidden_layers": 2,
    "layer_types": ["full_attention", "sliding_attention"],
}
MODERNBERT_ROPES = {
    "full_attention": rope(theta=160000.0, max_length=8192),
    "sliding_attention": rope(max_length=8192),
}


def by_part(id: str, comment: str, config: Row, ropes: dict[str, Row]) -> list[Row]:
    """Return a case for each layer type of a config."""
    return [
        case(
            f"{id}-{part.split('_')[0]}",
            f"{comment}: {part}",
            config,
            means,
            part=part,
            other_ropes=[other for name, other in ropes.items() if name != part],
        )
        for part, means in ropes.items()
    ]


def vision(model_type: str, sections: list[int], interleaved: bool, **changes: Any) -> Row:
    """Return the keys of a small vision-language model."""
    kind = {"mrope_interleaved": True} if interleaved else {}
    scaling = {"rope_type": "default", "mrope_section": sections} | kind
    return llama(model_type=model_type, rope_theta=1000000.0, rope_scaling=scaling) | changes


CHUNKED = rope(theta=1000000.0, axes={"order": "chunked", "sections": [8, 12, 12]})
INTERLEAVED = rope(theta=1000000.0, axes={"order": "interleaved", "sections": [12, 10, 10]})
QWEN2 = vision("qwen2_vl", [8, 12, 12], False)
QWEN3 = vision("qwen3_vl_text", [12, 10, 10], True)
#: text, an image of 2 by 3 tokens, text: [axes][batch][tokens]
IMAGE = [
    [[0, 1, 2, 2, 2, 2, 2, 2, 5, 6]],
    [[0, 1, 2, 2, 2, 3, 3, 3, 5, 6]],
    [[0, 1, 2, 3, 4, 2, 3, 4, 5, 6]],
]
#: two streams that verify three drafted tokens each, after an image
DRAFTED = [
    [[41, 42, 43], [7, 8, 9]],
    [[41, 42, 43], [19, 20, 21]],
    [[41, 42, 43], [30, 31, 32]],
]

PACKED = [[0, 1, 2, 3, 0, 1, 2, 0, 1, 2]]
DOCUMENTS = [[0, 0, 0, 0, 1, 1, 1, 2, 2, 2]]

# cached-tables and extension come first: no earlier call may have filled the project's caches
GROUPS: list[Row] = [
    {
        "group": "cached-tables",
        "title": "A second config in the same process",
        "functions": ROPE,
        "why": "Tables that are cached without theta in the key return the first model's numbers "
        "for the second.",
        "bugs": [
            {"what": "theta is not in the key of the cache", "seen": "equinox 0.13.8, by running"},
        ],
        "cases": [
            case(
                "theta",
                "first theta 10,000, then 1,000,000",
                llama(rope_theta=1000000.0),
                rope(theta=1000000.0),
                before={"config": llama(), "rope": rope()},
            ),
            case(
                "factor",
                "first factor 4, then 2.5",
                llama(rope_scaling={"rope_type": "linear", "factor": 2.5}),
                rope(scaling={"type": "linear", "factor": 2.5}),
                before={
                    "config": llama(rope_scaling={"rope_type": "linear", "factor": 4.0}),
                    "rope": rope(scaling=LINEAR4),
                },
            ),
        ],
    },
    {
        "group": "extension",
        "title": "A scaling that is added later",
        "functions": ROPE,
        "why": "A trainer changed the config after the model was built, printed that long context "
        "is enabled, and trained the old rope.",
        "bugs": [
            {"what": "the scaling has no effect", "thread": "MakazhanAlpamys/Soup#793"},
        ],
        "cases": [
            case(
                "yarn",
                "first without scaling, then the same config with YaRN",
                llama(rope_theta=1000000.0, rope_scaling=YARN4_KEYS),
                rope(theta=1000000.0, scaling=YARN4),
                before={
                    "config": llama(rope_theta=1000000.0),
                    "rope": rope(theta=1000000.0),
                },
            ),
        ],
    },
    {
        "group": "default",
        "title": "No scaling",
        "functions": ROPE,
        "why": "Every other group assumes that the plain frequencies are right.",
        "bugs": [
            {"what": "theta has a fixed default", "thread": "casper-hansen/AutoAWQ#271"},
        ],
        "cases": [
            case("theta-10000", "theta of the first Llama", llama(), rope()),
            case(
                "theta-500000",
                "theta of Llama 3",
                llama(rope_theta=500000.0),
                rope(theta=500000.0),
            ),
            case(
                "head-128",
                "the usual width",
                llama(head_dim=128, hidden_size=512, rope_theta=1000000.0),
                rope(128, 1000000.0),
            ),
            case(
                "head-80",
                "a width that is no power of two",
                llama(head_dim=80, hidden_size=320),
                rope(80),
            ),
        ],
    },
    {
        "group": "spelling",
        "title": "One rope, several spellings",
        "functions": ROPE,
        "why": "Keys of older and newer configs say the same; a reader of one kind loses theta.",
        "bugs": [
            {
                "what": "theta moved to rope_parameters in transformers 5",
                "thread": "InternLM/lmdeploy#4304",
            },
            {
                "what": "theta moved to rope_parameters in transformers 5",
                "thread": "sgl-project/mini-sglang#13",
            },
        ],
        "cases": [
            case(
                "parameters-default",
                "theta under rope_parameters, as transformers 5 writes it",
                llama(
                    rope_theta=..., rope_parameters={"rope_type": "default", "rope_theta": 500000.0}
                ),
                rope(theta=500000.0),
            ),
            case(
                "parameters-yarn",
                "YaRN under rope_parameters",
                llama(rope_theta=..., rope_parameters=YARN4_KEYS | {"rope_theta": 1000000.0}),
                rope(theta=1000000.0, scaling=YARN4),
            ),
            case(
                "type-linear",
                "the key type instead of rope_type",
                llama(rope_scaling={"type": "linear", "factor": 4.0}),
                rope(scaling=LINEAR4),
            ),
            case(
                "scaling-null",
                "rope_scaling is null",
                llama(rope_scaling=None, rope_theta=1000000.0),
                rope(theta=1000000.0),
            ),
            case(
                "neox-names",
                "rotary_pct and rotary_emb_base",
                {
                    "model_type": "gpt_neox",
                    "hidden_size": 256,
                    "num_attention_heads": 4,
                    "max_position_embeddings": 131072,
                    "rotary_pct": 0.25,
                    "rotary_emb_base": 25000,
                },
                rope(theta=25000.0, rotary_dim=16),
            ),
        ],
    },
    {
        "group": "linear",
        "title": "Position interpolation",
        "functions": ROPE,
        "why": "Every frequency is divided by the factor; one stack reads the key and ignores it.",
        "bugs": [
            {"what": "position_scaling_factor is ignored", "seen": "keras-hub 0.32.0, by running"},
        ],
        "cases": [
            case(
                "x4",
                "factor 4",
                llama(rope_scaling={"rope_type": "linear", "factor": 4.0}),
                rope(scaling=LINEAR4),
            ),
            case(
                "x2.5",
                "a factor that is not whole",
                llama(rope_scaling={"rope_type": "linear", "factor": 2.5}, rope_theta=500000.0),
                rope(theta=500000.0, scaling={"type": "linear", "factor": 2.5}),
            ),
        ],
    },
    {
        "group": "dynamic",
        "title": "Dynamic NTK: frequencies depend on the length",
        "functions": ROPE,
        "why": "The base grows with the length of the sequence, and only beyond the trained length.",
        "bugs": [],
        "cases": [
            case(
                f"length-{length}",
                comment,
                llama(
                    max_position_embeddings=4096,
                    rope_scaling={"rope_type": "dynamic", "factor": 4.0},
                ),
                rope(
                    max_length=4096,
                    scaling={"type": "dynamic", "factor": 4.0, "original_length": 4096},
                ),
                positions=[0, 1, 17, 1000, length - 1],
            )
            for length, comment in (
                (4096, "the trained length: plain frequencies"),
                (4097, "one token more"),
                (16384, "four times the trained length"),
            )
        ],
    },
    {
        "group": "llama3",
        "title": "Llama 3's bands",
        "functions": ROPE,
        "why": "Two published implementations fix the factor at 8, and Llama 3.2 has 32.",
        "bugs": [
            {
                "what": "the factor is fixed at 8",
                "seen": "MaxText 0.2.5 and llama-models 0.3.0, by running",
            },
        ],
        "cases": [
            case(
                "x8",
                "Llama 3.1",
                llama(head_dim=128, rope_theta=500000.0, rope_scaling=llama3_keys(8.0)),
                rope(128, 500000.0, llama3(8.0)),
            ),
            case(
                "x32",
                "Llama 3.2",
                llama(rope_theta=500000.0, rope_scaling=llama3_keys(32.0)),
                rope(theta=500000.0, scaling=llama3(32.0)),
            ),
            case(
                "bands",
                "other bands and another trained length",
                llama(
                    rope_theta=500000.0,
                    rope_scaling=llama3_keys(16.0, 2.0, 8.0, 16384),
                ),
                rope(theta=500000.0, scaling=llama3(16.0, 2.0, 8.0, 16384)),
            ),
        ],
    },
    {
        "group": "yarn",
        "title": "YaRN",
        "functions": ROPE,
        "why": "The scaling with the most parameters: an inverted ramp, a lost magnitude, ignored "
        "keys and a factor computed from lengths were all found in released stacks.",
        "bugs": [
            {"what": "the ramp is inverted", "seen": "litgpt 0.5.13, by running"},
            {"what": "YaRN is ignored for a family", "thread": "jundot/omlx#3347"},
            {"what": "the factor comes from lengths", "seen": "exllamav3 1.6.5, by running"},
            {"what": "the ramp is never rounded", "seen": "gpt-oss 0.0.9, by running"},
            {"what": "truncate is ignored", "seen": "EasyDeL 0.3.0 and mlx-vlm 0.7.10, by running"},
            {"what": "attention_factor is ignored", "seen": "mlx-vlm 0.7.10, by running"},
        ],
        "cases": [
            case(
                "x4",
                "as Qwen documents it",
                llama(head_dim=128, rope_theta=1000000.0, rope_scaling=YARN4_KEYS),
                rope(128, 1000000.0, YARN4),
            ),
            case(
                "x4-served-shorter",
                "max_position_embeddings says 1.25, the factor 4",
                llama(rope_theta=1000000.0, rope_scaling=YARN4_KEYS, max_position_embeddings=40960),
                rope(theta=1000000.0, scaling=YARN4, max_length=40960),
            ),
            case(
                "x32-not-truncated",
                "truncate is false, as gpt-oss has it",
                llama(rope_theta=150000.0, rope_scaling=OSS_KEYS),
                rope(theta=150000.0, scaling=OSS),
            ),
            case(
                "x16-betas",
                "betas of its own",
                llama(
                    rope_theta=500000.0,
                    rope_scaling=yarn_keys(16.0, 8192, beta_fast=24.0, beta_slow=2.0),
                ),
                rope(theta=500000.0, scaling=yarn(16.0, 8192, beta_fast=24.0, beta_slow=2.0)),
            ),
            case(
                "x4-attention-factor",
                "attention_factor is given",
                llama(
                    rope_theta=1000000.0,
                    rope_scaling=YARN4_KEYS | {"attention_factor": 1.0},
                ),
                rope(theta=1000000.0, scaling=YARN4 | {"attention_factor": 1.0}),
            ),
            case(
                "x40-mscale",
                "two mscales whose quotient is the magnitude",
                llama(
                    rope_scaling=yarn_keys(40.0, 4096, mscale=0.707, mscale_all_dim=1.0),
                ),
                rope(scaling=yarn(40.0, 4096, mscale=0.707, mscale_all_dim=1.0)),
            ),
            case(
                "x4-long-trained",
                "trained for so long that the ramp ends beyond the last pair",
                llama(rope_scaling=yarn_keys(4.0, 131072), max_position_embeddings=524288),
                rope(scaling=yarn(4.0, 131072), max_length=524288),
            ),
        ],
    },
    {
        "group": "longrope",
        "title": "LongRoPE on both sides of its switch",
        "functions": ROPE,
        "why": "The length of the sequence chooses the factors of all its tokens; choosing by the "
        "allocated context, or token by token, mixes two rotations in one cache.",
        "bugs": [
            {
                "what": "the allocated context chooses, so that short prompts get long factors",
                "thread": "ggml-org/llama.cpp#24823",
            },
            {
                "what": "the switch discards the cache or mixes it",
                "thread": "ggml-org/llama.cpp#24875",
            },
            {
                "what": "each window of a chunked prefill chooses for itself",
                "thread": "trymirai/uzu#604",
            },
        ],
        "cases": [
            case(
                "short",
                "1,001 tokens: short factors",
                phi(),
                phi_rope(),
                positions=[0, 1, 17, 255, 1000],
            ),
            case(
                "before",
                "4,096 tokens: still short factors",
                phi(),
                phi_rope(),
                positions=[0, 1, 17, 1000, 4095],
            ),
            case(
                "after",
                "4,097 tokens: long factors for every token",
                phi(),
                phi_rope(),
                positions=[0, 1, 17, 4095, 4096],
            ),
            case(
                "far",
                "131,072 tokens",
                phi(),
                phi_rope(),
                positions=NEAR,
            ),
            case(
                "attention-factor",
                "attention_factor is given",
                phi(LONGROPE_KEYS | {"attention_factor": 1.25}),
                phi_rope(attention_factor=1.25),
                positions=[0, 1, 17, 4095, 4096],
            ),
        ],
    },
    {
        "group": "partial",
        "title": "A part of each head rotates",
        "functions": ROPE,
        "why": "A fused kernel that never got rotary_dim rotated the whole head: 0 of 1,319 "
        "problems right.",
        "bugs": [
            {"what": "rotary_dim does not reach the kernel", "thread": "vllm-project/vllm#43676"},
            {"what": "YaRN ignores the fraction", "seen": "megatron-core 0.16.1, by running"},
            {"what": "partial is taken as proportional", "seen": "gemma 3.3.0, by running"},
        ],
        "cases": [
            case(
                "half-of-128",
                "GLM-4.5: the first 64 of 128 dimensions",
                llama(
                    model_type="glm4_moe",
                    head_dim=128,
                    rope_theta=1000000.0,
                    partial_rotary_factor=0.5,
                ),
                rope(128, 1000000.0, rotary_dim=64),
            ),
            case(
                "quarter",
                "StableLM: the first 16 of 64 dimensions",
                llama(model_type="stablelm", head_dim=..., partial_rotary_factor=0.25),
                rope(rotary_dim=16),
            ),
            case(
                "half-yarn",
                "YaRN on a part: the ramp counts the pairs that rotate",
                llama(
                    model_type="glm4_moe",
                    rope_theta=1000000.0,
                    partial_rotary_factor=0.5,
                    rope_scaling=YARN4_KEYS,
                ),
                rope(theta=1000000.0, rotary_dim=32, scaling=YARN4),
            ),
            case(
                "at-the-end",
                "DeepSeek: the last 32 of 64 dimensions, interleaved",
                deepseek(rope_scaling=None),
                deepseek_rope({"type": "default"}),
            ),
        ],
    },
    {
        "group": "proportional",
        "title": "Gemma 4's proportional rope",
        "functions": ROPE,
        "why": "A quarter of the pairs rotate, but pairs reach across the whole head; shortening "
        "the head instead pairs other dimensions.",
        "bugs": [
            {
                "what": "pairs lie inside the first quarter of the head",
                "thread": "NVIDIA-NeMo/Megatron-Bridge#4916",
            },
        ],
        "cases": [
            case(
                "gemma4-global",
                "the first 8 of 32 pairs (i, i + 32)",
                GEMMA4,
                GEMMA4_ROPES["full_attention"],
                part="full_attention",
                other_ropes=[GEMMA4_ROPES["sliding_attention"]],
            )
        ],
    },
    {
        "group": "layouts",
        "title": "Pair layouts",
        "functions": ["cos_sin", "rotate"],
        "why": "The same frequencies rotate other dimensions together; a model with the wrong "
        "layout writes fluent nonsense.",
        "bugs": [
            {
                "what": "q and k are converted once too often or not",
                "thread": "karpathy/llama2.c#286",
            },
        ],
        "cases": [
            case(
                "interleaved",
                "Cohere: pairs (2i, 2i + 1)",
                llama(model_type="cohere", head_dim=...),
                rope(layout="interleaved"),
            ),
            case(
                "interleaved-part",
                "GLM-4: the first half of the head, interleaved",
                llama(model_type="glm4", partial_rotary_factor=0.5),
                rope(layout="interleaved", rotary_dim=32),
            ),
            case("half", "Llama: pairs (i, i + 32)", llama(), rope()),
        ],
    },
    {
        "group": "layer-types",
        "title": "Ropes by layer type",
        "functions": ROPE,
        "why": "Local and global layers have ropes of their own; scaling belongs to one of them.",
        "bugs": [],
        "cases": [
            *by_part("gemma3", "Gemma 3", GEMMA3, GEMMA3_ROPES),
            *by_part("gemma4", "Gemma 4", GEMMA4, GEMMA4_ROPES),
            *by_part("modernbert", "ModernBERT", MODERNBERT, MODERNBERT_ROPES),
        ],
    },
    {
        "group": "indexer",
        "title": "The rope of the sparse indexer",
        "functions": ROPE,
        "why": "The indexer of DeepSeek-V3.2 pairs halves while its attention is interleaved; "
        "GLM-5's indexer is interleaved. A wrong layout stays coherent and selects wrong tokens.",
        "bugs": [
            {"what": "DeepSeek-V3.2, interleaved by mistake", "thread": "sgl-project/sglang#13530"},
            {"what": "GLM-5, halves by mistake", "thread": "huggingface/transformers#46842"},
            {"what": "DeepSeek-V3.2, interleaved by mistake", "thread": "xLLM-AI/xllm#853"},
            {"what": "DeepSeek-V3.2, interleaved by mistake", "thread": "ml-explore/mlx-lm#1431"},
        ],
        "cases": [
            case(
                "deepseek-v32",
                "the first 32 of 64 dimensions, halves",
                deepseek("deepseek_v32", index_head_dim=64, index_n_heads=4),
                deepseek_rope(rotary_start=0, layout="half", scales_softmax=False),
                part="indexer",
                other_ropes=[deepseek_rope()],
            ),
            case(
                "glm-5",
                "the first 32 of 64 dimensions, interleaved",
                deepseek(
                    "glm_moe_dsa",
                    index_head_dim=64,
                    index_n_heads=4,
                    indexer_rope_interleave=True,
                    rope_theta=1000000.0,
                    rope_scaling=...,
                ),
                deepseek_rope({"type": "default"}, rotary_start=0, theta=1000000.0),
                part="indexer",
                other_ropes=[deepseek_rope({"type": "default"}, theta=1000000.0)],
            ),
        ],
    },
    {
        "group": "drafts",
        "title": "Draft layers",
        "functions": ROPE,
        "why": "A draft layer (MTP) must rotate as the model that verifies its tokens; without the "
        "scaling or with other positions hardly a draft is accepted.",
        "bugs": [
            {"what": "the draft's kernel knows no scaling", "thread": "kekzl/imp#897"},
            {
                "what": "overrides of the config do not reach the draft",
                "thread": "vllm-project/vllm#58080",
            },
            {"what": "draft positions under M-RoPE", "thread": "vllm-project/vllm#54716"},
            {
                "what": "ids of one token for a stream of several: reads past their end",
                "thread": "alibaba/rtp-llm#1163",
            },
        ],
        "cases": [
            case(
                "mtp-yarn",
                "the draft inherits YaRN",
                llama(rope_theta=1000000.0, rope_scaling=YARN4_KEYS, num_nextn_predict_layers=1),
                rope(theta=1000000.0, scaling=YARN4),
                part="draft",
            ),
            case(
                "mtp-mrope",
                "two streams verify three tokens each, after an image",
                vision("qwen3_vl_text", [12, 10, 10], True, mtp_num_hidden_layers=1),
                INTERLEAVED,
                part="draft",
                positions=DRAFTED,
            ),
        ],
    },
    {
        "group": "mrope",
        "title": "M-RoPE: time, height and width",
        "functions": ["cos_sin", "rotate"],
        "why": "Each pair follows one of three coordinates; sections lie in chunks or interleaved.",
        "bugs": [
            {"what": "text positions on every axis", "thread": "NVIDIA-NeMo/Automodel#2172"},
        ],
        "cases": [
            case("chunked-image", "Qwen2-VL with an image", QWEN2, CHUNKED, positions=IMAGE),
            case(
                "interleaved-image",
                "Qwen3-VL with an image",
                QWEN3,
                INTERLEAVED,
                positions=IMAGE,
            ),
            case(
                "interleaved-partial",
                "Qwen3.5: a quarter of the head, interleaved sections",
                llama(
                    model_type="qwen3_5_text",
                    head_dim=128,
                    rope_theta=...,
                    rope_parameters={
                        "rope_type": "default",
                        "rope_theta": 10000000.0,
                        "partial_rotary_factor": 0.25,
                        "mrope_interleaved": True,
                        "mrope_section": [6, 5, 5],
                    },
                ),
                rope(
                    128,
                    10000000.0,
                    rotary_dim=32,
                    axes={"order": "interleaved", "sections": [6, 5, 5]},
                ),
                positions=IMAGE,
            ),
            case(
                "text",
                "text alone: the three coordinates are equal",
                QWEN3,
                INTERLEAVED,
                positions=[[[0, 1, 2, 3000]]] * 3,
            ),
        ],
    },
    {
        "group": "batches",
        "title": "Rows with positions of their own",
        "functions": ["cos_sin", "rotate"],
        "why": "One new token in each of several sequences is the shape of batched decoding; a "
        "kernel that rotated the first row alone lived for a year.",
        "bugs": [
            {"what": "rows after the first are wrong", "thread": "ml-explore/mlx#3498"},
            {"what": "rows after the first are wrong", "thread": "ml-explore/mlx#3494"},
        ],
        "cases": [
            case(
                "decode",
                "one token in each of four sequences",
                llama(),
                rope(),
                positions=[[[1000], [7], [0], [131071]]],
            ),
            case(
                "left-padded",
                "rows that start at different tokens",
                llama(rope_theta=500000.0),
                rope(theta=500000.0),
                positions=[[[0, 1, 2, 3, 4], [1, 1, 0, 1, 2]]],
            ),
            case(
                "speculated",
                "several tokens of each sequence, from different offsets",
                llama(),
                rope(),
                positions=[[[500, 501, 502], [33, 34, 35]]],
            ),
            case(
                "packed",
                "three documents in one row: positions start again",
                llama(),
                rope(),
                positions=[PACKED],
            ),
            case(
                "sparse",
                "positions that skip and go back",
                llama(),
                rope(),
                positions=[[[5, 900, 3, 70000, 70001]]],
            ),
        ],
    },
    {
        "group": "beyond-the-table",
        "title": "Positions beyond max_position_embeddings",
        "functions": ["cos_sin", "rotate"],
        "why": "A table has an end; reading past it must compute, grow or refuse, not clamp, wrap "
        "or read other memory.",
        "bugs": [
            {
                "what": "a table of 8,192 rows whatever is asked",
                "seen": "EasyDeL 0.3.0, by running",
            },
            {"what": "an illegal read with M-RoPE ids", "thread": "alibaba/rtp-llm#1163"},
        ],
        "cases": [
            case(
                "text",
                "max_position_embeddings is 2,048, positions reach 5,000",
                llama(max_position_embeddings=2048),
                rope(max_length=2048),
                positions=[0, 2047, 2048, 2049, 5000],
            ),
            case(
                "mrope",
                "ids of a video beyond the number of tokens and the table",
                vision("qwen2_vl", [8, 12, 12], False, max_position_embeddings=2048),
                CHUNKED | {"max_length": 2048},
                positions=[[[0, 1, 3000, 3004]], [[0, 1, 2, 3]], [[0, 1, 2, 5]]],
            ),
        ],
    },
    {
        "group": "far",
        "title": "Exact angles up to position 2^31",
        "level": "optional",
        "functions": ["cos_sin", "rotate"],
        "why": "A float32 angle is off by 1e-3 at token 131,071 and by whole turns at 2^31. This "
        "group asks for exact angles, so its tolerance does not grow with the position.",
        "bugs": [],
        "tolerance": {
            "words": "A value may be off by `absolute` at every position.",
            "absolute": 2e-5,
            "per_radian": 0.0,
            "relative": 1e-6,
        },
        "cases": [
            case("theta-10000", "plain", llama(), rope(), positions=FAR),
            case(
                "llama3-x32",
                "Llama 3.2",
                llama(rope_theta=500000.0, rope_scaling=llama3_keys(32.0)),
                rope(theta=500000.0, scaling=llama3(32.0)),
                positions=FAR,
            ),
            case(
                "yarn-x4",
                "with a magnitude",
                llama(rope_theta=1000000.0, rope_scaling=YARN4_KEYS),
                rope(theta=1000000.0, scaling=YARN4),
                positions=FAR,
            ),
        ],
    },
    {
        "group": "downcast",
        "title": "Half precision first, then float32",
        "functions": ["rotate"],
        "why": "A table that the first forward casts in place stays coarse for every later call.",
        "bugs": [
            {
                "what": "the M-RoPE table is cast to the dtype of q at the first forward",
                "thread": "sgl-project/sglang#33117",
            },
        ],
        "cases": [
            case(
                "mrope",
                "the same call in half precision comes first",
                QWEN2,
                CHUNKED,
                positions=IMAGE,
                before={"config": QWEN2, "rope": CHUNKED, "dtype": "half precision"},
            ),
            case(
                "text",
                "the same call in half precision comes first",
                llama(rope_theta=500000.0),
                rope(theta=500000.0),
                before={
                    "config": llama(rope_theta=500000.0),
                    "rope": rope(theta=500000.0),
                    "dtype": "half precision",
                },
            ),
        ],
    },
    {
        "group": "softmax-scale",
        "title": "The factor on q.k",
        "functions": ["softmax_scale"],
        "why": "DeepSeek multiplies the softmax scale by the square of its mscale; without it "
        "GSM8K fell from 96 to 70.",
        "bugs": [
            {"what": "the scaling is missing", "thread": "NVIDIA/TensorRT-LLM#3675"},
        ],
        "cases": [
            case(
                "deepseek-v3",
                "(0.1 ln 40 + 1)^2 / sqrt(64)",
                deepseek(),
                deepseek_rope(),
            ),
            case(
                "deepseek-v2-lite",
                "mscale_all_dim is 0.707",
                deepseek(
                    "deepseek_v2",
                    rope_scaling=DEEPSEEK_KEYS | {"mscale": 0.707, "mscale_all_dim": 0.707},
                ),
                deepseek_rope(DEEPSEEK | {"mscale": 0.707, "mscale_all_dim": 0.707}),
            ),
            case("llama", "1 / sqrt(64)", llama(), rope()),
            case(
                "yarn-on-cos-and-sin",
                "the magnitude is on cos and sin; the softmax scale stays",
                llama(rope_theta=1000000.0, rope_scaling=YARN4_KEYS),
                rope(theta=1000000.0, scaling=YARN4),
            ),
        ],
    },
    {
        "group": "quantised",
        "title": "Quantised q and k with their scales",
        "functions": ["rotate"],
        "why": "q and k arrive as codes with a scale each; a kernel that never got the scales fell "
        "from 96.4 to 74.5.",
        "bugs": [
            {"what": "fp8 scales do not reach the kernel", "thread": "NVIDIA/TensorRT-LLM#16916"},
        ],
        "cases": [
            case(
                "scales",
                "codes that fp8 holds exactly; q_scale is 0.5 and k_scale 0.25",
                llama(),
                rope(),
                q_scale=0.5,
                k_scale=0.25,
            ),
        ],
    },
    {
        "group": "packed-attention",
        "title": "Attention over packed documents",
        "functions": ["attention"],
        "why": "Positions that start again separate documents; ids of another shape switched the "
        "separation off without a word.",
        "bugs": [
            {"what": "2-D ids switch isolation off", "thread": "axolotl-ai-cloud/axolotl#3817"},
        ],
        "cases": [
            case("text", "three documents in a row", llama(), rope(), attention={}),
            case(
                "mrope",
                "three documents in a row of a vision-language model",
                QWEN2,
                CHUNKED,
                attention={},
            ),
        ],
    },
    {
        "group": "ring-attention",
        "title": "Packed documents, split over ranks",
        "functions": ["attention"],
        "why": "A ring that has no place for document boundaries attends across them: the loss was "
        "1.83 times as high.",
        "bugs": [
            {"what": "boundaries are dropped", "thread": "axolotl-ai-cloud/axolotl#3867"},
            {"what": "boundaries are dropped", "thread": "axolotl-ai-cloud/axolotl#3608"},
        ],
        "cases": [
            case(
                "two-ranks",
                "the same result as without a split",
                llama(),
                rope(),
                attention={"shards": 2},
            )
        ],
    },
    {
        "group": "cache-move",
        "title": "Cached keys at other positions",
        "functions": ["move"],
        "why": "A cache that is shifted must be rotated by the distance, also when it is quantised.",
        "bugs": [
            {
                "what": "a quantised cache is shifted without rotation",
                "thread": "AtomicBot-ai/atomic-llama-cpp-turboquant#10",
            },
        ],
        "cases": [
            case(
                "back",
                "positions move back by 512",
                llama(),
                rope(),
                move={"old": [600, 601, 700, 1023], "new": [88, 89, 188, 511]},
            ),
            case(
                "scattered",
                "each key moves by a distance of its own; interleaved",
                llama(model_type="cohere", head_dim=...),
                rope(layout="interleaved"),
                move={"old": [10, 20, 30, 40], "new": [0, 25, 3, 90000]},
            ),
            case(
                "yarn",
                "the magnitude is in the keys already",
                llama(rope_theta=1000000.0, rope_scaling=YARN4_KEYS),
                rope(theta=1000000.0, scaling=YARN4),
                move={"old": [600, 601, 700, 1023], "new": [88, 89, 188, 511]},
            ),
        ],
    },
    {
        "group": "permutation",
        "title": "Rows of q and k projections, interleaved to halves",
        "functions": ["permute"],
        "why": "Converters permute the rows of q and k; once too few or once too many gives "
        "nonsense, and k has fewer heads than q.",
        "bugs": [
            {"what": "k is permuted by the wrong heads", "thread": "ggml-org/llama.cpp#3018"},
            {
                "what": "k is permuted by the wrong heads",
                "thread": "huggingface/transformers#31788",
            },
            {"what": "rows are permuted that must not be", "thread": "ggml-org/llama.cpp#7481"},
            {"what": "the permutation is missing", "thread": "karpathy/llama2.c#286"},
        ],
        "cases": [
            case(
                "q",
                "4 heads of 16 dimensions",
                llama(head_dim=16, hidden_size=64),
                rope(16),
                permute={"heads": 4},
            ),
            case(
                "k",
                "2 heads of 16 dimensions",
                llama(head_dim=16, hidden_size=64),
                rope(16),
                permute={"heads": 2},
            ),
            case(
                "partial",
                "the first half of each head",
                llama(model_type="glm4_moe", head_dim=24, partial_rotary_factor=0.5),
                rope(24, rotary_dim=12),
                permute={"heads": 2},
            ),
        ],
    },
    {
        "group": "video-positions",
        "title": "Positions of images and videos",
        "functions": ["mrope_positions"],
        "why": "One release multiplied the start of a video by its time step, so that all its "
        "tokens lay far in the future.",
        "bugs": [
            {"what": "the start is multiplied too", "thread": "huggingface/transformers#45381"},
            {"what": "images are scaled as videos", "thread": "huggingface/transformers#45325"},
            {
                "what": "half seconds are rounded to zero",
                "thread": "huggingface/transformers#48669",
            },
        ],
        "cases": [
            case(
                "image",
                "text, an image, text",
                QWEN2
                | {"model_type": "qwen2_5_vl", "spatial_merge_size": 2, "tokens_per_second": 2},
                CHUNKED,
                segments=[{"text": 3}, {"image": [1, 4, 6]}, {"text": 2}],
            ),
            case(
                "video",
                "one second from frame to frame: the time grows by 2",
                QWEN2
                | {"model_type": "qwen2_5_vl", "spatial_merge_size": 2, "tokens_per_second": 2},
                CHUNKED,
                segments=[{"text": 5}, {"video": [3, 10, 12], "seconds": 1.0}, {"text": 2}],
            ),
            case(
                "video-half-seconds",
                "half a second from frame to frame: the time grows by 1",
                QWEN2
                | {"model_type": "qwen2_5_vl", "spatial_merge_size": 2, "tokens_per_second": 2},
                CHUNKED,
                segments=[{"text": 5}, {"video": [4, 8, 10], "seconds": 0.5}, {"text": 2}],
            ),
        ],
    },
    {
        "group": "gguf",
        "title": "GGUF metadata",
        "functions": ["from_gguf"],
        "why": "llama.cpp reads the rope from metadata and from the tensor rope_freqs; without one "
        "of them Llama 3.1 has no scaling.",
        "bugs": [],
        "cases": [
            case(
                "linear",
                "scaling.type linear",
                {
                    "general.architecture": "llama",
                    "llama.embedding_length": 256,
                    "llama.attention.head_count": 4,
                    "llama.context_length": 131072,
                    "llama.rope.dimension_count": 64,
                    "llama.rope.freq_base": 10000.0,
                    "llama.rope.scaling.type": "linear",
                    "llama.rope.scaling.factor": 4.0,
                },
                rope(layout="interleaved", scaling=LINEAR4),
            ),
            case(
                "partial",
                "dimension_count is smaller than the head",
                {
                    "general.architecture": "stablelm",
                    "stablelm.embedding_length": 256,
                    "stablelm.attention.head_count": 4,
                    "stablelm.context_length": 131072,
                    "stablelm.rope.dimension_count": 16,
                    "stablelm.rope.freq_base": 10000.0,
                },
                rope(rotary_dim=16),
            ),
            case(
                "theta",
                "freq_base",
                {
                    "general.architecture": "qwen2",
                    "qwen2.embedding_length": 256,
                    "qwen2.attention.head_count": 4,
                    "qwen2.context_length": 131072,
                    "qwen2.rope.freq_base": 1000000.0,
                },
                rope(theta=1000000.0),
            ),
            case(
                "yarn",
                "scaling.type yarn",
                {
                    "general.architecture": "qwen2",
                    "qwen2.embedding_length": 256,
                    "qwen2.attention.head_count": 4,
                    "qwen2.context_length": 131072,
                    "qwen2.rope.freq_base": 1000000.0,
                    "qwen2.rope.scaling.type": "yarn",
                    "qwen2.rope.scaling.factor": 4.0,
                    "qwen2.rope.scaling.original_context_length": 32768,
                },
                rope(theta=1000000.0, scaling=YARN4),
            ),
            case(
                "rope-freqs",
                "Llama 3.2: the tensor rope_freqs holds a divisor for each pair",
                {
                    "general.architecture": "llama",
                    "llama.embedding_length": 256,
                    "llama.attention.head_count": 4,
                    "llama.context_length": 131072,
                    "llama.rope.dimension_count": 64,
                    "llama.rope.freq_base": 500000.0,
                },
                rope(theta=500000.0, layout="interleaved", scaling=llama3(32.0)),
                rope_freqs=True,
            ),
        ],
    },
]
