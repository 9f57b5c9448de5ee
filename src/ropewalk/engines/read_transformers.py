"""How transformers reads a config: the reference, and the code that other engines run where they
have none of their own.
"""

from __future__ import annotations

from ropewalk.config.families import FAMILIES
from ropewalk.engines.readings import TRAINED, Case, Reading
from ropewalk.frequencies import Default, Dynamic, Llama3, LongRope, Proportional, Yarn

#: families whose config class takes no other scaling than LongRoPE
LONGROPE_ONLY = ("phi3", "phi4_multimodal")
#: families whose config class has a rope for each layer type, and adds the keys of rope_scaling to
#: that of full layers
BY_LAYER_TYPE = ("gemma3_text", "olmo3")
#: families of `from_hf` that transformers has no code for; their checkpoints bring code of their
#: own
OWN_CODE = ("kimi_k2", "minimax_m1", "minimax_text_01", "minimind")


def refusal(case: Case) -> str | None:
    """Return why transformers' config class refuses the config; None if it does not. Engines that
    use the class refuse it too.
    """
    if case.model_type in LONGROPE_ONLY and case.rope.get("type") == "su":
        return (
            "refused: transformers 5 renames type su only after it has looked for the trained "
            "length"
        )
    if case.model_type in (*LONGROPE_ONLY, "phimoe") and not isinstance(
        case.spec.scaling, (LongRope, Default)
    ):
        return f"refused: {case.model_type} does not accept rope_type {case.rope_type}"
    if (
        case.model_type == "mixtral"
        and case.config.get("head_dim") is None
        and isinstance(case.spec.scaling, LongRope)
    ):
        return "refused: mixtral does not accept LongRoPE without head_dim"
    # whether the trained length is a key of the config itself, beside the rope object
    is_beside = (
        case.config.get(TRAINED) is not None
        and not case.by_layer_type
        and case.model_type != "phimoe"
    )
    needs_length = isinstance(case.spec.scaling, (Yarn, Llama3, LongRope))
    if (
        needs_length
        and not ignores_scaling(case)
        and not is_beside
        and (problem := case.problem_if_null(TRAINED))
    ):
        return problem
    if case.model_type == "gemma4_text" and needs_length and case.rope.get(TRAINED) is None:
        return (
            f"refused: gemma4_text does not accept rope_type {case.rope_type} without "
            "original_max_position_embeddings"
        )
    if needs_theta(case) and isinstance(case.spec.scaling, Llama3):
        return "refused: gemma4_text does not accept rope_type llama3 without rope_theta"
    return None


def needs_theta(case: Case) -> bool:
    """Return whether a rope of the config has no `rope_theta`, in a family whose config class has
    no default for it.
    """
    is_given = (
        all("rope_theta" in rope for rope in case.ropes) if case.by_layer_type else case.gives_theta
    )
    return case.model_type == "gemma4_text" and not is_given


def ignores_scaling(case: Case) -> bool:
    """Return whether transformers ignores the scaling: it is named by `type`, and the family's
    class reads `rope_type` alone.
    """
    return case.model_type in BY_LAYER_TYPE and not case.by_layer_type and case.is_named_by_type


def ignores_theta(case: Case) -> bool:
    """Return whether the config gives a theta that transformers' class does not read for this layer
    type (OLMo 3 before v5).
    """
    sliding = (
        case.model_type == "olmo3"
        and case.layer_type == "sliding_attention"
        and not case.by_layer_type
    )
    return sliding and case.config.get("rope_theta") not in (None, case.spec.theta)


def read_hf(case: Case) -> Reading:
    """Return what transformers, the reference, computes for a case: frequencies for the longest
    sequence of each batch.

    A case is one layer type of a config and how it is served; `add_rule` adds a remark, `fail` says
    why there is no result.
    """
    reading = Reading(case)
    if case.model_type in OWN_CODE:
        return reading.fail(
            f"not known: transformers has no code for {case.model_type}; its checkpoints bring "
            "their own"
        )
    if (problem := refusal(case)) is not None:
        return reading.fail(problem)
    if ignores_scaling(case):
        reading.drop_scaling(
            "named by `type`, which is not read beside the rope_type default",
            "configuration_gemma3.py",
        )
        reading.set_rotary_dim(
            case.spec.head_dim, "not read without a scaling", "modeling_gemma3.py"
        )
    elif _partial_rope_fails(case):
        problem = (
            "refused: this family's code rotates whole heads, and a scaled partial rope is an "
            "error in its forward"
        )
        return reading.fail(problem)
    if (problem := _missing_key(case)) is not None:
        return reading.fail(problem)
    if ignores_theta(case):
        reading.add_rule(
            "rope_theta",
            "read for full layers alone, 500,000 for the others",
            "configuration_olmo3.py",
        )
    scaling = reading.spec.scaling
    if isinstance(scaling, Dynamic):
        does = (
            "base of the longest sequence of the batch; a later, shorter batch keeps it until "
            "below the trained length"
        )
        reading.add_rule("dynamic NTK", does, "transformers#25104, modeling_rope_utils.py")
    if isinstance(scaling, LongRope) and case.model_type == "phimoe":
        does = "short factors for every sequence; only the magnitude follows the length"
        reading.fix_longrope_factors(scaling, long=False, does=does, reference="modeling_phimoe.py")
    elif isinstance(scaling, LongRope):
        does = (
            "long factors for the whole batch if its longest sequence exceeds the trained length, "
            "decided at every forward"
        )
        reading.add_rule("length switching", does, "transformers#33129, modeling_rope_utils.py")
    if isinstance(scaling, Yarn) and (case.by_layer_type or case.model_type in BY_LAYER_TYPE):
        reading.round_band("not read in a rope given by layer type", "modeling_rope_utils.py 5.22")
    return reading


def _missing_key(case: Case) -> str | None:
    """Return the problem that the config lacks a key which the model's code needs; None if it has
    all of them.
    """
    if (
        case.model_type == "mixtral"
        and case.config.get("head_dim") is None
        and isinstance(case.spec.scaling, (Yarn, Dynamic))
    ):
        return f"refused: mixtral needs head_dim for rope_type {case.rope_type}"
    if case.model_type == "ministral3" and (
        case.rope.get("llama_4_scaling_beta") is None or case.original_length is None
    ):
        return "refused: ministral3 needs llama_4_scaling_beta and original_max_position_embeddings"
    if case.model_type == "gemma4_text" and not case.by_layer_type:
        return "refused: gemma4_text needs rope_parameters by layer type"
    if needs_theta(case):
        return "refused: gemma4_text needs rope_theta for every layer type"
    return None


def _partial_rope_fails(case: Case) -> bool:
    """Return whether the family's code fails: it rotates whole heads, and the config asks for a
    part of the head alone.
    """
    spec = case.spec
    if case.latent:
        return not isinstance(spec.scaling, Default) and case.fraction not in (None, 1.0)
    if (
        case.model_type not in FAMILIES
        or case.family.reads_partial
        or isinstance(spec.scaling, Proportional)
    ):
        return False
    return spec.rotated_dims != spec.head_dim and (
        spec.layout == "half" or not isinstance(spec.scaling, Default)
    )
