"""Calls as users make them: without the suite's runtime type checks, which would answer before the package does."""

from contextlib import contextmanager

import jaxtyping
import pytest

from ropewalk.errors import RopeError


@contextmanager
def as_users_call():
    """The suite checks types at run time; a user's process does not."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)


def assert_refused(field: str, call) -> RopeError:
    """`call()` raises RopeError about `field`, and its message starts with that name."""
    with as_users_call(), pytest.raises(RopeError) as caught:
        call()
    name = caught.value.field.split("[")[0]  # a list names the entry too: short_factor[3]
    assert name == field, str(caught.value)
    assert str(caught.value).startswith(field)
    return caught.value
