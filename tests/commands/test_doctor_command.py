"""`ropewalk doctor`: the exit status says how heavy the findings are, and it runs on bare Python."""

import json

import pytest
from test_bare_python import CONFIG, run

BAD = {**CONFIG, "rope_scaling": {**CONFIG["rope_scaling"], "rope_type": "llama-3"}}
WARNED = {**CONFIG, "rope_scaling": {**CONFIG["rope_scaling"], "colour": "red"}}


@pytest.fixture
def write(tmp_path):
    def written(config):
        path = tmp_path / "config.json"
        path.write_text(config if isinstance(config, str) else json.dumps(config))
        return path

    return written


@pytest.mark.parametrize(("config", "status"), [(CONFIG, 0), (WARNED, 3), (BAD, 4), ("[1, 2", 2)])
def test_the_exit_status_is_that_of_the_heaviest_finding(write, config, status):
    code, out, _err, seconds = run("doctor", write(config))
    assert code == status
    assert (out == "") == (status == 2)
    assert seconds < 1.2, "meant: 0.4 s; a busy machine and no byte code take longer"


def test_json_and_the_written_file_have_the_corrected_config(write, tmp_path):
    out_path = tmp_path / "fixed.json"
    words = ("--engine", "vllm", "--length", 131072, "--json", "--out", out_path)
    code, out, _, _ = run("doctor", write(BAD), *words)
    assert code == 4
    report = json.loads(out)
    assert report["findings"][0]["id"] == "rope_type_misspelled"
    assert report["corrected"] == json.loads(out_path.read_text()) == CONFIG
    assert set(report["flags"]) == {"vllm", "sglang", "llama.cpp", "transformers", "mlx-lm"}


def test_json_of_a_refused_file_is_an_object_too(write):
    code, out, err, _ = run("doctor", write("[1, 2"), "--json")
    assert code == 2
    report = json.loads(out)
    assert (report["severity"], report["findings"]) == ("refused", [])
    assert "line 1, column 6" in report["verdict"]
    assert "line 1" in err


def test_the_flags_of_one_engine_are_printed_alone(write):
    code, out, _, _ = run("doctor", write(BAD), "--engine", "sglang")
    assert code == 4
    assert out.startswith("llama: 1 error; all repaired below.")
    assert "--json-model-override-args" in out
    assert "--hf-overrides" not in out


def test_a_draft_model_without_the_scaling_is_a_warning(write, tmp_path):
    draft = tmp_path / "draft.json"
    draft.write_text(json.dumps({**CONFIG, "rope_scaling": None}))
    code, out, _, _ = run("doctor", write(CONFIG), "--draft", draft)
    assert code == 3
    assert "[draft_lacks_scaling]" in out
