"""Keys of other stacks in a config.json: those of llama.cpp, text-generation-webui, ChatGLM, Meta
and Mistral, arguments of engines, and keys that nothing reads; and files that are not quite JSON.

A finder looks for one mistake in the config `case` and returns the facts about it, or None. The
facts `key` and `value` are reported, most repairs write `new` at `holder[name]`, and other facts
are for the texts of the row or for its repair. With `fixable` False the config does not say what
was meant: the mistake is reported, and no repair is made. `row` is the row of mistakes.toml that
names the finder, with the `keys` or `names` that it looks for; several rows may name one finder.

Words of this module:
  stack      a library or a program that has model configs with keys of its own
  meaning    gives the sense of a key of another stack by aliases.toml: mostly a key of transformers
  read       the key that the code of this model's family reads, where families have several names
             for one value: `family.renamed` has {standard name: its name here}
  family     what the code of this model type fixes. `known` is False for a model type that is in no
             table, whose code may read any key
  metadata   that of a GGUF file; None for other configs
  rows_of    gives rows of published.json: the published models of the config's sizes
  NTK        an extension by a larger theta, here by a fixed factor, which some stacks call alpha
"""

from __future__ import annotations

import json
import re
from typing import Any

from ropewalk.config import keys
from ropewalk.config.checks import CONFIG_CHECKS
from ropewalk.diagnosis.aliases import meaning
from ropewalk.diagnosis.case import (
    OBJECT_KEYS,
    Examination,
    Facts,
    number_of,
    positive,
    type_of,
    whole,
)
from ropewalk.diagnosis.lengths import length_key, magnitude
from ropewalk.diagnosis.mistakes import Mistake, finder, repair
from ropewalk.diagnosis.published import rows_of
from ropewalk.diagnosis.spelling import scaling_called
from ropewalk.errors import RopeError
from ropewalk.frequencies.formulas import ntk_theta
from ropewalk.frequencies.scaling import TRAINED_LENGTH_KEY

THETA = "rope_theta"
#: meanings that `_foreign` leaves out: keys without one, and keys that other rows are about
NOT_FOREIGN = (
    None,
    "partial_rotary_factor",
    "rotary_dim",
    "max_position_embeddings",
    "rope_scaling",
)
#: the theta that ChatGLM multiplies by rope_ratio
CHATGLM_THETA = 10_000.0
#: the scaling of Llama 3.1, for which Meta's own config has only a flag
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    TRAINED_LENGTH_KEY: 8192,
}
#: the keys of Mistral's `yarn` block, by those of a rope object
PARAMS = {
    "factor": "factor",
    TRAINED_LENGTH_KEY: TRAINED_LENGTH_KEY,
    "beta_fast": "beta",
    "beta_slow": "alpha",
}
#: words in the names of keys that have to do with a rope
ROPE_WORDS = re.compile(
    r"rope|rotary|yarn|ntk|pos_emb|theta|freq_base|freq_scale|base_freq|alpha_value"
)
#: keys with such a word that say nothing about the angles, or that published configs have
HARMLESS = re.compile(
    r"no_rope|nope|^use_|^enable_|_dim$|_dims$|traditional|interleave|position_embedding|type|_3d"
    r"|attention|attn_rotary_emb|cache|fus|impl|kernel|scale_base|mscale|layers"
)
#: values that change nothing wherever they are read
TRIVIAL: tuple[Any, ...] = (None, False, 0, 1, "", "default", "none", "rope")


def as_json(text: str, error: RopeError) -> str:
    """Return the text of a config as JSON: without comments and without commas after the last key,
    with the words of JSON for those of Python, and if need be, double quotes for single ones. Raise
    `error`, with which JSON was refused before, if the result is no JSON either.
    """
    # odd parts are strings, which stay as they are; even parts are what is between them. A string
    # without its end goes on to the end of the line, and a comment without it to the end of the
    # part, so that the search for an end is not begun anew at each later character
    parts = re.split(r'("(?:[^"\\\n]|\\.)*+"?)', text)
    for index in range(0, len(parts), 2):
        part = re.sub(
            r"//[^\n]*|/\*.*?(?:\*/|\Z)|(?m:^[ \t]*#[^\n]*)", "", parts[index], flags=re.DOTALL
        )
        for python, word in (("True", "true"), ("False", "false"), ("None", "null")):
            part = re.sub(rf"\b{python}\b", word, part)
        parts[index] = part
    # a mark between parts, so that a comma inside a string is not taken for a last one
    joined = "\0".join(parts)
    joined = re.sub(r",([\s\0]*[}\]])", r"\1", joined).replace("\0", "")
    for each in (joined, joined.replace("'", '"')):
        try:
            json.loads(each)
        except (ValueError, RecursionError):
            continue
        return each
    raise error


@finder
def not_json(case: Examination, row: Mistake) -> Facts | None:
    """Find a file that is not quite JSON, and was read all the same."""
    return {"key": "config", "value": case.not_json} if case.not_json else None


@repair
def write_json(case: Examination, row: Mistake, facts: Facts) -> None:
    """Take what was read: the corrected config is JSON."""
    case.not_json = ""


@finder
def arguments_in_config(case: Examination, row: Mistake) -> Facts | None:
    """Find the arguments of an engine in the config, under a name in `keys`, as an object or as a
    text of JSON. Only arguments that are about the rope or a length count.
    """
    # first the text part of the config, then the whole config; both may be the same object
    for holder in (case.text, case.root):
        for key in (key for key in row.keys if key in holder):
            block = holder[key]
            if isinstance(block, str) and len(block) < 1 << 16:  # a longer text is none of these
                try:
                    block = json.loads(block)
                except (ValueError, RecursionError):
                    continue
            wanted = {*OBJECT_KEYS, THETA, *keys.LENGTH_KEYS, TRAINED_LENGTH_KEY}
            # the arguments may be nested as the config is
            block = block.get("text_config", block) if isinstance(block, dict) else {}
            if isinstance(block, dict) and (new := {k: block[k] for k in block if k in wanted}):
                facts = {"key": key, "value": ", ".join(new), "new": new, "name": key}
                # "place" is the dict that has the block; the keys in "follows" may lose the values
                # that the config has: what the arguments say takes their place
                return {**facts, "place": holder, "follows": tuple(new)}
    return None


@repair
def take_arguments(case: Examination, row: Mistake, facts: Facts) -> None:
    """Write the arguments as keys of the config, and remove the block that has them."""
    del facts["place"][facts["name"]]
    case.text.update(facts["new"])
    _without_empty(case)


def _without_empty(case: Examination) -> None:
    """Remove a `rope_scaling` that is null or empty beside `rope_parameters` that are an object."""
    if isinstance(case.text.get("rope_parameters"), dict) and not case.text.get("rope_scaling"):
        case.text.pop("rope_scaling", None)


def _foreign(case: Examination) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (found, meant): {key of another stack: its value} of the config, and what these keys
    mean as {key of a rope object: value}. `meant` may also have "ntk", NTK's factor, and
    "magnitude", a multiple of YaRN's magnitude. Its rope_type is "" if the keys name two scalings.
    """
    found, meant = {}, {}
    read = case.family.renamed.get(THETA, THETA)
    for key, value in case.text.items():
        sense = meaning(key)
        if sense in NOT_FOREIGN or (key in CONFIG_CHECKS and sense != THETA):
            continue
        number = positive(value)
        if isinstance(value, str):  # a number as text
            try:
                number = positive(float(value))
            except ValueError:
                number = None
        if sense == THETA and case.get(read) is None:
            continue  # the only theta: another row renames its key to the one that is read
        found[key] = value
        if sense == "params" and isinstance(value, dict):
            meant |= {own: value[k] for own, k in PARAMS.items() if positive(value.get(k))}
            if value.get("apply_scale") is False:  # the magnitude is 1
                meant |= {"mscale": 1.0, "mscale_all_dim": 1.0}
            meant["rope_type"] = "yarn"
        elif sense == "llama3" and value is True:
            meant |= LLAMA3
        elif sense == "rope_type" and isinstance(value, str):
            meant["rope_type"] = scaling_called(value) or value.lower()
        elif sense == "1/factor" and number:
            meant["factor"] = 1 / number
        elif sense == "ntk" and number:
            meant["ntk"] = number
        elif sense == "magnitude" and number:
            meant["magnitude"] = number
        elif sense == "ratio" and number:
            meant[THETA] = CHATGLM_THETA * number
        # any further sense is a key of a rope; "params", "llama3" and "rope_type" come here only with
        # a value of the wrong kind, which is left out
        elif number and sense not in ("nothing", "params", "llama3", "rope_type"):
            meant[sense] = value if sense == TRAINED_LENGTH_KEY else float(number)
    # keys such as yarn_orig_ctx name the scaling of a factor
    if any("yarn_" in key.lower() for key in found) and "factor" in meant:
        meant.setdefault("rope_type", "yarn")
    if "factor" in meant:  # a word beside it is its type; of two words none can be written
        words = {key: case.text.get(key) for key in ("rope_type", "rope_scaling")}
        words = {key: word for key, word in words.items() if word and isinstance(word, str)}
        kinds = {meant.get("rope_type", "")} - {""}
        kinds |= {scaling_called(word) or word for word in words.values()}
        if kinds:
            meant["rope_type"] = kinds.pop() if len(kinds) == 1 else ""
        found |= words
    return found, meant


@finder
def key_of_another_stack(case: Examination, row: Mistake) -> Facts | None:
    """Find keys of another stack that this model's code does not read, with what they mean here.

    Facts for the repair: `gone`, the keys to remove; `scaling`, the keys of a rope to write; `rope`,
    the rope object that has the same scaling without them, or None; `theta`, the theta to write as
    the key `name`, or None. The mistake is `fixable` if nothing that the model reads contradicts
    the keys, and they say one scaling with all that it needs.
    """
    if not case.family.known:
        return None
    found, meant = _foreign(case)
    if not found:
        return None
    kind, theta = meant.get("rope_type"), meant.pop(THETA, None)
    # `alpha` raises theta by NTK, `times` multiplies the magnitude of YaRN
    alpha, width, times = meant.pop("ntk", 1.0), case.head_dim, meant.pop("magnitude", 1.0)
    if times != 1 and "factor" in meant:  # YaRN's own magnitude follows from the factor
        meant["attention_factor"] = times * magnitude(meant["factor"])
    read = case.family.renamed.get(THETA, THETA)
    own = positive(case.get(read)) or positive(case.get(THETA))  # that the model reads
    base = theta or own or case.family.default(THETA)
    new_theta = theta
    if alpha > 1 and width and width > 2:
        new_theta = float(ntk_theta(base, alpha, width))
    # `scaled`: the config has a scaling already; `rope`: its only rope object, or None
    scaled, rope = case.rope_type != "default", case.flat()
    # a factor alone is linear, also in other stacks; without a factor there is no scaling
    scaling = {} if meant.get("factor", 1) == 1 else {"rope_type": "linear", **meant}
    beside = scaled and rope is not None and all(rope.get(k) in (None, meant[k]) for k in meant)
    if beside:  # the scaling that the config has lacks these keys alone
        scaling = {name: value for name, value in meant.items() if name != "rope_type"}
    rows = rows_of(case)
    published = rows[0].get("scaling") if len(rows) == 1 else None
    if scaling and published and published["rope_type"] == scaling.get("rope_type"):
        scaling = dict(published)  # with the keys that the other stack has no name for
    same_theta = new_theta in (None, own, None if own else case.family.default(THETA))
    # `clash`: not fixable, since the keys that are read have another theta or another scaling, and
    # only one of the two was meant. rope_ratio multiplies 10,000, so beside a theta of 10,000 it
    # does not contradict it; nor does NTK (alpha), which raises the theta that is read
    ratio = own == CHATGLM_THETA and any(meaning(key) == "ratio" for key in found)
    clash = bool(own and not same_theta and alpha <= 1 and not ratio)
    # nor fixable: a second scaling, or keys of one without its factor, so that `scaling` lacks them
    clash |= bool(scaling and scaled and not beside) or bool(
        meant.keys() - scaling.keys() - {"factor"}
    )
    clash |= kind == ""  # two scalings are named
    # without a type a factor alone is linear; keys that linear does not read name another scaling
    clash |= kind is None and not beside and bool(scaling.keys() - {"rope_type", "factor"})
    told = ", ".join(found)
    parts = [f"{key} {value:g}" for key, value in scaling.items() if positive(value)]
    words = " ".join([str(scaling.get("rope_type", "")), *parts]).strip()
    theta_words = "" if same_theta or new_theta is None else f"rope_theta {new_theta:,.0f}"
    return {
        "key": told,
        "value": next(iter(found.values())),
        "words": ", ".join(filter(None, (words, theta_words))) or "nothing",
        "gone": list(found),
        "scaling": scaling,
        "rope": rope if beside else None,
        "theta": None if same_theta else new_theta,
        "name": read,
        "fixable": not clash,
        "model": case.model_type,
        "factor": float(scaling.get("factor", alpha)),
    }


@repair
def translate(case: Examination, row: Mistake, facts: Facts) -> None:
    """Remove the keys of another stack and write what they mean.

    Theta goes into `rope_parameters` (transformers 5) if the config has keys there, else into the
    text part. The scaling goes into facts["rope"], a rope object of the config, if there is one;
    else into `rope_parameters` if it has keys, else into a new `rope_scaling`. A model whose code
    needs `rope_parameters` gets a new one instead, with the scaling and theta.
    """
    for key in facts["gone"]:
        case.text.pop(key)
    v5 = case.text.get("rope_parameters")
    if facts["theta"] is not None:
        holder = v5 if isinstance(v5, dict) and v5 else case.text
        holder[THETA if holder is v5 else facts["name"]] = facts["theta"]
    if facts["rope"] is not None:
        facts["rope"].update(facts["scaling"])
    elif facts["scaling"]:
        if isinstance(v5, dict) and v5:
            v5.pop("type", None)
            v5.update(facts["scaling"])
        elif case.family.rope_required:  # the model's code needs rope_parameters
            theta = case.text.pop(THETA, None)
            own = {} if theta is None else {THETA: theta}
            case.text["rope_parameters"] = {**facts["scaling"], **own}
        else:
            case.text["rope_scaling"] = dict(facts["scaling"])
    # later rows must not extend the rope again up to the length that this one covers
    kind = facts["scaling"].get("rope_type", "ntk" if facts["theta"] else "")
    if kind in ("linear", "ntk") and case.served:
        case.reaches = round(case.served * facts["factor"])
    trained = whole(facts["scaling"].get(TRAINED_LENGTH_KEY))
    # with YaRN, a served length that is still the trained one is raised to the length in use
    if kind == "yarn" and trained and case.served == trained and case.length:
        case.text[length_key(case)] = max(case.length, trained)


@finder
def thetas_of_unknown(case: Examination, row: Mistake) -> Facts | None:
    """Find thetas under several names that differ, in a model whose code is not known, so that it
    may read any of them.
    """
    if case.family.known:
        return None
    thetas = {}
    for key, value in case.text.items():
        sense, number = meaning(key), positive(value)
        # a "ratio" is a theta divided by that of ChatGLM
        if number and (key in keys.THETA_KEYS or sense in (THETA, "ratio")):
            thetas[key] = CHATGLM_THETA * number if sense == "ratio" else number
    if len(set(thetas.values())) < 2:
        return None
    told = ", ".join(f"{key} {theta:,.10g}" for key, theta in thetas.items())
    return {"key": ", ".join(thetas), "value": told, "model": case.model_type}


@finder
def theta_of_two_names(case: Examination, row: Mistake) -> Facts | None:
    """Find two thetas under two names that differ, of which the model's code reads one. The other
    name is a theta key of any family, or one of `keys`.
    """
    read = case.family.renamed.get(THETA, THETA)
    own = positive(case.text.get(read))
    # with a theta for each layer type, two names may be two thetas that are both read
    if own is None or case.family.layer_thetas or not case.family.known:
        return None
    for key in (*keys.THETA_KEYS, *row.keys):
        other = positive(case.text.get(key))
        # 10,000 is the default of most classes, which was written and not chosen
        if key != read and other not in (None, own, 10_000.0):
            facts = {"key": key, "value": other, "name": key, "read": read, "other": own}
            return {**facts, "model": case.model_type}
    return None


def _said_by(case: Examination, key: str, value: Any) -> bool:
    """Return whether a key of another stack says what the model computes anyway, or does not matter
    to its angles, as a served length or a setting without a key in transformers.
    """
    sense = meaning(key)
    specs = [spec for spec in (case.specs() or {}).values() if spec is not None]
    if sense == "rotary_dim":
        return any(spec.rotated_dims == value for spec in specs)
    if sense in keys.FRACTION_KEYS:
        return any(spec.rotated_dims == (number_of(value) or 0) * spec.head_dim for spec in specs)
    if sense == THETA:
        return any(spec.theta == value for spec in specs)
    return sense in keys.LENGTH_KEYS or sense == "nothing"


@finder
def rope_key_unread(case: Examination, row: Mistake) -> Facts | None:
    """Find a key that has a meaning in another stack or a name like one of a rope, that this
    family's code does not read, and whose value could change the rope; `names` has {model type: a
    key that the code in its checkpoints reads}, which counts as read.
    """
    family = case.family
    # "_class_name" is in configs of diffusers, whose models have keys of their own
    if not family.known or "_class_name" in case.text:
        return None
    read = {*family.reads, *family.renamed.values(), *family.defaults, *OBJECT_KEYS}
    read |= {each.key for each in family.layer_thetas.values()}
    read |= {row.names.get(str(case.model_type))}
    # keys that some family reads; if this family does not read one, other rows report it
    anywhere = {*CONFIG_CHECKS, *keys.inner_keys(), *keys.THETA_KEYS, *keys.FRACTION_KEYS}
    for key, value in case.text.items():
        # the theta of one layer type, in a family with one theta: no other row is about that
        theta_of_a_layer_type = key in keys.LAYER_TYPE_THETA_KEYS and not family.layer_thetas
        if key in read or (key in anywhere and not theta_of_a_layer_type):
            continue
        if _said_by(case, key, value):
            continue
        if meaning(key) not in NOT_FOREIGN:  # `key_of_another_stack` is about it
            continue
        lower = key.lower()
        # a key of no known stack is judged by its name alone
        if meaning(key) is None and (not ROPE_WORDS.search(lower) or HARMLESS.search(lower)):
            continue
        if isinstance(value, list | dict | str) and not value:
            continue
        if not isinstance(value, list | dict) and value in TRIVIAL:
            continue
        facts = {"key": key, "value": value, "name": key, "holder": case.text}
        return {**facts, "model": case.model_type}
    return None


@finder
def pairs_contradict(case: Examination, row: Mistake) -> Facts | None:
    """Find a key of another stack that pairs neighbouring dimensions, in a model that pairs i with
    i + d/2 (the layout "half"); `names` has {such a key: the value that says so, as JSON}.
    """
    specs = [spec for spec in (case.specs() or {}).values() if spec is not None]
    if not case.family.known or not specs or any(spec.layout != "half" for spec in specs):
        return None
    for key, value in case.text.items():
        if (
            key in row.names
            and json.dumps(value) == row.names[key]
            and key not in case.family.reads
        ):
            return {"key": key, "value": value, "model": case.model_type}
    return None


@finder
def theta_in_attention_part(case: Examination, row: Mistake) -> Facts | None:
    """Find a `rope_theta` of DBRX outside `attn_config`. Its code reads only the one inside, which
    is missing or different. An outer 10,000 is ignored: it is the default.
    """
    part, outside = case.text.get("attn_config"), positive(case.text.get(THETA))
    if case.model_type != "dbrx" or not isinstance(part, dict):
        return None
    inside = positive(part.get(THETA))
    if outside in (None, 10_000.0, inside):
        return None
    facts = {"key": THETA, "value": outside, "new": outside, "holder": part, "name": THETA}
    facts |= {"inside": f"{inside or 10_000.0:,.0f}", "fixable": inside is None}
    return {**facts, "model": case.model_type}


@finder
def sections_in_text_model(case: Examination, row: Mistake) -> Facts | None:
    """Find the rope type of images and videos, "mrope", in a model whose tokens have one position
    each. It is removed with its sections if the rope has no further key than theta.
    """
    # a family with an order of axes has positions on several axes
    if not case.family.known or case.family.axis_order is not None:
        return None
    for place, rope in case.ropes():
        if type_of(rope) != "mrope":
            continue
        rest = {k: v for k, v in rope.items() if k not in (*keys.AXIS_KEYS, "type", "rope_type")}
        facts = {"key": place, "value": "mrope", "rope": rope}
        fits = place in OBJECT_KEYS and rest.keys() <= {THETA}
        return {**facts, "model": case.model_type, "fixable": fits}
    return None


@finder
def yarn_renamed(case: Examination, row: Mistake) -> Facts | None:
    """Find YaRN in a family whose code reads that name as LongRoPE. A rope with the lists of
    LongRoPE is not reported: for this family the name is correct.
    """
    if case.family.renamed.get("yarn") != "longrope":
        return None
    for place, rope in case.ropes():
        lists = rope.get("short_factor") is not None or rope.get("long_factor") is not None
        if type_of(rope) == "yarn" and not lists:
            return {"key": place, "value": "yarn", "model": case.model_type}
    return None
