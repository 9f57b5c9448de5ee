"""Positions against transformers itself: M-RoPE of four model families, patch order, patch centres."""

import math
import random

import pytest
import torch

import ropewalk as rw
from ropewalk.positions import Image, Text, Video, decode_positions, grid, multimodal, patch_centres


def tokens_of(segment, merge=1, time_merge=1):
    if isinstance(segment, Text):
        return segment.tokens
    frames = segment.frames // time_merge if isinstance(segment, Video) else 1
    return frames * (segment.height // merge) * (segment.width // merge)


def tiny(name):
    """A model of transformers with no weights, and its merge sizes: only its position rule is
    asked.
    """
    transformers = pytest.importorskip("transformers")
    prefix = {
        "qwen2_vl": "Qwen2VL",
        "qwen2_5_vl": "Qwen2_5_VL",
        "qwen3_vl": "Qwen3VL",
        "ernie4_5_vl_moe": "Ernie4_5_VLMoe",
    }[name]
    sections = [1, 1, 2] if "ernie" in name else [2, 1, 1]
    text = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "vocab_size": 32,
        "head_dim": 8,
        "pad_token_id": 0,
        "moe_intermediate_size": [8, 8],
        "moe_num_experts": 2,
        "moe_k": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": sections},
    }
    vision = {
        "depth": 1,
        "hidden_size": 16,
        "embed_dim": 16,
        "num_heads": 2,
        "intermediate_size": 16,
        "out_hidden_size": 16,
    }
    config = getattr(transformers, f"{prefix}Config")(text_config=text, vision_config=vision)
    with torch.device("meta"):
        model = getattr(transformers, f"{prefix}Model")(config)
    return (
        model,
        config.vision_config.spatial_merge_size,
        getattr(config.vision_config, "temporal_merge_size", 1),
    )


def random_rows(seed, merge, time_merge, intervals):
    """Rows as a chat has them: text between all grids (transformers tells neighbouring grids apart
    by the text between).
    """
    rng = random.Random(seed)
    rows = []
    for _ in range(3):
        row = [Text(rng.randint(1, 5))]
        for _ in range(rng.randint(1, 3)):
            h, w = (merge * rng.randint(1, 4) for _ in range(2))
            video = Video(time_merge * rng.randint(1, 4), h, w, rng.choice(intervals))
            row += [rng.choice([Image(h, w), video]), Text(rng.randint(1, 5))]
        rows.append(row)
    return rows


def as_hf(rows, merge, time_merge, padding):
    """What a processor of transformers would hand to its model."""
    lengths = [sum(tokens_of(s, merge, time_merge) for s in row) for row in rows]
    kinds, mask = (torch.zeros(len(rows), max(lengths), dtype=torch.int64) for _ in range(2))
    for i, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        kind = [
            k
            for s in row
            for k in [{Text: 0, Image: 1, Video: 2}[type(s)]] * tokens_of(s, merge, time_merge)
        ]
        where = slice(max(lengths) - length, None) if padding == "left" else slice(length)
        kinds[i, where], mask[i, where] = torch.tensor(kind), 1
    images = [[1, s.height, s.width] for row in rows for s in row if isinstance(s, Image)]
    videos = [s for row in rows for s in row if isinstance(s, Video)]
    grids = [[s.frames, s.height, s.width] for s in videos]
    return {
        "input_ids": torch.ones_like(kinds),
        "mm_token_type_ids": kinds,
        "attention_mask": mask,
        "image_grid_thw": torch.tensor(images) if images else None,
        "video_grid_thw": torch.tensor(grids) if grids else None,
    }, [s.interval for s in videos]


class TestAgainstTransformers:
    @pytest.mark.parametrize("padding", ["left", "right"])
    @pytest.mark.parametrize("name", ["qwen2_vl", "ernie4_5_vl_moe"])
    def test_positions_and_delta(self, name, padding):
        model, merge, time_merge = tiny(name)
        for seed in range(5):
            rows = random_rows(seed, merge, time_merge, [1.0])
            inputs, _ = as_hf(rows, merge, time_merge, padding)
            theirs, their_delta = model.get_rope_index(**inputs)
            ours, delta = multimodal(rows, merge=merge, time_merge=time_merge, padding=padding)
            assert torch.equal(ours, theirs)
            assert torch.equal(delta, their_delta[:, 0])

    @pytest.mark.parametrize("padding", ["left", "right"])
    def test_qwen_2_5_spaces_frames_by_time(self, padding):
        model, merge, _ = tiny("qwen2_5_vl")
        rate = model.config.vision_config.tokens_per_second
        for seed in range(5):
            seconds = [0.1, 0.5, 1 / 3, 1.0, 2.7]
            rows = random_rows(seed, merge, 1, [rate * s for s in seconds])
            inputs, intervals = as_hf(rows, merge, 1, padding)
            theirs, their_delta = model.get_rope_index(
                **inputs, second_per_grid_ts=[i / rate for i in intervals]
            )
            ours, delta = multimodal(rows, merge=merge, padding=padding)
            assert torch.equal(ours, theirs)
            assert torch.equal(delta, their_delta[:, 0])

    def test_qwen_3_gives_every_frame_a_timestamp_of_text(self):
        model, merge, _ = tiny("qwen3_vl")
        frame = Image(2 * merge, 3 * merge)
        row = [Text(2), frame, Text(3), frame, Text(1), Image(merge, 4 * merge), Text(2)]
        inputs, _ = as_hf([row], merge, 1, "right")
        # transformers takes the first two grids as one video of two frames, the last as an image
        kinds = inputs["mm_token_type_ids"]
        kinds[:, : 2 + 6 + 3 + 6] *= 2
        inputs |= {
            "video_grid_thw": torch.tensor([[2, frame.height, frame.width]]),
            "image_grid_thw": inputs["image_grid_thw"][2:],
        }
        theirs, their_delta = model.get_rope_index(**inputs)
        ours, delta = multimodal([row], merge=merge)
        assert torch.equal(ours, theirs)
        assert torch.equal(delta, their_delta[:, 0])

    def test_decode_positions_equal_those_of_transformers(self):
        model, merge, _ = tiny("qwen2_vl")
        rows = random_rows(1, merge, 1, [1.0])
        inputs, _ = as_hf(rows, merge, 1, "left")
        _, model.rope_deltas = model.get_rope_index(**inputs)
        _, delta = multimodal(rows, merge=merge, padding="left")
        grown = torch.cat([inputs["attention_mask"], torch.ones(3, 1, dtype=torch.int64)], dim=1)
        theirs = model.compute_3d_position_ids(
            None, torch.zeros(3, grown.shape[1], 1), attention_mask=grown
        )[..., -1:]
        assert torch.equal(decode_positions(delta, inputs["attention_mask"].sum(-1)), theirs)


@pytest.mark.parametrize("include_temporal", [False, True])
def test_merged_grids_have_the_patch_order_of_qwen_vl(include_temporal):
    vision = pytest.importorskip("transformers.vision_utils")
    theirs = vision.get_vision_position_ids(
        torch.tensor([[2, 4, 6]]), 2, include_temporal=include_temporal
    )
    ours = grid(2, 4, 6, merge=2)[0 if include_temporal else 1 :, 0]
    assert torch.equal(ours.T, theirs)


@pytest.mark.parametrize(("height", "width"), [(3, 5), (4, 4)])
def test_patch_centres_give_the_cos_and_sin_of_dinov3(height, width):
    transformers = pytest.importorskip("transformers")
    from transformers.models.dinov3_vit.modeling_dinov3_vit import DINOv3ViTRopePositionEmbedding

    config = transformers.DINOv3ViTConfig(
        hidden_size=48, num_attention_heads=2, patch_size=4, image_size=16
    )
    cos, sin = DINOv3ViTRopePositionEmbedding(config).eval()(
        torch.zeros(1, 3, 4 * height, 4 * width)
    )
    spec = rw.RopeSpec(head_dim=24, theta=config.rope_theta, axes=rw.axes.normalised(6, 6))
    ours = rw.Rope(spec).cos_sin_hf(patch_centres(height, width, scale=2 * math.pi))
    for mine, theirs in zip(ours, (cos, sin), strict=True):
        torch.testing.assert_close(mine[0], theirs, rtol=0, atol=2e-6)
