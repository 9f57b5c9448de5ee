"""Mistakes of numbers that cannot be what their key means: a length as factor, a magnitude far from
its formula, reciprocals, a fraction as a number of dimensions.

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
  trained    the length that a scaling starts from, in tokens; served: the config's own length.
             A factor is mostly served / trained length
  magnitude  the factor on cos and sin, attention_factor in a config
  alpha      the factor of NTK, which raises theta, in families that read it (HunYuan)
  fits       whether another number of the config, or a published one, confirms what was meant
  rows_of    gives rows of published.json: the published models of the config's sizes.
             `rows_of_any_length` also gives those with other lengths
  su         the older name of LongRoPE, which has lists of a factor for each pair
"""

from __future__ import annotations

import math

from ropewalk.diagnosis.aliases import meaning
from ropewalk.diagnosis.case import Examination, Facts, number_of, positive, type_of, whole
from ropewalk.diagnosis.lengths import length_key, magnitude
from ropewalk.diagnosis.mistakes import Mistake, finder, repair
from ropewalk.diagnosis.published import (
    known_lists,
    published_trained_length,
    rows_of,
    rows_of_any_length,
)
from ropewalk.diagnosis.spelling import at
from ropewalk.frequencies.scaling import TRAINED_LENGTH_KEY

#: no factor is as large as this, and no served length, in tokens, is smaller
LEAST_LENGTH = 1024
#: a magnitude below this divides every logit by more than four
LEAST_MAGNITUDE = 0.5


@finder
def factor_and_length_swapped(case: Examination, row: Mistake) -> Facts | None:
    """Find the trained length as factor, and the factor as trained length."""
    for place, rope in case.ropes():
        factor, trained = positive(rope.get("factor")), whole(rope.get(TRAINED_LENGTH_KEY))
        if factor is None or trained is None or not float(factor).is_integer():
            continue
        # `factor` is the length here, `trained` the factor; their product is the same, exchanged
        fits = factor * trained == case.served or factor == published_trained_length(case)
        # no model was trained with fewer than 128 tokens
        if factor >= LEAST_LENGTH and trained < 128 and fits:
            return {"key": at(place, "factor"), "value": factor, "other": trained, "holder": rope}
    return None


@repair
def swap_factor_and_length(case: Examination, row: Mistake, facts: Facts) -> None:
    """Exchange the factor and the trained length."""
    facts["holder"]["factor"] = float(facts["other"])
    facts["holder"][TRAINED_LENGTH_KEY] = int(facts["value"])


@finder
def served_in_thousands(case: Examination, row: Mistake) -> Facts | None:
    """Find a served length that is counted in units of 1024 tokens: times 1024 it is a published
    length, or what the scaling reaches.
    """
    served, trained, factor = case.served, case.trained, case.factor or 1.0
    if served is None or served >= LEAST_LENGTH:
        return None
    tokens = served * 1024
    published = any(tokens in each["lengths"] for each in rows_of_any_length(case))
    if not published and (trained is None or not math.isclose(tokens, trained * factor)):
        return None
    name = length_key(case)
    return {"key": name, "value": served, "new": tokens, "holder": case.text, "name": name}


@finder
def factor_is_length(case: Examination, row: Mistake) -> Facts | None:
    """Find a length in place of the factor: in tokens, or with YaRN in units of 1024 tokens. The
    factor that was meant is that length / the trained length; it is written if it is a whole number
    above 1.
    """
    for place, rope in case.ropes():
        value = positive(rope.get("factor"))
        trained = case.trained or published_trained_length(case)
        # in a family that reads alpha, a large factor is an alpha, which another row is about
        if value is None or "alpha" in case.family.reads:
            continue
        # whether it is the served length in units of 1024 tokens; below 32, the two may be equal by
        # chance
        thousands = value * 1024 == case.served and value >= 32 and type_of(rope) == "yarn"
        # whether a published model of these sizes has this factor, so that it is right
        known = any(each.get("scaling", {}).get("factor") == value for each in rows_of(case))
        # a smaller number is a mistake only if it is such a length, and no published factor
        if value < LEAST_LENGTH and (known or not thousands):
            continue
        tokens = value if value >= LEAST_LENGTH else value * 1024  # else it counts units of 1024
        ratio = tokens / trained if trained else 0.0
        # units of 1024 tokens must give a factor above 1, and not the one that is written
        if value < LEAST_LENGTH and not (ratio > 1 and ratio != value):
            continue
        if trained and case.served == trained * value:  # the lengths agree with it as a factor
            continue
        fits = ratio > 1 and float(ratio).is_integer()
        return {
            "key": at(place, "factor"),
            "value": value,
            "new": ratio,
            "tokens": round(tokens),
            "trained": trained,
            "fixable": fits,
            "holder": rope,
            "name": "factor",
        }
    return None


@finder
def alpha_as_factor(case: Examination, row: Mistake) -> Facts | None:
    """Find an alpha written as the `factor` of a dynamic rope that has no alpha, in a family that
    reads alpha: one that a published model of these sizes has, or a number too large for a factor.
    """
    alphas = {each["alpha"] for each in rows_of(case) if "alpha" in each}
    for place, rope in case.ropes():
        value = positive(rope.get("factor"))
        if "alpha" not in case.family.reads or rope.get("alpha") is not None or value is None:
            continue
        # no scaling extends a model more than 64 times
        if type_of(rope) == "dynamic" and (value in alphas or value > 64):
            return {"key": at(place, "factor"), "value": value, "new": value, "holder": rope}
    return None


@repair
def factor_to_alpha(case: Examination, row: Mistake, facts: Facts) -> None:
    """Write the factor as alpha, beside the factor 1."""
    facts["holder"]["alpha"], facts["holder"]["factor"] = facts["value"], 1.0


@finder
def magnitude_impossible(case: Examination, row: Mistake) -> Facts | None:
    """Find an attention_factor of YaRN that is far from its formula 0.1 ln(factor) + 1, or that is
    the inverse or the square of what the formula gives, or ln(factor) alone.
    """
    for place, rope in case.ropes():
        value, factor = positive(rope.get("attention_factor")), positive(rope.get("factor"))
        if value is None or factor is None or factor <= 1 or type_of(rope) != "yarn":
            continue
        usual = magnitude(factor)
        wrong = {"inverse": 1 / usual, "square": usual**2, "logarithm": math.log(factor)}
        # for some factors one of these is near the formula itself
        right = math.isclose(value, usual, rel_tol=1e-3)
        near = not right and any(math.isclose(value, x, rel_tol=2e-3) for x in wrong.values())
        if value < LEAST_MAGNITUDE or value > 2 * usual or near:
            return {
                "key": at(place, "attention_factor"),
                "value": value,
                "usual": usual,
                "times": (value / usual) ** 2,  # on logits: by the query and by the key
                "holder": rope,
                "name": "attention_factor",
            }
    return None


@finder
def lists_reciprocal(case: Examination, row: Mistake) -> Facts | None:
    """Find lists of LongRoPE, the `keys` of the row, whose numbers are the reciprocals of those that
    are meant: the published ones if they are known, else 1 / each number.
    """
    for place, rope in case.ropes():
        for key in row.keys:
            values = rope.get(key)
            if not isinstance(values, list) or not values:
                continue
            numbers = [positive(each) for each in values]
            # a published list has numbers from about 1 upwards; one whose numbers are all about 1
            # says nothing
            if any(each is None or each > 1.01 for each in numbers) or min(values) > 0.8:
                continue
            inverse = [1 / each for each in values]
            new = known_lists(case, key, inverse) or [float(f"{each:.6g}") for each in inverse]
            facts = {"key": at(place, key), "value": min(values), "largest": max(new), "new": new}
            return {**facts, "holder": rope, "name": key}
    return None


@finder
def lists_known(case: Examination, row: Mistake) -> Facts | None:
    """Find a list of LongRoPE, one of the two `keys` of the row, that is absent, no list, or of
    another length than the published one, which is known by most of its numbers or by the other
    list.
    """
    for place, rope in case.ropes():
        if type_of(rope) not in ("longrope", "su"):
            continue
        for key in row.keys:
            values = rope.get(key)
            other = next(name for name in row.keys if name != key)
            new = known_lists(case, key, values) or known_lists(
                case, key, None, other, rope.get(other)
            )
            if new is None or (isinstance(values, list) and len(values) == len(new)):
                continue
            told = f"{len(values)} numbers" if isinstance(values, list) else values
            facts = {"key": at(place, key), "value": told, "new": new, "count": len(new)}
            return {**facts, "holder": rope, "name": key}
    return None


@finder
def width_as_fraction(case: Examination, row: Mistake) -> Facts | None:
    """Find a fraction of the head in rotary_dim, which is a number of dimensions. The repair needs a
    fraction that gives an even number, since dimensions rotate in pairs.
    """
    value, head = number_of(case.text.get("rotary_dim")), case.head_dim
    if value is None or not 0 < value <= 1 or not head:
        return None
    new = round(value * head)
    fits = new % 2 == 0 and math.isclose(new, value * head)
    facts = {"key": "rotary_dim", "value": value, "head": head, "new": new, "fixable": fits}
    return {**facts, "holder": case.text, "name": "rotary_dim"}


@finder
def width_of_another_stack(case: Examination, row: Mistake) -> Facts | None:
    """Find a number of dimensions under a name that this family does not read, where its code reads
    a fraction of the head, and the config gives none. A number that the default fraction gives
    anyway is no mistake.
    """
    family, head = case.family, case.head_dim
    name = family.renamed.get("partial_rotary_factor", "partial_rotary_factor")
    # whether the code reads a fraction without a scaling, or reads it under a name of its own
    reads = family.unscaled_reads_fraction or "partial_rotary_factor" in family.renamed
    if not family.known or not reads or not head or "rotary_dim" in family.reads:
        return None
    # for these model types, transformers writes rotary_dim into every config and never reads it
    if case.model_type in row.keys:
        return None
    if case.get(name) is not None or case.get("partial_rotary_factor") is not None:
        return None
    for key, value in case.text.items():
        width = whole(value)
        if key != "rotary_dim" and meaning(key) != "rotary_dim":
            continue
        if width and width % 2 == 0 and width <= head and width != int(head * family.partial):
            facts = {"key": key, "value": width, "head": head, "new": width / head, "name": name}
            return {**facts, "holder": case.text, "model": case.model_type}
    return None


@repair
def put_fraction(case: Examination, row: Mistake, facts: Facts) -> None:
    """Write the fraction in place of the number of dimensions."""
    del case.text[facts["key"]]
    case.text[facts["name"]] = facts["new"]


@finder
def trained_length_tiny(case: Examination, row: Mistake) -> Facts | None:
    """Find a trained length below 128 tokens in a known family: a factor, or another number that is
    no length.
    Meant is the published one or, with a factor, served length / factor.
    """
    for place, holder in case.places():
        value = whole(holder.get(TRAINED_LENGTH_KEY))
        # code that is not known may mean something else by the key
        if value is None or value >= 128 or not case.family.known:
            continue
        new = published_trained_length(case)
        factor, served = case.factor, case.served
        if new is None and factor and factor > 1 and served and (served / factor).is_integer():
            new = int(served / factor)
        facts = {"key": at(place, TRAINED_LENGTH_KEY), "value": value, "new": new}
        facts |= {"fixable": new is not None, "holder": holder, "name": TRAINED_LENGTH_KEY}
        return facts
    return None
