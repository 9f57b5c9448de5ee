"""Small generated samples in the formats of published tasks, so that the whole path of fine-tuning
can be tried offline.

Words of this module:
  draw        the random generator of a sample
  characters  the least length of each text of a triplet, or of the first text of a pair; sentences
              that say nothing are added until it is reached
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

from ropewalk.errors import RopeError, choice, integer
from ropewalk_lab.data_files import toml_beside
from ropewalk_lab.json_lines import write_atomically

_PHRASES = toml_beside(__file__)
#: subjects of cases, each with two phrases of which every case on the subject has one
SUBJECTS: dict[str, list[str]] = _PHRASES["subjects"]
#: sentences that say nothing about the subject
FILLER: list[str] = _PHRASES["filler"]
THINGS, PLACES = (
    ("rope", "cord", "cable", "chain", "ribbon"),
    ("harbour", "market", "workshop", "tower", "garden"),
)
QUALITIES = ("strong", "narrow", "heavy", "golden", "broken")
#: the share of the examples in each file
SPLITS = {"train": 0.7, "valid": 0.15, "test": 0.15}
#: upper bounds for lines, and for the characters of all lines together; they catch typos, as a
#: sample is small
MOST_LINES, MOST_CHARACTERS = 100_000, 20_000_000
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def _case(draw: random.Random, subject: str, characters: int) -> str:
    """Return the text of a court case, `characters` characters or slightly more, with one phrase
    about its subject.
    """
    sentences = [draw.choice(SUBJECTS[subject]) + "。"]
    length = len(sentences[0])
    while length < characters:
        place, sentence = draw.randint(0, len(sentences)), draw.choice(FILLER)
        sentences.insert(place, sentence)
        length += len(sentence)
    return "".join(sentences)


def _triplets(draw: random.Random, count: int, characters: int) -> list[str]:
    """Return lines in the format of CAIL2019-SCM: two of the three texts are about the same
    subject.
    """
    lines = []
    for _ in range(count):
        subject, other = draw.sample(list(SUBJECTS), 2)
        label = draw.choice("BC")
        subjects = (subject, subject, other) if label == "B" else (subject, other, subject)
        texts = dict(zip("ABC", (_case(draw, each, characters) for each in subjects), strict=True))
        lines.append(json.dumps({**texts, "label": label}, ensure_ascii=False))
    return lines


def _sentence_pairs(draw: random.Random, count: int, characters: int) -> list[str]:
    """Return a header and `count` lines in the format of GLUE's RTE, whose question is whether the
    first text entails the second.
    """
    lines = ["index\tsentence1\tsentence2\tlabel"]
    for number in range(count):
        thing, quality, place = draw.choice(THINGS), draw.choice(QUALITIES), draw.choice(PLACES)
        label = draw.choice(("entailment", "not_entailment"))
        claimed = (
            quality
            if label == "entailment"
            else draw.choice([each for each in QUALITIES if each != quality])
        )
        first, before = f"The {thing} in the {place} is {quality}.", ""
        while len(before) + len(first) < characters:
            before += f"There is a {draw.choice(THINGS)} in the {draw.choice(PLACES)}. "
        lines.append(f"{number}\t{before}{first}\tThe {thing} is {claimed}.\t{label}")
    return lines


#: format -> (function that makes the lines of a file, ending of the files)
FORMATS: dict[str, tuple[Callable[[random.Random, int, int], list[str]], str]] = {
    "cail": (_triplets, "json"),
    "glue": (_sentence_pairs, "tsv"),
}


def write_sample(
    folder: str | Path, form: str = "cail", *, count: int = 200, characters: int = 60, seed: int = 0
) -> list[Path]:
    """Write a generated sample and return its files: train, valid and test, a BERT vocab.txt, and
    text.jsonl for pretraining.

    folder      where they are written; it must be new or empty
    form        a name from FORMATS: cail (JSON lines with three Chinese texts about court cases) or
                glue (tab-separated pairs of English sentences)
    count       examples of all three files together; a glue file has a header line besides
    characters  the least length of each text of a triplet, or of the first text of a pair
    seed        of the random choices; the same seed gives the same files
    """
    make, ending = FORMATS[choice("format", form, FORMATS)]
    integer("count", count, low=20, high=MOST_LINES)
    integer("characters", characters, low=1, high=MOST_CHARACTERS // count)
    folder = Path(folder)
    if folder.exists() and any(folder.iterdir()):
        raise RopeError("folder", "must be new or empty", str(folder))
    draw, files, texts = random.Random(seed), {}, []
    for split, share in SPLITS.items():
        lines = make(draw, round(count * share), characters)
        files[f"{split}.{ending}"] = lines
        if split != "test":  # nothing is learned from the test file
            texts += _texts(lines, form)
    # a vocabulary of WordPiece: characters, whole words, and characters that continue a word (##)
    characters_used = sorted(
        {character for text in texts for character in text.lower() if not character.isspace()}
    )
    words = sorted(
        {
            word
            for text in texts
            for word in text.lower().split()
            if word.isascii() and word.isalpha()
        }
    )
    pieces = [
        f"##{character}"
        for character in characters_used
        if character.isascii() and character.isalnum()
    ]
    files["vocab.txt"] = [
        *SPECIAL,
        *characters_used,
        *(word for word in words if len(word) > 1),
        *pieces,
    ]
    files["text.jsonl"] = [json.dumps({"text": text}, ensure_ascii=False) for text in texts]
    for name, lines in files.items():
        write_atomically(folder / name, "\n".join(lines) + "\n")
    return [folder / name for name in files]


def _texts(lines: list[str], form: str) -> list[str]:
    """Return the texts in the lines of a sample, without labels and the header."""
    if form == "cail":
        return [
            text for line in lines for name, text in json.loads(line).items() if name != "label"
        ]
    return [text for line in lines[1:] for text in line.split("\t")[1:3]]
