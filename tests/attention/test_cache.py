"""A cache that was moved, cut, reused or re-scaled equals one built from scratch."""

import pytest
import torch

import ropewalk as rw
from ropewalk import frequencies
from ropewalk.attention import Attention, KVCache
from ropewalk.encodings import Sizes
from ropewalk.encodings.rotary import Rotary
from ropewalk.errors import RopeError

BATCH, HEADS, SEQ, HEAD_DIM = 2, 3, 7, 10
SIZES = Sizes(HEADS, HEAD_DIM, HEADS * HEAD_DIM, 64)


def rotary(dtype=torch.float64, **changes):
    return Rotary(SIZES, rw.RopeSpec(head_dim=HEAD_DIM, **changes))


def filled(encoding, positions, k, v, **options):
    cache = KVCache(**options)
    cache.append(encoding.rotate(k, positions, key=True) if cache.keeps_rotated(encoding) else k, v, positions)
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
def test_a_shifted_cache_equals_one_built_there(changes, rotated):
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
    # both members of a pair carry the error of either
    reach = torch.maximum(ulp, ulp.roll(HEAD_DIM // 2, dims=-1))
    assert ((cache.seen.k.double() - built).abs() <= 2 * reach).all()


@pytest.mark.parametrize(
    "target", [frequencies.Yarn(factor=4.0, original_length=8), frequencies.Linear(2.0), frequencies.Ntk(3.0)]
)
def test_a_change_of_scaling_equals_a_rebuilt_cache(target):
    first, second, (k, v) = rotary(), rotary(scaling=target), draw()
    cache = filled(first, counted(3), k, v)
    cache.rescale(first, second)
    torch.testing.assert_close(cache.seen.k, filled(second, counted(3), k, v).seen.k, atol=1e-12, rtol=1e-10)


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
    cache.extend(elsewhere.seen, counted(SEQ), encoding)
    torch.testing.assert_close(cache.seen.k[:, :, SEQ:], encoding.rotate(k, counted(SEQ), key=True), atol=1e-12, rtol=1e-10)


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


def test_a_sliding_cache_keeps_its_sinks_and_the_latest():
    encoding, (k, v) = rotary(), draw()
    cache = KVCache("sliding", capacity=5, sinks=2)
    for i in range(SEQ):
        cache.append(encoding.rotate(k[:, :, i : i + 1], counted(i, 1), key=True), v[:, :, i : i + 1], counted(i, 1))
    assert cache.seen.positions[0].tolist() == [0, 1, 4, 5, 6]


def test_a_sliding_cache_with_a_window_equals_windowed_attention():
    torch.manual_seed(0)
    layer = Attention(SIZES.model_dim, HEADS, encoding="rope", window=3).double()
    x, cache = torch.randn(1, 9, SIZES.model_dim, dtype=torch.float64), KVCache("sliding", capacity=4)
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


def test_a_full_static_cache_and_an_empty_one_say_so():
    encoding, (k, v) = rotary(), draw()
    with pytest.raises(RopeError, match="at most 5"):
        filled(encoding, counted(), k, v, kind="static", capacity=5)
    with pytest.raises(RopeError, match="empty"):
        KVCache().seen


def test_a_cache_emptied_by_eviction_starts_again():
    encoding, (k, v) = rotary(), draw()
    cache = filled(encoding, counted(), k, v)
    cache.evict(0, SEQ)
    assert (len(cache), cache.next_positions) == (0, 0)
    cache.append(k, v, counted())
    assert torch.equal(cache.seen.k, k)
