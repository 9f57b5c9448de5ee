"""Linear attention against its O(n^2) definition; the state against the whole pass; linear growth
by counting.
"""

import math

import pytest
import torch
from torch.nn.functional import elu, normalize, relu

import ropewalk as rw
from door import assert_refused
from ropewalk.attention import LinearAttention, linear, linear_attention
from ropewalk.attention.linear_decay import decaying_linear_attention
from ropewalk.attention.linear_sums import (
    State,
    attend,
    causal_sums,
    divide,
    elu_plus_one,
    make_features,
)
from ropewalk.errors import RopeError

BATCH, HEADS, SEQ, HEAD_DIM, VALUE_DIM = 2, 3, 37, 10, 4
PHI = {"elu": lambda x: elu(x) + 1, "relu": relu}


@pytest.fixture
def rope():
    return rw.Rope(rw.RopeSpec(head_dim=HEAD_DIM))


def draw(dtype=torch.float64, seq=SEQ, **options):
    sizes = (HEAD_DIM, HEAD_DIM, VALUE_DIM)
    return [torch.randn(BATCH, HEADS, seq, size, dtype=dtype, **options) for size in sizes]


def rotated_by_definition(x, positions):
    """RoPE as a complex product."""
    half = x.shape[-1] // 2
    radians = 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    rotated = torch.complex(x[..., :half], x[..., half:]) * torch.polar(
        torch.ones(()).double(), positions[..., None] * radians
    )
    return torch.cat((rotated.real, rotated.imag), dim=-1)


def by_definition(
    q, k, v, *, form="numerator", phi="elu", scale=1.0, causal=True, padding=None, documents=None
):
    seq = q.shape[-2]
    where = torch.arange(seq)
    if form != "cosine":
        q, k = PHI[phi](q), PHI[phi](k)
        top, bottom = rotated_by_definition(q, where) @ rotated_by_definition(k, where).mT, q @ k.mT
        bottom = top if form == "rotated" else bottom
    else:
        top = bottom = 1 + scale * (
            rotated_by_definition(normalize(q, dim=-1), where)
            @ rotated_by_definition(normalize(k, dim=-1), where).mT
        )
    allowed = torch.ones(seq, seq).tril() if causal else torch.ones(seq, seq)
    allowed = allowed.expand(q.shape[0], 1, seq, seq)
    if padding is not None:
        allowed = allowed * padding[:, None, None, :]
    if documents is not None:
        allowed = allowed * (documents[:, None, :, None] == documents[:, None, None, :])
    total = (bottom * allowed).sum(-1, keepdim=True)
    some = total.abs() > 1e-6  # a query whose features are all zero sees nothing
    return torch.where(some, ((top * allowed) @ v) / torch.where(some, total, 1.0), 0.0)


@pytest.mark.parametrize("eps", [1e-3, 1e-5])
def test_a_sum_of_weights_up_to_eps_counts_as_no_keys(rope, eps):
    """Features are so small that only after some tokens of a row the sum of the weights exceeds eps."""
    q, k, v = (0.01 * q.abs() if i < 2 else q for i, q in enumerate(draw()))
    total = (q @ k.mT).tril().sum(-1)
    assert 0 < (total <= 1e-3).sum() < total.numel()
    out, _ = linear_attention(q, k, v, rope, phi="relu", eps=eps)
    where = torch.arange(SEQ)
    top = (rotated_by_definition(q, where) @ rotated_by_definition(k, where).mT).tril() @ v
    expected = torch.where((total > eps)[..., None], top / total[..., None], 0.0)
    torch.testing.assert_close(out, expected, atol=1e-10, rtol=1e-8)


@pytest.mark.parametrize("chunk", [1, 5, 64])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("form", "phi"),
    [("numerator", "elu"), ("numerator", "relu"), ("cosine", "elu"), ("rotated", "elu")],
)
def test_linear_attention_and_its_gradients_equal_the_quadratic_definition(
    rope, form, phi, causal, chunk
):
    q, k, v = draw(requires_grad=True)
    options = {
        "form": form,
        "phi": phi,
        "causal": causal,
        "scale": 0.7 if form == "cosine" else 1.0,
    }
    expected = by_definition(q, k, v, **options)
    got, _ = linear_attention(q, k, v, rope, chunk=chunk, **options)
    # a sum of rotated products may be near 0, and its rounding error is then a larger share
    loose = 1e4 if form == "rotated" else 1
    torch.testing.assert_close(got, expected, atol=1e-12, rtol=loose * 1e-9)
    for a, b in zip(
        *(torch.autograd.grad(o.square().sum(), (q, k, v)) for o in (got, expected)), strict=True
    ):
        torch.testing.assert_close(a, b, atol=loose * 1e-10, rtol=loose * 1e-8)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("form", ["numerator", "cosine"])
def test_packed_documents_and_padding_equal_the_definition(rope, form, causal):
    q, k, v = draw()
    documents = torch.tensor([[0] * 3 + [1] * 20 + [2] * 1 + [3] * 13, [7] * 37])
    how = {"form": form, "causal": causal}
    got, _ = linear_attention(q, k, v, rope, documents=documents, chunk=8, **how)
    torch.testing.assert_close(
        got, by_definition(q, k, v, documents=documents, **how), atol=1e-12, rtol=1e-9
    )
    padding = torch.rand(BATCH, SEQ) > 0.3
    for packed in (None, documents):
        got, _ = linear_attention(
            q, k, v, rope, torch.arange(SEQ), padding=padding, documents=packed, chunk=8, **how
        )
        torch.testing.assert_close(
            got,
            by_definition(q, k, v, padding=padding, documents=packed, **how),
            atol=1e-12,
            rtol=1e-9,
        )


@pytest.mark.parametrize("form", ["numerator", "cosine", "rotated"])
def test_continuing_from_the_state_equals_the_whole_pass(rope, form):
    q, k, v = draw()
    whole, last = linear_attention(q, k, v, rope, form=form)
    pieces, state = [], None
    for part in [20, 1, 1, 15]:
        start = 0 if state is None else int(state.count[0])
        piece, state = linear_attention(
            *(t[:, :, start : start + part] for t in (q, k, v)), rope, form=form, state=state
        )
        pieces.append(piece)
    torch.testing.assert_close(torch.cat(pieces, dim=2), whole, atol=1e-12, rtol=1e-9)
    torch.testing.assert_close(state.kv_sum, last.kv_sum, atol=1e-10, rtol=1e-9)
    assert state.kv_sum.numel() == last.kv_sum.numel() <= BATCH * HEADS * (HEAD_DIM + 1) * VALUE_DIM


def test_cosine_weights_lie_between_zero_and_two(rope):
    q, k, _ = draw()
    identity = torch.eye(SEQ, dtype=torch.float64).expand(BATCH, HEADS, SEQ, SEQ)
    weights, _ = linear_attention(q, k, identity, rope, form="cosine", causal=False)
    shares = weights * SEQ  # a weight is (1 + cos) divided by the sum of these over the keys
    assert weights.min() >= 0
    torch.testing.assert_close(weights.sum(-1), torch.ones(BATCH, HEADS, SEQ, dtype=torch.float64))
    assert shares.max() < 2 * SEQ / (SEQ - 1 - SEQ * 0.9)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("scale", [1.0, 0.25, 0.0])
def test_a_layer_with_a_fixed_scale_equals_its_definition(scale, causal):
    """With scale 1 the weights are 1 + cos, in [0, 2]; nothing about them is learned."""
    layer = LinearAttention(
        12, 2, form="cosine", scale=scale, causal=causal, out_norm=False
    ).double()
    assert not [name for name, _ in layer.named_parameters() if "scale" in name]
    x = torch.randn(BATCH, SEQ, 12, dtype=torch.float64)
    q, k, v = (
        p(x).unflatten(-1, (2, 6)).transpose(1, 2)
        for p in (layer.q_proj, layer.k_proj, layer.v_proj)
    )
    expected = layer.o_proj(
        by_definition(q, k, v, form="cosine", scale=scale, causal=causal)
        .transpose(1, 2)
        .flatten(-2)
    )
    torch.testing.assert_close(layer(x)[0], expected, atol=1e-12, rtol=1e-9)
    steps, state = [], None
    for i in range(SEQ if causal else 0):
        step, state = layer(x[:, i : i + 1], state=state)
        steps.append(step)
    if causal:
        torch.testing.assert_close(torch.cat(steps, dim=1), expected, atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    "shape", [(), (1,), (HEADS,), (HEADS, 1, 1), (1, HEADS, 1, 1), (BATCH, HEADS, 1, 1)], ids=str
)
def test_a_scale_of_each_head_multiplies_the_cosines_of_that_head(rope, shape, causal):
    q, k, v = draw()
    scale = torch.rand(shape, dtype=torch.float64)
    got, _ = linear_attention(q, k, v, rope, form="cosine", scale=scale, causal=causal)
    by_head = scale.reshape(shape if len(shape) == 4 else (1, -1, 1, 1))
    torch.testing.assert_close(
        got,
        by_definition(q, k, v, form="cosine", scale=by_head, causal=causal),
        atol=1e-12,
        rtol=1e-9,
    )


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"scale": 1.5, "form": "cosine"}, "<= 1"),
        ({"scale": -0.1, "form": "cosine"}, ">= 0"),
        ({"scale": 1.0}, "must be None for the form 'numerator'"),
    ],
)
def test_a_scale_that_has_no_meaning_is_refused(options, rule):
    with pytest.raises(RopeError, match=f"scale: .*{rule}"):
        LinearAttention(12, 2, **options)


def test_float32_stays_accurate_over_a_long_sequence(rope, full):
    seq = 262_144 if full else 16_384
    q, k, v = (t[:1, :1] for t in draw(torch.float32, seq))
    exact, _ = linear_attention(q.double(), k.double(), v.double(), rope)
    got, state = linear_attention(q, k, v, rope)
    assert state.kv_sum.dtype == torch.float32
    assert (got - exact).abs().max() < 1e-4


def test_twice_the_tokens_take_twice_the_operations():
    """Counted, not timed: doubling the tokens doubles the floating-point operations."""
    from torch.utils.flop_counter import FlopCounterMode

    def flops(seq):
        q, k, v = (torch.randn(1, 1, seq, 16) for _ in range(3))
        with FlopCounterMode(display=False) as counter:
            causal_sums(q, k, v, torch.zeros(1, 1, 16, 16), 64)
        return counter.get_total_flops()

    assert flops(4096) == 2 * flops(2048) > 0


@pytest.mark.parametrize("form", ["numerator", "cosine"])
@pytest.mark.parametrize("causal", [True, False])
def test_the_layer_has_finite_gradients_and_continues_from_its_state(form, causal):
    layer = LinearAttention(12, 3, 4, form=form, causal=causal)
    x = torch.randn(2, 9, 12)
    out, _ = layer(x)
    out.square().mean().backward()
    assert out.shape == x.shape
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in layer.parameters())
    if causal:
        first, state = layer(x[:, :5])
        second, _ = layer(x[:, 5:], state=state)
        torch.testing.assert_close(torch.cat((first, second), dim=1), out, atol=1e-5, rtol=1e-4)


def test_bad_forms_documents_with_a_state_and_shared_heads_are_refused(rope):
    q, k, v = draw()
    with pytest.raises(RopeError, match="numerator, cosine"):
        linear_attention(q, k, v, rope, form="cos")
    _, state = linear_attention(q, k, v, rope)
    with pytest.raises(RopeError, match="documents"):
        linear_attention(
            q, k, v, rope, state=state, documents=torch.zeros(BATCH, SEQ, dtype=torch.int64)
        )
    with pytest.raises(RopeError, match="repeat shared heads"):
        linear_attention(q, k[:, :1], v[:, :1], rope)


TOKENS = (BATCH, SEQ)


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("padding", {"padding": torch.ones(SEQ, dtype=torch.bool)}),
        ("padding", {"padding": torch.ones(1, SEQ, dtype=torch.bool)}),
        ("padding", {"padding": torch.ones(TOKENS, dtype=torch.int64)}),
        ("documents", {"documents": torch.zeros(SEQ, dtype=torch.int64)}),
        ("documents", {"documents": torch.zeros(TOKENS)}),
        ("backend", {"backend": "cuda"}),
        ("scale", {"scale": 0.5}),
        ("scale", {"scale": torch.ones(())}),
        *(
            ("scale", {"form": "cosine", "scale": torch.ones(shape)})
            for shape in (
                (HEAD_DIM,),
                (HEADS + 1, 1, 1),
                (HEADS, 1),
                (HEADS, 1, HEAD_DIM),
                (BATCH + 1, HEADS, 1, 1),
                (1, 1, 1, 1, 1),
            )
        ),
    ],
)
def test_masks_of_another_shape_or_dtype_and_unknown_backends_are_refused(rope, field, options):
    assert_refused(field, lambda: linear_attention(*draw(), rope, **options))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("form", ["numerator", "cosine"])
def test_each_document_gets_what_its_real_tokens_get_alone(rope, form, causal):
    """Without positions they count the real tokens of a document, wherever padding lies."""
    q, k, v = draw()
    whole, halves = torch.zeros(BATCH, SEQ, dtype=torch.int64), torch.arange(SEQ) % 2
    real = torch.rand(BATCH, SEQ) > 0.3
    for documents in (None, halves.expand(BATCH, SEQ)):
        got, _ = linear_attention(
            q, k, v, rope, padding=real, documents=documents, form=form, causal=causal, chunk=8
        )
        of_token = whole if documents is None else documents
        for row in range(BATCH):
            for document in of_token[row].unique():
                own = real[row] & (of_token[row] == document)
                alone = by_definition(
                    *(x[row : row + 1, :, own] for x in (q, k, v)), form=form, causal=causal
                )
                torch.testing.assert_close(got[row : row + 1, :, own], alone, atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize("form", ["numerator", "cosine"])
def test_the_state_of_packed_rows_continues_the_document_of_the_last_real_token(rope, form):
    q, k, v = draw()
    documents = torch.tensor([[0] * 20 + [1] * 17, [2] * 30 + [5] * 7])
    real = torch.rand(BATCH, SEQ) > 0.3
    real[0, 32:34] = False  # the last document ends in padding
    real[1, 30:] = False  # and here has no real token
    first, rest = (tuple(x[:, :, part] for x in (q, k, v)) for part in (slice(34), slice(34, None)))
    _, state = linear_attention(
        *first, rope, padding=real[:, :34], documents=documents[:, :34], form=form
    )
    got, _ = linear_attention(*rest, rope, form=form, state=state)
    for row, document in enumerate((1, 2)):
        own = real[row, :34] & (documents[row, :34] == document)
        kept = torch.cat((own, torch.ones(3, dtype=torch.bool)))
        assert state.count[row] == own.sum()
        alone = by_definition(*(x[row : row + 1, :, kept] for x in (q, k, v)), form=form)
        torch.testing.assert_close(got[row : row + 1], alone[:, :, -3:], atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize("causal", [True, False])
def test_a_state_of_other_rows_or_heads_is_refused(rope, causal):
    q, k, v = draw()
    _, state = linear_attention(q, k, v, rope, causal=causal)
    one_row = State(*(t[:1] for t in state))
    one_head = State(state.kv_sum[:, :1], state.k_sum[:, :1], state.count)
    for other in (one_row, one_head):
        assert_refused(
            "state", lambda other=other: linear_attention(q, k, v, rope, state=other, causal=causal)
        )
    assert_refused(
        "state", lambda: linear_attention(q, k, v, rope, state=state, causal=causal, form="cosine")
    )


@pytest.mark.parametrize("form", ["numerator", "cosine"])
def test_left_padded_rows_equal_unpadded_ones_in_prefill_and_decode(form):
    layer = LinearAttention(12, 3, 4, form=form).double()
    x, step = torch.randn(1, 5, 12, dtype=torch.float64), torch.randn(1, 1, 12, dtype=torch.float64)
    padded = torch.cat((torch.randn(1, 2, 12, dtype=torch.float64), x), dim=1)
    alone, alone_state = layer(x)
    got, state = layer(padded, padding=torch.tensor([[False] * 2 + [True] * 5]))
    torch.testing.assert_close(got[:, 2:], alone, atol=1e-12, rtol=1e-9)
    torch.testing.assert_close(
        layer(step, state=state)[0], layer(step, state=alone_state)[0], atol=1e-12, rtol=1e-9
    )


def test_a_state_refuses_frequencies_that_follow_the_length():
    spec = rw.RopeSpec(head_dim=4, scaling=rw.frequencies.Dynamic(factor=2.0, original_length=3))
    layer = LinearAttention(12, 3, spec=spec)
    _, state = layer(torch.randn(1, 5, 12))
    with pytest.raises(RopeError, match="depends on the length"):
        layer(torch.randn(1, 1, 12), state=state)


@pytest.mark.parametrize(
    ("options", "field"),
    [({"form": "cos"}, "form"), ({"phi": "exp"}, "phi"), ({"num_heads": 5}, "head_dim")],
)
def test_bad_options_are_refused_by_name(options, field):
    with pytest.raises(RopeError) as caught:
        LinearAttention(**({"model_dim": 12, "num_heads": 3} | options))
    assert caught.value.field == field


@pytest.mark.parametrize(
    "needed", [(True, False, True), (True, False, False), (False, True, False)], ids=str
)
def test_gradients_of_a_call_by_kernels_equal_the_definition(rope, monkeypatch, needed):
    """The kernels are replaced by plain torch; LoRA on q and v leaves k without a gradient."""

    def run(q, k, v, kv_sum, k_sum, scale, call):
        features = make_features(
            q, k, rw.Rope(call.spec), call.positions, call.real, "numerator", call.feature, 1.0
        )
        return attend(features, v, State(kv_sum, k_sum, call.positions), causal=True, eps=call.eps)

    monkeypatch.setattr("ropewalk.attention.linear.why_not_triton", lambda *_: None)
    monkeypatch.setattr("ropewalk.kernels.linear_attention.run", run)
    inputs = [t.requires_grad_(need) for t, need in zip(draw(), needed, strict=True)]
    wanted = [t for t in inputs if t.requires_grad]
    found = torch.autograd.grad(linear_attention(*inputs, rope)[0].square().sum(), wanted)
    expected = torch.autograd.grad(by_definition(*inputs).square().sum(), wanted)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_the_kernels_refuse_the_form_rotated(rope):
    q, k, v = draw(torch.float32)
    with pytest.raises(RopeError, match="backend"):
        linear_attention(q, k, v, rope, form="rotated", backend="triton")


def test_a_rotated_denominator_can_be_near_zero_and_the_plain_one_cannot(rope):
    """For some queries the outputs of the form "rotated" are then many times those of "numerator"."""
    torch.manual_seed(0)
    q, k, v = draw(seq=500)
    where, features = torch.arange(500), [PHI["elu"](x) for x in (q, k)]
    plain = (features[0] @ features[1].mT).tril().sum(-1)
    rotated = [rotated_by_definition(x, where) for x in features]
    sums = (rotated[0] @ rotated[1].mT).tril().sum(-1)
    assert float(plain.min()) > 0
    ratio = sums / plain
    assert float(ratio.abs().min()) < 0.2
    outs = [linear_attention(q, k, v, rope, form=form)[0] for form in ("numerator", "rotated")]
    torch.testing.assert_close(outs[1] * ratio[..., None], outs[0], atol=1e-9, rtol=1e-6)


@pytest.mark.parametrize("chunk", [1, 5, 64])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("rate", [0.0, 0.1, 3.0, "by head"])
def test_decaying_attention_equals_the_quadratic_definition(rate, causal, chunk):
    q, k, v = draw(requires_grad=True)
    rate = torch.tensor([0.01, 0.3, 2.0]).double() if rate == "by head" else rate
    got = decaying_linear_attention(q, k, v, rate, causal=causal, chunk=chunk)
    where = torch.arange(SEQ).double()
    rates = (
        rate if isinstance(rate, torch.Tensor) else torch.tensor([rate], dtype=torch.float64)
    ).view(-1, 1, 1)
    weights = (PHI["elu"](q) @ PHI["elu"](k).mT) * torch.exp(
        -rates * (where[:, None] - where).abs()
    )
    weights = weights.tril() if causal else weights
    expected = weights @ v / weights.sum(-1, keepdim=True)
    torch.testing.assert_close(got, expected, atol=1e-12, rtol=1e-9)
    for a, b in zip(
        *(torch.autograd.grad(o.square().sum(), (q, k, v)) for o in (got, expected)), strict=True
    ):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-8)


def test_decaying_attention_stays_finite_over_a_long_sequence():
    """exp(rate j) alone would overflow; only differences of positions are exponentiated."""
    q, k, v = draw(torch.float32, seq=5000)
    out = decaying_linear_attention(q, k, v, 1.0)
    assert bool(out.isfinite().all())
    assert float(out.abs().max()) <= float(v.abs().max()) * 1.001


@pytest.mark.parametrize("causal", [True, False])
def test_decaying_attention_of_no_tokens_is_empty(causal):
    q, k, v = draw(seq=0)
    assert decaying_linear_attention(q, k, v, 1.0, causal=causal).shape == v.shape


@pytest.mark.parametrize(
    ("rate", "field"), [(-0.1, "rate"), (float("nan"), "rate"), (torch.ones(HEADS + 1), "rate")]
)
def test_a_bad_decay_rate_is_refused(rate, field):
    with pytest.raises(RopeError, match=f"^{field}: "):
        decaying_linear_attention(*draw(), rate)


def test_a_learned_scale_begins_near_one():
    """sigmoid(3) = 0.953: a new layer weighs keys almost as 1 + cos does."""
    made = LinearAttention(8, 2, form="cosine")
    expected = [1 / (1 + math.exp(-3))] * 2
    assert torch.sigmoid(made.raw_scale).flatten().tolist() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("form", ["numerator", "cosine", "rotated"])
def test_bidirectional_attention_sees_the_tokens_of_its_state(rope, form):
    tokens, first = draw(), 20
    whole = by_definition(*tokens, form=form, causal=False)
    earlier, later = zip(*(x.split([first, SEQ - first], dim=-2) for x in tokens), strict=True)
    _, state = linear_attention(*earlier, rope, form=form, causal=False)
    out, _ = linear_attention(*later, rope, form=form, causal=False, state=state)
    torch.testing.assert_close(out, whole[..., first:, :])


def test_the_elu_feature_of_a_large_number_has_a_gradient(rope):
    # e^x of these numbers is infinite in float32
    q, k, v = ((100 * x).requires_grad_() for x in draw(torch.float32))
    linear_attention(q, k, v, rope)[0].sum().backward()
    x = torch.tensor([-200.0, -1.0, 2.0, 200.0], requires_grad=True)
    elu_plus_one(x).sum().backward()
    assert x.grad.tolist() == pytest.approx([0.0, math.exp(-1), 1.0, 1.0])
    assert all(each.grad.isfinite().all() for each in (q, k, v))


def test_a_layer_has_rms_norms_and_no_biases_unless_told():
    layer = LinearAttention(16, 2)
    projections = (layer.q_proj, layer.k_proj, layer.v_proj, layer.o_proj)
    assert [projection.bias for projection in projections] == [None] * 4
    assert isinstance(layer.norm, torch.nn.RMSNorm)
    assert (layer.norm.normalized_shape, layer.norm.eps) == ((8,), 1e-6)
    assert (layer.form, layer.phi, layer.causal, layer.chunk) == ("numerator", "elu", True, 128)
    assert layer.rope.spec == rw.RopeSpec(head_dim=8)
    told = LinearAttention(16, 2, bias=True, out_norm=False)
    assert told.o_proj.bias is not None
    assert isinstance(told.norm, torch.nn.Identity)


def test_the_learned_scale_of_a_layer_is_the_sigmoid_of_three_at_first(monkeypatch):
    used = []
    computed = linear.linear_attention

    def watched(*given, **named):
        used.append((named["scale"], named["chunk"], named["causal"], named["form"]))
        return computed(*given, **named)

    monkeypatch.setattr(linear, "linear_attention", watched)
    x = torch.randn(1, 5, 16)
    LinearAttention(16, 2, form="cosine", chunk=3, causal=False)(x)
    LinearAttention(16, 2, form="cosine", scale=0.25)(x)
    LinearAttention(16, 2, chunk=2)(x)
    (learned, *first), second, third = used
    assert learned.flatten().tolist() == pytest.approx([1 / (1 + math.exp(-3))] * 2)
    assert first == [3, False, "cosine"]
    assert second == (0.25, 128, True, "cosine")
    assert third == (1.0, 2, True, "numerator")


@pytest.mark.parametrize(("size", "kept"), [(9e-4, True), (2e-6, True), (5e-7, False)])
def test_an_output_is_zero_only_where_its_denominator_is_at_most_a_millionth(size, kept):
    """There is one key, of weight `size`: the output is its value, or 0."""
    q, k = torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 1, 2)
    q[..., 0], k[..., 0] = size, 1
    v = torch.full((1, 1, 1, 3), 7.0)
    rope = linear.identity_rope(2)
    out, _ = linear_attention(q, k, v, rope, phi="relu")
    assert out.flatten().tolist() == pytest.approx([7.0 if kept else 0.0] * 3)
    decayed = decaying_linear_attention(q, k, v, 0.5, phi="relu")
    assert decayed.flatten().tolist() == pytest.approx([7.0 if kept else 0.0] * 3)


def test_identity_rope_rotates_nothing_at_any_position():
    x = torch.randn(1, 1, 4, 6, dtype=torch.float64)
    places = torch.tensor([0, 1, 10**9, 2**60])
    assert torch.equal(linear.identity_rope(6).rotate(x, places), x)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_negative_denominator_counts_as_much_as_a_positive_one(sign):
    numerator, denominator = torch.tensor([6.0, 6.0, 6.0]), torch.tensor([2.0, 1e-7, 1e-5]) * sign
    found = divide(numerator, denominator, 1e-6)
    assert found.tolist() == pytest.approx([3 * sign, 0, 6e5 * sign])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("form", ["numerator", "cosine", "rotated"])
def test_numbers_of_16_bits_are_summed_in_float32(rope, form, dtype):
    q, k, v = (t.to(dtype) for t in draw(torch.float32))
    out, state = linear_attention(q, k, v, rope, form=form)
    wide, _ = linear_attention(*(t.double() for t in (q, k, v)), rope, form=form)
    assert out.dtype == dtype
    assert {state.kv_sum.dtype, state.k_sum.dtype} == {torch.float32}
    # the result is rounded once; "rotated" is left out because its denominator may be near 0
    features = make_features(q, k, rope, torch.arange(SEQ), None, form, "elu", 1.0)
    assert {part.dtype for part in features} == {torch.float32}
    if form != "rotated":
        torch.testing.assert_close(out.double(), wide, atol=1e-3, rtol=2**-7)


@pytest.mark.parametrize("form", ["numerator", "cosine"])
def test_keys_are_rotated_as_keys(form):
    """xPos scales queries and keys in opposite ways with their position; if keys were rotated as
    queries, scores would not depend on distances alone.
    """
    rope = rw.Rope(rw.RopeSpec(head_dim=HEAD_DIM, scaling=rw.frequencies.XPos(scale_base=64.0)))
    q, k, _ = draw()
    near = make_features(q, k, rope, torch.arange(SEQ), None, form, "elu", 1.0)
    far = make_features(q, k, rope, torch.arange(SEQ) + 50, None, form, "elu", 1.0)
    torch.testing.assert_close(near.q @ near.k.mT, far.q @ far.k.mT)
