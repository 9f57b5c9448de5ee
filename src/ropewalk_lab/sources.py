"""Text sources that need no download: the source code of Python and torch, their docstrings, or the
user's own files.
"""

from __future__ import annotations

import ast
import json
import os
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ropewalk.errors import RopeError, choice

#: a document: its name in the corpus, and its bytes
Document = tuple[str, bytes]
#: folders below the standard library that are left out: installed packages, tests, IDLE, generated
#: tables and old grammars
SKIPPED = (
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "idlelib",
    "lib2to3",
    "pydoc_data",
    "encodings",
    "__pycache__",
)
#: if there are fewer files, each is cut into pieces of 1 / FEW_FILES of its bytes, within the bounds
#: below, since each split needs several documents
FEW_FILES = 20
#: bounds on the bytes of a piece of a file, which then goes on to the end of its line
LONGEST_PIECE, SHORTEST_PIECE = 1 << 20, 2048
#: characters; shorter pages of the documentation are left out
SHORTEST_PROSE = 200


@dataclass(frozen=True)
class TextSource:
    """Sorted (name, path) pairs of files, and a function that reads the documents of one file."""

    files: tuple[tuple[str, Path], ...]
    read: Callable[[str, Path], Iterator[Document]]

    def documents(self) -> Iterator[Document]:
        """Yield every document, file by file."""
        for name, path in self.files:
            yield from self.read(name, path)


def whole(name: str, path: Path) -> Iterator[Document]:
    """Yield a file as one document."""
    yield name, path.read_bytes()


def stdlib_files() -> list[tuple[str, Path]]:
    """Return the Python files of the standard library, without the folders SKIPPED."""
    return _python_files("python", Path(sysconfig.get_paths()["stdlib"]), SKIPPED)


def torch_files() -> list[tuple[str, Path]]:
    """Return the Python files of torch."""
    return _python_files("torch", Path(torch.__file__).parent, ("__pycache__",))


def _python_files(prefix: str, root: Path, skipped: tuple[str, ...]) -> list[tuple[str, Path]]:
    """Return (name, path) of all .py files below `root`, sorted; folders named in `skipped` are not
    entered. A name is `prefix` and the path below `root`.
    """
    paths = []
    for folder, subfolders, names in os.walk(root):
        # os.walk then enters only the folders left in this list
        subfolders[:] = [name for name in subfolders if name not in skipped]
        paths += [Path(folder, name) for name in names if name.endswith(".py")]
    return sorted((f"{prefix}/{path.relative_to(root).as_posix()}", path) for path in paths)


def prose(name: str, path: Path) -> Iterator[Document]:
    """Yield the docstrings of a module as one document; of topics.py, the pages of Python's help.

    Docstrings and pages with fewer than SHORTEST_PROSE characters are left out.
    """
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError:  # the standard library has some invalid files, for tests
        return
    if path.name == "topics.py":
        # a dict from the name of a topic to its page
        nodes = (
            value for node in ast.walk(tree) if isinstance(node, ast.Dict) for value in node.values
        )
        pages = [
            node.value
            for node in nodes
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
    else:
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        pages = [
            ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, kinds)
        ]
    text = "\n\n".join(page for page in pages if len(page) >= SHORTEST_PROSE)
    if text:
        yield name, text.encode("utf-8", errors="replace")


def _prose_source() -> TextSource:
    """Return the docstrings of the standard library and Python's help topics as a source."""
    topics = Path(sysconfig.get_paths()["stdlib"]) / "pydoc_data" / "topics.py"
    extra = [("python/pydoc_data/topics.py", topics)] if topics.exists() else []
    return TextSource(tuple(sorted([*stdlib_files(), *extra])), prose)


#: name -> function that returns the source; any other name is a path
SOURCES: dict[str, Callable[[], TextSource]] = {
    "code": lambda: TextSource(tuple(sorted([*stdlib_files(), *torch_files()])), whole),
    "stdlib": lambda: TextSource(tuple(stdlib_files()), whole),
    "torch": lambda: TextSource(tuple(torch_files()), whole),
    "prose": _prose_source,
}


def find_source(name: str | Path, field: str = "text") -> TextSource:
    """Return a source by its name in SOURCES, or that of the files or the saved dataset at a path;
    `field` is the field of each JSON line, or the column of the dataset, that has the text.
    """
    if str(name) in SOURCES:
        return SOURCES[str(name)]()
    path = Path(name)
    if not path.exists():
        raise RopeError(
            "source", f"must be a path that exists or one of {', '.join(SOURCES)}", str(name)
        )
    if (path / "dataset_dict.json").exists():
        splits = sorted(file.parent.name for file in path.glob("*/dataset_info.json"))
        raise RopeError(
            "source",
            "must be the folder of one split of a saved dataset, not of all: one of "
            f"{', '.join(splits)}",
            str(path),
        )
    if (path / "dataset_info.json").exists():
        # one file stands for the whole folder, which the package `datasets` reads
        return TextSource(
            (("dataset_info.json", path / "dataset_info.json"),),
            lambda _, file: _rows_of(file.parent, field),
        )
    files = _files_of(path)
    in_pieces = len(files) < FEW_FILES

    def read(name: str, file: Path) -> Iterator[Document]:
        """Yield the documents of a file: its JSON lines, its pieces if there are few files, or the
        whole file.
        """
        if file.suffix in (".jsonl", ".ndjson"):
            return _lines_of(name, file, field)
        return _pieces_of(name, file) if in_pieces else whole(name, file)

    return TextSource(tuple(files), read)


def _files_of(path: Path) -> list[tuple[str, Path]]:
    """Return (name, path) of a single file, or of the files below a folder, without hidden files
    and files in hidden folders; raise an error if there are none.
    """
    if path.is_file():
        return [(path.name, path)]
    names = ((file.relative_to(path), file) for file in path.rglob("*") if file.is_file())
    files = sorted(
        (name.as_posix(), file)
        for name, file in names
        if not any(part.startswith(".") for part in name.parts)
    )
    if not files:
        raise RopeError("source", "must be a file or a folder with files in it", str(path))
    return files


def _pieces_of(name: str, path: Path) -> Iterator[Document]:
    """Yield a file in pieces, so that a single file gives several documents.

    A piece has the bytes of the file divided by FEW_FILES, but at least SHORTEST_PIECE and at most
    LONGEST_PIECE, and then goes on to the end of its line, by at most its size again. The last one
    has what is left.
    """
    size = max(SHORTEST_PIECE, min(LONGEST_PIECE, path.stat().st_size // FEW_FILES))
    with path.open("rb") as file:
        number = 0
        while piece := file.read(size):
            yield f"{name}#{number:06d}", piece + file.readline(size)
            number += 1


def _lines_of(name: str, path: Path, field: str) -> Iterator[Document]:
    """Yield the text in `field` of every line of a JSON lines file as a document; blank lines are
    left out.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file):
            if line.strip():
                where = f"{path.name}, line {number + 1}"
                row = parse_line(
                    "source",
                    line,
                    where,
                    field,
                    fix="; another field can be set as data.field or field=",
                )
                yield f"{name}:{number:09d}", row[field].encode()


def refuse_pipe(path: Path) -> None:
    """Raise an error if the path is a pipe or a device: it may never end, and cannot be read
    twice.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise RopeError(
            str(path),
            "must be a file; a pipe or a device may never end: save what it returns",
            path.name,
        )


def parse_line(source: str, line: bytes, where: str, *names: str, fix: str = "") -> dict[str, Any]:
    """Return a JSON line as a dict; raise an error if it is not an object with strings in the
    fields `names`. Other fields may have any value.

    `source` and `where` say in the error which file and line it is, and `fix` what to do.
    """
    try:
        row = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise RopeError(source, f"{where} must be JSON ({error})", line[:60]) from None
    if not isinstance(row, dict) or not all(isinstance(row.get(name), str) for name in names):
        raise RopeError(
            source,
            f"{where} must be an object with strings in the fields {', '.join(names)}{fix}",
            row,
        )
    # JSON strings may contain half of a surrogate pair, which UTF-8 cannot encode: it becomes "?"
    return {
        name: value.encode("utf-8", errors="replace").decode() if isinstance(value, str) else value
        for name, value in row.items()
    }


def _rows_of(folder: Path, field: str) -> Iterator[Document]:
    """Yield the text of every row of a dataset that the `datasets` package saved to disk."""
    try:
        import datasets  # type: ignore[import-not-found]
    except ImportError:
        raise RopeError(
            "source",
            "must be text files; to read a saved dataset, run: pip install datasets",
            str(folder),
        ) from None
    rows = datasets.load_from_disk(str(folder))
    choice("field", field, rows.column_names)
    for number, row in enumerate(rows):
        yield f"{number:09d}", str(row[field]).encode()
