"""A checkpoint folder is data that somebody else wrote: read lazily, checked before it is believed,
written whole.
"""

from __future__ import annotations

import json
import os
import random
import tracemalloc

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from ropewalk import RopeError
from ropewalk.interop.checkpoint.atomic_folder import atomic_folder, partial_path
from ropewalk.interop.checkpoint.safetensors_file import DTYPES, MAX_HEADER_BYTES, read_header
from ropewalk.interop.checkpoint.shards import open_folder, write_folder


def tensors():
    torch.manual_seed(5)
    made = {
        f"of.{name}": torch.randint(0, 2, (3, 5)).to(dtype)
        if dtype != torch.bool
        else torch.rand(3, 5) > 0.5
        for name, dtype in DTYPES.items()
    }
    return {
        **made,
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 4),
        "odd": torch.randn(7).bfloat16(),
        "ключ": torch.ones(1),
    }


def listed(given):
    return [
        (key, tuple(tensor.shape), tensor.dtype, lambda tensor=tensor: tensor)
        for key, tensor in given.items()
    ]


def same(found, wanted):
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    assert torch.equal(found.reshape(-1).view(torch.uint8), wanted.reshape(-1).view(torch.uint8))


@pytest.mark.parametrize("limit", [10**9, 100, 1])
def test_the_safetensors_library_reads_what_we_write(tmp_path, limit):
    given = tensors()
    write_folder(tmp_path / "a", listed(given), {"model_type": "llama"}, max_shard_bytes=limit)
    theirs = {}
    for path in sorted((tmp_path / "a").glob("*.safetensors")):
        theirs |= load_file(path)
        with safe_open(path, "pt") as file:
            assert file.metadata() == {"format": "pt"}
    assert theirs.keys() == given.keys()
    for key, tensor in given.items():
        same(theirs[key], tensor)
    index = tmp_path / "a" / "model.safetensors.index.json"
    assert index.exists() == (limit < 10**9)
    if index.exists():
        found = json.loads(index.read_text())
        assert found["metadata"]["total_size"] == sum(each.nbytes for each in given.values())
        assert found["weight_map"].keys() == given.keys()


def test_we_read_what_the_safetensors_library_writes(tmp_path):
    given = tensors()
    save_file(given, tmp_path / "model.safetensors", {"made": "by them"})
    folder = open_folder(tmp_path)
    assert set(folder.names) == set(given)
    for key, tensor in given.items():
        assert (folder.shape(key), folder.dtype(key), folder.bytes(key)) == (
            tuple(tensor.shape),
            tensor.dtype,
            tensor.nbytes,
        )
        same(folder.read(key), tensor)
        if tensor.ndim and tensor.numel():
            same(
                torch.cat([piece.reshape(-1).view(torch.uint8) for piece in folder.pieces(key)]),
                tensor.reshape(-1).view(torch.uint8),
            )
    assert folder.shards["model.safetensors"].metadata == {"made": "by them"}


def test_pieces_hold_whole_groups_of_rows(tmp_path, monkeypatch):
    monkeypatch.setattr("ropewalk.interop.checkpoint.safetensors_file.PIECE_BYTES", 100)
    given = torch.randn(35, 4)  # 16 bytes a row: six rows fit
    write_folder(tmp_path / "a", listed({"x": given}))
    pieces = list(open_folder(tmp_path / "a").pieces("x", rows=5))
    assert [len(piece) for piece in pieces] == [5] * 7
    assert torch.equal(torch.cat(pieces), given)
    assert torch.equal(
        torch.cat(list(open_folder(tmp_path / "a").pieces("x", 10, 23, rows=3))), given[10:23]
    )


def test_one_tensor_is_made_at_a_time(tmp_path):
    alive, most = [], 0

    def make():
        nonlocal most
        alive.append(1)
        most = max(most, len(alive))
        tensor = torch.zeros(3)
        alive.pop()
        return tensor

    write_folder(
        tmp_path / "a", [(str(i), (3,), torch.float32, make) for i in range(9)], max_shard_bytes=30
    )
    assert most == 1
    assert len(list((tmp_path / "a").glob("*.safetensors"))) == 5


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        (("x", (3,), torch.float32, lambda: torch.zeros(4)), r"the declared shape \[3\]"),
        (
            ("x", (3,), torch.float32, lambda: torch.zeros(3).double()),
            "the dtype in its header, torch.float32",
        ),
        (("x", (3,), torch.complex128, lambda: torch.zeros(3)), "dtypes"),
        (("__metadata__", (3,), torch.float32, lambda: torch.zeros(3)), "__metadata__"),
    ],
)
def test_a_tensor_that_is_not_as_announced_leaves_no_folder(tmp_path, entry, says):
    with pytest.raises(RopeError, match=says):
        write_folder(tmp_path / "a", [entry])
    assert list(tmp_path.iterdir()) == []


def test_a_tensor_name_that_occurs_twice_is_not_written(tmp_path):
    with pytest.raises(RopeError, match="unique names"):
        write_folder(tmp_path / "a", listed({"x": torch.zeros(1)}) * 2)


def test_missing_and_unexpected_tensors_are_named(tmp_path):
    write_folder(
        tmp_path / "a", listed({key: torch.zeros(1) for key in ("w", "x", "rotary_emb.inv_freq")})
    )
    folder = open_folder(tmp_path / "a")
    folder.expect(["w", "x"], ignored=lambda key: key.endswith("inv_freq"))
    with pytest.raises(RopeError, match=r"missing: y, z, unexpected: x, rotary_emb\.inv_freq"):
        folder.expect(["w", "y", "z"])
    with pytest.raises(RopeError, match="nobody"):
        folder.read("nobody")


def test_five_names_are_shown_and_the_rest_is_counted(tmp_path):
    save_file({"w": torch.ones(2)}, tmp_path / "model.safetensors")
    with pytest.raises(RopeError, match=r"missing: a, b, c, d, e\)"):
        open_folder(tmp_path).expect("abcdew")
    with pytest.raises(RopeError, match=r"missing: a, b, c, d, e and 2 more\)"):
        open_folder(tmp_path).expect("abcdefgw")


def index(folder, weight_map):
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map})
    )


@pytest.fixture
def two(tmp_path):
    """Two shards with one tensor each, and no index yet."""
    for name in "ab":
        save_file({name: torch.ones(2)}, tmp_path / f"{name}.safetensors")
    return tmp_path


@pytest.mark.parametrize(
    ("weight_map", "says"),
    [
        ({"a": "a.safetensors", "b": "../b.safetensors"}, "in the same folder"),
        ({"a": "/etc/passwd"}, "in the same folder"),
        ({"a": "..\\a.safetensors"}, "in the same folder"),
        ({"a": "a.bin"}, "in the same folder"),
        ({"a": ""}, "in the same folder"),
        ({"a": 3}, "file names"),
        ({}, "file names"),
        ([], "file names"),
        ({"a": "c.safetensors"}, "must be a file"),
        (
            {"a": "a.safetensors", "c": "b.safetensors"},
            r"only tensors that a shard holds; got \['c'\]",
        ),
        (
            {"a": "b.safetensors", "b": "a.safetensors"},
            r"the shard that holds these tensors; got \['a', 'b'\]",
        ),
    ],
)
def test_a_lying_index_is_refused(two, weight_map, says):
    index(two, weight_map)
    with pytest.raises(RopeError, match=says):
        open_folder(two)


def test_an_index_beyond_32_mib_is_not_parsed(two):
    with (two / "model.safetensors.index.json").open("wb") as file:
        file.truncate((32 << 20) + 1)
    with pytest.raises(RopeError, match="must be at most 33554432 bytes"):
        open_folder(two)


def test_an_index_that_leaves_a_tensor_out_is_refused(two):
    save_file({"a": torch.ones(2), "more": torch.ones(2)}, two / "a.safetensors")
    index(two, {"a": "a.safetensors", "b": "b.safetensors"})
    with pytest.raises(
        RopeError, match=r"must also list these tensors of its shards; got \['more'\]"
    ):
        open_folder(two)


def test_files_beside_the_index_do_not_count(two):
    save_file({"a": torch.zeros(9)}, two / "consolidated.safetensors")
    index(two, {"a": "a.safetensors", "b": "b.safetensors"})
    assert open_folder(two).shape("a") == (2,)


def test_two_files_with_one_tensor_are_refused(two):
    save_file({"a": torch.ones(2)}, two / "c.safetensors")
    with pytest.raises(
        RopeError, match=r"a: must be in one file only; got \['a\.safetensors', 'c\.safetensors'\]"
    ):
        open_folder(two)


def test_links_may_not_leave_the_folder_but_for_the_hubs_cache(tmp_path):
    save_file({"x": torch.ones(2)}, tmp_path / "secret.safetensors")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "model.safetensors").symlink_to(tmp_path / "secret.safetensors")
    with pytest.raises(RopeError, match="link to a file outside its folder"):
        open_folder(tmp_path / "a")
    snapshot, blobs = (
        tmp_path / "models--x" / "snapshots" / "1234",
        tmp_path / "models--x" / "blobs",
    )
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    save_file({"x": torch.ones(2)}, blobs / "abcd")
    (snapshot / "model.safetensors").symlink_to("../../blobs/abcd")
    assert open_folder(snapshot).read("x").tolist() == [1, 1]


def test_a_folder_of_pickles_is_refused_with_the_reason(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(RopeError, match=r"pytorch_model\.bin can run code"):
        open_folder(tmp_path)
    with pytest.raises(RopeError, match="must be a local folder"):
        open_folder(tmp_path / "nowhere")


def hostile(header, data=b"", length=None):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(raw) if length is None else length).to_bytes(8, "little") + raw + data


def entry(dtype="F32", shape=(1,), offsets=(0, 4)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


HOSTILE = {
    "empty": b"",
    "short": b"\x00\x01",
    "no header": (0).to_bytes(8, "little"),
    "a header longer than the file": hostile({}, length=10**6),
    "a header of 2^63 bytes": hostile({}, length=2**63),
    "not JSON": hostile(b"{]"),
    "not UTF-8": hostile(b'{"\xff": 1}'),
    "not an object": hostile(b"[]"),
    "deep": hostile(b"[" * 100_000),
    "twice": hostile(
        b'{"x":{"dtype":"U8","shape":[],"data_offsets":[0,1]},"x":{"dtype":"U8","shape":[],"data_offsets":[0,1]}}',
        b"1",
    ),
    "an entry of another kind": hostile({"x": 3}),
    "a surplus field": hostile({"x": {**entry(), "stride": 1}}, b"1234"),
    "an unknown dtype": hostile({"x": entry(dtype="PICKLE")}, b"1234"),
    "a dtype of another kind": hostile({"x": {**entry(), "dtype": ["F32"]}}, b"1234"),
    "a negative size": hostile({"x": entry(shape=(-1,))}, b"1234"),
    "a true size": hostile({"x": {**entry(), "shape": [True]}}, b"1234"),
    "a fractional size": hostile({"x": entry(shape=(1.0,))}, b"1234"),
    "a huge size": hostile({"x": entry(shape=(2**61, 2**61), offsets=(0, 2**61))}),
    "too many axes": hostile({"x": entry(shape=(1,) * 99)}, b"1234"),
    "bytes that do not fit the shape": hostile({"x": entry(shape=(2,))}, b"1234"),
    "bytes that are not there": hostile({"x": entry()}),
    "bytes left over": hostile({"x": entry()}, b"12345"),
    "a gap": hostile({"x": entry(offsets=(4, 8))}, b"12345678"),
    "an overlap": hostile({"x": entry(), "y": entry()}, b"1234"),
    "backwards": hostile({"x": entry(offsets=(4, 0))}, b"1234"),
    "a terabyte": hostile({"x": entry(shape=(2**38,), offsets=(0, 2**40))}, b"1234"),
    "metadata of another kind": hostile({"__metadata__": {"a": 1}}),
    "a metadata list": hostile({"__metadata__": []}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_before_it_costs_anything(tmp_path, name):
    (tmp_path / "model.safetensors").write_bytes(HOSTILE[name])
    tracemalloc.start()
    try:
        with pytest.raises(RopeError) as error:
            open_folder(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert "model.safetensors" in str(error.value)
    assert len(str(error.value)) < 600


def test_a_header_beyond_the_bound_is_not_read(tmp_path):
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        file.write((MAX_HEADER_BYTES + 1).to_bytes(8, "little"))
        file.truncate(MAX_HEADER_BYTES + 100)  # sparse
    with pytest.raises(RopeError, match="a header of 2 to"):
        read_header(path)


def test_random_damage_is_refused_or_harmless(tmp_path):
    """Whatever byte of the header changes, the file is refused by RopeError or still holds tensors
    of its own size.
    """
    good = tmp_path / "good" / "model.safetensors"
    good.parent.mkdir()
    save_file({"a": torch.ones(3), "b": torch.ones(2, 2)}, good)
    data, dice = good.read_bytes(), random.Random(7)
    size = 8 + int.from_bytes(data[:8], "little")
    bad = tmp_path / "bad"
    bad.mkdir()
    refused = 0
    for _ in range(300):
        damaged = bytearray(data[: dice.choice([len(data)] * 3 + [dice.randrange(len(data))])])
        for _ in range(dice.randint(1, 3)):
            if damaged:
                damaged[dice.randrange(min(size, len(damaged)))] = dice.randrange(256)
        (bad / "model.safetensors").write_bytes(damaged)
        try:
            folder = open_folder(bad)
        except RopeError:
            refused += 1
        else:
            assert sum(folder.read(key).nbytes for key in folder.names) == len(damaged) - size
    assert refused > 200


def test_a_file_that_shrinks_is_noticed(tmp_path):
    save_file({"a": torch.ones(300)}, tmp_path / "model.safetensors")
    folder = open_folder(tmp_path)
    os.truncate(tmp_path / "model.safetensors", 200)
    with pytest.raises(RopeError, match="must not shrink"):
        folder.read("a")


def test_an_atomic_folder_appears_at_the_end(tmp_path):
    with atomic_folder(tmp_path / "deep" / "x") as folder:
        (folder / "file").write_text("1")
        assert folder == partial_path(tmp_path / "deep" / "x")
        assert not (tmp_path / "deep" / "x").exists()
        with pytest.raises(RopeError, match="another run"), atomic_folder(tmp_path / "deep" / "x"):
            pass
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["x"]
    assert (tmp_path / "deep" / "x" / "file").read_text() == "1"


def test_a_failed_block_leaves_nothing(tmp_path):
    def interrupted():
        with atomic_folder(tmp_path / "x") as folder:
            (folder / "file").write_text("1")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_run_left_is_cleared(tmp_path):
    left = partial_path(tmp_path / "x")
    (left / "deeper").mkdir(parents=True)
    (left / "model.safetensors").write_text("half")
    with atomic_folder(tmp_path / "x") as folder:
        assert list(folder.iterdir()) == []
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_target_in_use_is_refused_and_kept(tmp_path):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "mine").write_text("1")
    with pytest.raises(RopeError, match="does not exist yet"), atomic_folder(tmp_path / "x"):
        pass
    assert (tmp_path / "x" / "mine").read_text() == "1"
    (tmp_path / "x" / "mine").unlink()
    with atomic_folder(tmp_path / "x") as folder:
        (folder / "new").write_text("2")
    assert (tmp_path / "x" / "new").exists()


def test_a_link_in_the_place_of_the_partial_folder_is_not_followed(tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("1")
    partial_path(tmp_path / "x").symlink_to(tmp_path / "precious")
    with pytest.raises(RopeError, match="link"), atomic_folder(tmp_path / "x"):
        pass
    assert (tmp_path / "precious" / "file").exists()
