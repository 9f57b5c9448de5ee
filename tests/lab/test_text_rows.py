"""Rows of one text or two, against transformers' own; padding, and the order of a pass."""

import random

import numpy as np
import pytest
import tokenizers
import torch

from ropewalk.errors import RopeError
from ropewalk_lab.subwords import Subwords
from ropewalk_lab.text_rows import TextRow, make_row, pad_rows, shuffled
from ropewalk_lab.tokenizer import Bytes

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]


@pytest.fixture(scope="module")
def letters(tmp_path_factory):
    path = tmp_path_factory.mktemp("letters") / "vocab.txt"
    path.write_text("\n".join(TOKENS))
    return Subwords(path)


def peer():
    """The tokenizers package's own frame and truncation, which transformers uses."""
    inner = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({t: i for i, t in enumerate(TOKENS)}, unk_token="[UNK]")
    )
    inner.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    special = [("[CLS]", 2), ("[SEP]", 3)]
    single, pair = "[CLS]:0 $A:0 [SEP]:0", "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1"
    inner.post_processor = tokenizers.processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=special
    )
    return inner


@pytest.mark.parametrize("pair", [False, True])
def test_rows_of_one_and_two_texts_equal_those_of_tokenizers(letters, pair):
    draw, inner = random.Random(0), peer()
    for _ in range(200):
        a, b = (" ".join(draw.choices("abcdefgh", k=draw.randint(0, 12))) for _ in range(2))
        length = draw.randint(4, 20)
        inner.enable_truncation(length, strategy="longest_first")
        theirs = inner.encode(a, b) if pair else inner.encode(a)
        ours = make_row(letters, a, b if pair else None, length)
        assert ours.tokens.tolist() == theirs.ids, (a, b, length)
        assert ours.second.tolist() == theirs.type_ids, (a, b, length)


def test_rows_of_bytes_have_a_separator_between_texts_and_no_start_token():
    assert make_row(Bytes(), "ab", "c", 9).tokens.tolist() == [97, 98, 0, 99]
    assert make_row(Bytes(), "ab", "c", 9).second.tolist() == [0, 0, 0, 1]
    assert make_row(Bytes(), "abc", None, 2).tokens.tolist() == [97, 98]


def test_no_row_is_without_tokens():
    """Attention over no token at all is not defined."""
    assert make_row(Bytes(), "", None, 5).tokens.tolist() == [0]


def test_a_length_without_room_is_refused(letters):
    for tokenizer, second, length in ((letters, "b", 3), (letters, None, 2), (Bytes(), "b", 1)):
        with pytest.raises(
            RopeError, match=f"length: must be at least {length + 1}, to leave room"
        ):
            make_row(tokenizer, "a", second, length)


def test_padding_is_true_for_tokens():
    rows = [
        TextRow(np.array([5, 0, 7]), np.array([0, 0, 1])),
        TextRow(np.array([4]), np.array([0])),
    ]
    tokens, types, padding = pad_rows(rows, 4)
    assert tokens.tolist() == [[5, 0, 7, 0], [4, 0, 0, 0]]
    assert types.tolist() == [[0, 0, 1, 0], [0, 0, 0, 0]]
    assert padding.tolist() == [[True, True, True, False], [True, False, False, False]]
    assert padding.dtype == torch.bool


def test_every_pass_has_every_item_once_in_an_order_of_its_own():
    index = np.arange(5 * 23)
    passes = shuffled(index, 23, seed=3).reshape(5, 23)
    assert all(sorted(each) == list(range(23)) for each in passes.tolist())
    assert len({tuple(each) for each in passes.tolist()}) == 5
    assert not np.array_equal(passes, shuffled(index, 23, seed=4).reshape(5, 23))
    # a sample does not depend on the batch it is in
    assert shuffled(index[31:40], 23, seed=3).tolist() == passes.flatten()[31:40].tolist()
