"""The attention of the native library: against the definition in float64, and what it refuses."""

import pytest
import torch

from ropewalk.kernels.cpu import attention, library

needs_library = pytest.mark.skipif(
    not attention.available(), reason="the library has attention for 64-bit ARM only"
)


def definition(q, k, v, scale):
    """Softmax over the keys up to each query's own, in float64."""
    q, k, v = q.double(), k.double().repeat_interleave(q.shape[1] // k.shape[1], 1), v.double()
    scores = (q @ k.mT * scale).masked_fill(
        torch.ones(q.shape[2], q.shape[2]).triu(1).bool(), -torch.inf
    )
    return scores.softmax(-1) @ v.repeat_interleave(q.shape[1] // v.shape[1], 1)


def tensors(batch=1, heads=2, groups=1, rows=5, dim=8, spread=1.0):
    """Random q, k and v; q has the memory of [B, S, H, D], as the queries of transformers."""
    generator = torch.Generator().manual_seed(rows + dim)
    q = spread * torch.randn(batch, rows, heads, dim, generator=generator).transpose(1, 2)
    return q, *(torch.randn(batch, groups, rows, dim, generator=generator) for _ in range(2))


@needs_library
@pytest.mark.parametrize(
    "shape",
    [
        (1, 9, 3, 7, 64),
        (2, 4, 4, 131, 40),
        (3, 5, 1, 1, 8),
        (1, 3, 3, 48, 16),
        (1, 2, 1, 128, 24),
        (2, 6, 2, 301, 72),
    ],
    ids=lambda shape: "x".join(map(str, shape)),
)
def test_native_attention_equals_the_definition(shape):
    q, k, v = tensors(*shape)
    assert attention.why_not(q, k, v) is None
    found = attention.attend(q, k, v, 0.3)
    assert found.shape == q.shape
    assert found.transpose(1, 2).is_contiguous()
    torch.testing.assert_close(found.double(), definition(q, k, v, 0.3), rtol=2e-5, atol=1e-5)


@needs_library
def test_scores_far_below_the_largest_weigh_nothing():
    # most scores are so far below the largest that float32 cannot hold their exponentials
    q, k, v = tensors(rows=200, spread=300.0)
    torch.testing.assert_close(
        attention.attend(q, k, v, 1.0).double(), definition(q, k, v, 1.0), rtol=1e-3, atol=1e-3
    )


@needs_library
def test_every_number_of_threads_gives_the_same_bits():
    q, k, v = tensors(1, 4, 2, 700, 16)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(attention.attend(q, k, v, 0.25))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@needs_library
def test_native_attention_takes_views_whose_last_dimension_is_strided():
    q, k, v = tensors(1, 2, 2, 37, 16)
    strided = [x.mT.contiguous().mT for x in (q, k, v)]
    assert torch.equal(attention.attend(*strided, 0.25), attention.attend(q, k, v, 0.25))


@needs_library
def test_why_not_names_what_native_attention_cannot_compute():
    q, k, v = tensors()
    assert "float32" in attention.why_not(q.double(), k.double(), v.double())
    assert "gradient" in attention.why_not(q.clone().requires_grad_(), k, v)
    assert "length" in attention.why_not(q[:, :, :3], k, v)
    assert "multiple of k's" in attention.why_not(
        torch.cat([q, q[:, :1]], 1), torch.cat([k, k], 1), torch.cat([v, v], 1)
    )
    assert "multiple of 8" in attention.why_not(q[..., :6], k[..., :6], v[..., :6])


def test_why_not_gives_the_reason_if_the_library_lacks_attention_or_is_missing(monkeypatch):
    monkeypatch.setattr(attention, "_attend", None)
    assert not attention.available()
    if library.handle is not None:
        assert "64-bit ARM" in attention.why_not(*tensors())
    monkeypatch.setattr(library, "handle", None)
    assert attention.why_not(*tensors()) == library.missing
