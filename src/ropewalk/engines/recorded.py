"""What engines were recorded to compute: a data file for each release, with the ropes of the very
configs that it was run with.

Words of this module: a `digest` is the name of a config in these files, made from its keys and the
lengths that it was served with. A cell is what one engine did with one layer type of one config.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropewalk.caches import cached
from ropewalk.engines.difference import Rotation
from ropewalk.engines.reading import frequencies_of
from ropewalk.spec import RopeSpec

FOLDER = Path(__file__).parent / "recorded"
#: in a file, a rope that is what the spec of the config describes
AS_DESCRIBED = "as described"


@dataclass(frozen=True)
class Record:
    """The runs of one release of an engine.

    version   the newest release that was run, on `date`
    since     the oldest of the releases run that computed the same from every config; None:
              `version` alone
    families  {model type: the scalings that it was run with}
    ropes     every rope that is not what the config describes, once: [radians, magnitude, axes]
    cells     {config: {layer type: AS_DESCRIBED, the index of a rope, None for no rotation, or the
              text of an error}}; a config is named by its `digest`
    """

    engine: str
    version: str
    date: str
    since: str | None
    families: Mapping[str, list[str]]
    ropes: list[list[Any]]
    cells: Mapping[str, Mapping[str, Any]]

    def releases(self) -> str:
        """Return the releases that computed the same, such as "0.31.0 to 0.32.0"."""
        return self.version if self.since is None else f"{self.since} to {self.version}"

    def rope(self, name: str, layer_type: str, spec: RopeSpec, length: int) -> Cell | None:
        """Return what was recorded for a layer type of the config with the digest `name`; None if
        it was not run. `spec` is what the config describes, in sequences of `length` tokens.
        """
        found = self.cells.get(name, {})
        if layer_type not in found:
            return None
        entry = found[layer_type]  # see `cells`
        if entry is None or (isinstance(entry, str) and entry != AS_DESCRIBED):
            return Cell(entry)
        if entry == AS_DESCRIBED:
            return Cell(Rotation(*frequencies_of(spec, length), spec.axis_of_pair))
        radians, magnitude, axes = self.ropes[entry]
        # a rope with one axis is written without axes
        return Cell(Rotation(tuple(radians), magnitude, tuple(axes or [0] * len(radians))))


@dataclass(frozen=True)
class Cell:
    """What an engine did with one layer type: a rotation, None for no rotation, or an error."""

    found: Rotation | str | None


@cached("recorded runs of engines", entries=8)
def load(*folders: Path) -> dict[str, Record]:
    """Return the newest record of every engine, from the package and from `folders`."""
    found: dict[str, Record] = {}
    for folder in (FOLDER, *folders):
        for path in sorted(folder.glob("*.json")):
            record = Record(**json.loads(path.read_text(encoding="utf-8")))
            old = found.get(record.engine)
            # a record in `folders` replaces one of the same version in the package
            if old is None or _order(record.version) >= _order(old.version):
                found[record.engine] = record
    return found


def _order(version: str) -> list[int]:
    """Return the numbers of a version, by which releases are sorted."""
    return [int(part) for part in version.split(".") if part.isdigit()]


@cached("config keys without a rope", entries=1)
def _other_keys() -> frozenset[str]:
    """Return the config keys that no rope depends on."""
    text = (FOLDER / "other_keys.toml").read_text(encoding="utf-8")
    return frozenset(tomllib.loads(text)["keys"])


def digest(
    config: Mapping[str, Any], specs: Mapping[str, RopeSpec | None], length: int, limit: int | None
) -> str:
    """Return the name of a text config in a record, for sequences of `length` tokens in an engine
    that is started for `limit` tokens, or for its own default if `limit` is None.

    Keys that no rope depends on are left out; of hidden_size and num_attention_heads the quotient
    is kept, and of the layers their types. The length is kept if a scaling of `specs`, the specs of
    the config by layer type, depends on it.
    """
    kept = {key: value for key, value in config.items() if key not in _other_keys()}
    hidden, heads = kept.pop("hidden_size", None), kept.pop("num_attention_heads", None)
    kept.pop("num_hidden_layers", None)
    if kept.get("sliding_window") is None:  # null is an absent window
        kept.pop("sliding_window", None)
    kept["hidden_size / num_attention_heads"] = hidden // heads if hidden and heads else None
    if isinstance(kept.get("layer_types"), list):
        kept["layer_types"] = sorted(set(kept["layer_types"]))
    needs_length = any(spec is not None and spec.needs_length for spec in specs.values())
    served = [length if needs_length else None, limit]
    text = json.dumps([kept, served], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
