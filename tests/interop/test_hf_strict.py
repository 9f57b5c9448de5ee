"""An impossible value is refused by name even where the rope could do without it; what real configs
have is read.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import random
import warnings

import pytest
import transformers.models
from config_samples import LLAMA, LONGROPE, YARN, refused
from installed import HERE
from transformers import PretrainedConfig

from ropewalk import RopeError
from ropewalk.config.hf import explain, from_hf

NAN = float("nan")
LINEAR = {"rope_type": "linear", "factor": 2.0}
SECTIONS = {"rope_type": "default", "mrope_section": [4, 2, 2]}


def both(key, value, **rope):
    """A key inside `rope_scaling` and inside `rope_parameters`."""
    return [
        ({where: {**LINEAR, **rope, key: value}}, key)
        for where in ("rope_scaling", "rope_parameters")
    ]


@pytest.mark.parametrize(
    ("keys", "field"),
    [
        *(
            ({"max_position_embeddings": value}, "max_position_embeddings")
            for value in (-8, 0, NAN, 3.5, "64", True, 2**41)
        ),
        *(({"n_positions": value}, "n_positions") for value in (-8, "64")),
        *(
            ({"head_dim": 16, "hidden_size": value}, "hidden_size")
            for value in (-8, 0, "64", 64.0, [64])
        ),
        ({"head_dim": 16, "num_attention_heads": -4}, "num_attention_heads"),
        ({"qk_rope_head_dim": 16, "head_dim": -1}, "head_dim"),
        ({"head_dim": 16, "kv_channels": "128"}, "kv_channels"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"rope_theta": None}, "rope_theta"),
        ({"rope_theta": 1e-308}, "rope_theta"),
        ({"rope_theta": 1e4, "rotary_emb_base": "10000"}, "rotary_emb_base"),
        ({"global_rope_theta": -1}, "global_rope_theta"),
        ({"rope_parameters": {"rope_theta": 1e4}, "rope_theta": -1}, "rope_theta"),
        ({"rope_parameters": {"full_attention": {"rope_theta": None}}}, "rope_theta"),
        ({"original_max_position_embeddings": 0}, "original_max_position_embeddings"),
        ({"partial_rotary_factor": 1.0, "rotary_pct": 2}, "rotary_pct"),
        ({"rope_interleave": 1}, "rope_interleave"),
        ({"layer_rope_theta": [1e4, -1]}, "layer_rope_theta[1]"),
        ({"layer_rope_theta": 1e4}, "layer_rope_theta"),
        ({"rope_scaling": {**SECTIONS, "mrope_section": [4, -1, 4]}}, "mrope_section[1]"),
        ({"rope_scaling": {**SECTIONS, "mrope_section": [0, 0, 0]}}, "mrope_section"),
        ({"rope_scaling": {**SECTIONS, "mrope_section": []}}, "mrope_section"),
        ({"rope_scaling": {**SECTIONS, "xdrope_section": [2, 2, 4]}}, "xdrope_section"),
        ({"rope_scaling": {**YARN, "beta_slow": 1e-308}}, "beta_slow"),
        ({"rope_scaling": {**YARN, "beta_fast": 1.7e308}}, "beta_fast"),
        ({"rope_scaling": {**LONGROPE, "long_factor": [1e-308] * 8}}, "long_factor[0]"),
        *both("rope_theta", None),
        *both("beta_slow", 1e-308),
        *both("attention_factor", "abc"),
        *both("short_factor", "abc"),
        *both("truncate", 1),
        *both("alpha", -1),
        *both("attn_factor", "1"),
        *both("llama_4_scaling_beta", NAN),
    ],
)
def test_an_impossible_value_is_refused_even_where_it_is_not_needed(keys, field):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        refused({**LLAMA, **keys}, field)


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("beta_fats", "beta_fast"),
        ("orginal_max_position_embeddings", "original_max_position_embeddings"),
        ("faktor", "factor"),
        ("rope_typ", "rope_type"),
        ("attention_facotr", "attention_factor"),
        ("mrope_sections", "mrope_section"),
        ("colour", None),
    ],
)
@pytest.mark.parametrize("where", ["rope_scaling", "rope_parameters", "nested"])
def test_a_key_that_nothing_reads_is_refused_with_the_nearest_one(key, nearest, where):
    rope = {**LINEAR, key: 2.0}
    place = {"rope_parameters": {"full_attention": rope}} if where == "nested" else {where: rope}
    error = refused({**LLAMA, **place}, key)
    inside = "rope_parameters.full_attention" if where == "nested" else where
    assert f"({inside}.{key})" in str(error)
    assert (
        (f"did you mean {nearest}?" in str(error))
        if nearest
        else ("did you mean" not in str(error))
    )


def test_a_broken_layer_type_is_refused_by_its_name():
    ropes = {"full_attention": {"rope_theta": 1e4}, "sliding_attention": 1e4}
    error = refused({**LLAMA, "rope_parameters": ropes}, "sliding_attention", per_layer=True)
    assert "must be the rope of a layer type, an object or null" in str(error)


@pytest.mark.parametrize(
    "keys",
    [
        {
            "rope_scaling": None,
            "head_dim": None,
            "partial_rotary_factor": None,
            "rotary_dim": None,
            "qk_rope_head_dim": None,
        },
        {
            "original_max_position_embeddings": None,
            "layer_types": None,
            "rope_interleave": None,
            "layer_rope_theta": None,
        },
        {
            "head_dim": 16,
            "hidden_size": None,
            "num_attention_heads": None,
            "max_position_embeddings": None,
        },
        {"rope_scaling": {}, "rope_parameters": {}},
        {"rope_scaling": {**LINEAR, "type": None, "attention_factor": None, "beta_fast": None}},
        {"rope_parameters": {"rope_type": None, "rope_theta": 1e4}},
        {"layer_rope_theta": [1e4, 0, 0.0, 10_000]},
    ],
)
def test_an_optional_key_that_is_null_is_read_without_a_warning(keys):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert from_hf({**LLAMA, **keys}).head_dim == 16


def test_keys_of_real_checkpoints_that_do_not_concern_the_rotation_are_read_silently():
    """Such as those of Ministral 3."""
    rope = {**YARN, "llama_4_scaling_beta": 0.1, "max_position_embeddings": 4096}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config = {**LLAMA, "model_type": "ministral3"}
        assert from_hf({**config, "rope_parameters": rope}) == from_hf(
            {**config, "rope_parameters": YARN}
        )


@pytest.mark.parametrize(
    ("key", "value"), {"attn_factor": 0.878, "finetuned": True, "extrapolation_factor": 1.0}.items()
)
def test_keys_that_only_other_engines_read_are_reported(key, value):
    """DeepSeek-R1-0528-Qwen3-8B has the key attn_factor, the first YaRN models have finetuned."""
    config = {**LLAMA, "rope_scaling": {**YARN, key: value}}
    with pytest.warns(UserWarning, match=f"{key}: not read"):
        assert from_hf(config) == from_hf({**LLAMA, "rope_scaling": YARN})
    assert any(key in text for text in explain(config).warnings)


def config_classes(full):
    """Every config class of the installed transformers by its name, or those of a few folders."""
    found, folders = {}, [*pkgutil.iter_modules(transformers.models.__path__)]
    for package in folders if full else random.Random(20260701).sample(folders, 25):
        folder = importlib.import_module(f"transformers.models.{package.name}")
        names = [
            file.name
            for file in pkgutil.iter_modules(folder.__path__)
            if file.name.startswith("configuration_")
        ]
        for name in names:
            module = importlib.import_module(f"transformers.models.{package.name}.{name}")
            classes = [
                each
                for each in vars(module).values()
                if inspect.isclass(each) and each.__module__ == module.__name__
            ]
            found |= {each.__name__: each for each in classes if issubclass(each, PretrainedConfig)}
    return found


#: rules about the model as a whole, not about a value that is given
LACKING = (
    "must be given",
    "this model does not rotate",
    "must be false: this model",
)


@pytest.mark.slow
def test_the_defaults_of_every_config_class_are_possible(full):
    """from_hf crashes on no default config; it refuses only those that lack a key, have another
    encoding, or sizes that do not fit together.
    """
    read, refusals = 0, {}
    for name, kind in config_classes(full).items():
        try:
            config = kind()
        except Exception:  # some classes have no defaults
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                from_hf(config, per_layer=True)
            read += 1
        except RopeError as error:
            refusals[name] = str(error)
    print(f"{read} read, {len(refusals)} refused by {HERE}")
    unexplained = {
        name: text for name, text in refusals.items() if not any(rule in text for rule in LACKING)
    }
    known = (
        "rope_type: must be one of",
        "mrope_section: must add up",
        "hidden_size: must be a multiple",
        "model_type: ",
    )
    assert {
        name: text for name, text in unexplained.items() if not text.startswith(known)
    }.keys() <= {"EfficientLoFTRConfig"}
    assert read >= (250 if full else 5)


@pytest.mark.parametrize("seed", range(8))
def test_a_written_config_reads_as_the_dict_does(seed, tmp_path):
    """from_hf accepts or refuses a file as it does the dict."""
    draw = random.Random(seed)
    key = draw.choice(["max_position_embeddings", "head_dim", "rope_theta", "num_hidden_layers"])
    config = {**LLAMA, "rope_theta": 1e4, key: draw.choice([-8, "64", 0, True])}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert str(refused(config, key)) == str(refused(tmp_path, key))
