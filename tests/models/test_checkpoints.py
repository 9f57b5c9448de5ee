"""Checkpoints: what is written is read back, what does not fit is named, and rotary tables of old
files are ignored.
"""

import json

import pytest
import torch
import transformers
from decoder_cases import SIZES, theirs
from safetensors.torch import load_file, save_file
from tiny_decoder import make, tokens

import ropewalk as rw
from door import assert_refused
from ropewalk import frequencies
from ropewalk.errors import RopeError
from ropewalk.models import Decoder, RoFormer, RoFormerConfig, checkpoints
from ropewalk.models.decoder_checkpoint import config_from_hf
from ropewalk.models.decoder_config import WINDOWED
from ropewalk.models.presets import PRESETS, build


@pytest.fixture
def folder(tmp_path):
    """A saved Qwen3-shaped decoder and its parts, to be spoilt."""
    model = make(qk_norm=True, tie_embeddings=False).float()
    checkpoints.save(model, tmp_path / "model")
    return tmp_path / "model"


def rewrite(folder, change):
    """Let `change` alter the dict of a folder's weights, and write them back."""
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def reconfigure(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("max_shard_bytes", [1, 20_000, 5_000_000_000])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_experts": 3, "qk_norm": True, "dense_layers": (1,)},
        {"num_experts": 1, "qk_norm": True},
    ],
    ids=["dense", "experts", "one expert"],
)
def test_a_round_trip_is_exact_in_one_file_or_many(tmp_path, options, max_shard_bytes):
    model = make(**options)
    checkpoints.save(model, tmp_path / "model", max_shard_bytes=max_shard_bytes)
    files = list((tmp_path / "model").glob("*.safetensors"))
    assert (len(files) > 1) == (max_shard_bytes < 100_000)
    again = checkpoints.load(tmp_path / "model")
    assert not again.training
    found, expected = again.state_dict(), model.state_dict()
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name
    given = tokens()
    assert torch.equal(again(given), model(given))  # also the precision of the angles is the same
    half = checkpoints.load(tmp_path / "model", dtype=torch.bfloat16)
    assert {value.dtype for value in half.state_dict().values()} == {torch.bfloat16}


def test_transformers_reads_our_shards(tmp_path):
    model = make(qk_norm=True).float()
    checkpoints.save(model, tmp_path / "model", max_shard_bytes=9_000)
    read = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    given = tokens()
    torch.testing.assert_close(model(given), read(given).logits, atol=1e-5, rtol=0)


def test_experts_are_read_from_fused_and_from_separate_tensors(tmp_path):
    """A file has one tensor for each expert or one for all; transformers 5 fuses them in memory."""
    model = theirs("qwen3 moe")
    model.save_pretrained(tmp_path / "apart")
    (tmp_path / "fused").mkdir()
    (tmp_path / "fused" / "config.json").write_text(
        (tmp_path / "apart" / "config.json").read_text()
    )
    save_file(
        {k: v.contiguous() for k, v in model.state_dict().items()},
        tmp_path / "fused" / "model.safetensors",
        {"format": "pt"},
    )
    keys = [set(load_file(tmp_path / name / "model.safetensors")) for name in ("apart", "fused")]
    assert "model.layers.0.mlp.experts.3.up_proj.weight" in keys[0]
    assert "model.layers.0.mlp.experts.gate_up_proj" in keys[1]
    first, second = (checkpoints.load(tmp_path / name).state_dict() for name in ("apart", "fused"))
    assert all(torch.equal(first[name], second[name]) for name in first)


MINIMIND = {
    "model_type": "minimind",
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "vocab_size": 41,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 38,
    "rope_theta": 1e6,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "dropout": 0.1,
    "use_moe": False,
    "inference_rope_scaling": False,
    "rope_scaling": None,
}


@pytest.mark.parametrize("experts", [False, True])
def test_a_minimind_checkpoint_gives_the_logits_of_the_same_qwen3(tmp_path, experts):
    """The checkpoint has MiniMind's own config, rotary tables, and a copy of the tied head."""
    options = {
        "num_experts": 4,
        "num_experts_per_tok": 1,
        "moe_intermediate_size": 12,
        "norm_topk_prob": True,
    }
    sizes = SIZES | {"num_hidden_layers": 2, "head_dim": 4, "tie_word_embeddings": True}
    sizes |= {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
    family = "Qwen3Moe" if experts else "Qwen3"
    config = getattr(transformers, f"{family}Config")(**(sizes | (options if experts else {})))
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    model.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text(
        json.dumps(MINIMIND | ({**options, "use_moe": True} if experts else {}))
    )
    tables = {"model.freqs_cos": torch.zeros(64, 4), "model.freqs_sin": torch.zeros(64, 4)}
    rewrite(
        tmp_path / "model",
        lambda w: w.update(tables | {"lm_head.weight": w["model.embed_tokens.weight"].clone()}),
    )
    ours, given = checkpoints.load(tmp_path / "model"), tokens() % 41
    assert ours.config.dropout == 0.1
    torch.testing.assert_close(ours(given), model(given).logits, atol=1e-5, rtol=0)
    checkpoints.save(ours, tmp_path / "again")
    read = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "again").eval()
    torch.testing.assert_close(read(given).logits, model(given).logits, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "key",
    [
        "model.layers.0.self_attn.rotary_emb.inv_freq",
        "rotary_emb.inv_freq",
        "model.freqs_cos",
        "embed_positions.weight",
    ],
)
def test_rotary_tables_in_old_files_are_ignored(folder, key):
    expected = checkpoints.load(folder).state_dict()
    rewrite(folder, lambda weights: weights.update({key: torch.zeros(3)}))
    found = checkpoints.load(folder).state_dict()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


NORM = "model.layers.1.self_attn.q_norm.weight"
KEYS = "model.layers.0.self_attn.k_proj.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop(KEYS), f"missing: {KEYS}"),
        (lambda w: w.pop(NORM), f"missing: {NORM}"),
        (
            lambda w: w.update({"model.layers.0.self_attn.sink": torch.zeros(2)}),
            "unexpected: model.layers.0.self_attn.sink",
        ),
        (lambda w: w.update({NORM: torch.zeros(9)}), f"{NORM}: must have the shape \\[10\\]"),
        (
            lambda w: w.update({KEYS: torch.zeros(19, 20)}),
            f"{KEYS}: must have the shape \\[20, 20\\].* got \\[19, 20\\]",
        ),
        (
            lambda w: w.update({NORM: torch.zeros(10, dtype=torch.int64)}),
            f"{NORM}: must be float32",
        ),
        (lambda w: w.update({NORM: torch.zeros(10, dtype=torch.float16)}), "dtype: must be given"),
        (lambda w: w.update({NORM.removeprefix("model."): torch.zeros(10)}), "the same weight"),
    ],
)
def test_a_weight_that_does_not_fit_is_named(folder, change, message):
    rewrite(folder, change)
    with pytest.raises(RopeError, match=message):
        checkpoints.load(folder)


def test_weights_of_layers_that_only_the_config_has_are_named_as_missing(folder):
    reconfigure(folder, num_hidden_layers=3, layer_types=["full_attention"] * 3)
    with pytest.raises(RopeError, match=r"missing: model\.layers\.2\."):
        checkpoints.load(folder)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model_type": "gpt2"}, "model_type"),
        ({"model_type": None}, "model_type"),
        ({"hidden_size": "24"}, "hidden_size"),
        ({"num_hidden_layers": 1 << 40}, "num_hidden_layers"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_hidden_layers": 4000, "layer_types": None}, "num_hidden_layers"),
        ({"hidden_act": "os.system"}, "hidden_act"),
        ({"attention_bias": "yes"}, "attention_bias"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"layer_types": ["chunked_attention"] * 2}, "layer_types"),
        ({"vocab_size": None}, "vocab_size"),
        ({"ropewalk": {"code": "x"}}, "ropewalk"),
        ({"ropewalk": {"precision": "x"}}, "precision"),
    ],
)
def test_a_bad_config_is_refused_by_the_name_of_its_field(folder, changes, field):
    reconfigure(folder, **changes)
    assert_refused(field, lambda: checkpoints.load(folder))


def test_the_errors_of_load_list_what_it_supports(folder):
    reconfigure(folder, model_type="gpt2")
    with pytest.raises(
        RopeError,
        match=r"must be one of llama, .*bert; load other models with transformers and call rw\.patch",
    ):
        rw.load(folder)
    with pytest.raises(
        RopeError, match=r"must be a local folder with config\.json and safetensors files; download"
    ):
        rw.load("meta-llama/Llama-3.2-1B")


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"encoding": "alibi"}, "encoding"),
        ({"encoding": {"full": rw.RopeSpec(head_dim=10), "sliding": None}}, "encoding"),
        ({"attention": "linear"}, "attention"),
        ({"encoding": rw.RopeSpec(head_dim=10, layout="interleaved")}, "layout"),
        ({"encoding": rw.RopeSpec(head_dim=10, scaling=frequencies.XPos())}, "scaling"),
        ({"o_bias": True}, "o_bias"),
        ({"o_bias": True, "qkv_bias": True}, "hidden_size"),
        ({"qk_norm": True, "mlp_bias": True}, "mlp_bias"),
        ({"num_experts": 2}, "qk_norm"),
        ({"layer_types": ("full", "sliding"), "window": 3}, "layer_types"),
    ],
)
def test_a_model_that_transformers_cannot_build_is_not_saved(tmp_path, options, field):
    error = assert_refused(field, lambda: checkpoints.save(make(**options), tmp_path / "model"))
    assert not (tmp_path / "model").exists(), error


def test_save_refuses_other_models_and_extra_keys_that_the_model_sets(tmp_path):
    with pytest.raises(RopeError, match="must be a Decoder or a RoFormer; got 'Linear'"):
        checkpoints.save(torch.nn.Linear(2, 2), tmp_path / "model")
    with pytest.raises(RopeError, match="must not contain keys that the model itself sets"):
        checkpoints.save(make(), tmp_path / "model", extra_config={"vocab_size": 3})


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_scaling_is_saved_loaded_and_read_by_transformers(tmp_path, dynamic):
    scaling = (
        frequencies.Dynamic(factor=2.0, original_length=24)
        if dynamic
        else frequencies.Yarn(factor=4.0, original_length=16)
    )
    model = make(encoding=rw.RopeSpec(head_dim=10, theta=500.0, scaling=scaling)).float()
    checkpoints.save(model, tmp_path / "model")
    given = tokens(seq=30)
    read = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    torch.testing.assert_close(model(given), read(given).logits, atol=3e-5, rtol=0)
    again = checkpoints.load(tmp_path / "model")
    torch.testing.assert_close(again(given), model(given), atol=3e-5, rtol=0)


ROFORMER = {
    "vocab_size": 41,
    "hidden_size": 24,
    "num_layers": 2,
    "num_heads": 3,
    "intermediate_size": 30,
    "length": 40,
    "head": "masked_lm",
    "embedding_size": 10,
}


def test_a_roformer_is_saved_loaded_and_read_by_transformers(tmp_path):
    model = RoFormer(RoFormerConfig(**ROFORMER)).eval()
    checkpoints.save(model, tmp_path / "model")
    again = checkpoints.load(tmp_path / "model")
    assert again.config == model.config
    read = transformers.RoFormerForMaskedLM.from_pretrained(tmp_path / "model").eval()
    given = tokens() % 41
    expected = read(given).logits
    for each in (model, again):
        found = each(given)
        torch.testing.assert_close(getattr(found, "logits", found), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_builds_a_model_of_the_size_it_is_known_for(name):
    with torch.device("meta"):
        model = build(name)
    assert model.config == PRESETS[name]
    millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    about = {
        "tiny": 0.11,
        "tiny-moe": 0.19,
        "llama-100m": 100,
        "minimind-3": 64,
        "minimind-3-moe": 198,
        "roformer-small": 30,
        "roformer-base": 124,
    }
    assert millions == pytest.approx(about[name], rel=0.05)


def test_the_error_for_an_unknown_preset_lists_the_known_ones():
    with pytest.raises(RopeError, match="tiny"):
        build("huge")
    assert isinstance(build("tiny"), Decoder)


def test_a_saved_config_has_no_default_token_ids_of_transformers(tmp_path):
    """By default a Llama of transformers begins with token 1 and ends with token 2, whatever its
    vocabulary.
    """
    assert transformers.LlamaConfig().eos_token_id == 2
    checkpoints.save(make().float(), tmp_path / "model", extra_config={"eos_token_id": 7})
    read = transformers.AutoConfig.from_pretrained(tmp_path / "model")
    assert (read.bos_token_id, read.eos_token_id, read.pad_token_id) == (None, 7, None)


@pytest.mark.parametrize(
    "used", [{}, {"use_sliding_window": False}, {"use_sliding_window": True}], ids=str
)
def test_the_window_of_a_qwen_is_that_of_transformers(used):
    """Published configs have a `sliding_window` that the model uses only with use_sliding_window."""
    raw = SIZES | {"sliding_window": 3, "max_window_layers": 1} | used
    config = checkpoints.FORMATS["qwen2"].config_from_hf(
        {"model_type": "qwen2", "rope_theta": 1e6, **raw}
    )
    assert config.window == transformers.Qwen2Config(**raw).sliding_window


@pytest.mark.parametrize(("layers", "interval"), [(9, None), (7, 3), (4, 1), (5, 2)])
def test_the_layers_that_smollm3_leaves_unrotated_are_those_of_transformers(layers, interval):
    """Old configs give the interval alone."""
    given = {} if interval is None else {"no_rope_layer_interval": interval}
    peer = transformers.SmolLM3Config(num_hidden_layers=layers, **given)
    sizes = {
        "vocab_size": 30,
        "hidden_size": 24,
        "intermediate_size": 20,
        "num_attention_heads": 4,
        "num_hidden_layers": layers,
    }
    config = checkpoints.FORMATS["smollm3"].config_from_hf(
        {"model_type": "smollm3", "rope_theta": 5e6, **sizes, **given}
    )
    assert [int(kind != "nope") for kind in config.layer_types] == peer.no_rope_layers


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("Llama", {}),
        ("Llama", {"num_key_value_heads": None}),
        ("Mistral", {}),
        ("Mistral", {"sliding_window": None}),
        (
            "Ministral3",
            {"head_dim": 4, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
        ),
        ("SmolLM3", {}),
        ("SmolLM3", {"num_key_value_heads": None}),
        ("Qwen2", {}),
        ("Qwen2", {"use_sliding_window": True, "max_window_layers": 1}),
        ("Qwen2", {"use_sliding_window": True, "max_window_layers": 1, "sliding_window": None}),
        ("Qwen3", {"head_dim": 4, "use_sliding_window": True, "max_window_layers": 0}),
        ("Qwen3Moe", {"num_experts": 16}),
        ("Qwen3Moe", {"num_experts": 16, "use_sliding_window": True}),
    ],
    ids=str,
)
def test_absent_config_keys_have_the_defaults_of_transformers(family, options):
    heads = {"num_attention_heads": 32, "hidden_size": 128}
    raw = {"vocab_size": 11, "intermediate_size": 24, "num_hidden_layers": 2, **heads, **options}
    reference = getattr(transformers, f"{family}Config")(**raw)
    config = config_from_hf({"model_type": reference.model_type, **raw})
    assert (config.num_kv_heads, config.norm_eps) == (
        reference.num_key_value_heads,
        reference.rms_norm_eps,
    )
    windows = [config.window if each in WINDOWED else None for each in config.layer_types]
    window = getattr(reference, "sliding_window", None)
    types = getattr(reference, "layer_types", None) or ["sliding_attention"] * 2
    assert windows == [window if each == "sliding_attention" else None for each in types]
    if family == "Qwen3Moe":
        found = (
            config.experts_per_token,
            config.moe_intermediate_size,
            config.norm_topk,
            config.router_aux_coef,
        )
        names = (
            "num_experts_per_tok",
            "moe_intermediate_size",
            "norm_topk_prob",
            "router_aux_loss_coef",
        )
        assert found == tuple(getattr(reference, name) for name in names)


def with_tokenizer(folder):
    """Add a tokenizer of words, as transformers writes it, and end tokens to a folder."""
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    words = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"a": 0, "b": 1, "<end>": 2}, unk_token="a")
    )
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>")
    fast.chat_template = "{{ messages }}"
    fast.save_pretrained(folder)
    reconfigure(folder, eos_token_id=[2, 1], bos_token_id=0)
    generation = {"eos_token_id": [2, 1], "temperature": 0.5}
    (folder / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    return transformers


def test_the_tokenizer_of_a_folder_is_saved_with_the_model(folder, tmp_path):
    transformers = with_tokenizer(folder)
    other = tmp_path / "other"
    rw.save(rw.load(folder), other)
    read = transformers.AutoTokenizer.from_pretrained(other)
    assert read("b a <end>").input_ids == [1, 0, 2]
    assert (read.eos_token, read.chat_template) == ("<end>", "{{ messages }}")
    names = {path.name for path in folder.iterdir()}
    assert {path.name for path in other.iterdir()} == names
    for name in names - {"config.json", "model.safetensors"}:
        assert (other / name).read_bytes() == (folder / name).read_bytes()
    config = json.loads((other / "config.json").read_text(encoding="utf-8"))
    assert (config["eos_token_id"], config["bos_token_id"]) == ([2, 1], 0)
    # a model loaded from the saved folder is saved with its tokenizer too
    rw.save(rw.load(other), tmp_path / "third")
    assert (tmp_path / "third" / "tokenizer.json").is_file()


def test_token_ids_that_are_given_replace_those_of_the_folder(folder, tmp_path):
    with_tokenizer(folder)
    rw.save(rw.load(folder), tmp_path / "other", extra_config={"eos_token_id": 1})
    config, generation = (
        json.loads((tmp_path / "other" / name).read_text(encoding="utf-8"))
        for name in ("config.json", "generation_config.json")
    )
    assert config["eos_token_id"] == generation["eos_token_id"] == 1
    assert generation["temperature"] == 0.5  # the other keys of the folder stay


def test_a_tokenizer_that_is_gone_is_left_out_with_a_warning(folder, tmp_path):
    with_tokenizer(folder)
    model = rw.load(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.warns(UserWarning, match=r"tokenizer\.json: is not saved") as seen:
        rw.save(model, tmp_path / "other")
    assert seen[0].filename.endswith("test_checkpoints.py")
    assert (tmp_path / "other" / "tokenizer_config.json").is_file()
