"""Draw configs with mistakes that people make: a rope that is right, and one mistake in it.

A seed gives the same configs everywhere. A mistake is a function that takes a `Draft` and changes
it; MISTAKES has them by name, with the scalings that they fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from draw_configs import PARTIAL, TRAINED_KEY
from engines.matrix import FAMILIES, VISION, Config, ServedConfig
from engines.matrix_rows import config_of, longrope

#: the families to draw from; those that people extend most are there several times
DRAWN = (
    *["llama", "qwen2", "qwen3"] * 4,
    *["mistral", "gemma3_text", "phi3", "deepseek_v3", "gpt_oss", "qwen2_5_vl"] * 2,
    "mixtral", "qwen2_moe", "qwen3_moe", "phi", "gemma", "gemma2", "glm4", "glm4_moe",
    "deepseek_v2", "gpt_neox", "falcon", "cohere", "cohere2", "olmo2", "olmo3", "smollm3",
    "starcoder2", "stablelm", "granite", "exaone4", "seed_oss", "ernie4_5", "hunyuan_v1_dense",
    "nemotron", "qwen2_vl", "qwen3_vl",
)  # fmt: skip
TRAINED = (2048, 4096, 8192, 32768)
FACTORS = (2.0, 4.0, 8.0)


@dataclass
class Draft:
    """A config before it is written: its rope, and keys of the text model beside it."""

    random: Random
    model_type: str
    spelling: int
    kind: str
    trained: int
    factor: float
    theta: Any
    scaling: Config
    partial: float | None = None
    keys: Config = field(default_factory=dict)
    #: rope objects that are written instead of the usual one
    ropes: Config = field(default_factory=dict)
    #: keys of the whole config, outside of its text part
    outer: Config = field(default_factory=dict)

    @property
    def served(self) -> int:
        """The served length: the trained one times the factor."""
        return int(self.trained * self.factor)


def _scaling(kind: str, factor: float, trained: int, pairs: int) -> Config:
    """Return the keys of a scaling as they should be."""
    if kind == "none":
        return {}
    if kind == "longrope":
        return longrope(pairs, **{TRAINED_KEY: trained})
    rope: Config = {"rope_type": kind, "factor": factor}
    if kind == "llama3":
        rope |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    if kind in ("yarn", "llama3"):
        rope[TRAINED_KEY] = trained
    return rope


def _type_instead(draft: Draft) -> None:
    draft.scaling["type"] = draft.scaling.pop("rope_type")


def _type_beside(draft: Draft) -> None:
    draft.scaling["type"] = draft.scaling["rope_type"]


def _type_contradicts(draft: Draft) -> None:
    draft.scaling["type"] = "yarn" if draft.kind == "linear" else "linear"


def _no_type(draft: Draft) -> None:
    draft.scaling.pop("rope_type")


def _other_name(draft: Draft) -> None:
    names = {"yarn": ["YaRN", "yarn_scaling"], "dynamic": ["ntk", "dynamic_ntk", "dynamic-ntk"]}
    names |= {"linear": ["Linear", "pi"], "llama3": ["llama-3", "llama3.1"], "longrope": ["su"]}
    draft.scaling["rope_type"] = draft.random.choice(names[draft.kind])


def _no_trained(draft: Draft) -> None:
    draft.scaling.pop(TRAINED_KEY)


def _trained_outside(draft: Draft) -> None:
    draft.keys[TRAINED_KEY] = draft.scaling.pop(TRAINED_KEY)


def _trained_twice(draft: Draft) -> None:
    draft.keys[TRAINED_KEY] = 2 * draft.trained


def _trained_is_served(draft: Draft) -> None:
    draft.scaling[TRAINED_KEY] = draft.served


def _trained_is_float(draft: Draft) -> None:
    draft.scaling[TRAINED_KEY] = float(draft.trained)


def _trained_is_text(draft: Draft) -> None:
    draft.scaling[TRAINED_KEY] = str(draft.trained)


def _served_not_multiplied(draft: Draft) -> None:
    draft.keys["max_position_embeddings"] = draft.trained


def _served_multiplied_twice(draft: Draft) -> None:
    # an engine may build a table of all these positions, times the factor
    draft.keys["max_position_embeddings"] = min(int(draft.served * draft.factor), 1 << 19)


def _served_is_float(draft: Draft) -> None:
    draft.keys["max_position_embeddings"] = float(draft.served)


def _factor_is_text(draft: Draft) -> None:
    draft.scaling["factor"] = str(draft.factor)


def _factor_is_int(draft: Draft) -> None:
    draft.scaling["factor"] = int(draft.factor)


def _factor_below_one(draft: Draft) -> None:
    draft.scaling["factor"] = 1 / draft.factor


def _factor_does_not_fit(draft: Draft) -> None:
    draft.scaling["factor"] = draft.factor * draft.random.choice((1.5, 2.0, 0.75))


def _no_factor(draft: Draft) -> None:
    draft.scaling.pop("factor")


def _factor_is_null(draft: Draft) -> None:
    draft.scaling["factor"] = None


def _theta_lost(draft: Draft) -> None:
    draft.theta = None


def _theta_in_the_other_place(draft: Draft) -> None:
    """Put theta into `rope_scaling` (transformers 4), or outside of `rope_parameters` (5)."""
    if draft.spelling == 4:
        draft.scaling["rope_theta"] = draft.theta
    else:
        draft.keys["rope_theta"] = draft.theta
    draft.theta = None


def _theta_twice(draft: Draft) -> None:
    if draft.spelling == 4:
        draft.scaling["rope_theta"] = draft.theta * 10
    else:
        draft.keys["rope_theta"] = draft.theta * 10


def _theta_is_text(draft: Draft) -> None:
    draft.theta = draft.random.choice((str(draft.theta), f"{draft.theta:.0e}"))


def _theta_is_int(draft: Draft) -> None:
    draft.theta = int(draft.theta)


def _both_spellings(draft: Draft) -> None:
    """Write two ropes that contradict each other: the scaling in the old spelling and none in the
    new one, or twice its factor in the old and the scaling in the new.
    """
    plain = {"rope_type": "default", "rope_theta": draft.theta}
    if draft.random.random() < 0.5:
        draft.ropes = {"rope_scaling": draft.scaling, "rope_parameters": plain}
    else:
        other = {**draft.scaling, "factor": draft.factor * 2}
        parameters = {"rope_theta": draft.theta, **draft.scaling}
        draft.ropes = {"rope_scaling": other, "rope_parameters": parameters}


def _partial_in_scaling(draft: Draft) -> None:
    draft.partial, draft.scaling["partial_rotary_factor"] = None, draft.partial or 0.5
    draft.scaling.setdefault("rope_type", "default")


def _partial_on_a_whole_head(draft: Draft) -> None:
    draft.partial = 0.5


def _partial_misspelled(draft: Draft) -> None:
    key = draft.random.choice(("rotary_pct", "rotary_percent", "partial_rotary", "rope_pct"))
    draft.keys[key], draft.partial = draft.partial or 0.5, None


def _betas_swapped(draft: Draft) -> None:
    draft.scaling |= {"beta_fast": 1.0, "beta_slow": 32.0}


def _betas_are_ints(draft: Draft) -> None:
    draft.scaling |= {"beta_fast": 32, "beta_slow": 1}


def _low_above_high(draft: Draft) -> None:
    draft.scaling |= {"low_freq_factor": 4.0, "high_freq_factor": 1.0}


def _no_low(draft: Draft) -> None:
    draft.scaling.pop("low_freq_factor")


def _mscale(draft: Draft) -> None:
    draft.scaling |= draft.random.choice(
        ({"mscale": 1.0}, {"mscale_all_dim": 1.0}, {"mscale": 0.707, "mscale_all_dim": 1.0})
    )


def _attention_factor(draft: Draft) -> None:
    key = draft.random.choice(("attention_factor", "attn_factor"))
    draft.scaling[key] = draft.random.choice((1.0, 1.2, "1.0", -1.0))


def _truncate(draft: Draft) -> None:
    draft.scaling["truncate"] = draft.random.choice((False, "false", None))


def _wrong_lists(draft: Draft) -> None:
    pairs = len(draft.scaling["short_factor"])
    count = draft.random.choice((pairs - 1, pairs + 1, 2 * pairs, pairs // 2))
    draft.scaling |= longrope(count)


def _one_wrong_list(draft: Draft) -> None:
    draft.scaling["long_factor"] = draft.scaling["long_factor"][:-1]


def _no_short(draft: Draft) -> None:
    draft.scaling.pop("short_factor")


def _unknown_key(draft: Draft) -> None:
    key, value = draft.random.choice(
        [("finetuned", True), ("scale", 4.0), ("alpha", 2.0), ("rope_factor", 4.0), ("beta", 0.1)]
    )
    if draft.scaling and draft.random.random() < 0.6:
        draft.scaling[key] = value
    else:
        draft.keys[f"rope_{key}".replace("rope_rope", "rope")] = value


def _by_layer_type(draft: Draft) -> None:
    """Write ropes by layer type where the family has one rope."""
    rope = {"rope_type": "default", "rope_theta": draft.theta, **draft.scaling}
    plain = {"rope_type": "default", "rope_theta": 1e4}
    draft.ropes = {"rope_parameters": {"full_attention": rope, "sliding_attention": plain}}


def _flat(draft: Draft) -> None:
    """Write one rope where the family has ropes by layer type."""
    draft.ropes = {
        "rope_parameters": {"rope_type": "default", "rope_theta": draft.theta, **draft.scaling}
    }


def _wrong_sections(draft: Draft) -> None:
    draft.scaling["mrope_section"] = draft.random.choice(
        ([16, 24], [16, 16, 16], [24, 24, 24], [32, 48, 48], [64, 0, 0])
    )


def _sections_in_a_text_model(draft: Draft) -> None:
    draft.scaling |= {"mrope_section": [8, 12, 12]}
    draft.scaling.setdefault("rope_type", draft.random.choice(("default", "mrope")))


def _no_sections(draft: Draft) -> None:
    draft.scaling.pop("mrope_section")


def _empty(draft: Draft) -> None:
    draft.ropes = {draft.random.choice(("rope_scaling", "rope_parameters")): {}}
    draft.keys["rope_theta"] = draft.theta


def _outside_of_the_text_part(draft: Draft) -> None:
    draft.outer["rope_scaling"], draft.scaling = draft.scaling, {}


def _keys_of_another_scaling(draft: Draft) -> None:
    other = {"yarn": {"low_freq_factor": 1.0, "high_freq_factor": 4.0}}
    draft.scaling |= other.get(draft.kind, {"beta_fast": 32, "beta_slow": 1})


ALL = ("linear", "dynamic", "yarn", "llama3", "longrope")
WITH_FACTOR = ("linear", "dynamic", "yarn", "llama3")
WITH_TRAINED = ("yarn", "llama3", "longrope")
ANY = ("none", *ALL)
#: name: (the mistake, the scalings it fits)
MISTAKES: dict[str, tuple[Callable[[Draft], None], tuple[str, ...]]] = {
    "type instead of rope_type": (_type_instead, ALL),
    "type beside rope_type": (_type_beside, ALL),
    "type contradicts rope_type": (_type_contradicts, ("linear", "yarn", "llama3")),
    "no type": (_no_type, WITH_FACTOR),
    "name of another library": (_other_name, ALL),
    "no trained length": (_no_trained, WITH_TRAINED),
    "trained length beside the rope": (_trained_outside, WITH_TRAINED),
    "two trained lengths": (_trained_twice, WITH_TRAINED),
    "trained length is the served one": (_trained_is_served, WITH_TRAINED),
    "trained length is a float": (_trained_is_float, WITH_TRAINED),
    "trained length is text": (_trained_is_text, WITH_TRAINED),
    "served length not multiplied": (_served_not_multiplied, ALL),
    "served length multiplied twice": (_served_multiplied_twice, ALL),
    "served length is a float": (_served_is_float, ANY),
    "factor is text": (_factor_is_text, WITH_FACTOR),
    "factor is an int": (_factor_is_int, WITH_FACTOR),
    "factor below 1": (_factor_below_one, WITH_FACTOR),
    "factor does not fit": (_factor_does_not_fit, WITH_FACTOR),
    "no factor": (_no_factor, WITH_FACTOR),
    "factor is null": (_factor_is_null, WITH_FACTOR),
    "theta lost": (_theta_lost, ANY),
    "theta in the other place": (_theta_in_the_other_place, ALL),
    "two thetas": (_theta_twice, ALL),
    "theta is text": (_theta_is_text, ANY),
    "theta is an int": (_theta_is_int, ANY),
    "both spellings": (_both_spellings, WITH_FACTOR),
    "partial factor in the scaling": (_partial_in_scaling, ("none", "yarn", "linear")),
    "partial factor of a whole head": (_partial_on_a_whole_head, ("none", "yarn", "linear")),
    "partial factor misspelled": (_partial_misspelled, ("none", "yarn", "linear")),
    "betas swapped": (_betas_swapped, ("yarn",)),
    "betas are ints": (_betas_are_ints, ("yarn",)),
    "low above high": (_low_above_high, ("llama3",)),
    "no low_freq_factor": (_no_low, ("llama3",)),
    "mscale": (_mscale, ("yarn",)),
    "attention factor": (_attention_factor, ("yarn", "longrope")),
    "truncate": (_truncate, ("yarn",)),
    "lists of the wrong length": (_wrong_lists, ("longrope",)),
    "one list of the wrong length": (_one_wrong_list, ("longrope",)),
    "no short factors": (_no_short, ("longrope",)),
    "unknown key": (_unknown_key, ANY),
    "ropes by layer type": (_by_layer_type, ("none", "yarn", "linear", "llama3")),
    "empty rope": (_empty, ("none",)),
    "keys of another scaling": (_keys_of_another_scaling, WITH_FACTOR),
    "sections in a text model": (_sections_in_a_text_model, ("none", "yarn")),
}
#: as MISTAKES, for families with axes of images; OF_LAYERS: for LAYERED, families with ropes by
#: layer type
OF_VISION: dict[str, tuple[Callable[[Draft], None], tuple[str, ...]]] = {
    "sections do not add up": (_wrong_sections, ("none", "yarn")),
    "no sections": (_no_sections, ("none", "yarn")),
    "rope outside of the text part": (_outside_of_the_text_part, ("yarn",)),
}
LAYERED = ("gemma3_text", "olmo3")
OF_LAYERS: dict[str, tuple[Callable[[Draft], None], tuple[str, ...]]] = {
    "one rope for all layer types": (_flat, ("none", "yarn", "linear")),
}


def draw(seed: int, count: int) -> list[ServedConfig]:
    """Return the first `count` rows of a seed; every row has one mistake."""
    random = Random(seed)
    return [_row(random, f"mistake {seed}.{index}") for index in range(count)]


def _row(random: Random, name: str) -> ServedConfig:
    """Return a config with a mistake, and how it is served."""
    model_type = random.choice(DRAWN)
    known = {**MISTAKES, **(OF_VISION if model_type in VISION else {})}
    if model_type in VISION:
        known.pop("sections in a text model")
    if model_type in LAYERED:
        known = {**known, **OF_LAYERS}
        known.pop("ropes by layer type")
    mistake = random.choice(list(known))
    change, kinds = known[mistake]
    kind = random.choice([*kinds, *["yarn"] * (2 * ("yarn" in kinds))])
    if model_type in ("phi3",) and "longrope" in kinds and random.random() < 0.7:
        kind = "longrope"
    trained, factor = random.choice(TRAINED), random.choice(FACTORS)
    partial = PARTIAL.get(model_type)
    pairs = int(_pairs(model_type) * (partial or 1.0))
    draft = Draft(
        random,
        model_type,
        random.choice((4, 5)),
        kind,
        trained,
        factor,
        random.choice((1e4, 5e5, 1e6)),
        _scaling(kind, factor, trained, pairs),
        partial,
    )
    if model_type == "gpt_oss" and kind == "yarn":
        draft.scaling |= {"beta_fast": 32.0, "beta_slow": 1.0}
    if model_type == "phi3" and kind == "longrope":
        draft.keys[TRAINED_KEY] = trained
    if model_type in VISION:
        sections = [24, 20, 20] if model_type == "qwen3_vl" else [16, 24, 24]
        draft.scaling = {"rope_type": "default", **draft.scaling, "mrope_section": sections}
        if model_type == "qwen3_vl":
            draft.scaling["mrope_interleaved"] = True
    change(draft)
    config = _write(draft)
    length = random.choice((draft.served, draft.trained))
    title = f"{name}: {model_type} {kind} v{draft.spelling}, {mistake}"
    return ServedConfig(title, config, length, None, axes=3 if model_type in VISION else 1)


def _write(draft: Draft) -> Config:
    """Return the config of a draft."""
    by_layer_type = draft.model_type in LAYERED and draft.spelling == 5 and not draft.ropes
    ropes = dict(draft.ropes)
    if by_layer_type:
        theta = {} if draft.theta is None else {"rope_theta": draft.theta}
        full = {"rope_type": "default", **theta, **draft.scaling}
        if "type" in draft.scaling and "rope_type" not in draft.scaling:
            full.pop("rope_type")
        sliding = {"rope_type": "default", "rope_theta": 1e4}
        ropes = {"rope_parameters": {"full_attention": full, "sliding_attention": sliding}}
    if ropes:
        config = config_of(
            draft.model_type, 4, draft.served, None, None, draft.partial, **(draft.keys | ropes)
        )
    else:
        config = config_of(
            draft.model_type,
            draft.spelling,
            draft.served,
            draft.theta,
            draft.scaling or None,
            draft.partial,
            **draft.keys,
        )
        parameters = config.get("text_config", config).get("rope_parameters")
        # the name that `config_of` adds is not part of the mistake
        if parameters and draft.scaling and "rope_type" not in draft.scaling:
            parameters.pop("rope_type")
    return {**config, **draft.outer}


def _pairs(model_type: str) -> int:
    """Return how many pairs a whole head has, or its rotated part in latent attention."""
    config = config_of(model_type, 4, 1)
    config = config.get("text_config", config)
    head_dim = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
    return config.get("qk_rope_head_dim", head_dim) // 2


assert set(DRAWN) <= set(FAMILIES)
