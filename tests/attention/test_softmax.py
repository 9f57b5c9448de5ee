"""Attention against a definition in float64 loops: every encoding, backend and kind of mask; caches
against the whole pass.
"""

import pytest
import torch
from definition import attention_by_definition

import ropewalk as rw
from door import assert_refused
from ropewalk import frequencies
from ropewalk.attention import Attention, KVCache, LatentAttention
from ropewalk.attention.backends import ATTENTION_BACKENDS
from ropewalk.attention.choices import HeadNorm, LearnedSinks
from ropewalk.attention.lse import LSE_BACKENDS
from ropewalk.attention.remap import ReRope
from ropewalk.encodings import ENCODINGS
from ropewalk.encodings.rotary import Rotary
from ropewalk.errors import RopeError
from ropewalk.models.presets import build

BATCH, SEQ, HEADS, KV_HEADS, HEAD_DIM, MODEL_DIM = 2, 7, 4, 2, 10, 24
MASKS = ("none", "causal", "window", "boolean", "float", "padding", "documents", "bidirectional")


def make(encoding="rope", **options):
    torch.manual_seed(3)
    options = {
        "causal": True,
        "length": 16,
        "scale": None if encoding == "nezha" else 0.4,
    } | options
    layer = Attention(MODEL_DIM, HEADS, KV_HEADS, HEAD_DIM, encoding=encoding, **options).double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return layer


def positions_for(layer, batch=BATCH, seq=SEQ):
    counted = torch.arange(seq).expand(batch, seq)
    axes = {"ImageRotary": 2, "VideoRotary": 3}.get(type(layer.encoding).__name__, 1)
    return counted if axes == 1 else torch.stack([counted // (a + 1) for a in range(axes)])


def rules(kind):
    """(options of the layer, arguments of the call) for a kind of mask."""
    if kind == "window":
        return {"window": 3}, {}
    if kind == "boolean":
        return {}, {"mask": torch.rand(BATCH, 1, SEQ, SEQ) > 0.3}
    if kind == "float":
        return {}, {"mask": torch.randn(1, HEADS, SEQ, SEQ, dtype=torch.float64)}
    if kind == "padding":
        return {}, {"padding": torch.tensor([[False, False] + [True] * 5, [True] * 7])}
    if kind == "documents":
        return {}, {"documents": torch.tensor([[0, 0, 0, 1, 1, 1, 1], [4, 4, 2, 2, 2, 2, 0]])}
    return {"causal": kind == "causal"}, {}


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("name", ENCODINGS)
def test_attention_with_every_encoding_and_mask_equals_the_definition(name, kind):
    options, call = rules(kind)
    if not options.get("causal", True) and ENCODINGS[name].causal_only:
        with pytest.raises(RopeError, match="causal"):
            make(name, **options)
        return
    layer, x = (
        make(name, **options),
        torch.randn(BATCH, SEQ, MODEL_DIM, dtype=torch.float64, requires_grad=True),
    )
    positions = positions_for(layer)
    expected, weights = attention_by_definition(layer, x, positions, **call)
    expected_gradient = torch.autograd.grad(expected.square().sum(), x)[0]
    for backend in ATTENTION_BACKENDS:
        wants = type(layer.encoding).value_bias is not ENCODINGS["none"].value_bias
        if backend == "flex" or (backend == "sdpa" and wants):
            continue  # FlexAttention is compiled for CUDA; the fused kernel never forms weights
        layer.backend = backend
        got = layer(x, positions, return_weights=backend == "math", **call)
        torch.testing.assert_close(got.out, expected, atol=1e-12, rtol=1e-10, msg=backend)
        gradient = torch.autograd.grad(got.out.square().sum(), x)[0]
        torch.testing.assert_close(gradient, expected_gradient, atol=1e-11, rtol=1e-9, msg=backend)
        if backend == "math":
            torch.testing.assert_close(got.weights, weights, atol=1e-12, rtol=1e-10)


class _Doubling(Rotary):
    """An encoding that doubles q and k instead of rotating them by the rope that it holds."""

    def rotate(self, x, positions, *, key, length=None):
        return 2 * x


def test_a_subclass_of_rotary_rotates_by_its_own_function():
    """Scores are four times those without positions, and the same wherever the tokens are."""
    layer, x = make("none"), torch.randn(BATCH, SEQ, MODEL_DIM, dtype=torch.float64)
    layer.encoding = _Doubling(layer.encoding.sizes)
    got = layer(x, positions_for(layer) * 3)
    plain = make("none", scale=4 * 0.4)
    expected, _ = attention_by_definition(plain, x, positions_for(plain))
    torch.testing.assert_close(got.out, expected, atol=1e-12, rtol=1e-10)


# torch warns if this CPU lacks the instructions for bfloat16
@pytest.mark.filterwarnings("ignore:mkldnn_matmul")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_in_float32_and_bfloat16_stays_within_rounding(dtype):
    layer, x = make(qk_norm=HeadNorm()), torch.randn(BATCH, SEQ, MODEL_DIM, dtype=torch.float64)
    expected, _ = attention_by_definition(layer, x, positions_for(layer))
    got = layer.to(dtype)(x.to(dtype)).out
    assert got.dtype == dtype
    bound = 1e-5 if dtype == torch.float32 else 0.05
    torch.testing.assert_close(
        got.double(), expected, atol=bound * expected.abs().max().item(), rtol=0
    )


@pytest.mark.sampled
@pytest.mark.parametrize("name", [n for n in ENCODINGS if n not in ("rope_2d", "rope_3d")])
@pytest.mark.parametrize(
    "cache_options",
    [{}, {"kind": "static", "capacity": 9}, {"rotated": False}, {"kind": "sliding", "capacity": 8}],
)
def test_decoding_token_by_token_equals_the_whole_pass(name, cache_options):
    layer, x = make(name), torch.randn(BATCH, SEQ, MODEL_DIM, dtype=torch.float64)
    whole = layer(x).out
    cache = KVCache(**cache_options)
    pieces = [layer(x[:, :3], cache=cache).out] + [
        layer(x[:, i : i + 1], cache=cache).out for i in range(3, SEQ)
    ]
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole, atol=1e-12, rtol=1e-10)
    assert len(cache) == SEQ


def test_a_padded_chunk_continues_after_the_cached_tokens():
    layer, x = make(), torch.randn(BATCH, SEQ, MODEL_DIM, dtype=torch.float64)
    real, cache = torch.tensor([[False, False, True, True], [True] * 4]), KVCache()
    layer(x[:, :3], cache=cache)
    got = layer(x[:, 3:], padding=real, cache=cache).out
    for row in range(BATCH):
        alone = torch.cat((x[row, :3], x[row, 3:][real[row]]))[None]
        expected, _ = attention_by_definition(layer, alone, torch.arange(alone.shape[1])[None])
        torch.testing.assert_close(got[row, real[row]], expected[0, 3:], atol=1e-12, rtol=1e-10)


DYNAMIC = [
    frequencies.Dynamic(factor=2.0, original_length=4),
    frequencies.DynamicYarn(original_length=4),
    frequencies.LongRope(
        short_factor=(1.0,) * 5,
        long_factor=(1.0, 1.2, 2.0, 3.0, 4.0),
        original_length=4,
        factor=4.0,
    ),
]


@pytest.mark.parametrize("scaling", DYNAMIC, ids=lambda s: s.name)
def test_length_dependent_scalings_decode_as_without_a_cache(scaling):
    layer = make(rw.RopeSpec(head_dim=HEAD_DIM, scaling=scaling))
    x, cache = torch.randn(BATCH, SEQ, MODEL_DIM, dtype=torch.float64), KVCache()
    for i in range(SEQ):
        step = layer(x[:, i : i + 1], cache=cache).out
        torch.testing.assert_close(step, layer(x[:, : i + 1]).out[:, -1:], atol=1e-12, rtol=1e-10)
    assert cache.rotated is False


def test_left_padded_rows_equal_unpadded_ones_in_prefill_and_decode():
    layer, x = make(), torch.randn(1, 5, MODEL_DIM, dtype=torch.float64)
    other = torch.randn(1, 7, MODEL_DIM, dtype=torch.float64)
    batch = torch.cat(
        [torch.cat([torch.zeros(1, 2, MODEL_DIM, dtype=torch.float64), x], dim=1), other]
    )
    padding = torch.tensor([[False] * 2 + [True] * 5, [True] * 7])
    alone, cache = KVCache(), KVCache()
    got = layer(batch, padding=padding, cache=cache).out
    torch.testing.assert_close(got[:1, 2:], layer(x, cache=alone).out, atol=1e-12, rtol=1e-10)
    assert got[0, :2].count_nonzero() == 0
    step = torch.randn(2, 1, MODEL_DIM, dtype=torch.float64)
    torch.testing.assert_close(
        layer(step, cache=cache).out[:1], layer(step[:1], cache=alone).out, atol=1e-12, rtol=1e-10
    )
    assert cache.next_positions.tolist() == [6, 8]


def test_the_causal_mask_behind_a_cache_is_aligned_to_the_end():
    layer, x = make("none", backend="sdpa"), torch.randn(1, SEQ, MODEL_DIM, dtype=torch.float64)
    cache = KVCache()
    layer(x[:, :3], cache=cache)
    torch.testing.assert_close(
        layer(x[:, 3:], cache=cache).out, layer(x).out[:, 3:], atol=1e-12, rtol=1e-10
    )


def test_a_magnitude_on_q_k_or_the_softmax_scale_gives_the_same_output():
    spec = rw.RopeSpec(head_dim=HEAD_DIM, scaling=frequencies.Yarn(factor=4.0, original_length=8))
    x = torch.randn(1, SEQ, MODEL_DIM, dtype=torch.float64)
    outs = [
        make(spec.with_(magnitude_on=where), scale=None)(x).out for where in ("qk", "q", "scale")
    ]
    for out in outs[1:]:
        torch.testing.assert_close(out, outs[0], atol=1e-12, rtol=1e-10)
    plain = make(
        spec.with_(scaling=frequencies.Yarn(factor=4.0, original_length=8, attention_factor=1.0)),
        scale=None,
    )(x).out
    assert (plain - outs[0]).abs().max() > 1e-4


def test_a_backend_is_chosen_with_a_reason_and_refused_with_a_reason():
    layer, x = make(), torch.randn(1, SEQ, MODEL_DIM)
    assert layer.backend_for(x) == ("sdpa", "torch's fused kernel is the default")
    layer.backend = "flex"
    with pytest.raises(RopeError, match="CUDA"):
        layer.backend_for(x)
    layer.backend = "sdpa"
    with pytest.raises(RopeError, match="weights"):
        layer.double()(x.double(), return_weights=True)


def test_dropout_acts_in_training_only():
    layer, x = make(dropout=0.5), torch.randn(1, SEQ, MODEL_DIM, dtype=torch.float64)
    still = layer.eval()(x).out
    assert torch.equal(still, layer(x).out)
    assert not torch.allclose(layer.train()(x).out, still)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"num_kv_heads": 4}, "num_kv_heads"),
        ({"num_kv_heads": 0}, "num_kv_heads"),
        ({"head_dim": None}, "head_dim"),
        ({"window": 0}, "window"),
        ({"encoding": "rop"}, "encoding"),
        ({"dropout": 2.0}, "dropout"),
    ],
)
def test_bad_options_are_refused_by_name(options, field):
    base = {"model_dim": 25, "num_heads": 6, "num_kv_heads": 2, "head_dim": 10}
    with pytest.raises(RopeError) as caught:
        Attention(**(base | options))
    assert caught.value.field == field


@pytest.mark.parametrize("name", ENCODINGS)
def test_the_backend_that_backend_for_returns_is_the_one_that_runs(name, monkeypatch):
    layer, x, taken = make(name), torch.randn(1, SEQ, MODEL_DIM, dtype=torch.float64), []
    for backend, (why_not, run) in ATTENTION_BACKENDS.items():
        spy = lambda call, backend=backend, run=run: taken.append(backend) or run(call)
        monkeypatch.setitem(ATTENTION_BACKENDS, backend, (why_not, spy))
    for wants in (False, True):
        layer(x, positions_for(layer, batch=1), return_weights=wants)
        assert taken.pop() == layer.backend_for(x, return_weights=wants)[0]


@pytest.mark.parametrize(
    "options", [{"sinks": LearnedSinks()}, {"remapping": ReRope(4)}], ids=["sinks", "remapping"]
)
@pytest.mark.parametrize("backend", [None, "math"])
def test_the_backend_that_backend_for_returns_runs_where_the_log_sum_exp_is_needed(
    options, backend, monkeypatch
):
    layer, x, taken = (
        make(backend=backend, **options),
        torch.randn(1, SEQ, MODEL_DIM, dtype=torch.float64),
        set(),
    )
    for name, (why_not, run) in LSE_BACKENDS.items():
        monkeypatch.setitem(
            LSE_BACKENDS,
            name,
            (why_not, lambda call, name=name, run=run: taken.add(name) or run(call)),
        )
    layer(x)
    assert taken == {layer.backend_for(x)[0]}


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, ("sdpa", "flex", "math")),
        *(
            ({name: value}, ("triton", "flex", "math"))
            for name, value in (("sinks", LearnedSinks()), ("remapping", ReRope(4)))
        ),
    ],
    ids=["plain", "sinks", "remapping"],
)
def test_a_layer_refuses_the_name_of_a_backend_that_it_cannot_have(options, names):
    for name in ("sdpa", "flex", "math", "triton", "fused"):
        if name in names:
            assert make(backend=name, **options).backend == name
        else:
            assert_refused("backend", lambda name=name: make(backend=name, **options))


def test_backend_for_works_for_latent_and_decoder_attention():
    latent = LatentAttention(32, 4, kv_rank=8, nope_dim=8, rope_dim=4, value_dim=8, q_rank=6)
    for layer, width in ((latent, 32), (build("tiny").layers[0].self_attn, 64)):
        assert layer.backend_for(torch.randn(1, 3, width))[0] == "sdpa"


def test_backend_for_refuses_what_forward_refuses():
    layer, x = make(remapping=ReRope(4)), torch.randn(1, SEQ, MODEL_DIM, dtype=torch.float64)
    for ask in (layer, layer.backend_for):
        with pytest.raises(RopeError, match="return_weights"):
            ask(x, return_weights=True)


def test_a_length_dependent_magnitude_on_the_softmax_scale_is_refused():
    spec = rw.RopeSpec(
        head_dim=HEAD_DIM, scaling=frequencies.DynamicYarn(original_length=4), magnitude_on="scale"
    )
    with pytest.raises(RopeError, match="depends on the length"):
        make(spec, scale=None)
    # accepted: the magnitude of dynamic NTK is always 1
    make(spec.with_(scaling=frequencies.Dynamic(factor=2.0, original_length=4)), scale=None)


def test_documents_without_a_batch_axis_are_refused():
    with pytest.raises(RopeError, match="document index of every token"):
        make()(
            torch.randn(1, SEQ, MODEL_DIM, dtype=torch.float64),
            documents=torch.zeros(SEQ, dtype=torch.int64),
        )


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("padding", {"padding": torch.ones(SEQ, dtype=torch.bool)}),
        ("padding", {"padding": torch.ones(1, SEQ, dtype=torch.bool)}),
        ("padding", {"padding": torch.ones(BATCH, SEQ + 1, dtype=torch.bool)}),
        ("padding", {"padding": torch.ones(BATCH, SEQ, dtype=torch.int64)}),
        ("documents", {"documents": torch.zeros(BATCH, SEQ)}),
        ("documents", {"documents": torch.zeros(BATCH, SEQ, dtype=torch.bool)}),
    ],
)
@pytest.mark.parametrize("positions", [None, torch.arange(SEQ)])
def test_masks_of_another_shape_or_dtype_are_refused_and_leave_the_cache_as_it_was(
    positions, field, options
):
    layer, x, cache = make(), torch.randn(BATCH, SEQ, MODEL_DIM, dtype=torch.float64), KVCache()
    layer(x, cache=cache)
    given = {} if "documents" in options else {"cache": cache}
    assert_refused(field, lambda: layer(x, positions, **options, **given))
    assert len(cache) == SEQ


def test_a_token_before_the_latest_is_rotated_for_the_length_of_the_cache():
    """With a scaling that depends on the length, q and k must have the same: that of the latest
    token in the cache.
    """
    layer = make(
        rw.RopeSpec(head_dim=HEAD_DIM, scaling=frequencies.Dynamic(factor=4.0, original_length=5)),
        causal=False,
    )
    x, positions = torch.randn(1, SEQ, MODEL_DIM).double(), torch.tensor([[0, 1, 2, 30, 4, 5, 6]])
    cache = KVCache()
    layer(x[:, :4], positions=positions[:, :4], cache=cache)
    steps = [
        layer(x[:, i : i + 1], positions=positions[:, i : i + 1], cache=cache).out
        for i in range(4, SEQ)
    ]
    torch.testing.assert_close(
        steps[-1][:, 0], layer(x, positions=positions).out[:, -1], atol=1e-10, rtol=1e-8
    )


def test_rotate_of_an_encoding_gets_key_true_for_keys_only(monkeypatch):
    layer, twice = make("none"), make("none", scale=0.8)
    monkeypatch.setattr(
        layer.encoding, "rotate", lambda x, positions, key, length=None: 2 * x if key else x
    )
    x = torch.randn(BATCH, SEQ, MODEL_DIM).double()
    torch.testing.assert_close(layer(x).out, twice(x).out, atol=1e-12, rtol=1e-10)
