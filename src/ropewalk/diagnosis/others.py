"""Mistakes that are not in the rope itself: a draft model, a GGUF file, an unknown family, keys
that are not read.

A finder looks for one mistake in the config `case` and returns the facts about it, or None. The
facts `key` and `value` are reported, most repairs write `new` at `holder[name]`, and other facts
are for the texts of the row or for its repair. With `fixable` False the config does not say what
was meant: the mistake is reported, and no repair is made. `row` is the row of mistakes.toml that
names the finder, with the `keys` or `names` that it looks for; several rows may name one finder.
The finders of GGUF files have no repair: of their facts `type`, `new` and `trained` the caller makes
flags of llama.cpp.

Words of this module:
  draft      a smaller model that proposes tokens for a model, the target; both need the same rope.
             `case.draft` is its config, None if there is none
  metadata   that of a GGUF file, whose values `_gguf` looks up; None for other configs
  error      why the reader of configs refuses this one; `error.field` is the key that it is about
  spec       what defines a rope; `case.specs()` has that of each layer type
  family     what the code of this model type fixes. `known` is False for a model type that is in no
             table
"""

from __future__ import annotations

import copy
import re
from typing import Any

from ropewalk.config import keys
from ropewalk.config.families import families
from ropewalk.config.hf import read_specs
from ropewalk.diagnosis.case import (
    OBJECT_KEYS,
    Examination,
    Facts,
    positive,
    specs_of,
    text_of,
    type_of,
    whole,
)
from ropewalk.diagnosis.lengths import SAME_LENGTH, covered
from ropewalk.diagnosis.mistakes import FINDERS, Mistake, finder, repair
from ropewalk.diagnosis.spelling import LIKENESS, nearest
from ropewalk.errors import RopeError
from ropewalk.frequencies.scaling import SERVED_LENGTH_KEY, TRAINED_LENGTH_KEY

#: values of position_embedding_type that ask for no rotation
UNROTATED = ("absolute", "relative_key", "relative_key_query", "alibi", "nope", "learned")
#: the scaling types that llama.cpp knows
GGUF_TYPES = ("none", "linear", "yarn", "longrope")
#: the config keys of a model that its draft takes over
INHERITED = (*OBJECT_KEYS, "rope_theta", TRAINED_LENGTH_KEY, SERVED_LENGTH_KEY)


def _without_rotation(case: Examination, row: Mistake) -> bool:
    """Return whether a config cannot be read for one of these reasons: its model does not rotate,
    no spec describes its rotation, code that is not known may define it, or it has no rope object
    and a model type of `keys`, whose class has ropes of its own.
    """
    error, family = case.error(), case.family
    if error is None:
        return False
    # the error of a config of an unknown family without any key of a rope
    in_code = error.field == "rope_parameters or rope_theta"
    # a scaling that code beside the weights may know
    in_code |= case.own_code and error.field in ("rope_type", "type")
    in_code |= error.field == "rope_parameters" and case.model_type in row.keys
    return family.refused is not None or _switched_off(case, error) or in_code


def _switched_off(case: Examination, error: RopeError) -> bool:
    """Return whether a config cannot be read because a key of it says that the model does not
    rotate. A null says nothing.
    """
    return error.field == "alibi" or (
        error.field in case.family.rotates_if and error.value is not None
    )


def _is_absent(case: Examination, key: str) -> bool:
    """Return whether the last part of a key such as "rope_parameters.factor" is in no rope of the
    config and not in the config itself.
    """
    last = key.rsplit(".", 1)[-1]
    return all(last not in holder for _, holder in case.places())


@finder
def unreadable(case: Examination, row: Mistake) -> Facts | None:
    """Find a config that cannot be read, for a reason that no other row is about; a row with "note"
    in `names` is for models that do not rotate, or by no rope that a spec describes. `keys` has the
    model types whose class has unscaled ropes of its own where the config has no rope object.
    """
    error = case.error()
    if error is None or _without_rotation(case, row) != ("note" in row.names):
        return None
    if error.field == "rope_parameters or rope_theta":  # neither is given
        return {"key": "rope_theta", "value": None, "why": error.rule, "absent": True}
    absent = _is_absent(case, error.field)
    # the row "rope_not_described" repeats the value of the error, others say that the key is absent
    value = None if absent and row.id != "rope_not_described" else error.value
    why = error.rule
    if case.model_type in row.keys and "note" in row.names:
        why = f"the class of {case.model_type} has plain ropes of its own"
    return {"key": error.field, "value": value, "why": why, "absent": absent}


@finder
def config_wrapped(case: Examination, row: Mistake) -> Facts | None:
    """Find the whole config inside another object, with nothing outside that a config must have."""
    # known text parts, such as text_config, are read where they are
    if case.text is not case.root:
        return None
    needed = (*keys.HIDDEN_SIZE_KEYS, "model_type", "architectures")
    inside = [
        name
        for name, value in case.root.items()
        if isinstance(value, dict)
        and value.get("model_type")
        and any(value.get(key) for key in keys.HIDDEN_SIZE_KEYS)
    ]
    if any(case.root.get(key) is not None for key in needed) or len(inside) != 1:
        return None
    part = case.root[inside[0]]
    # no key has one value outside and another inside
    fits = all(case.root.get(key) in (None, value) for key, value in part.items())
    return {"key": inside[0], "value": part["model_type"], "fixable": fits, "name": inside[0]}


@repair
def unwrap_config(case: Examination, row: Mistake, facts: Facts) -> None:
    """Write the keys of the object into the config itself."""
    case.root.update(case.root.pop(facts["name"]))


@finder
def model_type_missing(case: Examination, row: Mistake) -> Facts | None:
    """Find a config without model_type whose `architectures` name the class of a known family."""
    if case.text.get("model_type") or case.root.get("model_type"):
        return None
    classes = case.root.get("architectures")
    if not isinstance(classes, list) or not classes or not isinstance(classes[0], str):
        return None
    # the class of a family is named after it: Qwen2ForCausalLM
    stem = re.sub(r"(For[A-Z]\w*|LMHeadModel|Model)$", "", classes[0]).lower()
    known = [name for name in families() if name.replace("_", "") == stem]
    if not known:
        return None
    facts = {"key": "model_type", "value": classes[0], "new": known[0]}
    return {**facts, "holder": case.root, "name": "model_type"}


@finder
def family_unknown(case: Examination, row: Mistake) -> Facts | None:
    """Find a model type whose code is not known, or a config without a model type."""
    # "_class_name" is in configs of diffusers, which have no model_type
    if case.family.known or "_class_name" in case.text:
        return None
    near = nearest(str(case.model_type), families(), LIKENESS)
    likely = f" (perhaps {near})" if near else ""
    return {"key": "model_type", "value": case.model_type, "likely": likely}


@finder
def rope_of_fixed_family(case: Examination, row: Mistake) -> Facts | None:
    """Find a scaling, or one of `keys`, in a model whose code reads none: a model of `names`, {model
    type: what it has instead of a scaling}, or one whose rope is switched off. One of `keys` alone
    is reported only for a model type in no table, and not for "no rope", whose published configs
    may have them.
    """
    instead, error = row.names.get(str(case.model_type)), case.error()
    if instead is None and error is not None and _switched_off(case, error):
        instead = f"no rope ({error.field} is {error.value})"
    if instead is None:
        return None
    facts, rope = {"has": instead, "model": case.model_type}, case.flat()
    # where the family is known, other rows are about keys that its code does not read
    if instead != "no rope" and not case.family.known:
        for key in row.keys:
            if (value := case.text.get(key)) not in (None, *UNROTATED):
                return {**facts, "key": key, "value": value}
    if rope is None or type_of(rope) in (None, "default"):
        return None
    return {**facts, "key": case.ropes()[0][0], "value": type_of(rope)}


@finder
def keys_unread(case: Examination, row: Mistake) -> Facts | None:
    """Find what the reader of configs warns about: keys that the model's code does not read, and
    settings that the config gives twice with different values.
    """
    try:
        told = read_specs(case.root, "exact")[1].warnings
    except RopeError:
        return None
    # another row is about an unknown model_type
    told = tuple(text for text in told if not text.startswith("model_type:"))
    return {"key": "config", "value": len(told), "told": "; ".join(told)} if told else None


def _scaled(specs: dict[str, Any] | None) -> bool:
    """Return whether any layer type has a scaling."""
    return any(s is not None and s.scaling.name != "default" for s in (specs or {}).values())


@finder
def draft_mistaken(case: Examination, row: Mistake) -> Facts | None:
    """Find a draft model whose own config has an error or a warning; reported is the heaviest."""
    if case.draft is None or case.examine is None:
        return None
    found = case.examine(case.draft)
    told = next((each for each in found.findings if each.severity != "note"), None)
    if told is None:
        return None
    new = found.corrected
    return {"key": "draft", "value": told.id, "told": told.cause, "new": new, "fixable": bool(new)}


@repair
def mend_draft(case: Examination, row: Mistake, facts: Facts) -> None:
    """Write the corrected config of the draft."""
    case.draft = facts["new"]


@finder
def draft_differs(case: Examination, row: Mistake) -> Facts | None:
    """Find a draft model whose rope lacks the scaling of the model it drafts for.

    Another scaling may be its own: Llama 3.2 drafts for Llama 3.1 with a larger factor.
    """
    if case.draft is None:
        return None
    target, draft = case.specs(), specs_of(case.draft)
    if target is None or draft is None:
        return None
    # the rope of the first layer type that rotates
    of_model = next((s for s in target.values() if s is not None), None)
    of_draft = next((s for s in draft.values() if s is not None), None)
    if of_model is None or of_draft is None or not _scaled(target) or _scaled(draft):
        return None
    given = text_of(case.draft).get("rope_theta")
    # the rope of the model fits a draft with heads of the same rotated width and the same theta; one
    # that gives no theta has lost that of the model
    same = of_model.rotated_dims == of_draft.rotated_dims and (
        given is None or of_model.theta == of_draft.theta
    )
    reach = covered(Examination(case.draft))  # the longest length that its rope was made for
    return {
        "key": "draft",
        "value": of_draft.scaling.name,
        "target": of_model.scaling.name,
        "from": reach,
        "theta": of_draft.theta,
        "other": of_model.theta,
        # ropes of several layer types are for the layers of the model, and a draft has others
        "fixable": same and len(target) == 1,
    }


@repair
def inherit(case: Examination, row: Mistake, facts: Facts) -> None:
    """Write the rope and the lengths of the model into the config of its draft, in place of all keys
    that the draft has of them.
    """
    assert case.draft is not None
    draft = text_of(case.draft)
    for key in INHERITED:
        draft.pop(key, None)
        if case.text.get(key) is not None:
            draft[key] = copy.deepcopy(case.text[key])


def _gguf(case: Examination, key: str) -> Any:
    """Return a value of a GGUF file by its key without the architecture's name; None if absent."""
    return (case.metadata or {}).get(f"{case.architecture}.{key}")


@finder
def gguf_factor_missing(case: Examination, row: Mistake) -> Facts | None:
    """Find a scaling type of a GGUF file whose factor is absent, not a positive number, or 1."""
    kind, factor = _gguf(case, "rope.scaling.type"), _gguf(case, "rope.scaling.factor")
    # linear and yarn have a factor
    if kind not in GGUF_TYPES[1:3] or positive(factor) not in (None, 1):
        return None
    trained = whole(_gguf(case, "rope.scaling.original_context_length"))
    served = whole(_gguf(case, "context_length"))
    # the factor, None if the lengths do not give it
    new = served / trained if served and trained and served > trained else None
    return {
        "key": "rope.scaling.factor",
        "value": factor,
        "type": kind,
        "new": new,
        "trained": trained,
    }


@finder
def gguf_type_missing(case: Examination, row: Mistake) -> Facts | None:
    """Find a factor of a GGUF file whose scaling type is absent or none."""
    kind, factor = _gguf(case, "rope.scaling.type"), positive(_gguf(case, "rope.scaling.factor"))
    if kind not in (None, "none") or factor is None or factor == 1:
        return None
    return {"key": "rope.scaling.type", "value": kind, "factor": factor}


@finder
def gguf_type_unknown(case: Examination, row: Mistake) -> Facts | None:
    """Find a scaling type of a GGUF file that llama.cpp has no name for."""
    kind = _gguf(case, "rope.scaling.type")
    if kind is None or kind in GGUF_TYPES:
        return None
    return {"key": "rope.scaling.type", "value": kind, "known": ", ".join(GGUF_TYPES)}


@finder
def gguf_trained_length_missing(case: Examination, row: Mistake) -> Facts | None:
    """Find YaRN in a GGUF file without the trained length."""
    factor = positive(_gguf(case, "rope.scaling.factor"))
    key = "rope.scaling.original_context_length"
    if _gguf(case, "rope.scaling.type") != "yarn" or factor in (None, 1) or _gguf(case, key):
        return None
    return {"key": key, "value": None, "served": _gguf(case, "context_length")}


@finder
def gguf_theta_lost(case: Examination, row: Mistake) -> Facts | None:
    """Find a GGUF file of a published model with the default theta in place of the published one, as
    the finder for other configs does.
    """
    facts = FINDERS["theta_lost"](case, row)
    # by this "type" the flag of theta is proposed, not one of a scaling
    return facts and {**facts, "key": "rope.freq_base", "type": "theta"}


@finder
def gguf_trained_length_wrong(case: Examination, row: Mistake) -> Facts | None:
    """Find another trained length of YaRN in a GGUF file than the published one, as the finder for
    other configs does.
    """
    facts = FINDERS["trained_length_wrong"](case, row)
    key = "rope.scaling.original_context_length"
    # flags of llama.cpp are made of the trained length and, as "new", the factor
    return facts and {**facts, "key": key, "trained": facts["new"], "new": facts["factor"]}


@finder
def gguf_lengths(case: Examination, row: Mistake) -> Facts | None:
    """Find a context length of a GGUF file that its YaRN, trained length x factor, does not reach;
    `new` is the factor that does.
    """
    trained = whole(_gguf(case, "rope.scaling.original_context_length"))
    factor, served = (
        positive(_gguf(case, "rope.scaling.factor")),
        whole(_gguf(case, "context_length")),
    )
    if _gguf(case, "rope.scaling.type") != "yarn" or not trained or not factor or not served:
        return None
    if served <= trained * factor * (1 + SAME_LENGTH):
        return None
    return {
        "key": "context_length",
        "value": served,
        "covered": round(trained * factor),
        "new": served / trained,
        "trained": trained,
        "factor": factor,
    }


@finder
def gguf_width(case: Examination, row: Mistake) -> Facts | None:
    """Find a rotated width of a GGUF file that is odd or wider than the head."""
    width, head = (
        whole(_gguf(case, "rope.dimension_count")),
        whole(_gguf(case, "attention.key_length")),
    )
    if width is None or not (width % 2 or (head is not None and width > head)):
        return None
    return {"key": "rope.dimension_count", "value": width, "head": head}
