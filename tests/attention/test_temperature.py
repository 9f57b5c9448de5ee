"""Temperatures by position: published numbers, transformers' own functions, and their place in
attention.
"""

import math

import pytest
import torch
from torch import nn

from door import assert_refused
from ropewalk.attention import Attention, KVCache
from ropewalk.attention.temperature import FACTORS, QueryTemperature, factor
from ropewalk.temperatures import TEMPERATURES, FloorLog, LearnedLog, LogAbove, LogN, Power

# (temperature, {position: factor})
PINS = [
    (LogN(4), {0: 1, 3: 1, 4: 1.160964, 5: 1.292481, 6: 1.403677, 7: 1.5}),
    (FloorLog(0.1, 8192, shift=1), {8190: 1, 8191: 1.069315}),
    (FloorLog(0.1, 16384), {16383: 1, 16384: 1.069315}),
    (Power(), {0: 1.000049, 2047: 1.071773}),
    (LogAbove(0.2, 8), {0: 1, 7: 1, 15: 1 + 0.2 * math.log(2)}),
]


@pytest.mark.parametrize(
    ("temperature", "factors"), PINS, ids=lambda value: getattr(value, "name", "")
)
def test_factors_are_the_published_ones(temperature, factors):
    got = factor(temperature, torch.tensor([*factors]))
    assert got.dtype == torch.float64
    assert got.tolist() == pytest.approx([*factors.values()], abs=1e-6)


def test_learned_temperatures_start_with_the_published_factors():
    ssmax = QueryTemperature(LearnedLog(), 3)
    q = torch.ones(1, 3, 8, 2, dtype=torch.float64)
    got = ssmax.double()(q, torch.arange(8))
    assert got[0, 0, 7, 0].item() == pytest.approx(0.894160, abs=1e-6)
    assert got[0, :, 0].abs().max() == 0  # log 1
    assert {name: value.shape for name, value in ssmax.named_parameters()} == {"scale": (3,)}
    large = QueryTemperature(LearnedLog(scale=0.0, bias=1.0), 3).double()
    assert torch.equal(large(q, torch.arange(8)), q)  # as in Mistral Large 4, training starts at 1
    numbers = tuple(torch.rand(2, 3, 1).double().requires_grad_())
    assert torch.autograd.gradcheck(
        lambda s, b: factor(LearnedLog(bias=1.0), torch.arange(4), scale=s, bias=b), numbers
    )


def test_ssmax_equals_that_of_tabicl():
    theirs = pytest.importorskip("tabicl._model.ssmax").SSMax(3)
    q, ours = torch.randn(2, 3, 9, 4), QueryTemperature(LearnedLog(), 3)
    nn.init.uniform_(theirs.scales)
    ours.scale.data.copy_(theirs.scales.data)
    # theirs takes one number of keys for all queries, so it is called per query: query p sees p + 1
    expected = torch.cat([theirs(q[:, :, p : p + 1], p + 1) for p in range(9)], dim=2)
    torch.testing.assert_close(ours(q, torch.arange(9)), expected, atol=1e-6, rtol=1e-6)


def test_factors_equal_the_functions_of_transformers():
    pytest.importorskip("transformers", minversion="5.22")
    from transformers.models.beam.modeling_beam import compute_attention_scaling
    from transformers.models.ministral3.modeling_ministral3 import get_llama_4_attn_scale
    from transformers.models.mistral_large4.modeling_mistral_large4 import (
        MistralLarge4TextSoftmaxScaling,
    )

    positions = torch.tensor(
        [[0, 1, 2047, 2048, 16383, 16384, 32767, 200_000], [5, 4, 3, 2, 1, 0, 70_000, 9]]
    )
    q = torch.randn(2, 3, 8, 4)
    for temperature, theirs in (
        (Power(), compute_attention_scaling(positions)),
        (FloorLog(0.1, 16384), get_llama_4_attn_scale(positions, 0.1, 16384)),
    ):
        torch.testing.assert_close(
            QueryTemperature(temperature, 3)(q, positions), q * theirs, atol=1e-6, rtol=1e-6
        )
    learned, large = QueryTemperature(LearnedLog(bias=1.0), 3), MistralLarge4TextSoftmaxScaling(3)
    for module in (learned, large):
        for name, parameter in module.named_parameters():
            nn.init.uniform_(parameter, generator=torch.Generator().manual_seed(len(name)))
    torch.testing.assert_close(
        learned(q, positions), large(q, positions, head_dim_first=True), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize("name", TEMPERATURES)
def test_attention_multiplies_its_queries_by_the_temperature(name):
    torch.manual_seed(1)
    layer = Attention(
        12, 3, temperature=TEMPERATURES[name](**({} if name == "learned_log" else {"length": 3}))
    ).double()
    plain = Attention(12, 3).double()
    plain.load_state_dict(layer.state_dict(), strict=False)
    x, positions = torch.randn(2, 7, 12).double(), torch.arange(7) + 2
    learned = dict(layer.temperature.named_parameters()) if name == "learned_log" else {}
    factors = factor(
        layer.temperature.temperature,
        positions,
        **{key: value[:1] for key, value in learned.items()},
    )
    project = plain.project
    plain.project = lambda x: (project(x)[0] * factors[:, None], *project(x)[1:])
    torch.testing.assert_close(
        layer(x, positions).out, plain(x, positions).out, atol=1e-12, rtol=1e-10
    )
    cache = KVCache()
    steps = [
        layer(x[:, :4], positions[:4], cache=cache).out,
        *(layer(x[:, i : i + 1], cache=cache).out for i in range(4, 7)),
    ]
    torch.testing.assert_close(
        torch.cat(steps, dim=1), layer(x, positions).out, atol=1e-12, rtol=1e-10
    )


def test_a_temperature_counts_from_the_first_real_token_of_each_document():
    """transformers' Llama 4 counts from the cache, which gives padded rows other factors than the
    same row alone.
    """
    layer, x = Attention(12, 3, temperature=LogN(2)).double(), torch.randn(1, 7, 12).double()
    alone = layer(x[:, 3:]).out
    padding = torch.arange(7)[None] >= 3
    torch.testing.assert_close(layer(x, padding=padding).out[:, 3:], alone, atol=1e-12, rtol=1e-10)
    documents = padding.long()
    torch.testing.assert_close(
        layer(x, documents=documents).out[:, 3:], alone, atol=1e-12, rtol=1e-10
    )


@pytest.mark.parametrize(
    ("kind", "field", "lowest", "below", "above"),
    [
        (LogN, "length", 2, 1, None),
        (FloorLog, "scale", 0, -0.1, None),
        (FloorLog, "length", 1, 0, None),
        (FloorLog, "shift", 0, -1, 2),
        (Power, "length", 1, 0, None),
        (Power, "power", 0, -0.1, None),
        (LogAbove, "scale", 0, -0.1, None),
        (LogAbove, "length", 1, 0, None),
    ],
)
def test_bad_options_of_a_temperature_are_refused(kind, field, lowest, below, above):
    assert getattr(kind(**{field: lowest}), field) == lowest
    for value in (below, "1", float("nan"), *(() if above is None else (above,))):
        assert_refused(field, lambda value=value: kind(**{field: value}))


def test_the_name_of_a_temperature_is_refused():
    assert_refused("temperature", lambda: Attention(12, 3, temperature="log_n"))


def test_a_temperature_refuses_positions_on_several_axes():
    layer, x = Attention(16, 2, encoding="rope_2d", temperature=LogN(2)), torch.randn(3, 7, 16)
    error = assert_refused("positions", lambda: layer(x, torch.zeros(2, 3, 7, dtype=torch.int64)))
    assert "with a temperature" in error.rule
    assert layer(x, torch.arange(7)).out.shape == x.shape  # text: the same position on both axes


def test_every_temperature_has_a_formula():
    assert set(FACTORS) == set(TEMPERATURES.values())
