"""What the installed transformers has: its spelling of a rope and its families; what it lacks is
skipped by name.
"""

from __future__ import annotations

import importlib.util
from types import ModuleType
from typing import Any

import pytest
import transformers
from transformers import AutoConfig, Gemma3TextConfig, LlamaConfig, PretrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

#: whether configs have theta and scaling in one object, `rope_parameters`; before v5 they have the
#: keys `rope_theta` and `rope_scaling`
V5 = hasattr(LlamaConfig(), "rope_parameters")
#: whether configs name the type of every layer; in older releases they have a pattern, and models
#: with windows have caches of their own
LAYER_TYPES = hasattr(Gemma3TextConfig(), "layer_types")
HERE = f"transformers {transformers.__version__}"
#: what older config classes call these keys
OLD_NAMES = {"gpt_neox": {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}}

#: family -> {scaling: its keys}: config classes that before v5 accept these scalings and keys alone
STRICT = {
    "phi3": {"longrope": ("short_factor", "long_factor")},
    "olmo": {"linear": ("factor",), "dynamic": ("factor",)},
}

needs_v5 = lambda why: pytest.mark.skipif(not V5, reason=f"{HERE} {why}")


def skip_old_cache(family: str) -> None:
    """Skip the test if this release fails with the cache of this family, patched or not."""
    if not LAYER_TYPES and family in ("gemma-3", "llama-4"):
        pytest.skip(f"{HERE} fails with the cache of {family} that it makes itself")


def skip_old_yarn() -> None:
    """Skip the test if this release does not read the factor of YaRN, but takes it from two lengths."""
    rope = {
        "rope_type": "yarn",
        "factor": 2.0,
        "original_max_position_embeddings": 512,
        "rope_theta": 1e4,
    }
    plain, other = (
        config_of("llama", max_position_embeddings=2048, rope_parameters={**rope, "factor": each})
        for each in (2.0, 3.0)
    )
    if ROPE_INIT_FUNCTIONS["yarn"](plain, None)[1] == ROPE_INIT_FUNCTIONS["yarn"](other, None)[1]:
        pytest.skip(f"{HERE} does not read the factor of yarn")


def config_of(model_type: str, **keys: Any) -> PretrainedConfig:
    """Return a config of a family, with `rope_parameters` in the spelling of this release."""
    if model_type not in CONFIG_MAPPING:
        pytest.skip(f"{HERE} has no {model_type}")
    return AutoConfig.for_model(model_type, **spelled(model_type, keys))


def code_of(folder: str) -> ModuleType:
    """Return the modeling file of a family."""
    if importlib.util.find_spec(f"transformers.models.{folder}") is None:
        pytest.skip(f"{HERE} has no {folder}")
    return importlib.import_module(f"transformers.models.{folder}.modeling_{folder}")


def spelled(model_type: str, keys: dict[str, Any]) -> dict[str, Any]:
    """Return config keys as the installed transformers spells them: unchanged in v5, before it with
    `rope_theta`, `rope_scaling` and keys beside them in place of `rope_parameters`.
    """
    if "layer_types" in keys and not LAYER_TYPES:
        keys = {**keys, "sliding_window_pattern": 2}
    rope = dict(keys.get("rope_parameters") or keys.get("rope_scaling") or {})
    if V5 or not rope:
        return keys
    keys = {key: value for key, value in keys.items() if key != "rope_parameters"}
    beside = {key: rope.pop(key) for key in ("rope_theta", "partial_rotary_factor") if key in rope}
    if rope.get("rope_type") == "longrope" and "original_max_position_embeddings" in rope:
        beside["original_max_position_embeddings"] = rope["original_max_position_embeddings"]
    if rope.get("rope_type") == "default" and "mrope_section" not in rope:
        rope = {}
    if rope and (takes := STRICT.get(model_type)):
        name = rope.get("rope_type", rope.get("type"))
        if name not in takes:
            pytest.skip(f"{HERE} has no {name} for {model_type}")
        rope = {"type": name, **{key: rope[key] for key in takes[name]}}
    names = OLD_NAMES.get(model_type, {})
    return {
        **keys,
        **{names.get(key, key): value for key, value in beside.items()},
        "rope_scaling": rope or None,
    }


def rope_of(config: PretrainedConfig) -> dict[str, Any]:
    """Return the keys of a config's rope in either spelling."""
    return (
        config.rope_parameters
        if V5
        else {"rope_theta": config.rope_theta, **(config.rope_scaling or {})}
    )
