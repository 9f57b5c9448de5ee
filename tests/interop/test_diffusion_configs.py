"""Image and video models: specs from the configs of diffusers, compared with diffusers' own tables
where it is installed.
"""

import json

import pytest
import torch
from torch.testing import assert_close

import ropewalk as rw
from door import assert_refused
from ropewalk.config.diffusion import models
from ropewalk.tensor_frequencies import ladder

#: class -> (config, dims of the axes, theta): the defaults, and other values
CASES = [
    ("FluxTransformer2DModel", {}, (16, 56, 56), 1e4),
    ("FluxTransformer2DModel", {"axes_dims_rope": [4, 6, 10]}, (4, 6, 10), 1e4),
    ("Flux2Transformer2DModel", {}, (32, 32, 32, 32), 2000.0),
    (
        "Flux2Transformer2DModel",
        {"axes_dims_rope": [4, 6, 2, 4], "rope_theta": 300},
        (4, 6, 2, 4),
        300.0,
    ),
    ("HunyuanVideoTransformer3DModel", {}, (16, 56, 56), 256.0),
    (
        "HunyuanVideoTransformer3DModel",
        {"rope_axes_dim": [4, 6, 8], "rope_theta": 100.0},
        (4, 6, 8),
        100.0,
    ),
    ("QwenImageTransformer2DModel", {}, (16, 56, 56), 1e4),
    ("WanTransformer3DModel", {"attention_head_dim": 128}, (44, 42, 42), 1e4),
    ("WanTransformer3DModel", {"attention_head_dim": 20}, (8, 6, 6), 1e4),
]
#: classes whose code in diffusers computes frequencies in float32
FLOAT32 = {"HunyuanVideoTransformer3DModel", "QwenImageTransformer2DModel"}
cases = pytest.mark.parametrize(("name", "config", "dims", "theta"), CASES)


@cases
def test_from_hf_reads_the_dims_of_the_axes_and_theta(name, config, dims, theta, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"_class_name": name, **config}), encoding="utf-8")
    spec = rw.from_hf(path)
    assert (spec.head_dim, spec.theta, spec.layout) == (sum(dims), theta, "interleaved")
    assert spec.axes == rw.axes.axial(*(dim // 2 for dim in dims))
    expected = [theta ** (-2 * i / dim) for dim in dims for i in range(dim // 2)]
    exact = name not in FLOAT32
    found = ladder(spec).radians
    assert_close(
        found, torch.tensor(expected, dtype=torch.float64), rtol=1e-14 if exact else 1e-6, atol=0
    )
    assert torch.equal(found, found.float().double()) == (not exact)
    assert rw.explain(path).as_dict()["full_attention"]["theta"]["value"] == theta


def test_every_class_of_diffusers_that_from_hf_reads_has_a_case():
    assert {name for name, *_ in CASES} == set(models())


def tables(spec, positions):
    """cos and sin [tokens, head_dim], each entry twice, as diffusers repeats them for interleaved
    pairs.
    """
    return tuple(table[0] for table in rw.Rope(spec).cos_sin_hf(positions))


def spec_of(name, **config):
    return rw.from_hf({"_class_name": name, **config})


class TestAgainstDiffusers:
    models = staticmethod(
        lambda name: pytest.importorskip(f"diffusers.models.transformers.transformer_{name}")
    )

    def assert_tables(self, ours, theirs, bound=1e-7):
        for mine, other in zip(ours, theirs, strict=True):
            assert_close(mine, other.reshape(mine.shape).float(), rtol=0, atol=bound)

    def test_tables_and_rotation_of_flux_are_those_of_diffusers(self):
        theirs = self.models("flux").FluxPosEmbed(theta=10000, axes_dim=[4, 6, 10])
        spec = spec_of("FluxTransformer2DModel", axes_dims_rope=[4, 6, 10])
        positions = rw.positions.flux(3, 5, text=2)
        self.assert_tables(tables(spec, positions), theirs(positions[:, 0].T))
        embeddings = pytest.importorskip("diffusers.models.embeddings")
        q = torch.randn(1, 2, positions.shape[-1], 20)
        rotated = embeddings.apply_rotary_emb(q, theirs(positions[:, 0].T))
        assert_close(rw.Rope(spec)(q, positions=positions), rotated, rtol=0, atol=1e-6)

    def test_positions_of_flux_are_those_of_diffusers(self):
        pipeline = pytest.importorskip("diffusers.pipelines.flux.pipeline_flux").FluxPipeline
        ids = pipeline._prepare_latent_image_ids(1, 3, 5, "cpu", torch.float32)
        assert torch.equal(rw.positions.flux(3, 5)[:, 0].T.float(), ids)

    def test_positions_and_tables_of_flux2_are_those_of_diffusers(self):
        theirs = self.models("flux2").Flux2PosEmbed(theta=2000, axes_dim=[32] * 4)
        pipeline = pytest.importorskip("diffusers.pipelines.flux2.pipeline_flux2").Flux2Pipeline
        text = pipeline._prepare_text_ids(torch.zeros(1, 3, 1))[0]
        image = pipeline._prepare_latent_ids(torch.zeros(1, 1, 2, 4))[0]
        references = pipeline._prepare_image_ids(
            [torch.zeros(1, 1, 2, 3), torch.zeros(1, 1, 1, 2)]
        )[0]
        ids = torch.cat([text, image, references])
        positions = rw.positions.flux2(2, 4, text=3, references=[(2, 3), (1, 2)])
        assert torch.equal(positions[:, 0].T, ids)
        self.assert_tables(tables(spec_of("Flux2Transformer2DModel"), positions), theirs(ids))

    def test_tables_of_wan_are_those_of_diffusers(self):
        theirs = self.models("wan").WanRotaryPosEmbed(128, (1, 2, 2), 1024)
        positions = rw.positions.grid(3, 2, 4)
        latents = torch.zeros(1, 1, 3, 4, 8)
        self.assert_tables(
            tables(spec_of("WanTransformer3DModel", attention_head_dim=128), positions),
            theirs(latents),
        )

    def test_tables_of_hunyuan_video_are_those_of_diffusers(self):
        theirs = self.models("hunyuan_video").HunyuanVideoRotaryPosEmbed(2, 1, [16, 56, 56])
        positions = rw.positions.grid(3, 2, 4)
        spec = spec_of("HunyuanVideoTransformer3DModel")
        # diffusers' angles are float32
        self.assert_tables(tables(spec, positions), theirs(torch.zeros(1, 1, 3, 4, 8)), 1e-6)

    @pytest.mark.parametrize("images", [[(1, 3, 4)], [(1, 4, 6), (2, 3, 3), (1, 9, 2)]])
    def test_positions_and_tables_of_qwen_image_are_those_of_diffusers(self, images):
        theirs = self.models("qwenimage").QwenEmbedRope(
            theta=10000, axes_dim=[16, 56, 56], scale_rope=True
        )
        image, text = theirs([images], torch.device("cpu"), max_txt_seq_len=5)
        ours = rw.positions.qwen_image(images, text=5)
        rope = rw.Rope(spec_of("QwenImageTransformer2DModel"))
        for positions, z in zip(ours, (image, text), strict=True):
            cos, sin = rope.cos_sin(positions)
            self.assert_tables((cos[0], sin[0]), (z.real, z.imag), 1e-6)  # their angles are float32


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"_class_name": "UNet2DConditionModel"}, "_class_name"),
        ({"_class_name": ["FluxTransformer2DModel"]}, "_class_name"),
        ({"_class_name": "FluxTransformer2DModel", "axes_dims_rope": [16, 56]}, "axes_dims_rope"),
        (
            {"_class_name": "FluxTransformer2DModel", "axes_dims_rope": [16, 55, 57]},
            "axes_dims_rope",
        ),
        (
            {"_class_name": "FluxTransformer2DModel", "axes_dims_rope": [16, 56, 0]},
            "axes_dims_rope",
        ),
        ({"_class_name": "FluxTransformer2DModel", "axes_dims_rope": "16"}, "axes_dims_rope"),
        ({"_class_name": "Flux2Transformer2DModel", "rope_theta": -1}, "rope_theta"),
        ({"_class_name": "WanTransformer3DModel", "attention_head_dim": 5}, "attention_head_dim"),
        ({"_class_name": "WanTransformer3DModel", "attention_head_dim": 127}, "attention_head_dim"),
    ],
)
def test_a_bad_config_of_diffusers_is_refused_by_its_field(config, field):
    assert_refused(field, lambda: rw.from_hf(config))


@pytest.mark.parametrize("name", models())
def test_an_unknown_precision_policy_is_refused(name):
    assert_refused("precision", lambda: rw.from_hf({"_class_name": name}, precision="bogus"))
