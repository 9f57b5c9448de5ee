"""Tables of an engine's rotary module: exact angles where they are float32 products, everything
else as it was.
"""

import pytest
import torch

from ropewalk.interop.engine_tables import exact_table, with_exact_angles

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
def test_a_module_keeps_its_frequencies_and_its_method(factor):
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
def test_a_table_of_another_form_stays(table):
    assert exact_table(table, INV_FREQ) is table


def test_a_table_of_several_factors_stays():
    module = Rotary(100, 4.0)
    module.scaling_factors = [4.0, 2.0]
    table = torch.cat([table_of(INV_FREQ / 4, 100), table_of(INV_FREQ / 2, 100)])
    assert (
        with_exact_angles(module, lambda: module._compute_inv_freq(1.0) is None or table) is table
    )


def test_several_tables_stay():
    """SGLang's dual chunk attention computes a tuple of tables from one set of frequencies."""
    module = Rotary(100)
    tables = (table_of(INV_FREQ, 100), table_of(INV_FREQ, 50))
    found = with_exact_angles(
        module, lambda: tables if module._compute_inv_freq(1.0) is not None else None
    )
    assert found is tables
    assert "_compute_inv_freq" not in vars(module)
