"""The vectors are what their generator makes, valid by their schema, and right by other arithmetic."""

import json
import warnings
from decimal import Decimal

import jsonschema
import pytest

import gguf_samples
import ropewalk as rw
from conformance_vectors import generate
from ropewalk.gguf import from_gguf
from ropewalk_conformance import definition, groups, load
from ropewalk_conformance.arrays import flat
from ropewalk_conformance.functions import KINDS
from ropewalk_conformance.mistakes import agree
from ropewalk_conformance.vectors import folder, index

SCHEMA = json.loads((folder() / "schema.json").read_text(encoding="utf-8"))
WITH_FREQUENCIES = [
    pytest.param(name, case, id=f"{name}/{case['id']}")
    for name in groups()
    if name != "gguf"
    for case in load(name)["cases"]
    if "inv_freq" in case
]
# "linear" has every field of a rope, the other groups have what stands beside a rope
REGENERATED = ["linear", "softmax-scale", "cache-move", "permutation", "video-positions", "gguf"]


@pytest.mark.parametrize("name", REGENERATED)
def test_the_generator_makes_these_files(name):
    group = next(group for group in generate.GROUPS if group["group"] == name)
    made = generate.text(generate.document(group)) + "\n"
    assert made == (folder() / f"{name}.json").read_text(encoding="utf-8")


def test_the_index_lists_every_file():
    names = {path.stem for path in folder().glob("*.json")} - {"index", "schema"}
    assert names == set(groups()) == {group["group"] for group in generate.GROUPS}
    assert (index()["version"], index()["date"]) == (generate.VERSION, generate.DATE)
    for name in names:
        assert (load(name)["version"], load(name)["date"]) == (generate.VERSION, generate.DATE)


@pytest.mark.parametrize("name", ["index", *groups()])
def test_a_file_follows_the_schema(name):
    part = SCHEMA["$defs"]["index" if name == "index" else "group"]
    validator = jsonschema.Draft202012Validator(part | {"$defs": SCHEMA["$defs"]})
    text = (folder() / f"{name}.json").read_text(encoding="utf-8")
    found = json.loads(text, parse_constant=lambda word: pytest.fail(word))
    assert [error.message for error in validator.iter_errors(found)] == []


def test_the_schema_refuses_what_is_wrong():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    validator = jsonschema.Draft202012Validator(
        SCHEMA["$defs"]["group"] | {"$defs": SCHEMA["$defs"]}
    )
    good = load("softmax-scale")
    assert validator.is_valid(good)
    assert not validator.is_valid({**good, "functions": ["rotated"]})
    case = good["cases"][0]
    assert not validator.is_valid({**good, "cases": [{**case, "inv_frequency": []}]})
    good = load("downcast")
    case = good["cases"][0]
    other = {**case, "before": {**case["before"], "dtype": "float16"}}
    assert validator.is_valid(good)
    assert not validator.is_valid({**good, "cases": [other]})


def test_the_files_are_small():
    assert sum(path.stat().st_size for path in folder().glob("*.json")) < 3_000_000


@pytest.mark.parametrize(("group", "case"), WITH_FREQUENCIES)
def test_the_package_reads_the_same_rope_from_the_config(group, case):
    """To 30 digits: the package's decimals and the generator's mpmath are written independently."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        specs = rw.from_hf(case["config"], per_layer=True, precision="exact")
    part = case.get("part", "full_attention")
    spec = specs.get(part) or specs["full_attention"]  # an indexer or a draft has the same ladder
    found = spec.ladder_frequencies(case.get("length"))
    exact = [Decimal(text) for text in case["inv_freq"]["exact"]]
    assert len(exact) == len(found.digits)
    for given, ours in zip(exact, found.digits, strict=True):
        assert abs(given - ours) <= abs(ours) * Decimal("1e-30")
    assert case["inv_freq"]["float"] == [float(text) for text in case["inv_freq"]["exact"]]
    assert found.magnitude == pytest.approx(case["attention_factor"]["float"], rel=1e-15)
    rope = case["rope"]
    assert spec.rotated_dims == rope["rotary_dim"]
    if part != "indexer":
        assert spec.layout == rope["layout"]
    if rope["axes"] is not None:
        assert list(spec.axis_of_pair) == case["axis_of_pair"]


@pytest.mark.parametrize("case", load("softmax-scale")["cases"], ids=lambda case: case["id"])
def test_the_package_reads_the_same_softmax_scale(case):
    factor = rw.from_hf(case["config"]).softmax_factor
    scale = factor / case["rope"]["head_dim"] ** 0.5
    assert scale == pytest.approx(case["softmax_scale"]["float"], rel=1e-14)


@pytest.mark.parametrize("case", load("gguf")["cases"], ids=lambda case: case["id"])
def test_the_package_reads_the_same_rope_from_a_gguf_file(case, tmp_path):
    import numpy as np

    tensors = {name: np.float32(values) for name, values in case.get("tensors", {}).items()}
    path = gguf_samples.write(tmp_path / "rope.gguf", case["config"], tensors)
    spec = from_gguf(path, precision="exact")
    found = spec.ladder_frequencies()
    assert list(found.radians) == pytest.approx(case["inv_freq"]["float"], rel=1e-6)
    assert found.magnitude == pytest.approx(case["attention_factor"]["float"], rel=1e-7)
    assert (spec.layout, spec.rotated_dims) == (case["rope"]["layout"], case["rope"]["rotary_dim"])


@pytest.mark.parametrize("name", groups())
def test_the_runner_computes_the_same_numbers(name):
    """The runner's definition in floats, into which mistakes are planted, agrees with the exact
    vectors.
    """
    group = load(name)
    least = 1e-6 if name == "far" else 1e-9  # float64 angles at 2^31
    for case in group["cases"]:
        for function in group["functions"]:
            kind = KINDS[function]
            expected = kind.expected(case)
            allowed = [least * max(1.0, abs(value)) for value in expected]
            assert agree(kind.predicted(case, {}), expected, allowed), (case["id"], function)


def test_rotations_are_those_of_the_tables():
    """The rotated q and k of a case are its q and k rotated by its cos and sin."""
    for name in groups():
        for case in load(name)["cases"]:
            if "rotation" not in case:
                continue
            given, rope = case["rotation"], case["rope"]
            for x in "qk":
                scale = given.get(f"{x}_scale", 1.0)
                turned = definition.rotate(given[x], case["cos"], case["sin"], rope)
                found = [scale * value for value in flat(turned)]
                assert found == pytest.approx(flat(given[f"{x}_expected"]), abs=1e-12)


def test_every_bug_in_the_vectors_names_its_thread_or_the_release_where_it_was_seen():
    for name in groups():
        for bug in load(name)["bugs"]:
            assert ("thread" in bug) != ("seen" in bug), name
