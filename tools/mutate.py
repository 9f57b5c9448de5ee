"""Mutation testing: change the code in small ways, one at a time, and run the tests that should fail.

    python tools/mutate.py --module table --per-module 50 --seed 1
    python tools/mutate.py --per-module 25                              every module
    python tools/mutate.py --per-module 25 --out results/mutants.jsonl  and write a row for each mutant; go on where the file ends
    python tools/mutate.py --list --module spec                         only print the mutants

Each mutant is written to a copy of src/. A child process, forked after torch and transformers were imported, runs pytest -x
on it, which takes a second or two: first the tests without the marker `slow`, then, if it survives, all. Mutants known to
change no result are in tools/equivalent_mutants.toml, with the reason.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import importlib.util
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import tomllib
import traceback
from dataclasses import dataclass
from pathlib import Path

from mutant_tests import TESTS
from mutants import Mutant, mutants

ROOT = Path(__file__).resolve().parent.parent
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.toml")
#: tests that are run first
QUICK = ("-m", "not slow")
#: imported once, before the first fork
PRELOAD = (
    "torch", "torch.testing", "torch._dynamo", "numpy", "mpmath", "jaxtyping", "hypothesis", "hypothesis.strategies", "pytest",
    "transformers.models.llama.modeling_llama",
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """How the tests ended: "killed", "survived" or "timeout", and how long they took."""

    verdict: str
    seconds: float
    log: str

    @property
    def caught_by(self) -> str | None:
        """The first test that failed; "import" if none was reached."""
        if self.verdict != "killed":
            return None if self.verdict == "survived" else "time"
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", self.log, re.MULTILINE)
        return "import" if failed is None else failed[1]


def preload() -> None:
    """Import the packages that every child needs, so that no child imports them again."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for name in PRELOAD:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def test_arguments(module: str) -> list[str]:
    """The existing test files of a module, in order."""
    paths = [f"tests/{name}.py" for name in TESTS[module]]
    return [path for path in paths if (ROOT / path).exists()]


class Bench:
    """A copy of src/ in which one module at a time is replaced by a mutant."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="mutants-"))
        shutil.copytree(ROOT / "src", self.folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
        compileall.compile_dir(self.folder / "src", quiet=2)  # once, because no child writes bytecode

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def path(self, module: str) -> Path:
        return self.folder / "src" / "ropewalk" / f"{module}.py"

    def run(self, module: str, source: str | None, tests: list[str], timeout: float) -> Outcome:
        """Run `tests` with `source` as the module; None keeps the module unchanged."""
        original = self.path(module).read_text(encoding="utf-8")
        # bytecode is reused if its source has the same size and the same second of change
        Path(importlib.util.cache_from_source(str(self.path(module)))).unlink(missing_ok=True)
        if source is not None:
            self.path(module).write_text(source, encoding="utf-8")
        try:
            return self._run(tests, timeout)
        finally:
            self.path(module).write_text(original, encoding="utf-8")

    def _run(self, tests: list[str], timeout: float) -> Outcome:
        log, began = self.folder / "log.txt", time.monotonic()
        child = os.fork()
        if child == 0:
            self._child(tests, log)
        status = _wait(child, began + timeout)
        if status is None:
            # the whole process group, because some tests start processes
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
        verdict = "timeout" if status is None else "survived" if status == 0 else "killed"
        return Outcome(verdict, time.monotonic() - began, log.read_text(encoding="utf-8", errors="replace"))

    def _child(self, tests: list[str], log: Path) -> None:
        os.setsid()
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.chdir(ROOT)
        # bytecode of an earlier mutant would be run instead of this one
        sys.dont_write_bytecode = True
        os.environ.update(PYTHONPATH=str(self.folder / "src"), PYTHONDONTWRITEBYTECODE="1", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
        sys.path.insert(0, str(self.folder / "src"))
        # without beartype the suite skips its type-checking hook: tests must find a mutant by its numbers, and start faster
        sys.modules["beartype"] = None  # type: ignore[assignment]
        code = 2
        try:
            import pytest

            code = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "--tb=line", "--assert=plain", *tests]))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def _wait(child: int, deadline: float) -> int | None:
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        time.sleep(0.02)
    return None


def equivalents() -> set[tuple[str, str, str]]:
    """(module, before, after) of the mutants known to change no result."""
    if not EQUIVALENT.exists():
        return set()
    listed = tomllib.loads(EQUIVALENT.read_text(encoding="utf-8"))["equivalent"]
    return {(entry["module"], entry["before"], entry["after"]) for entry in listed}


def chosen(module: str, count: int | None, seed: int) -> list[Mutant]:
    """A sample of the mutants of a module, without those known to change no result."""
    known = equivalents()
    picked = mutants(module, (ROOT / "src" / "ropewalk" / f"{module}.py").read_text(encoding="utf-8"))
    if count is not None and count < len(picked):
        # sampled before known ones are left out, so that listing one more does not change the rest of the sample
        picked = sorted(random.Random(f"{seed}:{module}").sample(picked, count), key=lambda m: m.line)
    return [m for m in picked if (m.module, m.before, m.after) not in known]


def study(bench: Bench, module: str, picked: list[Mutant], out: Path | None) -> list[Mutant]:
    """Run the mutants of a module and return the survivors; append a row for each to `out`."""
    tests = test_arguments(module)
    whole = bench.run(module, None, tests, timeout=600)
    if whole.verdict != "survived":
        sys.exit(f"{module}: its tests fail on the unchanged module; fix them first\n{whole.log[-2000:]}")
    limit, survivors, timeouts, began = 3 * whole.seconds + 15, [], 0, time.monotonic()
    for mutant in picked:
        outcome = bench.run(module, mutant.source, [*QUICK, *tests], limit)
        if outcome.verdict == "survived":
            outcome = bench.run(module, mutant.source, tests, limit)
        timeouts += outcome.verdict == "timeout"
        if outcome.verdict == "survived":
            survivors.append(mutant)
            print(f"SURVIVED {mutant}", flush=True)
        if out is not None:
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row_of(mutant, outcome)) + "\n")
    killed = len(picked) - len(survivors)
    spent = time.monotonic() - began
    print(f"{module}: {killed} of {len(picked)} killed ({timeouts} by time), {len(survivors)} survive, {spent:.0f} s", flush=True)
    return survivors


def row_of(mutant: Mutant, outcome: Outcome) -> dict[str, object]:
    """The row of a mutant in a results file."""
    where = {"file": f"{mutant.module}.py", "line": mutant.line, "before": mutant.before, "after": mutant.after}
    return {**where, "verdict": outcome.verdict, "caught_by": outcome.caught_by}


def not_in(out: Path | None, picked: list[Mutant]) -> list[Mutant]:
    """The mutants without a row in `out`."""
    if out is None or not out.exists():
        return picked
    rows = map(json.loads, out.read_text(encoding="utf-8").splitlines())
    done = {(row["file"], row["line"], row["before"], row["after"]) for row in rows}
    return [m for m in picked if (f"{m.module}.py", m.line, m.before, m.after) not in done]


def run_replacements(bench: Bench, replacements: list[list[str]]) -> bool:
    """Whether every replacement (module, before, after, test) makes its test fail, and all tests pass without it."""
    unchanged = bench.run(replacements[0][0], None, sorted({each[3] for each in replacements}), 120)
    if unchanged.verdict != "survived":
        sys.exit(f"the tests fail on the unchanged modules; fix them first\n{unchanged.log[-2000:]}")
    killed = []
    for module, before, after, test in replacements:
        original = bench.path(module).read_text(encoding="utf-8")
        if original.count(before) != 1:
            sys.exit(f"{module}: {before!r} must occur once, not {original.count(before)} times")
        verdict = bench.run(module, original.replace(before, after), [test], 60).verdict
        print(f"{verdict}: {module}: {before!r} -> {after!r} by {test}", flush=True)
        killed.append(verdict == "killed")
    return all(killed)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--module", action="append", choices=sorted(TESTS), help="may be repeated; all by default")
    parser.add_argument("--per-module", type=int, metavar="N", help="sample N mutants of each module; all by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="append a row for each mutant to this file, except those that it has already")
    parser.add_argument("--list", action="store_true", help="print the mutants and run nothing")
    parser.add_argument(
        "--replace",
        nargs=4,
        action="append",
        metavar=("MODULE", "BEFORE", "AFTER", "TEST"),
        help="replace one text, and the test that must fail; may be repeated",
    )
    return parser.parse_args()


def main() -> int:
    """Return 0 if every mutant was killed."""
    options = arguments()
    modules = options.module or list(TESTS)
    if options.list:
        for module in modules:
            print(*chosen(module, options.per_module, options.seed), sep="\n")
        return 0
    preload()
    bench = Bench()
    try:
        if options.replace:
            return 0 if run_replacements(bench, options.replace) else 1
        picked = {module: not_in(options.out, chosen(module, options.per_module, options.seed)) for module in modules}
        survivors = [m for module in modules if picked[module] for m in study(bench, module, picked[module], options.out)]
    finally:
        bench.close()
    total = sum(map(len, picked.values()))
    print(f"all: {total - len(survivors)} of {total} mutants killed, {len(survivors)} survive (seed {options.seed})")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
