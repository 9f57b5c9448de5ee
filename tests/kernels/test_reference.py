"""Four forms of the rotation in torch, and one in NumPy, give the same results, which are those of
transformers and of lucidrains' rotary-embedding-torch.
"""

from __future__ import annotations

from functools import partial

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
from ropewalk.kernels.rotation import definition
from ropewalk.rotation import rotate_by

PAIRS, S = 5, 7
both_layouts = pytest.mark.parametrize("layout", ["half", "interleaved"])


def angles(batch=None):
    positions = torch.arange(S) if batch is None else torch.randint(0, 100, (batch, S))
    return positions[..., None] * 10_000.0 ** (-torch.arange(PAIRS, dtype=torch.float64) / PAIRS)


def repeated(table, layout):
    """Return a table [.., pairs] with each entry twice, at both dimensions of its pair in `layout`."""
    return torch.cat((table, table), -1) if layout == "half" else table.repeat_interleave(2, -1)


@both_layouts
def test_split_then_join_is_the_identity(layout):
    x = torch.randn(3, 2 * PAIRS)
    first, second = definition.split_pairs(x, layout)
    assert torch.equal(definition.join_pairs(first, second, layout), x)
    where = (1, 1 + PAIRS) if layout == "half" else (2, 3)
    assert torch.equal(torch.stack((first[:, 1], second[:, 1]), -1), x[:, list(where)])
    assert first.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()


@both_layouts
def test_four_forms_of_the_rotation_are_equal(layout):
    """Dense matrix, complex product, interleaved pairs, half-split pairs."""
    x, a = torch.randn(S, 2 * PAIRS, dtype=torch.float64), angles()
    cos, sin = a.cos(), a.sin()
    rotated = definition.rotate(x, cos, sin, layout)
    assert_close(definition.rotate_complex(x, cos, sin, layout), rotated, rtol=0, atol=1e-14)
    matrix = definition.rotation_matrix(cos, sin, layout)
    assert_close((matrix @ x[..., None])[..., 0], rotated, rtol=0, atol=1e-14)
    # the other layout is the same rotation of permuted dimensions
    order = torch.arange(2 * PAIRS).view(2, PAIRS).T.flatten()  # half -> interleaved
    order = order if layout == "half" else order.argsort()
    other = "interleaved" if layout == "half" else "half"
    assert_close(definition.rotate(x[:, order], cos, sin, other), rotated[:, order], rtol=0, atol=0)
    for m in range(S):
        assert_close(
            torch.from_numpy(definition.rotate_vector(x[m].numpy(), m, layout=layout)),
            rotated[m],
            rtol=0,
            atol=1e-14,
        )


@both_layouts
@pytest.mark.parametrize("form", [definition.rotate, definition.rotate_complex])
def test_numbers_of_16_bits_are_rounded_once(form, layout):
    """Arithmetic is in the dtype of the tables; only the result is rounded to the dtype of x."""
    x, a = torch.randn(S, 2 * PAIRS).bfloat16(), angles()
    matrix = definition.rotation_matrix(a.cos(), a.sin(), layout)
    expected = (matrix @ x.double()[..., None])[..., 0]
    found = form(x, a.cos(), a.sin(), layout)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, expected.bfloat16())


@both_layouts
def test_the_rotation_matrix_is_orthogonal_and_products_add_angles(layout):
    """R_m^T R_n = R_{n-m}: orthogonal, and the score sees only the distance."""
    a = angles()
    r = definition.rotation_matrix(a.cos(), a.sin(), layout)
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
        assert np.allclose(
            definition.rotate_vector(x, m, theta=100.0), expected, rtol=0, atol=1e-14
        )
    assert definition.rotate_vector(x.astype(np.float32), 3).dtype == np.float64


@pytest.mark.parametrize(
    ("field", "places"),
    [
        ("x", (np.ones(5), 1)),
        ("x", (np.ones(0), 1)),
        ("x", (np.ones(()), 1)),
        ("x", (np.array(["a", "b"]), 1)),
        ("x", (np.ones(4, dtype=complex), 1)),
        ("position", (np.ones(4), float("nan"))),
        ("theta", (np.ones(4), 1, 0.0)),
        ("theta", (np.ones(4), 1, -2.0)),
        ("layout", (np.ones(4), 1, 10_000.0, "neox")),
    ],
)
def test_numpy_vector_refuses_what_it_cannot_rotate(field, places):
    with pytest.raises(RopeError) as caught:
        definition.rotate_vector(*places)
    assert caught.value.field == field


def test_rotate_half_equals_transformers():
    x = torch.randn(2, 3, S, 10)
    assert torch.equal(rw.rotate_half(x), llama_rotate_half(x))


@pytest.mark.parametrize("unsqueeze_dim", [1, 2, -2])
@pytest.mark.parametrize("table_rows", [1, 2])
def test_apply_rotary_pos_emb_equals_llama(unsqueeze_dim, table_rows):
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


def test_apply_rotary_pos_emb_to_a_packed_batch_equals_llama():
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


def older_apply(q, k, cos, sin, position_ids, unsqueeze_dim=1):
    """apply_rotary_pos_emb of transformers 4.20 to 4.37, written out: tables [1, 1, N, D], later
    [N, D], and a row of them for each token.
    """
    cos, sin = (table.reshape(table.shape[-2:])[position_ids] for table in (cos, sin))
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    quarter = lambda x: torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), dim=-1)
    return tuple(x * cos + quarter(x) * sin for x in (q, k))


LONG = torch.arange(100)[:, None] * 10_000.0 ** (-torch.arange(5) / 5)
ROWS = torch.tensor([[7, 99, 0, 3, 3], [1, 2, 3, 4, 5]])


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("four_axes", [False, True])
@pytest.mark.parametrize("unsqueeze_dim", [1, 2])
def test_apply_with_position_ids_equals_older_transformers(unsqueeze_dim, four_axes, dtype):
    cos, sin = (repeated(t, "half") for t in (LONG.cos(), LONG.sin()))
    if four_axes:
        cos, sin = cos[None, None], sin[None, None]
    shape = lambda heads: (2, heads, 5, 10) if unsqueeze_dim == 1 else (2, 5, heads, 10)
    q, k, rows = torch.randn(shape(3)), torch.randn(shape(1)), ROWS.to(dtype)
    expected = older_apply(q, k, cos, sin, ROWS, unsqueeze_dim)
    apply = rw.apply_rotary_pos_emb
    by_place = apply(q, k, cos, sin, rows, unsqueeze_dim)
    by_name = apply(q, k, cos, sin, position_ids=rows, unsqueeze_dim=unsqueeze_dim)
    alone = apply(q, cos, sin, rows, unsqueeze_dim), apply(k, cos, sin, rows, unsqueeze_dim)
    named = tuple(
        apply(x, cos, sin, position_ids=rows, unsqueeze_dim=unsqueeze_dim) for x in (q, k)
    )
    for found in (by_place, by_name, alone, named):
        for ours, theirs in zip(found, expected, strict=True):
            assert_close(ours, theirs, rtol=0, atol=1e-6)


def test_one_row_of_position_ids_serves_the_whole_batch():
    cos, sin = (repeated(t, "half") for t in (LONG.cos(), LONG.sin()))
    q = torch.randn(4, 3, 5, 10)
    found = rw.apply_rotary_pos_emb(q, q, cos, sin, ROWS[:1])[0]
    assert_close(found, older_apply(q, q, cos, sin, ROWS[:1])[0], rtol=0, atol=1e-6)


def test_apply_to_one_tensor_is_the_first_of_two():
    cos, sin = (repeated(t[:5], "half") for t in (LONG.cos(), LONG.sin()))
    q = torch.randn(2, 3, 5, 10)
    expected = llama_apply(q, q, cos[None], sin[None])[0]
    found = rw.apply_rotary_pos_emb(q, cos[None], sin[None])
    assert isinstance(found, torch.Tensor)
    assert_close(found, expected, rtol=0, atol=1e-6)
    after = rw.apply_rotary_pos_emb(q.transpose(1, 2), cos[None], sin[None], unsqueeze_dim=2)
    assert_close(after.transpose(1, 2), expected, rtol=0, atol=1e-6)
    assert_close(rw.apply_rotary_pos_emb(q, cos[None], sin[None], None, 1), expected)


@pytest.mark.parametrize(
    ("places", "says"),
    [
        ((torch.tensor(1),), "position_ids: must be integers \\[B, S\\]"),
        ((torch.arange(5),), "position_ids: must be integers \\[B, S\\]"),
        ((ROWS.float(),), "position_ids: must be integers \\[B, S\\]"),
        ((ROWS + 1,), "cos: must have a row for every position"),
        ((ROWS - 1,), "position_ids: must not give a token a negative position"),
        ((ROWS, 3), "unsqueeze_dim: must be the axis of the heads"),
        ((True,), "unsqueeze_dim: must be an integer"),
    ],
)
def test_a_wrong_fifth_argument_is_refused_by_name(places, says):
    cos, sin = (repeated(t, "half") for t in (LONG.cos(), LONG.sin()))
    q = torch.randn(2, 3, 5, 10)
    with pytest.raises(rw.RopeError, match=says):
        rw.apply_rotary_pos_emb(q, q, cos, sin, *places)


def test_a_tensor_as_unsqueeze_dim_is_refused():
    cos, sin = (repeated(t, "half") for t in (LONG.cos(), LONG.sin()))
    x = torch.randn(2, 3, 5, 10)
    with pytest.raises(rw.RopeError, match="unsqueeze_dim: must be an integer"):
        rw.apply_rotary_pos_emb(x, cos, sin, ROWS, torch.tensor(1))  # type: ignore[call-overload]


def test_position_ids_with_tables_that_have_a_row_for_each_token_are_refused():
    cos, sin = (repeated(t[ROWS], "half") for t in (LONG.cos(), LONG.sin()))
    q = torch.randn(2, 3, 5, 10)
    with pytest.raises(rw.RopeError, match=r"cos: must be .N, R.*leave position_ids out"):
        rw.apply_rotary_pos_emb(q, q, cos, sin, ROWS)


@pytest.mark.parametrize("shape", [(2, 1), (1, 3)])
def test_position_ids_with_several_tables_are_refused(shape):
    cos, sin = (repeated(t, "half").expand(*shape, -1, -1) for t in (LONG.cos(), LONG.sin()))
    q = torch.randn(2, 3, 5, 10)
    with pytest.raises(rw.RopeError, match=r"^cos: must be .N, R."):
        rw.apply_rotary_pos_emb(q, q, cos, sin, ROWS)


@pytest.mark.parametrize(("table", "layout"), [("interleaved", "half"), ("half", "interleaved")])
def test_a_table_of_the_other_layout_is_refused_in_every_form(table, layout):
    """cos and sin of the other layout would change the norm without an error."""
    cos, sin = (repeated(t, table) for t in (LONG.cos(), LONG.sin()))
    q = torch.randn(2, 3, 5, 10)
    apply = partial(rw.apply_rotary_pos_emb, layout=layout)
    for call in (
        lambda: apply(q, q, cos[:5], sin[:5], 0),
        lambda: apply(q, q, cos, sin, ROWS),
        lambda: apply(q, cos, sin, ROWS),
        lambda: apply(q, q, cos[None, :5], sin[None, :5]),
    ):
        with pytest.raises(rw.RopeError, match=r"^cos: must repeat each pair's entry"):
            call()
    still = torch.ones_like(cos)  # every table of ones has both layouts
    with pytest.raises(rw.RopeError, match=r"^sin: must repeat each pair's entry"):
        rw.apply_rotary_pos_emb(q, q, still, sin, ROWS, layout=layout)


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
    """With a table of the other layout the result would have another norm than x; here it is an
    error.
    """
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
    # square, so that the shape alone would not show rows mistaken for columns
    stack = np.random.default_rng(0).normal(size=(10, 10))
    rotated = definition.rotate_vector(stack, 3, layout=layout)
    for vector, found in zip(stack, rotated, strict=True):
        np.testing.assert_allclose(found, definition.rotate_vector(vector, 3, layout=layout))


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("layout_out", ["half", "interleaved"])
def test_the_definition_may_write_pairs_in_the_other_layout(layout, layout_out):
    x, angle = torch.randn(5, 8, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64)
    found = definition.rotate(x, angle.cos(), angle.sin(), layout, layout_out)
    a, b = (x[:, :4], x[:, 4:]) if layout == "half" else (x[:, ::2], x[:, 1::2])
    turned = torch.complex(a, b) * torch.exp(1j * angle)
    parts = (turned.real, turned.imag)
    expected = torch.cat(parts, -1) if layout_out == "half" else torch.stack(parts, -1).flatten(-2)
    torch.testing.assert_close(found, expected)


def test_the_arithmetic_of_the_definition_is_in_the_dtype_of_the_tables():
    """Wide x with narrow tables is rounded before the product, and the result is x's dtype."""
    x = torch.tensor([[1 + 2.0**-12, 0.0]], dtype=torch.float64)
    cos, sin = torch.ones(1, 1, dtype=torch.bfloat16), torch.zeros(1, 1, dtype=torch.bfloat16)
    found = definition.rotate(x, cos, sin, "half")
    assert found.dtype == torch.float64
    assert found.tolist() == [[1.0, 0.0]]
