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
