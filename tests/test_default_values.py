"""The values that are used if none is given, written out a second time, from the papers and the
models that they come from.
"""

import inspect
from dataclasses import MISSING, fields

import pytest
import torch

import ropewalk as rw
from ropewalk import axes, frequencies, positions, rotation
from ropewalk.attention import linear, linear_decay
from ropewalk.kernels.rotation import definition
from ropewalk_lab import analysis as lab_analysis
from ropewalk_lab import samples, tsne

#: scaling -> its fields, in order
SCALINGS = {
    "Default": {},
    "Linear": {"factor": 1.0},
    "Ntk": {"factor": 1.0},
    "Riflex": {"frames": 128, "repeat": 48, "share": 0.9},
    "Dynamic": {"factor": 1.0, "original_length": 2048},
    "Proportional": {"factor": 1.0, "fraction": 1.0},
    "LinearFrequencies": {},
    "LongRope": {
        "short_factor": (1.0,),
        "long_factor": (1.0,),
        "original_length": 4096,
        "factor": 1.0,
        "attention_factor": None,
    },
    "XPos": {"scale_base": 512.0, "center": 0},
    "Given": {"radians": (1.0,), "magnitude": 1.0},
    "Learnable": {"start": frequencies.Default()},
}
AXES = {
    "AxisMap": {"ladder": "shared", "fractional": False, "scaled": None},
    "MixedAxes": {"theta": 10.0, "seed": 0, "num_axes": 2, "fractional": True},
    "HeadAxes": {"fractional": False},
    "GoldenAxes": {"num_axes": 2, "fractional": True},
}


def field_values(cls):
    """The default values of a dataclass, also those that a caller has to give."""
    return {each.name: each.default for each in fields(cls) if each.default is not MISSING}


@pytest.mark.parametrize("name", SCALINGS)
def test_a_scaling_has_these_values_unless_others_are_given(name):
    assert (
        field_values(getattr(frequencies, name, None) or getattr(frequencies.per_pair, name))
        == (SCALINGS[name])
    )


@pytest.mark.parametrize("name", AXES)
def test_axes_have_these_values_unless_others_are_given(name):
    assert field_values(getattr(axes, name)) == AXES[name]


FUNCTIONS = {
    positions.grid: {"merge": 1, "start": 0, "device": None},
    positions.patch_centres: {
        "scale": 1.0,
        "dtype": torch.float64,
        "device": None,
        "normalise": "separate",
    },
    positions.augmented: {"shift": None, "jitter": None, "rescale": None, "generator": None},
    positions.stretched_grid: {"dtype": torch.float64, "device": None},
    positions.flux: {"text": 0, "device": None},
    positions.flux2: {"text": 0, "references": (), "step": 10, "device": None},
    positions.qwen_image: {"text": 0, "device": None},
    positions.multimodal: {
        "merge": 1,
        "time_merge": 1,
        "padding": "right",
        "origin": "start",
        "resume": None,
        "device": None,
    },
    positions.decode_positions: {"tokens": 1},
    positions.consecutive: {"offset": 0, "device": None},
    positions.packed: {"total": None},
    frequencies.geometric: {"zeros": 0},
    definition.rotate_vector: {"theta": 10_000.0, "layout": "interleaved"},
    rotation.rotate_by_phase: {"layout": "half", "seq_dim": -2},
    rotation.rotate_by: {
        "layout_out": None,
        "start": 0,
        "seq_dim": -2,
        "inplace": False,
        "backend": None,
    },
    rotation.rotate: {
        "positions": None,
        "offset": 0,
        "seq_dim": -2,
        "length": None,
        "key": False,
        "inverse": False,
        "inplace": False,
        "backend": None,
        "tables": "auto",
    },
    rotation.apply_rotary_pos_emb: {
        "sin": None,
        "position_ids": None,
        "unsqueeze_dim": 1,
        "layout": "half",
    },
    rotation.rerotate: {
        "to": None,
        "seq_dim": -2,
        "from_length": None,
        "to_length": None,
        "match_magnitude": False,
        "inplace": False,
        "backend": None,
        "tables": "auto",
    },
    linear.linear_attention: {
        "positions": None,
        "form": "numerator",
        "phi": "elu",
        "scale": 1.0,
        "causal": True,
        "padding": None,
        "documents": None,
        "state": None,
        "chunk": 128,
        "eps": 1e-6,
        "backend": None,
    },
    linear_decay.decaying_linear_attention: {
        "phi": "elu",
        "causal": True,
        "chunk": 128,
        "eps": 1e-6,
    },
    tsne.tsne: {"perplexity": 15.0, "steps": 400},
    samples.write_sample: {"form": "cail", "count": 200, "characters": 60, "seed": 0},
    lab_analysis.query_path: {"length": None},
}


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_a_function_has_these_values_unless_others_are_given(function):
    found = {
        name: each.default
        for name, each in inspect.signature(inspect.unwrap(function)).parameters.items()
        if each.default is not each.empty
    }
    assert found == FUNCTIONS[function]


def test_a_geometric_series_goes_from_slow_to_fast_after_its_zeros():
    found = frequencies.geometric(6, 0.5, 8.0, zeros=1).radians
    assert found == pytest.approx((0.0, 0.5, 1.0, 2.0, 4.0, 8.0))
    assert frequencies.geometric(3, 8.0, 2.0).radians == pytest.approx((8.0, 4.0, 2.0))


@pytest.mark.parametrize("key", [False, True])
@pytest.mark.parametrize(
    "scaling",
    [
        frequencies.Yarn(factor=4.0, original_length=32),
        frequencies.XPos(scale_base=64.0),
        frequencies.Given((1.0, 0.5, 0.2), magnitude=1.7),
    ],
)
def test_a_rotation_is_undone_with_its_magnitude_for_queries_and_for_keys(scaling, key):
    spec = rw.RopeSpec(6, scaling=scaling)
    x, places = torch.randn(1, 2, 5, 6, dtype=torch.float64), torch.arange(5) + 7
    turned = rotation.rotate(x, spec, places, key=key)
    assert not torch.allclose(turned.norm(dim=-1), x.norm(dim=-1), rtol=1e-4)
    torch.testing.assert_close(rotation.unrotate(turned, spec, places, key=key), x)
    torch.testing.assert_close(rotation.rotate(turned, spec, places, key=key, inverse=True), x)
