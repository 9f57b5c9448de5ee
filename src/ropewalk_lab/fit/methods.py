"""The methods that `fit` measures: every scaling and remapping that `extend` offers, longrope only
with searched factors, and the entries of METHODS.

Words of this module:
  scaling    a change of a rope's frequencies, such as yarn
  remapping  a change of the distances by which attention scores queries and keys, such as rerope
  trained    the trained length in tokens
  factor     how many times longer than that the texts to be read are
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any

from torch import nn

from ropewalk.attention.remap import REMAPPINGS
from ropewalk.config import file as config_file
from ropewalk.config.hf import from_hf
from ropewalk.encodings.rotary import Rotary
from ropewalk.errors import RopeError, choice
from ropewalk.frequencies import Default
from ropewalk.frequencies.scaling import Scaling
from ropewalk.interop.extend.keys import all_kinds, kinds
from ropewalk.interop.extend.model import extend
from ropewalk.interop.extend.search import search_factors
from ropewalk.models.decoder import Decoder
from ropewalk.rope import Rope
from ropewalk.spec import RopeSpec
from ropewalk_lab.fit.fingerprint import plain
from ropewalk_lab.fit.ledger import digest

NONE, LONGROPE = "none", "longrope"


@dataclass(frozen=True)
class Method:
    """A way to read further than the trained length: a `kind` of `extend` and its options.

    kind     the name of a scaling or remapping; None: the unchanged model
    factor   whether `extend` takes a factor for this kind; dynamic_yarn adapts to each sequence
             instead
    options  of `extend`
    """

    kind: str | None
    factor: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)

    def variant(self) -> str:
        """Return 8 hex digits of the kind and its options, which tell apart the rows of a method
        that was measured with different options.
        """
        return digest([self.kind, self.factor, plain(self.options)], 8)

    @property
    def is_fixed(self) -> bool:
        """Whether the method itself rotates a token alike in texts of every length."""
        return self.kind is None or (
            self.kind not in REMAPPINGS and not all_kinds()[self.kind].needs_length
        )


#: methods whose name is not a kind of `extend`: name -> the kind and the options of `extend`; `fit`
#: measures every entry
METHODS: dict[str, Method] = {
    NONE: Method(kind=None, factor=False),
    "by_parts": Method("yarn", options={"attention_factor": 1.0}),
}


def methods(long_factor: tuple[float, ...] | None = None) -> dict[str, Method]:
    """Return every method by name; longrope only if `long_factor` is given, its factors, one for
    each pair.
    """
    by_name = dict(METHODS)
    for name, scaling in kinds().items():
        if name != LONGROPE:
            by_name[name] = Method(name, factor=_takes_factor(scaling))
        elif long_factor is not None:
            by_name[name] = Method(name, options={"long_factor": tuple(long_factor)})
    return by_name | {name: Method(name) for name in REMAPPINGS}


def _takes_factor(scaling: type[Scaling]) -> bool:
    """Return whether a scaling has the field `factor`."""
    return "factor" in {each.name for each in fields(scaling)}


def arguments(method: Method, factor: float, trained: int) -> dict[str, Any]:
    """Return the keyword arguments of `extend` for a method, a factor and the trained length."""
    given: dict[str, Any] = {"original_length": trained, **method.options}
    return given | ({"factor": factor} if method.factor else {})


def rope_specs(model: nn.Module) -> list[RopeSpec]:
    """Return the spec of every rotated layer of a Decoder, or of every layer type of a transformers
    model that is rotated.
    """
    if isinstance(model, Decoder):
        return [encoding.rope.spec for encoding in _rotary(model)]
    return [spec for spec in from_hf(model.config, per_layer=True).values() if spec is not None]  # type: ignore[union-attr]


def _rotary(model: Decoder) -> list[Rotary]:
    """Return the encodings of the layers that are rotated; other layers have no positions, or a
    bias.
    """
    encodings = [layer.self_attn.encoding for layer in model.layers]  # type: ignore[union-attr]
    return [encoding for encoding in encodings if isinstance(encoding, Rotary)]


@contextmanager
def extended(model: nn.Module, method: Method, factor: float, trained: int) -> Iterator[None]:
    """Context manager: the model uses the method inside, and computes as before afterwards.

    method   the scaling or remapping; one whose `kind` is None changes nothing
    factor   served length / trained length
    trained  the trained length in tokens

    Warnings of `extend` about other engines are not emitted.
    """
    if method.kind is None:
        yield
    # `extend` has only remappings for a Decoder
    elif isinstance(model, Decoder) and method.kind not in REMAPPINGS:
        with _decoder_extended(model, method, factor, trained):
            yield
    else:
        with quiet():
            extension = extend(model, method.kind, **arguments(method, factor, trained))
        try:
            yield
        finally:
            assert extension is not None  # `extend` returns None only if the kind is None
            extension.undo()


@contextmanager
def quiet() -> Iterator[None]:
    """Context manager: emit no UserWarning, such as those of `extend` about other engines."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


@contextmanager
def _decoder_extended(
    model: Decoder, method: Method, factor: float, trained: int
) -> Iterator[None]:
    """Context manager: the ropes of our own decoder have the scaling of a method, and their own
    again afterwards; raise an error if no layer has RoPE, or if a rope has a scaling already.
    """
    encodings = _rotary(model)
    if not encodings:
        raise RopeError(
            "model", "must have layers with RoPE to be extended by a scaling", model.config.encoding
        )
    ropes = [encoding.rope for encoding in encodings]
    for rope in ropes:
        if not isinstance(rope.spec.scaling, Default):
            raise RopeError(
                "rope",
                "must have no scaling of its own, which another would replace",
                rope.spec.scaling,
            )
    scaling = scaling_of(method, factor, trained)
    for encoding, rope in zip(encodings, ropes, strict=True):
        encoding.rope = Rope(
            rope.spec.with_(scaling=scaling), backend=rope.backend, tables=rope.tables
        )
    try:
        yield
    finally:
        for encoding, rope in zip(encodings, ropes, strict=True):
            encoding.rope = rope


def search_longrope(
    model: nn.Module,
    loss: Callable[[], float],
    factor: float,
    trained: int,
    **options: int,
) -> tuple[float, ...]:
    """Return the LongRoPE factors with the smallest loss that was found, one for each pair.

    loss     called while the model has the factors of a candidate; returns its loss
    factor   served length / trained length
    trained  the trained length in tokens
    options  the population and the rounds of the search, and its seed
    """
    if isinstance(model, Decoder):

        def decoder_loss(factors: tuple[float, ...]) -> float:
            """Return the loss of the model with these factors of LongRoPE."""
            with extended(
                model, Method(LONGROPE, options={"long_factor": factors}), factor, trained
            ):
                return loss()

        pairs = rope_specs(model)[0].pairs
        return search_factors(decoder_loss, pairs, factor, **options)
    with quiet():
        extension = extend(
            model,
            LONGROPE,
            factor=factor,
            original_length=trained,
            search=lambda _: loss(),  # the model already has the factors of the candidate
            search_options=options,
        )
    assert extension is not None  # `extend` returns None only if the kind is None
    long_factor = next(iter(extension.specs.values())).scaling.long_factor  # type: ignore[attr-defined]
    extension.undo()
    return tuple(long_factor)


def scaling_of(method: Method, factor: float, trained: int) -> Scaling:
    """Return the scaling of a method, for `factor` times the trained length."""
    scaling_class = all_kinds()[choice("method", method.kind, all_kinds())]
    names = {each.name for each in fields(scaling_class)}  # some scalings have no original_length
    values = {
        name: value for name, value in arguments(method, factor, trained).items() if name in names
    }
    if scaling_class.name == LONGROPE:
        # frequencies are unscaled up to the trained length; the magnitude applies at every length
        values.setdefault("short_factor", (1.0,) * len(values["long_factor"]))
    return scaling_class(**values)


def config_with(
    model: nn.Module, method: Method, factor: float, trained: int
) -> dict[str, Any] | None:
    """Return the model's config with the keys that `extend` writes for a method; None if no config
    can express it, for the unchanged model, and for a Decoder.
    """
    if method.kind is None or method.kind in REMAPPINGS or isinstance(model, Decoder):
        return None
    config = dict(copy.deepcopy(config_file.load(model.config)))
    with quiet():
        extension = extend(config, method.kind, **arguments(method, factor, trained))
    # not saved: `extend` found no config key for the method
    return config if extension is not None and extension.saved else None
