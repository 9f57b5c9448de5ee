"""Subwords: a `tokenizer.json` of the tokenizers package, or a `vocab.txt` of BERT or RoFormer
(characters, pieces, words).
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from ropewalk.errors import MissingExtra, RopeError

#: special tokens (start of a row, mask, end of a text) under the names that tokenizers give them;
#: the first name that a vocabulary has is used
STARTS, MASKS = ("[CLS]", "<s>"), ("[MASK]", "<mask>")
SEPARATORS = ("[END]", "[SEP]", "</s>", "<|endoftext|>", "<|end_of_text|>", "<eos>")
#: a vocab.txt with words of several Chinese characters is for text that was segmented into words,
#: as in RoFormer
_CHINESE_WORD = re.compile(r"^[\u3400-\u4dbf\u4e00-\u9fff]{2,}$")
#: settings of a tokenizer_config.json beside a vocab.txt, with their defaults
_VOCAB_SETTINGS: dict[str, Any] = {
    "do_lower_case": True,
    "strip_accents": None,
    "tokenize_chinese_chars": True,
}


class Subwords:
    """Tokens of a vocabulary; a mask token is added if the vocabulary has none.

    path  tokenizer.json, or a vocab.txt with one token per line; a tokenizer_config.json beside a
          vocab.txt is read too
    """

    dtype = np.uint32

    def __init__(self, path: str | Path) -> None:
        """Read the vocabulary and find its special tokens."""
        self.path = Path(path)
        if not self.path.is_file():  # a pipe or a device may never end
            raise RopeError(
                "tokenizer",
                "must be bytes, or the path of a vocab.txt or a tokenizer.json",
                str(path),
            )
        content = self.path.read_bytes()
        package, self._segment = _tokenizers(), None
        # self.inner is the tokenizer of the package; self._segment divides text into words before
        # it, if that is needed
        if self.path.suffix == ".txt":
            settings = _vocab_settings(self.path.with_name("tokenizer_config.json"))
            content += json.dumps(settings).encode()
            self.inner, self._segment = _word_pieces(package, self.path, settings)
        else:
            try:
                self.inner = package.Tokenizer.from_file(str(path))
            except Exception as error:
                rule = (
                    "must be bytes, a vocab.txt or a tokenizer.json of the tokenizers package "
                    f"({error})"
                )
                raise RopeError("tokenizer", rule, str(path)) from None
        self.inner.no_truncation()
        self.inner.no_padding()
        self.name = f"subwords-{hashlib.sha256(content).hexdigest()[:16]}"
        self.num_text_ids = max(self.inner.get_vocab().values()) + 1  # a vocabulary may skip ids
        mask, separator = self._first(MASKS), self._first(SEPARATORS)
        self.start = self._first(STARTS)
        self.mask_id: int = self.num_text_ids if mask is None else mask
        if separator is None:
            raise RopeError(
                "tokenizer",
                f"must have a token that separates texts, one of {', '.join(SEPARATORS)}",
                str(path),
            )
        self.separator: int = separator
        # rounded up to a multiple of 8, for tensor cores
        self.vocab_size = -(-max(self.num_text_ids, self.mask_id + 1) // 8) * 8
        # by token id: whether the token begins a word; ids that the vocabulary skips have no text
        self._starts = _word_starts(
            self.inner, [self.inner.id_to_token(i) or "" for i in range(self.vocab_size)]
        )

    def _first(self, names: tuple[str, ...]) -> int | None:
        """Return the id of the first of these tokens that the vocabulary has, or None."""
        return next(
            (token for name in names if (token := self.inner.token_to_id(name)) is not None), None
        )

    def encode(self, text: bytes) -> np.ndarray:
        """Return the token ids of one document, without special tokens."""
        decoded = text.decode("utf-8", errors="replace")
        words = decoded if self._segment is None else self._segment(decoded)
        encoded = self.inner.encode(
            words, is_pretokenized=self._segment is not None, add_special_tokens=False
        )
        return np.asarray(encoded.ids, dtype=np.uint32)

    def starts_word(self, tokens: np.ndarray) -> np.ndarray:
        """Return, for each token of [..., S], whether a word begins there; at the first of a row
        one always does.
        """
        starts = self._starts[tokens]
        starts[..., 0] = True
        return starts


def _word_starts(inner: Any, texts: list[str]) -> np.ndarray:
    """Return, for each token of a tokenizer's vocabulary, whether it begins a word; `texts` has the
    text of each token, by its id.
    """
    parts = json.loads(inner.to_str())
    if parts["model"]["type"] == "WordPiece":  # ## continues a word
        return np.array([not text.startswith("##") for text in texts])
    # a token begins a word if it begins with a space, which is ▁ in sentencepiece and Ġ in byte
    # level, or with a punctuation mark; one that begins with a letter or a digit continues a word
    spaces = ("Ġ", "▁")
    if '"ByteLevel"' in json.dumps([parts["pre_tokenizer"], parts["decoder"]]):
        # how byte level writes bytes 9 to 13, from the tab and the newline to the carriage return
        spaces += ("ĉ", "Ċ", "ċ", "Č", "č")
    return np.array([text[:1] in spaces or not text[:1].isalnum() for text in texts])


def _vocab_settings(path: Path) -> dict[str, Any]:
    """Return the entries _VOCAB_SETTINGS of a tokenizer_config.json, or their defaults if there is
    none: how text is normalised before it is divided into pieces. Raise an error if the file is not
    JSON or has other values.
    """
    settings: Any = {}
    if path.exists():
        try:
            settings = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise RopeError("tokenizer", f"{path.name} must be JSON ({error})", str(path)) from None
    if isinstance(settings, dict):
        chosen = {name: settings.get(name, default) for name, default in _VOCAB_SETTINGS.items()}
        if all(value is None or isinstance(value, bool) for value in chosen.values()):
            return chosen
    raise RopeError(
        "tokenizer",
        f"{path.name} must have true, false or null for {', '.join(_VOCAB_SETTINGS)}",
        settings,
    )


def _word_pieces(package: Any, path: Path, settings: dict[str, Any]) -> tuple[Any, Any]:
    """Return the tokenizer of a vocab.txt, and a function that divides text into words before it;
    None instead of the function if the tokenizer does that itself.

    package   the module tokenizers
    settings  those of _VOCAB_SETTINGS: how text is normalised
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RopeError(
            "tokenizer", f"a vocab.txt must be UTF-8 ({error}); save it as UTF-8", str(path)
        ) from None
    tokens = text.removesuffix("\n").split("\n")
    vocab = {token.rstrip("\r"): number for number, token in enumerate(tokens)}
    missing = [token for token in ("[UNK]", "[CLS]", "[SEP]") if token not in vocab]
    if missing:
        rule = (
            "a vocab.txt must have one token per line, with [UNK], [CLS] and [SEP]; it lacks "
            f"{', '.join(missing)}"
        )
        raise RopeError("tokenizer", rule, str(path))
    inner = package.Tokenizer(package.models.WordPiece(vocab, unk_token="[UNK]"))
    has_chinese_words = any(map(_CHINESE_WORD.match, vocab))
    inner.normalizer = package.normalizers.BertNormalizer(
        clean_text=True,
        # a space around every Chinese character would divide the words
        handle_chinese_chars=bool(settings["tokenize_chinese_chars"]) and not has_chinese_words,
        strip_accents=settings["strip_accents"],
        lowercase=bool(settings["do_lower_case"]),
    )
    if has_chinese_words:
        return inner, _segmenter(package, path, inner.normalizer, vocab)
    inner.pre_tokenizer = package.pre_tokenizers.BertPreTokenizer()
    return inner, None


def _segmenter(package: Any, path: Path, normalizer: Any, vocab: dict[str, int]) -> Any:
    """Return RoFormer's word segmentation, a function from a text to its words: those of jieba, and
    the characters of a Chinese word that is not a token.

    package     the module tokenizers
    path        of the vocabulary, for an error message
    normalizer  applied to the text first
    """
    try:
        import rjieba  # type: ignore[import-not-found]
    except ImportError:
        rule = (
            "has Chinese words, so text must be segmented as in RoFormer, which needs rjieba: pip "
            "install rjieba"
        )
        raise RopeError("tokenizer", rule, str(path)) from None
    # puts spaces around Chinese characters
    spaced = package.normalizers.BertNormalizer(
        clean_text=False, handle_chinese_chars=True, lowercase=False
    )

    def segment(text: str) -> list[str]:
        """Return the words of a text, or the characters of a word that is not a token."""
        parts = []
        # False: only words that jieba knows, without a model that guesses further ones
        for word in rjieba.cut(normalizer.normalize_str(text), False):
            parts += [word] if word in vocab else spaced.normalize_str(word).split()
        return parts

    return segment


def _tokenizers() -> Any:
    """Return the module tokenizers; raise an error that names the extra if it is not installed."""
    try:
        import tokenizers
    except ImportError:
        raise MissingExtra("tokenizer", "tokenizers", "text") from None
    return tokenizers
