"""Laws of the Decoder that hold for every encoding and option; transformers is the oracle in
test_decoder_hf.py.
"""

import pytest
import torch
from tiny_decoder import BATCH, SEQ, VOCAB, make, tokens
from torch import nn
from torch.nn import functional as F

import ropewalk as rw
from door import assert_refused
from ropewalk.attention.remap import ReRope
from ropewalk.encodings import ENCODINGS
from ropewalk.errors import RopeError
from ropewalk.models import Decoder, DecoderConfig
from ropewalk.models.decoder_loss import IGNORED, token_loss
from ropewalk.models.experts import Routes, balance_loss, gated

OPTIONS = {
    "plain": {},
    "all biases and norms": {
        "qkv_bias": True,
        "o_bias": True,
        "mlp_bias": True,
        "qk_norm": True,
        "tie_embeddings": False,
    },
    "window": {"window": 3},
    "mixed layers": {"layer_types": ("sliding", "nope"), "window": 3},
    "experts": {
        "num_experts": 5,
        "experts_per_token": 2,
        "moe_intermediate_size": 11,
        "router_aux_coef": 0.1,
    },
    "linear": {"attention": "linear", "qk_norm": True},
    "gelu": {"activation": "gelu"},
}


def close(found, expected):
    torch.testing.assert_close(found, expected, atol=1e-11, rtol=1e-10)


EVERY = (
    [pytest.param({"encoding": name}, id=name) for name in ENCODINGS]
    + [
        pytest.param({"encoding": name, "attention": "linear"}, id=f"{name}, linear")
        for name in ENCODINGS
        if ENCODINGS[name].linear
    ]
    + [pytest.param(options, id=name) for name, options in OPTIONS.items()]
)


@pytest.mark.parametrize("options", EVERY)
def test_a_token_sees_its_past_through_a_cache_as_in_one_pass(options):
    model, given = make(**options), tokens()
    whole, caches = model(given), model.caches()
    pieces = [
        model(given[:, :3], caches=caches),
        *(model(given[:, i : i + 1], caches=caches) for i in range(3, SEQ)),
    ]
    close(torch.cat(pieces, dim=1), whole)
    changed = given.clone()
    changed[:, 4] = (changed[:, 4] + 1) % VOCAB
    close(model(changed)[:, :4], whole[:, :4])
    assert (model(changed)[:, 4:] - whole[:, 4:]).abs().max() > 1e-3


@pytest.mark.parametrize("options", EVERY)
def test_padding_and_packing_do_not_change_the_logits_of_real_tokens(options):
    model, given = make(**options), tokens()
    whole = model(given)
    padding = torch.tensor([[False, False] + [True] * SEQ] * BATCH)
    padded = torch.cat((tokens(seq=2), given), dim=1)
    close(model(padded, padding=padding)[:, 2:], whole)
    packed, documents = given.view(1, -1), torch.tensor([[3] * SEQ + [1] * SEQ])
    close(model(packed, documents=documents).view_as(whole), whole)


@pytest.mark.parametrize("name", ["learned", "sinusoidal"])
def test_an_encoding_of_the_input_acts_once_at_the_embeddings(name):
    model, given = make(encoding=name), tokens()
    where = torch.arange(SEQ)
    bare = make(encoding="none")
    bare.load_state_dict(model.state_dict(), strict=False)
    shifted = F.embedding(given, model.embed_tokens.weight)
    bare.embed_tokens.forward = lambda found: model.encoding.embed(shifted, where)
    close(model(given), bare(given))


def test_layers_without_position_do_not_know_the_order():
    # one layer: with two, the causal mask of the first tells the second the order of the tokens
    model, given = make(num_layers=1, layer_types=("nope",)), tokens(batch=1)
    mixed = given[:, [3, 0, 2, 1, *range(4, SEQ)]]
    close(model(mixed)[:, -1], model(given)[:, -1])
    rotated = make(num_layers=1)
    assert (rotated(mixed)[:, -1] - rotated(given)[:, -1]).abs().max() > 1e-3


def test_each_layer_type_has_its_own_spec():
    near, far = rw.RopeSpec(head_dim=10, theta=100.0), rw.RopeSpec(head_dim=10, theta=1e6)
    kinds = {"layer_types": ("sliding", "full"), "window": 3}
    given = tokens()
    model = make(encoding={"sliding": near, "full": far}, **kinds)
    specs = [layer.self_attn.encoding.rope.spec for layer in model.layers]
    assert specs == [near, far]
    assert [layer.self_attn.window for layer in model.layers] == [3, None]
    swapped = make(encoding={"sliding": far, "full": near}, **kinds)
    assert (swapped(given) - model(given)).abs().max() > 1e-3
    still = make(encoding={"sliding": near, "full": None}, **kinds)
    close(still(given), make(encoding=near, layer_types=("sliding", "nope"), window=3)(given))


def test_a_sliding_cache_gives_the_logits_of_a_model_with_a_window():
    model, given = make(window=4), tokens(seq=12)
    unlimited = make()
    caches = unlimited.caches("sliding", capacity=3)  # with the new token, four: the window
    steps = [unlimited(given[:, i : i + 1], caches=caches) for i in range(12)]
    close(torch.cat(steps, dim=1), model(given))


@pytest.mark.parametrize("name", OPTIONS)
def test_the_loss_is_the_cross_entropy_of_the_logits(name):
    model, given = make(**OPTIONS[name]), tokens()
    padding = torch.ones_like(given, dtype=torch.bool)
    padding[0, :2] = False
    documents = torch.tensor([[0] * 4 + [1] * 3] * BATCH)
    for options in ({}, {"padding": padding}, {"documents": documents}):
        logits, targets = model(given, **options)[:, :-1], given[:, 1:].clone()
        if "padding" in options:
            targets[0, :2] = IGNORED
        if "documents" in options:
            targets[:, 3] = IGNORED
        expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
        if model.config.num_experts:
            # even use costs 0.1 * experts_per_token
            assert model.loss(given, **options) > expected + 0.1
        plain = make(**(OPTIONS[name] | {"router_aux_coef": 0.0}))
        close(plain.loss(given, **options), expected)


@pytest.mark.parametrize("max_logits", [1 << 27, 3 * VOCAB, 1])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.filterwarnings("ignore:mkldnn_matmul")
def test_the_loss_in_chunks_has_the_gradients_of_the_whole(dtype, max_logits):
    x, weight = torch.randn(11, 6, dtype=torch.float64), torch.randn(VOCAB, 6, dtype=torch.float64)
    targets = torch.randint(0, VOCAB, (11,))
    targets[[2, 7]] = IGNORED
    x[5] = 40 * weight[targets[5]]  # a token that is certain: p - 1 is tiny
    x, weight = x.to(dtype), weight.to(dtype)
    exact = [t.double().requires_grad_() for t in (x, weight)]
    expected = 3 * F.cross_entropy(exact[0] @ exact[1].T, targets, ignore_index=IGNORED)
    wanted = torch.autograd.grad(expected, exact)
    given = [t.requires_grad_() for t in (x, weight)]
    found = 3 * token_loss(*given, targets, max_logits)
    bound = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.04}[dtype]
    torch.testing.assert_close(found.double(), expected, atol=bound, rtol=bound)
    for mine, theirs in zip(torch.autograd.grad(found, given), wanted, strict=True):
        assert mine.dtype == dtype
        torch.testing.assert_close(
            mine.double(), theirs, atol=bound * theirs.abs().max().item(), rtol=0
        )
    with torch.no_grad():
        torch.testing.assert_close(3 * token_loss(*given, targets, max_logits), found)


def test_a_token_of_probability_near_one_keeps_its_small_gradient_in_bfloat16():
    weight = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.bfloat16)
    x = torch.tensor([[7.0, 0.0]], dtype=torch.bfloat16, requires_grad=True)
    token_loss(x, weight, torch.tensor([0])).backward()
    # p - 1, which bfloat16 near p = 1 would round to 0
    expected = -torch.sigmoid(torch.tensor(-7.0)).item()
    assert x.grad[0, 0].item() == pytest.approx(expected, rel=0.01)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul")
def test_many_chunks_add_up_beyond_what_bfloat16_can_count():
    x, weight = (
        torch.ones(600, 1, dtype=torch.bfloat16),
        torch.zeros(2, 1, dtype=torch.bfloat16, requires_grad=True),
    )
    # every row a chunk
    token_loss(x, weight, torch.zeros(600, dtype=torch.int64), max_logits=2).backward()
    # 600 times 1/2, divided by 600; in bfloat16 a sum of halves would stop at 128
    assert weight.grad.tolist() == [
        [-0.5],
        [0.5],
    ]


def test_the_gate_has_the_gradient_of_its_formula():
    packed = torch.randn(3, 5, 14, dtype=torch.float64, requires_grad=True)
    for name, by_formula in (("silu", F.silu), ("relu", F.relu)):
        gate, up = packed[..., :7], packed[..., 7:]
        expected, found = by_formula(gate) * up, gated(packed, name)
        close(found, expected)
        weight = torch.randn_like(found)
        close(
            *(torch.autograd.grad((each * weight).sum(), packed)[0] for each in (found, expected))
        )


def test_experts_that_are_used_evenly_have_the_least_balance_loss():
    even = Routes(torch.full((6, 3), 1 / 3), torch.arange(6).view(6, 1) % 3)
    assert balance_loss([even, even]).item() == pytest.approx(1.0)
    skewed = Routes(torch.tensor([[0.8, 0.1, 0.1]] * 6), torch.zeros(6, 1, dtype=torch.int64))
    assert balance_loss([skewed]).item() == pytest.approx(3 * 0.8)
    padding = torch.tensor([[True, False, False], [False, False, False]])
    by_hand = Routes(
        torch.tensor([[0.5, 0.3, 0.2]] + [[0.0, 0.0, 1.0]] * 5), torch.tensor([[0]] + [[2]] * 5)
    )
    assert balance_loss([by_hand], padding).item() == pytest.approx(3 * 0.5)


def test_dropout_acts_in_training_only():
    model, given = make(dropout=0.5), tokens()
    assert torch.equal(model(given), model(given))
    assert not torch.equal(model.train()(given), model(given))
    attention_only = make(dropout=0.0, attention_dropout=0.5).train()
    assert not torch.equal(attention_only(given), attention_only(given))


def test_initial_weights_have_the_standard_deviation_of_the_config():
    model = Decoder(
        DecoderConfig(
            97, 64, 80, 2, 4, qkv_bias=True, num_experts=3, init_std=0.05, encoding="fire"
        )
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "encoding" not in name:
                parameter.fill_(7.0)
    model.reset_parameters()
    for name, parameter in model.named_parameters():
        if "norm" in name:
            assert torch.equal(parameter, torch.ones_like(parameter)), name
        elif name.endswith("bias") and "encoding" not in name:
            assert not parameter.any(), name
        elif "encoding" not in name:
            assert parameter.std().item() == pytest.approx(0.05, rel=0.15), name
    assert model.layers[0].self_attn.encoding.hidden.bias.any()  # as the encoding initialises it


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"vocab_size": 0}, "vocab_size"),
        ({"hidden_size": 1 << 30}, "hidden_size"),
        ({"num_layers": 1 << 20}, "num_layers"),
        ({"num_kv_heads": 4}, "num_kv_heads"),
        ({"head_dim": None, "num_heads": 3, "num_kv_heads": 1}, "head_dim"),
        ({"encoding": "rop"}, "encoding"),
        ({"encoding": rw.RopeSpec(head_dim=8)}, "encoding"),
        ({"encoding": {"full": "learned"}}, "encoding"),
        ({"encoding": {"sliding": "rope"}}, "encoding"),
        ({"encoding": {"local": "rope"}}, "encoding"),
        ({"encoding": "alibi", "attention": "linear"}, "encoding"),
        ({"attention": "quadratic"}, "attention"),
        ({"attention": "linear", "window": 3}, "window"),
        ({"layer_types": ("full",)}, "layer_types"),
        ({"layer_types": ("full", "half")}, "layer_types"),
        ({"layer_types": ("full", "sliding")}, "window"),
        ({"layer_types": ("full", "nope"), "window": 3}, "window"),
        ({"window": 0}, "window"),
        ({"activation": "sine"}, "activation"),
        ({"norm_eps": 0.0}, "norm_eps"),
        ({"dropout": 2.0}, "dropout"),
        ({"tie_embeddings": 1}, "tie_embeddings"),
        ({"num_experts": 2, "experts_per_token": 3}, "experts_per_token"),
        ({"num_experts": 2, "dense_layers": (2,)}, "dense_layers"),
    ],
)
def test_bad_options_are_refused_by_name(options, field):
    base = {
        "vocab_size": 9,
        "hidden_size": 20,
        "intermediate_size": 8,
        "num_layers": 2,
        "num_heads": 6,
        "num_kv_heads": 2,
    }
    assert_refused(field, lambda: DecoderConfig(**(base | {"head_dim": 10} | options)))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.float32, torch.bool])
def test_tokens_that_are_not_int32_or_int64_are_refused(dtype):
    model, given = make(), tokens(seq=5)
    for call in (model, model.loss, model.features):
        assert "pass tokens.long()" in str(
            assert_refused("tokens", lambda call=call: call(given.to(dtype)))
        )
        assert_refused("tokens", lambda call=call: call(given[0]))
    assert torch.equal(model(given.int()), model(given))


def test_beyond_the_window_of_rerope_the_order_of_tokens_does_not_matter():
    """In a model of one layer: all tokens beyond the window are at the same distance. Layers without
    positions get no remapping.
    """
    given = tokens(seq=9)
    reordered = torch.cat((given[:, [4, 2, 5, 0, 3, 1]], given[:, 6:]), dim=1)
    model = make(num_layers=1, remapping=ReRope(3))
    close(model(reordered)[:, -1], model(given)[:, -1])
    plain = make(num_layers=1)
    assert (plain(reordered)[:, -1] - plain(given)[:, -1]).abs().max() > 1e-3
    mixed = make(layer_types=("full", "nope"), remapping=ReRope(3))
    assert [layer.self_attn.remapping for layer in mixed.layers] == [ReRope(3), None]


def test_running_all_experts_gives_the_result_of_running_the_chosen_ones():
    """`_run_all`, which torch.compile takes, and the ordinary call, against the chosen experts run
    token by token.
    """
    experts = make(**OPTIONS["experts"]).layers[0].mlp.experts
    x, weights = torch.randn(7, 20, dtype=torch.float64), torch.rand(7, 2, dtype=torch.float64)
    chosen = torch.stack([torch.randperm(5)[:2] for _ in range(7)])
    expected = [
        sum(w * experts.run_expert(t[None], int(e)) for w, e in zip(*row, strict=True))
        for t, *row in zip(x, weights, chosen, strict=True)
    ]
    close(experts._run_all(x, weights, chosen), torch.cat(expected))
    close(experts(x, weights, chosen), torch.cat(expected))


def test_caches_must_be_one_a_layer():
    model = make()
    with pytest.raises(RopeError, match="each of the 2 layers"):
        model(tokens(), caches=model.caches()[:1])


def test_the_fused_kernels_are_not_used_for_other_norms_or_hooks():
    """The fused kernels compute an RMS norm of q and k; where a user replaced it by another norm,
    that norm must be computed.
    """

    def reason(change):
        layer = make(qk_norm=True).layers[0].self_attn
        change(layer)
        return layer.why_not_fused(
            layer.qkv_proj.weight.new_zeros(1, 4, layer.qkv_proj.in_features)
        )

    assert "CUDA" in reason(lambda layer: None)  # nothing else is in the way
    assert "LayerNorm" in reason(
        lambda layer: setattr(layer, "q_norm", nn.LayerNorm(layer.head_dim))
    )
    assert "Identity" in reason(lambda layer: setattr(layer, "k_norm", nn.Identity()))
    assert "eps" in reason(
        lambda layer: setattr(layer, "k_norm", nn.RMSNorm(layer.head_dim, eps=0.5))
    )
    assert "eps" in reason(lambda layer: setattr(layer.q_norm, "eps", None))
    assert "hooks" in reason(lambda layer: layer.k_norm.register_forward_hook(lambda *_: None))
    assert "hooks" in reason(
        lambda layer: layer.qkv_proj.register_forward_pre_hook(lambda *_: None)
    )


def test_linear_attention_equals_its_formula_by_attend_and_by_forward():
    """Against the quadratic formula: rotated features in the numerator, features in the
    denominator, then the norm of each head.
    """
    torch.manual_seed(3)
    sizes = {
        "vocab_size": 13,
        "hidden_size": 12,
        "intermediate_size": 8,
        "num_layers": 1,
        "num_heads": 2,
    }
    layer = Decoder(DecoderConfig(**sizes, attention="linear")).double().layers[0].self_attn
    x, rope = torch.randn(2, 5, 12, dtype=torch.float64), rw.Rope(rw.RopeSpec(6))
    q, k, v = (x @ layer.qkv_proj.weight.mT).unflatten(-1, (3, 2, 6)).permute(2, 0, 3, 1, 4)
    q, k = (torch.nn.functional.elu(t) + 1 for t in (q, k))
    top, bottom = (pair[0] @ pair[1].mT for pair in (rope(q, k, torch.arange(5)), (q, k)))
    out = top.tril() @ v / bottom.tril().sum(-1, keepdim=True)
    out = out / (out.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    expected = out.transpose(1, 2).flatten(-2) @ layer.o_proj.weight.mT
    torch.testing.assert_close(layer(x).out, expected)
    torch.testing.assert_close(layer(x, torch.arange(5) + 3).out, expected)
    for field, call in (
        ("mask", lambda: layer(x, mask=torch.ones(5, 5, dtype=torch.bool))),
        ("return_weights", lambda: layer(x, return_weights=True)),
        ("attention", lambda: layer.backend_for(x)),
    ):
        assert_refused(field, call)
