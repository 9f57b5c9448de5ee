"""`ropewalk demo`: run a self-check, a short benchmark and two studies on this machine, and write
one page of results.
"""

from __future__ import annotations

import json as json_format
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import ropewalk as rw
from ropewalk.errors import integer
from ropewalk_cli.commands import Device, Json, device_of
from ropewalk_cli.declare import Option
from ropewalk_cli.output import say, table

if TYPE_CHECKING:
    from ropewalk_lab.report_html import Lead, Verdict
    from ropewalk_lab.selfcheck import SelfCheckReport
    from ropewalk_lab.studies.findings import Table
    from ropewalk_lab.studies.rows import Row


@dataclass(frozen=True)
class DemoSize:
    """How much a demo trains and times.

    studies  {study: its changed settings}
    steps    steps of each training with the preset "cpu"; other presets keep theirs
    rounds   rounds of the benchmark
    """

    studies: dict[str, list[str]]
    steps: int
    rounds: int


#: one comparison and one extension
SHORT = DemoSize(
    {
        "encodings": ['encodings=["rope", "sinusoidal"]', "multiples=[1, 2, 4]"],
        "extend": ['methods=["none", "yarn"]', "factors=[4]", "tuned_factors=[]"],
    },
    steps=220,
    rounds=2,
)
#: enough for the first table of each study; a tenth fewer steps than the preset "cpu" has, so that
#: the demo takes eight minutes
FULL = DemoSize(
    {
        "encodings": ['encodings=["rope", "alibi", "sinusoidal", "none"]', "multiples=[1, 2, 4]"],
        "extend": ['methods=["none", "linear", "ntk", "yarn"]', "factors=[4]", "tuned_factors=[]"],
    },
    steps=540,
    rounds=3,
)
#: the longest timed sequence: its q has 2 GiB in float32
MOST_TOKENS = 1 << 17
NEXT = """Next:
  ropewalk explore                                     change the settings of a rope in a browser
  ropewalk inspect config.json                         explain a checkpoint's rope
  ropewalk lab list                                    more studies: fine-tuning, pass keys, linear attention, images, ...
  ropewalk demo --full                                 four encodings and four methods, longer trainings
  ropewalk lab run extend --preset cpu --out {out}     every method, also after a little training
  ropewalk bench                                       the whole benchmark"""  # noqa: E501


def demo(
    out: Annotated[Path, Option("Folder for the reports, pictures and rows.")] = Path("demo"),
    tokens: Annotated[int, Option("Length of the sequence that is timed.")] = 1024,
    device: Device = "auto",
    preset: Annotated[
        Literal["smoke", "cpu", "gpu"],
        Option("Size of the studies: smoke takes seconds, cpu and gpu minutes."),
    ] = "cpu",
    check_only: Annotated[
        bool, Option("Run only the self-check, which takes seconds; train nothing.")
    ] = False,
    full: Annotated[
        bool, Option("Train more models, for more steps: eight minutes on two cores.")
    ] = False,
    json: Json = False,
) -> None:
    """Check this machine, time the kernels, train and extend small models, and write one page with
    the results.

    The studies of an interrupted demo continue where they stopped. The exit code is 1 if any error
    is beyond its bound.
    """
    from ropewalk_lab.machine import machine

    start = time.perf_counter()
    integer("tokens", tokens, low=1, high=MOST_TOKENS)
    on = device_of(device)
    out.mkdir(parents=True, exist_ok=True)
    report = _run_checks(tokens, on, json)
    sections = [_precision(report), _laws(report), _speed(report, tokens, on)]
    pictures, no_pictures = _pictures(out)
    paths = [out / "report.md", *pictures]
    paths[0].write_text(markdown(report, sections, pictures, on), encoding="utf-8")
    if not json:
        _show_tables(sections)
        say(_outcome(report.ok), style="green" if report.ok else "red")
    claims: dict[str, Any] = {}
    # results of models trained with a wrong kernel would be meaningless
    if report.ok and not check_only:
        size = FULL if full else SHORT
        benchmark = _benchmark(size.rounds)
        if not json:
            _show_tables([benchmark])
        claims, page = _run_studies(out, size, preset, on, report, [*sections, benchmark], json)
        paths.append(page)
    if json:
        # the fields of the report, `precision`, `laws` and `speed`, are lists of rows
        rows = {
            name: [asdict(row) | {"ok": row.ok} for row in part]
            for name, part in vars(report).items()
        }
        result = {"ok": report.ok, "machine": machine(on), "report": str(paths[0]), **rows}
        print(
            json_format.dumps(
                result | ({"page": str(paths[-1]), "studies": claims} if claims else {}), indent=2
            )
        )
    else:
        _print_end(out, paths, no_pictures, time.perf_counter() - start)
    if not report.ok:
        raise SystemExit(1)


def _benchmark(rounds: int) -> Table:
    """Return a table with the times of the rotation and of other installed libraries, on one core:
    by dtype, then the fastest first.
    """
    from ropewalk_lab.bench import cpu
    from ropewalk_lab.studies.findings import Table

    rows = [
        (
            row["contender"],
            row["dtype"],
            f"{row['us']:.0f}",
            f"{row['times_copy']:.2f}",
            f"{row['rms_error']:.1e}",
        )
        # "cpu mid" is the shape that the note describes; a contender that was skipped has no pass
        for row in cpu.measure(("cpu mid",), rounds=rounds)
        if row.get("pass") == "forward"
    ]
    rows.sort(key=lambda cells: (cells[1], float(cells[3])))  # by dtype, then by time
    note = (
        f"256 tokens, 32 heads of 128; CPU time of one thread; rounds: {rounds}; `ropewalk bench` "
        "measures more."
    )
    return Table("Short benchmark", ("contender", "dtype", "us", "x copy", "rms error"), rows, note)


def _run_studies(
    out: Path,
    size: DemoSize,
    preset: str,
    device: str,
    checked: SelfCheckReport,
    sections: list[Table],
    quiet: bool,
) -> tuple[dict[str, Any], Path]:
    """Run the studies of a demo; return {study: its claims as plain data}, and the path of the
    report.

    out       the folder of the studies and of the report
    size      which studies run, and with which changes; its steps count only with the preset "cpu"
    preset    the preset of every study
    device    where models are trained
    checked   the self-check, for the verdicts that the report begins with
    sections  tables that the report has after those of the studies
    quiet     print neither progress nor claims
    """
    from ropewalk_cli.commands.lab import show
    from ropewalk_lab import report
    from ropewalk_lab import studies as lab
    from ropewalk_lab.studies.findings import concluded

    claims = {}
    for name, changes in size.studies.items():
        # the preset "cpu" trains for fewer steps in a demo; its other changes of the model's
        # settings stay
        default_changes = lab.STUDIES[name].presets[preset]["changes"]
        stages = f"train.stages=[{{length=128, batch=8, steps={size.steps}}}]"
        shorter = (
            [f"changes={json_format.dumps([*default_changes, stages])}"] if preset == "cpu" else []
        )
        folder = lab.run_study(
            lab.STUDIES[name], preset, out, changes=[*changes, *shorter], device=device, quiet=quiet
        )
        rows, facts = lab.read_study(folder)
        page = concluded(lab.STUDIES[name].findings(rows, facts), facts)
        claims[name] = [asdict(claim) for claim in page.claims]
        if not quiet:
            show(page, name)
    # `rows` and `folder` are those of the last study, `extend`
    return claims, report.write_report(out, sections, lead=_lead(checked, rows, folder, device))


def _lead(checked: SelfCheckReport, rows: list[Row], folder: Path, device: str) -> Lead:
    """Return the first screen of the page; `rows` and `folder` are those of the study `extend`."""
    from ropewalk_lab.report_html import Lead
    from ropewalk_lab.studies.extend import losses_beyond

    trained, losses = losses_beyond(rows)
    caption = (
        f"A small model trained here on texts of {trained} bytes reads longer ones: the loss "
        "without a scaling, and with each method."
    )
    title = f"ropewalk {rw.__version__} on this machine"
    verdicts = [_exactness(checked), _speed_up(checked, device), _extension(trained, losses)]
    return Lead(title, verdicts, folder / "extend.svg", caption)


def _exactness(checked: SelfCheckReport) -> Verdict:
    """Return the verdict on cos and sin near position 10,000,000."""
    from ropewalk_lab.report_html import Verdict

    far = 10_000_000
    exact, usual = (
        next(row for row in checked.precision if (row.policy, row.position) == (policy, far))
        for policy in ("exact", "hf")
    )
    return Verdict(
        f"{'Exact' if exact.ok else 'Not exact'} at {far:,} tokens",
        f"cos and sin are off by at most {exact.error:.0e}; computed in float32 as transformers "
        f"does, by up to {usual.error:.2g}.",
        exact.ok,
    )


def _speed_up(checked: SelfCheckReport, device: str) -> Verdict:
    """Return the verdict on the time of the fastest backend beside that of rotate_half, in float32."""
    from ropewalk_lab.report_html import Verdict

    times = {
        row.name: row.milliseconds
        for row in checked.speed
        if row.dtype == "float32" and row.milliseconds
    }
    plain = times["rotate_half in plain torch"]
    name = min((name for name in times if name in rw.kernels.BACKENDS), key=times.__getitem__)
    faster = plain / times[name]
    return Verdict(
        f"{faster:.1f} times as fast as rotate_half here",
        f"{name} kernel, {times[name]:.2f} ms; rotate_half in plain torch, {plain:.2f} ms; a copy, "
        f"{times['copy_']:.2f} ms; float32 on {device}.",
        faster >= 1,
    )


def _extension(trained: int, losses: dict[tuple[str, int], float]) -> Verdict:
    """Return the verdict on a model that reads longer texts than it was trained on: its loss without
    a scaling and with the best method.

    trained  the length of the texts that it was trained on
    losses   {(method, factor): loss on texts of `factor` times that length}
    """
    from ropewalk_lab.report_html import Verdict

    factor = max(factor for _, factor in losses)
    before = losses["none", factor]
    method = min(
        (name for name, at in losses if at == factor), key=lambda name: losses[name, factor]
    )
    return Verdict(
        f"Loss {before:.2f} before, {losses[method, factor]:.2f} after",
        f"A model trained on texts of {trained} bytes reads texts of {factor * trained}: unchanged, "
        f"and with {method}, without further training. Its loss on {trained} bytes is "
        f"{losses['none', 1]:.2f}.",
        losses[method, factor] < before,
    )


def _run_checks(tokens: int, device: str, quiet: bool) -> SelfCheckReport:
    """Run all self-checks, with progress on stderr unless `quiet`, and return their report;
    `tokens` is the length of the sequence that is timed.
    """
    from ropewalk_lab import selfcheck

    rows: list = []
    for name, measure in selfcheck.steps(tokens, device):
        if not quiet:
            # progress goes to stderr, because stdout may be piped
            say(f"self-check: {name}", file=sys.stderr)
        rows += measure()
    return selfcheck.gather(rows)


def _precision(report: SelfCheckReport) -> Table:
    """Return the table of the errors of cos and sin."""
    from ropewalk_lab.studies.findings import Table

    rows = [
        (
            row.policy,
            f"{row.position:,}",
            f"{row.error:.1e}",
            f"{row.bound:.1e}",
            f"{row.own_error:.1e}",
            _verdict(row.ok),
        )
        for row in report.precision
    ]
    return Table(
        "Precision of cos and sin",
        ("precision", "near position", "error", "bound", "error at its frequencies", "verdict"),
        rows,
        "error: compared with theta^(-2i/d) in 60 digits. error at its frequencies: compared with the "
        "frequencies that this precision uses.",
    )


def _laws(report: SelfCheckReport) -> Table:
    """Return the table of the laws of RoPE, such as scores that depend only on distances, and their
    errors.
    """
    from ropewalk_lab import selfcheck
    from ropewalk_lab.studies.findings import Table

    rows = [
        (law.name, f"{law.error:.1e}", f"{law.bound:.1e}", _verdict(law.ok)) for law in report.laws
    ]
    difference = selfcheck.order_difference(rw.Rope(rw.RopeSpec(selfcheck.HEAD_DIM)))
    note = (
        "Measured on the default backend. With RoPE the outputs of the two sentences of the first "
        f"law, put in the same order, differ by up to {difference:.1e}."
    )
    return Table("Laws", ("law", "error", "bound", "verdict"), rows, note)


def _speed(report: SelfCheckReport, tokens: int, device: str) -> Table:
    """Return the table of the times and errors of all backends."""
    from ropewalk_lab.studies.findings import Table

    milliseconds = {(row.name, row.dtype): row.milliseconds for row in report.speed}
    rows = []
    for row in report.speed:
        if row.reason:
            rows.append((row.name, row.dtype, "", "", "", "", f"not available: {row.reason}"))
            continue
        times_copy = _ratio(row.milliseconds, milliseconds["copy_", row.dtype])
        times_rotate_half = _ratio(
            row.milliseconds, milliseconds["rotate_half in plain torch", row.dtype]
        )
        error = "" if row.error is None else f"{row.error:.1e}"
        verdict = "" if row.bound is None else _verdict(row.ok)
        rows.append(
            (
                row.name,
                row.dtype,
                error,
                f"{row.milliseconds:.2f}",
                times_copy,
                times_rotate_half,
                verdict,
            )
        )
    return Table(
        f"One q [1, 32, {tokens}, 128] and k [1, 8, {tokens}, 128] on {device}",
        ("backend", "dtype", "error", "ms", "x copy", "x rotate_half", "verdict"),
        rows,
        "error: largest, over both layouts and positions up to 10,000,000, relative to the length "
        "of the pair. rotate_half uses a ready-made table in the tensor's dtype; it has no error "
        "bound and so no verdict.",
    )


def _ratio(time_ms: float | None, base_ms: float | None) -> str:
    """Return a time as a multiple of another, as text; "" if one was not measured."""
    return f"{time_ms / base_ms:.2f}" if time_ms and base_ms else ""


def _verdict(ok: bool) -> str:
    """Return the verdict of a row: "ok", or that its error is beyond its bound."""
    return "ok" if ok else "BEYOND ITS BOUND"


def _outcome(ok: bool) -> str:
    """Return the sentence about all errors."""
    return "Every error is within its bound." if ok else "Some errors are beyond their bound."


def _pictures(out: Path) -> tuple[list[Path], str | None]:
    """Write two pictures into the folder `out`; return their paths, and a message if matplotlib is
    missing.
    """
    try:
        import matplotlib  # noqa: F401 - only to see whether it is installed
    except ImportError:
        return [], "no pictures: matplotlib is missing; run: pip install 'ropewalk[lab]'"
    from ropewalk_lab import plots, selfcheck

    # errors at 25 places, each the largest at 4 positions around it; the clocks are the 6 pairs of a
    # head of 12 dimensions, at four positions
    figures = {
        "precision": plots.precision_lines(selfcheck.precision_curves(points=25, width=4)),
        "clocks": plots.clock_faces(rw.RopeSpec(12).frequencies().radians, (0, 1, 4, 64)),
    }
    return [plots.save(figure, out / f"{name}.png") for name, figure in figures.items()], None


def markdown(
    report: SelfCheckReport, sections: list[Table], pictures: list[Path], device: str
) -> str:
    """Return the self-check report as Markdown; `pictures` are shown at its end."""
    from ropewalk_lab.machine import machine

    info = machine(device)
    environment = (
        f"{info['machine']}, Python {info['python']}, torch {info['versions']['torch']}, "
        f"{info['date']}."
    )
    outcome = _outcome(report.ok) if report.ok else f"**{_outcome(report.ok)}**"
    parts = [f"# ropewalk {rw.__version__} self-check", environment, outcome]
    for section in sections:
        head = [section.columns, tuple("---" for _ in section.columns)]
        parts += [
            f"## {section.title}",
            "\n".join("| " + " | ".join(row) + " |" for row in (*head, *section.rows)),
            section.note,
        ]
    parts += [f"![{picture.stem}]({picture.name})" for picture in pictures]
    return "\n\n".join(parts) + "\n"


def _show_tables(sections: list[Table]) -> None:
    """Print the tables; rows beyond their bound are red."""
    for section in sections:
        table(section.title, section.columns, section.rows, section.note, red="BEYOND")


def _print_end(out: Path, paths: list[Path], no_pictures: str | None, seconds: float) -> None:
    """Print why there are no pictures (if so), commands to try next, the time and the written
    files.
    """
    # the page with everything comes last
    say(*filter(None, [no_pictures]), NEXT.format(out=out), f"{seconds:.0f} s; written:", *paths)
