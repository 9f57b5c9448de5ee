"""Positions: every builder against a loop over tokens."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ropewalk as rw
from door import as_users_call, assert_refused
from ropewalk import positions
from ropewalk.errors import RopeError
from ropewalk.positions import (
    Image,
    Text,
    Video,
    consecutive,
    decode_positions,
    grid,
    left_padded,
    multimodal,
    packed,
    patch_centres,
)

SEGMENTS = st.one_of(
    st.builds(Text, st.integers(0, 5)),
    st.builds(
        Image, st.integers(1, 4).map(lambda n: 2 * n), st.integers(1, 4).map(lambda n: 2 * n)
    ),
    st.builds(
        Video,
        st.integers(1, 3).map(lambda n: 2 * n),
        st.just(4),
        st.just(2),
        st.sampled_from([0.0, 0.3, 1.0, 2.5, 7.0]),
    ),
)
ROWS = st.lists(st.lists(SEGMENTS, max_size=5), min_size=1, max_size=4)


def walk(row, merge, time_merge, resume):
    """Return [(time, height, width)] of one row by the published rule, token by token."""
    at, found = 0, []
    for segment in row:
        if isinstance(segment, Text):
            found += [(at + i,) * 3 for i in range(segment.tokens)]
            at += segment.tokens
            continue
        h, w = segment.height // merge, segment.width // merge
        frames = segment.frames // time_merge if isinstance(segment, Video) else 1
        interval = np.float32(segment.interval if isinstance(segment, Video) else 1)
        cells = [
            (at + math.floor(np.float32(f) * interval), at + y, at + x)
            for f, y, x in itertools.product(range(frames), range(h), range(w))
        ]
        found += cells
        at = max(map(max, cells)) + 1 if resume == "max" else at + max(h, w)
    return found


class TestConsecutive:
    def test_consecutive_counts_from_one_offset_for_all_rows(self):
        assert consecutive(4, 7).tolist() == [7, 8, 9, 10]
        assert consecutive(3, -2).tolist() == [-2, -1, 0]

    def test_consecutive_counts_from_the_offset_of_each_row(self):
        assert consecutive(3, torch.tensor([0, 5], dtype=torch.int32)).tolist() == [
            [0, 1, 2],
            [5, 6, 7],
        ]

    def test_positions_beyond_32_bits_stay_whole(self):
        assert consecutive(2, 2**40 + 1).tolist() == [2**40 + 1, 2**40 + 2]


class TestPacked:
    @given(st.lists(st.integers(0, 6), max_size=6), st.sampled_from([torch.int32, torch.int64]))
    @settings(deadline=None)
    def test_packed_counts_every_sequence_from_zero(self, lengths, dtype):
        boundaries = torch.tensor([0, *itertools.accumulate(lengths)], dtype=dtype)
        assert packed(boundaries).tolist() == [i for n in lengths for i in range(n)]

    def test_tokens_past_the_last_boundary_are_one_more_sequence(self):
        assert packed(torch.tensor([0, 2, 3]), total=6).tolist() == [0, 1, 0, 0, 1, 2]

    @pytest.mark.parametrize("boundaries", [[1, 3], [0, 4, 2], [-1, 2], [0, -3]])
    def test_refuses_boundaries_that_do_not_begin_with_0_or_that_decrease(self, boundaries):
        assert_refused("cu_seqlens", lambda: packed(torch.tensor(boundaries)))

    def test_refuses_a_total_below_the_last_boundary(self):
        with pytest.raises(RopeError, match="end at most at"):
            packed(torch.tensor([0, 5]), total=4)

    def test_packed_refuses_an_empty_list_of_boundaries(self):
        with pytest.raises(RopeError, match="begin with 0"):
            packed(torch.zeros(0, dtype=torch.int64))

    def test_requires_total_where_boundaries_are_not_on_the_cpu(self):
        assert_refused("total", lambda: packed(torch.zeros(3, dtype=torch.int64, device="meta")))


class TestLeftPadded:
    @pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.uint8])
    def test_real_tokens_count_from_zero_in_every_row(self, dtype):
        real = [7, 4, 1, 0]
        mask = torch.tensor([[0] * (7 - n) + [1] * n for n in real]).to(dtype)
        expected = [[0] * (7 - n) + list(range(n)) for n in real]
        assert left_padded(mask).tolist() == expected

    def test_a_mask_entry_other_than_0_marks_a_real_token(self):
        assert left_padded(torch.tensor([[0, 2, 2, -1]])).tolist() == [[0, 0, 1, 2]]

    def test_padding_on_the_right_has_the_position_of_the_last_token(self):
        assert left_padded(torch.tensor([[1, 1, 1, 0, 0]])).tolist() == [[0, 1, 2, 2, 2]]

    def test_padding_on_the_left_does_not_change_the_positions_of_real_tokens(self):
        rope = rw.Rope(rw.RopeSpec(head_dim=6))
        x = torch.randn(1, 2, 4, 6)
        shifted = torch.cat([torch.zeros(1, 2, 3, 6), x], dim=2)
        positions = left_padded(torch.tensor([[0, 0, 0, 1, 1, 1, 1]]))
        assert torch.equal(rope(shifted, positions=positions)[:, :, 3:], rope(x))


class TestGrid:
    @pytest.mark.parametrize("sizes", [(5,), (3, 5), (2, 3, 4), (2, 1, 3, 2)])
    def test_cells_are_in_raster_order(self, sizes):
        expected = list(itertools.product(*map(range, sizes)))
        found = grid(*sizes)
        assert found.shape == (len(sizes), 1, math.prod(sizes))
        assert [tuple(cell) for cell in found[:, 0].T.tolist()] == expected

    def test_the_first_cell_is_at_start(self):
        assert torch.equal(
            grid(2, 3, start=(10, 20)), grid(2, 3) + torch.tensor([10, 20])[:, None, None]
        )
        assert torch.equal(grid(2, 3, start=4), grid(2, 3) + 4)

    @pytest.mark.parametrize(("sizes", "merge"), [((4, 6), 2), ((6, 3), 3), ((2, 4, 4), 2)])
    def test_merge_orders_the_last_two_axes_in_blocks(self, sizes, merge):
        *outer, height, width = sizes
        expected = [
            (*head, by * merge + y, bx * merge + x)
            for head in itertools.product(*map(range, outer))
            for by in range(height // merge)
            for bx in range(width // merge)
            for y in range(merge)
            for x in range(merge)
        ]
        assert [tuple(cell) for cell in grid(*sizes, merge=merge)[:, 0].T.tolist()] == expected

    @pytest.mark.parametrize(
        ("sizes", "kwargs", "field"),
        [
            ((), {}, "sizes"),
            ((3, 0), {}, "sizes"),
            ((3, 4), {"merge": 2}, "merge"),
            ((4,), {"merge": 2}, "merge"),
            ((4, 4), {"merge": 0}, "merge"),
            ((4, 4), {"start": (1, 2, 3)}, "start"),
        ],
    )
    def test_an_error_names_the_bad_field(self, sizes, kwargs, field):
        assert_refused(field, lambda: grid(*sizes, **kwargs))


class TestMultimodal:
    @given(
        ROWS,
        st.sampled_from([1, 2]),
        st.sampled_from([1, 2]),
        st.sampled_from(["left", "right"]),
        st.sampled_from(["space", "max"]),
    )
    @settings(max_examples=150, deadline=None)
    def test_positions_and_delta_follow_the_rule(self, rows, merge, time_merge, padding, resume):
        positions, delta = multimodal(
            rows, merge=merge, time_merge=time_merge, padding=padding, resume=resume
        )
        expected = [walk(row, merge, time_merge, resume) for row in rows]
        longest = max(map(len, expected))
        assert positions.shape == (3, len(rows), longest)
        for i, row in enumerate(expected):
            filler = [(0, 0, 0)] * (longest - len(row))
            assert [tuple(p) for p in positions[:, i].T.tolist()] == (
                filler + row if padding == "left" else row + filler
            )
            assert delta[i] == max(map(max, row), default=-1) + 1 - len(row)

    def test_with_resume_max_text_continues_one_past_the_last_frame(self):
        positions, delta = multimodal([[Video(2, 1, 1, interval=2.0**22), Text(3)]], resume="max")
        assert positions[:, 0, 2:].tolist() == [[2**22 + 1, 2**22 + 2, 2**22 + 3]] * 3
        assert delta.tolist() == [2**22 + 4 - 5]

    @pytest.mark.parametrize(("frames", "interval", "last"), [(11, 0.7, 7), (101, 0.29, 29)])
    def test_frames_round_as_in_float32(self, frames, interval, last):
        """In float32 10 * 0.7 and 100 * 0.29 are integers; in float64 the second is just below
        29.
        """
        time = multimodal([[Video(frames, 1, 1, interval), Text(1)]], resume="max")[0][0, 0]
        assert time[:-1].tolist() == (torch.arange(frames) * interval).long().tolist()
        assert time[-2:].tolist() == [last, last + 1]

    def test_resume_space_and_max_differ_after_a_video_longer_than_its_sides(self):
        row = [[Text(1), Video(6, 2, 2), Text(1)]]
        # 1 + longer side 2: inside the video's time span
        assert multimodal(row)[0][:, 0, -1].tolist() == [
            3,
            3,
            3,
        ]
        assert multimodal(row, resume="max")[0][:, 0, -1].tolist() == [7, 7, 7]

    @pytest.mark.parametrize(
        ("call", "field"),
        [
            (lambda: multimodal([]), "rows"),
            (lambda: multimodal([Text(3)]), "rows"),
            (lambda: multimodal([["three words"]]), "rows"),
            (lambda: multimodal([[Image(3, 4)]], merge=2), "height"),
            (lambda: multimodal([[Image(4, 3)]], merge=2), "width"),
            (lambda: multimodal([[Video(3, 2, 2)]], time_merge=2), "frames"),
            (lambda: multimodal([[Text(1)]], padding="both"), "padding"),
            (lambda: multimodal([[Text(1)]], resume="later"), "resume"),
            (lambda: multimodal([[Text(1)]], origin="space"), "origin"),
            (lambda: multimodal([[Text(1)]], merge=0), "merge"),
            (lambda: multimodal([[Text(1)]], time_merge=0), "time_merge"),
            (lambda: Text(-1), "tokens"),
            (lambda: Image(0, 2), "height"),
            (lambda: Image(2, 0), "width"),
            (lambda: Video(0, 2, 2), "frames"),
            (lambda: Video(2, 2, 2, interval=-1.0), "interval"),
            (lambda: Video(2, 2, 2, interval=math.nan), "interval"),
            (lambda: Video(2, 2, 2, interval=2.0**24), "interval"),
        ],
    )
    def test_an_error_names_the_bad_field(self, call, field):
        assert_refused(field, call)

    def test_decode_positions_by_delta_continue_the_row(self):
        rows = [[Text(2), Image(4, 6)], [Text(5)]]
        _, delta = multimodal(rows, merge=2)
        whole, _ = multimodal([[*row, Text(3)] for row in rows], merge=2, padding="left")
        index = torch.tensor([2 + 2 * 3, 5])
        assert torch.equal(decode_positions(delta, index, 3), whole[..., -3:])
        assert torch.equal(decode_positions(delta, 8)[:, :, 0], (8 + delta).expand(3, -1))


class TestPatchCentres:
    def test_centres_are_the_middles_of_equal_cells(self):
        found = patch_centres(3, 4)
        assert found.dtype == torch.float64
        assert found.shape == (2, 1, 12)
        expected = [
            (-1 + (2 * y + 1) / 3, -1 + (2 * x + 1) / 4) for y in range(3) for x in range(4)
        ]
        torch.testing.assert_close(
            found[:, 0].T, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-15
        )
        torch.testing.assert_close(patch_centres(3, 4, scale=2.5), 2.5 * found, rtol=0, atol=0)
        assert patch_centres(3, 4, dtype=torch.float32).dtype == torch.float32

    @pytest.mark.parametrize(
        ("args", "field"), [((0, 4), "height"), ((4, 0), "width"), ((4, 4, math.inf), "scale")]
    )
    def test_an_error_names_the_bad_field(self, args, field):
        assert_refused(field, lambda: patch_centres(*args))


def every_builder(device):
    mask = torch.ones(2, 5, dtype=torch.int64).to(device)
    lengths = torch.tensor([0, 2, 5]).to(device)
    delta = torch.tensor([1, 2]).to(device)
    rows = [[Text(2), Image(2, 4), Video(2, 2, 2, 0.5)], [Text(1)]]
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
    return [
        consecutive(3, device=device),
        consecutive(3, delta),
        packed(lengths, total=5),
        left_padded(mask),
        grid(2, 4, 4, merge=2, device=device),
        patch_centres(2, 3, device=device),
        *multimodal(rows, device=device),
        decode_positions(delta, delta, 2),
    ]


def test_no_builder_reads_a_value_of_a_tensor():
    """A meta tensor has no values, so a builder that reads one fails."""
    for made, real in zip(every_builder("meta"), every_builder("cpu"), strict=True):
        assert made.device.type == "meta"
        assert (made.shape, made.dtype) == (real.shape, real.dtype)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_nothing_waits_for_the_gpu():
    try:
        made = every_builder("cuda")
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for there, here in zip(made, every_builder("cpu"), strict=True):
        torch.testing.assert_close(
            there.cpu(), here, rtol=0, atol=0 if here.dtype == torch.int64 else 1e-15
        )


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: consecutive(3, torch.tensor([1]), device="meta"), "device"),
        (lambda: consecutive(-1), "seq"),
        (lambda: consecutive(3, 1.5), "offset"),
        (lambda: consecutive(3, torch.tensor([[1]])), "offset"),
        (lambda: packed([0, 3]), "cu_seqlens"),
        (lambda: packed(torch.tensor([0.0, 3.0])), "cu_seqlens"),
        (lambda: left_padded(torch.tensor([[0.0, 1.0]])), "mask"),
        (lambda: left_padded(torch.tensor([0, 1])), "mask"),
        (lambda: decode_positions(torch.tensor([0]), -1), "index"),
        (lambda: decode_positions(torch.tensor([0]), torch.tensor([0.5])), "index"),
        (lambda: decode_positions(torch.tensor([True]), 1), "delta"),
        (lambda: decode_positions(torch.tensor([0]), 1, -1), "tokens"),
        (lambda: decode_positions(torch.tensor([0, 1]), torch.tensor([1, 2, 3])), "index"),
        (lambda: grid(2**31, 2**31, device="meta"), "sizes"),
        (lambda: multimodal([[Image(2**31, 2**31)]], device="meta"), "rows"),
        (lambda: patch_centres(2, 3, dtype=torch.int64), "dtype"),
        (lambda: rw.positions.stretched_grid(2, 3, 16, dtype=torch.int64), "dtype"),
        (
            lambda: rw.positions.augmented(torch.ones(2, 1, 3, dtype=torch.int64), shift=0.5),
            "centres",
        ),
    ],
)
def test_wrong_arguments_of_builders_are_refused_by_field(call, field):
    assert_refused(field, call)


@pytest.mark.parametrize(
    ("field", "make", "least"),
    [
        ("tokens", Text, 0),
        ("height", lambda n: Image(n, 2), 1),
        ("width", lambda n: Image(2, n), 1),
        ("frames", lambda n: Video(n, 2, 2), 1),
        ("height", lambda n: Video(2, n, 2), 1),
        ("width", lambda n: Video(2, 2, n), 1),
    ],
)
def test_sizes_of_segments_are_accepted_within_their_bounds_and_refused_outside(field, make, least):
    for size in (least, 2**31):
        assert getattr(make(size), field) == size
    for size in (least - 1, 2**31 + 1, 2.0, True):
        assert_refused(field, lambda: make(size))  # noqa: B023 - called at once


def test_packed_and_left_padded_compile_to_one_graph():
    def build(boundaries, mask):
        return packed(boundaries, total=5), left_padded(mask)

    boundaries, mask = torch.tensor([0, 2, 5]), torch.tensor([[0, 1, 1]])
    compiled = torch.compile(build, backend="eager", fullgraph=True)
    with as_users_call():
        made = compiled(boundaries, mask)
    for found, expected in zip(made, build(boundaries, mask), strict=True):
        assert torch.equal(found, expected)


def test_an_offset_may_be_far_below_0_and_a_complex_one_is_refused():
    assert rw.positions.consecutive(2, -(10**12)).tolist() == [-(10**12), 1 - 10**12]
    assert_refused("offset", lambda: consecutive(2, torch.zeros(3, dtype=torch.complex64)))


def test_a_merged_grid_must_divide_on_both_sides():
    for sizes in ((4, 3), (3, 4)):
        with pytest.raises(rw.RopeError, match="merge"):
            rw.positions.grid(*sizes, merge=2)


def test_an_image_of_one_row_has_its_columns_as_positions():
    found, delta = rw.positions.multimodal([[rw.positions.Image(1, 3)]])
    assert found[:, 0].tolist() == [[0, 0, 0], [0, 0, 0], [0, 1, 2]]
    assert delta.tolist() == [0]


def test_the_centres_of_an_image_of_one_row():
    centres = rw.positions.patch_centres(1, 4, scale=2.0)
    assert centres.tolist() == [[[0.0] * 4], [[-1.5, -0.5, 0.5, 1.5]]]


def test_multimodal_refuses_rows_that_are_no_list():
    with pytest.raises(rw.RopeError), as_users_call():
        rw.positions.multimodal(5)


@pytest.mark.parametrize("merge", [1, 2, 3])
@pytest.mark.parametrize("sizes", [(6, 12), (2, 6, 6), (12, 6)])
def test_merged_cells_come_block_by_block_and_row_by_row_within_each(sizes, merge):
    *frames, height, width = sizes
    cells = [
        (*frame, block_row * merge + row, block_column * merge + column)
        for frame in itertools.product(*map(range, frames))
        for block_row in range(height // merge)
        for block_column in range(width // merge)
        for row in range(merge)
        for column in range(merge)
    ]
    found = positions.grid(*sizes, merge=merge)
    assert found.shape == (len(sizes), 1, math.prod(sizes))
    assert found[:, 0].T.tolist() == [list(cell) for cell in cells]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("normalise", ["separate", "max", "min"])
def test_patch_centres_are_rounded_once(dtype, normalise):
    height, width, scale = 7, 11, 2 * math.pi
    units = {"separate": (7, 11), "max": (11, 11), "min": (7, 7)}[normalise]
    found = positions.patch_centres(height, width, scale, dtype, normalise=normalise)
    expected = [
        [scale * ((2 * row + 1) / units[0] - 1), scale * ((2 * column + 1) / units[1] - 1)]
        for row in range(height)
        for column in range(width)
    ]
    wanted = torch.tensor(expected, dtype=torch.float64).to(dtype).T
    assert found.dtype == dtype
    assert (found[:, 0] - wanted).abs().max() <= (1e-15 if dtype == torch.float64 else 0)
