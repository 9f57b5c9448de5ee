"""Mistakes of spelling: strings in place of numbers, wrong names of keys and of scalings.

A finder looks for one mistake in the config `case` and returns the facts about it, or None. The
facts `key` and `value` are reported, most repairs write `new` at `holder[name]`, and other facts
are for the texts of the row or for its repair. With `fixable` False the config does not say what
was meant: the mistake is reported, and no repair is made. `row` is the row of mistakes.toml that
names the finder, with the `keys` or `names` that it looks for; several rows may name one finder.

Words of this module:
  place      where a rope object is in the config, such as "rope_scaling" or, with a rope for each
             layer type, "rope_parameters.full_attention"; "" is `case.text`
  case.text  the dict of the keys that the text model reads: the text part of the config, or the
             whole config if it has no parts
  holder     the dict at a place; `case.places()` has all ropes and `case.text`, `case.ropes()` the
             ropes alone. `at` joins a place and a key for the report
  type       the name of the scaling, such as "yarn", under the key rope_type or its older name
             `type`; `read_type` is the type that the family's code takes it for
  family     what the code of this model type fixes. In `renamed`, {standard key: its name here}
             and {rope_type in a config: the scaling that this code takes it for}; `known` is False
             for a model type that is in no table
  own_code   whether code beside the weights reads the config, which may have scalings of its own
  meaning    what a key of another stack, such as llama.cpp, is called in transformers
  rows_of    gives rows of published.json: the published models of the config's sizes
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable
from typing import Any

from ropewalk.config import keys
from ropewalk.config.checks import CONFIG_CHECKS
from ropewalk.config.normal import NAMES
from ropewalk.diagnosis.aliases import meaning, scalings
from ropewalk.diagnosis.case import (
    OBJECT_KEYS,
    Examination,
    Facts,
    layers_of,
    number_of,
    positive,
    read_type,
    type_of,
    whole,
)
from ropewalk.diagnosis.mistakes import Mistake, finder, mistakes, repair
from ropewalk.diagnosis.published import rows_of
from ropewalk.frequencies.formulas import ntk_theta
from ropewalk.frequencies.scaling import SERVED_LENGTH_KEY, TRAINED_LENGTH_KEY

#: the words of Python for those of JSON
PYTHON = {"True": "true", "False": "false", "None": "null"}
#: texts that people write for null, in small letters
NULLS = ("null", "none", "nil", "nan", "")
#: the key of the name of a scaling, and its older name
TYPE_KEYS = ("rope_type", "type")
#: keys whose values are integers
INTEGERS = (
    TRAINED_LENGTH_KEY,
    SERVED_LENGTH_KEY,
    *keys.LENGTH_KEYS,
    "rotary_dim",
    *keys.HEAD_DIM_KEYS,
    keys.LATENT_KEY,
    *keys.HIDDEN_SIZE_KEYS,
    *keys.HEAD_COUNT_KEYS,
    *keys.LAYER_COUNT_KEYS,
    "num_key_value_heads",
)
#: right names of other sizes, which are no misspelled rotary keys, though they are near to some
SIZES = ("qk_nope_head_dim", "qk_head_dim", "v_head_dim", "num_layers")
#: each entry has all names of one size
ALIASES = (
    keys.LENGTH_KEYS,
    keys.HEAD_DIM_KEYS,
    keys.HIDDEN_SIZE_KEYS,
    keys.HEAD_COUNT_KEYS,
    keys.LAYER_COUNT_KEYS,
)
#: the least likeness, by difflib, of a misspelled word and the one that was meant: for a key of a
#: rope; for a key of the config itself, which has many other keys; for a scaling, whose names are
#: short
LIKENESS, LIKENESS_OUTSIDE, LIKENESS_OF_TYPES = 0.8, 0.83, 0.75
#: what may stand before the name of a key of a rope
PREFIX = re.compile(r"^(rope|rope_scaling|scaling|yarn|llama3|longrope)_")
#: scalings that a factor alone may describe, or a factor and keys with usual values
SCALINGS = ("linear", "dynamic", "yarn", "llama3")
#: a letter after a number multiplies it by this power of 1024 in an integer key, of 1000 in others
LETTERS = {"k": 1, "m": 2}


def rotary_keys(case: Examination, place: str) -> set[str]:
    """Return the keys that have to do with the rotation: those of a rope object at `place`, or with
    a place of "" those of the config itself.
    """
    return keys.inner_keys() if place else {*CONFIG_CHECKS, *OBJECT_KEYS}


def at(place: str, key: str) -> str:
    """Return the path of a key inside the object at `place`; the key alone if that is ""."""
    return f"{place}.{key}" if place else key


@finder
def given_twice(case: Examination, row: Mistake) -> Facts | None:
    """Find a key that has to do with the rope and that the file has twice or more in one object."""
    for key, values in case.duplicates.items():
        if key in {*keys.inner_keys(), *CONFIG_CHECKS, *OBJECT_KEYS}:
            return {"key": key, "values": values, "value": values[-1]}
    return None


@repair
def keep_last(case: Examination, row: Mistake, facts: Facts) -> None:
    """Keep the last value, as JSON readers do that accept the file: the config has it already, so
    only the record of the other values is removed.
    """
    del case.duplicates[facts["key"]]


@finder
def null_as_text(case: Examination, row: Mistake) -> Facts | None:
    """Find a text that stands for null."""
    for place, holder in case.places():
        for key in sorted(rotary_keys(case, place) & holder.keys()):
            value = holder[key]
            nulls = ("",) if key in TYPE_KEYS else NULLS  # "none" as a type means an unscaled rope
            if isinstance(value, str) and value.strip().lower() in nulls:
                return {"key": at(place, key), "name": key, "value": value, "holder": holder}
    return None


@repair
def remove(case: Examination, row: Mistake, facts: Facts) -> None:
    """Remove a key; a rope object in `case.text` becomes null instead, as in configs without a
    scaling.
    """
    if facts["name"] in OBJECT_KEYS and facts["holder"] is case.text:
        facts["holder"][facts["name"]] = None
    else:
        del facts["holder"][facts["name"]]


@finder
def object_as_text(case: Examination, row: Mistake) -> Facts | None:
    """Find a rope object that is written as a text: of JSON, or of a dict as Python prints it."""
    for key in OBJECT_KEYS:
        value = case.text.get(key)
        if isinstance(value, str) and len(value) < 1 << 16:  # a longer text is no rope
            read = _parsed(value)
            if isinstance(read, dict):
                return {"key": key, "value": value, "new": read, "holder": case.text, "name": key}
    return None


def _parsed(text: str) -> Any:
    """Return what a text of JSON holds, or of a dict as Python prints it; None if it is neither."""
    printed = re.sub(r"\b(True|False|None)\b", lambda word: PYTHON[word[0]], text)
    for each in (text, printed.replace("'", '"')):
        try:
            return json.loads(each)
        except (ValueError, RecursionError):
            continue
    return None


@finder
def not_an_object(case: Examination, row: Mistake) -> Facts | None:
    """Find a value in place of a rope object that is neither an object nor null. What it can mean
    is no scaling, a scaling and its factor, or the name of a scaling alone.
    """
    for key in OBJECT_KEYS:
        value = case.text.get(key)
        if value is not None and not isinstance(value, dict):
            empty = not value  # false, 0 and [] can only mean that there is no scaling
            new = None if empty else _listed(value) or _named(case, value)
            facts = {"key": key, "value": value, "fixable": empty or new is not None, "new": new}
            facts |= {"holder": case.text, "name": key, "words": json.dumps(new)}
            return facts
    return None


def _listed(value: Any) -> dict[str, Any] | None:
    """Return the rope object that a list of the name of a scaling and its factor means, or a text
    of both such as "linear:4"; None if the value is neither.
    """
    parts = re.split(r"[\s:=,x]+", value) if isinstance(value, str) else value
    if not isinstance(parts, list) or len(parts) != 2:
        return None
    names = [kind for each in parts if isinstance(each, str) and (kind := scaling_called(each))]
    factors = [
        n for x in parts if (n := _number(x, "factor") if isinstance(x, str) else number_of(x))
    ]
    # an unscaled rope has no factor, and a factor of 1 or less extends nothing
    fits = len(names) == len(factors) == 1 and names[0] != "default" and factors[0] > 1
    return {"rope_type": names[0], "factor": float(factors[0])} if fits else None


def _named(case: Examination, value: Any) -> dict[str, Any] | None:
    """Return the rope object that the bare name of one of SCALINGS means, if the config itself has
    the factor, which another row moves into the object; else None.
    """
    kind = scaling_called(value) if isinstance(value, str) else None
    return {"rope_type": kind} if kind in SCALINGS and positive(case.text.get("factor")) else None


@repair
def put(case: Examination, row: Mistake, facts: Facts) -> None:
    """Write the new value of a key."""
    facts["holder"][facts["name"]] = facts["new"]


@finder
def number_as_text(case: Examination, row: Mistake) -> Facts | None:
    """Find a number, or numbers of a list, written as text, at one of the `keys` of the row."""
    for place, holder in case.places():
        for key in (key for key in row.keys if key in holder):
            value = holder[key]
            many = value if isinstance(value, list) else [value]
            texts = [each for each in many if isinstance(each, str)]
            if texts and all(_number(each, key) is not None for each in texts):
                new = [_number(each, key) if isinstance(each, str) else each for each in many]
                new = new if isinstance(value, list) else new[0]
                facts = {"key": at(place, key), "value": texts[0], "new": new}
                return {**facts, "holder": holder, "name": key}
    return None


def _number(text: str, key: str) -> float | int | None:
    """Return the number that a text at `key` means, such as "8,192", "32k", "4x" of a factor or
    "25%" of a fraction; None if it means none, or 0.
    """
    digits = re.sub(r"[\s_]", "", text.lower())
    # a comma before three digits divides thousands, any other is a decimal point
    digits = re.sub(r",(?=\d{3}(\D|$))", "", digits).replace(",", ".")
    if key == "factor":
        digits = digits.strip("x")
    if key in keys.FRACTION_KEYS and digits.endswith("%"):
        digits = f"{digits[:-1]}e-2"
    power = LETTERS.get(digits[-1:], 0)
    unit = (1024 if key in INTEGERS else 1000) ** power
    try:
        value = float(digits[:-1] if power else digits) * unit
    except ValueError:
        return None
    if positive(abs(value)) is None:  # 0, NaN or infinity
        return None
    return int(value) if key in INTEGERS and value.is_integer() else value


@finder
def flag_as_text(case: Examination, row: Mistake) -> Facts | None:
    """Find a text or a number in place of true or false, at one of the `keys` of the row."""
    meant = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}
    for place, holder in case.places():
        for key in (key for key in row.keys if key in holder):
            value = holder[key]
            new = meant.get(str(value).strip().lower())
            if not isinstance(value, bool) and new is not None:
                facts = {"key": at(place, key), "value": value, "new": new}
                return {**facts, "holder": holder, "name": key}
    return None


@finder
def length_as_float(case: Examination, row: Mistake) -> Facts | None:
    """Find an integer that is written with a decimal point, such as 8192.0, or a list with such
    integers, at one of the `keys` of the row.
    """
    for place, holder in case.places():
        for key in (key for key in row.keys if key in holder):
            value = holder[key]
            many = value if isinstance(value, list) else [value]
            if not all(positive(each) and float(each).is_integer() for each in many):
                continue
            if any(isinstance(each, float) for each in many):
                new = [int(each) for each in many]
                new = new if isinstance(value, list) else new[0]
                facts = {"key": at(place, key), "value": value, "new": new}
                return {**facts, "holder": holder, "name": key}
    return None


def _has_keys_of(rope: dict[str, Any], kind: str, other: str) -> bool:
    """Return whether a rope has keys that the scaling `kind` reads and `other` does not, and none
    that `other` reads and `kind` does not.
    """
    types = keys.rope_types()
    if kind not in types:
        return False
    # a factor of 1 changes nothing
    given = {
        key for key, value in rope.items() if value is not None and (key, value) != ("factor", 1)
    }
    own, others = (
        given & keys.keys_of(types[n]).keys() if n in types else set() for n in (kind, other)
    )
    return bool(own - others) and not others - own


@finder
def type_contradicts(case: Examination, row: Mistake) -> Facts | None:
    """Find `type` and `rope_type` in one rope that name two scalings; the fact `key` is the one to
    remove.
    """
    for place, rope in case.ropes():
        new, old = rope.get("rope_type"), rope.get("type")
        if isinstance(new, str) and isinstance(old, str):
            same = {**keys.ROPE_TYPE_ALIASES, **case.family.renamed}  # {name: what it means here}
            if same.get(new, new) != same.get(old, old):
                # the key to remove: rope_type only if the other keys are those of `type`
                key = "rope_type" if _has_keys_of(rope, same.get(old, old), new) else "type"
                facts = {
                    "key": at(place, key),
                    "value": rope[key],
                    "other": TYPE_KEYS[key == "rope_type"],  # the one of the two that is kept
                }
                return {**facts, "kept": rope[facts["other"]], "holder": rope, "name": key}
    return None


def plain(name: Any) -> str:
    """Return a name in small letters, without what stands between them."""
    return re.sub(r"[^a-z0-9]", "", str(name).lower())


def nearest(word: str, known: Iterable[str], likeness: float) -> str | None:
    """Return the known word that a misspelled one stands for; None if none is near. Words that
    differ only in capitals and signs are the same, and digits are never misspelled.

    likeness  the least ratio of difflib, from 0 to 1; 1 allows other capitals and signs alone
    """
    names = {plain(each): each for each in sorted(known)}
    own = plain(word)
    near = difflib.get_close_matches(own, names, n=1, cutoff=likeness)
    if not near and likeness < 1:  # the same letters in another order
        near = [each for each in names if sorted(each) == sorted(own)][:1]
    if not near and likeness < 1:  # the beginning of one name, as in "partial_rotary"
        begun = [each for each in names if each.startswith(own)]
        # a single word such as "rope" is too common to be the beginning of a name
        near = begun if len(begun) == 1 and "_" in word else []
    if not near or re.sub(r"\D", "", near[0]) != re.sub(r"\D", "", own):
        return None
    return names[near[0]]


@finder
def type_misspelled(case: Examination, row: Mistake) -> Facts | None:
    """Find a rope_type that is nearly a known one; `names` has {its spelling in small letters
    without signs: rope_type}.
    """
    known = {*keys.rope_types(), *keys.ROPE_TYPE_ALIASES}
    for place, rope in case.ropes():
        for key in TYPE_KEYS:
            name = rope.get(key)
            if name is None or (isinstance(name, str) and name in known):
                continue
            # tried in this order: the name up to capitals and signs, a name near to it without an
            # ending such as "_scaling", and a name near to all of it
            words = re.sub(r"[\W_]*(scal(ed|ing)|rope|type)$", "", str(name).lower())
            tries = ((str(name), 1.0), (words, LIKENESS_OF_TYPES), (str(name), LIKENESS_OF_TYPES))
            near = next(filter(None, (nearest(word, row.names, x) for word, x in tries)), None)
            if near is not None:
                new = row.names[near]
                facts = {"key": at(place, key), "value": name, "new": new}
                return {**facts, "holder": rope, "name": key}
    return None


@finder
def type_is_ntk(case: Examination, row: Mistake) -> Facts | None:
    """Find a rope_type that stands for NTK with a fixed factor, which is a larger theta and no
    scaling of transformers; `names` has such types.
    """
    rope = case.flat()  # None with a rope for each layer type: which theta to raise is not known
    if rope is None or plain(type_of(rope)) not in row.names or case.own_code:
        return None
    factor, theta = positive(rope.get("factor")), positive(case.get("rope_theta"))
    width = case.head_dim
    theta = theta or case.family.default("rope_theta")
    facts: Facts = {"key": "rope_type", "value": type_of(rope), "fixable": False, "new": ""}
    # the formula of the larger theta divides by width - 2
    if factor and factor >= 1 and width and width > 2:
        new = float(ntk_theta(theta, factor, width))
        facts |= {"fixable": True, "new": new, "theta": theta, "factor": factor}
    return facts


@repair
def raise_theta(case: Examination, row: Mistake, facts: Facts) -> None:
    """Write the theta of NTK in place of the scaling: into rope_parameters (transformers 5) if the
    config has them, and outside if it has a theta there or no rope_parameters. A length in use that
    is above the served one and that the larger theta covers becomes the served one.
    """
    for key in OBJECT_KEYS:
        if isinstance(case.text.get(key), dict):
            if key == "rope_parameters":
                case.text[key] = {"rope_type": "default", "rope_theta": facts["new"]}
            else:
                case.text[key] = None
    if case.text.get("rope_theta") is not None or "rope_parameters" not in case.text:
        case.text["rope_theta"] = facts["new"]
    served = case.served
    if served:  # no later repair is to extend the rope up to the length that theta covers
        case.reaches = round(served * facts["factor"])
        if case.length is not None and served < case.length <= case.reaches:
            name = next(key for key in keys.LENGTH_KEYS if whole(case.text.get(key)))
            case.text[name] = case.length


@finder
def type_unknown(case: Examination, row: Mistake) -> Facts | None:
    """Find a rope_type that no scaling has; `names` has {a key that one scaling alone has: that
    scaling}, by which the scaling that was meant is told.
    """
    known = {*keys.rope_types(), *keys.ROPE_TYPE_ALIASES}
    if case.own_code:
        return None
    for place, rope in case.ropes():
        name = type_of(rope)
        if name is not None and not (isinstance(name, str) and name in known):
            meant = {row.names[key] for key in row.names if rope.get(key) is not None}
            # leave out a name that this family takes for another scaling
            new = meant.pop() if len(meant) == 1 and not meant & {*case.family.renamed} else None
            # the report suggests the most similar name, which is too uncertain for a repair
            close = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
            likely = f" (perhaps {close[0]})" if close and new is None else ""
            facts = {"key": at(place, "rope_type"), "value": name, "likely": likely, "new": new}
            facts |= {"name": "rope_type" if rope.get("rope_type") else "type", "holder": rope}
            return {**facts, "fixable": new is not None}
    return None


@finder
def type_refused(case: Examination, row: Mistake) -> Facts | None:
    """Find a scaling that the class of the family refuses; `names` has {model type: the only one
    that it takes}.
    """
    taken = row.names.get(str(case.model_type))
    for place, rope in case.ropes():
        kind = read_type(case, rope)
        if taken is None or kind in (None, "default", taken) or kind not in keys.rope_types():
            continue
        facts = {"key": at(place, "rope_type"), "value": type_of(rope), "taken": taken}
        return {**facts, "model": case.model_type}
    return None


@finder
def only_type(case: Examination, row: Mistake) -> Facts | None:
    """Find the older key `type` without `rope_type`, in a model that reads both; `names` has the
    model types whose own code reads `type` alone.
    """
    if case.model_type in row.names:
        return None
    for place, rope in case.ropes():
        if rope.get("type") is not None and rope.get("rope_type") is None:
            return {"key": at(place, "type"), "value": rope["type"]}
    return None


@finder
def type_missing(case: Examination, row: Mistake) -> Facts | None:
    """Find a rope with the keys of a scaling and without its name; `names` has {such a key: the
    scaling}, and the first that is given decides. If the rope has none of them, such as a factor
    alone, the published scaling is taken if it agrees with all keys that the rope has.
    """
    # keys that an unscaled rope may have too
    free = {*keys.COMMON_KEYS, *keys.AXIS_KEYS, *keys.OTHER_KEYS, TRAINED_LENGTH_KEY}
    for place, rope in case.ropes():
        given = {key for key, value in rope.items() if value is not None}
        if type_of(rope) is None and given - free:
            meant = next((row.names[key] for key in row.names if key in given), None)
            if meant == "yarn" and "yarn" in case.family.renamed:
                meant = None  # this family reads the name "yarn" as another scaling
            known = [each["scaling"] for each in rows_of(case) if "scaling" in each]
            if meant is None and len(known) == 1 and all(known[0].get(k) == rope[k] for k in given):
                meant = known[0]["rope_type"]
            listed = ", ".join(sorted(given - free))
            facts = {"key": at(place, "rope_type"), "given": listed, "value": meant}
            return {
                **facts,
                "new": meant,
                "fixable": bool(meant),
                "holder": rope,
                "name": "rope_type",
            }
    return None


@finder
def type_against_keys(case: Examination, row: Mistake) -> Facts | None:
    """Find the name of a scaling beside keys that only one other scaling has; `names` has {such a
    key: that scaling}.
    """
    for place, rope in case.ropes():
        kind = read_type(case, rope)
        given = {key: row.names[key] for key in row.names if rope.get(key) is not None}
        others = {*given.values()} - {kind}
        if kind not in keys.rope_types() or kind == "default" or len(others) != 1:
            continue
        meant = others.pop()
        # nothing contradicts if the named scaling reads one of these keys too
        if given.keys() & keys.keys_of(keys.rope_types()[kind]).keys():
            continue
        # fixable if all keys that only the meant scaling has are there, and no key that only the
        # named one has
        of_meant = {key for key, scaling in row.names.items() if scaling == meant}
        name = "rope_type" if "rope_type" in rope else "type"
        of_named = keys.keys_of(keys.rope_types()[kind]).keys()
        shared = keys.keys_of(keys.rope_types()[meant]).keys() | keys.COMMON_KEYS
        only_named = {key for key in of_named & rope.keys() if rope[key] is not None} - shared
        # a factor, which most scalings have, does not tell the named one
        fits = of_meant <= given.keys() and not only_named - {"factor"}
        facts = {"key": at(place, name), "value": kind, "new": meant, "given": ", ".join(given)}
        return {**facts, "holder": rope, "name": name, "fixable": fits}
    return None


@finder
def key_misspelled(case: Examination, row: Mistake) -> Facts | None:
    """Find an unknown key of a rope that stands for a known one: by its meaning in another stack,
    behind a prefix such as "yarn_", as the name of a scaling with its factor as the value, or by
    its spelling. The fact `type` is the scaling that the key names, if the rope names none.
    """
    known = keys.inner_keys()
    for place, rope in case.ropes():
        for key in rope:
            # an object under an unknown key is the rope of a layer type
            if key in known or isinstance(rope[key], dict):
                continue
            short, kind = PREFIX.sub("", key), scalings().get(key)
            new = meaning(key, inside=True) or (short if short in known else None)
            # the name of a scaling, with its factor as the value
            value = _number(rope[key], "factor") if isinstance(rope[key], str) else rope[key]
            called = scaling_called(key) if (number_of(value) or 0) > 1 else None
            if called in SCALINGS and read_type(case, rope) in (None, called):
                new, kind = "factor", called
            new = new or nearest(key, known, LIKENESS)
            if new == "rope_type" and not isinstance(rope[key], str):  # the name of a scaling
                continue
            # a key that transformers does not read, or that is there already, was not meant
            if new in known and new not in keys.UNREAD_KEYS and rope.get(new) is None:
                facts = {"key": at(place, key), "value": rope[key], "new": new, "name": key}
                kind = None if type_of(rope) is not None else kind
                return {**facts, "holder": rope, "type": kind}
    return None


@finder
def length_of_another_name(case: Examination, row: Mistake) -> Facts | None:
    """Find a served length under a name that this model's code does not read; the model types in
    `keys` read one of these names, and code that comes with the weights may.
    """
    known = case.family.known and case.model_type not in row.keys and "auto_map" not in case.root
    # `dynamic_without_length` is about a length that the scaling needs
    if not known or SERVED_LENGTH_KEY in case.text or case.rope_type == "dynamic":
        return None
    for key in keys.LENGTH_KEYS[1:]:
        if (value := whole(case.text.get(key))) is not None:
            facts = {"key": key, "value": value, "new": SERVED_LENGTH_KEY, "name": key}
            return {**facts, "holder": case.text, "model": case.model_type}
    return None


@repair
def rename(case: Examination, row: Mistake, facts: Facts) -> None:
    """Rename a key in place, without a change of the order of keys; also write the rope_type that
    the wrong key names, if the facts have one as `type`.
    """
    holder, old, new = facts["holder"], facts["name"], facts["new"]
    if facts.get("type"):
        holder["rope_type"] = facts["type"]
    items = [(new if key == old else key, value) for key, value in holder.items() if key != new]
    holder.clear()
    holder.update(items)


@finder
def key_unknown(case: Examination, row: Mistake) -> Facts | None:
    """Find a key of a rope that nothing reads and that no row before this one took for another."""
    known = keys.inner_keys()
    for place, rope in case.ropes():
        for key, value in rope.items():
            # an object under an unknown key is the rope of a layer type
            if key not in known and not isinstance(value, dict):
                return {"key": at(place, key), "value": value, "holder": rope, "name": key}
    return None


@finder
def outer_key_misspelled(case: Examination, row: Mistake) -> Facts | None:
    """Find a key of the config under a name that this family's code does not read.

    The first of `keys` is the standard name; a family may have its own name of it. `names` has
    {model type: the name that the code in its checkpoints reads}.
    """
    if not case.family.known:
        return None
    # "auto_map" names code beside the weights, which reads the config in place of the family's
    own_code = row.names.get(str(case.model_type)) if "auto_map" in case.root else None
    if own_code is not None and case.text.get(own_code) is not None:
        return None
    standard = row.keys[0]
    read = case.family.renamed.get(standard, standard)
    # the value is where the code reads it, or inside a rope, where its name is the standard one
    given = [holder for _, holder in case.places() if holder.get(read) is not None]
    if given or (case.get(standard) is not None and standard == read):
        return None
    if any(rope.get(standard) is not None for _, rope in case.ropes()):
        return None
    names = {key: None for key in case.text if meaning(key) == standard}
    for key in (*names, *NAMES.get(standard, ())):
        # what is the default anyway need not be read
        default = case.family.default(standard)
        # a number or a flag is no rope object
        if standard in OBJECT_KEYS and not isinstance(case.text.get(key), dict | list | str):
            continue
        if key != read and case.text.get(key) not in (None, default):
            return {
                "key": key,
                "value": case.text[key],
                "new": read,
                "holder": case.text,
                "name": key,
                "model": case.model_type,
            }
    return None


def _read(case: Examination) -> set[str]:
    """Return the keys of the config itself that this family's code reads for its rope."""
    family = case.family
    if not family.known:
        return {*CONFIG_CHECKS, *OBJECT_KEYS}
    names = {family.renamed.get(SERVED_LENGTH_KEY, SERVED_LENGTH_KEY)}
    if not family.layer_thetas:
        names.add(family.renamed.get(keys.THETA_KEYS[0], keys.THETA_KEYS[0]))
    if family.unscaled_reads_fraction or keys.FRACTION_KEYS[0] in family.renamed:
        names.add(family.renamed.get(keys.FRACTION_KEYS[0], keys.FRACTION_KEYS[0]))
    names |= {theta.key for theta in family.layer_thetas.values() if theta.key is not None}
    names |= {"rotary_dim"} & {*family.reads}
    # latent attention has a key of its own for the width that rotates
    latent = {keys.LATENT_KEY} if family.latent else {"head_dim"}
    return {*names, *latent, *OBJECT_KEYS, TRAINED_LENGTH_KEY}


@finder
def outer_key_near(case: Examination, row: Mistake) -> Facts | None:
    """Find a key that this family's code does not read and that stands for an absent one that it
    does: by `names`, {another name: the key}, by its meaning in another stack, or by its spelling.
    """
    read = _read(case)
    absent = {key for key in read if case.get(key) is None}
    for names in ALIASES:  # a size under one of its names is not absent under another
        if any(case.get(key) is not None for key in names):
            absent -= {*names}
    known = {*CONFIG_CHECKS, *OBJECT_KEYS, *keys.inner_keys()}
    # beside a factor of another stack, a trained length of another stack belongs to the same
    # scaling; `key_of_another_stack` finds both
    if any(meaning(key) == "factor" for key in case.text):
        absent.discard(TRAINED_LENGTH_KEY)
    # the code of an unknown family may have names of its own for the sizes
    if not case.family.known:
        absent -= {name for names in ALIASES for name in names}
    for key, value in case.text.items():
        if key in read:  # a right name
            continue
        new = row.names.get(key) or meaning(key)
        # renaming a synonym with the default value would change nothing; a misspelled key, below,
        # is found with any value
        if new in absent and value == case.family.default(str(new)):
            continue
        # neither the row nor another stack gives this key the meaning of an absent one: compare the
        # spelling
        if new not in absent:
            # a right name of something else is no misspelled one; nor is the name of a scaling in
            # another stack, such as rope_scaling_type, which is near to rope_scaling
            other = key in {*known, *SIZES} or meaning(key) == "rope_type"
            new = None if other else nearest(key, absent, LIKENESS_OUTSIDE)
        # the kinds of values that the key has, or that other rows turn into these
        kinds = (dict, str, list) if new in OBJECT_KEYS else (int, float, str)
        if new is not None and isinstance(value, kinds) and not isinstance(value, bool):
            facts = {"key": key, "value": value, "new": new, "model": case.model_type}
            return {**facts, "holder": case.text, "name": key}
    return None


def scaling_called(name: str) -> str | None:
    """Return the rope_type that a word names, also in another spelling; None if it names none."""
    row = next(each for each in mistakes() if each.find == "type_misspelled")
    return name if name in keys.rope_types() else row.names.get(plain(name))


def _unwrapped(
    rope: dict[str, Any], wrappers: tuple[str, ...] = ()
) -> tuple[dict[str, Any], bool] | None:
    """Return (rope, fits): a rope object with the keys of the object inside it as its own, and
    whether no key has two values, one outside and one inside; None if there is no object inside.

    The object inside has the name of a rope object or of a scaling, or one of `wrappers`. The name
    of a scaling becomes the rope_type if no other is given.
    """
    inside = [key for key, value in rope.items() if isinstance(value, dict)]
    name = inside[0] if len(inside) == 1 else ""
    kind = None if name in (*OBJECT_KEYS, *wrappers) else scaling_called(name)
    if not name or (name not in (*OBJECT_KEYS, *wrappers) and kind is None):
        return None
    beside, inner = {key: value for key, value in rope.items() if key != name}, rope[name]
    if type_of(inner) is not None and type_of(beside) == "default":
        # "default" outside is no second value beside the type inside
        beside = {key: value for key, value in beside.items() if key not in TYPE_KEYS}
    fits = all(beside.get(key) in (None, value) for key, value in inner.items())
    new = {**beside, **inner}
    if kind is not None and type_of(new) in (None, "default"):
        new = {"rope_type": kind, **{k: v for k, v in new.items() if k not in TYPE_KEYS}}
    return new, fits


@finder
def object_wrapped(case: Examination, row: Mistake) -> Facts | None:
    """Find a rope object inside a list, or inside another object under its own name, under that of
    its scaling or under one of the `keys` of the row; in the rope of a layer type too.
    """
    for key in OBJECT_KEYS:
        value = case.text.get(key)
        if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict):
            facts = {"key": key, "value": value, "new": value[0]}
            return {**facts, "holder": case.text, "name": key}
        if not isinstance(value, dict):
            continue
        # some of `keys` may be layer types, so they count only in a config that can have but one
        # rope: rope_scaling, in a family without layer types of different ropes
        one = key == "rope_scaling" and case.family.known and not case.family.layer_thetas
        wrappers = row.keys if one and not case.text.get("layer_types") else ()
        for name, rope in {"": value, **layers_of(value)}.items():
            if (found := _unwrapped(rope, wrappers)) is not None:
                facts = {"key": f"{key}.{name}" if name else key, "value": rope, "new": found[0]}
                facts |= {"fixable": found[1], "holder": value if name else case.text}
                return {**facts, "name": name or key}
    return None


@finder
def number_in_list(case: Examination, row: Mistake) -> Facts | None:
    """Find a list or an object with one number in place of the number itself, at one of the `keys`
    of the row.
    """
    for place, holder in case.places():
        for key in (key for key in row.keys if key in holder):
            value = holder[key]
            many = [*value.values()] if isinstance(value, dict) else value
            if isinstance(many, list) and len(many) == 1 and number_of(many[0]) is not None:
                facts = {"key": at(place, key), "value": value, "new": many[0]}
                return {**facts, "holder": holder, "name": key}
    return None


@finder
def default_with_keys(case: Examination, row: Mistake) -> Facts | None:
    """Find rope_type default beside keys of a scaling; `names` has {such a key: the scaling}, and
    the first that is given decides. "" is for the factor, which several scalings have.
    """
    for place, rope in case.ropes():
        given = [key for key in row.names if rope.get(key) is not None]
        if type_of(rope) != "default" or not given:
            continue
        # a factor of 1, or the trained length alone, scales nothing
        if rope.get("factor") == 1 or given == ["original_max_position_embeddings"]:
            continue
        trained, served = case.trained, max(case.served or 0, case.length or 0)
        key = at(place, "rope_type" if "rope_type" in rope else "type")
        return {
            "key": key,
            "given": ", ".join(given),
            "value": type_of(rope),
            "new": row.names[given[0]],
            # the scaling was meant if the served length, or that in use, is beyond the trained one
            "fixable": bool(row.names[given[0]] and trained and served > trained),
            "holder": rope,
            "name": key.split(".")[-1],
        }
    return None


@finder
def sections_as_text(case: Examination, row: Mistake) -> Facts | None:
    """Find the number of pairs of each axis, at one of `keys`, as a text or as a list of texts."""
    for place, rope in case.ropes():
        for key in (key for key in row.keys if key in rope):
            value = rope[key]
            many = value if isinstance(value, list) else [value]
            if not many or not all(isinstance(each, str) for each in many):
                continue
            # at most six digits at a time: no number of pairs has more
            new = [int(each) for each in re.findall(r"\d{1,6}", " ".join(many))]
            facts = {"key": at(place, key), "value": value, "new": new, "fixable": bool(new)}
            return {**facts, "holder": rope, "name": key}
    return None
