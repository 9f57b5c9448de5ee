"""The page about fine-tuning: its commands, as they are written, from nothing to an accuracy."""

import json
import os
import re
import shlex
import shutil
from pathlib import Path

import pytest
import torch
import transformers

from command_line import call
from finetune_tiny import write_checkpoint
from ropewalk_lab.samples import FORMATS, SUBJECTS, write_sample

PAGE = Path(__file__).parents[2] / "docs" / "finetune.md"
BLOCKS = re.findall(
    r"^```bash\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
)


def commands(block: str) -> list[list[str]]:
    """Return the words after `ropewalk` of each command; a backslash joins a line to the next."""
    lines = block.replace("\\\n", " ").splitlines()
    found = [shlex.split(line, comments=True) for line in lines]
    assert all(words[0] == "ropewalk" for words in found)
    return [words[1:] for words in found]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROPEWALK_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("RANK", raising=False)
    return tmp_path


def test_the_first_commands_of_the_page_train_tune_and_evaluate(here, capsys):
    assert os.listdir(here) == []
    said = []
    for words in commands(BLOCKS[0]):
        code, out, err = call(capsys, *words)
        assert (code, err) == (0, ""), words
        said.append(out)
    assert [words[:2] for words in commands(BLOCKS[0])] == [
        ["lab", "sample"],
        ["train", "mlm"],
        ["lab", "finetune"],
        ["lab", "evaluate"],
    ]
    assert re.search(r"valid: loss \d+\.\d+, accuracy \d+\.\d\d % of \d+ targets", said[1])
    own = re.search(r"this run, 64 tokens +(\S.*?) ± .*? of 30  (.*?) ± .*? of 30\n", said[2])
    assert own, said[2]
    # evaluate measures the same file with the same model, loaded from its folder
    assert re.search(rf"accuracy {re.escape(own[2].strip())} ", said[3]), said[3]
    assert set((here / "labels.txt").read_text().split()) <= {"B", "C"}
    assert len((here / "labels.txt").read_text().split()) == 30


def test_the_commands_for_official_files_take_files_of_their_formats(here, capsys):
    """Small stand-ins under the names of the page: a sample in each format, a RoFormer, and a BERT
    of transformers.
    """
    write_sample("cail", "cail", count=20)
    write_sample("RTE", "glue", count=20)
    shutil.move("RTE/valid.tsv", "RTE/dev.tsv")
    for path in Path("cail").glob("*.json"):  # rows of 1024 tokens are slow to read
        path.write_text("\n".join(path.read_text().splitlines()[:3]))
    size = len(Path("cail/vocab.txt").read_text().splitlines())
    shutil.copy(
        "cail/vocab.txt", write_checkpoint(here / "roformer_chinese_char_base", vocab_size=size)
    )
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "vocab_size": 90,
    }
    transformers.BertForMaskedLM(transformers.BertConfig(**sizes)).save_pretrained(
        "bert-base-uncased"
    )
    shutil.copy("RTE/vocab.txt", "bert-base-uncased")
    for words in commands(BLOCKS[1]):
        code, out, err = call(capsys, *words)
        assert (code, err) == (0, ""), words
        assert re.search(r"this run, \d+ tokens +\d+\.\d\d % ± \d+\.\d\d % of 3", out), out
        assert ("RoFormer-1024 (published)" in out) == ("cail/train.json" in words)


@pytest.mark.parametrize("form", FORMATS)
def test_generated_files_are_equal_for_a_seed_and_their_labels_balanced(here, form):
    first, again, other = (
        write_sample(here / f"{i}", form, seed=seed) for i, seed in enumerate((0, 0, 1))
    )
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in again]
    assert first[0].read_bytes() != other[0].read_bytes()
    lines = [
        line
        for path in first[:3]
        for line in path.read_text().splitlines()
        if not line.startswith("index")
    ]
    assert len(lines) == 200
    shares = [
        sum(line.endswith(ending) for line in lines) / 200
        for ending in ('"label": "B"}', "\tentailment")
    ]
    assert 0.4 < max(shares) < 0.6
    assert len({line.split("\t", 1)[-1] for line in lines}) > 190  # hardly any line twice


def test_the_label_of_a_sample_is_right(here):
    """Read with fresh eyes: which of the two texts has a phrase about the subject of A, and what
    the last sentence says.
    """
    for path in write_sample(here / "cail", "cail", seed=3)[:3]:
        for line in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            about = {
                name: {
                    s for s, phrases in SUBJECTS.items() if any(p in line[name] for p in phrases)
                }
                for name in "ABC"
            }
            assert all(len(subjects) == 1 for subjects in about.values())
            assert [name for name in "BC" if about[name] == about["A"]] == [line["label"]]
    for path in write_sample(here / "glue", "glue", seed=3)[:3]:
        for line in path.read_text(encoding="utf-8").splitlines()[1:]:
            _, first, second, label = line.split("\t")
            thing, said = re.fullmatch(r"The (\w+) is (\w+)\.", second).groups()
            ((told_of, told),) = re.findall(r"The (\w+) in the \w+ is (\w+)\.", first)
            assert told_of == thing
            assert label == ("entailment" if said == told else "not_entailment")


@pytest.mark.parametrize("form", FORMATS)
def test_the_vocabulary_of_a_sample_has_every_token_of_it(here, form):
    from ropewalk_lab.tokenizer import open_tokenizer

    files = write_sample(here / "sample", form)
    tokenizer = open_tokenizer(here / "sample")
    for path in files[:2]:
        texts = (
            re.findall(r'"[ABC]": "(.*?)"', path.read_text())
            if form == "cail"
            else path.read_text().splitlines()[1:]
        )
        texts = (
            texts if form == "cail" else [text for line in texts for text in line.split("\t")[1:3]]
        )
        assert all(1 not in tokenizer.encode(text.encode()) for text in texts)


def test_a_sample_is_not_written_over_other_files(here, capsys):
    (here / "sample").mkdir()
    (here / "sample" / "mine.txt").write_text("mine")
    code, _, err = call(capsys, "lab", "sample", "sample")
    assert code == 2
    assert "FOLDER: must be new or empty; got 'sample'" in err
    assert call(capsys, "lab", "sample", "new", "--format", "squad")[0] == 2
    assert call(capsys, "lab", "sample", "new", "--count", "3")[0] == 2
