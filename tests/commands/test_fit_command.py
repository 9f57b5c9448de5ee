"""`ropewalk fit` on a tiny saved Llama: the table, the recommendation, the config, the picture and
the page.
"""

import json

import matplotlib.image
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import ropewalk as rw
from gguf_samples import llama_weights, sizes, write
from ropewalk.cli import main
from ropewalk_lab.downloads import DOWNLOADS


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from tokenizers import Tokenizer, models, pre_tokenizers

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
        initializer_range=0.3,
    )
    path = tmp_path_factory.mktemp("model")
    LlamaForCausalLM(config).save_pretrained(path)
    letters = {
        letter: place for place, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))
    }
    made = Tokenizer(models.BPE(vocab=letters, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    PreTrainedTokenizerFast(tokenizer_object=made).save_pretrained(path)
    return path


def test_fit_writes_everything_and_resumes(folder, tmp_path, capsys):
    (tmp_path / "text.txt").write_text("It was a dark and stormy night. " * 90)
    options = [
        "fit",
        str(folder),
        "--to",
        "512",
        "--text",
        str(tmp_path / "text.txt"),
        "--windows",
        "4",
        "--passkeys",
        "2",
    ]
    options += [
        "--method",
        "yarn",
        "--method",
        "linear",
        "--out",
        str(tmp_path / "out"),
        "--device",
        "cpu",
    ]
    main(options)
    printed = capsys.readouterr()
    out, lines = " ".join(printed.out.split()), printed.err.splitlines()
    # a pipe gets a line for each step: the key tokens of four windows, then for each method the
    # four windows and the pass keys of each length
    assert lines[0] == f"fit: key tokens of window 1 (1 of {len(lines)})"
    assert [line.rpartition("(")[2] for line in lines] == [
        f"{number} of {len(lines)})" for number in range(1, len(lines) + 1)
    ]
    assert "Recommended for 512:" in out
    assert "text text.txt" in out
    assert "4 windows of 512 tokens" in out
    pixels = matplotlib.image.imread(tmp_path / "out" / "fit.png")
    assert min(pixels.shape[:2]) > 200
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Recommended for 512" in page
    assert "Pass keys by depth" in page
    assert " at 512 tokens</h1>" in page
    # how the recommended method is written in a config, and what engines make of it
    has_config = (tmp_path / "out" / "fit-config.json").exists()
    assert ("What engines compute from fit-config.json" in page) == has_config
    rows = (tmp_path / "out" / "rows.jsonl").read_text()
    main([*options, "--json"])
    printed = capsys.readouterr()
    assert printed.err == ""
    found = json.loads(printed.out)
    assert (tmp_path / "out" / "rows.jsonl").read_text() == rows
    assert [each["method"] for each in found["table"]] == ["none", "yarn", "linear"]
    if (tmp_path / "out" / "fit-config.json").exists():
        assert (
            rw.from_hf(tmp_path / "out" / "fit-config.json").scaling.name
            == found["in_config"]["method"]
        )


@pytest.mark.parametrize(
    "command",
    [
        ["fit", "smollm2", "--to", "32768"],
        ["inspect", "smollm2"],
        ["audit", "smollm2"],
        ["extend", "smollm2", "yarn", "--factor", "4"],
        ["figures", "pictures", "--only", "decay", "--config", "smollm2"],
        ["convert", "smollm2", "--which"],
    ],
    ids=lambda command: command[0],
)
def test_a_model_that_was_not_fetched_is_refused_by_every_command(
    command, capsys, monkeypatch, tmp_path
):
    monkeypatch.setenv("ROPEWALK_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        main(command)
    assert stopped.value.code == 2
    assert "ropewalk lab fetch smollm2" in capsys.readouterr().err


def test_a_fetched_model_is_inspected_by_its_name(folder, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("ROPEWALK_CACHE", str(tmp_path))
    fetched = tmp_path / "fetched" / DOWNLOADS["smollm2"].file
    fetched.parent.mkdir()
    write(fetched, sizes(), llama_weights(vocab=64))
    main(["inspect", str(fetched), "--json"])
    by_path = capsys.readouterr().out
    main(["inspect", "smollm2", "--json"])
    assert capsys.readouterr().out == by_path
    # what is in the current folder comes first
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smollm2").symlink_to(folder)
    main(["inspect", "smollm2", "--json"])
    assert capsys.readouterr().out != by_path
