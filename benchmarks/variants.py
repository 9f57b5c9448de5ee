"""Time ropewalk on the GPU with variants of the plain case: packed sequences, three axes (M-RoPE),
a partly rotated head.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch

from ropewalk_lab.bench.cases import VARIANTS, make_case
from ropewalk_lab.bench.gpu import copies, rows_of
from ropewalk_lab.bench.rows import run_script


def measure(names: tuple[str, ...] = ("A", "D")) -> Iterator[dict[str, Any]]:
    """Yield rows of every variant, for shapes by name and both orders of axes; each should be about
    as fast as the plain case.
    """
    for name, order in itertools.product(names, ("bshd", "bhsd")):
        for variant in VARIANTS:
            sets = copies(make_case(name, order, "cuda", variant=variant))
            row = {"shape": name, "order": order, "dtype": "bfloat16", "variant": variant}
            yield from rows_of("ropewalk, positions", sets, row)
            del sets
            torch.cuda.empty_cache()


if __name__ == "__main__":
    run_script(__doc__, {"cuda": measure})
