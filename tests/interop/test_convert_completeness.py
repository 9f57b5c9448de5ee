"""A folder is converted whole or not at all, and states its layout afterwards."""

from __future__ import annotations

import json
import random

import pytest
import torch
from checkpoint_samples import LATENT, build
from safetensors.torch import load_file, save_file

import ropewalk as rw
from ropewalk import RopeError
from ropewalk.interop.checkpoint import convert_checkpoint, which_layout

CONFIG = {
    "model_type": "llama",
    "hidden_size": 12,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "rope_theta": 1e4,
}
PARTS = ("q_proj", "k_proj", "v_proj", "o_proj")


def named(layers=2, parts=PARTS, prefix="model.layers"):
    return {
        f"{prefix}.{layer}.self_attn.{part}.weight": torch.randn(12, 12)
        for layer in range(layers)
        for part in parts
    }


def folder(path, tensors, **config):
    path.mkdir(parents=True)
    save_file(
        {name: value.contiguous() for name, value in tensors.items()}, path / "model.safetensors"
    )
    (path / "config.json").write_text(json.dumps(CONFIG | config))
    return path


LINEAR = {"layer_types": ["full_attention", "linear_attention"]}
LAYER_0, LAYER_1 = (f"model.layers.{layer}.self_attn" for layer in range(2))


@pytest.mark.parametrize(
    ("tensors", "config", "says"),
    [
        ({f"{LAYER_0}.q_norm.weight": torch.ones(6)}, {}, f"{LAYER_0}: must hold a q projection"),
        (
            named(parts=("q_proj", "kv_proj", "o_proj")),
            {},
            f"{LAYER_0}.kv_proj.weight: must be a known part of attention",
        ),
        (named(parts=("q_proj", "v_proj", "o_proj")), {}, f"{LAYER_0}: must hold a k projection"),
        (named(parts=("q_proj", "k_proj", "o_proj")), {}, f"{LAYER_0}: must hold a v projection"),
        (
            named(1) | {"model.layers.1.attn.c_attn.weight": torch.ones(9, 9)},
            {},
            "model.layers.1: must hold q and k projections",
        ),
        (
            named(1) | {"model.layers.1.mlp.up.weight": torch.randn(36, 12)},
            {},
            "model.layers.1: must hold q and k projections",
        ),
        (
            named() | {f"{LAYER_1}.q_conv1d.weight": torch.randn(12, 1, 4)},
            {},
            f"{LAYER_1}.q_conv1d.weight: must be a known part",
        ),
        (
            named() | named(1, prefix="model.trunk"),
            {},
            "model.trunk.0.self_attn: must be in a numbered layer",
        ),
        # a layer that the config calls linear and that looks like any other
        (
            named(),
            LINEAR,
            f"{LAYER_1}: must not hold a softmax attention, because layer_types declares layer 1",
        ),
        (
            named() | {f"{LAYER_0}.k_norm.weight": torch.ones(9)},
            {},
            "k_norm.weight: must have head_dim = 6 entries",
        ),
        (
            named() | {f"{LAYER_0}.q_proj.SCB": torch.ones(12)},
            {},
            "q_proj.SCB: must be a plain weight or bias",
        ),
        (
            named() | {f"{LAYER_0}.q_proj.weight_scale_inv": torch.ones(2, 1)},
            {},
            "weight_scale_inv: must be a plain weight",
        ),
        (
            named() | {f"{LAYER_0}.q_proj_scale": torch.ones(12)},
            {},
            "q_proj_scale: must be a known part of attention",
        ),
        (
            named() | {f"{LAYER_0}.kv_a_proj_with_mqa.weight": torch.ones(12, 12)},
            {},
            "must come with kv_lora_rank",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_part_that_is_not_understood_is_named(tmp_path, tensors, config, says):
    with pytest.raises(RopeError) as refused:
        convert_checkpoint(
            folder(tmp_path / "a", tensors, **config), tmp_path / "b", "half", "interleaved"
        )
    assert says in str(refused.value)
    assert not (tmp_path / "b").exists()


def test_declared_linear_layers_and_other_towers_are_copied_unchanged(tmp_path):
    linear = named(2, prefix="model.layers").items()
    tensors = {name: value for name, value in linear if ".0." in name}
    tensors |= {f"model.layers.1.linear_attn.{part}.weight": torch.randn(12, 12) for part in PARTS}
    tensors |= {"model.vision_tower.layers.0.self_attn.q_proj.weight": torch.randn(5, 7)}
    report = convert_checkpoint(
        folder(tmp_path / "a", tensors, **LINEAR), tmp_path / "b", "half", "interleaved"
    )
    assert set(report.converted) == {f"{LAYER_0}.q_proj.weight", f"{LAYER_0}.k_proj.weight"}
    after = load_file(tmp_path / "b" / "model.safetensors")
    assert all(
        torch.equal(after[name], value)
        for name, value in tensors.items()
        if name not in report.converted
    )


def test_a_layer_that_the_config_declares_unrotated_may_hold_any_tensors(tmp_path):
    """Without the declaration the same layer is refused by its name."""
    tensors = named(1) | {"model.layers.1.mixer.in_proj.weight": torch.randn(12, 12)}
    report = convert_checkpoint(
        folder(tmp_path / "a", tensors, **LINEAR), tmp_path / "b", "half", "interleaved"
    )
    assert set(report.converted) == {f"{LAYER_0}.q_proj.weight", f"{LAYER_0}.k_proj.weight"}
    with pytest.raises(RopeError, match=r"model\.layers\.1: must hold q and k projections"):
        convert_checkpoint(folder(tmp_path / "c", tensors), tmp_path / "d", "half", "interleaved")


def test_a_projection_of_q_k_or_v_that_is_missing_or_has_an_unknown_name_is_an_error(tmp_path):
    draw = random.Random(1)
    norms = {
        f"model.layers.{i}.self_attn.{n}.weight": torch.ones(6)
        for i in range(2)
        for n in ("q_norm", "k_norm")
    }
    whole = named() | norms
    for number in range(12):
        name = draw.choice([name for name in whole if "norm" not in name and "o_proj" not in name])
        tensors = {key: value for key, value in whole.items() if key != name}
        if number % 2:  # the tensor is there, under an unknown name
            tensors[name.replace("_proj", "_matrix")] = whole[name]
        with pytest.raises(RopeError, match=name.split(".self_attn")[0].replace(".", r"\.")):
            convert_checkpoint(folder(tmp_path / str(number), tensors), None, "half", "interleaved")


def test_a_folder_is_not_converted_twice_the_same_way(tmp_path):
    convert_checkpoint(folder(tmp_path / "a", named()), tmp_path / "b", "half", "interleaved")
    with pytest.raises(
        RopeError, match=r"source_layout: must be 'interleaved', because pair_layout\.json says so"
    ):
        convert_checkpoint(tmp_path / "b", tmp_path / "c", "half", "interleaved")
    convert_checkpoint(tmp_path / "b", tmp_path / "c", "interleaved", "half")
    assert not (tmp_path / "c" / "pair_layout.json").exists()
    assert which_layout(tmp_path / "c").layout == "half"


def test_a_flag_of_the_config_is_believed_and_kept(tmp_path):
    build("deepseek_v3", **LATENT).save_pretrained(tmp_path / "a")
    with pytest.raises(
        RopeError,
        match=r"source_layout: must be 'interleaved', because rope_interleave in config\.json says so",
    ):
        convert_checkpoint(tmp_path / "a", tmp_path / "b", "half", "interleaved")
    convert_checkpoint(tmp_path / "a", tmp_path / "b", "interleaved", "half")
    assert not (tmp_path / "b" / "pair_layout.json").exists()
    assert which_layout(tmp_path / "b").layout == "half"
    # the same model as the text part of another
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    (tmp_path / "a" / "config.json").write_text(
        json.dumps({"model_type": "kimi_vl", "text_config": config})
    )
    convert_checkpoint(tmp_path / "a", tmp_path / "c", "interleaved", "half")
    assert (
        json.loads((tmp_path / "c" / "config.json").read_text())["text_config"]["rope_interleave"]
        is False
    )


def test_a_flag_that_the_models_code_does_not_read_states_nothing(tmp_path):
    """Llama's code pairs halves whatever `rope_interleave` says."""
    path = folder(tmp_path / "a", named(), rope_interleave=True)
    convert_checkpoint(path, tmp_path / "b", "half", "interleaved")
    assert json.loads((tmp_path / "b" / "pair_layout.json").read_text())["layout"] == "interleaved"
    assert (which_layout(path).layout, which_layout(path).confidence) == ("half", "likely")


def test_which_layout_names_the_record_of_a_conversion_and_the_evidence_before_it(tmp_path):
    convert_checkpoint(folder(tmp_path / "a", named()), tmp_path / "b", "half", "interleaved")
    lines = str(which_layout(tmp_path / "b")).splitlines()
    assert lines[0] == "interleaved (likely)"
    assert "pair_layout.json, written by the conversion, states it" in lines[1]
    assert "neither" in lines[2]
    assert "before the conversion: the code of llama" in lines[2]


@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"layout": "neox", "original_layout": "half"}', '{"layout": 1e999}']
)
def test_a_record_that_says_nothing_is_refused(tmp_path, text):
    path = folder(tmp_path / "a", named())
    (path / "pair_layout.json").write_text(text)
    for call in (
        lambda: which_layout(path),
        lambda: convert_checkpoint(path, None, "half", "interleaved"),
    ):
        with pytest.raises(RopeError):
            call()


def test_a_record_may_not_lead_out_of_its_folder(tmp_path):
    path = folder(tmp_path / "a", named())
    (tmp_path / "outside.json").write_text('{"layout": "half", "original_layout": "half"}')
    (path / "pair_layout.json").symlink_to(tmp_path / "outside.json")
    with pytest.raises(RopeError, match="link to a file outside"):
        which_layout(path)


def test_load_refuses_a_folder_converted_to_the_other_layout(tmp_path):
    torch.manual_seed(0)
    model = rw.Decoder(rw.models.DecoderConfig(31, 24, 32, num_layers=1, num_heads=2))
    rw.save(model, tmp_path / "a")
    convert_checkpoint(tmp_path / "a", tmp_path / "b", "half", "interleaved")
    with pytest.raises(
        RopeError,
        match=r"pair_layout\.json: must state the half layout of a llama; convert the folder back",
    ):
        rw.load(tmp_path / "b")
    convert_checkpoint(tmp_path / "b", tmp_path / "c", "interleaved", "half")
    tokens = torch.arange(7)[None]
    assert torch.equal(rw.load(tmp_path / "c")(tokens), model.eval()(tokens))


@pytest.mark.parametrize("prefix", ["mtp.layers", "gravity.layers"])
def test_layers_beside_those_of_the_config_are_converted_too(tmp_path, prefix):
    """Layers that predict further tokens are numbered anew, and "gravity" contains the name of a
    tower, "vit".
    """
    tensors, types = named() | named(1, prefix=prefix), ["full_attention", "full_attention"]
    if prefix == "mtp.layers":
        tensors = {
            name: value for name, value in tensors.items() if not name.startswith("model.layers.0.")
        }
        tensors["model.layers.0.linear_attn.in_proj.weight"] = torch.randn(12, 12)
        types[0] = "linear_attention"
    done = convert_checkpoint(
        folder(tmp_path / "a", tensors, layer_types=types), tmp_path / "b", "half", "interleaved"
    )
    assert f"{prefix}.0.self_attn.q_proj.weight" in done.converted
    found = load_file(tmp_path / "b" / "model.safetensors")
    order = [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]  # two heads of six dims: pairs become neighbours
    for name in done.converted:
        assert torch.equal(found[name], tensors[name][order]), name
