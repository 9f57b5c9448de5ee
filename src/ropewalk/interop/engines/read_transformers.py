"""How transformers reads a config: the reference, and the code that other engines run where they have none of their own."""

from __future__ import annotations

from ropewalk.frequencies import Default, Dynamic, LongRope, Proportional, Yarn
from ropewalk.interop.config.families import FAMILIES
from ropewalk.interop.engines.readings import Case, Reading

#: families whose config class takes no other scaling than LongRoPE
LONGROPE_ONLY = ("phi3", "phi4_multimodal")


def refusal(case: Case) -> str | None:
    """Return why transformers' config class refuses the config; None if it does not. Engines that use the class refuse it too."""
    if case.model_type in LONGROPE_ONLY and case.rope.get("type") == "su":
        return "no table: transformers 5 renames type su after it looked for the trained length, and refuses the config"
    if case.model_type in LONGROPE_ONLY and not isinstance(case.spec.scaling, (LongRope, Default)):
        return f"no table: {case.model_type} refuses rope_type {case.rope_type}"
    return None


def read_hf(case: Case) -> Reading:
    """Read a case as transformers does: the reference, with frequencies for the longest sequence of each batch."""
    reading, scaling = Reading(case), case.spec.scaling
    if (problem := refusal(case)) is not None:
        return reading.fail(problem)
    if _breaks(case):
        return reading.fail(
            "no table: this family's code rotates whole heads, and a scaled partial rope is an error in its forward"
        )
    if isinstance(scaling, Dynamic):
        does = "base of the longest sequence of the batch; a later, shorter batch keeps it until below the trained length"
        reading.add("dynamic NTK", does, "transformers#25104, modeling_rope_utils.py")
    if isinstance(scaling, LongRope) and case.model_type == "phimoe":
        reading.switch(
            scaling, False, "short factors for every sequence; only the magnitude follows the length", "modeling_phimoe.py"
        )
    elif isinstance(scaling, LongRope):
        does = "long factors for the whole batch if its longest sequence exceeds the trained length, decided at every forward"
        reading.add("length switching", does, "transformers#33129, modeling_rope_utils.py")
    if isinstance(scaling, Yarn) and case.nested:
        reading.round_band("not read in a rope given by layer type", "modeling_rope_utils.py 5.22")
    return reading


def _breaks(case: Case) -> bool:
    """Return whether the family's code fails with a scaled rope of fewer dimensions than the head has."""
    spec = case.spec
    if case.model_type not in FAMILIES or case.family.reads_partial or case.latent or isinstance(spec.scaling, Proportional):
        return False
    return spec.rotary_dim != spec.head_dim and spec.layout == "half"
