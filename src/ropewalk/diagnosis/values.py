"""Mistakes of values: impossible numbers, swapped numbers, and numbers in the wrong key.

A finder looks for one mistake in the config `case` and returns the facts about it, or None. The
facts `key` and `value` are reported, most repairs write `new` at `holder[name]`, and other facts
are for the texts of the row or for its repair. With `fixable` False the config does not say what
was meant: the mistake is reported, and no repair is made. `row` is the row of mistakes.toml that
names the finder, with the `keys` or `names` that it looks for; several rows may name one finder.

Words of this module:
  place      where a rope object is in the config, such as "rope_scaling"; "" is `case.text`
  case.text  the dict of the keys that the text model reads: the text part of the config, or the
             whole config if it has no parts
  holder     the dict at a place; `case.places()` has all ropes and `case.text`, `case.ropes()` the
             ropes alone. `at` joins a place and a key for the report
  lists      short_factor and long_factor of LongRoPE (older name "su"): a factor for each pair that
             rotates, for texts up to the trained length and for longer ones
  sections   mrope_section: how many pairs rotate by the position on each axis (time, height, width)
  fraction   partial_rotary_factor: the part of the head that rotates; not every family reads it
  latent     latent attention, in which the rotated part of a head has a width of its own
  rows_of    gives rows of published.json: the published models of the config's sizes. `rotated` is
             their number of rotated dimensions
  case.served, case.head_dim   the length that the config itself gives, and the width of a head
"""

from __future__ import annotations

import json
import math
from typing import Any

from ropewalk.config import keys
from ropewalk.diagnosis.case import Examination, Facts, number_of, positive, type_of, whole
from ropewalk.diagnosis.mistakes import Mistake, finder, repair
from ropewalk.diagnosis.published import REMOVABLE, published_theta, rows_of
from ropewalk.diagnosis.spelling import at, rotary_keys
from ropewalk.frequencies.scaling import TRAINED_LENGTH_KEY

#: a theta is taken for a mistake if the slowest of many pairs makes more turns than this within the
#: served length or, where no length is given, if theta is below LEAST_THETA
MOST_TURNS, LEAST_THETA = 32.0, 100.0
#: a list of factors is the long one if its sum is this many times that of the other
MUCH_LONGER = 1.5


def ratio(case: Examination) -> float | None:
    """Return served length / trained length; None if the config does not say both."""
    return case.served / case.trained if case.served and case.trained else None


@finder
def not_finite(case: Examination, row: Mistake) -> Facts | None:
    """Find NaN or infinity at a key that has to do with the rotation."""
    for place, holder in case.places():
        for key in sorted(rotary_keys(case, place) & holder.keys()):
            many = holder[key] if isinstance(holder[key], list) else [holder[key]]
            if any(isinstance(each, float) and not math.isfinite(each) for each in many):
                return _impossible(case, place, holder, key)
    return None


@finder
def not_positive(case: Examination, row: Mistake) -> Facts | None:
    """Find a number that must be above 0 and is not, at one of the `keys` of the row."""
    for place, holder in case.places():
        for key in (key for key in row.keys if key in holder):
            value = number_of(holder[key])
            # true would be read as the number 1
            if holder[key] is True or (value is not None and value <= 0):
                return _impossible(case, place, holder, key)
    return None


@finder
def theta_tiny(case: Examination, row: Mistake) -> Facts | None:
    """Find a theta below 1, or one with which the slowest of many pairs turns more than MOST_TURNS
    times within the served length; without a length, a theta below LEAST_THETA.
    """
    for place, holder in case.places():
        for key in (key for key in row.keys if key in holder):
            value = positive(holder[key])
            # code that is not known may use a small theta
            if value is None or not case.family.known:
                continue
            # in about how many tokens the slowest of many pairs turns once: its frequency is nearly
            # 1 / theta, and is divided by the factor; that of pair 0 is 1
            about = 2 * math.pi * max(value, 1.0) * max(case.factor or 1.0, 1.0)
            is_fast = case.served > about * MOST_TURNS if case.served else value < LEAST_THETA
            if value >= 1 and not is_fast:
                continue
            tokens = _slowest_turn(case, value) or about
            facts = {**_impossible(case, place, holder, key), "tokens": tokens}
            if value <= 1 / LEAST_THETA:  # so small only as the reciprocal of a theta
                new = float(f"{1 / value:.6g}")
                facts |= {"new": new, "words": f"{new:,.0f} = 1 / {value:g}", "fixable": True}
            return facts
    return None


def _slowest_turn(case: Examination, theta: float) -> float | None:
    """Return in how many tokens the slowest pair turns once with this theta, pairs that never turn
    left out; None if no spec has the theta.
    """
    specs = [each for each in (case.specs() or {}).values() if each is not None]
    ladders = [s.ladder_frequencies(case.served) for s in specs if s.theta == theta]
    radians = [each for ladder in ladders for each in ladder.radians if each > 0]
    return 2 * math.pi / min(radians) if radians else None


def _impossible(case: Examination, place: str, holder: dict, key: str) -> Facts:
    """Return the facts about an impossible number at `key` of `holder`, the dict at `place`. They
    have the number that was meant as `new`, where the lengths or the published config say it; a
    `new` of None removes the key: its default was meant. `words` say `new` in the text.
    """
    facts = {"key": at(place, key), "value": holder[key], "holder": holder, "name": key}
    meant = ratio(case) or 0.0
    # the factor is the ratio of the lengths, but in a model of published sizes only a whole one: a
    # published length that is no multiple was served without a scaling
    says = meant > 1 and (meant.is_integer() or not rows_of(case))
    if key == "factor" and says:
        return {**facts, "new": float(meant), "words": f"served / trained length = {meant:g}"}
    if key in REMOVABLE:
        return {**facts, "new": None, "words": "its default: remove the key"}
    known = published_theta(case)
    if key == "rope_theta" and len(known) == 1:
        return {**facts, "new": min(known), "words": f"the published {min(known):g}"}
    words = "the value that the model was trained with; its published config has it"
    return {**facts, "fixable": False, "words": words}


@repair
def replace_or_remove(case: Examination, row: Mistake, facts: Facts) -> None:
    """Write the new value, or remove the key if there is none."""
    if facts["new"] is None:
        del facts["holder"][facts["name"]]
    else:
        facts["holder"][facts["name"]] = facts["new"]


@finder
def factor_inverted(case: Examination, row: Mistake) -> Facts | None:
    """Find a factor below 1, which must be meant as a factor on frequencies, not on lengths.
    LongRoPE, whose lists scale the frequencies, is left out.
    """
    for place, rope in case.ropes():
        value = positive(rope.get("factor"))
        if value is None or value >= 1 or type_of(rope) in ("longrope", "su", None):
            continue
        meant = ratio(case)
        if case.length and case.trained:  # the length in use says more than the served one
            meant = case.length / case.trained
        # where lengths contradict 1 / factor, the config does not say what was meant
        fits = meant is None or meant <= 1 or math.isclose(meant, 1 / value, rel_tol=1e-3)
        return {
            "key": at(place, "factor"),
            "value": value,
            "new": 1 / value,
            "fixable": fits,
            "holder": rope,
            "name": "factor",
        }
    return None


@finder
def factor_is_integer(case: Examination, row: Mistake) -> Facts | None:
    """Find a factor that is written as an integer, of which transformers 4 warns."""
    for place, rope in case.ropes():
        if whole(rope.get("factor")):
            return {"key": at(place, "factor"), "value": rope["factor"]}
    return None


@finder
def factor_is_one(case: Examination, row: Mistake) -> Facts | None:
    """Find a scaling that scales nothing, since its factor is 1."""
    # LongRoPE scales by its lists, dynamic by the length or by an alpha, and proportional rotates a
    # part of the head
    others = ("default", "longrope", "su", "dynamic", "proportional", None)
    for place, rope in case.ropes():
        if rope.get("factor") == 1 and type_of(rope) not in others:
            return {"key": at(place, "factor"), "value": type_of(rope)}
    return None


@finder
def swapped(case: Examination, row: Mistake) -> Facts | None:
    """Find two numbers in the wrong order: of the two `keys`, the first must not be below the
    second.
    """
    larger, smaller = row.keys
    for place, rope in case.ropes():
        high, low = positive(rope.get(larger)), positive(rope.get(smaller))
        if high is not None and low is not None and high < low:
            return {"key": at(place, larger), "value": high, "other": low, "holder": rope}
    return None


@repair
def swap(case: Examination, row: Mistake, facts: Facts) -> None:
    """Exchange the values of the two keys of the row."""
    first, second = row.keys
    holder = facts["holder"]
    holder[first], holder[second] = holder[second], holder[first]


@finder
def magnitude_is_factor(case: Examination, row: Mistake) -> Facts | None:
    """Find an attention_factor, the magnitude of cos and sin, that repeats the factor of the lengths.
    Below 2 it may be a magnitude that was meant.
    """
    for place, rope in case.ropes():
        value, factor = positive(rope.get("attention_factor")), positive(rope.get("factor"))
        if value is not None and factor is not None and value == factor and value >= 2:
            return {
                "key": at(place, "attention_factor"),
                "value": value,
                "square": value**2,
                "holder": rope,
                "name": "attention_factor",
            }
    return None


@finder
def mscale_beside_magnitude(case: Examination, row: Mistake) -> Facts | None:
    """Find mscale, or mscale_all_dim, beside attention_factor: all give the magnitude, and
    attention_factor has precedence.
    """
    for place, rope in case.ropes():
        given = [key for key in ("mscale", "mscale_all_dim") if positive(rope.get(key))]
        if given and positive(rope.get("attention_factor")):
            return {"key": at(place, given[0]), "value": rope[given[0]]}
    return None


@finder
def mscale_alone(case: Examination, row: Mistake) -> Facts | None:
    """Find mscale without mscale_all_dim in a model with latent attention. Published models of this
    kind have both with the same value, so that value is written.
    """
    if not case.family.latent:
        return None
    for place, rope in case.ropes():
        value = positive(rope.get("mscale"))
        if value is not None and rope.get("mscale_all_dim") is None and type_of(rope) == "yarn":
            return {
                "key": at(place, "mscale"),
                "value": value,
                "new": value,
                "holder": rope,
                "name": "mscale_all_dim",
            }
    return None


def _lists(rope: dict) -> tuple[list, list] | None:
    """Return the short and the long factors of LongRoPE; None if one is no list of numbers above 0."""
    short, long = rope.get("short_factor"), rope.get("long_factor")
    if not isinstance(short, list) or not isinstance(long, list):
        return None
    numbers = all(positive(each) is not None for each in (*short, *long))
    return (short, long) if numbers and short and long else None


def rotated_pairs(case: Examination) -> int | None:
    """Return the number of pairs of a head that rotate, by the head and its rotated part; None if
    the width of the head is not known.
    """
    width = case.head_dim
    latent = whole(case.text.get(keys.LATENT_KEY))
    if latent is not None:
        return latent // 2
    # outside a rope, the fraction may have another name in this family
    name = case.family.renamed.get("partial_rotary_factor", "partial_rotary_factor")
    fraction = positive(case.get("partial_rotary_factor")) or positive(case.text.get(name))
    fraction = fraction or case.family.partial
    # a fraction above 1 is a mistake of another row
    return None if width is None else int(width * min(fraction, 1)) // 2


@finder
def lists_swapped(case: Examination, row: Mistake) -> Facts | None:
    """Find short factors of LongRoPE whose sum is much larger than that of the long ones, and whose
    largest is larger too.
    """
    for place, rope in case.ropes():
        lists = _lists(rope)
        if lists and sum(lists[0]) > MUCH_LONGER * sum(lists[1]) and max(lists[0]) > max(lists[1]):
            return {
                "key": at(place, "short_factor"),
                "value": max(lists[0]),
                "other": max(lists[1]),
                "holder": rope,
            }
    return None


@finder
def lists_doubled(case: Examination, row: Mistake) -> Facts | None:
    """Find lists that have each factor twice: one for each dimension and not for each pair. `halves`
    are the two lists with each factor once.
    """
    pairs = rotated_pairs(case)
    for place, rope in case.ropes():
        lists = _lists(rope)
        if lists and pairs and all(len(each) == 2 * pairs for each in lists):
            halves = [_half(each) for each in lists]
            return {
                "key": at(place, "long_factor"),
                "value": 2 * pairs,
                "pairs": pairs,
                "halves": halves,
                "fixable": None not in halves,
                "holder": rope,
            }
    return None


def _half(values: list) -> list | None:
    """Return half of a list whose halves are equal, or whose neighbours are equal in twos; else
    None.
    """
    count = len(values) // 2
    if values[:count] == values[count:]:
        return values[:count]
    return values[::2] if values[::2] == values[1::2] else None


@finder
def lists_padded(case: Examination, row: Mistake) -> Facts | None:
    """Find lists with more factors than pairs that rotate, of which all further ones repeat the
    last pair's. `halves` are the two lists without these.
    """
    pairs = rotated_pairs(case)
    for place, rope in case.ropes():
        lists = _lists(rope)
        if not lists or not pairs or any(len(each) <= pairs for each in lists):
            continue
        if all(set(each[pairs:]) == {each[pairs - 1]} for each in lists):
            facts = {"key": at(place, "long_factor"), "value": len(lists[1]), "pairs": pairs}
            return {**facts, "halves": [each[:pairs] for each in lists], "holder": rope}
    return None


@repair
def halve_lists(case: Examination, row: Mistake, facts: Facts) -> None:
    """Write the two lists with one factor for each pair."""
    facts["holder"]["short_factor"], facts["holder"]["long_factor"] = facts["halves"]


@finder
def fraction_lost(case: Examination, row: Mistake) -> Facts | None:
    """Find lists for fewer pairs than the head has, beside a fraction that does not say so, in a
    family that reads a fraction.

    Shorter lists can also be lists that were cut: the part that they rotate must be the published
    one, or, in a known family and in sizes that nobody published, a multiple of a quarter.
    """
    width, given = case.head_dim, case.get("partial_rotary_factor")
    if not case.family.unscaled_reads_fraction:
        return None
    for place, rope in case.ropes():
        lists = _lists(rope)
        known = {each.get("rotated") for each in rows_of(case)}
        # a fraction that is given is wrong only if the lists fit the published one
        if given is not None and (lists is None or known != {2 * len(lists[0])}):
            continue
        # the fraction fits the lists, or there are neither
        if given == (2 * len(lists[0]) / width if lists and width else None):
            continue
        if lists and width and len(lists[0]) == len(lists[1]) and 2 * len(lists[0]) < width:
            count = len(lists[0])
            # published sizes: 2 * count dimensions must rotate; others: a multiple of width / 4
            if known != {2 * count} if known else 8 * count % width or not case.family.known:
                continue
            return {
                "key": at(place, "long_factor"),
                "value": count,
                "pairs": width // 2,
                "holder": case.text,
                "name": "partial_rotary_factor",
                "new": 2 * count / width,
                "given": given,
            }
    return None


@finder
def list_of_another_form(case: Examination, row: Mistake) -> Facts | None:
    """Find the numbers of a list inside another list, or as an object {"0": the first number, "1":
    the second and so on}, at one of the `keys` of the row.
    """
    for place, rope in case.ropes():
        for key in row.keys:
            value, new = rope.get(key), None
            if isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):
                new = value[0]
            elif isinstance(value, dict) and {*value} == {str(i) for i in range(len(value))}:
                new = [value[str(i)] for i in range(len(value))]
            if new and all(positive(each) is not None for each in new):
                facts = {"key": at(place, key), "value": len(new), "new": new}
                return {**facts, "holder": rope, "name": key}
    return None


@finder
def lists_absent(case: Examination, row: Mistake) -> Facts | None:
    """Find LongRoPE without any of its lists, which are the `keys` of the row."""
    for place, rope in case.ropes():
        if type_of(rope) == "longrope" and not any(rope.get(key) for key in row.keys):
            return {"key": at(place, "rope_type"), "value": type_of(rope)}
    return None


@finder
def temperature_missing(case: Examination, row: Mistake) -> Facts | None:
    """Find a rope without llama_4_scaling_beta, by which the code of its family scales queries;
    `names` has {model type: the value of every published model}.
    """
    rope, new = case.flat(), row.names.get(str(case.model_type))
    key = keys.TEMPERATURE_KEY
    # a rope without theta is not the complete one of transformers 5, which has this number
    if new is None or rope is None or case.get(key) is not None or "rope_theta" not in rope:
        return None
    facts = {"key": f"{case.ropes()[0][0]}.{key}", "value": None, "new": float(new), "name": key}
    return {**facts, "holder": rope, "model": case.model_type}


@finder
def bands_missing(case: Examination, row: Mistake) -> Facts | None:
    """Find the scaling of Llama 3 without the keys of its bands of frequencies, which have the same
    values in every Llama: `names` has them, and `keys` the model types that are Llamas.
    """
    for place, rope in case.ropes():
        lack = {key: float(row.names[key]) for key in row.names if rope.get(key) is None}
        if type_of(rope) == "llama3" and lack:
            facts = {"key": ", ".join(at(place, key) for key in lack), "value": None, "new": lack}
            # only those of Llamas are known, and without a factor the rope would stay broken
            llama = case.model_type in row.keys and rope.get("factor") is not None
            return {**facts, "fixable": llama, "holder": rope, "name": min(lack)}
    return None


@repair
def put_bands(case: Examination, row: Mistake, facts: Facts) -> None:
    """Write the bands that are missing."""
    facts["holder"].update(facts["new"])


@finder
def lists_misfit(case: Examination, row: Mistake) -> Facts | None:
    """Find lists of LongRoPE, the `keys` of the row, that do not have one number for each pair."""
    pairs = rotated_pairs(case)
    for place, rope in case.ropes():
        # some families read the name "yarn" as LongRoPE; a rope without any list is another mistake
        if type_of(rope) not in ("longrope", "su", "yarn") or not {*row.keys} & rope.keys():
            continue
        for key in row.keys:
            value = rope.get(key)
            if not isinstance(value, list):
                return {"key": at(place, key), "value": value, "pairs": pairs}
            told = f"a list of {len(value)} numbers"
            wrong = [each for each in value if positive(each) is None]
            if wrong:
                told = f"a list with {json.dumps(wrong[0])}"
            if wrong or (pairs is not None and len(value) != pairs):
                return {"key": at(place, key), "value": told, "pairs": pairs}
    return None


@finder
def sections_misfit(case: Examination, row: Mistake) -> Facts | None:
    """Find mrope_section, the number of pairs for each axis, whose sum is not the number of pairs
    that rotate, or that has another number of axes than the family.
    """
    pairs = rotated_pairs(case)
    for place, rope in case.ropes():
        for key in (key for key in keys.SECTION_KEYS if isinstance(rope.get(key), list)):
            sizes = rope[key]
            if pairs is None or not all(number_of(each) is not None for each in sizes):
                continue
            axes = len(case.family.sections or sizes)
            if sum(sizes) == pairs and len(sizes) == axes:
                continue
            if _fraction_for(case, sizes) is not None:
                continue  # the fraction is the wrong one
            new = None
            own = [*(case.family.sections or ())]  # the sections of the family
            # meant are the family's sections if they fit; else dimensions were given, two a pair
            if sum(own) == pairs:
                new = own
            elif sum(sizes) == 2 * pairs and all(each % 2 == 0 for each in sizes):
                new = [each // 2 for each in sizes]
            return {
                "key": at(place, key),
                "value": sizes,
                "sum": sum(sizes),
                "axes": len(sizes),
                "pairs": pairs,
                "new": new,
                "fixable": new is not None,
                "holder": rope,
                "name": key,
            }
    return None


def _fraction_for(case: Examination, sizes: list[Any]) -> float | None:
    """Return the fraction of the head that rotates with the family's sections, if `sizes` are these;
    None if they are not, or the family's code reads no fraction.
    """
    own = [*(case.family.sections or ())]
    if not case.head_dim or not case.family.unscaled_reads_fraction or not own or sizes != own:
        return None
    fraction = 2 * sum(sizes) / case.head_dim
    return fraction if fraction <= 1 else None


@finder
def fraction_contradicts_sections(case: Examination, row: Mistake) -> Facts | None:
    """Find a rotated fraction of the head, or its absence, beside the family's own sections, which
    need another fraction.
    """
    pairs, name = rotated_pairs(case), keys.FRACTION_KEYS[0]
    for place, rope in case.ropes():
        sizes = next((rope[k] for k in keys.SECTION_KEYS if isinstance(rope.get(k), list)), [])
        if not pairs or not all(number_of(each) is not None for each in sizes):
            continue
        fraction = _fraction_for(case, sizes)
        if fraction is None or sum(sizes) == pairs:
            continue
        own = (place, rope) if place.startswith("rope_parameters") else ("", case.text)
        given = ((p, o) for p, o in case.places() if o.get(name) not in (None, fraction))
        where, holder = next(given, own)
        facts = {"key": at(where, name), "value": holder.get(name), "holder": holder, "name": name}
        return {**facts, "new": fraction, "sizes": sizes, "pairs": pairs}
    return None


@finder
def sections_differ(case: Examination, row: Mistake) -> Facts | None:
    """Find sections that are not the family's, where the family's add up to the pairs that rotate;
    only in models of published sizes. It is only reported: a model trained anew may have others.
    """
    sections = list(case.family.sections or ())
    if not rows_of(case):
        return None
    for place, rope in case.ropes():
        for key in (key for key in keys.SECTION_KEYS if isinstance(rope.get(key), list)):
            if sum(sections) == rotated_pairs(case) and rope[key] != sections:
                facts = {"key": at(place, key), "value": rope[key], "new": sections}
                return {**facts, "model": rows_of(case)[0]["name"]}
    return None


@finder
def sections_lost(case: Examination, row: Mistake) -> Facts | None:
    """Find a scaling that was written over mrope_section, or no rope object in a model type of
    `keys`, whose class in transformers 4 needs the sections. The family's are written if they fit.
    """
    sections = case.family.sections
    needed = case.model_type in row.keys and not case.ropes()
    needed = needed and case.text.get("rope_parameters") is None
    if sections and needed and sum(sections) == rotated_pairs(case):
        new = {"type": "mrope", "mrope_section": list(sections)}
        facts = {"key": "rope_scaling", "value": None, "new": new, "holder": case.text}
        return {**facts, "name": "rope_scaling", "model": case.model_type}
    for place, rope in case.ropes():
        given = any(rope.get(key) is not None for key in keys.SECTION_KEYS)
        if not sections or given or type_of(rope) in (None, "default"):
            continue
        if sum(sections) == rotated_pairs(case):
            return {
                "key": at(place, "mrope_section"),
                "value": None,
                "new": list(sections),
                "holder": rope,
                "name": "mrope_section",
                "model": case.model_type,
            }
    return None


@finder
def interleaved_flag(case: Examination, row: Mistake) -> Facts | None:
    """Find mrope_interleaved that says another order of the axes along the pairs than the model's
    code has: "interleaved" (time, height, width, time, ...) or "chunked" (first all pairs of time).
    `names` has the order of the code that the row is about.
    """
    order = case.family.axis_order
    if order not in row.names:
        return None
    for place, rope in case.ropes():
        sections = next((rope[k] for k in keys.SECTION_KEYS if rope.get(k) is not None), None)
        given = rope.get("mrope_interleaved")
        given = rope.get("interleaved") if given is None else given
        if sections is not None and bool(given) != (order == "interleaved"):
            return {
                "key": at(place, "mrope_interleaved"),
                "value": given,
                "holder": rope,
                "new": order == "interleaved",
                "name": "mrope_interleaved",
                "model": case.model_type,
            }
    return None


@repair
def put_flag(case: Examination, row: Mistake, facts: Facts) -> None:
    """Write mrope_interleaved, and remove its other name."""
    facts["holder"].pop("interleaved", None)
    facts["holder"]["mrope_interleaved"] = facts["new"]


@finder
def fraction_too_large(case: Examination, row: Mistake) -> Facts | None:
    """Find a fraction above 1: a number of dimensions, or a percentage. Which of them was meant is
    told by the number: dimensions are a power of 2, and a percentage is a multiple of a quarter of
    the head or rotates as many dimensions as a published model does.
    """
    width = case.head_dim
    for place, holder in case.places():
        for key in (key for key in keys.FRACTION_KEYS if key in holder):
            value = positive(holder[key])
            if value is None or value <= 1:
                continue
            rotated = {each.get("rotated", 0) for each in rows_of(case)}
            new = None
            if float(value).is_integer() and width:
                count = int(value)
                is_percent = count in (25, 50, 75, 100) and int(width * count / 100) % 2 == 0
                is_percent |= width * count / 100 in rotated
                if count & (count - 1) == 0 and 8 <= count <= width:  # a power of 2
                    new = count / width
                elif is_percent:
                    new = count / 100
            return {
                "key": at(place, key),
                "value": value,
                "new": new,
                "fixable": new is not None,
                "holder": holder,
                "name": key,
            }
    return None


@finder
def head_dim_wrong(case: Examination, row: Mistake) -> Facts | None:
    """Find a head_dim that is odd, or equal to the hidden size of a model with several heads. Models
    with latent attention, whose widths have keys of their own, are left out.
    """
    size, heads, head = (
        next((n for k in names if (n := whole(case.text.get(k)))), None)
        for names in (keys.HIDDEN_SIZE_KEYS, keys.HEAD_COUNT_KEYS, keys.HEAD_DIM_KEYS)
    )
    if head is None or case.text.get(keys.LATENT_KEY) is not None:
        return None
    # a head as wide as the hidden size is right only in a model with one head
    too_wide = size == head and heads is not None and heads > 1
    if not head % 2 and not too_wide:
        return None
    # an odd width that differs from size / heads by 1 is a typo; what another odd width stands for
    # is not known
    new = size // heads if size and heads and size % heads == 0 else None
    name = next(key for key in keys.HEAD_DIM_KEYS if whole(case.text.get(key)))
    return {
        "key": name,
        "value": head,
        "size": size,
        "heads": heads,
        "new": new,
        "fixable": new is not None and new % 2 == 0 and (too_wide or abs(new - head) == 1),
        "holder": case.text,
        "name": name,
    }


@finder
def head_beside_latent(case: Examination, row: Mistake) -> Facts | None:
    """Find a head_dim that contradicts the rotated width of latent attention; `names` has the model
    types whose class in transformers takes head_dim for that width.
    """
    own, width = whole(case.text.get("head_dim")), whole(case.text.get(keys.LATENT_KEY))
    if case.model_type not in row.names or None in (own, width) or own == width:
        return None
    facts = {"key": "head_dim", "value": own, "new": width}
    return {**facts, "holder": case.text, "name": "head_dim"}


@finder
def head_not_whole(case: Examination, row: Mistake) -> Facts | None:
    """Find a hidden size that is no multiple of the number of heads, where the width of a head has
    to follow from the two: no key and no default of the family gives it.
    """
    size, heads, head = (
        next((n for k in names if (n := whole(case.text.get(k)))), None)
        for names in (keys.HIDDEN_SIZE_KEYS, keys.HEAD_COUNT_KEYS, keys.HEAD_DIM_KEYS)
    )
    if head or case.text.get(keys.LATENT_KEY) or case.family.default("head_dim"):
        return None
    if size and heads and size % heads:
        return {"key": "head_dim", "value": None, "size": size, "heads": heads}
    return None


@finder
def trained_length_of_llama3(case: Examination, row: Mistake) -> Facts | None:
    """Find the scaling of Llama 3 without its trained length, in a Llama: every Llama with this
    scaling has 8192.
    """
    if case.model_type not in ("llama", "mllama_text_model") or case.trained is not None:
        return None
    for place, rope in case.ropes():
        if type_of(rope) == "llama3":
            return {
                "key": at(place, TRAINED_LENGTH_KEY),
                "value": None,
                "new": 8192,
                "holder": rope,
                "name": TRAINED_LENGTH_KEY,
                "served": case.served,
            }
    return None
