"""How vLLM 0.32 reads a config: transformers' config class, then `get_rope` with its
`rope_parameters`.
"""

from __future__ import annotations

from ropewalk.config.families import FAMILIES
from ropewalk.engines.read_transformers import (
    BY_LAYER_TYPE,
    LONGROPE_ONLY,
    ignores_theta,
    needs_theta,
    read_hf,
    refusal,
)
from ropewalk.engines.readings import (
    Case,
    Reading,
    factor_type_problem,
    magnitude_of_mscales,
    names,
)
from ropewalk.frequencies import Default, Dynamic, Llama3, LongRope, Proportional, Yarn
from ropewalk.frequencies.formulas import mscale

#: families that run inside vLLM as transformers' own code (its registry says so)
TRANSFORMERS_CODE = names(
    "arcee bitnet cwm dots1 flex_olmo glm gpt_neox helium hunyuan_v1_dense hunyuan_v1_moe jais2 mellum olmo olmo2 olmo3 phi "  # noqa: E501
    "seed_oss smollm3 starcoder2 vaultgemma"
)
#: scalings beside which max_position_embeddings is the served length
SERVED_TYPES = ("yarn", "llama3", "longrope", "su")
BETAS = ("beta_fast", "beta_slow")
#: families of `from_hf` for which vLLM has neither code of its own nor a mapping to transformers'
#: code
NOT_READ = names(
    "aria_text axk2 bailing_hybrid bamba blt chameleon codegen diffllama doge eurobert esm t5gemma csm emu3_text_model "  # noqa: E501
    "gemma4_unified_text gpt_neox_japanese gte idefics jetmoe minimax minimax_m1 minimax_m3_vl_text minimax_text_01 ministral "  # noqa: E501
    "mistral4 mistral_large4_text mllama_text_model modernbert modernbert-decoder nomic_bert openai_privacy_filter persimmon "  # noqa: E501
    "phi4_multimodal recurrent_gemma roformer solar_open youtu glm_image_text glmasr gptj deepseek_v4 "
    "ernie4_5_vl_moe_text"
)


def read_vllm(case: Case) -> Reading:
    """Return what vLLM computes for a case: max_model_len alone decides everything that depends on
    a length.

    A case is one layer type of a config and how it is served. `set_fields` changes its spec, `fail`
    says why there is no result.
    """
    if case.exceeds_served_length(length_factor(case)):
        return Reading(case).fail("refused: max_model_len is above the served length of the config")
    if (
        case.model_type in BY_LAYER_TYPE
        and not case.by_layer_type
        and case.is_named_by_type
        and case.rope_type != "default"
    ):
        return Reading(case).fail("refused: `type` is not accepted beside the rope_type default")
    if case.model_type in TRANSFORMERS_CODE:
        reading = read_hf(case)
        reading.add_rule(
            "model code", f"{case.model_type} runs as transformers' own code", "registry.py"
        )
        return reading
    reading = Reading(case)
    if case.model_type in NOT_READ or case.model_type not in FAMILIES:
        return reading.fail(f"not known: how vLLM builds the rope of {case.model_type}")
    if (problem := refusal(case)) is not None:
        return reading.fail(problem)
    if needs_theta(case):
        return reading.fail("refused: gemma4_text needs rope_theta")
    if case.model_type == "minimax_m2" and case.config.get("rotary_dim") is None:
        return reading.fail("refused: minimax_m2 needs rotary_dim")
    if case.model_type == "gpt_oss" and not (
        isinstance(case.spec.scaling, Yarn) and {"factor", *BETAS} <= case.rope.keys()
    ):
        return reading.fail(
            "refused: gpt_oss takes yarn alone, with factor, beta_fast and beta_slow"
        )
    if (
        case.model_type == "gemma4_text"
        and not case.by_layer_type
        and case.layer_type == "sliding_attention"
    ):
        theta = case.config.get("rope_local_base_freq") or 10_000.0
        reading.set_fields(
            "rope_theta",
            f"not read for sliding layers: {theta:g} is used",
            "models/gemma4.py",
            theta=theta,
        )
    if (
        isinstance(case.spec.scaling, LongRope)
        and case.spec.layout == "interleaved"
        and not case.latent
    ):
        is_refused = case.model_type in ("cohere", "cohere2", "glm4")
        return reading.fail(
            f"{'refused' if is_refused else 'not known'}: LongRoPE with interleaved pairs"
        )
    if ignores_theta(case):
        return reading.fail("not known: theta of OLMo 3's sliding layers")
    _set_rotary_dim(reading)
    reading.chunk_axes("mrope.py")
    _set_scaling(reading)
    return reading


def length_factor(case: Case) -> float:
    """Return the factor by which vLLM multiplies max_position_embeddings to get the served length.

    It is that of the last rope that has a factor and a type outside of SERVED_TYPES; 1 if there is
    none.
    """
    if "gemma3" in str(case.model_type):  # vLLM does not multiply it for Gemma 3
        return 1.0
    with_factor = [rope for rope in case.ropes if "factor" in rope]
    factors = [
        rope["factor"]
        for rope in with_factor
        if (rope.get("rope_type") or rope.get("type")) not in SERVED_TYPES
    ]
    return float(factors[-1] or 1.0) if factors else 1.0


def _set_rotary_dim(reading: Reading) -> None:
    """Record how many dimensions vLLM rotates: the fraction of the head that the config gives, in
    every family.
    """
    case, spec = reading.case, reading.spec
    if case.fraction is None or case.mrope or isinstance(spec.scaling, Proportional):
        return
    if case.model_type == "gpt_oss":
        reading.set_rotary_dim(spec.head_dim, "not passed on", "models/gpt_oss.py")
        return
    reading.set_rotary_dim(
        int(spec.head_dim * case.fraction), "read in every family", "rotary_embedding/__init__.py"
    )


def _set_scaling(reading: Reading) -> None:
    """Record which scaling vLLM computes with, or why it fails."""
    case, scaling = reading.case, reading.spec.scaling
    if case.mrope and not isinstance(scaling, (Default, Yarn)):
        reading.fail(f"refused: rope_type {case.rope_type} has no axes in vLLM")
    elif not case.latent and (problem := factor_type_problem(case)) is not None:
        reading.fail(problem)
    elif case.latent and not isinstance(scaling, Default):
        _latent_attention(reading)
    elif isinstance(scaling, Yarn) and (problem := case.problem_if_null(*BETAS)) is not None:
        reading.fail(problem)
    elif isinstance(scaling, Yarn):
        # vLLM's code for gpt-oss does not read the three keys of the magnitude
        keys = {} if case.model_type == "gpt_oss" else case.rope
        magnitude = keys.get("attention_factor")
        if magnitude is None:
            has_both = keys.get("mscale") and keys.get("mscale_all_dim")
            magnitude = (
                magnitude_of_mscales(case, scaling) if has_both else float(mscale(scaling.factor))
            )
        reading.set_yarn_magnitude(magnitude, "{key} read as vLLM does", "yarn_scaling_rope.py")
        is_chunked = case.mrope and case.family.axis_order == "chunked"
        if is_chunked and reading.change_scaling(original_length=4 * scaling.original_length):
            does = "the band is computed for four times the trained length"
            reading.add_rule("M-RoPE", does, "mrope.py: the table's length is passed on")
    elif isinstance(scaling, LongRope):
        long = reading.choose_longrope_factors(
            scaling, "max_model_len", "phi3_long_rope_scaled_rope.py", _limit(case, scaling)
        )
        magnitude = case.rope.get("long_mscale" if long else "short_mscale")
        reading.set_longrope_magnitude(scaling, "phi3_long_rope_scaled_rope.py", magnitude)
    elif isinstance(scaling, Dynamic):
        does = "the base is computed for max_position_embeddings: unscaled at every length"
        reading.drop_scaling(does, "dynamic_ntk_scaling_rope.py")
    elif isinstance(scaling, Proportional) and reading.change_scaling(factor=1.0):
        reading.add_rule("factor", "not read for rope_type proportional", "gemma4_rope.py")


def _latent_attention(reading: Reading) -> None:
    """Record how vLLM treats latent attention: it computes YaRN, whatever the scaling is, from the
    keys that the rope has.
    """
    case, scaling, where = reading.case, reading.case.spec.scaling, "deepseek_scaling_rope.py"
    if (problem := case.problem_if_null(*BETAS, "mscale", "mscale_all_dim")) is not None:
        reading.fail(problem)
        return
    if not isinstance(scaling, Yarn):
        # transformers' class writes the trained length into these scalings
        has_length = isinstance(scaling, (Llama3, LongRope))
        length = (
            scaling.original_length
            if has_length
            else case.rope.get("original_max_position_embeddings")
        )
        if length is None or case.rope.get("factor") is None:
            reading.fail(
                "refused: latent attention needs factor and original_max_position_embeddings "
                "for every scaling"
            )
            return
        reading.read_as_yarn(length, "models/deepseek_v2.py")
    yarn = reading.spec.scaling
    assert isinstance(yarn, Yarn)  # for the type checker
    reading.set_yarn_magnitude(
        magnitude_of_mscales(case, yarn), "mscale keys read, attention_factor not read", where
    )
    reading.round_band("not read", where)


def _limit(case: Case, scaling: LongRope) -> int:
    """Return max_model_len: the caller's, or by default the trained length that a config with
    LongRoPE has outside its rope.
    """
    if case.limit_is_given:
        return case.max_model_len
    outside = case.config.get("original_max_position_embeddings")
    default = scaling.original_length if case.model_type in LONGROPE_ONLY else case.max_model_len
    return default if outside is None else int(outside)
