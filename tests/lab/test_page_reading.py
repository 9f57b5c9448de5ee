"""The view of a model, with a tiny random Llama in a folder: its figures are those of transformers
with its own scaling.
"""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from ropewalk.errors import RopeError
from ropewalk_lab.explorer import controls, model_charts, reading
from ropewalk_lab.explorer.reading import ReadingRequest

testing = pytest.importorskip(
    "streamlit.testing.v1", reason="needs streamlit: pip install 'ropewalk[explorer]'"
)
transformers = pytest.importorskip("transformers")
PAGE = Path(controls.__file__).with_name("page.py")
HAN = re.compile("[\u4e00-\u9fff]")
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
    """Tokens, losses in float64 and attention [layers, H, S, S] of transformers with its own
    scaling.
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
def test_a_reading_is_that_of_transformers(folder, request_):
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


def test_layers_are_reported_one_by_one(folder):
    seen = []
    reading.read(
        reading.load(str(folder)),
        ReadingRequest("ntk", 3.0, "own", TYPED, tokens=108),
        lambda *done: seen.append(done),
    )
    assert seen == [(1, 3), (2, 3), (3, 3)]


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
def test_refusals(folder, request_, says):
    with pytest.raises(RopeError, match=f"^{says}"):
        reading.read(reading.load(str(folder)), request_)


def test_losses_are_means_of_equal_parts():
    places, means = model_charts.binned(np.array([4.0, 2.0, 1.0, 3.0, 9.0]), 2)
    assert places.tolist() == [2.0, 4.5]
    assert means.tolist() == [pytest.approx(7 / 3), 6.0]


def opened(**link):
    app = testing.AppTest.from_file(str(PAGE), default_timeout=60)
    for name, text in (
        {"view": "model", "model.text": "own", "model.tokens": "130"} | link
    ).items():
        app.query_params[name] = text
    app.run()
    assert [error.value for error in app.exception] == []
    return app


def table(app) -> list[list[str]]:
    (text,) = (each.value for each in app.markdown if each.value.startswith("| |"))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]


@pytest.mark.parametrize("language", controls.LANGUAGES)
def test_the_view_shows_the_figures_before_and_after(folder, monkeypatch, language):
    monkeypatch.setenv("ROPEWALK_LOCAL", "1")
    monkeypatch.setenv("ROPEWALK_MODEL", str(folder))
    app = opened(language=language, **{"model.gap": "150", "model.depth": "0.5"})
    app.text_area(key="typed_text").set_value(TYPED).run()
    assert not app.error
    head, _, key, loss, last = table(app)
    assert head[2] == "yarn 4x"
    for column, request in (
        (1, ReadingRequest("none", 1.0, "own", TYPED, 130, 0.5, 150)),
        (2, ASKED),
    ):
        _, positions, losses, _ = by_transformers(folder, request)
        assert loss[column] == f"{losses.mean():.3f}"
        assert last[column] == f"{positions[-1]:,}"
        assert (
            key[column]
            == f"{np.exp(-losses[-reading.read(reading.load(str(folder)), request).answer :].sum()):.1%}"
        )
    words = [
        app.text_input[0].label,
        *(each.value for each in app.caption),
        key[0],
        *(each.label for each in app.slider),
    ]
    assert all(bool(HAN.search(word)) == (language == "zh") for word in words)
    app.select_slider(key="model.factor").set_value(8.0).run()
    assert table(app)[0][2] == "yarn 8x"
    app.selectbox(key="model.method").set_value("none").run()
    assert table(app)[0][2] == table(app)[0][1] == {"en": "no scaling", "zh": "不缩放"}[language]
    app.selectbox(key="model.method").set_value("yarn").run()
    # another layer and head are shown from what was read
    app.slider(key="model.layer").set_value(2).run()
    assert app.query_params["model.layer"] == "2"
    assert app.query_params["model.factor"] == "8"
    assert "model_path" not in app.query_params
    assert str(folder) not in str(app.query_params)


def test_without_a_scaling_the_text_is_read_once(folder, monkeypatch):
    monkeypatch.setenv("ROPEWALK_LOCAL", "1")
    monkeypatch.setenv("ROPEWALK_MODEL", str(folder))
    requests, read = [], reading._read
    monkeypatch.setattr(
        reading,
        "_read",
        lambda model, request, report: requests.append(request) or read(model, request, report),
    )
    opened(
        **{
            "model.method": "none",
            "model.factor": "4",
            "model.text": "python",
            "model.tokens": "121",
        }
    )
    assert [(request.method, request.factor) for request in requests] == [("none", 1.0)]


def test_a_hosted_page_reads_no_path(folder, monkeypatch):
    monkeypatch.delenv("ROPEWALK_LOCAL", raising=False)
    monkeypatch.delenv("ROPEWALK_MODEL", raising=False)
    app = opened(
        **{
            "model.tokens": "300",
            "model.text": "filler",
            "model_path": str(folder),
            "model": str(folder),
        }
    )
    assert not app.text_input
    assert "ropewalk explore" in app.info[0].value
    assert "tiny" in next(each.value for each in app.markdown if "·" in each.value)


@pytest.mark.parametrize("path", ["nowhere.gguf", "moby-dick", "README.md", "."])
def test_a_path_that_is_no_model_says_so(monkeypatch, tmp_path, path):
    (tmp_path / "README.md").write_text("no model")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROPEWALK_CACHE", str(tmp_path))
    monkeypatch.setenv("ROPEWALK_LOCAL", "1")
    monkeypatch.delenv("ROPEWALK_MODEL", raising=False)
    app = opened()
    assert "ropewalk lab fetch smollm2" in app.info[0].value
    app.text_input[0].set_value(path).run()
    assert len(app.error) == 1
    assert "must be" in app.error[0].value
