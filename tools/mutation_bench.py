"""Runs test files on a copy of src/ in which one module at a time is replaced by a mutant."""

from __future__ import annotations

import compileall
import contextlib
import importlib
import importlib.util
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: imported once, before the first fork: what the tests of known mistakes need, and what the tests
#: of all modules need
BASICS = (
    "torch",
    "torch.testing",
    "numpy",
    "mpmath",
    "jaxtyping",
    "hypothesis",
    "hypothesis.strategies",
    "pytest",
    "transformers.models.llama.modeling_llama",
    "transformers.models.gptj.modeling_gptj",
)
PRELOAD = (
    *BASICS,
    "torch.distributed",
    "torch.nn.attention.flex_attention",
    "torch._dynamo",
    "safetensors.torch",
    "tokenizers",
    "transformers.models.auto.modeling_auto",
    "transformers.generation.logits_process",
    *(
        f"transformers.models.{name}.modeling_{name}"
        for name in ("qwen2", "gemma3", "phi3", "roformer", "t5")
    ),
)
#: exit codes of pytest: every test passed, or none was selected
PASSED = (0, 5)


@dataclass(frozen=True)
class Outcome:
    """How the tests ended: "killed", "survived" or "timeout"; which tests and files failed; and the
    seconds of each test.
    """

    verdict: str
    failed: list[str]
    seconds: dict[str, float]
    log: str

    @property
    def caught_by(self) -> str | None:
        """The first test that failed; "import" if none was reached, "time" if the limit ended the
        tests, None if the mutant survived.
        """
        if self.verdict != "killed":
            return None if self.verdict == "survived" else "time"
        return self.failed[0] if self.failed else "import"


def preload(names: Iterable[str] = PRELOAD) -> None:
    """Import the packages that every child needs, so that no child imports them again."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def is_interpreted(path: str) -> bool:
    """Return whether a test file has laws of Triton kernels, which run in Triton's interpreter."""
    return Path(path.partition("::")[0]).name.startswith("interpreted_")


def turn_on_interpreter() -> None:
    """Let Triton be imported again, with its interpreter: it reads the variable while it is
    imported.
    """
    os.environ["TRITON_INTERPRET"] = "1"
    for name in [
        name
        for name in sys.modules
        if f"{name}.".startswith("triton.") and not name.startswith("triton._C")
    ]:
        del sys.modules[name]


class Record:
    """A pytest plugin that writes down how long each test takes and what fails.

    It leaves tests out by their ids, and runs those first that were asked for as path::test.
    """

    def __init__(self, path: Path, left_out: frozenset[str]) -> None:
        self.path, self.left_out = path, left_out

    def pytest_collection_modifyitems(self, config, items: list) -> None:
        """Remove the tests to leave out, and put those first that were asked for as path::test."""
        first = tuple(argument for argument in config.args if "::" in argument)
        kept = [item for item in items if item.nodeid not in self.left_out]
        items[:] = sorted(kept, key=lambda item: not item.nodeid.startswith(first))

    def note(self, report) -> None:
        """Append [test, seconds, whether it failed] to the file."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(
                json.dumps([report.nodeid, getattr(report, "duration", 0), report.failed]) + "\n"
            )

    pytest_runtest_logreport = pytest_collectreport = note


class Bench:
    """A copy of src/ in which one module at a time is replaced by a mutant."""

    def __init__(self) -> None:
        """Copy src/ to a temporary folder and compile it."""
        self.folder = Path(tempfile.mkdtemp(prefix="mutants-"))
        self.record = self.folder / "record.jsonl"
        # without what another process is writing
        shutil.copytree(ROOT / "src", self.folder / "src", ignore=shutil.ignore_patterns("*.pyc.*"))
        # what is not compiled yet, because no child writes bytecode
        compileall.compile_dir(self.folder / "src", quiet=2)

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def path(self, module: str) -> Path:
        return self.folder / "src" / "ropewalk" / f"{module}.py"

    def run(
        self,
        module: str,
        source: str,
        tests: list[str],
        timeout: float,
        left_out: frozenset[str] = frozenset(),
    ) -> Outcome:
        """Run `tests`, up to the first that fails, with `source` as the module, and return how they
        ended.
        """
        original = self.path(module).read_text(encoding="utf-8")
        # bytecode is reused if its source has the same size and the same second of change
        Path(importlib.util.cache_from_source(str(self.path(module)))).unlink(missing_ok=True)
        self.path(module).write_text(source, encoding="utf-8")
        try:
            return self.run_unchanged(["-x", *tests], timeout, left_out)
        finally:
            self.path(module).write_text(original, encoding="utf-8")

    def run_unchanged(
        self, tests: list[str], timeout: float, left_out: frozenset[str] = frozenset()
    ) -> Outcome:
        """Run `tests` in a forked process on the copy as it is, for at most `timeout` seconds, and
        return how they ended.
        """
        log, deadline = self.folder / "log.txt", time.monotonic() + timeout
        self.record.write_text("", encoding="utf-8")
        child = os.fork()
        if child == 0:
            self._run_child(tests, left_out, log)
        status = _wait(child, deadline)
        with contextlib.suppress(ProcessLookupError):
            # the whole process group, because some tests start processes
            os.killpg(child, signal.SIGKILL)
        if status is None:
            os.waitpid(child, 0)
        verdict = "timeout"
        if status is not None:
            verdict = "survived" if os.waitstatus_to_exitcode(status) in PASSED else "killed"
        return Outcome(
            verdict, *self._recorded(), log.read_text(encoding="utf-8", errors="replace")
        )

    def _recorded(self) -> tuple[list[str], dict[str, float]]:
        """Return the tests that failed, and {test: its seconds}, from the record."""
        failed, seconds = [], {}
        for line in self.record.read_text(encoding="utf-8").splitlines():
            name, duration, has_failed = json.loads(line)
            seconds[name] = seconds.get(name, 0) + duration
            if has_failed:
                failed.append(name)
        return failed, seconds

    def _run_child(self, tests: list[str], left_out: frozenset[str], log: Path) -> None:
        """Run pytest in the forked process, with its output in `log`, and exit with pytest's code."""
        os.setsid()
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.chdir(ROOT)
        # bytecode of an earlier mutant would be run instead of this one
        sys.dont_write_bytecode = True
        source = str(self.folder / "src")
        paths = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
        os.environ.update(
            PYTHONPATH=paths, PYTHONDONTWRITEBYTECODE="1", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1"
        )
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(self.folder / "hypothesis")
        sys.path.insert(0, source)
        # without beartype the suite skips its type-checking hook: tests must find a mutant by its
        # numbers, and start faster
        sys.modules["beartype"] = None  # type: ignore[assignment]
        if any(map(is_interpreted, tests)):
            turn_on_interpreter()
        options = [
            "-q",
            "-p",
            "no:cacheprovider",
            "--tb=line",
            "--assert=plain",
            f"--basetemp={self.folder / 'tmp'}",
        ]
        code = 2
        try:
            import pytest

            code = int(pytest.main([*options, *tests], plugins=[Record(self.record, left_out)]))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def _wait(child: int, deadline: float) -> int | None:
    """Return the status of a child process when it ends; None if it runs at the deadline."""
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        time.sleep(0.02)
    return None
