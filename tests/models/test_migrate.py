"""Migration: weights that are not positional are copied bit by bit, the report lists the others,
and frozen weights stay.
"""

import pytest
import torch
from roformer_cases import BERTS, VOCABULARY, answer, theirs, words

import ropewalk as rw
from door import assert_refused
from ropewalk.encodings import ENCODINGS
from ropewalk.errors import RopeError
from ropewalk.models import Decoder, DecoderConfig, RoFormer, RoFormerConfig
from ropewalk.models.migrate import FREEZES, apply_freeze, migrate
from ropewalk.models.roformer_checkpoint import from_transformers, name_to_hf

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 30,
    "num_layers": 2,
    "num_heads": 3,
    "intermediate_size": 22,
    "length": 16,
}
SOURCES = {
    "roformer": lambda encoding: RoFormer(
        RoFormerConfig(**SIZES, encoding=encoding, head="masked_lm")
    ),
    "decoder": lambda encoding: Decoder(DecoderConfig(**SIZES, encoding=encoding)),
    "linear": lambda encoding: RoFormer(
        RoFormerConfig(**SIZES, encoding=encoding, attention="linear")
    ),
}
sources = pytest.mark.parametrize("kind", SOURCES)


@pytest.mark.parametrize("name", BERTS)
def test_all_weights_of_a_bert_but_its_positions_are_copied(name):
    peer = theirs("Bert", name)
    done = migrate(peer)
    weights = peer.state_dict()
    weights |= {"bert." + key: value for key, value in weights.items()} if name == "bare" else {}
    for key in done.copied:
        assert torch.equal(
            done.model.state_dict()[key], weights[name_to_hf(key, done.model.config, "bert")]
        )
    assert set(done.copied) == set(done.model.state_dict())
    assert done.initialised == done.frozen == ()
    poolers = [key for key in peer.state_dict() if "pooler" in key or "seq_relationship" in key]
    unused = poolers if name in ("bare", "pretraining") else []
    assert sorted(done.dropped) == sorted(["embeddings.encoding.table.weight", *unused])


@pytest.mark.parametrize("name", BERTS)
def test_with_all_angles_zero_the_new_model_is_the_bert_without_positions(name):
    peer = theirs("Bert", name)
    done = migrate(peer)
    torch.nn.init.zeros_(peer.base_model.embeddings.position_embeddings.weight)
    tokens, types = words((2, 7), name)
    with torch.no_grad():
        expected = answer(peer, tokens, types)
        all_at_zero = torch.zeros(7, dtype=torch.int64)
        torch.testing.assert_close(
            done.model(tokens, all_at_zero, types=types), expected, atol=1e-5, rtol=1e-5
        )
        assert (done.model(tokens, types=types) - expected).abs().max() > 1e-3


def test_the_new_model_rotates_as_roformer_does():
    done = migrate(theirs("Bert", "masked_lm"))
    config = done.model.config
    peer = theirs("RoFormer", "masked_lm")
    weights = {name_to_hf(key, config): value for key, value in done.model.state_dict().items()}
    missing, surplus = peer.load_state_dict(
        weights | {"cls.predictions.decoder.bias": weights["cls.predictions.bias"]}, strict=False
    )
    assert set(missing) == {
        "roformer.encoder.embed_positions.weight",
        "cls.predictions.decoder.weight",
    }
    assert surplus == []
    tokens, types = words((2, 7))
    with torch.no_grad():
        torch.testing.assert_close(
            done.model(tokens, types=types), answer(peer, tokens, types), atol=1e-5, rtol=1e-5
        )


@sources
@pytest.mark.parametrize("encoding", ["learned", "sinusoidal"])
def test_our_models_migrate_too_and_the_source_is_unchanged(kind, encoding):
    source = SOURCES[kind](encoding)
    before = {key: value.clone() for key, value in source.state_dict().items()}
    done = migrate(source, "rope")
    after = source.state_dict()
    assert all(torch.equal(after[key], value) for key, value in before.items())
    assert set(done.copied) | set(done.dropped) == set(before)
    assert len(done.dropped) == (1 if encoding == "learned" else 0)
    new = done.model.state_dict()
    assert set(new) == set(done.copied)
    assert all(torch.equal(new[key], before[key]) for key in done.copied)
    with torch.no_grad():
        done.model.get_parameter(done.copied[0]).add_(1)
    assert torch.equal(source.state_dict()[done.copied[0]], before[done.copied[0]])
    assert done.model(words((1, 40))[0]).shape[1] == 40  # longer than the table of the source


@pytest.mark.parametrize(
    "encoding", [name for name, kind in ENCODINGS.items() if not kind.causal_only]
)
def test_copied_initialised_and_dropped_list_every_weight_of_both_models(encoding):
    source = SOURCES["roformer"]("learned")
    done = migrate(source, encoding)
    assert sorted((*done.copied, *done.initialised)) == sorted(done.model.state_dict())
    assert sorted((*done.copied, *done.dropped)) == sorted(source.state_dict())
    # a learned table stays behind even where the new model has one: it is positional
    assert not [key for key in done.copied if "encoding" in key]


def test_a_folder_migrates_as_its_model_does(tmp_path):
    peer = theirs("Bert", "masked_lm")
    peer.save_pretrained(tmp_path)
    from_folder, from_model = migrate(tmp_path), migrate(peer)
    assert from_folder.copied == from_model.copied
    for key, value in from_model.model.state_dict().items():
        assert torch.equal(from_folder.model.state_dict()[key], value)


def test_a_new_head_is_initialised_and_the_old_one_dropped():
    source = SOURCES["roformer"]("learned")
    done = migrate(source, head="classification", num_labels=3, freeze="all_but_new")
    assert {key.split(".")[0] for key in done.initialised} == {"head"}
    assert {key for key in done.dropped if key.startswith("head.")} == {
        key for key in source.state_dict() if key.startswith("head.")
    }
    assert [name for name, p in done.model.named_parameters() if p.requires_grad] == list(
        done.initialised
    )
    for text in ("copied", "dropped", "head.out.weight", "frozen"):
        assert text in str(done)


def test_a_head_of_another_size_is_not_copied():
    source = from_transformers(theirs("Bert", "token_classification"))
    done = migrate(source, num_labels=9)
    assert done.initialised == ("head.out.weight", "head.out.bias")
    assert done.model(words((1, 7))[0]).shape == (1, 7, 9)


TRAINED = {
    "none": lambda name: True,
    "embeddings": lambda name: (
        not name.startswith(("embeddings.words", "embeddings.types", "embed_tokens"))
    ),
    "all_but_attention": lambda name: (
        ("_proj" in name and "mlp" not in name) or ".attention.norm" in name
    ),
    "all_but_query_key": lambda name: any(
        part in name for part in ("q_proj", "k_proj", "qkv_proj")
    ),
    "all_but_head": lambda name: name.startswith(("head.", "lm_head.")),
}


@sources
@pytest.mark.parametrize("policy", TRAINED)
def test_a_policy_freezes_what_it_says_and_training_moves_the_rest(kind, policy):
    source = SOURCES[kind]("learned")
    if policy == "all_but_head" and kind != "roformer":
        with pytest.raises(RopeError, match="must leave something to train"):
            migrate(source, freeze=policy)
        return
    done = migrate(source, freeze=policy)
    expected = [name for name, _ in done.model.named_parameters() if TRAINED[policy](name)]
    assert [name for name, p in done.model.named_parameters() if p.requires_grad] == expected
    assert set(done.frozen) == {name for name, _ in done.model.named_parameters()} - set(expected)
    before = {name: p.detach().clone() for name, p in done.model.named_parameters()}
    optimiser = torch.optim.SGD(done.trained, lr=1.0)
    (done.model(words((2, 7))[0]) ** 2).sum().backward()
    optimiser.step()
    moved = [name for name, p in done.model.named_parameters() if not torch.equal(p, before[name])]
    assert set(moved) <= set(expected)
    assert moved


def test_only_trained_frequencies_train_where_all_else_is_frozen():
    done = migrate(SOURCES["roformer"]("learned"), "rope_learnable", freeze="all_but_new")
    assert [
        name.split(".")[-1] for name, p in done.model.named_parameters() if p.requires_grad
    ] == ["log_scale"] * 2


@pytest.mark.parametrize("kind", ["roformer", "decoder"])
def test_the_fixed_matrices_of_an_encoding_stay_fixed(kind):
    done = migrate(SOURCES[kind]("rope"), "fope")
    fixed = [
        name for name, _ in done.model.named_parameters() if name.endswith(("cos_mix", "sin_mix"))
    ]
    assert len(fixed) == 4
    assert sorted(done.frozen) == sorted(fixed)
    new = SOURCES[kind]("fope")
    assert [p.requires_grad for p in done.model.parameters()] == [
        p.requires_grad for p in new.parameters()
    ]
    with pytest.raises(RopeError, match="must leave something to train"):
        apply_freeze(new, "all_but_new")


def test_a_policy_that_leaves_nothing_is_refused():
    with pytest.raises(RopeError, match="must leave something to train"):
        migrate(SOURCES["roformer"]("learned"), freeze="all_but_new")
    with pytest.raises(RopeError, match="must be one of none"):
        migrate(SOURCES["roformer"]("learned"), freeze="everything")
    assert list(FREEZES)[:1] == ["none"]


def test_the_policy_none_trains_all_parameters_again():
    model = SOURCES["roformer"]("rope")
    apply_freeze(model, "all_but_attention")
    assert apply_freeze(model, "none") == ()
    assert all(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize(
    ("source", "changes", "field"),
    [
        (SOURCES["roformer"]("learned"), {"wings": 2}, "changes"),
        (SOURCES["roformer"]("learned"), {"hidden_size": 60}, "changes"),
        (SOURCES["roformer"]("learned"), {"encoding": "rop"}, "encoding"),
        (torch.nn.Linear(3, 3), {}, "source"),
    ],
)
def test_what_cannot_migrate_is_refused_by_name(source, changes, field):
    assert_refused(field, lambda: migrate(source, **changes))


def test_a_migration_keeps_dtype_and_mode_and_has_the_given_spec():
    source = SOURCES["roformer"]("learned").double().eval()
    spec = rw.RopeSpec(head_dim=10, theta=500.0)
    done = migrate(source, spec)
    assert (next(done.model.parameters()).dtype, done.model.training) == (torch.float64, False)
    assert done.model.layers[0].attention.encoding.rope.spec == spec


def test_a_migration_keeps_float64_and_gradient_checkpointing():
    source = RoFormer(
        RoFormerConfig(vocab_size=11, hidden_size=8, num_layers=1, num_heads=2, intermediate_size=8)
    ).double()
    with torch.no_grad():
        source.layers[0].up.weight.fill_(1 / 3)  # float32 has another third
    source.gradient_checkpointing = True
    model = migrate(source, "alibi").model
    assert torch.equal(model.layers[0].up.weight, source.layers[0].up.weight)
    assert model.gradient_checkpointing
