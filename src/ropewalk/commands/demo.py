"""`ropewalk demo`: the self-check as tables on the screen, a report and pictures on disk, and an exit code."""

from __future__ import annotations

import json as json_format
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from ropewalk import RopeSpec, __version__, selfcheck
from ropewalk.commands import console
from ropewalk.commands.info import machine
from ropewalk.errors import choice, integer


@dataclass(frozen=True)
class Section:
    """One table of the report, ready for the screen or for Markdown."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    note: str


def demo(
    out: Annotated[Path, typer.Option(help="Folder for report.md and the pictures.")] = Path("demo"),
    tokens: Annotated[int, typer.Option(help="Length of the sequence that is timed.")] = 1024,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto: cuda where there is one.")] = "auto",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Check this machine: errors against the definition in 60 digits, and the speed of every backend.

    Exit code 1 if any error is beyond its bound.
    """
    start = time.perf_counter()
    integer("tokens", tokens, low=1, high=1 << 20)
    device = _device(device)
    out.mkdir(parents=True, exist_ok=True)
    report = _run(tokens, device)
    sections = [_precision(report), _laws(report), _speed(report, tokens, device)]
    pictures, missing = _pictures(out)
    path = out / "report.md"
    path.write_text(markdown(report, sections, pictures), encoding="utf-8")
    if json:
        rows = {name: [asdict(row) | {"ok": row.ok} for row in part] for name, part in vars(report).items()}
        print(json_format.dumps({"ok": report.ok, "machine": machine(), "report": str(path), **rows}, indent=2))
    else:
        _show(console(), sections, report.ok, [path, *pictures], missing, time.perf_counter() - start)
    raise typer.Exit(0 if report.ok else 1)


def _device(name: str) -> str:
    has_gpu = torch.cuda.is_available()
    if name == "auto":
        return "cuda" if has_gpu else "cpu"
    return choice("device", name, ("cpu", "cuda") if has_gpu else ("cpu",))


def _run(tokens: int, device: str) -> selfcheck.Report:
    steps = list(selfcheck.steps(tokens, device))
    rows: list = []
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    # progress belongs to the terminal: stdout stays clean for --json and for pipes
    screen = Console(stderr=True)
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as progress:
        task = progress.add_task("", total=len(steps))
        for name, measure in steps:
            progress.update(task, description=name)
            rows += measure()
            progress.advance(task)
    return selfcheck.gather(rows)


def _precision(report: selfcheck.Report) -> Section:
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
    return Section(
        "Precision of cos and sin",
        ("precision", "near position", "error", "bound", "own error", ""),
        rows,
        "error: against theta^(-2i/d) in 60 digits. own error: against the float64 or float32 frequencies that policy keeps.",
    )


def _laws(report: selfcheck.Report) -> Section:
    rows = [(law.name, f"{law.error:.1e}", f"{law.bound:.1e}", _verdict(law.ok)) for law in report.laws]
    return Section("Laws", ("law", "error", "bound", ""), rows, "Measured on the backend that a plain call picks.")


def _speed(report: selfcheck.Report, tokens: int, device: str) -> Section:
    base = {(row.name, row.dtype): row.milliseconds for row in report.speed}
    rows = []
    for row in report.speed:
        if row.reason:
            rows.append((row.name, row.dtype, "", "", "", "", f"not here: {row.reason}"))
            continue
        copies = _ratio(row.milliseconds, base["copy_", row.dtype])
        halves = _ratio(row.milliseconds, base["rotate_half in plain torch", row.dtype])
        error = "" if row.error is None else f"{row.error:.1e}"
        verdict = "" if row.bound is None else _verdict(row.ok)
        rows.append((row.name, row.dtype, error, f"{row.milliseconds:.2f}", copies, halves, verdict))
    return Section(
        f"One q [1, 32, {tokens}, 128] and k [1, 8, {tokens}, 128] on {device}",
        ("way", "dtype", "error", "ms", "x copy", "x rotate_half", ""),
        rows,
        "error: largest, over both layouts and positions up to 10,000,000, relative to the length of the pair. "
        "rotate_half gets its table ready-made in the tensor's dtype; it shows no verdict because it makes no promise.",
    )


def _ratio(time_ms: float | None, base_ms: float | None) -> str:
    return f"{time_ms / base_ms:.2f}" if time_ms and base_ms else ""


def _verdict(ok: bool) -> str:
    return "ok" if ok else "BEYOND ITS BOUND"


def _pictures(out: Path) -> tuple[list[Path], str | None]:
    """The pictures written, and what to install where they could not be."""
    try:
        import matplotlib  # noqa: F401 - only asked whether it is there
    except ImportError:
        return [], "no pictures: matplotlib is missing; run: pip install 'ropewalk[lab]'"
    from ropewalk import plots

    draw: list[Callable[[], Path]] = [
        lambda: plots.precision(selfcheck.precision_curves(points=25, width=4), out / "precision.png"),
        lambda: plots.clocks(RopeSpec(12).frequencies().radians.tolist(), (0, 1, 4, 64), out / "clocks.png"),
    ]
    return [one() for one in draw], None


def markdown(report: selfcheck.Report, sections: list[Section], pictures: list[Path]) -> str:
    """The whole report as Markdown."""
    where = ", ".join(f"{name} {value}" for name, value in machine().items() if value is not None)
    outcome = "Every error is within its bound." if report.ok else "**Some errors are beyond their bound.**"
    parts = [f"# ropewalk {__version__} self-check", f"torch {torch.__version__}; {where}.", outcome]
    for section in sections:
        head = [section.columns, tuple("---" for _ in section.columns)]
        parts += [f"## {section.title}", "\n".join("| " + " | ".join(row) + " |" for row in (*head, *section.rows)), section.note]
    parts += [f"![{picture.stem}]({picture.name})" for picture in pictures]
    return "\n\n".join(parts) + "\n"


def _show(to: Console, sections: list[Section], ok: bool, paths: list[Path], missing: str | None, seconds: float) -> None:
    for section in sections:
        table = Table(*section.columns, title=section.title, caption=section.note, title_justify="left", caption_justify="left")
        for row in section.rows:
            table.add_row(*row, style="red" if row[-1].startswith("BEYOND") else None)
        to.print(table)
        to.print()
    to.print("Every error is within its bound." if ok else "Some errors are beyond their bound.", style="green" if ok else "red")
    to.print(f"{seconds:.0f} s; written:", *map(str, paths), sep="\n", soft_wrap=True)
    if missing:
        to.print(missing)
