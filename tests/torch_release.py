"""Skip what an older release of torch or Triton cannot do, with the reason."""

from importlib import metadata

import pytest
import torch


def _release(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


#: torch 2.6, the oldest release that is supported
OLD_TORCH = _release(torch.__version__) < (2, 7)


def needs_torch_2_7(reason: str) -> pytest.MarkDecorator:
    """Skip under torch 2.6."""
    return pytest.mark.skipif(OLD_TORCH, reason=f"torch {torch.__version__}: {reason}")


def _triton() -> str:
    """Return the version of the installed Triton, or 0.0."""
    try:
        return metadata.version("triton")
    except metadata.PackageNotFoundError:
        return "0.0"


needs_triton_3_6 = pytest.mark.skipif(
    _release(_triton()) < (3, 6),
    reason=f"the compiler is called as in Triton 3.6; this is {_triton()}",
)
