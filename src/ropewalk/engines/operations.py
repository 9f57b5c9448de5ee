"""What a rule of an engine does to a reading: every value that `then` can have in a rules file.

Every operation has the same arguments: the `reading`, which it changes; the `rule`, a row of the
file, whose `values` are its parameters; the `release` that the row belongs to; and the
`releases` of all engines. Its docstring says what the engine computes with such a row.

Words of this module:
  reading   what the engine computes for a case as far as the rows have applied, an `EngineReading`;
            `reading.spec` is its rope now, `reading.fail(...)` ends it without a result
  case      one layer type of a config and how it is served, a `ServedLayer`; `case.spec` is the rope
            that the config describes, `case.rope` the keys of its rope object
  parameter a value of the row: a number, or a text such as "rope.factor" that names a key of the
            config; `_value` looks it up
  text      `rule.text(reading)` is what the engine does, in words
  v5        `rope_parameters`, the rope object of transformers 5
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from ropewalk.axes import AxisMap
from ropewalk.config.hf import read_specs
from ropewalk.engines.case import (
    LENGTH_KEYS,
    OUTER_TYPE,
    TRAINED,
    ServedLayer,
    ropes_by_layer_type,
)
from ropewalk.engines.reading import EngineReading, mscale
from ropewalk.engines.rope_faults import ROPES
from ropewalk.engines.rules import FORWARD, OPERATIONS, Release, Releases, Rule
from ropewalk.frequencies import SCALINGS, Default, Dynamic, LongRope, Scaling, Yarn

Operation = Callable[[EngineReading, Rule, Release, Releases], None]


def _operation(name: str) -> Callable[[Operation], Operation]:
    """Return a decorator that adds a function to OPERATIONS under the name that `then` has."""

    def add(function: Operation) -> Operation:
        """Add the function and return it."""
        OPERATIONS[name] = function
        return function

    return add


def _value(case: ServedLayer, given: Any) -> Any:
    """Return the value of a parameter: a number itself, the value of a config key, or of a list of
    both the first value that is not null.
    """
    if isinstance(given, list):
        return next((value for each in given if (value := _value(case, each)) is not None), None)
    return case.value(given) if isinstance(given, str) else given


@_operation("refuse")
def _refuse(reading: EngineReading, rule: Rule, release: Release, releases: Releases) -> None:
    """The engine raises an error."""
    reading.fail(f"refused: {rule.text(reading)}")


@_operation("refuse without needed keys")
def _needed(reading: EngineReading, rule: Rule, release: Release, releases: Releases) -> None:
    """The engine raises an error where the config lacks a key of `needs` of the rules file."""
    case = reading.case
    # a multimodal model may need other keys than its text model has by itself
    outside = release.needs.get(case.config.get(OUTER_TYPE, ""))
    needed = release.needs.get(case.model_type or "", ()) if outside is None else outside
    lacking = [key for key in needed if key not in case.config]
    if lacking:
        reading.fail(f"refused: {rule.text(reading, keys=', '.join(lacking))}")


@_operation("refuse nulls of the config class")
def _null(reading: EngineReading, rule: Rule, release: Release, releases: Releases) -> None:
    """The config class raises an error for a null under a key of `nulls_refused`."""
    case = reading.case
    refused = releases["hf"].nulls_refused
    keys = [
        key
        for key, families in refused.items()
        if case.model_type in families and case.config.get(key, 0) is None  # there, and null
    ]
    if keys:
        reading.fail(f"refused: {rule.text(reading, keys=', '.join(keys))}")


@_operation("not known")
def _not_known(reading: EngineReading, rule: Rule, release: Release, releases: Releases) -> None:
    """What the engine does was not read."""
    reading.fail(f"not known: {rule.text(reading)}")


@_operation("pass")
def _pass(reading: EngineReading, rule: Rule, release: Release, releases: Releases) -> None:
    """As the config describes; the row only ends its chain."""


@_operation("stop")
def _stop(reading: EngineReading, rule: Rule, release: Release, releases: Releases) -> None:
    """No further row applies."""
    reading.done = True


@_operation("note")
def _note(reading: EngineReading, rule: Rule, release: Release, releases: Releases) -> None:
    """The row adds a remark and changes no number."""
    reading.add_rule(rule.about, rule.text(reading), rule.source)


@_operation("refuse above the served length")
def _limit(reading: EngineReading, rule: Rule, release: Release, releases: Releases) -> None:
    """The engine refuses to start for more than the config's served length, times a factor."""
    if exceeds_served_length(release, reading.case, releases):
        reading.fail(f"refused: {rule.text(reading)}")


@_operation("as another engine")
def _as(reading: EngineReading, rule: Rule, release: Release, releases: Releases) -> None:
    """The engine runs the code of another one: all rules of that one apply, except those about its
    forward, and no further row of this one.
    """
    engine = releases[rule.values["engine"]]
    other = engine.apply(reading.case, releases, without=FORWARD)
    vars(reading).update(vars(other))
    reading.add_rule(rule.about, rule.text(reading), rule.source)
    reading.done = True


@_operation("apply")
def _apply(reading: EngineReading, rule: Rule, release: Release, releases: Releases) -> None:
    """Apply the rows of another engine that belong to one part, such as its config class."""
    releases[rule.values["engine"]].apply_part(rule.values["parts"], reading, releases)


@_operation("ignore scaling")
def _ignore(reading: EngineReading, rule: Rule, release: Release, releases: Releases) -> None:
    """The engine computes an unscaled rope."""
    reading.drop_scaling(rule.text(reading), rule.source)


@_operation("set")
def _set(reading: EngineReading, rule: Rule, release: Release, releases: Releases) -> None:
    """Another value of fields of the spec; `times` multiplies one by a number, `unscaled` also drops
    the scaling, `textual` the axes, and `whole` the fraction of the head that rotates.
    """
    given = {key: _value(reading.case, value) for key, value in rule.values.items()}
    for key, factor in given.pop("times", {}).items():
        given[key] *= factor
    if given.pop("textual", False):
        given["axes"] = None
    if given.pop("unscaled", False):
        given["scaling"] = Default()
    if given.pop("whole", False):
        given["rotary_dim"] = given.get("head_dim", reading.spec.head_dim)
    text = rule.text(reading, **{key: f"{value:g}" for key, value in _numbers(given).items()})
    reading.set_fields(rule.about, text, rule.source, **given)


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the parameters of a rule that are numbers."""
    return {key: value for key, value in values.items() if isinstance(value, int | float)}


@_operation("read no rope")
def _read_no_rope(reading: EngineReading, rule: Rule, release: Release, releases: Releases) -> None:
    """The rope is unscaled; the keys beside its objects are read, and the defaults of the class."""
    beside = {key: value for key, value in reading.case.config.items() if key not in ROPES}
    beside["rope_parameters"] = {"rope_type": "default"}
    spec = next(each for each in read_specs(beside)[0].values() if each is not None)
    fields = {name: getattr(spec, name) for name in ("theta", "scaling", "rotary_dim")}
    text = rule.text(reading, theta=f"{spec.theta:g}")
    reading.set_fields(rule.about, text, rule.source, **fields)


@_operation("derive head size")
def _head_size(reading: EngineReading, rule: Rule, release: Release, releases: Releases) -> None:
    """Heads are hidden_size / num_attention_heads wide, whatever head_dim is. With `any_factors` a
    LongRoPE with factors for another width is dropped, because the engine does not read it.
    """
    size, scaling = reading.case.derived_head_dim, reading.case.spec.scaling
    fields: dict[str, Any] = {"head_dim": size, "rotary_dim": size}
    if isinstance(scaling, LongRope) and len(scaling.short_factor) != size // 2:
        if not rule.values.get("any_factors"):
            reading.fail(_misfit(len(scaling.short_factor), size // 2))
            return
        fields["scaling"] = Default()
    reading.set_fields(rule.about, rule.text(reading, size=size), rule.source, **fields)


def _misfit(factors: int, pairs: int) -> str:
    """Return the problem of an engine that refuses a LongRoPE with too many or too few factors."""
    return f"refused: {factors} factors of LongRoPE do not fit the {pairs} pairs that rotate"


@_operation("rotate")
def _rotate(reading: EngineReading, rule: Rule, release: Release, releases: Releases) -> None:
    """Another number of dimensions rotates: `width`, or if that is not given `fraction` of the
    head; `even`: an odd number is refused; `strict`: so are factors of LongRoPE that do not fit it.
    """
    case, values = reading.case, rule.values
    size = reading.spec.head_dim
    width = _value(case, values["width"]) if "width" in values else None
    if width is None:
        width = int(size * _value(case, values.get("fraction", 1.0)))
    if values.get("even") and width % 2:
        reading.fail(f"refused: {width} dimensions would rotate, and MLX takes an even number")
        return
    scaling = case.spec.scaling
    fits = not isinstance(scaling, LongRope) or len(scaling.short_factor) == width // 2
    if values.get("strict") and not fits:
        assert isinstance(scaling, LongRope)  # for the type checker
        reading.fail(_misfit(len(scaling.short_factor), width // 2))
        return
    reading.set_rotary_dim(width, rule.text(reading), rule.source)


@_operation("scale")
def _scale(reading: EngineReading, rule: Rule, release: Release, releases: Releases) -> None:
    """The engine computes another scaling: `to`, whose fields are the row's other parameters."""
    given = {key: _value(reading.case, value) for key, value in rule.values.items() if key != "to"}
    scaling = SCALINGS[rule.values["to"]](**given)
    about = rule.about or reading.case.rope_type
    reading.set_fields(about, rule.text(reading), rule.source, scaling=scaling)


@_operation("change")
def _change(reading: EngineReading, rule: Rule, release: Release, releases: Releases) -> None:
    """Other parameters of the scaling; `times` has {parameter: the number that multiplies it}."""
    given = {key: _value(reading.case, each) for key, each in rule.values.items() if key != "times"}
    for key, factor in rule.values.get("times", {}).items():
        given[key] = factor * getattr(reading.spec.scaling, key)
    # if the config lacks the key of one of them, all stay as they are
    if all(value is not None for value in given.values()) and reading.change_scaling(**given):
        reading.add_rule(rule.about, rule.text(reading, **given), rule.source)


def _mscales(case: ServedLayer, factor: float) -> float:
    """Return the magnitude that mscale (1 if missing) and mscale_all_dim (0 if missing) give."""
    rope = case.rope
    numerator, divisor = rope.get("mscale", 1.0), rope.get("mscale_all_dim", 0.0)
    return mscale(factor, numerator) / mscale(factor, divisor)


def _both(case: ServedLayer, factor: float, nonzero: bool = False) -> float | None:
    """Return the magnitude that `mscale` and `mscale_all_dim` give; None if one of them is absent,
    or is 0 and `nonzero` is set.
    """
    keys = (case.rope.get("mscale"), case.rope.get("mscale_all_dim"))
    if any(value is None or (nonzero and not value) for value in keys):
        return None
    return _mscales(case, factor)


def _log_multiplier(case: ServedLayer, factor: float) -> float:
    """Return llama.cpp's magnitude: mscale is taken to be 1, or in DeepSeek's architecture to be
    mscale_all_dim, unless that is 0 or 1.
    """
    weight = case.rope.get("mscale_all_dim") or 0.0
    if case.latent and weight not in (0.0, 1.0):
        return 1.0  # the quotient of two equal magnitudes
    return _of_all_dim(case, factor)


def _of_all_dim(case: ServedLayer, factor: float) -> float:
    """Return the magnitude that `mscale_all_dim` gives where mscale is taken to be 1."""
    return mscale(factor) / mscale(factor, case.rope.get("mscale_all_dim") or 0.0)


#: the formulas of YaRN's magnitude that `by` of a row may name: the first that does not give None
#: is used
MAGNITUDES: dict[str, Callable[[ServedLayer, float], float | None]] = {
    "attention_factor": lambda case, factor: case.rope.get("attention_factor"),
    "mscales": _mscales,
    "both mscales": _both,
    "both mscales unless 0": lambda case, factor: _both(case, factor, nonzero=True),
    "log multiplier": _log_multiplier,
    "mscale_all_dim": _of_all_dim,
    "factor": lambda case, factor: mscale(factor),
}


@_operation("magnitude")
def _magnitude(reading: EngineReading, rule: Rule, release: Release, releases: Releases) -> None:
    """YaRN's magnitude: the first of the formulas MAGNITUDES, as the row lists them in `by`, that
    gives one, times the parameter `times`.
    """
    case, yarn = reading.case, reading.spec.scaling
    assert isinstance(yarn, Yarn)  # for the type checker
    found = (MAGNITUDES[name](case, yarn.factor) for name in rule.values["by"])
    magnitude = next(value for value in found if value is not None)
    times = _value(case, rule.values.get("times", 1.0))
    reading.set_yarn_magnitude(
        magnitude * (1.0 if times is None else times), rule.says, rule.source
    )


@_operation("yarn with the keys of the rope")
def _read_as_yarn(reading: EngineReading, rule: Rule, release: Release, releases: Releases) -> None:
    """Any scaling but YaRN is computed as YaRN, with the rope's factor and betas and the row's
    `length` as trained length; with `filled` the scaling's own one, unless it is dynamic. Without a
    trained length, or with `filled` without a factor, the engine raises the error `without`.
    """
    case, scaling = reading.case, reading.spec.scaling
    if isinstance(scaling, Yarn):
        return
    length = _value(case, rule.values["length"])
    # transformers' class writes the trained length into scalings that use it; in the others the
    # rope object may have it, and dynamic has that of the row
    if rule.values.get("filled"):
        length = getattr(scaling, "original_length", None) if scaling.name != "dynamic" else length
        length = length or case.rope.get(TRAINED)
    if length is None or (rule.values.get("filled") and case.rope.get("factor") is None):
        reading.fail(rule.values["without"])
        return
    rope = case.rope
    yarn = Yarn(
        original_length=length,
        factor=rope.get("factor", 1.0),
        beta_fast=rope.get("beta_fast", 32.0),
        beta_slow=rope.get("beta_slow", 1.0),
        truncate=rope.get("truncate", True),
    )
    reading.set_fields(case.rope_type, rule.text(reading), rule.source, scaling=yarn)


@_operation("longrope factors")
def _longrope(reading: EngineReading, rule: Rule, release: Release, releases: Releases) -> None:
    """Which factors of LongRoPE every sequence gets: `use` is "long", "short", or "limit" for those
    of the length that the engine is started for. If the caller gave no such length, it is the value
    of the key that the row names in `limit`.

    `magnitude` names the key of the magnitude for the "long" and for the "short" factors.
    """
    case, values = reading.case, rule.values
    scaling = reading.spec.scaling
    assert isinstance(scaling, LongRope)  # for the type checker
    if values["use"] == "limit":
        limit = case.max_model_len
        if not case.limit_is_given and "limit" in values:
            # without a value of that key: with `trained` the trained length, otherwise the default of
            # `audit`
            other = scaling.original_length if values.get("trained") else case.max_model_len
            limit = int(_value(case, values["limit"]) or other)
        long = limit > scaling.original_length
        text = rule.text(reading, factors="long" if long else "short", limit=limit)
    else:
        long = values["use"] == "long"
        text = rule.text(reading)
    reading.fix_longrope_factors(scaling.original_length, long, text, rule.source)
    if "magnitude" in values:
        key = values["magnitude"].get("long" if long else "short")
        reading.set_longrope_magnitude(None if key is None else _value(case, key), rule.source)


@_operation("longrope magnitude")
def _longrope_magnitude(
    reading: EngineReading, rule: Rule, release: Release, releases: Releases
) -> None:
    """LongRoPE's magnitude: that of the config key `key`, or computed from the two lengths."""
    reading.set_longrope_magnitude(_value(reading.case, rule.values.get("key")), rule.source)


@_operation("end of the longrope table")
def _table(reading: EngineReading, rule: Rule, release: Release, releases: Releases) -> None:
    """The long factors have a table of `served` positions; a later position is an error."""
    case, scaling = reading.case, reading.spec.scaling
    assert isinstance(scaling, LongRope)  # for the type checker
    served = _value(case, rule.values["served"])
    # the last position, which is length - 1, tells whether the long factors are used; without a
    # value of `served` their table has no end
    if case.length - 1 > scaling.original_length and case.length > (served or math.inf):
        reading.fail(f"refused: the table of LongRoPE ends after {served} positions")


@_operation("longrope magnitude of ministral3")
def _ministral3(reading: EngineReading, rule: Rule, release: Release, releases: Releases) -> None:
    """LongRoPE's magnitude: that of the config's key for short or long sequences, or computed from
    the trained length and `served`, which the model passes on as the served length.
    """
    case, scaling = reading.case, reading.spec.scaling
    assert isinstance(scaling, LongRope)  # for the type checker
    served, trained = _value(case, rule.values["served"]), scaling.original_length
    # the last position, not the length, tells which factors and which magnitude are used
    magnitude = case.rope.get("long_mscale" if case.length - 1 > trained else "short_mscale")
    if magnitude is None:
        magnitude = math.sqrt(1 + math.log(max(1.0, served / trained)) / math.log(trained))
    reading.set_longrope_magnitude(magnitude, rule.source)


@_operation("freeze ntk")
def _freeze(reading: EngineReading, rule: Rule, release: Release, releases: Releases) -> None:
    """Dynamic NTK has one base for every length: with `stretch`, the one that makes the slowest
    wavelength so many times longer; without, that of factor times the trained length.
    """
    scaling = reading.spec.scaling
    assert isinstance(scaling, Dynamic)  # for the type checker
    # dynamic NTK stretches by factor * length / trained - (factor - 1); here length / trained is
    # the factor
    stretch = scaling.factor * scaling.factor - (scaling.factor - 1)
    if "stretch" in rule.values:
        stretch = _value(reading.case, rule.values["stretch"])
    reading.freeze_ntk(stretch, rule.text(reading), rule.source)


@_operation("chunk axes")
def _chunk(reading: EngineReading, rule: Rule, release: Release, releases: Releases) -> None:
    """The pairs of one axis are neighbours, and the axes are in the order of the sections."""
    reading.chunk_axes(rule.text(reading), rule.source)


@_operation("interleave axes")
def _interleave(reading: EngineReading, rule: Rule, release: Release, releases: Releases) -> None:
    """Pairs take the axes 0, 1, 2 in turn until the sections of axes 1 and 2 are used up; the rest
    have axis 0.
    """
    _, height, width = reading.case.sections
    axes = [0] * reading.spec.pairs
    for axis, count in ((1, height), (2, width)):  # a section too long for it ends at the last pair
        places = slice(axis, 3 * count, 3)
        axes[places] = [axis] * len(axes[places])
    fields = {"axes": AxisMap(tuple(axes), 3)}
    reading.set_fields("mrope_interleaved", rule.text(reading), rule.source, **fields)


@_operation("drop axes")
def _drop_axes(reading: EngineReading, rule: Rule, release: Release, releases: Releases) -> None:
    """Every pair rotates by the text position."""
    reading.spec = reading.spec.with_(axes=None)
    reading.add_rule(rule.about, rule.text(reading), rule.source)


@_operation("do not rotate")
def _no_rotation(reading: EngineReading, rule: Rule, release: Release, releases: Releases) -> None:
    """The layers of this type do not rotate."""
    reading.add_rule(rule.about, rule.text(reading), rule.source)
    reading.spec = reading.spec.with_(scaling=Default(), axes=None)
    reading.unrotated_pairs = frozenset(range(reading.spec.pairs))
    reading.done = True


@_operation("still pairs")
def _still(reading: EngineReading, rule: Rule, release: Release, releases: Releases) -> None:
    """Pairs beyond three times their section follow a fourth axis, where every position is 0, so
    they do not rotate.
    """
    sections = reading.case.sections
    still = frozenset(i for i in range(reading.spec.pairs) if i >= 3 * sections[i % 3])
    reading.unrotated_pairs = still
    if still:
        text = rule.text(reading, still=", ".join(map(str, sorted(still))))
        reading.add_rule(rule.about, text, rule.source)


@_operation("model arguments")
def _arguments(reading: EngineReading, rule: Rule, release: Release, releases: Releases) -> None:
    """mlx-lm: theta, the rope object and the fraction that the class of a model reads; its row in
    `model` says which keys those are.
    """
    case, config = reading.case, reading.case.config
    # in a multimodal config the class of the whole model comes first
    model: Mapping[str, Any] = release.models.get(
        config.get(OUTER_TYPE, ""), release.models[case.model_type or ""]
    )
    v5 = config.get("rope_parameters") or {}
    # `read`: whether and how the class reads theta and the scaling from `rope_parameters`
    theta_key, read = model.get("theta_key", "rope_theta"), model.get("v5", "never")
    theta, keys = config.get(theta_key), config.get("rope_scaling")
    fraction = config.get(model.get("fraction_key", "partial_rotary_factor"))
    source = f"models/{case.model_type}.py"
    if read == "by layer type":
        keys = (v5 or model["ropes"]).get(case.layer_type, {})
        theta = keys.get("rope_theta", 10_000.0)
    elif read == "if given":
        theta = (
            v5.get("rope_theta", model["v5_theta"]) if v5 else model.get("fixed_v4_theta", theta)
        )
        keys = v5
    elif read == "only":
        theta, keys = v5.get("rope_theta"), v5
    elif read == "theta":
        theta = v5.get("rope_theta", theta)
    elif read == "if missing" and v5:
        theta = v5.get("rope_theta") if theta is None else theta
        keys = v5 if keys is None else keys
    elif case.layer_type == "sliding_attention" and "sliding" in model:  # an unscaled rope
        keys = None
        theta = config.get(model["sliding"], 10_000.0) if model["sliding"] else theta
    if model.get("fraction_in_rope"):
        fraction = (keys or {}).get(
            "partial_rotary_factor", None if read == "if given" else fraction
        )
    theta = model.get("theta") if theta is None else theta
    if model.get("fixed_theta") is not None:
        theta = model["fixed_theta"]
    if theta is None:
        reading.fail(f"refused: {theta_key} must be given outside rope_parameters")
    elif model.get("partial") == 0 and fraction is None:
        reading.fail("refused: the fraction that rotates must be given outside rope_parameters")
    elif model.get("needs_scaling") and keys is None and "rope_scaling" not in config:
        reading.fail("refused: rope_scaling must be given")
    else:
        text = f"not read at its place in the config: {theta:g} is used"
        reading.set_fields("rope_theta", text, source, theta=theta)
        default = model.get("partial")
        if model.get("whole"):
            fraction = 1.0
        elif default is not None and fraction is None:
            fraction = default
        reading.keys = None if model.get("scaling") == "none" else keys
        _set_fraction(reading, None if default is None else fraction, source, model)


def _set_fraction(
    reading: EngineReading, fraction: float | None, source: str, model: Mapping[str, Any]
) -> None:
    """Set how many dimensions of the head mlx-lm rotates, or fail if it refuses their number.

    fraction  the fraction of the head that its model class rotates; None: the class reads none, so
              the whole head rotates
    source    the file of the class, which the rule names
    model     the row of the model_type in `model` of the rules file; with "rotary_dim" in it, or
              with latent attention, the class reads a width and nothing is set here
    """
    case = reading.case
    if case.latent or "rotary_dim" in model:
        return
    if fraction is None:
        if case.spec.scaling.name != "proportional":  # which rotates the whole head already
            reading.set_rotary_dim(reading.spec.head_dim, "not read", source)
        return
    width = int(reading.spec.head_dim * fraction)
    if width % 2:
        reading.fail(f"refused: {width} dimensions would rotate, and MLX takes an even number")
        return
    reading.set_rotary_dim(width, "not read at its place in the config", source)


@_operation("build scaling")
def _build(reading: EngineReading, rule: Rule, release: Release, releases: Releases) -> None:
    """mlx-lm: the scaling that its `initialize_rope` builds from the rope object that the model
    reads; `to` names one whatever the object says.
    """
    case, keys = reading.case, reading.keys or {}
    # of the two names of a scaling, `type` takes precedence
    rope_type = str(keys.get("type") or keys.get("rope_type", "default")) if keys else "default"
    rope_type = rule.values.get("to", rope_type) if keys else rope_type  # without keys no scaling
    if rope_type == "longrope":
        _mlx_longrope(reading, keys, rule)
        return
    scaling = _mlx_scaling(release.scalings, rope_type, keys, case)
    if isinstance(scaling, str):
        reading.fail(scaling)
    elif scaling == Default() and case.spec.scaling != Default():
        reading.drop_scaling("not read", f"models/{case.model_type}.py")
    else:
        unread = [
            key
            for key in ("attention_factor", "truncate")
            if case.rope.get(key) is not None and rope_type == "yarn"
        ]
        does = "not read" if unread else "read with mlx-lm's own keys and defaults"
        about = ", ".join(unread) or case.rope_type
        reading.set_fields(about, does, rule.source, scaling=scaling)


def _mlx_scaling(
    scalings: Mapping[str, Mapping[str, Any]],
    rope_type: str,
    keys: Mapping[str, Any],
    case: ServedLayer,
) -> Scaling | str:
    """Return the scaling of a rope object, or why it is refused.

    scalings  {rope_type: {"is": name of the scaling, "keys": {key of the rope: field of the scaling},
              "defaults": {key: value}}}
    keys      the rope object
    """
    row = scalings.get(rope_type)
    if row is None:
        return f"refused: rope_type {rope_type} is not known to mlx-lm"
    if row["is"] == "default":
        return Default()
    if "factor" not in keys and "factor" not in row.get("defaults", {}):
        return "refused: factor must be given"
    nulls = [key for key in row["keys"] if key in keys and keys[key] is None]
    # with a factor of at most 1 mlx-lm uses no mscale
    if nulls and not (all(key.startswith("mscale") for key in nulls) and keys["factor"] <= 1):
        return f"refused: {nulls[0]} must be a number or absent, not null"
    defaults = row.get("defaults", {})
    given = {field: keys.get(key, defaults.get(key)) for key, field in row["keys"].items()}
    if row["is"] == "yarn":
        weight, divisor = given.pop("mscale"), given.pop("mscale_all_dim")
        factor = given["factor"]
        given["attention_factor"] = mscale(factor, weight or 0) / mscale(factor, divisor or 0)
        given["truncate"] = True  # mlx-lm does not read this key
    if row["is"] == "dynamic":
        given["original_length"] = case.max_position or 2048  # the default of mlx-lm
    return SCALINGS[row["is"]](**given)


def _mlx_longrope(reading: EngineReading, keys: Mapping[str, Any], rule: Rule) -> None:
    """Change the reading to LongRoPE as mlx-lm computes it, always with the long factors.

    keys  the rope object that its model class reads
    rule  with `length_outside` the class takes the trained length from outside the rope object;
          `magnitude` names a key of the magnitude
    """
    # what the rows have made of the rope so far, and what the config describes
    scaling, pairs = reading.spec.scaling, reading.spec.pairs
    described = reading.case.spec.scaling
    if isinstance(described, LongRope) and len(described.long_factor) != pairs:
        reading.fail(_misfit(len(described.long_factor), pairs))
    elif not isinstance(scaling, LongRope):
        reading.fail("not known: LongRoPE with other factors than the config's")
    elif not rule.values.get("length_outside") and keys.get(TRAINED) is None:
        reading.fail("refused: original_max_position_embeddings must be given in rope_scaling")
    else:
        length = scaling.original_length
        if not rule.values.get("length_outside"):
            length = int(keys[TRAINED])
            reading.change_scaling(original_length=length)
        text = "long factors for every sequence, short factors never"
        reading.fix_longrope_factors(length, True, text, rule.source)
        key = rule.values.get("magnitude")
        reading.set_longrope_magnitude(None if key is None else keys.get(key), rule.source)


def _factor_of_length(release: Release, case: ServedLayer) -> Any:
    """Return what an engine multiplies max_position_embeddings by to get the longest sequence that
    it serves, as the config writes it, which may be no number. The table `length` of its rules file
    says how.

    multiplied   "never"; "by the only rope", if `_multiplies_by_only_rope`;
                 or "by the last rope": that of the last layer type with a factor
    not_family   model types whose length is not multiplied; `not_types`: scalings that are not
                 counted
    null_is_one  a factor of null counts as 1
    """
    how = release.length.get("multiplied", "never")
    if how == "never" or case.model_type in release.length.get("not_family", ()):
        return 1.0
    if how == "by the last rope":
        ropes = list(ropes_by_layer_type(case.config).values()) or [case.rope_with_nulls]
        factors = [
            rope["factor"]
            for rope in ropes
            if "factor" in rope
            and (rope.get("rope_type") or rope.get("type")) not in release.length["not_types"]
        ]
        factor = factors[-1] if factors else 1.0
    else:
        is_multiplied = _multiplies_by_only_rope(release, case)
        factor = case.rope_with_nulls.get("factor", 1.0) if is_multiplied else 1.0
    return 1.0 if factor is None and release.length.get("null_is_one") else factor


def _multiplies_by_only_rope(release: Release, case: ServedLayer) -> bool:
    """Return whether the engine multiplies the served length by the factor: only if all layer types
    have the same rope, and neither the config nor its class writes the key of a trained length into
    this rope (a null counts).
    """
    # transformers' config class writes the trained length into these scalings if the config has none;
    # the classes that the engine has for some families write it into llama3 alone
    own_class = case.model_type in release.length["own_class"]
    filled = ("llama3",) if own_class else ("yarn", "llama3", "longrope")
    # the table `length` of the rules file also lists families that always have ropes by layer type
    by_layer_type = case.by_layer_type or case.model_type in release.length["by_layer_type"]
    return not (
        by_layer_type or case.spec.scaling.name in filled or TRAINED in case.rope_with_nulls
    )


def length_problem(release: Release, case: ServedLayer, releases: Releases) -> str | None:
    """Return why the engine cannot compute its served length from the config; None if it can."""
    factor = _factor_of_length(release, case)
    if not isinstance(factor, int | float):
        return "refused: the served length is multiplied by factor, which must be a number"
    length = served_length(release, case, releases)
    # an engine computes its default only if no length is asked for
    if length is None or (case.limit_is_given and not release.length.get("always_integer")):
        return None
    if not math.isfinite(length):
        return "refused: the served length is multiplied by factor, which must be finite"
    if not case.limit_is_given and release.length.get("above_zero") and length < 1:
        return f"refused: the served length times the factor, {length:g}, must be at least 1"
    return None


def served_length(release: Release, case: ServedLayer, releases: Releases) -> float | None:
    """Return the longest sequence that the engine takes from the config, times its factor; None if
    neither the config nor its class gives one, or if the factor is no number.
    """
    how, factor = release.length, _factor_of_length(release, case)
    lengths = {key: case.config.get(key) for key in how.get("keys", LENGTH_KEYS)}
    if lengths.get("max_position_embeddings") is None:
        # an engine may have a config class of its own
        classes = {**releases["hf"].served, **release.served}
        lengths["max_position_embeddings"] = classes.get(case.model_type or "")
    numbers = [length for length in lengths.values() if isinstance(length, int | float)]
    if not numbers or not isinstance(factor, int | float):
        return None
    length = min(numbers) if how.get("take") == "the smallest" else numbers[0]
    return (_own_limit(release, case) or length) * factor


def _own_limit(release: Release, case: ServedLayer) -> float | None:
    """Return the length under the key `before` of the engine's `length`, which comes before the
    other keys; None if it is no number.
    """
    limit = case.config.get(release.length.get("before", ""))
    return limit if isinstance(limit, int | float) else None


def exceeds_served_length(release: Release, case: ServedLayer, releases: Releases) -> bool:
    """Return whether the engine is asked to start for more tokens than the served length that it
    takes from the config, with its factor and, for the key `before`, without it too.
    """
    length, limit = served_length(release, case, releases), case.max_model_len
    above = case.limit_is_given and length is not None and limit > length
    return above and limit > (_own_limit(release, case) or 0)
