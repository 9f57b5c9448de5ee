"""Positions of images and video in MRoPE-I, VideoRoPE, DINOv3, EVA-02 and diffusion models, against
loops.
"""

import itertools
import math

import pytest
import torch
from torch.testing import assert_close

import ropewalk as rw
from door import assert_refused
from ropewalk.positions import Image, Text, Video, decode_positions, multimodal
from ropewalk.tensor_frequencies import ladder

ROW = [Text(2), Image(4, 6), Text(1), Video(3, 2, 4, 2.0), Text(2), Video(4, 2, 2)]


def walk(row, origin, resume):
    """Return the (time, height, width) of each token of a row, and the position of the next token."""
    at, found = 0, []
    for segment in row:
        if isinstance(segment, Text):
            found += [(at + i,) * 3 for i in range(segment.tokens)]
            at += segment.tokens
            continue
        frames, interval = (
            (segment.frames, segment.interval) if isinstance(segment, Video) else (1, 1)
        )
        height, width, cells = segment.height, segment.width, []
        for f, y, x in itertools.product(range(frames), range(height), range(width)):
            time = at + int(f * interval)
            if origin == "time":
                cells.append((time, time + y - (height - 1) // 2, time + x - (width - 1) // 2))
            else:
                cells.append((time, y, x) if origin == "zero" else (time, at + y, at + x))
        found += cells
        steps = {"space": max(height, width), "time": cells[-1][0] - at + 1}
        steps["max"] = max(steps.values())
        at += steps[resume]
    return found, at


@pytest.mark.parametrize("resume", [None, "space", "max", "time"])
@pytest.mark.parametrize("origin", ["start", "zero", "time"])
def test_every_origin_and_resume_gives_the_positions_of_its_rule(origin, resume):
    positions, _ = multimodal([ROW, ROW[:2]], origin=origin, resume=resume, padding="left")
    rule = resume or {"start": "space", "zero": "max", "time": "time"}[origin]
    expected, _ = walk(ROW, origin, rule)
    assert [tuple(p) for p in positions[:, 0].T.tolist()] == expected
    short, _ = walk(ROW[:2], origin, rule)
    assert [tuple(p) for p in positions[:, 1].T.tolist()] == [(0, 0, 0)] * (
        len(expected) - len(short)
    ) + short


@pytest.mark.parametrize("origin", ["start", "zero", "time"])
@pytest.mark.parametrize("resume", [None, "max", "time"])
@pytest.mark.parametrize("last", [Image(4, 6), Video(5, 2, 2), Text(3)])
def test_decode_positions_continue_as_a_longer_prompt_would(origin, resume, last):
    resume = "max" if (origin, resume) == ("start", None) else resume
    _, delta = multimodal([[Text(2), last]], origin=origin, resume=resume)
    whole, _ = multimodal([[Text(2), last, Text(2)]], origin=origin, resume=resume)
    assert torch.equal(decode_positions(delta, whole.shape[-1] - 2, tokens=2), whole[..., -2:])


def test_origin_zero_counts_rows_and_columns_from_0_and_text_after_them_goes_on():
    positions, _ = multimodal([[Text(2), Image(2, 3), Text(1)]], origin="zero")
    assert positions[0, 0].tolist() == [0, 1, 2, 2, 2, 2, 2, 2, 5]
    assert positions[1, 0].tolist() == [0, 1, 0, 0, 0, 1, 1, 1, 5]
    assert positions[2, 0].tolist() == [0, 1, 0, 1, 2, 0, 1, 2, 5]


def test_video_rope_puts_every_frame_around_its_time():
    positions, _ = multimodal([[Text(2), Video(2, 2, 3, interval=2), Text(1)]], origin="time")
    assert positions[:, 0, 2].tolist() == [2, 2, 1]
    assert positions[:, 0, -2].tolist() == [4, 5, 5]
    assert positions[:, 0, -1].tolist() == [5, 5, 5]


@pytest.mark.parametrize(("height", "width"), [(2, 2), (3, 5), (4, 1)])
@pytest.mark.parametrize("normalise", ["separate", "max", "min"])
def test_patch_centres_have_the_unit_that_normalise_chooses(height, width, normalise):
    centres = rw.positions.patch_centres(height, width, normalise=normalise)
    unit = {
        "separate": (height, width),
        "max": (max(height, width),) * 2,
        "min": (min(height, width),) * 2,
    }[normalise]
    expected = [
        ((2 * y + 1) / unit[0] - 1, (2 * x + 1) / unit[1] - 1)
        for y in range(height)
        for x in range(width)
    ]
    assert_close(centres[:, 0].T, torch.tensor(expected, dtype=torch.float64))


def test_dinov3_angles_are_those_worked_out_by_hand():
    spec = rw.RopeSpec(8, theta=100.0, axes=rw.axes.normalised(2, 2))
    centres = rw.positions.patch_centres(2, 2, scale=2 * math.pi)
    angles = centres[list(spec.axis_of_pair)].movedim(0, -1) * ladder(spec).radians
    assert_close(angles[0, 0], torch.tensor([-1, -0.1, -1, -0.1], dtype=torch.float64) * math.pi)
    cos, sin = rw.Rope(spec).cos_sin(centres, torch.float64)
    assert_close(
        torch.atan2(sin, cos)[0, 3, [1, 3]],
        torch.tensor([0.314159] * 2, dtype=torch.float64),
        rtol=0,
        atol=1e-6,
    )
    assert_close(cos[0, 3, [0, 2]], torch.tensor([-1.0] * 2, dtype=torch.float64))


class TestAugmented:
    centres = rw.positions.patch_centres(3, 5)

    def test_augmented_without_options_changes_no_centre(self):
        assert torch.equal(rw.positions.augmented(self.centres), self.centres)

    @pytest.mark.parametrize(
        ("option", "most", "shared"),
        [("shift", 0.3, False), ("jitter", 2.0, False), ("rescale", 2.0, True)],
    )
    def test_each_option_changes_axes_within_its_bounds(self, option, most, shared):
        generator, seen = torch.Generator().manual_seed(4), []
        for _ in range(200):
            made = rw.positions.augmented(self.centres, **{option: most}, generator=generator)
            change = (
                made - self.centres
                if option == "shift"
                else made[:, :, [0, -1]] / self.centres[:, :, [0, -1]]
            )
            assert_close(change, change[:, :, :1].expand_as(change))  # one number for each axis
            seen.append(change[:, 0, 0])
        seen = torch.stack(seen) if option == "shift" else torch.stack(seen).log()
        bound = most if option == "shift" else math.log(most)
        assert seen.abs().max() <= bound
        assert seen.min() < -0.9 * bound
        assert seen.max() > 0.9 * bound
        assert seen.mean().abs() < 0.2 * bound
        assert torch.allclose(seen[:, 0], seen[:, 1]) is shared

    def test_augmented_centres_equal_those_of_transformers(self, monkeypatch):
        modeling = pytest.importorskip("transformers.models.dinov3_vit.modeling_dinov3_vit")
        theirs = modeling.get_patches_center_coordinates(3, 5, torch.float64, torch.device("cpu"))
        assert_close(self.centres[:, 0].T, theirs)
        # both libraries then draw every random number at the upper end of its range
        monkeypatch.setattr(
            torch, "rand", lambda *sizes, dtype, device, generator: torch.ones(*sizes, dtype=dtype)
        )
        monkeypatch.setattr(torch.Tensor, "uniform_", lambda drawn, low, high: drawn.fill_(high))
        options = {"shift": 0.25, "jitter": 1.5, "rescale": 2.0}
        moved = modeling.augment_patches_center_coordinates(theirs, **options)
        assert_close(rw.positions.augmented(self.centres, **options)[:, 0].T, moved)

    @pytest.mark.parametrize("option", ["shift", "jitter", "rescale"])
    def test_an_error_names_the_bad_field(self, option):
        assert_refused(option, lambda: rw.positions.augmented(self.centres, **{option: -1.0}))


def test_eva_stretches_every_grid_to_the_pretrained_one():
    found = rw.positions.stretched_grid(4, 2, 16)
    assert found[0, 0].tolist() == [0, 0, 4, 4, 8, 8, 12, 12]
    assert found[1, 0].tolist() == [0, 8] * 4


def test_eva_rotates_as_timm_does():
    timm = pytest.importorskip("timm.layers.pos_embed_sincos")
    spec = rw.RopeSpec(16, axes=rw.axes.normalised(4, 4), layout="interleaved")
    sin, cos = timm.build_rotary_pos_embed([3, 5], dim=16, in_pixels=False, ref_feat_shape=[16, 16])
    x = torch.randn(2, 3, 15, 16)
    theirs = timm.apply_rot_embed_cat(x, torch.cat((sin, cos), dim=-1))
    assert_close(
        rw.Rope(spec)(x, positions=rw.positions.stretched_grid(3, 5, pretrained=16)),
        theirs,
        rtol=0,
        atol=5e-6,
    )


class TestDiffusion:
    def test_flux_has_all_text_tokens_at_the_origin(self):
        assert rw.positions.flux(2, 3, text=2)[:, 0].T.tolist() == [
            [0, 0, 0],
            [0, 0, 0],
            [0, 0, 0],
            [0, 0, 1],
            [0, 0, 2],
            [0, 1, 0],
            [0, 1, 1],
            [0, 1, 2],
        ]

    def test_flux2_counts_text_on_its_own_axis_and_references_in_tens(self):
        found = rw.positions.flux2(1, 2, text=3, references=[(2, 1), (1, 1)])[:, 0].T.tolist()
        assert found == [
            [0, 0, 0, 0],
            [0, 0, 0, 1],
            [0, 0, 0, 2],
            [0, 0, 0, 0],
            [0, 0, 1, 0],
            [10, 0, 0, 0],
            [10, 1, 0, 0],
            [20, 0, 0, 0],
        ]

    def test_qwen_image_counts_from_the_centre(self):
        image, text = rw.positions.qwen_image([(1, 3, 4)], text=2)
        assert image[1, 0, ::4].tolist() == [-2, -1, 0]
        assert image[2, 0, :4].tolist() == [-2, -1, 0, 1]
        assert text[:, 0].tolist() == [[2, 3]] * 3

    def test_qwen_image_counts_images_in_time(self):
        image, text = rw.positions.qwen_image([(1, 1, 2), (2, 1, 1), (1, 7, 1)], text=1)
        assert image[0, 0].tolist() == [0, 0, 1, 2, *[2] * 7]
        assert text[0, 0].tolist() == [3]

    @pytest.mark.parametrize(
        ("call", "field"),
        [
            (lambda: rw.positions.qwen_image([]), "images"),
            (lambda: rw.positions.qwen_image([(1, 2)]), "images"),
            (lambda: rw.positions.qwen_image([3]), "images"),
            (lambda: rw.positions.qwen_image([(1, "2", 3)]), "images"),
            (lambda: rw.positions.flux2(2, 2, references=[(2, 2, 2)]), "references"),
            (lambda: rw.positions.flux2(2, 2, references=[(2, 0)]), "references"),
            (lambda: rw.positions.flux(2, 2, text=-1), "text"),
            (lambda: rw.positions.flux(0, 2), "sizes"),
            (lambda: rw.positions.stretched_grid(2, 0, 16), "width"),
            (lambda: rw.positions.stretched_grid(2, 2, 0), "pretrained"),
            (lambda: rw.positions.patch_centres(2, 2, normalise="none"), "normalise"),
            (lambda: rw.positions.patch_centres(2, 2, dtype=torch.float16), "dtype"),
            (lambda: rw.positions.stretched_grid(2, 2, 16, dtype=torch.float16), "dtype"),
            (lambda: rw.positions.augmented(torch.zeros(2, 1, 4).half()), "centres"),
        ],
    )
    def test_an_error_names_the_bad_field(self, call, field):
        assert_refused(field, call)
