"""Seeded randomness, run-time checks of types, and no GPU tests without a GPU; `sampling` has the
short form of the tests.
"""

import os

# one thread a worker: two pytest workers on two cores must not fight over them
os.environ.setdefault("OMP_NUM_THREADS", "1")

import gc
import importlib.util
from pathlib import Path

import pytest
import torch

pytest_plugins = ["sampling"]
SOURCE = Path(__file__).parents[1] / "src"


def pytest_configure(config):
    """Check at run time the shapes and types of modules that state shapes.

    pyright checks the types of all modules, and tests hand stand-ins to some. A bare GPU machine
    may lack the checker.
    """
    if importlib.util.find_spec("beartype") is not None:
        from jaxtyping import install_import_hook

        install_import_hook(modules_with_shapes(), "runtime_types.check")


def modules_with_shapes() -> list[str]:
    """Return the names of the modules that import jaxtyping."""
    files = [
        file for file in SOURCE.rglob("*.py") if "jaxtyping" in file.read_text(encoding="utf-8")
    ]
    return [".".join(file.relative_to(SOURCE).with_suffix("").parts) for file in files]


@pytest.fixture(autouse=True)
def _seeded():
    if torch.cuda.is_available():
        torch.manual_seed(0)
    else:  # torch.manual_seed would also format the stack for each kind of device that is missing
        torch.default_generator.manual_seed(0)


def pytest_collection_modifyitems(items):
    """Skip GPU tests without a GPU."""
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def pytest_collection_finish():
    """Leave what the imports made, a million objects, out of later garbage collections: each full
    one would take 0.7 s.
    """
    gc.freeze()
