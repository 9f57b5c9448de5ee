"""Migration: a trained model keeps every weight that is not positional and gets another encoding, ready for fine-tuning."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.attention import Attention, LinearAttention
from ropewalk.encodings import Encoding
from ropewalk.errors import RopeError, choice
from ropewalk.models.checkpoints import load
from ropewalk.models.roformer_keys import from_transformers, left_out
from ropewalk.rope import Rope
from ropewalk.spec import RopeSpec

#: what a weight can be part of; "new" is what the source did not have
PARTS = ("embedding", "attention", "query_key", "positional", "head", "new", "other")
#: policy -> the parts that go on training. Add one here and `migrate(freeze=...)` knows it
FREEZES: dict[str, tuple[str, ...]] = {
    "none": PARTS,
    "embeddings": tuple(part for part in PARTS if part != "embedding"),
    "all_but_attention": ("attention", "query_key", "positional", "new"),
    "all_but_query_key": ("query_key", "positional", "new"),
    "all_but_new": ("positional", "new"),
    "all_but_head": ("head", "positional", "new"),
}


@dataclass(frozen=True, eq=False)
class Migration:
    """The new model, and what became of every weight: names in the source (dropped) or in the new model (the others)."""

    model: nn.Module
    copied: tuple[str, ...]
    dropped: tuple[str, ...]
    initialised: tuple[str, ...]
    frozen: tuple[str, ...]

    @property
    def trained(self) -> list[nn.Parameter]:
        """What an optimiser should get."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def __str__(self) -> str:
        weights = self.model.state_dict()
        numbers = sum(weights[name].numel() for name in self.copied)
        lines = [f"copied       {len(self.copied)} weights, {numbers:,} numbers"]
        for title in ("dropped", "initialised", "frozen"):
            names = getattr(self, title)
            some = ", ".join(names[:8]) + (" ..." if len(names) > 8 else "")
            lines.append(f"{title:<12} {len(names)}" + (f": {some}" if names else ""))
        return "\n".join(lines)


def migrate(
    source: nn.Module | str | os.PathLike[str], encoding: str | RopeSpec = "rope", *, freeze: str = "none", **changes: Any
) -> Migration:
    """A model like `source` under another encoding, with every weight of it that is not positional.

    source    a RoFormer or Decoder, a transformers RoFormer or BERT, or the folder of a checkpoint
    encoding  a name from ENCODINGS or a RopeSpec
    freeze    a policy from FREEZES: what will not be trained
    changes   further fields of the config, such as head="classification" or attention="linear"

    The source is left as it is. What the new model has and the source has not is initialised as in a new model.
    """
    choice("freeze", freeze, FREEZES)
    lost: tuple[str, ...] = ()
    if isinstance(source, str | os.PathLike):
        source = load(source)
    elif hasattr(getattr(source, "config", None), "to_dict"):
        lost, source = left_out(source), from_transformers(source)
    if not is_dataclass(getattr(source, "config", None)):
        raise RopeError(
            "source", "must be a RoFormer, a Decoder, a transformers RoFormer or BERT, or a folder", type(source).__name__
        )
    try:
        config = replace(source.config, encoding=encoding, **changes)  # type: ignore[arg-type]  # a dataclass
    except TypeError as error:
        raise RopeError("changes", f"must be fields of the model's config ({error})", sorted(changes)) from None
    model = type(source)(config)
    old, new = _weights(source), _weights(model)
    copied = tuple(key for key in new if key in old and _fits(key, old[key], new[key], source, model))
    with torch.no_grad():
        for key in copied:
            new[key].copy_(old[key])
    first = next(source.parameters())
    model.to(device=first.device, dtype=first.dtype).train(source.training)
    fresh = tuple(key for key in new if key not in copied)
    left = tuple(key for key in source.state_dict() if key not in copied)
    return Migration(model, copied, left + lost, (*_positional_weights(model), *fresh), apply_freeze(model, freeze, fresh))


def apply_freeze(model: nn.Module, policy: str, new: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Let a policy of FREEZES say which parameters of `model` train; the names of those that do not.

    `new` names the parameters that no checkpoint filled.
    """
    trains = FREEZES[choice("freeze", policy, FREEZES)]
    parts = _parts(model)
    going = {name: bool(({"new"} if name in new else parts[name]) & set(trains)) for name, _ in model.named_parameters()}
    if not any(going.values()):
        rule = f"{policy!r} leaves nothing to train in this model, whose encoding has no weights; choose another of"
        raise RopeError("freeze", f"{rule} {', '.join(FREEZES)}", policy)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(going[name])
    return tuple(name for name, trained in going.items() if not trained)


def _parts(model: nn.Module) -> dict[str, set[str]]:
    """Each parameter's parts, by the modules it lies in."""
    found = {name: {"head"} if name.startswith(("head.", "lm_head.")) else {"other"} for name, _ in model.named_parameters()}
    for path, module in model.named_modules():
        for name, _ in module.named_parameters(prefix=path):
            inside = name.removeprefix(path + ".")
            if name not in found:
                continue  # the second name of a shared weight
            if isinstance(module, Attention | LinearAttention):
                is_query_key = inside.startswith(("q_", "k_", "qk"))
                found[name] = {"query_key", "attention"} if is_query_key else {"attention"}
            elif isinstance(module, Encoding | Rope):
                found[name] = {"positional"}
            elif isinstance(module, nn.Embedding) and found[name] != {"positional"}:
                found[name] = {"embedding"}
    return found


def _fits(key: str, old: Tensor, new: Tensor, source: nn.Module, model: nn.Module) -> bool:
    """Whether a weight goes over: a head of another kind or size stays behind, anything else must have its shape."""
    part = key.split(".")[0]
    if part == "head":
        return type(source.get_submodule(part)) is type(model.get_submodule(part)) and old.shape == new.shape
    if old.shape != new.shape:
        raise RopeError("changes", f"{key} has to be {list(old.shape)}, as in the source", list(new.shape))
    return True


def _weights(model: nn.Module) -> dict[str, Tensor]:
    """Every weight that is not positional."""
    positional = set(_positional_weights(model))
    return {key: value for key, value in model.state_dict().items() if key not in positional}


def _positional_weights(model: nn.Module) -> tuple[str, ...]:
    return tuple(key for path in _positional(model) for key in model.get_submodule(path).state_dict(prefix=path + "."))


def _positional(model: nn.Module) -> Iterator[str]:
    """Where the encodings are; a Rope inside an Encoding is part of it."""
    inside: str | None = None
    for path, module in model.named_modules():
        if inside is not None and path.startswith(inside + "."):
            continue
        inside = path if isinstance(module, Encoding | Rope) else None
        if inside is not None:
            yield path
