"""Options of attention layers in ring attention, on one rank in this process: computed as without a
ring, or refused.
"""

import pytest
import torch
import torch.distributed as dist

import ropewalk as rw
from ropewalk.attention import Attention, LatentAttention, remap, temperature
from ropewalk.attention.choices import LearnedSinks, RotatedValues
from ropewalk.distributed.ring import ring_forward
from ropewalk.distributed.ring_linear import ring_linear_attention
from ropewalk.errors import RopeError
from ropewalk.models import Decoder, DecoderConfig, RoFormer, RoFormerConfig
from ropewalk_lab.distributed import Parallel

SIZES = {
    "vocab_size": 17,
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_layers": 1,
    "num_heads": 4,
}


@pytest.fixture
def alone():
    """A group of one rank, in this process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("factor", [temperature.LogN(3), temperature.LearnedLog(2)], ids=str)
def test_ring_attention_multiplies_queries_by_their_temperature(alone, factor):
    layer, x, positions = (
        Attention(32, 4, temperature=factor).double(),
        torch.randn(2, 9, 32).double(),
        torch.arange(9),
    )
    found, expected = ring_forward(layer, x, positions), layer(x, positions).out
    torch.testing.assert_close(found, expected)
    weights = list(layer.parameters())
    for ours, theirs in zip(
        *(torch.autograd.grad(out.square().sum(), weights) for out in (found, expected)),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("sinks", {"sinks": LearnedSinks()}),
        ("values", {"values": RotatedValues()}),
        ("values", {"values": RotatedValues(shared=True), "num_kv_heads": 1}),
        ("remapping", {"remapping": remap.SelfExtend(2, 4)}),
    ],
    ids=str,
)
def test_ring_attention_refuses_options_that_it_does_not_compute(alone, field, options):
    layer = Attention(32, 4, **options)
    with pytest.raises(RopeError, match=f"^{field}: .*ring attention"):
        ring_forward(layer, torch.randn(2, 9, 32), torch.arange(9))


def test_context_parallel_training_refuses_linear_attention(alone):
    """Layers with linear attention would see only the tokens of their own rank."""
    sizes = {
        "vocab_size": 17,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_layers": 1,
        "num_heads": 2,
    }
    model = Decoder(DecoderConfig(**sizes, attention="linear"))
    with pytest.raises(RopeError, match=r"^parallel: must be ddp or fsdp with linear attention"):
        Parallel("context").wrap(model)
    assert isinstance(
        Parallel("context").wrap(Decoder(DecoderConfig(**sizes))),
        torch.nn.parallel.DistributedDataParallel,
    )


def test_linear_attention_in_a_ring_refuses_frequencies_that_depend_on_the_length(alone):
    """Each rank would take the number of its own tokens for the length."""
    rope, x = (
        rw.Rope(rw.RopeSpec(8, scaling=rw.frequencies.Dynamic(2.0, original_length=4))),
        torch.randn(1, 2, 6, 8),
    )
    with pytest.raises(RopeError, match=r"^scaling: must not depend on the length"):
        ring_linear_attention(x, x, x, rope)


@pytest.mark.parametrize(
    ("field", "make"),
    [
        (
            "rotary_value",
            lambda: (
                RoFormer(RoFormerConfig(**SIZES, rotary_value=True, attention_dropout=0.0))
                .layers[0]
                .attention
            ),
        ),
        ("layer", lambda: LatentAttention(32, 4, kv_rank=8, nope_dim=4, rope_dim=4, value_dim=4)),
        ("layer", lambda: Decoder(DecoderConfig(**SIZES, attention="linear")).layers[0].self_attn),
    ],
    ids=["rotary_value", "latent", "linear"],
)
def test_ring_attention_refuses_layers_that_attend_in_another_way(alone, field, make):
    with pytest.raises(RopeError, match=f"^{field}: .*ring attention"):
        ring_forward(make(), torch.randn(2, 9, 32), torch.arange(9))
