"""How SGLang 0.5.23 reads a config: transformers' config class, then what each model passes to
`get_rope`.
"""

from __future__ import annotations

import math

from ropewalk.engines.read_transformers import (
    BY_LAYER_TYPE,
    ignores_theta,
    read_hf,
    refusal,
)
from ropewalk.engines.readings import (
    TRAINED,
    Case,
    Reading,
    factor_type_problem,
    magnitude_of_mscales,
    names,
)
from ropewalk.frequencies import Default, Dynamic, Llama3, LongRope, Ntk, Proportional, Yarn
from ropewalk.frequencies.formulas import mscale

#: families that run inside SGLang as transformers' own code
TRANSFORMERS_CODE = names("gpt_neox smollm3 seed_oss ernie4_5 nemotron bitnet helium dots1")
#: families that SGLang can neither build with code of its own nor as transformers' code
MISSING = {
    "falcon": "transformers' code is not compatible",
    "glm": "its tensor-parallel plan is not supported",
}
#: families whose model passes no scaling to `get_rope`
NO_SCALING = names("phi starcoder2 stablelm gemma gemma2 gemma3_text mixtral olmo granitemoe")
#: families whose model passes the scaling
SHARED = names(
    "llama mistral ministral3 apertus arcee phi3 phimoe qwen2 qwen2_moe qwen3 qwen3_moe qwen2_vl qwen2_5_vl qwen2_vl_text "  # noqa: E501
    "qwen2_5_vl_text qwen3_vl_text qwen3_vl_moe_text glm4 glm4_moe granite cohere cohere2 deepseek_v2 deepseek_v3 "  # noqa: E501
    "kimi_k2 gpt_oss exaone4 minimax_m2 olmo2 olmo3 olmoe ernie4_5_moe hunyuan_v1_dense hunyuan_v1_moe gemma4_text"  # noqa: E501
)
#: families that read `partial_rotary_factor` outside `rope_parameters` alone, in either spelling,
#: or never
PARTIAL_OUTSIDE = names(
    "llama mistral ministral3 apertus arcee ernie4_5_moe phi3 gemma3_text phi stablelm"
)
PARTIAL = names("glm4 glm4_moe")
#: families whose heads have hidden_size / num_attention_heads dimensions, whatever the config says
NO_HEAD_DIM = names("exaone4 cohere cohere2")
#: families that read the trained length beside the rope; for others transformers' class has filled
#: it in by then
READS_BESIDE = names(
    "apertus arcee exaone4 granite hunyuan_v1_dense hunyuan_v1_moe llama mistral ministral3 "
    "phi3 phimoe"
)
MINISTRAL3_TRAINED = 16_384
#: keys that YaRN computes with and that may not be null
YARN_KEYS = ("beta_fast", "beta_slow", "attn_factor")


def read_sglang(case: Case) -> Reading:
    """Return what SGLang computes for a case; its rotary classes come from vLLM, but other
    conditions select them.

    A case is one layer type of a config and how it is served. `set_fields` changes its spec, `fail`
    says why there is no result.
    """
    if case.exceeds_served_length(length_factor(case)):
        return Reading(case).fail(
            "refused: the context length is above the served length of the config"
        )
    if _reads_factor(case) and (problem := case.problem_if_null("factor")) is not None:
        return Reading(case).fail(problem)
    if case.model_type in TRANSFORMERS_CODE:
        reading = read_hf(case)
        reading.add_rule(
            "model code", f"{case.model_type} runs as transformers' own code", "models/registry.py"
        )
        return reading
    reading = Reading(case)
    if case.model_type in MISSING:
        return reading.fail(
            f"refused: SGLang has no code for {case.model_type}, and {MISSING[case.model_type]}"
        )
    if case.model_type not in SHARED | NO_SCALING:
        return reading.fail(f"not known: how SGLang builds the rope of {case.model_type}")
    if (problem := refusal(case) or _olmo3_refusal(case)) is not None:
        return reading.fail(problem)
    where = f"models/{case.model_type}.py"
    if case.model_type == "olmo3" and case.by_layer_type:
        does = "by layer type not read: theta is 10,000, unscaled"
        reading.set_fields(
            "rope_parameters", does, "models/olmo2.py", theta=10_000.0, scaling=Default()
        )
        return reading
    if case.model_type == "olmo3" and not case.gives_theta:
        reading.set_fields(
            "rope_theta", "10,000 is used where it is missing", "models/olmo2.py", theta=10_000.0
        )
    elif ignores_theta(case):
        reading.set_fields(
            "rope_theta", "read for every layer", "models/olmo2.py", theta=case.config["rope_theta"]
        )
    if case.model_type == "gemma4_text":
        return _gemma4(reading)
    if case.model_type == "exaone4":
        reading.set_fields("rope_theta", "not read: 1,000,000 is used", where, theta=1e6)
    if case.model_type in NO_HEAD_DIM:
        size = case.derived_head_dim
        if (problem := _factor_count_problem(case, size)) is not None:
            return reading.fail(problem)
        does = f"not read: heads of {size} dimensions, hidden_size / num_attention_heads"
        reading.set_fields("head_dim", does, where, head_dim=size, rotary_dim=size)
    _set_rotary_dim(reading, where)
    reading.chunk_axes("factory.py")
    if reading.problem is None:
        _trained_length(reading, where)
    if reading.problem is None:
        _set_scaling(reading, where)
    return reading


def _olmo3_refusal(case: Case) -> str | None:
    """Return why SGLang's class of OLMo 3 fails: the trained length of its rope is null, and there
    is none beside the rope.
    """
    needs_length = (
        isinstance(case.spec.scaling, (Yarn, Llama3, LongRope)) and case.config.get(TRAINED) is None
    )
    return case.problem_if_null(TRAINED) if case.model_type == "olmo3" and needs_length else None


def length_factor(case: Case) -> float:
    """Return the factor by which SGLang multiplies max_position_embeddings: that of the rope, or 1
    if SGLang does not read it.
    """
    return float(case.rope.get("factor") or 1.0) if _reads_factor(case) else 1.0


def _reads_factor(case: Case) -> bool:
    """Return whether SGLang multiplies the served length by the factor: if the rope is the only one
    and has no trained length.
    """
    has_sglang_class = (
        case.model_type == "olmo3"
    )  # the other families have transformers' config class
    # the config class writes the trained length into these scalings if the config has none
    with_length = Llama3 if has_sglang_class else (Yarn, Llama3, LongRope)
    has_length = isinstance(case.spec.scaling, with_length) or TRAINED in case.rope
    by_layer_type = case.by_layer_type or (
        case.model_type in BY_LAYER_TYPE and not has_sglang_class
    )
    return not by_layer_type and not has_length


def _gemma4(reading: Reading) -> Reading:
    """Return the reading of Gemma 4: its model passes on the name of the scaling and none of its
    keys, so the factor is 1.
    """
    case, where = reading.case, "models/gemma4_causal.py"
    if not case.by_layer_type:
        does = "read by layer type alone: theta is 10,000, unscaled"
        reading.set_fields(
            "rope_parameters",
            does,
            where,
            theta=10_000.0,
            scaling=Default(),
            rotary_dim=case.spec.head_dim,
        )
        return reading
    if any(rope.get("rope_type") == "longrope" for rope in case.ropes):
        return reading.fail("refused: the factors of LongRoPE are not passed on")
    if isinstance(case.spec.scaling, Proportional):
        if reading.change_scaling(factor=1.0):
            reading.add_rule("factor", "not read for rope_type proportional", "factory.py")
        return reading
    reading.drop_scaling("only the name of the scaling is passed on: its factor is 1", where)
    width = int(case.spec.head_dim * case.rope.get("partial_rotary_factor", 1.0))
    reading.set_rotary_dim(width, "read in every layer type", where)
    return reading


def _set_rotary_dim(reading: Reading, where: str) -> None:
    """Record how many dimensions SGLang rotates in this family; `where` is the file of the model in
    its sources.
    """
    case, spec = reading.case, reading.spec
    if case.latent or isinstance(spec.scaling, Proportional) or case.model_type in PARTIAL:
        return
    width, does = spec.head_dim, "not read"
    if case.model_type == "minimax_m2":
        width = case.config.get("rotary_dim") or spec.head_dim
    elif case.model_type in PARTIAL_OUTSIDE:
        outside = case.config.get("partial_rotary_factor")
        fraction = case.family.partial if outside is None else outside
        width, does = int(spec.head_dim * fraction), "read outside rope_parameters alone"
    if (problem := _factor_count_problem(case, width)) is not None:
        reading.fail(problem)
    else:
        reading.set_rotary_dim(width, does, where)


def _factor_count_problem(case: Case, width: int) -> str | None:
    """Return why LongRoPE fails if it has factors for another number of pairs than the width // 2
    that rotate; else None.
    """
    scaling = case.spec.scaling
    if (
        not isinstance(scaling, LongRope)
        or case.model_type in NO_SCALING
        or len(scaling.short_factor) == width // 2
    ):
        return None
    return (
        f"refused: {len(scaling.short_factor)} factors of LongRoPE do not fit the {width // 2} "
        "pairs that rotate"
    )


def _trained_length(reading: Reading, where: str) -> None:
    """Record the trained length of families that do not read it beside the rope: that of the rope,
    else the served length.
    """
    case = reading.case
    if case.config.get(TRAINED) is None or case.model_type in READS_BESIDE:
        return
    length = case.rope.get(TRAINED) or case.max_position
    if (problem := case.problem_if_null(TRAINED)) is not None:
        reading.fail(problem)
    elif (
        isinstance(case.spec.scaling, (Yarn, Llama3, LongRope))
        and length
        and reading.change_scaling(original_length=length)
    ):
        reading.add_rule(TRAINED, f"not read beside the rope: {length} is used", where)


def _set_scaling(reading: Reading, where: str) -> None:
    """Record which scaling SGLang computes with, or why it fails; `where` is the file of the model
    in its sources.
    """
    case, scaling = reading.case, reading.spec.scaling
    if case.model_type in NO_SCALING:
        reading.drop_scaling("not passed to the rotary module", where)
    elif case.mrope and not isinstance(scaling, (Default, Yarn)):
        reading.fail(f"refused: rope_type {case.rope_type} has no axes in SGLang")
    elif (
        case.mrope
        and isinstance(scaling, Yarn)
        and {"mscale", "mscale_all_dim"} & case.rope_with_nulls.keys()
    ):
        reading.fail("refused: YaRN with axes takes neither mscale nor mscale_all_dim")
    elif isinstance(scaling, LongRope) and case.spec.layout == "interleaved" and not case.latent:
        reading.fail("refused: LongRoPE is not accepted for interleaved pairs")
    elif case.latent and not isinstance(scaling, Default):
        _latent_attention(reading)
    elif (problem := factor_type_problem(case)) is not None:
        reading.fail(problem)
    elif isinstance(scaling, Yarn):
        _yarn(reading, scaling)
    elif isinstance(scaling, LongRope):
        # compares a position with the trained length, not a length: one token later than
        # transformers
        long = case.length - 1 > scaling.original_length  # whether the long factors are used
        does = (
            "long factors for the whole batch if any sequence has a position above the trained "
            "length"
        )
        reading.fix_longrope_factors(scaling, long, does, "rope_variant.py")
        magnitude = case.rope.get("long_mscale" if long else "short_mscale")
        # Ministral 3's model passes the trained length outside the rope on as the served one
        served = case.config.get(TRAINED) or MINISTRAL3_TRAINED
        if case.model_type == "ministral3" and long and case.length > served:
            reading.fail(f"refused: the table of LongRoPE ends after {served} positions")
            return
        if magnitude is None and case.model_type == "ministral3":
            magnitude = math.sqrt(
                1
                + math.log(max(1.0, served / scaling.original_length))
                / math.log(scaling.original_length)
            )
        reading.set_longrope_magnitude(scaling, "rope_variant.py", magnitude)
    elif isinstance(scaling, Dynamic):
        # dynamic NTK stretches by factor * length / trained - (factor - 1); here length / trained
        # is the factor
        stretch = scaling.factor * scaling.factor - (
            scaling.factor - 1
        )  # of the slowest wavelength
        does = "one base for every sequence, computed for factor times the trained length"
        reading.freeze_ntk(stretch, does, "rope_variant.py")
    elif isinstance(scaling, Ntk) and case.model_type not in ("hunyuan_v1_dense", "hunyuan_v1_moe"):
        reading.fail("not known: static NTK")
    elif isinstance(scaling, Proportional):
        reading.fail("not known: rope_type proportional outside Gemma 4")


def _latent_attention(reading: Reading) -> None:
    """Record how SGLang treats latent attention: it computes YaRN, whatever the scaling is, from
    the keys that the rope has.
    """
    case, rope, where = reading.case, reading.case.rope, "rope_variant.py"
    if (problem := case.problem_if_null(*YARN_KEYS, "mscale", "mscale_all_dim")) is not None:
        reading.fail(problem)
        return
    if not isinstance(case.spec.scaling, Yarn):
        length = case.original_length or case.max_position
        if length is None:
            reading.fail("not known: the trained length")
            return
        reading.read_as_yarn(length, "models/deepseek_v2.py")
    yarn = reading.spec.scaling
    assert isinstance(yarn, Yarn)  # for the type checker
    magnitude = magnitude_of_mscales(case, yarn) * rope.get("attn_factor", 1.0)
    reading.set_yarn_magnitude(magnitude, "{key} not read, 0.1 ln(factor) + 1 used", where)
    reading.round_band("not read", where)


def _yarn(reading: Reading, yarn: Yarn) -> None:
    """Record the magnitude of YaRN that SGLang computes."""
    case = reading.case
    if (problem := case.problem_if_null(*YARN_KEYS)) is not None:
        reading.fail(problem)
        return
    if case.model_type == "qwen3_moe" and case.rope.get("attention_factor") is not None:
        reading.fail(
            "not known: the fused kernel of qwen3_moe reads attention_factor, the rotary "
            "module does not"
        )
        return
    has_both = case.rope.get("mscale") is not None and case.rope.get("mscale_all_dim") is not None
    magnitude = magnitude_of_mscales(case, yarn) if has_both else float(mscale(yarn.factor))
    does = "attention_factor not read, 0.1 ln(factor) + 1 used"
    reading.set_yarn_magnitude(magnitude * case.rope.get("attn_factor", 1.0), does, "yarn.py")
