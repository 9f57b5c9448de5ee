"""The jobs that each study runs, without running them, and what a job asks of a training."""

import inspect
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lab_tiny import write_text
from study_cases import tiny

from ropewalk.errors import RopeError
from ropewalk_lab.fit.measure import Meter
from ropewalk_lab.studies import (
    STUDIES,
    extension_methods,
    linear,
    norms,
    passkey,
    real_extend,
    real_passkey,
    run_study,
    training,
)
from ropewalk_lab.studies.jobs import Job, JobRunner, Workspace
from ropewalk_lab.studies.rows import read_rows, row, select

CPU = torch.device("cpu")
#: the number of jobs of each study's smoke preset with two seeds
COUNTS = {
    "encodings": 4 * 2,  # four encodings
    "extend": 2 + 2 * 2,  # one without training, then two methods at one factor
    "base": 2 * 2,
    "frequencies": 3 * 2,
    "norms": 6 * 2,  # none, one that is not kept, and two kinds before and after
    "passkey": 2 * 2,
    "mlm_lengths": 2,
    "matching": 3 * 2,
    "linear": 3 * 2 + 1,  # the costs are measured once
    "migrate": (2 + 3) * 2,  # without steps there is no model from scratch
    "multimodal": 2 * 2,
    "decay": 2 * 2,
    "relative": 2,
    "precision": 1,
    "methods": 3 * 2 + 1,
    "real_extend": 1,
    "real_passkey": 1,
    "real_tune": 2 * 2,
    "real_precision": 1,
    "real_kv": 1,
}


class Watched(JobRunner):
    """Notes the jobs instead of running them; each list of jobs has one row."""

    def __init__(self, folder, settings: dict[str, Any]) -> None:
        super().__init__(folder, Workspace(folder, CPU), settings, 2, 1, quiet=True)
        self.jobs: list[Job] = []

    def run(self, jobs):
        self.jobs += jobs
        return [{"metric": "loss", "trained": 64}]


@pytest.mark.parametrize("name", STUDIES)
def test_every_job_has_a_name_of_its_own_and_the_arguments_of_its_function(name, tmp_path):
    study = tiny(name, tmp_path)
    runner = Watched(tmp_path, study.presets["smoke"])
    facts = study.run(runner)
    assert len(runner.jobs) == COUNTS[name]
    assert len({job.name for job in runner.jobs}) == COUNTS[name]
    for job in runner.jobs:
        assert isinstance(job.name, str)
        # raises an error unless they fit
        inspect.signature(job.work).bind(runner.workspace, **job.settings)
    if "data" in facts:  # the settings of the preset, as the report shows them
        changed = dict(change.split("=", 1) for change in runner.settings["changes"])
        assert facts["data"]["source"] == changed["data.source"]
    if name.startswith("real_"):
        assert (facts["model"], facts["trained"], facts["text"]) == ("tiny", 64, ["python"])


class AskedForTraining(Exception):
    """Raised in place of a training, with what was asked for."""


@pytest.fixture
def no_training(monkeypatch):
    def watched(workspace, name, preset, **options):
        raise AskedForTraining(SimpleNamespace(name=name, preset=preset, **options))

    monkeypatch.setattr(training, "train_or_load", watched)


@pytest.fixture
def changes(tmp_path) -> list[str]:
    """Changes of a preset that make it read a small folder of text."""
    return [f"data.source={write_text(tmp_path / 'text')}", f"data.cache={tmp_path / 'cache'}"]


def test_pass_keys_have_their_share_of_the_samples(no_training, changes, tmp_path):
    settings = {"share": 0.2, "methods": ["none"], "multiples": [1], "depths": [0.0], "count": 1}
    with pytest.raises(AskedForTraining) as asked:
        passkey.measure(
            Workspace(tmp_path, CPU), base=1e4, seed=0, preset="smoke", changes=changes, **settings
        )
    batches = asked.value.args[0].batches
    assert batches.shares == pytest.approx((0.8, 0.2))
    assert [part.fingerprint.split()[0] == "task" for part in batches.parts] == [False, True]


@pytest.mark.parametrize(
    ("norm", "name", "origin"),
    [("none", "rope-3", ""), ("LayerNorm after", "LayerNorm-after-3", None)],
)
def test_the_model_without_a_norm_has_the_name_that_other_studies_use(
    no_training, changes, tmp_path, norm, name, origin
):
    settings = {"multiples": [1], "windows": 1, "shift": 5}
    with pytest.raises(AskedForTraining) as asked:
        norms.measure(
            Workspace(tmp_path, CPU), norm=norm, seed=3, preset="smoke", changes=changes, **settings
        )
    found = asked.value.args[0]
    assert (found.name, found.origin) == (name, norm if origin is None else origin)


def test_a_trained_model_is_measured_without_dropout(changes, tmp_path):
    stages = "train.stages=[{length=8, batch=2, steps=1}]"
    preset = training.make_preset("smoke", [*changes, stages], 0, dropout=0.5)
    model = training.train_or_load(Workspace(tmp_path, CPU), "rope-0", preset).model
    assert not any(module.training for module in model.modules())


def test_the_search_for_factors_has_the_seed_of_its_job(monkeypatch):
    asked = []
    monkeypatch.setattr(
        extension_methods, "search_factors", lambda *_, **options: asked.append(options)
    )
    model = training.Decoder(linear.DecoderConfig(30, 16, 24, num_layers=1, num_heads=2, length=8))
    extension_methods.search_longrope(
        model, torch.zeros(1, 17).numpy(), 2, 8, population=5, rounds=3, seed=11
    )
    assert asked == [{"population": 5, "rounds": 3, "seed": 11}]


def test_costs_are_measured_for_every_model_and_length(tmp_path):
    rows = linear.costs(Workspace(tmp_path, CPU), preset="smoke", changes=[], timed=[8, 24])
    assert [(each["model"], each["length"]) for each in select(rows, "milliseconds")] == [
        (name, length)
        for name in ("softmax, rope", "linear, rope", "linear, none")
        for length in (8, 24)
    ]
    held = {(each["model"], each["length"]): each["mean"] for each in select(rows, "remembered")}
    # two layers with keys and values of two heads of 16 floats; running sums do not grow
    assert held["softmax, rope", 24] - held["softmax, rope", 8] >= 16 * 2 * 2 * 2 * 16 * 4
    assert held["linear, rope", 24] == held["linear, rope", 8]


@pytest.mark.parametrize(
    "name", ["precision", "real_extend", "real_passkey", "real_precision", "real_kv"]
)
def test_seeds_that_would_change_nothing_are_refused(name, tmp_path):
    with pytest.raises(RopeError, match=r"seeds.*must be 1"):
        run_study(STUDIES[name], "smoke", tmp_path, seeds=2, quiet=True)


def fail(workspace):
    raise ValueError("this job fails")


def work(workspace, number):
    time.sleep(2)
    return [row("loss", [1.0], number=number)]


def test_jobs_that_end_after_another_has_failed_are_stored(tmp_path):
    runner = JobRunner(tmp_path, Workspace(tmp_path, CPU), {}, 1, 2, quiet=True)
    jobs = [Job("works", work, {"number": 7}), Job("fails", fail)]
    with pytest.raises(ValueError, match="this job fails"):
        runner.run(jobs)
    assert read_rows(tmp_path / "jobs" / jobs[0].file) == [row("loss", [1.0], number=7)]


@pytest.mark.parametrize(
    ("study", "options"),
    [
        (real_extend, {"factor": 2.0, "windows": 2, "search": 0}),
        (real_passkey, {"factor": 8.0, "depths": 1, "lengths": [300]}),
    ],
)
def test_a_refused_method_is_left_out_and_an_error_only_if_none_is_left(
    study, options, tmp_path, monkeypatch
):
    measure = Meter.measure

    def refuse(meter, name, method):
        if name == "yarn":
            raise RopeError("rope_type", "must be another", name)
        measure(meter, name, method)

    monkeypatch.setattr(Meter, "measure", refuse)
    run = lambda *methods: study.measure(
        Workspace(tmp_path, CPU), model="tiny", text=["python"], methods=list(methods), **options
    )
    assert {each["method"] for each in run("yarn", "none")} == {"none"}
    with pytest.raises(RopeError, match="must be another"):
        run("yarn")
    with pytest.raises(RopeError, match="longrope"):
        run("longrope")
