"""Layouts: conversions against their index formula, the laws that make them right, and the probe on
a working head.
"""

import math
from types import SimpleNamespace

import pytest
import torch

import ropewalk as rw
from door import assert_refused
from ropewalk.layout import LayoutProbe, convert_layout, convert_lora, convert_qkv, probe_layout

LAYOUTS = ("half", "interleaved")
BOTH_WAYS = [("half", "interleaved"), ("interleaved", "half")]
#: head_dim, rotary_dim, rotary_start
SLICES = [(10, None, 0), (10, 6, 0), (10, 6, 4), (11, 6, 2), (10, None, 4), (2, None, 0)]
DTYPES = [
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.float8_e4m3fn,
    torch.int8,
]


def place(layout, pair, member, pairs):
    """Return the index in the rotated slice of member 0 or 1 of a pair."""
    return pair + member * pairs if layout == "half" else 2 * pair + member


def converted_by_loop(vector, source, target, rotary_dim, rotary_start):
    """Return the vector of one head in the layout `target`, moved dimension by dimension."""
    pairs = ((len(vector) - rotary_start) if rotary_dim is None else rotary_dim) // 2
    result = list(vector)
    for pair in range(pairs):
        for member in (0, 1):
            result[rotary_start + place(target, pair, member, pairs)] = vector[
                rotary_start + place(source, pair, member, pairs)
            ]
    return result


def bits(x):
    return x.contiguous().view(torch.uint8)


def random_of(dtype, *shape):
    """Return a tensor of random bits, NaNs included: a conversion must not depend on the values."""
    return (
        torch.randint(
            0, 256, (*shape, torch.empty((), dtype=dtype).element_size()), dtype=torch.uint8
        )
        .view(dtype)
        .squeeze(-1)
    )


@pytest.mark.parametrize(("source", "target"), BOTH_WAYS)
@pytest.mark.parametrize(("head_dim", "rotary_dim", "rotary_start"), SLICES)
class TestConvert:
    def test_every_dimension_goes_where_the_index_formula_says(
        self, source, target, head_dim, rotary_dim, rotary_start
    ):
        x = torch.arange(3 * head_dim).reshape(3, head_dim)
        where = {"head_dim": head_dim, "rotary_dim": rotary_dim, "rotary_start": rotary_start}
        expected = [
            converted_by_loop(row, source, target, rotary_dim, rotary_start) for row in x.tolist()
        ]
        assert convert_layout(x, source, target, **where).tolist() == expected
        # the same three heads as rows of a projection, as a bias, and in the middle of a tensor
        flat = [entry for head in expected for entry in head]
        assert convert_layout(x.flatten(), source, target, num_heads=3, **where).tolist() == flat
        rows = x.reshape(-1, 1).expand(-1, 4)
        assert torch.equal(
            convert_layout(rows, source, target, dim=0, **where),
            torch.tensor(flat)[:, None].expand(-1, 4),
        )
        assert torch.equal(
            convert_layout(rows.T[None], source, target, dim=-1, **where)[0, 0], torch.tensor(flat)
        )

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_converting_there_and_back_gives_the_same_bits(
        self, source, target, head_dim, rotary_dim, rotary_start, dtype
    ):
        x = random_of(dtype, 2, 3, head_dim)
        where = {"head_dim": head_dim, "rotary_dim": rotary_dim, "rotary_start": rotary_start}
        there = convert_layout(x, source, target, **where)
        assert there.dtype == dtype
        assert torch.equal(bits(convert_layout(there, target, source, **where)), bits(x))

    def test_converting_then_rotating_equals_rotating_then_converting(
        self, source, target, head_dim, rotary_dim, rotary_start
    ):
        where = {"head_dim": head_dim, "rotary_dim": rotary_dim, "rotary_start": rotary_start}
        x = torch.randn(2, 3, 7, head_dim)
        here, there = (rw.Rope(rw.RopeSpec(layout=layout, **where)) for layout in (source, target))
        rotated_there = there(convert_layout(x, source, target, **where), offset=11)
        assert torch.equal(
            rotated_there, convert_layout(here(x, offset=11), source, target, **where)
        )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_same_layout_gives_a_copy(layout):
    x = torch.randn(3, 8)
    same = convert_layout(x, layout, layout, head_dim=8)
    assert torch.equal(same, x)
    assert same.data_ptr() != x.data_ptr()


def test_convert_layout_is_the_permutation_of_llama_checkpoints():
    """Meta's interleaved rows to transformers' halves: view [heads, d/2, 2, in], swap the middle
    two.
    """
    heads, head_dim, inputs = 3, 10, 7
    weight = torch.randn(heads * head_dim, inputs)
    expected = (
        weight.view(heads, head_dim // 2, 2, inputs)
        .transpose(1, 2)
        .reshape(heads * head_dim, inputs)
    )
    assert torch.equal(
        convert_layout(weight, "interleaved", "half", head_dim=head_dim, dim=0), expected
    )


def test_gradients_go_back_through_the_permutation():
    x = torch.randn(2, 10, requires_grad=True)
    weight = torch.randn(2, 10)
    (convert_layout(x, "half", "interleaved", head_dim=10) * weight).sum().backward()
    assert torch.equal(x.grad, convert_layout(weight, "interleaved", "half", head_dim=10))


class Projections:
    """q and k of a small attention with biases, QK-norm and LoRA, in float64."""

    head_dim, heads, kv_heads, inputs, rank = 10, 4, 2, 12, 3

    def __init__(self):
        rows = {"q": self.heads * self.head_dim, "k": self.kv_heads * self.head_dim}
        new = lambda *shape: torch.randn(*shape, dtype=torch.float64)
        self.weight = {name: new(n, self.inputs) for name, n in rows.items()}
        self.bias = {name: new(n) for name, n in rows.items()}
        self.norm = {name: new(self.head_dim) for name in rows}
        self.lora = {
            name: (new(self.rank, self.inputs), new(n, self.rank)) for name, n in rows.items()
        }

    def converted(self, source, target, slice_):
        other = Projections()
        move = lambda t: convert_layout(t, source, target, head_dim=self.head_dim, dim=0, **slice_)
        for name in ("q", "k"):
            other.weight[name], other.bias[name], other.norm[name] = map(
                move, (self.weight[name], self.bias[name], self.norm[name])
            )
            other.lora[name] = convert_lora(
                *self.lora[name], source, target, head_dim=self.head_dim, **slice_
            )
        return other

    def scores(self, x, layout, slice_):
        rotated = {}
        rope = rw.Rope(rw.RopeSpec(self.head_dim, layout=layout, **slice_))
        for name in ("q", "k"):
            a, b = self.lora[name]
            y = x @ (self.weight[name] + b @ a).T + self.bias[name]
            y = y.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [B, H, S, D]
            y = y / y.pow(2).mean(-1, keepdim=True).sqrt() * self.norm[name]
            rotated[name] = rope(y)
        k = rotated["k"].repeat_interleave(self.heads // self.kv_heads, dim=1)
        return rotated["q"] @ k.mT


@pytest.mark.parametrize(("source", "target"), BOTH_WAYS)
@pytest.mark.parametrize("slice_", [{}, {"rotary_dim": 6, "rotary_start": 2}])
def test_scores_survive_the_conversion_of_weights_biases_norms_and_adapters(source, target, slice_):
    model, x = Projections(), torch.randn(2, 6, Projections.inputs, dtype=torch.float64)
    before = model.scores(x, source, slice_)
    after = model.converted(source, target, slice_).scores(x, target, slice_)
    torch.testing.assert_close(after, before, rtol=1e-12, atol=1e-12)
    # unconverted weights in the target layout give other scores
    assert not torch.allclose(model.scores(x, target, slice_), before)


def test_convert_lora_permutes_b_and_returns_a_unchanged():
    a, b = torch.randn(3, 12), torch.randn(20, 3)
    same, moved = convert_lora(a, b, "half", "interleaved", head_dim=10)
    assert same is a
    update = convert_layout(b @ a, "half", "interleaved", head_dim=10, dim=0)
    torch.testing.assert_close(moved @ same, update, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("source", "target"), BOTH_WAYS)
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (4, 1)])
class TestFused:
    head_dim, inputs = 6, 5

    def parts(self, heads, kv_heads):
        return [torch.randn(n, self.head_dim, self.inputs) for n in (heads, kv_heads, kv_heads)]

    def expected(self, parts, source, target):
        q, k, v = parts
        return [
            *(
                convert_layout(
                    p, source, target, head_dim=self.head_dim, dim=1, rotary_dim=4, rotary_start=2
                )
                for p in (q, k)
            ),
            v,
        ]

    def convert(self, fused, source, target, heads, kv_heads, packing, **changes):
        sizes = {"num_heads": heads, "num_kv_heads": kv_heads, "head_dim": self.head_dim}
        return convert_qkv(
            fused, source, target, packing=packing, rotary_dim=4, rotary_start=2, **sizes, **changes
        )

    def test_concatenated_qkv_is_converted_like_its_parts(self, source, target, heads, kv_heads):
        """As Phi-3 splits it: rows of q, then of k, then of v."""
        parts = self.parts(heads, kv_heads)
        fuse = lambda parts: torch.cat([p.reshape(-1, self.inputs) for p in parts])
        found = self.convert(fuse(parts), source, target, heads, kv_heads, "concatenated")
        assert torch.equal(found, fuse(self.expected(parts, source, target)))

    def test_grouped_qkv_is_converted_like_its_parts(self, source, target, heads, kv_heads):
        """As GPT-NeoX (one query a group) and Falcon split it: for every kv head its queries, its
        key, its value.
        """
        parts = self.parts(heads, kv_heads)

        def fuse(parts):
            q, k, v = parts
            each = heads // kv_heads
            rows = [h for g in range(kv_heads) for h in (*q[g * each : (g + 1) * each], k[g], v[g])]
            return torch.cat(rows)

        found = self.convert(fuse(parts), source, target, heads, kv_heads, "grouped")
        assert torch.equal(found, fuse(self.expected(parts, source, target)))

    def test_biases_and_transposed_weights_are_converted_like_weights(
        self, source, target, heads, kv_heads
    ):
        rows = (heads + 2 * kv_heads) * self.head_dim
        weight = torch.randn(rows, self.inputs)
        for packing in ("concatenated", "grouped"):
            whole = self.convert(weight, source, target, heads, kv_heads, packing)
            bias = self.convert(weight[:, 0], source, target, heads, kv_heads, packing)
            assert torch.equal(bias, whole[:, 0])
            assert torch.equal(
                self.convert(weight.T, source, target, heads, kv_heads, packing, dim=-1), whole.T
            )
            assert torch.equal(
                self.convert(whole, target, source, heads, kv_heads, packing), weight
            )


def test_the_packing_grouped_is_the_order_of_falcons_fused_qkv():
    modeling = pytest.importorskip("transformers.models.falcon.modeling_falcon")
    heads, kv_heads, head_dim = 4, 2, 6
    falcon = SimpleNamespace(
        new_decoder_architecture=True, num_heads=heads, num_kv_heads=kv_heads, head_dim=head_dim
    )
    split = lambda fused: modeling.FalconAttention._split_heads(falcon, fused)
    fused = torch.randn(1, 3, (heads + 2 * kv_heads) * head_dim)
    sizes = {"num_heads": heads, "num_kv_heads": kv_heads, "head_dim": head_dim}
    converted = convert_qkv(fused, "half", "interleaved", packing="grouped", dim=-1, **sizes)
    for i, (before, after) in enumerate(zip(split(fused), split(converted), strict=True)):
        expected = (
            before if i == 2 else convert_layout(before, "half", "interleaved", head_dim=head_dim)
        )
        assert torch.equal(after, expected)


class LooksBack:
    """One attention head whose weights, in a given layout, make every token attend `back` tokens
    back.

    The input is the same at every token; its query is `c` and its key is `c` rotated by `back`
    steps, so the score at distance d is a sum of |c_i|^2 cos((d - back) omega_i), largest at
    d = back. The loss is minus the log of the attention weight at that distance.
    """

    head_dim, theta, length, back, sharpness = 16, 100.0, 24, 5, 16.0

    def __init__(self, layout):
        rope = rw.Rope(rw.RopeSpec(self.head_dim, theta=self.theta, layout=layout))
        c = torch.ones(1, self.head_dim, dtype=torch.float64)
        self.query, self.key = c[0], rope(c, offset=self.back)[0]

    def loss(self, layout):
        rope = rw.Rope(rw.RopeSpec(self.head_dim, theta=self.theta, layout=layout))
        q, k = rope(*(v.expand(1, 1, self.length, -1) for v in (self.query, self.key)))
        scores = (q @ k.mT)[0, 0] * self.sharpness / math.sqrt(self.head_dim)
        causal = torch.ones(self.length, self.length).tril().bool()
        attention = scores.masked_fill(~causal, -math.inf).log_softmax(-1)
        return -attention.diagonal(-self.back).mean().item()

    def convert(self, source, target):
        self.query, self.key = (
            convert_layout(v, source, target, head_dim=self.head_dim)
            for v in (self.query, self.key)
        )


@pytest.mark.parametrize("layout", LAYOUTS)
class TestProbe:
    def test_the_probe_finds_the_layout_of_a_head_that_looks_back(self, layout):
        found = probe_layout(LooksBack(layout).loss)
        assert found.layout == layout
        assert found.losses[layout] < 0.1
        assert found.margin > 0.3

    def test_the_probe_finds_the_new_layout_of_converted_weights(self, layout):
        head, (other,) = LooksBack(layout), set(LAYOUTS) - {layout}
        head.convert(layout, other)
        assert probe_layout(head.loss).layout == other

    def test_the_probe_finds_the_layout_with_which_a_model_was_trained(self, layout):
        model = train_previous_token(layout)
        found = probe_layout(lambda other: model(other).item())
        assert found.layout == layout
        assert found.losses[layout] < 0.7

    def test_the_probe_names_no_layout_if_the_losses_are_equal(self, layout):
        head = LooksBack(layout)
        found = probe_layout(lambda _: head.loss(layout))
        assert found == LayoutProbe(None, dict.fromkeys(LAYOUTS, head.loss(layout)), 0.0)


def test_the_probe_names_a_layout_only_if_losses_differ_by_more_than_the_threshold():
    losses = {"half": 1.0, "interleaved": 1.5}
    assert probe_layout(losses.__getitem__, threshold=0.5).layout is None
    assert probe_layout(losses.__getitem__, threshold=0.49) == LayoutProbe("half", losses, 0.5)


def train_previous_token(layout):
    """Train a model with `layout` to name the previous token; return the function from the layout
    that the trained model is read with to its loss on fresh data.
    """
    vocab, width, length = 12, 16, 20
    params = [
        (torch.randn(n, m) * n**-0.5).requires_grad_()
        for n, m in ((vocab, width), *[(width, width)] * 3, (width, vocab))
    ]
    optimiser = torch.optim.Adam(params, lr=2e-2)

    def loss(layout):
        embed, query, key, value, out = params
        tokens = torch.randint(0, vocab, (16, length))
        # the 1 is the same for all tokens, so that scores can depend on positions alone
        x = embed[tokens] + 1
        q, k = rw.Rope(rw.RopeSpec(width, theta=100.0, layout=layout))(
            (x @ query)[:, None], (x @ key)[:, None]
        )
        mixed = torch.nn.functional.scaled_dot_product_attention(
            q, k, (x @ value)[:, None], is_causal=True
        )[:, 0]
        return torch.nn.functional.cross_entropy(
            (mixed @ out)[:, 1:].flatten(0, 1), tokens[:, :-1].flatten()
        )

    for _ in range(150):
        optimiser.zero_grad()
        loss(layout).backward()
        optimiser.step()
    return torch.no_grad()(loss)


X = torch.zeros(20, 4)
QKV = {"num_heads": 2, "num_kv_heads": 1, "head_dim": 4, "dim": 0}


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: convert_layout([1, 2], "half", "half", head_dim=2), "x"),
        (lambda: convert_layout(X, "neox", "half", head_dim=4), "source"),
        (lambda: convert_layout(X, "half", "gptj", head_dim=4), "target"),
        (lambda: convert_layout(X, "half", "interleaved", head_dim=3), "head_dim"),
        (lambda: convert_layout(X, "half", "interleaved", head_dim=8), "x"),
        (lambda: convert_layout(X, "half", "interleaved", head_dim=4, num_heads=2), "x"),
        (lambda: convert_layout(X, "half", "interleaved", head_dim=4, num_heads=0), "num_heads"),
        (lambda: convert_layout(X, "half", "interleaved", head_dim=4, dim=2), "dim"),
        (lambda: convert_layout(X, "half", "interleaved", head_dim=4, rotary_dim=3), "rotary_dim"),
        (lambda: convert_layout(X, "half", "interleaved", head_dim=4, rotary_dim=6), "rotary_dim"),
        (
            lambda: convert_layout(X, "half", "interleaved", head_dim=4, rotary_start=3),
            "rotary_start",
        ),
        (lambda: convert_layout(X[:0], "half", "interleaved", head_dim=4, dim=0), "x"),
        (lambda: convert_lora(X, X, "half", "interleaved", head_dim=4), "b"),
        (lambda: convert_lora(X[:4], X[0], "half", "interleaved", head_dim=4), "b"),
        (lambda: convert_lora(X[0], X, "half", "interleaved", head_dim=4), "a"),
        (lambda: convert_lora(X[:4], X[:6], "half", "interleaved", head_dim=4), "b"),
        (lambda: convert_qkv(X, "half", "interleaved", **QKV), "weight"),
        (lambda: convert_qkv([1, 2], "half", "interleaved", **QKV), "weight"),
        (lambda: convert_qkv(X[:6], "half", "interleaved", **QKV), "weight"),
        (lambda: convert_qkv(X[:16], "half", "interleaved", packing="zipped", **QKV), "packing"),
        (
            lambda: convert_qkv(X[:16], "half", "interleaved", **(QKV | {"num_kv_heads": 0})),
            "num_kv_heads",
        ),
        (
            lambda: convert_qkv(X[:16], "half", "interleaved", **(QKV | {"num_kv_heads": 3})),
            "num_heads",
        ),
        (lambda: probe_layout(lambda layout: math.nan), "loss"),
        (lambda: probe_layout(lambda layout: 1.0, threshold=-1.0), "threshold"),
    ],
)
def test_an_error_names_the_bad_field(call, field):
    assert_refused(field, call)


def test_a_fused_conversion_names_the_layout_that_is_unknown():
    weight = torch.zeros(3 * 4, 5)
    for source, target, field in [("pairs", "half", "source"), ("half", "pairs", "target")]:
        assert_refused(
            field,
            lambda source=source, target=target: convert_qkv(
                weight, source, target, head_dim=4, num_heads=1, num_kv_heads=1
            ),
        )
