"""Decoders loaded from GGUF files: the logits of transformers with the same weights, and of
llama.cpp where it is installed.
"""

import json

import numpy as np
import pytest
import torch

import ropewalk as rw
from gguf_samples import (
    VOCAB,
    byte_tokens,
    interleaved,
    llama_weights,
    log_probabilities,
    sizes,
    with_tokenizer,
    write,
)
from ropewalk import RopeError
from ropewalk.models import Decoder

TOKENS = [[3, 14, 15, 92, 65, 35, 89, 79, 32, 38, 46]]
NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
}


def in_file(name: str) -> str:
    """The name in a GGUF file of one of transformers' weights."""
    stem, _, suffix = name.rpartition(".")
    short = {theirs: ours for ours, theirs in NAMES.items()}
    if stem in short:
        return f"{short[stem]}.{suffix}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{short[part]}.{suffix}"


def hf_model(architecture: str, **options):
    """A small random model of transformers."""
    transformers = pytest.importorskip("transformers")
    kind = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}[architecture]
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=512,
        rms_norm_eps=1e-5,
        initializer_range=0.3,
        **options,
    )
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    for name, value in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(value, std=0.3)
    return model


def gguf_of(model, path, architecture: str, **more):
    """Write the weights of a transformers model as llama.cpp's converter does: rows of q and k are
    permuted for Llama.
    """
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    if architecture == "llama":
        for name in state:
            if ".q_proj." in name or ".k_proj." in name:
                state[name] = interleaved(state[name], 16)
    metadata = sizes(architecture, **{"attention.key_length": 16, **more})
    return write(path, metadata, {in_file(name): value for name, value in state.items()})


MODELS = {
    "llama": ("llama", {}, {}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}, {}),
    "llama with biases": ("llama", {"attention_bias": True, "mlp_bias": True}, {}),
    "llama, linear": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5}},
        {"rope.freq_base": 5e5, "rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
    ),
    "qwen2": ("qwen2", {}, {}),
    "qwen3": ("qwen3", {"tie_word_embeddings": True}, {}),
}


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_logits_are_those_of_transformers(name, tmp_path):
    architecture, options, keys = MODELS[name]
    theirs = hf_model(architecture, **options)
    ours = rw.load(gguf_of(theirs, tmp_path / "a.gguf", architecture, **keys))
    tokens = torch.tensor(TOKENS)
    torch.testing.assert_close(ours(tokens), theirs(tokens).logits, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_transformers_own_reader_gives_the_same_logits(tmp_path):
    pytest.importorskip("gguf")
    transformers = pytest.importorskip("transformers")
    path = gguf_of(hf_model("llama"), tmp_path / "a.gguf", "llama", vocab_size=VOCAB)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file=path.name, dtype=torch.float32
    )
    tokens = torch.tensor(TOKENS)
    torch.testing.assert_close(rw.load(path)(tokens), theirs(tokens).logits, rtol=1e-4, atol=1e-4)


def test_quantised_weights_become_the_dtype_that_is_asked_for(tmp_path):
    weights = llama_weights(vocab=VOCAB)
    blocks = np.random.default_rng(0).integers(0, 256, (VOCAB, 34), dtype=np.uint8)
    blocks[:, :2] = np.full((VOCAB, 1), 0.01, "<f2").view(np.uint8)
    path = write(
        tmp_path / "a.gguf",
        sizes(),
        {**weights, "token_embd.weight": (8, (VOCAB, 32), blocks.tobytes())},
    )
    expected = torch.from_numpy(blocks[:, 2:].view(np.int8) * np.float32(np.float16(0.01)))
    torch.testing.assert_close(rw.load(path).embed_tokens.weight.data, expected)
    assert rw.load(path, dtype=torch.bfloat16).norm.weight.dtype == torch.bfloat16


@torch.no_grad()
def test_a_loaded_file_is_saved_as_a_folder_with_the_same_logits(tmp_path):
    weights = llama_weights(vocab=VOCAB)
    ours = rw.load(write(tmp_path / "a.gguf", sizes(**{"rope.freq_base": 5e5}), weights))
    rw.save(ours, tmp_path / "folder")
    tokens = torch.tensor(TOKENS)
    torch.testing.assert_close(rw.load(tmp_path / "folder")(tokens), ours(tokens))


def saved(tmp_path, metadata, **options):
    weights = llama_weights(vocab=VOCAB + 5)
    ours = rw.load(write(tmp_path / "a.gguf", metadata, weights))
    rw.save(ours, tmp_path / "folder", **options)
    return ours, tmp_path / "folder"


@torch.no_grad()
def test_a_saved_folder_has_the_tokenizer_and_the_end_tokens_of_the_file(tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("tokenizers")
    ours, folder = saved(tmp_path, with_tokenizer())
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    # the ids of eos_token_id and eom_token_id, then <|im_end|>, which llama.cpp takes for an end by
    # its text
    ends = [260, 262, 261]
    assert theirs.generation_config.eos_token_id == ends
    assert theirs.generation_config.bos_token_id == theirs.config.bos_token_id == 259
    assert theirs.generation_config.pad_token_id == 263
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.pad_token) == (
        "<s>",
        "<end of text>",
        "<pad>",
    )
    text = tokenizer("the the<|im_end|>")["input_ids"]
    assert text == [259, 257, 258, 261]
    assert tokenizer.decode(text, skip_special_tokens=True) == "the the"
    assert tokenizer.model_max_length == 512
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "the"}], tokenize=False)
    assert chat == "<s>the<|im_end|>"
    # the output matrix is the embedding, so a larger row of an end token makes that token win
    for end in ends:
        tokens = torch.tensor([text])
        boosted = ours(tokens)[0, -1].argmax()
        with_end = theirs.get_input_embeddings().weight
        before = with_end[end].clone()
        with_end[end] = 2 * with_end[boosted]
        made = theirs.generate(tokens, max_new_tokens=4, do_sample=False)
        with_end[end] = before
        assert made[0, len(text) :].tolist() == [end]


def test_token_ids_that_are_given_replace_those_of_the_file(tmp_path):
    transformers = pytest.importorskip("transformers")
    _, folder = saved(tmp_path, with_tokenizer(), extra_config={"eos_token_id": 7})
    config = transformers.GenerationConfig.from_pretrained(folder)
    assert (config.eos_token_id, config.bos_token_id) == (7, 259)
    assert transformers.AutoConfig.from_pretrained(folder).eos_token_id == 7


def test_a_single_end_token_is_a_number_and_one_outside_the_vocabulary_is_dropped(tmp_path):
    tokens = ["a", "b", "c"]
    changes = {"tokens": tokens, "token_type": [1, 1, 3], "merges": None, "eom_token_id": None}
    path = tmp_path / "a.gguf"
    for eos, expected in ((2, 2), (3, None), (None, None), (2**32 - 1, None)):
        write(path, with_tokenizer(**changes, eos_token_id=eos), llama_weights(vocab=VOCAB))
        found = rw.load(path).tokenizer_files.token_ids()
        assert found == {"bos_token_id": None, "eos_token_id": expected, "pad_token_id": None}


@pytest.mark.parametrize("changes", [{"model": "t5"}, {"pre": "tekken"}, {"merges": None}])
def test_a_tokenizer_that_cannot_be_built_is_left_out_with_a_warning(changes, tmp_path):
    with pytest.warns(
        UserWarning, match=r"a\.gguf: its tokenizer is not saved \(tokenizer"
    ) as seen:
        _, folder = saved(tmp_path, with_tokenizer(**changes))
    assert seen[0].filename.endswith("test_gguf_models.py")
    assert not (folder / "tokenizer.json").exists()
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"][0] == 260


def test_a_model_whose_file_is_gone_is_saved_with_its_end_token(tmp_path):
    path = write(tmp_path / "a.gguf", with_tokenizer(), llama_weights(vocab=VOCAB + 5))
    ours = rw.load(path)
    path.unlink()
    with pytest.warns(UserWarning, match=r"a\.gguf: its tokenizer is not saved"):
        rw.save(ours, tmp_path / "folder")
    assert rw.load(tmp_path / "folder").config == ours.config
    config = json.loads((tmp_path / "folder" / "config.json").read_text())
    assert (config["bos_token_id"], config["eos_token_id"]) == (259, [260, 262])


@pytest.mark.parametrize("rotary_dim", [4, 8, 16])
@torch.no_grad()
def test_a_partial_rotation_of_a_gguf_file_rotates_its_first_dimensions(rotary_dim, tmp_path):
    """Neighbours are rotated together in a Llama file; the dimensions after the first `rotary_dim`
    keep their place.
    """
    weights = llama_weights(vocab=VOCAB)
    ours = rw.load(
        write(tmp_path / "a.gguf", sizes(**{"rope.dimension_count": rotary_dim}), weights)
    )
    spec = rw.RopeSpec(16, rotary_dim=rotary_dim, layout="interleaved")
    expected, state = Decoder(ours.config.with_(encoding=spec)).eval(), ours.state_dict()
    for layer in range(2):
        stored = [torch.from_numpy(weights[f"blk.{layer}.attn_{part}.weight"]) for part in "qkv"]
        state[f"layers.{layer}.self_attn.qkv_proj.weight"] = torch.cat(stored).float()
    expected.load_state_dict(state)
    tokens = torch.tensor(TOKENS)
    torch.testing.assert_close(ours(tokens), expected(tokens), rtol=1e-4, atol=1e-4)


WRONG = {
    "another architecture": (
        {"general.architecture": "mamba"},
        {},
        "general.architecture: must be one of llama, qwen2, qwen3",
    ),
    "experts": ({"llama.expert_count": 8}, {}, "llama.expert_count: must be 0"),
    "layers": (
        {"llama.block_count": 4000},
        {},
        "num_hidden_layers: must not exceed the number of tensors",
    ),
    "no layers": ({"llama.block_count": 0}, {}, "num_hidden_layers"),
    "an array": ({"llama.attention.head_count": [2, 2]}, {}, "head_count: must be an integer"),
    "shape": ({}, {"blk.1.attn_q.weight": np.ones((16, 32))}, "must have the shape"),
    "unexpected": ({}, {"blk.1.ssm_a": np.ones(4)}, "unexpected: blk.1.ssm_a"),
    "unexpected layer": ({}, {"blk.2.attn_q.weight": np.ones((32, 32))}, "unexpected"),
    "the same layer": (
        {},
        {"blk.01.attn_q.weight": np.ones((32, 32))},
        "unexpected: blk.01.attn_q.weight",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_file_that_is_no_decoder_is_refused(name, tmp_path):
    metadata, tensors, message = WRONG[name]
    path = write(tmp_path / "a.gguf", sizes() | metadata, {**llama_weights(vocab=VOCAB), **tensors})
    with pytest.raises(RopeError, match=message):
        rw.load(path)


def test_a_file_without_its_epsilon_is_refused(tmp_path):
    """llama.cpp: "key not found in model: llama.attention.layer_norm_rms_epsilon"."""
    metadata, key = sizes(), "llama.attention.layer_norm_rms_epsilon"
    del metadata[key]
    path = write(tmp_path / "a.gguf", metadata, llama_weights(vocab=VOCAB))
    with pytest.raises(RopeError, match=rf"{key}: must be in the file"):
        rw.load(path)
    for wrong in (float("nan"), -1.0, "1e-5"):
        write(path, sizes() | {key: wrong}, llama_weights(vocab=VOCAB))
        with pytest.raises(RopeError, match=key):
            rw.load(path)


def test_a_pattern_that_llama_cpp_does_not_read_gives_a_warning(tmp_path):
    weights = llama_weights(vocab=VOCAB)
    key = "llama.attention.rope_pattern"
    path = write(tmp_path / "a.gguf", sizes() | {key: [True, False]}, weights)
    with pytest.warns(UserWarning, match=f"{key}: llama.cpp does not read it") as caught:
        rw.load(path)
    assert caught[0].filename == __file__


def test_a_missing_weight_is_named(tmp_path):
    weights = llama_weights(vocab=VOCAB)
    del weights["blk.1.ffn_up.weight"]
    with pytest.raises(RopeError, match=r"missing: model\.layers\.1\.mlp\.up_proj\.weight"):
        rw.load(write(tmp_path / "a.gguf", sizes(), weights))
    with pytest.raises(RopeError, match=r"token_embd\.weight: must be in the file"):
        rw.load(write(tmp_path / "b.gguf", sizes(), {"w": np.ones(4)}))


#: rope keys and tensors of a file, for llama.cpp
ROPES = {
    "plain": ({}, {}),
    "theta": ({"rope.freq_base": 5e5}, {}),
    "linear": ({"rope.scaling.type": "linear", "rope.scaling.factor": 3.0}, {}),
    "yarn": (
        {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 128,
        },
        {},
    ),
    "attn_factor": ({"rope.scaling.attn_factor": 1.3}, {}),
    "yarn, attn_factor": (
        {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 128,
            "rope.scaling.attn_factor": 0.8,
        },
        {},
    ),
    "yarn, betas ignored": (
        {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 4096,
            "rope.scaling.yarn_beta_fast": 2.0,
            "rope.scaling.yarn_attn_factor": 3.0,
        },
        {},
    ),
    "rope_freqs": (
        {},
        {"rope_freqs.weight": np.array([1, 1.5, 2, 2.25, 3, 5, 8, 8], dtype=np.float32)},
    ),
}


@pytest.fixture(scope="module")
def llama_cpp():
    return pytest.importorskip("xllamacpp")


@pytest.mark.filterwarnings("ignore:.*llama.cpp does not read it")
@pytest.mark.parametrize("name", ROPES)
@torch.no_grad()
def test_llama_cpp_gives_the_same_probabilities(name, llama_cpp, tmp_path):
    keys, tensors = ROPES[name]
    tokens = [*byte_tokens(), "<s>", "</s>", "<pad>"]
    metadata = sizes(**keys) | {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * 256 + [3] * 3,
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": 256,
        "tokenizer.ggml.eos_token_id": 257,
        "tokenizer.ggml.add_bos_token": False,
    }
    path = write(tmp_path / "a.gguf", metadata, {**llama_weights(vocab=VOCAB), **tensors})
    theirs = log_probabilities(llama_cpp, path, TOKENS[0])
    ours = rw.load(path)(torch.tensor(TOKENS))[0, -1].log_softmax(-1).numpy()
    np.testing.assert_allclose(ours, theirs, atol=1e-3)
