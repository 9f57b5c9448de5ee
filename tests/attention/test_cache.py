"""A cache that was moved, cut, reused or re-scaled equals one built from scratch."""

import pytest
import torch

import ropewalk as rw
from door import assert_refused
from ropewalk import frequencies
from ropewalk.attention import Attention, KVCache
from ropewalk.attention.remap import SelfExtend
from ropewalk.encodings import Encoding, Sizes
from ropewalk.encodings.bias import Alibi
from ropewalk.encodings.fourier import Fourier
from ropewalk.encodings.rotary import Rotary
from ropewalk.errors import RopeError
from ropewalk.positions import Image, Text, Video

BATCH, HEADS, SEQ, HEAD_DIM = 2, 3, 7, 10
SIZES = Sizes(HEADS, HEAD_DIM, HEADS * HEAD_DIM, 64)


def rotary(dtype=torch.float64, **changes):
    return Rotary(SIZES, rw.RopeSpec(head_dim=HEAD_DIM, **changes))


def filled(encoding, positions, k, v, **options):
    cache = KVCache(**options)
    cache.append(
        encoding.rotate(k, positions, key=True) if cache.keeps_rotated(encoding) else k,
        v,
        positions,
    )
    return cache


def draw(dtype=torch.float64):
    return (torch.randn(BATCH, HEADS, SEQ, HEAD_DIM, dtype=dtype) for _ in range(2))


def counted(start=0, seq=SEQ):
    return torch.arange(start, start + seq).expand(BATCH, seq)


SPECS = {
    "default": {},
    "interleaved": {"layout": "interleaved"},
    "partial": {"rotary_dim": 6, "rotary_start": 2},
    "yarn": {"scaling": frequencies.Yarn(factor=4.0, original_length=8)},
    "xpos": {"scaling": frequencies.XPos()},
}


@pytest.mark.parametrize("rotated", [True, False])
@pytest.mark.parametrize("changes", SPECS.values(), ids=SPECS)
def test_a_shifted_cache_equals_one_built_at_the_shifted_positions(changes, rotated):
    encoding, (k, v) = rotary(**changes), draw()
    cache = filled(encoding, counted(5), k, v, rotated=rotated)
    cache.shift(-3, encoding)
    built = filled(encoding, counted(2), k, v, rotated=rotated)
    torch.testing.assert_close(cache.seen.k, built.seen.k, atol=1e-12, rtol=1e-10)
    assert torch.equal(cache.seen.positions, built.seen.positions)


def test_in_bfloat16_a_shift_costs_at_most_two_ulp():
    encoding, (k, v) = rotary(), draw(torch.bfloat16)
    cache = filled(encoding, counted(1000), k, v)
    cache.shift(torch.tensor([-900, 50]), encoding)
    built = filled(encoding, counted() + torch.tensor([[100], [1050]]), k, v).seen.k.double()
    ulp = 2.0 ** (built.abs().clamp(min=2.0**-20).log2().floor() - 7)
    # a rotation mixes the members of a pair, so each may have the rounding error of the other
    reach = torch.maximum(ulp, ulp.roll(HEAD_DIM // 2, dims=-1))
    assert ((cache.seen.k.double() - built).abs() <= 2 * reach).all()


@pytest.mark.parametrize(
    "target",
    [
        frequencies.Yarn(factor=4.0, original_length=8),
        frequencies.Linear(2.0),
        frequencies.Ntk(3.0),
    ],
)
def test_a_change_of_scaling_equals_a_rebuilt_cache(target):
    first, second, (k, v) = rotary(), rotary(scaling=target), draw()
    cache = filled(first, counted(3), k, v)
    cache.rescale(first, second)
    torch.testing.assert_close(
        cache.seen.k, filled(second, counted(3), k, v).seen.k, atol=1e-12, rtol=1e-10
    )


def test_dynamic_keys_kept_rotated_can_follow_a_new_length():
    encoding, (k, v) = rotary(scaling=frequencies.Dynamic(factor=2.0, original_length=4)), draw()
    cache = KVCache(rotated=True)
    cache.append(encoding.rotate(k, counted(), key=True, length=7), v, counted())
    cache.rescale(encoding, encoding, from_length=7, to_length=20)
    expected = encoding.rotate(k, counted(), key=True, length=20)
    torch.testing.assert_close(cache.seen.k, expected, atol=1e-12, rtol=1e-10)


def test_eviction_then_compaction_equals_the_shorter_text():
    encoding, (k, v) = rotary(), draw()
    cache = filled(encoding, counted(), k, v)
    cache.evict(2, 5)
    assert cache.seen.positions.tolist() == [[0, 1, 5, 6]] * BATCH
    cache.compact(encoding)
    kept = [0, 1, 5, 6]
    built = filled(encoding, counted(seq=4), k[:, :, kept], v[:, :, kept])
    torch.testing.assert_close(cache.seen.k, built.seen.k, atol=1e-12, rtol=1e-10)
    assert torch.equal(cache.seen.v, built.seen.v)


def test_a_chunk_cached_elsewhere_is_reused_at_another_position():
    encoding, (k, v) = rotary(), draw()
    elsewhere = filled(encoding, counted(100), k, v)
    cache = filled(encoding, counted(), k, v)
    cache.extend(elsewhere, counted(SEQ), encoding)
    torch.testing.assert_close(
        cache.seen.k[:, :, SEQ:], encoding.rotate(k, counted(SEQ), key=True), atol=1e-12, rtol=1e-10
    )


def test_beams_are_reordered_and_drafts_rolled_back():
    encoding, (k, v) = rotary(), draw()
    cache = filled(encoding, counted(), k, v)
    before = cache.seen.k.clone()
    cache.reorder(torch.tensor([1, 1]))
    assert torch.equal(cache.seen.k, before[[1, 1]])
    cache.rollback(3)
    assert len(cache) == 4
    assert cache.next_positions.tolist() == [4, 4]
    cache.append(k[:, :, :1], v[:, :, :1], torch.tensor([[4], [4]]))
    assert torch.equal(cache.seen.k[:, :, :4], before[[1, 1]][:, :, :4])


def test_tokens_after_an_image_follow_its_last_row_and_column():
    """The next position is beyond those of all axes, as `decode_positions` counts them."""
    rows = [
        [Text(2), Image(2, 4)],  # columns reach farthest
        [Text(4), Image(6, 1)],  # rows do
        [Text(3), Video(7, 1, 1)],  # time does
    ]
    positions, delta = rw.positions.multimodal(rows)
    k, cache = torch.randn(3, HEADS, 10, HEAD_DIM), KVCache()
    cache.append(k, k, positions)
    expected = rw.positions.decode_positions(delta, index=10)[0, :, 0]
    assert torch.equal(cache.next_positions, expected)


def test_beams_with_positions_on_several_axes_are_reordered():
    """Such positions are [axes, rows, tokens]: reordering must choose rows, not axes."""
    encoding, (k, v) = rotary(axes=rw.axes.chunked((2, 2, 1))), draw()
    positions = torch.randint(0, 50, (3, BATCH, SEQ))
    cache = filled(encoding, positions, k, v)
    before = cache.seen.k.clone()
    cache.reorder(torch.tensor([1, 0, 1]))
    assert torch.equal(cache.seen.positions, positions[:, [1, 0, 1]])
    assert torch.equal(cache.seen.k, before[[1, 0, 1]])


def test_a_sliding_cache_keeps_its_sinks_and_the_latest_tokens():
    encoding, (k, v) = rotary(), draw()
    cache = KVCache("sliding", capacity=5, sinks=2)
    for i in range(SEQ):
        cache.append(
            encoding.rotate(k[:, :, i : i + 1], counted(i, 1), key=True),
            v[:, :, i : i + 1],
            counted(i, 1),
        )
    assert cache.seen.positions[0].tolist() == [0, 1, 4, 5, 6]


@pytest.mark.parametrize("rotated", [None, False])
def test_the_sinks_of_a_padded_row_are_its_first_real_tokens(rotated):
    """Rows padded on the left by 3, 0 and 8 tokens, each as if alone: padding does not take the
    place of sinks.
    """
    layer = Attention(SIZES.model_dim, HEADS, encoding="rope").double()
    lengths, steps, longest = (5, 8, 0), 6, 8
    x = torch.randn(3, longest + steps, SIZES.model_dim, dtype=torch.float64)
    padding = torch.arange(longest) >= torch.tensor([[longest - n] for n in lengths])
    make = lambda: KVCache("sliding", capacity=5, sinks=2, rotated=rotated)
    together, alone = make(), [make() for _ in lengths]
    layer(x[:, :longest], padding=padding, cache=together)
    for b, n in enumerate(lengths):
        if n:
            layer(x[b : b + 1, longest - n : longest], cache=alone[b])
    for i in range(longest, longest + steps):
        got = layer(x[:, i : i + 1], cache=together).out
        expected = torch.cat([layer(x[b : b + 1, i : i + 1], cache=alone[b]).out for b in range(3)])
        torch.testing.assert_close(got, expected, atol=1e-12, rtol=1e-10)
    assert together.seen.positions.tolist() == [
        [0, 1, 8, 9, 10],
        [0, 1, 11, 12, 13],
        [0, 1, 3, 4, 5],
    ]
    assert together.seen.valid.all()


def test_the_next_position_after_a_shift_does_not_depend_on_padding():
    encoding, (k, v) = rotary(), draw()
    valid = torch.tensor([[False] * 3 + [True] * 4, [True] * 7])
    cache = KVCache()
    cache.append(k, v, torch.tensor([[0, 0, 0, 0, 1, 2, 3], [*range(7)]]), valid)
    cache.shift(torch.tensor([-9, -30]), encoding)
    assert cache.next_positions.tolist() == [-5, -23]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda k, v, at: (k[:1], v[:1], at[:1]), "k"),
        (lambda k, v, at: (k[:1], v[:1], at), "positions"),
        (lambda k, v, at: (k.repeat(2, 1, 1, 1), v.repeat(2, 1, 1, 1), at.repeat(2, 1)), "k"),
        (lambda k, v, at: (k[:, :1], v[:, :1], at), "k"),
        (lambda k, v, at: (k[..., :1], v, at), "k"),
        (lambda k, v, at: (k, v[:1], at), "v"),
        (lambda k, v, at: (k, v[:, :, :1], at), "v"),
        (lambda k, v, at: (k, v[..., :1], at), "v"),
        (lambda k, v, at: (k, v, at[:, :2]), "positions"),
        (lambda k, v, at: (k, v, at.expand(2, *at.shape)), "positions"),
        (lambda k, v, at: (k, v, at + 0.5), "positions"),
        (lambda k, v, at: (k, v, at, torch.ones(1, SEQ)), "valid"),
        (lambda k, v, at: (k, v, at, torch.ones(BATCH, 1, dtype=torch.bool)), "valid"),
    ],
)
def test_tokens_that_do_not_fit_are_refused_and_the_cache_stays_as_it_was(change, field):
    encoding, (k, v) = rotary(), draw()
    cache = filled(encoding, counted(), k, v)
    before = [t.clone() for t in cache.seen]
    assert_refused(field, lambda: cache.append(*change(k, v, counted(SEQ))))
    assert all(torch.equal(a, b) for a, b in zip(cache.seen, before, strict=True))
    assert not cache.padded


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda cache, encoding: cache.shift(0.5, encoding), "by"),
        (lambda cache, encoding: cache.shift(torch.tensor([1.5, 2.5]), encoding), "by"),
        (lambda cache, encoding: cache.shift(torch.tensor([1, 2, 3]), encoding), "by"),
        (lambda cache, encoding: cache.shift(torch.tensor([[1], [2]]), encoding), "by"),
        (lambda cache, encoding: cache.move(counted(seq=3), encoding), "positions"),
        (lambda cache, encoding: cache.move(counted() + 0.5, encoding), "positions"),
        (
            lambda cache, encoding: cache.move(torch.zeros(3, SEQ, dtype=torch.int64), encoding),
            "positions",
        ),
        (lambda cache, encoding: cache.extend(cache, counted(seq=3), encoding), "positions"),
        (lambda cache, encoding: cache.extend(cache, counted() + 0.5, encoding), "positions"),
    ],
)
def test_moves_that_do_not_fit_are_refused(change, field):
    encoding, (k, v) = rotary(), draw()
    cache = filled(encoding, counted(), k, v)
    before = [t.clone() for t in cache.seen]
    assert_refused(field, lambda: change(cache, encoding))
    assert all(torch.equal(a, b) for a, b in zip(cache.seen, before, strict=True))


def test_one_row_is_refused_for_a_cache_of_two_rows():
    layer, cache = Attention(SIZES.model_dim, HEADS).double(), KVCache()
    x = torch.randn(2, 3, SIZES.model_dim, dtype=torch.float64)
    layer(x, cache=cache)
    assert "2 rows" in str(assert_refused("cache", lambda: layer(x[:1, :1], cache=cache)))
    assert_refused("k", lambda: layer(x[:1, :1], torch.tensor([3]), cache=cache))
    library = KVCache()
    layer(x[:1], cache=library)
    assert_refused("k", lambda: cache.extend(library, torch.arange(3, 6), layer.encoding))


def test_an_emptied_cache_takes_other_rows_and_large_positions():
    encoding, (k, v) = rotary(), draw()
    cache = filled(encoding, counted().to(torch.int32), k, v)
    cache.rollback(SEQ)
    cache.append(k[:1], v[:1], torch.arange(SEQ, dtype=torch.int32)[None])
    assert cache.seen.k.shape == (1, HEADS, SEQ, HEAD_DIM)
    cache.append(k[:1], v[:1], counted(2**40)[:1])
    assert cache.next_positions.tolist() == [2**40 + SEQ]


def test_gradients_go_back_through_a_cache():
    layer = Attention(SIZES.model_dim, HEADS, encoding="rope").double()
    x = torch.randn(1, 6, SIZES.model_dim, dtype=torch.float64, requires_grad=True)
    expected = torch.autograd.grad(layer(x).out.square().sum(), x)[0]
    for options in (
        {},
        {"kind": "static", "capacity": 6},
        {"kind": "sliding", "capacity": 6},
        {"rotated": False},
    ):
        cache = KVCache(**options)
        steps = torch.cat([layer(x[:, i : i + 1], cache=cache).out for i in range(6)], dim=1)
        torch.testing.assert_close(
            torch.autograd.grad(steps.square().sum(), x)[0], expected, atol=1e-11, rtol=1e-9
        )
        cache.rollback(len(cache))
        with torch.no_grad():
            again = torch.cat([layer(x[:, i : i + 1], cache=cache).out for i in range(6)], dim=1)
        torch.testing.assert_close(again, steps, atol=1e-12, rtol=1e-10)


def test_a_sliding_cache_with_a_window_equals_windowed_attention():
    torch.manual_seed(0)
    layer = Attention(SIZES.model_dim, HEADS, encoding="rope", window=3).double()
    x, cache = (
        torch.randn(1, 9, SIZES.model_dim, dtype=torch.float64),
        KVCache("sliding", capacity=4),
    )
    steps = torch.cat([layer(x[:, i : i + 1], cache=cache).out for i in range(9)], dim=1)
    torch.testing.assert_close(steps, layer(x).out, atol=1e-12, rtol=1e-10)
    assert len(cache) == 4


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"kind": "ring"}, "kind"),
        ({"kind": "static"}, "capacity"),
        ({"sinks": 2}, "sinks"),
        ({"kind": "sliding", "capacity": 2, "sinks": 2}, "sinks"),
    ],
)
def test_bad_caches_are_refused(options, field):
    with pytest.raises(RopeError) as caught:
        KVCache(**options)
    assert caught.value.field == field


def test_appending_to_a_full_static_cache_and_reading_an_empty_one_are_errors():
    encoding, (k, v) = rotary(), draw()
    with pytest.raises(RopeError, match="at most 5"):
        filled(encoding, counted(), k, v, kind="static", capacity=5)
    with pytest.raises(RopeError, match="empty"):
        KVCache().seen


@pytest.mark.parametrize(
    "kind", [{}, {"kind": "static", "capacity": 9}, {"kind": "sliding", "capacity": 4}], ids=str
)
def test_appending_no_tokens_leaves_a_cache_empty(kind):
    (k, v), cache = draw(), KVCache(**kind)
    cache.append(k[:, :, :0], v[:, :, :0], counted()[..., :0])
    assert (len(cache), cache.next_positions) == (0, 0)
    cache.append(k[:, :, :3], v[:, :, :3], counted()[..., :3])
    assert torch.equal(cache.seen.k, k[:, :, :3])
    cache.evict(0, 3)
    cache.append(k[:, :, :0], v[:, :, :0], counted()[..., :0])
    assert len(cache) == 0


def test_a_cache_emptied_by_eviction_starts_again():
    encoding, (k, v) = rotary(), draw()
    cache = filled(encoding, counted(), k, v)
    cache.evict(0, SEQ)
    assert (len(cache), cache.next_positions) == (0, 0)
    cache.append(k, v, counted())
    assert torch.equal(cache.seen.k, k)


@pytest.mark.parametrize(
    "kind",
    [{}, {"kind": "static", "capacity": 9}, {"kind": "sliding", "capacity": 4, "sinks": 1}],
    ids=str,
)
@pytest.mark.parametrize(
    ("change", "call"),
    [
        ({}, {"mask": torch.ones(3, 3, dtype=torch.int64)}),
        ({"backend": "elsewhere"}, {}),
        ({"backend": "sdpa"}, {"return_weights": True}),
        ({}, {"padding": torch.tensor([[False, True, True]]), "mask": torch.ones(3, 40)}),
        ({"remapping": SelfExtend(2, 2), "backend": "elsewhere"}, {}),
    ],
    ids=["mask of integers", "unknown backend", "weights", "mask of another size", "remapping"],
)
def test_a_call_that_fails_leaves_no_tokens_in_the_cache(kind, change, call):
    """Later calls with the cache give what they would give without the failed call."""
    x = torch.randn(1, 8, SIZES.model_dim, dtype=torch.float64)
    layer = Attention(SIZES.model_dim, HEADS, remapping=change.get("remapping")).double()
    cache, untouched = KVCache(**kind), KVCache(**kind)
    for start, stop in ((0, 3), (3, 4), (4, 6)):
        layer.backend = change.get("backend")
        with pytest.raises((RopeError, RuntimeError)):
            layer(x[:, start : start + 3], cache=cache, **call)
        layer.backend = None
        found, expected = (layer(x[:, start:stop], cache=each).out for each in (cache, untouched))
        torch.testing.assert_close(found, expected)
        assert torch.equal(cache.seen.positions, untouched.seen.positions)
        assert not cache.padded


@pytest.mark.parametrize(
    "target", [Fourier(SIZES), Encoding(SIZES), Alibi(SIZES)], ids=lambda each: type(each).__name__
)
def test_a_target_that_does_not_rotate_is_refused(target):
    encoding, (k, v) = rotary(), draw()
    cache = filled(encoding, counted(3), k, v)
    assert_refused("to", lambda: cache.rescale(encoding, target))
    assert_refused("to", lambda: cache.move(counted(), encoding, target))
    torch.testing.assert_close(cache.seen.k, encoding.rotate(k, counted(3), key=True))


def test_rescale_does_not_rotate_keys_that_had_no_rotation():
    encoding, (k, v) = Alibi(SIZES), draw()
    cache = filled(encoding, counted(3), k, v)
    assert_refused("to", lambda: cache.rescale(encoding, rotary()))
    cache.rescale(encoding, Encoding(SIZES))
    assert torch.equal(cache.seen.k, k)


def test_a_layer_refuses_rotated_keys_whose_frequencies_follow_the_length():
    """Cached keys would keep the frequencies of the length at which they were added."""
    dynamic = rotary(scaling=frequencies.Dynamic(factor=2.0, original_length=4))
    plain, layer = (
        Attention(SIZES.model_dim, HEADS, encoding=each).double() for each in (rotary(), dynamic)
    )
    x = torch.randn(1, 6, SIZES.model_dim, dtype=torch.float64)
    cache = KVCache()
    plain(x[:, :5], cache=cache)
    cache.rescale(plain.encoding, dynamic, to_length=5)
    assert_refused("cache", lambda: layer(x[:, 5:], cache=cache))
    assert_refused("cache", lambda: layer(x, cache=KVCache(rotated=True)))
    split = KVCache(rotated=False)
    layer(x[:, :5], cache=split)
    torch.testing.assert_close(layer(x[:, 5:], cache=split).out, layer(x).out[:, 5:])


@pytest.mark.parametrize("rotated", [True, False])
def test_a_chunk_with_several_axes_is_reused_at_positions_without_axes(rotated):
    encoding, (k, v) = rotary(axes=rw.axes.chunked((2, 2, 1))), draw()
    cache, positions = (
        filled(encoding, torch.randint(0, 50, (3, BATCH, SEQ)), k, v, rotated=rotated),
        torch.arange(SEQ) + 50,
    )
    cache.extend(cache, positions, encoding)
    expected = encoding.rotate(k, positions.expand(3, BATCH, SEQ), key=True) if rotated else k
    torch.testing.assert_close(cache.seen.k[:, :, SEQ:], expected)
    assert torch.equal(cache.seen.positions[..., SEQ:], positions.expand(3, BATCH, SEQ))


@pytest.mark.parametrize("changes", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize(
    ("mine", "theirs"), [(True, False), (False, True), (True, True), (False, False)]
)
def test_rotated_and_unrotated_keys_are_converted_when_a_chunk_is_reused(mine, theirs, changes):
    encoding, (k, v) = rotary(**changes), draw()
    at = {True: lambda first: encoding.rotate(k, counted(first), key=True), False: lambda first: k}
    cache, other = KVCache(rotated=mine), KVCache(rotated=theirs)
    cache.append(at[mine](0), v, counted())
    other.append(at[theirs](100), v, counted(100))
    cache.extend(other, counted(SEQ), encoding)
    torch.testing.assert_close(cache.seen.k[:, :, SEQ:], at[mine](SEQ), atol=1e-12, rtol=1e-10)
    assert torch.equal(cache.seen.positions[:, SEQ:], counted(SEQ).expand(BATCH, -1))


def test_a_chunk_whose_rotation_depends_on_the_length_is_not_converted():
    encoding, (k, v) = rotary(scaling=frequencies.Dynamic(factor=4.0, original_length=4)), draw()
    other = filled(encoding, counted(), k, v, rotated=True)
    assert_refused("other", lambda: KVCache().extend(other, counted(SEQ), encoding))
    other = filled(encoding, counted(), k, v, rotated=False)
    assert_refused("cache", lambda: KVCache(rotated=True).extend(other, counted(SEQ), encoding))


def test_extend_refuses_tokens_without_their_cache():
    encoding, (k, v) = rotary(), draw()
    cache = filled(encoding, counted(), k, v)
    assert_refused("other", lambda: cache.extend(cache.seen, counted(SEQ), encoding))
