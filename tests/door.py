"""Calls as users make them: without the suite's runtime type checks, which would refuse a wrong
argument before the package does.
"""

from contextlib import contextmanager

import jaxtyping
import pytest

from ropewalk.errors import RopeError


@contextmanager
def as_users_call():
    """Context manager: turn off the suite's type checks at run time, which a user's process does
    not have.
    """
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)


def assert_refused(field: str, call) -> RopeError:
    """Check that `call()` raises a RopeError about `field`, whose message starts with that name;
    return the error.
    """
    with as_users_call(), pytest.raises(RopeError) as caught:
        call()
    name = caught.value.field.split("[")[0]  # for a list, `field` names the entry: short_factor[3]
    assert name == field, str(caught.value)
    assert str(caught.value).startswith(field)
    return caught.value
