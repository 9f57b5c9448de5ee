"""Install every stack under build/stacks, run it with the vectors and record what it computes.

    python -m stacks [--again] [NAME ...]

Each stack has its packages in a folder of its own, in front of those of a shared environment: for
torch the one of this Python, for the others build/stacks/jax and build/stacks/mlx. A stack that
fails is reported with its reason and the others go on. What is installed stays; a stack that has
been run is run again if the harness, the vectors, its adapter or its row changed, or with --again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from stacks import data
from stacks.harness import __file__ as harness_file

BUILD = data.ROOT / "build" / "stacks"
PIP = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
#: seconds that one stack may take to install, and to run
LIMITS = {"install": 1800, "run": 900}


class Failed(Exception):
    """A stack that cannot be installed or run; the text is the reason."""


def call(what: str, command: list[str], **options: Any) -> None:
    """Run a command; if it fails, raise `Failed` with the last line that it wrote to stderr."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMITS[what], check=False, **options
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"{what}: not done after {LIMITS[what]} seconds") from None
    if done.returncode:
        last = [line for line in done.stderr.splitlines() if line.strip()]
        raise Failed(f"{what}: {last[-1].strip() if last else f'status {done.returncode}'}")


def environment(name: str) -> Path:
    """Return the Python of a shared environment, which is made if it is not there."""
    if name == "torch":
        return Path(sys.executable)
    folder = BUILD / name
    python = folder / "bin" / "python"
    if not (folder / ".ready").exists():
        call("install", [sys.executable, "-m", "venv", str(folder)])
        call("install", [str(python), *PIP, *data.table()["environment"][name]])
        (folder / ".ready").touch()
    return python


def install(row: dict[str, Any], python: Path) -> Path:
    """Return the folder with a stack's own packages, which are installed if they are not there."""
    folder = BUILD / row["stack"]
    ready = folder / ".ready"
    wanted = "\n".join(row["packages"])
    if not ready.exists() or ready.read_text(encoding="utf-8") != wanted:
        folder.mkdir(parents=True, exist_ok=True)
        command = [str(python), *PIP, "--no-deps", "--upgrade", "--target", str(folder)]
        call("install", [*command, *row.get("options", ()), *row["packages"]])
        ready.write_text(wanted, encoding="utf-8")
    return folder


def state(row: dict[str, Any]) -> str:
    """Return a digest of what a stack's result depends on here."""
    adapter = Path(__file__).parent / "adapters" / f"{row['stack'].lower().replace('-', '_')}.py"
    needed = {key: value for key, value in row.items() if key != "because"}
    parts = [json.dumps(needed, sort_keys=True).encode()]
    parts += [
        path.read_bytes() for path in (adapter, Path(harness_file), adapter.parent / "__init__.py")
    ]
    parts += [path.read_bytes() for path in sorted((data.ROOT / "conformance").glob("*.json"))]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def run(row: dict[str, Any], again: bool) -> dict[str, Any]:
    """Return the cells of a stack: run it in a process of its own, unless nothing has changed since
    the last run.
    """
    python = environment(row["arrays"])
    folder = install(row, python)
    out, done = BUILD / f"{row['stack']}.json", BUILD / f"{row['stack']}.state"
    if again or not out.exists() or not done.exists() or done.read_text() != state(row):
        paths = [str(folder), str(data.ROOT / "tools"), str(data.ROOT / "src")]
        settings = {"PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1"}
        settings |= {"OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
        # without -P, python would import the folder of a stack in the current directory in place of
        # the package of that name
        command = [str(python), "-P", "-m", "stacks.harness", row["stack"], str(out)]
        call("run", command, env=os.environ | settings, cwd=BUILD)
        done.write_text(state(row))
    return json.loads(out.read_text(encoding="utf-8"))


def main() -> None:
    parser = argparse.ArgumentParser(prog="stacks")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--again", action="store_true", help="run what has been run before too")
    asked = parser.parse_args()
    BUILD.mkdir(parents=True, exist_ok=True)
    chosen = [each for each in data.stacks() if not asked.names or each["stack"] in asked.names]
    results = {each["stack"]: each for each in data.read()}
    date = time.strftime("%Y-%m-%d")
    for number, row in enumerate(chosen, 1):
        name, started = row["stack"], time.monotonic()
        print(f"[{number}/{len(chosen)}] {name} {row['version']} ...", end=" ", flush=True)
        try:
            found = data.record(name, date, run(row, asked.again))
            outcomes = [cell["result"] for cell in found["cells"].values()]
            said = ", ".join(f"{outcomes.count(each)} {each}" for each in dict.fromkeys(outcomes))
        except Failed as error:
            found, said = data.record(name, date, str(error)), str(error)
        results[name] = found
        data.write(list(results.values()))
        print(f"{said} ({time.monotonic() - started:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
