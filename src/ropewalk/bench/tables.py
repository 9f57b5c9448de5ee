"""Result rows as Markdown tables: what the documentation shows is read from `results/`, never typed."""

from __future__ import annotations

from typing import Any

Row = dict[str, Any]


def mean_percent(rows: list[Row]) -> dict[tuple[str, str, str, str], float]:
    """Per cent of a copy by (contender, shape, order, pass), the mean of the runs; plain cases only."""
    taken: dict[tuple[str, str, str, str], list[float]] = {}
    for row in rows:
        if "percent_of_copy" in row and "variant" not in row:
            taken.setdefault((row["contender"], row["shape"], row["order"], row["pass"]), []).append(row["percent_of_copy"])
    return {key: sum(values) / len(values) for key, values in taken.items()}


def gpu_table(rows: list[Row]) -> str:
    """Per cent of one flat copy, forward / forward+backward, by contender and shape; the mean of the runs."""
    cases = [(shape, order) for order in ("bshd", "bhsd") for shape in "ADEF"]
    found = mean_percent(rows)
    names = (
        "ropewalk",
        "liger-kernel",
        "transformers, compiled",
        "transformers, eager",
        "complex product",
        "rotary-embedding-torch",
    )

    def cell(name: str, case: tuple[str, str]) -> str:
        passes = [found.get((name, *case, what)) for what in ("forward", "forward+backward")]
        return " / ".join("-" if percent is None else f"{percent:.0f}" for percent in passes)

    heads = [f"{shape} [{','.join(order.upper())}]" for shape, order in cases]
    return markdown(["", *heads], [[name, *(cell(name, case) for case in cases)] for name in names])


def decode_table(rows: list[Row]) -> str:
    """Microseconds of a decode step in a graph, and in an eager loop; the latest two runs."""
    last = max(r["run"] for r in rows if r.get("pass") == "eager loop")
    names = ("ropewalk", "ropewalk, in place", "liger-kernel", "transformers, compiled", "transformers, eager")

    def cell(name: str, shape: str, what: str) -> str:
        kind = (name, shape, what)
        taken = [r["us"] for r in rows if (r["contender"], r["shape"], r.get("pass")) == kind and r["run"] > last - 2]
        return _span(taken, 2 if what == "forward" else 0)

    columns = [(shape, what) for shape in "BC" for what in ("forward", "eager loop")]
    heads = [f"{shape}, {'graph' if what == 'forward' else what}" for shape, what in columns]
    return markdown(["us", *heads], [[name, *(cell(name, *column) for column in columns)] for name in names])


def variant_table(rows: list[Row]) -> str:
    """Per cent of a copy for what should cost no more than the plain case; the latest run."""
    found = {(r["variant"], r["shape"], r["order"]): r["percent_of_copy"] for r in rows if "variant" in r}
    cases = [(shape, order) for shape in "AD" for order in ("bshd", "bhsd")]
    variants = list(dict.fromkeys(variant for variant, _, _ in found))
    heads = [f"{shape} [{','.join(order.upper())}]" for shape, order in cases]
    return markdown(["", *heads], [[v, *(f"{found[v, *case]:.1f}" for case in cases)] for v in variants])


def fused_table(rows: list[Row]) -> str:
    """The fused kernel against a copy of the packed qkv, the latest two runs."""
    last = max(r["run"] for r in rows if r["contender"].startswith("ropewalk, fused"))
    names = ("ropewalk, fused", "ropewalk, fused without norm", "ropewalk, plain torch")

    def cell(name: str, shape: str) -> str:
        taken = [r for r in rows if (r["contender"], r["shape"]) == (name, shape) and r["run"] > last - 2]
        return f"{_span([r['us'] for r in taken], 2)} us, {_span([r['percent_of_copy'] for r in taken], 0)} %"

    return markdown(["", *(shapes := ("T64", "T256", "T8192"))], [[name, *(cell(name, s) for s in shapes)] for name in names])


def attention_table(rows: list[Row]) -> str:
    """What the rotation adds to one attention layer, and linear attention; the latest run."""
    found = {(r["shape"], r["contender"], r["pass"]): r for r in rows if r["shape"].startswith("attention")}
    lines = []
    for (shape, name, what), row in found.items():
        note = (
            f"+{row['percent_added']} %"
            if row.get("percent_added")
            else f"{row['times_faster']} x"
            if "times_faster" in row
            else f"{row['times_half_the_length']} x half the length"
            if "times_half_the_length" in row
            else ""
        )
        lines.append([shape.removeprefix("attention "), name, what, f"{row['us'] / 1000:.2f} ms", note])
    return markdown(["shape", "", "pass", "time", ""], lines)


#: what is said of an order besides [B, H, S, D]
ORDERS = {"bshd": " [B,S,H,D]", "bhsd view": " view"}


def cpu_table(rows: list[Row]) -> str:
    """Time over the time of a copy (lower is better) and microseconds, by contender, shape and dtype."""
    timed = [r for r in rows if "us" in r]
    cases = list(dict.fromkeys((r["shape"], r["order"], r["dtype"], r["pass"]) for r in timed))
    names = list(dict.fromkeys(r["contender"] for r in timed))
    found = {(r["contender"], r["shape"], r["order"], r["dtype"], r["pass"]): r for r in timed}
    heads = [
        f"{shape.removeprefix('cpu ')}{ORDERS.get(order, '')} {dtype.replace('float', 'f')}{'' if what == 'forward' else ' f+b'}"
        for shape, order, dtype, what in cases
    ]

    def cell(name: str, case: tuple[str, str, str, str]) -> str:
        row = found.get((name, *case))
        return "-" if row is None else f"{row['us']:.0f} us" if case[0] == "cpu decode" else f"{row['times_copy']:.2f}"

    return markdown(["", *heads], [[name, *(cell(name, case) for case in cases)] for name in names])


def models_table(rows: list[Row]) -> str:
    """Whole models: forwards of a patched Llama, the latest run, and training steps of our Decoder beside transformers' Llama."""
    lines, last = [], max((r.get("run", 0) for r in rows), default=0)
    for row in rows:
        if "ms" in row and row["run"] == last:
            low, high = row["quartiles_ms"]
            note = f"{row['times_faster']:.3f} x; half of them {low:.2f} to {high:.2f}"
            if row["contender"].startswith("ropewalk"):
                least, middle, most = row["ahead_ms"]["liger-kernel, patch"]
                note += f"; ahead of Liger's patch by {middle:.2f} ms (95 %: {least:.2f} to {most:.2f})"
            clock = "" if row["sm_mhz"] == "free" else f", {row['sm_mhz']} MHz"
            lines.append([row["shape"] + clock, row["contender"], row["pass"], f"{row['ms']:.2f} ms", note])
        elif "us" in row:
            memory = f", {row['peak_bytes'] / 1e9:.2f} GB" if "peak_bytes" in row else ""
            faster = f"{row['times_faster']:.2f} x" if "times_faster" in row else ""
            said = f"{row['tokens_per_second']:,} tokens/s" if "tokens_per_second" in row else faster
            lines.append([row["shape"], row["contender"], row["pass"], f"{row['us'] / 1000:.1f} ms", said + memory])
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


def _span(values: list[float], digits: int) -> str:
    """The smallest and the largest, or the one number they both are."""
    said = dict.fromkeys(f"{value:.{digits}f}" for value in (min(values), max(values))) if values else ["-"]
    return " to ".join(said)


def markdown(heads: list[str], lines: list[list[str]]) -> str:
    """A table whose first column is words."""
    rule = ["---"] + ["---:"] * (len(heads) - 1)
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (heads, rule, *lines))
