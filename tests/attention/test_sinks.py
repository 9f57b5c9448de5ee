"""Learned sinks: one more term in the softmax of each head; and the factor of dual chunk attention
by length.
"""

import math

import pytest
import torch
from torch.testing import assert_close

import ropewalk as rw
from ropewalk.attention import Attention, KVCache, lse
from ropewalk.attention.choices import LearnedSinks
from ropewalk.attention.remap import DualChunk
from ropewalk.errors import RopeError

SINKS = [0.7, -1.5, 30.0, -40.0]


def layer(**options) -> Attention:
    torch.manual_seed(0)
    made = Attention(24, 4, 2, 8, sinks=LearnedSinks(), **options).double()
    with torch.no_grad():
        made.sinks.copy_(torch.tensor(SINKS, dtype=torch.float64))
    return made


def written(
    made: Attention, x: torch.Tensor, hidden: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output and the weights of `made`, head by head: scores have one more column, the
    sink's, whose weight is dropped after the softmax.
    """
    q, k, v = made.project(x)
    at = torch.arange(x.shape[1])
    q, k = made.encoding.rotate(q, at, key=False), made.encoding.rotate(k, at, key=True)
    outs, all_weights = [], []
    for head, sink in enumerate(SINKS):
        scores = (q[:, head] @ k[:, head // 2].mT / math.sqrt(8)).masked_fill(hidden, -math.inf)
        extra = torch.full_like(scores[..., :1], sink)
        weights = torch.cat((scores, extra), dim=-1).softmax(-1)[..., :-1]
        outs.append(weights @ v[:, head // 2])
        all_weights.append(weights)
    return made.o_proj(torch.cat(outs, dim=-1)), torch.stack(all_weights, dim=1)


@pytest.mark.parametrize("window", [None, 3])
def test_a_learned_sink_is_one_more_column_of_the_softmax(window):
    made, x = layer(window=window), torch.randn(2, 9, 24, dtype=torch.float64, requires_grad=True)
    i = torch.arange(9)
    hidden = (i[:, None] < i) | ((i[:, None] - i >= window) if window else False)
    expected, weights = written(made, x, hidden)
    found = made(x, return_weights=True)
    assert_close(made(x).out, expected, rtol=0, atol=1e-12)
    assert_close(found.out, expected, rtol=0, atol=1e-12)
    assert_close(found.weights, weights, rtol=0, atol=1e-12)
    with torch.no_grad():
        made.sinks.fill_(-1e30)  # these sinks get no weight
    plain = Attention(24, 4, 2, 8, window=window).double()
    plain.load_state_dict(
        {name: value for name, value in made.state_dict().items() if name != "sinks"}
    )
    assert_close(made(x).out, plain(x).out, rtol=0, atol=1e-12)
    made.sinks.data.zero_()
    made(x).out.square().sum().backward()
    assert made.sinks.grad.abs().min() > 0


def test_sinks_with_padding_or_a_cache_equal_the_plain_pass():
    made, x, cache = layer(), torch.randn(2, 7, 24, dtype=torch.float64), KVCache()
    whole = made(x).out
    pieces = [made(x[:, a:b], cache=cache).out for a, b in ((0, 4), (4, 5), (5, 7))]
    assert_close(torch.cat(pieces, 1), whole, rtol=0, atol=1e-12)
    padding = torch.tensor([[False] * 3 + [True] * 4, [True] * 7])
    assert_close(made(x, padding=padding).out[0, 3:], made(x[:1, 3:]).out[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("encoding", ["alibi", "kerple_log", "t5", "relative_bias"])
@pytest.mark.parametrize("cached", [False, True])
def test_blocks_of_queries_have_their_own_part_of_the_bias(encoding, cached, monkeypatch):
    made, x = layer(encoding=encoding), torch.randn(2, 9, 24, dtype=torch.float64)
    expected = made(x).out  # computed in one block
    # blocks of 2 queries, the last one shorter
    monkeypatch.setattr(lse, "MOST_SCORES", 2 * 4 * 9 * 2)
    calls = [{}, {"positions": torch.arange(9)}]
    if cached:
        calls = [{"cache": KVCache()}]
        expected = expected[:, 3:]
        made(x[:, :3], **calls[0])
    for call in calls:
        assert_close(made(x[:, 3 if cached else 0 :], **call).out, expected, rtol=0, atol=1e-12)


def test_sinks_refuse_a_remapping_and_dropout_in_training():
    with pytest.raises(RopeError, match="sinks: must be None with a remapping"):
        Attention(24, 4, sinks=LearnedSinks(), remapping=DualChunk(8, 2))
    made = Attention(24, 4, sinks=LearnedSinks(), dropout=0.1)
    with pytest.raises(RopeError, match="dropout: must be 0 with learned sinks"):
        made(torch.randn(1, 4, 24))
    made.eval()(torch.randn(1, 4, 24))


def test_dual_chunks_multiply_scores_beyond_their_length():
    """m^2 on the scores, m = max(1, 1 + 0.1 log(n / length)), n the tokens up to the query."""
    factor = DualChunk(6, 2, length=4).query_factor(torch.arange(12))
    assert factor is not None
    assert factor[:4].tolist() == [1.0] * 4
    assert factor[7].item() == pytest.approx((1 + 0.1 * math.log(2)) ** 2, rel=1e-12)
    assert DualChunk(6, 2).query_factor(torch.arange(12)) is None
    torch.manual_seed(0)
    sharp, plain = (
        rw.Attention(16, 2, remapping=DualChunk(6, 2, length)).double() for length in (4, None)
    )
    plain.load_state_dict(sharp.state_dict())
    x = torch.randn(1, 12, 16, dtype=torch.float64)
    last = sharp(x).out[0, -1]
    # the last query has 12 tokens, three times the length
    plain.scale *= (1 + 0.1 * math.log(3)) ** 2
    assert_close(plain(x).out[0, -1], last, rtol=0, atol=1e-12)
