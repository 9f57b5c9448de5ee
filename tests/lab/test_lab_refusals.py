"""What the lab refuses: the field, the rule and the value of every error whose line no other test
runs.
"""

import io
import json
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from lab_tiny import tiny_model
from torch import nn

from ropewalk.errors import RopeError
from ropewalk_lab import (
    batches,
    checkpoint,
    downloads,
    guide,
    json_lines,
    labelled,
    log,
    matching,
    recalibration,
    settings,
    sources,
    text_tasks,
)
from ropewalk_lab.analysis import permutation_gap
from ropewalk_lab.batches import Batch, MixedBatches, TaskBatches
from ropewalk_lab.data import Data, make_batches
from ropewalk_lab.fit import ledger, plan
from ropewalk_lab.fit.open_model import trained_length
from ropewalk_lab.page import reading
from ropewalk_lab.runs import make_model
from ropewalk_lab.schedule import Stage
from ropewalk_lab.studies import method_models, multimodal
from ropewalk_lab.studies import rows as study_rows


def written(folder, name, text):
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def frozen():
    model = tiny_model()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    return model


def other_tensors():
    tensors = dict(checkpoint.model_tensors(tiny_model()))
    tensors["more"] = tensors.pop(sorted(tensors)[0])
    return tensors


def other_shape():
    tensors = dict(checkpoint.model_tensors(tiny_model()))
    name = sorted(tensors)[0]
    tensors[name] = torch.zeros(3)
    return tensors


#: what is read of an optimizer before the names of its states
OPTIMIZER: Any = SimpleNamespace(defaults={})
STAGE = Stage(length=8, batch=1, steps=1)
IMAGE = Batch(torch.zeros(1, 4), torch.zeros(1, 4), 1, positions=torch.zeros(2, 1, 4))
ONES = np.ones((3, 2))
#: (a call that gets a folder, the field, the rule as a regular expression, the value)
REFUSED = {
    "tokens of q and k": (
        lambda _: permutation_gap(ONES, ONES[:2], ONES[:2], [0, 1, 2]),
        "k",
        "must have the 3 tokens of q",
        [2, 2],
    ),
    "shares that do not add up to 1": (
        lambda _: MixedBatches((TaskBatches("recall"),) * 2, (0.5, 0.6)),
        "shares",
        "must be 2 numbers that add up to 1",
        (0.5, 0.6),
    ),
    "a share too few": (
        lambda _: MixedBatches((TaskBatches("recall"),) * 2, (1.0,)),
        "shares",
        "must be 2 numbers that add up to 1",
        (1.0,),
    ),
    "a mixture of images": (
        lambda _: batches.concatenate([IMAGE, IMAGE]),
        "shares",
        "must mix sources whose batches have inputs and targets and no other tensors",
        ["positions"],
    ),
    **{
        f"{name} of text": (
            lambda _, name=name, value=value: Data(**{name: value}),
            f"data.{name}",
            "must be left out for the objective causal; it is for files of lines, with the "
            r"objectives \w+.*",
            value,
        )
        for name, value in {"valid": "v.csv", "test": "t.csv", "columns": ("a", "b")}.items()
    },
    "a task of words": (
        lambda folder: make_batches(
            Data(task="recall", tokenizer=str(written(folder, "vocab.txt", VOCABULARY))), 0
        ),
        "data.task",
        "needs the tokenizer bytes: tasks are made of bytes",
        "recall",
    ),
    "another member": (
        lambda _: downloads._copy(io.BytesIO(b"12345"), io.BytesIO(), 4, joined=False, first=True),
        "archive",
        "must hold a member of 4 bytes",
        "more",
    ),
    "other tensors": (
        lambda _: checkpoint.load_model(tiny_model(), other_tensors()),
        "checkpoint",
        "must have the same tensors as this model",
        ["embed_tokens.weight", "more"],
    ),
    "another shape": (
        lambda _: checkpoint.load_model(tiny_model(), other_shape()),
        "checkpoint",
        r"must have embed_tokens\.weight in the shape \[264, \d+\]",
        [3],
    ),
    "states of another weight": (
        lambda _: checkpoint.load_optimizer(
            tiny_model(), OPTIMIZER, {"exp_avg other": torch.zeros(1)}
        ),
        "checkpoint",
        "must have optimizer states of this model's weights only",
        "exp_avg other",
    ),
    "rows that the guide needs": (
        lambda _: guide._score([], "found", length=8),
        "results",
        "must have rows of the metric found",
        {"length": 8},
    ),
    "a folder in place of a file": (
        lambda folder: json_lines.write_atomically(folder, "", "--out"),
        "--out",
        "must be a file, or not exist; a device or folder is not replaced",
        str,
    ),
    "no examples": (
        lambda _: labelled.ExampleBatches([], ()),
        "examples",
        "must not be empty",
        0,
    ),
    "no triplets": (lambda _: matching.TripletBatches([]), "triplets", "must not be empty", 0),
    "a broken log": (
        lambda folder: log.read_log(written(folder, "log.jsonl", '{"step": 1}\nno\n')),
        "log",
        r"must have a JSON object on every line \(.+\); use a new folder",
        str,
    ),
    "weights that are not there": (
        lambda folder: reading._file_times(str(folder / "no.gguf")),
        "model",
        r"must be a \.gguf file or a Hugging Face folder on this machine",
        str,
    ),
    "a model without layers": (
        lambda _: reading._layers(nn.Linear(1, 1)),
        "model",
        "must have layers with self_attn, as Llama, Mistral, Qwen and Gemma have",
        "Linear",
    ),
    "frozen weights": (
        lambda _: recalibration.recalibrate(frozen(), torch.zeros(2, 4, dtype=torch.long), 1),
        "model",
        "must have parameters that require gradients",
        0,
    ),
    "a decoder for masks": (
        lambda _: make_model({}, Data(objective="masked"), settings.Settings((STAGE,)), 264),
        "model.kind",
        "must be roformer for the objective masked",
        "decoder",
    ),
    "no stage": (
        lambda _: settings.Settings(stages=()),
        "stages",
        "must have at least one stage",
        (),
    ),
    "a value beside the tables": (
        lambda _: settings.make_preset({"model": {}, "seed": 3}),  # type: ignore[dict-item]
        "preset",
        "must hold tables only: model, data and train",
        ["seed"],
    ),
    "an empty folder": (
        lambda folder: sources._files_of(folder),
        "source",
        "must be a file or a folder with files in it",
        str,
    ),
    "a text too short for its facts": (
        lambda _: text_tasks.needle(0, np.arange(2), 64),
        "length",
        r"must be at least \d+ to hold every fact",
        64,
    ),
    "an image that is no square": (
        lambda _: multimodal.GridBatches().batch(np.arange(1), 15),
        "length",
        "must be a square number from 4 on: images have as many rows as columns",
        15,
    ),
    "an image of one patch": (
        lambda _: multimodal.GridBatches().batch(np.arange(1), 1),
        "length",
        "must be a square number from 4 on: images have as many rows as columns",
        1,
    ),
    "a cache of tokens that drive": (
        lambda _: method_models.TokenDriven(nn.Identity()).attend(
            torch.zeros(1, 1, 1), torch.zeros(1), None, None, "a cache"
        ),
        "cache",
        "must be None: this attention continues from its own state",
        "Identity",
    ),
    "rows that are no JSON": (
        lambda folder: list(ledger._stored_rows(written(folder, "rows.jsonl", "{}\nno\n{}\n"))),
        "rows",
        "line 2 must be JSON; remove the file to measure again",
        str,
    ),
    "rows that are no objects": (
        lambda folder: list(ledger._stored_rows(written(folder, "rows.jsonl", "{}\n{}\n3\n"))),
        "rows",
        "line 3 must be a JSON object; remove the file to measure again",
        str,
    ),
    "rows of a study without a metric": (
        lambda folder: study_rows.read_rows(written(folder, "rows.jsonl", json.dumps({"a": 1}))),
        "rows",
        "must be objects with a metric; remove the file to measure again",
        str,
    ),
    "text without a tokenizer": (
        lambda _: plan._tokens("text", None),
        "tokenizer",
        "must be given to read text, or text must be a tensor of tokens",
        None,
    ),
    "a model without a length": (
        lambda _: trained_length(SimpleNamespace(config=SimpleNamespace(to_dict=dict))),
        "trained",
        "must be given: the config has no max_position_embeddings",
        None,
    ),
}
VOCABULARY = "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"])


@pytest.mark.parametrize("name", REFUSED)
def test_the_lab_refuses_by_field_rule_and_value(name, tmp_path):
    call, field, rule, value = REFUSED[name]
    with pytest.raises(RopeError) as error:
        call(tmp_path)
    assert error.value.field == field
    assert re.fullmatch(rule, error.value.rule), error.value.rule
    if value is str:  # the path that was given
        assert str(tmp_path) in str(error.value.value)
    else:
        assert error.value.value == value


def test_a_needle_of_the_stated_length_holds_every_fact():
    """The rule names the smallest length that is accepted."""
    with pytest.raises(RopeError) as error:
        text_tasks.needle(0, np.arange(2), 64)
    (least,) = re.findall(r"\d+", error.value.rule)
    text_tasks.needle(0, np.arange(2), int(least))
    with pytest.raises(RopeError, match=f"at least {least} "):
        text_tasks.needle(0, np.arange(2), int(least) - 1)


def test_a_log_in_memory_forgets_the_steps_that_are_run_again():
    kept = log.Log(None)
    for step in (1, 2, 3):
        kept.write([{"step": step}])
    kept.truncate(2)
    assert [row["step"] for row in kept.rows()] == [1, 2]
