"""The command line on a Python with nothing installed: what reads and explains a rope works, what
computes with tensors says what to install.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ropewalk

SOURCE = Path(ropewalk.__file__).parents[1]
CONFIG = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "max_position_embeddings": 131_072,
    "rope_theta": 500_000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}
#: isolated and without site-packages; the CPU time is the last line on stderr
BARE = """
import atexit, sys, time
sys.path.insert(0, sys.argv[1])
atexit.register(lambda: print(time.process_time(), file=sys.stderr))
import ropewalk_cli
ropewalk_cli.main(sys.argv[2:])
"""


def run(*words: object) -> tuple[int, str, str, float]:
    """Run a command: (exit code, stdout, stderr, seconds of CPU)."""
    command = [sys.executable, "-I", "-S", "-c", BARE, SOURCE, *words]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    *err, seconds = done.stderr.splitlines(keepends=True)
    return done.returncode, done.stdout, "".join(err), float(seconds)


@pytest.fixture
def config(tmp_path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    return path


def test_the_bare_python_has_neither_torch_nor_numpy_nor_pip():
    script = "import importlib.util as u; print([n for n in ('torch', 'numpy', 'pip') if u.find_spec(n)])"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--version", f"ropewalk {re.escape(ropewalk.__version__)}\n$"),
        ("--help", "Usage: ropewalk COMMAND"),
        ("lab --help", "Usage: ropewalk lab COMMAND"),
        ("train --help", r"Usage: ropewalk train \[OPTIONS\] PRESET"),
        ("completion bash", "_ropewalk"),
        ("--complete bash inspect --se", "--served\n$"),
        ("info", "Versions\n"),
        ("lab fetch smollm2 --dry-run", "smollm2: SmolLM2-135M-Instruct"),
        ("inspect {config}", "llama, full_attention: with llama3, 29 of 64 pairs reach angles"),
        ("inspect {config} --details --guide", "llama, full_attention: "),
        ("inspect --example qwen2-vl-7b", "qwen2_vl"),
        ("audit {config}", r"All 5 engines agree|\d of 5 engines agree"),
        ("audit --example gpt-oss-20b --details", "3 of 5 engines agree"),
    ],
)
def test_commands_without_tensors_answer(config, words, says):
    code, out, err, _ = run(*words.format(config=config).split())
    assert (code, err) == (0, "")
    assert re.match(says, out)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("inspect missing.json", "CONFIG: must be the path of a config.json"),
        ("inspect --servd 3", "no such option: --servd (did you mean --served?)"),
        ("inspct", "no such command: 'inspct' (did you mean inspect?)"),
        ("train smoke", "train: needs torch; run: pip install 'ropewalk[torch]'"),
        ("bench", "bench: needs torch; run: pip install 'ropewalk[torch]'"),
    ],
)
def test_wrong_words_and_a_missing_torch_are_refused_in_one_line(words, says):
    code, out, err, _ = run(*words.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"ropewalk: {says}")


@pytest.mark.parametrize("command", ["inspect", "audit"])
def test_json_is_the_same_as_where_torch_is_installed(config, command):
    environment = [sys.executable, "-m", "ropewalk_cli", command, str(config), "--json"]
    with_torch = subprocess.run(environment, capture_output=True, text=True, check=True).stdout
    assert run(command, config, "--json")[1] == with_torch


def test_inspect_takes_less_than_a_second(config):
    """At most 0.8 s of CPU in the fastest of three runs; on an idle machine it takes 0.4 s."""
    runs = [run("inspect", config) for _ in range(3)]
    assert [code for code, *_ in runs] == [0, 0, 0]
    assert min(seconds for *_, seconds in runs) < 0.8
