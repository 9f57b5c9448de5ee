"""Builds the native CPU kernel as a plain shared library; without a C compiler the package installs and runs without it."""

import os
import sys

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

KERNELS = "src/ropewalk/kernels/cpu"
#: no contraction: the kernel says itself where it fuses, so that every pair of every row rounds alike
FLAGS = ["-O2", "-std=c11", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off", "-fvisibility=hidden", "-g0"]
#: of gcc, left out where the compiler does not know them. Rows in the order they are written: else, as with -O3, it keeps more
#: values in flight than there are registers, and spilled ones end the stream of stores. Vectors as clang makes them at -O2.
TUNING = ["-fno-schedule-insns", "-fvect-cost-model=dynamic"]


class BuildNative(build_ext):
    """A library for ctypes: no Python headers, no version in its name, and not needed for the rest to work."""

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
        print(f"ropewalk: the native CPU kernel was not built, torch operations take its place: {error}", file=sys.stderr)


class PlatformWheel(bdist_wheel):
    """Any Python 3 on this platform: the library knows nothing of Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    ext_modules=[
        Extension(
            "ropewalk.kernels.cpu._cpu",
            [f"{KERNELS}/cpu.c"],
            depends=[f"{KERNELS}/rows.inc", f"{KERNELS}/vectors.inc"],
            # a missing library is then no error when it is copied beside its sources
            optional=os.environ.get("ROPEWALK_REQUIRE_NATIVE") != "1",
        )
    ],
    cmdclass={"build_ext": BuildNative, "bdist_wheel": PlatformWheel},
)
