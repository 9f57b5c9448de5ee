"""Four forms of one rotation, and a NumPy one, are the same rotation; and the same as transformers'
and lucidrains' own.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from rotary_embedding_torch import RotaryEmbedding
from torch.testing import assert_close
from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as gptj_apply
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as llama_apply
from transformers.models.llama.modeling_llama import rotate_half as llama_rotate_half

import ropewalk as rw
from ropewalk.errors import RopeError
from ropewalk.kernels import reference
from ropewalk.rotation import rotate_by

PAIRS, S = 5, 7
both_layouts = pytest.mark.parametrize("layout", ["half", "interleaved"])


def angles(batch=None):
    positions = torch.arange(S) if batch is None else torch.randint(0, 100, (batch, S))
    return positions[..., None] * 10_000.0 ** (-torch.arange(PAIRS, dtype=torch.float64) / PAIRS)


def repeated(table, layout):
    """A table with one entry a dimension, as that layout repeats its pairs."""
    return torch.cat((table, table), -1) if layout == "half" else table.repeat_interleave(2, -1)


@both_layouts
def test_split_then_join_is_the_identity(layout):
    x = torch.randn(3, 2 * PAIRS)
    first, second = reference.split_pairs(x, layout)
    assert torch.equal(reference.join_pairs(first, second, layout), x)
    where = (1, 1 + PAIRS) if layout == "half" else (2, 3)
    assert torch.equal(torch.stack((first[:, 1], second[:, 1]), -1), x[:, list(where)])
    assert first.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


@both_layouts
def test_four_forms_are_equal(layout):
    """Dense matrix, complex product, interleaved pairs, half-split pairs."""
    x, a = torch.randn(S, 2 * PAIRS, dtype=torch.float64), angles()
    cos, sin = a.cos(), a.sin()
    rotated = reference.rotate(x, cos, sin, layout)
    assert_close(reference.rotate_complex(x, cos, sin, layout), rotated, rtol=0, atol=1e-14)
    matrix = reference.rotation_matrix(cos, sin, layout)
    assert_close((matrix @ x[..., None])[..., 0], rotated, rtol=0, atol=1e-14)
    # the other layout is the same rotation of permuted dimensions
    order = torch.arange(2 * PAIRS).view(2, PAIRS).T.flatten()  # half -> interleaved
    order = order if layout == "half" else order.argsort()
    other = "interleaved" if layout == "half" else "half"
    assert_close(reference.rotate(x[:, order], cos, sin, other), rotated[:, order], rtol=0, atol=0)
    for m in range(S):
        assert_close(
            torch.from_numpy(reference.rotate_vector(x[m].numpy(), m, layout=layout)),
            rotated[m],
            rtol=0,
            atol=1e-14,
        )


@both_layouts
def test_matrix_is_orthogonal_and_adds_up(layout):
    """R_m^T R_n = R_{n-m}: orthogonal, and the score sees only the distance."""
    a = angles()
    r = reference.rotation_matrix(a.cos(), a.sin(), layout)
    eye = torch.eye(2 * PAIRS, dtype=torch.float64)
    assert_close(r.mT @ r, eye.expand(S, -1, -1), rtol=0, atol=1e-14)
    assert_close(r[2] @ r[3], r[5], rtol=0, atol=1e-14)
    assert_close(r[2].mT @ r[5], r[3], rtol=0, atol=1e-14)
    assert_close(torch.linalg.det(r), torch.ones(S, dtype=torch.float64), rtol=0, atol=1e-12)


def test_numpy_vector_against_python_complex_numbers():
    x = np.arange(1.0, 7.0)
    for m in (0, 1, 9):
        pairs = [
            complex(x[2 * i], x[2 * i + 1]) * np.exp(1j * m * 100.0 ** (-i / 3)) for i in range(3)
        ]
        expected = [part for z in pairs for part in (z.real, z.imag)]
        assert np.allclose(reference.rotate_vector(x, m, theta=100.0), expected, rtol=0, atol=1e-14)
    assert reference.rotate_vector(x.astype(np.float32), 3).dtype == np.float64


def test_rotate_half_equals_transformers():
    x = torch.randn(2, 3, S, 10)
    assert torch.equal(rw.rotate_half(x), llama_rotate_half(x))


@pytest.mark.parametrize("unsqueeze_dim", [1, 2, -2])
@pytest.mark.parametrize("table_rows", [1, 2])
def test_apply_equals_llama(unsqueeze_dim, table_rows):
    a = angles(table_rows)
    cos, sin = (repeated(t.float(), "half") for t in (a.cos(), a.sin()))
    heads_last = unsqueeze_dim != 1
    shape = (lambda heads: (2, S, heads, 10)) if heads_last else (lambda heads: (2, heads, S, 10))
    q, k = torch.randn(shape(3)), torch.randn(shape(1))
    found, expected = (
        rw.apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim),
        llama_apply(q, k, cos, sin, unsqueeze_dim),
    )
    for ours, theirs in zip(found, expected, strict=True):
        assert_close(ours, theirs, rtol=0, atol=1e-6)


def test_apply_to_a_packed_batch():
    """[T, H, D] with a table [T, R]."""
    a = angles()
    cos, sin = (repeated(t.float(), "half") for t in (a.cos(), a.sin()))
    q, k = torch.randn(S, 3, 10), torch.randn(S, 1, 10)
    for ours, theirs in zip(
        rw.apply_rotary_pos_emb(q, k, cos, sin, 1), llama_apply(q, k, cos, sin, 1), strict=True
    ):
        assert_close(ours, theirs, rtol=0, atol=1e-6)


def test_apply_with_narrow_tables_rotates_the_leading_dimensions():
    a = angles(2)
    cos, sin = (repeated(t.float(), "half") for t in (a.cos(), a.sin()))
    q, k = torch.randn(2, 3, S, 14), torch.randn(2, 1, S, 14)
    for ours, x in zip(rw.apply_rotary_pos_emb(q, k, cos, sin), (q, k), strict=True):
        assert_close(
            ours[..., :10], llama_apply(x[..., :10], x[..., :10], cos, sin)[0], rtol=0, atol=1e-6
        )
        assert torch.equal(ours[..., 10:], x[..., 10:])


def test_apply_interleaved_equals_gptj():
    a = angles(2)
    q = torch.randn(2, S, 3, 10)
    expected = gptj_apply(q, a.sin().float(), a.cos().float())
    cos, sin = (repeated(t.float(), "interleaved") for t in (a.cos(), a.sin()))
    found, _ = rw.apply_rotary_pos_emb(q, q, cos, sin, 2, layout="interleaved")
    assert_close(found, expected, rtol=0, atol=1e-6)


def test_interleaved_equals_rotary_embedding_torch():
    peer, rope = RotaryEmbedding(dim=10), rw.Rope(rw.RopeSpec(10, layout="interleaved"))
    x = torch.randn(2, 3, S, 10)
    assert_close(rope(x), peer.rotate_queries_or_keys(x), rtol=0, atol=2e-6)
    assert_close(rope(x, offset=11), peer.rotate_queries_or_keys(x, offset=11), rtol=0, atol=5e-6)


@both_layouts
def test_a_table_of_the_other_layout_is_refused(layout):
    """Mixed silently, the norm would be lost; here it cannot be."""
    other = "interleaved" if layout == "half" else "half"
    a = angles()[None]
    cos, sin = (repeated(t.float(), other) for t in (a.cos(), a.sin()))
    x = torch.randn(1, 2, S, 10)
    quarter = (
        llama_rotate_half(x)
        if layout == "half"
        else torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    )
    mixed = x * cos + quarter * sin
    assert float((mixed.norm(dim=-1) / x.norm(dim=-1) - 1).abs().max()) > 0.1
    for tables in ((cos, sin), (repeated(a.cos().float(), layout), sin)):
        with pytest.raises(RopeError, match=f"{layout!r} layout pairs dimensions") as caught:
            rw.apply_rotary_pos_emb(x, x, *tables, layout=layout)
        assert caught.value.field in ("cos", "sin")
    # a table with one entry a pair has no layout to mistake
    pair_cos, pair_sin = a.cos().float(), a.sin().float()
    assert_close(
        rotate_by(x, pair_cos, pair_sin, layout=layout).norm(dim=-1),
        x.norm(dim=-1),
        rtol=1e-6,
        atol=0,
    )


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_the_numpy_form_rotates_every_vector_of_a_stack_alike(layout):
    stack = np.random.default_rng(0).normal(
        size=(10, 10)
    )  # square, so that rows taken for columns would go unnoticed by shape
    rotated = reference.rotate_vector(stack, 3, layout=layout)
    for vector, found in zip(stack, rotated, strict=True):
        np.testing.assert_allclose(found, reference.rotate_vector(vector, 3, layout=layout))
