"""The data of a run: the samples to train on, and held-out parts to evaluate on.

Words of this module:
  preset     all settings of a run, in the tables `model`, `data` and `train`
  objective  what a model learns: to predict text ("causal" or "masked"), or one target for each
             line of a file
  triplet    a line with texts A, B and C, whose label says whether B or C is closer to A; the
             objectives "pairs" and "triplets" have such lines
  example    a line with one text or two and a class, for the objective "classes"
  seed       of the random choices of samples; the same seed gives the same samples
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from ropewalk.errors import RopeError, choice, number
from ropewalk_lab.batches import (
    BEYOND_TRAINING,
    Batches,
    MaskedBatches,
    MixedBatches,
    TaskBatches,
    TextBatches,
)
from ropewalk_lab.corpus import Corpus, open_corpus
from ropewalk_lab.labelled import ExampleBatches, classes_of, read_examples, split_examples
from ropewalk_lab.matching import LABELS, TripletBatches, read_triplets, split_triplets
from ropewalk_lab.objectives import OBJECTIVES
from ropewalk_lab.settings import check_names
from ropewalk_lab.sources import parse_line, refuse_pipe
from ropewalk_lab.text_tasks import TASKS
from ropewalk_lab.tokenizer import Tokenizer, open_tokenizer

#: objectives whose samples are the lines of a file: pairs, triplets and classes
FILE_OBJECTIVES = (*TripletBatches.FORMS, "classes")
#: windows of held-out text, or held-out samples of a task, in one evaluation
WINDOWS = 64


@dataclass(frozen=True)
class Data:
    """The `data` table of a preset.

    source     a name from SOURCES or a path; for pairs and triplets JSON lines with A, B, C; for
               classes see `labelled`
    valid      for pairs, triplets and classes: the file to evaluate on; by default a tenth of the
               source is held out
    test       for pairs, triplets and classes: a second file to evaluate on
    columns    for classes: the columns of the texts and of the label; by default those of GLUE
    objective  a name from OBJECTIVES
    tokenizer  "bytes", or the path of a vocab.txt, of a tokenizer.json, or of a folder with one of
               them
    field      the field of a JSON line that holds its text
    documents  whether attention is limited to the token's own document
    task       a name from TASKS, used instead of text, or mixed into it if `share` is given
    share      the share of the samples that are of the task; the others are text
    masked     share of the tokens, or of the words with `whole_words`, that masked language
               modelling predicts
    cache      folder of the tokenized text; by default ROPEWALK_CACHE or the user's cache folder
    """

    source: str = "code"
    valid: str | None = None
    test: str | None = None
    columns: tuple[str, ...] = ()
    objective: str = "causal"
    tokenizer: str = "bytes"
    field: str = "text"
    documents: bool = False
    task: str | None = None
    share: float | None = None
    masked: float = 0.15
    whole_words: bool = False
    cache: str | None = None

    def __post_init__(self) -> None:
        """Check the objective, the task and its share, and that settings which need each other are
        given together.
        """
        choice("data.objective", self.objective, OBJECTIVES)
        for name in ("valid", "test", "columns"):
            if getattr(self, name) and self.objective not in FILE_OBJECTIVES:
                rule = (
                    f"must be left out for the objective {self.objective}; it is for files of "
                    f"lines, with the objectives {', '.join(FILE_OBJECTIVES)}"
                )
                raise RopeError(f"data.{name}", rule, getattr(self, name))
        if self.task is not None:
            choice("data.task", self.task, TASKS)
            if self.objective != "causal":
                raise RopeError(
                    "data.task",
                    f"needs the objective causal, not {self.objective}: leave data.task out",
                    self.task,
                )
            if self.documents:
                raise RopeError(
                    "data.documents",
                    "is for text without a task: leave data.task or data.documents out",
                    True,
                )
        if self.share is not None:
            number("data.share", self.share, above=0, high=1)
            if self.task is None:
                raise RopeError("data.share", "needs a task: set data.task", self.share)


@dataclass(frozen=True)
class Part:
    """A held-out part: `count` samples of `batches`, from the sample number `first` on."""

    batches: Batches
    count: int
    first: int = 0


@dataclass(frozen=True)
class RunData:
    """Batches to train on, held-out parts by name ("valid", "test"), and `classes`: the names of
    the classes, of which a target is an index; ("B", "C") for pairs and triplets, empty for text.
    """

    train: Batches
    tokenizer: Tokenizer
    parts: dict[str, Part] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    # the number of samples in one pass over the training data, if they are the lines of a file
    size: int | None = None


def make_data(table: dict[str, Any]) -> Data:
    """Return the Data of a preset's `data` table; an unknown name is an error."""
    check_names("data", table, Data)
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in table.items()
    }
    return Data(**values)


def make_batches(data: Data, seed: int) -> Batches:
    """Return the training samples that a `data` table describes, without its held-out parts."""
    return open_data(data, seed, 1).train  # the length matters for the held-out parts only


def open_data(data: Data, seed: int, length: int) -> RunData:
    """Return the training samples and the held-out parts that a `data` table describes.

    length  of the held-out samples; a text whose held-out split is too short for it has no held-out
            part
    """
    tokenizer = open_tokenizer(data.tokenizer)
    if data.objective in FILE_OBJECTIVES:
        return _open_lines(data, tokenizer, seed)
    if data.task is not None and data.tokenizer != "bytes":
        raise RopeError(
            "data.task", "needs the tokenizer bytes: tasks are made of bytes", data.task
        )
    if data.task is not None and data.share is None:
        task = TaskBatches(data.task, tokenizer.vocab_size, seed)
        return RunData(task, tokenizer, {"valid": Part(task, count=WINDOWS, first=BEYOND_TRAINING)})
    corpus = open_corpus(data.source, tokenizer, cache=data.cache, field=data.field)
    train, valid = (
        _text_batches(data, tokenizer, corpus, split, seed) for split in ("train", "valid")
    )
    long_enough = len(corpus.valid.tokens) > 2 * length  # as TextBatches requires
    return RunData(
        train,
        tokenizer,
        {"valid": Part(valid, count=WINDOWS, first=BEYOND_TRAINING)} if long_enough else {},
    )


def _text_batches(
    data: Data, tokenizer: Tokenizer, corpus: Corpus, split: str, seed: int
) -> Batches:
    """Return the batches of one split of a text corpus: plain, masked, or mixed with a synthetic
    task.
    """
    fingerprint = f"{corpus.fingerprint} documents" if data.documents else corpus.fingerprint
    text = TextBatches(getattr(corpus, split), corpus.vocab_size, fingerprint, seed, data.documents)
    if data.objective == "masked":
        return MaskedBatches(text, tokenizer, data.masked, data.whole_words, seed)
    if data.task is None or data.share is None:
        return text
    return MixedBatches(
        (text, TaskBatches(data.task, tokenizer.vocab_size, seed)),
        (1 - data.share, data.share),
        seed,
    )


def _open_lines(data: Data, tokenizer: Tokenizer, seed: int) -> RunData:
    """Return the data of files whose lines are samples: triplets, or examples with classes."""
    has_classes = data.objective == "classes"
    # in the file to train on, a triplet without a label gets "B": in the published data, B is the
    # closer text
    train: list[Any] = (
        read_examples(data.source, data.columns) if has_classes else read_triplets(data.source)
    )
    classes = classes_of(train) if has_classes else LABELS
    valid: list[Any] = []
    if data.valid is None:
        train, valid = split_examples(train) if has_classes else split_triplets(train)
    # a sample without a label, as test files have, gives no loss to train on; in the parts to
    # evaluate on it stays, and its target is ignored
    train = [each for each in train if each.label is not None]
    batches = partial(
        _line_batches, objective=data.objective, classes=classes, tokenizer=tokenizer, seed=seed
    )
    parts = {"valid": Part(batches(valid, shuffle=False), len(valid))} if valid else {}
    for name, path in (("valid", data.valid), ("test", data.test)):
        if path is not None:
            parts[name] = open_part(path, data.objective, data.columns, classes, tokenizer)
    return RunData(batches(train, shuffle=True), tokenizer, parts, classes, len(train))


def open_part(
    path: str | Path,
    objective: str,
    columns: Sequence[str],
    classes: tuple[str, ...],
    tokenizer: Tokenizer,
) -> Part:
    """Return a file of labelled lines as a part to evaluate on; a line without a label has no
    target.

    columns  of the texts and the label, for the objective "classes"; empty: those of GLUE
    classes  of the training file, of which a target is an index
    """
    rows = (
        read_examples(path, columns)
        if objective == "classes"
        else read_triplets(path, unlabelled=None)
    )
    # the seed, 0, has no influence without `shuffle`
    return Part(_line_batches(rows, objective, classes, tokenizer, 0, shuffle=False), len(rows))


def _line_batches(
    rows: list,
    objective: str,
    classes: tuple[str, ...],
    tokenizer: Tokenizer,
    seed: int,
    shuffle: bool,
) -> Batches:
    """Return batches of labelled lines: texts with a class, or triplets (A, B, C), whose label says
    whether B or C is closer to A. With `shuffle`, each pass has a new order, and B and C are
    exchanged at random.
    """
    if objective == "classes":
        return ExampleBatches(rows, classes, tokenizer, seed, shuffle)
    return TripletBatches(rows, objective, tokenizer, seed, shuffle)


def file_objective(path: str | Path) -> str:
    """Return the objective for a file by its first line that is not blank: "pairs" for an object
    with A, B and C, otherwise "classes".
    """
    refuse_pipe(Path(path))
    with Path(path).open("rb") as file:
        lines = ((number, line) for number, line in enumerate(file, start=1) if line.strip())
        number, line = next(lines, (1, b""))
    is_object = line.decode("utf-8-sig", errors="replace").lstrip().startswith("{")
    return (
        "pairs"
        if is_object and parse_line(str(path), line, f"line {number}").keys() >= {"A", "B", "C"}
        else "classes"
    )
