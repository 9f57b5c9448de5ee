"""The native library is built by the compiler of the machine; without one the build goes on and
says so.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("setuptools", reason="the build needs setuptools")
ROOT = Path(__file__).parents[1]
KERNELS = Path("src/ropewalk/kernels/cpu")
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


def build(
    folder: Path, compiler: str, **environment: str
) -> tuple[subprocess.CompletedProcess[str], Path]:
    """Run `setup.py build_ext` with the shell script `compiler` as compiler and a kernel of one line;
    return the finished process, and the path at which the library is to be built.
    """
    (folder / KERNELS).mkdir(parents=True)
    (folder / KERNELS / "cpu.c").write_text("int one(void) { return 1; }\n")
    shutil.copy(ROOT / "setup.py", folder)
    program = folder / "compiler"
    program.write_text(f"#!/bin/sh\n{compiler}\n")
    program.chmod(0o755)
    asked = {
        "CC": str(program),
        "LDSHARED": f"{program} -shared",
        "ROPEWALK_REQUIRE_NATIVE": "",
        **environment,
    }
    command = [sys.executable, "setup.py", "-q", "build_ext", "--build-lib", "built"]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **asked}, capture_output=True, text=True
    )
    return done, folder / "built" / "ropewalk" / "kernels" / "cpu" / "_cpu.so"


@needs_compiler
@pytest.mark.parametrize("knows", ["everything", "no flag of gcc's own"])
def test_flags_a_compiler_does_not_know_are_left_out(tmp_path, knows):
    log = tmp_path / "calls"
    refuse = (
        'case "$*" in *-fvect-cost-model*) echo "unknown argument" >&2; exit 1;; esac\n'
        if knows != "everything"
        else ""
    )
    done, library = build(tmp_path / "tree", f'echo "$*" >> {log}\n{refuse}exec cc "$@"')
    assert done.returncode == 0, done.stderr
    assert library.exists()
    compilations = [call for call in log.read_text().splitlines() if "cpu.c" in call]
    assert ["-fvect-cost-model=dynamic" in call for call in compilations] == (
        [True] if not refuse else [True, False]
    )
    assert all("-ffp-contract=off" in call and "-std=c11" in call for call in compilations)


def test_without_a_compiler_the_build_goes_on_and_says_so(tmp_path):
    done, library = build(tmp_path, "exit 1")
    assert done.returncode == 0
    assert not library.exists()
    assert "the native CPU kernel was not built; torch operations are used instead" in done.stderr


def test_a_required_library_that_cannot_be_built_fails_the_build(tmp_path):
    done, library = build(tmp_path, "exit 1", ROPEWALK_REQUIRE_NATIVE="1")
    assert done.returncode != 0
    assert not library.exists()


@needs_compiler
def test_a_build_with_ropewalk_pure_makes_no_library(tmp_path):
    done, library = build(tmp_path, 'exec cc "$@"', ROPEWALK_PURE="1")
    assert done.returncode == 0, done.stderr
    assert not library.exists()
