"""What the compiler made of the row loops: they store to y and nowhere else.

One register spilled to the stack in every row ends the stream of stores of a Neoverse-N1, and a
prefill then takes more than three times as long; nothing else would show it.
"""

import platform
import re
import shutil
import subprocess
from itertools import groupby, pairwise

import networkx  # torch brings it
import pytest

from ropewalk.kernels.cpu import library

#: machine -> the prefix of the names and the number of the functions whose row loops must not spill,
#: and patterns of the prefetch in every row loop and of a store to the stack.
#: x86 has half as many registers as ARM; its loops for 16-bit types, whose time is arithmetic and not
#: memory, may spill and are left out
CODE = {
    "aarch64": ("neon_FULL_", 24, r"prfm\b", r"st\w+\s.*\[(sp|x29)"),
    "x86_64": ("avx2_FULL_F32_", 8, r"prefetch", r"v?mov\w*\s+%\w+,.*\(%r[sb]p"),
}
JUMP = re.compile(r"(?:b\.\w+|b|cbn?z|tbn?z|j\w+)\s+(?:[\w#]+,\s*)*([0-9a-f]+) <")
GOES_ON = re.compile(r"(?!(b|ret|jmp\w*|retq)\s|ret)")
pytestmark = [
    pytest.mark.skipif(platform.machine() not in CODE, reason="no reading of this machine's code"),
    pytest.mark.skipif(shutil.which("objdump") is None, reason="needs objdump"),
    pytest.mark.skipif(library.handle is None, reason="needs the native library"),
]


def row_loops(code: list[tuple[int, str]], prefetch: str) -> list[list[str]]:
    """Return the code of each loop over rows: the next-to-outermost of the loops around a prefetch,
    wherever the compiler put its parts.
    """
    text, first = dict(code), code[0][0]
    flow = networkx.DiGraph(
        (at, int(jump[1], 16)) for at, text in code if (jump := JUMP.match(text))
    )
    flow.add_edges_from((at, to) for (at, _), (to, _) in pairwise(code) if GOES_ON.match(text[at]))
    above = networkx.immediate_dominators(flow, first)
    loops: dict[int, set[int]] = {}
    for at in above:
        for head in flow[at]:
            if heads(head, at, above):
                # the step from `at` to `head` goes back: the loop is all code from which `at` is
                # reached without passing `head`
                inside, todo = loops.setdefault(head, {head}), [at]
                while todo:
                    if (place := todo.pop()) not in inside:
                        inside.add(place)
                        todo += flow.predecessors(place)
    around = (
        [loop for loop in loops.values() if at in loop]
        for at in text
        if re.match(prefetch, text[at])
    )
    # the outermost loop is not over rows but over groups of them
    rows = {tuple(sorted(sorted(loops, key=len)[-2])) for loops in around if len(loops) > 1}
    return [[text[place] for place in row] for row in rows]


def heads(head: int, at: int | None, above: dict[int, int]) -> bool:
    """Whether every way to `at` leads through `head`."""
    while at not in (None, head):
        at = above.get(at) if above.get(at) != at else None
    return at == head


def functions() -> dict[str, list[tuple[int, str]]]:
    command = ["objdump", "-d", "--no-show-raw-insn", str(library._PATH)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    heads = [i for i, line in enumerate(lines) if re.match(r"[0-9a-f]+ <\w+>:$", line)] + [
        len(lines)
    ]
    return {
        re.search(r"<(\w+)>", lines[first])[1]: [
            (int(at, 16), text.strip())
            for at, _, text in (line.partition(":\t") for line in lines[first + 1 : last])
            if text
        ]
        for first, last in pairwise(heads)
    }


def test_row_loops_store_to_y_alone():
    prefix, count, prefetch, spill = CODE[platform.machine()]
    whole = {name: code for name, code in functions().items() if name.startswith(prefix)}
    assert len(whole) == count, "dtypes, two layouts in and out, forth and back"
    for name, code in whole.items():
        loops = row_loops(code, prefetch)
        assert len(loops) == 3, f"{name}: 64 pairs, 32 pairs and any number of them"
        assert not [text for loop in loops for text in loop if re.match(spill, text)], name


@pytest.mark.skipif(
    platform.machine() != "aarch64",
    reason="only NEON needs more than one store for a line of the cache",
)
def test_each_cache_line_is_written_by_consecutive_stores():
    store = re.compile(r"(\w+)\s.*\[(x\d+)(?:, #(\d+))?\]$")
    for name, code in functions().items():
        if not name.startswith("neon_FULL_F32_"):
            continue
        found = 0
        for loop in row_loops(code, r"prfm\b"):
            memory = [text for text in loop if re.match(r"ld|st|prfm", text)]
            stores = [
                list(run)
                for stored, run in groupby(memory, lambda text: text.startswith("st"))
                if stored
            ]
            runs = [[store.match(text) for text in run] for run in stores]
            if not all(all(run) for run in runs):
                # the loop for any number of pairs: its addresses do not show which stores adjoin
                continue
            found += 1
            for run in runs:
                at = sorted(
                    int(one[3] or 0) + half
                    for one in run
                    for half in ((0, 16) if one[1] == "stp" else (0,))
                )
                line = at[0] - at[0] % 64
                assert at == [line, line + 16, line + 32, line + 48], (name, run)
                assert len({one[2] for one in run}) == 1, (name, run)
        assert found == 2, f"{name}: 64 pairs and 32 pairs"


@pytest.mark.skipif(
    platform.machine() != "x86_64", reason="only on x86 are non-temporal stores faster"
)
def test_only_the_streamed_functions_use_non_temporal_stores():
    streamed = {
        name: any("vmovnt" in text for _, text in code)
        for name, code in functions().items()
        if "F32_HALF_HALF" in name
    }
    assert {name for name, streams in streamed.items() if streams} == {
        f"{isa}_STREAMED_F32_HALF_HALF_{back}" for isa in ("avx2", "avx512") for back in (0, 1)
    }
