"""The ropes of well-known models, recognised by their sizes, and what a config has otherwise.

Fine-tuned models keep their sizes and may have another theta or scaling, so a difference that may
be meant is a note or a warning, and no error.

A finder looks for one mistake and returns the facts about it, or None: `key` and `value` are
reported, other facts are for the texts of its row, and most repairs write `new` at `holder[name]`.
`fixable` is False where the config and the published form leave open what was meant: the mistake is
then only reported. Of several rows of mistakes.toml about similar mistakes one is to report each,
so a finder returns None for what another row says better.

Words of this module:
  row       an argument `row` is the row of mistakes.toml that names the finder, with the `keys` or
            `names` that it looks for; any other row is one of published.json, a published model
  rows_of   the published models with the sizes of the config that fit its name and lengths best;
            `rows_of_any_length`: all with its sizes
  release   one of several published models of the same sizes
  family    in a function, the published models of the config's model_type; `case.family` is what
            the code of that type fixes
  served, trained, length   the length that a config gives (max_position_embeddings), the one that
            the model was trained with before any scaling, and `case.length`, the longest sequence
            in use that the caller of `doctor` gave; in tokens
  known     what is published for the model: its thetas, or where a length is sought its trained one
  case.rope_type, case.flat(), case.specs()   the name of the first scaling ("default": none), the
            only rope (None if there is not just one), and {layer type: its spec}

A row of published.json has the sizes; `theta`, all thetas that the model was published with;
`lengths`, its served lengths; and where it has them `scaling`, the published rope_scaling, and
`trained`. `left_out` in a scaling names keys that it has and the row leaves out. Other keys:
  local_theta       the theta of the layers with a sliding window
  rotated           how many dimensions of a head rotate
  keys              other keys that decide its rope, as its code reads them
  lists             short_factor and long_factor, with `only_lists` if no release has others
  extended          YaRN of releases that were trained on from this one
  brief             its config leaves sizes, and may leave its length, to the model's class
  only_named        it counts only if the config's _name_or_path names it
  inside            it is the language model of a larger model
  windowed          its sliding_window is not null
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

from ropewalk.caches import cached
from ropewalk.config import keys
from ropewalk.diagnosis.case import (
    OBJECT_KEYS,
    Examination,
    Facts,
    layers_of,
    positive,
    read_type,
    specs_of,
    type_of,
    whole,
)
from ropewalk.diagnosis.mistakes import Mistake, finder, repair
from ropewalk.frequencies.formulas import ntk_theta
from ropewalk.frequencies.scaling import TRAINED_LENGTH_KEY

TABLE = Path(__file__).with_name("published.json")
#: what a model is recognised by: all of these must be in the config
IDENTITY = {
    "hidden_size": keys.HIDDEN_SIZE_KEYS,
    "heads": keys.HEAD_COUNT_KEYS,
    "layers": (*keys.LAYER_COUNT_KEYS, "num_layers"),
    "vocab_size": ("vocab_size",),
}
#: keys that tell models of the same sizes apart, if both the config and the row have them
WIDTH = "intermediate_size"
PARALLEL = "use_parallel_residual"
#: settings of a scaling that few models have: without them the formula of the scaling is used
REMOVABLE = ("attention_factor", "mscale", "mscale_all_dim", "beta_fast", "beta_slow")
#: the default theta of most model classes, which a model gets if its config has lost its own
LOST_THETA = 10_000.0
#: sizes that a model shares with the model that its training went on from
SHAPE = ("hidden_size", "heads", "layers")
#: the layer type whose theta is the published one
FULL = "full_attention"


@cached("published ropes", entries=1)
def models() -> tuple[dict[str, Any], ...]:
    """Return the rows of the table: name, sizes, thetas, lengths and scaling."""
    return tuple(json.loads(TABLE.read_text(encoding="utf-8"))["models"])


@cached("published ropes by model type", entries=64)
def models_of(model_type: str | None) -> tuple[dict[str, Any], ...]:
    """Return the rows of the table whose models have a model type."""
    return tuple(row for row in models() if model_type in row["model_types"])


def rows_of_any_length(case: Examination) -> list[dict[str, Any]]:
    """Return the rows of the published models with the sizes of a config, whatever its lengths are.
    One with another vocabulary is a model of its own.
    """
    return _rows_with(case, tuple(IDENTITY))


def _rows_with(case: Examination, names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the rows of the published models of a config's family that have its sizes of these
    `names`.
    """
    text = case.text
    sizes = {
        name: next((text[key] for key in IDENTITY[name] if text.get(key) is not None), None)
        for name in names
    }
    # a language model inside another model may have been trained anew, unless its own type, such as
    # qwen2_vl_text, says that it belongs to that
    inside = text is not case.root and "text" not in str(case.model_type).split("_")
    if None in (sizes["hidden_size"], sizes["layers"]):
        return []
    return [
        row
        for row in models_of(case.model_type)
        # the config of a "brief" model leaves sizes to its class
        if all(
            row[name] == size or (size is None and row.get("brief")) for name, size in sizes.items()
        )
        and (not inside or row.get("inside"))
        and (not row.get("only_named") or _is_named(case, row))
        # keys that the config does not have do not tell models apart
        and text.get("num_key_value_heads") in (None, row.get("kv_heads", row["heads"]))
        and row.get(PARALLEL, True) == text.get(PARALLEL, True)
        # nor does a width that the row does not have
        and row.get(WIDTH, text.get(WIDTH)) in (None, text.get(WIDTH, row.get(WIDTH)))
    ]


def rows_of(case: Examination) -> list[dict[str, Any]]:
    """Return the rows of the published models with the sizes of a config and, as far as any has
    them, its lengths: those with its served and its trained length; if none has both, those with
    its served length; else those that serve its trained length; else all.
    """
    found = _named(case, rows_of_any_length(case))
    # a window tells a model that was published with one from others of its sizes
    if "sliding_window" in case.text:
        window = case.text["sliding_window"] is not None
        found = [row for row in found if bool(row.get("windowed")) == window] or found
    served = [row for row in found if case.served in row["lengths"]]
    both = [row for row in served if case.trained is not None and _trained(row) == case.trained]
    return both or served or [row for row in found if case.trained in row["lengths"]] or found


def _named(case: Examination, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of releases that the name of a config's own checkpoint is about; all rows if
    it is about none of them, or the config has no such name.
    """
    # the most parts of a name tell the release: Qwen3-4B-2507, not Qwen3-4B
    counts = [len(_parts(row)) if _is_named(case, row) else 0 for row in rows]
    most = max(counts, default=0)
    return [row for row, count in zip(rows, counts, strict=True) if count == most]


def _is_named(case: Examination, row: dict[str, Any]) -> bool:
    """Return whether the name of a config's own checkpoint has all parts of the name of a row."""
    name = case.root.get("_name_or_path")
    return isinstance(name, str) and _parts(row) <= {*re.split(r"[-_./ ]", name.lower())}


def _parts(row: dict[str, Any]) -> set[str]:
    """Return the parts of the name of a published model, in small letters."""
    return {*re.split(r"[-_./ ]", row["name"].lower())}


def _trained(row: dict[str, Any]) -> int | None:
    """Return the trained length of a published model; None if its row does not say it. A model
    without a scaling was trained with the only length that it was published with.
    """
    if "trained" in row:
        return row["trained"]
    scaling, lengths = row.get("scaling"), row["lengths"]
    if scaling is None:
        return lengths[0] if len(lengths) == 1 else None
    return scaling.get(TRAINED_LENGTH_KEY)


def native_length(case: Examination) -> int | None:
    """Return the longest length for which a published model of these sizes has the scaling and the
    theta of a config; None if no such model is known.
    """
    rope, theta = case.flat() or {}, theta_of(case)
    found = []
    for row in rows_of_any_length(case):
        scaling = row.get("scaling") or {"rope_type": "default"}
        same = all(
            rope.get(k, case.text.get(k)) == v
            for k, v in scaling.items()
            if k not in ("rope_type", "left_out")
        )
        kind = case.rope_type == scaling["rope_type"]
        if not same or not kind or theta not in row["theta"]:
            continue
        # without a scaling a model may serve more than it was trained with, which needs YaRN
        length = max(row["lengths"]) if "scaling" in row else _trained(row)
        found += [length] if length is not None else []
    return max(found, default=None)


def _close(one: Any, other: list[float]) -> bool:
    """Return whether `one` is a list of the numbers of `other` in the same order, of which at most
    a tenth is missing.
    """
    if not isinstance(one, list) or not 0.9 * len(other) <= len(one) <= len(other):
        return False
    # each search goes on where the last one ended in this iterator, so the order must be the same
    rest = iter(other)
    return all(
        isinstance(each, int | float) and any(math.isclose(each, x, rel_tol=1e-3) for x in rest)
        for each in one
    )


def published_default(case: Examination) -> bool:
    """Return whether a config has the theta of published models of its sizes that all were
    published without a scaling.
    """
    theta = theta_of(case)
    rows = [row for row in rows_of(case) if theta in row["theta"]]
    # a theta above that of another release may have been chosen for longer texts
    if theta is None or any(theta > max(row["theta"]) for row in rows_of_any_length(case)):
        return False
    # `rows` is empty if the theta is not a published one
    return bool(rows) and all("scaling" not in row for row in rows)


def _at_length(case: Examination, row: dict[str, Any]) -> bool:
    """Return whether a config serves a length of a published model; also if neither gives a length
    in its config, and leaves it to the class.
    """
    return case.served in row["lengths"] or (case.served is None and bool(row.get("brief")))


def known_lists(
    case: Examination, key: str, values: Any, other: str = "", others: Any = None
) -> list[float] | None:
    """Return the published list of LongRoPE at `key`, short_factor or long_factor, from which
    `values` lack at most a few numbers; None if there is none. With `other`, the other of the two
    keys, the list at that key is compared with `others` instead.
    """
    for row in rows_of_any_length(case):
        for lists in row.get("lists", ()):
            if _close(values, lists[key]) if other == "" else _close(others, lists[other]):
                return list(lists[key])
    return None


def published_trained_length(case: Examination) -> int | None:
    """Return the length that the published models of these sizes were trained with, or the served
    one if it is shorter and published without a scaling; None if it is not known, or they differ.
    """
    # a config that cannot be read may give a theta all the same
    theta, rows = theta_of(case) or case.get("rope_theta"), rows_of(case)
    # a config with the default theta may have lost its own one, so a release with the same trained
    # length is taken although its theta is another one
    default = theta == case.family.default("rope_theta") and case.trained is not None
    fits = default and any(_trained(row) == case.trained for row in rows)
    # no release of these lengths has this theta: the lengths may be wrong, so all lengths count
    if not fits and not any(theta in row["theta"] for row in rows):
        rows = [row for row in rows_of_any_length(case) if theta in row["theta"]] or rows
    # one release, without a scaling, that serves this length: it was trained with no more
    plain = [row for row in rows if "scaling" not in row and case.served in row["lengths"]]
    if case.served is not None and len(plain) == len(rows) == 1 and _trained(rows[0]):
        return min(case.served, _trained(rows[0]) or 0)
    # a length that no release has was extended from one that is shorter
    if not any(case.served in row["lengths"] or case.trained in row["lengths"] for row in rows):
        served = [row for row in rows if (case.served or 0) > max(row["lengths"])]
        rows = served or rows
    # the releases with this theta, if there are any, must agree
    known = {_trained(row) for row in [row for row in rows if theta in row["theta"]] or rows}
    return known.pop() if len(known) == 1 else None


def published_start(case: Examination, factor: float, exact: float) -> int | None:
    """Return the trained length from which YaRN with this factor starts, where releases with the
    sizes and the theta of a config differ in their trained lengths: that of a release that was
    published with this factor, or the one that equals `exact`, the served length / factor. None if
    there is none, or more than one.
    """
    theta, found = theta_of(case) or case.get("rope_theta"), set()
    for row in rows_of_any_length(case):
        if theta in row["theta"]:
            yarns = [each for each in row.get("extended", ()) if each["factor"] == factor]
            starts = {each[TRAINED_LENGTH_KEY] for each in yarns}
            # the served length is the one that YaRN reaches, or was left as it was without YaRN
            found |= {each for each in starts if exact == each or case.served in row["lengths"]}
            found |= {each for each in (_trained(row),) if each == exact}
    return found.pop() if len(found) == 1 else None


def published_theta(case: Examination) -> set[float]:
    """Return the thetas of the published models with the sizes of a config; empty: not known."""
    return {theta for row in rows_of(case) for theta in row["theta"]}


def theta_of(case: Examination) -> float | None:
    """Return the theta of the config's full attention layers, or of its first layer type that
    rotates; None if the config cannot be read or nothing rotates.
    """
    specs = case.specs() or {}
    spec = specs.get("full_attention") or next(filter(None, specs.values()), None)
    return None if spec is None else spec.theta


@finder
def theta_lost(case: Examination, row: Mistake) -> Facts | None:
    """Find a default theta, 10,000 or that of the model's class, in a model that was published with
    another one.
    """
    known, theta = published_theta(case), theta_of(case)
    # what the class takes for a config without a rope object
    default = case.family.default("rope_theta", "no_rope_object")
    lost = theta in (LOST_THETA, default)
    if not known or not lost or theta is None or theta in known:
        return None
    # given: the config states this theta; here: it serves a published length
    given, here = _theta_given(case), any(_at_length(case, each) for each in rows_of(case))
    if given and not here and not any(case.trained in each["lengths"] for each in rows_of(case)):
        return None  # a theta that was stated for another length may be meant
    # another release of the same sizes was published with this theta, so the served length alone
    # does not tell which release this is: the trained length must be known too
    other = any(theta in each["theta"] for each in rows_of_any_length(case))
    if other and (case.trained is None or any(_trained(r) != case.trained for r in rows_of(case))):
        return None
    return _theta_facts(case, theta, known)


@finder
def theta_of_family(case: Examination, row: Mistake) -> Facts | None:
    """Find the default theta, 10,000, in a model of unknown sizes, where all published models of
    its family and its vocabulary have one other theta: the weights may come from one of them.
    """
    vocabulary = case.text.get("vocab_size")
    family = models_of(case.model_type)
    family = [each for each in family if each["vocab_size"] == vocabulary]
    known = {theta for each in family for theta in each["theta"]}
    if theta_of(case) != LOST_THETA or rows_of_any_length(case) or len(known) != 1:
        return None
    if LOST_THETA in known or len(family) < 2:  # one model says little of others
        return None
    names = ", ".join(each["name"] for each in family[:3])
    facts = {"key": "rope_theta", "value": LOST_THETA, "known": known.pop(), "names": names}
    return {**facts, "model": case.model_type}


def _theta_given(case: Examination) -> bool:
    """Return whether the config states the theta of its full attention layers; otherwise the model
    takes the default of its family.
    """
    # what the family says about the theta of these layers; None: all its layers share one theta
    full_theta = case.family.layer_thetas.get(FULL)
    name = case.family.renamed.get("rope_theta", "rope_theta")
    parameters = case.text.get("rope_parameters")
    by_type = isinstance(parameters, dict) and full_theta is not None
    rope = layers_of(parameters or {}).get(FULL) if by_type else None
    if rope is not None:
        return rope.get("rope_theta") is not None
    # `get` looks in every rope, where the key is rope_theta in all families, then outside
    own = full_theta.key if full_theta and full_theta.key else name
    return case.get(own) is not None or case.get("rope_theta") is not None


def _theta_facts(case: Examination, theta: float, known: set[float]) -> Facts:
    """Return the facts about a theta that is none of the published ones, `known`. `holder[name]` is
    where the config has its theta or, if it states none, where the model would read it.
    """
    new = next(iter(known)) if len(known) == 1 else None
    holder, layer = case.flat(), case.family.layer_thetas.get(FULL)
    parameters = case.text.get("rope_parameters")
    by_type = layers_of(parameters) if isinstance(parameters, dict) else {}
    if layer is not None or FULL in by_type:  # this layer type has a theta of its own
        holder = by_type.get(FULL)
    name = case.family.renamed.get("rope_theta", "rope_theta")
    # a `rope_parameters` for all layers is where transformers 5 reads theta, so it gets one there
    inside = holder is not None and (
        holder.get("rope_theta") is not None or holder is case.text.get("rope_parameters")
    )
    return {
        "key": "rope_theta",
        "value": theta,
        "new": new,
        # with more than one published theta, which one was meant is not known
        "published": " or ".join(f"{each:,.10g}" for each in sorted(known)),
        "model": ", ".join(each["name"] for each in rows_of(case)),
        "fixable": new is not None,
        "holder": holder if inside else case.text,
        # a layer type may have no key outside `rope_parameters`
        "name": "rope_theta" if inside else (layer.key if layer else name) or name,
    }


@repair
def put_theta(case: Examination, row: Mistake, facts: Facts) -> None:
    """Write the published theta where the config has its theta, or where the model would read it."""
    facts["holder"][facts["name"]] = facts["new"]
    # a second theta, outside the rope, must not contradict it; in a family with a theta for each
    # layer type it may be that of other layers
    for name in ("rope_theta", case.family.renamed.get("rope_theta", "rope_theta")):
        if case.text.get(name) is not None and not case.family.layer_thetas:
            case.text[name] = facts["new"]


@finder
def theta_differs(case: Examination, row: Mistake) -> Facts | None:
    """Find another theta than the published one, which a fine-tuned model may have. The `names` of
    the row have the one kind that it is about, as `_kind` returns it: each kind has a row.
    """
    known, theta = published_theta(case), theta_of(case)
    others = [each for each in rows_of_any_length(case) if theta in each["theta"]]
    if not known or theta is None or theta in known:
        return None
    # a default theta that no release has is what `theta_lost` is about
    if theta == LOST_THETA and not others and (not _theta_given(case) or theta_lost(case, row)):
        return None
    if (kind := _kind(case, theta, known, bool(others))) is None:
        return None
    if kind not in row.names:  # the kind of another row
        return None
    facts = {**_theta_facts(case, theta, known), "length": case.served}
    facts |= {"factor": case.factor, "type": case.rope_type}
    if kind == "copied":  # the models to name are those with this theta, at most two
        family = models_of(case.model_type)
        others = [each for each in family if theta in each["theta"]][:2]
    return {**facts, "other": ", ".join(each["name"] for each in others)}


def _kind(case: Examination, theta: float, known: set[float], other: bool) -> str | None:
    """Return what a theta that is none of the published ones, `known`, may be, or None if it is
    that of another release in a config with a scaling. `other` says whether another release has it.

    "multiplied"     a published one, times the factor of the scaling beside it or raised by NTK
    "other_release"  that of another release of the same sizes
    "elsewhere"      raised by NTK without a scaling, or at another length than the published ones
    "zero"           at a published length: a published one with up to 3 zeros too many or too few
    "copied"         at a published length: that of another model of the family
    "same_length"    at a published length: any other
    """
    scaled, factor = case.rope_type in ("yarn", "linear", "dynamic"), case.factor
    if scaled and factor and factor > 1:
        width = case.head_dim or 128  # that of most models
        # the second is that of NTK, which needs more than one pair
        times = (factor, factor ** (width / (width - 2)) if width > 2 else factor)
        if any(math.isclose(theta, each * x, rel_tol=2e-3) for each in known for x in times):
            return "multiplied"
    # the length and the theta are of two releases, but a scaling may be why the length is another
    if other:
        return "other_release" if case.rope_type == "default" else None
    if case.rope_type == "default" and _is_ntk(case, theta):
        return "elsewhere"
    rows = rows_of(case)
    # whether the config has the length of a published model as its trained one
    trained = case.trained is not None and any(case.trained in row["lengths"] for row in rows)
    if not trained and not any(_at_length(case, row) for row in rows):
        return "elsewhere"
    tens = {each * 10.0**power for each in known for power in (-3, -2, -1, 1, 2, 3)}
    if theta in tens:
        return "zero"
    same = [row for row in models() if case.model_type in row["model_types"]]
    if theta in {each for row in same for each in row["theta"]}:
        return "copied"
    return "same_length"


def _is_ntk(case: Examination, theta: float) -> bool:
    """Return whether a theta is a published one that NTK has raised by a factor with at most two
    decimals: theta * factor^(width / (width - 2)). Nearly any theta is one raised by some factor,
    so others do not count.
    """
    width = case.head_dim or 128  # that of most models
    for known in {each for row in rows_of_any_length(case) for each in row["theta"]}:
        factor = round((theta / known) ** ((width - 2) / width), 2) if width > 2 else 0
        if factor > 1 and math.isclose(theta, ntk_theta(known, factor, width), rel_tol=1e-9):
            return True
    return False


@finder
def scaling_lost(case: Examination, row: Mistake) -> Facts | None:
    """Find a config without the scaling that every published model of its sizes and length has."""
    rows = [each for each in rows_of(case) if _at_length(case, each)]
    if not rows or case.rope_type != "default" or any("scaling" not in each for each in rows):
        return None
    if _incomplete(case):  # there is a scaling; other rows are about what it lacks
        return None
    if any(each["scaling"] != rows[0]["scaling"] for each in rows):
        return None  # releases differ: which scaling was lost is not known
    scaling = rows[0]["scaling"]
    # lists are known for certain only if no release of these sizes has others
    lists = rows[0].get("lists", ()) if rows[0].get("only_lists") else ()
    # "left_out" names the keys of a scaling that its row does not have, such as long lists
    whole_scaling = "left_out" not in scaling or bool(lists)
    if lists:
        scaling = {**{k: v for k, v in scaling.items() if k != "left_out"}, **lists[0]}
    return {
        "key": "rope_scaling",
        "value": None,
        "new": scaling,
        "model": rows[0]["name"],
        # of ropes by layer type that of full attention gets the scaling, so it must be there
        "fixable": whole_scaling and (not case.family.layer_thetas or _full_rope(case) is not None),
        "length": case.served or rows[0]["lengths"][0],
    }


def _full_rope(case: Examination) -> dict[str, Any] | None:
    """Return the rope of full attention in ropes by layer type, itself and not a copy; {} if the
    config has no rope object, None if it has one in which no rope is that of full attention.
    """
    ropes = case.ropes()
    found = (rope for place, rope in ropes if place == f"rope_parameters.{FULL}")
    return next(found, None) if ropes else {}


def _incomplete(case: Examination) -> bool:
    """Return whether a rope object has keys of a scaling and lacks its type, or is a list."""
    if any(isinstance(case.text.get(key), list) for key in OBJECT_KEYS):
        return True
    return any(type_of(rope) is None and rope.get("factor") is not None for _, rope in case.ropes())


@repair
def put_scaling(case: Examination, row: Mistake, facts: Facts) -> None:
    """Write the published scaling into `rope_parameters`, or into the rope of full attention in it,
    if the config has that; else as `rope_scaling`.
    """
    v5 = _full_rope(case) if case.family.layer_thetas else case.text.get("rope_parameters")
    if isinstance(v5, dict) and v5:
        v5.update(facts["new"])
        v5.pop("type", None)  # the older name of rope_type may name another scaling
    else:
        case.text["rope_scaling"] = dict(facts["new"])


@finder
def scaling_differs(case: Examination, row: Mistake) -> Facts | None:
    """Find another rope_type, or another number in the scaling, than a published model has at its
    published length.
    """
    rows = [each for each in rows_of(case) if _at_length(case, each)]
    rope = case.flat()
    if not rows or rope is None or len(rows) != 1:  # of several releases each may be meant
        return None
    scaling = rows[0].get("scaling") or {}
    kind = read_type(case, rope)
    if kind != scaling.get("rope_type"):
        # other rows are about a scaling that is lost, has an unknown name, or is of another model
        if not scaling or kind not in keys.rope_types() or kind == "default":
            return None
        if case.served is not None and rope.get(TRAINED_LENGTH_KEY) == case.served:
            return None  # the scaling starts at the published length, to serve the model farther
        facts = {"key": "rope_type", "value": type_of(rope), "new": scaling["rope_type"]}
        # not meant, so that the published scaling takes its place: models are not trained with
        # linear or dynamic, and with the published factor only the type is another; but a scaling
        # that is "left_out" in part cannot be written
        copied = kind in ("linear", "dynamic") or rope.get("factor") == scaling.get("factor")
        # nor with YaRN from a length that is not the one they were trained with
        starts = (None, scaling.get(TRAINED_LENGTH_KEY))
        copied |= kind == "yarn" and rope.get(TRAINED_LENGTH_KEY) not in starts
        copied = copied and "left_out" not in scaling
        # only `rope_scaling` is replaced as a whole; `rope_parameters` has theta inside too
        same_place = rope is case.text.get("rope_scaling")
        facts |= {"whole": dict(scaling), "holder": case.text, "name": "rope_scaling"}
        return {**facts, "model": rows[0]["name"], "fixable": copied and same_place}
    # settings of the config that the published scaling lacks must be absent: None
    others = {key: None for key in REMOVABLE if rope.get(key) is not None}
    for key, value in {**others, **scaling}.items():
        own = rope.get(key, case.text.get(key))
        if key in ("rope_type", "left_out") or own == value:
            continue
        # a setting that has its default value need not be removed
        if key not in scaling and not _changes(case, key, value):
            continue
        # an absent setting whose default is the published value need not be written
        if own is not None or _changes(case, key, value):
            return {
                "key": key,
                "value": own,
                "new": value,
                "model": rows[0]["name"],
                "holder": case.text if key in case.text and key not in rope else rope,
                "name": key,
            }
    return None


@repair
def put_published(case: Examination, row: Mistake, facts: Facts) -> None:
    """Write the whole published scaling or one of its values, or remove a value that it does not
    have.
    """
    new = facts.get("whole", facts["new"])
    if new is None:
        del facts["holder"][facts["name"]]
    else:
        facts["holder"][facts["name"]] = new


def _changes(case: Examination, key: str, value: Any) -> bool:
    """Return whether the specs change if `value` is written at `key` of the first rope object."""

    def change(text: dict[str, Any]) -> None:
        next(text[name] for name in OBJECT_KEYS if isinstance(text.get(name), dict))[key] = value

    return specs_of(case.with_(change)) != case.specs()


@finder
def trained_length_wrong(case: Examination, row: Mistake) -> Facts | None:
    """Find another trained length of YaRN than the published one."""
    trained, factor, known = case.trained, case.factor, published_trained_length(case)
    if not trained or not factor or not known or case.rope_type != "yarn" or trained == known:
        return None
    # published with another scaling at this length, which another row is about
    scalings = [each.get("scaling") for each in rows_of(case) if _at_length(case, each)]
    if scalings and all(each and each["rope_type"] != "yarn" for each in scalings):
        return None
    if scalings and not any(scalings) and is_copied(case):  # `scaling_of_another` is about it
        return None
    # a served length equal to the trained one has not been multiplied by the factor yet
    served = case.served if case.served != trained else known * factor
    holder = next(o for _, o in case.places() if o.get(TRAINED_LENGTH_KEY) is not None)
    # published: the model that the texts name, if possible the one with this theta
    rows = [row for row in rows_of_any_length(case) if _trained(row) == known]
    published = next((row for row in rows if theta_of(case) in row["theta"]), rows_of(case)[0])
    needed = max(case.length or 0, case.served or 0)
    length = case.length or 0  # 0: not given
    plain = "scaling" not in published and length > 0
    fits = bool(served) and math.isclose(served, known * factor, rel_tol=0.02)
    # fits: the served length is what the factor gives with the published trained length, so only
    # the trained length was wrong. gone, raised: the published model has no scaling, and the
    # lengths here need none, or one from its trained length to the length in use
    gone = plain and needed <= known and case.flat() is case.text.get("rope_scaling")
    raised = plain and length > known and case.flat() is not None
    # a factor that reaches the length in use, and not twice as far, stays
    enough = length <= known * factor < 2 * length
    new_factor = length / known if raised and not enough else factor
    words = f"{known:,} is written: times the factor it is the served length"
    if gone:
        words = f"the scaling is removed: {needed:,} tokens need none"
    elif raised:
        words = f"{known:,} is written, and the factor {new_factor:g}"
    return {
        "key": TRAINED_LENGTH_KEY,
        "value": trained,
        "new": known,
        "factor": new_factor,
        "fixable": gone or raised or fits,
        "removed": gone,
        "raised": raised,
        "words": words,
        "model": published["name"],
        "holder": holder,
        "name": TRAINED_LENGTH_KEY,
    }


@repair
def put_trained_length(case: Examination, row: Mistake, facts: Facts) -> None:
    """Write the published trained length and, if the facts say `raised`, the factor for the length
    in use; or, if they say `removed`, remove a scaling that is not needed.
    """
    if facts["removed"]:
        case.text["rope_scaling"] = None
        return
    facts["holder"][facts["name"]] = facts["new"]
    rope = case.flat()
    if facts["raised"] and rope is not None:
        rope["factor"] = facts["factor"]


@finder
def extended_twice(case: Examination, row: Mistake) -> Facts | None:
    """Find a scaling on a theta that reaches the served length already: that of a model published
    with this length and without a scaling, or one raised by more than the factor asks for.
    """
    theta, factor, served, rope = theta_of(case), case.factor, case.served, case.flat()
    if case.rope_type not in ("yarn", "linear") or not factor or factor <= 1 or not served:
        return None
    # texts longer than the served length do need a scaling
    if rope is None or theta is None or (case.length or 0) > served:
        return None
    rows = rows_of_any_length(case)
    own = [each for each in rows if theta in each["theta"]]  # releases with this theta
    reach = (case.trained or 0) * factor
    if own and theta > LOST_THETA:
        # the scaling covers no more than the served length, which this release serves without one.
        # linear does not tell the length it starts from: it must be the trained one of a model of
        # this shape with a smaller theta, from which the training of this one may have gone on
        same = [r for r in models() if all(r[key] == own[0][key] for key in SHAPE)]
        shorter = {(_trained(r) or 0) * factor for r in same if max(r["theta"]) < theta}
        over = served in shorter if case.rope_type == "linear" else 0 < reach <= served * 1.02
        found = over and own[0]["lengths"] == [served] and all("scaling" not in r for r in own)
    else:
        # a theta that no release has: known and trained are those of all releases without a scaling
        plain = [] if own else [each for each in rows if "scaling" not in each]
        known = {each for r in plain for each in r["theta"]}
        trained = {_trained(each) or 0 for each in plain}
        width = case.head_dim or 128  # that of most models
        # the factor extends the published length to the served one, and so does the theta alone:
        # NTK by this factor raises the published theta to less
        found = len(known) == len(trained) == 1 and math.isclose(
            min(trained) * factor, served, rel_tol=0.02
        )
        # a width of 2 is a single pair, whose frequency is 1 with any theta
        found = found and width > 2 and theta > 1.01 * min(known) * factor ** (width / (width - 2))
    if not found:
        return None
    facts = {"key": "rope_scaling", "value": case.rope_type, "factor": factor, "theta": theta}
    facts |= {"model": (own or rows)[0]["name"], "served": served, "rope": rope}
    return facts


@repair
def remove_scaling(case: Examination, row: Mistake, facts: Facts) -> None:
    """Remove the scaling of a config with its trained length; theta and fraction stay."""
    rope = facts["rope"]
    if case.text.get("rope_scaling") is rope:
        # if only the rope has them, they move outside
        for key in ("rope_theta", "partial_rotary_factor"):
            if case.text.get(key) is None and rope.get(key) is not None:
                case.text[key] = rope[key]
        case.text["rope_scaling"] = None
    else:
        kept = {k: v for k, v in rope.items() if k in keys.COMMON_KEYS - {"rope_type", "type"}}
        case.text["rope_parameters"] = {"rope_type": "default", **kept}
    case.text.pop(TRAINED_LENGTH_KEY, None)


@finder
def published_key_differs(case: Examination, row: Mistake) -> Facts | None:
    """Find another value than the published one of a key that few models have and that decides the
    rope: one of the `keys` of the row of published.json.
    """
    rows = [each for each in rows_of(case) if "keys" in each and _at_length(case, each)]
    if not rows or any(each["keys"] != rows[0]["keys"] for each in rows):
        return None
    for key, new in rows[0]["keys"].items():
        value = case.text.get(key)
        # absent: false and 1 are defaults, and `rope_parameters` has other names of these keys
        default = new in (False, 1) and new is not True
        absent = value is None and (default or case.text.get("rope_parameters"))
        if value != new and not absent:
            facts = {"key": key, "value": value, "new": new, "model": rows[0]["name"]}
            return {**facts, "holder": case.text, "name": key}
    return None


@finder
def pairs_flag(case: Examination, row: Mistake) -> Facts | None:
    """Find the flag for pairs (i, i + d/2), rope_interleave false, in a published model whose pairs
    are neighbours; `names` has the model types whose code reads the flag and whose models all have
    such pairs.
    """
    rows = rows_of(case)
    if (
        case.model_type not in row.names
        or not rows
        or case.text.get("rope_interleave") is not False
    ):
        return None
    facts = {"key": "rope_interleave", "value": False, "new": True, "name": "rope_interleave"}
    return {**facts, "model": rows[0]["name"], "holder": case.text}


@finder
def scaling_of_release(case: Examination, row: Mistake) -> Facts | None:
    """Find the scaling of another release of the same sizes, in a model that with this length was
    published without one; `keys` has the scalings that models are trained with.
    """
    rows, kind = rows_of_any_length(case), case.rope_type
    plain = [each for each in rows if case.served in each["lengths"] and "scaling" not in each]
    scaled = [each for each in rows if each.get("scaling", {}).get("rope_type") == kind]
    if kind not in row.keys or not plain or not scaled:
        return None
    # the served length is that of a release without the scaling, so either it was lowered from the
    # length of the other release, or the scaling was copied
    if any(case.served in each["lengths"] for each in scaled) or case.error() is not None:
        return None
    facts = {"key": "rope_type", "value": kind, "model": plain[0]["name"], "length": case.served}
    return {**facts, "other": scaled[0]["name"], "more": max(scaled[0]["lengths"])}


def is_copied(case: Examination) -> bool:
    """Return whether the scaling of a config is that of other models of its family, and was not
    chosen for this model.
    """
    family = models_of(case.model_type)
    known = [each["scaling"] for each in family if "scaling" in each]
    rope, given = case.flat() or {}, {"rope_type": case.rope_type, "factor": case.factor}
    # a scaling with only a type and a factor, the same in all models of the family that have one;
    # and the config serves a length of the family
    if known and all(each == given for each in known):
        return any(_at_length(case, each) for each in family)
    # any other scaling: one of them has it with all its keys, more than three, which do not agree
    # by chance; and it starts from another length than this model. LongRoPE never matches: its
    # rows have the key `left_out`, which no config has
    start = published_trained_length(case)
    return (
        case.trained is not None
        and start not in (None, case.trained)
        and any(
            len(each) > 3 and all(rope.get(k) == v for k, v in each.items() if k != "rope_type")
            for each in known
            if each["rope_type"] == case.rope_type and each.get(TRAINED_LENGTH_KEY) == case.trained
        )
    )


@finder
def scaling_of_another(case: Examination, row: Mistake) -> Facts | None:
    """Find a scaling that no release of the model was published with: one of a type that needs
    training (`keys`), or one that was copied from other models of the family. The repair writes
    null, if a release serves this length without a scaling.
    """
    rows, kind = rows_of_any_length(case), case.rope_type
    copied = is_copied(case)
    if not (kind in row.keys or copied) or not rows or case.error() is not None:
        return None
    if any(each.get("scaling", {}).get("rope_type") == kind for each in rows):
        return None  # a release has it: `scaling_of_release` and `scaling_differs` are about it
    facts = {"key": "rope_type", "value": kind, "new": None, "name": "rope_scaling"}
    facts |= {"model": ", ".join(each["name"] for each in rows), "holder": case.text}
    # without the scaling this must be the config of a release: its length is enough for the longest
    # sequence, its theta is the published one, and no other rope object is left
    plain = [each for each in rows_of(case) if case.served in each["lengths"]]
    plain = [each for each in plain if "scaling" not in each]
    short = case.length is None or case.length <= (case.served or 0)
    fits = case.flat() is case.text.get("rope_scaling") and published_default(case)
    return {**facts, "fixable": bool(plain) and short and fits}


@repair
def replace_scaling(case: Examination, row: Mistake, facts: Facts) -> None:
    """Write the published scaling, or null, in place of another."""
    facts["holder"][facts["name"]] = facts["new"]


@finder
def yarn_unusual(case: Examination, row: Mistake) -> Facts | None:
    """Find an unusual setting of YaRN in a model that was published without a scaling; `names` has
    {setting: its usual value}.
    """
    rows = rows_of(case)
    if case.rope_type != "yarn" or not rows or any("scaling" in each for each in rows):
        return None
    # models with latent attention set mscale, and these families have other settings by default
    if case.family.latent or "yarn" in case.family.defaults_if:
        return None
    for place, rope in case.ropes():
        for key, usual in row.names.items():
            value, factor = rope.get(key), positive(rope.get("factor"))
            # an attention_factor of 1 switches the formula off; any other may have been measured
            if key == "attention_factor":
                if value != 1 or factor is None or factor <= 1:
                    continue
                usual = f"{0.1 * math.log(factor) + 1:g}"
            if value is None or str(value).removesuffix(".0") == usual:  # 32.0 is "32"
                continue
            facts = {"key": f"{place}.{key}", "value": value, "usual": usual, "name": key}
            return {**facts, "model": rows[0]["name"], "holder": rope}
    return None


@finder
def local_theta_differs(case: Examination, row: Mistake) -> Facts | None:
    """Find another theta of the family's second layer type, mostly that of the layers with a sliding
    window, than the published one.
    """
    rows = [each for each in rows_of(case) if "local_theta" in each]
    if not rows or len(case.family.layer_thetas) < 2:
        return None
    # the layer type, and what the family says about its theta
    name, theta = [*case.family.layer_thetas.items()][1]
    spec = (case.specs() or {}).get(name)
    if spec is None:
        return None
    if spec.theta in [each["local_theta"] for each in rows]:
        return None
    rope = layers_of(case.text.get("rope_parameters") or {}).get(name)
    holder, key = (case.text, theta.key) if rope is None else (rope, "rope_theta")
    facts = {"key": key, "value": spec.theta, "new": rows[0]["local_theta"], "name": key}
    return {**facts, "model": rows[0]["name"], "holder": holder}


def _here(case: Examination, rows: list[dict[str, Any]]) -> bool:
    """Return whether a config has the length of one of these published models as its served or its
    trained length; with another length it may be a model that was trained anew.
    """
    return any(_at_length(case, each) or case.trained in each["lengths"] for each in rows)


@finder
def head_differs(case: Examination, row: Mistake) -> Facts | None:
    """Find another head_dim than the published one: in a row with "given" in `names`, one that the
    config gives, in any other row one that follows from other sizes because the key is absent.
    """
    rows = [each for each in rows_of(case) if "head_dim" in each]
    heads = {each["head_dim"] for each in rows}
    specs = [spec for spec in (case.specs() or {}).values() if spec is not None]
    size, count = (
        next((n for key in names if (n := whole(case.text.get(key)))), None)
        for names in (keys.HIDDEN_SIZE_KEYS, keys.HEAD_COUNT_KEYS)
    )
    # lost: what follows from hidden size / heads, without the key, is not published
    lost = case.text.get("head_dim") is None and size and count and size / count not in heads
    name = keys.LATENT_KEY if case.family.latent else "head_dim"
    given = case.text.get(name) is not None
    # a width that the config gives may be meant: its row is a warning, and only about published
    # lengths; an absent key is an error
    if given != ("given" in row.names) or (given and not _here(case, rows)):
        return None
    # without the key the config cannot be read: hidden size / heads is no even number, say
    if len(heads) == 1 and lost and not (specs or case.family.latent):
        facts = {"key": "head_dim", "value": None, "new": heads.pop(), "name": "head_dim"}
        return {**facts, "model": rows[0]["name"], "holder": case.text}
    width = specs[0].head_dim if specs else whole(case.text.get(name))
    if len(heads) != 1 or width is None or width in heads:
        return None
    return {
        "key": name,
        "value": width,
        "new": heads.pop(),
        "model": rows[0]["name"],
        "holder": case.text,
        "name": name,
    }


@finder
def heads_differ(case: Examination, row: Mistake) -> Facts | None:
    """Find another number of heads than every published model with the other sizes has, where the
    width of a head follows from it: the weights have the same shape, and are cut into other heads.
    """
    name = next((key for key in IDENTITY["heads"] if whole(case.text.get(key))), None)
    if name is None or rows_of_any_length(case) or case.family.latent:
        return None
    if any(whole(case.text.get(key)) for key in keys.HEAD_DIM_KEYS):
        return None
    rows = _rows_with(case, ("hidden_size", "layers", "vocab_size"))
    # rows with the number of key heads: one that the config gives confirms the model
    heads = {each["heads"] for each in rows if "kv_heads" in each}
    if len(heads) != 1:
        return None
    facts = {"key": name, "value": case.text[name], "new": heads.pop(), "name": name}
    return {**facts, "model": rows[0]["name"], "holder": case.text}


@finder
def fraction_differs(case: Examination, row: Mistake) -> Facts | None:
    """Find another rotated width, in dimensions of a head, than the published one: by a key that
    was lost or that cannot be read, or, in a row with "given" in `names`, by a key that the config
    gives.
    """
    rows = [each for each in rows_of(case) if "rotated" in each]
    widths = {each["rotated"] for each in rows}
    specs = [spec for spec in (case.specs() or {}).values() if spec is not None]
    name = case.family.renamed.get("partial_rotary_factor", "partial_rotary_factor")
    error, head = case.error(), case.head_dim
    # the config cannot be read because of the value of this key
    impossible = error is not None and error.field.rsplit(".", 1)[-1] == name
    if len(widths) == 1 and error and impossible and head and "given" not in row.names:
        facts = {"key": name, "value": error.value, "model": rows[0]["name"], "gone": ()}
        facts |= {"width": min(widths), "new": min(widths) / head, "name": name}
        return {**facts, "holder": case.text, "fixable": name in case.text}
    if len(widths) != 1 or not specs or specs[0].rotated_dims in widths:
        return None
    # a fraction of a head that has another width than published: `head_differs` is about the head
    if specs[0].head_dim != rows[0].get("head_dim", specs[0].head_dim):
        return None
    width = widths.pop()
    reads = {*case.family.reads, *case.family.defaults}
    # whether the family's key gives a number of dimensions and not a fraction
    counted = "rotary_dim" in reads and case.get("partial_rotary_factor") is None
    rope = case.flat()
    inside = rope is not None and rope.get("partial_rotary_factor") is not None
    if counted:
        name, inside = "rotary_dim", False  # it is read outside the rope alone
    # as for the head: a width that the config gives may be meant, an absent key is an error
    given = inside or case.text.get(name) is not None
    if given != ("given" in row.names) or (given and not _here(case, rows)):
        return None
    return {
        "key": name,
        "value": specs[0].rotated_dims,
        "width": width,
        "model": rows[0]["name"],
        "new": width if counted else width / specs[0].head_dim,
        "holder": rope if inside else case.text,
        "name": "partial_rotary_factor" if inside else name,
        # the same width under a key that this family's code does not read
        "gone": () if counted or case.text.get("rotary_dim") != width else ("rotary_dim",),
    }


@repair
def put_width(case: Examination, row: Mistake, facts: Facts) -> None:
    """Write the published width under the key that the model reads."""
    for key in facts["gone"]:
        del case.text[key]
    facts["holder"][facts["name"]] = facts["new"]
