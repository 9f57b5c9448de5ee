"""The suite checks the shapes that signatures state; a user's process does not."""

import pytest
import torch

import ropewalk as rw
from door import as_users_call

jaxtyping = pytest.importorskip("jaxtyping")
pytest.importorskip("beartype", reason="the shapes of signatures are checked by beartype")


@pytest.mark.parametrize(
    "x", ["text", torch.zeros(1, 1, 2, 4, dtype=torch.int64)], ids=["text", "integers"]
)
def test_a_wrong_type_is_a_type_check_error_in_tests_and_a_rope_error_for_users(x):
    rope = rw.Rope(rw.RopeSpec(4))
    with pytest.raises(jaxtyping.TypeCheckError):
        rope.rotate(x)
    with as_users_call(), pytest.raises(rw.RopeError):
        rope.rotate(x)
