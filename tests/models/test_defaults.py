"""Defaults of attention layers and models, and values just outside their limits, which they refuse."""

import math

import pytest
import torch

import ropewalk as rw
from ropewalk import frequencies as fq
from ropewalk.attention import Attention, LatentAttention
from ropewalk.attention.path import PathAttention
from ropewalk.attention.remap import DualChunk, LeakyReRope, ReRope, SelfExtend
from ropewalk.attention.selective import SelectivePhases
from ropewalk.attention.temperature import factor
from ropewalk.distributed import unshard
from ropewalk.encodings import Polar, RotaryPlus, Sizes
from ropewalk.models.activations import gelu_tanh
from ropewalk.models.decoder_checkpoint import config_from_hf, config_to_hf
from ropewalk.models.decoder_loss import token_loss
from ropewalk.models.generation import generate
from ropewalk.models.migrate import Migration
from ropewalk.temperatures import LogAbove, Power
from tensor_forms import tensors

HEADS, HEAD_DIM, SEQ = 3, 6, 5
SIZES = {
    "vocab_size": 11,
    "hidden_size": 24,
    "intermediate_size": 16,
    "num_layers": 1,
    "num_heads": 2,
}


def test_published_sizes_are_the_defaults():
    assert (ReRope().window, LeakyReRope().window, SelfExtend().window, DualChunk().chunk) == (
        512,
        512,
        1024,
        8192,
    )
    assert (LogAbove().scale, LogAbove().length, Power().length, Power().power) == (
        0.1,
        8192,
        2048,
        0.1,
    )
    # a token's phase depends on four tokens, a reflection of PaTH on three
    assert SelectivePhases(12, 3, 4).conv.weight.shape[-1] == 4
    assert PathAttention(12, 3).w_conv.weight.shape[-1] == 3
    config = rw.models.DecoderConfig(**SIZES)
    assert (config.init_std, config.norm_topk, config.experts_per_token) == (0.02, True, 1)


@pytest.mark.parametrize(("trained", "served"), [(64, 256), (100, 177), (4096, 65536), (64, 4096)])
def test_remappings_divide_far_distances_by_the_least_integer_with_which_they_fit(trained, served):
    """The window and the divided far distances must fit into two thirds of the trained length."""
    window = trained // 4
    least = next(n for n in range(2, served) if (served - window) / n <= 2 * trained // 3 - window)
    assert LeakyReRope.for_length(trained, served) == LeakyReRope(window, least, trained)
    assert SelfExtend.for_length(trained, served) == SelfExtend(
        least, window // least * least or window
    )
    assert ReRope.for_length(trained, served) == ReRope(window, trained)


@pytest.mark.parametrize(
    ("field", "call"),
    [
        ("chunk", lambda: DualChunk(chunk=1, local=1)),
        ("head_dim", lambda: rw.models.DecoderConfig(**SIZES, head_dim=0)),
        (
            "encoding",
            lambda: rw.models.DecoderConfig(**SIZES, encoding="bogus", layer_types=("nope",)),
        ),
        (
            "head_dim",
            lambda: LatentAttention(
                12, 3, kv_rank=4, nope_dim=2, rope_dim=2, value_dim=2, head_dim=4
            ),
        ),
        ("kind", lambda: unshard(torch.zeros(2, 3), 0, kind="foo")),
        ("slowdown", lambda: LeakyReRope(slowdown=0)),
        ("dropout", lambda: Attention(12, 3, dropout=-0.1)),
        ("dropout", lambda: Attention(12, 3, dropout=1.1)),
        ("model_dim", lambda: SelectivePhases(10, 3, 4)),
        (
            "encoding",
            lambda: rw.models.DecoderConfig(
                **SIZES, encoding={"full": "rope", "elsewhere": "rope"}
            ),
        ),
        (
            "tokens",
            lambda: generate(
                rw.Decoder(rw.models.DecoderConfig(**SIZES)), torch.tensor([[3, -1, 2]]), 1
            ),
        ),
        (
            "tokens",
            lambda: generate(
                rw.Decoder(rw.models.DecoderConfig(**SIZES)), torch.tensor([[3, 11, 2]]), 1
            ),
        ),
    ],
)
def test_the_first_value_outside_the_limits_is_refused_by_name(field, call):
    with pytest.raises(rw.RopeError) as error:
        call()
    assert error.value.field == field


def test_a_head_may_have_one_dimension():
    config = rw.models.DecoderConfig(**SIZES, head_dim=1, encoding="none")
    assert rw.Decoder(config)(torch.tensor([[1, 2, 3]])).shape == (1, 3, 11)


def test_negative_positions_have_the_temperature_of_position_0():
    factors = factor(Power(), torch.tensor([-7, -1, 0]))
    assert factors.tolist() == [factors[2].item()] * 3


def test_gelu_by_tanh_is_its_formula():
    x = torch.linspace(-4, 4, 33, dtype=torch.float64)
    expected = x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    torch.testing.assert_close(gelu_tanh(x), expected, atol=1e-14, rtol=0)


@pytest.mark.parametrize("gradients", [False, True])
def test_a_batch_without_tokens_has_no_loss(gradients):
    x, weight = torch.zeros(0, 6, requires_grad=gradients), torch.randn(11, 6)
    assert token_loss(x, weight, torch.zeros(0, dtype=torch.int64)).item() == 0


@pytest.mark.parametrize(("count", "end"), [(8, "w7"), (9, "w7 ...")])
def test_the_text_of_a_migration_shows_eight_names(count, end):
    shown = str(Migration(torch.nn.Identity(), (), tuple(f"w{i}" for i in range(count)), (), ()))
    assert f"dropped      {count}: w0, w1, w2, w3, w4, w5, w6, {end}\n" in shown


def angles_at(spec, positions, length):
    return positions[:, None] * tensors(spec, length).radians


@pytest.mark.parametrize("key", [False, True])
def test_pope_uses_the_length_and_whether_it_rotates_queries_or_keys(key):
    """Tried with dynamic NTK and with a magnitude on queries alone. Each channel of x becomes the
    size of a pair, at the angle of its position.
    """
    positions, length = torch.arange(SEQ) + 20, 64
    dynamic = rw.RopeSpec(2 * HEAD_DIM, scaling=fq.Dynamic(4.0, original_length=8))
    yarn = rw.RopeSpec(2 * HEAD_DIM, scaling=fq.Yarn(64, factor=4.0), magnitude_on="q")
    x = torch.randn(1, HEADS, SEQ, HEAD_DIM, dtype=torch.float64)
    size = torch.nn.functional.softplus(x)
    for spec in (dynamic, yarn):
        encoding = Polar(Sizes(HEADS, HEAD_DIM, HEADS * HEAD_DIM, 64), spec)
        angles = angles_at(spec, positions, length)
        # a magnitude on queries alone is squared, so that scores change as much as with one on both
        magnitude = 1.0 if spec is dynamic or key else (0.1 * math.log(4) + 1) ** 2
        expected = torch.cat((size * angles.cos(), size * angles.sin()), dim=-1) * magnitude
        torch.testing.assert_close(
            encoding.rotate(x, positions, key=key, length=length), expected, atol=1e-6, rtol=1e-6
        )


def test_keys_of_rope_plus_use_the_length_and_only_linear_attention_is_refused():
    spec = rw.RopeSpec(HEAD_DIM, scaling=fq.Dynamic(4.0, original_length=8))
    encoding = RotaryPlus(Sizes(HEADS, HEAD_DIM, HEADS * HEAD_DIM, 64), spec)
    positions, x = torch.arange(SEQ) + 20, torch.randn(1, HEADS, SEQ, HEAD_DIM, dtype=torch.float64)
    z = torch.complex(x[..., : HEAD_DIM // 2], x[..., HEAD_DIM // 2 :]) * torch.exp(
        1j * angles_at(spec, positions, 64)
    )
    found = encoding.rotate(x, positions, key=True, length=64)
    torch.testing.assert_close(found, torch.cat((z.real, z.imag), dim=-1), atol=1e-6, rtol=1e-6)
    assert "twice" in encoding.why_not("linear")
    assert encoding.why_not("rerotate") is None


@pytest.mark.parametrize("max_logits", [1 << 26, 22])
def test_an_ignored_token_may_be_infinite(max_logits):
    """Loss and gradients are those of the other tokens alone."""
    torch.manual_seed(0)
    x, weight, targets = (
        torch.randn(5, 4).double(),
        torch.randn(11, 4).double(),
        torch.tensor([3, -100, 5, -100, 0]),
    )
    x[1], x[3, 2] = math.inf, math.nan
    kept = targets >= 0
    found = [t.clone().requires_grad_() for t in (x, weight)]
    expected = [t.clone().requires_grad_() for t in (x[kept], weight)]
    loss = token_loss(*found, targets, max_logits)
    reference = torch.nn.functional.cross_entropy(expected[0] @ expected[1].mT, targets[kept])
    torch.testing.assert_close(loss, reference)
    loss.backward()
    reference.backward()
    torch.testing.assert_close(found[0].grad[kept], expected[0].grad)
    assert not found[0].grad[~kept].any()
    torch.testing.assert_close(found[1].grad, expected[1].grad)


def test_dense_layers_are_sorted_so_that_a_saved_config_is_the_same():
    config = rw.models.DecoderConfig(
        **{**SIZES, "num_layers": 3}, num_experts=2, qk_norm=True, dense_layers=(2, 0, 2)
    )
    assert config.dense_layers == (0, 2)
    assert config_from_hf(config_to_hf(config)).dense_layers == (0, 2)


def test_padding_of_integers_is_refused_by_its_dtype():
    model = rw.Decoder(rw.models.DecoderConfig(**SIZES))
    with pytest.raises(rw.RopeError, match=r"torch\.int64"):
        generate(model, torch.tensor([[3, 1, 2]]), 1, padding=torch.tensor([[1, 1, 1]]))
