"""Builds the native CPU kernel as a plain shared library; without a C compiler the package installs
and runs without it. Copies the conformance vectors into the package.

ROPEWALK_REQUIRE_NATIVE=1 makes a missing kernel an error; ROPEWALK_PURE=1 leaves it out, for a wheel
that installs on any machine.
"""

import os
import sys
from glob import glob

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

KERNELS = "src/ropewalk/kernels/cpu"
#: no contraction: the kernel writes its fused multiply-adds out, so that every pair of every row is
#: rounded the same way
FLAGS = [
    "-O2",
    "-std=c11",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
    "-fvisibility=hidden",
    "-g0",
]
#: flags of gcc, left out if the compiler does not know them. No reordering of instructions: with
#: it, as with -O3, gcc uses more values than there are registers, and a spill interrupts the stream
#: of stores. Vectorisation as clang has it at -O2.
TUNING = ["-fno-schedule-insns", "-fvect-cost-model=dynamic"]


class BuildNative(build_ext):
    """Builds a library for ctypes: no Python headers, no version in its name; the package works
    without it.
    """

    def get_ext_filename(self, fullname: str) -> str:
        return os.path.join(*fullname.split(".")) + ".so"

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return []

    def run(self) -> None:
        try:
            super().run()
        except Exception as error:
            self._without(error)

    def build_extension(self, ext: Extension) -> None:
        for flags in (FLAGS + TUNING, FLAGS):
            ext.extra_compile_args = flags
            try:
                return super().build_extension(ext)
            except Exception as error:
                refused = error
        self._without(refused)

    def _without(self, error: Exception) -> None:
        if os.environ.get("ROPEWALK_REQUIRE_NATIVE") == "1":
            raise error
        print(
            "ropewalk: the native CPU kernel was not built; torch operations are used "
            f"instead: {error}",
            file=sys.stderr,
        )


class BuildWithVectors(build_py):
    """Copies `conformance/` of the repository to where the installed package looks for it."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            folder = os.path.join(self.build_lib, "ropewalk_conformance", "vectors")
            self.mkpath(folder)
            for path in glob("conformance/*.json"):
                self.copy_file(path, folder)


class PlatformWheel(bdist_wheel):
    """Tags the wheel for any Python 3 on this platform: the library does not depend on Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


NATIVE = Extension(
    "ropewalk.kernels.cpu._cpu",
    [f"{KERNELS}/cpu.c"],
    depends=sorted(glob(f"{KERNELS}/*.inc")),
    # optional, so that copying a library that was not built is no error
    optional=os.environ.get("ROPEWALK_REQUIRE_NATIVE") != "1",
)

setup(
    ext_modules=[] if os.environ.get("ROPEWALK_PURE") == "1" else [NATIVE],
    cmdclass={
        "build_ext": BuildNative,
        "build_py": BuildWithVectors,
        "bdist_wheel": PlatformWheel,
    },
)
