"""Help, the version and completions of a shell are answered at once: less than half a second of CPU time."""

import os
import subprocess
import sys

import pytest

resource = pytest.importorskip("resource", reason="the CPU time of a process is read from `resource`, which this system lacks")

COMPLETING = {"_ROPEWALK_COMPLETE": "complete_bash", "COMP_WORDS": "ropewalk inspect --se", "COMP_CWORD": "2"}


@pytest.fixture(scope="module")
def seconds(tmp_path_factory):
    """A function that runs the command line and returns its CPU time; its modules are compiled, as pip leaves them."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path_factory.mktemp("compiled"))}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def run(*words: str, **more: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "ropewalk_cli", *words], env=environment | more, capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    run("inspect", "--help")
    return run


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["inspect", "--help"]], ids=" ".join)
def test_help_and_the_version(seconds, words):
    assert seconds(*words) < 0.5


def test_a_completion(seconds):
    assert seconds(**COMPLETING) < 0.5
