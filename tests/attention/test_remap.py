"""Remapped distances: the published numbers, and attention in pieces against the definition pair by
pair.
"""

import inspect
import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch
from remap_definition import RULES, attend, log_n, score

from door import assert_refused
from ropewalk.attention import Attention, KVCache, flex, lse
from ropewalk.attention.backends import Call
from ropewalk.attention.choices import RotatedValues
from ropewalk.attention.masks import Band, Visibility
from ropewalk.attention.remap import REMAPPINGS, DualChunk, LeakyReRope, ReRope, SelfExtend
from ropewalk.attention.remapped import attend_remapped, slowed_spec
from ropewalk.encodings import Sizes
from ropewalk.encodings.plus import RotaryPlus
from ropewalk.errors import RopeError
from ropewalk.frequencies import Yarn
from ropewalk.rope import Rope
from ropewalk.spec import RopeSpec
from tensor_forms import tensors

METHODS = {
    "rerope": {"window": 3},
    "leaky_rerope": {"window": 3, "slowdown": 2},
    "self_extend": {"group": 2, "window": 5},
    "dca": {"chunk": 6, "local": 2},
}
BATCH, SEQ, HEADS, KV_HEADS, HEAD_DIM, MODEL_DIM = 2, 13, 4, 2, 6, 12
methods = pytest.mark.parametrize("name", METHODS)

# q[p, c] = cos(.5 p + c), k[p, c] = sin(.3 p + .7 c)
PINS = [
    (ReRope(3), 7, [3, 3, 3, 3, 3, 2, 1, 0], [2.935499, 3.373800, 3.510729, 3.334055]),
    (LeakyReRope(3, 2), 7, [5, 4.5, 4, 3.5, 3, 2, 1, 0], [3.512473, 3.408364, 3.325643, 3.206690]),
    (SelfExtend(2, 4), 7, [5, 5, 4, 4, 3, 2, 1, 0], [3.512473, 3.300721, 3.325643, 2.886747]),
    (
        DualChunk(6, 2),
        11,
        [6, 5, 4, 3, 6, 5, 4, 3, 3, 2, 1, 0],
        [-1.378319, -0.839577, -0.783590, -0.542083],
    ),
]


@pytest.mark.parametrize(
    ("remapping", "i", "distances", "scores"), PINS, ids=lambda value: getattr(value, "name", "")
)
def test_distances_and_scores_are_the_published_ones(remapping, i, distances, scores):
    positions = torch.arange(i + 1)
    assert remapping.distances(positions, positions)[i].tolist() == distances
    p, c = np.arange(i + 1)[:, None], np.arange(8)
    q, k = np.cos(0.5 * p + c), np.sin(0.3 * p + 0.7 * c)
    assert [score(q[i], k[j], distances[j]) for j in range(4)] == pytest.approx(scores, abs=1e-6)
    # the same scores from the pieces, by the log-sum-exp of a query that sees one key
    q, k = (torch.tensor(x)[None, None] for x in (q, k))
    rope = Rope(RopeSpec(head_dim=8))
    for j, expected in enumerate(scores):
        parts = []
        for piece in remapping.pieces(positions[i:], positions[j : j + 1]):
            by = rope if piece.slowdown == 1 else Rope(slowed_spec(rope.spec, piece.slowdown))
            call = Call(
                by.rotate(q[:, :, i:], piece.q_positions),
                by.rotate(k[:, :, j : j + 1], piece.k_positions),
                k[:, :, j : j + 1],
                1.0,
                Visibility(band=piece.band),
            )
            parts.append(lse.run_math(call).lse)
        assert torch.stack(parts).logsumexp(0).item() == pytest.approx(expected, abs=1e-6)


@methods
def test_pieces_hold_every_pair_exactly_once(name):
    q, k = torch.arange(7, 19).expand(2, -1), torch.stack((torch.arange(19), torch.arange(19) - 4))
    pieces = REMAPPINGS[name](**METHODS[name]).pieces(q, k)
    assert torch.equal(
        sum(piece.band.allowed().int() for piece in pieces),
        torch.ones(2, 1, 12, 19, dtype=torch.int32),
    )


def make(name, **options):
    torch.manual_seed(3)
    remapping = REMAPPINGS[name](**METHODS[name], **options.pop("of_remapping", {}))
    layer = Attention(
        MODEL_DIM, HEADS, KV_HEADS, HEAD_DIM, scale=0.7, remapping=remapping, **options
    ).double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return layer


def by_definition(layer, x, positions, sees, factor=lambda p: 1.0):
    """The output of `layer` for x [B, S, D]; `sees(b, i, j)` is the mask beside causality."""
    name, options = layer.remapping.name, METHODS[layer.remapping.name]
    q, k, v = (t.detach().numpy() for t in layer.project(x))
    rows = []
    for b in range(len(x)):
        p = positions[b].tolist()
        out = attend(
            q[b],
            k[b],
            v[b],
            layer.scale,
            lambda i, j, p=p: RULES[name](p[i], p[j], **options),
            lambda i, j, b=b: j <= i and sees(b, i, j),
            lambda i, p=p: factor(p[i]),
        )
        rows.append(torch.tensor(out).transpose(0, 1).flatten(-2))
    return layer.o_proj(torch.stack(rows)).detach()


def close(got, expected):
    torch.testing.assert_close(got.detach(), expected, atol=1e-12, rtol=1e-10)


@methods
@pytest.mark.parametrize("kind", ["causal", "window", "mask", "padding", "documents"])
def test_remapped_attention_equals_the_definition(name, kind, monkeypatch):
    layer, x = (
        make(name, **({"window": 6} if kind == "window" else {})),
        torch.randn(BATCH, SEQ, MODEL_DIM).double(),
    )
    positions, call, sees = torch.arange(SEQ).expand(BATCH, -1), {}, lambda b, i, j: True
    if kind == "window":
        sees = lambda b, i, j: i - j < 6
    elif kind == "mask":
        mask = (torch.rand(BATCH, 1, SEQ, SEQ) > 0.3) | torch.eye(SEQ, dtype=torch.bool)
        call, sees = {"mask": mask}, lambda b, i, j: bool(mask[b, 0, i, j])
    elif kind == "padding":
        padding = torch.arange(SEQ).expand(BATCH, -1) >= torch.tensor([[4], [0]])
        positions, call = (padding.cumsum(-1) - 1).clamp(min=0), {"padding": padding}
        sees = lambda b, i, j: bool(padding[b, j] & padding[b, i])
    elif kind == "documents":
        documents = torch.tensor([[0] * 9 + [1] * 4, [5, 5, 2] + [7] * 10])
        positions = torch.tensor([[*range(9), *range(4)], [0, 1, 0, *range(10)]])
        call, sees = (
            {"documents": documents},
            lambda b, i, j: bool(documents[b, i] == documents[b, j]),
        )
    expected = by_definition(layer, x, positions, sees)
    if kind == "padding":
        expected = torch.where(
            call["padding"].unsqueeze(-1),
            expected,
            layer.o_proj(torch.zeros(HEADS * HEAD_DIM).double()),
        )
    close(layer(x, **call).out, expected)
    # blocks of 3 queries, the last one shorter
    monkeypatch.setattr(lse, "MOST_SCORES", BATCH * HEADS * SEQ * 3)
    close(layer(x, **call).out, expected)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_gives_the_same_output_and_log_sum_exp(monkeypatch):
    """FlexAttention runs uncompiled here, because compiled it needs a GPU; both hide the same keys,
    and a query without keys has a log-sum-exp of -inf.
    """
    module = pytest.importorskip("torch.nn.attention.flex_attention")
    monkeypatch.setattr(flex, "compiled", lambda: (module.create_block_mask, module.flex_attention))
    for each in (Visibility, Band):  # dynamo cannot trace the suite's run-time type checks
        for name in {"at", "holds"} & vars(each).keys():
            monkeypatch.setattr(each, name, inspect.unwrap(getattr(each, name)))
    q, k, v = torch.randn(2, 4, 17, 16), torch.randn(2, 2, 20, 16), torch.randn(2, 2, 20, 16)
    q_group, k_group = torch.arange(17) + 3, torch.arange(20)
    padding = k_group.expand(2, -1) >= torch.tensor([[6], [0]])
    visible = Visibility(
        True, offset=3, padding=padding, band=Band(q_group.expand(2, -1), k_group, 2, 9)
    )
    call = Call(q, k, v, 0.25, visible)
    for mine, theirs in zip(lse.run_math(call), lse.run_flex(call), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-5)


def test_remapped_attention_holds_a_bounded_part_of_the_scores(monkeypatch):
    """No tensor of all scores is formed: the largest has at most MOST_SCORES entries."""
    monkeypatch.setattr(lse, "MOST_SCORES", 4096)
    sizes, block = [], lse._block
    monkeypatch.setattr(
        lse,
        "_block",
        lambda call, *a: sizes.append((a[1] - a[0]) * (a[3] - a[2])) or block(call, *a),
    )
    layer = make("self_extend").float()
    with torch.no_grad():
        layer(torch.randn(1, 300, MODEL_DIM))
    assert HEADS * max(sizes) <= 4096
    # each causal pair is scored in one of two pieces; only the edges of blocks are scored needlessly
    assert 300 * 300 / 2 <= sum(sizes) < 300 * 300 * 0.6


@methods
@pytest.mark.parametrize("kind", ["growing", "sliding"])
def test_decoding_with_a_cache_equals_the_whole_pass(name, kind):
    layer, x = make(name), torch.randn(BATCH, SEQ, MODEL_DIM).double()
    cache = KVCache(kind, None if kind == "growing" else SEQ)
    steps = [
        layer(x[:, a:b], cache=cache).out
        for a, b in itertools.pairwise([0, 5, 8, *range(9, SEQ + 1)])
    ]
    close(torch.cat(steps, dim=1), layer(x).out.detach())


@methods
def test_decoding_left_padded_rows_equals_each_row_alone(name):
    layer, x = make(name), torch.randn(BATCH, SEQ, MODEL_DIM).double()
    padding, cache = torch.arange(7).expand(BATCH, -1) >= torch.tensor([[3], [0]]), KVCache()
    steps = [
        layer(x[:, :7], padding=padding, cache=cache).out,
        *(layer(x[:, i : i + 1], cache=cache).out for i in range(7, SEQ)),
    ]
    close(torch.cat(steps, dim=1)[:1, 3:], layer(x[:1, 3:]).out.detach())
    close(torch.cat(steps, dim=1)[1:], layer(x[1:]).out.detach())


@pytest.mark.parametrize("name", ["rerope", "leaky_rerope"])
def test_log_n_length_multiplies_the_queries(name):
    layer, x = make(name, of_remapping={"log_n_length": 4}), torch.randn(1, SEQ, MODEL_DIM).double()
    positions = torch.arange(SEQ)[None]
    close(
        layer(x).out,
        by_definition(layer, x, positions, lambda b, i, j: True, lambda p: log_n(p, 4)),
    )
    close(layer(x, positions).out, layer(x, positions[0]).out.detach())


@methods
def test_within_the_window_or_first_chunk_distances_are_the_true_ones(name):
    options = {"chunk": 21, "local": 5} if name == "dca" else {"window": 16}
    positions = torch.arange(16)
    distances = REMAPPINGS[name](**options).distances(positions, positions)
    assert torch.equal(distances.tril(), (positions[:, None] - positions).double().tril())


@methods
@pytest.mark.parametrize(
    ("trained", "served"), [(64, 256), (100, 177), (2048, 32768), (512, 131072)]
)
def test_no_distance_exceeds_the_trained_length(name, trained, served):
    remapping = REMAPPINGS[name].for_length(trained, served)
    keys = torch.arange(served)
    for query in (trained, served // 2 + 1, served - 1):
        seen = remapping.distances(torch.tensor([query]), keys[: query + 1])
        assert seen.min() >= 0
        assert seen.max() < trained


@pytest.mark.parametrize(
    ("trained", "served"), [(64, 256), (100, 177), (99, 1000), (2048, 32768), (512, 131072)]
)
def test_distances_are_slowed_just_enough_to_stay_in_two_thirds_of_the_trained_length(
    trained, served
):
    """One less would not be enough, unless it is 2 already, the least."""
    leaky, grouped = (
        REMAPPINGS[name].for_length(trained, served) for name in ("leaky_rerope", "self_extend")
    )
    window, room = trained // 4, 2 * trained // 3
    assert leaky.window == window
    assert window + Fraction(served - window, leaky.slowdown) <= room
    assert leaky.slowdown == 2 or window + Fraction(served - window, leaky.slowdown - 1) > room
    assert grouped.group == leaky.slowdown
    far = leaky.distances(torch.tensor([served - 1]), torch.arange(served))
    assert far.max() == pytest.approx(window + (served - 1 - window) / leaky.slowdown)


@pytest.mark.parametrize("remapping", [ReRope(3, 4), DualChunk(6, 2, length=4)], ids=str)
def test_rows_with_different_positions_equal_each_row_alone(remapping):
    """Both remappings here also multiply queries by a factor that depends on the position."""
    torch.manual_seed(1)
    layer = Attention(
        MODEL_DIM, HEADS, KV_HEADS, HEAD_DIM, causal=True, remapping=remapping
    ).double()
    x, positions = (
        torch.randn(BATCH, SEQ, MODEL_DIM, dtype=torch.float64),
        torch.arange(SEQ) + torch.tensor([[0], [5]]),
    )
    whole = layer(x, positions).out
    for row in range(BATCH):
        torch.testing.assert_close(whole[row], layer(x[row : row + 1], positions[row]).out[0])


def test_gradients_equal_those_of_the_scores_by_definition():
    """Also for padded queries, which see no key, and for queries without far keys."""
    remapping, positions = SelfExtend(2, 5), (torch.arange(9) - 2).clamp(min=0)
    rope, visible = (
        Rope(RopeSpec(head_dim=6)),
        torch.ones(9, 9).tril().bool() & (torch.arange(9) >= 2),
    )
    q, k, v = (x.requires_grad_() for x in torch.randn(3, 1, 2, 9, 6).double().unbind())
    rotate = lambda key, at, slowdown: rope.rotate(k if key else q, at)
    got = attend_remapped(remapping, rotate, v, positions, positions, 0.7, Visibility(mask=visible))
    angles = remapping.distances(positions, positions)[..., None] * tensors(rope.spec).radians
    pairs = [torch.complex(x[..., :3], x[..., 3:]) for x in (q, k)]
    scores = torch.einsum(
        "bhic,ijc,bhjc->bhij",
        pairs[0],
        torch.polar(torch.ones_like(angles), angles),
        pairs[1].conj(),
    ).real
    weights = (scores * 0.7).masked_fill(~visible, -1e30).softmax(-1) * visible.any(
        -1, keepdim=True
    )
    weight = torch.randn(1, 2, 9, 6).double()
    for mine, theirs in zip(
        *(torch.autograd.grad((out * weight).sum(), (q, k, v)) for out in (got, weights @ v)),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, atol=1e-12, rtol=1e-10)


def test_remapped_attention_in_bfloat16_stays_within_rounding():
    layer, x = make("self_extend"), torch.randn(1, SEQ, MODEL_DIM).double()
    expected = layer(x).out
    got = layer.bfloat16()(x.bfloat16()).out
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(
        got.double(), expected, atol=0.05 * expected.abs().max().item(), rtol=0
    )


def test_encodings_calls_and_sizes_that_cannot_be_remapped_are_refused():
    with pytest.raises(RopeError, match="only rotates q and k"):
        Attention(12, 2, encoding="alibi", remapping=ReRope())
    with pytest.raises(RopeError, match="only rotates q and k"):
        Attention(12, 2, encoding="rope_alibi", remapping=ReRope())
    with pytest.raises(RopeError, match="causal"):
        Attention(12, 2, causal=False, remapping=ReRope())
    assert_refused("remapping", lambda: Attention(12, 2, remapping="rerope"))
    with pytest.raises(RopeError, match="no scaling"):
        Attention(
            16,
            2,
            encoding=RopeSpec(head_dim=8, scaling=Yarn(factor=4.0, original_length=64)),
            remapping=LeakyReRope(3, 2),
        )
    layer = make("rerope")
    with pytest.raises(RopeError, match="return_weights"):
        layer(torch.zeros(1, 2, MODEL_DIM).double(), return_weights=True)
    with pytest.raises(RopeError, match="not rotated"):
        layer(torch.zeros(1, 2, MODEL_DIM).double(), cache=KVCache(rotated=True))
    with pytest.raises(RopeError, match="compiled for CUDA"):
        lse.attend_with_lse(Call(*(torch.zeros(1, 1, 2, 4),) * 3, 1.0, Visibility()), "flex")
    for wrong in ({"window": 0}, {"window": 4, "log_n_length": 1}):
        with pytest.raises(RopeError):
            ReRope(**wrong)
    with pytest.raises(RopeError):
        DualChunk(8, 8)


def test_a_scaled_rope_can_be_remapped():
    """Remapping and scaling are separate choices: YaRN's frequencies at remapped positions."""
    spec = RopeSpec(head_dim=6, scaling=Yarn(factor=4.0, original_length=8))
    rope, remapping = Rope(spec), SelfExtend(2, 4)
    q, k, v = torch.randn(3, 1, 2, SEQ, 6).double()
    positions = torch.arange(SEQ)
    rotate = lambda key, at, slowdown: rope.rotate(k if key else q, at, key=key)
    got = attend_remapped(remapping, rotate, v, positions, positions, 0.5, Visibility(True))
    distance, magnitude = (
        remapping.distances(positions, positions),
        float(tensors(spec).magnitude),
    )
    angles = distance[..., None] * tensors(spec).radians
    q, k = (torch.complex(x[..., :3], x[..., 3:]) * magnitude for x in (q, k))
    scores = torch.einsum(
        "bhic,ijc,bhjc->bhij", q, torch.polar(torch.ones_like(angles), angles), k.conj()
    ).real
    weights = (
        (scores * 0.5).masked_fill(~torch.ones(SEQ, SEQ).tril().bool(), float("-inf")).softmax(-1)
    )
    torch.testing.assert_close(got, weights @ v, atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("encoding", ["pope", "rope_alibi", RotaryPlus(Sizes(2, 8, 16, 64))])
def test_encodings_that_do_more_than_rotate_are_refused(encoding):
    with pytest.raises(RopeError, match="remapping: needs an encoding that only rotates"):
        Attention(16, 2, encoding=encoding, remapping=SelfExtend(2, 4))
    with pytest.raises(RopeError, match="values: needs an encoding that only rotates"):
        Attention(16, 2, encoding=encoding, values=RotatedValues())


def test_a_remapping_refuses_rotated_values():
    with pytest.raises(RopeError, match="values: must be None with a remapping"):
        Attention(16, 2, remapping=SelfExtend(2, 4), values=RotatedValues())
