"""Steps without a target, and runs killed before their first checkpoint."""

from dataclasses import replace

import torch
from lab_tiny import losses, tiny_batches, tiny_settings, tiny_trainer

from ropewalk_lab.batches import IGNORED


class NoTargets:
    """The batches of a given source, with every target marked as ignored."""

    def __init__(self, text):
        self.text, self.vocab_size, self.fingerprint = text, text.vocab_size, "no targets"

    def batch(self, index, length):
        batch = self.text.batch(index, length)
        return replace(batch, targets=torch.full_like(batch.targets.int(), IGNORED), count=0)


def test_a_step_without_targets_has_the_loss_0_and_no_gradient(tmp_path):
    trainer = tiny_trainer(
        tmp_path,
        batches=NoTargets(tiny_batches(tmp_path)),
        settings=tiny_settings(weight_decay=0.0),
    )
    before = [p.clone() for p in trainer.model.parameters()]
    assert trainer.run().step == 9
    assert losses(trainer) == [0.0] * 9
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.model.parameters(), strict=True))


def test_a_run_killed_before_its_first_checkpoint_begins_its_log_again(tmp_path):
    settings = tiny_settings(log_every=1, save_every=100)
    whole = tiny_trainer(tmp_path, "whole", settings=settings)
    whole.run()
    (tmp_path / "run").mkdir()
    lines = (tmp_path / "whole" / "log.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "run" / "log.jsonl").write_text("".join(lines[:3]) + lines[3][:20])
    again = tiny_trainer(tmp_path, settings=settings)
    again.run()
    assert [row["step"] for row in again.log.rows()] == list(range(1, 10))
    assert losses(again) == losses(whole)
