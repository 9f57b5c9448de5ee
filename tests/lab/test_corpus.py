"""Text on disk: nothing lost, nothing leaked between splits, and a cache that follows its sources."""

import hashlib
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from lab_tiny import tiny_corpus, write_text

from ropewalk.errors import RopeError
from ropewalk_lab import sources
from ropewalk_lab.corpus import Split, cache_folder, held_out, open_corpus
from ropewalk_lab.sources import SOURCES, find_source
from ropewalk_lab.tokenizer import Bytes


def documents(split) -> list[bytes]:
    return [
        bytes(split.tokens[a : b - 1])
        for a, b in zip(split.starts[:-1], split.starts[1:], strict=True)
    ]


def test_every_file_is_in_the_split_its_name_says(tmp_path):
    corpus = tiny_corpus(tmp_path)
    files = sorted((tmp_path / "text").iterdir())
    by_hash = {
        p.name: int(hashlib.sha256(p.name.encode()).hexdigest()[:16], 16) / 2**64 < 0.1
        for p in files
    }
    assert 0 < sum(by_hash.values()) < len(files)
    for split, out in ((corpus.train, False), (corpus.valid, True)):
        assert documents(split) == [p.read_bytes() for p in files if by_hash[p.name] == out]
    assert all(held_out(name) == out for name, out in by_hash.items())


def test_the_tokens_of_a_split_are_memory_mapped(tmp_path):
    assert isinstance(tiny_corpus(tmp_path).train.tokens, np.memmap)


class WordLengths(Bytes):
    """A tokenizer that gives each word the token 70,000 + its number of letters, more than a byte
    holds.
    """

    name, vocab_size, dtype, separator = "lengths", 80_000, np.uint32, 69_999

    def encode(self, text: bytes) -> np.ndarray:
        return np.array([70_000 + len(word) for word in text.split()])


def test_tokens_beyond_a_byte_come_back_from_the_file(tmp_path):
    tiny_corpus(tmp_path)
    corpus = open_corpus(tmp_path / "text", WordLengths(), cache=tmp_path / "cache")
    train = [path for path in sorted((tmp_path / "text").iterdir()) if not held_out(path.name)]
    expected = [
        id
        for path in train
        for id in (*(70_000 + len(word) for word in path.read_text().split()), 69_999)
    ]
    assert corpus.train.tokens.tolist() == expected


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"ROPEWALK_CACHE": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/a"),
        ({"XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b/ropewalk"),
        ({"HOME": "/c"}, "/c/.cache/ropewalk"),
        ({"ROPEWALK_CACHE": "", "XDG_CACHE_HOME": "", "HOME": "/c"}, "/c/.cache/ropewalk"),
    ],
)
def test_the_cache_folder_follows_the_environment_variables(monkeypatch, variables, folder):
    for name in ("ROPEWALK_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache_folder() == Path(folder)


def test_the_fingerprint_of_a_corpus_hashes_names_and_contents(tmp_path):
    corpus = tiny_corpus(tmp_path)
    digest = hashlib.sha256(b"bytes")
    for path in sorted((tmp_path / "text").iterdir()):
        text = path.read_bytes()
        digest.update(path.name.encode() + b"\0" + str(len(text)).encode() + b"\0" + text)
    assert corpus.fingerprint == digest.hexdigest()


def test_a_changed_file_is_read_again(tmp_path):
    before = tiny_corpus(tmp_path)
    assert open_corpus(tmp_path / "text", cache=tmp_path / "cache").folder == before.folder
    path = tmp_path / "text" / "file03.txt"
    path.write_text(path.read_text().replace("rope", "ROPE"))
    os.utime(path, ns=(1, 1))
    after = open_corpus(tmp_path / "text", cache=tmp_path / "cache")
    assert after.fingerprint != before.fingerprint
    assert b"ROPE" in b"".join(documents(after.train) + documents(after.valid))


def test_windows_lie_within_documents_and_repeat_none(tmp_path):
    split = tiny_corpus(tmp_path).train
    whole = documents(split)
    windows = split.windows(60, 33)
    assert all(any(bytes(row) in text for text in whole) for row in windows)
    # as many documents as there are before any is used twice
    assert len({bytes(row) for row in windows[: len(whole)]}) == len(whole)
    assert not np.array_equal(windows, split.windows(60, 33, seed=1))


def test_a_document_a_little_too_short_gives_no_window(tmp_path):
    split = tiny_corpus(tmp_path).train
    whole = documents(split)
    length = sorted(map(len, whole))[len(whole) // 2] + 2
    windows = split.windows(60, length)
    assert all(any(bytes(row) in text for text in whole) for row in windows)


def test_a_window_longer_than_every_document_is_refused(tmp_path):
    with pytest.raises(RopeError, match="tokens of the longest document"):
        tiny_corpus(tmp_path).valid.windows(1, 10**6)


@pytest.mark.parametrize("name", ["text", ".text"])
def test_hidden_files_and_files_below_hidden_folders_are_not_read(tmp_path, name):
    folder = write_text(tmp_path / name)
    for hidden in (".git/hooks/pre.sample", ".git/config", ".hidden.txt", "a/.b/c/d.txt"):
        (folder / hidden).parent.mkdir(parents=True, exist_ok=True)
        (folder / hidden).write_text("hidden")
    (folder / "a" / "seen.txt").write_text("seen")
    assert [name for name, _ in find_source(folder).files] == [
        "a/seen.txt",
        *(f"file{n:02d}.txt" for n in range(30)),
    ]


def test_one_file_is_cut_at_lines(tmp_path):
    path = tmp_path / "one.txt"
    path.write_text("".join(f"line {i} of a file that is all there is\n" for i in range(5000)))
    corpus = open_corpus(path, cache=tmp_path / "cache")
    pieces = documents(corpus.train) + documents(corpus.valid)
    assert all(piece.endswith(b"\n") for piece in pieces)
    assert b"".join(text for _, text in find_source(path).documents()) == path.read_bytes()
    assert sum(map(len, pieces)) == path.stat().st_size
    names = [name for name, _ in find_source(path).documents()]
    assert names == [f"one.txt#{number:06d}" for number in range(len(pieces))]


def test_json_lines_are_documents(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"body": f"row {i} é"}) + "\n" for i in range(40)))
    corpus = open_corpus(path, cache=tmp_path / "cache", field="body")
    found = documents(corpus.train) + documents(corpus.valid)
    assert sorted(found) == sorted(f"row {i} é".encode() for i in range(40))


def test_blank_lines_of_json_lines_are_no_documents_and_count_as_lines(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "a"}\n  \n\n{"text": "b"}\n')
    assert list(find_source(path).documents()) == [
        ("rows.jsonl:000000000", b"a"),
        ("rows.jsonl:000000003", b"b"),
    ]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "line 1 must be JSON"),
        ('{"a": 1}', "strings in the fields text"),
        ("[1]", "must be an object"),
    ],
)
def test_an_error_names_the_bad_json_line(tmp_path, content, said):
    path = tmp_path / "rows.jsonl"
    path.write_text(content + "\n")
    with pytest.raises(RopeError, match=said):
        open_corpus(path, cache=tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_too_little_text_for_two_splits_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("short")
    with pytest.raises(RopeError, match="split is empty"):
        open_corpus(tmp_path / "a.txt", cache=tmp_path / "cache")


def test_an_unknown_source_lists_the_known():
    with pytest.raises(RopeError, match="code, stdlib, torch, prose"):
        open_corpus("nowhere")


@pytest.mark.parametrize("name", ["code", "stdlib", "torch", "prose"])
def test_every_source_finds_over_100_files_without_tests_and_installed_packages(name):
    assert list(SOURCES) == ["code", "stdlib", "torch", "prose"]
    source = SOURCES[name]()
    names = [each for each, _ in source.files]
    assert names == sorted(set(names))
    assert len(names) > 100
    assert not any(each.startswith(("python/site-packages", "python/test/")) for each in names)


def test_prose_begins_with_a_docstring_and_not_with_code():
    source = SOURCES["prose"]()
    text = {
        name: b"".join(t for _, t in source.read(name, path))
        for name, path in source.files
        if "json/__init__" in name
    }
    assert b"JSON (JavaScript Object Notation)" in text["python/json/__init__.py"]
    assert b"import" not in text["python/json/__init__.py"].split(b"\n")[0]


def test_a_dataset_on_disk_needs_its_package_and_a_split(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    (tmp_path / "dataset_info.json").write_text("{}")
    with pytest.raises(RopeError, match="pip install datasets"):
        open_corpus(tmp_path, cache=tmp_path / "cache")
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "dataset_info.json").write_text("{}")
    (tmp_path / "dataset_dict.json").write_text("{}")
    with pytest.raises(RopeError, match="one of train"):
        open_corpus(tmp_path, cache=tmp_path / "cache")


def test_the_rows_of_a_saved_dataset_are_documents(tmp_path, monkeypatch):
    """A fake `datasets` package returns what the real one does: rows with column names."""

    class Rows(list):
        column_names = ("body", "label")

    rows = Rows({"body": f"row {i}", "label": i} for i in range(40))
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_from_disk=lambda path: rows))
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "dataset_info.json").write_text("{}")
    corpus = open_corpus(tmp_path / "saved", cache=tmp_path / "cache", field="body")
    assert sorted(documents(corpus.train) + documents(corpus.valid)) == sorted(
        f"row {i}".encode() for i in range(40)
    )
    with pytest.raises(RopeError, match="body, label"):
        open_corpus(tmp_path / "saved", cache=tmp_path / "cache", field="text")


def test_word_starts_of_bytes_are_runs_of_word_characters_and_each_other_byte():
    rows = np.frombuffer(b"if x_1 == (ab)", dtype=np.uint8)[None]
    starts = Bytes().starts_word(rows)[0]
    words = "".join("^" if s else "." for s in starts)
    assert words == "^.^^..^^^^^^.^"


def test_windows_of_one_document_are_spread_over_it(tmp_path):
    """Four windows of one document begin in the middles of four equal parts of the places where a
    window can begin.
    """
    tokens = np.arange(100, dtype=np.uint8)
    split = Split(np.append(tokens, np.uint8(0)), np.array([0, 101]))
    starts = [int(row[0]) for row in split.windows(4, 20)]
    assert starts == [int((k + 0.5) / 4 * 80) for k in range(4)]


def test_a_window_never_holds_a_separator():
    """Documents of 3, 5, 1 and 5 tokens, each followed by the separator 0."""
    sizes = (3, 5, 1, 5)
    tokens = np.concatenate([[*range(1, size + 1), 0] for size in sizes]).astype(np.uint8)
    split = Split(tokens, np.cumsum([0, *(size + 1 for size in sizes)]))
    whole = [1, 2, 3, 4, 5]
    assert split.windows(4, 5).tolist() == [whole] * 4
    for length in range(1, 5):
        for row in split.windows(50, length).tolist():
            assert row in [whole[first : first + length] for first in range(6 - length)]
    with pytest.raises(RopeError, match="must be at most 5, the tokens of the longest document"):
        split.windows(1, 6)


@pytest.mark.parametrize(("length", "kept"), [(199, False), (200, True)])
def test_documentation_of_fewer_than_200_characters_is_left_out(tmp_path, length, kept):
    file = tmp_path / "module.py"
    file.write_text(f'"""{"a" * length}"""\n\ndef f():\n    """{"b" * 250}"""\n')
    ((name, text),) = sources.prose("module", file)
    assert name == "module"
    assert text.decode() == "\n\n".join(["a" * length] * kept + ["b" * 250])


def test_installed_packages_tests_and_generated_tables_are_no_part_of_the_standard_library(
    tmp_path, monkeypatch
):
    left_out = "site-packages dist-packages test tests idlelib lib2to3 pydoc_data encodings"
    for folder in [*left_out.split(), "__pycache__", "json", "json/tests", "email/mime"]:
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "a.py").write_text("1")
    (tmp_path / "os.py").write_text("1")
    (tmp_path / "os.txt").write_text("1")
    monkeypatch.setattr(sources.sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    assert [name for name, _ in sources.stdlib_files()] == [
        *("python/email/mime/a.py", "python/json/a.py", "python/os.py")
    ]


@pytest.mark.parametrize("count", [19, 20])
def test_fewer_than_twenty_files_are_cut_into_pieces(tmp_path, count):
    folder = tmp_path / "texts"
    (folder / ".hidden").mkdir(parents=True)
    (folder / ".hidden" / "x.txt").write_text("no")
    for number in range(count):
        (folder / f"{number:02}.txt").write_text("line\n" * 2000)
    documents = list(sources.find_source(folder).documents())
    # of 10,000 bytes, the pieces have 2048 and go on to the end of the line
    sizes = [len(text) for _, text in documents]
    assert sum(sizes) == count * 10_000
    assert (sizes[:5] == [2050, 2050, 2050, 2050, 1800]) == (count < 20)
    assert len(documents) == (count * 5 if count < 20 else count)


def test_prose_is_the_long_docstrings_of_a_module_and_the_long_pages_of_the_help(tmp_path):
    """At least 200 characters; a module that is no Python, such as those for tests, has none."""
    long, just, short = "a" * 300, "b" * 200, "c" * 199
    module = tmp_path / "module.py"
    module.write_text(
        f'"""{long}"""\nX = "{long}"\ndef f():\n    """{short}"""\nclass C:\n    """{just}"""\n',
        encoding="utf-8",
    )
    assert list(sources.prose("m", module)) == [("m", f"{long}\n\n{just}".encode())]
    pages = tmp_path / "topics.py"
    pages.write_text(
        f"topics = {{'one': {long!r}, 'two': {short!r}, 'three': {just!r}, 'four': 4}}\n",
        encoding="utf-8",
    )
    assert list(sources.prose("t", pages)) == [("t", f"{long}\n\n{just}".encode())]
    module.write_text("def f(:\n", encoding="utf-8")
    assert list(sources.prose("m", module)) == []
    module.write_text("X = 1\n", encoding="utf-8")
    assert list(sources.prose("m", module)) == []
