"""Tables of an engine's rotary module: exact angles where they are float32 products, everything
else as it was.
"""

from types import SimpleNamespace

import pytest
import torch

import ropewalk as rw
from ropewalk import RopeError
from ropewalk.interop.engine_tables import exact_table, own_rope, with_exact_angles

INV_FREQ = 1.0 / 1e4 ** (torch.arange(0, 10, 2) / 10)


def table_of(inv_freq, length, magnitude=1.0, dtype=torch.float32):
    angles = torch.arange(length, dtype=dtype)[:, None] * inv_freq.to(dtype)
    return torch.cat([angles.cos(), angles.sin()], dim=-1) * magnitude


class Rotary(torch.nn.Module):
    """The two methods that vLLM's and SGLang's rotary modules have."""

    def __init__(self, length, factor=None):
        super().__init__()
        self.length = length
        if factor is not None:
            self.scaling_factors = [factor]

    def _compute_inv_freq(self, base):
        return INV_FREQ.clone()

    def _compute_cos_sin_cache(self):
        return table_of(
            self._compute_inv_freq(1e4) / getattr(self, "scaling_factors", [1.0])[0], self.length
        )


@pytest.mark.parametrize("magnitude", [1.0, 1.25])
def test_the_table_is_exact_where_float32_angles_are_not(magnitude):
    single = table_of(INV_FREQ, 200_000, magnitude)
    double = table_of(INV_FREQ, 200_000, magnitude, torch.float64)
    exact = exact_table(single, INV_FREQ)
    assert exact.dtype == single.dtype
    assert (single - double).abs().max() > 5e-4
    assert (exact - double).abs().max() < 1e-6


@pytest.mark.parametrize("factor", [None, 4.0])
def test_a_table_has_the_modules_frequencies_and_the_modules_method_is_restored(factor):
    module = Rotary(150_001, factor)
    exact = with_exact_angles(module, module._compute_cos_sin_cache)
    double = table_of(INV_FREQ.double() / (factor or 1.0), 150_001, dtype=torch.float64)
    assert (exact - double).abs().max() < 1e-6
    assert "_compute_inv_freq" not in vars(module)


def test_a_call_inside_another_call_leaves_no_trace():
    module = Rotary(100_001)
    exact = with_exact_angles(
        module, lambda: with_exact_angles(module, module._compute_cos_sin_cache)
    )
    assert (exact - table_of(INV_FREQ, 100_001, dtype=torch.float64)).abs().max() < 1e-6
    assert "_compute_inv_freq" not in vars(module)


@pytest.mark.parametrize(
    "table",
    [
        table_of(INV_FREQ / 4, 100),
        torch.zeros(4, 12),
        table_of(INV_FREQ, 100).bfloat16(),
        table_of(INV_FREQ, 100)[10:],
        table_of(INV_FREQ, 100)[:, [5, 6, 7, 8, 9, 0, 1, 2, 3, 4]],
    ],
    ids=["slower", "wide", "bfloat16", "from position 10", "sin first"],
)
def test_a_table_of_another_form_is_left_unchanged(table):
    assert exact_table(table, INV_FREQ) is table


def test_a_table_of_several_factors_is_left_unchanged():
    module = Rotary(100, 4.0)
    module.scaling_factors = [4.0, 2.0]
    table = torch.cat([table_of(INV_FREQ / 4, 100), table_of(INV_FREQ / 2, 100)])
    assert (
        with_exact_angles(module, lambda: module._compute_inv_freq(1.0) is None or table) is table
    )


def test_a_tuple_of_tables_is_left_unchanged():
    """SGLang's dual chunk attention computes a tuple of tables from one set of frequencies."""
    module = Rotary(100)
    tables = (table_of(INV_FREQ, 100), table_of(INV_FREQ, 50))
    found = with_exact_angles(
        module, lambda: tables if module._compute_inv_freq(1.0) is not None else None
    )
    assert found is tables
    assert "_compute_inv_freq" not in vars(module)


def own(rope, dim=64, rows=2048, **more):
    return own_rope({"rope_theta": 1e4, **rope}, dim, rows, **more)


PLAIN = 1e4 ** -(torch.arange(0, 64, 2).double() / 64)
#: the last of six clipped pairs stands still, the first keeps its frequency
TAPER = (1 + torch.cos(torch.arange(6).double() * torch.pi / 5)) / 2
CLIPPED = torch.cat([PLAIN[:26], PLAIN[26:] * TAPER])
LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5}
#: rope: frequencies, magnitude, rows for 2,048 positions
OWN = {
    "clipped": ({"rope_type": "clipped", "pairs": 6}, CLIPPED, 1.0, 2048),
    "hard": (
        {"rope_type": "clipped", "pairs": 6, "soft": False},
        torch.cat([PLAIN[:26], torch.zeros(6)]),
        1.0,
        2048,
    ),
    "clipped linear": (
        {"rope_type": "clipped", "pairs": 6, "inner": LINEAR},
        CLIPPED / 4,
        1.0,
        8192,
    ),
    "given": ({"rope_type": "given", "radians": [0.5] * 32, "magnitude": 2.0}, 0.5, 2.0, 2048),
    "learned": (
        {"rope_type": "learned", "alpha": [1.0] * 32},
        PLAIN * 2.718281828459045,
        1.0,
        2048,
    ),
    "part of the head": (
        {"rope_type": "clipped", "pairs": 6, "partial_rotary_factor": 0.5},
        CLIPPED,
        1.0,
        2048,
    ),
}


@pytest.mark.parametrize("name", OWN)
def test_a_scaling_that_only_ropewalk_has_gives_the_whole_table(name):
    rope, radians, magnitude, rows = OWN[name]
    found = own(rope)
    angles = torch.arange(rows)[:, None].double() * (radians * torch.ones(32))
    expected = torch.cat([angles.cos(), angles.sin()], dim=-1) * magnitude
    table = found.table()
    assert (table.dtype, table.shape) == (torch.float32, (rows, 64))
    assert (table - expected).abs().max() < 1e-6
    assert len(found.table(3000)) == 3000


@pytest.mark.parametrize(("key", "last"), [("use_cope", 0.0), ("use_hardclip", 0.0)])
def test_the_flags_of_cope_in_a_config_are_obeyed(key, last):
    """The flags clip 20 pairs of the rope that the engine would compute."""
    config = SimpleNamespace(**{key: True})
    found = own({"rope_type": "default"}, flags=config)
    assert found.spec == rw.from_hf(
        {
            "model_type": "llama",
            "hidden_size": 64,
            "num_attention_heads": 1,
            "max_position_embeddings": 2048,
            "rope_theta": 1e4,
            key: True,
        }
    )
    assert found.spec.frequencies().radians[-1] == last
    assert own({"rope_type": "default"}, flags=SimpleNamespace(**{key: False})) is None


def test_a_length_dependent_scaling_is_computed_for_one_length():
    rope = {"rope_type": "dynamic_yarn", "original_max_position_embeddings": 512}
    found = own(rope, length=1024)
    fixed = rw.frequencies.Yarn(original_length=512, factor=2.0).frequencies(64, 1e4)
    angles = torch.arange(2048)[:, None].double() * torch.tensor(fixed.radians, dtype=torch.float64)
    expected = torch.cat([angles.cos(), angles.sin()], dim=-1) * fixed.magnitude
    assert (found.table() - expected).abs().max() < 1e-6
    assert [len(found.table(rows)) for rows in (None, 0, 3)] == [2048, 0, 3]
    assert str(found) == (
        "rope_type dynamic_yarn, 2048 rows; every sequence is rotated as one of 1024 tokens"
    )


@pytest.mark.parametrize(
    "kind", ["default", "linear", "yarn", "llama3", "longrope", "ntk", "mrope"]
)
def test_own_rope_is_none_for_scalings_that_the_engine_has(kind):
    assert own({"rope_type": kind}) is None
    assert own_rope(None, 64, 2048) is None


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        ({"rope_type": "xpos"}, "rope_type: must be one that a table"),
        ({"rope_type": "learnable"}, "rope_type: must be one that a table"),
        ({"rope_type": "clipped", "pair": 6}, r"must have no keys but inner, pairs, soft.*'pair'"),
        ({"rope_type": "clipped", "inner": {"rope_type": "?"}}, "rope_type: must be one of"),
        ({"rope_type": "given", "radians": [0.5] * 3}, "radians: must hold one"),
        (
            {"rope_type": "clipped", "mrope_section": [8, 12, 12]},
            "mrope_section: must not be given",
        ),
    ],
)
def test_what_no_table_can_hold_is_refused(rope, message):
    with pytest.raises(RopeError, match=message):
        own(rope)
