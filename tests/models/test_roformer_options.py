"""What a RoFormer can be beyond transformers: v2, other encodings, linear attention, packing, heads
on one encoder.
"""

import json
import math

import pytest
import torch
from roformer_cases import VOCABULARY, theirs, words
from torch.nn import functional as F

import ropewalk as rw
from door import assert_refused
from ropewalk.encodings import ENCODINGS
from ropewalk.errors import RopeError
from ropewalk.models import HEADS, RoFormer, RoFormerConfig
from ropewalk.models.roformer_checkpoint import load_weights, name_to_hf

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 30,
    "num_layers": 2,
    "num_heads": 3,
    "intermediate_size": 22,
    "length": 16,
    "dropout": 0.0,
    "attention_dropout": 0.0,
}
LENGTHENED = rw.RopeSpec(10, scaling=rw.frequencies.Dynamic(factor=2.0, original_length=4))
LINEAR = [name for name, kind in ENCODINGS.items() if kind.linear]


def make(spread=0.4, **options):
    """A RoFormer in float64 with every weight drawn anew; causal where its encoding must be."""
    encoding = options.get("encoding", "rope")
    causal = isinstance(encoding, str) and ENCODINGS[encoding].causal_only
    model = RoFormer(RoFormerConfig(**(SIZES | {"causal": causal} | options))).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=spread)
    return model


def assert_same(got, expected):
    torch.testing.assert_close(got, expected, atol=1e-10, rtol=1e-8)


def rotated(x, head_dim):
    """Every neighbouring pair of x [S, heads * head_dim] times e^{i position /
    10000^(2j/head_dim)}.
    """
    pairs = torch.view_as_complex(x.reshape(len(x), -1, head_dim // 2, 2))
    angles = torch.arange(len(x)).double()[:, None] * 10_000.0 ** (
        -torch.arange(head_dim // 2).double() * 2 / head_dim
    )
    return torch.view_as_real(
        pairs * torch.polar(torch.ones_like(angles), angles)[:, None]
    ).reshape(x.shape)


def second_version_by_definition(weights, tokens, heads=3):
    """Return the logits of RoFormer v2 for one row of tokens: norms without weights, layers without
    biases, the word embeddings as output matrix.
    """
    norm = lambda x: x / (x.square().mean(-1, keepdim=True) + 1e-12).sqrt()
    words = weights["roformer.embeddings.word_embeddings.weight"]
    x = norm(words[tokens] + weights["roformer.embeddings.token_type_embeddings.weight"][0])
    size = x.shape[-1] // heads
    for n in range(2):
        layer = lambda name, x, n=n: x @ weights[f"roformer.encoder.layer.{n}.{name}.weight"].T
        q, k = (rotated(layer(f"attention.self.{name}", x), size) for name in ("query", "key"))
        q, k, v = (
            t.reshape(len(x), heads, size).transpose(0, 1)
            for t in (q, k, layer("attention.self.value", x))
        )
        mixed = (q @ k.transpose(1, 2) / math.sqrt(size)).softmax(-1) @ v
        x = norm(x + layer("attention.output.dense", mixed.transpose(0, 1).reshape(len(x), -1)))
        x = norm(x + layer("output.dense", F.gelu(layer("intermediate.dense", x))))
    return x @ words.T


def test_roformer_v2_equals_its_definition():
    model = make(head="masked_lm", norm="rms_norm", bias=False)
    assert not [key for key in model.state_dict() if "norm" in key or "bias" in key]
    tokens = words((1, 7))[0]
    weights = {name_to_hf(key, model.config): value for key, value in model.state_dict().items()}
    assert_same(model(tokens)[0], second_version_by_definition(weights, tokens[0]))
    published = model.config.with_(norm="layer_norm", bias=True).to_hf() | {
        "norm_type": "rms_norm",
        "use_bias": False,
    }
    read = RoFormerConfig.from_hf(published)
    assert (read.norm, read.bias) == ("rms_norm", False)


def test_initial_weights_of_roformer_v2_are_smaller_in_deeper_models():
    model = RoFormer(
        RoFormerConfig(
            vocab_size=400, hidden_size=96, num_layers=4, num_heads=2, norm="rms_norm", bias=False
        )
    )
    expected = 96**-0.5 * 4**-0.5
    assert abs(model.embeddings.words.weight[1:].std().item() / expected - 1) < 0.03
    assert model.embeddings.words.weight.abs().max() <= 2 * 1.13684723 * expected


@pytest.mark.parametrize(
    ("attention", "name"), [("softmax", n) for n in ENCODINGS] + [("linear", n) for n in LINEAR]
)
def test_swapped_tokens_change_the_output_with_every_encoding_but_none(attention, name):
    model, (tokens, types) = make(encoding=name, attention=attention), words((1, 7))
    order = torch.tensor([0, 5, 2, 3, 4, 1, 6])
    plain, swapped = model(tokens, types=types), model(tokens[:, order], types=types[:, order])
    # the last token stays and sees all others
    difference = (plain[:, -1] - swapped[:, -1]).abs().max().item()
    assert difference < 1e-10 if name == "none" else difference > 1e-6


@pytest.mark.parametrize(
    ("attention", "name"), [("softmax", n) for n in ENCODINGS] + [("linear", n) for n in LINEAR]
)
def test_padding_changes_no_real_token(attention, name):
    model, (tokens, types) = make(encoding=name, attention=attention), words((1, 5))
    alone = model(tokens, types=types)
    for left in (0, 2):
        pad = lambda x, left=left: F.pad(x, (left, 2 - left), value=1)
        real = F.pad(torch.ones_like(tokens), (left, 2 - left)).bool()
        assert_same(model(pad(tokens), types=pad(types), padding=real)[:, left : left + 5], alone)


@pytest.mark.parametrize(
    ("attention", "name"), [("softmax", n) for n in ENCODINGS] + [("linear", n) for n in LINEAR]
)
def test_packed_documents_equal_rows_of_their_own(attention, name):
    model, first, second = (
        make(encoding=name, attention=attention),
        words((1, 3))[0],
        words((1, 4))[0],
    )
    documents = torch.tensor([[0] * 3 + [1] * 4])
    packed = model(torch.cat((first, second), dim=1), documents=documents)
    assert_same(packed, torch.cat((model(first), model(second)), dim=1))


@pytest.mark.parametrize("attention", ["softmax", "linear"])
@pytest.mark.parametrize("name", [n for n in LINEAR if not n.endswith("d")] + ["learned"])
def test_tokens_one_by_one_with_caches_equal_one_pass_over_all(attention, name):
    model, tokens = (
        make(encoding=name, attention=attention, causal=True, head="causal_lm"),
        words((2, 7))[0],
    )
    caches = model.caches()
    pieces = [model(tokens[:, :3], caches=caches)] + [
        model(tokens[:, i : i + 1], caches=caches) for i in range(3, 7)
    ]
    assert_same(torch.cat(pieces, dim=1), model(tokens))


@pytest.mark.parametrize("attention", ["softmax", "linear"])
def test_packed_documents_with_caches_are_refused(attention):
    """Linear attention would continue the last document at the end of the row, not at its own end."""
    model, tokens = make(attention=attention, causal=True, head="causal_lm"), words((1, 7))[0]
    documents = torch.tensor([[0] * 3 + [1] * 4])
    assert_refused("documents", lambda: model(tokens, documents=documents, caches=model.caches()))


def test_linear_attention_generates_what_the_whole_pass_would():
    model, tokens = make(attention="linear", causal=True, head="causal_lm"), words((2, 4))[0]
    got = model.generate(tokens, 6)
    for i in range(4, 10):
        assert got[:, i].tolist() == model(got[:, :i])[:, -1].argmax(-1).tolist()


@pytest.mark.parametrize("attention", ["softmax", "linear"])
@pytest.mark.parametrize("packed", [False, True])
def test_gradients_with_checkpointing_equal_those_without(attention, packed):
    model, tokens = make(attention=attention, head="masked_lm").train(), words((2, 7))[0]
    rows = {"padding": torch.arange(7).expand(2, 7) < torch.tensor([[7], [5]])}
    if packed:
        rows = {"documents": torch.tensor([[0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 0, 1, 1]])}
    gradients = []
    for checkpointing in (False, True):
        model.gradient_checkpointing = checkpointing
        out = model(tokens, **rows)
        gradients.append(torch.autograd.grad(out.square().sum(), list(model.parameters())))
    for plain, recomputed in zip(*gradients, strict=True):
        torch.testing.assert_close(recomputed, plain, atol=1e-9, rtol=1e-9)


def test_checkpointing_saves_less_than_half_of_the_numbers_for_backward():
    model, tokens, kept = make(head="masked_lm").train(), words((2, 7))[0], {}
    for checkpointing in (False, True):
        model.gradient_checkpointing, sizes = checkpointing, []
        keep = lambda x, sizes=sizes: sizes.append(x.numel()) or x
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            model(tokens)
        kept[checkpointing] = sum(sizes)
    assert kept[True] < kept[False] / 2


def test_a_spec_may_be_given_in_place_of_the_name_of_an_encoding():
    spec = rw.RopeSpec(head_dim=10, theta=500.0, layout="interleaved")
    tokens = words((1, 7))[0]
    named, given = make(), make(encoding=spec.with_(theta=10_000.0))
    given.load_state_dict(named.state_dict())
    assert_same(given(tokens), named(tokens))
    assert (make(encoding=spec)(tokens) - named(tokens)).abs().max() > 1e-3


@pytest.mark.parametrize("name", HEADS)
def test_a_model_with_another_head_shares_the_layers(name):
    model = make(head="masked_lm")
    other = model.with_head(name, num_labels=4)
    tokens = words((2, 7), name)[0]
    assert (
        other(tokens).shape
        == {
            "none": (2, 7, 30),
            "masked_lm": (2, 7, VOCABULARY),
            "causal_lm": (2, 7, VOCABULARY),
            "classification": (2, 4),
            "token_classification": (2, 7, 4),
            "multiple_choice": (2, 3),
            "question_answering": (2, 7, 2),
            "similarity": (2, 30),
        }[name]
    )
    assert all(
        a is b for a, b in zip(other.layers.parameters(), model.layers.parameters(), strict=True)
    )
    assert other.head is not model.head


def test_similarity_is_the_direction_of_the_pooled_first_token():
    peer = theirs("Bert", "bare")
    config = RoFormerConfig.from_hf(peer.config.to_dict()).with_(head="similarity")
    model = RoFormer(config).eval()
    load_weights(model, peer.state_dict(), "bert")
    tokens, types = words((4, 7))
    with torch.no_grad():
        pooled = peer(tokens, token_type_ids=types).pooler_output
        vectors = model(tokens, types=types)
    torch.testing.assert_close(
        vectors @ vectors.T,
        F.cosine_similarity(pooled[:, None], pooled[None], dim=-1),
        atol=1e-5,
        rtol=0,
    )


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"encoding": "learned", "head": "masked_lm"},
        {"head": "similarity", "pooler_activation": "relu"},
        {"head": "similarity", "encoding": "learned"},
        {"head": "classification", "num_labels": 7, "activation": "relu"},
        {"head": "multiple_choice", "summary": "mean", "pad_token": None},
        {"causal": True, "head": "causal_lm"},
        {"encoding": "learned", "causal": True, "head": "causal_lm"},
        {"classifier_activation": "relu", "summary": "first"},
        {
            "encoding": "learned",
            "head": "classification",
            "classifier_activation": "tanh",
            "head_dropout": "bert",
        },
    ],
    ids=str,
)
def test_configs_are_read_back_from_what_is_written_for_transformers(changes):
    config = RoFormerConfig(**(SIZES | changes))
    assert RoFormerConfig.from_hf(json.loads(json.dumps(config.to_hf()))) == config


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"encoding": "alibi"}, "encoding"),
        ({"encoding": "none"}, "encoding"),
        ({"encoding": rw.RopeSpec(head_dim=10, theta=500.0, layout="interleaved")}, "encoding"),
        ({"encoding": rw.RopeSpec(head_dim=10)}, "encoding"),
        ({"attention": "linear"}, "attention"),
        ({"norm": "rms_norm"}, "norm"),
        ({"bias": False}, "bias"),
        ({"head": "classification", "classifier_activation": "tanh"}, "classifier_activation"),
        ({"encoding": "learned", "head": "classification"}, "classifier_activation"),
        (
            {"encoding": "learned", "head": "classification", "classifier_activation": "tanh"},
            "head_dropout",
        ),
        ({"head": "multiple_choice", "head_dropout": "bert"}, "head_dropout"),
        ({"encoding": "learned", "embedding_size": 14}, "embedding_size"),
        (
            {"encoding": "learned", "head": "similarity", "pooler_activation": "relu"},
            "pooler_activation",
        ),
    ],
)
def test_a_config_that_transformers_has_no_model_for_is_not_written(changes, field):
    assert_refused(field, RoFormerConfig(**(SIZES | changes)).to_hf)


@pytest.mark.parametrize(
    ("scaling", "size"),
    [
        (rw.frequencies.Default(), lambda zeta: torch.ones_like(zeta)),
        # keys grow where queries shrink
        (rw.frequencies.XPos(), lambda zeta: zeta ** (-40 / 512)),
    ],
    ids=["default", "xpos"],
)
def test_a_value_is_rotated_like_a_key(scaling, size):
    """A token that sees itself alone has its own value as its output."""
    spec = rw.RopeSpec(10, layout="interleaved", scaling=scaling)
    attention = make(encoding=spec, rotary_value=True, causal=True).layers[0].attention
    x, where = torch.randn(1, 1, 30).double(), torch.tensor([40])
    got = attention(x, where).out
    value = torch.view_as_complex(attention.v_proj(x).reshape(3, 5, 2))
    channel = torch.arange(5).double()
    zeta = (2 * channel + 0.4 * 10) / (1.4 * 10)
    turned = value * torch.polar(size(zeta), 40 * 10_000.0 ** (-channel / 5))
    assert_same(got, attention.o_proj(torch.view_as_real(turned).reshape(1, 1, 30)))


@pytest.mark.parametrize("scaling", [rw.frequencies.Default(), rw.frequencies.XPos()], ids=str)
def test_rotated_values_in_a_cache_move_with_their_tokens(scaling):
    """Tested in a model of one layer: with rotated values its output depends on absolute positions,
    so in a deeper model the keys and values of later layers would change as well.
    """
    spec = rw.RopeSpec(10, layout="interleaved", scaling=scaling)
    model = make(encoding=spec, rotary_value=True, causal=True, head="causal_lm", num_layers=1)
    text, moved, at_once = words((2, 9))[0], model.caches(), model.caches()
    with torch.no_grad():
        model(text, caches=moved)
        for cache, layer in zip(moved, model.layers, strict=True):
            cache.shift(5, layer.attention.encoding)
        model(text, positions=torch.arange(9) + 5, caches=at_once)
        assert_same(model(text[:, :2], caches=moved), model(text[:, :2], caches=at_once))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"num_heads": 4}, "num_heads"),
        ({"encoding": "rop"}, "encoding"),
        ({"encoding": "fire"}, "encoding"),
        ({"encoding": "alibi", "attention": "linear"}, "encoding"),
        ({"encoding": "learned", "rotary_value": True}, "rotary_value"),
        ({"encoding": "pope", "rotary_value": True}, "rotary_value"),
        ({"encoding": LENGTHENED, "rotary_value": True, "causal": True}, "rotary_value"),
        ({"head": "masked"}, "head"),
        ({"dropout": 1.5}, "dropout"),
        ({"head_dropout": "none"}, "head_dropout"),
        ({"vocab_size": 2**40}, "vocab_size"),
        ({"hidden_size": 30.0}, "hidden_size"),
        ({"pad_token": 37}, "pad_token"),
        ({"activation": "gelo"}, "activation"),
        ({"norm": "rms_norm", "head": "masked_lm", "embedding_size": 14}, "embedding_size"),
    ],
)
def test_bad_configs_are_refused_by_name(changes, field):
    assert_refused(field, lambda: RoFormerConfig(**(SIZES | changes)))


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"model_type": "llama"}, "model_type"),
        ({"add_cross_attention": True}, "add_cross_attention"),
        (
            {"model_type": "bert", "position_embedding_type": "relative_key"},
            "position_embedding_type",
        ),
        ({"architectures": "RoFormerModel"}, "architectures"),
        ({"ropewalk": {"vocab_size": 3}}, "ropewalk"),
        ({"ropewalk": {"encoding": "alibi"}}, "ropewalk"),
        (
            {
                "architectures": ["RoFormerForSequenceClassification"],
                "ropewalk": {"classifier_activation": "tanh"},
            },
            "ropewalk",
        ),
        (
            {"architectures": ["RoFormerForMaskedLM"], "ropewalk": {"head": "similarity"}},
            "ropewalk",
        ),
        ({"rope_theta": 500.0}, "rope_theta"),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
            "rope_parameters",
        ),
        ({"hidden_size": "768"}, "hidden_size"),
        ({"is_decoder": 1}, "causal"),
    ],
)
def test_bad_hugging_face_configs_are_refused_by_name(config, field):
    assert_refused(field, lambda: RoFormerConfig.from_hf(config))


def test_bad_calls_are_refused_by_name():
    model, (tokens, types) = make(head="classification"), words((2, 7))
    bad = {
        "tokens": lambda: model(tokens.float()),
        "types": lambda: model(tokens, types=types[:, :3]),
        "padding": lambda: model(tokens, padding=types[:, :3].bool()),
        "documents": lambda: model(tokens, documents=types),
        "caches": lambda: model(tokens, caches=[]),
        "causal": model.caches,
        "head": lambda: model.generate(tokens, 3),
    }
    for field, call in bad.items():
        assert_refused(field, call)
    for dtype in (torch.int8, torch.uint8, torch.int16):
        assert "pass tokens.long()" in str(
            assert_refused("tokens", lambda dtype=dtype: model(tokens.to(dtype)))
        )


def test_multiple_choice_needs_an_axis_of_choices():
    model, (tokens, _) = make(head="multiple_choice"), words((2, 7))
    for wrong in (tokens, tokens[0]):
        assert "[batch, choices, tokens]" in str(
            assert_refused("tokens", lambda wrong=wrong: model(wrong))
        )
    assert "must be [batch, tokens]" in str(
        assert_refused("tokens", lambda: make(head="classification")(tokens[None]))
    )


def test_a_language_model_that_sees_later_tokens_does_not_generate():
    model, (tokens, _) = make(head="causal_lm", causal=False), words((2, 7))
    assert "causal=True" in str(
        assert_refused("head", lambda: model.generate(tokens, 3, cache="none"))
    )


def test_wrong_weights_are_named():
    peer = theirs("RoFormer", "bare")
    model, weights = RoFormer(RoFormerConfig.from_hf(peer.config.to_dict())), peer.state_dict()
    one = "encoder.layer.1.output.dense.bias"
    with pytest.raises(RopeError, match=r"missing: layers.1.down.bias"):
        load_weights(model, {key: value for key, value in weights.items() if key != one})
    with pytest.raises(RopeError, match=r"unexpected: encoder.layer.1.wing.bias"):
        load_weights(model, weights | {"encoder.layer.1.wing.bias": weights[one]})
    with pytest.raises(RopeError, match=r"layers.1.down.bias must be \[30\]"):
        load_weights(model, weights | {one: weights[one][:4]})
