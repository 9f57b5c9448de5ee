"""Shared fixtures: seeded randomness, and a switch for the long form of slow tests."""

import os

# one thread a worker: two pytest workers on two cores must not fight over them
os.environ.setdefault("OMP_NUM_THREADS", "1")

import importlib.util

import pytest
import torch

# shapes and types of the public door are checked at run time, here only; a bare GPU machine may lack the checker
if importlib.util.find_spec("beartype") is not None:
    from jaxtyping import install_import_hook

    install_import_hook("ropewalk", "runtime_types.check")


def pytest_addoption(parser):
    parser.addoption("--full", action="store_true", help="run slow studies whole, not in their small form")


@pytest.fixture
def full(request) -> bool:
    return request.config.getoption("--full")


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def pytest_collection_modifyitems(items):
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
