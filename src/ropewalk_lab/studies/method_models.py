"""The models of the study `methods`: what each method changes in a new decoder, or in a trained one
with RoPE.

Words of this module:
  method   a name of TRAINED, of a model trained with it; of APPLIED, which changes a trained RoPE
           model without training; LONGROPE2, whose factors are searched; or DROPE, which removes
           RoPE and trains the model a little further
  factor   how many times longer than the trained length the model reads
  factors  LongRoPE's: by how much each pair is slowed
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.attention import PathAttention, SelectiveAttention
from ropewalk.attention.remap import REMAPPINGS
from ropewalk.encodings import RotaryPlus, Sizes
from ropewalk.errors import RopeError
from ropewalk.frequencies import Clipped, Default, LongRope
from ropewalk.interop.extend import search_longrope2
from ropewalk.models.migrate import migrate
from ropewalk.rope import Rope
from ropewalk.temperatures import LearnedLog, LogN
from ropewalk_lab.needle import answer_loss
from ropewalk_lab.settings import Preset
from ropewalk_lab.studies import training
from ropewalk_lab.studies.extension_methods import rope_spec, yarn

LONGROPE2, DROPE = "longrope2", "drope"


class TokenDriven(nn.Module):
    """An attention of the Decoder whose encoding depends on the content of the tokens, not on their
    positions. It cannot continue from a cache here.
    """

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.attention = attention

    def attend(
        self, x: Tensor, positions: Tensor, padding: Any, documents: Any, cache: Any
    ) -> Tensor:
        """Return the attention output [B, S, hidden] for x [B, S, hidden]; positions have no
        influence.
        """
        if cache is not None:
            raise RopeError(
                "cache",
                "must be None: this attention continues from its own state",
                type(self.attention).__name__,
            )
        # [0]: without the state after x
        return self.attention(x, padding=padding, documents=documents)[0]


def _with_attention(make: Callable[[int, int, int], nn.Module]) -> Callable[[Any], nn.Module]:
    """Return a function that replaces the attention of every layer of a decoder.

    `make` returns an attention for a hidden size, a number of heads and a head_dim.
    """

    def change(model: Any) -> nn.Module:
        """Return the model after replacing the attention of every layer by a new one from `make`,
        in a TokenDriven, which gives it the interface of the decoder's attention.
        """
        for layer in model.layers:
            old = layer.self_attn
            attention = make(model.config.hidden_size, old.num_heads, old.head_dim)
            layer.self_attn = TokenDriven(_initialised(attention, model.config.init_std))
        return model

    return change


def _with_imaginary_heads(model: Any) -> nn.Module:
    """Return a RoPE decoder after giving every layer RoPE++: its second ("imaginary") score makes
    as many heads again, so the output projection is new, with twice the inputs.
    """
    for layer in model.layers:
        attention = layer.self_attn
        sizes = Sizes(
            attention.num_heads, attention.head_dim, model.config.hidden_size, model.config.length
        )
        attention.encoding = RotaryPlus(sizes, attention.encoding.rope.spec)
        output = nn.Linear(
            2 * attention.o_proj.in_features, attention.o_proj.out_features, bias=False
        )
        attention.o_proj = _initialised(output, model.config.init_std)
    return model


def _initialised(module: nn.Module, std: float) -> nn.Module:
    """Draw the linear weights of a new module with the standard deviation `std`, as those of the
    rest of the model were; return the module.
    """
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, std=std)
    return module


@dataclass(frozen=True)
class Trained:
    """What differs from a RoPE decoder in a model that is trained with a method.

    fields  number of layers -> changed fields of the config
    change  changes the new model before its training, and returns it
    """

    fields: Callable[[int], dict[str, Any]] = lambda layers: {}
    change: Callable[[Any], nn.Module] = lambda model: model


def _encoding(name: str) -> Trained:
    """Return a decoder's difference from RoPE: another encoding, a name of ENCODINGS."""
    return Trained(lambda layers: {"encoding": name})


def _layers_without_positions(layers: int) -> dict[str, Any]:
    """Return the field `layer_types` for a model of `layers` layers where every fourth layer has no
    encoding; the last one if there are fewer.
    """
    step = min(4, layers)
    return {
        "layer_types": tuple(
            "nope" if index % step == step - 1 else "full" for index in range(layers)
        )
    }


#: methods that a model is trained with from the start; an entry added here is trained and measured
#: like all others
TRAINED: dict[str, Trained] = {
    "rope": Trained(),
    "none": _encoding("none"),
    "nope layers": Trained(_layers_without_positions),
    "ssmax": Trained(lambda layers: {"temperature": LearnedLog()}),
    "lerope": _encoding("rope_learnable"),
    "pope": _encoding("pope"),
    "fope": _encoding("fope"),
    "rope++": Trained(change=_with_imaginary_heads),
    "selective": Trained(change=_with_attention(lambda *sizes: SelectiveAttention(*sizes))),
    "path": Trained(change=_with_attention(lambda *sizes: PathAttention(*sizes))),
}


def _scaled(model: Any, scaling: Any) -> nn.Module:
    """Return the RoPE model with a scaling."""
    return migrate(model, rope_spec(model).with_(scaling=scaling)).model


def _clipped(model: Any, factor: int, length: int) -> nn.Module:
    """Return the model with CoPE, which lets the frequencies of the pairs that do not complete a
    turn over `length` tokens, the trained length, taper off to 0. `factor` has no influence.
    """
    num_slow = sum(w * length < 2 * math.pi for w in rope_spec(model).ladder_frequencies().radians)
    return _scaled(model, Clipped(Default(), pairs=num_slow))


def _remapped(name: str) -> Callable[[Any, int, int], nn.Module]:
    """Return a function of (RoPE model, factor, trained length) that returns the model with a
    remapping for `factor` times its trained length.
    """
    return lambda model, factor, length: (
        migrate(
            model, rope_spec(model), remapping=REMAPPINGS[name].for_length(length, factor * length)
        ).model
    )


#: methods that change the trained RoPE model without training: functions of the model, the factor
#: and the trained length; the model is then read at factor times that length
APPLIED: dict[str, Callable[[Any, int, int], nn.Module]] = {
    "yarn": lambda model, factor, length: _scaled(model, yarn(float(factor), length)),
    "cope": _clipped,
    "log_n": lambda model, factor, length: (
        migrate(model, rope_spec(model), temperature=LogN(length)).model
    ),
    **{name: _remapped(name) for name in REMAPPINGS},
}


def preset_of(method: str, preset: str, changes: list[str], seed: int) -> Preset:
    """Return the preset of a model that is trained with a method."""
    layers = training.make_preset(preset, changes, seed).model["num_layers"]
    return training.make_preset(preset, changes, seed, **TRAINED[method].fields(layers))


def new_model(method: str, model: Any, seed: int) -> nn.Module:
    """Return a new RoPE decoder, changed as a method of TRAINED requires; its new weights depend on
    the seed alone.
    """
    # a copy of the state of torch's random numbers, so that other draws do not change
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return TRAINED[method].change(model)


def adapted(
    model: Any, method: str, factor: int, length: int, factors: tuple[float, ...] | None = None
) -> nn.Module:
    """Return a RoPE model, trained at `length`, adapted by a method of APPLIED or by LONGROPE2 to
    `factor` times that length.

    factors  for LongRoPE2: its factor of each pair; None: `factor` for every pair
    """
    if method == LONGROPE2:
        return _scaled(
            model,
            _long_scaling(factors or (float(factor),) * rope_spec(model).pairs, factor, length),
        )
    return APPLIED[method](model, factor, length)


def _long_scaling(factors: tuple[float, ...], factor: int, length: int) -> LongRope:
    """Return LongRoPE with these long factors. Up to the trained length the frequencies are
    unscaled; the magnitude applies at every length.
    """
    return LongRope((1.0,) * len(factors), factors, original_length=length, factor=float(factor))


def searched_factors(
    model: Any, factor: int, length: int, *, population: int, rounds: int, seed: int
) -> tuple[float, ...]:
    """Return LongRoPE2's factors, one for each pair: those of a search with the lowest loss of an
    answer that a text of factor * length tokens states at its start and asks for at its end.

    population, rounds  the candidates in a round of the search, and its rounds
    """
    trial_model: Any = deepcopy(model)
    plain = rope_spec(model)

    def loss(factors: tuple[float, ...]) -> float:
        """Return the loss of the answer with these LongRoPE factors, which `trial_model` keeps."""
        rope = Rope(plain.with_(scaling=_long_scaling(factors, factor, length)))
        for layer in trial_model.layers:
            layer.self_attn.encoding.rope = rope
        return answer_loss(trial_model, factor * length, seed=seed)

    options: dict[str, Any] = {
        "theta": plain.theta,
        "length": length,
        "population": population,
        "rounds": rounds,
        "seed": seed,
    }
    return search_longrope2(loss, plain.pairs, float(factor), **options)
