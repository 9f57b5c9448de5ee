"""A converted checkpoint computes the same under code that pairs the other way, and there and back
is the same bytes.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from checkpoint_samples import LATENT, MODELS, build, logits
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from ropewalk import RopeError
from ropewalk.interop.checkpoint.atomic_folder import partial_path
from ropewalk.interop.checkpoint.convert import convert_checkpoint
from ropewalk.interop.checkpoint.shards import open_folder, write_folder

samples = pytest.mark.parametrize("name", MODELS)


@pytest.fixture
def saved(tmp_path):
    def save(name, shard="5GB"):
        model_type, changed, rotary_dim = MODELS[name]
        model = build(model_type, **changed)
        model.save_pretrained(tmp_path / "half", max_shard_size=shard)
        (tmp_path / "half" / "tokenizer.json").write_text("{}")
        return model, tmp_path / "half", rotary_dim

    return save


def neighbours(rotary_dim, size):
    """For each dimension of the half layout, where it stands when partners are neighbours: written
    from the definition.
    """
    where = list(range(size))
    for pair in range(rotary_dim // 2):
        where[pair], where[pair + rotary_dim // 2] = 2 * pair, 2 * pair + 1
    return torch.tensor(where)


def pairing_neighbours(model, monkeypatch, rotary_dim):
    """The model's code, changed to take q and k whose partners are neighbours."""
    module = importlib.import_module(type(model).__module__)
    apply = module.apply_rotary_pos_emb

    def changed(q, k, cos, sin, *rest, **named):
        where = neighbours(rotary_dim, q.shape[-1])
        return apply(q[..., where], k[..., where[: k.shape[-1]]], cos, sin, *rest, **named)

    monkeypatch.setattr(module, "apply_rotary_pos_emb", changed)


def files_of(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


@samples
def test_code_with_the_other_layout_computes_the_same_from_converted_weights(
    name, saved, tmp_path, monkeypatch
):
    model, folder, rotary_dim = saved(name)
    wanted = logits(model)
    report = convert_checkpoint(folder, tmp_path / "other", "half", "interleaved")
    other = AutoModelForCausalLM.from_pretrained(tmp_path / "other").eval()
    # its own code pairs otherwise, so the weights alone must look wrong to it
    assert (logits(other) - wanted).abs().max() > 1e-3
    pairing_neighbours(other, monkeypatch, rotary_dim)
    torch.testing.assert_close(logits(other), wanted)
    kinds = set(report.converted.values())
    assert kinds <= {"q", "k", "qkv", "norm"}
    assert len(report.converted) + len(report.copied) == len(open_folder(folder).names)


@samples
def test_there_and_back_is_the_same_bytes(name, saved, tmp_path):
    _, folder, _ = saved(name, shard="9KB")
    convert_checkpoint(folder, tmp_path / "there", "half", "interleaved")
    convert_checkpoint(tmp_path / "there", tmp_path / "back", "interleaved", "half")
    assert files_of(tmp_path / "back") == files_of(folder)
    there = files_of(tmp_path / "there")
    assert json.loads(there.pop("pair_layout.json")) == {
        "layout": "interleaved",
        "original_layout": "half",
    }
    assert there.keys() == files_of(folder).keys()
    changed = {each for each, data in there.items() if data != files_of(folder)[each]}
    assert changed
    assert all(each.endswith(".safetensors") for each in changed)


def test_a_converted_latent_attention_has_the_other_rope_interleave_and_the_same_logits(tmp_path):
    """DeepSeek's own code reads the layout from this key, so it runs the weights in both layouts."""
    model = build("deepseek_v3", **LATENT)
    assert model.config.rope_interleave is True
    model.save_pretrained(tmp_path / "interleaved")
    convert_checkpoint(tmp_path / "interleaved", tmp_path / "half", "interleaved", "half")
    other = AutoModelForCausalLM.from_pretrained(tmp_path / "half").eval()
    assert other.config.rope_interleave is False
    assert not torch.equal(
        other.model.layers[0].self_attn.q_b_proj.weight,
        model.model.layers[0].self_attn.q_b_proj.weight,
    )
    torch.testing.assert_close(logits(other), logits(model))


def test_a_norm_beside_latent_attention_is_refused(tmp_path):
    build("deepseek_v3", **LATENT).save_pretrained(tmp_path / "a")
    file = tmp_path / "a" / "model.safetensors"
    head_dim = LATENT["qk_nope_head_dim"] + LATENT["qk_rope_head_dim"]
    extra = {"model.layers.0.self_attn.q_norm.weight": torch.ones(head_dim)}
    save_file(load_file(file) | extra, file, {"format": "pt"})
    with pytest.raises(RopeError, match=r"q_norm.weight: must not exist beside latent attention"):
        convert_checkpoint(tmp_path / "a", tmp_path / "b", "interleaved", "half")


def test_a_family_that_pairs_neighbours_is_converted_to_halves(tmp_path):
    """Cohere pairs neighbours; the same numbers in halves are what `x[..., 0::2], x[..., 1::2]`
    makes of each head.
    """
    model = build("cohere", use_qk_norm=True)
    model.save_pretrained(tmp_path / "a")
    report = convert_checkpoint(tmp_path / "a", tmp_path / "b", "interleaved", "half")
    before, after = (load_file(tmp_path / each / "model.safetensors") for each in "ab")
    for key, role in report.converted.items():
        heads = before[key].unflatten(0 if role != "norm" else -1, (-1, 12))
        split = heads.transpose(1, -1) if role != "norm" else heads
        wanted = torch.cat((split[..., 0::2], split[..., 1::2]), -1)
        wanted = (wanted.transpose(1, -1) if role != "norm" else wanted).reshape(before[key].shape)
        assert torch.equal(after[key], wanted), key
    assert "uses the interleaved layout" in report.warnings[0]


# peft warns that a bias cannot be merged here, and takes its one axis for a shard
@pytest.mark.filterwarnings("ignore:`lora_bias=True` was passed", "ignore:Adapter 'default'")
@pytest.mark.parametrize(
    ("option", "tensor"), [("use_dora", "lora_magnitude_vector"), ("lora_bias", "lora_B.bias")]
)
def test_an_adapter_is_converted_with_its_base(tmp_path, saved, monkeypatch, option, tensor):
    peft = pytest.importorskip("peft")
    model, folder, rotary_dim = saved("llama")
    adapted = peft.get_peft_model(
        model, peft.LoraConfig(r=3, target_modules=["q_proj", "k_proj", "v_proj"], **{option: True})
    )
    with torch.no_grad():
        for key, weight in adapted.named_parameters():
            if "lora_B" in key or "magnitude" in key:
                weight.normal_()
    wanted = logits(adapted.eval())
    adapted.save_pretrained(tmp_path / "adapter")
    convert_checkpoint(folder, tmp_path / "base2", "half", "interleaved")
    report = convert_checkpoint(
        tmp_path / "adapter", tmp_path / "adapter2", "half", "interleaved", config=folder
    )
    assert {key.rsplit(".layers.", 1)[1][2:] for key in report.converted} == {
        f"self_attn.{module}.{part}"
        for module in ("q_proj", "k_proj")
        for part in ("lora_B.weight", tensor)
    }
    other = AutoModelForCausalLM.from_pretrained(tmp_path / "base2")
    pairing_neighbours(other, monkeypatch, rotary_dim)
    other = peft.PeftModel.from_pretrained(other, tmp_path / "adapter2").eval()
    torch.testing.assert_close(logits(other), wanted)
    with pytest.raises(RopeError, match="config of its base model"):
        convert_checkpoint(tmp_path / "adapter", tmp_path / "no", "half", "interleaved")


def test_a_folder_with_the_names_and_params_of_meta_is_converted(tmp_path):
    q = torch.arange(2 * 6 * 3.0).view(12, 3)
    (tmp_path / "meta").mkdir()
    names = ("wq", "wk", "wv", "wo")
    save_file(
        {f"layers.0.attention.{name}.weight": q.clone() for name in names},
        tmp_path / "meta" / "x.safetensors",
    )
    (tmp_path / "meta" / "params.json").write_text(
        json.dumps({"dim": 12, "n_heads": 2, "n_layers": 1, "norm_eps": 1e-5})
    )
    convert_checkpoint(tmp_path / "meta", tmp_path / "half", "interleaved", "half")
    found = load_file(tmp_path / "half" / "x.safetensors")
    # row 2i of a head goes to i, row 2i + 1 to i + 3
    assert torch.equal(
        found["layers.0.attention.wq.weight"], q[[0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]]
    )
    assert torch.equal(found["layers.0.attention.wv.weight"], q)


def test_a_dry_run_writes_nothing_and_says_the_same(tmp_path, saved):
    _, folder, _ = saved("qwen3-norm")
    planned = convert_checkpoint(folder, None, "half", "interleaved")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["half"]
    done: list[int] = []
    assert (
        convert_checkpoint(folder, tmp_path / "b", "half", "interleaved", progress=done.append)
        == planned
    )
    assert sum(done) == planned.bytes
    # per layer: q_proj, k_proj, q_norm, k_norm
    assert len(planned.converted) == 2 * 4


def test_other_weights_are_left_out_by_name(tmp_path, saved):
    _, folder, _ = saved("llama", shard="9KB")
    for name in ("pytorch_model.bin", "consolidated.safetensors"):
        (folder / name).write_bytes(b"another form of the weights")
    (folder / "original").mkdir()
    (folder / "outside.json").symlink_to("/etc/hostname")
    report = convert_checkpoint(folder, tmp_path / "b", "half", "interleaved")
    assert set(report.left_out) == {
        "pytorch_model.bin",
        "consolidated.safetensors",
        "original",
        "outside.json",
    }
    assert set(report.left_out).isdisjoint(files_of(tmp_path / "b"))
    assert "tokenizer.json" in files_of(tmp_path / "b")
    assert set(report.files) == {path.name for path in (tmp_path / "b").iterdir()}
    back = convert_checkpoint(tmp_path / "b", tmp_path / "c", "interleaved", "half")
    assert set(back.files) == {path.name for path in (tmp_path / "c").iterdir()}
    assert "pair_layout.json" not in back.files


def tampered(folder, change):
    path = folder / "model.safetensors"
    tensors = change(load_file(path))
    save_file(tensors, path, {"format": "pt"})


Q = "model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda t: {**t, f"{Q}.weight": t[f"{Q}.weight"][:-1].clone()},
            r"q_proj.weight: must have num_heads \* head_dim = 48",
        ),
        (
            lambda t: {**t, f"{Q}.qweight": torch.zeros(6, 48)},
            "converting 'qweight' of q_proj is not supported",
        ),
        (
            lambda t: {**t, "model.layers.0.self_attn.qkv_proj.weight": torch.zeros(96, 48)},
            "call ropewalk.layout.convert_qkv",
        ),
        (
            lambda t: {**t, "model.layers.0.self_attn.q_norm.weight": torch.ones(5)},
            "must have head_dim = 12 entries",
        ),
        (lambda t: {"model.embed.weight": torch.ones(3)}, "must hold q and k projections"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(tmp_path, saved, change, says):
    _, folder, _ = saved("llama")
    tampered(folder, change)
    with pytest.raises(RopeError, match=says):
        convert_checkpoint(folder, tmp_path / "b", "half", "interleaved")
    assert not (tmp_path / "b").exists()


def test_a_scale_of_a_whole_tensor_and_another_tower_are_copied_unchanged(tmp_path, saved):
    _, folder, _ = saved("llama")
    eye = {
        "vision_tower.layers.0.self_attn.q_proj.weight": torch.randn(7, 5),
        f"{Q}.weight_scale": torch.ones(1),
    }
    tampered(folder, lambda tensors: {**tensors, **eye})
    report = convert_checkpoint(folder, tmp_path / "b", "half", "interleaved")
    assert set(eye) <= set(report.copied)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("half", "half"), "target_layout"),
        (("neox", "half"), "source_layout"),
        (("half", "gptj"), "target_layout"),
    ],
)
def test_bad_layouts_are_refused(tmp_path, saved, arguments, field):
    _, folder, _ = saved("llama")
    with pytest.raises(RopeError) as error:
        convert_checkpoint(folder, tmp_path / "b", *arguments)
    assert error.value.field == field


def test_the_target_is_never_the_source(tmp_path, saved):
    _, folder, _ = saved("llama")
    for target in (folder, folder / "inside", tmp_path):
        with pytest.raises(RopeError, match="target"):
            convert_checkpoint(folder, target, "half", "interleaved")


def test_rotary_values_are_refused(tmp_path, saved):
    _, folder, _ = saved("llama")
    config = json.loads((folder / "config.json").read_text())
    with pytest.raises(RopeError, match="rotary_value"):
        convert_checkpoint(
            folder, None, "half", "interleaved", config={**config, "rotary_value": True}
        )


def big_checkpoint(path, megabytes):
    """Write a Llama folder of about so many megabytes: half are one tensor, a quarter q and k."""
    config = {
        "model_type": "llama",
        "hidden_size": 1024,
        "num_attention_heads": 8,
        "rope_theta": 1e4,
    }
    part = torch.randn(1024, 1024).bfloat16()
    names = ("q_proj", "k_proj", "v_proj", "o_proj")
    keys = [
        f"model.layers.{layer}.self_attn.{name}.weight"
        for layer in range(megabytes // 16)
        for name in names
    ]
    tensors = [(key, (1024, 1024), torch.bfloat16, lambda: part) for key in keys]
    words = megabytes << 8
    tensors.append(
        (
            "model.embed_tokens.weight",
            (words, 1024),
            torch.bfloat16,
            lambda: part[:1].expand(words, -1),
        )
    )
    write_folder(path, tensors, config, max_shard_bytes=megabytes << 18)


def script(text, *arguments):
    """What a script prints, in a process of its own."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", text, *map(str, arguments)]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, timeout=120
    ).stdout.split()


KILLED = """
import os, random, signal, sys, time
from pathlib import Path
from ropewalk.interop.checkpoint.convert import convert_checkpoint
source, target = map(Path, sys.argv[1:])
dice, seen = random.Random(3), []
for _ in range(25):
    child = os.fork()
    if not child:
        convert_checkpoint(source, target, "half", "interleaved")
        os._exit(0)
    time.sleep(dice.uniform(0.001, 0.1))
    os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    if target.exists():
        print("whole")
        break
    assert os.WIFSIGNALED(status)
    print("nothing")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_killed_run_leaves_nothing_that_looks_whole(tmp_path):
    big_checkpoint(tmp_path / "a", 32)
    assert "nothing" in script(KILLED, tmp_path / "a", tmp_path / "b")
    if not (tmp_path / "b").exists():
        # what the killed runs left, if any of them came to write, is recognised and cleared
        left = {path.name for path in tmp_path.iterdir()}
        assert {"a"} <= left <= {"a", partial_path(tmp_path / "b").name}
        convert_checkpoint(tmp_path / "a", tmp_path / "b", "half", "interleaved")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
    convert_checkpoint(tmp_path / "b", tmp_path / "c", "interleaved", "half")
    assert files_of(tmp_path / "c") == files_of(tmp_path / "a")


MEASURE = """
import re, sys, torch, ropewalk
from pathlib import Path
from ropewalk.interop.checkpoint.convert import convert_checkpoint

# not getrusage: its peak begins with that of the process that started this one
peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
tiny, big, out = sys.argv[1:]
convert_checkpoint(tiny, out + "/1", "half", "interleaved")
before = peak()
convert_checkpoint(big, out + "/2", "half", "interleaved")
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
def test_memory_does_not_grow_with_the_checkpoint(tmp_path):
    big_checkpoint(tmp_path / "tiny", 16)
    big_checkpoint(tmp_path / "big", 64)
    (grown,) = script(MEASURE, tmp_path / "tiny", tmp_path / "big", tmp_path / "out")
    # 64 MB of tensors, one of them of 32 MB
    assert int(grown) < 12 * 1024
