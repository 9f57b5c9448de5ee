"""Write the tables of the documentation between their markers: `python docs/tables.py`.

A marker may stand on any page: `<!-- name: start -->`, then `<!-- name: end -->`. The encodings are
measured now; everything else is read from `results/`, with its charts.
"""

from __future__ import annotations

import functools
import html
import json
import re
import sys
from collections import Counter
from collections.abc import Callable
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
    "h200_frequencies": (3, ()),
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
    "cpu_real_kv": (1, ()),
    "cpu_relative": (1, ()),
    "cpu_linear": (2, ("roformer-linear",)),
    "cpu_precision": (1, ()),
}
#: verdicts of tests/interop/family_walk.py that may be committed
FAMILY_VERDICTS = ("equal", "refused", "no rotation", "unused", "not built")
#: what `ropewalk fit` measured on SmolLM2
FIT = "h200_fit"
#: claims of a study that are shown at once; more are folded
CLAIMS = 6
MARKED = re.compile(
    r"^(?P<start><!-- (?P<name>[\w-]+): start -->\n)(?P<text>.*?)(?P<end>^<!-- (?P=name): end -->)",
    re.MULTILINE | re.DOTALL,
)


def page(text: str, chosen: str = "") -> str:
    """Return a page with the text between all markers, or those that begin with `chosen`, made anew."""

    def made(block: re.Match[str]) -> str:
        wanted = block["name"].startswith(chosen)
        return (
            block["start"] + (MAKERS[block["name"]]() if wanted else block["text"]) + block["end"]
        )

    return MARKED.sub(made, text)


def benchmark(file: str, table: Callable[[list[dict[str, Any]]], str]) -> str:
    """Return one benchmark table from its committed rows."""
    return table(rows.read(RESULTS / file))


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


def study_block(folder: Path, count: int, published: tuple[str, ...]) -> str:
    """Return the first `count` tables of a study, from its committed rows, others' results, and the
    verdict on each claim.
    """
    measured, facts = read_study(folder)
    found = STUDIES[facts["study"]].findings(measured, facts)
    parts = [
        tables.markdown(list(table.columns), [list(row) for row in table.rows])
        for table in found.tables[:count]
    ]
    for table in compared(published, found):
        shown = tables.markdown(list(table.columns), [list(row) for row in table.rows])
        parts.append(folded(table.title, f"{table.note}\n\n{shown}"))
    claims = [f"- {claim.text}: **{claim.verdict}** ({claim.evidence})." for claim in found.claims]
    if len(claims) > CLAIMS:
        counts = Counter(claim.verdict for claim in found.claims)
        title = ", ".join(f"{verdict} {count}" for verdict, count in counts.items())
        claims = [folded(f"{len(claims)} claims: {title}", "\n".join(claims) + "\n")]
    machine, seeds = facts["machine"], facts["seeds"]
    where = (
        f"{seeds} seed{'s' if seeds > 1 else ''}, {machine['device']}, torch {machine['torch']}, "
        f"{machine['date']}."
    )
    return "\n".join([*parts, *claims, "", where]) + "\n"


def folded(title: str, text: str) -> str:
    """Return text that is shown when its title is clicked; the text is Markdown."""
    return f"<details><summary>{html.escape(title)}</summary>\n\n{text}\n</details>\n"


def guide() -> str:
    """Return the guide: each recommendation, its reason, and what the committed runs measured."""
    measured = evidence(read_results(RESULTS / "lab"))
    lines = ["| use | start with | because | measured |", "|---|---|---|---|"]
    lines += [
        (
            f"| {use.use} | {_code(use.choose)} | {use.because} | {measured[use.use]} "
            f"({_runs(use.use)}) |"
        )
        for use in GUIDE
    ]
    return "\n".join(lines) + "\n"


def _runs(use: str) -> str:
    """Return the names of the runs that are the evidence for a recommendation."""
    return ", ".join(f"`{run}`" for run in EVIDENCE[use][0])


def _code(text: str) -> str:
    """Put code into backticks: calls, names with a dot, and quoted values."""
    return re.sub(r'(\b[\w.]+\([\w, ]*\)|\baxes\.\w+|"\w+")', r"`\1`", text)


def _families() -> list[dict[str, Any]]:
    """Return the committed rows about families, in the order of their verdicts."""
    walked = rows.read(RESULTS / "families.jsonl")
    return sorted(walked, key=lambda row: FAMILY_VERDICTS.index(row["verdict"]))


def families_summary() -> str:
    """Return how many families have each verdict."""
    walked = _families()
    counts = Counter(row["verdict"] for row in walked)
    count = ", ".join(f"{counts[verdict]} {verdict}" for verdict in FAMILY_VERDICTS)
    return f"transformers {walked[0]['transformers']}, {len(walked)} families: {count}.\n"


def families_all() -> str:
    """Return the table of all families: equal ones with their differences, others with a reason."""
    lines = ["| family | verdict | class | what was found |", "|---|---|---|---|"]
    for row in _families():
        if row["verdict"] == "equal":
            tokens = ", the same greedy tokens" if row["tokens"] else ""
            found = f"outputs differ by {row['outputs']:.0e}, gradients by {row['gradients']:.0e}"
            found += tokens
        else:
            found = (row.get("reason") or "").removeprefix("LookupError: ")
            found = re.sub(r"([\\|*_<\[\]`])", r"\\\1", found)
        lines.append(f"| {row['family']} | {row['verdict']} | {row.get('class') or ''} | {found} |")
    return "\n".join(lines) + "\n"


@functools.cache
def engine_blocks() -> dict[str, str]:
    """Return the tables of the pages about engines, by the name of their block: how many layer
    types each engine computes as the spec says, every config with every engine, further releases of
    each engine, and the draws of configs.
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
    # "refused" in these rows means that `from_hf` refuses the config, so the table says "no spec";
    # in the tables above it means that the engine does
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
    made = {"summary": summary, "matrix": lines, "releases": releases, "draws": draws}
    blocks = {f"engines-{name}": "\n".join(each) + "\n" for name, each in made.items()}
    drawn = ("draw_mistakes", "draw_recent", "independent recent", "independent mistakes")
    return blocks | {f"engines-{_block_of(draw)}": _counts(draw) for draw in drawn}


def _block_of(draw: str) -> str:
    """Return how a block of a draw is named: without "draw_", and with hyphens."""
    return draw.removeprefix("draw_").replace(" ", "-")


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


@functools.cache
def stack_blocks() -> dict[str, str]:
    """Return the tables about stacks: the counts of each, what differs and why, and every group."""
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
    made = {"summary": summary, "because": reasons, "groups": matrix}
    return {f"stacks-{name}": "\n".join(each) + "\n" for name, each in made.items()}


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


#: marker -> function that returns the text between it and its end
MAKERS: dict[str, Callable[[], str]] = {
    **{
        name: functools.partial(benchmark, file, table)
        for name, (file, table) in tables.TABLES.items()
    },
    **{name: functools.partial(benchmark, file, peers_table) for name, file in PEER_TABLES.items()},
    **{
        f"lab-{name}": functools.partial(study_block, RESULTS / "lab" / name, count, published)
        for name, (count, published) in LAB.items()
    },
    "families-summary": families_summary,
    "families-all": families_all,
    **{
        f"engines-{name}": lambda name=name: engine_blocks()[f"engines-{name}"]
        for name in (
            *("summary", "matrix", "releases", "draws", "mistakes", "recent"),
            *("independent-recent", "independent-mistakes"),
        )
    },
    **{
        f"stacks-{name}": lambda name=name: stack_blocks()[f"stacks-{name}"]
        for name in ("summary", "because", "groups")
    },
    "fit": functools.partial(fit_block, RESULTS / "lab" / FIT),
    "guide": guide,
    "comparison": lambda: as_markdown(compare()),
}


def main() -> None:
    """Rewrite the tables of all pages, and print the pages that changed; then the charts. With an
    argument, only tables whose marker begins with it, and no chart.
    """
    chosen = sys.argv[1] if sys.argv[1:] else ""
    for path in sorted(DOCS.rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        if (made := page(text, chosen)) != text:
            path.write_text(made, encoding="utf-8")
            print(path)
    if chosen:
        return
    from pictures import reduced  # beside this file

    gpu, cpu, projection = charts = [
        DOCS / "images" / f"{name}.png" for name in ("gpu", "cpu", "projection")
    ]
    timed = rows.read(RESULTS / "h200.jsonl")
    chart.gpu_chart([row for row in timed if row["shape"] in tuple("ADEF")], gpu)
    chart.cpu_chart(rows.read(RESULTS / "cpu.jsonl"), cpu)
    chart.projection_chart(rows.read(RESULTS / "h200_projection.jsonl"), projection)
    for picture in charts:
        reduced(picture)
    print(*charts, sep="\n")


if __name__ == "__main__":
    main()
