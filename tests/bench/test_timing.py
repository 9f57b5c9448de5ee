"""How contenders are timed, by clocks of their own, and on which tensors."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from ropewalk_lab.bench import cases, chart, contenders, cpu, gpu, rows

TINY = (2, 7, 3, 1, 16, torch.float32)


@pytest.fixture(autouse=True)
def _tiny_shapes(monkeypatch):
    monkeypatch.setitem(cases.SHAPES, "tiny", TINY)
    monkeypatch.setitem(cases.SHAPES, "step", (300, 1, 4, 2, 16, torch.float32))


@pytest.fixture
def clock(monkeypatch):
    """All clocks of a process; a call moves them on."""
    found = SimpleNamespace(now=0.0)
    for name in ("perf_counter", "process_time"):
        monkeypatch.setattr(f"time.{name}", lambda: found.now)
    monkeypatch.setattr("time.sleep", lambda _: None)
    return found


def test_a_time_on_a_cpu_is_the_lower_quartile_of_its_rounds(clock, monkeypatch):
    """Of 4, 3, 1 and 2 ms, 1.25 ms; calls before them are not timed."""
    monkeypatch.setattr(cpu, "WARM_UP", 0.0)
    seconds = iter((0.5, 0.5, 0.5, 4e-3, 0.5, 3e-3, 0.5, 1e-3, 0.5, 2e-3))

    def call():
        clock.now += next(seconds)

    found = cpu.alternating_times({"x": call}, rounds=4, at_least=0.0)
    assert found == {"x": pytest.approx(1250.0)}


def test_a_short_call_is_repeated_and_its_time_divided(clock, monkeypatch):
    monkeypatch.setattr(cpu, "WARM_UP", 0.0)
    count = []

    def call():
        count.append(1)
        clock.now += 0.001

    assert cpu.alternating_times({"x": call}, rounds=3, at_least=0.0041)["x"] == pytest.approx(1e3)
    assert len(count) == 2 + 3 * (1 + 4)


def test_one_thread_is_used_only_inside(monkeypatch):
    threads = [6]
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads[-1])
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    with cpu.one_thread():
        assert threads[-1] == 1
    assert threads[-1] == 6


def test_shapes_of_the_cpu_have_three_dtypes_and_others_their_own(monkeypatch):
    monkeypatch.setattr(
        cpu, "_case_rows", lambda case, order, *_: [(case.name, order, case.q.dtype)]
    )
    assert list(cpu.measure(("cpu decode", "tiny"))) == [
        ("cpu decode", "bhsd", torch.float32),
        ("cpu decode", "bhsd", torch.bfloat16),
        ("cpu decode", "bhsd", torch.float16),
        ("tiny", "bhsd", torch.float32),
    ]


def test_both_passes_are_compared_with_two_copies(monkeypatch):
    """A copy takes 10 us, a forward pass 20 and both passes 60."""
    timed = []

    def alternating_times(calls, rounds):
        timed.append((list(calls), rounds))
        return {
            name: 10.0 if name == "copy" else (20.0, 60.0, 5.0)[len(timed) - 1] for name in calls
        }

    monkeypatch.setattr(cpu, "alternating_times", alternating_times)
    names = ("ropewalk", "transformers, eager", "complex product")
    case = cases.make_case("tiny", "bhsd")
    found = list(cpu._case_rows(case, "bhsd", names, rounds=12))
    numbers = [
        (row["pass"], row["contender"], row["us"], row["copy_us"], row["times_copy"])
        for row in found
    ]
    assert numbers == [
        *(("forward", name, 20.0, 10.0, 2.0) for name in names),
        *(("forward+backward", name, 60.0, 20.0, 3.0) for name in names[:2]),
    ]
    assert timed == [(["copy", *names], 12), ([*names[:2]], 6)]
    step = list(cpu._case_rows(cases.make_case("step", "bhsd"), "bhsd", names[:1], rounds=12))
    assert [row["pass"] for row in step] == ["forward"]


def test_an_error_has_three_digits():
    row = cpu._row({}, "x", "forward", 30.0, 12.0, 0.00123456, 7)
    assert (row["rms_error"], row["times_copy"], row["peak_bytes"]) == (0.00123, 2.5, 7)


def test_a_replay_is_divided_by_its_calls(monkeypatch):
    """3 milliseconds for a graph of four calls."""
    events = []

    class Event:
        def __init__(self, enable_timing):
            events.append(self)

        def record(self):
            pass

        synchronize = record

        def elapsed_time(self, stop):
            return 3.0 if (self, stop) == tuple(events) else -3.0

    monkeypatch.setattr(torch.cuda, "Event", Event)
    graph = SimpleNamespace(replay=lambda: None)
    assert gpu.replayed_us(graph, 4) == 750.0


def test_replays_give_their_median(monkeypatch):
    times = iter((1.0, 9.0, 2.0))
    monkeypatch.setattr(gpu, "captured", lambda calls: (None, []))
    monkeypatch.setattr(gpu, "replayed_us", lambda graph, calls: next(times) * calls)
    assert gpu.replay_us([None] * 5, replays=3) == 10.0


def test_a_loop_in_python_has_the_lower_quartile_and_the_median_of_its_rounds(clock, monkeypatch):
    """Rounds of 4, 1, 3 and 2 us a call; twenty calls of each are not timed."""
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    count = []

    def call():
        count.append(1)
        in_round = (len(count) - 1) % 25
        clock.now += (4e-6, 1e-6, 3e-6, 2e-6)[(len(count) - 1) // 25] if in_round >= 20 else 1.0

    assert gpu.host_us(call, rounds=4, loops=5) == {"us": 1.25, "median_us": 2.5}


@pytest.mark.parametrize(("bytes_", "count"), [(0, 2), (2, 2), (2.5, 3), (3, 3), (1000, 200)])
def test_copies_of_a_case_exceed_the_cache(monkeypatch, bytes_, count):
    case = cases.make_case("tiny", "bshd")
    assert case.bytes == 2 * 7 * (3 + 1) * 16 * 4
    monkeypatch.setattr(gpu, "COLD_BYTES", int(bytes_ * case.bytes))
    sets = gpu.copies(case)
    assert len(sets) == count
    assert sets[0] is case
    assert torch.equal(sets[1].q, case.q)
    assert sets[1].q.data_ptr() != case.q.data_ptr()


def test_a_ceiling_is_that_of_as_many_copies_as_passes(monkeypatch):
    empty = torch.empty
    monkeypatch.setattr(gpu, "torch", SimpleNamespace(empty=lambda *a, device, **o: empty(*a, **o)))
    gpu.torch.uint8 = torch.uint8
    monkeypatch.setattr(gpu, "replay_us", lambda calls: [call() for call in calls] and 5.0)
    case = cases.make_case("tiny", "bshd")
    assert [gpu.ceiling_us([case, case], passes=passes) for passes in (1, 2)] == [5.0, 10.0]


def test_a_call_is_timed_between_two_copies(monkeypatch):
    ceilings = iter((8.0, 12.0))
    monkeypatch.setattr(gpu, "replay_us", lambda calls: 20.0)
    assert gpu.beside_copy([], lambda: next(ceilings)) == {
        "us": 20.0,
        "copy_us": 10.0,
        "percent_of_copy": 50.0,
    }


def test_a_decode_shape_is_timed_in_one_order(monkeypatch):
    monkeypatch.setattr(
        gpu, "make_case", lambda name, order, device: cases.make_case("tiny", order)
    )
    monkeypatch.setattr(gpu, "copies", lambda case: [case])
    monkeypatch.setattr(gpu, "rows_of", lambda contender, sets, row: [(contender, *row.values())])
    assert list(gpu.measure(("A", "B"), ("x",))) == [
        ("x", "A", "bshd", "float32"),
        ("x", "A", "bhsd", "float32"),
        ("x", "B", "bshd", "float32"),
    ]


def test_passes_of_a_contender_on_a_gpu(monkeypatch):
    """A step has an eager loop, other shapes both passes, but not for contenders of one pass."""
    passes = []
    monkeypatch.setattr(gpu, "replay_us", lambda calls: [call() for call in calls] and 20.0)
    monkeypatch.setattr(
        gpu, "ceiling_us", lambda sets, passes_=1, **o: o.get("passes", passes_) * 10.0
    )
    monkeypatch.setattr(gpu, "host_us", lambda call: {"us": 3.0})
    monkeypatch.setattr(gpu, "peak_bytes", lambda call, device: passes.append(device) or 7)

    def found(contender, shape, name):
        sets = [cases.make_case(shape, "bhsd")] * 2
        return [
            (row["pass"], row["us"], row.get("copy_us"))
            for row in gpu.rows_of(contender, sets, {"shape": name})
        ]

    assert found("ropewalk", "tiny", "A") == [
        ("forward", 20.0, 10.0),
        ("forward+backward", 20.0, 20.0),
    ]
    assert found("ropewalk, eager", "tiny", "A") == [("forward", 20.0, 10.0)]
    assert found("ropewalk", "step", "B") == [("forward", 20.0, 10.0), ("eager loop", 3.0, None)]
    assert set(passes) == {"cuda"}


def test_a_contender_of_ropewalk_has_its_options(monkeypatch):
    made = []
    plain = contenders.Rope
    monkeypatch.setattr(
        contenders,
        "Rope",
        lambda spec, backend: made.append((backend, spec.layout)) or plain(spec, backend=backend),
    )
    case = cases.make_case("tiny", "bhsd")
    wanted = {
        "ropewalk": (None, "half"),
        "ropewalk, in place": (None, "half"),
        "ropewalk, interleaved": (None, "interleaved"),
        "ropewalk, eager": ("eager", "half"),
        "ropewalk, basic": ("reference", "half"),
    }
    for name, options in wanted.items():
        call = contenders.CONTENDERS[name](case)
        q, k = case.q.clone(), case.k.clone()
        rotated = call(q, k)
        in_place = rotated[0].data_ptr() == q.data_ptr()
        assert (made.pop(), in_place) == (options, name == "ropewalk, in place"), name
    step = cases.make_case("step", "bhsd")
    call = contenders.CONTENDERS["ropewalk, in place"](step)
    assert contenders.agrees("ropewalk, in place", call, step)[0]  # at the positions of the step
    q = step.q.clone()
    assert call(q, step.k.clone())[0].data_ptr() == q.data_ptr()


@pytest.mark.parametrize(
    ("dtype", "off", "good"),
    [
        (torch.float32, 1e-4, True),
        (torch.float32, 1e-3, False),
        (torch.bfloat16, 1e-2, False),
    ],
)
def test_a_contender_must_be_as_exact_as_its_dtype(dtype, off, good):
    case = cases.make_case("tiny", "bhsd", dtype=dtype)
    call = contenders.ropewalk(case)
    wrong = lambda q, k: tuple(x * (1 + off) for x in call(q, k))
    assert contenders.agrees("x", wrong, case)[0] == good


def test_a_library_that_is_not_installed_and_liger_without_a_gpu_cannot_run(monkeypatch):
    case, installed = cases.make_case("tiny", "bhsd"), []
    find = lambda module: module if module in installed else None
    monkeypatch.setattr(contenders.importlib.util, "find_spec", find)
    assert "not installed" in contenders.why_not("liger-kernel", case)
    installed += ["liger_kernel", "rotary_embedding_torch"]
    assert contenders.why_not("liger-kernel", case) == "liger-kernel needs a GPU"
    assert contenders.why_not("rotary-embedding-torch", case) is None
    assert contenders.contender_names(["ropewalk", "ropewalk"]) == ("ropewalk",)


def test_positions_of_the_variants(monkeypatch):
    monkeypatch.setitem(cases.SHAPES, "long", (1, 1003, 1, 1, 40, torch.float32))
    packed = cases.make_case("long", "bshd", variant="packed").positions[0]
    assert packed[[0, 999, 1000, 1002]].tolist() == [0, 999, 0, 2]
    mrope = cases.make_case("long", "bshd", variant="mrope")
    assert mrope.positions[:, 0, 70].tolist() == [70, 1, 6]  # token, row and column of 64
    axis = list(mrope.spec.axis_of_pair)
    assert [axis.count(each) for each in range(3)] == [8, 6, 6]  # of 20 pairs
    assert cases.make_case("long", "bshd", variant="partial").spec.rotary_dim == 10
    step = cases.make_case("step", "bshd").positions
    assert 3000 < int(step.max()) < 4000
    first, second = (cases.make_case("tiny", "bshd", seed=seed).q for seed in (0, 1))
    assert not torch.equal(first, second)


@pytest.mark.parametrize(("gpus", "devices", "chosen"), [
    (False, ("cuda", "cpu"), "cpu"),
    (True, ("cuda", "cpu"), "cuda"),
    (False, ("cuda",), "cuda"),
    (True, ("cpu",), "cpu"),
])  # fmt: skip
def test_a_script_measures_on_a_gpu_if_it_can_or_must(monkeypatch, capsys, gpus, devices, chosen):
    asked = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus)
    monkeypatch.setattr(sys, "argv", ["script.py"])
    rows.run_script("", {name: lambda name=name: asked.append(name) or [] for name in devices})
    assert asked == [chosen]


def test_rows_are_read_from_lines_that_are_not_empty(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"us": 1}\n\n{"us": 2}\n')
    assert rows.read(tmp_path / "rows.jsonl") == [{"us": 1}, {"us": 2}]


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ((1, 1, 32, 8), "1 token\n32+8 heads of 64"),
        ((64, 1, 32, 8), "64 x 1 tokens\n32+8 heads of 64"),
        ((1, 8192, 4, 4), "8,192 tokens\n4 heads of 64"),
    ],
)
def test_a_shape_in_words(monkeypatch, sizes, words):
    monkeypatch.setitem(cases.SHAPES, "x", (*sizes, 64, torch.float32))
    assert chart.shape_name("x") == words


@pytest.fixture
def drawn(monkeypatch):
    kept = []
    monkeypatch.setattr(
        "matplotlib.figure.Figure.savefig", lambda self, *_, **__: kept.append(self)
    )
    return kept


def _centre(axis):
    """The mean place of all bars of an axis, and the heights of its horizontal lines."""
    places = [bar.get_x() + bar.get_width() / 2 for bars in axis.containers for bar in bars]
    lines = [line.get_ydata()[0] for line in axis.get_lines()]
    return sum(places) / len(places), lines


def test_bars_of_a_gpu_are_centred_on_their_case_beside_the_line_of_a_copy(drawn, tmp_path):
    row = {"shape": "A", "order": "bshd", "pass": "forward"}
    rows_ = [
        {**row, "contender": "ropewalk", "percent_of_copy": 90.0},
        {**row, "contender": "other", "shape": "B", "percent_of_copy": 90.0},
    ]
    chart.gpu_chart(rows_, tmp_path / "x.png")
    forward = drawn[0].axes[0]
    assert _centre(forward) == (pytest.approx(0), [100])
    assert [text.get_text() for text in forward.texts if text.get_text()] == ["90"]
    assert len(forward.get_xticks()) == 1  # B was timed for a contender that is not drawn


def test_bars_of_a_cpu_are_centred_on_their_case_and_views_are_named(drawn, tmp_path):
    row = {"contender": "ropewalk", "shape": "cpu mid", "dtype": "float32", "pass": "forward"}
    rows_ = [{**row, "order": order, "times_copy": 1.5} for order in ("bhsd", "bhsd view")]
    chart.cpu_chart(rows_, tmp_path / "x.png")
    (axis,) = drawn[0].axes
    assert _centre(axis) == (pytest.approx(0.5), [1])
    plain, view = (text.get_text().splitlines()[-1] for text in axis.get_xticklabels())
    assert (plain, view) == ("float32", "float32, view")


def test_the_page_of_gpu_kernels_states_the_sizes_of_the_shapes():
    page = (Path(__file__).parents[2] / "docs" / "benchmarks-gpu.md").read_text(encoding="utf-8")
    stated = re.findall(r"\b([A-F]) (\d+)\W(\d+) (\d+)/(\d+)\W(\d+)", page)
    assert [name for name, *_ in stated] == list("ABCDEF")
    for name, *sizes in stated:
        assert cases.SHAPES[name] == (*map(int, sizes), torch.bfloat16)
    # G is a long A, and H an A in float32
    assert cases.SHAPES["G"] == (1, 128 * 1024, *cases.SHAPES["A"][2:])
    assert cases.SHAPES["H"] == (*cases.SHAPES["A"][:-1], torch.float32)
