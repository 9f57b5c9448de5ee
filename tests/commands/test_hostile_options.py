"""Every option of every command with hostile values: an exit code and one line, never a traceback
and never a hang.

The options come from the command table itself, so a new option is tested without an edit here. Only
the work that takes minutes is replaced: timings, training, drawing, and serving the page.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import types
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import command_line
from door import as_users_call
from finetune_tiny import write_checkpoint
from ropewalk.models import DecoderConfig
from ropewalk_cli.commands import demo
from ropewalk_cli.declare import Parameter, parameters
from ropewalk_lab import runs, selfcheck
from ropewalk_lab.bench import cpu
from ropewalk_lab.distributed import Parallel
from ropewalk_lab.engines_run import installed
from ropewalk_lab.finetuning import Files, finetuning_preset
from ropewalk_lab.fit import open_model as opening
from ropewalk_lab.page import server
from ropewalk_lab.samples import write_sample
from ropewalk_lab.settings import Settings
from ropewalk_lab.studies import STUDIES
from ropewalk_lab.studies.findings import Findings, Table
from ropewalk_lab.studies.real import open_real
from ropewalk_lab.trainer import Outcome

LLAMA = {
    "model_type": "llama",
    "hidden_size": 16,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
    "rope_theta": 1e4,
}
UNICODE = "🧵 ٣ \u202e\n\t\udc80"
TEXTS = [
    "",
    " ",
    "-",
    "nope",
    UNICODE,
    "[bold]x[/bold]",
    "{x} %s $HOME",
    "a" * 5000,
    "[" * 5000,
    "NaN",
    "null",
    "[]",
    '{"a": 1}',
    "=",
    "a=",
    "=1",
    "a=b=c",
    "a.b=[",
    "../../etc/passwd",
    "--json",
]
INTEGERS = [
    "",
    "-1",
    "0",
    "1",
    "3",
    "nan",
    "1e3",
    "1.5",
    "9" * 30,
    str(2**62),
    str(2**63),
    "0x10",
    "x",
    UNICODE,
]
NUMBERS = ["", "-1", "0", "1", "nan", "inf", "-inf", "1e309", "1e308", "1,5", "x", UNICODE]
#: values of --set, beside every hostile text; the names are those of the command
SETTINGS = [
    "-1",
    "0",
    "nan",
    "1e400",
    '"x"',
    "[]",
    "{}",
    "true",
    "[1, [2]]",
    "1979-05-27",
    "99999999999999999999",
]
FILES = {
    "empty": b"",
    "binary": bytes(range(256)) * 8,
    "list.json": b"[1, 2]",
    "scalar.json": b"3",
    "deep.json": b"[" * 100_000,
    "wrong.json": json.dumps({**LLAMA, "rope_scaling": 3}).encode(),
    "typed.json": json.dumps({**LLAMA, "rope_theta": "x"}).encode(),
    "huge.json": json.dumps({**LLAMA, "max_position_embeddings": 10**39}).encode(),
    "text.json": b'{"text_config": []}',
    "truncated.json": b'{"model_type": "llama"',
    "values.toml": b"train = 3\n",
    "lists.toml": b"[[train]]\na = 1\n",
    "wrong.toml": b"[train]\nstages = 3\n",
    "deep.toml": b"a = " + b"[" * 5000,
    UNICODE.replace("\n", " "): b"{}",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """A folder with a config, a checkpoint, hostile files, and folders that hold such files as
    their config.json.
    """
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "config.json").write_text(json.dumps(LLAMA))
    (folder / "rope.py").write_text(
        "def inv_freq(config):\n"
        "    step = -2 / config['head_dim']\n"
        "    factor = config['rope_scaling']['factor']\n"
        "    return [config['rope_theta'] ** (i * step) / factor for i in range(32)]\n"
    )
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps(LLAMA))
    weights = {
        f"model.layers.0.self_attn.{name}_proj.weight": torch.randn(16, 16) for name in "qkv"
    }
    save_file(weights, folder / "model" / "model.safetensors")
    for name, data in FILES.items():
        (folder / name).write_bytes(data)
        if name.endswith(".json"):
            (folder / f"folder of {name}").mkdir()
            (folder / f"folder of {name}" / "config.json").write_bytes(data)
            (folder / f"folder of {name}" / "model.safetensors").write_bytes(data)
            (folder / f"folder of {name}" / "study.json").write_bytes(data)
    (folder / "no files").mkdir()
    (folder / "lab" / "decay").mkdir(parents=True)
    machine = {"device": "cpu", "python": "3", "torch": "2", "date": "today"}
    facts = {"study": "decay", "preset": "smoke", "seeds": 1, "settings": {}, "machine": machine}
    (folder / "lab" / "decay" / "study.json").write_text(json.dumps(facts))
    (folder / "lab" / "decay" / "rows.jsonl").write_text("")
    write_sample(folder / "sample", "cail", count=20, characters=8)
    vocabulary = folder / "sample" / "vocab.txt"
    size = len(vocabulary.read_text(encoding="utf-8").splitlines())
    shutil.copy(vocabulary, write_checkpoint(folder / "roformer", vocab_size=size))
    preset = finetuning_preset(
        folder / "roformer", Files(folder / "sample" / "train.json"), length=16, epochs=0.1
    )
    runs.run_preset(preset, folder / "tuned", Parallel(device=torch.device("cpu")), progress=False)
    return folder


def paths(files: Path) -> list[str]:
    found = [str(path) for path in sorted(files.iterdir())]
    return [
        "",
        "missing",
        str(files / "config.json" / "below a file"),
        "n" * 300,
        UNICODE,
        "/dev/null",
        "/dev/zero",
        *found,
    ]


@pytest.fixture
def valid(files) -> dict[str, list[str]]:
    """The arguments with which each command succeeds."""
    config = str(files / "config.json")
    return {
        "inspect": [config],
        "audit": [config],
        "doctor": [config],
        "conformance": ["--module", str(files / "rope.py"), "--group", "linear"],
        "engines": ["--match", "llama-3.1"],
        "figures": ["pictures"],
        "completion": ["bash"],
        "explore": ["--port", "8599", "--no-browser"],
        "convert": [str(files / "model"), "--from", "half", "--to", "interleaved", "--dry-run"],
        "fit": ["tiny", "--to", "80", "--windows", "2", "--passkeys", "0", "--method", "linear"],
        "lab fetch": ["moby-dick", "--dry-run"],
        "extend": [config, "yarn", "--factor", "2"],
        "demo": [],
        "bench": [],
        "info": [],
        "train": ["smoke"],
        "lab sample": ["new"],
        "lab evaluate": [str(files / "tuned"), str(files / "sample" / "test.json")],
        "lab finetune": [
            str(files / "roformer"),
            "--train",
            str(files / "sample" / "train.json"),
            "--length",
            "16",
        ],
        "lab train": ["smoke"],
        "lab list": [],
        "lab run": ["decay", "--preset", "smoke"],
        "lab report": [str(files / "lab")],
    }


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path, files):
    """Run every test in a new folder, and replace the work that takes long."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROPEWALK_CACHE", str(files / "cache"))
    row = {
        "shape": "s",
        "order": "bhsd",
        "dtype": "float32",
        "contender": "c",
        "pass": "forward",
        "us": 1.0,
        "rms_error": 0.0,
    }
    timed = {**row, "copy_us": 1.0, "times_copy": 1.0, "peak_bytes": 3}
    monkeypatch.setattr(
        cpu,
        "measure",
        lambda *_, **__: iter([timed, {**row, "skipped": "needs 'ropewalk[bench]'"}]),
    )
    monkeypatch.setattr(selfcheck, "steps", lambda *_: iter([]))
    monkeypatch.setattr(
        installed,
        "run",
        lambda name, rows: {
            "engine": name,
            "version": "1",
            "results": [{**row, "error": "not run"} for row in rows],
        },
    )
    opened, cpu_device = opening.open_model, torch.device("cpu")
    tiny = lambda path, *rest: (
        open_real("tiny", cpu_device) if Path(path).name == "tiny" else opened(path, *rest)
    )
    monkeypatch.setattr(opening, "open_model", tiny)
    monkeypatch.setattr("ropewalk_lab.fit_page.write_page", lambda *_: None)
    monkeypatch.setattr(demo, "_pictures", lambda out: ([], None))
    monkeypatch.setattr(demo, "_benchmark", lambda rounds: Table("t", ("a",), []))
    monkeypatch.setattr(demo, "_run_studies", lambda out, *_: ({}, out / "report.html"))
    monkeypatch.setattr("ropewalk_lab.plots.write_all", write_all)
    monkeypatch.setattr(server, "serve", lambda *_: None)
    outcome = Outcome(1, True, 1.0, 0.1)  # True: the run was stopped, so it is not evaluated
    monkeypatch.setattr(
        runs, "Trainer", lambda *_, **__: types.SimpleNamespace(run=lambda: outcome)
    )
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    empty = {"run": lambda runner: {}, "findings": lambda rows, facts: Findings()}
    for study in STUDIES.values():
        for name, function in empty.items():
            monkeypatch.setitem(vars(study), name, function)


def write_all(folder: Path, view, names, suffix) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "contact-sheet.png").write_bytes(b"")
    return [folder / f"{name}.{suffix}" for name in names] + [folder / "contact-sheet.png"]


COMMANDS = {words: parameters(function) for words, function in command_line.all_functions().items()}


def hostile(command: str, parameter: Parameter, files: Path) -> list[str]:
    """Hostile values for one option or argument, by its type."""
    simple = {int: INTEGERS, float: NUMBERS, Path: paths(files)}
    if parameter.kind is not str:
        return simple[parameter.kind]
    if parameter.shown != "--set":
        return [*TEXTS, *paths(files)] if parameter.is_argument else TEXTS
    tables = {"train": Settings, "data": runs.Data, "model": DecoderConfig}
    names = [f"{table}.{field.name}" for table, kind in tables.items() for field in fields(kind)]
    names = (
        names
        if "train" in command
        else [*STUDIES["decay"].presets["smoke"], "beta_fast", "truncate", "long_factor"]
    )
    return [*TEXTS, *(f"{name}={value}" for name in names for value in SETTINGS)]


def changed(arguments: list[str], parameter: Parameter, place: int, value: str | None) -> list[str]:
    """Return the arguments with `value` in place of the parameter's value; a flag (`value` None) is
    added. If the parameter is positional, `place` is its index among the positional ones.
    """
    option = parameter.names[-1] if parameter.names else parameter.shown
    if value is None:
        return [*arguments, option]
    if parameter.is_argument:
        return [*arguments[:place], value, *arguments[place + 1 :]]
    kept = [
        word
        for i, word in enumerate(arguments)
        if option not in (word, arguments[i - 1] if i else "")
    ]
    return [*kept, f"{option}={value}"]


def draws(command: str, arguments: list[str], files: Path) -> list[list[str]]:
    """Return the arguments of one run for each parameter and each hostile value of it."""
    found, place = [], 0
    for parameter in COMMANDS[command]:
        values = [None] if parameter.is_flag else hostile(command, parameter, files)
        found += [changed(arguments, parameter, place, value) for value in values]
        place += parameter.is_argument
    return found


def run(capsys, command: str, arguments: list[str]) -> int:
    with as_users_call():
        code, out, err = command_line.call(capsys, *command.split(), *arguments)
    said = f"{command} {arguments}: {code}\n{out[-300:]}\n{err[-1000:]}"
    if code == 130 and command in ("train", "lab train", "lab finetune"):
        code = 0  # the trainer of these tests says that its run was stopped
    if code in (3, 4) and command == "doctor":
        code = 0  # it answered, and found something
    if code == 1 and command == "conformance":
        code = 0
    assert code in (0, 1, 2), said
    assert "Traceback" not in out + err, said
    if code:
        assert re.fullmatch(r"ropewalk: \S.*\n", err), said
        # words of the command line, not of Python
        assert not re.search(r"\w=(True|False|None)\b|RopeError|Error\(", err.split("; got ")[0]), (
            said
        )
    else:
        assert out, said
    return code


def test_every_command_has_valid_words_to_spoil(valid):
    assert set(valid) == set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_hostile_value_is_answered(capsys, valid, files, full, command):
    if command == "explore":
        pytest.importorskip("starlette", reason="needs starlette: pip install 'ropewalk[explore]'")
    assert run(capsys, command, valid[command]) == 0
    found = draws(command, valid[command], files)
    drawn = found if full else random.Random(command).sample(found, min(len(found), 20))
    codes = [run(capsys, command, arguments) for arguments in drawn]
    assert len(found) < 4 or 2 in codes


@pytest.mark.parametrize("command", COMMANDS)
def test_several_hostile_values_at_once_are_answered(capsys, valid, files, full, command):
    drawn = random.Random(command)
    options = [each for each in COMMANDS[command] if not each.is_argument]
    if all(each.is_flag for each in options):
        return
    for _ in range(100 if full else 4):
        arguments = valid[command]
        for parameter in drawn.sample(options, min(len(options), 3)):
            value = None if parameter.is_flag else drawn.choice(hostile(command, parameter, files))
            arguments = changed(arguments, parameter, 0, value)
        run(capsys, command, arguments)
