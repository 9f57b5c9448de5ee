"""What is kept between calls changes no result: bounded, keyed on everything, safe under threads,
forks and autograd modes.
"""

import math
import subprocess
import sys
import threading

import pytest
import torch

from ropewalk import axes
from ropewalk import frequencies as fq
from ropewalk.rope import Rope
from ropewalk.spec import RopeSpec
from ropewalk.strategies import memory
from ropewalk.table import TABLES, cos_sin, first_rows, tables

CPU, META = torch.device("cpu"), torch.device("meta")


@pytest.fixture(autouse=True)
def _empty_cache():
    TABLES.clear()
    yield
    TABLES.clear()


def test_the_cache_of_tables_drops_tables_at_its_bound_in_bytes(monkeypatch):
    one = RopeSpec(10)
    expected = cos_sin(one, torch.arange(9))
    size = tables(one, CPU).num_bytes
    assert TABLES.bytes == size == 2 * 2 * 1024 * 5 * 8 + 5 * 8
    monkeypatch.setattr(TABLES, "most_bytes", 3 * size)
    for theta in range(2, 12):
        cos_sin(RopeSpec(10, float(theta)), torch.arange(9))
        assert TABLES.bytes <= 3 * size
    assert len(TABLES) == 3
    assert all(
        torch.equal(a, b) for a, b in zip(cos_sin(one, torch.arange(9)), expected, strict=True)
    )


def test_every_field_and_device_has_a_table_of_its_own():
    specs = [
        RopeSpec(8),
        RopeSpec(8, 100.0),
        RopeSpec(8, scaling=fq.Linear(2.0)),
        RopeSpec(8, precision="hf"),
        RopeSpec(8, precision="hf_frequencies"),
        RopeSpec(8, scaling=fq.Given((1.0, 0.5, 0.25, 0.125))),
        RopeSpec(10, rotary_dim=8),
    ]
    kept = {id(tables(spec, device)) for spec in specs for device in (CPU, META)}
    assert len(kept) == len(TABLES) == 2 * len(specs)
    assert {id(tables(spec, device)) for spec in specs for device in (CPU, META)} == kept
    assert tables(specs[0], META).steps.device == META
    assert [table.device for table in first_rows(specs[0], META, 3)] == [META, META]
    assert tables(RopeSpec(8), CPU) is tables(specs[0], CPU)


def test_only_specs_with_fixed_frequencies_on_one_axis_keep_a_two_level_table():
    kept = tables(RopeSpec(8), CPU)
    assert [level.shape for level in kept.levels] == [(1024, 4)] * 4
    assert all(level.dtype == torch.float64 for level in kept.levels)
    assert kept.axis_of_pair is None
    assert tables(RopeSpec(8, precision="hf"), CPU).levels is None
    assert tables(RopeSpec(8, scaling=fq.Dynamic(2.0)), CPU).levels is None
    spread = tables(RopeSpec(8, axes=axes.axial(2, 2)), CPU)
    assert spread.levels is None
    assert spread.axis_of_pair.tolist() == [0, 0, 1, 1]
    assert spread.num_bytes == 4 * 8


def test_rows_grow_by_doubling_from_256():
    spec = RopeSpec(10)
    base = tables(spec, CPU).num_bytes
    for count, rows in ((1, 256), (256, 256), (257, 512), (100, 512), (2000, 2048), (3, 2048)):
        first_rows(spec, CPU, count)
        assert TABLES.bytes - base == rows * 5 * 2 * 4
    most = (2 << 20) // 40  # at most 2 MiB are kept, of rows of 40 bytes
    first_rows(spec, CPU, most)
    assert TABLES.bytes - base == most * 40


@pytest.mark.parametrize(
    ("count", "rows"),
    [(0, 256), (1, 256), (255, 256), (256, 256), (257, 512), (512, 512), (513, 1024)],
)
def test_rows_come_in_powers_of_two(count, rows):
    spec = RopeSpec(10)
    first_rows(spec, CPU, count)
    assert TABLES.bytes - tables(spec, CPU).num_bytes == rows * 5 * 2 * 4


@pytest.mark.parametrize("count", [1, 255, 256])
def test_cached_rows_are_reused_up_to_their_number(count):
    spec = RopeSpec(10)
    first, second = (
        first_rows(spec, CPU, 256)[0].data_ptr(),
        first_rows(spec, CPU, count)[0].data_ptr(),
    )
    assert first == second


def test_cos_and_sin_are_on_the_device_of_the_positions():
    positions = torch.arange(3, device=META)
    for spec in (
        RopeSpec(10),
        RopeSpec(10, scaling=fq.Dynamic(2.0)),
        RopeSpec(8, axes=axes.AxisMap((0,) * 4, 1)),
    ):
        assert [
            table.device
            for table in cos_sin(
                spec, positions if spec.axes is None else positions[None, None], length=7
            )
        ] == [META] * 2


def test_queries_and_keys_share_rows_unless_their_magnitudes_differ():
    for spec, sides in (
        (RopeSpec(10), 1),
        (RopeSpec(10, scaling=fq.Yarn(factor=4.0)), 1),
        (RopeSpec(10, scaling=fq.Yarn(factor=4.0), magnitude_on="q"), 2),
        (RopeSpec(10, scaling=fq.XPos()), 2),
    ):
        TABLES.clear()
        first_rows(spec, CPU, 5, key=False)
        first_rows(spec, CPU, 5, key=True)
        assert len(TABLES) == 1 + sides


def test_writing_to_returned_cos_and_sin_changes_no_later_call():
    spec = RopeSpec(10)
    rope, positions = Rope(spec), torch.arange(7)
    for call in (
        lambda: cos_sin(spec, positions),
        lambda: rope.cos_sin(positions),
        lambda: rope.cos_sin_hf(positions),
    ):
        before = [table.clone() for table in call()]
        for table in call():
            table.fill_(7.0)
        assert all(torch.equal(a, b) for a, b in zip(call(), before, strict=True))


def test_tables_made_under_inference_mode_serve_a_backward_later():
    spec = RopeSpec(10)
    with torch.inference_mode():
        cos_sin(spec, torch.arange(5))
        first_rows(spec, CPU, 5)
        cos_sin(
            RopeSpec(10, scaling=fq.LongRope((1.0,) * 5, (2.0,) * 5, 4)), torch.arange(5), length=5
        )
    kept = tables(spec, CPU)
    rows = first_rows(spec, CPU, 5)
    assert not any(
        t.is_inference() for t in (kept.steps, kept.frequencies.radians, *kept.levels, *rows)
    )
    x = torch.ones(5, 5, requires_grad=True)
    (x * rows[0] * cos_sin(spec, torch.arange(5))[1]).sum().backward()
    assert torch.equal(x.grad, rows[0] * rows[1])
    longrope = RopeSpec(10, scaling=fq.LongRope((1.0,) * 5, (2.0,) * 5, 4))
    x = torch.ones(5, 5, requires_grad=True)
    (x * cos_sin(longrope, torch.arange(5), length=5)[0]).sum().backward()


def test_no_cached_tensor_requires_a_gradient():
    first_rows(RopeSpec(10), CPU, 5)
    assert not any(
        t.requires_grad
        for t in (*first_rows(RopeSpec(10), CPU, 5), *tables(RopeSpec(10), CPU).levels)
    )


def test_eight_threads_get_the_same_rows_as_one(monkeypatch):
    specs = [RopeSpec(10, 100.0 * (i + 1)) for i in range(6)]
    counts = (3, 300, 257, 600)
    expected = {
        (spec, n): [t.clone() for t in first_rows(spec, CPU, n)] for spec in specs for n in counts
    }
    TABLES.clear()
    # two specs fit, so threads also evict each other's tables
    monkeypatch.setattr(TABLES, "most_bytes", 400_000)
    wrong, start = [], threading.Barrier(8)

    def hammer(seed: int):
        start.wait()
        try:
            for step in range(60):
                spec, n = specs[(seed * 7 + step * 5) % 6], counts[(seed + step) % 4]
                found = first_rows(spec, CPU, n) if step % 3 else cos_sin(spec, torch.arange(n))
                if not all(
                    torch.equal(a, b) for a, b in zip(found, expected[spec, n], strict=True)
                ):
                    wrong.append((spec, n))
                if step % 20 == 19:
                    TABLES.clear()
        except Exception as error:  # a thread's exception would be lost otherwise
            wrong.append(error)

    threads = [threading.Thread(target=hammer, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert wrong == []
    assert TABLES.bytes <= 400_000


FORK = """
import os, threading, time, torch
from ropewalk.spec import RopeSpec
from ropewalk.table import TABLES, cos_sin
torch.set_num_threads(1)
spec, positions = RopeSpec(10), torch.arange(5)
expected = cos_sin(spec, positions)
held = threading.Event()
def hold():
    with TABLES._lock:
        held.set()
        time.sleep(30)
threading.Thread(target=hold, daemon=True).start()
held.wait()
child = os.fork()
if child == 0:
    same = all(torch.equal(a, b) for a, b in zip(cos_sin(spec, positions), expected))
    fresh = cos_sin(RopeSpec(12), positions)[0].shape == (5, 6)
    os._exit(0 if same and fresh else 1)
for _ in range(100):
    done, status = os.waitpid(child, os.WNOHANG)
    if done:
        os._exit(os.waitstatus_to_exitcode(status))
    time.sleep(0.1)
os.kill(child, 9)
os._exit(3)
"""


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="this system cannot fork")
def test_a_forked_child_is_not_stopped_by_a_lock_its_parent_held():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK], timeout=60, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


KINDS = [
    RopeSpec(128),
    RopeSpec(10),
    RopeSpec(10, precision="hf"),
    RopeSpec(8, axes=axes.axial(2, 2)),
    RopeSpec(8, axes=axes.normalised(4)),
    RopeSpec(8, scaling=fq.Dynamic(2.0)),
]


@pytest.mark.parametrize("spec", KINDS)
def test_memory_returns_the_bytes_that_each_strategy_keeps(spec):
    for length in (1, 256, 300, 4096, 2**20):
        TABLES.clear()
        figures = memory(spec, length)
        kept = tables(spec, CPU)
        first_rows(spec, CPU, min(length, (2 << 20) // (8 * spec.pairs)))
        assert figures["auto"] == TABLES.bytes
        assert figures["none"] == kept.steps.numel() * 8 == spec.pairs * 8
        if "two-level" in figures:
            assert figures["two-level"] == figures["none"] + sum(
                level.numel() * 8 for level in kept.levels
            )
            assert figures["two-level"] == (1 + 2 * 2 * 1024) * 8 * spec.pairs
        if "full" in figures:
            rows = max(256, 2 ** math.ceil(math.log2(length)))
            assert figures["full"] == figures["none"] + 2 * 4 * spec.pairs * rows


def test_a_million_positions_keep_four_mebibytes():
    """Beside the 512 bytes of the frequencies themselves; a full table would take 512 MiB."""
    figures = memory(RopeSpec(128), 2**20)
    assert figures["auto"] - figures["none"] <= 4 * 2**20
    assert figures["full"] - figures["none"] == 512 * 2**20
