"""What Python answers to the page is what the package says."""

import json

import pytest

import ropewalk as rw
from ropewalk.diagnosis.published import models
from ropewalk.gguf import InMemory, to_gguf_metadata
from ropewalk.strategies import memory
from ropewalk_lab.page.answers import answer, known_models

QWEN = {
    "model_type": "qwen3",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "rope_theta": 1000000.0,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32768,
    },
}


def asked(**request):
    return json.loads(answer(json.dumps(request)))


def plain(value):
    return json.loads(json.dumps(value))


def test_the_doctor_answers_what_the_package_finds():
    broken = {**QWEN, "rope_scaling": {**QWEN["rope_scaling"], "factor": "4.0"}}
    found = asked(ask="doctor", text=json.dumps(broken, indent=2), engine="vllm", length=131072)
    meant = rw.doctor(broken, "vllm", 131072).as_dict()
    given = found["ok"]["diagnosis"]
    assert {key: given[key] for key in given if key != "patch"} == plain(
        {key: meant[key] for key in meant if key != "patch"}
    )
    assert '+    "factor": 4.0' in given["patch"]
    assert found["ok"]["texts"] == {"corrected": json.dumps(QWEN, indent=2)}
    (rope,) = found["ok"]["after"]
    spec = rw.from_hf(given["corrected"])
    assert rope["radians"] == list(spec.with_(precision="exact").frequencies(131072).radians)
    assert (rope["trained"], rope["served"], rope["new_angles"]) == (32768, 131072, 0)
    assert rope["magnitude"] == spec.magnitude(131072)


def test_a_key_given_twice_is_found_because_the_doctor_reads_the_text_itself():
    text = json.dumps(QWEN)[:-1] + ', "rope_theta": 10000.0}'
    ids = [each["id"] for each in asked(ask="doctor", text=text)["ok"]["diagnosis"]["findings"]]
    assert "key_given_twice" in ids


def test_the_metadata_of_a_gguf_file_is_read_as_the_file():
    spec = rw.RopeSpec(
        128, theta=500000.0, scaling=rw.frequencies.Yarn(8192, factor=4.0), layout="interleaved"
    )
    written = to_gguf_metadata(spec, context_length=131072)
    keys = {"general.architecture": "llama", **written.keys}
    found = asked(ask="doctor", text=json.dumps({"gguf": keys}))["ok"]
    ids = [each["id"] for each in found["diagnosis"]["findings"]]
    assert ids == [each.id for each in rw.doctor(InMemory("llama", keys)).findings]
    assert "gguf_lengths_contradict" in ids
    assert found["diagnosis"]["flags"]["llama.cpp"].endswith("--yarn-orig-ctx 8192")
    assert found["before"][0]["scaling"] == "yarn"
    assert len(asked(ask="audit", text=json.dumps({"gguf": keys}))["ok"]["findings"]) == 5


def test_the_tensor_of_a_gguf_file_gives_its_scaling():
    spec = rw.RopeSpec(
        128,
        theta=500000.0,
        scaling=rw.frequencies.Llama3(8.0, 1.0, 4.0, 8192),
        layout="interleaved",
    )
    written = to_gguf_metadata(spec, context_length=131072)
    text = json.dumps(
        {
            "gguf": {"general.architecture": "llama", **written.keys},
            "tensors": {name: list(values) for name, values in written.tensors.items()},
        }
    )
    assert asked(ask="doctor", text=text)["ok"]["before"][0]["scaling"] == "llama3"


def test_a_config_that_cannot_be_read_is_compared_as_corrected():
    right = {**QWEN, "rope_scaling": None}
    broken = {**right, "max_position_embeddings": [131072]}
    found = asked(ask="audit", text=json.dumps(broken))["ok"]
    whole = asked(ask="audit", text=json.dumps(right))["ok"]
    assert found["corrected"]
    assert not whole["corrected"]
    assert found["findings"] == whole["findings"]
    assert {each["engine"] for each in whole["findings"]} == set(rw.audit(right).engines)


def test_the_answer_cost_has_the_memory_and_errors_of_the_package():
    rope = {"scaling": "yarn", "factor": 4.0, "original_length": 4096, "head_dim": 64}
    found = asked(ask="cost", theta=10000.0, trained=4096, served=16384, **rope)["ok"]
    spec = rw.RopeSpec(64, scaling=rw.frequencies.Yarn(4096, factor=4.0))
    assert found["memory"] == memory(spec, 16384)
    assert max(found["errors"]["exact"]) < 2e-7 < found["errors"]["hf"][-1]


@pytest.mark.parametrize(
    "request_",
    [
        "",
        "[]",
        "[" * 100_000,
        "{}",
        '{"ask": "none"}',
        '{"ask": "doctor"}',
        '{"ask": "doctor", "text": "{"}',
        '{"ask": "doctor", "text": "[]"}',
        '{"ask": "doctor", "text": "{}", "length": -1}',
        '{"ask": "doctor", "text": "{}", "length": 1e300}',
        '{"ask": "doctor", "text": "{}", "engine": "x"}',
        '{"ask": "audit", "text": "{\\"gguf\\": {}}"}',
        '{"ask": "doctor", "text": "{\\"gguf\\": {\\"general.architecture\\": 1}}"}',
        '{"ask": "rope", "scaling": "yarn", "served": 4}',
        '{"ask": "cost", "scaling": "none", "served": 4}',
        json.dumps({"ask": "doctor", "text": "x" * (1 << 19)}),
    ],
)
def test_malformed_requests_are_answered_with_a_rule(request_):
    found = json.loads(answer(request_))
    assert set(found) == {"error"}
    assert found["error"]["rule"].startswith("must")


def test_tensors_that_are_no_object_are_named_in_the_error():
    config = {"gguf": {"general.architecture": "llama"}, "tensors": [1.0]}
    found = asked(ask="doctor", text=json.dumps(config))
    assert (found["error"]["field"], found["error"]["value"]) == ("tensors", "[1.0]")


def test_no_message_names_a_folder_of_this_machine():
    assert "/tmp" not in answer(json.dumps({"ask": "doctor", "text": "{"}))


def test_doctor_finds_no_error_in_any_known_model():
    known = known_models()
    left_out = [row["name"] for row in models() if row["name"] not in known]
    assert len(left_out) < 25
    assert "Phi-4-mini" in known
    # models that do not rotate, or whose code comes with their weights
    assert {"Granite-4.0-H-Tiny", "GLM-4-9B-Chat", "gte-large-en-v1.5"} < {*left_out}
    for name, config in known.items():
        found = asked(ask="doctor", text=config)["ok"]
        assert found["diagnosis"]["exit_status"] == 0, name
        assert found["before"], name


@pytest.mark.parametrize("ask", ["doctor", "audit"])
def test_half_a_surrogate_pair_is_refused(ask):
    text = json.dumps(QWEN)[:-1] + ', "_name_or_path": "\ud800"}'
    error = asked(ask=ask, text=text)["error"]
    assert error["field"] == "config"
    assert error["rule"].endswith(f"surrogate pair at character {text.index(chr(0xD800)) + 1}")
    # escaped, it is JSON of a config that can be read
    assert "ok" in asked(ask=ask, text=text.replace("\ud800", "\\ud800"))
