"""Mutation testing: change the code in small ways, one at a time, and run the tests that should
fail.

    python tools/mutate.py --module table=50 --module attention=10 --seed 1
    # every module, on twelve cores
    python tools/mutate.py --per-module 10 --workers 12
    # write a row for each mutant, and go on where the file ends
    python tools/mutate.py --per-module 10 --out build/mutants.jsonl
    # run the survivors of a file again, and replace their rows
    python tools/mutate.py --again build/mutants.jsonl
    # only print the mutants
    python tools/mutate.py --list --module spec

Each mutant is written to a copy of src/, and a child process, forked after torch and transformers
were imported, runs pytest -x on it. Before that, every test file is run once on the unchanged code:
tests that fail there are named and left out. Quick tests come first; then the survivors get the
tests that take longer, and then the laws of Triton kernels in its interpreter. Mutants known to
change no result are in tools/equivalent_mutants.toml, with the reason.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.util import Finalize
from pathlib import Path

from mutant_tests import TESTS
from mutants import Mutant, mutants
from mutation_bench import BASICS, ROOT, Bench, Outcome, is_interpreted, preload
from mutation_rows import (
    Row,
    append_row,
    equivalents,
    not_in,
    replace_rows,
    row_of,
    survivors_in,
)

#: seconds that a quick test takes at most
QUICK = 2.0
#: the tests of a mutant, one stage after the other as long as it survives
STAGES = ("quick", "long", "interpreted")


def test_files(module: str) -> list[str]:
    """Return the test files of a module, in order; some of their tests may come first, as
    path::test.
    """
    return ["tests/{}.py{}{}".format(*name.partition("::")) for name in TESTS[module]]


@dataclass(frozen=True)
class Baseline:
    """The test files on the unchanged code: the seconds of each test, and the tests and files that
    fail.
    """

    seconds: dict[str, dict[str, float]]
    failed: dict[str, list[str]]

    def files(self, module: str) -> list[str]:
        """Return the test files of a module that can be run."""
        return [
            path
            for path in test_files(module)
            if not any(path.startswith(failed) for failed in self.failed[path])
        ]

    def choice(self, module: str, stage: str) -> tuple[list[str], frozenset[str], float]:
        """Return the test files of a module in a stage, the tests left out of them, and the limit
        of seconds.

        Tests that fail are left out, and those of another stage. A mutant that takes longer than
        the limit counts as found.
        """
        interpreted = stage == "interpreted"
        files = [path for path in self.files(module) if is_interpreted(path) == interpreted]
        seconds: dict[str, float] = {}
        for path in files:
            seconds |= self.seconds[path]
        left_out = {test for path in files for test in self.failed[path]}
        if stage == "quick":
            left_out |= {test for test, time in seconds.items() if time > QUICK}
        elif stage == "long":
            left_out |= {test for test, time in seconds.items() if time <= QUICK}
        return files, frozenset(left_out), 20 + 2 * sum(seconds.values())


class Worker:
    """One process with a bench of its own."""

    bench: Bench

    @classmethod
    def start(cls) -> None:
        cls.bench = Bench()
        Finalize(None, cls.bench.close, exitpriority=1)

    @classmethod
    def measure(cls, path: str) -> tuple[str, Outcome]:
        """Run a test file on the unchanged code, and return its path and how its tests ended."""
        return path, cls.bench.run_unchanged([path], timeout=300)

    @classmethod
    def judge(
        cls,
        mutant: Mutant,
        tests: list[str],
        left_out: frozenset[str],
        limit: float,
        deadline: float,
    ) -> tuple[Mutant, Outcome | None]:
        """Run a mutant; None if the deadline, a time of the monotonic clock, came before its
        verdict.
        """
        left = deadline - time.monotonic()
        if left < 1:
            return mutant, None
        outcome = cls.bench.run(mutant.module, mutant.source, tests, min(limit, left), left_out)
        return mutant, None if outcome.verdict == "timeout" and left < limit else outcome


def chosen(module: str, count: int | None, seed: int) -> list[Mutant]:
    """Return a sample of `count` mutants of a module (None: all), without those known to change no
    result.
    """
    path, known = ROOT / "src" / "ropewalk" / f"{module}.py", equivalents()
    if not path.is_file():
        print(f"left out, because there is no such module: {module}", file=sys.stderr)
        return []

    def choose(found: list) -> list:
        # sampled before known ones are left out, so that listing one more does not change the rest
        # of the sample
        return (
            found
            if count is None or count >= len(found)
            else sorted(random.Random(f"{seed}:{module}").sample(found, count))
        )

    picked = mutants(module, path.read_text(encoding="utf-8"), choose)
    return [m for m in picked if (m.module, m.before, m.after) not in known]


def measure(pool: ProcessPoolExecutor, paths: list[str], saved: Path | None) -> Baseline:
    """Return the results of every test file on the unchanged code; print the tests that fail there.

    Files whose results are in the file `saved` are not run again.
    """
    baseline = Baseline({}, {})
    if saved is not None and saved.exists():
        baseline = Baseline(**json.loads(saved.read_text(encoding="utf-8")))
    for done in as_completed(
        [pool.submit(Worker.measure, path) for path in paths if path not in baseline.seconds]
    ):
        path, outcome = done.result()
        baseline.seconds[path] = outcome.seconds
        baseline.failed[path] = outcome.failed or ([path] if outcome.verdict != "survived" else [])
        for test in baseline.failed[path]:
            print(f"left out, because it fails on the unchanged code: {test}", flush=True)
        if saved is not None:  # now, because a run may be stopped
            saved.write_text(json.dumps(vars(baseline)), encoding="utf-8")
    spent = sum(sum(tests.values()) for tests in baseline.seconds.values())
    print(
        f"{len(baseline.seconds)} test files take {spent:.0f} s of one core on the unchanged code",
        flush=True,
    )
    return baseline


def study(
    pool: ProcessPoolExecutor, picked: list[Mutant], options: argparse.Namespace
) -> Iterator[tuple[Mutant, Outcome]]:
    """Run the mutants, in any order, and yield each with its outcome; stop at the limit of time."""
    deadline = time.monotonic() + options.limit
    baseline = measure(
        pool,
        sorted({path for mutant in picked for path in test_files(mutant.module)}),
        options.baseline,
    )
    # a mutant -> its outcome so far; without those of modules whose tests all fail
    waiting = {mutant: None for mutant in picked if baseline.files(mutant.module)}
    unfinished = set()
    for stage in STAGES:
        work = []
        for mutant in waiting:
            files, left_out, limit = baseline.choice(mutant.module, stage)
            if files:
                work.append(pool.submit(Worker.judge, mutant, files, left_out, limit, deadline))
        for done in as_completed(work):
            mutant, outcome = done.result()
            if outcome is None:
                unfinished.add(mutant)
            elif outcome.verdict == "survived":
                waiting[mutant] = outcome
            else:
                del waiting[mutant]
                yield mutant, outcome
    # one that survived the quick tests only is not known to survive
    yield from (
        (mutant, outcome)
        for mutant, outcome in waiting.items()
        if outcome is not None and mutant not in unfinished
    )


def run_replacements(bench: Bench, replacements: list[list[str]]) -> bool:
    """Return whether every replacement (module, before, after, test) makes its test fail; exit if a
    test fails without it.
    """
    unchanged = bench.run_unchanged(sorted({test for _, _, _, test in replacements}), 120)
    if unchanged.verdict != "survived":
        sys.exit(
            f"the tests fail on the unchanged modules; fix them first\n{unchanged.log[-2000:]}"
        )
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
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--module",
        action="append",
        metavar="NAME[=N]",
        help="a module or folder; may be repeated; default: all",
    )
    parser.add_argument(
        "--per-module", type=int, metavar="N", help="sample N mutants of each module; default: all"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--out",
        type=Path,
        help="append a row for each mutant to this file, except those that it has already",
    )
    parser.add_argument(
        "--again",
        type=Path,
        metavar="FILE",
        help="run the survivors of this file again and replace their rows",
    )
    parser.add_argument(
        "--workers", type=int, default=1, metavar="N", help="run N mutants at a time"
    )
    parser.add_argument(
        "--limit", type=float, default=float("inf"), metavar="SECONDS", help="stop after this time"
    )
    parser.add_argument(
        "--baseline", type=Path, help="keep what the tests do on the unchanged code in this file"
    )
    parser.add_argument("--list", action="store_true", help="print the mutants and run nothing")
    parser.add_argument(
        "--replace",
        nargs=4,
        action="append",
        metavar=("MODULE", "BEFORE", "AFTER", "TEST"),
        help="replace one text, and the test that must fail; may be repeated",
    )
    return parser.parse_args()


def wanted(options: argparse.Namespace) -> dict[str, int | None]:
    """Return {module: how many mutants to sample}, by --module and --per-module; None: all."""
    counts: dict[str, int | None] = {}
    for option in options.module or [""]:  # NAME or NAME=N; an empty name means all modules
        name, _, count = option.partition("=")
        modules = [module for module in TESTS if not name or f"{module}/".startswith(f"{name}/")]
        if not modules:
            sys.exit(f"--module: must be a module or folder in tools/mutant_tests.py; got {name}")
        counts |= dict.fromkeys(modules, int(count) if count else options.per_module)
    return counts


def run(
    options: argparse.Namespace,
    picked: list[Mutant],
    write: Callable[[Mutant, Row], object],
) -> int:
    """Run the mutants, print their verdicts, call `write` with each and its row, and return the
    number of survivors.
    """
    counts: Counter[str] = Counter()
    # so that a run that stops early leaves a fair sample
    random.Random(options.seed).shuffle(picked)
    with ProcessPoolExecutor(
        options.workers, mp_context=get_context("fork"), initializer=Worker.start
    ) as pool:
        for mutant, outcome in study(pool, picked, options):
            counts[outcome.verdict] += 1
            if outcome.verdict == "survived":
                print(f"SURVIVED {mutant}", flush=True)
            write(mutant, row_of(mutant, outcome.verdict, outcome.caught_by))
            if counts.total() % 50 == 0:
                print(f"{counts.total()} of {len(picked)}: {dict(counts)}", flush=True)
    found = counts["killed"] + counts["timeout"]
    print(
        f"{found} of {counts.total()} mutants killed ({counts['timeout']} by time), "
        f"{counts['survived']} survive",
        end="; ",
    )
    print(f"{len(picked) - counts.total()} not run, seed {options.seed}")
    return counts["survived"]


def run_again(options: argparse.Namespace) -> int:
    """Run the survivors of a results file again, replace their rows there, and return how many
    still survive.
    """
    path, known = options.again, equivalents()
    numbers = survivors_in(path, wanted(options))
    listed = [m for m in numbers if (m.module, m.before, m.after) in known]
    replace_rows(path, {numbers[m]: row_of(m, "equivalent") for m in listed})
    print(f"{len(listed)} of {len(numbers)} survivors are listed as equivalent", flush=True)
    return run(
        options,
        [m for m in numbers if m not in listed],
        lambda m, row: replace_rows(path, {numbers[m]: row}),
    )


def main() -> int:
    """Run what the command line asks for; return 0 if every mutant was killed."""
    options = arguments()
    if options.replace:
        preload(BASICS)
        bench = Bench()
        try:
            return 0 if run_replacements(bench, options.replace) else 1
        finally:
            bench.close()
    if options.again:
        preload()
        return 1 if run_again(options) else 0
    picked = [
        m for module, count in wanted(options).items() for m in chosen(module, count, options.seed)
    ]
    if options.list:
        print(*picked, sep="\n")
        return 0
    preload()

    def write(_: Mutant, row: Row) -> None:
        if options.out:
            append_row(options.out, row)

    return 1 if run(options, not_in(options.out, picked), write) else 0


if __name__ == "__main__":
    sys.exit(main())
