"""Rules of the files of a checkpoint: pieces of tensors, alignment, names of attention parts, and
where a target may be.
"""

from __future__ import annotations

import json
import os
import threading

import pytest
import torch
from safetensors.torch import load_file, save_file

from ropewalk import RopeError
from ropewalk.interop.checkpoint import atomic_folder as folders
from ropewalk.interop.checkpoint import convert_checkpoint
from ropewalk.interop.checkpoint.atomic_folder import alone_in, atomic_folder, lock_folder
from ropewalk.interop.checkpoint.attention_names import split_projection_name
from ropewalk.interop.checkpoint.shards import open_folder, write_folder


def written(path, **tensors):
    """A folder with these tensors."""
    write_folder(
        path, [(name, tuple(x.shape), x.dtype, lambda x=x: x) for name, x in tensors.items()]
    )
    return open_folder(path)


def test_a_piece_has_eight_mebibytes_at_most(tmp_path):
    folder = written(
        tmp_path / "a", big=torch.zeros(20, 1 << 20, dtype=torch.uint8), small=torch.zeros(1000, 3)
    )
    assert [len(piece) for piece in folder.pieces("big")] == [8, 8, 4]
    assert [len(piece) for piece in folder.pieces("small")] == [1000]


def test_a_piece_has_one_group_of_rows_at_least(tmp_path, monkeypatch):
    monkeypatch.setattr("ropewalk.interop.checkpoint.safetensors_file.PIECE_BYTES", 100)
    folder = written(tmp_path / "a", x=torch.arange(140.0).view(35, 4))  # 16 bytes a row
    assert [len(piece) for piece in folder.pieces("x", rows=7)] == [7] * 5
    assert torch.equal(
        torch.cat(list(folder.pieces("x", 30, 99))), torch.arange(120.0, 140).view(5, 4)
    )


@pytest.mark.parametrize("shape", [(), (0, 4), (3, 0)])
def test_a_scalar_or_an_empty_tensor_is_one_piece(tmp_path, shape):
    given = torch.full(shape, 2.5)
    (piece,) = written(tmp_path / "a", x=given).pieces("x")
    assert torch.equal(piece, given)
    assert piece.shape == given.shape


@pytest.mark.parametrize("name", ["a" * length for length in range(1, 10)])
def test_the_data_of_a_file_begins_at_a_multiple_of_eight_bytes(tmp_path, name):
    written(tmp_path / "a", **{name: torch.zeros(3)})
    data = (tmp_path / "a" / "model.safetensors").read_bytes()
    assert int.from_bytes(data[:8], "little") % 8 == 0
    assert len(data) % 8 == 4  # the data are three float32, 12 bytes


def test_a_target_in_use_is_refused_before_anything_is_written(tmp_path):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "mine").write_text("1")
    with pytest.raises(RopeError, match="does not exist yet"), atomic_folder(tmp_path / "x"):
        pytest.fail("the block must not run")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def first_free_descriptor() -> int:
    """The lowest free file descriptor: the one that the system gives next."""
    free = os.dup(0)
    os.close(free)
    return free


def test_no_file_descriptor_stays_open(tmp_path):
    before = first_free_descriptor()
    for i in range(3):
        with atomic_folder(tmp_path / str(i)):
            pass
        with pytest.raises(ValueError, match="stop"), atomic_folder(tmp_path / f"failed {i}"):
            raise ValueError("stop")
    assert first_free_descriptor() <= before


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        (
            "encoder.layer.0.attention.self.query.weight",
            ("encoder.layer.0.attention.self", "query", "weight"),
        ),
        ("attn.key.bias", ("attn", "key", "bias")),
        ("memory.layer.0.query.weight", None),
        ("query.weight", None),
        ("layers.0.wq.weight", ("layers.0", "wq", "weight")),
        ("layers.0.mlp.up_proj.weight", None),
    ],
)
def test_the_words_query_and_key_count_only_inside_an_attention(name, parts):
    assert split_projection_name(name) == parts


def test_a_roformer_is_converted_by_the_words_query_and_key(tmp_path):
    config = {
        "model_type": "roformer",
        "hidden_size": 12,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
    }
    path = "roformer.encoder.layer.0.attention.self"
    rows = torch.arange(144.0).view(12, 12)
    (tmp_path / "a").mkdir()
    save_file(
        {f"{path}.{part}.weight": rows.clone() for part in ("query", "key", "value")},
        tmp_path / "a" / "x.safetensors",
    )
    (tmp_path / "a" / "config.json").write_text(json.dumps(config))
    convert_checkpoint(tmp_path / "a", tmp_path / "b", "interleaved", "half")
    found = load_file(tmp_path / "b" / "x.safetensors")
    for part in ("query", "key"):  # row 2i of a head goes to i, row 2i + 1 to i + 3
        assert torch.equal(
            found[f"{path}.{part}.weight"], rows[[0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]]
        )
    assert torch.equal(found[f"{path}.value.weight"], rows)


@pytest.mark.parametrize("place", ["a", "a/inside", ".", "link/inside", "link"])
def test_a_target_that_is_around_or_inside_the_source_is_refused(tmp_path, place):
    config = {"model_type": "llama", "hidden_size": 12, "num_attention_heads": 2, "rope_theta": 1e4}
    names = [f"model.layers.0.self_attn.{part}.weight" for part in ("q_proj", "k_proj", "v_proj")]
    (tmp_path / "a").mkdir()
    save_file({name: torch.zeros(12, 12) for name in names}, tmp_path / "a" / "model.safetensors")
    (tmp_path / "a" / "config.json").write_text(json.dumps(config))
    (tmp_path / "link").symlink_to(tmp_path / "a")
    with pytest.raises(
        RopeError, match="must not be the source folder, inside it, or a parent of it"
    ):
        convert_checkpoint(tmp_path / "a", tmp_path / place, "half", "interleaved")
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == [
        "config.json",
        "model.safetensors",
    ]


def test_a_process_that_waits_for_a_locked_folder_logs_a_warning(tmp_path, monkeypatch):
    said, entered = threading.Event(), threading.Event()
    monkeypatch.setattr(
        folders.logger, "warning", lambda text, folder: said.set() if folder == tmp_path else None
    )

    def wait() -> None:
        with alone_in(tmp_path):
            entered.set()

    lock = lock_folder(tmp_path)
    other = threading.Thread(target=wait, daemon=True)
    other.start()
    assert said.wait(10)
    assert not entered.is_set()
    os.close(lock)
    assert entered.wait(10)
    other.join(10)
    said.clear()
    wait()
    assert not said.is_set()
