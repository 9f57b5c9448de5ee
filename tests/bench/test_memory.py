"""The peak memory of a call: what torch's allocator hands out for it, counted against sizes known
by hand.
"""

import pytest
import torch

import ropewalk.kernels
from ropewalk_lab.bench import cases, contenders, cpu, tables
from ropewalk_lab.bench.memory import peak_bytes

SIZE = 40_000 * 4


@pytest.fixture
def x():
    return torch.randn(40_000)


def freed_between(x):
    y = x * 2
    y = y * 3  # both at once, then the first is freed
    z = y * 4
    del y
    return z


@pytest.mark.parametrize(
    ("call", "tensors"),
    [
        (lambda x: x.mul_(2), 0),
        (lambda x: x.view(200, 200), 0),
        (lambda x: x + 1, 1),
        (lambda x: (x + 1, x.double()), 3),
        (lambda x: (x * 2) + (x * 3), 3),
        (freed_between, 2),
        (lambda x: [x + 1 for _ in range(5)], 5),
        (lambda x: [0 for _ in range(5) if (x + 1).sum() > 0], 1),
    ],
)
def test_the_peak_is_what_is_held_at_once(x, call, tensors):
    # beside scalars and sums of a few bytes
    assert peak_bytes(lambda: call(x)) == pytest.approx(tensors * SIZE, abs=200)


def test_the_peak_on_a_gpu_is_what_the_call_adds(monkeypatch):
    """The counters of a GPU, played by hand: bytes held before the call, and an older peak, are not
    the call's.
    """
    held = {"now": 500, "peak": 9_000}

    def call():
        held["peak"] = max(held["peak"], held["now"] + 70)  # 70 at once, of which 30 stay
        held["now"] += 30

    counters = {
        "synchronize": lambda: None,
        "memory_allocated": lambda: held["now"],
        "max_memory_allocated": lambda: held["peak"],
        "reset_peak_memory_stats": lambda: held.update(peak=held["now"]),
    }
    for name, counter in counters.items():
        monkeypatch.setattr(torch.cuda, name, counter)
    assert peak_bytes(call, "cuda") == 70


@pytest.mark.parametrize("dtype", cpu.DTYPES)
def test_rotating_in_place_allocates_nothing_and_otherwise_only_the_results(monkeypatch, dtype):
    monkeypatch.setitem(cases.SHAPES, "tiny", (2, 64, 4, 2, 64, dtype))
    case = cases.make_case("tiny", "bhsd")
    reason = ropewalk.kernels.available("cpu")["cpu"]
    if reason:
        pytest.skip(reason)
    calls = {
        name: contenders.CONTENDERS[name](case)
        for name in ("ropewalk", "ropewalk, in place", "transformers, eager")
    }
    with torch.no_grad():
        peaks = {
            name: peak_bytes(lambda call=call: call(case.q, case.k)) for name, call in calls.items()
        }
        optimised, efficient = (
            contenders.CONTENDERS[name](case)
            for name in tables.WAYS.values()
            if "basic" not in name
        )
        assert all(
            map(torch.equal, optimised(case.q, case.k), efficient(case.q.clone(), case.k.clone()))
        )
    assert peaks["ropewalk, in place"] == 0
    assert peaks["ropewalk"] == case.bytes
    # q*cos, rotate_half(q) and its product with sin are held at once, beside the result; then those
    # of k beside the new q
    assert peaks["transformers, eager"] > case.bytes


def test_rows_and_the_printed_table_have_the_peak_memory(monkeypatch, capsys):
    monkeypatch.setitem(cases.SHAPES, "tiny", (2, 64, 4, 2, 64, torch.float32))
    case = cases.make_case("tiny", "bhsd")
    found = {row["pass"]: row for row in cpu._case_rows(case, "bhsd", ("ropewalk",), rounds=2)}
    assert found["forward"]["peak_bytes"] >= case.bytes
    # the results, and the gradients of both
    assert found["forward+backward"]["peak_bytes"] >= 2 * case.bytes
    from ropewalk_cli.commands import bench

    bench._show_times(list(found.values()))
    printed = capsys.readouterr().out
    assert "peak MB" in printed
    assert f"{found['forward']['peak_bytes'] / 1e6:.2f}" in printed


def test_large_shapes_are_timed_in_fewer_rounds(monkeypatch):
    calls = []
    monkeypatch.setattr(cpu, "ENOUGH", 0.0)
    monkeypatch.setattr(cpu, "WARM_UP", 0.0)
    cpu.alternating_times(
        {"slow": lambda: (calls.append(1), sum(range(200_000)))}, rounds=50, at_least=0.0
    )
    # two calls to see how long one takes, then three rounds of an untimed and a timed call
    assert len(calls) == 2 + 3 * 2


def test_a_group_is_replaced_by_its_shapes_without_repetition():
    assert cases.shape_names(["A", "doc shapes", "8x32x512x64"]) == (
        "A",
        *cases.GROUPS["doc shapes"],
    )
    for name in cases.GROUPS["doc shapes"]:
        batch, seq, heads, kv_heads, head_dim, _ = cases.SHAPES[name]
        assert name == f"{batch}x{heads}x{seq}x{head_dim}"
        assert heads == kv_heads


def test_the_table_of_doc_shapes_shows_measured_times_and_memory_beside_claimed_ones():
    def row(contender, us, peak, shape="8x32x512x64", **more):
        return {
            "shape": shape,
            "order": "bhsd",
            "pass": "forward",
            "contender": contender,
            "us": us,
            "peak_bytes": peak,
            "machine": "a core",
            "threads": 1,
            **more,
        }

    rows = [
        row("ropewalk, basic", 6000.0, 12_000_000),
        row("ropewalk", 2000.0, 8_000_000),
        row("ropewalk, in place", 1900.0, 2_000_000),
        row("liger-kernel", 2500.0, 9_000_000),
        row("ropewalk", 1.0, 1, order="bshd"),
        row("ropewalk", 1.0, 1, shape="A"),
        row("ropewalk", 30.0, 8_000_000, machine="a GPU", threads=None),
    ]
    core, gpu = tables.doc_shapes_table(rows).strip().split("\n\n")
    lines = [line.strip("| ").split(" | ") for line in core.splitlines()]
    assert lines[0][:2] == ["a core, one thread", "8x32x512x64"]
    assert [line[:2] for line in lines[2:]] == [
        ["basic: ropewalk, basic", "6 ms, 12 MB"],
        ["optimised: ropewalk", "2 ms, 8 MB"],
        ["memory-efficient: ropewalk, in place", "1.9 ms, 2 MB"],
        ["liger-kernel", "2.5 ms, 9 MB"],
        ["optimised: times as fast as basic (articles: 1.5 to 3)", "3.0"],
        ["memory-efficient: less memory than optimised (articles: 20 to 50 %)", "75 %"],
    ]
    assert gpu.startswith("| a GPU | 8x32x512x64 |")
    assert "| optimised: ropewalk | 0.03 ms, 8 MB | - |" in gpu
