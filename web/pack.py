"""Pack modules for the page; run by build.mjs in the Python of the browser, whose bytecode it is."""

import ast
import importlib
import importlib.util
import io
import json
import marshal
import struct
import sys
import zipfile
from _imp import source_hash
from pathlib import Path

MAGIC = importlib.util.MAGIC_NUMBER
#: every zip has this date, so that the same sources give the same bytes
DATE = (2020, 1, 1, 0, 0, 0)


def compiled(source: bytes, name: str) -> bytes:
    """Return a module as bytecode that is never compared with its source."""
    code = compile(source, name, "exec", dont_inherit=True, optimize=2)
    hashed = source_hash(int.from_bytes(MAGIC, "little"), source)
    return MAGIC + struct.pack("<I", 1) + hashed + marshal.dumps(code)


def zipped(files: dict[str, bytes]) -> bytes:
    """Return a zip of the files, with modules compiled."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in sorted(files.items()):
            is_module = name.endswith(".py")
            info = zipfile.ZipInfo(name + "c" if is_module else name, DATE)
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, compiled(data, name) if is_module else data)
    return out.getvalue()


def import_all(sources: dict[str, bytes]) -> None:
    """Import every module of the standard library that a source names, in functions too."""
    for name, source in sources.items():
        if not name.endswith(".py"):
            continue
        for node in ast.walk(ast.parse(source)):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            for each in names:
                if each.split(".")[0] in sys.stdlib_module_names:
                    importlib.import_module(each)


def trimmed(stdlib: Path) -> bytes:
    """Return the standard library's zip with the modules alone that are loaded now."""
    origins = (getattr(m.__spec__, "origin", None) for m in list(sys.modules.values()) if m)
    needed = {each.split(".zip/", 1)[1] for each in origins if each and ".zip/" in each}
    with zipfile.ZipFile(stdlib) as archive:
        return zipped({name: archive.read(name) for name in archive.namelist() if name in needed})


def run(folder: str, stdlib: str, out: str, requests: str) -> str:
    """Write ropewalk.zip and stdlib.zip to `out`; return the answers to the requests, and the
    well-known models.
    """
    root = Path(folder)
    files = {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }
    import_all(files)
    sys.path.insert(0, folder)
    answers = importlib.import_module("ropewalk_lab.page.answers")
    given = [json.loads(answers.answer(json.dumps(each))) for each in json.loads(requests)]
    Path(out, "ropewalk.zip").write_bytes(zipped(files))
    zipfile.ZipFile(Path(out, "ropewalk.zip")).extractall("/unpacked")  # as the worker does
    Path(out, "stdlib.zip").write_bytes(trimmed(Path(stdlib)))
    return json.dumps({"answers": given, "known": answers.known_models()})
