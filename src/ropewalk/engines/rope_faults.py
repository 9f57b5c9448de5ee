"""The rope objects of a config, and what may be wrong in them.

Words of this module:
  rope      one such object, of a config or of one of its layer types
  place     a config or a rope, since both may hold theta or the fraction of the head that rotates
  fault     a value that `from_hf` refuses; FAULTS has most of them by name
  name      of a scaling: the value of `rope_type` or, in older configs, `type`
  text      a string of a config; a numeric text holds a number other than 0, such as "8.0"
  known     a family whose code was read; of all others, what a config means is not known
  absent    `get(key, 0) is None`: the key is there and null; one that is absent gives 0
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from ropewalk.config import keys
from ropewalk.config.families import family_of
from ropewalk.config.hf import read_specs
from ropewalk.engines.case import TRAINED, declared_types, ropes_by_layer_type
from ropewalk.errors import RopeError

Config = Mapping[str, Any]
ROPES = ("rope_scaling", "rope_parameters")
#: keys of a rope whose values are numbers, and a value that they may have
NUMBERS = {
    "factor": 2.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "attention_factor": 1.0,
    "attn_factor": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "alpha": 1000.0,
    "rope_theta": 10_000.0,
    TRAINED: 4096,
}
#: scaling: keys without which it cannot be computed
NEEDED: dict[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor",),
    "longrope": ("short_factor", "long_factor"),
    "su": ("short_factor", "long_factor"),
}
#: the factors of LongRoPE: a number for each pair
LISTS = ("short_factor", "long_factor")
#: config keys of widths, which are integers
WIDTHS = ("head_dim", "qk_rope_head_dim", "rotary_dim")
#: the layer types with attention that transformers knows
LAYER_TYPES = ("full_attention", "sliding_attention", "chunked_attention", "linear_attention")
#: the two settings of Llama 3 that part the pairs into bands
BANDS = ("low_freq_factor", "high_freq_factor")
#: keys of a rope that change its magnitude alone
MAGNITUDES = ("attention_factor", "attn_factor", "mscale", "mscale_all_dim")
#: keys of a rope with a number that changes no frequency
BESIDE = ("llama_4_scaling_beta", "short_mscale", "long_mscale")
#: PhiMoE's magnitudes of LongRoPE
MSCALES = ("short_mscale", "long_mscale")
#: config keys of the fraction of the head that rotates, and of theta, beside a rope
FRACTIONS = ("partial_rotary_factor", "rotary_pct", "rotary_emb_fraction")
THETAS = ("rope_theta", "rotary_emb_base")


def all_ropes(config: Config) -> list[Config]:
    """Return the rope objects of a config, those of layer types one by one."""
    found: list[Config] = []
    for key in ROPES:
        rope = config.get(key)
        if isinstance(rope, Mapping):
            nested = [each for name, each in rope.items() if is_layer(name, each)]
            found += nested or [rope]
    return found


def is_layer(name: str, value: Any) -> bool:
    """Return whether an entry of a rope object is the rope of a layer type; an object under a key
    that a rope itself has is not.
    """
    return isinstance(value, Mapping) and name not in keys.inner_keys()


def with_ropes(config: Config, change: Callable[[Config], Config]) -> Config:
    """Return the config with every rope object changed, those of layer types one by one."""
    changed: dict[str, Any] = {}
    for key in ROPES:
        rope = config.get(key)
        if isinstance(rope, Mapping):
            nested = any(is_layer(name, each) for name, each in rope.items())
            changed[key] = (
                {n: change(each) if is_layer(n, each) else each for n, each in rope.items()}
                if nested
                else change(rope)
            )
    return {**config, **changed}


def without(*keys: str) -> Callable[[Config], Config]:
    """Return a function that copies an object without these keys."""
    return lambda config: {key: value for key, value in config.items() if key not in keys}


def name_of(rope: Config) -> Any:
    """Return the name of the scaling, by either key."""
    return rope.get("rope_type") or rope.get("type")


def is_numeric_text(value: Any) -> bool:
    """Return whether a value is a text that holds a number other than 0."""
    try:
        return isinstance(value, str) and bool(float(value))
    except ValueError:
        return False


def number_in(value: Any) -> Any:
    """Return the number that a text holds, as an int if it is written in at most 18 digits and
    nothing else, otherwise as a float. Any other value, and a text that holds 0, is returned as it
    is.
    """
    if not is_numeric_text(value):
        return value
    # an int of at most 18 digits fits into 64 bits; a longer one becomes a float
    return int(value) if value.isdigit() and len(value) < 19 else float(value)


def with_numbers(config: Config) -> Config:
    """Return the config with numbers in place of numeric texts: as its rope_theta, and in its ropes
    under the keys of NUMBERS.
    """
    theta = {"rope_theta": number_in(config["rope_theta"])} if "rope_theta" in config else {}
    return with_ropes(
        {**config, **theta},
        lambda rope: {
            key: number_in(value) if key in NUMBERS else value for key, value in rope.items()
        },
    )


def is_no_number(value: Any) -> bool:
    """Return whether a value is a list, an object, or a text that is not numeric."""
    is_text = isinstance(value, str) and not is_numeric_text(value)
    return is_text or isinstance(value, list | Mapping)


def no_numbers(rope: Config) -> list[str]:
    """Return the keys of a rope, without theta, that have something else than a number."""
    return [key for key in NUMBERS if key != "rope_theta" and is_no_number(rope.get(key))]


def has_no_factor_list(rope: Config) -> bool:
    """Return whether LongRoPE has factors that are no list of numbers."""
    given = [rope[key] for key in LISTS if rope.get(key) is not None]
    return name_of(rope) in ("longrope", "su") and any(
        not isinstance(each, list) or any(isinstance(value, str) for value in each)
        for each in given
    )


def is_no_width(value: Any) -> bool:
    """Return whether a width is a float or a numeric text."""
    return isinstance(value, float) or is_numeric_text(value)


def no_widths(config: Config) -> list[str]:
    """Return the keys of widths that have a list, an object or a text that is not numeric."""
    return [key for key in WIDTHS if is_no_number(config.get(key))]


def has_no_text_as_name(rope: Config) -> bool:
    """Return whether the name of a scaling is no text, or an empty one."""
    names = [rope[key] for key in ("rope_type", "type") if rope.get(key) is not None]
    return any(not isinstance(name, str) or not name for name in names)


def has_empty_name(rope: Config) -> bool:
    """Return whether the name of a scaling is an empty text."""
    return "" in (rope.get("rope_type"), rope.get("type"))


def has_factor_below_zero(rope: Config) -> bool:
    """Return whether the lists of LongRoPE have a factor that is 0 or below."""
    given = [rope[key] for key in LISTS if isinstance(rope.get(key), list)]
    return any(is_at_most_zero(value) for each in given for value in each)


def width_of(config: Config) -> int:
    """Return how many dimensions of a head rotate by the first fraction that the config or one of
    its ropes gives; 0 if none does, if it is no number, or if the width of a head is not given.
    """
    size: Any = config.get("head_dim")
    hidden, heads = config.get("hidden_size"), config.get("num_attention_heads")
    if size is None and is_count(hidden) and is_count(heads):
        size = hidden // heads  # type: ignore[operator]
    given = [place[key] for place in places_of(config) for key in FRACTIONS if key in place]
    # the first one counts: a key beside the rope comes before one in it
    is_read = is_count(size) and given and _is_number(given[0])
    return int(size * given[0]) if is_read else 0


def is_count(value: Any) -> bool:
    """Return whether a value is an integer above 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def has_odd_width(config: Config) -> bool:
    """Return whether the fraction of the head is an odd number of dimensions."""
    return width_of(config) % 2 == 1


def has_two_widths(config: Config) -> bool:
    """Return whether rotary_dim is given beside a fraction of the head, and the fraction is another
    number of dimensions.
    """
    width = config.get("rotary_dim")
    is_given = is_count(width) and is_count(config.get("head_dim")) and width_of(config) > 0
    return is_given and width_of(config) != width


def has_no_sections(config: Config) -> bool:
    """Return whether some mrope_section of a family with axes is no list of numbers."""
    given = [rope["mrope_section"] for rope in all_ropes(config) if "mrope_section" in rope]
    return not is_text_model(config) and any(
        each is not None and _are_no_numbers(each) for each in given
    )


def is_above_one(place: Config) -> bool:
    """Return whether the fraction of the head that rotates is above 1."""
    fraction: Any = place.get("partial_rotary_factor")
    return _is_number(fraction) and fraction > 1


def places_of(config: Config) -> list[Config]:
    """Return the objects in which the numbers of a rope may be: the config and its ropes."""
    return [config, *all_ropes(config)]


def with_places(config: Config, change: Callable[[Config], Config]) -> Config:
    """Return the config with `change` applied to it and to its ropes."""
    return with_ropes(change(config), change)


def is_not_finite(value: Any) -> bool:
    """Return whether a value is an infinity or NaN."""
    return isinstance(value, float) and not math.isfinite(value)


def is_fault(fault: str) -> Callable[[str, Any], bool]:
    """Return a function that says whether the value of a key has this fault, a key of FAULTS."""
    keys, holds = FAULTS[fault]
    return lambda key, value: key in keys and holds(value)


def faulty(place: Config, fault: str) -> list[str]:
    """Return the keys of a config or rope whose value has this fault, a key of FAULTS."""
    has_it = is_fault(fault)
    return [key for key, value in place.items() if has_it(key, value)]


def is_at_most_zero(value: Any) -> bool:
    """Return whether a value is a number that is 0 or below; false is 0."""
    return isinstance(value, int | float) and value <= 0


def is_below_zero(value: Any) -> bool:
    """Return whether a value is a number below 0."""
    return _is_number(value) and value < 0


def _are_no_numbers(value: Any) -> bool:
    """Return whether a value is no list, or a list with anything but numbers."""
    return not isinstance(value, list) or not all(map(_is_number, value))


def no_objects(config: Config) -> list[str]:
    """Return those of the keys of rope objects that have a value other than an object or null."""
    return [key for key in ROPES if not isinstance(config.get(key), Mapping | None)]


def needed_keys(rope: Config) -> tuple[str, ...]:
    """Return the keys that a scaling needs; YaRN with a trained length computes its factor."""
    if name_of(rope) == "yarn" and "original_max_position_embeddings" not in rope:
        return ("factor",)
    return NEEDED.get(str(name_of(rope)), ())


def lacks_needed(rope: Config) -> bool:
    """Return whether a scaling lacks a key that it needs."""
    return any(key not in rope for key in needed_keys(rope))


def has_null_ropes(config: Config) -> bool:
    """Return whether `rope_parameters` has layer types, and null for each of them."""
    ropes = config.get("rope_parameters")
    return (
        isinstance(ropes, Mapping)
        and bool(ropes)
        and ropes.keys() <= {*LAYER_TYPES}
        and not any(ropes.values())
    )


def has_null_needed(rope: Config) -> bool:
    """Return whether a key that a scaling needs is null."""
    return any(rope.get(key, 0) is None for key in NEEDED.get(str(name_of(rope)), ()))


def _is_number(value: Any) -> bool:
    """Return whether a value is a number of less than 1e9 in size; true and false are none."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) < 1e9


def below_zero(rope: Config) -> list[str]:
    """Return the keys of magnitudes that are below 0."""
    return [key for key in MAGNITUDES if _is_number(rope.get(key)) and rope[key] < 0]


def is_below_one(rope: Config) -> bool:
    """Return whether the factor of a linear, yarn, llama3 or dynamic rope is between 0 and 1."""
    named = ("linear", "yarn", "llama3", "dynamic")
    factor: Any = rope.get("factor")
    return _is_number(factor) and 0 < factor < 1 and name_of(rope) in named


def is_too_large(rope: Config) -> bool:
    """Return whether a linear rope, whose magnitude no factor changes, has a factor above a
    million.
    """
    return name_of(rope) == "linear" and "factor" in faulty(rope, "factor above a million")


def is_above(rope: Config, first: str, second: str) -> bool:
    """Return whether the first of two values is above the second, if both are numbers."""
    above, below = rope.get(first), rope.get(second)
    return _is_number(above) and _is_number(below) and above > below  # type: ignore[operator]


def has_unknown_name(rope: Config) -> bool:
    """Return whether the name of a scaling is a text and not known."""
    known = {*keys.rope_types(), *keys.ROPE_TYPE_ALIASES}
    return isinstance(name_of(rope), str) and name_of(rope) not in known


def has_no_name(rope: Config) -> bool:
    """Return whether a rope has keys of a scaling and no name of one."""
    common = keys.COMMON_KEYS | keys.AXIS_KEYS | keys.OTHER_KEYS
    return name_of(rope) is None and bool({key for key in rope if key not in common})


def unknown_keys(rope: Config) -> set[str]:
    """Return the keys of a rope that are not known."""
    return set(rope) - set(keys.inner_keys())


def is_text_model(config: Config) -> bool:
    """Return whether a known family has one position for each token."""
    family = family_of(config.get("model_type"))
    return family.known and family.axis_order is None


def pairs_of(config: Config) -> int:
    """Return how many pairs of a head rotate; 0 if that cannot be read."""

    def plain(rope: Config) -> Config:
        """Return a rope without faults that rotates as many pairs."""
        # a scaled rope reads partial_rotary_factor in families whose unscaled one does not
        is_scaled = reads_partial or name_of(rope) not in (None, "default", "mrope")
        # any scaling will do: only the number of pairs is asked for
        name = {"rope_type": "linear", "factor": 2.0} if is_scaled else {"rope_type": "default"}
        kept = ("rope_theta", "partial_rotary_factor")
        return name | {key: rope[key] for key in kept if key in rope}

    reads_partial = False
    if not is_text_model(config):  # a family with axes has sections by default, which may not fit
        family = family_of(config.get("model_type"))
        reads_partial = family.unscaled_reads_fraction
        config = without("model_type")(config)
        # the default of the class holds where no fraction is given
        given = any(key in place for place in places_of(config) for key in FRACTIONS)
        if reads_partial and not given:
            config = {**config, FRACTIONS[0]: family.partial}
        if reads_partial and not any(config.get(key) for key in ROPES):
            config = {**config, "rope_scaling": {"rope_type": "default"}}
    try:
        read = read_specs(with_ropes(with_numbers(config), plain), "exact")[0]
        specs = [spec for spec in read.values() if spec is not None]
    except RopeError:
        return 0
    return specs[0].pairs if specs else 0


def has_wrong_lists(config: Config) -> bool:
    """Return whether some LongRoPE has factors for another number of pairs than those that
    rotate.
    """
    lengths = {
        len(rope[key])
        for rope in all_ropes(config)
        for key in LISTS
        if name_of(rope) in ("longrope", "su") and isinstance(rope.get(key), list)
    }
    return bool(lengths - {pairs_of(config)})


def has_wrong_sections(config: Config) -> bool:
    """Return whether the sections of some rope do not add up to the pairs that rotate."""
    given = [rope.get("mrope_section") for rope in all_ropes(config)]
    lists = [each for each in given if isinstance(each, list)]
    # a list with anything but integers is another fault
    counts = [each for each in lists if all(isinstance(count, int) for count in each)]
    pairs = pairs_of(config)
    return pairs > 0 and any(sum(each) != pairs for each in counts)


def fits_fraction(config: Config) -> bool:
    """Return whether every mrope_section that is a list of integers adds up to the pairs of the
    fraction that the config gives.
    """
    given = [rope.get("mrope_section") for rope in all_ropes(config)]
    lists = [each for each in given if isinstance(each, list) and all(map(is_count, each))]
    return all(2 * sum(each) == width_of(config) for each in lists)


def has_three_sections(config: Config) -> bool:
    """Return whether every mrope_section of a config has three entries; true if it has none."""
    given = [rope.get("mrope_section") for rope in all_ropes(config)]
    return all(len(each) == 3 for each in given if isinstance(each, list))


def has_two_ropes(config: Config) -> bool:
    """Return whether `rope_scaling` and `rope_parameters` contradict each other, or the second has
    keys that the first has not.
    """
    old, new = config.get("rope_scaling"), config.get("rope_parameters")
    if not isinstance(old, Mapping) or not isinstance(new, Mapping) or not old or not new:
        return False
    # one rope cannot be compared with one for each layer type
    if ropes_by_layer_type(config) or has_one_rope_for_all(config):
        return False
    # the theta beside the ropes counts as one in `rope_scaling`
    given = {"rope_theta": config.get("rope_theta"), **old}
    others = [key for key in new if key in old or key not in ("rope_type", "type")]
    return name_of(old) != name_of(new) or any(given.get(key) != new[key] for key in others)


def has_one_rope_for_all(config: Config) -> bool:
    """Return whether a family with a rope for each layer type has only one, for all, in
    `rope_parameters`.
    """
    layered = ("gemma3_text", "gemma3n_text", "olmo3", "modernbert", "modernbert-decoder")
    return (
        config.get("model_type") in layered
        and bool(config.get("rope_parameters"))
        and not ropes_by_layer_type(config)
    )


def lacks_any_rope(config: Config) -> bool:
    """Return whether a family that is not known has neither a rope nor a theta."""
    is_known = family_of(config.get("model_type")).known
    return not is_known and all(config.get(key) is None for key in keys.ROPE_KEYS)


def has_two_axes(config: Config) -> bool:
    """Return whether a rope has sections in a family whose code gives the two members of a pair
    different axes.
    """
    is_split = config.get("model_type") == "hunyuan_vl_text"
    return is_split and any(
        rope.get(key) for rope in all_ropes(config) for key in keys.SECTION_KEYS
    )


def lacks_rope(config: Config) -> bool:
    """Return whether a family whose default rope is scaled has no rope, or an empty one."""
    return family_of(config.get("model_type")).rope_required and not any(all_ropes(config))


def without_a_layer_type(config: Config) -> list[str]:
    """Return the names in `rope_parameters` under which there is a rope, but which are no layer
    type of transformers, of the family or of the config.
    """
    family = family_of(config.get("model_type"))
    known = {*LAYER_TYPES, *family.layer_thetas, *declared_types(config)}
    ropes: Any = config.get("rope_parameters")
    if not isinstance(ropes, Mapping):
        return []
    return [name for name, rope in ropes.items() if is_layer(name, rope) and name not in known]


def has_number_as_rope(config: Config) -> bool:
    """Return whether `rope_parameters` has a number as the rope of a layer type."""
    ropes: Any = config.get("rope_parameters")
    named = {*LAYER_TYPES, *declared_types(config)}
    return isinstance(ropes, Mapping) and any(_is_number(ropes.get(name)) for name in named)


def is_float_length(value: Any) -> bool:
    """Return whether a length is written as a whole float."""
    return isinstance(value, float) and value.is_integer()


def contradicts(rope: Config) -> bool:
    """Return whether `type` and `rope_type` name two scalings."""
    old, new = rope.get("type"), rope.get("rope_type")
    return old is not None and new is not None and old != new


def lacks_factors(config: Config, key: str) -> bool:
    """Return whether a Phi-3, Phi-4 multimodal or PhiMoE has a rope under `key` that its config
    class takes for LongRoPE and that has no factors.
    """
    rope = config.get(key) or {}
    names = ("yarn", "longrope", "su")
    return (
        config.get("model_type") in ("phi3", "phi4_multimodal", "phimoe")
        and (rope.get("rope_type") or rope.get("type")) in names
        and "short_factor" not in rope
    )


def has_needed_ropes_misnamed(config: Config) -> bool:
    """Return whether a family that needs a rope has only ropes whose names are no layer types."""
    ropes: Any = config.get("rope_parameters")
    is_needed = family_of(config.get("model_type")).rope_required and isinstance(ropes, Mapping)
    return is_needed and bool(ropes) and without_a_layer_type(config) == [*ropes]


def has_null_theta(place: Config) -> bool:
    """Return whether a config or a rope writes theta as null."""
    return place.get("rope_theta", 0) is None


def has_null_name(rope: Config) -> bool:
    """Return whether the key by which a rope names its scaling is null."""
    return rope.get("rope_type", 0) is None or has_null_type(rope)


def has_null_type(rope: Config) -> bool:
    """Return whether a rope has `type` alone to name its scaling, and it is null."""
    return "rope_type" not in rope and rope.get("type", 0) is None


def has_scaling_beside_layers(config: Config) -> bool:
    """Return whether a config has ropes by layer type, and a rope in `rope_scaling` too."""
    return isinstance(config.get("rope_scaling"), Mapping) and bool(
        config["rope_scaling"] and ropes_by_layer_type(config)
    )


def has_type_beside_layers(config: Config) -> bool:
    """Return whether `rope_scaling` beside ropes of layer types has no name but `type`."""
    scaling: Any = config.get("rope_scaling")
    return has_scaling_beside_layers(config) and "type" in scaling and "rope_type" not in scaling


def has_other_number_of_axes(config: Config) -> bool:
    """Return whether some mrope_section of a family with axes has more or fewer entries than 3,
    which add up to the pairs that rotate.
    """
    given = [rope.get("mrope_section") for rope in all_ropes(config)]
    has_other = any(
        isinstance(each, list) and len(each) != 3 and not _are_no_numbers(each) for each in given
    )
    return has_other and not is_text_model(config) and not has_wrong_sections(config)


def has_null_sections(config: Config) -> bool:
    """Return whether some mrope_section of a family with axes is null."""
    written = (rope.get("mrope_section", 0) for rope in all_ropes(config))
    return not is_text_model(config) and any(each is None for each in written)


def lacks_fitting_sections(config: Config) -> bool:
    """Return whether a family with axes has no mrope_section, and the one of its class does not add
    up to the pairs that rotate.
    """
    sections = family_of(config.get("model_type")).sections
    given = any(rope.get("mrope_section") is not None for rope in all_ropes(config))
    is_beside = config.get("mrope_section") is not None
    if sections is None or given or is_beside or is_text_model(config):
        return False
    return sum(sections) != pairs_of(config)


def has_odd_truncate(rope: Config) -> bool:
    """Return whether `truncate` of a rope is a number, a list or an object."""
    value = rope.get("truncate")
    return not isinstance(value, bool | str | None)


def has_odd_interleaved(rope: Config) -> bool:
    """Return whether `mrope_interleaved` of a rope is neither true, false nor null."""
    return not isinstance(rope.get("mrope_interleaved"), bool | None)


def _is_text(value: Any) -> bool:
    """Return whether a value is a text, a list or an object."""
    return isinstance(value, str | list | Mapping)


def _is_fraction_of_length(value: Any) -> bool:
    """Return whether a length is a float above 0 that is not whole."""
    return isinstance(value, float) and value > 0 and not value.is_integer()


#: {fault: (the keys that may have it, in a config or its ropes; whether a value has it)}: values
#: that `from_hf` refuses, each also one of the REASONS of unread.py
FAULTS: dict[str, tuple[tuple[str, ...], Callable[[Any], bool]]] = {
    "truth value instead of a number": (
        (*NUMBERS, *THETAS, *FRACTIONS),
        lambda value: value is True,
    ),
    "infinite theta": (THETAS, lambda value: isinstance(value, float) and value == math.inf),
    "number that is not finite": ((*NUMBERS, *THETAS, *FRACTIONS), is_not_finite),
    "theta of at most 0": (THETAS, is_at_most_zero),
    "trained length of at most 0": ((TRAINED,), is_at_most_zero),
    "trained length that is no integer": ((TRAINED,), _is_fraction_of_length),
    "beta of 0": (("beta_fast", "beta_slow"), lambda value: _is_number(value) and value == 0),
    "beta below 0": (("beta_fast", "beta_slow"), lambda value: _is_number(value) and value < 0),
    "frequency factor of 0": (BANDS, lambda value: _is_number(value) and value == 0),
    "low_freq_factor below 0": (
        ("low_freq_factor",),
        lambda value: _is_number(value) and value < 0,
    ),
    "high_freq_factor below 0": (
        ("high_freq_factor",),
        lambda value: _is_number(value) and value < 0,
    ),
    "attention_factor of 0": (
        ("attention_factor",),
        lambda value: _is_number(value) and value == 0,
    ),
    "factor of 0": (("factor",), lambda value: _is_number(value) and value == 0),
    "factor below 0": (("factor",), lambda value: _is_number(value) and value < 0),
    "factor above a million": (
        ("factor",),
        lambda value: isinstance(value, int | float) and 1 << 20 < value < math.inf,
    ),
    "text as llama_4_scaling_beta": (("llama_4_scaling_beta",), _is_text),
    "text as short_mscale or long_mscale": (MSCALES, _is_text),
    "fraction that is no number": (FRACTIONS, _is_text),
    "fraction of 0": (FRACTIONS, lambda value: _is_number(value) and value == 0),
    "fraction below 0": (FRACTIONS, lambda value: _is_number(value) and value < 0),
    "rotary_emb_base that is no number": (("rotary_emb_base",), _is_text),
}
#: a possible value for each key of FAULTS and, in OTHERS, a second one: an engine that computes the
#: same with both does not read the key
POSSIBLE = NUMBERS | {
    **dict.fromkeys(BESIDE, 1.0),
    **dict.fromkeys(FRACTIONS, 0.5),
    "rotary_emb_base": 10_000.0,
}
OTHERS = {key: 1.25 * value for key, value in POSSIBLE.items()} | {
    TRAINED: 1024,
    "factor": 7.0,
    "beta_fast": 200.0,
    "beta_slow": 8.0,
    **dict.fromkeys(FRACTIONS, 0.75),
}
