"""Result rows as the Markdown tables of docs/benchmarks.md; the page shows what `results/` holds."""

from __future__ import annotations

from ropewalk.bench.rows import Row

BOTH_ORDERS = ("bshd", "bhsd")


def mean_percent(rows: list[Row]) -> dict[tuple[str, str, str, str], float]:
    """Per cent of a copy by (contender, shape, order, pass), the mean of the runs; plain cases only."""
    percents: dict[tuple[str, str, str, str], list[float]] = {}
    for row in rows:
        if "percent_of_copy" in row and "variant" not in row:
            case = row["contender"], row["shape"], row["order"], row["pass"]
            percents.setdefault(case, []).append(row["percent_of_copy"])
    return {case: sum(values) / len(values) for case, values in percents.items()}


def gpu_table(rows: list[Row]) -> str:
    """Per cent of one flat copy, forward / forward+backward, by contender and shape; the mean of the runs."""
    cases = [(shape, order) for order in BOTH_ORDERS for shape in "ADEF"]
    percents = mean_percent(rows)
    contenders = (
        "ropewalk", "liger-kernel", "transformers, compiled", "transformers, eager", "complex product", "rotary-embedding-torch",
    )  # fmt: skip

    def cell(contender: str, case: tuple[str, str]) -> str:
        passes = [percents.get((contender, *case, what)) for what in ("forward", "forward+backward")]
        return " / ".join("-" if percent is None else f"{percent:.0f}" for percent in passes)

    return markdown(["", *_heads(cases)], [[name, *(cell(name, case) for case in cases)] for name in contenders])


def decode_table(rows: list[Row]) -> str:
    """Microseconds of a decode step in a graph, and in an eager loop; the latest two runs."""
    last = max(r["run"] for r in rows if r.get("pass") == "eager loop")
    contenders = ("ropewalk", "ropewalk, in place", "liger-kernel", "transformers, compiled", "transformers, eager")

    def cell(contender: str, shape: str, what: str) -> str:
        case = (contender, shape, what)
        times = [r["us"] for r in rows if (r["contender"], r["shape"], r.get("pass")) == case and r["run"] > last - 2]
        return _span(times, 2 if what == "forward" else 0)

    columns = [(shape, what) for shape in "BC" for what in ("forward", "eager loop")]
    heads = [f"{shape}, {'graph' if what == 'forward' else what}" for shape, what in columns]
    return markdown(["us", *heads], [[name, *(cell(name, *column) for column in columns)] for name in contenders])


def variant_table(rows: list[Row]) -> str:
    """Per cent of a copy for the variants of the plain case; the latest run."""
    percents = {(r["variant"], r["shape"], r["order"]): r["percent_of_copy"] for r in rows if "variant" in r}
    cases = [(shape, order) for shape in "AD" for order in BOTH_ORDERS]
    variants = list(dict.fromkeys(variant for variant, _, _ in percents))
    return markdown(["", *_heads(cases)], [[v, *(f"{percents[v, *case]:.1f}" for case in cases)] for v in variants])


def fused_table(rows: list[Row]) -> str:
    """The fused kernel against a copy of the packed qkv; the latest two runs."""
    last = max(r["run"] for r in rows if r["contender"].startswith("ropewalk, fused"))
    contenders, shapes = ("ropewalk, fused", "ropewalk, fused without norm", "ropewalk, plain torch"), ("T64", "T256", "T8192")

    def cell(contender: str, shape: str) -> str:
        timed = [r for r in rows if (r["contender"], r["shape"]) == (contender, shape) and r["run"] > last - 2]
        return f"{_span([r['us'] for r in timed], 2)} us, {_span([r['percent_of_copy'] for r in timed], 0)} %"

    return markdown(["", *shapes], [[name, *(cell(name, shape) for shape in shapes)] for name in contenders])


def attention_table(rows: list[Row]) -> str:
    """The time that the rotation adds to one attention layer, and linear attention; the latest run."""
    latest = {(r["shape"], r["contender"], r["pass"]): r for r in rows if r["shape"].startswith("attention")}
    lines = []
    for (shape, contender, what), row in latest.items():
        note = ""
        if row.get("percent_added"):
            note = f"+{row['percent_added']} %"
        elif "times_faster" in row:
            note = f"{row['times_faster']} x"
        elif "times_half_the_length" in row:
            note = f"{row['times_half_the_length']} x half the length"
        lines.append([shape.removeprefix("attention "), contender, what, f"{row['us'] / 1000:.2f} ms", note])
    return markdown(["shape", "", "pass", "time", ""], lines)


#: what a column head adds for a memory order other than [B, H, S, D]
ORDERS = {"bshd": " [B,S,H,D]", "bhsd view": " view"}


def cpu_table(rows: list[Row]) -> str:
    """Time over the time of a copy (lower is better) and microseconds, by contender, shape and dtype."""
    timed = [r for r in rows if "us" in r]
    cases = list(dict.fromkeys((r["shape"], r["order"], r["dtype"], r["pass"]) for r in timed))
    contenders = list(dict.fromkeys(r["contender"] for r in timed))
    by_case = {(r["contender"], r["shape"], r["order"], r["dtype"], r["pass"]): r for r in timed}
    heads = [
        f"{shape.removeprefix('cpu ')}{ORDERS.get(order, '')} {dtype.replace('float', 'f')}{'' if what == 'forward' else ' f+b'}"
        for shape, order, dtype, what in cases
    ]

    def cell(contender: str, case: tuple[str, str, str, str]) -> str:
        row = by_case.get((contender, *case))
        return "-" if row is None else f"{row['us']:.0f} us" if case[0] == "cpu decode" else f"{row['times_copy']:.2f}"

    return markdown(["", *heads], [[name, *(cell(name, case) for case in cases)] for name in contenders])


def models_table(rows: list[Row]) -> str:
    """Whole models: forwards of a patched Llama (the latest run), training steps of our Decoder, and the lab's trainer."""
    lines, last = [], max((r.get("run", 0) for r in rows), default=0)
    for row in rows:
        if "ms" in row and row["run"] == last:
            low, high = row["quartiles_ms"]
            note = f"{row['times_faster']:.3f} x; half of them {low:.2f} to {high:.2f}"
            if row["contender"].startswith("ropewalk"):
                least, middle, most = row["ahead_ms"]["transformers"]
                note += f"; ahead by {middle:.2f} ms (95 %: {least:.2f} to {most:.2f})"
            lines.append([row["shape"], row["contender"], row["pass"], f"{row['ms']:.2f} ms", note])
        elif "us" in row:
            note = f"{row['times_faster']:.2f} x" if "times_faster" in row else ""
            note = f"{row['tokens_per_second']:,} tokens/s" if "tokens_per_second" in row else note
            memory = f", {row['peak_bytes'] / 1e9:.2f} GB" if "peak_bytes" in row else ""
            lines.append([row["shape"], row["contender"], row["pass"], f"{row['us'] / 1000:.1f} ms", note + memory])
    return markdown(["shape", "", "", "time", ""], lines)


#: marker in the page -> (results file, table)
TABLES = {
    "gpu": ("h200.jsonl", gpu_table),
    "decode": ("h200.jsonl", decode_table),
    "variants": ("h200.jsonl", variant_table),
    "fused": ("h200.jsonl", fused_table),
    "attention": ("h200.jsonl", attention_table),
    "models": ("h200_models.jsonl", models_table),
    "cpu": ("cpu.jsonl", cpu_table),
    "cpu_x86": ("cpu_x86.jsonl", cpu_table),
    "cpu_patch": ("cpu_patch.jsonl", models_table),
    "cpu_linear": ("cpu_linear.jsonl", attention_table),
}


def _heads(cases: list[tuple[str, str]]) -> list[str]:
    return [f"{shape} [{','.join(order.upper())}]" for shape, order in cases]


def _span(values: list[float], digits: int) -> str:
    """The smallest and the largest value, or one number if they print the same."""
    ends = dict.fromkeys(f"{value:.{digits}f}" for value in (min(values), max(values))) if values else ["-"]
    return " to ".join(ends)


def markdown(heads: list[str], lines: list[list[str]]) -> str:
    """A Markdown table; the first column is aligned left, the others right."""
    rule = ["---"] + ["---:"] * (len(heads) - 1)
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (heads, rule, *lines))
