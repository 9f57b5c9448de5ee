"""Generation: sampling against transformers' own processors, stopping, streaming, padding and every
kind of cache.
"""

import numpy as np
import pytest
import torch
from tiny_decoder import VOCAB, make, tokens
from transformers.generation import logits_process as hf

from door import assert_refused
from ropewalk.attention import KVCache
from ropewalk.errors import RopeError
from ropewalk.models.generation import Sampling


@pytest.fixture(scope="module")
def model():
    return make(tie_embeddings=False)


@pytest.mark.parametrize("temperature", [0.5, 1.7])
@pytest.mark.parametrize(
    ("top_k", "top_p"),
    [(None, None), (4, None), (None, 0.6), (9, 0.5), (VOCAB + 5, 1.0), (1, 1e-6)],
)
def test_filtered_probabilities_are_those_of_transformers(temperature, top_k, top_p):
    logits = torch.randn(6, VOCAB) * 2
    kept = Sampling(temperature, top_k, top_p)._filtered(logits / temperature)
    expected = hf.TemperatureLogitsWarper(temperature)(None, logits)
    expected = expected if top_k is None else hf.TopKLogitsWarper(top_k)(None, expected)
    expected = expected if top_p is None else hf.TopPLogitsWarper(top_p)(None, expected)
    torch.testing.assert_close(kept.softmax(-1), expected.softmax(-1))


def test_repeated_tokens_are_penalised_as_in_transformers(model):
    given = tokens(batch=2, seq=5)
    expected = given
    for _ in range(6):
        logits = hf.RepetitionPenaltyLogitsProcessor(1.8)(expected, model(expected)[:, -1].float())
        expected = torch.cat((expected, logits.argmax(-1, keepdim=True)), dim=1)
    assert torch.equal(model.generate(given, 6, repetition_penalty=1.8), expected)
    assert not torch.equal(model.generate(given, 6), expected)


def test_draws_follow_the_probabilities():
    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0]]).expand(20_000, -1)
    drawn = Sampling(temperature=1.0).pick(logits, None, torch.Generator().manual_seed(0))
    share = drawn.bincount(minlength=4) / len(drawn)
    torch.testing.assert_close(share, logits[0].softmax(-1), atol=0.012, rtol=0)


def test_the_same_seed_gives_the_same_text_and_another_seed_another_text(model):
    given = tokens(batch=1)
    first, second, other = (
        model.generate(given, 12, temperature=1.5, seed=seed) for seed in (3, 3, 4)
    )
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    "options",
    [
        {"cache": "none"},
        {"cache": "static"},
        {"cache": "static", "capacity": 40},
        {"cache": "sliding", "capacity": 40},
    ],
)
def test_every_cache_that_holds_the_text_gives_the_same_text(model, options):
    given = tokens()
    assert torch.equal(model.generate(given, 8, **options), model.generate(given, 8))


def test_a_sliding_cache_with_sinks_keeps_the_first_and_the_latest_tokens(model):
    given = tokens(batch=1, seq=6)
    caches = model.caches("sliding", capacity=5, sinks=2)
    out = model.generate(given, 6, cache=caches)
    assert out.shape == (1, 12)
    for cache in caches:  # the model has read eleven tokens, all but the last that it generated
        assert cache.seen.positions.tolist() == [[0, 1, 8, 9, 10]]


def test_generation_continues_from_the_caches_of_an_earlier_call(model):
    given, caches = tokens(), model.caches()
    first = model.generate(given, 5, cache=caches)
    second = model.generate(first[:, -1:], 4, cache=caches)
    assert torch.equal(torch.cat((first, second[:, 1:]), dim=1), model.generate(given, 9))


@pytest.mark.parametrize("attention", ["softmax", "linear"])
@pytest.mark.parametrize("cache", ["growing", "none"])
def test_left_padded_rows_get_the_tokens_of_each_row_alone(attention, cache):
    model = make(attention=attention, tie_embeddings=False)
    long, short = tokens(batch=1, seq=8), tokens(batch=1, seq=5)
    batch = torch.cat((long, torch.cat((tokens(batch=1, seq=3), short), dim=1)))
    padding = torch.tensor([[True] * 8, [False] * 3 + [True] * 5])
    both = model.generate(batch, 6, padding=padding, cache=cache)
    assert torch.equal(both[:1], model.generate(long, 6))
    assert torch.equal(both[1:, 3:], model.generate(short, 6))


def test_padding_is_no_repeated_token(model):
    """A short row beside a long one gets the tokens that it gets alone, even if the token of the
    padding is the one that it continues with.
    """
    long, short = tokens(batch=1, seq=8), tokens(batch=1, seq=5)
    alone = model.generate(short, 6, repetition_penalty=50.0)
    batch = torch.cat((long, torch.cat((alone[:, 5:6].expand(1, 3), short), dim=1)))
    padding = torch.tensor([[True] * 8, [False] * 3 + [True] * 5])
    both = model.generate(batch, 6, padding=padding, repetition_penalty=50.0)
    assert torch.equal(both[1:, 3:], alone)


def test_the_sinks_of_left_padded_rows_are_their_first_real_tokens(model):
    """The logits of every step are as if each row were alone: padding does not take the place of
    sinks.
    """
    long, short = tokens(batch=1, seq=9), tokens(batch=1, seq=5)
    batch = torch.cat((long, torch.cat((tokens(batch=1, seq=4), short), dim=1)))
    padding = torch.tensor([[True] * 9, [False] * 4 + [True] * 5])
    together, *alone = (model.caches("sliding", capacity=6, sinks=2) for _ in range(3))
    model(batch, padding=padding, caches=together)
    for row, caches in zip((long, short), alone, strict=True):
        model(row, caches=caches)
    for _ in range(6):
        step = tokens(batch=2, seq=1)
        expected = torch.cat([model(step[b : b + 1], caches=alone[b]) for b in range(2)])
        torch.testing.assert_close(model(step, caches=together), expected, atol=1e-10, rtol=0)


def test_each_row_stops_at_its_own_stop_token_and_generation_ends_with_the_last_row(model):
    given = tokens(batch=3)
    free = model.generate(given, 10)[:, given.shape[1] :]
    stop = [free[0, 2].item(), free[1, 4].item()]
    found = model.generate(given, 10, stop=stop, pad=0)[:, given.shape[1] :]
    ends = [next((i for i, token in enumerate(row.tolist()) if token in stop), 9) for row in free]
    assert found.shape[1] == max(ends) + 1
    for row, wanted, end in zip(found.tolist(), free.tolist(), ends, strict=True):
        assert row == (wanted[: end + 1] + [0] * 10)[: found.shape[1]]
    alone = model.generate(given[:1], 10, stop=stop[0])
    assert alone[0, -1] == stop[0]


@pytest.mark.parametrize(
    "kind",
    [
        np.int64,
        np.uint8,
        torch.tensor,
        lambda n: np.array([n]),
        lambda n: torch.tensor([n]),
        lambda n: {n},
    ],
)
def test_any_integer_can_stop_a_row_or_fill_it(model, kind):
    given = tokens(batch=2)
    free = model.generate(given, 9)[:, given.shape[1] :]
    stop = free[0, 3].item()
    found = model.generate(given, 9, stop=kind(stop), pad=np.int64(1))
    assert torch.equal(found, model.generate(given, 9, stop=[stop], pad=1))
    assert stop in found[0, given.shape[1] : given.shape[1] + 4]


def test_the_stream_function_and_the_iterator_give_the_tokens_of_every_step(model):
    given, heard = tokens(), []
    text = model.generate(given, 5, stream=heard.append)
    assert torch.equal(torch.stack(heard, dim=1), text[:, given.shape[1] :])
    steps = model.stream(given, 5)
    assert torch.equal(next(steps), heard[0])
    assert torch.equal(torch.stack(list(steps), dim=1), text[:, given.shape[1] + 1 :])


def test_zero_new_tokens_give_the_prompt(model):
    given = tokens()
    assert torch.equal(model.generate(given, 0), given)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"top_k": 0}, "top_k"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"max_new_tokens": -1}, "max_new_tokens"),
        ({"stop": []}, "stop"),
        ({"stop": -3}, "stop"),
        ({"stop": 2.0}, "stop"),
        ({"stop": "2"}, "stop"),
        ({"stop": [VOCAB, 3]}, "stop"),  # the first stop token also fills the rows that have ended
        ({"stop": True}, "stop"),
        ({"stop": 2, "pad": -1}, "pad"),
        ({"stop": 2, "pad": VOCAB}, "pad"),
        ({"stop": 2, "pad": 2.5}, "pad"),
        ({"stop": 2, "pad": [0]}, "pad"),
        ({"pad": -1}, "pad"),
        ({"seed": -1}, "seed"),
        ({"cache": "frozen"}, "cache"),
        ({"cache": "sliding"}, "capacity"),
        ({"cache": "none", "capacity": 9}, "capacity"),
        ({"cache": "none", "sinks": 2}, "sinks"),
        ({"cache": [], "capacity": 9}, "capacity"),
        ({"cache": [], "sinks": 2}, "sinks"),
        ({"tokens": torch.zeros(2, 0, dtype=torch.int64)}, "tokens"),
        ({"tokens": torch.zeros(0, 4, dtype=torch.int64)}, "tokens"),
        ({"tokens": torch.zeros(3, dtype=torch.int64)}, "tokens"),
        ({"tokens": torch.zeros(2, 3)}, "tokens"),
        ({"tokens": torch.zeros(2, 3, dtype=torch.bool)}, "tokens"),
        ({"tokens": torch.zeros(2, 3, dtype=torch.uint8)}, "tokens"),
        ({"tokens": torch.zeros(2, 3, dtype=torch.int16)}, "tokens"),
        ({"tokens": torch.full((2, 3), VOCAB)}, "tokens"),
        ({"tokens": torch.full((2, 3), -1)}, "tokens"),
        ({"padding": torch.tensor([[True, True, False]] * 2)}, "padding"),
        ({"padding": torch.tensor([[True, False, True]] * 2)}, "padding"),
        ({"padding": torch.ones(2, 4, dtype=torch.bool)}, "padding"),
    ],
)
def test_bad_options_are_refused_before_the_first_step(model, options, field):
    call = {"tokens": torch.zeros(2, 3, dtype=torch.int64), "max_new_tokens": 2} | options
    assert_refused(
        field, lambda: model.stream(call.pop("tokens"), call.pop("max_new_tokens"), **call)
    )


@pytest.mark.parametrize("cache", ["growing", "none"])
def test_tokens_of_32_bits_give_the_same_text(model, cache):
    given = tokens()
    found = model.generate(given.int(), 5, cache=cache)
    assert found.dtype == torch.int32
    assert torch.equal(found.long(), model.generate(given, 5))


def test_a_static_cache_that_is_too_small_raises_an_error(model):
    with pytest.raises(RopeError, match="holds at most 8 tokens"):
        model.generate(tokens(), 5, cache="static", capacity=8)


def test_the_fewest_tokens_that_reach_top_p_are_kept():
    """Four tokens have a probability of a quarter each: for top_p 0.5 two are kept, for 0.51 three."""
    seen = {Sampling(1.0, top_p=0.5).pick(torch.zeros(1, 4), None, None).item() for _ in range(60)}
    assert len(seen) == 2
    above = {
        Sampling(1.0, top_p=0.51).pick(torch.zeros(1, 4), None, None).item() for _ in range(60)
    }
    assert len(above) == 3


@pytest.mark.parametrize("penalty", [0.5, 1.7])
def test_the_penalty_on_repetition_is_that_of_transformers(penalty):
    for _ in range(40):
        # most logits are negative
        given, logits = (
            torch.randint(0, 9, (3, 4)),
            torch.randn(3, 9) - 2,
        )
        wanted = hf.RepetitionPenaltyLogitsProcessor(penalty)(given, logits.clone()).argmax(-1)
        seen = torch.zeros(3, 9, dtype=torch.bool).scatter(1, given, True)
        assert torch.equal(Sampling(repetition_penalty=penalty).pick(logits, seen, None), wanted)


def test_a_running_state_is_reordered_as_beam_search_does():
    """After a reordering every row goes on from the row it was taken from."""
    model, given, then = make(attention="linear"), tokens(batch=3, seq=5), tokens(batch=3, seq=1)
    caches = model.caches()
    model(given, caches=caches)
    order = torch.tensor([2, 0, 0])
    for cache in caches:
        cache.reorder(order)
    whole = model(torch.cat((given[order], then), dim=1))[:, -1]
    torch.testing.assert_close(model(then, caches=caches)[:, -1], whole, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"temperature": 1e-300}, "temperature"),
        ({"temperature": 1e-9}, "temperature"),
        ({"temperature": -0.5}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": 1.0, "repetition_penalty": 1e-300}, "repetition_penalty"),
        ({"temperature": 1.0, "repetition_penalty": 1e300}, "repetition_penalty"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": float("nan")}, "top_p"),
        ({"top_k": 0}, "top_k"),
        ({"top_k": 2.0}, "top_k"),
        ({"cache": 5}, "cache"),
        ({"cache": {}}, "cache"),
        ({"cache": "grow"}, "cache"),
        ({"cache": "grow", "graph": True}, "cache"),
        ({"cache": KVCache()}, "cache"),
        ({"cache": [5, 5]}, "caches"),
        ({"cache": ["growing", "growing"]}, "caches"),
        ({"cache": []}, "caches"),
        ({"cache": "static", "capacity": "9"}, "capacity"),
        ({"cache": "static", "capacity": "9", "graph": True}, "capacity"),
        ({"cache": "static", "capacity": 9.5}, "capacity"),
        ({"cache": "growing", "capacity": 40}, "capacity"),
        ({"stream": 5}, "stream"),
        ({"padding": 5}, "padding"),
        ({"seed": 2**70, "temperature": 1.0}, "seed"),
    ],
)
def test_wrong_options_are_refused_by_name(model, options, field):
    assert len(model.layers) == 2
    assert_refused(field, lambda: model.generate(tokens(), 2, **options))


@pytest.mark.parametrize("options", [{"temperature": 1e-6}, {"temperature": 1.0, "top_p": 1e-300}])
def test_the_smallest_sampling_values_draw_the_most_likely_token(model, options):
    given = tokens()
    assert torch.equal(model.generate(given, 5, seed=0, **options), model.generate(given, 5))


def test_the_highest_temperature_draws_every_token_equally():
    logits = torch.tensor([[0.0, 50.0, -50.0, 9.0]]).expand(20_000, -1)
    drawn = Sampling(temperature=1e300).pick(logits, None, torch.Generator().manual_seed(0))
    share = drawn.bincount(minlength=4) / len(drawn)
    torch.testing.assert_close(share, torch.full((4,), 0.25), atol=0.012, rtol=0)
