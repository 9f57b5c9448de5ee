"""Run the engines that are installed beside ropewalk: each runner is a script, in a process of its
own.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ropewalk.engines import ENGINES
from ropewalk.errors import RopeError

#: the scripts lie beside this file; they import each other as files
RUNNERS = Path(__file__).parent
#: every engine that is run, by name. ONNX Runtime reads no config, so there is nothing to audit: it
#: computes what was exported
TITLES: dict[str, str] = {
    **{name: engine.title for name, engine in ENGINES.items()},
    "onnxruntime": "ONNX Runtime",
}
#: engine: the script that runs it, and the package that it needs
SCRIPTS = {
    "hf": ("run_transformers.py", "transformers"),
    "vllm": ("run_vllm.py", "vllm"),
    "sglang": ("run_sglang.py", "sglang"),
    "mlx-lm": ("run_mlx_lm.py", "mlx_lm"),
    "llama.cpp": ("run_llama_cpp.py", "xllamacpp"),
    "onnxruntime": ("run_onnxruntime.py", "onnxruntime"),
}


def why_not(engine: str) -> str | None:
    """Return why an engine cannot be run here; None if it can."""
    package = SCRIPTS[engine][1]
    if importlib.util.find_spec(package) is None:
        return f"{package} is not installed"
    if engine == "onnxruntime" and importlib.util.find_spec("onnx") is None:
        return "onnx is not installed"
    if engine == "llama.cpp" and not {"LLAMA_CPP", "WEIGHTS"} <= os.environ.keys():
        return (
            "LLAMA_CPP and WEIGHTS must name the folders of its converter and of the small models; "
            "`make engines` has both"
        )
    return None


def run(
    engine: str, rows: Sequence[Mapping[str, Any]], timeout: float = 1500.0
) -> Mapping[str, Any]:
    """Return what an installed engine computes for the rows: {"engine", "version", "results"}.

    rows     what is asked for: each has a name, a config, the length of its sequence in tokens,
             max_model_len (the length that the engine is started for; None: its own choice) and
             axes (position axes of a token: 1, or 3 for M-RoPE)
    timeout  how many seconds the engine's script may run; after that, and if the script fails, an
             error is raised
    """
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "rows.json", Path(folder) / "results.json"
        source.write_text(json.dumps(list(rows)), encoding="utf-8")
        command = [sys.executable, str(RUNNERS / SCRIPTS[engine][0]), str(source), str(target)]
        try:
            process = subprocess.run(
                command, capture_output=True, text=True, timeout=timeout, check=False
            )
        except subprocess.TimeoutExpired:
            raise RopeError(
                "engine", f"must run to its end within {timeout:g} seconds", engine
            ) from None
        if process.returncode != 0 or not target.exists():
            last_line = (process.stderr.strip().splitlines() or ["no message"])[-1]
            rule = (
                f"must run to its end; the last line of {SCRIPTS[engine][0]} was: {last_line[:200]}"
            )
            raise RopeError("engine", rule, engine)
        return json.loads(target.read_text(encoding="utf-8"))
