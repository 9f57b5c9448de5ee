"""Presets and flags: every preset makes a run, every wrong key is named, and the command trains."""

import json
from dataclasses import replace

import pytest
import torch
from lab_tiny import tiny_settings, write_text

from ropewalk import cli
from ropewalk.errors import RopeError
from ropewalk.models import Decoder
from ropewalk_lab.data import Data, make_data
from ropewalk_lab.objectives import OBJECTIVES
from ropewalk_lab.runs import make_model, make_trainer
from ropewalk_lab.schedule import Stage, roformer_stages
from ropewalk_lab.settings import PRECISIONS, Preset, make_settings, preset_names, read_preset
from ropewalk_lab.studies import STUDIES

#: millions of parameters, as the presets say of themselves
SIZES = {
    "cluster": 105,
    "cpu": 1.09,
    "gpu": 10.7,
    "mlm": 0.45,
    "passkey": 10.7,
    "roformer-paper": 86,
    "smoke": 0.03,
}


@pytest.mark.parametrize("name", SIZES)
def test_every_preset_is_read_and_its_model_has_the_stated_size(name):
    assert preset_names() == sorted(SIZES)
    preset = read_preset(name)
    assert make_data(preset.data).objective in OBJECTIVES
    if name != "cluster":
        with torch.device("meta"):
            model = make_model(dict(preset.model), make_data(preset.data), preset.train, 264)
        assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(
            SIZES[name], rel=0.1
        )


def test_presets_of_roformer_have_the_published_stages_or_those_made_smaller():
    paper, small = read_preset("roformer-paper"), read_preset("mlm")
    lengths, batches = (512, 1536, 256, 128, 1536, 512), (256, 256, 256, 512, 256, 512)
    steps = (200_000, 12_500, 120_000, 80_000, 10_000, 30_000)
    assert paper.train.stages == tuple(map(Stage, lengths, batches, steps))
    assert small.train.stages == roformer_stages(4)
    assert paper.train.schedule == small.train.schedule == "constant"
    assert (paper.train.learning_rate, paper.train.warmup, paper.train.weight_decay) == (
        1e-5,
        20_000,
        0.01,
    )
    assert [
        paper.model[name]
        for name in ("num_layers", "hidden_size", "num_heads", "intermediate_size")
    ] == [12, 768, 12, 3072]
    assert paper.data["objective"] == "masked"
    for name, factor in (("smoke", 8), ("cpu", 4), ("gpu", 2), ("cluster", 1)):
        stages = STUDIES["mlm_lengths"].presets[name]["stages"]
        assert [tuple(stage) for stage in stages] == [
            (s.length, s.batch, s.steps) for s in roformer_stages(factor)
        ]
    assert STUDIES["mlm_lengths"].presets["cluster"]["preset"] == "roformer-paper"


def test_each_change_of_a_preset_sets_one_value():
    changes = [
        "train.learning_rate=1e-4",
        "model.encoding=alibi",
        "train.stages=[{length=9,batch=2,steps=1}]",
    ]
    preset = read_preset("smoke", changes)
    assert preset.train.learning_rate == 1e-4
    assert preset.model["encoding"] == "alibi"
    assert preset.train.stages == (Stage(9, 2, 1),)
    assert (
        replace(preset.train, learning_rate=3e-3, stages=read_preset("smoke").train.stages)
        == read_preset("smoke").train
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("train.speed=1", "has no setting speed"),
        ("model.size=1", "has no setting size"),
        ("data.sauce=1", "has no setting sauce"),
        ("other.x=1", "no tables but model, data and train"),
        ("learning_rate", "table.name=value"),
        ("train.stages=7", "list of tables"),
        ("train.schedule=steep", "constant, linear, cosine"),
        ("train.precision=float8", "float32, bfloat16"),
        ("train.accumulation=3", "must divide the batch"),
        ("train.betas=[0.9]", "betas: must be two numbers >= 0 and < 1"),
        ("train.betas=[0.9, 1.0]", "betas: must be two numbers >= 0 and < 1"),
        ("train.betas=[-0.1, 0.9]", "betas: must be two numbers >= 0 and < 1"),
        ("model.kind=oracle", "decoder, roformer"),
        ("data.objective=masked", "must be roformer"),
        ("data.task=nap", "copy, reverse"),
        ("data.share=0.5", "set data.task"),
    ],
)
def test_wrong_changes_of_a_preset_are_refused_with_the_rule(change, said):
    with pytest.raises(RopeError, match=said):
        make_trainer(read_preset("smoke", [change]))


@pytest.mark.parametrize("share", [[], ["data.share=0.5"]])
def test_attention_within_documents_is_for_text_without_a_task(share):
    with pytest.raises(RopeError, match=r"leave data\.task or data\.documents out"):
        make_trainer(read_preset("smoke", ["data.task=copy", "data.documents=true", *share]))


@pytest.mark.parametrize("objective", [name for name in OBJECTIVES if name != "causal"])
@pytest.mark.parametrize("share", [None, 0.5])
def test_a_task_is_for_the_causal_objective_only(objective, share):
    with pytest.raises(RopeError, match=f"data.task: needs the objective causal, not {objective}"):
        Data(objective=objective, task="copy", share=share)


def test_an_unknown_preset_lists_the_known(tmp_path):
    with pytest.raises(RopeError, match="cluster, cpu, gpu"):
        read_preset("huge")
    (tmp_path / "bad.toml").write_text("= 3")
    with pytest.raises(RopeError, match="must be TOML"):
        read_preset(tmp_path / "bad.toml")


def test_a_seed_determines_a_new_model_and_torchs_generator_stays():
    before = torch.get_rng_state()
    table = {"hidden_size": 8, "intermediate_size": 8, "num_layers": 1, "num_heads": 2}
    first, again, other = (
        make_model(dict(table), make_data({}), tiny_settings(seed=s), 264) for s in (0, 0, 1)
    )
    assert isinstance(first, Decoder)
    assert torch.equal(first.embed_tokens.weight, again.embed_tokens.weight)
    assert not torch.equal(first.embed_tokens.weight, other.embed_tokens.weight)
    assert torch.equal(before, torch.get_rng_state())


def tables(tmp_path, objective, **data):
    train = {"stages": [{"length": 12, "batch": 4, "steps": 3}], "warmup": 1}
    model = {"hidden_size": 8, "intermediate_size": 8, "num_layers": 1, "num_heads": 2}
    model |= {"kind": "roformer"} if objective != "causal" else {}
    return Preset(
        make_settings(train),
        model,
        {"objective": objective, "cache": str(tmp_path / "cache")} | data,
    )


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_trains(tmp_path, objective):
    source = write_text(tmp_path / "text")
    if objective == "classes":
        source = tmp_path / "classes.tsv"
        source.write_text("sentence\tlabel\n" + "".join(f"text {i}\t{i % 3}\n" for i in range(30)))
    if objective in ("pairs", "triplets"):
        source = tmp_path / "triplets.jsonl"
        rows = ({"A": f"a {i}", "B": f"near {i}", "C": f"far {i}"} for i in range(30))
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    trainer = make_trainer(tables(tmp_path, objective, source=str(source)), progress=False)
    before = [p.clone() for p in trainer.model.parameters()]
    assert trainer.run().step == 3
    assert any((a != b).any() for a, b in zip(before, trainer.model.parameters(), strict=True))


def test_a_task_is_mixed_into_text(tmp_path):
    preset = tables(
        tmp_path, "causal", source=str(write_text(tmp_path / "text")), task="copy", share=0.5
    )
    trainer = make_trainer(preset, progress=False)
    assert "task copy" in trainer.batches.fingerprint
    assert trainer.run().step == 3


@pytest.mark.parametrize(("objective", "least"), [("causal", 256), ("masked", 257)])
def test_a_vocab_size_below_the_tokens_of_the_tokenizer_is_refused(tmp_path, objective, least):
    preset = tables(tmp_path, objective, source=str(write_text(tmp_path / "text")))
    preset.model["vocab_size"] = least
    assert make_trainer(preset, progress=False).run().step == 3
    for small in (40, least - 1):
        preset.model["vocab_size"] = small
        with pytest.raises(
            RopeError,
            match=f"model.vocab_size: must be at least {least}, the tokens of bytes.*got {small}",
        ):
            make_trainer(preset, progress=False)


@pytest.mark.parametrize("documents", [False, True])
def test_a_run_is_not_continued_with_another_setting_of_documents(tmp_path, documents):
    source = str(write_text(tmp_path / "text"))
    run = tmp_path / "run"
    make_trainer(
        tables(tmp_path, "causal", source=source, documents=documents), run, progress=False
    ).run(stop=2)
    with pytest.raises(RopeError, match="data: must be those of the run in"):
        make_trainer(
            tables(tmp_path, "causal", source=source, documents=not documents), run, progress=False
        ).run()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_command_trains_and_continues_only_with_the_same_settings(
    tmp_path, capsys, monkeypatch, precision
):
    monkeypatch.delenv("RANK", raising=False)
    source, folder = write_text(tmp_path / "text"), tmp_path / "run"
    given = [
        "train",
        "smoke",
        "--folder",
        str(folder),
        "--device",
        "cpu",
        "--json",
        "--threads",
        "1",
    ]
    for change in (
        f"data.source={source}",
        f"data.cache={tmp_path / 'cache'}",
        f"train.precision={precision}",
    ):
        given += ["--set", change]
    for _ in range(2):
        cli.main(given)
        found = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert (found["step"], found["stopped"]) == (20, False)
    assert len((folder / "log.jsonl").read_text().splitlines()) == 20
    with pytest.raises(SystemExit) as ended:
        cli.main([*given, "--set", "train.seed=3"])
    assert ended.value.code == 2
    assert "settings" in capsys.readouterr().err
