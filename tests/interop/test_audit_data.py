"""Rules are data: a row, a family or a release that a file adds changes what `audit` says, and no
code does.
"""

from __future__ import annotations

import pytest

import ropewalk.engines.rules as rules
from ropewalk.caches import clear_caches
from ropewalk.engines import ENGINES, audit
from ropewalk.errors import RopeError

CONFIG = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "max_position_embeddings": 4096,
    "rope_theta": 1e4,
    "rope_scaling": {"rope_type": "linear", "factor": 4.0},
}
RELEASE = """
engine = "vllm"
version = "{version}"
extends = "0.32.0"
read = "2027-02"
"""
LINEAR_ROW = """
[[rule]]
family = ["llama"]
scaling = ["linear"]
then = "{then}"
says = "{says}"
source = "linear_scaling_rope.py:12"
"""


def with_file(tmp_path, text, name="new.toml"):
    """The newest releases of the engines, with a file in a folder of the user's own."""
    (tmp_path / name).write_text(text, encoding="utf-8")
    clear_caches()
    return rules.newest(tmp_path)


def one(config, engine, **options):
    (finding,) = audit(config, records={}, **options).of(engine)
    return finding


def test_a_release_can_be_added_as_a_data_file(tmp_path):
    assert one(CONFIG, "vllm").agrees
    row = LINEAR_ROW.format(then="ignore scaling", says="not read since 0.33")
    engines = with_file(tmp_path, RELEASE.format(version="0.33.0") + row)
    finding = one(CONFIG, "vllm", engines=engines)
    assert (finding.version, finding.date, finding.known) == ("0.33.0", "2027-02", "rule")
    assert finding.radians[0] == 1.0
    assert finding.difference.pairs == 8
    (rule,) = finding.rules
    assert (rule.about, rule.does) == ("linear", "not read since 0.33")
    assert (rule.reference, rule.read) == ("linear_scaling_rope.py:12", "2027-02")
    # the other engines, and other scalings in this one, are as before
    assert [f.engine for f in audit(CONFIG, engines=engines).disagreements] == ["vllm"]
    dynamic = {**CONFIG, "rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}
    assert (
        one(dynamic, "vllm", engines=engines, length=4096).radians
        == one(dynamic, "vllm", length=4096).radians
    )
    assert one(CONFIG, "vllm").agrees


def test_an_older_release_does_not_come_before_a_newer_one(tmp_path):
    row = LINEAR_ROW.format(then="refuse", says="no linear")
    engines = with_file(tmp_path, RELEASE.format(version="0.4.0") + row)
    assert engines["vllm"].version == "0.32.0"
    old = rules.load(tmp_path)["vllm"]["0.4.0"]
    finding = one(CONFIG, "vllm", engines={**ENGINES, "vllm": old})
    assert (finding.version, finding.problem) == ("0.4.0", "refused: no linear")


def test_a_family_can_be_added_in_a_data_file(tmp_path):
    config = {**CONFIG, "model_type": "newcomer"}
    assert one(config, "vllm").problem.startswith("refused: vLLM has no config class for newcomer")
    text = RELEASE.format(version="0.33.0") + 'families = ["newcomer"]\n'
    assert one(config, "vllm", engines=with_file(tmp_path, text)).problem is None


def test_a_row_with_an_id_replaces_the_row_of_the_release_before(tmp_path):
    (old,) = (rule for rule in ENGINES["sglang"].rules if rule.id == "mrope mscale")
    text = (
        'engine = "sglang"\nversion = "0.6.0"\nextends = "0.5.23"\nread = "2027-02"\n'
        '[[rule]]\nid = "mrope mscale"\nthen = "pass"\nfamily = ["nobody"]\n'
    )
    new = with_file(tmp_path, text)["sglang"]
    assert len(new.rules) == len(ENGINES["sglang"].rules)
    place = ENGINES["sglang"].rules.index(old)
    assert new.rules[place].then == "pass"


def test_a_release_that_extends_an_unknown_one_is_refused_by_name(tmp_path):
    text = 'engine = "sglang"\nversion = "0.6.0"\nextends = "0.5.99"\nread = "2027-02"\n'
    with pytest.raises(RopeError) as refused:
        with_file(tmp_path, text)
    assert (refused.value.field, refused.value.value) == ("extends", "0.5.99")
    assert "a release of sglang with a rules file" in refused.value.rule
    assert "0.5.23" in refused.value.rule
    assert "new.toml" in refused.value.rule


def test_an_engine_can_be_added_as_a_data_file(tmp_path):
    text = (
        'engine = "tgi"\ntitle = "TGI"\nversion = "4.0.0"\nread = "2027-02"\n'
        'families = ["llama"]\n[[rule]]\nthen = "set"\ntheta = 5e5\nabout = "rope_theta"\n'
        'says = "{theta} is used"\nsource = "rotary.py"\n'
    )
    engines = with_file(tmp_path, text)
    finding = one({**CONFIG, "rope_scaling": None}, "tgi", engines=engines)
    assert finding.radians[1] == pytest.approx(5e5 ** (-1 / 8))
    assert str(finding.rules[0]) == "rope_theta: 500000 is used (rotary.py, read 2027-02)"
    assert "TGI: " in str(audit(CONFIG, engines=engines))


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ('[[rule]]\nthen = "guess"\n', "then = 'guess' is none of"),
        ('[[rule]]\nthen = "pass"\nwhen = ["sunny"]\n', "when = 'sunny' is none of"),
        ('[[rule]]\nthen = "pass"\nfamily = "@none"\n', "none"),
        ('[[unread]]\nreason = "spelled badly"\nsays = ""\nsource = ""\n', "spelled badly"),
    ],
)
def test_a_row_with_an_unknown_name_is_refused_with_its_file(tmp_path, row, problem):
    with pytest.raises(RopeError, match=problem) as error:
        with_file(tmp_path, RELEASE.format(version="0.33.0") + row, "broken.toml")
    assert error.value.field == "broken.toml"


@pytest.mark.parametrize("engine", ENGINES)
def test_every_rule_has_a_text_and_a_source(engine):
    release = ENGINES[engine]
    for rule in release.rules:
        if rule.then in (
            "refuse",
            "ignore scaling",
            "note",
            "set",
            "rotate",
            "change",
            "magnitude",
        ):
            assert rule.says, rule
            assert rule.source, rule
    for row in release.unread:
        assert row["says"]
        assert row["source"]


def test_the_code_of_engines_imports_neither_torch_nor_numpy():
    """ropewalk.engines belongs to the ring that needs only the standard library."""
    folder = rules.FOLDER.parent
    for path in folder.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert "import torch" not in text, path.name
        assert "import numpy" not in text, path.name
