"""Mistakes of place: keys inside, outside and beside the object that is read, and the forms of
transformers 4 and 5.

A finder looks for one mistake and returns the facts about it, or None: `key` and `value` are
reported, other facts are for the texts of its row and for its repair. The repair `put` writes `new`
at `holder[name]`, `rename` renames the key `name` of `holder` to `new`, `remove` deletes the key;
other repairs stand below their finder. `fixable` is False where two values contradict each other
or the config leaves open what was meant: the mistake is then only reported. Of several rows of
mistakes.toml about similar mistakes one is to report each, so a finder returns None for what
another row says better.

Words of this module:
  row      the row of mistakes.toml that names the finder, with the `keys` or `names` that it looks
           for; `rows_of` gives other rows, the published models of the config's sizes
  v4, v5   the forms of transformers 4 and 5: `rope_scaling` with theta and fraction in the config
           itself, and `rope_parameters`, one object with all keys of the rope or one such object
           for each layer type; as values, these two objects
  outside  in the config itself (of its text part), and not inside one of these objects
  layers   {layer type: its rope} of an object that has one for each; {}: it is one rope for all
  flat     with one rope for all layers; `case.flat()` is that rope, None if there is not just one
  layer_thetas  of a family: {layer type: the key of its theta outside, its default, and whether
           this layer type is `scaled`}; {}: all layers have one rope
  renamed  of a family: {standard key: the only name outside a rope that its code reads}
  holder   the dict that has the key: a rope, or `case.text`
  place    the path of that dict, "" for `case.text`: the text part of the config, or the whole
           config if it has no parts. `at(place, key)` is the path of a key
  known    thetas or the trained length of the published models of these sizes
  case.root        the whole config, of which `case.text` is a part
  case.get(key)    the value in the first rope that has the key, or else in `case.text`
  case.served      the length that the config itself gives: max_position_embeddings
"""

from __future__ import annotations

import copy
import json
from typing import Any

from ropewalk.config import keys
from ropewalk.config.families import family_of
from ropewalk.config.file import TEXT_PARTS
from ropewalk.diagnosis.case import (
    OBJECT_KEYS,
    Examination,
    Facts,
    layers_of,
    nested_parts,
    positive,
    read_type,
    specs_of,
    type_of,
    whole,
)
from ropewalk.diagnosis.mistakes import Mistake, finder, repair
from ropewalk.diagnosis.published import (
    LOST_THETA,
    published_theta,
    published_trained_length,
    rows_of,
)
from ropewalk.diagnosis.spelling import LIKENESS, TYPE_KEYS, at, nearest
from ropewalk.frequencies.scaling import TRAINED_LENGTH_KEY

THETA = "rope_theta"
#: tokens; few models serve as many with the default theta
LONG = 16_384
FRACTION = "partial_rotary_factor"


def _objects(case: Examination) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Return `rope_parameters` and `rope_scaling`; None where it is absent or empty."""
    v5, v4 = (case.text.get(key) for key in OBJECT_KEYS)
    return v5 if isinstance(v5, dict) and v5 else None, v4 if isinstance(v4, dict) and v4 else None


def as_v4(text: dict[str, Any]) -> None:
    """Rewrite the `rope_parameters` of a config in place as transformers 4 reads it: theta and
    fraction outside, under the family's names of them.

    Of ropes by layer type only one scaling can be written, and the thetas that have a config key;
    the rest is lost.
    """
    family = family_of(text.get("model_type"))
    v5 = text.pop("rope_parameters", None)
    if not isinstance(v5, dict):  # such as null: the config has the older form already
        return
    layers = layers_of(v5)
    for name, rope in layers.items():
        theta = family.layer_thetas.get(name)
        if theta is not None and theta.key is not None and rope.get(THETA) is not None:
            text[theta.key] = rope[THETA]
    rope = dict(v5)
    if layers:  # the thetas are written above; of the scaled ropes the first is kept
        scaled = [dict(rope) for rope in layers.values() if not _is_default(rope)]
        rope = {key: value for key, value in (scaled or [{}])[0].items() if key != THETA}
    for key in (THETA, FRACTION):
        if rope.get(key) is not None:
            text[family.renamed.get(key, key)] = rope.pop(key)
    rope = {key: value for key, value in rope.items() if value is not None}
    # a rope that has only the type "default" needs no object
    text["rope_scaling"] = None if rope.keys() <= {"rope_type"} and _is_default(rope) else rope


def as_v5(text: dict[str, Any]) -> None:
    """Rewrite theta and `rope_scaling` of a config without `rope_parameters` in place as that one
    object of transformers 5.
    """
    rope = {"rope_type": "default", **(text.pop("rope_scaling", None) or {})}
    if text.get(THETA) is not None:
        rope[THETA] = text.pop(THETA)
    text["rope_parameters"] = rope


def _is_default(rope: dict[str, Any]) -> bool:
    """Return whether a rope has no scaling."""
    return type_of(rope) in (None, "default")


def _without(case: Examination, key: str) -> dict[str, Any]:
    """Return a copy of the config without one of its two rope objects; the theta of that becomes
    the config's own, unless it has one.
    """

    def change(text: dict[str, Any]) -> None:
        gone = text.pop(key)
        if text.get(THETA) is None and gone.get(THETA) is not None:
            text[THETA] = gone[THETA]

    return case.with_(change)


def _reaches_served(case: Examination, keep: str) -> bool:
    """Return whether the scaling of the rope object at the key `keep` reaches the served length
    exactly.
    """
    rope = case.text[keep]
    factor, trained = positive(rope.get("factor")), positive(rope.get(TRAINED_LENGTH_KEY))
    return factor is not None and trained is not None and factor * trained == case.served


@finder
def both_objects(case: Examination, row: Mistake) -> Facts | None:
    """Find `rope_scaling` beside `rope_parameters`; a row with "agree" in `names` is for objects
    that agree, any other row for objects that do not.
    """
    v5, v4 = _objects(case)
    if v5 is None or v4 is None:
        return None
    # the specs that v5 alone and v4 alone give; None: it cannot be read
    new, old = specs_of(_without(case, "rope_scaling")), specs_of(_without(case, "rope_parameters"))
    agree = new is not None and new == old
    if agree != ("agree" in row.names):
        return None
    facts = {"key": "rope_scaling", "value": type_of(v4), "other": type_of(v5) or "default"}
    if agree:
        return facts
    # keep one that can be read; of two such, the only one that reaches the served length, or else
    # rope_scaling, which transformers takes where both are given
    keep = "rope_scaling" if old is not None else "rope_parameters"
    fits = [key for key in OBJECT_KEYS if _reaches_served(case, key)]
    if old is not None and new is not None and len(fits) == 1:
        keep = fits[0]
    elif old is not None and new is not None and _is_default(v4) and not _is_default(v5):
        keep = "rope_parameters"  # an object without a scaling says less than one with it
    return {**facts, "keep": keep, "fixable": old is not None or new is not None}


@repair
def keep_one_object(case: Examination, row: Mistake, facts: Facts) -> None:
    """Remove the object that the facts do not keep; a theta that only it has becomes the config's
    own.
    """
    gone = next(key for key in OBJECT_KEYS if key != facts["keep"])
    root = _without(case, gone)
    case.root.clear()
    case.root.update(root)


@finder
def keys_with_dots(case: Examination, row: Mistake) -> Facts | None:
    """Find keys such as "rope_scaling.factor": the path of a key, written as its name. The repair
    writes the one object that they describe.
    """
    found = [key for key in case.text if key.partition(".")[0] in OBJECT_KEYS and "." in key]
    if not found:
        return None
    name = found[0].partition(".")[0]
    given = case.text.get(name)
    own = given if isinstance(given, dict) else {}
    # {key in the object: its value} of all that were found; "full_attention.factor" is no such key,
    # but that of a layer type, which is not repaired
    inside = {key.removeprefix(f"{name}."): case.text[key] for key in found}
    # one object holds all of them, and no key gets a second value
    fits = not any("." in key for key in inside) and (given is None or own is given)
    fits = fits and all(own.get(key) in (None, value) for key, value in inside.items())
    facts = {"key": ", ".join(found), "value": case.text[found[0]], "new": {**own, **inside}}
    return {**facts, "name": name, "gone": found, "fixable": fits}


@repair
def put_object(case: Examination, row: Mistake, facts: Facts) -> None:
    """Write the rope object that the keys with dots describe, and remove them."""
    for key in facts["gone"]:
        del case.text[key]
    case.text[facts["name"]] = facts["new"]


def _is_rope(value: Any) -> bool:
    """Return whether a value is an object with a known rope_type and a factor or a theta."""
    kind = type_of(value) if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in keys.rope_types():
        return False
    return any(positive(value.get(key)) for key in ("factor", THETA))


@finder
def object_elsewhere(case: Examination, row: Mistake) -> Facts | None:
    """Find a rope object under another key, or inside an object that is no model of its own, in a
    config without a rope object. A class that is not known may read it there; a GGUF file has no
    such keys.
    """
    if not case.family.known or any(_objects(case)):
        return None
    # an object with one of these keys is the config of another model, such as a vision tower
    sizes = {"model_type", *keys.HIDDEN_SIZE_KEYS}
    for key, value in case.text.items():
        if not isinstance(value, dict) or key in OBJECT_KEYS or sizes & value.keys():
            continue
        # the key of the rope object inside `value`; None: `value` itself may be one
        inner = next((k for k in OBJECT_KEYS if _is_rope(value.get(k))), None)
        if inner is None and not _is_rope(value):
            continue
        rope = value if inner is None else value[inner]
        # theta in it, and none outside: the form of transformers 5
        is_v5 = bool(positive(rope.get(THETA))) and case.text.get(THETA) is None
        facts = {"key": key if inner is None else f"{key}.{inner}", "value": type_of(rope)}
        facts |= {"new": inner or OBJECT_KEYS[0 if is_v5 else 1], "name": key, "inner": inner}
        return {**facts, "rope": rope, "model": case.model_type}
    return None


@repair
def move_object(case: Examination, row: Mistake, facts: Facts) -> None:
    """Move a rope object to its right key in the config itself; remove what held it if that is
    empty.
    """
    if facts["inner"] is None:
        del case.text[facts["name"]]
    else:
        del case.text[facts["name"]][facts["inner"]]
        if not case.text[facts["name"]]:
            del case.text[facts["name"]]
    case.text[facts["new"]] = facts["rope"]


@finder
def theta_twice(case: Examination, row: Mistake) -> Facts | None:
    """Find a theta outside the rope that differs from the one inside. Both become the one that was
    meant, if the published theta or the default tells which.
    """
    rope = case.flat()
    inside = positive(rope.get(THETA)) if rope else None
    name = case.family.renamed.get(THETA, THETA)
    outside = positive(case.text.get(name))
    if rope is None or inside is None or outside is None or inside == outside:
        return None
    usual = {10_000.0, case.family.default(THETA)}
    known = published_theta(case)
    # the published one was meant; in a model that is not published, the one that is no default
    meant = [each for each in (inside, outside) if each in known]
    if not known:
        meant = [each for each in (inside, outside) if each not in usual]
    new = meant[0] if len(meant) == 1 else None
    return {
        "key": THETA,
        "value": inside,
        "other": outside,
        "new": new,
        "rope": rope,
        "name": name,
        "fixable": new is not None,
    }


@repair
def one_theta(case: Examination, row: Mistake, facts: Facts) -> None:
    """Write the same theta at both places."""
    facts["rope"][THETA] = case.text[facts["name"]] = facts["new"]


@finder
def only_in_v4(case: Examination, row: Mistake) -> Facts | None:
    """Find a theta or a fraction, by `keys`, that only `rope_scaling` has, where transformers 4 does
    not look for it.
    """
    v5, v4 = _objects(case)
    (key,) = row.keys
    name = case.family.renamed.get(key, key)
    value = positive(v4.get(key)) if v4 else None
    if v5 is not None or v4 is None or value is None or case.text.get(name) is not None:
        return None
    return {
        "key": f"rope_scaling.{key}",
        "value": value,
        "new": value,
        "holder": case.text,
        "name": name,
        "default": case.family.default(key),
        "inside": v4,
        "inner": key,
    }


@repair
def move_outside(case: Examination, row: Mistake, facts: Facts) -> None:
    """Move a key out of `rope_scaling` into the config itself."""
    facts["holder"][facts["name"]] = facts["inside"].pop(facts["inner"])


@finder
def theta_missing(case: Examination, row: Mistake) -> Facts | None:
    """Find a flat `rope_parameters` without theta, which transformers 5 always writes."""
    v5, v4 = _objects(case)
    # `both_objects` is about two objects; layer types have thetas of their own
    if v5 is None or v4 is not None or layers_of(v5) or case.family.layer_thetas:
        return None
    names = (*keys.THETA_KEYS, keys.LAYER_THETA_KEY)
    if any(case.get(key) is not None for key in names) or THETA in v5:  # null: see `theta_null`
        return None
    known = published_theta(case)
    new = next(iter(known)) if len(known) == 1 else None
    return {
        "key": f"rope_parameters.{THETA}",
        "value": None,
        "new": new,
        "holder": v5,
        "name": THETA,
        "default": case.family.default(THETA),
        "fixable": new is not None,
    }


@finder
def theta_not_given(case: Examination, row: Mistake) -> Facts | None:
    """Find a long served length where neither the config nor its class gives a theta for it."""
    default, served = case.family.default(THETA), case.served
    # a scaling may reach that length, and for published models the theta is known (`theta_lost`)
    if case.rope_type != "default" or any(_objects(case)) or published_theta(case):
        return None
    # a model with layers that do not rotate may need no larger theta; nor does a class whose default
    # is larger
    if case.family.layer_thetas or case.family.unrotated or default != LOST_THETA:
        return None
    if not case.family.known:  # its own code may have another default
        return None
    if isinstance(case.text.get("attn_config"), dict):  # DBRX has its theta in there
        return None
    names = (*keys.THETA_KEYS, keys.LAYER_THETA_KEY)
    if any(case.text.get(key) is not None for key in names) or (served or 0) < LONG:
        return None
    return {"key": THETA, "value": None, "served": served, "default": default}


@finder
def llama3_without_theta(case: Examination, row: Mistake) -> Facts | None:
    """Find a Llama with the scaling of Llama 3 and no theta; all of these models have 500,000."""
    if case.model_type != "llama" or case.get(THETA) is not None:
        return None
    for place, rope in case.ropes():
        if type_of(rope) == "llama3":
            # transformers 5 reads theta inside `rope_parameters`, transformers 4 outside
            holder = rope if place == "rope_parameters" else case.text
            return {"key": THETA, "value": None, "new": 500_000.0, "holder": holder, "name": THETA}
    return None


@finder
def release_differs(case: Examination, row: Mistake) -> Facts | None:
    """Find keys of transformers 5 in a file that transformers 4 wrote, or the reverse. The only one
    of `keys` is the major number of the release that wrote the file, "4" or "5"; `names` has the
    model types that came with transformers 5.
    """
    version = case.root.get("transformers_version")  # of the release that wrote the file
    if not isinstance(version, str) or version.split(".")[0] != row.keys[0]:
        return None
    v5, v4 = _objects(case)
    if row.keys[0] == "4":
        flat = v5 is not None and not layers_of(v5)
        if v5 is None or v4 is not None:  # transformers 4 reads v4, if it is there
            return None
        names = {key: case.family.renamed.get(key, key) for key in (THETA, FRACTION)}
        if flat and any(case.text.get(n) not in (None, v5.get(k)) for k, n in names.items()):
            return None  # the value outside differs from that in v5, and transformers 4 reads it
        # transformers 4 has no class of the family, and no code comes with the file
        if case.model_type in row.names and "auto_map" not in case.root:
            return None
        # not every rope by layer type can be written for transformers 4
        return {"key": "rope_parameters", "value": version, "fixable": flat}
    if v5 is not None or (v4 is None and case.text.get(THETA) is None):
        return None
    return {"key": "rope_scaling" if v4 else THETA, "value": version}


@repair
def write_as_v4(case: Examination, row: Mistake, facts: Facts) -> None:
    """Write the keys of transformers 4, which both releases read."""
    as_v4(case.text)


@finder
def nested_in_flat(case: Examination, row: Mistake) -> Facts | None:
    """Find ropes by layer type in a family that has one rope for all layers. The model types in
    `keys`, and families with a theta for each layer type, read such ropes.
    """
    v5 = _objects(case)[0]
    layers = layers_of(v5 or {})
    family = case.family
    if not layers or not family.known or family.layer_thetas or case.model_type in row.keys:
        return None
    ropes = list(layers.values())
    # fixable if all ropes are the same and the keys beside them contradict none
    beside = {key: value for key, value in (v5 or {}).items() if key not in layers}
    same = all(rope == ropes[0] for rope in ropes)
    same = same and all(ropes[0].get(key) in (None, beside[key]) for key in beside)
    return {
        "key": "rope_parameters",
        "value": ", ".join(layers),
        "fixable": same,
        "new": {**beside, **copy.deepcopy(ropes[0])},
        "holder": case.text,
        "name": "rope_parameters",
        "model": case.model_type,
    }


@finder
def flat_in_nested(case: Examination, row: Mistake) -> Facts | None:
    """Find one rope for all layers, in `rope_parameters` alone, in a family whose layer types have
    ropes of their own. The repair writes it for the layer types that are scaled, its theta only for
    the first of them, and the plain rope for the others. For the model types in `keys` no default
    thetas are known, and it is only reported.
    """
    v5, v4 = _objects(case)
    thetas = case.family.layer_thetas
    no_defaults = case.model_type in row.keys
    if v5 is None or v4 is not None or layers_of(v5) or not (thetas or no_defaults):
        return None
    # its keys are layer types, with values that are no ropes: not one rope for all
    if v5.keys() <= set(_layer_types(case)):
        return None
    new = {}
    for index, (name, own) in enumerate(thetas.items()):  # own: what the family says of this type
        rope = copy.deepcopy(v5) if own.scaled else {"rope_type": "default"}
        theta = case.text.get(own.key) if own.key else None
        # the theta of the one rope goes to the family's first layer type (full attention, or its
        # main one)
        theta = v5.get(THETA, theta) if index == 0 else theta
        new[name] = {**rope, THETA: own.default if theta is None else theta}
    return {
        "key": "rope_parameters",
        "value": type_of(v5),
        "new": new,
        "holder": case.text,
        "name": "rope_parameters",
        "model": case.model_type,
        "types": " and ".join(thetas or dict.fromkeys(_layer_types(case))),
        "fixable": not no_defaults,
    }


@finder
def layers_in_v4(case: Examination, row: Mistake) -> Facts | None:
    """Find ropes by layer type in `rope_scaling`, which is one rope for all layers; the repair
    renames it `rope_parameters`.
    """
    v5, v4 = _objects(case)
    layers = layers_of(v4 or {})
    if v5 is not None or not layers or not layers.keys() <= set(_layer_types(case)):
        return None
    facts = {"key": "rope_scaling", "value": ", ".join(layers), "new": "rope_parameters"}
    return {**facts, "holder": case.text, "name": "rope_scaling", "model": case.model_type}


@finder
def theta_by_layer_type(case: Examination, row: Mistake) -> Facts | None:
    """Find an object of thetas by layer type in place of theta. It can be repaired if each of these
    layer types has a key for its theta, and none of these keys is given.
    """
    given, thetas = case.text.get(THETA), case.family.layer_thetas
    if not isinstance(given, dict) or not given or not given.keys() <= thetas.keys():
        return None
    names = {name: thetas[name].key for name in given}
    written = [key for key in names.values() if key is not None]
    # a theta that one of these keys has already would be lost
    other = any(case.text.get(key) is not None for key in written if key != THETA)
    facts = {"key": THETA, "value": given, "words": ", ".join(written)}
    return {**facts, "names": names, "fixable": None not in names.values() and not other}


@repair
def put_layer_thetas(case: Examination, row: Mistake, facts: Facts) -> None:
    """Write the theta of each layer type under its own key."""
    given = case.text.pop(THETA)
    case.text.update({key: given[name] for name, key in facts["names"].items()})


@finder
def type_of_another_family(case: Examination, row: Mistake) -> Facts | None:
    """Find an older name of a rope_type that only the model types in `keys` know; `names` has
    {such a name: the name that all model types know}.
    """
    model = str(case.model_type)
    if not case.family.known or model in row.keys:
        return None
    for place, rope in case.ropes():
        for key in ("rope_type", "type"):
            name = rope.get(key)
            if name == "mrope" and case.family.axis_order is None:
                continue  # there are no axes at all: `sections_in_text_model` is about it
            if isinstance(name, str) and name in row.names:
                where, new = f"{place}.{key}", row.names[name]
                facts = {"key": where, "value": name, "new": new, "model": model}
                return {**facts, "holder": rope, "name": key}
    return None


@finder
def layer_rope_absent(case: Examination, row: Mistake) -> Facts | None:
    """Find ropes by layer type that lack a type of the model, in one of the model types in `keys`,
    whose code looks up a rope for each; `names` has {model type.layer type: its rope in every
    published model, as JSON}.
    """
    v5 = _objects(case)[0] or {}
    types = _layer_types(case) or tuple(
        name.split(".")[1] for name in row.names if name.split(".")[0] == case.model_type
    )
    # if no layer type is known, all may be misspelled
    if case.model_type not in row.keys or not layers_of(v5).keys() & set(types):
        return None
    for name in types:
        if name not in v5:
            published = row.names.get(f"{case.model_type}.{name}")
            new = json.loads(published) if published else None
            facts = {"key": f"rope_parameters.{name}", "value": None, "holder": v5, "name": name}
            return {**facts, "new": new, "fixable": new is not None, "words": str(new)}
    return None


@finder
def beside_layers(case: Examination, row: Mistake) -> Facts | None:
    """Find keys of a rope beside the layer types of `rope_parameters`, where no model reads them."""
    v5 = _objects(case)[0]
    layers = layers_of(v5 or {})
    if v5 is None or not layers:
        return None
    for key in (key for key in v5 if key in keys.inner_keys()):  # the first such key
        lack = [name for name, rope in layers.items() if rope.get(key) is None]
        # fixable if every layer type has its own value: the one beside them is then not needed
        return {
            "key": f"rope_parameters.{key}",
            "value": v5[key],
            "fixable": not lack,
            "holder": v5,
            "name": key,
            "lack": ", ".join(lack) or "none",
        }
    return None


@finder
def outside_text_part(case: Examination, row: Mistake) -> Facts | None:
    """Find a rotary key, one of `keys`, or a rope object that the text part lacks, in the config of
    the whole model or of a part around the text part, where it is not read.
    """
    for outer in nested_parts(case.root)[:-1]:
        for key in OBJECT_KEYS:
            value = outer.get(key)
            if isinstance(value, dict) and value and not any(_objects(case)):
                return {"key": key, "value": type_of(value), "name": key, "holder": outer}
        for key in row.keys:
            value = outer.get(key)
            usual = (None, case.family.default(key))  # the text model takes the default anyway
            if case.get(key) is None and value not in usual and positive(value) is not None:
                return {"key": key, "value": value, "name": key, "holder": outer}
    return None


@repair
def move_to_text_part(case: Examination, row: Mistake, facts: Facts) -> None:
    """Move a key of the whole model, or of a part around the text part, into the text part."""
    case.text[facts["name"]] = facts["holder"].pop(facts["name"])


@finder
def scaling_beside_text_part(case: Examination, row: Mistake) -> Facts | None:
    """Find a scaling in the config of the whole model, beside its text part, that the rope of the
    text part does not have.
    """
    if case.text is case.root or not any(_objects(case)):
        return None
    rope = case.flat()
    for key in OBJECT_KEYS:
        outer = case.root.get(key)
        if not isinstance(outer, dict) or read_type(case, outer) in (None, "default"):
            continue
        # fits: no key has two values; same: both ropes have one rope_type
        values = {k: v for k, v in outer.items() if k not in TYPE_KEYS and v is not None}
        inner = {k: v for k, v in (rope or {}).items() if k not in TYPE_KEYS}
        fits = all(inner.get(k) in (None, v) for k, v in values.items())
        kind = "a rope for each layer type" if rope is None else type_of(rope) or "default"
        same = rope is not None and read_type(case, rope) == read_type(case, outer)
        if same and fits and values.keys() - {THETA} <= inner.keys():
            continue  # the text part has the scaling too
        facts = {"key": key, "value": type_of(outer), "inside": kind, "rope": rope, "name": key}
        # the two ropes can be merged if no key has two values, and both have one rope_type or that
        # of the text part is no scaling: the sections and the theta of the text part stay
        fixable = fits and rope is not None and (same or _is_default(rope) or kind == "mrope")
        types = {k: outer[k] for k in TYPE_KEYS if outer.get(k) is not None}
        return {**facts, "new": {**types, **inner, **values}, "fixable": fixable}
    return None


@repair
def merge_into_text_part(case: Examination, row: Mistake, facts: Facts) -> None:
    """Move a scaling of the whole model into the rope of its text part."""
    del case.root[facts["name"]]
    facts["rope"].clear()
    facts["rope"].update(facts["new"])


@finder
def text_part_without_model(case: Examination, row: Mistake) -> Facts | None:
    """Find a text part without sizes in a config that has them itself: it is a text model, whose
    code reads no such part.
    """
    # the key of the text part; None: the text part is inside another one, or there is none
    part = next((key for key in TEXT_PARTS if case.root.get(key) is case.text), None)
    sizes = (*keys.HIDDEN_SIZE_KEYS, *keys.HEAD_COUNT_KEYS, "model_type")
    if part is None or any(case.text.get(key) is not None for key in sizes):
        return None
    if not all(case.root.get(key) is not None for key in ("hidden_size", "num_attention_heads")):
        return None
    known = family_of(case.root.get("model_type")).known
    return {
        "key": part,
        "value": ", ".join(case.text),
        "model": case.root.get("model_type"),
        # its keys can move into the config itself if none of them is there
        "fixable": known and all(case.root.get(key) is None for key in case.text),
    }


@repair
def empty_text_part(case: Examination, row: Mistake, facts: Facts) -> None:
    """Move all keys of the text part into the config itself."""
    case.root.update(case.root.pop(facts["key"]))


@finder
def scaling_outside(case: Examination, row: Mistake) -> Facts | None:
    """Find the keys of a scaling in the config itself and not in its rope object."""
    rope = case.flat() or None  # an empty object has no scaling
    # two objects, or ropes by layer type: which one the keys belong to is not known
    if rope is None and any(_objects(case)):
        return None
    # without a rope object the type is outside too
    kind = type_of(case.text if rope is None else rope)
    if not isinstance(kind, str) or kind not in keys.rope_types() or kind == "default":
        return None
    # the keys of this scaling, but for lengths, which configs have outside, and those it has inside
    own = {*keys.keys_of(keys.rope_types()[kind]), *(() if rope else ("rope_type", "type"))}
    own |= {"alpha"} & {*case.family.reads}  # alpha counts only in families that read it
    own -= {*keys.LENGTH_KEYS, TRAINED_LENGTH_KEY, *(rope or ())}
    given = [key for key, value in case.text.items() if key in own and value is not None]
    # without a rope object one of them is the type, which alone describes no scaling
    if len(given) < (2 if rope is None else 1):
        return None
    # the trained length moves too, if this scaling has it, the rope lacks it, and the family does
    # not look for it outside first
    inner = TRAINED_LENGTH_KEY in keys.keys_of(keys.rope_types()[kind])
    absent = rope is None or rope.get(TRAINED_LENGTH_KEY) is None
    if absent and inner and TRAINED_LENGTH_KEY not in case.family.defaults:
        given += [TRAINED_LENGTH_KEY] if whole(case.text.get(TRAINED_LENGTH_KEY)) else []
    return {"key": ", ".join(given), "value": kind, "new": given, "rope": rope}


@repair
def move_into_object(case: Examination, row: Mistake, facts: Facts) -> None:
    """Move the keys of a scaling into the rope object, or into rope_scaling if there is none."""
    moved = {key: case.text.pop(key) for key in facts["new"]}
    if facts["rope"] is None:
        case.text["rope_scaling"] = moved
    else:
        facts["rope"].update(moved)


def _layer_types(case: Examination) -> tuple[str, ...]:
    """Return the layer types that the config declares, else those with a theta in its family; () if
    neither says any.
    """
    declared = case.text.get("layer_types")
    if isinstance(declared, list) and all(isinstance(each, str) for each in declared):
        return tuple(dict.fromkeys(declared))
    return tuple(case.family.layer_thetas)


@finder
def layer_type_misspelled(case: Examination, row: Mistake) -> Facts | None:
    """Find the rope of a layer type that the model does not have, whose name is near that of one
    that has no rope; `names` has {other name: the layer type that it means}.
    """
    v5 = _objects(case)[0] or {}
    types, layers = _layer_types(case), layers_of(v5)
    for name in layers:
        absent = [each for each in types if each not in v5]
        new = row.names.get(name, nearest(name, absent, LIKENESS))
        if name not in {*types, *case.family.layer_thetas} and new in absent:
            facts = {"key": f"rope_parameters.{name}", "value": name, "new": new}
            return {**facts, "holder": v5, "name": name}
    return None


@finder
def layer_type_absent(case: Examination, row: Mistake) -> Facts | None:
    """Find ropes by layer type that lack a type whose theta the family's code has."""
    v5 = _objects(case)[0] or {}
    thetas = case.family.layer_thetas
    names = layers_of(v5).keys()
    # no layer type is known, or one is not, which may be the absent one misspelled
    if not names & thetas.keys() or names - thetas.keys() - set(_layer_types(case)):
        return None
    for name in thetas:
        if name not in v5:
            theta = case.text.get(thetas[name].key or "")
            new = {"rope_type": "default", THETA: theta or thetas[name].default}
            facts = {"key": f"rope_parameters.{name}", "value": None, "new": new}
            return {**facts, "holder": v5, "name": name, "theta": new[THETA]}
    return None


@finder
def layer_scaling_swapped(case: Examination, row: Mistake) -> Facts | None:
    """Find a scaling at the layer type that is unscaled in this family, and none at the layer type
    that is scaled.
    """
    layers, thetas = layers_of(_objects(case)[0] or {}), case.family.layer_thetas
    scaled = [name for name in layers if name in thetas and thetas[name].scaled]
    plain = [name for name in layers if name in thetas and not thetas[name].scaled]
    if len(scaled) != 1 or len(plain) != 1:
        return None
    # the rope that should have the scaling, and the one that should have none
    right, wrong = layers[scaled[0]], layers[plain[0]]
    if not _is_default(right) or _is_default(wrong):
        return None
    facts = {"key": f"rope_parameters.{plain[0]}", "value": type_of(wrong), "layer": scaled[0]}
    return {**facts, "ropes": (right, wrong)}


@repair
def swap_layer_scalings(case: Examination, row: Mistake, facts: Facts) -> None:
    """Exchange the ropes of two layer types without their thetas."""
    one, other = facts["ropes"]
    new_one, new_other = ({**a, THETA: b.get(THETA)} for a, b in ((other, one), (one, other)))
    for rope, new in ((one, new_one), (other, new_other)):
        rope.clear()
        rope.update({key: value for key, value in new.items() if value is not None})


@finder
def layer_scaling_extra(case: Examination, row: Mistake) -> Facts | None:
    """Find a scaling at a layer type that is unscaled in this family, beside that of the layer type
    that is scaled: the same one, or any in a model of a published size and length.
    """
    # without a published model, another scaling at each layer type may be meant
    published = any(case.served in each["lengths"] for each in rows_of(case))
    layers, thetas = layers_of(_objects(case)[0] or {}), case.family.layer_thetas
    scaled = [n for n in layers if n in thetas and thetas[n].scaled and not _is_default(layers[n])]
    for name in (n for n in layers if n in thetas and not thetas[n].scaled):
        rope = layers[name]
        # equal but for theta
        same = [n for n in scaled if {**layers[n], THETA: 0} == {**rope, THETA: 0}]
        if scaled and not _is_default(rope) and (published or same):
            new = {"rope_type": "default", THETA: rope.get(THETA, thetas[name].default)}
            facts = {"key": f"rope_parameters.{name}", "value": type_of(rope), "new": new}
            facts |= {"layer": scaled[0], "model": case.model_type, "name": name}
            return {**facts, "holder": case.text["rope_parameters"]}
    return None


@finder
def full_not_proportional(case: Examination, row: Mistake) -> Facts | None:
    """Find full attention that rotates whole heads in a family whose rope_type there is
    proportional, which rotates a part of each head; `names` has {model type: that part}.
    """
    rope = layers_of(_objects(case)[0] or {}).get("full_attention")
    if case.model_type not in row.names or rope is None:
        return None
    facts = {"model": case.model_type, "holder": rope, "place": "rope_parameters.full_attention"}
    # the rope_type or, beside the right one, the fraction was lost
    if type_of(rope) == "default":
        facts |= {"name": "rope_type", "value": "default", "new": "proportional"}
    elif type_of(rope) == "proportional" and rope.get(FRACTION) is None:
        facts |= {"name": FRACTION, "value": None, "new": float(row.names[case.model_type])}
    else:
        return None
    return {**facts, "key": f"{facts['place']}.{facts['name']}"}


@finder
def vision_theta(case: Examination, row: Mistake) -> Facts | None:
    """Find another theta in the vision tower, the model that encodes images, than every model with
    this tower has; `names` has {model type of a tower: its theta}.
    """
    tower = case.root.get("vision_config")
    if (
        not isinstance(tower, dict)
        or (usual := row.names.get(str(tower.get("model_type")))) is None
    ):
        return None
    for place in ("rope_parameters", ""):  # "": in the config of the tower itself
        holder = tower.get(place) if place else tower
        value = positive(holder.get(THETA)) if isinstance(holder, dict) else None
        if value not in (None, float(usual)):
            key = ".".join(filter(None, ("vision_config", place, THETA)))
            facts = {"key": key, "value": value, "new": float(usual), "holder": holder}
            return {**facts, "name": THETA, "model": tower["model_type"]}
    return None


@finder
def layer_thetas_swapped(case: Examination, row: Mistake) -> Facts | None:
    """Find full attention with a smaller theta than sliding attention, which looks less far; `keys`
    has the names of these two layer types in this order.
    """
    layers = layers_of(_objects(case)[0] or {})
    places = []
    for name in row.keys:
        theta = case.family.layer_thetas.get(name)
        rope = layers.get(name, {})
        if rope.get(THETA) is not None:
            places.append((rope, THETA))
        elif theta is not None and theta.key is not None:
            places.append((case.text, theta.key))
    # (0, 0) if one of the two has no place for its theta
    full, sliding = (positive(holder.get(key)) for holder, key in places) if places[1:] else (0, 0)
    if not full or not sliding or full >= sliding:
        return None
    return {"key": places[0][1], "value": full, "other": sliding, "places": places}


@repair
def swap_layer_thetas(case: Examination, row: Mistake, facts: Facts) -> None:
    """Exchange the thetas of the two layer types."""
    values = facts["other"], facts["value"]
    for (holder, key), value in zip(facts["places"], values, strict=True):
        holder[key] = value


def _of_latent_head(case: Examination, fraction: float) -> bool:
    """Return whether a fraction of the head is the width that latent attention rotates. The head
    may be given as such, or as that width and the rest.
    """
    latent, rest = (whole(case.text.get(key)) for key in (keys.LATENT_KEY, "qk_nope_head_dim"))
    heads = (whole(case.text.get(key)) for key in ("head_dim", "qk_head_dim"))
    return latent is not None and any(
        head and head * fraction == latent for head in (*heads, latent + (rest or 0))
    )


@finder
def fraction_unread(case: Examination, row: Mistake) -> Facts | None:
    """Find a fraction of the head in a family whose code rotates whole heads; `names` has
    "scaled" for configs with a scaling and "plain" for those without.
    """
    family = case.family
    # latent attention has a width of its own, which an unscaled rope takes as it is; a scaled one
    # multiplies it by the fraction
    own_width = family.latent and case.rope_type == "default"
    if not family.known or family.unscaled_reads_fraction or own_width:
        return None
    # in p-RoPE, the rope_type "proportional", the fraction is a setting of the scaling
    if any(type_of(rope) == "proportional" for _, rope in case.ropes()):
        return None
    if ("plain" if case.rope_type == "default" else "scaled") not in row.names:
        return None
    for place, holder in case.places():
        for key in keys.FRACTION_KEYS:
            value = positive(holder.get(key))
            if value is not None and value < 1 and not _of_latent_head(case, value):
                # with a scaling the model does not run, so the fraction is wrong. Without one, the
                # weights may have been trained with it, unless all published models of these sizes
                # rotate whole heads: their rows have no "rotated", so `widths` is {None}
                widths = {each.get("rotated") for each in rows_of(case)}
                return {
                    "key": at(place, key),
                    "value": value,
                    "holder": holder,
                    "name": key,
                    "model": case.model_type,
                    "fixable": "scaled" in row.names or widths == {None},
                }
    return None


@finder
def width_contradicts(case: Examination, row: Mistake) -> Facts | None:
    """Find rotary_dim beside a fraction that gives another width; the published width decides."""
    width, head = positive(case.text.get("rotary_dim")), case.head_dim
    fraction = positive(case.get(FRACTION)) or positive(case.text.get("rotary_pct"))
    if "rotary_dim" not in case.family.reads or not width or not fraction or not head:
        return None
    if int(head * fraction) != width and fraction <= 1:  # above 1: see `fraction_too_large`
        # the published widths
        rotated = {each.get("rotated") for each in rows_of(case)}
        # {published width: what to write}: if that of rotary_dim was published, the fraction that
        # gives it; if that of the fraction was, it as rotary_dim
        new = {width: width / head, int(head * fraction): int(head * fraction)}
        new = new[rotated.pop()] if len(rotated) == 1 and rotated <= new.keys() else None
        name = "rotary_dim" if isinstance(new, int) else FRACTION
        places = (holder for _, holder in case.places() if holder.get(name) is not None)
        holder = next(places, None)
        return {
            "new": new,
            "name": name,
            "holder": holder,
            "fixable": new is not None and holder is not None,
            "key": "rotary_dim",
            "value": width,
            "other": fraction,
            "width": int(head * fraction),
            "head": head,
        }
    return None


@finder
def trained_length_inside(case: Examination, row: Mistake) -> Facts | None:
    """Find a trained length inside the rope in a family whose class has a default outside it,
    which comes before the one inside.
    """
    default, rope = case.family.defaults.get(TRAINED_LENGTH_KEY), case.flat()
    inside = positive(rope.get(TRAINED_LENGTH_KEY)) if rope else None
    if default is None or inside in (None, default) or case.rope_type == "default":
        return None
    if published_trained_length(case) not in (None, inside):  # it is wrong, not only at its place
        return None
    if case.text.get(TRAINED_LENGTH_KEY) is not None:  # `trained_length_twice` is about the two
        return None
    facts = {"key": TRAINED_LENGTH_KEY, "value": inside, "new": inside, "default": default}
    return {**facts, "holder": case.text, "name": TRAINED_LENGTH_KEY, "model": case.model_type}


@finder
def trained_length_outside(case: Examination, row: Mistake) -> Facts | None:
    """Find a trained length outside rope_scaling alone, in a family whose class has no default
    for it, so that some code looks for it inside; `keys` has the scalings.
    """
    rope, outside = case.text.get("rope_scaling"), whole(case.text.get(TRAINED_LENGTH_KEY))
    if not isinstance(rope, dict) or rope is not case.flat() or outside is None:
        return None
    if read_type(case, rope) not in row.keys or TRAINED_LENGTH_KEY in case.family.defaults:
        return None
    if rope.get(TRAINED_LENGTH_KEY) is not None:
        return None
    facts = {"key": TRAINED_LENGTH_KEY, "value": outside, "new": outside, "type": type_of(rope)}
    return {**facts, "holder": rope, "name": TRAINED_LENGTH_KEY}


@finder
def two_fields(case: Examination, row: Mistake) -> Facts | None:
    """Find a scaling with a field that is not in `keys`, in a model whose own code refuses it;
    `names` has the model types.
    """
    rope = case.text.get("rope_scaling")
    if case.model_type not in row.names or not isinstance(rope, dict) or not rope:
        return None
    kind, more = type_of(rope), [key for key in rope if key not in row.keys]
    if not more or not isinstance(kind, str):  # spelling.py is about a type that is no text
        return None
    facts = {"key": ", ".join(more), "value": kind, "model": case.model_type}
    # fixable if `rope_type`, a second name of the type, is all that has to go, and the scaling is
    # one of the two that the model's code has
    rest = {"type": kind, **{key: rope[key] for key in row.keys[1:] if key in rope}}
    fixable = more == ["rope_type"] and rest.keys() == {*row.keys}
    facts |= {"holder": case.text, "name": "rope_scaling", "new": rest}
    return {**facts, "fixable": fixable and kind in ("linear", "dynamic")}


@finder
def trained_length_twice(case: Examination, row: Mistake) -> Facts | None:
    """Find a trained length outside the rope, under a name in `keys`, that differs from the one
    inside. A name other than the first, the standard one, may mean another length, so it counts
    only if its value times the factor is the served length.
    """
    rope = case.flat()
    inside = positive(rope.get(TRAINED_LENGTH_KEY)) if rope else None
    factor, served = case.factor, case.served
    name = next((key for key in row.keys if positive(case.text.get(key))), row.keys[0])
    outside = positive(case.text.get(name))
    if rope is None or inside is None or outside is None or inside == outside:
        return None
    # the right one, times the factor, is the served length, or else it is the published one
    fits = [each for each in (inside, outside) if factor and each * factor == served]
    known = published_trained_length(case)
    if name != row.keys[0] and (fits != [outside] or known is not None):
        return None
    new = fits[0] if len(fits) == 1 else known if known in (inside, outside) else None
    return {
        "key": TRAINED_LENGTH_KEY,
        "value": inside,
        "other": outside,
        "rope": rope,
        "name": name,
        "new": new,
        "fixable": new is not None,
    }


@repair
def one_trained_length(case: Examination, row: Mistake, facts: Facts) -> None:
    """Write the same trained length at both places."""
    facts["rope"][TRAINED_LENGTH_KEY] = case.text[facts["name"]] = facts["new"]


@finder
def theta_null(case: Examination, row: Mistake) -> Facts | None:
    """Find a theta that is null, where the model's code does not allow it. The theta to write is
    another one that the config gives, or the published one.
    """
    error = case.error()
    if error is None or error.field != THETA or error.value is not None:
        return None
    for place, holder in case.places():
        if THETA in holder and holder[THETA] is None:
            known = published_theta(case)
            given = case.get(case.family.renamed.get(THETA, THETA)) or case.get(THETA)
            new = positive(given) or (min(known) if len(known) == 1 else None)
            key = f"{place}.{THETA}" if place else THETA
            facts = {"key": key, "value": None, "new": new, "fixable": new is not None}
            return {**facts, "holder": holder, "name": THETA}
    return None
