"""Which model classes an engine has and which it takes from transformers: a data file for each
release, read out of the installed engine by tools/engines/registries.py.

Words of this module:
  architecture   the name of a model class, in `architectures` of a config
  own            of an architecture: the engine has code of its own for it
  model type     that of the whole config
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ropewalk.caches import cached
from ropewalk.engines.case import OUTER_ARCHITECTURES, OUTER_TYPE, is_whole

FOLDER = Path(__file__).parent / "registries"
#: what the names of classes that write text end with; the files have only such classes of
#: transformers
GENERATION = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
#: vLLM takes the code of a class that writes text for one of the same model with another ending
OTHER_TASKS = ("ForSequenceClassification", "ForTokenClassification", "ForRewardModeling", "Model")


@dataclass(frozen=True)
class Registry:
    """The model classes of one release of an engine.

    own           {architecture: the engine's module with its code}
    types         {own architecture: its model type, where transformers has the class too}
    transformers  {architecture of transformers that runs as it is: its model type}
    refused       {architecture of transformers that does not run: why}
    silu          modules that raise an error for another activation than silu
    drafts        own architectures that run only beside the model whose tokens they draft

    All methods take the keys of a text model, with those of the whole config under the names of
    case.py.
    """

    own: Mapping[str, str]
    types: Mapping[str, str]
    transformers: Mapping[str, str]
    refused: Mapping[str, str]
    silu: frozenset[str]
    drafts: frozenset[str]

    def in_transformers(self, config: Mapping[str, Any]) -> bool:
        """Return whether the engine runs transformers' code for a config. A whole config without
        architectures has the class of its model type.
        """
        names, model_type = _names(config), _whole_type(config)
        if not names:
            is_foreign = model_type in self.transformers.values()
            return is_whole(config) and is_foreign and model_type not in self._own_types
        return self._own(names) is None and names[0] in self.transformers

    def problem(self, config: Mapping[str, Any]) -> str | None:
        """Return why the rules of a family do not hold for a config, or None if they may."""
        names, model_type = _names(config), _whole_type(config)
        if not names:
            return None
        if (found := self._own(names)) is not None:
            if found in self.drafts:
                return f"refused: {found} runs only beside the model whose tokens it drafts"
            if self._is_of_another(found, model_type):
                return f"not known: the rope of {model_type} in the class {found}"
            return self._activation(config, found)
        name = names[0]
        if name in self.transformers:
            text = f"not known: the rope of {model_type} in transformers' class {name}"
            return None if self.transformers[name] == model_type else text
        if name in self.refused:
            return f"refused: no code for {name}, and of transformers' class {self.refused[name]}"
        if not name.endswith(GENERATION):
            return None
        kind = "not known" if config.get("auto_map") else "refused"
        return f"{kind}: neither the engine nor transformers has a class {name}"

    def _activation(self, config: Mapping[str, Any], found: str) -> str | None:
        """Return the problem of the class `found` with `hidden_act` of a config; None: it has none.

        A model of experts alone may have no layer that takes silu alone.
        """
        act = config.get("hidden_act", "silu")
        texts = {
            self.own[each] for each, kind in self.types.items() if kind == config.get("model_type")
        }
        modules = texts or {self.own[found]}
        if act == "silu" or not modules & self.silu:
            return None
        kind = "not known" if any("expert" in key for key in config) else "refused"
        return f"{kind}: hidden_act must be silu, not {act}"

    @cached_property
    def _own_types(self) -> frozenset[str]:
        """The model types that the engine has code of its own for."""
        return frozenset(self.types.values())

    def _own(self, names: Sequence[str]) -> str | None:
        """Return the first architecture of these that the engine has code of its own for."""
        return next((each for name in names for each in _bases(name) if each in self.own), None)

    def _is_of_another(self, name: str, model_type: str | None) -> bool:
        """Return whether an architecture of the engine is that of another model type, with code in
        another module.
        """
        same = {self.own[each] for each, kind in self.types.items() if kind == model_type}
        same_type = self.types.get(name) in (None, model_type)
        # a model type without a class in transformers has that of another one
        known = bool(same) or model_type in self.transformers.values()
        return not same_type and known and self.own[name] not in same


def _whole_type(config: Mapping[str, Any]) -> str | None:
    """Return the model type of the whole config."""
    return config.get(OUTER_TYPE) or config.get("model_type")


def _names(config: Mapping[str, Any]) -> list[str]:
    """Return `architectures` of the whole config; [] if there are none."""
    given = config.get(OUTER_ARCHITECTURES) or config.get("architectures")
    names = [given] if isinstance(given, str) else given
    return [str(name) for name in names] if isinstance(names, list) else []


def _bases(name: str) -> Iterator[str]:
    """Yield a name of `architectures`, and those of the classes that write text with the same model
    if it has another task.
    """
    yield name
    for task in OTHER_TASKS:
        if name.endswith(task):
            yield from (name.removesuffix(task) + ending for ending in GENERATION)


@cached("model classes of engines", entries=8)
def registry_of(engine: str, version: str) -> Registry | None:
    """Return the model classes of a release of an engine; None if they were not read."""
    path = FOLDER / f"{engine}-{version}.json"
    if not path.is_file():
        return None
    read = json.loads(path.read_text(encoding="utf-8"))
    own, runs, refused = (
        {name: key for key, names in read[part].items() for name in names}
        for part in ("own", "transformers", "refused")
    )
    silu, drafts = frozenset(read["silu"]), frozenset(read["drafts"])
    return Registry(own, read["types"], runs, refused, silu, drafts)
