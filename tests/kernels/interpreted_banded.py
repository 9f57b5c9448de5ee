"""The kernel of attention over a band against plain torch, in the interpreter. `test_triton.py`
starts this file.
"""

import pytest
import torch
from banded_calls import calls

from ropewalk.attention import lse
from ropewalk.attention.remap import DualChunk, SelfExtend


@pytest.mark.parametrize(
    "remapping",
    [SelfExtend(4, 64), DualChunk(96, 20)],
    ids=lambda remapping: type(remapping).__name__,
)
@pytest.mark.parametrize("sizes", [(1, 4, 2, 261, 20, 20), (2, 6, 2, 5, 16, 24)], ids=str)
def test_banded_attention_equals_plain_torch(remapping, sizes):
    """Odd sizes, grouped heads, values of another width, and queries that see no key of a piece."""
    for call in calls(remapping, *sizes):
        assert lse.triton_why_not(call) is None
        expected, found = lse.run_math(call), lse.attend_with_lse(call)
        torch.testing.assert_close(found.out, expected.out, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(found.lse, expected.lse, atol=1e-5, rtol=1e-5)
