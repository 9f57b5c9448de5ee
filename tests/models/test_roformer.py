"""RoFormer against transformers: the same logits, gradients and generated tokens from the same
weights, and lengths beyond transformers' table of positions.
"""

from pathlib import Path

import pytest
import torch
import transformers
from roformer_cases import BERTS, LONGEST, ROFORMERS, SMALL, answer, theirs, words

from door import assert_refused
from ropewalk import RopeSpec
from ropewalk.encodings import ENCODINGS, Sizes
from ropewalk.frequencies import Dynamic
from ropewalk.models import RoFormer, RoFormerConfig
from ropewalk.models.checkpoints import load, save
from ropewalk.models.roformer_checkpoint import (
    from_transformers,
    load_weights,
    name_from_hf,
    name_to_hf,
)

FAMILIES = [("RoFormer", name) for name in ROFORMERS] + [("Bert", name) for name in BERTS]
every_model = pytest.mark.parametrize(("family", "name"), FAMILIES, ids=lambda value: value)
every_roformer = pytest.mark.parametrize("name", ROFORMERS)
decoders = pytest.mark.parametrize(
    "name", [name for name in ROFORMERS if name.startswith("decoder")]
)


def assert_equal_logits(ours, expected):
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)


@every_model
def test_logits_and_gradients_equal_transformers(family, name):
    peer = theirs(family, name)
    model = from_transformers(peer)
    tokens, types = words((2, 7), name)
    # a padding token that is not masked; its row of the embedding has no gradient in transformers
    tokens[..., 2] = 0
    expected, got = answer(peer, tokens, types), model(tokens, types=types)
    assert_equal_logits(got, expected)
    weights = torch.randn_like(expected)
    (expected * weights).sum().backward()
    (got * weights).sum().backward()
    wanted = {
        name_from_hf(key, model.config, family.lower()): p.grad
        for key, p in peer.named_parameters()
        if p.grad is not None
    }
    for key, parameter in model.named_parameters():
        torch.testing.assert_close(
            parameter.grad,
            wanted[key],
            atol=2e-5,
            rtol=1e-4,
            msg=lambda text, key=key: f"{key}: {text}",
        )


# by default transformers summarises a choice by its last token, even if that is padding
@pytest.mark.parametrize(
    ("family", "name"),
    [case for case in FAMILIES if "choice" not in case[1]],
    ids=lambda value: value,
)
def test_real_tokens_of_rows_padded_on_the_right_equal_transformers(family, name):
    peer = theirs(family, name)
    tokens, types = words((2, 7), name)
    padding = torch.tensor([[True] * 7, [True] * 4 + [False] * 3])
    with torch.no_grad():
        expected, got = (
            answer(peer, tokens, types, padding),
            from_transformers(peer)(tokens, types=types, padding=padding),
        )
    rows = expected.ndim == 2
    assert_equal_logits(got if rows else got[padding], expected if rows else expected[padding])


@decoders
def test_greedy_tokens_from_a_cache_equal_transformers(name):
    peer = theirs("RoFormer", name, spread=0.5)
    model, (tokens, _) = from_transformers(peer), words((3, 5))
    options = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    expected = peer.generate(
        tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=9, **options
    )
    assert model.generate(tokens, 9).tolist() == expected.tolist()
    assert model.generate(tokens, 9, cache="none").tolist() == expected.tolist()


@every_roformer
def test_texts_longer_than_the_table_of_transformers_give_the_logits_of_a_longer_table(name):
    long = theirs("RoFormer", name, max_position_embeddings=5 * LONGEST)
    short = theirs("RoFormer", name)
    short.load_state_dict(
        {key: value for key, value in long.state_dict().items() if "embed_positions" not in key},
        strict=False,
    )
    tokens, types = words((1, 4 * LONGEST + 1), name)
    with pytest.raises((IndexError, RuntimeError)):
        answer(short, tokens, types)
    with torch.no_grad():
        assert_equal_logits(
            from_transformers(short)(tokens, types=types), answer(long, tokens, types)
        )


@every_roformer
def test_rows_padded_on_either_side_equal_the_row_alone(name):
    model = from_transformers(theirs("RoFormer", name))
    tokens, types = words((1, 5), name)
    alone = model(tokens, types=types)
    for left in (0, 1, 3):
        pad = lambda x, value, left=left: torch.nn.functional.pad(x, (left, 3 - left), value=value)
        real = pad(torch.ones_like(tokens), 0).bool()
        got = model(pad(tokens, 11), types=pad(types, 1), padding=real)
        got = got if alone.ndim == 2 else got[:, left : left + 5]
        torch.testing.assert_close(got, alone, atol=2e-6, rtol=1e-5)


@decoders
def test_tokens_after_a_prompt_padded_on_the_left_equal_those_after_the_prompt_alone(name):
    model = from_transformers(theirs("RoFormer", name, spread=0.5))
    short, long = words((1, 3))[0], words((1, 6))[0]
    both = torch.cat((torch.nn.functional.pad(short, (3, 0), value=9), long))
    padding = torch.tensor([[False] * 3 + [True] * 3, [True] * 6])
    got = model.generate(both, 7, padding=padding)
    assert got[:1, 3:].tolist() == model.generate(short, 7).tolist()
    assert got[1:].tolist() == model.generate(long, 7).tolist()


@pytest.mark.parametrize(
    ("labels", "count"),
    [({"0": "a", "1": "b", "2": "c"}, 3), ({}, 2), (None, 2), (["a"], 2)],
    ids=str,
)
def test_labels_are_counted_where_a_config_names_them(labels, count):
    assert RoFormerConfig.from_hf(SMALL | {"id2label": labels}).num_labels == count


@every_roformer
def test_transformers_reads_what_we_save(name, tmp_path):
    ending, extra = ROFORMERS[name]
    config = RoFormerConfig.from_hf(
        SMALL | extra | {"architectures": ["RoFormer" + ending], "id2label": {"0": "a", "1": "b"}}
    )
    model = RoFormer(config).eval()
    save(model, tmp_path / "saved")
    peer = getattr(transformers, "RoFormer" + ending).from_pretrained(tmp_path / "saved").eval()
    tokens, types = words((2, 7), name)
    with torch.no_grad():
        assert_equal_logits(model(tokens, types=types), answer(peer, tokens, types))


@every_model
def test_we_read_what_transformers_saves(family, name, tmp_path):
    peer = theirs(family, name)
    peer.save_pretrained(tmp_path)
    tokens, types = words((2, 7), name)
    with torch.no_grad():
        assert_equal_logits(load(tmp_path)(tokens, types=types), answer(peer, tokens, types))


@every_model
def test_names_of_weights_are_mapped_to_transformers_and_back(family, name):
    model = from_transformers(theirs(family, name))
    for key in model.state_dict():
        there = name_to_hf(key, model.config, family.lower())
        assert name_from_hf(there, model.config, family.lower()) == key
        # a bare model's checkpoint has no prefix
        assert (
            name_from_hf(there.removeprefix(family.lower() + "."), model.config, family.lower())
            == key
        )


def test_weights_that_transformers_does_not_have_keep_their_names():
    config = RoFormerConfig.from_hf(SMALL).with_(encoding="kerple_log", causal=True)
    own = [key for key in RoFormer(config).state_dict() if "encoding" in key]
    assert own
    assert [name_to_hf(key, config) for key in own] == own


def test_old_names_are_read_and_old_tables_ignored():
    peer = theirs("RoFormer", "masked_lm")
    model = RoFormer(
        RoFormerConfig.from_hf(SMALL | {"architectures": ["RoFormerForMaskedLM"]})
    ).eval()
    old = {
        key.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): value
        for key, value in peer.state_dict().items()
    }
    assert "roformer.encoder.embed_positions.weight" in old
    load_weights(
        model,
        old
        | {
            "roformer.embeddings.position_ids": torch.arange(4),
            "roformer.pooler.dense.bias": torch.ones(30),
        },
    )
    tokens, types = words((1, 7))
    assert_equal_logits(model(tokens, types=types), answer(peer, tokens, types))


def test_an_encoder_may_rotate_values_by_angles_that_depend_on_the_length():
    spec = RopeSpec(10, scaling=Dynamic(factor=2.0, original_length=4), layout="interleaved")
    config = RoFormerConfig.from_hf(SMALL | {"rotary_value": True})
    got, plain = RoFormer(config.with_(encoding=spec)).eval(), RoFormer(config).eval()
    got.load_state_dict(plain.state_dict())
    tokens = words((1, 4))[0]
    assert_equal_logits(got(tokens), plain(tokens))  # up to the original length nothing is scaled


@pytest.mark.parametrize("config", [None, {"model_type": "roformer"}])
def test_a_model_without_a_config_of_transformers_is_refused(config):
    model = torch.nn.Linear(2, 2)
    model.config = config
    assert_refused("model", lambda: from_transformers(model))


def test_the_defaults_are_those_of_transformers():
    assert (
        RoFormerConfig.from_hf({})
        == RoFormerConfig.from_hf(transformers.RoFormerConfig().to_dict())
        == RoFormerConfig()
    )
    bert = RoFormerConfig.from_hf({"model_type": "bert"})
    assert bert == RoFormerConfig.from_hf(transformers.BertConfig().to_dict())
    assert (bert.vocab_size, bert.length, bert.encoding) == (30522, 512, "learned")


#: BERT, WoBERT, NEZHA and RoFormer: tokens and encoding, as the papers and the checkpoints have them
STRUCTURE = {
    "BERT": ("characters", "learned"),
    "WoBERT": ("words", "learned"),
    "NEZHA": ("characters", "nezha"),
    "RoFormer": ("words", "rope"),
}
#: entry point of an encoding -> the words of the page
ENTRIES = {"input": "embeddings", "scores": "scores", "qk": "q and k"}


def test_the_table_of_models_on_the_page_says_what_their_encodings_are():
    """Which positions a model has, where they act and how far they reach, read from the classes."""
    page = (Path(__file__).parents[2] / "docs" / "roformer.md").read_text(encoding="utf-8")
    lines = page.partition("| model | tokens |")[2].partition("\n\n")[0].splitlines()[2:]
    rows = {
        cells[0]: cells[1:]
        for cells in ([c.strip() for c in line[1:-1].split("|")] for line in lines)
    }
    assert list(rows) == list(STRUCTURE)
    for model, (tokens, positions, where, here) in rows.items():
        words_or_characters, name = STRUCTURE[model]
        encoding = ENCODINGS[name]
        assert tokens == words_or_characters
        assert f'`encoding="{name}"`' in here
        assert positions.endswith("relative" if encoding.relative else "absolute")
        assert where == "as BERT" or ENTRIES[encoding.entry] in where
    sizes = Sizes(num_heads=1, head_dim=64, model_dim=64, length=512)
    assert f"clipped at {ENCODINGS['nezha'](sizes).farthest}" in rows["NEZHA"][2]
    bert = RoFormerConfig.from_hf(transformers.BertConfig().to_dict())
    assert f"{bert.length} at most" in rows["BERT"][2]
