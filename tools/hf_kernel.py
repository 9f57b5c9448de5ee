"""Write the rotation as a package in the format of Hugging Face's `kernels`: `make hf-kernel`.

    import kernels
    rotary = kernels.get_local_kernel(Path("build/hf-kernel"))
    q, k = rotary.apply_rotary_pos_emb(q, k, cos, sin)

Such a package may import torch and Triton but no other package, and may be loaded beside an
installed ropewalk. So the modules that the rotation needs are copied with relative imports and an
op namespace of their own. All of it is Python: kernels of a GPU are compiled by Triton, and on a
CPU torch rotates.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import shutil
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "ropewalk"
#: the modules that users of the package call; what these import comes with them
ROOTS = ("rotation", "rope", "spec", "frequencies")
#: names of the package -> the module that has them
PUBLIC = {
    "apply_rotary_pos_emb": "rotation",
    "rotate": "rotation",
    "Rope": "rope",
    "RopeSpec": "spec",
}
NAME, VERSION = "ropewalk-rotary", 1
#: the backends of `kernels` for which the package is listed; all have the same code
BACKENDS = ("cpu", "cuda", "rocm")


def path_of(module: str) -> Path:
    """Return the file of a module, named without "ropewalk."."""
    folder = SOURCE.joinpath(*module.split("."))
    return folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")


def imported(module: str) -> set[str]:
    """Return the modules of ropewalk that a module imports, also inside functions, and the packages
    around them.
    """
    found: set[str] = set()
    for node in ast.walk(ast.parse(path_of(module).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "ropewalk":
            base = (node.module or "").partition(".")[2]
            found |= {base} | {f"{base}.{each.name}".strip(".") for each in node.names}
        elif isinstance(node, ast.Import):
            found |= {
                each.name.partition(".")[2] for each in node.names if "ropewalk." in each.name
            }
    with_parents = {
        ".".join(name.split(".")[:n]) for name in found for n in range(1, name.count(".") + 2)
    }
    return {name for name in with_parents if name and path_of(name).is_file()}


def closure() -> list[str]:
    """Return the modules that ROOTS need, themselves included."""
    needed, waiting = set(), set(ROOTS)
    while waiting:
        needed |= waiting
        waiting = {each for module in waiting for each in imported(module)} - needed
    return sorted(needed)


def rewritten(module: str) -> str:
    """Return the source of a module with relative imports, the op namespace of the package, and
    without the import of jaxtyping, whose names only annotations use.
    """
    text = path_of(module).read_text(encoding="utf-8")
    is_package = path_of(module).name == "__init__.py"
    dots = "." * (module.count(".") + (2 if is_package else 1))
    text = re.sub(
        r"^(\s*)from ropewalk\.([\w.]+) import", rf"\1from {dots}\2 import", text, flags=re.M
    )
    text = re.sub(r"^(\s*)from ropewalk import", rf"\1from {dots} import", text, flags=re.M)
    text = re.sub(r"^(\s*)import ropewalk\.(\w+)", rf"\1from {dots} import \2", text, flags=re.M)
    text = re.sub(r"^from jaxtyping import .*\n", "", text, flags=re.M)
    namespace = NAME.replace("-", "_")
    return text.replace('"ropewalk::', f'"{namespace}::').replace(
        "ops.ropewalk.", f"ops.{namespace}."
    )


def write(out: Path) -> list[Path]:
    """Write the package under `out` and return the folders of its variants."""
    shutil.rmtree(out, ignore_errors=True)
    modules, folders = closure(), []
    for backend in BACKENDS:
        folder = out / "build" / f"torch-{backend}"
        for module in modules:
            target = folder / path_of(module).relative_to(SOURCE)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(rewritten(module), encoding="utf-8")
        names = "".join(f"from .{module} import {name}\n" for name, module in PUBLIC.items())
        about = '"""Rotary position embedding: rotations of q and k, with gradients and torch.compile."""'
        listed = ", ".join(f'"{name}"' for name in PUBLIC)
        (folder / "__init__.py").write_text(f"{about}\n\n{names}\n__all__ = [{listed}]\n")
        (folder / "metadata.json").write_text(json.dumps(metadata(backend), indent=2) + "\n")
        folders.append(folder)
    return folders


def metadata(backend: str) -> dict[str, object]:
    """Return what `kernels` reads about one variant before it imports it."""
    return {
        "name": NAME,
        "id": f"{NAME.replace('-', '_')}_{backend}_v{VERSION}",
        "version": VERSION,
        "license": "Apache-2.0",
        "python-depends": [],
        "backend": {"type": backend},
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("build/hf-kernel"))
    for each in write(parser.parse_args().out):
        print(each)
