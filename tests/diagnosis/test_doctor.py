"""Every row of mistakes.toml: a broken config is found by its name, and the repair is what was
meant, by the frequencies that are computed from it.
"""

from __future__ import annotations

import copy
import json
import math
import random
import re
import shlex
import subprocess
import warnings

import pytest
from broken_configs import (
    BROKEN,
    GEMMA3,
    GONE,
    GRANITE_H,
    LLAMA,
    QWEN3_8B,
    RIGHT,
    RIGHT3,
    V5,
    YARN,
    changed,
    scaled,
)
from examined_configs import IDS as EXAMINED
from field_configs import IDS, field_config

import gguf_samples
import ropewalk as rw
from ropewalk.config.examples import EXAMPLES
from ropewalk.config.families import family_of
from ropewalk.config.hf import read_specs
from ropewalk.diagnosis import case as case_module
from ropewalk.diagnosis.case import Examination
from ropewalk.diagnosis.mistakes import FINDERS, REPAIRS, chinese, mistakes
from ropewalk.diagnosis.published import models
from ropewalk.diagnosis.report import report_words
from ropewalk.gguf import InMemory
from ropewalk.gguf.file import Array

ELSEWHERE = {
    "key_given_twice",
    "draft_lacks_scaling",
    "draft_mistaken",
    "gguf_factor_missing",
    "gguf_type_missing",
    "gguf_type_unknown",
    "gguf_lengths_contradict",
    "gguf_trained_length_missing",
    "gguf_trained_length_wrong",
    "gguf_theta_lost",
    "gguf_width_wrong",
    "rope_switched_on",
    "served_length_follows",
    "engine_refuses",
    "engine_differs",
    "engine_not_known",
}


def ropes(config, length=None):
    """Frequencies, magnitude and axes of every layer type."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        specs = rw.from_hf(config, per_layer=True, precision="exact")
    longest = length or 8192

    def of(spec):
        found = spec.frequencies(longest)
        magnitude = float(found.magnitude)
        return flat(found.radians), magnitude, spec.softmax_factor, spec.axis_of_pair

    return {name: spec and of(spec) for name, spec in specs.items()}


def flat(radians):
    """One number for each pair and axis."""
    return [x for each in radians for x in (each if isinstance(each, tuple) else (each,))]


def assert_same(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, rope in ours.items():
        if rope is None or theirs[name] is None:
            assert rope is theirs[name]
            continue
        assert rope[0] == pytest.approx(theirs[name][0], rel=1e-12)
        assert rope[1] == pytest.approx(theirs[name][1], rel=1e-12)
        assert rope[2:] == theirs[name][2:]


named = pytest.mark.parametrize(
    "broken", BROKEN, ids=[f"{each.id}-{i}" for i, each in enumerate(BROKEN)]
)


@named
def test_a_mistake_is_found_and_repaired(broken):
    given = copy.deepcopy(broken.config)
    found = rw.doctor(broken.config, **broken.options)
    assert json.dumps(broken.config) == json.dumps(given), "the caller's config was changed"
    first = found.findings[0]
    assert first.id == broken.id
    assert "{" not in first.cause + first.effect
    if broken.meant is None:
        assert found.corrected is None
        assert not first.repaired
        assert found.flags == {}
        return
    if first.severity == "note":
        assert found.corrected is None
        assert found.exit_status == 0
        assert_same(ropes(broken.config), ropes(broken.meant))
        return
    assert first.repaired
    assert found.corrected is not None
    assert found.exit_status == {"error": 4, "warning": 3}[first.severity]
    length = broken.options.get("length")
    assert_same(ropes(found.corrected, length), ropes(broken.meant, length))
    again = rw.doctor(found.corrected, **broken.options)
    assert again.corrected is None
    assert again.exit_status == 0, again.findings


def test_every_row_has_a_broken_config():
    ids = [row.id for row in mistakes()]
    assert len(set(ids)) == len(ids) >= 40
    assert {each.id for each in BROKEN} | ELSEWHERE | IDS | EXAMINED == set(ids)
    assert not {each.id for each in BROKEN} & ELSEWHERE


def test_every_row_names_functions_that_exist_and_every_function_is_named():
    assert {row.find for row in mistakes()} == set(FINDERS)
    assert {row.repair for row in mistakes()} - {None} == set(REPAIRS)


@pytest.mark.parametrize("name", EXAMPLES)
def test_published_configs_need_no_change(name):
    found = rw.doctor(EXAMPLES[name])
    assert found.exit_status == 0
    assert found.corrected is None


@pytest.mark.parametrize("row", models(), ids=lambda row: row["name"])
def test_the_published_table_agrees_with_itself(row):
    """A config that is made from a row is healthy; with the default theta it is not, unless that was
    published.
    """
    config = {
        "model_type": row["model_types"][0],
        "hidden_size": row["hidden_size"],
        "num_attention_heads": row["heads"],
        "num_hidden_layers": row["layers"],
        "vocab_size": row["vocab_size"],
        "max_position_embeddings": row["lengths"][0],
        "rope_theta": row["theta"][0],
    }
    family = family_of(config["model_type"])
    full = family.layer_thetas.get("full_attention")
    if full is not None and full.key is not None:
        config[full.key] = config.pop("rope_theta")
    if not family.known:  # its code comes with its weights, and reads its own keys
        config["auto_map"] = {"AutoConfig": "configuration.Config"}
    if "keys" in row:
        del config["rope_theta"]
        config |= row["keys"]
    if "kv_heads" in row:
        config["num_key_value_heads"] = row["kv_heads"]
    if family_of(config["model_type"]).latent:
        config["qk_rope_head_dim"] = row.get("head_dim", 64)
    elif "head_dim" in row:
        config["head_dim"] = row["head_dim"]
    if config["model_type"] == "granitemoehybrid":
        config["position_embedding_type"] = "nope" if row.get("unrotated") else "rope"
    if config["model_type"] == "modernbert":
        config["local_rope_theta"] = row["local_theta"]
    if config["model_type"] == "gemma4_text":  # which needs its ropes by layer type
        config["rope_parameters"] = {
            "full_attention": {
                "rope_type": "proportional",
                "partial_rotary_factor": 0.25,
                "rope_theta": config.pop("rope_theta"),
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": row["local_theta"]},
        }
    for key in ("intermediate_size", "use_parallel_residual"):
        if key in row:
            config[key] = row[key]
    if "rotated" in row and config["model_type"] != "gptj":
        head = row.get("head_dim") or row["hidden_size"] // row["heads"]
        name = "rotary_pct" if config["model_type"] == "gpt_neox" else "partial_rotary_factor"
        config[name] = row["rotated"] / head
    if config["model_type"] == "mistral":
        config["sliding_window"] = 4096 if row.get("windowed") else None
    if config["model_type"] == "gpt_neox":
        config["rotary_emb_base"] = config.pop("rope_theta")
    if config["model_type"] in ("qwen2_vl", "qwen2_5_vl"):
        config["rope_scaling"] = {"type": "mrope", "mrope_section": [16, 24, 24]}
    if row.get("only_named"):
        config["_name_or_path"] = row["name"]
    if "scaling" in row:
        pairs = (row.get("rotated") or row.get("head_dim", 64)) // 2
        lists = {key: [1.0] * pairs for key in row["scaling"].get("left_out", ())}
        config["rope_scaling"] = {**row["scaling"], **lists}
        config["rope_scaling"].pop("left_out", None)
        if config["model_type"] == "internlm2":  # whose own code reads `type` alone
            config["rope_scaling"]["type"] = config["rope_scaling"].pop("rope_type")
    found = rw.doctor(config)
    assert [each.id for each in found.findings if each.severity != "note"] == []
    if 10_000.0 not in row["theta"] and "keys" not in row:
        name = full.key if full is not None and full.key is not None else "rope_theta"
        name = "rotary_emb_base" if config["model_type"] == "gpt_neox" else name
        lost = {**config, name: 10_000.0}
        if config["model_type"] == "gemma4_text":
            lost = copy.deepcopy(config)
            lost["rope_parameters"]["full_attention"]["rope_theta"] = 10_000.0
        lost = rw.doctor(lost)
        releases = {
            theta for each in models() if sizes(each) == sizes(row) for theta in each["theta"]
        }
        assert lost.exit_status == (3 if 10_000.0 in releases else 4)


def sizes(row):
    """What a published model is recognised by."""
    names = ("model_types", "hidden_size", "heads", "layers", "vocab_size")
    return [row[name] for name in names] + [row.get("kv_heads")]


def test_effects_are_those_of_the_definition():
    broken = changed(LLAMA, {**YARN, "attention_factor": 4.0})
    (effect,) = rw.doctor(broken).findings[0].effects
    magnitude = 0.1 * math.log(4) + 1
    assert effect.pairs == 0
    assert effect.first_pair is None
    assert effect.logits == pytest.approx((4.0 / magnitude) ** 2, rel=1e-12)
    lost = changed(RIGHT3, rope_theta=GONE)
    (effect,) = rw.doctor(lost).findings[0].effects
    fast = [10000.0 ** (-i / 64) - 500000.0 ** (-i / 64) for i in range(64)]
    # the slowest pairs are scaled by 8, the fastest are not
    assert effect.first_pair == 1
    assert effect.pairs == 63
    assert effect.of == 64
    assert effect.from_token == math.floor(0.1 / max(fast[:20])) + 1


@pytest.mark.parametrize(
    "broken", [b for b in BROKEN if b.meant is not None][::7], ids=lambda b: b.id
)
def test_flags_and_patch_give_the_corrected_config(broken, tmp_path):
    found = rw.doctor(broken.config, **broken.options)
    if found.corrected is None:
        return
    text = found.flags["vllm"].split("'")[1] if "'" in found.flags["vllm"] else "{}"
    over = {**broken.config, **json.loads(text.encode().decode("unicode_escape"))}
    assert_same(ropes(over), ropes(found.corrected))
    path = tmp_path / "config.json"
    path.write_text(json.dumps(broken.config, indent=2) + "\n")
    patch = rw.doctor(path, **broken.options).patch
    done = subprocess.run(
        ["git", "apply", "--unsafe-paths", "-p1", "-"],
        input=patch,
        text=True,
        cwd=tmp_path,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(path.read_text()) == found.corrected


@pytest.mark.parametrize("indent", [2, 4])
@pytest.mark.parametrize("end", ["", "\n"], ids=["no newline", "newline"])
def test_a_patch_keeps_the_indent_and_the_end_of_the_file(indent, end, tmp_path):
    config = {**LLAMA, "rope_scaling": {**YARN, "factor": "4,0"}}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config, indent=indent) + end)
    found = rw.doctor(path)
    command = ["git", "apply", "--unsafe-paths", "-p1", "-"]
    done = subprocess.run(command, input=found.patch, text=True, cwd=tmp_path, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert path.read_text() == json.dumps(found.corrected, indent=indent) + end


def test_flags_of_llama_cpp():
    flags = rw.doctor(changed(LLAMA, {**YARN, "rope_type": "YaRN"}), length=8192).flags
    expected = "--rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 2048 --rope-freq-base 500000"
    assert flags["llama.cpp"] == f"{expected} --ctx-size 8192"
    assert "--max-model-len 8192" in flags["vllm"]
    assert "--context-length 8192" in flags["sglang"]
    flags = rw.doctor(changed(RIGHT3, rope_theta=GONE)).flags
    assert flags["llama.cpp"].startswith("convert the corrected folder again")


def test_what_is_pasted_for_an_engine_is_read_by_it():
    """mlx-lm's Llama reads `rope_theta` and `rope_scaling`, and nothing of `rope_parameters`."""
    config = {k: v for k, v in LLAMA.items() if not k.startswith("rope_")}
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": 500000.0}
    flags = rw.doctor(config, length=4 * config["max_position_embeddings"]).flags
    (pasted,) = re.findall(r"json.loads\('(.*)'\)", flags["mlx-lm"])
    pasted = json.loads(pasted)
    assert pasted["rope_theta"] == 500000.0
    assert pasted["rope_scaling"]["rope_type"] == "yarn"
    assert "rope_theta" in json.loads(shlex.split(flags["sglang"])[1])["rope_parameters"]


def test_transformers_reads_the_corrected_config_as_meant():
    transformers = pytest.importorskip("transformers")
    found = rw.doctor(changed(LLAMA, {**YARN, "rope_type": "YaRN"}))
    config = transformers.AutoConfig.for_model(**found.corrected)
    assert config.rope_parameters["rope_type"] == "yarn"
    assert config.rope_parameters["rope_theta"] == 500000.0


@pytest.mark.parametrize(
    ("keys", "does"),
    [
        ({"rope_scaling": {**YARN, "rope_type": "YaRN"}}, KeyError),
        ({"rope_scaling": {"rope_type": "ntk", "factor": 4.0}}, KeyError),
        ({"rope_scaling": {**YARN, "factor": "4.0"}}, TypeError),
        ({"rope_scaling": {key: YARN[key] for key in YARN if key != "factor"}}, KeyError),
        ({"rope_scaling": {**YARN, "type": "linear"}}, ("yarn", 500000.0, 2048)),
        (
            {"rope_scaling": {key: YARN[key] for key in YARN if key != "rope_type"}},
            ("default", 500000.0, 2048),
        ),
        ({"rope_parameters": {**YARN, "rope_theta": 1e6}}, ("yarn", 1e6, 2048)),
        (
            {"rope_scaling": YARN, "rope_parameters": {"rope_type": "default"}},
            ("yarn", 500000.0, 2048),
        ),
        (
            {"rope_scaling": YARN, "original_max_position_embeddings": 8192},
            ("yarn", 500000.0, 8192),
        ),
        ({"rope_parameters": {"full_attention": V5}}, ("default", 500000.0, None)),
    ],
    ids=str,
)
def test_transformers_does_what_the_rows_say(keys, does):
    """The effects that rows with the evidence of transformers 5 claim, in transformers itself."""
    transformers = pytest.importorskip("transformers", minversion="5")
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    def rope():
        config = transformers.AutoConfig.for_model(**copy.deepcopy({**LLAMA, **keys}))
        return LlamaRotaryEmbedding(config).rope_type, config.rope_parameters

    if isinstance(does, type):
        with pytest.raises(does):
            rope()
        return
    kind, found = rope()
    trained = found.get("original_max_position_embeddings")
    assert (kind, found["rope_theta"], trained) == does


def test_a_key_given_twice_and_nan_in_a_file(tmp_path):
    path = tmp_path / "config.json"
    text = json.dumps(RIGHT, indent=2)
    path.write_text(text.replace('"factor": 4.0,', '"factor": 2.0,\n    "factor": 4.0,'))
    found = rw.doctor(path)
    assert found.findings[0].id == "key_given_twice"
    assert found.exit_status == 4
    path.write_text(text.replace('"factor": 4.0', '"factor": NaN'))
    found = rw.doctor(tmp_path)
    assert found.findings[0].id == "number_not_finite"
    assert_same(ropes(found.corrected), ropes(RIGHT))
    json.dumps(found.as_dict(), allow_nan=False)
    path.write_text("[1, 2")
    with pytest.raises(rw.RopeError):
        rw.doctor(path)


def test_a_draft_inherits_the_scaling():
    found = rw.doctor(RIGHT, draft=changed(LLAMA, max_position_embeddings=2048))
    assert [each.id for each in found.findings] == ["draft_lacks_scaling"]
    assert found.corrected is None
    assert found.draft is not None
    assert_same(ropes(found.draft), ropes(RIGHT))
    assert rw.doctor(RIGHT, draft=found.draft).findings == ()
    other = rw.doctor(RIGHT, draft=changed(LLAMA, rope_theta=1e6))
    assert other.draft is None
    assert not other.findings[0].repaired


def test_a_draft_with_a_scaling_of_its_own_stays_and_its_mistakes_are_told():
    llama = field_config("llama31")
    draft = field_config("llama32_1b")  # published with factor 32, for Llama 3.1 with 8
    assert rw.doctor(llama, draft=draft).findings == ()
    found = rw.doctor(llama, draft={**draft, "rope_theta": 10000.0})
    assert [each.id for each in found.findings] == ["draft_mistaken"]
    assert found.corrected is None
    assert_same(ropes(found.draft), ropes(draft))


GGUF = {
    "general.architecture": "qwen2",
    "qwen2.context_length": 8192,
    "qwen2.embedding_length": 512,
    "qwen2.attention.head_count": 4,
    "qwen2.block_count": 2,
    "qwen2.rope.freq_base": 1000000.0,
    "qwen2.rope.scaling.type": "yarn",
    "qwen2.rope.scaling.factor": 4.0,
    "qwen2.rope.scaling.original_context_length": 2048,
}


#: the sizes and lengths of Qwen2.5-32B with YaRN
PUBLISHED = {
    "qwen2.embedding_length": 5120,
    "qwen2.attention.head_count": 40,
    "qwen2.attention.head_count_kv": 8,
    "qwen2.block_count": 64,
    "qwen2.vocab_size": 152064,
    "qwen2.context_length": 131072,
    "qwen2.rope.scaling.original_context_length": 32768,
}


@pytest.mark.parametrize(
    ("name", "keys", "flags"),
    [
        (None, {}, None),
        (
            "gguf_factor_missing",
            {"qwen2.rope.scaling.factor": 1.0},
            "--rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 2048",
        ),
        (
            "gguf_factor_missing",
            {"qwen2.rope.scaling.factor": 1.0, "qwen2.rope.scaling.type": "linear"},
            "--rope-scaling linear --rope-scale 4",
        ),
        (
            "gguf_lengths_contradict",
            {"qwen2.context_length": 16384},
            "--rope-scaling yarn --rope-scale 8 --yarn-orig-ctx 2048",
        ),
        ("gguf_type_missing", {"qwen2.rope.scaling.type": "none"}, None),
        ("gguf_type_unknown", {"qwen2.rope.scaling.type": "Yarn"}, None),
        (
            "gguf_trained_length_missing",
            {"qwen2.rope.scaling.original_context_length": None},
            None,
        ),
        ("gguf_width_wrong", {"qwen2.rope.dimension_count": 63}, None),
        ("gguf_theta_lost", PUBLISHED | {"qwen2.rope.freq_base": 1e4}, "--rope-freq-base 1000000"),
        (
            "gguf_trained_length_wrong",
            PUBLISHED | {"qwen2.rope.scaling.original_context_length": 131072},
            "--rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 32768",
        ),
    ],
)
def test_a_gguf_file_that_contradicts_itself(name, keys, flags, tmp_path):
    metadata = {key: value for key, value in {**GGUF, **keys}.items() if value is not None}
    path = gguf_samples.write(tmp_path / "model.gguf", metadata)
    found = rw.doctor(path)
    heavy = [each.id for each in found.findings if each.severity != "note"]
    assert heavy[:1] == ([] if name is None else [name])
    assert found.flags == ({} if flags is None else {"llama.cpp": flags})


def test_a_gguf_file_is_recognised_by_its_tokens():
    metadata = GGUF | PUBLISHED | {"qwen2.rope.freq_base": 1e4}
    del metadata["qwen2.vocab_size"]
    assert rw.doctor(InMemory("qwen2", metadata)).exit_status == 0
    metadata["tokenizer.ggml.tokens"] = Array(8, 152064, 0, 0)
    found = rw.doctor(InMemory("qwen2", metadata))
    assert [each.id for each in found.findings] == ["gguf_theta_lost"]


def test_an_engine_is_asked():
    found = rw.doctor(RIGHT3, engine="vllm", length=131072)
    assert found.exit_status == 0
    with pytest.raises(rw.RopeError, match="engine"):
        rw.doctor(RIGHT3, engine="abacus")


@pytest.mark.parametrize("base", [LLAMA, RIGHT3], ids=["plain", "llama3"])
def test_an_engine_that_does_not_read_the_new_form_gets_the_old_one(base):
    """mlx-lm takes theta and scaling of a Llama from the keys of transformers 4 alone."""
    rope = {"rope_theta": 500000.0, **(base.get("rope_scaling") or {"rope_type": "default"})}
    new_form = changed(base, rope_theta=GONE, rope_scaling=GONE, rope_parameters=rope)
    assert rw.doctor(new_form).findings == ()
    found = rw.doctor(new_form, engine="mlx-lm")
    (finding,) = found.findings
    assert finding.id == "engine_differs"
    assert finding.repaired
    assert finding.evidence.engine == "mlx-lm"
    assert finding.evidence.known in ("recorded", "rule")
    assert_same(ropes(found.corrected), ropes(base))
    assert rw.doctor(found.corrected, engine="mlx-lm").findings == ()
    assert rw.audit(found.corrected).of("mlx-lm")[0].agrees


def test_an_engine_that_refuses_and_one_that_differs_in_every_form():
    refused = rw.doctor({**LLAMA, "model_type": "glm"}, engine="sglang").findings[0]
    assert refused.id == "engine_refuses"
    assert not refused.repaired
    differs = rw.doctor(EXAMPLES["gpt-oss-20b"], engine="llama.cpp")
    assert differs.findings[0].id == "engine_differs"
    assert "truncate" in differs.findings[0].effect
    assert differs.corrected is None
    assert differs.exit_status == 3


def test_what_is_not_known_is_a_note():
    found = rw.doctor({**LLAMA, "model_type": "emu3_text_model"}, engine="vllm")
    assert {each.id for each in found.findings} == {"engine_not_known"}
    assert found.exit_status == 0


def test_what_is_printed_says_the_verdict_first():
    text = str(rw.doctor(changed(LLAMA, {**YARN, "rope_type": "YaRN"})))
    lines = text.splitlines()
    assert lines[0] == "llama: 1 error; all repaired below."
    assert "[rope_type_misspelled]" in lines[2]
    assert '-    "rope_type": "YaRN",' in lines
    assert '+    "rope_type": "yarn",' in lines
    assert "--hf-overrides" in text
    assert "--json-model-override-args" in text
    healthy = str(rw.doctor(RIGHT))
    assert healthy == "llama: nothing to change."


def test_a_config_cannot_speak_to_the_terminal():
    text = str(rw.doctor(changed(LLAMA, {**YARN, "rope_type": "\x1b[31mred"})))
    assert "\x1b" not in text


def test_v5_and_nested_forms_are_healthy():
    for config in (
        changed(LLAMA, rope_theta=GONE, rope_parameters=V5),
        GEMMA3,
        RIGHT3,
    ):
        assert rw.doctor(config).exit_status == 0


@pytest.mark.parametrize("count", [6, 7, 8, 10])
def test_layer_types_go_on_as_they_began(count):
    """Continued or cut, the pattern keeps its order; the ropes by layer type do not show that."""
    period = ["full_attention", "sliding_attention", "sliding_attention"]
    config = {**QWEN3_8B, "num_hidden_layers": count, "layer_types": period * 3}
    found = rw.doctor(config)
    assert "layer_types_length" in {each.id for each in found.findings}
    assert found.corrected["layer_types"] == (period * 4)[:count]


def test_a_longer_served_length_is_told():
    broken = {**QWEN3_8B, "rope_scaling": {"type": "yarn", "factor": "4.0"}}
    broken["rope_scaling"]["original_max_position_embeddings"] = 32768
    found = rw.doctor(broken, length=131072)
    assert [each.id for each in found.findings] == [
        "factor_as_text",
        "only_type",
        "served_length_follows",
    ]
    assert found.corrected["max_position_embeddings"] == 131072


def test_a_model_that_was_published_without_a_rope_does_not_rotate():
    found = rw.doctor({**GRANITE_H, "position_embedding_type": "rope"})
    assert found.findings[0].id == "rope_switched_on"
    assert found.corrected == {**GRANITE_H, "position_embedding_type": "nope"}
    # the other sizes of Granite 4.0 have a rope
    dense = {**GRANITE_H, "hidden_size": 2560, "num_attention_heads": 40}
    dense |= {"position_embedding_type": "rope", "rope_theta": 1e7}
    assert rw.doctor(dense).exit_status == 0


def test_a_text_part_may_leave_its_sizes_to_its_class():
    part = {"model_type": "llama", "max_position_embeddings": 4096, "vocab_size": 32064}
    found = rw.doctor({"model_type": "llava", "text_config": part})
    assert (found.exit_status, found.findings) == (0, ())


def test_defaults_of_every_class_of_transformers_need_no_change():
    """A class's own defaults are a config that its code reads as meant."""
    pytest.importorskip("transformers")
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    examined, heavy = 0, {}
    for name in CONFIG_MAPPING:
        try:
            config = CONFIG_MAPPING[name]().to_dict()
            ropes(config)
        except Exception:  # no defaults, or no rope
            continue
        found = rw.doctor(config)
        examined += 1
        if found.exit_status:
            heavy[name] = [each.id for each in found.findings]
    # these classes have the sizes of a published model and not its theta, length or rotated width
    lost = ("cohere", "eurobert", "glm_moe_dsa", "persimmon", "qwen2", "qwen2_moe")
    other = ("aya_vision", "cohere2", "cohere2_vision", "exaone4", "exaone4_5")
    narrow = ("minimax_m2", "minimax_m3_vl", "minimax_m3_vl_text")
    assert heavy == {
        **{name: ["published_theta_lost"] for name in lost},
        **{name: ["published_theta_of_family"] for name in other},
        **{name: ["published_fraction_differs"] for name in narrow},
        "deepseek_v32": ["published_scaling_lost"],
        "deepseek_v4": ["published_scaling_lost"],
        "phi4_multimodal": [
            "published_heads_differ",
            "published_scaling_lost",
            "published_fraction_changed",
        ],
        "csm": ["published_scaling_lost"],
        "minicpm3": ["published_scaling_lost"],
        "phimoe": ["published_theta_lost", "published_scaling_lost"],
        "mllama": ["published_scaling_lost"],
        "mllama_text_model": ["published_scaling_lost"],
        "glm4": ["served_length_raised"],
        "mixtral": ["served_length_raised"],
    }
    assert examined > 100


JUNK = [None, True, 0, -1, 2, 1e300, 10**30, math.nan, math.inf, "", "null", "4.0", "{value}", [],
        {}, [1.0, "a"], {"a": 1}, {"rope_type": "yarn"}, "[1]", 0.5, [16, 24, 24]]  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_nothing_in_a_config_breaks_the_doctor(seed):
    """What it corrects can be read, unless it says why not, and it finds no more to correct there."""
    draw = random.Random(seed)
    for _ in range(60):
        broken = draw.choice(BROKEN)
        config = copy.deepcopy(broken.config)
        for _ in range(draw.randint(1, 3)):
            inside = [each for each in config.values() if isinstance(each, dict)]
            holder = draw.choice([config, *inside])
            key = draw.choice([*holder, "rope_parameters", "factor", "type", "head_dim"])
            holder[key] = copy.deepcopy(draw.choice(JUNK))
        found = rw.doctor(config, length=draw.choice([None, 4096, 10**6]))
        json.dumps(found.as_dict(), allow_nan=False)
        assert str(found)
        if found.corrected is None:
            continue
        again = rw.doctor(found.corrected, length=found.length)
        assert again.corrected is None, config
        told = "rope_not_described" in [each.id for each in found.findings]
        if not told and all(each.repaired or each.severity == "note" for each in found.findings):
            ropes(found.corrected)


def test_a_config_is_read_again_only_if_it_was_changed(monkeypatch):
    """1 and true are equal in Python, but not as the value of a key."""
    read = []
    monkeypatch.setattr(
        case_module, "read_specs", lambda *given: read.append(given) or read_specs(*given)
    )
    examined = Examination({"model_type": "llama", "head_dim": 64, "rope_theta": 1e4})
    assert examined.specs() == {"full_attention": rw.RopeSpec(64, theta=1e4)}
    assert examined.error() is None
    assert len(read) == 1
    examined.root["rope_theta"] = 1
    assert examined.specs() is not None
    examined.root["rope_theta"] = True
    assert examined.specs() is None
    assert examined.error().field == "rope_theta"
    assert len(read) == 3


HAN = re.compile("[\u4e00-\u9fff]")


def places(text):
    return set(re.findall(r"\{\w+\}", text))


def test_every_row_has_chinese_words():
    rows = {row.id: row for row in mistakes()}
    assert list(chinese()) == list(rows)
    for name, words in chinese().items():
        row = rows[name]
        facts = places(row.cause + row.effect + row.fix) | {"{key}", "{value}"}
        assert words.keys() == {"cause", "effect", "fix"}
        for text in words.values():
            assert HAN.search(text) or text == "{why}。"
            assert places(text) <= facts
        assert ("|" in words["fix"]) == ("|" in row.fix)


def test_the_words_of_a_report_are_the_same_in_both_languages():
    english, other = report_words("en"), report_words("zh")
    assert english.keys() == other.keys()
    for key, text in english.items():
        if isinstance(text, dict):
            assert text.keys() == other[key].keys()
        else:
            assert places(text) == places(other[key])


def test_a_report_in_chinese():
    broken = changed(LLAMA, scaled(YARN, factor="4.0", beta_fast=1, beta_slow=32))
    found = rw.doctor(broken, engine="vllm", language="zh")
    assert [each.id for each in found.findings][:2] == ["factor_as_text", "betas_swapped"]
    assert "2 个错误" in found.verdict
    told = str(found).split("---")[0]
    assert "effect" not in told
    assert all(HAN.search(line) for line in told.splitlines() if line)
    assert found.corrected == rw.doctor(broken, engine="vllm").corrected
    with pytest.raises(rw.RopeError):
        rw.doctor(broken, language="fr")


@pytest.mark.parametrize(("length", "found"), [(131_072, False), (200_000, True)])
def test_yarn_without_a_trained_length_covers_the_served_one_times_its_factor(length, found):
    """40,960 x 4 = 163,840: as transformers and vLLM read the config."""
    config = {
        "model_type": "qwen3",
        "head_dim": 128,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "max_position_embeddings": 40_960,
        "rope_theta": 1e6,
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0},
    }
    ids = {finding.id for finding in rw.doctor(config, length=length).findings}
    assert ("served_beyond_scaling" in ids) == found
    assert "trained_length_missing" in ids


def test_a_raised_factor_raises_the_magnitude_that_follows_from_it():
    rope = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192}
    rope["attention_factor"] = 0.1 * math.log(8.0) + 1.0
    config = {"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32}
    config |= {"max_position_embeddings": 65536, "rope_theta": 500000.0, "rope_scaling": rope}
    corrected = rw.doctor(config, length=131072).corrected
    assert corrected is not None
    scaling = corrected["rope_scaling"]
    assert scaling["factor"] == 16.0
    assert math.isclose(scaling["attention_factor"], 0.1 * math.log(16.0) + 1.0, rel_tol=1e-12)


def test_a_factor_is_not_raised_from_a_trained_length_that_is_wrong():
    config = {"model_type": "qwen3", "hidden_size": 2560, "num_attention_heads": 32}
    config |= {"num_key_value_heads": 8, "num_hidden_layers": 36, "vocab_size": 151936}
    config |= {"head_dim": 128, "max_position_embeddings": 262144, "rope_theta": 5000000}
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    found = rw.doctor({**config, "rope_scaling": rope})
    assert found.findings[0].id == "extended_twice"
    assert found.corrected == {**config, "rope_scaling": None}
    # the model serves that length without a scaling, and a longer one from there
    assert rw.doctor({**config, "rope_scaling": rope}, length=262144).corrected == {
        **config,
        "rope_scaling": None,
    }
    longer = rw.doctor({**config, "rope_scaling": rope}, length=524288).corrected
    assert longer is not None
    assert longer["rope_scaling"] == {
        "rope_type": "yarn",
        "factor": 2.0,
        "original_max_position_embeddings": 262144,
    }


def test_an_extension_is_made_once():
    """NTK by a larger theta covers the length, so no YaRN is added to it."""
    ntk = changed(LLAMA, {"type": "ntk", "factor": 4.0}, max_position_embeddings=2048)
    found = rw.doctor(ntk, length=8192)
    assert [each.id for each in found.findings] == ["ntk_aware"]
    assert found.corrected is not None
    assert rw.doctor(found.corrected, length=8192).findings == ()


def test_a_length_that_was_lowered_needs_no_scaling():
    llama = field_config("llama31")
    found = rw.doctor({**llama, "max_position_embeddings": 8192}, length=65536)
    assert [each.id for each in found.findings] == ["served_length_lowered"]
    assert found.corrected == llama


def test_the_served_length_follows_a_repaired_scaling():
    text = changed(LLAMA, json.dumps(YARN), max_position_embeddings=2048)
    corrected = rw.doctor(text, length=8192).corrected
    assert corrected is not None
    assert corrected["max_position_embeddings"] == 8192
    assert rw.doctor(corrected, engine="vllm", length=8192).findings == ()


@pytest.mark.parametrize(
    "text",
    [
        '{"model_type": "llama", "head_dim": 64, // heads\n "rope_theta": 1e4,}',
        '{"model_type": "llama", "head_dim": 64, "rope_scaling": None, "rope_theta": 1e4}',
        "{'model_type': 'llama', 'head_dim': 64, 'rope_theta': 1e4}",
    ],
)
def test_a_file_that_is_not_quite_json_is_read_and_corrected(tmp_path, text):
    path = tmp_path / "config.json"
    path.write_text(text)
    found = rw.doctor(path)
    assert [each.id for each in found.findings] == ["not_json"]
    assert found.corrected is not None
    assert found.corrected["head_dim"] == 64
    path.write_text('{"model_type": "llama" "head_dim": 64}')
    with pytest.raises(rw.RopeError, match="line 1"):
        rw.doctor(path)


def test_an_absent_key_is_not_called_null():
    found = rw.doctor(changed(RIGHT3, rope_theta=GONE))
    assert found.findings[0].cause.startswith("rope_theta is not given")


def test_a_size_under_another_name_is_not_a_misspelled_key():
    config = {"model_type": "exaone", "hidden_size": 4096, "num_attention_heads": 32}
    config |= {"num_hidden_layers": 32, "num_layers": 32, "max_position_embeddings": 4096}
    assert "key_misspelled" not in [f.id for f in rw.doctor({**config, "rope_theta": 1e6}).findings]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"rope_theta": 5e5},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
        {"model_type": "glm4", "partial_rotary_factor": 0.5, "rope_scaling": {"rope_type": "yarm"}},
    ],
)
def test_the_rope_object_of_vllms_flags_says_the_whole_rope_alone(changes):
    """vLLM puts it in the place of the object into which transformers has moved theta and the
    rotated fraction, so keys beside it are not read any more.
    """
    config = {
        "model_type": "llama",
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "max_position_embeddings": 8192,
        **changes,
    }
    if config.get("rope_scaling"):
        config["rope_scaling"] |= {"factor": 4.0, "original_max_position_embeddings": 8192}
        config["max_position_embeddings"] = 32768
    found = rw.doctor(config, engine="vllm", length=32768)
    overrides = json.loads(shlex.split(found.flags["vllm"])[1])
    beside = ("rope_theta", "partial_rotary_factor", "rope_scaling", "rope_parameters")
    served = {key: value for key, value in found.corrected.items() if key not in beside}
    served["rope_parameters"] = overrides.get("rope_parameters") or overrides["rope_scaling"]
    assert rw.from_hf(served) == rw.from_hf(found.corrected)


def test_a_form_with_which_an_engine_starts_is_written_and_told_once():
    lists = {"short_factor": [1.0] * 48, "long_factor": [2.0] * 48}
    config = {"model_type": "phi3", "hidden_size": 3072, "num_attention_heads": 32}
    config |= {"max_position_embeddings": 131072, "original_max_position_embeddings": 4096}
    config |= {"rope_scaling": {"rope_type": "longrope", **lists}}
    found = rw.doctor(config, engine="mlx-lm")
    told = [(each.id, each.repaired) for each in found.findings if each.severity != "note"]
    # mlx-lm has the long factors for short texts too
    assert told == [("engine_refuses", True), ("engine_differs", False)]
    assert found.corrected["rope_scaling"]["type"] == "longrope"
    assert rw.from_hf(found.corrected, precision="exact") == rw.from_hf(config, precision="exact")


@pytest.mark.parametrize("engine", ["mlx-lm", "llama.cpp", "sglang"])
def test_an_engine_that_differs_is_told_where_rope_parameters_is_null(engine):
    """No engine but transformers and vLLM reads `attention_factor`."""
    config = {**LLAMA, "rope_parameters": None, "rope_scaling": {**YARN, "attention_factor": 1.0}}
    found = rw.doctor(config, engine=engine)
    assert "engine_differs" in [each.id for each in found.findings]


@pytest.mark.parametrize("part", ['\\"', "/*", "\n", ", "])
def test_a_long_text_that_is_no_json_is_refused_without_long_searches(tmp_path, part):
    """A search that starts again at every character would take hours here."""
    path = tmp_path / "config.json"
    path.write_text('{"a": "' + part * 300_000 if part == '\\"' else "{" + part * 300_000)
    with pytest.raises(rw.RopeError, match="JSON"):
        rw.doctor(path)


PLAIN = {**LLAMA, "max_position_embeddings": 32768, "rope_theta": 500000.0}
TO_YARN = {"factor": 4.0, "original_max_position_embeddings": 8192}
BANDS = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(
    ("names", "rest", "kept"),
    [
        ({"type": "yarn", "rope_type": "default"}, TO_YARN, "yarn"),
        ({"type": "default", "rope_type": "yarn"}, TO_YARN, "yarn"),
        ({"type": "linear", "rope_type": "default"}, {"factor": 4.0}, "linear"),
        ({"type": "llama3", "rope_type": "yarn"}, {**TO_YARN, **BANDS}, "llama3"),
        ({"type": "linear", "rope_type": "yarn"}, TO_YARN, "yarn"),
        ({"type": "yarn", "rope_type": "default"}, {}, "default"),
        # both have the one key: transformers reads rope_type
        ({"type": "dynamic", "rope_type": "linear"}, {"factor": 4.0}, "linear"),
    ],
)
def test_of_two_types_the_one_stays_whose_keys_are_there(names, rest, kept):
    found = rw.doctor({**PLAIN, "rope_scaling": {**names, **rest}})
    assert found.findings[0].id == "rope_type_contradicts_type"
    rope = found.corrected["rope_scaling"]
    assert {rope.get("rope_type"), rope.get("type")} == {kept, None}
    assert {key: rope[key] for key in rest} == rest


SECTIONS = {"mrope_section": [16, 24, 24]}
WITH_IMAGES = {
    "model_type": "qwen2_vl_text",
    "hidden_size": 1536,
    "num_attention_heads": 12,
    "num_hidden_layers": 20,
    "max_position_embeddings": 32768,
    "rope_theta": 1e6,
    "rope_scaling": {"type": "mrope", **SECTIONS},
}


@pytest.mark.parametrize(
    ("root", "text", "meant"),
    [
        ({"type": "yarn", **TO_YARN}, {}, {"type": "yarn", **SECTIONS, **TO_YARN}),
        ({"type": "yarn", **TO_YARN, "mrope_section": [24, 20, 20]}, {}, None),
        ({"type": "yarn", **TO_YARN}, {"type": "yarn", **TO_YARN, "factor": 8.0}, None),
    ],
)
def test_a_scaling_beside_the_text_part_is_moved_into_it_if_nothing_contradicts(root, text, meant):
    part = {**WITH_IMAGES, "rope_scaling": {**WITH_IMAGES["rope_scaling"], **text}}
    found = rw.doctor({"model_type": "qwen2_vl", "text_config": part, "rope_scaling": root})
    assert found.findings[0].id == "scaling_beside_text_part"
    if meant is None:
        assert found.corrected is None
    else:
        assert found.corrected["text_config"]["rope_scaling"] == meant
        assert "rope_scaling" not in found.corrected


def test_a_scaling_that_the_text_part_has_too_is_right():
    part = {**WITH_IMAGES, "rope_scaling": {"type": "yarn", **SECTIONS, **TO_YARN}}
    root = {"model_type": "qwen2_vl", "text_config": part, "rope_scaling": dict(TO_YARN)}
    root["rope_scaling"] |= {"rope_type": "yarn"}
    assert [each.id for each in rw.doctor(root).findings if each.severity != "note"] == []


def test_two_values_of_one_key_are_not_overwritten_for_another_release():
    """transformers 4 computed with the theta outside, transformers 5 with the one inside."""
    new = {"rope_type": "yarn", **TO_YARN, "rope_theta": 1e6}
    config = {**PLAIN, "transformers_version": "4.45.0", "rope_parameters": new}
    found = rw.doctor(config)
    assert [each.id for each in found.findings if each.severity == "error"] == ["theta_twice"]
    assert found.findings[0].cause == "rope_theta is 1,000,000 inside the rope and 500,000 outside"
    assert found.corrected is None


@pytest.mark.parametrize(("own_code", "told"), [({}, False), ({"auto_map": {}}, True)])
def test_a_family_that_came_with_transformers_5_has_its_form_in_every_file(own_code, told):
    rope = {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25}
    sizes = {"hidden_size": 2048, "num_attention_heads": 8, "head_dim": 256}
    config = {"model_type": "qwen3_5_text", **sizes, "num_hidden_layers": 24, **own_code}
    config |= {"transformers_version": "4.57.0.dev0", "rope_parameters": rope}
    found = {each.id for each in rw.doctor(config).findings}
    assert ("v5_keys_in_v4_file" in found) is told


@pytest.mark.parametrize(
    "names", [{"rope_type": "dynamic"}, {"rope_type": "dynamic", "type": "dynamic"}]
)
def test_code_that_counts_the_fields_gets_the_two_that_it_reads(names):
    config = {**PLAIN, "model_type": "internlm2", "rope_scaling": {**names, "factor": 2.0}}
    found = rw.doctor(config)
    assert found.findings[0].id == "scaling_fields_refused"
    assert found.corrected["rope_scaling"] == {"type": "dynamic", "factor": 2.0}


PHI3 = {"model_type": "phi3", "hidden_size": 3072, "num_attention_heads": 32}
PHI3 |= {"num_key_value_heads": 32, "num_hidden_layers": 32, "vocab_size": 32064}


@pytest.mark.parametrize(
    ("sizes", "count", "fraction"),
    [
        (PHI3, 32, None),  # Phi-3-mini, whose heads rotate whole: the lists were cut
        ({**PHI3, "num_hidden_layers": 7}, 40, None),  # no part of 48 pairs that a model has
        ({**PHI3, "num_hidden_layers": 7}, 36, 0.75),
    ],
)
def test_short_lists_are_a_part_of_the_head_only_if_a_model_can_have_it(sizes, count, fraction):
    lists = {"short_factor": [1.0] * count, "long_factor": [2.0] * count}
    lengths = {"max_position_embeddings": 131072, "original_max_position_embeddings": 4096}
    found = rw.doctor({**sizes, **lengths, "rope_scaling": {"rope_type": "longrope", **lists}})
    assert (found.corrected or {}).get("partial_rotary_factor") == fraction
    assert found.exit_status == 4


def test_a_length_times_the_published_linear_factor_again_is_the_length_that_is_wrong():
    sizes = {"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32}
    sizes |= {"num_key_value_heads": 32, "num_hidden_layers": 32, "vocab_size": 32256}
    right = {**sizes, "rope_theta": 100000, "max_position_embeddings": 16384}
    right |= {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}
    found = rw.doctor({**right, "max_position_embeddings": 65536})
    assert found.findings[0].id == "length_multiplied_twice"
    assert found.corrected == right


def test_the_theta_of_a_layer_type_is_repaired_in_its_own_rope():
    """Also in a family that has no theta for each layer type of its own."""
    full = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6}
    local = {"rope_type": "default", "rope_theta": 1e4}
    right = {
        "model_type": "gemma4_text",
        "hidden_size": 2816,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "num_hidden_layers": 30,
        "vocab_size": 262144,
        "max_position_embeddings": 262144,
        "rope_parameters": {"full_attention": full, "sliding_attention": local},
    }
    ropes_lost = {"full_attention": {**full, "rope_theta": 1e4}, "sliding_attention": local}
    found = rw.doctor({**right, "rope_parameters": ropes_lost})
    assert [each.id for each in found.findings] == ["published_theta_lost"]
    assert found.corrected == right


def test_of_two_thetas_neither_is_taken_if_another_was_published():
    """Apertus-8B has 12,000,000."""
    sizes = {"model_type": "apertus", "hidden_size": 4096, "num_attention_heads": 32}
    sizes |= {"num_key_value_heads": 8, "num_hidden_layers": 32, "vocab_size": 131072}
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope |= {"original_max_position_embeddings": 8192, "rope_theta": 10000.0}
    sizes |= {"max_position_embeddings": 65536, "rope_parameters": rope}
    found = rw.doctor({**sizes, "rope_theta": 500000.0})
    corrected = found.corrected or sizes
    assert corrected["rope_parameters"]["rope_theta"] != 500000.0


def test_a_raised_length_is_told_though_a_release_with_a_larger_theta_has_a_longer_one():
    """Qwen3-30B-A3B serves 40,960 with theta 1e6, its release 2507 262,144 with 1e7."""
    config = {"model_type": "qwen3_moe", "hidden_size": 2048, "num_attention_heads": 32}
    config |= {"num_key_value_heads": 4, "num_hidden_layers": 48, "vocab_size": 151936}
    config |= {"head_dim": 128, "max_position_embeddings": 131072}
    assert [each.id for each in rw.doctor({**config, "rope_theta": 1e6}).findings] == [
        "served_length_raised"
    ]


@pytest.mark.parametrize("served", [32_768, 131_072])
def test_two_lengths_of_a_release_outweigh_the_theta_of_another(served):
    """The sizes, the trained length and the window are those of Qwen2.5-7B, and 10,000 is the
    theta of Qwen2.5-Math-7B, which was trained with 4,096 tokens.
    """
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768}
    config = {
        "model_type": "qwen2",
        "hidden_size": 3584,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "num_hidden_layers": 28,
        "vocab_size": 152_064,
        "max_position_embeddings": served,
        "rope_theta": 10_000.0,
        "rope_scaling": scaling,
    }
    corrected = rw.doctor(config).corrected
    assert (corrected["rope_theta"], corrected["rope_scaling"]) == (1_000_000.0, scaling)


@pytest.mark.parametrize("form", ["rope_scaling", "rope_parameters"])
def test_a_theta_inside_the_rope_of_images_stays_when_a_text_model_loses_that_rope(form):
    rope = {"type": "mrope", "mrope_section": [16, 24, 24], "rope_theta": 500_000.0}
    sizes = {"hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 30}
    found = rw.doctor({"model_type": "llama", **sizes, "vocab_size": 999, form: rope})
    assert [each.id for each in found.findings if each.repaired] == ["sections_in_text_model"]
    spec = rw.from_hf(found.corrected)
    assert (spec.theta, spec.scaling.name) == (500_000.0, "default")


def test_keys_of_a_rope_that_is_not_described_are_compared_with_the_published_ones():
    sizes = {"hidden_size": 4096, "num_attention_heads": 64, "num_key_value_heads": 4}
    right = {
        "model_type": "mimo_v2_flash",
        **sizes,
        "num_hidden_layers": 48,
        "vocab_size": 152576,
        "max_position_embeddings": 262144,
        "rope_theta": 5000000,
        "swa_rope_theta": 10000,
        "partial_rotary_factor": 0.334,
    }
    assert rw.doctor(right).corrected is None
    found = rw.doctor({**right, "rope_theta": 10000, "swa_rope_theta": 5000000})
    assert found.corrected == right


@pytest.mark.parametrize("where", ["rope_parameters", "rope_theta"])
def test_a_mistyped_theta_is_corrected_under_both_names(where):
    """The code of GPT-NeoX reads rotary_emb_base outside the rope."""
    sizes = {"model_type": "gpt_neox", "hidden_size": 6144, "num_attention_heads": 64}
    sizes |= {"num_hidden_layers": 44, "vocab_size": 50432, "max_position_embeddings": 2048}
    rope = {"rope_type": "default", "rope_theta": 1e5, "partial_rotary_factor": 0.25}
    given = {"rope_parameters": rope, "rope_theta": 1e5}[where]
    found = rw.doctor({**sizes, "rotary_pct": 0.25, "rotary_emb_base": 1e5, where: given})
    assert [(each.id, each.repaired) for each in found.findings] == [
        ("published_theta_mistyped", True)
    ]
    holder = found.corrected.get("rope_parameters", found.corrected)
    assert holder["rope_theta"] == found.corrected["rotary_emb_base"] == 1e4


def test_a_dynamic_rope_with_the_factor_1_may_scale():
    """By an alpha, and without one as soon as the sequence is longer than the trained length."""
    sizes = {"model_type": "hunyuan_v1_dense", "hidden_size": 4096, "num_attention_heads": 32}
    sizes |= {"num_hidden_layers": 32, "vocab_size": 128_167, "max_position_embeddings": 32_768}
    sizes |= {"head_dim": 128, "rope_theta": 10_000.0}
    found = rw.doctor({**sizes, "rope_scaling": {"rope_type": "dynamic", "factor": 1000.0}})
    assert [each.id for each in found.findings] == ["alpha_as_factor"]
    rope = {"rope_type": "dynamic", "factor": 1.0}
    assert found.corrected["rope_scaling"] == {**rope, "alpha": 1000.0}
    assert not rw.doctor({**LLAMA, "rope_scaling": rope}).findings


@pytest.mark.parametrize(
    ("theta", "factor", "pair"),
    [(0.5, 1.0, 0), (0.001, 1.0, 0), (10.0, 1.0, 7), (10.0, 2.0, 7)],
)
def test_a_tiny_theta_is_told_with_the_turn_of_its_slowest_pair(theta, factor, pair):
    config = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4}
    config |= {"max_position_embeddings": 4096, "rope_theta": theta}
    if factor > 1:
        config["rope_scaling"] = {"rope_type": "linear", "factor": factor}
    found = rw.doctor(config).findings[0]
    assert found.id == "theta_tiny"
    tokens = 2 * math.pi * factor * theta ** (2 * pair / 16)
    assert f"in {tokens:g} tokens" in found.cause


@pytest.mark.parametrize(
    "changes",
    [
        {"rotary_percentage": None},
        {"layer_types": [["full_attention"]], "sliding_window": 4096},
        {"model_type": "gemma3_text", "layer_types": 5, "rope_parameters": {"rope_theta": 1e4}},
        # a head of one pair, which NTK does not stretch
        {"vocab_size": 32_000, "head_dim": 2, "rope_scaling": YARN},
    ],
)
def test_odd_values_are_examined_without_an_error_of_python(changes):
    sizes = {"hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 32}
    assert rw.doctor({**LLAMA, **sizes, **changes}, length=100_000).findings


@pytest.mark.parametrize("factor", [1.01, 3.04])
def test_a_magnitude_of_the_formula_is_right_where_ln_of_the_factor_is_near_it(factor):
    rope = {**YARN, "factor": factor, "attention_factor": 0.1 * math.log(factor) + 1}
    found = rw.doctor({**LLAMA, "max_position_embeddings": 2048, "rope_scaling": rope})
    assert "attention_factor_impossible" not in {each.id for each in found.findings}


def test_a_proportional_rope_with_the_factor_1_rotates_a_part_of_the_head():
    rope = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "factor": 1.0}
    found = rw.doctor({**LLAMA, "rope_parameters": {**rope, "rope_theta": 1e6}})
    assert "factor_is_one" not in {each.id for each in found.findings}


def test_a_mistake_that_nothing_repairs_has_one_fix():
    """The part before "|" says what was written; the module of engines writes for its own rows."""
    written = {"engine_refuses", "engine_differs"}
    for row in mistakes():
        assert "|" not in row.fix or row.repair is not None or row.id in written, row.id


@pytest.mark.parametrize("model_type", ["gpt_oss", "cwm", "apertus", "openai_privacy_filter"])
@pytest.mark.parametrize("names", [["full_attention"], ["full_attention", "sliding_attention"]])
def test_ropes_by_layer_type_are_told_of_a_family_that_needs_one_rope(model_type, names):
    config = {
        **LLAMA,
        "model_type": model_type,
        "layer_types": ["sliding_attention", "full_attention"] * 16,
    }
    rope = {"rope_type": "default", "rope_theta": 5e5}
    config["rope_parameters"] = {name: dict(rope) for name in names}
    result = rw.doctor(changed(config, rope_theta=GONE))
    assert result.corrected["rope_parameters"] == rope
    ids = [each.id for each in result.findings]
    assert "rope_by_layer_type_in_flat_family" in ids
    assert "layer_rope_absent" not in ids


@pytest.mark.parametrize(
    "model_type", ["gemma4_text", "gemma4_unified_text", "laguna", "mellum", "mimo_v2_flash"]
)
def test_a_layer_type_without_its_rope_is_told_of_families_that_look_each_up(model_type):
    types = ["sliding_attention", "full_attention"] * 16
    rope = {"full_attention": {"rope_type": "default", "rope_theta": 1e6}}
    config = {**LLAMA, "model_type": model_type, "layer_types": types, "rope_parameters": rope}
    ids = [each.id for each in rw.doctor(changed(config, rope_theta=GONE)).findings]
    assert "layer_rope_absent" in ids
    assert "rope_by_layer_type_in_flat_family" not in ids
