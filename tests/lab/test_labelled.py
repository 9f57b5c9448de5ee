"""Examples with classes: GLUE's files as they are, what is refused, and the batches of a pass."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from ropewalk.errors import RopeError
from ropewalk_lab.data import Data, file_objective, open_data
from ropewalk_lab.labelled import Example, ExampleBatches, classes_of, read_examples, split_examples
from ropewalk_lab.matching import read_triplets
from ropewalk_lab.objectives import classes
from ropewalk_lab.sources import parse_line
from ropewalk_lab.subwords import Subwords

#: the first lines of GLUE's files, with texts of our own
GLUE = {
    "SST-2": ("sentence\tlabel\na tight rope \t1\n", Example("a tight rope ", None, "1")),
    "RTE": (
        "index\tsentence1\tsentence2\tlabel\n0\tIt rained.\tIt was wet.\tno\n",
        ("It rained.", "It was wet.", "no"),
    ),
    "QNLI": (
        "index\tquestion\tsentence\tlabel\n0\tWho?\tIda did.\tentailment\n",
        ("Who?", "Ida did.", "entailment"),
    ),
    "QQP": (
        "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n7\t1\t2\tA?\tB?\t0\n",
        ("A?", "B?", "0"),
    ),
    "MRPC": (
        '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n1\t5\t6\tSay "no\tSay no\r\n',
        ('Say "no', "Say no", "1"),
    ),
    "MNLI": (
        "index\tsentence1\tsentence2\tlabel1\tgold_label\n0\tp\th\tneutral\tneutral\n",
        ("p", "h", "neutral"),
    ),
    "RTE of SuperGLUE": (
        '{"hypothesis": "It was wet.", "premise": "It rained.", "label": "entailment"}\n',
        ("It rained.", "It was wet.", "entailment"),
    ),
    "RTE test": ("index\tsentence1\tsentence2\n0\tp\th\n", ("p", "h", None)),
    "SNLI, no agreement": ("sentence1\tsentence2\tgold_label\np\th\t-\n", ("p", "h", None)),
}


@pytest.mark.parametrize("name", GLUE)
def test_the_files_of_glue_are_read_as_they_are(tmp_path, name):
    text, expected = GLUE[name]
    (tmp_path / "x.tsv").write_bytes(text.encode())
    assert read_examples(tmp_path / "x.tsv") == [
        Example(*expected) if isinstance(expected, tuple) else expected
    ]


def test_numbers_are_the_columns_of_a_file_without_a_header(tmp_path):
    (tmp_path / "cola.tsv").write_text("gj04\t1\t\tThe rope held.\ngj04\t0\t*\tRope the held.\n")
    found = read_examples(tmp_path / "cola.tsv", ("4", "2"))
    assert found == [Example("The rope held.", None, "1"), Example("Rope the held.", None, "0")]


def test_a_text_of_a_file_without_a_header_may_look_like_json(tmp_path):
    (tmp_path / "x.tsv").write_text('{"a": 1}\t0\n{b}\t1\n')
    found = read_examples(tmp_path / "x.tsv", ("1", "2"))
    assert found == [Example('{"a": 1}', None, "0"), Example("{b}", None, "1")]


def test_a_json_line_may_begin_with_spaces(tmp_path):
    (tmp_path / "x.json").write_text('  {"sentence": "The rope held.", "label": 1}\n')
    assert read_examples(tmp_path / "x.json") == [Example("The rope held.", None, "1")]


def test_json_lines_are_read_with_named_columns(tmp_path):
    rows = [{"text": "甲\u2028乙", "kind": 3}, {"text": "\ud800", "kind": "x"}]
    (tmp_path / "x.json").write_text("\n".join(json.dumps(row) for row in rows))
    assert read_examples(tmp_path / "x.json", ("text", "kind")) == [
        Example("甲\u2028乙", None, "3"),
        Example("?", None, "x"),
    ]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_carriage_return_within_a_text_ends_no_line(tmp_path, end):
    (tmp_path / "x.tsv").write_bytes(f"sentence\tlabel{end}a\rb\t1{end}c\t0{end}".encode())
    assert read_examples(tmp_path / "x.tsv") == [
        Example("a\rb", None, "1"),
        Example("c", None, "0"),
    ]


@pytest.mark.parametrize("first", [{}, {"label": None}, {"label": 0.5}])
def test_a_first_json_line_without_a_label_hides_no_label_of_later_lines(tmp_path, first):
    rows = [
        {"sentence": "a", **first},
        {"sentence": "b", "label": "yes"},
        {"sentence": "c"},
        {"sentence": "d", "label": 0},
    ]
    (tmp_path / "x.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    assert [example.label for example in read_examples(tmp_path / "x.jsonl")] == [
        None,
        "yes",
        None,
        "0",
    ]


def test_half_of_a_surrogate_pair_becomes_a_question_mark():
    row = parse_line("f", b'{"text": "a\\ud800b"}', "line 1", "text")
    assert row["text"].encode() == b"a?b"


@pytest.mark.parametrize(
    ("text", "columns", "said"),
    [
        (
            "a\tb\n1\t2\n",
            (),
            r"line 2 must have one of the text columns of GLUE; .* got \['a', 'b'\]",
        ),
        ("a\tlabel\nx\t2\n", ("b", "label"), "line 2 must have b; name others with columns"),
        ("sentence\tlabel\nx\n", (), "line 2 must have 2 columns separated by tabs; got 1"),
        ("sentence\tlabel\n", (), "at least one example"),
        ("sentence\tlabel\nx\t2\n", ("sentence",), "one text or two, and then the label"),
        ("{\n", (), "line 1 must be JSON"),
    ],
)
def test_bad_files_are_named(tmp_path, text, columns, said):
    (tmp_path / "bad.tsv").write_text(text)
    with pytest.raises(RopeError, match=said):
        read_examples(tmp_path / "bad.tsv", columns)


MANY = [Example(f"text {i % 30}", f"other {i}", ["yes", "no", "maybe"][i % 3]) for i in range(90)]


def test_classes_are_sorted_and_0_or_over_1000_are_refused():
    assert classes_of(MANY) == ("maybe", "no", "yes")
    with pytest.raises(RopeError, match="2 to 1000 classes; a score, as in STS-B"):
        classes_of([Example("a", None, f"{i / 997:.4f}") for i in range(1001)])
    with pytest.raises(RopeError, match="got '0 classes'"):
        classes_of([Example("a", None, None)])


def test_no_first_text_is_in_both_splits():
    train, valid = split_examples(MANY)
    assert train
    assert valid
    assert sorted(e.second for e in train + valid) == sorted(e.second for e in MANY)
    assert not {e.first for e in train} & {e.first for e in valid}


def test_a_class_that_occurs_only_in_the_held_out_part_is_a_class(tmp_path):
    (rare,) = split_examples([Example(f"text {number}", None, None) for number in range(30)])[1][:1]
    lines = [
        f"text {number}\t{'rare' if f'text {number}' == rare.first else 'ab'[number % 2]}"
        for number in range(30)
    ]
    (tmp_path / "x.tsv").write_text("\n".join(["sentence\tlabel", *lines]))
    opened = open_data(Data(source=str(tmp_path / "x.tsv"), objective="classes"), 0, 8)
    assert opened.classes == ("a", "b", "rare")
    assert rare.first in [example.first for example in opened.parts["valid"].batches.examples]


def texts_of(batch):
    return [
        bytes(row[real].tolist()) for row, real in zip(batch.inputs, batch.padding, strict=True)
    ]


def test_each_target_is_the_class_of_the_text_in_its_row():
    batch = ExampleBatches(MANY, ("maybe", "no", "yes")).batch(np.arange(90), 40)
    by_text = {f"{e.first}\0{e.second}".encode(): e.label for e in MANY}
    assert sorted(texts_of(batch)) == sorted(by_text)
    assert [("maybe", "no", "yes")[t] for t in batch.targets.tolist()] == [
        by_text[text] for text in texts_of(batch)
    ]
    assert batch.count == 90
    for row, types in zip(texts_of(batch), batch.types.tolist(), strict=True):
        assert types[: len(row)] == [int(place > row.index(b"\0")) for place in range(len(row))]


def test_without_shuffling_the_order_is_that_of_the_file():
    batch = ExampleBatches(MANY, ("maybe", "no", "yes"), shuffle=False).batch(np.arange(5), 40)
    assert texts_of(batch) == [f"{e.first}\0{e.second}".encode() for e in MANY[:5]]


def test_examples_without_a_class_are_ignored_and_classes_that_training_lacks_are_refused():
    unknown = [Example("a", None, None), Example("b", None, "-1"), Example("c", None, "yes")]
    batch = ExampleBatches(unknown, ("no", "yes"), shuffle=False).batch(np.arange(3), 4)
    assert (batch.targets.tolist(), batch.count) == ([-100, -100, 1], 1)
    assert ExampleBatches(unknown, ("-1", "yes"), shuffle=False).batch(
        np.arange(3), 4
    ).targets.tolist() == [-100, 0, 1]
    with pytest.raises(
        RopeError, match=r"classes of the training file, no, yes; got \['perhaps'\]"
    ):
        ExampleBatches([Example("a", None, "perhaps")], ("no", "yes"))


def test_data_of_other_texts_labels_or_tokenizers_have_other_fingerprints(tmp_path):
    from ropewalk_lab.subwords import Subwords

    (tmp_path / "vocab.txt").write_text("[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    other = [*MANY[:-1], Example(MANY[-1].first, MANY[-1].second, "no")]
    made = [
        ExampleBatches(MANY, ("maybe", "no", "yes")),
        ExampleBatches(other, ("maybe", "no", "yes")),
    ]
    made += [
        ExampleBatches(MANY, ("maybe", "no", "yes"), tokenizer=Subwords(tmp_path / "vocab.txt"))
    ]
    made += [
        ExampleBatches(MANY, ("maybe", "no", "yes"), seed=1),
        ExampleBatches(MANY[1:], ("maybe", "no", "yes")),
    ]
    assert len({each.fingerprint for each in made}) == 5


class Given(nn.Module):
    """A model that returns a given output."""

    def __init__(self, output):
        super().__init__()
        self.output = output

    def forward(self, tokens, **others):
        return self.output


def test_the_loss_is_the_cross_entropy_of_known_targets():
    logits = torch.randn(4, 3)
    batch = ExampleBatches(
        [*MANY[:3], Example("z", None, None)], ("maybe", "no", "yes"), shuffle=False
    ).batch(np.arange(4), 40)
    expected = -torch.log_softmax(logits.double(), -1)[torch.arange(3), [2, 1, 0]].sum()
    assert classes(Given(logits), batch).item() == pytest.approx(expected.item(), rel=1e-6)


@pytest.mark.parametrize("read", [read_examples, read_triplets, file_objective])
def test_a_pipe_or_a_device_is_refused_before_it_is_read(read):
    with pytest.raises(
        RopeError, match="/dev/null: must be a file; a pipe or a device may never end"
    ):
        read(Path("/dev/null"))


@pytest.mark.parametrize("indent", [b"", b"  ", b"\xef\xbb\xbf "])
def test_the_objective_of_a_file_does_not_depend_on_space_before_an_object(tmp_path, indent):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\n" + indent + b'{"A": "a", "B": "b", "C": "c", "label": "B"}\n')
    assert file_objective(path) == "pairs"
    path.write_bytes(b"\n" + indent + b'{"A": ')
    with pytest.raises(RopeError, match="line 2 must be JSON"):
        file_objective(path)


@pytest.mark.parametrize("path", ["/dev/null", "/", " ", "missing"])
def test_a_tokenizer_that_is_no_file_is_refused(path):
    with pytest.raises(RopeError, match="tokenizer: must be bytes, or the path"):
        Subwords(path)


def test_json_that_is_too_deep_is_refused_as_other_json():
    with pytest.raises(RopeError, match="line 3 must be JSON"):
        parse_line("rows.jsonl", b"[" * 100_000, "line 3")


def test_shuffled_examples_and_another_order_of_classes_are_other_data():
    made = [
        ExampleBatches(MANY, ("maybe", "no", "yes")),
        ExampleBatches(MANY, ("maybe", "no", "yes"), shuffle=False),
        ExampleBatches(MANY, ("yes", "no", "maybe")),
    ]
    assert len({each.fingerprint for each in made}) == 3


def test_another_seed_gives_another_order_of_examples():
    first, again, other = (
        texts_of(ExampleBatches(MANY, ("maybe", "no", "yes"), seed=seed).batch(np.arange(90), 40))
        for seed in (0, 0, 1)
    )
    assert first == again != other
    assert sorted(first) == sorted(other)


def test_about_a_tenth_of_the_examples_is_held_out():
    train, valid = split_examples([Example(f"text {i}", "same", "yes") for i in range(2000)])
    assert 150 < len(valid) < 250
    assert len(train) == 2000 - len(valid)
