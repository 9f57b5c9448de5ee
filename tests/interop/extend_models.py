"""Tiny models to extend, what each kind of extension is given, and `extend` without its warnings."""

from __future__ import annotations

import copy
import warnings
from functools import cache

import pytest
from checkpoint_samples import SMALL, build

from ropewalk.interop.extend.keys import kinds
from ropewalk.interop.extend.model import extend

TRAINED, FACTOR = SMALL["max_position_embeddings"], 4.0
LONG = [1.0, 1.5, 1.5, 2.25, 3.0, 5.0]
#: what is given beside the factor
GIVEN = {
    "linear": {}, "ntk": {}, "dynamic": {}, "dynamic_yarn": {}, "llama3": {"high_freq_factor": 3.0},
    "yarn": {"beta_fast": 3.0, "beta_slow": 0.5}, "longrope": {"long_factor": LONG},
}  # fmt: skip
MODELS = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"head_dim": 12},
    "phi3": {"original_max_position_embeddings": TRAINED},
    "gemma3_text": {
        "head_dim": 12,
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 32,
    },
}
PHI3_TAKES = ("ntk", "longrope", "dynamic_yarn")
CASES = [
    (family, kind)
    for family in MODELS
    for kind in kinds()
    if family != "phi3" or kind in PHI3_TAKES
]
every = pytest.mark.parametrize(("family", "kind"), CASES)


def lengthen(model, kind, **more):
    """Extend a model or config by FACTOR with the parameters of GIVEN, without warnings."""
    factor = {} if kind == "dynamic_yarn" else {"factor": FACTOR}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return extend(model, kind, **{**factor, **GIVEN[kind], **more})


@cache
def built(family):
    return build(family, **MODELS[family])


def fresh(family):
    """A model of its own for each test."""
    return copy.deepcopy(built(family))


def rotary(model):
    return model.model.rotary_emb
