"""Models that `fit` opens from a folder or a GGUF file, with their tokenizers."""

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

import ropewalk as rw
from gguf_samples import byte_tokens, llama_weights, sizes, write
from ropewalk.errors import RopeError
from ropewalk_lab.fit.open_model import open_model

BYTES = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": [*byte_tokens(), "<s>", "th"],
    "tokenizer.ggml.merges": ["t h"],
    "tokenizer.ggml.bos_token_id": 256,
    "tokenizer.ggml.add_bos_token": True,
    "tokenizer.ggml.token_type": [1] * 256 + [3, 1],
}
TOKENS = torch.tensor([[3, 14, 15, 92, 65, 35, 89, 79, 32, 38, 46]])


def tokens_of(text: str) -> list[int]:
    return list(text.encode())


def gguf(path, leave_out=(), changed=None, **more):
    """A small Llama file; its tokenizer has a token per byte and "th", and puts <s> before a text
    with special tokens.
    """
    metadata = {**sizes(**{"attention.key_length": 16, **(changed or {})}), **BYTES}
    weights = {
        name: value for name, value in llama_weights(vocab=258).items() if name not in leave_out
    }
    return write(path, metadata, weights | more)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A saved Llama whose tokenizer has one token per byte, and <s> before every text with special
    tokens.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("model")
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=512,
        initializer_range=0.3,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    made = Tokenizer(
        models.BPE(
            vocab={letter: place for place, letter in enumerate([*byte_tokens(), "<s>"])}, merges=[]
        )
    )
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 256)]
    )
    PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>").save_pretrained(path)
    return path


def test_a_narrow_dtype_rounds_the_weights_and_not_the_frequencies(folder, tmp_path):
    for path in (
        gguf(tmp_path / "model.gguf"),
        folder,
    ):
        # the folder is opened by transformers, which keeps frequencies in float32
        model, _ = open_model(path, dtype=torch.bfloat16)
        assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}
        assert model.model.rotary_emb.inv_freq.dtype == torch.float32


@torch.no_grad()
@pytest.mark.parametrize("tied", [True, False])
def test_a_gguf_file_is_opened_with_its_weights_and_its_tokenizer(tied, tmp_path):
    head = (
        {}
        if tied
        else {
            "output.weight": np.random.default_rng(5).standard_normal((258, 32)).astype(np.float32)
        }
    )
    (tmp_path / "main").mkdir()
    path = gguf(tmp_path / "main" / "model.gguf", **head)
    for given in (path, path.parent, tmp_path):  # the file, and folders with this file alone
        model, encode = open_model(given)
        expected = rw.load(path)(TOKENS)
        torch.testing.assert_close(model(TOKENS).logits, expected, rtol=1e-4, atol=1e-4)
        assert not model.training
        assert list(encode("the é\n")) == [257, *tokens_of("e é\n")]


@pytest.mark.parametrize("count", [0, 2])
def test_a_folder_must_hold_one_model(count, tmp_path):
    for place in range(count):
        (tmp_path / f"{place}.gguf").write_bytes(b"")
    with pytest.raises(
        RopeError, match=r"model: must be a folder with a config\.json, or with one \.gguf file"
    ):
        open_model(tmp_path)


@pytest.mark.parametrize(
    ("leave_out", "more"),
    [(("blk.1.ffn_up.weight",), {}), ((), {"blk.1.attn_q.bias": np.zeros(32, dtype=np.float32)})],
    ids=["missing", "unexpected"],
)
def test_a_gguf_file_with_other_weights_than_its_architecture_is_refused(leave_out, more, tmp_path):
    with pytest.raises(RopeError, match="must hold the weights of its architecture and no others"):
        open_model(gguf(tmp_path / "model.gguf", leave_out, **more))


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (
            {"block_count": 2**31},
            (
                "llama.block_count: must not exceed the number of tensors in the file, 20; got "
                "2147483648"
            ),
        ),
        (
            {"embedding_length": 64},
            r"must have the shape \[.*64.*\] that the sizes in the file give; got \[.*32.*\]",
        ),
        (
            {"attention.layer_norm_rms_epsilon": "x"},
            r"llama\.attention\.layer_norm_rms_epsilon: must be a number; got 'x'",
        ),
        ({"attention.head_count": 0}, "must be a GGUF file whose sizes transformers accepts"),
    ],
    ids=["layers", "shape", "type", "no heads"],
)
def test_a_gguf_file_whose_sizes_contradict_its_weights_is_refused(changed, says, tmp_path):
    with pytest.raises(RopeError, match=says):
        open_model(gguf(tmp_path / "model.gguf", changed=changed))


@torch.no_grad()
@pytest.mark.parametrize("had_bar", [True, False])
def test_a_folder_is_opened_without_a_progress_bar_which_is_then_as_before(folder, capfd, had_bar):
    (logging.enable_progress_bar if had_bar else logging.disable_progress_bar)()
    try:
        model, encode = open_model(folder)
        assert logging.is_progress_bar_enabled() == had_bar
    finally:
        logging.enable_progress_bar()
    assert capfd.readouterr().err == ""
    expected = LlamaForCausalLM.from_pretrained(folder)
    assert torch.equal(model(TOKENS).logits, expected(TOKENS).logits)
    assert list(encode("the é\n")) == tokens_of("the é\n")


def test_a_path_is_measured_as_the_loaded_model_with_its_tokenizer(folder, monkeypatch):
    # without a GPU, a model given by its path is opened on the CPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    given = {
        "text": torch.arange(2048) % 300,
        "windows": 2,
        "passkeys": 2,
        "methods": [],
        "long_ppl": False,
    }
    model, tokenizer = (
        LlamaForCausalLM.from_pretrained(folder),
        PreTrainedTokenizerFast.from_pretrained(folder),
    )
    found = [
        rw.fit(folder, 1024, **given),
        rw.fit(model, 1024, tokenizer=tokenizer, **given),
        rw.fit(model, 1024, tokenizer=tokens_of, **given),
    ]
    kept = [
        [{k: v for k, v in row.items() if k not in ("run", "seconds")} for row in each.rows]
        for each in found
    ]
    assert kept[0] == kept[1] == kept[2]
    assert {row["metric"] for row in kept[0]} == {"text", "passkey"}
    assert {each.facts["model"] for each in found} == {folder.name}
