"""How llama.cpp (2026-10) reads a config: what its converter writes into the GGUF file, and what
its runtime makes of that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ropewalk.axes import AxisMap
from ropewalk.engines.read_transformers import ignores_theta
from ropewalk.engines.readings import TRAINED, Case, Reading, names
from ropewalk.frequencies import Dynamic, Linear, Llama3, LongRope, Ntk, Proportional, Yarn
from ropewalk.frequencies.formulas import mscale

#: families whose converter writes theta and the scaling as the shared code does; others write what
#: is named below
SHARED = names(
    "llama mistral mixtral arcee apertus smollm3 granite granitemoe qwen2 qwen2_moe qwen3 qwen3_moe gemma3_text gemma4_text glm4 "  # noqa: E501
    "glm4_moe glm4_moe_lite deepseek_v2 deepseek_v3 kimi_k2 gpt_oss olmo olmo2 olmo3 olmoe starcoder2 exaone4 seed_oss "  # noqa: E501
    "hunyuan_v1_dense hunyuan_v1_moe ernie4_5 ernie4_5_moe nemotron minimax_m2 qwen2_vl qwen2_5_vl qwen2_vl_text qwen2_5_vl_text "  # noqa: E501
    "qwen3_vl_text qwen3_vl_moe_text ministral3 mistral4 cohere cohere2 phi3 phimoe dots1 lfm2 llama4_text afmoe"  # noqa: E501
)
#: families that the converter refuses, or whose tensors it does not know
MISSING = names("helium bitnet")
#: families whose converter writes no scaling, and those of them for which it writes no theta:
#: 10,000 is used
NO_SCALING = names("phi gemma gemma2 gpt_neox falcon stablelm glm cohere cohere2")
NO_THETA = names("phi gemma gemma2 gpt_neox falcon stablelm glm")
#: families whose converter writes which part of the head rotates; for others the whole head does
PARTIAL = names(
    "phi phi3 phimoe gpt_neox stablelm glm glm4 glm4_moe nemotron minimax_m2 cohere2 "
    "qwen3_next gemma4_text"
)
#: families for which llama3's factors are written as a tensor; for others they are lost
LLAMA3 = names("llama mistral mixtral arcee apertus smollm3 exaone4 llama4_text afmoe")
#: what the converter's transformers (4.57) has as default, where a later one has another
OLD_THETA = {
    "cohere": 10_000.0,
    "minimax_m2": 10_000.0,
    "olmo3": 10_000.0,
    "falcon_h1": 100_000.0,
    "qwen3_vl_text": 5e6,
    "qwen3_vl_moe_text": 5e6,
}
#: families whose class in transformers 4.57 refuses a scaling that is named by `type`: the
#: converter then has no defaults
NEEDS_ROPE_TYPE = names("qwen3_vl_text qwen3_vl_moe_text")
#: families with another default theta than 10,000 whose class in transformers 4.57 refuses llama3
#: without its trained length
NEEDS_LENGTH = names("apertus ernie4_5 ernie4_5_moe gpt_oss")
#: families whose runtime has no other size of a head than hidden_size / num_attention_heads
NO_HEAD_DIM = names("glm nemotron exaone4 cohere2")
#: model types whose runtime reads the betas that the converter writes; for others they are 32 and 1
READS_BETAS = ("mistral3", "ministral3")
#: model types besides those with latent attention for which the converter writes `mscale_all_dim`
WRITES_LOG_MULTIPLIER = ("mistral3", "ministral3", "mistral4")
CONVERTER = "convert_hf_to_gguf.py"


def read_llama_cpp(case: Case) -> Reading:
    """Return what llama.cpp computes for a case. "Not written" means: its converter leaves a config
    key out of the GGUF file.

    A case is one layer type of a config and how it is served. `set_fields` changes its spec, `fail`
    says why there is no result.
    """
    reading = Reading(case)
    if case.model_type in MISSING:
        return reading.fail(f"refused: the converter does not convert {case.model_type}")
    if case.model_type not in SHARED | NO_SCALING:
        return reading.fail(f"not known: what the converter writes for {case.model_type}")
    if (problem := _refusal(case)) is not None:
        return reading.fail(problem)
    if case.model_type in NO_THETA:
        reading.set_fields("rope_theta", "not written: 10,000 is used", CONVERTER, theta=10_000.0)
    elif not case.gives_theta and case.is_named_by_type and case.model_type in NEEDS_ROPE_TYPE:
        does = "transformers 4.57 refuses a scaling without rope_type, and 10,000 is used"
        reading.set_fields("rope_theta", does, CONVERTER, theta=10_000.0)
    elif not case.gives_theta and case.model_type in NEEDS_LENGTH and _lacks_length(case):
        does = (
            "transformers 4.57 refuses llama3 without original_max_position_embeddings, and 10,000 "
            "is used"
        )
        reading.set_fields("rope_theta", does, CONVERTER, theta=10_000.0)
    elif case.model_type == "olmo3" and case.by_layer_type:
        theta = _full_rope(case.config).get("rope_theta") or OLD_THETA["olmo3"]
        reading.set_fields(
            "rope_theta", "that of full layers is used for every layer", CONVERTER, theta=theta
        )
    elif not case.gives_theta and case.model_type in OLD_THETA:
        reading.set_fields(
            "rope_theta",
            "the default of transformers 4.57 is used",
            CONVERTER,
            theta=OLD_THETA[case.model_type],
        )
    if ignores_theta(case):
        reading.set_fields(
            "rope_theta", "read for every layer", CONVERTER, theta=case.config["rope_theta"]
        )
    if case.model_type == "gpt_neox" and case.config.get("rotary_pct") is None:
        reading.set_rotary_dim(case.spec.head_dim // 4, "not read in rope_parameters", CONVERTER)
    if case.model_type == "cohere2":
        reading.set_rotary_dim(
            int(case.spec.head_dim * case.config["rotary_pct"]),
            "rotary_pct is read instead",
            CONVERTER,
        )
    elif (
        case.model_type not in PARTIAL
        and not case.latent
        and case.spec.rotated_dims != case.spec.head_dim
    ):
        reading.set_rotary_dim(case.spec.head_dim, "not written", CONVERTER)
    _axes(reading)
    _set_scaling(reading)
    return reading


def _refusal(case: Case) -> str | None:
    """Return why the converter raises an error, as "refused: ..."; None if it does not."""
    scaling, config = case.spec.scaling, case.config
    original = case.original_length
    # the converter reads yarn's length for Cohere too, though it does not write the scaling
    reads_length = isinstance(scaling, Yarn) and case.model_type not in NO_SCALING - {
        "cohere",
        "cohere2",
    }
    if original is None and (
        reads_length or case.model_type == "phimoe" or _old_class_refuses(case)
    ):
        return "refused: the converter fails without original_max_position_embeddings"
    if not case.gives_theta and _old_class_refuses(case):
        return "refused: the converter fails without rope_theta"
    reads_llama3 = case.model_type in LLAMA3 and isinstance(scaling, Llama3)
    reads_phi = case.model_type in ("phi3", "phimoe") and isinstance(scaling, (Llama3, LongRope))
    if (reads_llama3 or reads_phi) and (problem := case.problem_if_null(TRAINED)) is not None:
        return problem
    if case.model_type in NO_HEAD_DIM and case.spec.head_dim != case.derived_head_dim:
        return f"refused: {case.model_type} takes heads of hidden_size / num_attention_heads alone"
    if isinstance(scaling, Llama3) and case.model_type in ("granite", "granitemoe", "smollm3"):
        return "refused: this architecture has no place for llama3's factors"
    if isinstance(scaling, (Dynamic, Ntk)) and case.model_type in (
        "hunyuan_v1_dense",
        "hunyuan_v1_moe",
    ):
        alpha, lengths = case.rope.get("alpha"), (32_768, 262_144)
        is_known = alpha is not None and case.spec.theta == 10_000 and case.max_position in lengths
        if not is_known or (
            case.model_type == "hunyuan_v1_moe" and (alpha != 1000 or case.spec.head_dim != 128)
        ):
            return (
                "refused: the converter takes the released checkpoints' alpha, theta and lengths "
                "alone"
            )
    if case.model_type == "cohere2" and config.get("rotary_pct") is None:
        return "refused: the converter fails without rotary_pct"
    if case.model_type == "minimax_m2" and config.get("rotary_dim") is None:
        return "refused: the converter fails without rotary_dim"
    if case.model_type == "ministral3":
        needed = {"mscale_all_dim", "llama_4_scaling_beta"}
        if not isinstance(scaling, Yarn) or not needed <= case.rope.keys():
            return (
                "refused: the converter takes yarn alone, with mscale_all_dim and "
                "llama_4_scaling_beta"
            )
    if case.model_type == "gemma4_text" and _full_rope(config).get("rope_type") != "proportional":
        return (
            "refused: the converter takes rope_parameters with a proportional rope of the full "
            "layers alone"
        )
    return None


def _full_rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the rope of full attention, if `rope_parameters` has one for each layer type; else {}."""
    return (config.get("rope_parameters") or {}).get("full_attention") or {}


def _lacks_length(case: Case) -> bool:
    """Return whether `rope_scaling` is a llama3 without a trained length; transformers 4.57 reads
    no `rope_parameters`.
    """
    scaling = case.config.get("rope_scaling") or {}
    return isinstance(case.spec.scaling, Llama3) and bool(scaling) and scaling.get(TRAINED) is None


def _old_class_refuses(case: Case) -> bool:
    """Return whether transformers 4.57's class of Phi-3 or PhiMoE refuses the config; the converter
    then reads plain JSON.

    Plain JSON has no defaults of keys that are absent.
    """
    scaling = case.config.get("rope_scaling")
    if not scaling or case.model_type not in ("phi3", "phimoe"):
        return False
    if case.model_type == "phimoe":
        return scaling.get("short_mscale") is None or scaling.get("long_mscale") is None
    return scaling.keys() != {"type", "short_factor", "long_factor"} or scaling["type"] not in (
        "longrope",
        "su",
        "yarn",
    )


def _axes(reading: Reading) -> None:
    """Record how llama.cpp treats interleaved axes: pairs beyond the sections use a fourth axis,
    where every position is 0.
    """
    case, axes = reading.case, reading.spec.axes
    if not isinstance(axes, AxisMap) or case.family.axis_order != "interleaved":
        return
    sections = [int(count) for count in case.rope.get("mrope_section", case.family.sections)]
    reading.unrotated_pairs = frozenset(
        pair for pair in range(reading.spec.pairs) if pair >= 3 * sections[pair % 3]
    )
    if reading.unrotated_pairs:
        does = (
            f"pairs {', '.join(map(str, sorted(reading.unrotated_pairs)))} follow a fourth axis "
            "and stand still"
        )
        reading.add_rule("M-RoPE", does, "ggml-cpu/ops.cpp")


def _set_scaling(reading: Reading) -> None:
    """Record which scaling llama.cpp computes with: the part of the config's scaling that its
    converter writes.
    """
    case, scaling = reading.case, reading.spec.scaling
    if case.by_layer_type and case.layer_type == "sliding_attention":
        reading.drop_scaling("the converter reads the rope of full layers alone", CONVERTER)
    elif (
        case.model_type == "nemotron"
        and not isinstance(scaling, Linear)
        and case.rope.get("factor") is not None
    ):
        does = "any scaling with a factor is written as linear"
        reading.set_fields(case.rope_type, does, CONVERTER, scaling=Linear(case.rope["factor"]))
    elif isinstance(scaling, Ntk):
        if case.model_type not in ("hunyuan_v1_dense", "hunyuan_v1_moe"):
            reading.fail("not known: static NTK")
    elif isinstance(scaling, Dynamic):
        reading.drop_scaling("not written by the converter: unscaled at every length", CONVERTER)
    elif isinstance(scaling, LongRope):
        _longrope(reading, scaling)
    elif case.model_type in NO_SCALING or case.model_type in ("phi3", "phimoe"):
        reading.drop_scaling("not written by the converter", CONVERTER)
    elif isinstance(scaling, Llama3):
        _llama3(reading)
    elif isinstance(scaling, Yarn):
        _yarn(reading, scaling)
    elif isinstance(scaling, Proportional) and case.model_type != "gemma4_text":
        reading.drop_scaling("not known to the converter", CONVERTER)
    elif isinstance(scaling, Proportional) and reading.change_scaling(factor=1.0):
        reading.add_rule("factor", "not written for rope_type proportional", CONVERTER)


def _longrope(reading: Reading, scaling: LongRope) -> None:
    """Record how llama.cpp treats LongRoPE: the converter writes its factors for Phi-3 and PhiMoE
    alone.
    """
    case = reading.case
    if case.model_type not in ("phi3", "phimoe"):
        reading.drop_scaling("the factors are written for Phi-3 and PhiMoE alone", CONVERTER)
        return
    length = case.rope.get(TRAINED, scaling.original_length)
    if reading.change_scaling(original_length=length):
        reading.add_rule(TRAINED, f"read in the rope: {length}", CONVERTER)
        scaling = replace(scaling, original_length=length)
    reading.choose_longrope_factors(
        scaling, "the context", "llama.cpp#24875, llama-model.cpp", case.max_model_len
    )
    reading.set_longrope_magnitude(scaling, "llama.cpp#24875, llama-model.cpp")


def _llama3(reading: Reading) -> None:
    """Record how llama.cpp treats Llama 3's scaling: for some families the converter leaves it out
    of the GGUF file.
    """
    case = reading.case
    if case.model_type not in LLAMA3:
        reading.drop_scaling("not written for this family", CONVERTER)
    elif case.original_length is None and reading.change_scaling(original_length=8192):
        reading.add_rule(
            "original_max_position_embeddings", "8192 is used where it is missing", CONVERTER
        )


def _yarn(reading: Reading, yarn: Yarn) -> None:
    """Record how llama.cpp treats YaRN: it has a magnitude and betas of its own, and rounds the
    band to whole pairs.
    """
    case = reading.case
    is_written = case.latent or case.model_type in WRITES_LOG_MULTIPLIER
    mscale_all_dim = (yarn.mscale_all_dim or 0.0) if is_written else 0.0
    # the runtime assumes mscale = 1, except in DeepSeek-V2's architecture, where it assumes mscale
    # = mscale_all_dim
    assumed_mscale = mscale_all_dim if case.latent and mscale_all_dim not in (0.0, 1.0) else 1.0
    divisor = float(mscale(yarn.factor, mscale_all_dim)) if mscale_all_dim else 1.0
    magnitude = float(mscale(yarn.factor, assumed_mscale)) / divisor
    does = "attn_factor computed from factor with mscale = 1"
    reading.set_yarn_magnitude(magnitude, does, "llama.cpp#17945, llama-context.cpp")
    reading.round_band("not written", "ggml rope_yarn_corr_dims")
    if case.model_type not in READS_BETAS and reading.change_scaling(beta_fast=32.0, beta_slow=1.0):
        reading.add_rule(
            "beta_fast, beta_slow", "written, and not read: 32 and 1 are used", "llama-hparams.h"
        )
    if magnitude != 1:
        reading.add_rule(
            "K-shift",
            "shifting a KV cache multiplies its keys by the magnitude again",
            "llama-kv-cache.cpp",
        )
