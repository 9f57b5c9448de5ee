"""Chinese translations of all figure labels, by English text, from words.toml."""

from __future__ import annotations

from ropewalk_lab.data_files import toml_beside

CHINESE: dict[str, str] = toml_beside(__file__)
