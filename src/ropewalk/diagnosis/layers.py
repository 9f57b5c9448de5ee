"""Mistakes of layers: which of them rotate, and which rope each has.

A finder looks for one mistake in the config `case` and returns the facts about it, or None. The
facts `key` and `value` are reported, most repairs write `new` at `holder[name]`, and other facts
are for the texts of the row or for its repair. With `fixable` False the config does not say what
was meant: the mistake is reported, and no repair is made. `row` is the row of mistakes.toml that
names the finder, with the `keys` or `names` that it looks for; several rows may name one finder.

Words of this module:
  window     how many tokens back a layer attends to; a layer of full attention has none
  interval   a number n: of every n layers the last is another than the rest, namely the one of full
             attention or the one that does not rotate
  flags      for each layer 0 if it is the last of an interval, else 1
  pattern    the types of all layers, or their flags, which repeat after some layers
  family     what the code of this model type fixes. `unrotated` is the rule that says which of its
             layers do not rotate: "full_attention", those of full attention;
             "full_attention_or_no_window", those, and all layers of a config without a window;
             "no_rope_layers", those with 0 in the config's list of that name
  rows_of    gives rows of published.json: the published models of the config's sizes. `full_every`
             and `no_rope_every` are the interval of the layers of full attention and that of the
             layers that do not rotate
"""

from __future__ import annotations

from typing import Any

from ropewalk.config import keys
from ropewalk.config.layers import INTERVAL
from ropewalk.diagnosis.case import Examination, Facts, whole
from ropewalk.diagnosis.mistakes import Mistake, finder
from ropewalk.diagnosis.published import rows_of
from ropewalk.diagnosis.spelling import LIKENESS, nearest

NO_ROPE, NO_ROPE_EVERY = "no_rope_layers", "no_rope_layer_interval"
#: keys of a number n: the last of every n layers has full attention, the others have a window
EVERY = ("sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers")
#: the window of every published model of the families that rotate only in layers with one
WINDOW = 4096


def _every(count: int, interval: int) -> list[int]:
    """Return a flag for each of `count` layers: 0 for the last of every `interval` layers, else 1."""
    return [int((layer + 1) % interval != 0) for layer in range(count)]


@finder
def window_lost(case: Examination, row: Mistake) -> Facts | None:
    """Find a null window in a family that rotates only in layers with one, so that none rotates."""
    if case.family.unrotated != "full_attention_or_no_window":
        return None
    # where the key is absent, the class has a window of its own
    if case.text.get("sliding_window", WINDOW) is not None:
        return None
    facts = {"key": "sliding_window", "value": None, "new": WINDOW, "model": case.model_type}
    return {**facts, "holder": case.text, "name": "sliding_window"}


@finder
def window_null(case: Examination, row: Mistake) -> Facts | None:
    """Find a null window beside a pattern of layers with and without one, given or published, where
    those without one do not rotate: the code cannot tell the layers apart, so all rotate.
    """
    published = next((row["full_every"] for row in rows_of(case) if "full_every" in row), None)
    pattern = case.text.get("sliding_window_pattern") or published
    if case.family.unrotated != "full_attention" or not pattern:
        return None
    if case.text.get("sliding_window", WINDOW) is not None:
        return None
    facts = {"key": "sliding_window", "value": None, "new": WINDOW, "model": case.model_type}
    return {**facts, "pattern": pattern, "holder": case.text, "name": "sliding_window"}


@finder
def no_rope_layers_wrong(case: Examination, row: Mistake) -> Facts | None:
    """Find a `no_rope_layers` of the wrong form; the right one has a flag for each layer, 1 where
    it rotates. `names` has the form that the row is about: "inverted" (1 where it does not rotate),
    "short" (flags, but not one for each layer) or "numbers" (of the layers that do not rotate).
    The repair writes the usual flags, which all models of these families have.
    """
    given = case.text.get(NO_ROPE)
    count = next((n for k in keys.LAYER_COUNT_KEYS if (n := whole(case.text.get(k)))), None)
    rules = ("no_rope_layers", "no_rope_layers_if_not_empty")
    if case.family.unrotated not in rules or not isinstance(given, list) or not given or not count:
        return None
    interval = whole(case.text.get(NO_ROPE_EVERY)) or INTERVAL
    usual = _every(count, interval)
    flags = all(each in (0, 1) for each in given)
    full_length = len(given) == count
    facts = {"key": NO_ROPE, "value": given, "holder": case.text, "name": NO_ROPE, "of": count}
    facts |= {"rotate": sum(map(bool, given)) if flags else 0, "interval": interval}
    if "inverted" in row.names and flags and full_length and [1 - each for each in given] == usual:
        return {**facts, "new": usual}
    # a few 0s and 1s may be numbers of layers, so only a longer list counts as flags
    if "short" in row.names and flags and not full_length and len(given) > INTERVAL:
        # fixable if the flags that are there are the usual ones
        shared = min(len(given), count)
        fits = given[:shared] == usual[:shared]
        return {**facts, "count": len(given), "new": usual, "fixable": fits}
    # not flags, by the same test of length
    if "numbers" in row.names and not (flags and (full_length or len(given) > INTERVAL)):
        skipped = {each for each in given if isinstance(each, int) and 0 <= each <= count}
        unrotated = {layer for layer, rotates in enumerate(usual) if not rotates}
        # layers counted from 0, or from 1
        fits = skipped in (unrotated, {layer + 1 for layer in unrotated})
        return {**facts, "new": usual, "fixable": fits}
    return None


def _continued(names: list[str], count: int) -> list[str] | None:
    """Return `names`, the types of some layers, continued or cut to `count` layers. If `names`
    repeats a beginning throughout, and at least once in full, the shortest such beginning goes on;
    else all of `names` is repeated, unless it begins and ends with the same type: then None.
    """
    fewer = (n for n in range(1, len(names) // 2 + 1) if names == _repeated(names[:n], len(names)))
    period = names[: next(fewer, len(names))]
    # an end like the beginning: the list may have been cut within its pattern
    if len(period) == len(names) > 1 and names[0] == names[-1]:
        return None
    return _repeated(period, count)


def _repeated(period: list[str], count: int) -> list[str]:
    """Return the first `count` entries of a list that is repeated without end."""
    return [period[layer % len(period)] for layer in range(count)]


@finder
def layer_types_misfit(case: Examination, row: Mistake) -> Facts | None:
    """Find a `layer_types` that has not one entry for each layer. The repair writes the given
    pattern continued or cut, or in its place the published one if it has the same types; there is
    none if `_continued` does not tell how the given one goes on.
    """
    given, name = case.text.get("layer_types"), "layer_types"
    count = next((n for k in keys.LAYER_COUNT_KEYS if (n := whole(case.text.get(k)))), None)
    if not case.family.known or not isinstance(given, list) or count in (None, len(given)):
        return None
    new = _continued(given, count) if given and all(isinstance(x, str) for x in given) else None
    # the published pattern is surer than one that is continued
    found = [each for each in rows_of(case) if "full_every" in each]
    if found and new is not None:
        # only its `new` is used
        other = _pattern(case, name, found[0]["full_every"], count, name="")["new"]
        new = other if {*other} == {*given} else new
    facts = {"key": name, "value": len(given), "of": count, "new": new, "name": name}
    return {**facts, "holder": case.text, "fixable": new is not None}


@finder
def layer_type_unknown(case: Examination, row: Mistake) -> Facts | None:
    """Find an entry of `layer_types` that is no layer type; `keys` has all layer types, and `names`
    {another name: the layer type}. All entries of the same name are renamed.
    """
    given, name = case.text.get("layer_types"), "layer_types"
    if not case.family.known or not isinstance(given, list):
        return None
    for value in given:
        if value in row.keys:
            continue
        near = nearest(str(value), row.keys, LIKENESS)
        near = near or row.names.get(str(value))
        new = None if near is None else [near if each == value else each for each in given]
        facts = {"key": name, "value": value, "near": near, "new": new, "name": name}
        return {**facts, "holder": case.text, "fixable": new is not None}
    return None


def _full_layers(case: Examination, count: int) -> tuple[list[int], str] | None:
    """Return (flags, key): 0 for each layer of full attention and 1 for the others, and the key that
    says so, `layer_types` or one of an interval; None if the config does not say it.
    """
    types = case.text.get("layer_types")
    if isinstance(types, list) and len(types) == count:
        return [int(each != "full_attention") for each in types], "layer_types"
    key = next((key for key in EVERY if whole(case.text.get(key))), None)
    if key is not None and "layer_types" not in case.text:
        return _every(count, case.text[key]), key
    return None


@finder
def layers_differ(case: Examination, row: Mistake) -> Facts | None:
    """Find other layers of full attention than the published model of the same sizes has, or other
    layers that rotate.
    """
    found = [each for each in rows_of(case) if "full_every" in each or "no_rope_every" in each]
    if not found:
        return None
    count, name = found[0]["layers"], found[0]["name"]
    full, skip = found[0].get("full_every"), found[0].get("no_rope_every")
    if full is not None:
        given = _full_layers(case, count)
        if given is not None and given[0] != _every(count, full):
            return _pattern(case, given[1], full, count, name)
    if skip is not None:
        flags, interval = case.text.get(NO_ROPE), case.text.get(NO_ROPE_EVERY)
        if isinstance(flags, list) and len(flags) == count and flags != _every(count, skip):
            return _pattern(case, NO_ROPE, skip, count, name)
        if not flags and whole(interval) and interval != skip:
            return _pattern(case, NO_ROPE_EVERY, skip, count, name)
    return None


def _pattern(case: Examination, key: str, every: int, count: int, name: str) -> Facts:
    """Return the facts about a wrong pattern of `count` layers at `key`, with the one of the
    published model `name` as `new`: the last of `every` layers is the one of full attention, or the
    one that does not rotate.
    """
    new: Any = every  # for a key of the interval
    if key == NO_ROPE:
        new = _every(count, every)
    elif key == "layer_types":
        words = ("full_attention", "sliding_attention")
        new = [words[flag] for flag in _every(count, every)]
    value = case.text[key]
    facts = {"key": key, "value": value, "new": new, "model": name, "every": every}
    return {**facts, "holder": case.text, "name": key}


@finder
def rope_in_unrotated_model(case: Examination, row: Mistake) -> Facts | None:
    """Find a rope that is switched on in a model that was published without one, whose
    position_embedding_type is "nope".
    """
    found = [each for each in rows_of(case) if each.get("unrotated")]
    key = "position_embedding_type"
    if not found or case.text.get(key) != "rope":
        return None
    facts = {"key": key, "value": "rope", "new": "nope", "holder": case.text, "name": key}
    return {**facts, "model": found[0]["name"]}


@finder
def no_rope_in_rope_model(case: Examination, row: Mistake) -> Facts | None:
    """Find a key that switches the rope off in a model that was published with one: `alibi` (a bias
    by distance), or a position_embedding_type that is in `names`.
    """
    found = rows_of(case)
    if not found:
        return None
    facts: Facts = {"model": found[0]["name"], "holder": case.text}
    if any(each.get("unrotated") for each in found):
        return None
    if case.text.get("alibi") is True:
        return {**facts, "key": "alibi", "value": True, "new": False, "name": "alibi"}
    key = "position_embedding_type"
    kind = case.text.get(key)
    if isinstance(kind, str) and kind in row.names:
        return {**facts, "key": key, "value": kind, "new": "rope", "name": key}
    return None
