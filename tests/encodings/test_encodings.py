"""Every encoding against its published formula, and every declaration (entry, relative, causal,
bounded) by measurement.
"""

import math

import pytest
import torch
from transformers.models.t5.modeling_t5 import T5Attention

from door import assert_refused
from ropewalk.attention import Attention
from ropewalk.encodings import ENCODINGS, Encoding, Sizes, make_encoding
from ropewalk.encodings.bias import alibi_slopes, t5_bucket
from ropewalk.errors import RopeError

HEADS, HEAD_DIM, MODEL_DIM, LENGTH, SEQ = 3, 10, 20, 12, 7


def make(name):
    torch.manual_seed(1)
    encoding = make_encoding(
        name, num_heads=HEADS, head_dim=HEAD_DIM, model_dim=MODEL_DIM, length=LENGTH
    ).double()
    for parameter in encoding.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return encoding


def at(encoding, positions):
    """Return positions for as many axes as the encoding has, the same on each axis."""
    axes = {"ImageRotary": 2, "VideoRotary": 3}.get(type(encoding).__name__, 1)
    return positions if axes == 1 else positions.view(1, 1, -1).expand(axes, 1, -1)


def scores(encoding, positions):
    """Return the attention scores of fixed tokens at these positions: with the encoding's change of
    the embeddings, of q and k, and its bias.
    """
    torch.manual_seed(2)
    x = torch.randn(1, SEQ, MODEL_DIM, dtype=torch.float64)
    to_q, to_k = (torch.randn(MODEL_DIM, HEADS * HEAD_DIM, dtype=torch.float64) for _ in range(2))
    where = at(encoding, positions)
    x = encoding.embed(x, where)
    q, k = ((x @ w).view(1, SEQ, HEADS, HEAD_DIM).transpose(1, 2) for w in (to_q, to_k))
    q, k = encoding.rotate(q, where, key=False), encoding.rotate(k, where, key=True)
    found = q @ k.transpose(-1, -2)
    bias = encoding.bias(q, positions, positions)
    return found if bias is None else found + bias


@pytest.mark.parametrize("name", ENCODINGS)
def test_relative_means_that_a_shift_of_all_positions_changes_nothing(name):
    encoding, positions = make(name), torch.tensor([0, 1, 3, 4, 5, 7, 8])
    change = (
        (scores(encoding, positions + 3) - scores(encoding, positions)).tril().abs().max().item()
    )
    assert (change < 1e-9) == encoding.relative, change


@pytest.mark.parametrize("name", ENCODINGS)
def test_each_encoding_acts_at_its_declared_entry_point_and_only_none_ignores_order(name):
    encoding = make(name)
    first, second = torch.tensor([0, 1, 2, 3, 4, 5, 6]), torch.tensor([0, 2, 1, 3, 4, 6, 5])
    x = torch.randn(1, SEQ, MODEL_DIM, dtype=torch.float64)
    q = torch.randn(1, HEADS, SEQ, HEAD_DIM, dtype=torch.float64)
    used = {
        "input": not torch.equal(encoding.embed(x, at(encoding, second)), x),
        "qk": not torch.equal(encoding.rotate(q, at(encoding, second), key=False), q),
        "scores": encoding.bias(q, second, second) is not None,
    }
    entries = {entry for entry, is_used in used.items() if is_used}
    both = {"qk", "scores"} if name in ("rope_alibi", "rope_bias") else {encoding.entry}
    assert entries == (set() if name == "none" else both)
    moved = not torch.allclose(scores(encoding, first), scores(encoding, second))
    assert moved == (name != "none")


@pytest.mark.parametrize("name", ENCODINGS)
def test_linear_is_declared_for_encodings_without_a_bias_except_pope_and_fope(name):
    """Linear attention needs scores of rank head_dim; a bias on the scores is no inner product of q
    and k.
    """
    encoding = make(name)
    is_product = (
        encoding.bias(
            torch.randn(1, HEADS, SEQ, HEAD_DIM).double(), torch.arange(SEQ), torch.arange(SEQ)
        )
        is None
    )
    assert encoding.linear == (is_product and name not in ("pope", "fope"))
    assert encoding.linear == (encoding.why_not("linear") is None)


@pytest.mark.parametrize("name", ENCODINGS)
def test_bounded_encodings_refuse_positions_beyond_the_trained_length(name):
    encoding, x = make(name), torch.randn(1, 1, MODEL_DIM, dtype=torch.float64)
    far = at(encoding, torch.tensor([LENGTH]))
    if not encoding.bounded:
        encoding.embed(x, far)
        return
    with pytest.raises(RopeError, match="trained"):
        encoding.embed(x, far)


@pytest.mark.parametrize("name", [name for name in ENCODINGS if make(name).causal_only])
def test_causal_only_encodings_give_later_keys_one_bias_or_growing_magnitudes(name):
    encoding = make(name)
    if encoding.entry == "qk":  # xPos: magnitudes explode instead of decaying ahead of the query
        size = lambda p: encoding.rotate(
            torch.ones(1, 1, 1, HEAD_DIM, dtype=torch.float64), torch.tensor([p]), key=True
        ).norm()
        assert size(4000) > 2 * size(0)
        return
    q, where = torch.randn(1, HEADS, 1, HEAD_DIM, dtype=torch.float64), torch.tensor([3])
    ahead = [encoding.bias(q, where, torch.tensor([3 + d])) for d in (1, 2, 5)]
    assert all(torch.equal(b, ahead[0]) for b in ahead)  # every later key looks like distance 0


@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("rows", [False, True])
def test_positions_of_each_row_give_the_bias_of_that_row(name, rows):
    encoding = make(name)
    q = torch.randn(2, HEADS, SEQ, HEAD_DIM, dtype=torch.float64)
    starts = torch.tensor([0, 3])
    per_row = torch.arange(SEQ) + starts[:, None]
    together = encoding.bias(q, per_row, per_row)
    if together is None:
        return
    for b in range(2):
        alone = encoding.bias(q[b : b + 1], per_row[b], per_row[b])
        torch.testing.assert_close(
            together[b].expand(HEADS, SEQ, SEQ), alone.expand(1, HEADS, SEQ, SEQ)[0]
        )


def test_alibi_slopes_and_bias_equal_the_published_numbers():
    assert alibi_slopes(8).tolist() == [2.0**-i for i in range(1, 9)]
    assert alibi_slopes(4).tolist() == [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8]
    torch.testing.assert_close(
        alibi_slopes(6),
        torch.tensor([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3]).double(),
    )
    bias = make("alibi").bias(torch.zeros(1), torch.tensor([5]), torch.tensor([2, 9]))
    torch.testing.assert_close(
        bias[0, 0].double(),
        -alibi_slopes(HEADS)[0] * torch.tensor([3.0, 4.0]).double(),
        rtol=1e-6,
        atol=0,
    )


@pytest.mark.parametrize("bidirectional", [True, False])
def test_t5_buckets_equal_transformers(bidirectional):
    distance = torch.arange(-300, 300)
    theirs = T5Attention._relative_position_bucket(
        -distance, bidirectional, num_buckets=32, max_distance=128
    )
    assert torch.equal(t5_bucket(distance, 32, 128, bidirectional), theirs)


def test_kerple_equals_its_formula():
    log, power = make("kerple_log"), make("kerple_power")
    where, key = torch.tensor([9]), torch.tensor([9, 7, 4])
    softplus, sigmoid = (lambda t: math.log1p(math.exp(t))), (lambda t: 1 / (1 + math.exp(-t)))
    for h in range(HEADS):
        scale, shape = softplus(log.raw_scale[h].item()), softplus(log.raw_shape[h].item())
        expected = [-scale * math.log(1 + shape * d) for d in (0, 2, 5)]
        assert log.bias(torch.zeros(1), where, key)[h, 0].tolist() == pytest.approx(
            expected, abs=1e-6
        )
        scale, shape = softplus(power.raw_scale[h].item()), 2 * sigmoid(power.raw_shape[h].item())
        expected = [0.0] + [-scale * d**shape for d in (2, 5)]
        assert power.bias(torch.zeros(1), where, key)[h, 0].tolist() == pytest.approx(
            expected, abs=1e-5
        )
    power.bias(torch.zeros(1), where, key).sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in power.parameters())


def test_fire_equals_its_formula():
    fire = make("fire")
    rate = math.log1p(math.exp(fire.raw_rate.item()))
    threshold = LENGTH / (1 + math.exp(-fire.raw_threshold.item()))
    for query in (2, 11):
        share = math.log(1 + rate * 2) / math.log(1 + rate * max(threshold, query))
        expected = fire.out(fire.hidden(torch.tensor([share], dtype=torch.float64)).relu())
        found = fire.bias(torch.zeros(1), torch.tensor([query]), torch.tensor([query - 2]))
        torch.testing.assert_close(found[:, 0, 0], expected, rtol=1e-5, atol=1e-6)


def nezha_by_formula(query: int, key: int, farthest: int, offset: int) -> torch.Tensor:
    """a_ij[2k] = sin((j - i + offset) / 10000^(2k/d)), a_ij[2k + 1] the cosine; i the query, j the
    key, j - i clipped.

    NEZHA's paper (arXiv 1909.00204) has no offset; its authors' code numbers the clipped distances
    from 0.
    """
    distance = min(max(key - query, -farthest), farthest) + offset
    angles = [distance / 10_000 ** (2 * i / HEAD_DIM) for i in range(HEAD_DIM // 2)]
    return torch.tensor(
        [f(angle) for angle in angles for f in (math.sin, math.cos)], dtype=torch.float64
    )


@pytest.mark.parametrize(("query", "key"), [(10, 7), (10, 10), (7, 10), (10, 40), (10, 0), (0, 10)])
def test_nezha_vectors_are_sinusoids_of_key_minus_query(query, key):
    nezha = make("nezha")
    nezha.farthest = 4
    positions = torch.tensor([query]), torch.tensor([key])
    vector = nezha_by_formula(query, key, 4, offset=4)
    q = torch.randn(1, 1, 1, HEAD_DIM, dtype=torch.float64)
    expected = (q[0, 0, 0] * vector).sum() / math.sqrt(HEAD_DIM)
    torch.testing.assert_close(nezha.bias(q, *positions)[0, 0, 0, 0], expected)
    weight = torch.full((1, 1, 1, 1), 0.3, dtype=torch.float64)
    torch.testing.assert_close(nezha.value_bias(weight, *positions)[0, 0, 0], 0.3 * vector)
    # the offset of the code rotates every pair of the paper's vector by the same angle
    angles = 4 * 10_000.0 ** (-torch.arange(0, HEAD_DIM, 2, dtype=torch.float64) / HEAD_DIM)
    sin, cos = nezha_by_formula(query, key, 4, offset=0).unflatten(0, (-1, 2)).unbind(-1)
    rotated = (sin * angles.cos() + cos * angles.sin(), cos * angles.cos() - sin * angles.sin())
    torch.testing.assert_close(torch.stack(rotated, -1).flatten(), vector)


def test_sinusoidal_equals_its_formula_and_learned_looks_up_its_table():
    zero = torch.zeros(1, 1, MODEL_DIM, dtype=torch.float64)
    found = make("sinusoidal").embed(zero, torch.tensor([3]))[0, 0]
    assert found[:2].tolist() == pytest.approx([math.sin(3), math.cos(3)])
    assert found[2].item() == pytest.approx(math.sin(3 * 10_000 ** (-2 / MODEL_DIM)))
    learned = make("learned")
    assert torch.equal(learned.embed(zero, torch.tensor([3]))[0, 0], learned.table.weight[3])


def test_rows_with_different_positions_get_their_own_input_vectors():
    positions = torch.tensor([[0, 5, 11], [7, 2, 3]])
    zero = torch.zeros(2, 3, MODEL_DIM, dtype=torch.float64)
    found = make("sinusoidal").embed(zero, positions)
    for row, token in ((0, 1), (1, 0), (1, 2)):
        angles = [
            positions[row, token].item() * 10_000 ** (-2 * i / MODEL_DIM)
            for i in range(MODEL_DIM // 2)
        ]
        assert found[row, token, 0::2].tolist() == pytest.approx(
            [math.sin(angle) for angle in angles]
        )
        assert found[row, token, 1::2].tolist() == pytest.approx(
            [math.cos(angle) for angle in angles]
        )
    learned = make("learned")
    assert torch.equal(learned.embed(zero, positions)[1, 0], learned.table.weight[7])


def test_learned_vectors_start_with_a_standard_deviation_of_0_02():
    table = make_encoding(
        "learned", num_heads=2, head_dim=32, model_dim=64, length=1000
    ).table.weight
    assert table.std().item() == pytest.approx(0.02, rel=0.02)


def test_relative_bias_reads_the_distance_and_clips_it():
    encoding = make("relative_bias")
    found = encoding.bias(torch.zeros(1), torch.tensor([0, 30]), torch.tensor([2, 0]))
    assert torch.equal(found[:, 0, 0], encoding.table[:, -2 + LENGTH - 1])
    assert torch.equal(found[:, 1, 1], encoding.table[:, -1])


def test_an_unknown_encoding_name_is_refused_with_the_known_ones():
    with pytest.raises(RopeError, match="rope_alibi"):
        make_encoding("rotary", num_heads=1, head_dim=2)


def test_an_encoding_for_embeddings_without_dimensions_is_refused():
    with pytest.raises(RopeError, match="model_dim"):
        make_encoding("rope", num_heads=1, head_dim=2, model_dim=0)


def test_every_encoding_has_an_entry_point_and_a_docstring():
    for encoding in ENCODINGS.values():
        assert encoding.entry in ("none", "input", "qk", "scores")
        assert encoding.__doc__
        assert issubclass(encoding, Encoding)


@pytest.mark.parametrize(("name", "bidirectional"), [("t5", True), ("t5_causal", False)])
def test_t5_adds_the_learned_bias_of_the_bucket_that_transformers_computes(name, bidirectional):
    """32 buckets up to distance 128, as in T5's own configs."""
    encoding = make(name)
    keys = torch.arange(0, 400)
    theirs = T5Attention._relative_position_bucket(
        keys - 200, bidirectional, num_buckets=32, max_distance=128
    )
    found = encoding.bias(torch.zeros(1), torch.tensor([200]), keys)
    assert torch.equal(found[:, 0], encoding.table[theirs].T)


@pytest.mark.parametrize(("name", "few", "near"), [("t5", 3, 2), ("t5_causal", 1, 4)])
def test_t5_refuses_buckets_that_hold_no_distance(name, few, near):
    """With 8 buckets, each distance below 2 (below 4 if causal) has its own bucket, so `farthest`
    must be larger.
    """
    sizes = Sizes(num_heads=2, head_dim=4, model_dim=8, length=16)
    for field, options in (
        ("buckets", {"buckets": few}),
        ("farthest", {"buckets": 8, "farthest": near}),
    ):
        with pytest.raises(RopeError) as caught:
            ENCODINGS[name](sizes, **options)
        assert caught.value.field == field
    for options in ({"buckets": few + 1, "farthest": 9}, {"buckets": 8, "farthest": near + 1}):
        encoding = ENCODINGS[name](sizes, **options)
        bucket = t5_bucket(
            torch.arange(-9000, 9000), encoding.buckets, encoding.farthest, name == "t5"
        )
        assert bucket.min() == 0
        assert bucket.max() < encoding.buckets


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("sinusoidal", "theta", 0.0),
        ("sinusoidal", "theta", -10_000.0),
        ("sinusoidal", "theta", math.inf),
        ("nezha", "farthest", -3),
        ("nezha", "farthest", 0),
        ("fire", "width", 0),
        ("fope", "gain", -0.1),
        ("fope", "gain", math.nan),
    ],
)
def test_bad_options_of_an_encoding_are_refused(name, field, value):
    sizes = Sizes(num_heads=2, head_dim=4, model_dim=8, length=16)
    assert_refused(field, lambda: ENCODINGS[name](sizes, **{field: value}))


@pytest.mark.parametrize("field", ["num_heads", "head_dim", "model_dim", "length"])
def test_sizes_below_one_are_refused(field):
    sizes = {"num_heads": 2, "head_dim": 4, "model_dim": 8, "length": 16}
    assert_refused(field, lambda: Sizes(**sizes | {field: 0}))
    assert_refused(field, lambda: Sizes(**sizes | {field: -3}))


@pytest.mark.parametrize("name", ["learned", "t5", "t5_causal", "relative_bias", "rope_bias"])
def test_learned_tables_start_small(name):
    """A deviation of 0.02, as BERT and T5 start: larger ones would drown the tokens."""
    torch.manual_seed(0)
    encoding = make_encoding(name, num_heads=32, head_dim=4, length=64)
    (table,) = encoding.parameters()
    assert table.std().item() == pytest.approx(0.02, rel=0.1)
    assert abs(table.mean().item()) < 0.002


def test_nezha_refuses_another_scale_than_its_own():
    """Its bias is scaled by 1 / sqrt(head_dim), so scores with another scale would not be scale * q
    (k + vector).
    """
    assert_refused("scale", lambda: Attention(16, 2, encoding="nezha", scale=0.2))
    x = torch.randn(1, 5, 16)
    layer, same = (
        Attention(16, 2, encoding="nezha"),
        Attention(16, 2, encoding="nezha", scale=1 / math.sqrt(8)),
    )
    same.load_state_dict(layer.state_dict())
    assert torch.equal(layer(x).out, same(x).out)


def test_learned_vectors_exist_for_the_trained_positions_alone():
    encoding, x = make("learned"), torch.zeros(1, 2, MODEL_DIM, dtype=torch.float64)
    for wrong in ([-1, 0], [0, LENGTH], [0.0, 1.0], [False, True]):
        assert_refused("positions", lambda wrong=wrong: encoding.embed(x, torch.tensor(wrong)))
    for dtype in (torch.int64, torch.uint8):
        found = encoding.embed(x, torch.tensor([0, LENGTH - 1], dtype=dtype))
        assert torch.equal(found[0], encoding.table.weight[[0, LENGTH - 1]])


def test_sinusoidal_angles_are_exact_far_away():
    position, pairs = 1_000_003, MODEL_DIM // 2
    zero = torch.zeros(1, 1, MODEL_DIM, dtype=torch.float64)
    found = make("sinusoidal").embed(zero, torch.tensor([position]))[0, 0].tolist()
    angles = [position * 10_000 ** (-i / pairs) for i in range(pairs)]
    expected = [part(angle) for angle in angles for part in (math.sin, math.cos)]
    assert found == pytest.approx(expected, abs=1e-9)
