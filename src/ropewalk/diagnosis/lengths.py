"""Mistakes of lengths: what a scaling covers, and what the model is served with.

A finder looks for one mistake and returns the facts about it, or None: `key` and `value` are
reported, other facts are for the texts of its row, and most repairs write `new` at `holder[name]`.
`fixable` is False where the lengths leave open which number is wrong, or where the model's code
would not read the repair: the mistake is then only reported. Of several rows of mistakes.toml about
similar mistakes one is to report each, so a finder returns None for what another row says better.

Words of this module, with all lengths in tokens:
  row      the row of mistakes.toml that names the finder, with the `keys` or `names` that it looks
           for; `rows_of` and `rows_of_any_length` give other rows, those of published.json: the
           published models of the config's sizes, the former by its name and lengths too
  release  one of several published models of the same sizes
  trained  the trained length, which a scaling starts from
  served   the served length, which the config itself gives: max_position_embeddings. With YaRN and
           linear it should be trained length x factor; often it was left at the trained length
  length   the length in use, `case.length`: that of the longest sequence, which the caller of
           `doctor` gave; None: not given
  known    the trained length as published
  reaches  `case.reaches`: the tokens that a repair before has extended the rope to; 0: none has
  case.rope_type   the name of the first scaling; "default" if no rope is scaled
  case.family      what the code of the config's model_type fixes
  place    the path of a rope object; `at(place, key)` is the path of a key in it
  alpha    a number of the dynamic scaling of HunYuan: theta is raised by it, by as much for
           every length. Without it, dynamic raises theta as the sequence grows
"""

from __future__ import annotations

import copy
import math
from typing import Any

from ropewalk.config import keys
from ropewalk.diagnosis.aliases import meaning
from ropewalk.diagnosis.case import (
    Examination,
    Facts,
    positive,
    read_type,
    specs_of,
    type_of,
    whole,
)
from ropewalk.diagnosis.mistakes import Mistake, finder, mistakes, repair
from ropewalk.diagnosis.published import (
    native_length,
    published_start,
    published_theta,
    published_trained_length,
    rows_of,
    rows_of_any_length,
    scaling_lost,
    theta_of,
)
from ropewalk.diagnosis.spelling import at
from ropewalk.frequencies.scaling import SERVED_LENGTH_KEY, TRAINED_LENGTH_KEY

#: scalings that cover trained length x factor, and are the same for every length of the sequence
STATIC = ("yarn", "linear")
#: lengths that differ by at most this share count as equal, since configs round lengths and factors
SAME_LENGTH = 0.02
#: the trained length in the scaling of every Llama
LLAMA3_LENGTH = 8192
#: the alpha of every HunYuan of the families that the row names
ALPHA = 1000.0


def covered(case: Examination) -> float | None:
    """Return the longest length, in tokens, that the config's rope was made for; None if the config
    does not say it.
    """
    kind, factor, trained = case.rope_type, case.factor, case.trained
    if kind == "yarn" and factor and (length := trained or case.served):
        return length * factor  # the served length is taken for a trained one that is missing
    if kind == "linear" and factor and case.served:
        # the served length may be the trained one, or that times the factor; without a trained
        # length, given or published, it is taken for the trained one
        return (trained or published_trained_length(case) or case.served) * factor
    # Llama 3.1 serves twice the trained length x factor, Llama 3.2 half of it, so the larger of the
    # two counts
    if kind == "llama3" and factor and trained:
        return max(case.served or 0, trained * factor)
    # others are made for the length that they serve; callers treat dynamic, which has no end,
    # themselves
    return case.served


def length_key(case: Examination) -> str:
    """Return the key of the config's served length; the usual key if it has none."""
    return next((k for k in keys.LENGTH_KEYS if case.text.get(k) is not None), SERVED_LENGTH_KEY)


@finder
def trained_length_missing(case: Examination, row: Mistake) -> Facts | None:
    """Find a scaling without the trained length, for which the served one is then taken; `keys` has
    the scalings. The trained length to write is a published one, or served length / factor.
    """
    # a trained length that the class gives is not missing
    if case.trained is not None or TRAINED_LENGTH_KEY in case.family.defaults:
        return None
    for place, rope in case.ropes():
        if type_of(rope) in row.keys:
            new, factor = published_trained_length(case), positive(rope.get("factor"))
            # the factor of LongRoPE is served / trained length, and is for nothing else
            longrope = type_of(rope) in ("longrope", "su")
            exact = case.served / factor if factor and case.served else 0.0
            if new is None and longrope and 0 < exact < (case.served or 0):
                new = int(exact) if exact.is_integer() else None
            elif new is None and type_of(rope) == "yarn" and factor:
                new = published_start(case, factor, exact)
            # the served length is taken for one that is missing: nothing to write if they are
            # equal, unless the served length is to be raised to the length in use
            same = new is not None and new == case.served and (case.length or 0) <= new
            return {
                "key": at(place, TRAINED_LENGTH_KEY),
                "value": None,
                "new": new,
                "served": case.served,
                "holder": rope,
                "name": TRAINED_LENGTH_KEY,
                "fixable": new is not None and not same,
                "type": type_of(rope),
            }
    return None


@finder
def lengths_swapped(case: Examination, row: Mistake) -> Facts | None:
    """Find a trained length above the served one or, with llama3, equal to it; `keys` has the
    scalings. The two are exchanged only if the shorter times the factor is the longer.
    """
    trained, served, factor = case.trained, case.served, case.factor
    if not trained or not served or trained < served or case.rope_type not in row.keys:
        return None
    # right all the same: a Llama that serves less than it was trained with keeps its scaling
    if case.rope_type == "llama3" and trained == LLAMA3_LENGTH:
        return None
    # engines multiply the served length by YaRN's factor themselves, so equal lengths may be meant
    if trained == served and case.rope_type != "llama3":
        return None
    # the published model with this rope serves more: `served_length_lowered` is about it
    if trained == served and native_length(case) is not None:
        return None
    is_swap = (
        factor is not None
        and factor > 1
        and math.isclose(served * factor, trained, rel_tol=SAME_LENGTH)
    )
    return {"key": TRAINED_LENGTH_KEY, "value": trained, "served": served, "fixable": is_swap}


@repair
def swap_lengths(case: Examination, row: Mistake, facts: Facts) -> None:
    """Exchange the trained and the served length."""
    for _, holder in case.places():
        if holder.get(TRAINED_LENGTH_KEY) == facts["value"]:
            holder[TRAINED_LENGTH_KEY] = facts["served"]
    case.text[length_key(case)] = facts["value"]


@finder
def multiplied_twice(case: Examination, row: Mistake) -> Facts | None:
    """Find a served length that is the trained one times the square of the factor, with YaRN or
    linear. With linear the trained length must be that of a published model, since the length in
    the config may be the trained one or that times the factor. With llama3, which need not end at
    trained length x factor, find the published served length times the factor.
    """
    trained, served, factor = case.trained, case.served, case.factor or 0
    if case.rope_type == "linear":
        trained = published_trained_length(case)
    if case.rope_type not in ("yarn", "linear", "llama3") or not trained or not served:
        return None
    reached = native_length(case) if case.rope_type == "llama3" else round(trained * factor)
    if (
        factor <= 1
        or not reached
        or not math.isclose(served, reached * factor, rel_tol=SAME_LENGTH)
    ):
        return None
    return {
        "key": length_key(case),
        "value": served,
        "new": reached,
        "product": f"{reached:,} x {factor:g}",
        "holder": case.text,
        "name": length_key(case),
        # the factor may be wrong instead, and should be its square, unless the length that it
        # reaches is a published one
        "fixable": any(reached in each["lengths"] for each in rows_of_any_length(case)),
    }


@finder
def factor_too_small(case: Examination, row: Mistake) -> Facts | None:
    """Find a served length that trained length x factor does not reach, with YaRN or linear. With
    linear the trained length must be that of a published model, since the length in the config may
    be the trained one or that times the factor.

    A row with "axes" in `names` is for ropes whose pairs are split among the axes of images and
    videos, any other row for the rest.
    """
    trained, served, factor = case.trained, case.served, case.factor
    # for these ropes the mistake is only a note: positions of images and videos grow slower than
    # tokens
    axes = any(rope.get(key) is not None for _, rope in case.ropes() for key in keys.SECTION_KEYS)
    if axes != ("axes" in row.names):
        return None
    if case.rope_type == "linear":
        trained = published_trained_length(case)
    if case.rope_type not in STATIC or not trained or not served or not factor:
        return None
    if served <= trained * factor * (1 + SAME_LENGTH):
        return None
    ratio = served / trained
    rope = case.flat()
    # the factor itself is wrong if it is 1, has a zero too few, or stands beside the trained length
    # of a published model with a scaling; otherwise a length may be wrong in its place
    tens = any(math.isclose(ratio, factor * 10**power) for power in (1, 2))
    # known: a published model of these sizes has a scaling; stated: one has this very factor
    known = any("scaling" in each for each in rows_of(case))
    stated = any(each.get("scaling", {}).get("factor") == factor for each in rows_of(case))
    decided = factor == 1 or tens or (known and published_trained_length(case) == trained)
    return {
        "key": "factor",
        "value": factor,
        "new": ratio,
        "covered": round(trained * factor),
        "served": served,
        "trained": trained,
        "holder": rope,
        "name": "factor",
        # a ratio that is no whole number may as well come from a wrong length; a published trained
        # length that differs from the config's must be written first
        "fixable": rope is not None
        and ratio.is_integer()
        and decided
        and not stated  # the length is wrong, not the factor
        and published_trained_length(case) in (None, trained),
    }


@repair
def put_factor(case: Examination, row: Mistake, facts: Facts) -> None:
    """Write the factor for the served length."""
    facts["holder"][facts["name"]] = facts["new"]


@finder
def factor_too_large(case: Examination, row: Mistake) -> Facts | None:
    """Find a factor of YaRN that reaches farther than the served length and the length in use. A
    row with "far" in `names`, a warning, is for lengths that tell another factor; any other row, a
    note, for the rest, where the factor may have been chosen larger than needed.
    """
    trained, served, factor = case.trained, case.served, case.factor
    if case.rope_type != "yarn" or not trained or not served or not factor:
        return None
    # the served length was left at the trained one, which engines multiply by the factor themselves
    if served == trained:
        return None
    served = max(served, case.length or 0)
    if trained * factor <= served * (1 + SAME_LENGTH):
        return None
    # far: the lengths tell another factor, since their ratio is a whole number of at most half the
    # factor, and no release has this length or a scaling
    ratio = served / trained
    far = ratio >= 2 and ratio.is_integer() and factor >= 2 * ratio
    rows = rows_of_any_length(case)
    far = far and not any("scaling" in each or served in each["lengths"] for each in rows)
    if far != ("far" in row.names):
        return None
    return {
        "key": "factor",
        "value": factor,
        "covered": round(trained * factor),
        "served": served,
        "trained": trained,
        "ratio": ratio,
    }


@finder
def trained_length_is_served(case: Examination, row: Mistake) -> Facts | None:
    """Find a scaling whose trained length is the served one, unless the model was published with
    that trained length: the longer length may have been written for both. `keys` has the scalings.
    """
    trained, factor = case.trained, case.factor or 1.0  # LongRoPE needs no factor
    if case.rope_type not in row.keys or not trained or trained != case.served:
        return None
    # YaRN with a factor of 1 scales nothing
    if (factor <= 1 and case.rope_type == "yarn") or published_trained_length(case) == trained:
        return None
    return {"key": TRAINED_LENGTH_KEY, "value": trained, "factor": factor}


@finder
def alpha_missing(case: Examination, row: Mistake) -> Facts | None:
    """Find the dynamic scaling with the factor 1 and without alpha, in a family that was published
    with both; `keys` has the beginnings of the model types whose models all have the alpha ALPHA.
    """
    if "alpha" not in case.family.reads or case.rope_type != "dynamic":
        return None
    # the published configs have the factor 1 beside alpha
    if case.get("alpha") is not None or case.factor != 1:
        return None
    alphas = {each["alpha"] for each in rows_of(case) if "alpha" in each}
    if str(case.model_type).startswith(row.keys):
        alphas.add(ALPHA)
    place, rope = case.ropes()[0]
    facts = {"key": at(place, "alpha"), "value": None, "factor": case.factor}
    facts |= {"model": case.model_type}
    facts |= {"new": min(alphas, default=None), "holder": rope, "name": "alpha"}
    return {**facts, "fixable": len(alphas) == 1}  # one alpha is published


@finder
def served_beyond_scaling(case: Examination, row: Mistake) -> Facts | None:
    """Find a length in use that the scaling does not cover. The repair raises the factor of YaRN or
    linear, which follows from the lengths; that of other scalings does not.
    """
    reach = covered(case)
    if case.length is None or reach is None or case.rope_type == "default":
        return None
    # dynamic has no end: theta grows with the sequence
    if case.rope_type == "dynamic" or case.length <= reach * (1 + SAME_LENGTH):
        return None
    trained, rope = case.trained, case.flat()
    known, kind = published_trained_length(case), case.rope_type
    trained = known if kind == "linear" and trained is None else trained
    # a published trained length that differs from the config's must be written first
    can = kind in STATIC and trained is not None and known in (None, trained)
    can = can and case.factor is not None
    return {
        "key": "factor",
        "value": case.factor,
        "length": case.length,
        "covered": round(reach),
        "type": case.rope_type,
        "trained": trained,
        "fixable": can and rope is not None,
        # keys that the repair changes with the factor
        "follows": ("attention_factor", *keys.LENGTH_KEYS),
        "holder": rope,
        "new": case.length / trained if trained else None,
    }


def magnitude(factor: float) -> float:
    """Return the magnitude, by which cos and sin are multiplied, that YaRN has for a factor."""
    return 0.1 * math.log(factor) + 1.0


@repair
def raise_factor(case: Examination, row: Mistake, facts: Facts) -> None:
    """Write the factor for the length in use. That length becomes the served one too, unless the
    config's served length is the trained one, which engines multiply by the factor.
    """
    rope = facts["holder"]
    # an attention_factor that states the formula's magnitude gets that of the new factor
    given = positive(rope.get("attention_factor"))
    if given is not None and math.isclose(given, magnitude(facts["value"]), rel_tol=1e-6):
        rope["attention_factor"] = magnitude(facts["new"])
    rope["factor"] = facts["new"]
    if case.served != facts["trained"]:
        case.text[length_key(case)] = facts["length"]


@finder
def served_beyond_training(case: Examination, row: Mistake) -> Facts | None:
    """Find a length in use beyond the served length of a config without a scaling."""
    if case.length is None or case.served is None or case.length <= case.served:
        return None
    # a repair may have extended the rope that far already, or there may be an unread scaling
    if case.rope_type != "default" or case.length <= case.reaches or not _types_are_given(case):
        return None
    # the published scaling is lost, or no scaling is read: later rows say so
    if scaling_lost(case, row) is not None or _is_fixed(case):
        return None
    trained = published_trained_length(case) or case.served
    family, nested = case.family, any("." in place for place, _ in case.ropes())
    # can, plain: YaRN can be written for one rope that rotates whole heads, in a family that reads
    # "yarn" as YaRN, and not as another name in `renamed`
    can = family.known and not (family.only_default or family.layer_thetas or nested)
    can = can and "yarn" not in family.renamed
    # a theta of another release may be the mistake, and not the length
    thetas = published_theta(case)
    can = can and (not thetas or theta_of(case) in thetas)
    specs = case.specs()
    plain = specs is not None and all(s is None or s.rotary_dim is None for s in specs.values())
    return {
        "key": "rope_scaling",
        "value": None,
        "length": case.length,
        "trained": trained,
        "served": case.served,
        "factor": case.length / trained,
        "fixable": can and plain,
    }


def _is_fixed(case: Examination) -> bool:
    """Return whether the code of this family reads no scaling."""
    return _fixed(case) is not None


def _fixed(case: Examination) -> str | None:
    """Return what a family whose code reads no scaling has instead of one, in words; None for any
    other family.
    """
    named = (row.names for row in mistakes() if row.find == "rope_of_fixed_family")
    return next((names[kind] for names in named if (kind := str(case.model_type)) in names), None)


@finder
def length_beyond_positions(case: Examination, row: Mistake) -> Facts | None:
    """Find a length in use beyond the served length of a family whose code reads no scaling."""
    has = _fixed(case)
    if has is None or case.length is None or case.served is None or case.length <= case.served:
        return None
    facts = {"key": length_key(case), "value": case.served, "length": case.length, "has": has}
    return {**facts, "model": case.model_type}


@finder
def served_length_raised(case: Examination, row: Mistake) -> Facts | None:
    """Find a served length beyond all that a model was published with, with its theta and without a
    scaling. The repair writes YaRN for the length in use, if that is beyond them too.
    """
    trained, served = published_trained_length(case), case.served
    theta = theta_of(case)
    rows = [each for each in rows_of(case) if theta in each["theta"]]
    if (
        theta is None
        or not rows
        or not trained
        or not served
        or case.rope_type != "default"
        or case.reaches  # a repair has extended the rope already
    ):
        return None
    # a model that was published with a scaling says less of a config without one
    rows = [each for each in rows if "scaling" not in each] or rows
    longest = max(max(each["lengths"]) for each in rows)
    if served <= longest * (1 + SAME_LENGTH) or not _types_are_given(case):
        return None
    # a theta above that of another release may have been chosen for longer texts, and so may one
    # under a name that is not read
    names = [key for key in case.text if key in keys.THETA_KEYS or meaning(key) == "rope_theta"]
    unread = any(case.text[name] not in (None, theta) for name in names)
    if unread or any(theta > max(each["theta"]) for each in rows_of_any_length(case)):
        return None
    length = case.length or 0
    family = case.family
    # the family reads "yarn" as YaRN, and has one rope for all layers
    can = family.known and not (
        family.only_default or family.layer_thetas or "yarn" in family.renamed
    )
    return {
        "key": length_key(case),
        "value": served,
        "trained": trained,
        "longest": longest,
        "model": next(each["name"] for each in rows if longest in each["lengths"]),
        "type": rows[0].get("scaling", {}).get("rope_type", "default"),
        "length": length,
        "factor": length / trained,
        "fixable": can and length > longest,
    }


@repair
def add_yarn(case: Examination, row: Mistake, facts: Facts) -> None:
    """Add YaRN from the trained length to the length in use, which becomes the served one too."""
    yarn = {"rope_type": "yarn", "factor": facts["factor"], TRAINED_LENGTH_KEY: facts["trained"]}
    v5, v4 = case.text.get("rope_parameters"), case.text.get("rope_scaling")
    rope: dict[str, Any] = {}  # a config without a rope object gets rope_scaling
    if isinstance(v5, dict) and v5:
        rope = v5
    elif isinstance(v4, dict):
        rope = v4
    rope.pop("type", None)  # the older name of rope_type may name another scaling
    rope.update(yarn)
    if rope is not v5:
        case.text["rope_scaling"] = rope
    case.text[length_key(case)] = facts["length"]


def _types_are_given(case: Examination) -> bool:
    """Return whether every rope object with keys of a scaling names it. If one does not, or is
    called default beside a factor, a scaling may have been meant that is not read, and a length in
    the config may be what it was to reach.
    """
    # keys that ropes without a scaling have too
    free = {*keys.COMMON_KEYS, *keys.AXIS_KEYS, *keys.OTHER_KEYS}
    for _, rope in case.ropes():
        # a factor of 1 scales nothing
        given = {key for key, value in rope.items() if (key, value) != ("factor", 1)} - free
        kind = type_of(rope)
        if given and (kind is None or (kind == "default" and rope.get("factor") is not None)):
            return False
    return True


@finder
def served_length_lowered(case: Examination, row: Mistake) -> Facts | None:
    """Find a length in use beyond the served one, where the published model with the same rope
    serves that length. A row with scalings in `keys` is for a served length that is the trained
    length of such a scaling and below the published one, whatever the length in use.
    """
    native, served = native_length(case), case.served
    if native is None or served is None:
        return None
    if row.keys:
        if case.rope_type not in row.keys or not case.trained == served < native:
            return None
        # another release of these sizes serves this length
        if any(served in each["lengths"] for each in rows_of_any_length(case)):
            return None
    elif case.length is None or not served < case.length <= native * (1 + SAME_LENGTH):
        return None
    facts = {"key": length_key(case), "value": served, "new": native, "length": case.length}
    model = next(
        r["name"] for r in rows_of_any_length(case) if native in (*r["lengths"], r.get("trained"))
    )
    facts |= {"model": model, "holder": case.text, "name": length_key(case)}
    return facts


@finder
def longrope_length(case: Examination, row: Mistake) -> Facts | None:
    """Find LongRoPE with a served length below that of the published model with the same rope, where
    the magnitude follows from the served length.
    """
    native, served, key = native_length(case), case.served, length_key(case)
    if case.rope_type != "longrope" or not native or not served or served >= native:
        return None
    if any(served in each["lengths"] for each in rows_of_any_length(case)):
        return None
    now, new = (
        {spec.scaling.magnitude_at() for spec in (specs or {}).values() if spec is not None}
        for specs in (case.specs(), specs_of(case.with_(lambda text: text.update({key: native}))))
    )
    # equal where the config gives the factor or the magnitude itself
    if now == new or not len(now) == len(new) == 1:
        return None
    facts = {"key": key, "value": served, "new": native, "holder": case.text, "name": key}
    facts |= {"before": f"{new.pop():.4g}", "after": f"{now.pop():.4g}"}
    rows = [each for each in rows_of_any_length(case) if native in each["lengths"]]
    return {**facts, "model": rows[0]["name"]} if rows else None


@finder
def dynamic_length_raised(case: Examination, row: Mistake) -> Facts | None:
    """Find dynamic NTK whose max_position_embeddings, beyond which its theta grows, is the longer
    length and not the trained one.
    """
    # the code of dynamic reads this key alone, so no other name of the served length counts
    served, known = whole(case.text.get(SERVED_LENGTH_KEY)), published_trained_length(case)
    rows, theta = rows_of(case), theta_of(case)
    own = [each for each in rows if theta in each["theta"]]
    # a model that was published with dynamic NTK: its served length is the one that theta grows from
    dynamic = [max(r["lengths"]) for r in own if r.get("scaling", {}).get("rope_type") == "dynamic"]
    trained = case.trained or known or max(dynamic, default=None)
    if case.rope_type != "dynamic" or case.get("alpha") is not None or not served or not trained:
        return None
    if served <= trained or known not in (None, trained):
        return None
    # a release with this theta has another scaling, or serves this length: it may be published so
    kinds = {each.get("scaling", {}).get("rope_type", "dynamic") for each in own} - {"dynamic"}
    if kinds or any(served in each["lengths"] for each in own):
        return None
    facts = {"key": SERVED_LENGTH_KEY, "value": served, "new": trained}
    return {**facts, "holder": case.text, "name": SERVED_LENGTH_KEY}


@finder
def length_follows(case: Examination, row: Mistake) -> Facts | None:
    """Find nothing: `serve` is called after all repairs, and tells of a length that it raised."""
    return None


def serve(case: Examination, before: dict) -> Facts | None:
    """Raise the served length to the length in use, if a repair wrote a YaRN that covers it, and
    return the facts about it; None if it stays. Engines do not start for more than the config's own
    length. `before` is the config without repairs.
    """
    reach, served, length = covered(case), case.served, case.length
    if case.rope_type != "yarn" or not reach or not served or length is None:
        return None
    # ropes that no repair has changed: their YaRN is the author's own, with its served length
    unrepaired = Examination(copy.deepcopy(before))
    same = [rope for _, rope in unrepaired.ropes()] == [rope for _, rope in case.ropes()]
    if same and unrepaired.rope_type == case.rope_type:
        return None
    # without a trained length the served one is taken for it, and must stay
    if not case.trained or not max(served, case.trained) < length <= reach * (1 + SAME_LENGTH):
        return None
    name = length_key(case)
    case.text[name] = length
    return {"key": name, "value": served, "new": length, "absent": False}


@finder
def short_under_yarn(case: Examination, row: Mistake) -> Facts | None:
    """Find YaRN where the length in use is at most the trained length."""
    trained, factor = case.trained, case.factor
    if case.length is None or case.rope_type != "yarn" or not trained or not factor:
        return None
    if case.length > trained or factor <= 1:
        return None
    return {
        "key": "rope_type",
        "value": "yarn",
        "length": case.length,
        "trained": trained,
        "factor": factor,
    }


@finder
def dynamic_without_length(case: Examination, row: Mistake) -> Facts | None:
    """Find dynamic NTK without max_position_embeddings, the length beyond which its theta grows."""
    # with alpha, theta does not depend on the length; some families read no scaling at all
    if case.rope_type != "dynamic" or case.get("alpha") is not None or _is_fixed(case):
        return None
    if case.text.get(SERVED_LENGTH_KEY) is not None:
        return None
    new = case.trained or case.served
    return {
        "key": SERVED_LENGTH_KEY,
        "value": None,
        "new": new,
        "holder": case.text,
        "name": SERVED_LENGTH_KEY,
        "fixable": new is not None,
    }


@finder
def factor_missing(case: Examination, row: Mistake) -> Facts | None:
    """Find a scaling without its factor; `keys` has the scalings. The factor to write is served
    length / trained length, where the length in use, if it is given, counts as the served one. It
    is written for YaRN and, if the length in use is given, for linear and dynamic.
    """
    for place, rope in case.ropes():
        if read_type(case, rope) not in row.keys or rope.get("factor") is not None:
            continue
        if rope.get("alpha") is not None:  # it takes the place of the factor
            continue
        kind, served = type_of(rope), case.length or case.served
        trained = case.trained or published_trained_length(case)
        # the length in use is to be reached from the config's own, if no other is known
        if case.length and kind != "llama3" and trained is None:
            trained = case.served
        ratio = served / trained if served and trained else None
        # the ratio is what YaRN's code takes; Llama 3 has another factor than its ratio. With
        # linear and dynamic the config's own length may be the trained one, so only the length in
        # use tells how far to extend
        can = kind in ("yarn", "linear", "dynamic") and ratio is not None and ratio > 1
        can = can and (kind == "yarn" or case.length is not None)
        # a published model may serve more than its trained length without a scaling (Qwen3: 40,960
        # after 32,768): only a whole ratio tells a factor
        can = can and (
            case.length is not None or float(ratio or 0).is_integer() or not rows_of(case)
        )
        return {
            "key": at(place, "factor"),
            "value": None,
            "new": ratio,
            "fixable": can,
            "holder": rope,
            "name": "factor",
            "type": type_of(rope),
        }
    return None


@finder
def alpha_of_dynamic(case: Examination, row: Mistake) -> Facts | None:
    """Find alpha beside another scaling than dynamic, which alone reads it, in a family whose
    published models have both.
    """
    rope = case.flat()
    if "alpha" not in case.family.reads or rope is None or positive(rope.get("alpha")) is None:
        return None
    if (kind := read_type(case, rope)) in (None, "dynamic"):
        return None
    name = "rope_type" if rope.get("rope_type") is not None else "type"
    facts = {"key": at(case.ropes()[0][0], name), "value": kind, "new": "dynamic", "name": name}
    return {**facts, "holder": rope, "alpha": rope["alpha"]}


@finder
def alpha_unread(case: Examination, row: Mistake) -> Facts | None:
    """Find alpha in place of the factor of dynamic, in a family that does not read alpha."""
    if "alpha" in case.family.reads or case.rope_type != "dynamic" or not case.family.known:
        return None
    for place, rope in case.ropes():
        if positive(rope.get("alpha")) and rope.get("factor") is None:
            return {"key": at(place, "alpha"), "value": rope["alpha"], "model": case.model_type}
    return None


@finder
def attends_far_by_window(case: Examination, row: Mistake) -> Facts | None:
    """Find a length in use beyond the sliding window, if all layers of the config have it."""
    window = positive(case.text.get("sliding_window"))
    if case.length is None or window is None or case.text.get("use_sliding_window") is False:
        return None
    types = case.text.get("layer_types")
    if not isinstance(types, list) or not types or case.length <= window:
        return None
    if any(each != "sliding_attention" for each in types):
        return None
    return {"key": "sliding_window", "value": int(window), "length": case.length}
