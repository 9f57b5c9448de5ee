"""The commands of the pages about longer contexts are those that `doctor` prints."""

import json
import re
from pathlib import Path

import pytest

import ropewalk as rw

DOCS = Path(__file__).resolve().parents[2] / "docs"
LENGTH = 32768


def configs() -> list[dict]:
    text = (DOCS / "serve-longer.md").read_text(encoding="utf-8")
    return [json.loads(block) for block in re.findall(r"^```json\n(.*?)^```$", text, re.M | re.S)]


def test_the_config_after_is_the_corrected_one():
    before, after = configs()
    found = rw.doctor(before, length=LENGTH)
    assert found.corrected == after


@pytest.mark.parametrize(
    ("page", "engines"),
    [
        ("serve-longer.md", ("vllm", "sglang", "llama.cpp", "transformers", "mlx-lm")),
        ("zh/serve.md", ("vllm", "sglang", "llama.cpp")),
        ("tutorial.md", ("llama.cpp",)),
        ("zh/tutorial.md", ("llama.cpp",)),
    ],
)
def test_the_commands_are_those_of_doctor(page, engines):
    text = (DOCS / page).read_text(encoding="utf-8")
    flags = rw.doctor(configs()[0], length=LENGTH).flags
    said = {engine: flags[engine].replace("FOLDER", "path/to/model") for engine in engines}
    assert [engine for engine, flag in said.items() if flag not in text] == []
