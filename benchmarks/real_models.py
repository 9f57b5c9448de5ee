"""Measure a pretrained model on one GPU, part by part, each with a time limit:
`python benchmarks/real_models.py --help`.

Every part is a process that writes its rows while it runs, and a second call resumes, so a limit
loses little. Parts, in order of value: fit, real_extend, real_passkey, real_precision, real_kv,
real_tune. With --together, fit runs alone, because its time is one of its results, and then all
others at once on the same GPU. Needs torch, transformers and tokenizers, no other package.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import time
from pathlib import Path

#: part -> seconds on one H200; with --together only the fit has its limit, and the other parts may
#: take what is left of --seconds
LIMITS = {
    "fit": 240,
    "real_extend": 150,
    "real_passkey": 120,
    "real_precision": 90,
    "real_kv": 60,
    "real_tune": 600,
}
#: seconds that a part has to end after it was stopped at its limit; then it is killed
GRACE = 3


def texts_of(folder: Path) -> list[Path]:
    """Return the text files of a folder."""
    return sorted(path for path in folder.iterdir() if path.suffix == ".txt")


def changes_of(texts: list[Path], args: argparse.Namespace) -> list[str]:
    """Return the changed settings of all studies as texts name=JSON; the preset "smoke" has a model
    and texts of its own.
    """
    if args.preset == "smoke":
        return args.set
    # windows are taken from the first characters of each text, training from the rest of the
    # largest
    largest = max(texts, key=lambda text: text.stat().st_size)
    settings = {
        "model": str(args.model),
        "text": [str(text) for text in texts],
        "train_text": str(largest),
    }
    return [*(f"{name}={json.dumps(value)}" for name, value in settings.items()), *args.set]


def run_here(part: str, args: argparse.Namespace) -> None:
    """Run one part in this process, and print its tables."""
    import torch

    texts, device = texts_of(args.texts), "cuda" if torch.cuda.is_available() else "cpu"
    if part == "fit":
        from ropewalk_lab.fit import fit
        from ropewalk_lab.fit.measure import Step
        from ropewalk_lab.fit_page import write_page

        began = time.perf_counter()

        def report(step: Step) -> None:
            print(f"{time.perf_counter() - began:.1f} s {step}", flush=True)

        result = fit(
            args.model,
            args.to,
            text=texts,
            windows=args.windows,
            passkeys=args.passkeys,
            search=args.search,
            trained=args.trained,
            out=args.out / part,
            device=device,
            report=report,
        )
        print(f"fit took {time.perf_counter() - began:.1f} s", result, sep="\n", flush=True)
        write_page(result, args.out / part)
        return
    from ropewalk_lab.studies import STUDIES, read_study, run_study

    study = STUDIES[part]
    # a study takes only the settings that it has
    changes = [
        change
        for change in changes_of(texts, args)
        if change.partition("=")[0] in study.presets[args.preset]
    ]
    folder = run_study(
        study,
        args.preset,
        args.out,
        changes=changes,
        device=device,
        models=args.out / "models",
        workers=args.workers,
    )
    findings = study.findings(*read_study(folder))
    for table in findings.tables:
        print(
            table.title,
            *(" | ".join(cells) for cells in (table.columns, *table.rows)),
            table.note or "",
            sep="\n",
        )
    for claim in findings.claims:
        print(f"{claim.verdict}: {claim.text} ({claim.evidence})")


def start(part: str, args: argparse.Namespace) -> subprocess.Popen:
    """Start one part as a process of its own, with a log."""
    command = [sys.executable, __file__, *sys.argv[1:], "--only", part]
    environment = {
        "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        **os.environ,
        "PYTHONUNBUFFERED": "1",
    }
    with (args.out / f"{part}.log").open("w", encoding="utf-8") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment)


def wait_for(
    running: dict[str, subprocess.Popen], limits: dict[str, float]
) -> list[dict[str, object]]:
    """Wait for the parts, stop each at its limit in seconds, and return a row about each: exit code
    (124: stopped), seconds.
    """
    began, ended = time.perf_counter(), []
    while running:
        for part, process in list(running.items()):
            seconds, code = time.perf_counter() - began, process.poll()
            if code is None and seconds > limits[part]:
                process.terminate()
                try:
                    process.wait(GRACE)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                code = 124
            if code is not None:
                del running[part]
                ended.append(
                    {
                        "part": part,
                        "code": code,
                        "seconds": round(seconds, 1),
                        "limit": round(limits[part]),
                    }
                )
                print(json.dumps(ended[-1]), flush=True)
        time.sleep(0.1)
    return ended


def pack(folder: Path) -> None:
    """Write rows.tar.gz into a folder: the rows, facts, pages, figures and logs below it."""
    kept = [
        path
        for path in sorted(folder.rglob("*"))
        if path.suffix in (".jsonl", ".json", ".html", ".png", ".svg", ".log")
    ]
    with tarfile.open(folder / "rows.tar.gz", "w:gz") as archive:
        for path in kept:
            archive.add(path, path.relative_to(folder))


def main() -> None:
    """Run the chosen parts, and pack what they wrote into one archive."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="a .gguf file or a Hugging Face folder")
    parser.add_argument("texts", type=Path, help="a folder with .txt files")
    parser.add_argument(
        "out", type=Path, help="a folder for rows, logs, figures and the archive rows.tar.gz"
    )
    parser.add_argument("--parts", nargs="+", choices=LIMITS, default=list(LIMITS))
    parser.add_argument("--preset", default="gpu", help="preset of the studies")
    parser.add_argument(
        "--set",
        nargs="*",
        default=[],
        help="changes of settings, as in windows=6; a part takes those it has",
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=1,
        help="jobs of a study at a time, such as the trainings of real_tune",
    )
    parser.add_argument("--to", type=int, default=32_768, help="context length of the fit")
    parser.add_argument(
        "--trained", type=int, help="trained length for the fit; the config's by default"
    )
    parser.add_argument("--windows", type=int, default=6, help="windows of the fit")
    parser.add_argument(
        "--passkeys", type=int, default=10, help="pass keys of the fit for each length"
    )
    parser.add_argument(
        "--search",
        type=int,
        default=64,
        help="candidates of the fit's search for LongRoPE's factors",
    )
    parser.add_argument(
        "--together", action="store_true", help="fit alone, then all other parts at once"
    )
    parser.add_argument(
        "--seconds", type=float, help="seconds for all parts together; the archive is made in time"
    )
    parser.add_argument(
        "--limit", type=float, help="seconds for every part, instead of its own limit"
    )
    parser.add_argument("--only", choices=LIMITS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.only:
        run_here(args.only, args)
        return
    began, ended = time.perf_counter(), []
    args.out.mkdir(parents=True, exist_ok=True)
    alone = [part for part in args.parts if part == "fit" or not args.together]
    together = [part for part in args.parts if part not in alone]
    for group in [*([part] for part in alone), together]:
        left = (
            float("inf")
            if args.seconds is None
            else args.seconds - (time.perf_counter() - began) - 2 * GRACE
        )
        limits = {part: left if part in together else LIMITS[part] for part in group}
        if args.limit:
            limits = dict.fromkeys(group, args.limit)
        ended += wait_for(
            {part: start(part, args) for part in group},
            {part: min(left, limits[part]) for part in group},
        )
        (args.out / "parts.json").write_text(json.dumps(ended, indent=2) + "\n", encoding="utf-8")
        pack(args.out)


if __name__ == "__main__":
    main()
