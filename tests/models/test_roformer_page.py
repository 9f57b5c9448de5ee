"""What docs/roformer.md says of the heads, the defaults and the encodings of a RoFormer."""

from pathlib import Path

import pytest
import torch

from ropewalk.encodings import ENCODINGS
from ropewalk.errors import RopeError
from ropewalk.models import RoFormer, RoFormerConfig

PAGE = Path(__file__).parents[2] / "docs" / "roformer.md"
pytestmark = pytest.mark.skipif(not PAGE.is_file(), reason="docs/ is not part of an installation")
SMALL = RoFormerConfig(
    vocab_size=20, hidden_size=16, num_layers=1, num_heads=2, intermediate_size=16
)
#: head -> the shape of its output for tokens [2, 5], with 3 labels, as BERT's heads have it
SHAPES = {
    "none": (2, 5, 16),
    "masked_lm": (2, 5, 20),
    "causal_lm": (2, 5, 20),
    "classification": (2, 3),
    "token_classification": (2, 5, 3),
    "multiple_choice": (2, 2),
    "question_answering": (2, 5, 2),
    "similarity": (2, 16),
}
#: the words of the page for these shapes
AS_WORDS = {
    "none": "[B, S, hidden]",
    "masked_lm": "[B, S, vocab]",
    "causal_lm": "[B, S, vocab]",
    "classification": "[B, labels]",
    "token_classification": "[B, S, labels]",
    "multiple_choice": "[B, choices]",
    "question_answering": "[B, S, 2]",
    "similarity": "[B, hidden]",
}


def head_of(name):
    return RoFormer(SMALL.with_(head=name, num_labels=3, causal=name == "causal_lm")).eval()


@pytest.mark.parametrize("name", SHAPES)
def test_a_head_gives_the_shape_that_the_page_says(name):
    tokens = torch.randint(1, 20, (2, 2, 5) if name == "multiple_choice" else (2, 5))
    assert tuple(head_of(name)(tokens).shape) == SHAPES[name]
    page = PAGE.read_text(encoding="utf-8")
    (row,) = [line for line in page.splitlines() if line.startswith("|") and f"`{name}`" in line]
    assert f"`{AS_WORDS[name]}`" in row


def test_a_head_reads_the_tokens_that_the_page_says():
    """The output of a head depends on the hidden state of the first token, of the last or of all."""
    page = PAGE.read_text(encoding="utf-8")
    table = page.partition("| `head` | output | from |")[2].partition("\n\n")[0]
    said = {
        name.strip().strip("`"): source
        for line in table.splitlines()[2:]
        for names, _, source in [line.strip("|").split("|")]
        for name in names.split(",")
    }
    assert set(said) == set(SHAPES)
    for name in ("classification", "similarity"):
        assert "first token" in said[name]
    assert "last token" in said["multiple_choice"]
    for name in ("none", "masked_lm", "causal_lm", "token_classification", "question_answering"):
        assert said[name].strip() == "every token"
    # change one hidden state of a row after another, and see on which of them the output depends
    for name, place in (("classification", 0), ("similarity", 0), ("multiple_choice", 4)):
        model = head_of(name)
        hidden = torch.randn(1, 5, 16)
        read = []
        for changed in range(5):
            other = hidden.clone()
            other[:, changed] += 1
            with torch.no_grad():
                a, b = (read_head(model, x) for x in (hidden, other))
            read.append(not torch.equal(a, b))
        assert read == [each == place for each in range(5)], name


def read_head(model, hidden):
    """The output of the head of a model whose layers give `hidden`."""
    model.hidden = lambda *given, **named: hidden
    tokens = torch.ones(1, 5, dtype=torch.int64)
    return model(tokens[:, None] if model.config.head == "multiple_choice" else tokens)


def test_similar_vectors_have_unit_length_and_question_answering_gives_start_and_end():
    page = PAGE.read_text(encoding="utf-8")
    assert "| `question_answering` | `[B, S, 2]`: start and end | every token |" in page
    assert "`[B, hidden]`, unit length" in page
    vectors = head_of("similarity")(torch.randint(1, 20, (3, 5)))
    torch.testing.assert_close(vectors.norm(dim=-1), torch.ones(3))


def test_the_defaults_that_the_page_names_are_those_of_roformer_chinese_base():
    config = RoFormerConfig()
    assert (config.num_layers, config.hidden_size, config.num_heads) == (12, 768, 12)
    assert (config.intermediate_size, config.vocab_size, config.length) == (3072, 50_000, 1536)
    assert (config.norm, config.bias, config.causal, config.head) == (
        *("layer_norm", True, False),
        "none",
    )
    page = PAGE.read_text(encoding="utf-8")
    assert "those of roformer_chinese_base: 12 layers, width 768, 12 heads." in page
    assert "# config.length is 1536" in page


@pytest.mark.parametrize("name", [n for n in ENCODINGS if n not in ("rope_2d", "rope_3d")])
def test_linear_attention_takes_the_encodings_that_the_page_says(name):
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    said = "Linear attention supports neither encodings that add a term to the scores"
    assert said in page
    encoding = ENCODINGS[name]
    on_scores = encoding.entry == "scores" or name in ("rope_alibi", "rope_bias")
    assert encoding.linear == (not on_scores and name not in ("pope", "fope"))
    changes = {"encoding": name, "attention": "linear"}
    if encoding.causal_only:
        changes |= {"causal": True, "head": "causal_lm"}
    if encoding.linear:
        tokens = torch.randint(1, 20, (1, 5))
        assert RoFormer(SMALL.with_(**changes))(tokens).shape[:2] == (1, 5)
    else:
        with pytest.raises(RopeError):
            RoFormer(SMALL.with_(**changes))
