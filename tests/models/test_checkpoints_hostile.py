"""Files nobody should trust: corrupt, truncated and hostile checkpoints end in a RopeError, run
nothing and cost little.
"""

import json
import os
import random
import resource
import warnings

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_decoder import make

from door import as_users_call
from ropewalk.errors import RopeError
from ropewalk.models import checkpoints

#: what a config may hold where a number, a name or a list is expected
VALUES = (
    None,
    -1,
    0,
    1.5,
    2**70,
    10**30,
    True,
    "x",
    "",
    [],
    [None],
    {},
    {"a": {"b": []}},
    [10**9],
    "__import__('os')",
)


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """(config, bytes of the weights) of a good folder with experts, windows and norms."""
    folder = tmp_path_factory.mktemp("good") / "model"
    options = {
        "num_experts": 2,
        "qk_norm": True,
        "dense_layers": (1,),
        "window": 3,
        "tie_embeddings": False,
    }
    checkpoints.save(make(**options).float(), folder)
    return json.loads((folder / "config.json").read_text()), (
        folder / "model.safetensors"
    ).read_bytes()


def lay(folder, config, weights, name="model.safetensors"):
    folder.mkdir()
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    (folder / name).write_bytes(weights)
    return folder


def outcome(folder):
    """Return the RopeError with which `load` refuses a folder, or None if the folder loads; any other
    exception is a bug and is raised.
    """
    with as_users_call(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # keys that nobody reads
        try:
            checkpoints.load(folder)
        except RopeError as refused:
            return refused
    return None


def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_every_wrong_value_in_a_config_is_refused_or_harmless(parts, tmp_path):
    config, weights = parts
    harmless, before = [], peak_bytes()
    for number, (key, value) in enumerate((key, value) for key in config for value in VALUES):
        refused = outcome(lay(tmp_path / str(number), config | {key: value}, weights))
        if refused is None:
            harmless.append((key, value))
    # keys that do not shape the model may hold anything their own rules allow
    free = {
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "architectures",
        "dtype",
        "attention_dropout",
        "initializer_range",
        "rms_norm_eps",
        "max_position_embeddings",
        "router_aux_loss_coef",
        "sliding_window",
        "use_sliding_window",
        "decoder_sparse_step",
        "norm_topk_prob",
        "num_experts_per_tok",
        "hidden_act",
        "attention_bias",
        "head_dim",
        "num_key_value_heads",
        "moe_intermediate_size",
        "mlp_only_layers",
        "tie_word_embeddings",
        "rope_parameters",
        "ropewalk",
    }
    assert not [(key, value) for key, value in harmless if key not in free]
    required = (
        "model_type",
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_experts",
    )
    assert not [key for key, _ in harmless if key in required]
    assert len(config) * len(VALUES) - len(harmless) >= 200
    assert peak_bytes() - before < 64 << 20


def test_truncated_weights_are_refused(parts, tmp_path):
    config, weights = parts
    for number, length in enumerate(
        [*range(0, 60, 6), *range(60, len(weights), len(weights) // 60)]
    ):
        assert outcome(lay(tmp_path / str(number), config, weights[:length])) is not None, length


def test_bytes_changed_at_random_in_the_header_never_crash(parts, tmp_path):
    config, weights = parts
    size, chance = 8 + int.from_bytes(weights[:8], "little"), random.Random(0)
    refusals = 0
    for number in range(200):
        spoilt = bytearray(weights)
        for _ in range(chance.randint(1, 4)):
            spoilt[chance.randrange(size)] = chance.randrange(256)
        refusals += outcome(lay(tmp_path / str(number), config, bytes(spoilt))) is not None
    assert refusals >= 190  # a few changes, such as of a blank, are harmless


def header(entries):
    raw = json.dumps(entries).encode()
    return len(raw).to_bytes(8, "little") + raw


@pytest.mark.parametrize(
    "weights",
    [
        b"",
        b"\x80\x04\x95",  # a pickle
        b"PK\x03\x04" + b"\0" * 64,  # a torch zip
        (2**63).to_bytes(8, "little"),
        (10**9).to_bytes(8, "little") + b"{" * 100,
        header([]),
        header({"w": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 4]}})
        + b"\0" * 4,
        header({"w": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}) + b"\0" * 4,
        header({"w": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}) + b"\0" * 4,
        header({"w": {"dtype": "OBJ", "shape": [1], "data_offsets": [0, 4]}}) + b"\0" * 4,
        header({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}) + b"\0" * 9,
        header({f"w{i}": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} for i in range(2)})
        + b"\0" * 4,
    ],
)
def test_files_that_are_no_weights_are_refused(parts, tmp_path, weights):
    assert outcome(lay(tmp_path / "model", parts[0], weights)) is not None


def test_pickles_are_not_even_opened(parts, tmp_path):
    folder = lay(tmp_path / "model", parts[0], b"\x80\x04\x95", name="pytorch_model.bin")
    refused = outcome(folder)
    assert refused is not None
    assert "pytorch_model.bin" in str(refused)


@pytest.mark.parametrize(
    "name",
    ["../stolen.safetensors", "/etc/passwd", "a/b.safetensors", "..", "", "link.safetensors"],
)
def test_an_index_cannot_lead_out_of_its_folder(parts, tmp_path, name):
    config, weights = parts
    (tmp_path / "stolen.safetensors").write_bytes(weights)
    folder = lay(tmp_path / "model", config, weights)
    os.symlink(tmp_path / "stolen.safetensors", folder / "link.safetensors")
    keys = load_file(folder / "model.safetensors")
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": dict.fromkeys(keys, name)})
    )
    assert outcome(folder) is not None


@pytest.mark.parametrize(
    "config",
    [
        "",
        "[]",
        "{",
        "nonsense",
        '{"model_type": "llama"',
        '{"model_type": NaN}',
        "[" * 100_000,
        '{"a":' * 5_000,
        '{"model_type": "llama", "model_type": "qwen3"}',
        '{"model_type": "llama"}',
        '{"model_type": 3}',
        "\ufeff{}",
        '{"model_type": "llama", "vocab_size": ' + "9" * 5_000 + "}",
    ],
)
def test_configs_that_are_no_configs_are_refused(parts, tmp_path, config):
    assert outcome(lay(tmp_path / "model", config, parts[1])) is not None


def test_the_largest_model_a_config_can_claim_costs_nothing(parts, tmp_path):
    sizes = {
        "vocab_size": 1 << 22,
        "hidden_size": 1 << 22,
        "intermediate_size": 1 << 22,
        "num_hidden_layers": 4096,
        "head_dim": 65536,
        "num_attention_heads": 1 << 16,
        "num_key_value_heads": 1 << 16,
        "num_experts": 4096,
        "moe_intermediate_size": 1 << 22,
    }
    before = peak_bytes()
    assert outcome(lay(tmp_path / "a", parts[0] | sizes, parts[1])).field == "num_hidden_layers"
    few = parts[0] | sizes | {"num_hidden_layers": 2, "mlp_only_layers": []}
    assert outcome(lay(tmp_path / "b", few, parts[1])) is not None
    assert peak_bytes() - before < 64 << 20


def test_two_tensors_for_the_same_weight_are_refused(parts, tmp_path):
    folder = lay(tmp_path / "model", *parts)
    weights = load_file(folder / "model.safetensors")
    weights["layers.0.input_layernorm.weight"] = torch.zeros(20)
    save_file(weights, folder / "model.safetensors")
    assert "same weight" in str(outcome(folder))
