"""V-JEPA-2 as its checkpoints were trained: equal to transformers, and by measurement no rotation."""

import pytest
import torch
from torch.testing import assert_close

import ropewalk as rw
from door import assert_refused
from ropewalk.attention import KVCache
from ropewalk.encodings import Sizes
from ropewalk.encodings.vjepa2 import VJepa2


def made(head_dim):
    return VJepa2(Sizes(2, head_dim, 2 * head_dim, 64))


def test_vjepa2_gives_the_published_number():
    x = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64).repeat(3)[None, None, None]
    found = made(12).rotate(x, torch.tensor([3]), key=False).view(3, 4)
    expected = torch.tensor([-1.272233, 2.029096, -3.534458, 4.088187], dtype=torch.float64)
    assert_close(found, expected.expand(3, 4), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("head_dim", "slice_dim"), [(64, 20), (12, 4), (7, 2), (20, 6)])
def test_vjepa2_equals_transformers(head_dim, slice_dim):
    modeling = pytest.importorskip("transformers.models.vjepa2.modeling_vjepa2")
    config = modeling.VJEPA2Config(crop_size=12, patch_size=4, frames_per_clip=4, tubelet_size=2)
    theirs = modeling.VJEPA2RopeAttention(config, 2 * head_dim, 2)
    encoding, x = made(head_dim), torch.randn(2, 2, 18, head_dim)
    assert encoding.slice_dim == slice_dim == theirs.d_dim
    positions = rw.positions.grid(2, 3, 3)
    expected = theirs.apply_rotary_embeddings(x, theirs.get_position_ids(torch.zeros(1, 18, 1)))
    assert_close(encoding.rotate(x, positions, key=False), expected, rtol=0, atol=2e-6)


def test_rows_with_different_positions_equal_each_row_alone():
    encoding, x, positions = (
        made(14),
        torch.randn(2, 3, 5, 14, dtype=torch.float64),
        torch.randint(0, 40, (3, 2, 5)),
    )
    whole = encoding.rotate(x, positions, key=True)
    for row in range(2):
        assert_close(
            whole[row : row + 1],
            encoding.rotate(x[row : row + 1], positions[:, row : row + 1], key=True),
        )
    # one list of positions is for all axes and rows
    same = encoding.rotate(x, positions[0, 0], key=True)
    assert_close(same, encoding.rotate(x, positions[0, 0].expand(3, 2, 5), key=True))


def test_vjepa2_is_no_rotation_and_not_relative():
    encoding, x = made(12), torch.randn(1, 2, 5, 12, dtype=torch.float64)
    positions = torch.randint(1, 40, (3, 1, 5))
    rotated_x = encoding.rotate(x, positions, key=False)
    assert (rotated_x.norm(dim=-1) - x.norm(dim=-1)).abs().max() > 0.01
    assert (encoding.rotate(rotated_x, -positions, key=False) - x).abs().max() > 0.01
    shifted = encoding.rotate(x, positions + 7, key=False)
    assert (shifted @ shifted.mT - rotated_x @ rotated_x.mT).abs().max() > 0.01


def test_attention_takes_vjepa2_and_a_cache_refuses_to_move_its_keys():
    layer = rw.Attention(24, 2, encoding=made(12), causal=False)
    x, cache = torch.randn(1, 6, 24), KVCache()
    assert layer(x, rw.positions.grid(1, 2, 3), cache=cache).out.shape == x.shape
    assert "rotated=False" in str(
        assert_refused("encoding", lambda: cache.shift(1, layer.encoding))
    )
    assert "no inverse" in layer.encoding.why_not("rerotate")
    assert layer.encoding.why_not("linear") is None
    assert_refused(
        "encoding", lambda: KVCache().extend(cache, cache.seen.positions + 1, layer.encoding)
    )
    unrotated = KVCache(rotated=False)
    layer(x, rw.positions.grid(1, 2, 3), cache=unrotated)
    unrotated.shift(1, layer.encoding)
    assert torch.equal(unrotated.seen.positions, cache.seen.positions + 1)


def test_a_head_too_small_for_three_axes_is_refused():
    assert_refused("head_dim", lambda: made(5))


@pytest.mark.parametrize("theta", [0, -2.0, float("nan")])
def test_a_theta_without_frequencies_is_refused(theta):
    assert_refused("theta", lambda: VJepa2(Sizes(2, 12, 24, 64), theta))
