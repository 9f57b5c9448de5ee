"""Every public function of the analysis refuses a wrong value of every argument with a RopeError."""

from __future__ import annotations

import inspect
import math

import numpy as np
import pytest

import ropewalk as rw
import ropewalk.analysis as plain
import ropewalk_lab.analysis as lab
from ropewalk.errors import RopeError

NAN, SPEC = math.nan, rw.RopeSpec(8)
LONG = rw.RopeSpec(8, scaling=rw.frequencies.Dynamic(factor=2.0, original_length=16))
RADIANS = [1.0, 0.1, 0.01, 0.001]
VECTOR, TOKENS = np.linspace(-1, 1, 8), np.linspace(-1, 1, 24).reshape(3, 8)

FREQUENCIES = [[], [1.0, NAN], [1.0, math.inf], ["a"], "abcd", None, 3.0, [[1.0], [2.0]], [1j]]
LENGTHS = [-1, NAN, math.inf, "8", None, True]
POSITIONS = [[NAN], ["a"], [[1, 2]], None, "12", [1j], 5]
VECTORS = [[], [NAN] * 8, np.ones(7), np.ones(6), np.ones((2, 8)), ["a"] * 8, None, 3.0]
ROWS = [np.ones(8), np.ones((3, 7)), np.ones((3, 6)), np.full((3, 8), NAN), None]
SPECS = [None, {}, "default", 64]

#: argument: values that are wrong in every function, unless WRONG_IN says otherwise
WRONG = {
    "spec": SPECS,
    "radians": FREQUENCIES,
    "length": LENGTHS,
    "distances": POSITIONS,
    "positions": POSITIONS,
    "shifts": POSITIONS,
    "distance": [NAN, "1", None, [1]],
    "q": VECTORS,
    "k": VECTORS,
    "x": [[], np.ones(7), 3.0, None, ["a", "b"], [NAN, 1.0]],
    "trained": [0, -4, 2.5, NAN, None, "8"],
    "served": [0, -4, 2.5, NAN, None, "8"],
    "methods": [["float8"], "exact", [3]],
    "width": [0, -1, 2.5, None, "5"],
    "order": [
        [0, 1],
        [0, 1, 3],
        [0, 1, 1],
        [0.5, 1, 2],
        [0, 1, NAN],
        None,
        [[0, 1, 2]],
        [-1, 0, 1],
    ],
    "config": [None, 3, [], "no such file", {}],
    "window": [0, -1, 2.5, "8"],
}
#: (function, argument): other wrong values
WRONG_IN = {
    **{(name, side): ROWS for name in ("attend", "permutation_gap") for side in "qk"},
    **{
        (name, "v"): [np.ones(3), np.ones((2, 8)), np.full((3, 2), NAN), None]
        for name in ("attend", "permutation_gap")
    },
    # in these functions frequencies are optional, so None is right
    **{
        (name, "radians"): [each for each in FREQUENCIES if each is not None] + [[1.0]]
        for name in ("attend", "permutation_gap")
    },
    **{(name, "length"): [-1, 2.5, "8", NAN] for name in ("radians", "stretch", "bands")},
    **{(name, "length"): [-1, 2.5, "8", NAN] for name in ("coverage", "query_path")},
    **{("error_curves", "length"): [-1, 2.5, "8", NAN]},
    **{("error_curves", "positions"): [*POSITIONS, [-1], [1.5]]},
    **{("true_angles", "positions"): [*POSITIONS, [1.5]]},
    ("first_negative", "length"): [*LENGTHS, 0, 8.5],
    **{("read_checkpoint", side): [0, -4, 2.5, NAN, "8"] for side in ("trained", "served")},
    **{
        (name, "radians"): [*FREQUENCIES, [1.0], [1.0] * 9]
        for name in ("scores", "score_matrix", "abel_bound", "compare_entries")
    },
}
#: function: a call that is right
RIGHT = {
    "abel_bound": (VECTOR, VECTOR, RADIANS, [1, 2]),
    "aliasing": (RADIANS, 64),
    "attend": (TOKENS, TOKENS, TOKENS, RADIANS),
    "bands": (LONG, 64),
    "compare_entries": (VECTOR, VECTOR, RADIANS, 3, [0, 5]),
    "cosine_sum": {"plain": (RADIANS, 3), "lab": (RADIANS, [1, 2])},
    "coverage": (LONG, 16, 64, 64),
    "critical_dimension": (RADIANS, 64),
    "decay": (RADIANS, [1, 2]),
    "error_curves": (LONG, [0, 7], ["hf"], 64, 2),
    "Facts": (SPEC, 16, 64, 8, ("hf",), 2),
    "first_negative": (RADIANS, 64),
    "pairs_of": (VECTOR,),
    "partial_sums": (RADIANS, [1, 2]),
    "permutation_gap": (TOKENS, TOKENS, TOKENS, [2, 0, 1], RADIANS),
    "phasors": (RADIANS, [1, 2]),
    "plain_radians": (LONG,),
    "query_path": (LONG, [1, 2], 64),
    "radians": (LONG, 64),
    "read_checkpoint": (
        {"model_type": "llama", "head_dim": 8, "max_position_embeddings": 64, "rope_theta": 1e4},
        16,
        64,
    ),
    "score_matrix": (VECTOR, VECTOR, RADIANS, [1, 2]),
    "scores": (VECTOR, VECTOR, RADIANS, [1, 2]),
    "similarity": (RADIANS, [1, 2]),
    "similarity_matrix": (RADIANS, [1, 2]),
    "stretch": (LONG, 64),
    "true_angles": (RADIANS, [1, 2]),
    "turns": (RADIANS, 64),
    "wavelengths": (RADIANS,),
}
#: public functions left out here: they only take what another public function returns
OTHERS = {"advise"}


def calls(module, name):
    """Return a public function and the arguments of a right call by name."""
    function = getattr(module, name)
    given = RIGHT[name]
    if isinstance(given, dict):
        given = given["lab" if module is lab else "plain"]
    return function, dict(zip(inspect.signature(function).parameters, given, strict=False))


PUBLIC = [
    (module, name)
    for module in (plain, lab)
    for name in module.__all__
    if (inspect.isfunction(getattr(module, name)) or name == "Facts") and name not in OTHERS
]


@pytest.mark.parametrize(
    ("module", "name"), PUBLIC, ids=[f"{m.__name__.split('.')[0]}-{n}" for m, n in PUBLIC]
)
def test_every_wrong_value_is_a_rope_error(module, name):
    function, arguments = calls(module, name)
    function(**arguments)
    tried = 0
    for argument in arguments:
        for wrong in WRONG_IN.get((name, argument), WRONG.get(argument, [])):
            with pytest.raises(RopeError):
                print(name, argument, wrong, function(**arguments | {argument: wrong}))
            tried += 1
    assert tried >= 4


def test_turns_of_another_number_of_pairs_are_refused():
    found = plain.coverage(LONG, 16, 64)
    with pytest.raises(RopeError, match="turns"):
        found.new_angles([1.0])


def test_no_positions_give_no_rows():
    assert lab.decay(RADIANS, []).shape == (0,)
    assert lab.phasors(RADIANS, []).shape == (0, 4)
    assert plain.true_angles(RADIANS, []) == []
