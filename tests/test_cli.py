"""The command line: every command runs, output is plain when piped, and every error is one line
with exit code 2.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

import ropewalk
import ropewalk_cli
from command_line import all_functions, call, run_without
from ropewalk import cli
from ropewalk.caches import cache_infos
from ropewalk.kernels import BACKENDS, Backend, available
from ropewalk.kernels.rotation import eager
from ropewalk_cli.commands import device_of, info
from ropewalk_cli.declare import parameters
from ropewalk_lab import selfcheck


def one_line(text):
    assert text.endswith("\n")
    assert text.count("\n") == 1
    return text


@pytest.fixture
def quick(monkeypatch):
    """The demo with its timings cut to one round."""
    real = selfcheck.clock
    monkeypatch.setattr(
        selfcheck, "clock", lambda run, device="cpu", seconds=0.0: real(run, device, 0.0)
    )


def test_version_is_the_package_version(capsys):
    assert call(capsys, "--version") == (0, f"ropewalk {ropewalk.__version__}\n", "")


def entry(name) -> cli.Command:
    found = cli.COMMANDS[name]
    assert isinstance(found, cli.Command)
    return found


def test_help_lists_every_command_under_its_task_with_an_example(capsys):
    code, out, _ = call(capsys, "--help")
    assert code == 0
    groups = {part.splitlines()[0]: part for part in out.split("\n\n")}
    for name in cli.COMMANDS:
        lines = groups[entry(name).group].splitlines()
        place = next(i for i, line in enumerate(lines) if line.split()[0] == name)
        assert lines[place].split(maxsplit=1)[1] == entry(name).help
        assert lines[place + 1].strip() == entry(name).example


ASKED = """
import sys, ropewalk_cli

def ask(*words):
    try:
        ropewalk_cli.main(words)
    except SystemExit as stop:
        assert not stop.code, (words, stop.code)

ask("--version")
ask("--help")
for name in ropewalk_cli.COMMANDS:
    ask(name, "--help")
ask("lab", "run", "--help")
ask("--complete", "bash", "inspect", "--se")
slow = {"torch", "numpy", "jaxtyping", "transformers", "matplotlib", "typer", "rich"}
print("imported", *sorted({name.split(".")[0] for name in sys.modules} & slow))
"""


def test_help_version_and_completion_import_no_slow_library():
    done = subprocess.run([sys.executable, "-c", ASKED], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-2:] == ["--served", "imported"]


def test_every_option_of_every_command_is_explained():
    for words, function in all_functions().items():
        assert (function.__doc__ or "").strip(), words
        assert [each.shown for each in parameters(function) if not each.help] == [], words


def test_the_console_script_and_python_m_are_the_same_command_line():
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    assert tomllib.loads(text)["project"]["scripts"] == {"ropewalk": "ropewalk_cli:main"}
    assert (cli.main, cli.COMMANDS) == (ropewalk_cli.main, ropewalk_cli.COMMANDS)
    for module in ("ropewalk", "ropewalk.cli", "ropewalk_cli"):
        done = subprocess.run(
            [sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=True
        )
        assert done.stdout == f"ropewalk {ropewalk.__version__}\n"


def test_without_a_command_the_help_is_shown(capsys):
    code, out, err = call(capsys)
    assert code == 2
    assert "Usage" in out + err


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_the_help_of_every_command_has_an_example_whose_options_exist(capsys, name):
    code, out, _ = call(capsys, name, "--help")
    assert code == 0
    assert "Usage" in out
    assert f"Example: {entry(name).example}" in out
    words = shlex.split(entry(name).example)
    assert words[:2] == ["ropewalk", name]
    if words[2] in ("run",):
        out = call(capsys, name, words[2], "--help")[1]
    assert [
        word for word in words if word.startswith("--") and not re.search(rf"{word}\b", out)
    ] == []


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_refuses_an_option_it_does_not_have(capsys, name):
    code, out, err = call(capsys, name, "--bad")
    assert (code, out) == (2, "")
    assert re.match(rf"ropewalk: .*--bad.*; see: ropewalk {name} --help", one_line(err))


def test_every_command_but_explore_and_completion_has_json():
    without = [
        words
        for words, function in all_functions().items()
        if "--json" not in [each.shown for each in parameters(function)]
    ]
    assert without == ["explore", "completion"]


def test_unknown_command_is_refused_with_the_nearest_known(capsys):
    code, _, err = call(capsys, "inspct")
    assert code == 2
    assert "'inspct'" in one_line(err)
    assert "inspect" in err.replace("inspct", "")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["train", "tiny", "--folder", ""], "--folder"),
        (["demo", "--out="], "--out"),
        (["inspect", ""], "the argument after 'inspect'"),
    ],
)
def test_an_empty_argument_is_refused(words, named, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = call(capsys, *words)
    assert (code, out) == (2, "")
    assert err == f"ropewalk: {named} must not be empty; check the shell variable it comes from\n"
    assert not list(tmp_path.iterdir())


def test_a_missing_argument_is_refused_in_one_line(capsys):
    code, _, err = call(capsys, "convert")
    assert code == 2
    assert "see: ropewalk convert --help" in one_line(err)


def test_a_group_without_a_subcommand_shows_its_help(capsys):
    code, out, _ = call(capsys, "lab")
    assert code == 2
    assert "Usage" in out


def test_an_interrupt_ends_with_exit_code_130(capsys, monkeypatch):
    monkeypatch.setitem(cli.COMMANDS, "wait", f"{__name__}:wait")
    assert call(capsys, "wait")[0] == 130


def wait() -> None:
    """Raise the error of Ctrl-C."""
    raise KeyboardInterrupt


def test_info_json_names_every_backend_with_its_reason(capsys):
    code, out, err = call(capsys, "info", "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert found["backends"]["cpu"] == available("cpu")
    assert found["versions"]["ropewalk"] == ropewalk.__version__
    assert found["machine"]["threads"] >= 1
    # 131,072 positions x 64 pairs x (cos, sin) x 4 bytes, and 64 phase steps of 8 bytes
    assert found["table_bytes"]["full"] == 131_072 * 64 * 2 * 4 + 64 * 8


def test_info_tells_whether_a_plugin_is_installed_and_on(monkeypatch):
    from importlib import metadata

    from ropewalk_cli.commands import info

    assert info.plugins() == dict.fromkeys(("vLLM", "SGLang", "transformers"), "not installed")
    point = metadata.EntryPoint("ropewalk", "ropewalk_vllm:register", "vllm.general_plugins")
    monkeypatch.setattr(
        info.metadata, "entry_points", lambda group: [point] if group == point.group else []
    )
    assert info.plugins()["vLLM"].startswith("installed, off; set ROPEWALK_VLLM=1")
    monkeypatch.setenv("ROPEWALK_VLLM", "1")
    assert info.plugins()["vLLM"] == "installed, on"
    assert info.plugins()["SGLang"] == "not installed"
    monkeypatch.setattr(
        info, "version", lambda name: "0.1.0" if name == "ropewalk-transformers" else None
    )
    assert info.plugins()["transformers"].startswith(
        "installed; on for models loaded with kernel_config="
    )


def test_info_shows_every_cache_with_its_bounds(capsys):
    ropewalk.Rope(ropewalk.RopeSpec(24)).cos_sin(torch.arange(7))
    caches = {
        cache["name"]: cache for cache in json.loads(call(capsys, "info", "--json")[1])["caches"]
    }
    assert set(caches) == {cache.name for cache in cache_infos()}
    assert 0 < caches["tables"]["entries"] <= caches["tables"]["most_entries"]
    assert 0 < caches["tables"]["bytes"] <= caches["tables"]["most_bytes"]
    assert re.search(r"tables.* of 4,096 entries, .* of 268,435,456 bytes", call(capsys, "info")[1])


def test_info_names_the_missing_packages_of_each_extra(capsys, monkeypatch):
    monkeypatch.setattr(info.metadata, "requires", lambda name: WANTED)
    found = json.loads(call(capsys, "info", "--json")[1])["extras"]
    assert found == {
        "small": [],
        "lab": ["no-such-package"],
        "explorer": ["another-one", "no-such-package"],
    } | {"plain": []}
    out = call(capsys, "info")[1]
    assert re.search(r"lab.*needs no-such-package; pip install 'ropewalk\[lab\]'", out)
    assert re.search(r"small +installed", out)


WANTED = [
    "torch>=2",
    'pytest>=8; extra == "small"',
    'ropewalk[small]; extra == "lab"',
    ('no-such-package>=3; extra == "lab"'),
    'ropewalk[lab,small]; extra == "explorer"',
    ("another-one; platform_system == 'Linux' and extra == 'explorer'"),
    'numpy; extra == "plain"',
    'not-for-users; extra == "dev"',
]


def test_the_extras_are_those_of_the_project():
    text = (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    declared = tomllib.loads(text)["project"]["optional-dependencies"]
    # an installation made before an extra was declared does not know it yet
    assert set(info.extras()) <= set(declared)


def test_info_shows_why_a_backend_cannot_run(capsys, monkeypatch):
    monkeypatch.setitem(
        BACKENDS, "quantum", Backend(lambda x, request: "no qubits here", eager.run)
    )
    code, out, _ = call(capsys, "info")
    assert code == 0
    assert "quantum" in out
    assert "no qubits here" in out


def test_demo_writes_a_report_and_pictures(capsys, tmp_path, quick):
    code, out, _ = call(
        capsys,
        "demo",
        "--check-only",
        "--tokens",
        "5",
        "--device",
        "cpu",
        "--out",
        str(tmp_path / "demo"),
    )
    assert code == 0, out
    report = (tmp_path / "demo" / "report.md").read_text(encoding="utf-8")
    for word in (
        *BACKENDS,
        "hf_frequencies",
        "1,099,511,627,776",
        "keeps the norm",
        "Every error is within its bound.",
    ):
        assert word in out
        assert word in report
    assert '"mouse chases cat" is "cat chases mouse" reordered' in report
    assert re.search(r"put in the same order, differ by up to \d\.\de-0[1-4]", report)
    for picture in re.findall(r"!\[\w+\]\((.+?)\)", report):
        assert (tmp_path / "demo" / picture).stat().st_size > 1000
    assert "report.md" in out


def test_demo_json_is_one_object(capsys, tmp_path, quick):
    code, out, _ = call(
        capsys, "demo", "--check-only", "--tokens", "3", "--json", "--out", str(tmp_path)
    )
    found = json.loads(out)
    assert code == 0
    assert found["ok"] is True
    assert {row["name"] for row in found["speed"]} >= set(BACKENDS)


def test_demo_exits_with_1_if_a_backend_rotates_wrongly(capsys, tmp_path, monkeypatch, quick):
    def run(xs, outs, request):
        for x, out in zip(xs, outs, strict=True):
            out.copy_(x)

    monkeypatch.setitem(BACKENDS, "lazy", Backend(eager.why_not, run))
    code, out, _ = call(
        capsys, "demo", "--check-only", "--tokens", "3", "--device", "cpu", "--out", str(tmp_path)
    )
    assert code == 1
    assert "BEYOND ITS BOUND" in (tmp_path / "report.md").read_text(encoding="utf-8")
    assert "Some errors are beyond their bound." in out


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("demo", "--tokens", "0"), r"--tokens: must be an integer from 1 .* got 0"),
        (("demo", "--device", "tpu"), r"--device: must be one of auto, cpu, cuda; got 'tpu'"),
        (("bench", "--shape", "nope"), r"--shape: must be one of 'A', .*'doc shapes'; got 'nope'"),
        (
            ("bench", "--contender", "nope"),
            r"--contender: must be one of 'ropewalk', .*'liger-kernel'; got 'nope'",
        ),
        (("lab", "run", "decay", "--seeds", "0"), r"--seeds: must be an integer from 1 .* got 0"),
        (
            ("lab", "run", "decay", "--set", "nope=1"),
            r"--set: must read \"name=value\" .* got 'nope=1'",
        ),
        (
            ("train", "smoke", "--set", "nope"),
            r"--set: must read \"table.name=value\", .* got 'nope'",
        ),
        (("train", "smoke", "--threads", "0"), r"--threads: must be an integer from 1 .* got 0"),
        (
            ("train", "smoke", "--device", "tpu"),
            r"--device: must be cpu, cuda or cuda:N; got 'tpu'",
        ),
    ],
)
def test_a_bad_value_is_refused_in_one_line_with_the_rule(
    capsys, tmp_path, monkeypatch, args, says
):
    monkeypatch.chdir(tmp_path)
    code, out, err = call(capsys, *args)
    assert (code, out) == (2, "")
    assert re.match("ropewalk: " + says, one_line(err))


def test_a_folder_that_cannot_be_written_is_refused_in_one_line(capsys, tmp_path, quick):
    (tmp_path / "taken").write_text("a file, not a folder")
    code, _, err = call(
        capsys, "demo", "--check-only", "--tokens", "2", "--out", str(tmp_path / "taken")
    )
    assert code == 2
    assert "taken" in one_line(err)


@pytest.mark.parametrize("words", [["demo"], ["bench"], ["train", "smoke"]], ids=" ".join)
def test_a_command_that_needs_torch_says_how_to_install_it(words):
    done = run_without(["torch", "numpy", "jaxtyping"], *words)
    assert (done.returncode, done.stdout) == (2, "")
    needs = rf"ropewalk: {words[0]}: needs (torch|numpy); run: pip install 'ropewalk\[torch\]'\n"
    assert re.fullmatch(needs, done.stderr)


def test_a_page_without_its_server_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "starlette", None)
    code, _, err = call(capsys, "explore")
    assert code == 2
    assert err == "ropewalk: explore: needs starlette; run: pip install 'ropewalk[explore]'\n"


def test_demo_without_matplotlib_says_what_to_install(capsys, tmp_path, monkeypatch, quick):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, out, _ = call(capsys, "demo", "--check-only", "--tokens", "2", "--out", str(tmp_path))
    assert code == 0
    assert "ropewalk[lab]" in out
    assert [path.name for path in tmp_path.iterdir()] == ["report.md"]


def test_an_entry_added_to_the_dict_of_commands_can_be_called(capsys, monkeypatch):
    monkeypatch.setitem(cli.COMMANDS, "hello", f"{__name__}:hello")
    assert call(capsys, "hello", "--name", "rope")[:2] == (0, "hello rope\n")


def test_an_entry_of_the_dict_may_be_a_dict_of_commands(capsys, monkeypatch):
    monkeypatch.setitem(cli.COMMANDS, "group", f"{__name__}:GROUP")
    assert call(capsys, "group", "twice", "3")[:2] == (0, "6\n")
    code, out, err = call(capsys, "group", "thrice", "3")
    assert (code, out) == (2, "")
    assert err == (
        "ropewalk: no such command: 'thrice' (did you mean twice?); see: ropewalk group --help\n"
    )


def hello(name: str = "you") -> None:
    """Say hello."""
    print(f"hello {name}")


def twice(number: int) -> None:
    """Print twice the number."""
    print(2 * number)


GROUP = {"twice": f"{__name__}:twice"}


def test_piped_output_has_no_colour_and_the_check_for_it_imports_nothing_heavy():
    environment = os.environ | {"TERM": "xterm-256color", "PYTHONPATH": os.pathsep.join(sys.path)}
    script = (
        "import sys, ropewalk.cli as c; print({'torch', 'numpy'} & set(sys.modules)); "
        "c.main(['info']); c.main(['--help'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert done.stdout.splitlines()[0] == "set()"


BARE = {"model_type": "llama", "head_dim": 12, "rope_theta": 1e4}


@pytest.mark.parametrize(
    ("config", "args", "says"),
    [
        # the wrong factor is the config's, not the one of --factor
        (
            {"max_position_embeddings": 64, "rope_scaling": {"rope_type": "linear", "factor": 0.5}},
            ("extend", "{config}", "yarn", "--factor", "4", "--overwrite"),
            r"(?!--)\S*factor: must .* got 0.5",
        ),
        (
            {"max_position_embeddings": 64, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
            ("extend", "{config}", "yarn", "--factor", "4"),
            r"rope: .*; pass --overwrite to replace it; got",
        ),
        (
            {},
            ("audit", "{config}"),
            r"--max-model-len: must be given, .* \(--max-model-len\); got nothing",
        ),
        (
            {},
            ("inspect", "{config}"),
            r"max_position_embeddings: must be in the config; or give .* \(--trained\); got nothing",
        ),
        (
            {},
            ("extend", "{config}", "yarn", "--factor", "4"),
            r"--original-length: must be given: .*; got nothing",
        ),
    ],
)
def test_errors_name_an_option_only_if_its_value_is_wrong(capsys, tmp_path, config, args, says):
    (tmp_path / "config.json").write_text(json.dumps(BARE | config))
    code, out, err = call(capsys, *(each.format(config=tmp_path) for each in args))
    assert (code, out) == (2, "")
    assert re.match(f"ropewalk: {says}", one_line(err)), err


def test_a_gpu_that_is_not_there_is_refused_by_its_reason(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    code, _, err = call(capsys, "demo", "--device", "cuda", "--out", str(tmp_path))
    assert (code, err) == (
        2,
        "ropewalk: --device: must be auto or cpu: CUDA is not available here; got 'cuda'\n",
    )


@pytest.mark.parametrize(
    ("gpu", "devices"), [(True, ["cuda", "cpu", "cuda"]), (False, ["cpu", "cpu"])]
)
def test_auto_is_the_gpu_if_there_is_one(monkeypatch, gpu, devices):
    monkeypatch.setattr("torch.cuda.is_available", lambda: gpu)
    assert [device_of(name) for name in ("auto", "cpu", "cuda")[: len(devices)]] == devices


def test_two_dashes_before_a_command_change_nothing(capsys):
    code, out, err = call(capsys, "--", "info", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out).keys() == json.loads(call(capsys, "info", "--json")[1]).keys()
