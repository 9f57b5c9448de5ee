"""`ropewalk audit`: the table and the JSON say what the library call says."""

from __future__ import annotations

import json
import re
from itertools import pairwise

import pytest

import command_line
import ropewalk as rw
from ropewalk_cli.commands import audit as audit_command

CONFIG = {
    "model_type": "qwen3",
    "hidden_size": 768,
    "num_attention_heads": 8,
    "head_dim": 96,
    "rope_theta": 1e6,
    "max_position_embeddings": 32768,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 16,
        "original_max_position_embeddings": 2048,
        "attention_factor": 1.0,
        "truncate": False,
    },
}


@pytest.fixture
def call(capsys, tmp_path):
    """Run the command on a config: (exit code, stdout, stderr)."""

    def run(config, *options):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config))
        return command_line.call(capsys, "audit", path, *options)

    return run


def test_a_verdict_comes_first_then_one_table(call):
    code, out, err = call(CONFIG)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith(
        "2 of 5 engines agree; SGLang differs in attention_factor: logits x 1.63; mlx-lm "
    )
    assert sum(set(line) == {"-", " "} for line in lines) == 1
    rows = {
        cells[1]: line
        for line in lines
        for cells in [re.split(" {2,}", line)]
        if len(cells) > 4 and cells[0].replace(",", "").isdigit()
    }
    assert "reference" in rows["transformers"]
    assert "x 1.631" in rows["SGLang"]
    assert "the same" in rows["vLLM"]
    assert "attention_factor" in out
    assert "after" in rows["mlx-lm"]
    assert "logits: factor on every attention logit" in out
    assert "yarn.py" not in out
    assert "\x1b[" not in out


def test_details_have_the_magnitudes_and_the_source_of_every_rule(call):
    out = call(CONFIG, "--details")[1]
    assert "1.2773" in out
    assert "yarn.py" in out
    assert "rule, vLLM 0.32.0, read 2026-11" in " ".join(out.replace("│", " ").split())


def test_where_engines_agree_no_column_is_empty(call):
    out = call({key: value for key, value in CONFIG.items() if key != "rope_scaling"})[
        1
    ].splitlines()
    assert out[0] == "All 5 engines agree."
    header = next(before for before, line in pairwise(out) if line[:2] == "--")
    assert re.split(" {2,}", header) == ["tokens", "engine", "result", "known by"]


def test_json_is_one_object(call):
    code, out, _ = call(CONFIG, "--json", "--length", "5000", "--max-model-len", "8192")
    assert code == 0
    found = json.loads(out)
    assert found["max_model_len"] == 8192
    assert {f["length"] for f in found["findings"]} == {5000}
    sglang = next(f for f in found["findings"] if f["engine"] == "sglang")
    assert sglang["difference"]["temperature"] == pytest.approx(1.2772588722239782**2)
    assert len(sglang["radians"]) == 48


def test_what_is_not_known_and_what_is_not_read_are_shown(call):
    config = {
        **CONFIG,
        "model_type": "new",
        "rope_scaling": {"type": "dynamic", "alpha": 10.0, "finetuned": True},
    }
    code, out, _ = call(config)
    assert code == 0
    assert "not known" in out
    assert "warning: finetuned" in out


def test_a_bad_config_is_one_line(call):
    code, out, err = call({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4})
    assert code == 2
    assert out == ""
    assert err.startswith("ropewalk: --max-model-len: must be given")
    assert err.count("\n") == 1


#: YaRN in the layers with full attention only
GEMMA = {
    "model_type": "gemma3_text",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "head_dim": 16,
    "num_hidden_layers": 6,
    "max_position_embeddings": 131072,
    "rope_theta": 1e6,
    "rope_local_base_freq": 10_000.0,
    "sliding_window_pattern": 6,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 2048,
    },
}


@pytest.mark.parametrize("config", [CONFIG, GEMMA], ids=["one", "two"])
def test_every_line_of_the_tables_has_the_numbers_of_its_finding(call, config, monkeypatch):
    """Those of the JSON; the layer type is named if there are several."""
    found, tables = json.loads(call(config, "--json")[1]), []
    findings = found["findings"]
    monkeypatch.setattr(audit_command, "table", lambda *parts: tables.append(parts))
    call(config, "--details")
    (_, columns, first, _), (_, more_columns, more, _) = tables
    assert (
        columns[:4] == (*more_columns[:3], "result") == ("layer type", "tokens", "engine", "result")
    )
    several = config is GEMMA
    assert (len({each["layer_type"] for each in findings}) > 1) == several

    def after(count):
        return "" if count is None else f"after {count:,}"

    for each, cells, wider in zip(findings, first, more, strict=True):
        title = rw.engines.ENGINES[each["engine"]].title
        where = (each["layer_type"] if several else "", f"{each['length']:,}", title)
        known = f"{each['known']}, {each['version']}, {each['date']}"
        difference = each["difference"]
        if difference is None:
            result = "reference" if each["engine"] == found["reference"] else "the same"
            expected, measures = (result, *[""] * 5), [""] * 4
        else:
            pairs, pair = difference["pairs"], difference["first_pair"]
            expected = (
                "differs",
                ", ".join(dict.fromkeys(rule["about"] for rule in each["rules"])),
                f"x {difference['temperature']:.4g}",
                f"{pairs} of {len(each['radians'])}" if pairs else "",
                f"{difference['score_worst']:.3g}",
                after(difference["until_tenth"]),
            )
            measures = [
                "" if pair is None else str(pair),
                f"{difference['score_mean']:.3g}",
                after(difference["until_half_turn"]),
                difference["tokens"],
            ]
        assert cells == (*where, *expected, known)
        assert wider == (*where, f"{each['magnitude']:.5g}", *measures, each["evidence"])


def test_the_details_end_with_every_rule_its_source_and_when_it_was_read(call):
    found = json.loads(call(CONFIG, "--json")[1])
    rules = {
        f"{rw.engines.ENGINES[each['engine']].title}, {rule['about']}: {rule['does']} "
        f"({rule['reference']}; read {rule['read']})"
        for each in found["findings"]
        for rule in each["rules"]
    }
    assert rules
    out = " ".join(call(CONFIG, "--details")[1].split())
    assert out.endswith(" ".join(" ".join(sorted(rules)).split()))
