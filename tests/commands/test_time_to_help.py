"""Help, the version and completions of a shell are answered without the imports that take long."""

import re
import subprocess
import sys

import pytest

#: packages that take long to import; a command that computes needs some of them
SLOW = {
    "torch",
    "numpy",
    "transformers",
    "matplotlib",
    "starlette",
    "uvicorn",
    "pandas",
    "scipy",
    "tokenizers",
    "safetensors",
    "triton",
}


def imported(*words: str) -> set[str]:
    """The top-level names of everything that the command line imports."""
    command = [sys.executable, "-X", "importtime", "-m", "ropewalk_cli", *words]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    return {
        name.split(".")[0]
        for name in re.findall(r"^import time:.*\| +(\S+)$", done.stderr, re.MULTILINE)
    }


@pytest.mark.parametrize(
    "words",
    [
        ["--version"],
        ["--help"],
        ["inspect", "--help"],
        ["train", "--help"],
        ["lab", "run", "--help"],
    ],
    ids=" ".join,
)
def test_help_and_the_version_import_nothing_slow(words):
    assert imported(*words) & SLOW == set()


def test_a_completion_imports_nothing_slow():
    assert imported("--complete", "bash", "inspect", "--se") & SLOW == set()


def test_a_command_that_computes_imports_torch_and_numpy():
    """The helper `imported` does see slow imports, so the tests above can fail."""
    assert {"torch", "numpy"} <= imported("info")
