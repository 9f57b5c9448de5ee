"""Markdown tables of docs/benchmarks*.md, made from the rows in `results/`.

Rows of later runs come later in a file, so a dict of rows by case has the latest row of each.

Words of this module:
  row        a dict with one measurement
  contender  a way to rotate (or to compute attention, to generate) that was timed: ropewalk with
             some options, or another library
  shape      a name of `cases.SHAPES`, or a model: batch, tokens, heads, head_dim
  order      of the axes in memory: "bshd" is [B, S, H, D], "bhsd" is [B, H, S, D]
  pass       what was timed, such as "forward" and "forward+backward"
  case       the fields that identify a measurement, such as (contender, shape, pass)
  variant    a name of `cases.VARIANTS`, such as "packed"; a row without it is of the plain case
  copy       a plain copy of the same bytes, which a rotation cannot beat by much
  way        a value of the field "way": how the same result was computed, such as "rotation inside"
  what       a value of the field "what": which benchmark the row is of
  run        the number of a run of a benchmark; a larger one is later
  us         microseconds
"""

from __future__ import annotations

from statistics import quantiles

from ropewalk_lab.bench.cases import GROUPS
from ropewalk_lab.bench.rows import Row

#: the orders of the axes of q and k: [B, S, H, D] and [B, H, S, D]
BOTH_ORDERS = ("bshd", "bhsd")


def mean_percent(rows: list[Row]) -> dict[tuple[str, str, str, str], float]:
    """Return {(contender, shape, order, pass): its speed in per cent of the speed of a copy of the
    same tensors}, the mean of all runs. Rows with a variant are left out.
    """
    percents: dict[tuple[str, str, str, str], list[float]] = {}
    for row in rows:
        if "percent_of_copy" in row and "variant" not in row:
            case = row["contender"], row["shape"], row["order"], row["pass"]
            percents.setdefault(case, []).append(row["percent_of_copy"])
    return {case: sum(values) / len(values) for case, values in percents.items()}


def gpu_table(rows: list[Row]) -> str:
    """Return a table of speeds in per cent of one flat copy, forward / forward+backward, as the
    mean of all runs, for four shapes of `cases.SHAPES` in both orders.
    """
    cases = [(shape, order) for order in BOTH_ORDERS for shape in "ADEF"]
    percents = mean_percent(rows)
    contenders = (
        "ropewalk",
        "liger-kernel",
        "transformers, compiled",
        "transformers, eager",
        "complex product",
        "rotary-embedding-torch",
    )

    def cell(contender: str, case: tuple[str, str]) -> str:
        """Return the speeds of both passes in a case, (shape, order), in per cent of the copy: "92
        / 85".
        """
        of_passes = [
            percents.get((contender, *case, pass_name))
            for pass_name in ("forward", "forward+backward")
        ]
        return " / ".join("-" if percent is None else f"{percent:.0f}" for percent in of_passes)

    return markdown(
        ["contender", *_headers(cases)],
        [[name, *(cell(name, case) for case in cases)] for name in contenders],
    )


def decode_table(rows: list[Row]) -> str:
    """Return a table of the microseconds of a decode step, in the latest two runs: in a CUDA graph,
    which is the pass "forward", and in an eager loop.
    """
    # every run with decode steps timed eager loops, too; rows of other benchmarks may have no "run"
    last_run = max(r["run"] for r in rows if r.get("pass") == "eager loop")
    contenders = (
        "ropewalk",
        "ropewalk, in place",
        "liger-kernel",
        "transformers, compiled",
        "transformers, eager",
    )

    def cell(contender: str, shape: str, pass_name: str, digits: int) -> str:
        """Return the microseconds of the latest two runs, with `digits` after the point."""
        case = (contender, shape, pass_name)
        times = [
            r["us"]
            for r in rows
            if (r["contender"], r["shape"], r.get("pass")) == case and r["run"] > last_run - 2
        ]
        return _span(times, digits)

    # the shape, the pass and the digits after the point
    columns = [
        ("B", "forward", 2),
        ("B", "eager loop", 0),
        ("C", "forward", 2),
        ("C", "eager loop", 0),
    ]
    lines = [[name, *(cell(name, *column) for column in columns)] for name in contenders]
    return markdown(["us", "B, graph", "B, eager loop", "C, graph", "C, eager loop"], lines)


def variant_table(rows: list[Row]) -> str:
    """Return a table of the speed of each variant in per cent of a copy, from the latest row of
    each variant, shape and order.
    """
    percents = {
        (r["variant"], r["shape"], r["order"]): r["percent_of_copy"] for r in rows if "variant" in r
    }
    cases = [(shape, order) for shape in "AD" for order in BOTH_ORDERS]
    variants = list(dict.fromkeys(variant for variant, _, _ in percents))
    return markdown(
        ["variant", *_headers(cases)],
        [[v, *(f"{percents[v, *case]:.1f}" for case in cases)] for v in variants],
    )


def fused_table(rows: list[Row]) -> str:
    """Return a table of the time of the kernel that fuses norm and rotation, in the latest two
    runs, and of its speed in per cent of a copy of the packed qkv (q, k and v in one tensor).
    """
    last_run = max(r["run"] for r in rows if r["contender"].startswith("ropewalk, fused"))
    # a shape is named by its number of tokens
    contenders = ("ropewalk, fused", "ropewalk, fused without norm", "ropewalk, plain torch")
    shapes = ("T64", "T256", "T8192")

    def cell(contender: str, shape: str) -> str:
        """Return time and speed in the latest two runs."""
        timed = [
            r
            for r in rows
            if (r["contender"], r["shape"]) == (contender, shape) and r["run"] > last_run - 2
        ]
        times, percents = [r["us"] for r in timed], [r["percent_of_copy"] for r in timed]
        return f"{_span(times, digits=2)} us, {_span(percents, digits=0)} %"

    return markdown(
        ["contender", *shapes],
        [[name, *(cell(name, shape) for shape in shapes)] for name in contenders],
    )


def attention_table(rows: list[Row]) -> str:
    """Return a table of the times of softmax attention, with and without rotation, and of linear
    attention: for each shape, contender and pass the latest row, with a comparison.
    """
    latest = {
        (r["shape"], r["contender"], r["pass"]): r
        for r in rows
        if r["shape"].startswith("attention")
    }
    lines = []
    for (shape, contender, pass_name), row in latest.items():
        # a row has one of three comparisons: with attention without rotation (itself: 0, no note),
        # with softmax attention, or with linear attention at half the length
        note = ""
        if row.get("percent_added"):
            note = f"+{row['percent_added']} % time"
        elif "times_faster" in row:
            note = f"{row['times_faster']} times as fast"
        elif "times_half_the_length" in row:
            note = f"{row['times_half_the_length']} times the time of half the length"
        lines.append(
            [
                shape.removeprefix("attention "),
                contender,
                pass_name,
                f"{row['us'] / 1000:.2f} ms",
                note,
            ]
        )
    return markdown(["shape", "contender", "pass", "time", "comparison"], lines)


def qkv_table(rows: list[Row]) -> str:
    """Return a table of the time of the QKV product by number of tokens, and what every way to
    rotate adds to it, in per cent ("-": not timed).
    """
    rows = [r for r in rows if r["what"] == "qkv"]  # their field "rows" is the number of tokens
    timed = {(r["way"], r["rows"]): r for r in rows}
    ways = list(dict.fromkeys(r["way"] for r in rows))
    counts = list(dict.fromkeys(r["rows"] for r in rows))

    def cell(way: str, count: int) -> str:
        return f"{timed[way, count]['over_percent']:+.1f} %" if (way, count) in timed else "-"

    # the rows of all ways have the same time of the product
    lines = [
        [f"{n:,}", f"{timed[ways[0], n]['product_us']:.1f} us", *(cell(way, n) for way in ways)]
        for n in counts
    ]
    return markdown(["tokens", "product alone", *ways], lines)


def qkv_shapes_table(rows: list[Row]) -> str:
    """Return a table of what `qkv_norm_rope` (the product with rotation, and with norm where the
    model has one) adds to the time of the QKV product, in per cent: a line for each model, a column
    for each number of tokens.

    "shape" names hidden size, heads, and whether the model has a norm of q and k or a bias; "tuned"
    says whether the kernel's tiles were chosen by times of this model.
    """
    # their field "rows" is the number of tokens
    rows = [r for r in rows if r["what"] == "qkv shapes"]
    over = {(r["shape"], r["rows"]): f"{r['over_percent']:+.0f}" for r in rows}
    models = {r["shape"]: r for r in rows}
    counts = list(dict.fromkeys(r["rows"] for r in rows))
    lines = []
    for name, r in models.items():
        parts = [word for word in ("norm", "bias") if r[word]]
        shape = f"{r['hidden']}, {r['q_heads']}/{r['k_heads']} x {r['head_dim']}"
        tuned = "yes" if r["tuned"] else "no"
        sizes = ", ".join((shape, *parts))
        lines.append([name, sizes, tuned, *(over[name, count] for count in counts)])
    return markdown(["model", "shape", "tuned", *(f"{count:,}" for count in counts)], lines)


def contexts_table(rows: list[Row]) -> str:
    """Return a table of decode steps by the length of the prompt: their time, and their speed in
    per cent of three limits of the memory (the rate of a copy, of reading, and the nominal one).
    """
    found = [r for r in rows if r["what"] == "generate, by context"]
    shapes = list(dict.fromkeys(r["shape"] for r in found))
    latest = {(shapes.index(r["shape"]), r["batch"], r["prompt"]): r for r in found}
    lines = [
        [
            r["shape"].removesuffix(" shape"),
            str(r["batch"]),
            f"{r['prompt']:,}",
            f"{r['step_ms']:.2f} ms",
            # "percent_of_limit" is of the speed that the rate of a copy allows
            *(f"{r[f'percent_of_{limit}']:.0f} %" for limit in ("limit", "read", "nominal")),
        ]
        for _, r in sorted(latest.items())
    ]
    rates = next(iter(latest.values()))  # those of other rows differ by a few per cent
    headers = [
        f"{name}, {rates[f'{key}_GBps'] / 1000:.1f} TB/s"
        for name, key in (("of a copy", "copy"), ("of reading", "read"), ("nominal", "nominal"))
    ]
    return markdown(["model", "rows", "prompt", "step", *headers], lines)


def generation_table(rows: list[Row]) -> str:
    """Return a table of generation: steps per second, that number in per cent of what the memory's
    speed allows, and the time to the first token.

    Of each model, batch size and contender it has the latest run.
    """
    latest = {(r["shape"], r["batch"], r["contender"]): r for r in rows if r["what"] == "generate"}
    shapes, contenders = (list(dict.fromkeys(key[i] for key in latest)) for i in (0, 2))
    ordered = sorted(
        latest, key=lambda key: (shapes.index(key[0]), key[1], contenders.index(key[2]))
    )
    lines = [
        [
            r["shape"].removesuffix(" shape"),
            str(r["batch"]),
            r["contender"],
            str(r["run"]),
            f"{r['steps_per_s']:.0f}",
            # the first runs did not measure the memory's speed
            "-" if r["percent_of_limit"] is None else f"{r['percent_of_limit']:.0f} %",
            f"{r['first_token_ms']:.0f} ms",
        ]
        for r in (latest[key] for key in ordered)
    ]
    return markdown(
        ["model", "batch", "contender", "run", "steps/s", "of the limit", "first token"], lines
    )


def other_models_table(rows: list[Row]) -> str:
    """Return a table of generation in the shapes of other models, with a column for each batch
    size: milliseconds of a step, and the speed in per cent of what the memory allows.
    """
    latest = {(r["shape"], r["batch"]): r for r in rows if r["what"] == "generate, other models"}
    shapes = list(dict.fromkeys(shape for shape, _ in latest))
    batches = sorted({batch for _, batch in latest})
    lines = [
        [
            shape,
            *(
                f"{r['step_ms']:.2f} ms, {r['percent_of_limit']:.0f} %"
                for r in (latest[shape, batch] for batch in batches)
            ),
        ]
        for shape in shapes
    ]
    return markdown(
        ["model", *("one row" if batch == 1 else f"{batch} rows" for batch in batches)], lines
    )


def invariance_table(rows: list[Row]) -> str:
    """Return a table of how much longer a step of an invariant Decoder takes, in per cent, by model,
    rows of the batch and tokens before the step.
    """
    steps = {
        (row["rows"], row["prompt"], row["model"]): f"{row['cost_percent']:.0f} %"
        for row in rows
        if row["what"] == "step of greedy generation"
    }
    models = list(dict.fromkeys(model for *_, model in steps))
    lines = [
        [f"{count}", f"{prompt:,}", *(steps.get((count, prompt, model), "-") for model in models)]
        for count, prompt in sorted({case[:2] for case in steps})
    ]
    titles = [model.removesuffix(" shape") for model in models]
    return markdown(["rows", "tokens before the step", *titles], lines)


def window_table(rows: list[Row]) -> str:
    """Return a table of the milliseconds of attention with a window or documents (the `kind` of its
    mask), by length and way to compute it, and the way that ropewalk takes.
    """
    timed = {(r["kind"], r["length"], r["way"]): r for r in rows}
    ways = list(dict.fromkeys(way for *_, way in timed))
    cases = dict.fromkeys((kind, length) for kind, length, _ in timed)
    lines = [
        [
            kind,
            f"{length:,}",
            *(f"{timed[kind, length, way]['ms']:.2f}" for way in ways),
            timed[kind, length, ways[0]]["chosen"],  # the same in the rows of all ways
        ]
        for kind, length in cases
    ]
    return markdown(["mask", "tokens", *(f"{way}, ms" for way in ways), "taken"], lines)


#: suffix of a column header for each memory order other than [B, H, S, D]
SUFFIXES = {"bshd": " [B,S,H,D]", "bhsd view": " view"}


def cpu_table(rows: list[Row]) -> str:
    """Return a table of time / time of a copy (of two copies for both passes; lower is better), or
    microseconds for decode, by contender and case.
    """
    timed = [r for r in rows if "us" in r]  # skipped contenders have no time
    by_case = {(r["contender"], _case(r)): r for r in timed}
    contenders = list(dict.fromkeys(r["contender"] for r in timed))
    cases = list(dict.fromkeys(_case(r) for r in timed))

    def cell(contender: str, case: str) -> str:
        """Return the time as a multiple of a copy's; for decode, where both are mostly the cost of
        a call, in microseconds.
        """
        row = by_case.get((contender, case))
        if row is None:
            return "-"
        return f"{row['us']:.0f} us" if row["shape"] == "cpu decode" else f"{row['times_copy']:.2f}"

    return markdown(
        ["contender", *cases],
        [[name, *(cell(name, case) for case in cases)] for name in contenders],
    )


def two_trees_table(rows: list[Row]) -> str:
    """Return a table of the times of two source trees, "before" and "after" a change: the medians
    and quartiles over runs.
    """
    times: dict[str, dict[str, dict[int, float]]] = {}  # case -> tree -> run -> microseconds
    for row in rows:
        times.setdefault(_case(row), {}).setdefault(row["tree"], {})[row["run"]] = row["us"]
    lines = []
    for case, by_tree in times.items():
        before, after = by_tree["before"], by_tree["after"]
        ratios = [after[run] / before[run] for run in before]
        lines.append(
            [
                case,
                _quartiles([*before.values()], 1),
                _quartiles([*after.values()], 1),
                _quartiles(ratios, 3),
            ]
        )
    return markdown(["case", "before, us", "after, us", "after / before"], lines)


def _case(row: Row) -> str:
    """Return the short name of a case on the CPU, such as "prefill view bf16 f+b"."""
    timed_pass = "" if row["pass"] == "forward" else " f+b"
    return (
        f"{row['shape'].removeprefix('cpu ')}{SUFFIXES.get(row['order'], '')} "
        f"{row['dtype'].replace('float', 'f')}{timed_pass}"
    )


def _quartiles(values: list[float], digits: int) -> str:
    """Return "median (lower quartile to upper quartile)"."""
    low, middle, high = (
        f"{each:.{digits}f}" for each in quantiles(values, n=4, method="inclusive")
    )
    return f"{middle} ({low} to {high})"


def models_table(rows: list[Row]) -> str:
    """Return a table of whole models: forward passes of a Llama (latest run), training steps of a
    Decoder, and the lab's trainer.

    The comparison is with transformers, or tokens per second where a row has them.
    """
    lines, last_run = [], max((r.get("run", 0) for r in rows), default=0)
    for row in rows:
        # the forward passes have milliseconds and quartiles, the other rows microseconds
        if "ms" in row and row["run"] == last_run:
            lower, upper = row["quartiles_ms"]
            note = (
                f"{row['times_faster']:.3f} times as fast; interquartile range {lower:.2f} to "
                f"{upper:.2f} ms"
            )
            if row["contender"].startswith("ropewalk"):
                # the lead over transformers: its lower end, median and upper end
                low, median, high = row["ahead_ms"]["transformers"]
                note += f"; faster by {median:.2f} ms (95 % interval: {low:.2f} to {high:.2f})"
            lines.append([row["shape"], row["contender"], row["pass"], f"{row['ms']:.2f} ms", note])
        elif "us" in row:
            speed = f"{row['times_faster']:.2f} times as fast" if "times_faster" in row else ""
            if "tokens_per_second" in row:
                speed = f"{row['tokens_per_second']:,} tokens/s"
            memory = f", {row['peak_bytes'] / 1e9:.2f} GB" if "peak_bytes" in row else ""
            lines.append(
                [
                    row["shape"],
                    row["contender"],
                    row["pass"],
                    f"{row['us'] / 1000:.1f} ms",
                    speed + memory,
                ]
            )
    return markdown(["shape", "contender", "pass", "time", "comparison"], lines)


#: articles about RoPE compare three ways to rotate; these are the contenders that correspond to
#: them
WAYS = {
    "basic": "ropewalk, basic",
    "optimised": "ropewalk",
    "memory-efficient": "ropewalk, in place",
}


def doc_shapes_table(rows: list[Row]) -> str:
    """Return, for each machine, a table of time and peak memory by contender and shape, and the
    claims of articles about RoPE.
    """
    shapes, tables = GROUPS["doc shapes"], []
    timed = [
        r
        for r in rows
        if (r.get("pass"), r["order"]) == ("forward", "bhsd") and r["shape"] in shapes
    ]
    for machine in dict.fromkeys(r["machine"] for r in timed):
        by_case = {(r["contender"], r["shape"]): r for r in timed if r["machine"] == machine}
        # one line for each contender that rotates in a way the articles name, then one for each
        # other contender
        first_cells = {contender: f"{way}: {contender}" for way, contender in WAYS.items()}
        for contender, _ in by_case:
            first_cells.setdefault(contender, contender)
        lines = [
            [text, *(_time_and_memory(by_case.get((name, each))) for each in shapes)]
            for name, text in first_cells.items()
        ]
        # two more lines compare these ways as the articles' claims do
        basic, optimised, efficient = (
            [by_case.get((contender, shape)) for shape in shapes] for contender in WAYS.values()
        )
        faster = [
            f"{slow['us'] / fast['us']:.1f}" if slow and fast else "-"
            for slow, fast in zip(basic, optimised, strict=True)
        ]
        saved = [_less_memory(more, less) for more, less in zip(optimised, efficient, strict=True)]
        lines.append(["optimised: times as fast as basic (articles: 1.5 to 3)", *faster])
        lines.append(
            ["memory-efficient: less memory than optimised (articles: 20 to 50 %)", *saved]
        )
        one_thread = ", one thread" if any(r.get("threads") == 1 for r in by_case.values()) else ""
        tables.append(markdown([f"{machine}{one_thread}", *shapes], lines))
    return "\n".join(tables)


def _time_and_memory(row: Row | None) -> str:
    """Return the time in ms and the peak memory in MB of a row as text, or "-" without a row."""
    if row is None:
        return "-"
    ms = row["us"] / 1000
    time = f"{ms:,.0f}" if ms >= 100 else f"{ms:.3g}"
    return f"{time} ms, {row['peak_bytes'] / 1e6:,.0f} MB"


def _less_memory(optimised: Row | None, efficient: Row | None) -> str:
    """Return by how many per cent the peak memory of `efficient` is below that of `optimised`, or
    "-" without a row.
    """
    if optimised is None or efficient is None:
        return "-"
    return f"{100 * (1 - efficient['peak_bytes'] / optimised['peak_bytes']):.0f} %"


def memory_table(rows: list[Row]) -> str:
    """Return a table of the peak memory of one forward call of shape A in bfloat16, by contender
    and order of dimensions; a cell without a measurement has the reason ("skipped"), or "no row".
    """
    orders = ("bshd", "bhsd")
    shown = [r for r in rows if r["shape"] == "A" and r["dtype"] == "bfloat16"]
    found = {
        (r["contender"], r["order"]): f"{r['peak_bytes'] / 2**20:,.0f}"
        for r in shown
        if r.get("pass") == "forward" and "peak_bytes" in r and r.get("variant") in (None, "plain")
    }
    reasons = {r["contender"]: r["skipped"] for r in shown if "skipped" in r}
    names = dict.fromkeys([*MEMORY_OF, *(name for name, _ in found)])
    lines = [
        [name, *(found.get((name, order), reasons.get(name, "no row")) for order in orders)]
        for name in names
    ]
    return markdown(["MiB", *(f"[{','.join(order.upper())}]" for order in orders)], lines)


#: contenders other than ropewalk: each has a line in the table of memory, measured or not
MEMORY_OF = (
    "transformers, eager",
    "transformers, compiled",
    "complex product",
    "rotary-embedding-torch",
    "liger-kernel",
)


#: marker in docs/benchmarks*.md -> (file in results/, function that makes the table)
TABLES = {
    "gpu": ("h200.jsonl", gpu_table),
    "decode": ("h200.jsonl", decode_table),
    "variants": ("h200.jsonl", variant_table),
    "fused": ("h200.jsonl", fused_table),
    "qkv": ("h200_projection.jsonl", qkv_table),
    "qkv_shapes": ("h200_projection.jsonl", qkv_shapes_table),
    "contexts": ("h200_decode.jsonl", contexts_table),
    "generation": ("h200_decode.jsonl", generation_table),
    "invariance": ("h200_invariant_decoder.jsonl", invariance_table),
    "other_models": ("h200_decode.jsonl", other_models_table),
    "attention": ("h200.jsonl", attention_table),
    "window": ("h200_window.jsonl", window_table),
    "cpu_window": ("cpu_window.jsonl", window_table),
    "models": ("h200_models.jsonl", models_table),
    "cpu": ("cpu.jsonl", cpu_table),
    "cpu_x86": ("cpu_x86.jsonl", cpu_table),
    "two_trees": ("cpu_two_trees.jsonl", two_trees_table),
    "cpu_patch": ("cpu_patch.jsonl", models_table),
    "cpu_linear": ("cpu_linear.jsonl", attention_table),
    "doc_shapes": ("doc_shapes.jsonl", doc_shapes_table),
    "memory_gpu": ("h200.jsonl", memory_table),
    "memory_cpu": ("cpu_memory.jsonl", memory_table),
}


def _headers(cases: list[tuple[str, str]]) -> list[str]:
    """Return the titles of the columns of (shape, order), such as A [B,S,H,D]."""
    return [f"{shape} [{','.join(order.upper())}]" for shape, order in cases]


def _span(values: list[float], digits: int) -> str:
    """Return "smallest to largest", one number if both are printed the same, or "-" without values."""
    texts = (
        dict.fromkeys(f"{value:.{digits}f}" for value in (min(values), max(values)))
        if values
        else ["-"]
    )
    return " to ".join(texts)


def markdown(headers: list[str], lines: list[list[str]]) -> str:
    """Return a Markdown table; the first column is aligned left, the others right."""
    alignment = ["---"] + ["---:"] * (len(headers) - 1)
    rows = (
        [str(cell).replace("|", r"\|") for cell in cells] for cells in (headers, alignment, *lines)
    )
    return "".join(f"| {' | '.join(cells)} |\n" for cells in rows)
