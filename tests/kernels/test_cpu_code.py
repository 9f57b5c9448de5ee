"""What the compiler made of the row loops: they store to y and nowhere else.

One register spilled to the stack in every row ends the stream of stores of a Neoverse-N1, and a prefill then takes more than
three times as long; nothing else would show it.
"""

import platform
import re
import shutil
import subprocess
from itertools import pairwise

import pytest

from ropewalk.kernels import cpu

#: by machine: the prefix of its functions, the prefetch at the head of every row loop, a store to the stack
CODE = {
    "aarch64": ("neon", r"prfm\b", r"st\w+\s.*\[(sp|x29)"),
    "x86_64": ("avx2", r"prefetch", r"v?mov\w*\s+%\w+,.*\(%r[sb]p"),
}
JUMP = re.compile(r"(?:b\.\w+|b|cbn?z|tbn?z|j\w+)\s+(?:[\w#]+,\s*)*([0-9a-f]+) <")
GOES_ON = re.compile(r"(?!(b|ret|jmp\w*|retq)\s|ret)")
pytestmark = [
    pytest.mark.skipif(platform.machine() not in CODE, reason="no reading of this machine's code"),
    pytest.mark.skipif(shutil.which("objdump") is None, reason="needs objdump"),
    pytest.mark.skipif(cpu._library is None, reason="needs the native library"),
]


def row_loops(code: list[tuple[int, str]], prefetch: str) -> list[list[str]]:
    """The smallest loop around each place that prefetches, wherever the compiler put its parts."""
    text, jumps = dict(code), [(at, int(jump[1], 16)) for at, text in code if (jump := JUMP.match(text))]
    before: dict[int, list[int]] = {at: [] for at in text}
    for at, to in jumps + [(at, to) for (at, _), (to, _) in pairwise(code) if GOES_ON.match(text[at])]:
        before.get(to, []).append(at)
    loops: dict[int, set[int]] = {}
    for at, head in jumps:
        if head <= at:  # what reaches the jump back without passing its target
            inside, todo = loops.setdefault(head, {head}), [at]
            while todo:
                if (place := todo.pop()) not in inside:
                    inside.add(place)
                    todo += before[place]
    around = ([loop for loop in loops.values() if at in loop] for at in text if re.match(prefetch, text[at]))
    return [[text[place] for place in sorted(min(loops, key=len))] for loops in around if loops]


def functions() -> dict[str, list[tuple[int, str]]]:
    command = ["objdump", "-d", "--no-show-raw-insn", str(cpu._LIBRARY)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    heads = [i for i, line in enumerate(lines) if re.match(r"[0-9a-f]+ <\w+>:$", line)] + [len(lines)]
    return {
        re.search(r"<(\w+)>", lines[first])[1]: [
            (int(at, 16), text.strip()) for at, _, text in (line.partition(":\t") for line in lines[first + 1 : last]) if text
        ]
        for first, last in pairwise(heads)
    }


def test_row_loops_store_to_y_alone():
    prefix, prefetch, spill = CODE[platform.machine()]
    whole = {name: code for name, code in functions().items() if name.startswith(f"{prefix}_WHOLE_")}
    assert len(whole) == 24, "three dtypes, two layouts in and out, forth and back"
    for name, code in whole.items():
        loops = row_loops(code, prefetch)
        assert len(loops) >= 3, f"{name}: 64 pairs, 32 pairs and any number of them"
        assert not [text for loop in loops for text in loop if re.match(spill, text)], name


@pytest.mark.skipif(platform.machine() != "x86_64", reason="only x86 has stores past the caches that pay")
def test_large_results_are_written_past_the_caches():
    streamed = {name: any("vmovnt" in text for _, text in code) for name, code in functions().items() if "F32_HALF_HALF" in name}
    assert {name for name, streams in streamed.items() if streams} == {
        f"{isa}_STREAMED_F32_HALF_HALF_{back}" for isa in ("avx2", "avx512") for back in (0, 1)
    }
