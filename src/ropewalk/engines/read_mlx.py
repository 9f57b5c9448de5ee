"""How mlx-lm 0.32 reads a config: the fields of each model's `ModelArgs`, then `initialize_rope`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ropewalk.engines.readings import TRAINED, Case, Reading, names
from ropewalk.frequencies import (
    Default,
    Dynamic,
    Linear,
    Llama3,
    LongRope,
    Proportional,
    Scaling,
    Yarn,
)
from ropewalk.frequencies.formulas import mscale


@dataclass(frozen=True)
class Model:
    """What one file of mlx_lm.models reads.

    theta     the default of rope_theta; None: it must be given
    v5        how `rope_parameters`, the spelling of transformers 5, is read: "never"; "if missing":
              where `rope_theta` or `rope_scaling` is missing; "only": in place of them; "by layer
              type": one object for each layer type
    scaling   "shared": rope_scaling goes to `initialize_rope`; "none": it is not read; or the name
              of a special rule
    partial   the default of partial_rotary_factor; None: it is not read; 0: it must be given

    `needs_scaling`: the config must have the key `rope_scaling`, which may be null.
    """

    theta: float | None = 10_000.0
    v5: str = "never"
    scaling: str = "shared"
    partial: float | None = None
    theta_key: str = "rope_theta"
    needs_scaling: bool = False


_SHARED, _PLAIN = Model(), Model(scaling="none")
#: model_type: what its file reads
MODELS: dict[str, Model] = {
    **dict.fromkeys(names("llama mistral olmo2 olmoe seed_oss smollm3 bitnet"), _SHARED),
    **dict.fromkeys(names("granite granitemoe apertus dots1 olmo3"), replace(_SHARED, theta=None)),
    **dict.fromkeys(
        names("qwen2 qwen2_vl qwen2_5_vl qwen2_vl_text qwen2_5_vl_text"),
        replace(_SHARED, theta=1e6),
    ),
    **dict.fromkeys(names("qwen3 qwen3_vl_text"), replace(_SHARED, theta=None, v5="if missing")),
    "exaone4": replace(_SHARED, theta=None, needs_scaling=True),
    "gpt_oss": replace(_SHARED, theta=150_000.0),
    "gemma3_text": replace(_SHARED, theta=1e6),
    "gemma4_text": replace(_SHARED, v5="by layer type"),
    "ministral3": replace(_SHARED, theta=None, v5="only"),
    **dict.fromkeys(names("deepseek_v3 kimi_k2 deepseek_v32"), _SHARED),
    "deepseek_v2": replace(_SHARED, needs_scaling=True, scaling="yarn"),
    "glm4_moe_lite": replace(_SHARED, theta=1e6),
    "longcat_flash": replace(_SHARED, theta=None),
    "qwen3_next": replace(_SHARED, theta=None, partial=0),
    "phi3": replace(_SHARED, scaling="phi3", partial=1.0),
    "phimoe": replace(_SHARED, scaling="phimoe"),
    "nemotron": replace(_SHARED, scaling="nemotron", partial=0.5),
    **dict.fromkeys(names("hunyuan_v1_dense"), replace(_SHARED, scaling="alpha")),
    **dict.fromkeys(names("gemma gemma2"), _PLAIN),
    **dict.fromkeys(
        names("ernie4_5 ernie4_5_moe helium qwen3_moe qwen3_vl_moe_text"),
        replace(_PLAIN, theta=None),
    ),
    "mixtral": replace(_PLAIN, theta=1e6),
    "cohere": replace(_PLAIN, theta=8e6),
    "cohere2": replace(_PLAIN, theta=5e4),
    "starcoder2": replace(_PLAIN, theta=1e5),
    "minimax_m2": replace(_PLAIN, theta=None),
    "phi": replace(_PLAIN, partial=0.4),
    "glm": replace(_PLAIN, partial=1.0, scaling="whole head"),
    "glm4": replace(_PLAIN, theta=None, partial=0),
    "glm4_moe": replace(_PLAIN, theta=None, partial=0, needs_scaling=True),
    "stablelm": replace(_PLAIN, theta=None, partial=0),
    "gpt_neox": replace(_PLAIN, theta=None, theta_key="rotary_emb_base", partial=0),
    "qwen2_moe": replace(_PLAIN, theta=1e6, scaling="qwen2_moe"),
}
#: the rope of Gemma 4 where the config has no rope_parameters
GEMMA4: dict[str, dict[str, Any]] = {
    "full_attention": {
        "rope_type": "proportional",
        "partial_rotary_factor": 0.25,
        "rope_theta": 1e6,
    },
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
#: families whose model has no default of head_dim
NEEDS_HEAD_DIM = names(
    "exaone4 gemma gemma2 glm glm4 glm4_moe helium qwen3 qwen3_moe qwen3_next seed_oss"
)
MSCALES = ("mscale", "mscale_all_dim")
#: rope_type: the keys that `initialize_rope` computes with; null in any of them is an error
COMPUTES_WITH = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    **dict.fromkeys(
        ("yarn", "deepseek_yarn"), ("factor", TRAINED, "beta_fast", "beta_slow", *MSCALES)
    ),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", TRAINED),
    "proportional": ("factor", "partial_rotary_factor"),
}
#: families that mlx-lm has no model for
MISSING = names("hunyuan_v1_moe falcon arcee persimmon gptj jetmoe zamba2 hyperclovax cwm csm")


def read_mlx(case: Case) -> Reading:
    """Return what mlx-lm computes for a case: it has one axis, rounds bands to whole pairs and uses
    long factors only.

    A case is one layer type of a config and how it is served. `set_fields` changes its spec, `fail`
    says why there is no result.
    """
    reading = Reading(case)
    if case.model_type in MISSING:
        return reading.fail(f"refused: mlx-lm has no model for {case.model_type}")
    if case.model_type == "olmo":
        return reading.fail("refused: mlx-lm's olmo needs the package ai2-olmo")
    model = MODELS.get(case.model_type or "")
    if model is None:
        return reading.fail(f"not known: how mlx-lm reads {case.model_type}")
    where = f"models/{case.model_type}.py"
    if case.mrope:
        reading.spec = reading.spec.with_(axes=None)
        reading.add_rule(
            "M-RoPE",
            "sections accepted but ignored: every pair uses the text position",
            "rope_utils.py",
        )
    given = _arguments(case, model)
    if isinstance(given, str):
        return reading.fail(given)
    theta, scaling, fraction = given
    reading.set_fields(
        "rope_theta", f"not read where the config has it: {theta:g} is used", where, theta=theta
    )
    if fraction is not None and not case.latent:
        width = int(case.spec.head_dim * fraction)
        if width % 2:
            return reading.fail(
                f"refused: {width} dimensions would rotate, and MLX takes an even number"
            )
        reading.set_rotary_dim(width, "not read where the config has it", where)
    elif (
        not case.latent
        and case.model_type != "minimax_m2"
        and not isinstance(case.spec.scaling, Proportional)
    ):
        reading.set_rotary_dim(case.spec.head_dim, "not read", where)
    return _with_scaling(reading, model, scaling, where)


def _arguments(
    case: Case, model: Model
) -> tuple[float, Mapping[str, Any] | None, float | None] | str:
    """Return theta, the keys of the scaling and the fraction that rotates, as mlx-lm's model gets
    them; or the problem.
    """
    config, v5 = case.config, case.config.get("rope_parameters") or {}
    theta, scaling = config.get(model.theta_key), config.get("rope_scaling")
    fraction = config.get(
        "rotary_pct" if model.theta_key == "rotary_emb_base" else "partial_rotary_factor"
    )
    if model.v5 == "by layer type":
        layer_rope = (v5 or GEMMA4).get(case.layer_type, {})
        return layer_rope.get("rope_theta", 10_000.0), layer_rope, None
    if model.v5 == "only":
        if (
            not {"rope_theta", "llama_4_scaling_beta", "original_max_position_embeddings"}
            <= v5.keys()
        ):
            return (
                "refused: rope_parameters must have rope_theta, llama_4_scaling_beta and "
                "original_max_position_embeddings"
            )
        theta, scaling = v5["rope_theta"], v5
    elif model.v5 == "if missing" and v5:
        theta = v5.get("rope_theta") if theta is None else theta
        scaling = v5 if scaling is None else scaling
    elif case.model_type == "gemma3_text" and case.layer_type == "sliding_attention":
        theta, scaling = config.get("rope_local_base_freq", 10_000.0), None
    elif case.model_type == "olmo3" and case.layer_type == "sliding_attention":
        scaling = None
    theta = model.theta if theta is None else theta
    if theta is None:
        return f"refused: {model.theta_key} must be given outside rope_parameters"
    if model.partial == 0 and fraction is None:
        return "refused: the fraction that rotates must be given outside rope_parameters"
    if case.model_type in NEEDS_HEAD_DIM and config.get("head_dim") is None:
        return "refused: head_dim must be given"
    if case.model_type == "cohere2" and case.spec.head_dim != case.derived_head_dim:
        return "refused: cohere2 takes heads of hidden_size / num_attention_heads alone"
    if model.needs_scaling and (scaling is None and "rope_scaling" not in config):
        return "refused: rope_scaling must be given"
    if case.model_type == "minimax_m2" and config.get("rotary_dim") is None:
        return "refused: rotary_dim must be given"
    if model.scaling == "whole head":
        return theta, None, 1.0
    if model.partial is None:  # this model does not read the fraction
        return theta, scaling, None
    return theta, scaling, model.partial if fraction is None else fraction


def _with_scaling(
    reading: Reading, model: Model, keys: Mapping[str, Any] | None, where: str
) -> Reading:
    """Return the reading with the scaling that mlx-lm's model builds from `keys`, the rope object
    as that model reads it.
    """
    case, rule = reading.case, model.scaling
    # `type` takes precedence, and a model with a rule of its own reads it alone
    rope_type = None if not keys else keys.get("type") or keys.get("rope_type", "default")
    if rule in ("none", "whole head") or not keys:
        keys, rope_type = None, "default"
    elif rule == "phi3":
        if "type" not in keys or "long_factor" not in keys:
            return reading.fail("refused: rope_scaling must have the keys type and long_factor")
        rope_type = {"su": "longrope"}.get(str(rope_type), rope_type)
    elif rule == "phimoe":
        if not {"short_factor", "long_factor", "short_mscale", "long_mscale"} <= keys.keys():
            return reading.fail("refused: rope_scaling must have both factors and both mscales")
        rope_type = "longrope"
    elif case.model_type == "gpt_oss" and rope_type in ("dynamic", "longrope"):
        return reading.fail(f"refused: gpt_oss passes no served length, which {rope_type} needs")
    elif rule in ("qwen2_moe", "nemotron"):
        if keys.get("type") != "linear":
            return reading.fail(
                "refused: rope_scaling must have the key type, and only linear is taken"
            )
        if rule == "qwen2_moe":  # it checks the scaling and does not use it
            keys, rope_type = None, "default"
    elif rule == "alpha":
        missing = not {"alpha", "factor", "type"} <= keys.keys()
        return (
            reading.fail("refused: rope_scaling must have the keys alpha, factor and type")
            if missing
            else reading
        )
    elif rule == "yarn":
        rope_type = "yarn"
    if rope_type == "longrope":
        return _longrope(reading, keys or {})
    scaling = _build_scaling(case, str(rope_type), keys or {})
    if isinstance(scaling, str):
        return reading.fail(scaling)
    if scaling == Default() and not isinstance(case.spec.scaling, Default):
        reading.drop_scaling("not read", where)
    else:
        unread = [
            key
            for key in ("attention_factor", "truncate")
            if case.rope.get(key) is not None and rope_type == "yarn"
        ]
        does = "not read" if unread else "read with mlx-lm's own keys and defaults"
        reading.set_fields(
            ", ".join(unread) or case.rope_type, does, "rope_utils.py", scaling=scaling
        )
    return reading


def _build_scaling(case: Case, rope_type: str, keys: Mapping[str, Any]) -> Scaling | str:
    """Return the scaling that mlx-lm's `initialize_rope` builds from `keys`, or, as text, why it
    fails.
    """
    if rope_type in ("default", "mrope"):
        return Default()
    if "factor" not in keys and rope_type != "proportional":
        return "refused: factor must be given"
    nulls = [key for key in COMPUTES_WITH.get(rope_type, ()) if key in keys and keys[key] is None]
    if nulls and not (
        nulls[0] in MSCALES and keys["factor"] <= 1
    ):  # with such a factor, no mscale is computed with
        return f"refused: {nulls[0]} must be a number or absent, not null"
    if rope_type == "linear":
        return Linear(keys["factor"])
    if rope_type == "dynamic":
        return Dynamic(keys["factor"], case.max_position or 2048)
    if rope_type == "llama3":
        low, high = keys.get("low_freq_factor", 1.0), keys.get("high_freq_factor", 4.0)
        return Llama3(keys["factor"], low, high, keys.get(TRAINED, 8192))
    if rope_type in ("yarn", "deepseek_yarn"):
        factor = keys["factor"]
        magnitude = float(mscale(factor, keys.get("mscale", 1))) / float(
            mscale(factor, keys.get("mscale_all_dim", 0))
        )
        return Yarn(
            original_length=keys.get(TRAINED, 4096),
            factor=factor,
            beta_fast=keys.get("beta_fast", 32),
            beta_slow=keys.get("beta_slow", 1),
            attention_factor=magnitude,
            truncate=True,
        )
    if rope_type == "proportional":
        return Proportional(keys.get("factor", 1.0), keys.get("partial_rotary_factor", 1.0))
    return f"refused: rope_type {rope_type} is not known to mlx-lm"


def _longrope(reading: Reading, keys: Mapping[str, Any]) -> Reading:
    """Return the reading of LongRoPE, for which mlx-lm always uses the long factors; `keys` are
    those of the rope object.
    """
    scaling, config_scaling, pairs = (
        reading.spec.scaling,
        reading.case.spec.scaling,
        reading.spec.pairs,
    )
    if isinstance(config_scaling, LongRope) and len(config_scaling.long_factor) != pairs:
        count = len(config_scaling.long_factor)
        return reading.fail(
            f"refused: {count} factors of LongRoPE do not fit the {pairs} pairs that rotate"
        )
    if not isinstance(scaling, LongRope):
        return reading.fail("not known: LongRoPE with other factors than the config's")
    if reading.case.model_type not in ("phi3", "phimoe") and keys.get(TRAINED) is None:
        return reading.fail(
            "refused: original_max_position_embeddings must be given in rope_scaling"
        )
    does = "long factors for every sequence, short factors never"
    reading.fix_longrope_factors(scaling, long=True, does=does, reference="rope_utils.py")
    magnitude = keys.get("long_mscale") if reading.case.model_type == "phimoe" else None
    reading.set_longrope_magnitude(scaling, "rope_utils.py", magnitude)
    return reading
