"""Backends of softmax attention, called directly: any offset and number of queries, rows without
keys, which backend runs.
"""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from ropewalk.attention import backends, flex, lse
from ropewalk.attention.backends import Call, attend, pick, trimmed
from ropewalk.attention.masks import Visibility

BATCH, HEADS, KV_HEADS, KEYS, DIM = 2, 4, 2, 6, 5


def call(q_len=3, **visible):
    torch.manual_seed(7)
    q, k, v = (
        torch.randn(BATCH, h, s, DIM).double()
        for h, s in ((HEADS, q_len), (KV_HEADS, KEYS), (KV_HEADS, KEYS))
    )
    return Call(q, k, v, 0.6, Visibility(**visible))


def by_loops(given, sees):
    """Return softmax(scale q k) v, key by key; `sees(row, query, key)` says which keys count."""
    out = torch.zeros_like(given.q)
    for b, h, i in torch.cartesian_prod(*(torch.arange(n) for n in given.q.shape[:3])).tolist():
        group = h // (HEADS // KV_HEADS)
        keys = [j for j in range(KEYS) if sees(b, i, j)]
        scores = [math.exp(0.6 * float(given.q[b, h, i] @ given.k[b, group, j])) for j in keys]
        for j, score in zip(keys, scores, strict=True):
            out[b, h, i] += score / sum(scores) * given.v[b, group, j]
    return out


@pytest.mark.parametrize("name", ["sdpa", "math"])
@pytest.mark.parametrize("q_len", [1, 3, KEYS])
def test_causality_hides_later_keys_at_any_offset(name, q_len):
    """A single query may stand before the end of the keys; the keys after it stay hidden from it."""
    for offset in range(KEYS):
        given = call(q_len, causal=True, offset=offset)
        expected = by_loops(given, lambda b, i, j, offset=offset: j <= i + offset)
        torch.testing.assert_close(attend(given, name)[0], expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("is_float", [False, True])
def test_queries_without_keys_give_zero_whatever_the_kernel_returns(monkeypatch, is_float):
    """On some devices kernels return NaN for such queries; torch's CPU kernel returns 0 by itself."""

    def plain(q, k, v, mask, scale, **rest):
        k, v = (t.repeat_interleave(HEADS // KV_HEADS, dim=1) for t in (k, v))
        scores = scale * q @ k.mT
        return (
            scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
        ).softmax(dim=-1) @ v

    monkeypatch.setattr(F, "scaled_dot_product_attention", plain)
    real = torch.ones(BATCH, KEYS, dtype=torch.bool)
    real[1] = False
    mask = torch.zeros(KEYS).double() if is_float else None
    got = backends.run_sdpa(call(padding=real, mask=mask))[0]
    expected = by_loops(call(), lambda b, i, j: b == 0)
    assert not expected[1].any()
    torch.testing.assert_close(got, expected, atol=1e-10, rtol=1e-10)


def test_returned_weights_are_zero_for_hidden_keys_sum_to_one_and_give_the_output():
    given = call(causal=True, offset=2)
    out, weights = backends.run_math(given)
    hidden = torch.arange(KEYS) > torch.arange(3)[:, None] + 2
    assert not weights.masked_select(hidden).any()
    torch.testing.assert_close(weights.sum(dim=-1), torch.ones(BATCH, HEADS, 3).double())
    torch.testing.assert_close(weights @ given.v.repeat_interleave(2, dim=1), out)


def test_the_fused_kernel_is_the_default_and_weights_need_the_definition():
    given = call(causal=True)
    assert pick(given)[0] == "sdpa"
    wanting = Call(given.q, given.k, given.v, given.scale, given.visible, wants_weights=True)
    assert pick(wanting)[0] == "math"
    assert attend(given)[1] is None
    assert attend(wanting)[1] is not None


def test_flex_attention_is_picked_for_windows_and_documents_with_many_queries(monkeypatch):
    documents = torch.zeros(BATCH, KEYS, dtype=torch.int64)
    sparse = [call(window=2), call(KEYS, q_documents=documents, k_documents=documents)]
    assert [pick(each)[0] for each in sparse] == ["sdpa", "sdpa"]  # on a CPU
    monkeypatch.setattr(backends, "flex_why_not", lambda given: None)
    assert [pick(each)[0] for each in sparse] == ["sdpa", "sdpa"]  # too few queries
    monkeypatch.setattr(backends, "FEWEST_QUERIES", 3)
    assert [pick(each)[0] for each in sparse] == ["flex", "flex"]
    assert pick(call(causal=True))[0] == "sdpa"


@pytest.mark.parametrize(
    "shape",
    [(), (6,), (1,), (3, 6), (1, 6), (3, 1), (BATCH, 1, 1, 6), (BATCH, HEADS, 3, 6), (HEADS, 3, 1)],
    ids=str,
)
@pytest.mark.parametrize(
    ("start", "stop", "first", "last"), [(0, 3, 0, 6), (1, 3, 2, 5), (2, 3, 5, 6)]
)
def test_part_of_scores_of_a_broadcast_mask_is_that_part_of_the_full_mask(
    shape, start, stop, first, last
):
    """Axes of size 1 and absent axes are for all queries, keys, heads or rows."""
    mask = torch.randn(shape)
    part = Visibility(mask=mask).part(start, stop, first, last).mask
    whole = mask.expand(BATCH, HEADS, 3, KEYS)
    assert torch.equal(
        part.expand(BATCH, HEADS, stop - start, last - first), whole[..., start:stop, first:last]
    )


DOCUMENTS = torch.tensor([[4, 4, 4, 1, 1, 1], [2, 2, 0, 0, 0, 5]])
REAL = torch.tensor([[True] * 6, [True, False, True, True, True, False]])
FLEX = {
    "nothing": ({}, lambda b, i, j: True),
    "causal": ({"causal": True, "offset": 2}, lambda b, i, j: j <= i + 2),
    "window": ({"window": 2, "offset": 1}, lambda b, i, j: abs(j - i - 1) < 2),
    "causal window": (
        {"causal": True, "window": 3, "offset": 3},
        lambda b, i, j: 0 <= i + 3 - j < 3,
    ),
    "padding": ({"padding": REAL}, lambda b, i, j: bool(REAL[b, j])),
    "documents": (
        {"q_documents": DOCUMENTS[:, 1:4], "k_documents": DOCUMENTS},
        lambda b, i, j: bool(DOCUMENTS[b, i + 1] == DOCUMENTS[b, j]),
    ),
}


@pytest.mark.parametrize("kind", FLEX)
def test_the_block_mask_of_flex_attention_hides_the_same_keys(monkeypatch, kind):
    """The rule that is given to FlexAttention, asked for every query and key; the kernel itself
    needs a GPU.
    """

    def every_pair(sees, rows, heads, q_len, k_len, device):
        b, h, q, k = torch.meshgrid(
            *(torch.arange(n or 1) for n in (rows, heads, q_len, k_len)), indexing="ij"
        )
        return sees(b, h, q, k)

    def kernel(q, k, v, block_mask, scale, enable_gqa):
        return F.scaled_dot_product_attention(
            q, k, v, block_mask, scale=scale, enable_gqa=enable_gqa
        )

    monkeypatch.setattr(flex, "compiled", lambda: (every_pair, kernel))
    visible, sees = FLEX[kind]
    given = call(**visible)
    flex._kept_block_mask.cache_clear()
    for _ in range(2):  # a block mask that depends on no tensor is kept for the second call
        torch.testing.assert_close(
            backends.run_flex(given)[0], by_loops(given, sees), atol=1e-10, rtol=1e-10
        )
    assert flex._kept_block_mask.cache_info()[:2] == (
        (1, 1) if kind in ("nothing", "causal", "window", "causal window") else (0, 0)
    )
    flex._kept_block_mask.cache_clear()


def test_a_block_mask_made_under_inference_mode_serves_training_but_no_captured_graph(monkeypatch):
    masks = []

    def kernel(q, k, v, block_mask, **rest):
        masks.append(block_mask)
        return q

    monkeypatch.setattr(flex, "compiled", lambda: (lambda *given, **rest: torch.zeros(1), kernel))
    flex._kept_block_mask.cache_clear()
    given = call(causal=True, window=2)
    with torch.inference_mode():
        backends.run_flex(given)
    backends.run_flex(given)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    backends.run_flex(given)
    flex._kept_block_mask.cache_clear()
    assert not masks[0].is_inference()
    assert masks[1] is masks[0]
    assert masks[2] is not masks[0]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [1, 2, 3, 8])
@pytest.mark.parametrize("q_len", [1, 3, KEYS])
@pytest.mark.parametrize("block", [1, 2, 100])
def test_a_window_in_blocks_and_without_hidden_keys_equals_a_loop(
    monkeypatch, causal, window, q_len, block
):
    monkeypatch.setattr(backends, "FEWEST_IN_BLOCK", block)
    for offset in range(KEYS):
        given = call(q_len, causal=causal, window=window, offset=offset)
        sees = lambda b, i, j, at=offset: abs(i + at - j) < window and (j <= i + at or not causal)
        # fused kernels give any value for queries that see no key
        alive = [i for i in range(q_len) if any(sees(0, i, j) for j in range(KEYS))]
        expected = by_loops(given, sees)[:, :, alive]
        part = trimmed(given)
        for run in (backends.run_sdpa, backends.run_math):
            for each in (given, part):
                torch.testing.assert_close(
                    run(each)[0][:, :, alive], expected, atol=1e-10, rtol=1e-10
                )
        if len(alive) == q_len:  # as in a layer, where each query sees its own key
            seen = {j for i in range(q_len) for j in range(KEYS) if sees(0, i, j)}
            assert torch.equal(part.k, given.k[:, :, min(seen) : max(seen) + 1])
            hidden = any(
                abs(i + offset - j) >= window and (j <= i + offset or not causal)
                for i in range(q_len)
                for j in seen
            )
            assert (part.visible.window is not None) == hidden


def test_a_windowed_block_has_its_part_of_every_mask_and_bias(monkeypatch):
    monkeypatch.setattr(backends, "FEWEST_IN_BLOCK", 2)
    real, bias = REAL.clone(), torch.randn(HEADS, KEYS, KEYS).double()
    given = call(
        KEYS, causal=True, window=2, padding=real, q_documents=DOCUMENTS, k_documents=DOCUMENTS
    )
    given = replace(
        given,
        bias=bias,
        visible=replace(given.visible, mask=torch.randn(BATCH, 1, KEYS, KEYS).double()),
    )
    torch.testing.assert_close(
        backends.run_sdpa(given)[0], backends.run_math(given)[0], atol=1e-10, rtol=1e-10
    )
    last = trimmed(given.part(4, KEYS, 0, KEYS))
    assert last.k.shape[2] == 3
    torch.testing.assert_close(
        backends.run_math(last)[0], backends.run_math(given)[0][:, :, 4:], atol=1e-10, rtol=1e-10
    )


def test_trimmed_leaves_out_no_hidden_key_if_the_weights_are_to_be_returned():
    given = call(1, causal=True, window=2, offset=5)
    assert trimmed(given).k.shape[2] == 2
    wanting = replace(given, wants_weights=True)
    assert trimmed(wanting) is wanting


@pytest.mark.parametrize("run", [backends.run_math, lse.run_math])
def test_a_float32_bias_is_not_rounded_to_bfloat16(run):
    """A difference of 1/4 next to 100, where bfloat16 has steps of 1/2."""
    q, v = (
        torch.zeros(1, 1, 1, 2, dtype=torch.bfloat16),
        torch.eye(2, dtype=torch.bfloat16)[None, None],
    )
    bias = torch.tensor([100.0, 100.25]).view(1, 1, 1, 2)
    out = run(Call(q, v, v, 1.0, Visibility(), bias))[0]
    torch.testing.assert_close(out.double(), bias.double().softmax(-1), atol=2e-3, rtol=0)
