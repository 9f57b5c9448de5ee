"""Decoders written as GGUF files: read by the gguf package, by `load`, and by llama.cpp where it is
installed.
"""

import numpy as np
import pytest
import torch

import ropewalk as rw
from gguf_samples import (
    VOCAB,
    interleaved,
    llama_weights,
    log_probabilities,
    sizes,
    with_tokenizer,
    write,
)
from ropewalk import RopeError, frequencies
from ropewalk.models import Decoder, DecoderConfig, RoFormerConfig
from ropewalk.temperatures import FloorLog

gguf = pytest.importorskip("gguf")

BASE = DecoderConfig(
    VOCAB + 5, 64, 96, num_layers=2, num_heads=4, num_kv_heads=2, length=512, norm_eps=1e-5
)
LLAMA3 = frequencies.Llama3(8.0, 1.0, 4.0, 8192)
YARN = frequencies.Yarn(original_length=128, factor=4.0)
#: name -> (changes of BASE, theta, scaling, general.architecture)
CASES = {
    "llama": ({"tie_embeddings": False}, 1e4, None, "llama"),
    "llama, tied": ({}, 5e5, None, "llama"),
    "llama with biases": ({"qkv_bias": True, "o_bias": True, "mlp_bias": True}, 1e4, None, "llama"),
    "llama, wide heads": ({"head_dim": 32}, 1e4, None, "llama"),
    "mistral": ({"num_heads": 6, "head_dim": 16}, 1e6, None, "llama"),
    "llama3": ({"head_dim": 64}, 5e5, LLAMA3, "llama"),
    "linear": ({}, 1e4, frequencies.Linear(3.0), "llama"),
    "yarn": ({}, 1e4, YARN, "llama"),
    "yarn, other betas": ({}, 1e4, frequencies.Yarn(128, factor=4.0, beta_fast=16.0), "llama"),
    "ntk_by_parts": ({}, 1e4, frequencies.NtkByParts(factor=4.0, original_length=128), "llama"),
    "clipped": ({}, 1e4, frequencies.Clipped(YARN, pairs=3), "llama"),
    "qwen2": ({"qkv_bias": True}, 1e6, None, "qwen2"),
    "qwen2, yarn": ({"qkv_bias": True}, 1e6, YARN, "qwen2"),
    "qwen3": ({"qk_norm": True, "head_dim": 32}, 1e6, None, "qwen3"),
    "qwen3, yarn": ({"qk_norm": True}, 1e6, YARN, "qwen3"),
}


def model_of(name: str) -> Decoder:
    changes, theta, scaling, _ = CASES[name]
    config = BASE.with_(**changes)
    spec = rw.RopeSpec(config.head_dim, theta, scaling or frequencies.Default())
    torch.manual_seed(0)
    model = Decoder(config.with_(encoding=spec.with_(precision="hf_frequencies"))).eval()
    for value in model.parameters():  # sharp attention, and norms and biases that differ
        torch.nn.init.normal_(value, std=0.3)
    return model


def written(model, path, **options):
    """Write a model; return the fields and tensors that the gguf package reads, by name."""
    rw.save(model, path, **options)
    reader = gguf.GGUFReader(path)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    return fields, {tensor.name: tensor for tensor in reader.tensors}


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_a_written_file_is_loaded_as_the_same_model(name, tmp_path):
    model = model_of(name)
    rw.save(model, tmp_path / "a.gguf")
    again = rw.load(tmp_path / "a.gguf")
    state = again.state_dict()
    assert all(torch.equal(state[key], value) for key, value in model.state_dict().items())
    ours, theirs = (each.config.encoding.frequencies(1) for each in (model, again))
    # these scalings have no keys in GGUF: the file holds float32 divisors of their frequencies
    exact = name not in ("yarn, other betas", "ntk_by_parts", "clipped")
    rtol, atol = (0, 0) if exact else (2e-7, 1e-25)
    np.testing.assert_allclose(theirs.radians, ours.radians, rtol, atol)
    assert not exact or again.config.encoding == model.config.encoding
    assert theirs.magnitude == pytest.approx(ours.magnitude, rel=1e-6)
    tokens = torch.arange(0, 200, 7)[None]
    torch.testing.assert_close(again(tokens), model(tokens), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_the_gguf_package_reads_what_llama_cpp_needs(name, tmp_path):
    model, architecture = model_of(name), CASES[name][3]
    config, spec = model.config, model.config.encoding
    fields, tensors = written(model, tmp_path / "a.gguf")
    of = lambda key: fields[f"{architecture}.{key}"]
    assert fields["general.architecture"] == architecture
    assert fields["tokenizer.ggml.model"] == "none"
    assert (of("block_count"), of("context_length"), of("vocab_size")) == (2, 512, VOCAB + 5)
    assert (of("embedding_length"), of("feed_forward_length")) == (64, 96)
    assert (of("attention.head_count"), of("attention.head_count_kv")) == (config.num_heads, 2)
    assert of("attention.key_length") == of("attention.value_length") == config.head_dim
    assert of("attention.layer_norm_rms_epsilon") == np.float32(1e-5)
    assert of("rope.freq_base") == np.float32(spec.theta)
    assert of("rope.dimension_count") == config.head_dim
    # every tensor is one that llama.cpp has for the architecture
    kinds = gguf.MODEL_TENSORS[gguf.MODEL_ARCH[architecture.upper()]]
    known = {gguf.TENSOR_NAMES[kind].format(bid=i) for kind in kinds for i in range(2)}
    assert {tensor.rpartition(".")[0] for tensor in tensors} <= known
    # rows of q and k are permuted for Llama alone
    rows = [size * config.head_dim for size in (config.num_heads, 2, 2)]
    for layer in range(2):
        parts = model.layers[layer].self_attn.qkv_proj.weight.detach().split(rows)
        for part, weight in zip("qkv", parts, strict=True):
            expected = weight.numpy()
            if architecture == "llama" and part != "v":
                expected = interleaved(expected, config.head_dim)
            np.testing.assert_array_equal(tensors[f"blk.{layer}.attn_{part}.weight"].data, expected)
    assert ("output.weight" in tensors) == (not config.tie_embeddings)
    scaled = spec.with_(precision="exact").frequencies(1).radians
    if "rope_freqs.weight" in tensors:  # one divisor for each frequency
        plain = spec.theta ** -(np.arange(0, config.head_dim, 2) / config.head_dim)
        read = plain / tensors["rope_freqs.weight"].data
        np.testing.assert_allclose(read, scaled, rtol=1e-6, atol=1e-25)
    scaling = {"linear": 3.0, "yarn": 4.0}.get(spec.scaling.name)
    if scaling is not None and "rope_freqs.weight" not in tensors:
        assert (of("rope.scaling.type"), of("rope.scaling.factor")) == (spec.scaling.name, scaling)
    else:
        assert of("rope.scaling.type") == "none"


@pytest.mark.parametrize("tensor_type", [None, "F32", "F16", "BF16", "Q8_0"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_matrices_have_the_type_that_is_asked_for(tensor_type, dtype, tmp_path):
    model = model_of("llama with biases").to(dtype)
    _, tensors = written(model, tmp_path / "a.gguf", tensor_type=tensor_type)
    default = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}[dtype]
    expected = tensor_type or default
    state = model.state_dict()
    for name, ours in {
        "token_embd.weight": "embed_tokens.weight",
        "blk.1.ffn_down.weight": "layers.1.mlp.down_proj.weight",
        "blk.0.ffn_norm.weight": "layers.0.post_attention_layernorm.weight",
        "blk.1.attn_output.bias": "layers.1.self_attn.o_proj.bias",
    }.items():
        weight = state[ours].float()
        kind = expected if weight.ndim == 2 else "F32"
        assert tensors[name].tensor_type.name == kind
        found = gguf.quants.dequantize(tensors[name].data, tensors[name].tensor_type)
        # half a step of each type; Q8_0 has 127 steps up to the largest of each 32 weights
        error = {"F32": 0, "F16": 2**-11, "BF16": 2**-8, "Q8_0": 0.51 / 127}[kind]
        step = weight.abs().max() if kind == "Q8_0" else weight.abs()
        assert bool(
            ((torch.tensor(found) - weight).abs() <= error * step + 1e-7 * (error > 0)).all()
        )


def spec(**options):
    return rw.RopeSpec(16, **options)


REFUSED = {
    "experts": (
        {"num_experts": 4, "qk_norm": True},
        r"model_type: must be one of llama, mistral, qwen2, qwen3 .*got 'qwen3_moe'",
    ),
    "layers that do not rotate": ({"layer_types": ("full", "nope")}, "model_type: .*got 'smollm3'"),
    "a temperature": ({"temperature": FloorLog(0.1, 512)}, "model_type: .*got 'ministral3'"),
    "a window": (
        {"window": 64, "layer_types": None},
        "window: must be None to be written to a GGUF file as llama",
    ),
    "another activation": ({"activation": "gelu"}, "activation: must be 'silu'"),
    "linear attention": ({"attention": "linear"}, "attention: must be 'softmax'"),
    "another encoding": ({"encoding": "alibi"}, "encoding: must be 'rope' or one RopeSpec"),
    "partial rope": ({"encoding": spec(rotary_dim=8)}, "rotary_dim: must be the whole head, 16"),
    "interleaved": ({"encoding": spec(layout="interleaved")}, "layout: must be 'half'"),
    "dynamic NTK": (
        {"encoding": spec(scaling=frequencies.Dynamic(2.0, 128))},
        "scaling: must have fixed frequencies",
    ),
    "llama3 in Qwen": (
        {"encoding": spec(scaling=LLAMA3), "qk_norm": True},
        "scaling: must be default, linear or YaRN",
    ),
    "bias in Qwen 3": (
        {"qk_norm": True, "qkv_bias": True, "o_bias": True},
        "qkv_bias: must be False",
    ),
    "wide heads in Qwen 2": ({"qkv_bias": True, "head_dim": 32}, "hidden_size: must be .* = 128"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_llama_cpp_does_not_have_is_refused(name, tmp_path):
    changes, message = REFUSED[name]
    with pytest.raises(RopeError, match=message):
        rw.save(Decoder(BASE.with_(**changes)), tmp_path / "a.gguf")
    assert not any(tmp_path.iterdir())


def test_wrong_options_are_refused_and_leave_no_file(tmp_path):
    model, path = model_of("llama"), tmp_path / "a.gguf"
    for options, message in (
        ({"tensor_type": "Q4_K"}, "tensor_type: must be one of F32, F16, BF16, Q8_0"),
        ({"extra_config": {"eos_token_id": 2}}, "extra_config: must not be given"),
    ):
        with pytest.raises(RopeError, match=message):
            rw.save(model, path, **options)
    with pytest.raises(RopeError, match="tensor_type: must be None unless"):
        rw.save(model, tmp_path / "folder", tensor_type="F16")
    with pytest.raises(
        RopeError, match=r"tensor_type: must be given for weights of torch\.float64"
    ):
        rw.save(model_of("llama").double(), path)
    narrow = Decoder(DecoderConfig(64, 48, 96, 1, 4))
    with pytest.raises(
        RopeError, match=r"tensor_type: .*have 48 weights, .*multiple of 32; got 'Q8_0'"
    ):
        rw.save(narrow, path, tensor_type="Q8_0")
    with pytest.raises(RopeError, match="model: must be a Decoder"):
        rw.save(rw.RoFormer(RoFormerConfig(100, 48, 2, 4, 96)), path)
    model.layers[0].mlp.down_proj.weight = torch.nn.Parameter(torch.zeros(2, 2))
    with pytest.raises(RopeError, match="must have the shape"):
        rw.save(model, path)
    assert not any(tmp_path.iterdir())
    path.write_bytes(b"mine")
    with pytest.raises(RopeError, match="target: must be a file that does not exist yet"):
        rw.save(model_of("llama"), path)
    assert [each.name for each in tmp_path.iterdir()] == ["a.gguf"]
    assert path.read_bytes() == b"mine"


def test_a_run_that_fails_leaves_no_file(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gguf.GGUFWriter, "write_tensor_data", fail)
    with pytest.raises(OSError, match="No space left"):
        rw.save(model_of("llama"), tmp_path / "a.gguf")
    assert not any(tmp_path.iterdir())


def test_a_loaded_file_keeps_its_tokenizer(tmp_path):
    metadata = with_tokenizer()
    source = write(tmp_path / "a.gguf", metadata, llama_weights(vocab=VOCAB + 5))
    fields, _ = written(rw.load(source), tmp_path / "b.gguf")
    kept = {key: value for key, value in metadata.items() if key.startswith("tokenizer.")}
    assert {key: fields[key] for key in fields if key.startswith("tokenizer.")} == kept
    before, after = (gguf.GGUFReader(tmp_path / name).fields for name in ("a.gguf", "b.gguf"))
    assert all(after[key].types == before[key].types for key in kept)


def test_a_folder_gives_its_tokenizer_to_the_file(tmp_path):
    pytest.importorskip("tokenizers")
    for pre in ("gpt-2", "smollm", "llama-bpe", "qwen2"):
        metadata = with_tokenizer(pre=pre)
        place = tmp_path / pre
        place.mkdir()
        # ten more rows than tokens
        source = write(place / "a.gguf", metadata, llama_weights(vocab=VOCAB + 15))
        rw.save(rw.load(source), place / "folder")
        fields, _ = written(rw.load(place / "folder"), place / "b.gguf")
        same = ("model", "pre", "merges", "bos_token_id", "eos_token_id", "padding_token_id")
        for key in (f"tokenizer.ggml.{name}" for name in (*same, "add_bos_token")):
            assert fields[key] == metadata[key], key
        assert fields["tokenizer.chat_template"] == metadata["tokenizer.chat_template"]
        tokens = metadata["tokenizer.ggml.tokens"]
        assert fields["tokenizer.ggml.tokens"][: len(tokens)] == tokens
        unused = [f"[PAD{i}]" for i in range(len(tokens), VOCAB + 15)]
        assert fields["tokenizer.ggml.tokens"][len(tokens) :] == unused
        types = [*metadata["tokenizer.ggml.token_type"], *[5] * len(unused)]
        assert fields["tokenizer.ggml.token_type"] == types
        ends = rw.load(place / "b.gguf").tokenizer_files.token_ids()["eos_token_id"]
        assert set(ends) == {260, 261, 262}


def test_a_tokenizer_that_does_not_fit_is_left_out_with_a_warning(tmp_path):
    source = write(tmp_path / "a.gguf", with_tokenizer(), llama_weights(vocab=VOCAB))
    with pytest.warns(UserWarning, match=r"a\.gguf: its tokenizer is not saved .*259") as seen:
        fields, _ = written(rw.load(source), tmp_path / "b.gguf")
    assert seen[0].filename == __file__
    assert fields["tokenizer.ggml.model"] == "none"
    rw.save(rw.load(write(tmp_path / "c.gguf", sizes(), llama_weights(vocab=9))), tmp_path / "d")
    (tmp_path / "d" / "tokenizer.json").write_text('{"model": {"type": "Unigram"}}')
    with pytest.warns(UserWarning, match="d: its tokenizer is not saved .*tokenizer.json"):
        rw.save(rw.load(tmp_path / "d"), tmp_path / "d.gguf")


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_llama_cpp_gives_the_same_probabilities(name, tmp_path):
    llama_cpp = pytest.importorskip("xllamacpp")
    model, tokens = model_of(name), [7 * i % VOCAB for i in range(150)]
    # llama.cpp's server needs a tokenizer
    source = write(tmp_path / "t.gguf", with_tokenizer(), llama_weights(vocab=VOCAB + 5))
    model.tokenizer_files = rw.load(source).tokenizer_files
    rw.save(model, tmp_path / "a.gguf")
    ours = model(torch.tensor([tokens]))[0, -1].log_softmax(-1).numpy()
    theirs = log_probabilities(llama_cpp, tmp_path / "a.gguf", tokens, VOCAB + 5)
    np.testing.assert_allclose(ours, theirs, atol=1e-4)
