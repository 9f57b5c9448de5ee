"""Texts, or pairs of texts, with a class: tab-separated files as in GLUE, and JSON lines as in
CLUE.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from ropewalk.errors import RopeError
from ropewalk_lab.batches import IGNORED, Batch
from ropewalk_lab.corpus import held_out
from ropewalk_lab.sources import parse_line, refuse_pipe
from ropewalk_lab.text_rows import make_row, pad_rows, shuffled
from ropewalk_lab.tokenizer import Bytes, Tokenizer

#: names of the columns of the first and the second text, in the files of GLUE
TEXT_COLUMNS: tuple[tuple[str, ...], ...] = (
    ("sentence1", "sentence2"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("premise", "hypothesis"),
    ("#1 String", "#2 String"),
    ("sentence",),
)
LABEL_COLUMNS = ("label", "gold_label", "is_duplicate", "Quality")
#: values of the label column that are no class, and one that is a class only if the training file
#: has it: in GLUE -1 means that the label is not known
ABSENT, UNKNOWN = (None, "", "-"), "-1"
#: the most classes of a file; a column with more is probably a score or a text
MAX_CLASSES = 1000


@dataclass(frozen=True)
class Example:
    """One text or two, and their class; `second` is None for one text, `label` for an unknown
    class.
    """

    first: str
    second: str | None
    label: str | None


def read_examples(path: str | Path, columns: Sequence[str] = ()) -> list[Example]:
    """Return the examples of a tab-separated file with a header, or of JSON lines.

    columns  the names of the columns: one text or two, then the label; by default those of GLUE.
             Numbers from 1 are for a file without a header. A file may lack the label.
    """
    if columns and len(columns) not in (2, 3):
        rule = "must name one text or two, and then the label, as in sentence1,sentence2,label"
        raise RopeError("columns", rule, list(columns))
    # names of the columns; empty if the columns of GLUE are to be found
    texts, label = tuple(columns[:-1]), columns[-1] if columns else ""
    has_no_header = bool(columns) and all(name.isdigit() for name in columns)
    examples = []
    for where, row in _rows(Path(path), has_no_header):
        if not texts:  # columns of GLUE, found in the first row
            texts = next((names for names in TEXT_COLUMNS if row.keys() >= set(names)), ())
        if not columns and not label:
            # a JSON line without a label may come before the first that has one
            label = next((name for name in LABEL_COLUMNS if name in row), "")
        if not texts or not row.keys() >= set(texts):
            rule = (
                f"{where} must have {' and '.join(texts) or 'one of the text columns of GLUE'}; "
                "name others with columns"
            )
            raise RopeError(str(path), rule, sorted(row))
        second = row[texts[1]] if len(texts) == 2 else None
        value = row.get(label)
        examples.append(Example(row[texts[0]], second, None if value in ABSENT else value))
    if not examples:
        raise RopeError(str(path), "must have at least one example", 0)
    return examples


def _rows(path: Path, numbered: bool) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield (where, {column: value}) of every line that is not empty: the texts and integers of a
    JSON object, or a row of a tab-separated file, whose header is not yielded. `where` is such as
    "line 2", for messages. Raise an error if a row has not as many columns as the header. Bytes
    that are not UTF-8 are replaced in a tab-separated row; in a JSON line they are an error.

    numbered  the file has no header and is tab-separated; its columns are named 1, 2, ...
    """
    refuse_pipe(path)
    header: list[str] | None = None
    # lines end in \n or \r\n only; texts may contain other separators of lines
    for number, data in enumerate(re.split(rb"\r?\n", path.read_bytes()), start=1):
        where, line = f"line {number}", data.decode("utf-8-sig", errors="replace")
        if not line.strip():
            continue
        if header is None and not numbered and line.lstrip().startswith("{"):
            row = parse_line(str(path), data, where)
            yield (
                where,
                {name: str(value) for name, value in row.items() if isinstance(value, str | int)},
            )
            continue
        values: list[str] = line.split("\t")
        if header is None:
            header = [str(place + 1) for place in range(len(values))] if numbered else values
            if not numbered:
                continue
        if len(values) != len(header):
            raise RopeError(
                str(path), f"{where} must have {len(header)} columns separated by tabs", len(values)
            )
        yield where, dict(zip(header, values, strict=True))


def classes_of(examples: Sequence[Example]) -> tuple[str, ...]:
    """Return the classes of training examples, sorted; raise an error unless there are 2 to
    MAX_CLASSES.
    """
    classes = tuple(sorted({example.label for example in examples if example.label is not None}))
    if not 2 <= len(classes) <= MAX_CLASSES:
        rule = (
            f"must have a label column with 2 to {MAX_CLASSES} classes; a score, as in STS-B, is "
            "not a class"
        )
        raise RopeError("train", rule, f"{len(classes)} classes")
    return classes


def split_examples(examples: Sequence[Example]) -> tuple[list[Example], list[Example]]:
    """Return the examples as (train, valid), split by a hash of their first text: examples with the
    same text are in the same split, and about a tenth of the texts are in `valid`.
    """
    splits: dict[bool, list[Example]] = {False: [], True: []}
    for example in examples:
        is_valid = held_out(hashlib.sha256(example.first.encode()).hexdigest())
        splits[is_valid].append(example)
    return splits[False], splits[True]


@dataclass(frozen=True, eq=False)
class ExampleBatches:
    """Batches of examples; the target is the number of the class, or ignored if it is not known.

    With `shuffle`, each pass has a new order; otherwise samples are the examples in their order.
    """

    examples: Sequence[Example]
    classes: tuple[str, ...]
    tokenizer: Tokenizer = field(default_factory=Bytes)
    seed: int = 0
    shuffle: bool = True

    def __post_init__(self) -> None:
        """Refuse an empty list, and classes that the training file does not have, except UNKNOWN,
        which says that the class is not known.
        """
        if not self.examples:
            raise RopeError("examples", "must not be empty", 0)
        labels = {example.label for example in self.examples if example.label is not None}
        if refused := sorted(labels - {*self.classes, UNKNOWN}):
            raise RopeError(
                "label",
                f"must be one of the classes of the training file, {', '.join(self.classes)}",
                refused[:5],
            )

    @property
    def vocab_size(self) -> int:
        return self.tokenizer.vocab_size

    @property
    def fingerprint(self) -> str:
        """A text that identifies the samples: the tokenizer, the seed, and a hash of the examples
        and of how they are used.
        """
        content = json.dumps(
            [self.shuffle, self.classes, *([e.first, e.second, e.label] for e in self.examples)]
        )
        return (
            f"examples {self.tokenizer.name} {self.seed} "
            f"{hashlib.sha256(content.encode()).hexdigest()}"
        )

    def batch(self, index: np.ndarray, length: int) -> Batch:
        """Return the samples with the numbers `index` as padded rows, with their classes as
        targets; the loss ignores those whose class is not known.
        """
        index, size = np.asarray(index, dtype=np.int64), len(self.examples)
        places = shuffled(index, size, self.seed) if self.shuffle else index % size
        examples = [self.examples[int(place)] for place in places]
        rows = [
            make_row(self.tokenizer, example.first, example.second, length) for example in examples
        ]
        tokens, types, padding = pad_rows(rows, length)
        labels = [example.label for example in examples]
        targets = [
            self.classes.index(label) if label in self.classes else IGNORED for label in labels
        ]
        count = len(targets) - targets.count(IGNORED)
        return Batch(tokens, torch.tensor(targets), count, types=types, padding=padding)
