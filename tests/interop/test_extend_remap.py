"""Remappings on loaded transformers models, against the definition computed from the model's own q,
k and v.
"""

import copy
import warnings

import numpy as np
import pytest
import torch
from extend_tiny import tiny
from transformers import (
    AttentionInterface,
    AutoConfig,
    AutoModel,
    AutoModelForImageTextToText,
    DynamicCache,
    StaticCache,
)
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

import ropewalk as rw
from ropewalk.attention.remap import REMAPPINGS
from ropewalk.errors import RopeError
from tensor_forms import tensors

OPTIONS = {
    "rerope": {"window": 5, "log_n_length": None},
    "leaky_rerope": {"window": 5, "slowdown": 3},
    "self_extend": {"group": 2, "window": 5},
    "dca": {"chunk": 6, "local": 2},
}
kinds = pytest.mark.parametrize("kind", OPTIONS)
TOKENS = torch.arange(3, 22)[None] * 5 % 60


def extend(model, kind, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return rw.extend(model, kind, **(options or OPTIONS[kind]))


@pytest.fixture
def dense(monkeypatch):
    """An attention function that unrotates q and k, and scores every pair by `dense.distance`, in
    float64.
    """

    def attention(module, q, k, v, mask, scaling=None, dropout=0.0, position_ids=None, **kwargs):
        rope, seq = rw.Rope(rw.from_hf(module.config)), q.shape[-2]
        positions = position_ids.expand(len(q), -1)
        q, k = (rope.unrotate(x.double(), positions) for x in (q, k))
        half, groups = q.shape[-1] // 2, q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(groups, 1), v.double().repeat_interleave(groups, 1)
        rule = np.vectorize(attention.distance)
        distance = np.stack([rule(row[:, None].numpy(), row[None].numpy()) for row in positions])
        angles = torch.tensor(distance)[:, None, ..., None] * tensors(rope.spec).radians
        q, k = (torch.complex(x[..., :half], x[..., half:]) for x in (q, k))
        scores = torch.einsum(
            "bhic,bhijc,bhjc->bhij",
            q,
            torch.polar(torch.ones_like(angles), angles).expand(-1, 4, -1, -1, -1),
            k.conj(),
        )
        mask = torch.ones(seq, seq).tril().bool() if mask is None else mask
        weights = (scores.real * scaling).masked_fill(~mask, -1e30).softmax(-1)
        return (weights @ v).to(torch.float32).transpose(1, 2), None

    AttentionInterface.register("dense_test", attention)
    AttentionMaskInterface.register("dense_test", sdpa_mask)
    return attention


def rule_of(kind):
    """The distance rule of a kind, written out."""
    options = {name: value for name, value in OPTIONS[kind].items() if name != "log_n_length"}
    rules = {
        "rerope": lambda i, j, window: float(min(i - j, window)),
        "leaky_rerope": lambda i, j, window, slowdown: float(
            i - j if i - j < window else window + (i - j - window) / slowdown
        ),
        "self_extend": lambda i, j, group, window: float(
            i - j if i - j < window else i // group + window - window // group - j // group
        ),
        "dca": lambda i, j, chunk, local: float(
            (i % 4, min(i % 4 + 4, 6), 6)[min(max(i // 4 - j // 4, 0), 2)]
            - j % 4  # chunk - local = 4; min(2 * 4 - 1, 6) = 6
        ),
    }
    return lambda i, j: rules[kind](i, j, **options)


def run(model, tokens=TOKENS, **inputs):
    with torch.no_grad():
        return model(tokens, **inputs).logits


@kinds
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_logits_of_a_remapped_model_equal_those_by_the_definition(family, kind, dense):
    model = tiny(family)
    plain, dense.distance = run(model), rule_of(kind)
    model.set_attn_implementation("dense_test")
    expected = run(model)
    model.set_attn_implementation("sdpa")
    report = extend(model, kind)
    assert not report.saved
    got = run(model)
    torch.testing.assert_close(got, expected, atol=2e-5, rtol=1e-4)
    assert (got - plain).abs().max() > 1e-4  # the remapping has an effect at this length
    report.undo()
    assert torch.equal(run(model), plain)


@pytest.mark.slow
def test_left_padding_packing_and_caches_give_the_logits_of_each_row_alone(full):
    for kind in OPTIONS if full else ("dca",):
        model = tiny("llama")
        extend(model, kind)
        check_rows_alone(model)


def check_rows_alone(model):
    alone, short = run(model), run(model, TOKENS[:, 4:])
    padded = torch.cat(
        (TOKENS, torch.cat((torch.zeros(1, 4, dtype=torch.long), TOKENS[:, 4:]), dim=1))
    )
    mask = torch.ones_like(padded)
    mask[1, :4] = 0
    positions = (mask.cumsum(-1) - 1).clamp(min=0)

    def close(got, *rows):
        for each, row in zip(got, rows, strict=True):
            torch.testing.assert_close(
                each[-row.shape[1] :], row[0, : len(each)], atol=2e-5, rtol=1e-4
            )

    close(run(model, padded, attention_mask=mask, position_ids=positions), alone, short)
    packed, places = (
        torch.cat((TOKENS, TOKENS[:, 4:]), dim=1),
        torch.cat((torch.arange(19), torch.arange(15)))[None],
    )
    close(
        run(model, packed, position_ids=places, use_cache=False), torch.cat((alone, short), dim=1)
    )
    for cache in (DynamicCache(config=model.config), StaticCache(model.config, max_cache_len=24)):
        parts = [
            run(
                model,
                padded[:, start:stop],
                past_key_values=cache,
                attention_mask=mask[:, :stop],
                position_ids=positions[:, start:stop],
            )
            for start, stop in ((0, 9), (9, 11), (11, 12), (12, 13))
        ]
        close(torch.cat(parts, dim=1), alone[:, :13], short[:, :9])
    cache = DynamicCache(config=model.config)
    steps = [
        run(model, TOKENS[:, a:b], past_key_values=cache) for a, b in ((0, 12), (12, 13), (13, 14))
    ]
    close(torch.cat(steps, dim=1), alone[:, :14])


@kinds
def test_right_padding_after_cached_tokens_gives_the_logits_of_the_row_alone(kind):
    model = tiny("llama")
    extend(model, kind)
    alone, rows = run(model), TOKENS.expand(2, -1)
    mask = torch.ones_like(rows)
    mask[1, 16:] = 0
    for cache in (DynamicCache(config=model.config), StaticCache(model.config, max_cache_len=24)):
        run(model, rows[:, :9], past_key_values=cache)
        found = run(model, rows[:, 9:], past_key_values=cache, attention_mask=mask)
        torch.testing.assert_close(
            found[:, :7], alone[:, 9:16].expand(2, -1, -1), atol=2e-5, rtol=1e-4
        )


@pytest.mark.parametrize("kind", ["rerope", "dca"])
def test_a_model_that_looks_ahead_is_refused(kind):
    sizes = {
        "vocab_size": 60,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    model = AutoModel.from_config(
        AutoConfig.for_model("eurobert", **sizes, num_key_value_heads=2, pad_token_id=0)
    ).eval()
    before = model(TOKENS).last_hidden_state
    with pytest.raises(RopeError, match="causal"):
        extend(model, kind)
    assert torch.equal(model(TOKENS).last_hidden_state, before)


def test_generate_continues_as_without_a_cache():
    model = tiny("llama")
    extend(model, "self_extend")
    options = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    with torch.no_grad():
        cached, plain = (model.generate(TOKENS, use_cache=use, **options) for use in (True, False))
    assert torch.equal(cached, plain)


def test_nothing_is_saved_and_a_message_says_so(tmp_path):
    model = tiny("llama")
    before, plain = model.config.to_dict(), run(model)
    with pytest.warns(UserWarning, match="not saved"):
        report = rw.extend(model, "self_extend", factor=4)
    assert "not saved with the model" in str(report)
    assert "SelfExtend" in str(report)
    assert model.config.to_dict() == before
    assert rw.extend(model, None) is None
    assert model.config.to_dict() == before
    assert model.config._attn_implementation == "sdpa"
    assert torch.equal(run(model), plain)
    extend(model, "self_extend")
    model.save_pretrained(tmp_path)
    assert torch.equal(run(type(model).from_pretrained(tmp_path).eval()), plain)


def test_a_second_call_replaces_the_first_and_an_error_keeps_it():
    model = tiny("llama")
    extend(model, "dca")
    first = run(model)
    with pytest.raises(RopeError, match="group"):
        extend(model, "self_extend", grup=2)
    assert torch.equal(run(model), first)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yarn = rw.extend(model, "yarn", factor=4)
    assert model.config._attn_implementation == "sdpa"
    yarn.undo()
    extend(model, "self_extend")
    assert (run(model) - first).abs().max() > 1e-4


def test_a_patched_or_copied_model_is_remapped_too():
    model = tiny("llama")
    extend(model, "leaky_rerope")
    expected = run(model)
    torch.testing.assert_close(run(rw.patch(model)), expected, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(run(copy.deepcopy(model)), expected, atol=2e-5, rtol=1e-4)


def test_only_rotated_layers_without_a_window_are_remapped():
    """Gemma 3's sliding layers and SmolLM3's layers without positions run as before."""
    model = tiny("gemma3_text")
    report = extend(model, "rerope")
    assert list(report.specs) == ["full_attention"]
    nope = tiny("smollm3", no_rope_layers=[0, 1], num_hidden_layers=2, layer_types=None)
    extend(nope, "rerope")
    assert set(vars(nope.model.layers[0].self_attn)["_ropewalk_remapped"].specs) == {1}


@pytest.mark.parametrize(
    ("family", "changed", "text"),
    [
        ("deepseek_v3", {}, "pair layout|whole heads"),
        ("gpt_oss", {}, "s_aux"),
        ("qwen2_vl_text", {}, "one axis"),
        (
            "qwen2_vl_text",
            {
                "rope_parameters": {
                    "rope_type": "default",
                    "rope_theta": 1e4,
                    "mrope_section": [4, 4],
                }
            },
            "one axis",
        ),
    ],
)
def test_models_that_cannot_be_remapped_are_refused_and_unchanged(family, changed, text):
    model = tiny(family, **changed)
    before = model.config._attn_implementation
    with pytest.raises(RopeError, match=text):
        extend(model, "rerope")
    assert model.config._attn_implementation == before
    assert not any("_ropewalk_remapped" in vars(module) for module in model.modules())


def test_a_config_alone_cannot_be_remapped():
    with pytest.raises(RopeError, match="extend writes no config key for it"):
        rw.extend(
            {
                "model_type": "llama",
                "head_dim": 8,
                "max_position_embeddings": 64,
                "rope_theta": 1e4,
            },
            "dca",
            factor=4,
        )
    with pytest.raises(RopeError, match="factor"):
        rw.extend(tiny("llama"), "rerope")


def test_dca_reads_the_sizes_of_a_qwen_config():
    model = tiny("qwen2", dual_chunk_attention_config={"chunk_size": 12, "local_size": 4})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert "DualChunk(chunk=12, local=4, length=None)" in str(rw.extend(model, "dca"))
        sizes = {"chunk_size": 12, "local_size": 4, "original_max_position_embeddings": 16}
        model = tiny("qwen2", dual_chunk_attention_config=sizes)
        assert "DualChunk(chunk=12, local=4, length=16)" in str(rw.extend(model, "dca"))
        model = tiny("qwen2", dual_chunk_attention_config=sizes)
        assert "DualChunk(chunk=12, local=4, length=16)" in str(
            rw.extend(model, "dca", backend="math")
        )


@pytest.mark.parametrize("kind", REMAPPINGS)
def test_a_decoder_is_extended_and_restored(kind):
    torch.manual_seed(0)
    config = rw.models.DecoderConfig(61, 24, 32, 2, 4, 2, length=8)
    model, tokens = rw.Decoder(config).eval(), TOKENS
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    plain = model(tokens)
    with pytest.raises(RopeError, match="nothing to undo"):
        rw.extend(model, None)
    report = rw.extend(model, kind, factor=4)
    assert (report.saved, list(report.specs)) == (False, ["full_attention"])
    extended = model(tokens)
    assert (extended - plain).abs().max() > 1e-4
    assert model.config.remapping is not None
    caches = model.caches()
    steps = [
        model(tokens[:, :9], caches=caches),
        *(model(tokens[:, i : i + 1], caches=caches) for i in range(9, 19)),
    ]
    torch.testing.assert_close(torch.cat(steps, dim=1), extended, atol=1e-4, rtol=1e-4)
    with pytest.raises(RopeError, match="remapping"):
        rw.save(model, "anywhere")
    same = rw.Decoder(model.config).eval()
    same.load_state_dict(model.state_dict())
    assert torch.equal(same(tokens), extended)
    report.undo()
    assert torch.equal(model(tokens), plain)
    assert model.config == config
    rw.extend(model, kind, factor=4)
    assert rw.extend(model, None) is None
    assert torch.equal(model(tokens), plain)


def test_each_part_of_a_model_has_its_own_attention_again():
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    vision = {
        "model_type": "clip_vision_model",
        **sizes,
        "image_size": 8,
        "patch_size": 4,
        "projection_dim": 16,
    }
    text = {
        "model_type": "llama",
        **sizes,
        "vocab_size": 61,
        "max_position_embeddings": 16,
        "head_dim": 8,
    }
    config = AutoConfig.for_model(
        "llava", vision_config=vision, text_config=text, image_token_index=60
    )
    chosen = {"": "sdpa", "vision_config": "eager", "text_config": "sdpa"}
    model = AutoModelForImageTextToText.from_config(config, attn_implementation=chosen).eval()
    now = lambda: [
        each._attn_implementation
        for each in (model.config, model.config.vision_config, model.config.text_config)
    ]
    assert now() == ["sdpa", "eager", "sdpa"]
    extend(model, "rerope").undo()
    assert now() == ["sdpa", "eager", "sdpa"]


def test_an_unknown_kind_names_all_kinds_and_leaves_the_model_as_it_was():
    model = tiny("llama")
    extend(model, "yarn", factor=2.0)
    with pytest.raises(RopeError, match=r"must be one of linear, .*clipped.*") as caught:
        rw.extend(model, "yarns")
    assert all(kind in caught.value.rule for kind in REMAPPINGS)
    assert rw.from_hf(model.config).scaling.name == "yarn"


def test_a_layer_with_a_backend_that_cannot_remap_is_refused_before_it_changes():
    layer = rw.Attention(48, 6, backend="sdpa")
    with pytest.raises(RopeError, match="backend: must be one of triton, flex, math; got 'sdpa'"):
        rw.extend(torch.nn.ModuleList([layer]), "rerope", window=4)
    assert layer.remapping is None
