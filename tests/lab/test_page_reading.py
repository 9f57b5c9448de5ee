"""A model that reads for the page, a tiny random Llama in a folder: its figures are those of
transformers with its own scaling.
"""

import re

import numpy as np
import pytest
import torch

from ropewalk.errors import RopeError
from ropewalk_lab.page import reading
from ropewalk_lab.page.reading import ReadingRequest

transformers = pytest.importorskip("transformers")
TYPED = "One day the rope was walked from end to end. " * 3
ASKED = ReadingRequest("yarn", 4.0, "own", TYPED, tokens=130, depth=0.5, gap=150)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model and a tokenizer of words and single letters."""
    tokenizers = pytest.importorskip("tokenizers")
    path = tmp_path_factory.mktemp("model") / "rope-llama"
    torch.manual_seed(5)
    config = transformers.LlamaConfig(
        vocab_size=300,
        hidden_size=24,
        intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=6,
        max_position_embeddings=64,
        initializer_range=0.5,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(path)
    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator([TYPED], trainer)
    transformers.PreTrainedTokenizerFast(tokenizer_object=inner).save_pretrained(path)
    return path


def by_transformers(folder, request):
    """Return (text, positions, losses from float64 logits, attention [layers, H, S, S]) of the
    request's text, by transformers with its own scaling.
    """
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    config = transformers.AutoConfig.from_pretrained(folder)
    if request.method != "none":
        config.rope_parameters = {
            "rope_type": request.method,
            "factor": request.factor,
            "original_max_position_embeddings": 64,
            "rope_theta": 10000.0,
        }
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, config=config, dtype=torch.float32
    ).eval()
    key = reading.text_of(reading.load(str(folder)), request)
    words = tokenizer.decode(key.tokens)
    positions = list(range(len(key.tokens)))
    middle = (key.stated + key.asked) // 2
    positions[middle:] = [place + request.gap for place in positions[middle:]]
    with torch.no_grad():
        out = model(
            key.tokens[None],
            position_ids=torch.tensor([positions]),
            attention_mask=torch.ones(1, len(positions)),
            output_attentions=True,
        )
    chances = out.logits[0].double().log_softmax(-1)
    losses = [-float(chances[place, key.tokens[place + 1]]) for place in range(len(key.tokens) - 1)]
    return (
        words,
        positions,
        np.array(losses),
        torch.stack([each[0] for each in out.attentions]).numpy(),
    )


@pytest.mark.parametrize(
    "request_",
    [
        ASKED,
        ReadingRequest("none", 1.0, "python", tokens=117, gap=0),
        ReadingRequest("linear", 2.0, "own", TYPED),
    ],
)
def test_a_local_model_that_reads_a_text_has_the_losses_and_attention_of_transformers(
    folder, request_
):
    found = reading.read(reading.load(str(folder)), request_)
    words, positions, losses, maps = by_transformers(folder, request_)
    assert found.positions.tolist() == positions
    np.testing.assert_allclose(found.losses, losses, rtol=2e-4, atol=2e-4)
    # the last tokens are the five digits of the pass key that the text states twice
    (key,) = set(re.findall(r"\d{5}", words))
    assert words.count(key) == 3
    assert words.endswith(f"The pass key is {key}")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert found.answer == len(tokenizer(f" {key}")["input_ids"])
    assert found.probability == pytest.approx(np.exp(-losses[-found.answer :].sum()), rel=1e-3)
    size = len(positions)
    for q, k in ((0, 0), (5, 3), (30, 30), (47, 0), (47, 47)):
        rows = [place for place in range(size) if place * 48 // size == q]
        columns = [place for place in range(size) if place * 48 // size == k]
        expected = maps[:, :, rows][:, :, :, columns].sum(-1).mean(-1)
        np.testing.assert_allclose(found.maps[:, :, q, k], expected, atol=2e-4)
    np.testing.assert_allclose(found.maps.sum(-1), 1, atol=1e-4)


def test_a_model_is_left_as_it_was_and_stays_loaded(folder, monkeypatch):
    plain = ReadingRequest("none", 1.0, "own", TYPED, tokens=110)
    model = reading.load(str(folder))
    before = reading.read(model, plain)
    reading.read(model, ASKED)
    monkeypatch.setattr(
        reading, "_READINGS", type(reading._READINGS)("readings of this test", entries=1)
    )
    np.testing.assert_array_equal(reading.read(model, plain).losses, before.losses)
    assert reading.load(str(folder)) is model
    assert reading._MODELS.most_entries == 1


def test_each_layer_and_each_written_token_is_reported(folder):
    seen = []
    reading.read(
        reading.load(str(folder)),
        ReadingRequest("ntk", 3.0, "own", TYPED, tokens=108),
        lambda *done: seen.append(done),
    )
    total = 3 + reading.WRITTEN  # layers, then tokens that are written
    assert seen == [(done, total) for done in range(1, total + 1)]


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (ReadingRequest(tokens=1025), "tokens: must be an integer from 1 to 1024"),
        (ReadingRequest("self_extend", 2.0), "method: must be one of"),
        (ReadingRequest("unknown"), "method: must be one of"),
        (ReadingRequest(text="own", typed="a", tokens=20), "length: must be at least"),
        (ReadingRequest("yarn", -1.0, "own", TYPED), "factor: must be"),
    ],
)
def test_a_bad_reading_request_is_refused(folder, request_, says):
    with pytest.raises(RopeError, match=f"^{says}"):
        reading.read(reading.load(str(folder)), request_)


def test_what_is_written_is_the_greedy_text_of_transformers(folder):
    found = reading.read(reading.load(str(folder)), ASKED)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    config = transformers.AutoConfig.from_pretrained(folder)
    config.rope_parameters = {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "rope_theta": 10000.0,
    }
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, config=config, dtype=torch.float32
    ).eval()
    key = reading.text_of(reading.load(str(folder)), ASKED)
    tokens = key.tokens[: -key.answer].tolist()
    places = found.positions[: -key.answer].tolist()
    written = []
    for _ in range(reading.WRITTEN):  # without a cache
        with torch.no_grad():
            logits = model(
                torch.tensor([tokens]),
                position_ids=torch.tensor([places]),
                attention_mask=torch.ones(1, len(tokens)),
                use_cache=False,
            ).logits
        written.append(int(logits[0, -1].argmax()))
        tokens.append(written[-1])
        places.append(places[-1] + 1)
    assert found.written == tokenizer.decode(written)


def test_telling_head_is_the_head_that_attends_most_from_the_question_to_the_pass_key(folder):
    found = reading.read(reading.load(str(folder)), ASKED)
    layer, head = reading.telling_head(found)
    keys = slice(max(found.stated - 1, 0), found.stated + 1)
    seen = {(i, j): found.maps[i, j, found.asked :, keys].sum() for i in range(3) for j in range(4)}
    assert (layer, head) == max(seen, key=lambda place: seen[place])
    key = reading.text_of(reading.load(str(folder)), ASKED)
    assert found.stated == (key.stated - 1) * 48 // len(key.tokens)


@pytest.mark.parametrize("path", ["nowhere.gguf", "README.md", "."])
def test_a_path_that_is_no_model_is_refused(monkeypatch, tmp_path, path):
    (tmp_path / "README.md").write_text("no model")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROPEWALK_CACHE", str(tmp_path))
    with pytest.raises(RopeError, match="must be"):
        reading.load(path)
