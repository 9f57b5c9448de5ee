"""The verdict on a checkpoint's layout rests on evidence that is listed, and is withheld where
there is none.
"""

from __future__ import annotations

import json
import re
import sys

import numpy as np
import pytest
import torch
from checkpoint_samples import LATENT, build
from safetensors.torch import load_file, save_file

from ropewalk.interop.checkpoint.convert import convert_checkpoint
from ropewalk.interop.checkpoint.which_layout import _agreements, _layout_that_agrees, which_layout

HEADS, PAIRS = 6, 8
MODULE = "ropewalk.interop.checkpoint.which_layout"


def folder(
    path,
    config,
    pairing=None,
    names=("q_proj", "k_proj"),
    inner="self_attn",
    dtype=torch.float32,
    layers=2,
):
    """Some layers of projections; `pairing` plants norms that the two rows of a pair share, by the
    definition of the layout.
    """
    torch.manual_seed(2)
    path.mkdir()
    tensors = {}
    for layer in range(layers):
        for name in names:
            rows = torch.randn(HEADS, 2 * PAIRS, 24)
            for head in range(HEADS if pairing else 0):
                for pair, size in enumerate(torch.randn(PAIRS).exp()):
                    members = (
                        (pair, pair + PAIRS) if pairing == "half" else (2 * pair, 2 * pair + 1)
                    )
                    rows[head, members, :] *= size
            tensors[f"model.layers.{layer}.{inner}.{name}.weight"] = rows.reshape(-1, 24)
        tensors[f"model.layers.{layer}.{inner}.{'wv' if 'wq' in names else 'v_proj'}.weight"] = (
            torch.randn(8, 24)
        )
    save_file(
        {name: tensor.to(dtype) for name, tensor in tensors.items()}, path / "model.safetensors"
    )
    sizes = {
        "hidden_size": 96,
        "num_attention_heads": HEADS,
        "head_dim": 2 * PAIRS,
        "rope_theta": 1e4,
    }
    (path / "config.json").write_text(json.dumps({**sizes, **config}))
    return path


def weights_say(found):
    return found.evidence[-1].layout


@pytest.mark.parametrize("pairing", ["half", "interleaved"])
def test_planted_norms_are_seen_and_called_weak(tmp_path, pairing):
    found = which_layout(folder(tmp_path / "a", {}, pairing))
    assert (found.layout, found.confidence) == (pairing, "weak")
    assert "24 heads" in found.evidence[-1].observation
    other = "half" if pairing == "interleaved" else "interleaved"
    convert_checkpoint(tmp_path / "a", tmp_path / "b", pairing, other)
    assert which_layout(tmp_path / "b").layout == other


@pytest.mark.parametrize("pairing", [None, "half", "interleaved"])
def test_the_agreement_is_a_mean_over_heads_and_its_standard_error(tmp_path, pairing):
    path = folder(tmp_path / "a", {}, pairing)
    observation = which_layout(path).evidence[-1].observation
    stated = re.findall(r"(-?[\d.]+) ± ([\d.]+) as (\w+)", observation)
    assert [name for *_, name in stated] == ["half", "interleaved"]
    heads = np.concatenate(
        [
            np.log(np.linalg.norm(tensor.double().numpy(), axis=1)).reshape(HEADS, 2 * PAIRS)
            for name, tensor in load_file(path / "model.safetensors").items()
            if "v_proj" not in name
        ]
    )
    for mean, error, layout in stated:
        split = heads.reshape(-1, 2, PAIRS) if layout == "half" else heads.reshape(-1, PAIRS, 2)
        gaps = np.diff(split, axis=1 if layout == "half" else 2).reshape(len(heads), PAIRS)
        agreements = 1 - (gaps**2).mean(axis=1) / (2 * heads.var(axis=1, ddof=1))
        assert float(mean) == pytest.approx(agreements.mean(), abs=0.006)
        wanted = agreements.std(ddof=1) / np.sqrt(len(agreements))
        assert float(error) == pytest.approx(wanted, abs=0.006)


def test_random_weights_give_no_evidence_for_a_layout(tmp_path):
    found = which_layout(folder(tmp_path / "a", {}))
    assert (found.layout, found.confidence) == (None, "undecided")
    assert all(each.layout is None for each in found.evidence)


@pytest.mark.parametrize(
    ("family", "layout"),
    [("llama", "half"), ("cohere", "interleaved"), ("qwen3", "half"), ("glm4", "interleaved")],
)
def test_a_folder_with_the_familys_names_has_the_layout_of_its_code(tmp_path, family, layout):
    found = which_layout(
        folder(tmp_path / "a", {"model_type": family, "partial_rotary_factor": 1.0})
    )
    assert (found.layout, found.confidence) == (layout, "likely")
    assert family in found.evidence[0].observation


def test_weights_that_contradict_the_code_make_the_layout_disputed(tmp_path):
    found = which_layout(folder(tmp_path / "a", {"model_type": "llama"}, "interleaved"))
    assert (found.layout, found.confidence) == ("half", "disputed")
    assert weights_say(found) == "interleaved"


def test_the_code_of_a_family_that_no_spec_describes_is_no_evidence(tmp_path):
    found = which_layout(folder(tmp_path / "a", {"model_type": "nanochat"}))
    assert (found.layout, found.confidence) == (None, "undecided")
    assert found.evidence[0].observation.startswith(
        "no spec describes the rotation of nanochat: it rotates by the opposite angle"
    )


def test_metas_names_outweigh_the_model_type(tmp_path):
    path = folder(tmp_path / "a", {"model_type": "llama"}, names=("wq", "wk"), inner="attention")
    found = which_layout(path)
    assert (found.layout, found.confidence) == ("interleaved", "likely")
    (path / "params.json").write_text("{}")
    assert [each.layout for each in which_layout(path).evidence[:2]] == ["interleaved"] * 2


@pytest.mark.parametrize("flag", [True, False])
def test_a_flag_in_the_config_is_believed(tmp_path, flag):
    build("deepseek_v3", **LATENT, rope_interleave=flag).save_pretrained(tmp_path)
    found = which_layout(tmp_path)
    assert found.layout == ("interleaved" if flag else "half")
    assert "rope_interleave" in found.evidence[0].observation


def test_the_verdict_prints_and_is_plain_data(tmp_path):
    found = which_layout(folder(tmp_path / "a", {"model_type": "llama"}))
    assert json.loads(json.dumps(found.as_dict()))["layout"] == "half"
    assert str(found).splitlines()[0] == "half (likely)"
    assert len(str(found).splitlines()) == 1 + len(found.evidence)


def test_strong_evidence_for_both_layouts_is_undecided_whatever_the_weights_say(tmp_path):
    """Tensors under the names of Hugging Face, whose code pairs halves, beside a file of Meta's
    folders.
    """
    path = folder(tmp_path / "a", {"model_type": "llama"}, "half")
    (path / "params.json").write_text("{}")
    found = which_layout(path)
    assert {each.layout for each in found.evidence if each.strength == "strong"} == {
        "half",
        "interleaved",
    }
    assert weights_say(found) == "half"
    assert (found.layout, found.confidence) == (None, "undecided")


def test_weights_of_eight_bits_are_too_coarse_to_compare(tmp_path):
    found = which_layout(folder(tmp_path / "a", {}, "half", dtype=torch.float8_e4m3fn))
    assert found.layout is None
    assert found.evidence[-1].observation == "too few heads to compare the norms of paired rows"


def test_of_packed_q_and_k_no_norms_are_compared(tmp_path):
    build("phi3").save_pretrained(tmp_path)
    found = which_layout(tmp_path)
    assert (found.layout, found.confidence) == ("half", "likely")
    assert found.evidence[-1].observation.startswith("q and k are packed in one tensor")


@pytest.mark.parametrize(
    ("half", "interleaved", "layout"),
    [
        ((0.5, 0.01), (0.9, 0.01), "half"),  # half is tested first
        ((0.0, 0.01), (0.5, 0.01), "interleaved"),
        ((0.19, 0.01), (0.3, 0.01), None),  # less than twice as well
        ((0.19, 0.01), (0.39, 0.01), "interleaved"),
        ((0.0, 0.01), (0.19, 0.01), None),  # too little
        ((0.0, 0.01), (0.5, 0.13), None),  # within four standard errors
        ((0.5, 0.13), (0.0, 0.01), None),
    ],
)
def test_norms_count_if_they_clearly_agree(half, interleaved, layout):
    assert _layout_that_agrees(half, interleaved) == layout


@pytest.mark.parametrize("layers", [5, 8, 16])
def test_q_and_k_are_read_of_four_layers_at_equal_distances(tmp_path, monkeypatch, layers):
    read = []
    monkeypatch.setattr(
        sys.modules[MODULE],
        "_agreements",
        lambda folder, name, rule: (read.append(name), _agreements(folder, name, rule))[1],
    )
    which_layout(folder(tmp_path / "a", {}, layers=layers))
    in_file = sorted(range(layers), key=str)  # layer 10 comes before layer 2
    wanted = [in_file[part * layers // 4] for part in range(4)]
    assert sorted(read) == sorted(
        f"model.layers.{each}.self_attn.{name}_proj.weight" for each in wanted for name in "qk"
    )
