"""One test for each known failure of other libraries that the definition, the tables and the
rotation could have too: numbers and state.

The numbers in the names are those of a list of known failures that is not in this repository:
`item` for bugs reported in projects, `w` for those measured in transformers. Items about shapes and
calls are in test_reliability_calls.py; those about configs and files are tested with the code that
reads them.
"""

from __future__ import annotations

import copy
import random
import threading

import pytest
import torch
from torch.testing import assert_close

import ropewalk as rw
from door import as_users_call, assert_refused
from helpers import DTYPES, HEAD_DIM, definition, exactly, sample_scaling, sample_spec, ulps, x_of
from ropewalk import frequencies, rotation
from ropewalk.table import TABLES
from tensor_forms import tensors

B, H, S = 2, 3, 7
FOLLOWS_LENGTH = pytest.mark.parametrize("name", ["dynamic", "longrope", "dynamic_yarn"])


@pytest.mark.parametrize("cast", ["half", "bfloat16", "float"])
def test_item_01_w04_casting_the_module_rounds_no_frequency(cast):
    rope, x = rw.Rope(sample_spec()), x_of()
    getattr(rope, cast)()
    rope.float()
    exactly(rope(x, offset=30_000), definition(x, rope.spec, torch.arange(S) + 30_000))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("position", [257, 60_001])
def test_item_02_16_bit_tensors_are_rotated_by_exact_angles(dtype, position):
    rope, x = rw.Rope(sample_spec()), x_of(dtype=dtype)
    positions = torch.arange(S) + position
    assert ulps(rope(x, positions=positions), definition(x, rope.spec, positions)) <= 1.05


def test_item_03_autocast_does_not_merge_far_positions():
    rope, positions = rw.Rope(sample_spec()), torch.arange(S) + 65_536
    x = torch.ones(1, 1, S, HEAD_DIM)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = rope(x, positions=positions)
    exactly(found, definition(x, rope.spec, positions))
    assert len({tuple(row) for row in found[0, 0].tolist()}) == S


@pytest.mark.parametrize("inplace", [False, True])
def test_item_04_w05_each_tensor_keeps_its_dtype(inplace):
    q, k = rw.Rope(sample_spec())(x_of(), x_of(dtype=torch.bfloat16), inplace=inplace)
    assert (q.dtype, k.dtype) == (torch.float32, torch.bfloat16)


@pytest.mark.parametrize("position", [4_095, 131_071, 10**6, 10**7])
def test_item_05_w01_long_contexts_cost_no_accuracy(position):
    # Llama 3.1, where float32 angles are off by 2e-3 at 131,071 and by 0.09 at 10^7
    spec = rw.RopeSpec(
        128, theta=500_000.0, scaling=frequencies.Llama3(factor=8.0, original_length=8192)
    )
    x = x_of(1, H, 1, 128)
    exactly(
        rotation.rotate(x, spec, torch.tensor([position])),
        definition(x, spec, torch.tensor([position])),
        1e-6,
    )
    wide = x.double()
    exactly(
        rotation.rotate(wide, spec, torch.tensor([position])),
        definition(wide, spec, torch.tensor([position])),
        6e-9,
    )


@pytest.mark.parametrize("edge", [2851, 2**24, 2**31 - 1, 2**31, 2**32, 2**40])
def test_item_06_neighbouring_positions_differ_by_one_radian_past_the_limits_of_float32_and_int32(
    edge,
):
    rope, x = rw.Rope(rw.RopeSpec(2)), torch.tensor([[1.0, 0.0]] * 3, dtype=torch.float64)
    rotated = rope(x, positions=torch.tensor([edge - 1, edge, edge + 1]))
    for a, b in ((0, 1), (1, 2)):
        exactly(rotated[a] @ rotated[b], torch.tensor(1.0, dtype=torch.float64).cos(), 1e-7)


@pytest.mark.parametrize("name", ["default", "dynamic", "longrope"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_item_07_narrow_integers_do_not_overflow(name, dtype):
    """The last position of each width: one past it must not wrap, neither as a position nor as a
    length.
    """
    rope, x, last = rw.Rope(sample_spec(name)), x_of(1, H, S, HEAD_DIM), torch.iinfo(dtype).max
    positions = torch.arange(last - S + 1, last + 1)
    assert torch.equal(rope(x, positions=positions.to(dtype)), rope(x, positions=positions))
    offset = torch.tensor([last])
    assert torch.equal(rope(x, offset=offset.to(dtype)), rope(x, offset=offset))
    assert torch.equal(rope(x, length=offset.to(dtype)), rope(x, length=last))


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.float16, torch.bfloat16, torch.float32, torch.float64]
)
def test_item_07_w06_positions_that_are_no_integers_are_refused(dtype):
    assert_refused(
        "positions", lambda: rw.Rope(sample_spec())(x_of(), positions=torch.ones(S, dtype=dtype))
    )


@FOLLOWS_LENGTH
@pytest.mark.parametrize("short", [4, 64, 65, 100])
def test_item_08_w07_a_long_call_does_not_change_a_later_short_one(name, short):
    x = x_of(1, H, 300, HEAD_DIM)
    rope, fresh = (rw.Rope(sample_spec(name, theta=theta)) for theta in (9_999.0, 9_999.0))
    rope(x)
    exactly(
        rope(x[:, :, :short]), definition(x[:, :, :short], fresh.spec, torch.arange(short), short)
    )


@FOLLOWS_LENGTH
def test_item_09_w08_a_long_row_does_not_change_its_mates(name):
    rope, x = rw.Rope(sample_spec(name)), x_of()
    positions = torch.stack([torch.arange(S), torch.arange(S) + 500])
    assert torch.equal(rope(x, positions=positions)[:1], rope(x[:1], positions=positions[0]))
    offsets = torch.tensor([0, 500])
    assert torch.equal(rope(x, offset=offsets)[:1], rope(x[:1]))


@pytest.mark.parametrize("name", rw.frequencies.SCALINGS)
def test_item_10_calls_of_one_length_keep_their_own_offsets(name):
    rope, x = rw.Rope(sample_spec(name)), x_of()
    length = 60 if rope.spec.needs_length else None
    for offset in (0, 20, 3, 20, 0):
        exactly(
            rope(x, offset=offset, length=length),
            definition(x, rope.spec, torch.arange(S) + offset, length),
            1e-5,
        )


@pytest.mark.parametrize("first", DTYPES)
def test_item_11_the_dtype_of_the_first_call_does_not_round_later_ones(first):
    rope = rw.Rope(sample_spec(theta=1_000.0 + DTYPES.index(first)))
    rope(x_of(dtype=first))
    wide = x_of().double()
    exactly(rope(wide), definition(wide, rope.spec, torch.arange(S)), 1e-13)
    rope.cos_sin(torch.arange(S), first)
    assert rope.cos_sin(torch.arange(S))[0].dtype == torch.float32


def test_item_12_what_was_kept_under_inference_mode_can_be_differentiated():
    rope = rw.Rope(sample_spec(theta=2_222.0))
    with torch.inference_mode():
        rope(x_of(), x_of())
    x = x_of().requires_grad_()
    rope(x, x)[0].pow(2).sum().backward()
    assert_close(x.grad, 2 * x.detach())


def test_item_13_no_spec_gets_the_table_of_another():
    """Specs that differ in one field each, called in turn with the same length."""
    base = sample_spec("yarn")
    specs = [
        base,
        base.with_(theta=500.0),
        base.with_(layout="interleaved"),
        base.with_(magnitude_on="q"),
        base.with_(rotary_dim=6),
    ]
    specs += [
        base.with_(scaling=sample_scaling(name)) for name in ("default", "linear", "ntk", "given")
    ]
    specs += [
        base.with_(
            scaling=frequencies.Yarn(factor=4.0, original_length=64, beta_fast=8.0, truncate=False)
        )
    ]
    ropes = [rw.Rope(spec) for spec in specs]
    ropes += [copy.deepcopy(rope) for rope in ropes]
    x = x_of()
    for _ in range(2):
        for rope in ropes:
            exactly(rope(x), definition(x, rope.spec, torch.arange(S)), 1e-5)


def test_item_14_w09_threads_do_not_disturb_each_other(full):
    """Eight threads, random specs, lengths, dtypes and ways to call, from an empty cache: the same
    bits as alone.
    """
    names = ["default", "dynamic", "longrope", "yarn", "xpos", "dynamic_yarn"]
    ropes = {name: rw.Rope(sample_spec(name)) for name in names}
    inputs = {dtype: torch.randn(1, 1, 100, HEAD_DIM).to(dtype) for dtype in DTYPES}
    cases = [
        (n, d, length, offset)
        for n in names
        for d in DTYPES
        for length in (1, 7, 65, 100)
        for offset in (0, 3, 20)
    ]
    seen: list[tuple[tuple, torch.Tensor]] = []

    def call(name, dtype, length, offset):
        x = inputs[dtype][:, :, :length]
        return (
            ropes[name](x, offset=offset)
            if offset % 2
            else ropes[name](x, positions=torch.arange(length) + offset)
        )

    def work(seed):
        dice = random.Random(seed)
        for _ in range(1250 if full else 250):
            case = dice.choice(cases)
            seen.append((case, call(*case)))

    TABLES.clear()
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    with as_users_call():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        alone = {case: call(*case) for case in cases}
    assert len(seen) == 8 * (1250 if full else 250)
    assert [case for case, found in seen if not torch.equal(found, alone[case])] == []


def test_item_15_a_returned_table_is_not_the_kept_one():
    rope, x = rw.Rope(sample_spec(theta=3_333.0)), x_of()
    rope(x)
    for table in (*rope.cos_sin(torch.arange(S)), *rope.cos_sin(torch.arange(256))):
        table.fill_(9)
    exactly(rope(x), definition(x, rope.spec, torch.arange(S)))


def test_item_16_w10_a_rope_built_on_meta_rotates_after_to_empty():
    with torch.device("meta"):
        rope = rw.Rope(sample_spec("yarn"))
    x = x_of()
    exactly(rope.to_empty(device="cpu")(x), definition(x, rope.spec, torch.arange(S)))


@pytest.mark.parametrize("name", rw.frequencies.SCALINGS)
def test_item_16_under_a_meta_default_device_frequencies_have_values(name):
    """A model that is built on the meta device may read frequencies and rotate real tensors; its
    calls and later ones follow the definition.
    """
    spec = sample_spec(name, "chunked", theta=6_666.0)
    x, positions = x_of(1, H, S, HEAD_DIM), torch.arange(S).expand(3, 1, S)
    length = 20 if spec.needs_length else None
    with torch.device("meta"):
        assert not tensors(spec, length).radians.is_meta
        assert spec.softmax_factor == 1.0
        inside = rw.Rope(spec).to_empty(device="cpu")
        inside.reset_parameters()
        found = inside(x, positions=positions, length=length)
    for each in (found, rw.Rope(spec)(x, positions=positions, length=length)):
        exactly(each, definition(x, spec, positions, length))


def test_item_17_frequencies_in_old_checkpoints_are_ignored():
    rope, x = rw.Rope(sample_spec()), x_of()
    rope.load_state_dict({"inv_freq": torch.full((5,), 7.0), "cos_cached": torch.zeros(9)})
    exactly(rope(x), definition(x, rope.spec, torch.arange(S)))


def test_item_18_a_rope_has_no_parameter_or_buffer_that_ddp_or_fsdp_cannot_handle():
    rope = rw.Rope(sample_spec("yarn"))
    assert not [*rope.parameters(), *rope.buffers()]
    assert all(
        parameter.requires_grad and not parameter.is_complex()
        for parameter in rw.Rope(sample_spec("learnable")).parameters()
    )


def test_item_19_another_device_gets_tables_of_its_own():
    rope = rw.Rope(sample_spec(theta=4_444.0))
    assert rope(x_of().to("meta")).is_meta
    x = x_of()
    exactly(rope(x), definition(x, rope.spec, torch.arange(S)))
    assert rope(x_of().to("meta")).is_meta


def test_item_20_the_strides_of_a_tensor_change_no_bit():
    spec, x = sample_spec(), x_of()
    for view in (
        x.transpose(1, 2).contiguous().transpose(1, 2),
        x.mT.contiguous().mT,
        x[:, :1].expand(B, H, S, HEAD_DIM),
        x[:, ::2],
    ):
        assert torch.equal(rotation.rotate(view, spec), rotation.rotate(view.contiguous(), spec))
