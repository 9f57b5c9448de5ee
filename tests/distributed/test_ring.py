"""Sequence parallel attention: the ring against one process, on four ranks and on pairs; shards,
tiles, engines, lost ranks.

The ranks are processes of their own (ranks.py); what they do is in ring_cases.py and mesh_cases.py.
"""

import json
import math
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import cuda_cases
import lost_rank
import mesh_cases
import pytest
import random_cases
import ranks
import ring_cases
import torch
import torch.distributed as dist
from torch._subclasses import FakeTensorMode

import ropewalk
from another_process import start_processes
from ropewalk.attention import Attention
from ropewalk.distributed.context_parallel import torch_why_not
from ropewalk.distributed.ring import pick_engine, ring_attention, ring_forward
from ropewalk.distributed.sharding import SHARD_KINDS, shard_positions
from ropewalk.distributed.tiles import Masking, Tile, attend_tile, bias_of, merge, spans
from ropewalk.encodings import ENCODINGS, make_encoding
from ropewalk.encodings.base import Encoding
from ropewalk.errors import RopeError
from torch_release import needs_torch_2_7

# largest allowed error by a word in the case's name; the biases of KERPLE and FIRE are float32 even
# where x is float64
BOUNDS = {
    "bfloat16": 0.02,
    "float32": 1e-5,
    "kerple": 1e-6,
    "fire": 1e-6,
}


@pytest.fixture(scope="module")
def found(tmp_path_factory, request):
    """What four ranks measured, {case: result} of each."""
    draws = 1000 if request.config.getoption("--full") else 20
    return ranks.measured(
        4, tmp_path_factory.mktemp("ranks"), partial(ring_cases.of_all_files, draws)
    )


@pytest.fixture
def alone():
    """A group of one rank, in this process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def failures(results, holds):
    return {
        name: result
        for name, result in results.items()
        if isinstance(result, str) or not holds(name, result)
    }


@pytest.mark.parametrize("comparing", [0, 2])
@pytest.mark.parametrize("kind", ["encoding", "linear", "softmax"])
def test_many_ranks_equal_one_process_forward_and_backward(found, kind, comparing):
    """Of the two groups of two ranks, each has its first rank (0 and 2 of the world) compare."""
    of_kind = lambda name: (
        next((k for k in ("encoding", "linear") if f"ranks, {k}" in name), "softmax") == kind
    )
    results = {name: result for name, result in found[comparing]["ring"].items() if of_kind(name)}
    bound = lambda name: next((bound for word, bound in BOUNDS.items() if word in name), 1e-10)
    assert len(results) >= 14
    assert failures(results, lambda name, wrong: wrong <= bound(name)) == {}


@pytest.mark.parametrize("rank", range(4))
@pytest.mark.parametrize("kind", random_cases.DRAWS)
def test_random_shards_equal_the_definition_on_the_whole_sequence(found, kind, rank):
    """Uneven and empty shards, any order, documents, padding anywhere; outputs, gradients and
    states.
    """
    assert found[rank]["random"][kind] == {}


@pytest.mark.parametrize("rank", range(4))
def test_arguments_that_differ_between_ranks_raise_the_same_error_on_every_rank(found, rank):
    """Without a check these would abort the process, hang or go unnoticed."""
    fields = {
        "head_tail of other sizes": "order",
        "head_tail of an odd size": "seq",
        "an index twice": "order",
    }
    fields |= {"another batch": "batch", "another order": "order", "another causality": "causal"}
    expected = {
        f"{name}, {kind}": field for name, field in fields.items() for kind in ("softmax", "linear")
    }
    expected |= {
        "another dtype, softmax": "k dtype",
        "another dtype, linear": "dtype",
        "striped, linear": "order",
    }
    expected |= {f"{name} on one rank": f"{name} given" for name in ("padding", "documents")} | {
        "other positions": "leading axes of k_positions"
    }
    expected |= {"unshard of another width": "axis 1 of x", "unshard of another dtype": "dtype"}
    assert found[rank]["refusals"] == expected | {"unshard of head_tail shards": "order"}


def test_every_encoding_is_among_the_ring_cases(found):
    assert {f"2 ranks, encoding {name}" for name in ENCODINGS} <= set(found[0]["ring"])


@needs_torch_2_7("a DTensor cannot be rotated in place; the other cases pass")
def test_a_rotated_dtensor_equals_the_rotated_whole_tensor(found):
    results = {name: result for name, result in found[0]["mesh"].items() if name != "fsdp"}
    assert failures(results, lambda _, result: result[0] < 1e-6) == {}


@needs_torch_2_7("a DTensor cannot be rotated in place; the other cases pass")
def test_a_dtensor_is_gathered_or_refused_only_if_it_cannot_stay_sharded(found):
    """Pairs cannot be torn apart, and tokens without positions cannot be counted from the middle."""
    gathered = {name for name, (_, stayed) in found[0]["mesh"].items() if not stayed}
    cuts = (
        "tokens cut, positions counted",
        *(f"head_dim cut, positions {at}" for at in ("counted", "shared", "rows")),
    )
    refused = {"in place, axis 2 cut", "in place, axis 3 cut"}
    assert gathered == {f"{order}, {cut}" for order in mesh_cases.SHAPES for cut in cuts} | refused


@needs_torch_2_7("fully_shard needs an accelerator")
def test_fsdp_mixed_precision_leaves_angles_exact(found):
    assert (
        failures({"fsdp": found[0]["mesh"]["fsdp"]}, lambda _, result: result == [0.0, True]) == {}
    )


@pytest.mark.parametrize("how", lost_rank.SECONDS)
def test_a_silent_or_a_lost_rank_is_an_error_not_a_hang(tmp_path, how):
    context = start_processes(lost_rank.work, (str(tmp_path), how), 2, join=False)
    for process in context.processes:
        process.join(90)
    assert [process.exitcode for process in context.processes] == [0, lost_rank.LOST]
    found, wait = json.loads((tmp_path / f"{how}.json").read_text()), lost_rank.SECONDS[how]
    assert found["error"] != ""
    assert (
        wait - 0.5 <= found["seconds"] < wait + 10 if how == "silent" else found["seconds"] < wait
    )


@pytest.mark.gpu
@pytest.mark.parametrize(("engine", "world"), [("torch", 2), ("ring", 1)])
def test_both_engines_on_a_gpu_equal_the_definition(tmp_path, engine, world):
    (results, *_) = ranks.measured(
        world, tmp_path, cuda_cases.of_torch if engine == "torch" else cuda_cases.of_ring
    )
    assert len(results) >= 3
    assert (
        failures(results, lambda name, wrong: wrong <= (1e-4 if "float32" in name else 0.05)) == {}
    )


def test_the_script_on_the_page_runs(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "distributed.md").read_text(encoding="utf-8")
    (script,) = [
        body
        for body in re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
        if "spawn(" in body
    ]
    (tmp_path / "ring.py").write_text(script)
    environment = os.environ | {"PYTHONPATH": str(Path(ropewalk.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "ring.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    largest = [float(number) for number in re.findall(r"largest difference (\S+)", done.stdout)]
    assert len(largest) == 1
    assert largest[0] < 1e-5


@pytest.mark.parametrize("kind", SHARD_KINDS)
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_shards_are_a_partition(kind, world):
    held = [shard_positions(24, rank, world, kind) for rank in range(world)]
    assert sorted(torch.cat(held).tolist()) == list(range(24))
    assert {len(each) for each in held} == {24 // world}


def test_head_tail_shards_see_as_many_keys_on_every_rank():
    assert shard_positions(32, 0, 2, "head_tail").tolist() == [*range(8), *range(24, 32)]
    assert shard_positions(32, 1, 2, "head_tail").tolist() == list(range(8, 24))
    assert shard_positions(32, 1, 2).tolist() == list(range(16, 32))
    keys_seen = {int((shard_positions(48, rank, 4, "head_tail") + 1).sum()) for rank in range(4)}
    assert len(keys_seen) == 1


@pytest.mark.parametrize(
    ("kind", "seq", "longer"),
    [("contiguous", 10, 12), ("head_tail", 12, 16), ("head_tail", 17, 24)],
)
def test_a_length_that_does_not_divide_is_refused_with_the_fix(kind, seq, longer):
    with pytest.raises(RopeError, match=f"pad it to {longer}"):
        shard_positions(seq, 0, 4, kind)
    shard_positions(longer, 0, 4, kind)


@pytest.mark.parametrize("window", [None, 1, 5])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kind", SHARD_KINDS)
@pytest.mark.parametrize("tile", [1, 3, 64])
def test_tiles_hold_every_visible_pair_once_and_none_is_empty(tile, kind, causal, window):
    masking, world, seq = Masking(bias=None, scale=1.0, causal=causal, window=window), 3, 24
    times = torch.zeros(seq, seq, dtype=torch.int64)
    for ours in (shard_positions(seq, rank, world, kind) for rank in range(world)):
        for theirs in (shard_positions(seq, rank, world, kind) for rank in range(world)):
            for q in spans(ours, tile):
                for k in spans(theirs, tile):
                    if masking.hides(q, k):
                        continue
                    q_index, k_index = ours[q.local], theirs[k.local]
                    allowed = masking.allowed(q, k, q_index, k_index, q_index.device)
                    allowed = (
                        torch.ones(len(q_index), len(k_index), dtype=torch.bool)
                        if allowed is None
                        else allowed
                    )
                    assert allowed.any()
                    times[q_index[:, None], k_index[None, :]] += allowed
    ahead = torch.arange(seq)[None, :] - torch.arange(seq)[:, None]
    visible = (ahead <= 0 if causal else ahead == ahead) & (ahead.abs() < (window or seq))
    assert torch.equal(times, visible.long())


def test_causality_skips_as_many_tiles_on_every_rank_of_head_tail():
    masking, world, seq, tile = Masking(bias=None, scale=1.0, causal=True, window=None), 4, 64, 8
    every = [spans(shard_positions(seq, rank, world, "head_tail"), tile) for rank in range(world)]
    seen = [
        sum(not masking.hides(q, k) for other in every for q in ours for k in other)
        for ours in every
    ]
    assert seen == [9] * world  # 1 + 8, 2 + 7, 3 + 6, 4 + 5 of 16


@pytest.mark.parametrize("size", [1.0, 1e4])
def test_parts_merge_to_the_softmax_of_the_whole_whatever_their_size(size):
    q, k, v = (torch.randn(1, 3, 7, 4, dtype=torch.float64) * s for s in (size, 1.0, 1.0))
    allowed = torch.rand(7, 7) > 0.5
    allowed[2] = False
    allowed[:, 0], allowed[2, 0] = True, False
    masking = Masking(bias=None, scale=0.5, causal=False, window=None)
    out, log_sum = torch.zeros(1, 3, 7, 4).double(), torch.full((1, 3, 7), -math.inf).double()
    for part in (slice(0, 1), slice(1, 5), slice(5, 7)):
        merge(
            out,
            log_sum,
            *attend_tile(masking, Tile(q, k[:, :, part], v[:, :, part], allowed=allowed[:, part])),
        )
    scores = (q @ k.mT * 0.5).masked_fill(~allowed, -math.inf)
    torch.testing.assert_close(out, scores.softmax(dim=-1).nan_to_num() @ v)
    torch.testing.assert_close(log_sum, scores.logsumexp(dim=-1))
    assert not out[:, :, 2].any()


def on_cuda(*shape, dtype=torch.bfloat16):
    with FakeTensorMode():
        return torch.empty(shape, dtype=dtype, device="cuda")


@pytest.mark.parametrize(
    ("reason", "change"),
    [
        (None, {}),
        ("CUDA", {"q": torch.randn(1, 4, 8, 6)}),
        ("bias", {"encoding": "alibi"}),
        ("bias", {"encoding": "nezha"}),
        (None, {"encoding": "rope"}),
        ("not by window", {"window": 3}),
        ("not by documents", {"hidden": ["documents"]}),
        ("head_tail", {"order": torch.arange(8)}),
        ("head_tail", {"order": "contiguous"}),
        ("causal", {"causal": False}),
        ("float64", {"dtype": torch.float64}),
        (None, {"kv_heads": 2}),
        ("between heads", {"kv_heads": 2, "dtype": torch.float32}),
    ],
)
def test_torch_why_not_names_what_the_engine_of_torch_cannot_run(reason, change):
    given = {
        "order": "head_tail",
        "causal": True,
        "window": None,
        "hidden": [],
        "dtype": torch.bfloat16,
        "kv_heads": 4,
    } | change
    q = given.get("q", on_cuda(1, 4, 8, 6, dtype=given["dtype"]))
    k = on_cuda(1, given["kv_heads"], 8, 6, dtype=given["dtype"])
    encoding = (
        make_encoding(change["encoding"], num_heads=4, head_dim=6) if "encoding" in change else None
    )
    got = torch_why_not(
        q,
        k,
        Masking(bias_of(encoding), 1.0, given["causal"], given["window"]),
        given["order"],
        given["hidden"],
    )
    assert got is None if reason is None else reason in got


def test_the_engine_is_chosen_with_a_reason(alone):
    here, cuda, plain = (
        torch.randn(1, 2, 4, 6),
        on_cuda(1, 2, 4, 6),
        Masking(bias=None, scale=1.0, causal=True, window=None),
    )
    assert pick_engine(here, here, plain, "head_tail") == (
        "ring",
        torch_why_not(here, here, plain, "contiguous"),
    )
    assert pick_engine(cuda, cuda, plain, "head_tail")[0] == "torch"
    assert pick_engine(cuda, cuda, plain, "head_tail", name="ring") == ("ring", "requested")
    for masks in (
        {"documents": on_cuda(1, 4, dtype=torch.int64)},
        {"padding": on_cuda(1, 4, dtype=torch.bool)},
    ):
        assert next(iter(masks)) in pick_engine(cuda, cuda, plain, "head_tail", masks)[1]
        with pytest.raises(RopeError, match=f"not by {next(iter(masks))}"):
            ring_attention(cuda, cuda, cuda, order="head_tail", engine="torch", **masks)
    with pytest.raises(RopeError, match=r"'torch' cannot run this attention: .*use 'ring'"):
        ring_attention(here, here, here, engine="torch")


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("must divide", {"k": torch.randn(1, 2, 4, 6)}),
        ("must divide", dict.fromkeys("kv", torch.randn(1, 0, 4, 6))),
        ("k must have q's batch, S and D", {"k": torch.randn(1, 3, 5, 6)}),
        ("the bias depends on them", {"encoding": lambda q, a, b: None}),
        (r"must be integer \[1, 4\]", {"documents": torch.zeros(1, 8, dtype=torch.int64)}),
        (r"must be boolean \[1, 4\]", {"padding": torch.ones(4, dtype=torch.bool)}),
        (r"must be boolean \[1, 4\]", {"padding": torch.ones(1, 4, dtype=torch.int64)}),
        ("v must have k's batch, heads and S", {"v": torch.randn(1, 3, 5, 6)}),
        ("this rank's 4 tokens", {"q_positions": torch.arange(5)}),
        ("this rank's 4 tokens", {"q_positions": torch.arange(4), "k_positions": torch.arange(5)}),
        ("index of its own", {"order": torch.tensor([0, 1, 1, 2])}),
        ("integer index", {"order": torch.arange(3)}),
        ("integer index", {"order": torch.ones(4, dtype=torch.bool)}),
        ("contiguous, head_tail", {"order": "zigzag"}),
        ("pad it to", {"order": "head_tail"} | dict.fromkeys("qkv", torch.randn(1, 3, 5, 6))),
        ("ring, torch", {"engine": "nccl"}),
        ("scale", {"scale": 0.0}),
    ],
)
def test_bad_arguments_of_ring_attention_are_refused(alone, rule, change):
    given = {
        "q": torch.randn(1, 3, 4, 6),
        "k": torch.randn(1, 3, 4, 6),
        "v": torch.randn(1, 3, 4, 6),
    } | change
    with pytest.raises(RopeError, match=rule):
        ring_attention(**given)


def test_dropout_is_refused_in_training_only(alone):
    layer = Attention(8, 2, dropout=0.5)
    with pytest.raises(RopeError, match="dropout"):
        ring_forward(layer, torch.randn(1, 4, 8), torch.arange(4))
    assert ring_forward(layer.eval(), torch.randn(1, 4, 8), torch.arange(4)).shape == (1, 4, 8)


def test_one_rank_is_plain_attention(alone):
    """Some of the cases in this process, where types are checked."""
    cases = ring_cases.softmax_cases(None) | ring_cases.linear_cases(None)
    kept = ("rope head_tail", "packed, both ways", "window", "any order", "padded", "any bias")
    wrong = {
        name: case()
        for name, case in cases.items()
        if name.endswith(kept) and "contiguous" not in name
    }
    assert len(wrong) >= 8
    assert {name: error for name, error in wrong.items() if error > 1e-10} == {}


def test_bias_of_is_none_for_encodings_that_add_nothing_to_scores():
    assert {
        name
        for name, kind in ENCODINGS.items()
        if bias_of(make_encoding(name, num_heads=2, head_dim=6)) is not None
    } == {name for name, kind in ENCODINGS.items() if kind.bias is not Encoding.bias}
