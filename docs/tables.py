"""Write the tables of the documentation between their markers: `python docs/tables.py`.

The encodings are measured now; benchmarks are read from `results/`, with their charts.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from ropewalk_lab.analysis import GUIDE
from ropewalk_lab.bench import chart, rows, tables
from ropewalk_lab.comparison import as_markdown, compare
from ropewalk_lab.fit import summary
from ropewalk_lab.fit.session import FACTS, ROWS
from ropewalk_lab.guide import EVIDENCE, evidence
from ropewalk_lab.published import compared
from ropewalk_lab.report import read_results
from ropewalk_lab.studies import STUDIES, read_study

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "results"
#: tables of the page about peers, and the one shape that each shows: the forward pass of a long
#: prompt
PEER_TABLES = {"peers-gpu": "h200.jsonl", "peers-cpu": "cpu.jsonl"}
PEER_CASES = {("forward", "A", "bfloat16"), ("forward", "cpu prefill", "float32")}
#: folders of studies in results/lab: the number of their tables on the page, and the tables of
#: others shown beside ours
LAB: dict[str, tuple[int, tuple[str, ...]]] = {
    "cpu_demo_encodings": (1, ()),
    "cpu_demo_extend": (1, ()),
    "cpu_three_seeds_encodings": (1, ()),
    "cpu_three_seeds_extend": (1, ()),
    "cpu_base": (2, ("base-ablation",)),
    "cpu_frequencies": (3, ()),
    "cpu_mlm_lengths": (1, ("roformer-stages",)),
    "cpu_decay": (1, ("unaliased-length",)),
    "h200_encodings": (1, ("glue", "alibi-extrapolation", "nope-causal")),
    "h200_encodings_512": (1, ("glue", "beyond-512")),
    "h200_extend": (3, ("ntk-zero-shot", "interpolation", "yarn", "longrope")),
    "h200_base": (2, ("base-ablation",)),
    "h200_norms": (1, ("norm-ablation",)),
    "cpu_norms": (1, ("norm-ablation",)),
    "h200_passkey": (1, ("drope-needle",)),
    "h200_mlm_lengths": (1, ("roformer-stages",)),
    "h200_matching": (1, ("roformer-cail",)),
    "h200_migrate": (2, ()),
    "h200_methods": (2, ()),
    "h200_multimodal": (1, ()),
    "h200_real_extend": (4, ()),
    "h200_real_passkey": (2, ()),
    "h200_real_tune": (1, ()),
    "h200_real_tune_200": (1, ()),
    "h200_real_tune_small_rate": (1, ()),
    "h200_real_tune_codes": (1, ()),
    "h200_real_tune_codes_large_rate": (1, ()),
    "h200_real_precision": (1, ()),
    "h200_real_kv": (1, ()),
    "cpu_relative": (1, ()),
    "cpu_linear": (2, ("roformer-linear",)),
    "cpu_precision": (1, ()),
}
#: verdicts of tests/interop/family_walk.py that may be committed
FAMILY_VERDICTS = ("equal", "refused", "no rotation", "unused", "not built")
#: studies on a pretrained model, and what the tutorial says where there are no rows yet
REAL = ("real_extend", "real_passkey", "real_tune", "real_precision", "real_kv")
TUTORIALS = {
    "tutorial.md": "Not yet measured on a GPU; run `ropewalk lab run {} --preset gpu`.",
    # full-width punctuation is right in Chinese
    "zh/tutorial.md": "尚未在 GPU 上测量；请运行 `ropewalk lab run {} --preset gpu`。",  # noqa: RUF001
}
#: what `ropewalk fit` measured on SmolLM2
FIT = "h200_fit"
START, END = "<!-- {}: start -->\n", "<!-- {}: end -->"


def filled(text: str, name: str, table: str) -> str:
    """Return the page with the text between the markers of `name` replaced."""
    start, end = START.format(name), END.format(name)
    return text[: text.index(start) + len(start)] + table + text[text.index(end) :]


def benchmark_page(text: str) -> str:
    """Return the benchmark page with every table made from the committed rows."""
    for name, (file, table) in tables.TABLES.items():
        text = filled(text, name, table(rows.read(RESULTS / file)))
    return text


def peers_table(measured: list[dict[str, Any]]) -> str:
    """Return a table of the contenders: version, error against the float64 definition, and time
    over that of a copy.
    """
    timed = [
        row
        for row in measured
        if (row.get("pass"), row["shape"], row.get("dtype")) in PEER_CASES and "variant" not in row
    ]
    orders = [order for order in ("bshd", "bhsd") if any(row["order"] == order for row in timed)]
    titles = [f"time over a copy, [{','.join(order.upper())}]" for order in orders]
    lines = [
        f"| contender | version | rms error | {' | '.join(titles)} |",
        "|---|---|---:|" + "---:|" * len(orders),
    ]
    for name in dict.fromkeys(row["contender"] for row in timed):
        of_one = [row for row in timed if row["contender"] == name]
        package = name.split(",")[0]
        version = of_one[0]["versions"].get(package, "this one" if package == "ropewalk" else "-")
        error = max(row["rms_error"] for row in of_one)
        cells = (_over_copy([row for row in of_one if row["order"] == order]) for order in orders)
        lines.append(f"| {name} | {version} | {error:.1e} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _over_copy(runs: list[dict[str, Any]]) -> str:
    """Return the mean over runs of time / time of a copy, as text."""
    return f"{sum(row['us'] / row['copy_us'] for row in runs) / len(runs):.2f}" if runs else "-"


def peers_page(text: str) -> str:
    """Return the page about peers with its tables made from the committed rows."""
    for name, file in PEER_TABLES.items():
        text = filled(text, name, peers_table(rows.read(RESULTS / file)))
    return text


def study_block(folder: Path, count: int, published: tuple[str, ...]) -> str:
    """Return the first `count` tables of a study, from its committed rows, others' results, and the
    verdict on each claim.
    """
    measured, facts = read_study(folder)
    page = STUDIES[facts["study"]].findings(measured, facts)
    parts = [
        tables.markdown(list(table.columns), [list(row) for row in table.rows])
        for table in page.tables[:count]
    ]
    for table in compared(published, page):
        note = f"{table.title}. {table.note}"
        parts.append(
            f"{note}\n\n{tables.markdown(list(table.columns), [list(row) for row in table.rows])}"
        )
    claims = [f"- {claim.text}: **{claim.verdict}** ({claim.evidence})." for claim in page.claims]
    machine, seeds = facts["machine"], facts["seeds"]
    where = (
        f"{seeds} seed{'s' if seeds > 1 else ''}, {machine['device']}, torch {machine['torch']}, "
        f"{machine['date']}."
    )
    return "\n".join([*parts, *claims, "", where]) + "\n"


def guide_page(text: str) -> str:
    """Return the page with the guide: each recommendation, its reason, and what the committed runs
    measured.
    """
    measured = evidence(read_results(RESULTS / "lab"))
    lines = ["| use | start with | because | measured |", "|---|---|---|---|"]
    lines += [
        (
            f"| {use.use} | {_code(use.choose)} | {use.because} | {measured[use.use]} "
            f"({_runs(use.use)}) |"
        )
        for use in GUIDE
    ]
    return filled(text, "guide", "\n".join(lines) + "\n")


def _runs(use: str) -> str:
    """Return the names of the runs that are the evidence for a recommendation."""
    return ", ".join(f"`{run}`" for run in EVIDENCE[use][0])


def _code(text: str) -> str:
    """Put code into backticks: calls, names with a dot, and quoted values."""
    return re.sub(r'(\b[\w.]+\([\w, ]*\)|\baxes\.\w+|"\w+")', r"`\1`", text)


def lab_page(text: str) -> str:
    """Return the page of the lab's results with its tables made from the committed rows."""
    for name, (count, published) in LAB.items():
        text = filled(text, name, study_block(RESULTS / "lab" / name, count, published))
    return text


def families_page(text: str) -> str:
    """Return the page about families with its tables made from the committed rows."""
    walked = rows.read(RESULTS / "families.jsonl")
    by_verdict = {
        verdict: [row for row in walked if row["verdict"] == verdict] for verdict in FAMILY_VERDICTS
    }
    count = ", ".join(f"{len(by_verdict[verdict])} {verdict}" for verdict in FAMILY_VERDICTS)
    text = filled(
        text,
        "families-summary",
        f"transformers {walked[0]['transformers']}, {len(walked)} families: {count}.\n",
    )
    columns = ["family", "class", "outputs differ by", "gradients differ by", "greedy tokens"]
    cells = [
        [
            row["family"],
            row["class"],
            f"{row['outputs']:.0e}",
            f"{row['gradients']:.0e}",
            "the same" if row["tokens"] else "-",
        ]
        for row in by_verdict["equal"]
    ]
    text = filled(text, "families-equal", tables.markdown(columns, cells))
    for verdict in ("refused", "not built"):
        lines = "".join(
            f"- `{row['family']}`: {row['reason'].removeprefix('LookupError: ')}\n"
            for row in by_verdict[verdict]
        )
        text = filled(text, f"families-{verdict.replace(' ', '-')}", lines)
    for verdict in ("no rotation", "unused"):
        names = ", ".join(f"`{row['family']}`" for row in by_verdict[verdict])
        text = filled(text, f"families-{verdict.replace(' ', '-')}", f"{names}.\n")
    return text


def engines_page(text: str) -> str:
    """Return the page about engines: how many cells each computes as their spec says, and every
    config with every engine.
    """
    measured = rows.read(RESULTS / "engines.jsonl")
    engines = list(dict.fromkeys(row["engine"] for row in measured))
    summary = [
        "| engine | run | cells as the spec says | cells that differ | cells refused |",
        "|---|---|---:|---:|---:|",
    ]
    for engine in engines:
        of_engine = [row for row in measured if row["engine"] == engine]
        version, date = of_engine[0]["version"], of_engine[0]["date"]
        counts = Counter(row["verdict"] for row in of_engine)
        differ = len(of_engine) - counts["same"] - counts["error"] - counts["no spec"]
        summary.append(
            f"| {engine} {version} | {date} | {counts['same']} | {differ} | {counts['error']} |"
        )
    # config and length -> engine -> what it does in each layer type
    cells: dict[str, dict[str, list[str]]] = {}
    for row in measured:
        started = "" if row["max_model_len"] is None else f", started for {row['max_model_len']:,}"
        name = f"{row['config']}, {row['length']:,} tokens{started}"
        cells.setdefault(name, {}).setdefault(row["engine"], []).append(_engine_cell(row))
    lines = [f"| config | {' | '.join(engines)} |", "|---|" + "---|" * len(engines)]
    for name, by_engine in cells.items():
        texts = [" / ".join(dict.fromkeys(by_engine[engine])) for engine in engines]
        lines.append(f"| {name} | {' | '.join(texts)} |")
    releases = [
        "| engine | release | compared with | cells | differ | the first of them |",
        "|---|---|---|---:|---:|---|",
    ]
    for row in rows.read(RESULTS / "engine_releases.jsonl"):
        facts = (
            row["engine"],
            row["version"],
            row["compared_with"],
            row["cells"],
            row["differ"],
            row["first"] or "",
        )
        releases.append(f"| {' | '.join(map(str, facts))} |")
    kinds = ("right", "right error", "wrong", "not known", "not run", "refused")
    # "refused" in the rows is `from_hf`; in the other tables it is the engine
    titles = (
        *kinds[:-1],
        "no spec",
    )
    draws = [f"| seed | engine | {' | '.join(titles)} |", "|---|---|" + "---:|" * len(kinds)]
    for row in rows.read(RESULTS / "engine_draws.jsonl"):
        draws.append(
            f"| {row['seed']} | {row['engine']} {row['version']} | "
            f"{' | '.join(str(row[kind]) for kind in kinds)} |"
        )
    for kind in ("mistakes", "recent"):
        text = filled(text, f"engines-{kind}", _counts(f"draw_{kind}"))
    text = filled(text, "engines-draws", "\n".join(draws) + "\n")
    text = filled(text, "engines-releases", "\n".join(releases) + "\n")
    text = filled(text, "engines-summary", "\n".join(summary) + "\n")
    return filled(text, "engines-matrix", "\n".join(lines) + "\n")


def _counts(draw: str) -> str:
    """Return the counts of the draws of one kind as a table, a row for each seed and engine."""
    kinds = ("right", "right error", "wrong", "not known", "not run", "refused")
    lines = [
        f"| seed | configs | engine | {' | '.join((*kinds[:-1], 'no spec'))} |",
        "|---|---:|---|" + "---:|" * len(kinds),
    ]
    for row in rows.read(RESULTS / "engine_counts.jsonl"):
        if row["draw"] == draw:
            facts = (row["seed"], row["configs"], f"{row['engine']} {row['version']}")
            lines.append(f"| {' | '.join(map(str, (*facts, *(row[kind] for kind in kinds))))} |")
    return "\n".join(lines) + "\n"


def _engine_cell(row: dict[str, Any]) -> str:
    """Return what one engine does with one config: same, or the first pair that differs and the
    factor on the logits.
    """
    if row["verdict"] in ("same", "no spec"):
        return row["verdict"]
    if row["verdict"] == "error":
        return "refused"
    if row["verdict"] == "rotated":
        return "not rotated" if row["magnitude"] is None else "rotated"
    parts = [] if row["first_pair"] is None else [f"pair {row['first_pair']}"]
    if "magnitude" in row["verdict"]:
        parts.append(f"logits x {(row['magnitude'] / row['spec_magnitude']) ** 2:.3g}")
    return ", ".join(parts)


#: what a cell of the table of stacks says, in order of weight
OUTCOMES = ("differs", "refuses", "agrees", "not expressible")


def stacks_page(text: str) -> str:
    """Return the page about stacks: the counts of each, what differs and why, and every group."""
    measured = json.loads((RESULTS / "stacks.json").read_text(encoding="utf-8"))
    ran = [row for row in measured if "cells" in row]
    summary = [
        "| stack | run | how | agrees | differs | refuses | not expressible |",
        "|---|---|---|---:|---:|---:|---:|",
    ]
    for row in measured:
        name = f"{row['stack']} {row['version']} | {row['date']} | {row['how']}"
        if "cells" not in row:
            summary.append(f"| {name} | {row['failed']} | | | |")
            continue
        counts = Counter(cell["result"] for cell in row["cells"].values())
        order = ("agrees", "differs", "refuses", "not expressible")
        summary.append(f"| {name} | {' | '.join(str(counts[each]) for each in order)} |")
    known = {row["stack"].lower() for row in measured}
    recorded = [
        row for row in rows.read(RESULTS / "engines.jsonl") if row["engine"].lower() not in known
    ]
    for engine in dict.fromkeys(row["engine"] for row in recorded):
        row = next(each for each in recorded if each["engine"] == engine)
        name = f"{engine} {row['version']} | {row['date']} | recorded"
        summary.append(f"| {name} | [other cells](engines.md) | | | |")
    reasons = ["| stack | cells | off by | mistake | because |", "|---|---|---|---|---|"]
    for row in ran:
        groups: dict[tuple[str, ...], list[str]] = {}
        for name, cell in row["cells"].items():
            if cell["result"] == "differs" and not name.startswith("far/"):
                key = (_stack_cell(cell), cell["mistake"] or "", cell["because"])
                groups.setdefault(key, []).append(name)
        for key, names in groups.items():
            reasons.append(f"| {row['stack']} | {', '.join(names)} | {' | '.join(key)} |")
    names = dict.fromkeys(cell.split("/")[0] for row in ran for cell in row["cells"])
    matrix = [f"| stack | {' | '.join(names)} |", "|---|" + "---|" * len(names)]
    for row in ran:
        of_group = {
            name: [c["result"] for cell, c in row["cells"].items() if cell.startswith(f"{name}/")]
            for name in names
        }
        words = [next((o for o in OUTCOMES if o in of_group[name]), "") for name in names]
        matrix.append(f"| {row['stack']} | {' | '.join(words)} |")
    text = filled(text, "stacks-summary", "\n".join(summary) + "\n")
    text = filled(text, "stacks-because", "\n".join(reasons) + "\n")
    return filled(text, "stacks-groups", "\n".join(matrix) + "\n")


def _stack_cell(cell: dict[str, Any]) -> str:
    """Return how large a difference is: pairs, the largest factor on a frequency, the magnitude."""
    parts = []
    if cell.get("pairs_off") and "factor" not in cell:
        parts.append("other dimensions rotate together")
    elif cell.get("pairs_off"):
        first, factor = cell["first_pair"], cell["factor"]
        parts.append(
            f"{cell['pairs_off']} of {cell['pairs']} pairs from pair {first}, up to x {factor:.3g}"
        )
    if "magnitude" in cell:
        parts.append(f"magnitude x {cell['magnitude']:.3g}")
    return ", ".join(parts) or "far positions"


def fit_block(folder: Path) -> str:
    """Return the table of a fit and its recommendation, from its committed rows."""
    facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    columns, cells = summary.table(rows.read(folder / ROWS), facts)
    chosen = facts["recommended"]
    lines = [f"Recommended: `{chosen['method']}`. {chosen['reason']}."]
    lines += (
        [f"No difference beyond the noise: {', '.join(chosen['equal'])}."]
        if chosen["equal"]
        else []
    )
    table, machine = tables.markdown(columns, cells), facts["machine"]
    return (
        f"{summary.note(facts)}\n\n{table}\n{' '.join(lines)}\n\n{machine['machine']}, "
        f"{machine['date']}.\n"
    )


def tutorial_page(text: str, missing: str) -> str:
    """Return a tutorial with the tables of every study on a pretrained model; `missing` stands
    where a GPU has no rows.
    """
    fitted = RESULTS / "lab" / FIT
    parts = [f"### fit\n\n{fit_block(fitted)}"] if fitted.exists() else []
    for study in REAL:
        parts.append(f"### {study}\n\n{STUDIES[study].about}\n")
        folders = [RESULTS / "lab" / f"{machine}_{study}" for machine in ("h200", "cpu")]
        runs = [folder for folder in folders if folder.exists()]
        for folder in runs:
            notes = "\n".join(
                f"{table.title}. {table.note}"
                for table in STUDIES[study].findings(*read_study(folder)).tables
            )
            parts.append(f"{notes}\n\n{study_block(folder, 4, ())}")
        if not any(folder.name.startswith("h200") for folder in runs):
            parts.append(missing.format(study) + "\n")
    return filled(text, "real-models", "\n" + "\n".join(parts) + "\n")


def main() -> None:
    """Rewrite the pages and charts, and print their paths; with the argument `engines` or `stacks`
    only that page.
    """
    stacks = DOCS / "stacks.md"
    stacks.write_text(stacks_page(stacks.read_text(encoding="utf-8")), encoding="utf-8")
    if sys.argv[1:] == ["stacks"]:
        print(stacks)
        return
    engines = DOCS / "engines.md"
    engines.write_text(engines_page(engines.read_text(encoding="utf-8")), encoding="utf-8")
    if sys.argv[1:] == ["engines"]:
        print(engines)
        return
    names = ("encodings", "benchmarks", "peers", "lab-results", "inspect", "families")
    encodings, benchmarks, peers, lab, inspect, families = (DOCS / f"{name}.md" for name in names)
    inspect.write_text(guide_page(inspect.read_text(encoding="utf-8")), encoding="utf-8")
    families.write_text(families_page(families.read_text(encoding="utf-8")), encoding="utf-8")
    lab.write_text(lab_page(lab.read_text(encoding="utf-8")), encoding="utf-8")
    encodings.write_text(
        filled(encodings.read_text(encoding="utf-8"), "comparison", as_markdown(compare())),
        encoding="utf-8",
    )
    benchmarks.write_text(benchmark_page(benchmarks.read_text(encoding="utf-8")), encoding="utf-8")
    peers.write_text(peers_page(peers.read_text(encoding="utf-8")), encoding="utf-8")
    tutorials = {DOCS / name: missing for name, missing in TUTORIALS.items()}
    for page, missing in tutorials.items():
        page.write_text(tutorial_page(page.read_text(encoding="utf-8"), missing), encoding="utf-8")
    from pictures import reduced  # beside this file

    gpu, cpu, projection = charts = [
        DOCS / "images" / f"{name}.png" for name in ("gpu", "cpu", "projection")
    ]
    chart.gpu_chart(rows.read(RESULTS / "h200.jsonl"), gpu)
    chart.cpu_chart(rows.read(RESULTS / "cpu.jsonl"), cpu)
    chart.projection_chart(rows.read(RESULTS / "h200_projection.jsonl"), projection)
    for picture in charts:
        reduced(picture)
    print(
        encodings, benchmarks, peers, lab, inspect, families, engines, *tutorials, *charts, sep="\n"
    )


if __name__ == "__main__":
    main()
