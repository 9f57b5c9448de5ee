"""Generated samples: files that people can read, and a vocabulary in which every token occurs once."""

import json
import random

import pytest

from ropewalk.errors import RopeError
from ropewalk_lab.samples import FORMATS, write_sample

#: subjects and their phrases, written out here a second time
PHRASES = {
    "民间借贷": ("借款到期后被告未归还本金", "被告出具借条后拒绝还款"),
    "买卖合同": ("原告交货后被告拖欠货款", "被告收到货物却未付价款"),
    "劳动报酬": ("公司拖欠原告三个月工资", "单位解除合同未付补偿金"),
    "房屋租赁": ("承租人逾期未交房租", "租赁期满被告拒不搬离"),
    "交通事故": ("被告驾车追尾造成原告受伤", "车辆相撞致原告住院治疗"),
    "离婚": ("双方感情破裂已分居两年", "原告请求判令双方离婚"),
}


def test_a_seed_gives_the_same_cases_in_every_version(tmp_path):
    """Cases as short as they can be have one sentence, so every draw of Python's generator is
    known.
    """
    write_sample(tmp_path / "sample", "cail", count=20, characters=1, seed=5)
    draw = random.Random(5)
    for line in map(
        json.loads, (tmp_path / "sample" / "train.json").read_text(encoding="utf-8").splitlines()
    ):
        subject, other = draw.sample(list(PHRASES), 2)
        label = draw.choice("BC")
        subjects = (subject, subject, other) if label == "B" else (subject, other, subject)
        assert [line[name] for name in "ABC"] == [
            draw.choice(PHRASES[each]) + "。" for each in subjects
        ]
        assert line["label"] == label


@pytest.mark.parametrize("form", FORMATS)
def test_every_token_of_the_vocabulary_is_there_once(tmp_path, form):
    write_sample(tmp_path / "sample", form, count=20, characters=200)
    tokens = (tmp_path / "sample" / "vocab.txt").read_text(encoding="utf-8").split("\n")[:-1]
    assert sorted(tokens) == sorted(set(tokens))
    if form == "glue":
        assert {"a", "##a", "rope"} <= set(tokens)  # a word of one letter is the letter


@pytest.mark.parametrize("name", ["text.jsonl", "train.json"])
def test_json_lines_of_a_sample_hold_chinese_without_escapes(tmp_path, name):
    write_sample(tmp_path / "sample", "cail", count=20)
    lines = (tmp_path / "sample" / name).read_text(encoding="utf-8").splitlines()
    assert not any("\\u" in line for line in lines)
    assert all(json.dumps(json.loads(line), ensure_ascii=False) == line for line in lines)


@pytest.mark.parametrize(
    "size",
    [{"count": 2**62}, {"count": 20, "characters": 2**62}, {"count": 100_000, "characters": 201}],
)
def test_a_sample_with_too_many_lines_or_characters_is_refused(tmp_path, size):
    with pytest.raises(RopeError, match=f"{list(size)[-1]}: must be an integer from"):
        write_sample(tmp_path / "sample", **size)


@pytest.mark.parametrize("form", FORMATS)
def test_a_sample_has_70_15_and_15_per_cent_of_200_lines(tmp_path, form):
    write_sample(tmp_path / "sample", form)
    ending, header = {"cail": ("json", 0), "glue": ("tsv", 1)}[form]
    counts = {
        name: (tmp_path / "sample" / f"{name}.{ending}").read_text(encoding="utf-8").count("\n")
        for name in ("train", "valid", "test")
    }
    assert counts == {"train": 140 + header, "valid": 30 + header, "test": 30 + header}


def test_texts_to_pretrain_on_are_those_of_training_and_validation_and_not_of_the_test(tmp_path):
    folder = tmp_path / "sample"
    write_sample(folder, count=40)
    lines = {
        name: [
            json.loads(line)
            for line in (folder / f"{name}.json").read_text(encoding="utf-8").splitlines()
        ]
        for name in ("train", "valid", "test")
    }
    texts = [line[each] for name in ("train", "valid") for line in lines[name] for each in "ABC"]
    written = (folder / "text.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["text"] for line in written] == texts
    # each text has at least 60 characters, and no more sentences than this takes
    lengths = [len(line[each]) for name in lines for line in lines[name] for each in "ABC"]
    assert min(lengths) >= 60
    assert max(lengths) < 110
    about = lambda text: {name for name, said in PHRASES.items() if any(s in text for s in said)}
    for line in (each for part in lines.values() for each in part):
        near, far = ("B", "C") if line["label"] == "B" else ("C", "B")
        assert about(line["A"]) == about(line[near]) != about(line[far])


def test_a_sentence_is_entailed_only_if_it_says_the_same(tmp_path):
    write_sample(tmp_path / "sample", "glue", count=200)
    lines = (tmp_path / "sample" / "train.tsv").read_text(encoding="utf-8").splitlines()
    assert lines[0].split("\t") == ["index", "sentence1", "sentence2", "label"]
    labels = []
    for line in lines[1:]:
        _, first, second, label = line.split("\t")
        said = first.split(". ")[-1].rstrip(".").split()
        thing, quality = said[1], said[-1]
        claimed = second.rstrip(".").split()
        assert claimed[1] == thing
        assert (claimed[-1] == quality) == (label == "entailment")
        labels.append(label)
    assert 0.35 < labels.count("entailment") / len(labels) < 0.65


@pytest.mark.parametrize("form", FORMATS)
def test_another_seed_gives_another_sample(tmp_path, form):
    made = []
    for name, options in {"a": {}, "b": {"seed": 0}, "c": {"seed": 1}}.items():
        files = write_sample(tmp_path / name, form, count=20, **options)
        made.append(files[0].read_bytes())
    assert made[0] == made[1] != made[2]
