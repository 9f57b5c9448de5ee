"""Fine-tuning from a checkpoint to an accuracy: against transformers and loops by hand, stopped and
continued, and refused.
"""

import hashlib
import json
import re
import shutil

import numpy as np
import pytest
import torch
import transformers
from lab_tiny import write_text
from torch.nn import functional as F

import ropewalk as rw
from command_line import call
from finetune_tiny import TOKENS, triplet_lines, write_checkpoint, write_classes, write_triplets
from ropewalk.errors import RopeError
from ropewalk.models import Decoder, DecoderConfig
from ropewalk_lab import finetuning
from ropewalk_lab.data import make_data, open_data
from ropewalk_lab.distributed import Parallel
from ropewalk_lab.finetuning import Files, finetuning_preset
from ropewalk_lab.held_out import Measured, measure
from ropewalk_lab.model_folders import find_model, load_start
from ropewalk_lab.published import PUBLISHED
from ropewalk_lab.runs import make_trainer, run_preset
from ropewalk_lab.settings import make_preset, read_preset


@pytest.fixture
def cail(tmp_path):
    write_checkpoint(tmp_path / "start")
    files = {
        name: write_triplets(tmp_path / f"{name}.json", count, seed)
        for seed, (name, count) in enumerate(COUNTS.items())
    }
    return tmp_path, Files(files["train"], files["valid"], files["test"])


COUNTS = {"train": 64, "valid": 20, "test": 24}
QUICK = {"length": 16, "batch": 16, "learning_rate": 1e-2}


def finetune(capsys, folder, *more):
    options = [f"--{name}={folder / name}.json" for name in COUNTS]
    given = [
        "lab",
        "finetune",
        folder / "start",
        *options,
        "--folder",
        folder / "run",
        "--length",
        16,
        "--device",
        "cpu",
    ]
    return call(capsys, *given, "--learning-rate", "1e-2", *more)


def test_the_command_learns_and_shows_the_published_columns(cail, capsys):
    folder, _ = cail
    code, out, err = finetune(capsys, folder, "--epochs", 8)
    assert (code, err) == (0, "")
    rows = {row[0]: row[1:] for line in out.splitlines() for row in [re.split(" {2,}", line)]}
    assert rows["RoFormer-1024 (published)"] == ["66.07 %", "69.79 %"]
    (own,) = (cells for name, cells in rows.items() if "this run, 16 tokens" in name)
    assert own == ["100.00 % ± 0.00 % of 20", "100.00 % ± 0.00 % of 24"]
    log = [json.loads(line) for line in (folder / "run" / "log.jsonl").read_text().splitlines()]
    # once a pass over 64 triplets in 16s
    assert [row["step"] for row in log if "evaluation" in row] == list(range(4, 33, 4))
    assert "model: " in out


def test_classes_are_learnt_from_the_bytes_too(tmp_path, capsys):
    """From nothing but bytes: a masked language model is trained, then tuned; each command finds
    the other's folder.
    """
    for seed, name in enumerate(("train", "valid", "test")):
        write_classes(tmp_path / f"{name}.tsv", 48, seed)
    base = ["train", "mlm", "--folder", tmp_path / "base", "--device", "cpu", "--json"]
    changes = [f"data.source={write_text(tmp_path / 'text')}", f"data.cache={tmp_path / 'cache'}"]
    changes += [
        "train.stages=[{length=16,batch=4,steps=3}]",
        "model.hidden_size=24",
        "model.intermediate_size=32",
    ]
    code, out, _ = call(capsys, *base, *(word for change in changes for word in ("--set", change)))
    assert code == 0
    assert json.loads(out)["held_out"]["valid"]["count"] > 0
    tuned = [
        "lab",
        "finetune",
        tmp_path / "base",
        "--folder",
        tmp_path / "run",
        "--device",
        "cpu",
        "--json",
        "--length",
        16,
    ]
    tuned += [f"--{name}={tmp_path / name}.tsv" for name in ("train", "valid", "test")]
    code, out, err = call(capsys, *tuned, "--epochs", 16, "--learning-rate", "1e-2", "--batch", 8)
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["published"] is None
    # three classes
    assert min(found["held_out"][name]["accuracy"] for name in ("valid", "test")) > 0.8
    assert found["held_out"]["test"]["count"] == 48


def test_predictions_are_in_the_order_of_the_file_and_need_no_label(cail, capsys):
    folder, files = cail
    run_preset(
        finetuning_preset(folder / "start", files, epochs=8, **QUICK),
        folder / "run",
        Parallel(),
        progress=False,
    )
    lines = triplet_lines(37, seed=9)
    for name, fields in (("labelled", "ABC label"), ("bare", "ABC")):
        chosen = ({k: v for k, v in line.items() if k in fields} for line in lines)
        (folder / f"{name}.json").write_text("\n".join(json.dumps(line) for line in chosen))
    given = [
        "lab",
        "evaluate",
        folder / "run",
        folder / "bare.json",
        "--device",
        "cpu",
        "--predictions",
        folder / "out.txt",
    ]
    code, out, err = call(capsys, *given)
    assert (code, err) == (0, "")
    assert "accuracy -; 37 of 37 lines have no label" in out
    assert (folder / "out.txt").read_text().split() == [line["label"] for line in lines]
    code, out, _ = call(
        capsys, "lab", "evaluate", folder / "run" / "model", folder / "labelled.json", "--json"
    )
    assert (code, json.loads(out)["accuracy"], json.loads(out)["count"]) == (0, 1.0, 37)


def test_a_tuned_model_chooses_as_transformers_does(cail):
    """The head, the frame and the types are those that transformers gives the same two texts."""
    folder, files = cail
    run_preset(
        finetuning_preset(folder / "start", files, epochs=1, **QUICK),
        folder / "run",
        Parallel(),
        progress=False,
    )
    model = transformers.RoFormerForSequenceClassification.from_pretrained(
        folder / "run" / "model"
    ).eval()
    tokenizer = transformers.BertTokenizer({token: number for number, token in enumerate(TOKENS)})
    opened = open_data(make_data(finetuning_preset(folder / "start", files, **QUICK).data), 0, 16)
    result = measure(rw.load(folder / "run" / "model"), opened.parts["test"], "pairs", 16)
    lines = [json.loads(line) for line in files.test.read_text().splitlines()]
    near = [
        int(
            torch.stack(
                [
                    model(**tokenizer(line["A"], line[other], return_tensors="pt")).logits[0, 0]
                    for other in "BC"
                ]
            ).argmax()
        )
        for line in lines
    ]
    assert list(result.choices) == near
    assert result.accuracy == pytest.approx(
        sum("BC"[n] == line["label"] for n, line in zip(near, lines, strict=True)) / 24
    )


@pytest.mark.parametrize(
    ("family", "name"),
    [("RoFormer", "ForMaskedLM"), ("Bert", "ForSequenceClassification"), ("Bert", "Model")],
)
def test_a_start_keeps_every_weight_that_its_new_head_shares(tmp_path, family, name):
    sizes = {
        "vocab_size": 30,
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 20,
    }
    config = getattr(transformers, f"{family}Config")(
        **sizes, max_position_embeddings=16, num_labels=3
    )
    theirs = getattr(transformers, family + name)(config).eval()
    for parameter in theirs.parameters():
        if parameter.requires_grad:  # RoFormer's table of positions is a constant
            torch.nn.init.normal_(parameter, std=0.3)
    theirs.save_pretrained(tmp_path / "start")
    ours = load_start(tmp_path / "start", "classification", num_labels=3).eval()
    tokens, types = torch.randint(1, 30, (2, 9)), torch.randint(0, 2, (2, 9))
    with torch.no_grad():
        said = theirs(tokens, token_type_ids=types, output_hidden_states=True)
        torch.testing.assert_close(
            ours.hidden(tokens, types=types), said.hidden_states[-1], atol=1e-4, rtol=1e-4
        )
        assert ours(tokens, types=types).shape == (2, 3)
        if name == "ForSequenceClassification":  # the same head keeps its weights
            torch.testing.assert_close(ours(tokens, types=types), said.logits, atol=1e-4, rtol=1e-4)
    other = load_start(tmp_path / "start", "classification", num_labels=5)
    assert other.head.out.weight.shape == (5, 24)


def test_a_start_may_get_another_encoding_and_be_frozen(tmp_path):
    write_checkpoint(tmp_path / "start", encoding="learned", length=16)
    kept = load_start(tmp_path / "start", "classification", num_labels=1)
    source = rw.load(tmp_path / "start")
    assert torch.equal(
        kept.embeddings.encoding.table.weight, source.embeddings.encoding.table.weight
    )
    changed = load_start(
        tmp_path / "start", "classification", num_labels=1, encoding="rope", freeze="all_but_head"
    )
    assert changed.config.encoding == "rope"
    assert torch.equal(changed.embeddings.words.weight, source.embeddings.words.weight)
    assert {n for n, p in changed.named_parameters() if p.requires_grad} == {
        n for n, _ in changed.named_parameters() if "head" in n
    }
    assert load_start(tmp_path / "start", "classification", dropout=0.25).config.dropout == 0.25


@pytest.mark.parametrize("policy", ["none", "embeddings", "all_but_head"])
def test_a_frozen_start_trains_only_what_its_policy_says(cail, policy):
    folder, files = cail
    preset = finetuning_preset(folder / "start", files, changes=[f"model.freeze={policy}"], **QUICK)
    trainer = make_trainer(preset, progress=False)
    before = {name: weight.clone() for name, weight in trainer.model.named_parameters()}
    trainer.run(stop=2)
    moved = {
        name
        for name, weight in trainer.model.named_parameters()
        if not torch.equal(weight, before[name])
    }
    kept = {
        "none": set(),
        "embeddings": {
            name for name in before if name.startswith(("embeddings.words", "embeddings.types"))
        },
        "all_but_head": {name for name in before if not name.startswith("head.")},
    }[policy]
    assert moved == before.keys() - kept


def test_a_head_of_another_kind_is_new_even_if_its_shapes_agree(tmp_path):
    """The head of questions and answers has two outputs, as a classifier of two classes."""
    write_checkpoint(tmp_path / "start", head="question_answering")
    source = rw.load(tmp_path / "start")
    model = load_start(tmp_path / "start", "classification", num_labels=2)
    assert model.head.out.weight.shape == source.head.out.weight.shape
    assert not torch.equal(model.head.out.weight, source.head.out.weight)
    assert torch.equal(model.embeddings.words.weight, source.embeddings.words.weight)


def test_the_rate_rises_for_a_tenth_and_falls_to_nothing(cail):
    """BERT's schedule, in its own words: a linear warm-up over a tenth of the steps, then a linear
    decay to zero.
    """
    folder, files = cail
    preset = finetuning_preset(
        folder / "start", files, length=16, batch=2, epochs=2.5, learning_rate=3e-5
    )
    trainer, steps = make_trainer(preset, progress=False), 80
    assert preset.train.steps == steps  # 64 triplets, twice and a half, in twos
    rises = [3e-5 * (step + 1) / 8 for step in range(8)]
    falls = [3e-5 * (1 - (step - 8) / (steps - 1 - 8)) for step in range(8, steps)]
    assert [trainer.rate(step) for step in range(steps)] == pytest.approx(rises + falls, abs=1e-12)
    assert (preset.train.weight_decay, preset.train.betas, preset.train.clip) == (
        0.01,
        (0.9, 0.999),
        1.0,
    )


@pytest.mark.parametrize(("batch", "epochs", "steps"), [(6, 3.0, 32), (6, 0.1, 2), (48, 2.0, 3)])
def test_the_steps_of_a_fine_tuning_round_up_the_samples_of_all_passes(cail, batch, epochs, steps):
    """Only the last batch of all passes may reach beyond them: 3 passes over 64 triplets are 192,
    which is 32 batches of 6, although one pass alone takes 11.
    """
    folder, files = cail
    preset = finetuning_preset(folder / "start", files, length=16, batch=batch, epochs=epochs)
    assert preset.train.steps == steps
    assert (steps - 1) * batch < epochs * 64 <= steps * batch
    # evaluations are after each pass; the batch with the last triplet belongs to the pass
    assert preset.train.evaluate_every == {6: 11, 48: 2}[batch]
    assert preset.train.warmup == steps // 10


def test_the_defaults_are_those_of_the_published_runs(cail, capsys, monkeypatch):
    """Batches of 16 at 2e-5 for 3 epochs, as RoFormer-512 was tuned on CAIL2019-SCM; the command's
    defaults are the function's.
    """
    folder, files = cail
    train = finetuning_preset(folder / "start", files).train
    assert train.learning_rate == 2e-5
    (stage,) = train.stages
    assert (stage.length, stage.batch, stage.steps) == (512, 16, 3 * 64 // 16)
    options = [f"--{name}={folder / name}.json" for name in COUNTS]
    start = ("lab", "finetune", folder / "start", *options, "--folder", folder / "run")
    used = []
    train_nothing = lambda preset, *_, **__: used.append(preset)
    monkeypatch.setattr("ropewalk_cli.commands.finetune.run_training", train_nothing)
    assert call(capsys, *start, "--device", "cpu")[0] == 0
    assert [given.train for given in used] == [train]


def test_both_ways_to_match_texts_are_set_beside_roformers_table(cail, capsys):
    from ropewalk_cli.commands.finetune import _published

    rows = [list(row) for row in PUBLISHED["roformer-cail"].rows]
    assert [_published(objective)["rows"] for objective in ("pairs", "triplets")] == [rows, rows]
    assert _published("pairs")["source"] == "Su et al., RoFormer (2021), table 5"
    assert _published("classes") is None


@pytest.mark.parametrize(("asked", "measured"), [(None, 24), (40, 40)])
@pytest.mark.parametrize("objective", ["pairs", "classes"])
def test_a_tuned_model_is_evaluated_as_it_was_tuned(
    tmp_path, monkeypatch, asked, measured, objective
):
    """A tuned model is evaluated at the length of its training unless another is given, with the
    columns and classes of its training; the classes of a model for matching are always the texts B
    and C.
    """
    write_checkpoint(tmp_path / "run", head="classification", num_labels=3)
    use = {
        "objective": objective,
        "length": 24,
        "tokenizer": "vocab.txt",
        "classes": ["no", "so", "yes"],
        "columns": ["text", "kind"],
    }
    (tmp_path / "run" / "ropewalk.json").write_text(json.dumps(use))
    opened, lengths = [], []
    monkeypatch.setattr(finetuning, "open_part", lambda *given: opened.append(given) or "part")
    result = Measured(0.5, 0.5, 2, (1, 0))
    monkeypatch.setattr(finetuning, "measure", lambda *given: lengths.append(given[1:4]) or result)
    file = tmp_path / "texts.tsv"
    found, chosen = finetuning.evaluate_file(tmp_path / "run", file, length=asked)
    ((path, kind, columns, classes, _),) = opened
    assert (path, kind, tuple(columns)) == (file, objective, ("text", "kind"))
    assert tuple(classes) == (("no", "so", "yes") if objective == "classes" else ("B", "C"))
    assert lengths == [("part", objective, measured)]
    assert (found, chosen) == (result, (classes[1], classes[0]))


def test_lines_without_a_label_are_not_trained_on(tmp_path):
    write_checkpoint(tmp_path / "start")
    path = write_classes(tmp_path / "a.tsv", 20)
    path.write_text(path.read_text() + "a b\t\na c\t-\n", encoding="utf-8")
    files = Files(path, write_classes(tmp_path / "b.tsv", 6, 1))
    opened = open_data(make_data(finetuning_preset(tmp_path / "start", files, **QUICK).data), 0, 16)
    assert opened.size == len(opened.train.examples) == 20
    assert opened.classes == ("kind 0", "kind 1", "kind 2")


def test_a_decoder_checkpoint_starts_a_language_model_and_no_classifier(tmp_path):
    torch.manual_seed(0)
    model = Decoder(DecoderConfig(264, 16, 24, num_layers=1, num_heads=2))
    rw.save(model, tmp_path / "start")
    changes = [
        f"model.start={tmp_path / 'start'}",
        f"data.source={write_text(tmp_path / 'text')}",
        f"data.cache={tmp_path}",
    ]
    preset = make_preset({"train": {"stages": [{"length": 8, "batch": 2, "steps": 1}]}}, changes)
    trainer = make_trainer(preset, progress=False)
    assert all(
        torch.equal(a, b)
        for a, b in zip(trainer.model.parameters(), model.parameters(), strict=True)
    )
    with pytest.raises(RopeError, match="must be the folder of a RoFormer or BERT"):
        load_start(tmp_path / "start", "classification")


@pytest.mark.parametrize("objective", ["pairs", "triplets", "classes"])
def test_held_out_loss_and_accuracy_equal_a_loop_written_by_hand(tmp_path, objective):
    write_checkpoint(tmp_path / "start")
    if objective == "classes":
        files = Files(
            write_classes(tmp_path / "a.tsv", 40), write_classes(tmp_path / "b.tsv", 21, 1)
        )
    else:
        files = Files(
            write_triplets(tmp_path / "a.json", 40), write_triplets(tmp_path / "b.json", 21, 1)
        )
    preset = finetuning_preset(
        tmp_path / "start", files, changes=[f"data.objective={objective}"], **QUICK
    )
    trainer = make_trainer(preset, progress=False)
    model, part = trainer.model.eval(), open_data(make_data(preset.data), 0, 16).parts["valid"]
    assert part.count == 21
    found = measure(trainer.predict, part, objective, 16)
    losses, hits = [], []
    with torch.no_grad():
        for number in range(21):  # one sample at a time
            batch = part.batches.batch(np.array([number]), 16).to(torch.device("cpu"))
            out = model(batch.inputs, **batch.keywords)
            target = batch.targets[0]
            if objective == "triplets":
                a, b, c = F.normalize(out, dim=-1)
                scores = torch.stack((a @ b, a @ c))
                losses.append(max(0.0, 0.2 - (scores[target] - scores[1 - target]).item()))
            else:
                scores = out.flatten()
                losses.append(-torch.log_softmax(scores.double(), 0)[target].item())
            hits.append(int(scores.argmax() == target))
    assert found.loss == pytest.approx(sum(losses) / 21, rel=1e-4)
    assert found.accuracy == pytest.approx(sum(hits) / 21)
    assert (found.count, len(found.choices)) == (21, 21)
    assert found.error == pytest.approx((sum(hits) / 21 * (1 - sum(hits) / 21) / 21) ** 0.5)


@pytest.mark.parametrize("objective", ["causal", "masked"])
def test_train_evaluates_on_held_out_text(tmp_path, objective):
    """The loss of `train` on its held-out part is the mean over the targets of windows of the other
    split.
    """
    kind = "roformer" if objective == "masked" else "decoder"
    changes = [
        f"data.source={write_text(tmp_path / 'text')}",
        f"data.cache={tmp_path / 'cache'}",
        f"model.kind={kind}",
    ]
    changes += [
        f"data.objective={objective}",
        "train.stages=[{length=16,batch=2,steps=2}]",
        "train.evaluate_every=2",
    ]
    preset = read_preset("smoke", changes)
    report = run_preset(preset, tmp_path / "run", Parallel(), progress=False)
    found = report.held_out["valid"]
    part = open_data(make_data(preset.data), 0, 16).parts["valid"]
    model, total, hits, count = rw.load(report.model), 0.0, 0, 0
    for number in range(part.count):
        batch = part.batches.batch(np.array([part.first + number]), 16).to(torch.device("cpu"))
        logits = model(batch.inputs).detach()[0]
        for place, target in enumerate(batch.targets[0].tolist()):
            if target != -100:
                total -= torch.log_softmax(logits[place].double(), 0)[target].item()
                hits += int(logits[place].argmax() == target)
                count += 1
    assert (found.count, found.accuracy) == (count, pytest.approx(hits / count))
    assert found.loss == pytest.approx(total / count, rel=1e-4)
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert log[-1]["evaluation"]["valid"]["loss"] == pytest.approx(found.loss)
    assert json.loads((tmp_path / "run" / "results.json").read_text())["valid"]["count"] == count
    text = part.batches if objective == "causal" else part.batches.text
    held_out = b"".join(
        f.read_bytes() for f in sorted((tmp_path / "text").iterdir()) if in_valid(f.name)
    )
    assert bytes(text.split.tokens).replace(b"\0", b"") == held_out


def in_valid(name: str) -> bool:
    """The rule of the split: the hash of a document's name."""
    return int(hashlib.sha256(name.encode()).hexdigest()[:16], 16) / 2**64 < 0.1


def test_text_too_short_to_evaluate_on_is_no_reason_to_stop(tmp_path):
    changes = [f"data.source={write_text(tmp_path / 'text')}", f"data.cache={tmp_path / 'cache'}"]
    short = open_data(make_data(read_preset("smoke", changes).data), 0, 10**4)
    assert short.parts == {}


def test_a_task_is_evaluated_on_samples_beyond_the_training():
    opened = open_data(make_data({"task": "copy"}), 0, 16)
    valid = opened.parts["valid"]
    seen, held_out = (
        part.batch(np.arange(first, first + 64), 16).inputs
        for part, first in ((opened.train, 0), (valid.batches, valid.first))
    )
    assert not {tuple(row) for row in seen.tolist()} & {tuple(row) for row in held_out.tolist()}


def test_without_a_valid_file_a_tenth_is_held_out(cail):
    folder, files = cail
    opened = open_data(
        make_data(finetuning_preset(folder / "start", Files(files.train), **QUICK).data), 0, 16
    )
    train, valid = opened.train.triplets, opened.parts["valid"].batches.triplets
    assert len(train) + len(valid) == 64
    assert valid
    assert not {t.a for t in train} & {t.a for t in valid}


def test_a_stopped_fine_tuning_resumes_to_the_results_of_an_unstopped_one(cail, capsys):
    folder, files = cail
    preset = finetuning_preset(folder / "start", files, epochs=2, **QUICK)
    whole = run_preset(preset, folder / "whole", Parallel(), progress=False)
    assert make_trainer(preset, folder / "run", progress=False).run(stop=3).stopped
    assert not (folder / "run" / "model").exists()
    with pytest.raises(RopeError, match="start: must be a training that has finished"):
        find_model(folder / "run")
    code, out, _ = finetune(capsys, folder, "--epochs", 2, "--json")
    found = json.loads(out)
    assert (code, found["step"], found["stopped"]) == (0, 8, False)
    assert found["held_out"] == {name: result.numbers() for name, result in whole.held_out.items()}
    log = [json.loads(line) for line in (folder / "run" / "log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in log if "loss" in row] == list(range(1, 9))
    # the same command again only evaluates and writes the model again
    code, out, _ = finetune(capsys, folder, "--epochs", 2, "--json")
    assert json.loads(out)["held_out"] == found["held_out"]


def test_a_run_is_not_continued_from_another_start(cail, capsys):
    folder, _ = cail
    assert finetune(capsys, folder, "--epochs", 1)[0] == 0
    shutil.rmtree(folder / "start")
    write_checkpoint(folder / "start", seed=1)
    code, _, err = finetune(capsys, folder, "--epochs", 1)
    assert code == 2
    assert "model: must be that of the run in" in err
    assert "use a new folder for another model" in err


def test_a_run_is_not_continued_with_another_encoding(tmp_path, capsys):
    """The weights of a rotary model and of one without positions have the same shapes."""
    source = write_text(tmp_path / "text")
    given = [
        "train",
        "smoke",
        "--folder",
        tmp_path / "run",
        "--device",
        "cpu",
        "--set",
        f"data.source={source}",
    ]
    given += [
        "--set",
        f"data.cache={tmp_path / 'cache'}",
        "--set",
        "train.stages=[{length=8,batch=2,steps=2}]",
    ]
    assert call(capsys, *given)[0] == 0
    code, _, err = call(capsys, *given, "--set", "model.encoding=none")
    assert code == 2
    assert "model: must be that of the run in" in err


def test_a_model_that_transformers_lacks_is_trained_and_not_written(tmp_path, capsys):
    given = [
        "train",
        "smoke",
        "--folder",
        tmp_path / "run",
        "--device",
        "cpu",
        "--set",
        f"data.source={write_text(tmp_path / 't')}",
    ]
    given += [
        "--set",
        f"data.cache={tmp_path / 'cache'}",
        "--set",
        "train.stages=[{length=8,batch=2,steps=2}]",
    ]
    code, out, _ = call(capsys, *given, "--set", "model.encoding=alibi")
    assert code == 0
    assert "no model was written: " in out


REFUSED = {
    "no tokenizer": (
        ["--valid", "{0}/valid.json"],
        r"tokenizer: must be given, because .* has no vocab.txt or tokenizer.json",
    ),
    "a tokenizer of another model": (
        ["--tokenizer", "{0}/large.txt"],
        r"tokenizer: must have at most 17 tokens, .*; got 18",
    ),
    "no such file": (
        ["--tokenizer", "bytes", "--test", "{0}/none.json"],
        r"none\.json: No such file",
    ),
    "another format": (
        ["--tokenizer", "bytes", "--valid", "{0}/a.tsv"],
        r"a\.tsv: line 1 must be JSON",
    ),
    "too short": (
        ["--tokenizer", "{0}/vocab.txt", "--length", "3"],
        "length: must be at least 4, to leave room for text beside 3 special tokens",
    ),
    "more positions than the model has": (
        ["--tokenizer", "{0}/vocab.txt", "--set", "model.encoding=learned", "--length", "2000"],
        "length: must be at most 1536, the positions of the model in .*; set model.encoding=rope",
    ),
    "no epochs": (["--tokenizer", "bytes", "--epochs", "0"], "epochs: must be > 0"),
    "no such policy": (
        ["--tokenizer", "{0}/vocab.txt", "--set", "model.freeze=most"],
        "freeze: must be one of none, embeddings",
    ),
    "no such field": (
        ["--tokenizer", "{0}/vocab.txt", "--set", "model.size=3"],
        "model: must have only start, freeze and fields of the checkpoint's config",
    ),
    "another size": (
        ["--tokenizer", "{0}/vocab.txt", "--set", "model.hidden_size=12"],
        "must keep the sizes of the checkpoint",
    ),
    "text": (
        ["--tokenizer", "{0}/vocab.txt", "--set", "data.objective=masked"],
        "data.objective: must be one of pairs",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_tuned_is_refused_in_one_line(tmp_path, capsys, case):
    write_checkpoint(tmp_path / "start")
    (tmp_path / "start" / "vocab.txt").rename(tmp_path / "vocab.txt")
    (tmp_path / "large.txt").write_text("\n".join([*TOKENS, "more"]))
    write_classes(tmp_path / "a.tsv", 4)
    for name in ("train", "valid"):
        write_triplets(tmp_path / f"{name}.json", 20)
    more, said = REFUSED[case]
    given = [
        "lab",
        "finetune",
        tmp_path / "start",
        "--train",
        tmp_path / "train.json",
        "--folder",
        tmp_path / "run",
    ]
    code, _, err = call(
        capsys, *given, "--device", "cpu", *(word.format(tmp_path) for word in more)
    )
    assert code == 2
    assert err.count("\n") == 1
    assert re.search(said, err), err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, r"must be a folder that a training wrote, with ropewalk\.json"),
        ("{", "ropewalk.json"),
        ('{"objective": "pairs"}', "must have the objective, the tokenizer and the length"),
        (
            '{"objective": "pairs", "length": 8, "tokenizer": "vocab.txt", "classes": "BC"}',
            "and the lists classes and columns",
        ),
        (
            '{"objective": "pairs", "length": 8, "tokenizer": "vocab.txt", "run": "rm"}',
            "must have the objective",
        ),
        (
            '{"objective": "masked", "length": 8, "tokenizer": "vocab.txt"}',
            "objective: must be one of pairs, triplets, classes",
        ),
        (
            '{"objective": "pairs", "length": 0, "tokenizer": "vocab.txt"}',
            "length: must be an integer from 1",
        ),
        (
            '{"objective": "pairs", "length": 8, "tokenizer": "../x"}',
            "tokenizer: must be one of bytes, vocab.txt, tokenizer.json",
        ),
    ],
)
def test_a_folder_that_was_not_tuned_is_not_evaluated(tmp_path, capsys, content, said):
    write_checkpoint(tmp_path / "start")
    if content is not None:
        (tmp_path / "start" / "ropewalk.json").write_text(content)
    code, _, err = call(
        capsys,
        "lab",
        "evaluate",
        tmp_path / "start",
        write_triplets(tmp_path / "t.json", 3),
        "--device",
        "cpu",
    )
    assert code == 2
    assert re.search(said, err), err


def test_a_folder_with_other_classes_than_outputs_is_refused(tmp_path, capsys):
    write_checkpoint(tmp_path / "start", head="classification", num_labels=3)
    use = {
        "objective": "classes",
        "length": 8,
        "tokenizer": "vocab.txt",
        "classes": ["kind 0", "kind 1"],
    }
    (tmp_path / "start" / "ropewalk.json").write_text(json.dumps(use))
    file = write_classes(tmp_path / "a.tsv", 9, classes="甲乙")
    code, _, err = call(capsys, "lab", "evaluate", tmp_path / "start", file, "--device", "cpu")
    assert code == 2
    assert "model: must have an output for each of its 2 classes; got 3" in err


@pytest.mark.parametrize("command", ["finetune", "evaluate"])
def test_a_folder_that_is_not_there_is_named(tmp_path, capsys, command):
    file = write_triplets(tmp_path / "t.json", 3)
    given = (
        [tmp_path / "nowhere", "--train", file]
        if command == "finetune"
        else [tmp_path / "nowhere", file]
    )
    code, _, err = call(capsys, "lab", command, *given)
    assert code == 2
    assert (
        f"{'START' if command == 'finetune' else 'MODEL'}: must be the folder of a checkpoint"
        in err
    )


def test_columns_are_for_classes_alone(cail, capsys):
    code, _, err = finetune(capsys, cail[0], "--columns", "9,8,7")
    assert (code, (cail[0] / "run").exists()) == (2, False)
    assert (
        "--columns: must be left out for the objective pairs, whose lines have the fields A, "
        "B, C and label"
    ) in err


def test_a_model_with_one_token_type_cannot_mark_two_texts(cail):
    folder, files = cail
    write_checkpoint(folder / "single", type_vocab_size=1)
    with pytest.raises(RopeError, match="at least two token types"):
        make_trainer(finetuning_preset(folder / "single", files, **QUICK))


def test_a_start_without_an_id_for_the_mask_is_refused_for_masked_words(tmp_path):
    words = [token for token in TOKENS if token != "[MASK]"]
    write_checkpoint(tmp_path / "start", vocab_size=len(words))
    (tmp_path / "start" / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    changes = [
        f"model.start={tmp_path / 'start'}",
        f"data.source={write_text(tmp_path / 'text')}",
        f"data.cache={tmp_path}",
        f"data.tokenizer={tmp_path / 'start'}",
        "data.objective=masked",
    ]
    with pytest.raises(RopeError, match=f"at most {len(words)} tokens.*{len(words) + 1}"):
        make_trainer(
            make_preset({"train": {"stages": [{"length": 8, "batch": 2, "steps": 1}]}}, changes),
            progress=False,
        )


def test_token_types_are_needed_for_two_texts_only(tmp_path):
    write_checkpoint(tmp_path / "start", type_vocab_size=1)
    one = Files(write_classes(tmp_path / "a.tsv", 40), None)
    assert (
        make_trainer(finetuning_preset(tmp_path / "start", one, **QUICK), progress=False).run().step
        > 0
    )
    lines = ["sentence1\tsentence2\tlabel", *(f"a b\tc {n}\t{n % 2}" for n in range(40))]
    (tmp_path / "b.tsv").write_text("\n".join(lines) + "\n")
    for files in (
        Files(tmp_path / "b.tsv", None),
        Files(write_triplets(tmp_path / "c.json", 40), None),
    ):
        with pytest.raises(RopeError, match="two token types"):
            make_trainer(finetuning_preset(tmp_path / "start", files, **QUICK), progress=False)
