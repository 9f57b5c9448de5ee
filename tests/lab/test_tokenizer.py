"""Tokenizers against transformers and against their definitions; what a file must have to be one."""

import itertools
import json
import random
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tokenizers
from lab_tiny import write_text

from ropewalk.errors import RopeError
from ropewalk_lab.corpus import open_corpus
from ropewalk_lab.subwords import Subwords
from ropewalk_lab.tokenizer import Bytes, Tokenizer, open_tokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = [
    "rope",
    "walk",
    "##er",
    "##s",
    "lo",
    "##ng",
    "a",
    "b",
    "é",
    "e",
    "##e",
    "R",
    "##o",
    "甲",
    "乙",
    "##丙",
    ",",
    "1",
    "##2",
]
#: for RoFormer: words of several characters
WORDS = [*PIECES, "合同", "纠纷", "丙"]


def train_bpe(texts: list[bytes], vocab_size: int, path: Path) -> Subwords:
    """Train a byte-level BPE on documents and write it to `path`."""
    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["[END]", "[MASK]"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator((text.decode("utf-8", errors="replace") for text in texts), trainer)
    inner.save(str(path))
    return Subwords(path)


def test_bpe_gives_back_the_text(tmp_path):
    folder = write_text(tmp_path / "text")
    texts = [p.read_bytes() for p in sorted(folder.iterdir())]
    bpe = train_bpe(texts, 300, tmp_path / "tokenizer.json")
    assert isinstance(bpe, Subwords)
    corpus = open_corpus(folder, bpe, cache=tmp_path / "cache")
    first = corpus.train.tokens[: corpus.train.starts[1] - 1]
    assert bpe.inner.decode(first.tolist()).encode() in texts
    assert len(first) < len(texts[0])
    assert corpus.vocab_size % 8 == 0
    assert corpus.fingerprint != open_corpus(folder, cache=tmp_path / "cache").fingerprint
    assert corpus.train.rows(np.array([0, 5]), 4).dtype == np.int32


def test_a_bpe_word_starts_at_a_space(tmp_path):
    bpe = train_bpe([b"walk along the rope walk"] * 9, 300, tmp_path / "tokenizer.json")
    tokens = bpe.encode(b"walk ropes")[None]
    texts = [bpe.inner.id_to_token(int(token)) for token in tokens[0]]
    assert "\u0120rope" in texts
    assert bpe.starts_word(tokens)[0].tolist() == [
        place == 0 or text[0] == "\u0120" for place, text in enumerate(texts)
    ]


def test_byte_level_white_space_starts_a_word_and_two_hashes_are_no_word_pieces(tmp_path):
    bpe = train_bpe([b"## rope\n\twalk ##"] * 9, 300, tmp_path / "tokenizer.json")
    assert bpe.inner.token_to_id("##") is not None
    tokens = bpe.encode(b"rope\n\twalker z")
    read = [bpe.inner.decode([token]) for token in tokens.tolist()]
    assert bpe.starts_word(tokens[None])[0].tolist() == [
        place == 0 or text[0].isspace() for place, text in enumerate(read)
    ]
    assert any(text[0] == "\n" for text in read)
    assert not all(place == 0 or text[0].isspace() for place, text in enumerate(read))


@pytest.mark.parametrize("name", ["<eos>", "<|end_of_text|>", None])
def test_a_separator_is_a_token_of_the_vocabulary(tmp_path, name):
    """Byte-level vocabularies write a white-space byte as č; in others, as here, č is a letter."""
    vocab = {"č": 0, "▁a": 1, "##": 2} | ({} if name is None else {name: 3})
    tokenizers.Tokenizer(tokenizers.models.BPE(vocab, [])).save(str(tmp_path / "tokenizer.json"))
    if name is None:
        with pytest.raises(RopeError, match="separates texts"):
            Subwords(tmp_path / "tokenizer.json")
        return
    subwords = Subwords(tmp_path / "tokenizer.json")
    assert subwords.separator == 3
    assert subwords.starts_word(np.array([[1, 0, 1, 2]]))[0].tolist() == [True, False, True, True]


def vocab_file(folder: Path, tokens: list[str], **settings) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(SPECIAL + tokens) + "\n", encoding="utf-8")
    if settings:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder / "vocab.txt"


def numbered(tokens: list[str]) -> dict[str, int]:
    return {token: number for number, token in enumerate(SPECIAL + tokens)}


def random_texts(count: int, letters: str) -> list[str]:
    draw = random.Random(0)
    return ["".join(draw.choices(letters, k=draw.randint(0, 30))) for _ in range(count)]


@pytest.mark.parametrize(
    "settings",
    [{}, {"do_lower_case": False}, {"strip_accents": False}, {"tokenize_chinese_chars": False}],
    ids=str,
)
def test_a_vocab_file_gives_the_tokens_of_transformers(tmp_path, settings):
    from transformers import BertTokenizer

    ours, theirs = (
        Subwords(vocab_file(tmp_path, PIECES, **settings)),
        BertTokenizer(numbered(PIECES), **settings),
    )
    texts = [
        *random_texts(60, "ropewalkerslongRbé甲乙丙,12 \t\n"),
        "ropes, longer walks 甲乙é",
        "\u200b甲\u0301",
    ]
    for text in texts:
        assert (
            ours.encode(text.encode()).tolist()
            == theirs(text, add_special_tokens=False)["input_ids"]
        ), text
    assert (ours.start, ours.separator, ours.mask_id) == (
        theirs.cls_token_id,
        theirs.sep_token_id,
        theirs.mask_token_id,
    )


def greedy(word: str, vocab: dict[str, int]) -> list[int]:
    """The definition of word pieces: the longest token that fits, again and again; a word that does
    not work out is unknown.
    """
    found, start = [], 0
    while start < len(word):
        ends = (
            end
            for end in range(len(word), start, -1)
            if ("##" if start else "") + word[start:end] in vocab
        )
        end = next(ends, None)
        if end is None:
            return [vocab["[UNK]"]]
        found.append(vocab[("##" if start else "") + word[start:end]])
        start = end
    return found


def test_pieces_are_the_longest_that_fit(tmp_path):
    ours, vocab = Subwords(vocab_file(tmp_path, PIECES)), numbered(PIECES)
    for text in random_texts(80, "ropewalks  "):
        assert ours.encode(text.encode()).tolist() == [
            i for word in text.split() for i in greedy(word, vocab)
        ], text


def in_twos(text: str) -> list[str]:
    """A segmentation, in place of jieba's: Chinese in twos, other runs whole."""
    words, place = [], 0
    while place < len(text):
        end = place + 1
        if "\u4e00" <= text[place] <= "\u9fff":
            end = min(place + 2, len(text))
        else:
            while (
                end < len(text)
                and text[end].isalnum()
                and text[place].isalnum()
                and not "\u4e00" <= text[end] <= "\u9fff"
            ):
                end += 1
        words.append(text[place:end])
        place = end
    return words


def tokenized(text: str, hmm: bool) -> list[tuple[str, int, int]]:
    ends = np.cumsum([0, *map(len, in_twos(text))]).tolist()
    return [(text[a:b], a, b) for a, b in itertools.pairwise(ends)]


def test_chinese_words_are_segmented_as_in_roformer(tmp_path, monkeypatch):
    monkeypatch.setitem(
        sys.modules,
        "rjieba",
        SimpleNamespace(cut=lambda text, hmm: in_twos(text), tokenize=tokenized),
    )
    from transformers import RoFormerTokenizer

    ours, theirs = Subwords(vocab_file(tmp_path, WORDS)), RoFormerTokenizer(numbered(WORDS))
    for text in [*random_texts(60, "合同纠纷甲乙丙ropes, R12"), "合同纠纷甲合同 ropes"]:
        assert (
            ours.encode(text.encode()).tolist()
            == theirs(text, add_special_tokens=False)["input_ids"]
        ), text
    assert numbered(WORDS)["合同"] in ours.encode("合同".encode())


def test_chinese_words_need_the_segmentation(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "rjieba", None)
    with pytest.raises(RopeError, match="pip install rjieba"):
        Subwords(vocab_file(tmp_path, WORDS))


def starts(tokenizer: Tokenizer, text: str) -> list[bool]:
    return tokenizer.starts_word(tokenizer.encode(text.encode())[None])[0].tolist()


def test_a_word_of_bytes_is_letters_digits_underscores_and_what_is_not_ascii():
    text = b"ab_1 \xff\xc3, c"
    begins = "^...^^.^^^"
    assert (
        "".join("^" if each else "." for each in Bytes().starts_word(Bytes().encode(text)))
        == begins
    )


def test_a_word_of_pieces_starts_without_a_sign(tmp_path):
    ours = Subwords(vocab_file(tmp_path, PIECES))
    assert starts(ours, "long ropes 甲乙, 12") == [
        True,
        False,
        True,
        False,
        True,
        True,
        True,
        True,
        False,
    ]


def test_a_sentencepiece_word_starts_at_its_sign(tmp_path):
    inner = tokenizers.Tokenizer(
        tokenizers.models.BPE({"▁": 0, "a": 1, "b": 2, "▁a": 3, "<s>": 4, "</s>": 5}, [("▁", "a")])
    )
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    inner.save(str(tmp_path / "tokenizer.json"))
    ours = open_tokenizer(tmp_path)
    assert starts(ours, "ab aab") == [True, False, True, False, False]
    assert (ours.start, ours.separator) == (4, 5)


def test_truncation_and_padding_saved_in_a_tokenizer_file_are_ignored(tmp_path):
    """Checkpoints are often saved with the truncation and padding of their training."""
    inner = tokenizers.Tokenizer.from_str(Subwords(vocab_file(tmp_path, PIECES)).inner.to_str())
    inner.enable_truncation(4)
    inner.enable_padding(length=9)
    inner.save(str(tmp_path / "tokenizer.json"))
    assert len(Subwords(tmp_path / "tokenizer.json").encode(b"a b a b a b")) == 6
    assert len(Subwords(tmp_path / "tokenizer.json").encode(b"a")) == 1


def test_a_vocabulary_may_skip_ids_and_lack_a_mask_token(tmp_path):
    inner = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"a": 0, "b": 20, "?": 3, "[SEP]": 5}, unk_token="?")
    )
    inner.save(str(tmp_path / "tokenizer.json"))
    ours = open_tokenizer(tmp_path / "tokenizer.json")
    assert (ours.num_text_ids, ours.mask_id, ours.vocab_size, ours.start) == (21, 21, 24, None)


def test_a_folder_gives_its_vocab_file_first(tmp_path):
    path = vocab_file(tmp_path / "model", PIECES)
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    assert open_tokenizer(tmp_path / "model").name == Subwords(path).name
    assert isinstance(open_tokenizer("bytes"), Bytes)


def test_the_name_of_a_tokenizer_depends_on_its_vocabulary_and_settings(tmp_path):
    made = [
        vocab_file(tmp_path / "a", PIECES),
        vocab_file(tmp_path / "b", PIECES, do_lower_case=False),
    ]
    made.append(vocab_file(tmp_path / "c", [*PIECES, "c"]))
    assert len({Subwords(path).name for path in made}) == 3
    assert Subwords(vocab_file(tmp_path / "d", PIECES)).name == Subwords(made[0]).name


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"t.json": "{}"}, r"tokenizer\.json"),
        ({"vocab.txt": "a\nb\n"}, r"one token per line, .* lacks \[UNK\], \[CLS\], \[SEP\]"),
        ({"vocab.txt": "[UNK]\n[CLS]\n[SEP]", "tokenizer_config.json": "{"}, "must be JSON"),
        (
            {"vocab.txt": "[UNK]\n[CLS]\n[SEP]", "tokenizer_config.json": "[1]"},
            "true, false or null",
        ),
        (
            {"vocab.txt": "[UNK]\n[CLS]\n[SEP]", "tokenizer_config.json": '{"do_lower_case": 3}'},
            "true, false or null",
        ),
    ],
)
def test_a_file_that_is_no_tokenizer_is_refused(tmp_path, files, said):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(RopeError, match=said):
        Subwords(tmp_path / next(iter(files)))


def test_a_vocabulary_that_is_not_utf_8_is_refused(tmp_path):
    (tmp_path / "vocab.txt").write_bytes("[UNK]\n[CLS]\n[SEP]\né\n".encode("latin-1"))
    with pytest.raises(RopeError, match=r"tokenizer: a vocab\.txt must be UTF-8"):
        Subwords(tmp_path / "vocab.txt")


def test_a_folder_without_a_tokenizer_says_what_it_may_have(tmp_path):
    with pytest.raises(RopeError, match=r"vocab\.txt, tokenizer\.json"):
        open_tokenizer(tmp_path)


def test_subwords_without_the_tokenizers_package_name_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(RopeError, match=r"ropewalk\[text\]"):
        Subwords(vocab_file(tmp_path, PIECES))


NEEDED = ["[UNK]", "[CLS]", "[SEP]"]


def file_of(folder: Path, tokens: list[str]) -> Path:
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    return folder / "vocab.txt"


@pytest.mark.parametrize("words", [3, 4, 5, 11, 12, 13])
def test_a_vocabulary_has_room_for_the_mask_and_is_a_multiple_of_eight(tmp_path, words):
    """Of 8 words without a mask, the mask is the ninth: 16 in all."""
    ours = Subwords(file_of(tmp_path, [*NEEDED, *"abcdefghijklmnop"[:words]]))
    assert ours.mask_id == ours.num_text_ids == 3 + words
    assert ours.vocab_size == {3: 8, 4: 8, 5: 16, 11: 16, 12: 16, 13: 24}[words]


@pytest.mark.parametrize(
    ("more", "separator"), [([], "[SEP]"), (["[END]"], "[END]"), (["</s>", "<eos>"], "[SEP]")]
)
def test_the_separator_is_the_first_of_its_names(tmp_path, more, separator):
    tokens = [*NEEDED, "a", *more]
    ours = Subwords(file_of(tmp_path, tokens))
    assert ours.separator == tokens.index(separator)


def test_the_first_token_of_every_row_begins_a_word(tmp_path):
    ours = Subwords(file_of(tmp_path, [*NEEDED, "[MASK]", "a", "##b"]))
    rows = np.array([[5, 4, 5], [5, 5, 4]])
    assert ours.starts_word(rows).tolist() == [[True, True, False], [True, False, True]]


def test_text_is_lower_cased_and_loses_its_accents_unless_the_config_says_otherwise(tmp_path):
    path = file_of(tmp_path, [*NEEDED, "[MASK]", "e", "E", "é", "É"])
    token = lambda text: Subwords(path).encode(text.encode()).tolist()
    assert token("É E é") == [4, 4, 4]
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert token("É E é") == [7, 5, 6]
    (tmp_path / "tokenizer_config.json").write_text('{"strip_accents": false}')
    assert token("É E é") == [6, 4, 6]
