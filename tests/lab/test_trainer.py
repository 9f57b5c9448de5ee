"""The trainer against a loop written by hand, and what it says, saves and refuses."""

import errno
import io
import itertools
import json
import logging
import math
import os
import re
import signal
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from lab_tiny import losses, tiny_batches, tiny_model, tiny_settings, tiny_trainer
from torch import nn
from torch.nn import functional as F

from ropewalk.errors import RopeError
from ropewalk.rope import Rope
from ropewalk.spec import RopeSpec
from ropewalk_lab import checkpoint
from ropewalk_lab.batches import TaskBatches
from ropewalk_lab.distributed import Parallel
from ropewalk_lab.gradients import GradientNorms, group_names, parameter_groups
from ropewalk_lab.loader import Loader
from ropewalk_lab.precision import autocast
from ropewalk_lab.schedule import Stage
from ropewalk_lab.settings import CHANGEABLE


def by_hand(model, batches, settings):
    """Train `model` by a loop written out here, with torch's own clip and AdamW and a cosine
    schedule; return (loss, norm of the gradients, learning rate) of each step.
    """
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1.0, betas=settings.betas, eps=settings.eps)
    found, first, step = [], 0, 0
    total = sum(stage.steps for stage in settings.stages)
    for stage in settings.stages:
        for _ in range(stage.steps):
            batch = batches.batch(first + np.arange(stage.batch), stage.length)
            logits = model(batch.inputs.long())
            loss = F.cross_entropy(logits.flatten(0, 1), batch.targets.long().flatten())
            optimizer.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
            way = (step - settings.warmup) / (total - 1 - settings.warmup)
            cosine = settings.final + (1 - settings.final) * (1 + math.cos(math.pi * way)) / 2
            rate = settings.learning_rate * (
                (step + 1) / settings.warmup if step < settings.warmup else cosine
            )
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            found.append((loss.item(), norm.item(), rate))
            first, step = first + stage.batch, step + 1
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return {dropout: (losses, smoothed loss, weights)} of uninterrupted runs."""
    found = {}
    for dropout in (0.0, 0.2):
        trainer = tiny_trainer(tmp_path_factory.mktemp("whole"), model=tiny_model(dropout=dropout))
        trainer.run()
        found[dropout] = losses(trainer), trainer.smoothed, list(trainer.model.parameters())
    return found


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_run_has_the_losses_norms_and_rates_of_a_loop_written_by_hand(tmp_path, accumulation):
    settings = tiny_settings(accumulation=accumulation, clip=0.5)
    expected = by_hand(tiny_model(), tiny_batches(tmp_path), settings)
    trainer = tiny_trainer(tmp_path, None, settings=settings)
    outcome = trainer.run()
    rows = trainer.log.rows()
    assert (outcome.step, outcome.stopped) == (9, False)
    assert [row["step"] for row in rows] == list(range(1, 10))
    assert [row["length"] for row in rows] == [12] * 5 + [16] * 4
    for row, (loss, norm, rate) in zip(rows, expected, strict=True):
        assert row["loss"] == pytest.approx(loss, rel=2e-5)
        assert row["gradient"] == pytest.approx(norm, rel=1e-4)
        assert row["rate"] == pytest.approx(rate)
    assert max(norm for _, norm, _ in expected) > 0.5


def test_micro_batches_with_unequal_target_counts_give_the_loss_of_the_whole_batch(tmp_path):
    """A mask leaves each micro-batch another number of targets; the mean is over the targets of all."""
    model, task = tiny_model(), TaskBatches("copy", options=(("least", 0.1),))
    settings = [tiny_settings(stages=(Stage(16, 4, 3),), accumulation=parts) for parts in (1, 4)]
    first, second = (
        tiny_trainer(tmp_path, None, settings=s, model=tiny_model(), batches=task) for s in settings
    )
    first.run()
    second.run()
    assert losses(first) == pytest.approx(losses(second), rel=1e-5)
    batch = task.batch(np.arange(4), 16)
    counts = (batch.targets != -100).sum(1)
    assert len(set(counts.tolist())) > 1
    mean = F.cross_entropy(model(batch.inputs.long()).flatten(0, 1), batch.targets.long().flatten())
    assert losses(first)[0] == pytest.approx(mean.item(), rel=1e-5)


def test_the_smoothed_loss_is_corrected_for_its_start_at_zero(tmp_path):
    trainer = tiny_trainer(tmp_path, None, settings=tiny_settings(smoothing=0.5))
    trainer.run()
    weights = [0.5 ** (9 - i) for i in range(1, 10)]
    expected = sum(w * loss for w, loss in zip(weights, losses(trainer), strict=True)) / sum(
        weights
    )
    assert trainer.smoothed == pytest.approx(expected)


def test_learned_frequencies_have_a_group_of_their_own():
    model = tiny_model("rope_learnable")
    names = group_names(model)
    assert {name.rsplit(".", 1)[1] for name, group in names.items() if group == "frequencies"} == {
        "log_scale"
    }
    assert {"self_attn", "mlp", "embed_tokens", "frequencies"} <= set(names.values())
    groups = parameter_groups(model, learning_rate=1.0, weight_decay=0.1, frequency_rate=0.3)
    slow = [g for g in groups if g["lr"] == pytest.approx(0.3)]
    assert [g["weight_decay"] for g in slow] == [0.0]
    assert sum(len(g["params"]) for g in groups) == len(list(model.parameters()))


@pytest.mark.parametrize("encoding", ["learned", "t5_causal", "relative_bias", "kerple_log"])
def test_only_matrices_outside_the_encodings_have_weight_decay(encoding):
    model = tiny_model(encoding)
    groups = parameter_groups(model, learning_rate=1.0, weight_decay=0.1, frequency_rate=1.0)
    decaying = {id(p) for group in groups if group["weight_decay"] for p in group["params"]}
    assert {group["weight_decay"] for group in groups} == {0.0, 0.1}
    for name, parameter in model.named_parameters():
        positional = any(part in name for part in ("encoding.", "encoding_"))
        assert (id(parameter) in decaying) == (parameter.ndim == 2 and not positional), name


@pytest.mark.parametrize("encoding", ["learned", "relative_bias", "kerple_log", "rope_learnable"])
def test_only_frequencies_have_a_rate_of_their_own(encoding):
    model = tiny_model(encoding)
    groups = parameter_groups(model, learning_rate=2.0, weight_decay=0.1, frequency_rate=0.25)
    rates = {id(p): (group["lr"], group["rate"]) for group in groups for p in group["params"]}
    for name, parameter in model.named_parameters():
        learned = name.endswith("log_scale")
        assert rates[id(parameter)] == ((0.5, 0.25) if learned else (2.0, 1.0)), name


def test_a_parameter_without_gradients_is_not_trained_and_has_no_norm():
    model = tiny_model("rope")
    for parameter in model.embed_tokens.parameters():
        parameter.requires_grad_(False)
    groups = parameter_groups(model, learning_rate=1.0, weight_decay=0.1, frequency_rate=1.0)
    trained = {id(p) for group in groups for p in group["params"]}
    assert trained == {id(p) for p in model.parameters() if p.requires_grad}
    assert "embed_tokens" not in GradientNorms(model, Parallel()).names


def test_the_norm_of_a_group_counts_only_parameters_with_a_gradient():
    """Here only the last parameter of a group has a gradient, so those without one come first."""
    model = tiny_model("rope")
    norms = GradientNorms(model, Parallel())
    parameters = dict(model.named_parameters())
    last = [name for name in parameters if "self_attn" in name][-1]
    parameters[last].grad = torch.full_like(parameters[last], 2.0)
    measured = dict(zip(["all", *norms.names], norms.measure().tolist(), strict=True))
    size = 2 * math.sqrt(parameters[last].numel())
    assert measured["self_attn"] == pytest.approx(size)
    assert measured["all"] == pytest.approx(size)
    assert [measured[name] for name in norms.names if name != "self_attn"] == [0] * (
        len(norms.names) - 1
    )


def test_the_group_of_a_parameter_is_the_module_within_the_innermost_numbered_layer():
    class Nested(torch.nn.Module):
        def __init__(self):
            super().__init__()
            part = torch.nn.ModuleDict({"mlp": torch.nn.Linear(2, 2, bias=False)})
            self.blocks = torch.nn.ModuleList([torch.nn.ModuleList([part])])
            self.head = torch.nn.Linear(2, 2, bias=False)

    assert group_names(Nested()) == {"blocks.0.0.mlp.weight": "mlp", "head.weight": "head"}


@pytest.mark.parametrize("encoding", ["rope_learnable", "alibi", "t5", "learned"])
def test_norms_of_groups_are_those_of_their_gradients(encoding):
    model = tiny_model(encoding)
    model(torch.arange(12).view(2, 6)).square().mean().backward()
    norms = GradientNorms(model, Parallel())
    found = norms.measure()
    expected = {}
    for name, parameter in model.named_parameters():
        expected.setdefault(group_names(model)[name], []).append(parameter.grad.flatten())
    assert dict(zip(norms.names, found[1:].tolist(), strict=True)) == pytest.approx(
        {group: torch.cat(grads).norm().item() for group, grads in expected.items()}, rel=1e-5
    )
    assert found[0].item() == pytest.approx(
        torch.cat([g for grads in expected.values() for g in grads]).norm().item(), rel=1e-5
    )


@pytest.mark.parametrize("share", [0.3, 3.0])
def test_clipping_equals_torchs_below_and_above_the_limit(share):
    """Gradients are compared, because AdamW hardly depends on their scale and no loss would show it."""
    ours, theirs = tiny_model(), tiny_model()
    for model in (ours, theirs):
        model(torch.arange(12).view(2, 6)).square().mean().backward()
    norms = GradientNorms(ours, Parallel())
    norm = norms.measure()[0]
    most = share * norm.item()
    norms.clip(norm, most)
    nn.utils.clip_grad_norm_(theirs.parameters(), most)
    for own, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(own.grad, expected.grad)


def test_frozen_and_unused_weights_are_left_alone(tmp_path):
    model = tiny_model()
    model.spare = nn.Parameter(torch.ones(3))
    model.embed_tokens.weight.requires_grad_(False)
    before = model.embed_tokens.weight.clone()
    tiny_trainer(tmp_path, model=model).run()
    assert torch.equal(model.embed_tokens.weight, before)
    assert torch.equal(model.spare, torch.ones(3))


@pytest.mark.parametrize(("stop", "dropout"), [(1, 0.0), (4, 0.2), (6, 0.0)])
def test_a_run_in_two_pieces_gives_the_losses_and_weights_of_one_run(
    tmp_path, whole, stop, dropout
):
    expected, smoothed, weights = whole[dropout]
    assert tiny_trainer(tmp_path, "cut", model=tiny_model(dropout=dropout)).run(stop=stop).stopped
    torch.manual_seed(12345)
    rest = tiny_trainer(tmp_path, "cut", model=tiny_model(dropout=dropout, seed=7))
    assert rest.run().step == 9
    assert losses(rest) == expected
    assert rest.smoothed == smoothed
    assert all(
        torch.equal(own, weight)
        for own, weight in zip(rest.model.parameters(), weights, strict=True)
    )


def test_a_trainer_without_a_folder_continues_when_it_runs_again(tmp_path, whole):
    trainer = tiny_trainer(tmp_path, None, model=tiny_model(dropout=0.2))
    for stop in (3, 4, None):
        trainer.run(stop=stop)
    assert losses(trainer) == whole[0.2][0]


def test_the_last_two_checkpoints_are_kept(tmp_path):
    tiny_trainer(tmp_path).run()
    assert [p.name for p in checkpoint.checkpoints(tmp_path / "run")] == [
        "step-000000009",
        "step-000000006",
    ]
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == [
        "log.jsonl",
        "step-000000006",
        "step-000000009",
    ]


def damage_bytes(path):
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


DAMAGE = {
    "a flipped bit": lambda folder: damage_bytes(folder / "model.safetensors"),
    "a flipped bit of the optimiser": lambda folder: damage_bytes(folder / "optimizer.safetensors"),
    "a file cut short": lambda folder: os.truncate(folder / "model.safetensors", 100),
    "a file gone": lambda folder: (folder / "random.safetensors").unlink(),
    "a state that is no JSON": lambda folder: (folder / "state.json").write_text("{"),
    "a state that was changed": lambda folder: (folder / "state.json").write_text(
        (folder / "state.json").read_text().replace('"step": 6', '"step": 5')
    ),
}


@pytest.fixture
def logged():
    """Yield the list of the warnings that are logged from now on."""
    texts: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            texts.append(record.getMessage())

    handler = Kept(logging.WARNING)
    logging.getLogger().addHandler(handler)
    yield texts
    logging.getLogger().removeHandler(handler)


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path, whole, damage, logged):
    tiny_trainer(tmp_path).run(stop=6)
    DAMAGE[damage](tmp_path / "run" / "step-000000006")
    trainer = tiny_trainer(tmp_path)
    trainer.run()
    (said,) = logged
    assert "step-000000006 cannot be used" in said
    assert "trying step-000000003" in said
    assert losses(trainer) == whole[0.0][0]
    assert checkpoint.read_checkpoint(tmp_path / "run" / "step-000000006")


def test_a_folder_with_only_damaged_checkpoints_is_refused(tmp_path):
    tiny_trainer(tmp_path).run(stop=3)
    damage_bytes(tmp_path / "run" / "step-000000003" / "model.safetensors")
    with pytest.raises(RopeError, match="remove them to start anew"):
        tiny_trainer(tmp_path).run()


def test_a_checkpoint_that_a_full_disk_refuses_is_skipped_with_a_warning(
    tmp_path, monkeypatch, logged
):
    write, calls = checkpoint.write_file, []

    def full(path, header, make):
        calls.append(path)
        if "step-000000006" in str(path) and path.name == "optimizer.safetensors":
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, header, make)

    monkeypatch.setattr(checkpoint, "write_file", full)
    trainer = tiny_trainer(tmp_path)
    assert trainer.run().step == 9
    (said,) = logged
    assert "step 6 could not be saved" in said
    assert os.strerror(errno.ENOSPC) in said
    assert [p.name for p in checkpoint.checkpoints(tmp_path / "run")] == [
        "step-000000009",
        "step-000000003",
    ]
    assert not [p for p in (tmp_path / "run").iterdir() if "partial" in p.name]


def test_ctrl_c_saves_after_the_step_and_the_run_goes_on(tmp_path, whole):
    interrupted = tiny_trainer(
        tmp_path,
        settings=tiny_settings(evaluate_every=4),
        evaluate=lambda t: os.kill(os.getpid(), signal.SIGINT) or {},
    )
    before = signal.getsignal(signal.SIGINT)
    outcome = interrupted.run()
    assert (outcome.step, outcome.stopped) == (5, True)
    assert signal.getsignal(signal.SIGINT) is before
    assert checkpoint.checkpoints(tmp_path / "run")[0].name == "step-000000005"
    rest = tiny_trainer(tmp_path)
    rest.run()
    assert losses(rest) == whole[0.0][0]


@pytest.mark.parametrize(
    "change", [{"learning_rate": 2e-2}, {"seed": 1}, {"clip": None}, {"stages": (Stage(12, 4, 9),)}]
)
def test_a_run_with_other_settings_is_not_continued(tmp_path, change):
    tiny_trainer(tmp_path).run(stop=3)
    with pytest.raises(RopeError, match=next(iter(change))):
        tiny_trainer(tmp_path, settings=tiny_settings(**change)).run()


def test_settings_that_change_no_result_may_change_on_resume(tmp_path, whole):
    tiny_trainer(tmp_path).run(stop=3)
    changed = tiny_trainer(tmp_path, settings=tiny_settings(**dict.fromkeys(CHANGEABLE, 1)))
    changed.run()
    assert losses(changed) == whole[0.0][0]


def test_a_run_is_not_continued_with_other_data_or_another_model(tmp_path):
    tiny_trainer(tmp_path).run(stop=3)
    with pytest.raises(RopeError, match="data"):
        tiny_trainer(tmp_path, batches=TaskBatches("copy")).run()
    with pytest.raises(RopeError, match="same tensors as this model"):
        tiny_trainer(tmp_path, model=tiny_model("learned")).run()


def test_a_loss_that_is_no_number_stops_the_run_before_it_is_saved(tmp_path):
    with pytest.raises(RopeError, match="must stay finite"):
        tiny_trainer(
            tmp_path,
            settings=tiny_settings(learning_rate=1e30, clip=None, schedule="constant", warmup=0),
        ).run()
    for path in checkpoint.checkpoints(tmp_path / "run"):
        _, files = checkpoint.read_checkpoint(path)
        assert all(t.isfinite().all() for t in files["model.safetensors"].values())


def test_the_log_has_norms_and_evaluations_at_the_steps_where_they_are_due(tmp_path):
    trainer = tiny_trainer(
        tmp_path,
        evaluate=lambda t: {"answer": 42},
        settings=tiny_settings(evaluate_every=3),
        tensorboard=True,
    )
    trainer.run()
    rows = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "evaluation" in row] == [3, 6, 9]
    full = [row for row in rows if "gradients" in row]
    assert {row["step"] for row in full} == {3, 4, 6, 8, 9}
    for row in full:
        assert math.sqrt(sum(v * v for v in row["gradients"].values())) == pytest.approx(
            row["gradient"], rel=1e-5
        )
        assert row["tokens_per_second"] > 0
    assert list((tmp_path / "run" / "tensorboard").iterdir())


def test_the_speed_is_of_the_tokens_of_all_rows(tmp_path, monkeypatch):
    """By a clock that ticks a quarter of a second each time it is read."""
    ticks = itertools.count()
    clock = SimpleNamespace(perf_counter=lambda: next(ticks) / 4)
    monkeypatch.setattr("ropewalk_lab.trainer.time", clock)
    trainer = tiny_trainer(tmp_path, settings=tiny_settings(save_every=100))
    trainer.run()
    rows = [row for row in trainer.log.rows() if "seconds" in row]
    # four rows a step: four steps of 12 tokens, one of 12 and three of 16, one of 16
    tokens = {4: 4 * 4 * 12, 8: 4 * (12 + 3 * 16), 9: 4 * 16}
    assert [row["step"] for row in rows] == list(tokens)
    for row in rows:
        assert row["seconds"] >= 0.25
        expected = tokens[row["step"]] / row["seconds"]
        assert row["tokens_per_second"] == pytest.approx(expected, abs=0.1)


def test_evaluations_and_checkpoints_are_not_counted_as_training(tmp_path, monkeypatch):
    """By a clock on which a step takes a second, an evaluation 100 and a checkpoint 10,000."""
    now = [0]

    def takes(seconds, call):
        def timed(*arguments, **keywords):
            now[0] += seconds
            return call(*arguments, **keywords)

        return timed

    monkeypatch.setattr(
        "ropewalk_lab.trainer.time", SimpleNamespace(perf_counter=lambda: float(now[0]))
    )
    trainer = tiny_trainer(
        tmp_path,
        evaluate=takes(100, lambda t: {}),
        settings=tiny_settings(log_every=2, save_every=3, evaluate_every=4),
    )
    trainer.take_step = takes(1, trainer.take_step)
    trainer.save = takes(10_000, trainer.save)
    trainer.run()
    rows = [row for row in trainer.log.rows() if "seconds" in row]
    assert [(row["step"], row["seconds"]) for row in rows] == [
        (2, 2),
        (3, 1),  # a checkpoint follows
        (4, 1),  # an evaluation follows
        (6, 2),
        (8, 2),
        (9, 1),
    ]
    tokens = {2: 2 * 12, 3: 12, 4: 12, 6: 12 + 16, 8: 2 * 16, 9: 16}
    for row in rows:
        expected = 4 * tokens[row["step"]] / row["seconds"]  # four rows a step
        assert row["tokens_per_second"] == pytest.approx(expected)


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("terminal", [True, False])
def test_a_bar_is_drawn_on_a_terminal_only(tmp_path, monkeypatch, terminal):
    shown = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr("sys.stderr", shown)
    monkeypatch.setenv("TERM", "xterm")
    trainer = tiny_trainer(tmp_path, None, progress=True)
    trainer.run()
    assert ("9/9" in shown.getvalue()) == terminal
    assert (f"loss {trainer.smoothed:.4f}  " in shown.getvalue()) == terminal
    assert bool(re.search(r"loss \d+\.\d{4}  [\d,]+ tokens/s", shown.getvalue())) == terminal


def test_the_trainer_predicts_as_its_model(tmp_path):
    trainer = tiny_trainer(tmp_path, None)
    tokens = torch.arange(14).view(2, 7)
    assert torch.equal(trainer.predict(tokens), trainer.model(tokens))


def test_a_thread_loads_what_the_loop_would(tmp_path):
    loader = Loader(tiny_batches(tmp_path), tiny_settings().stages, 2, Parallel())
    for ahead, here in zip(loader._prefetch(2, 8), loader.steps(2, 8), strict=True):
        assert ahead.step == here.step
        for a, b in zip(ahead.micro_batches, here.micro_batches, strict=True):
            assert torch.equal(a.inputs, b.inputs)
            assert a.inputs.dtype == torch.int64


def test_a_loader_raises_errors_of_its_thread_and_can_be_closed(tmp_path):
    loader = Loader(TaskBatches("nap"), tiny_settings().stages, 1, Parallel())
    with pytest.raises(RopeError, match="task"):
        next(loader._prefetch(0, 5))
    steps = Loader(tiny_batches(tmp_path), tiny_settings().stages, 1, Parallel())._prefetch(0, 9)
    next(steps)
    steps.close()


def test_mixed_precision_never_touches_angles():
    rope, positions = Rope(RopeSpec(head_dim=10)), torch.tensor([3, 100_001, 2_000_003])
    x = torch.randn(1, 3, 10)
    expected, rotated = rope.cos_sin(positions), rope(x, positions=positions)
    with autocast("bfloat16", torch.device("cpu")):
        assert torch.mm(x[0], x[0].T).dtype == torch.bfloat16
        for found, exact in zip(rope.cos_sin(positions), expected, strict=True):
            assert found.dtype == torch.float32
            assert torch.equal(found, exact)
        assert torch.equal(rope(x, positions=positions), rotated)


def test_training_falls_back_to_float32_where_bfloat16_is_slower(tmp_path, monkeypatch, logged):
    from ropewalk_lab import precision

    monkeypatch.setattr(precision, "bfloat16_is_faster", lambda: False)
    plain, mixed = (
        tiny_trainer(tmp_path, None, settings=tiny_settings(precision=p))
        for p in ("float32", "bfloat16")
    )
    plain.run()
    mixed.run()
    assert losses(plain) == losses(mixed)
    assert "\n".join(logged).count("training in float32") == 1
