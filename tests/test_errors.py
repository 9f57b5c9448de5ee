"""RopeError names the field, the rule and the value; `number`, `integer`, `flag` and `choice`
accept what their rule says and nothing else.
"""

import copy
import pickle
from fractions import Fraction

import numpy as np
import pytest

from ropewalk.errors import MissingExtra, RopeError, choice, flag, integer, number


def refused(check, *args, **bounds) -> RopeError:
    with pytest.raises(RopeError) as caught:
        check("width", *args, **bounds)
    assert caught.value.field == "width"
    assert str(caught.value).startswith("width: ")
    return caught.value


def test_an_error_names_field_rule_and_value():
    error = RopeError("theta", "must be positive", -1)
    assert isinstance(error, ValueError)
    assert str(error) == "theta: must be positive; got -1"
    assert (error.field, error.rule, error.value) == ("theta", "must be positive", -1)


def pickled(value):
    return pickle.loads(pickle.dumps(value))  # noqa: S301 - its own bytes


@pytest.mark.parametrize("again", [pickled, copy.copy, copy.deepcopy])
def test_an_error_is_the_same_after_pickle_copy_and_deepcopy(again):
    error = again(RopeError("theta", "must be positive", -1))
    assert type(error) is RopeError
    assert str(error) == "theta: must be positive; got -1"
    assert (error.field, error.rule, error.value) == ("theta", "must be positive", -1)


@pytest.mark.parametrize("again", [pickled, copy.copy, copy.deepcopy])
def test_a_missing_extra_says_what_to_install_and_shows_no_value(again):
    error = again(MissingExtra("figure", "matplotlib", "lab"))
    assert type(error) is MissingExtra
    assert str(error) == "figure: needs matplotlib; run: pip install 'ropewalk[lab]'"
    assert (error.field, error.packages, error.extra) == ("figure", "matplotlib", "lab")


def test_a_huge_value_is_cut_in_the_message_but_kept_whole():
    exactly = "x" * 118  # 120 characters with its quotes
    assert str(RopeError("f", "r", exactly)) == f"f: r; got {exactly!r}"
    longer = "x" * 119
    message = str(RopeError("f", "r", longer))
    assert message == "f: r; got '" + "x" * 116 + "..."
    assert len(message) == len("f: r; got ") + 120
    assert RopeError("f", "r", longer).value == longer


@pytest.mark.parametrize("value", [3, 3.0, np.float32(3), np.int64(3), Fraction(3), np.float64(3)])
def test_a_number_of_any_kind_becomes_a_float(value):
    result = number("width", value)
    assert type(result) is float
    assert result == 3.0


@pytest.mark.parametrize(
    "value", [True, False, "3", None, [3.0], (3,), 3j, b"3", {}, object(), np.array([3.0])]
)
def test_what_is_not_a_number_is_refused(value):
    assert refused(number, value).rule == "must be a number"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), np.float32("nan")])
def test_a_number_is_finite(value):
    assert refused(number, value).rule == "must be finite"


def test_a_number_too_large_for_a_float_is_refused():
    assert refused(number, 10**400).rule == "must fit in a float"


@pytest.mark.parametrize(
    ("bounds", "inside", "outside", "rule"),
    [
        ({"low": 1}, [1, 1.5, 1e300], [0.999, -5, 0], "must be >= 1"),
        ({"above": 0}, [1e-300, 7], [0, 0.0, -0.0, -1], "must be > 0"),
        ({"high": 2}, [2, -1e300], [2.001, 3], "must be <= 2"),
        ({"low": 0, "high": 1}, [0, 1, 0.5], [-0.001, 1.001], "must be >= 0 and <= 1"),
        ({"above": 0, "high": 1}, [0.5, 1], [0, 1.5], "must be > 0 and <= 1"),
    ],
)
def test_the_bounds_of_a_number(bounds, inside, outside, rule):
    for value in inside:
        assert number("width", value, **bounds) == value
    for value in outside:
        error = refused(number, value, **bounds)
        assert error.rule == rule
        assert error.value is value


@pytest.mark.parametrize("value", [4, np.int32(4), np.uint8(4)])
def test_an_integer_of_any_kind_becomes_an_int(value):
    result = integer("width", value, low=0)
    assert type(result) is int
    assert result == 4


@pytest.mark.parametrize(
    "value", [True, False, 4.0, "4", None, Fraction(4), float("nan"), np.float64(4), [4]]
)
def test_what_is_not_an_integer_is_refused(value):
    assert refused(integer, value, low=0).rule == "must be an integer"


def test_the_bounds_of_an_integer_include_their_ends():
    assert [integer("width", n, low=2, high=5) for n in (2, 3, 5)] == [2, 3, 5]
    for value in (1, 6, -(10**30), 10**30):
        assert refused(integer, value, low=2, high=5).rule == "must be an integer from 2 to 5"


def test_an_integer_fits_in_63_bits_unless_told_otherwise():
    assert integer("width", 2**62, low=0) == 2**62
    assert refused(integer, 2**62 + 1, low=0).value == 2**62 + 1


def test_flag_accepts_true_and_false_alone():
    assert flag("width", True) is True
    assert flag("width", False) is False
    for value in (0, 1, "true", None, np.bool_(True), []):
        assert refused(flag, value).rule == "must be true or false"


def test_a_choice_is_one_of_the_known():
    assert choice("width", "half", ("half", "whole")) == "half"
    assert choice("width", "b", iter("abc")) == "b"
    for value in ("HALF", "hal", "", None, 0, ["half"], np.array(["half", "whole"])):
        assert refused(choice, value, ("half", "whole")).rule == "must be one of half, whole"
