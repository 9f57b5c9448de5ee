"""Measure a pretrained model on one GPU, part by part, each with a time limit: `python benchmarks/real_models.py --help`.

Every part writes its rows while it runs, and a second call resumes, so a limit loses little. Parts, in order of value:
fit, real_extend, real_passkey, real_precision, real_kv, real_tune.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

#: part -> seconds on one H200; the sum is 10 minutes
LIMITS = {"fit": 150, "real_extend": 100, "real_passkey": 70, "real_precision": 60, "real_kv": 30, "real_tune": 190}


def command(part: str, args: argparse.Namespace) -> list[str]:
    """Return the command of one part."""
    python, folder = [sys.executable, "-m", "ropewalk"], args.out / part
    texts = sorted(path for path in args.texts.iterdir() if path.suffix == ".txt")
    if part == "fit":
        options = ["--to", str(args.to), "--windows", str(args.windows), "--search", str(args.search), "--out", str(folder)]
        for text in texts:
            options += ["--text", str(text)]
        return [*python, "fit", str(args.model), *options]
    names = ", ".join(json.dumps(str(text)) for text in texts)
    changes = [f"model={json.dumps(str(args.model))}", f"text=[{names}]", *args.set]
    if part == "real_tune" and args.preset != "smoke":
        changes.append(f"train_text={json.dumps(str(max(texts, key=lambda text: text.stat().st_size)))}")
    options = ["--preset", args.preset, "--out", str(args.out), "--models", str(args.out / "models")]
    for change in changes:
        options += ["--set", change]
    return [*python, "lab", "run", part, *options]


def run_part(part: str, args: argparse.Namespace) -> dict[str, object]:
    """Run one part under its limit, and return how it ended."""
    began = time.perf_counter()
    limit = args.limit or LIMITS[part]
    with (args.out / f"{part}.log").open("w", encoding="utf-8") as log:
        try:
            code = subprocess.run(command(part, args), stdout=log, stderr=log, timeout=limit, check=False).returncode
        except subprocess.TimeoutExpired:
            code = 124
    ended = {"part": part, "code": code, "seconds": round(time.perf_counter() - began, 1), "limit": limit}
    print(json.dumps(ended), flush=True)
    return ended


def main() -> None:
    """Run the chosen parts, and pack what they wrote into one archive."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a .gguf file or a Hugging Face folder")
    parser.add_argument("texts", type=Path, help="a folder with .txt files")
    parser.add_argument("out", type=Path, help="a folder for rows, logs, figures and the archive rows.tar.gz")
    parser.add_argument("--parts", nargs="+", choices=LIMITS, default=list(LIMITS))
    parser.add_argument("--preset", default="gpu", help="preset of the studies")
    parser.add_argument("--set", nargs="*", default=[], help="changes of a setting that all chosen parts have, as in seeds=2")
    parser.add_argument("--to", type=int, default=32_768, help="context length of the fit")
    parser.add_argument("--windows", type=int, default=6, help="windows of the fit")
    parser.add_argument("--search", type=int, default=64, help="candidates of the fit's search for LongRoPE's factors")
    parser.add_argument("--limit", type=float, help="seconds for every part, instead of its own limit")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    ended = [run_part(part, args) for part in args.parts]
    (args.out / "parts.json").write_text(json.dumps(ended, indent=2) + "\n", encoding="utf-8")
    archive = shutil.make_archive(str(args.out.parent / f"{args.out.name}-rows"), "gztar", args.out)
    Path(archive).replace(args.out / "rows.tar.gz")


if __name__ == "__main__":
    main()
