"""The reader of GGUF files: what it reads, and that a hostile file costs an error, not time or
memory.
"""

import ast
import os
import resource
import struct
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import ropewalk.gguf
from gguf_samples import ARRAY, STRING, UINT32, header, pair, sizes, string, tensor, write
from ropewalk import RopeError
from ropewalk.gguf import GgufFile

HUGE = 2**63


def test_metadata_arrays_and_tensors_are_read(tmp_path):
    metadata = sizes() | {
        "flag": True,
        "words": ["a", "", "β"],
        "numbers": [1, -2, 3],
        "halves": [0.5, 1.5],
        "n": 7,
        "x": 0.25,
    }
    weight = np.arange(15, dtype=np.float32).reshape(3, 5)
    file = GgufFile(write(tmp_path / "a.gguf", metadata, {"w": weight, "v": weight[0]}))
    assert file.architecture == "llama"
    assert {key: file.metadata[key] for key in ("flag", "n", "x")} == {
        "flag": True,
        "n": 7,
        "x": 0.25,
    }
    assert [file.array(key) for key in ("words", "numbers", "halves")] == [
        ["a", "", "β"],
        [1, -2, 3],
        [0.5, 1.5],
    ]
    assert file.tensors["w"].shape == (3, 5)
    assert file.data("w") == weight.tobytes()
    assert file.floats("v") == (0.0, 1.0, 2.0, 3.0, 4.0)


@pytest.mark.parametrize(
    ("number", "dtype"), [(0, "<f4"), (1, "<f2"), (28, "<f8")], ids=["F32", "F16", "F64"]
)
def test_floats_of_any_width_are_read(number, dtype, tmp_path):
    values = np.array([1.5, -0.25, 1024, 0.1], dtype=dtype)
    path = write(tmp_path / "a.gguf", sizes(), {"v": (number, (4,), values.tobytes())})
    assert GgufFile(path).floats("v") == tuple(values.tolist())


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (np.ones((2, 4)), "w: must have one dimension and at most 65536 entries"),
        (np.ones(65537), "w: must have one dimension and at most 65536 entries"),
        ((8, (32,), bytes(34)), "w: must be of type F32, F16, F64; got 'Q8_0'"),
    ],
)
def test_a_tensor_that_holds_no_factors_is_refused(tensor, message, tmp_path):
    with pytest.raises(RopeError, match=message):
        GgufFile(write(tmp_path / "a.gguf", sizes(), {"w": tensor})).floats("w")


def test_an_array_of_millions_of_numbers_is_not_read(tmp_path):
    """Each byte would become an object in a list."""
    path, count = tmp_path / "a.gguf", 5_000_000
    array = string("k") + struct.pack("<IIQ", ARRAY, 0, count) + bytes(count)
    path.write_bytes(header([array], []))
    file = GgufFile(path)
    with pytest.raises(RopeError, match="length of k: must be at most 4194304; got 5000000"):
        file.array("k")


def test_the_gguf_package_reads_the_samples_the_same_way(tmp_path):
    gguf = pytest.importorskip("gguf")
    weight = np.arange(15, dtype=np.float32).reshape(3, 5)
    path = write(
        tmp_path / "a.gguf", sizes() | {"words": ["a", "bc"]}, {"w": weight, "v": weight[0]}
    )
    theirs, ours = gguf.GGUFReader(path), GgufFile(path)
    assert {key: theirs.fields[key].contents() for key in sizes()} == {
        key: ours.metadata[key] for key in sizes()
    }
    assert theirs.fields["words"].contents() == ours.array("words")
    for each in theirs.tensors:
        assert each.data.tobytes() == ours.data(each.name)


def data_of(*tensors: bytes, pairs: tuple[bytes, ...] = (), size: int = 4096) -> bytes:
    return header(list(pairs), list(tensors)).ljust(size, b"\0")


ONE = (4,), 0
HOSTILE = {
    "empty": b"",
    "magic alone": b"GGUF",
    "another format": b"PK\3\4" + b"\0" * 4000,
    "version 1": header([], [], version=1),
    "big endian": b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
    "2^63 tensors": header([], [], counts=(HUGE, 0)).ljust(4096, b"\0"),
    "2^63 pairs": header([], [], counts=(0, HUGE)).ljust(4096, b"\0"),
    "a million pairs": header([], [], counts=(0, 10**6)).ljust(4096, b"\0"),
    "2^63 bytes of key": header([struct.pack("<Q", HUGE)], []).ljust(4096, b"\0"),
    "2^64-1 bytes of text": header([string("k") + struct.pack("<IQ", STRING, 2**64 - 1)], []).ljust(
        4096, b"\0"
    ),
    "text beyond the file": header([string("k") + struct.pack("<IQ", STRING, 10**6)], []).ljust(
        4096, b"\0"
    ),
    "2^63 numbers": header([string("k") + struct.pack("<IIQ", ARRAY, UINT32, HUGE)], []).ljust(
        4096, b"\0"
    ),
    "2^63 strings": header([string("k") + struct.pack("<IIQ", ARRAY, STRING, HUGE)], []).ljust(
        4096, b"\0"
    ),
    "string of 2^63 in an array": header(
        [string("k") + struct.pack("<IIQQ", ARRAY, STRING, 1, HUGE)], []
    ).ljust(4096, b"\0"),
    "arrays in arrays": header(
        [string("k") + struct.pack("<IIQ", ARRAY, ARRAY, 1) * 300], []
    ).ljust(8192, b"\0"),
    "unknown type of value": header([string("k") + struct.pack("<I", 13)], []).ljust(4096, b"\0"),
    "unknown type of entries": header([string("k") + struct.pack("<IIQ", ARRAY, 99, 1)], []).ljust(
        4096, b"\0"
    ),
    "a bool of 2": header([string("k") + struct.pack("<IB", 7, 2)], []).ljust(4096, b"\0"),
    "not UTF-8": header([string(b"\xff") + struct.pack("<II", UINT32, 1)], []).ljust(4096, b"\0"),
    "key twice": data_of(pairs=(pair("k", 1), pair("k", 2))),
    "tensor twice": data_of(tensor("w", *ONE, 0), tensor("w", *ONE, 32)),
    "five dimensions": data_of(tensor("w", (1,) * 5, 0, 0)),
    "no dimensions": data_of(tensor("w", (), 0, 0)),
    "2^63 rows": data_of(tensor("w", (HUGE, 4), 0, 0)),
    "2^64 elements": data_of(tensor("w", (2**32, 2**32), 0, 0)),
    "no rows": data_of(tensor("w", (0, 4), 0, 0)),
    "unknown type of tensor": data_of(tensor("w", (4,), 77, 0)),
    "part of a block": data_of(tensor("w", (33,), 8, 0)),
    "2^63 offset": data_of(tensor("w", *ONE, HUGE)),
    "offset beyond the file": data_of(tensor("w", *ONE, 4096)),
    "odd offset": data_of(tensor("w", *ONE, 8)),
    "overlap": data_of(tensor("w", (16,), 0, 0), tensor("v", (16,), 0, 32)),
    "the same bytes twice": data_of(tensor("w", *ONE, 0), tensor("v", *ONE, 0)),
    "alignment 0": data_of(tensor("w", *ONE, 0), pairs=(pair("general.alignment", 0),)),
    "alignment 48": data_of(tensor("w", *ONE, 0), pairs=(pair("general.alignment", 48),)),
    "alignment as text": data_of(tensor("w", *ONE, 0), pairs=(pair("general.alignment", "32"),)),
    "alignment 2^31": data_of(tensor("w", *ONE, 0), pairs=(pair("general.alignment", 2**31),)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_at_once(name, tmp_path):
    path = tmp_path / "a.gguf"
    path.write_bytes(HOSTILE[name])
    began, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(RopeError) as caught:
        GgufFile(path)
    assert time.process_time() - began < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 << 10
    assert len(str(caught.value)) < 1500


def test_a_truncated_file_is_refused(tmp_path):
    whole = write(
        tmp_path / "whole.gguf", sizes() | {"words": ["a", "bc"]}, {"w": np.ones((2, 4))}
    ).read_bytes()
    path = tmp_path / "a.gguf"
    for length in range(0, len(whole), 3):
        path.write_bytes(whole[:length])
        with pytest.raises(RopeError):
            GgufFile(path)
    path.write_bytes(whole)
    assert GgufFile(path).data("w") == np.ones(8, "<f4").tobytes()


def test_flipped_bytes_never_raise_anything_but_a_rope_error(tmp_path):
    whole = write(
        tmp_path / "whole.gguf", sizes() | {"words": ["a", "bc"]}, {"w": np.ones((2, 4))}
    ).read_bytes()
    draw, path = np.random.default_rng(0), tmp_path / "a.gguf"
    refused = 0
    for _ in range(200):
        damaged = bytearray(whole)
        for at in draw.integers(0, len(whole), 3):
            damaged[at] = draw.integers(0, 256)
        path.write_bytes(damaged)
        try:
            file = GgufFile(path)
            for name in file.tensors:
                file.data(name)
        except RopeError:
            refused += 1
    assert refused > 100


def test_a_gigabyte_of_strings_is_refused_within_seconds(tmp_path):
    """Empty strings are the slowest that a header can hold: they can only be skipped one by one."""
    path = tmp_path / "a.gguf"
    arrays = [
        string(f"k{i}") + struct.pack("<IIQ", ARRAY, STRING, 750_000) + b"\0" * 6_000_000
        for i in range(3)
    ]
    path.write_bytes(header(arrays, []))
    os.truncate(path, 1 << 30)  # the rest is a hole, which takes no disk
    began, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(RopeError, match="length of k2: must be at most"):
        GgufFile(path)
    assert time.process_time() - began < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 << 10


def test_an_error_says_how_many_strings_are_left(tmp_path):
    """1,500,000 strings may be in all arrays together."""
    path = tmp_path / "a.gguf"
    lengths = (400_000, 1_200_000)
    arrays = [
        string(f"k{n}") + struct.pack("<IIQ", ARRAY, STRING, n) + b"\0" * 8 * n for n in lengths
    ]
    path.write_bytes(header(arrays, []))
    with pytest.raises(RopeError, match="length of k1200000: must be at most 1100000; got 1200000"):
        GgufFile(path)


def test_a_folder_and_a_missing_file_are_refused(tmp_path):
    for path in (tmp_path, tmp_path / "none.gguf"):
        with pytest.raises(RopeError, match="must be the path of a GGUF file"):
            GgufFile(path)


@pytest.mark.parametrize(
    "module", sorted(Path(ropewalk.gguf.__file__).parent.glob("*.py")), ids=str
)
def test_the_metadata_are_read_with_the_standard_library_alone(module):
    """Weights and tokenizers, which need other packages, are in ropewalk.interop.gguf."""
    imported = set()
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(str(node.module).split(".")[0])
    assert imported <= {"ropewalk", *sys.stdlib_module_names}


def test_a_missing_architecture_array_or_tensor_is_refused(tmp_path):
    file = GgufFile(write(tmp_path / "a.gguf", {"n": 1, "x": 0.5}, {"w": np.ones(4)}))
    with pytest.raises(RopeError, match=r"general\.architecture: must be a name"):
        file.architecture
    with pytest.raises(RopeError, match="must be an array"):
        file.array("n")
    with pytest.raises(RopeError, match="must be a tensor of the file"):
        file.data("none")
