"""What a folder itself states about its pair layout: a flag in the config of some families, or the
file pair_layout.json.

`convert_checkpoint` writes that file, the record, for families without the flag, whose config and
tensor names do not show a conversion.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ropewalk.config import file as config_file
from ropewalk.config.families import families
from ropewalk.errors import RopeError, choice
from ropewalk.interop.checkpoint.shards import Folder, stays_inside
from ropewalk.spec import LAYOUTS

RECORD_FILE = "pair_layout.json"
FLAG = "rope_interleave"


@dataclass(frozen=True)
class StatedLayout:
    """What a folder states.

    layout    the layout of its weights
    original  their layout before the first conversion; None if it is not stated
    source    the file or the config key that states this
    """

    layout: str
    original: str | None
    source: str


def stated_layout(folder: Folder) -> StatedLayout | None:
    """Return the layout that a folder states: in pair_layout.json, or else by `rope_interleave` in
    its config, if the model's code reads that key. None if it states none.
    """
    path = folder.path / RECORD_FILE
    if path.is_file():
        if not stays_inside(path):
            raise RopeError(
                RECORD_FILE, "must not be a link to a file outside its folder", str(path.resolve())
            )
        values = config_file.read(path)
        layouts = [
            choice(f"{RECORD_FILE}.{key}", values.get(key), LAYOUTS)
            for key in ("layout", "original_layout")
        ]
        return StatedLayout(layouts[0], layouts[1], RECORD_FILE)
    if (folder.path / "config.json").is_file() and reads_interleave_flag(folder.config):
        flag = config_file.text_part(folder.config).get(FLAG)
        if isinstance(flag, bool):
            return StatedLayout("interleaved" if flag else "half", None, f"{FLAG} in config.json")
    return None


def record_of(source: Folder, source_layout: str, target_layout: str) -> dict[str, Any] | None:
    """Return the content of pair_layout.json for the converted folder.

    None: it needs no such file, because its config states the layout or the layout is the original
    one again.
    """
    if (source.path / "config.json").is_file() and reads_interleave_flag(source.config):
        return None
    stated = stated_layout(source)
    original = source_layout if stated is None else stated.original
    return (
        None
        if target_layout == original
        else {"layout": target_layout, "original_layout": original}
    )


def reads_interleave_flag(config: Mapping[str, Any]) -> bool:
    """Return whether the code of the config's model_type reads the pair layout from
    `rope_interleave`; the config may have the key or not.
    """
    family = families().get(str(config_file.text_part(config).get("model_type")))
    return family is not None and "rope_interleave" in family.reads


def with_interleave_flag(config: Mapping[str, Any], interleaved: bool) -> dict[str, Any]:
    """Return a copy of a config with `rope_interleave` set in the part that describes the text
    model.
    """
    for name in config_file.TEXT_PARTS:
        if config.get(name) is not None:
            return {**config, name: with_interleave_flag(config[name], interleaved)}
    return {**config, FLAG: interleaved}
