"""Migration: give a trained model another encoding and keep all weights that are not positional,
for fine-tuning.

Words of this module:
  positional  a weight inside an encoding, such as learned frequencies or a table of positions
  role        what a weight is for, one of ROLES; weights of q and k have the roles "query_key" and
              "attention"
  policy      a key of FREEZES: it says by role which weights are trained and which are frozen
"""

from __future__ import annotations

import os
from dataclasses import dataclass, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.attention import LinearAttention
from ropewalk.attention.softmax import SoftmaxAttention
from ropewalk.encodings import Encoding
from ropewalk.errors import RopeError, choice
from ropewalk.models.checkpoints import load
from ropewalk.models.roformer import RoFormer
from ropewalk.models.roformer_checkpoint import from_transformers, unused_weights
from ropewalk.rope import Rope
from ropewalk.spec import RopeSpec

#: roles of a weight; "new" means that the source did not have it
ROLES = ("embedding", "attention", "query_key", "positional", "head", "new", "other")
#: policy -> the roles that are trained; an entry added here can be used as `migrate(freeze=...)`
FREEZES: dict[str, tuple[str, ...]] = {
    "none": ROLES,
    "embeddings": tuple(role for role in ROLES if role != "embedding"),
    "all_but_attention": ("attention", "query_key", "positional", "new"),
    "all_but_query_key": ("query_key", "positional", "new"),
    "all_but_new": ("positional", "new"),
    "all_but_head": ("head", "positional", "new"),
}


@dataclass(frozen=True, eq=False)
class Migration:
    """The new model, and lists of weights by their names in the new model.

    copied       have the values that they have in the source
    dropped      of the source alone, by their names there. A transformers model is first converted
                 to a RoFormer: weights that this conversion keeps have their names in the RoFormer
    initialised  as in a new model: those that the source does not have, and all of the encoding
    frozen       parameters that are not trained
    """

    model: nn.Module
    copied: tuple[str, ...]
    dropped: tuple[str, ...]
    initialised: tuple[str, ...]
    frozen: tuple[str, ...]

    @property
    def trained(self) -> list[nn.Parameter]:
        """The parameters that are not frozen, for the optimiser."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def __str__(self) -> str:
        """Return a table with the number of weights in each list, and their first eight names; for
        copied weights it has the number of their elements instead of names.
        """
        weights = self.model.state_dict()
        elements = sum(weights[name].numel() for name in self.copied)
        lines = [f"copied       {len(self.copied)} weights, {elements:,} numbers"]
        for title in ("dropped", "initialised", "frozen"):
            names = getattr(self, title)
            shown = ", ".join(names[:8]) + (" ..." if len(names) > 8 else "")
            lines.append(f"{title:<12} {len(names)}" + (f": {shown}" if names else ""))
        return "\n".join(lines)


#: method -> the fields of the config that it changes; an entry added here can be used as
#: `migrate(to=...)`
MIGRATIONS: dict[str, dict[str, Any]] = {
    # DroPE: no layer is rotated any more; recalibrate the model at its trained length afterwards
    "drope": {"encoding": "none"},
}


def migrate(
    source: nn.Module | str | os.PathLike[str],
    encoding: str | RopeSpec = "rope",
    *,
    to: str | None = None,
    freeze: str = "none",
    **changes: Any,
) -> Migration:
    """Create a model like `source` with another encoding, and copy every weight that is not
    positional and not of a head of another kind or size.

    source    a RoFormer or Decoder, a transformers RoFormer or BERT, or the folder of a checkpoint
    encoding  a name from ENCODINGS or a RopeSpec
    to        a method from MIGRATIONS instead of an encoding: "drope" drops RoPE from a Decoder
    freeze    a policy from FREEZES: which weights are not trained
    changes   further fields of the config, such as head="classification" or attention="linear"

    The source is not changed. Weights that the source does not have are initialised as in a new
    model.
    """
    choice("freeze", freeze, FREEZES)
    if to is not None:
        changes = {**MIGRATIONS[choice("to", to, MIGRATIONS)], **changes}
        encoding = changes.pop("encoding", encoding)
    unused: tuple[str, ...] = ()  # weights of a transformers model that we have no place for
    if isinstance(source, str | os.PathLike):
        source = load(source)
    elif hasattr(getattr(source, "config", None), "to_dict"):
        unused, source = unused_weights(source), from_transformers(source)
    if not is_dataclass(getattr(source, "config", None)):
        raise RopeError(
            "source",
            "must be a RoFormer, a Decoder, a transformers RoFormer or BERT, or a folder",
            type(source).__name__,
        )
    try:
        # a dataclass
        config = replace(source.config, encoding=encoding, **changes)  # type: ignore[arg-type]
    except TypeError as error:
        raise RopeError(
            "changes",
            f"must be fields of {type(source.config).__name__} ({error})",
            sorted(changes),
        ) from None
    parameter = next(source.parameters())
    model = type(source)(config).to(device=parameter.device, dtype=parameter.dtype)
    old, new = _weights_outside_encodings(source), _weights_outside_encodings(model)
    copied = tuple(
        name
        for name in new
        if name in old and _is_copied(name, old[name], new[name], source, model)
    )
    with torch.no_grad():
        for name in copied:
            new[name].copy_(old[name])
    if isinstance(source, RoFormer) and isinstance(model, RoFormer):
        model.gradient_checkpointing = source.gradient_checkpointing
    model.train(source.training)
    uncopied = tuple(name for name in new if name not in copied)
    dropped = tuple(name for name in source.state_dict() if name not in copied) + unused
    return Migration(
        model,
        copied,
        dropped,
        (*_positional_names(model), *uncopied),
        apply_freeze(model, freeze, uncopied),
    )


def apply_freeze(model: nn.Module, policy: str, new: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Set `requires_grad` by a policy of FREEZES and return the names of the frozen parameters.
    Raise an error if nothing would be trained.

    `new` lists the parameters that were not loaded from a checkpoint. Parameters of an encoding
    that are already frozen, such as the fixed matrices of FoPE, stay frozen under every policy.
    """
    trained_roles = set(FREEZES[choice("freeze", policy, FREEZES)])
    roles = _roles(model) | {name: {"new"} for name in new}
    positional = _positional_names(model)
    trained = {
        name: bool(roles[name] & trained_roles)
        and (parameter.requires_grad or name not in positional)
        for name, parameter in model.named_parameters()
    }
    if not any(trained.values()):
        others = ", ".join(name for name in FREEZES if name != policy)
        raise RopeError(
            "freeze", f"must leave something to train in this model; choose one of {others}", policy
        )
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trained[name])
    return tuple(name for name, is_trained in trained.items() if not is_trained)


def _roles(model: nn.Module) -> dict[str, set[str]]:
    """Return {name of a parameter: its roles}, which follow from the modules that contain it; inner
    modules come later and override outer ones.
    """
    roles = {
        name: {"head"} if name.startswith(("head.", "lm_head.")) else {"other"}
        for name, _ in model.named_parameters()
    }
    for path, module in model.named_modules():
        for name, _ in module.named_parameters(prefix=path):
            if name not in roles:
                continue  # the second name of a shared weight
            if isinstance(module, SoftmaxAttention | LinearAttention):
                # "qk" is the beginning of a Decoder's packed qkv_proj
                is_query_key = name.removeprefix(path + ".").startswith(("q_", "k_", "qk"))
                roles[name] = {"query_key", "attention"} if is_query_key else {"attention"}
            elif isinstance(module, Encoding | Rope):
                roles[name] = {"positional"}
            # a table of positions inside an encoding stays positional
            elif isinstance(module, nn.Embedding) and roles[name] != {"positional"}:
                roles[name] = {"embedding"}
    return roles


def _is_copied(name: str, old: Tensor, new: Tensor, source: nn.Module, model: nn.Module) -> bool:
    """Return whether the weight `old` of `source` is copied to `new` of `model`: one of the head
    only if both heads have the same class and the weight the same shape. Raise an error if a weight
    outside the head has another shape. Only a RoFormer has a module named `head`.
    """
    part = name.split(".")[0]
    if part == "head":
        return (
            type(source.get_submodule(part)) is type(model.get_submodule(part))
            and old.shape == new.shape
        )
    if old.shape != new.shape:
        raise RopeError(
            "changes", f"must keep the shape of {name}, {list(old.shape)}", list(new.shape)
        )
    return True


def _weights_outside_encodings(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights outside encodings, by name."""
    positional = _positional_names(model)
    return {name: value for name, value in model.state_dict().items() if name not in positional}


def _positional_names(model: nn.Module) -> dict[str, None]:
    """Return the names of the weights inside encodings, in order, as the keys of a dict."""
    modules = (
        path for path, module in model.named_modules() if isinstance(module, Encoding | Rope)
    )
    return dict.fromkeys(
        name for path in modules for name in model.get_submodule(path).state_dict(prefix=path + ".")
    )
