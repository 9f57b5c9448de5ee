"""Batches by sample number: every window once, masks in their shares, and samples that do not
depend on their batch.
"""

import numpy as np
import pytest
import torch
from lab_tiny import tiny_batches, tiny_corpus

from ropewalk.errors import RopeError
from ropewalk_lab.batches import (
    IGNORED,
    Batch,
    MaskedBatches,
    MixedBatches,
    TaskBatches,
    TextBatches,
    mask_tokens,
)
from ropewalk_lab.stateless_random import uniform
from ropewalk_lab.tokenizer import Bytes


def test_each_target_is_the_next_input_token(tmp_path):
    batch = tiny_batches(tmp_path).batch(np.arange(9), 7)
    assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])
    assert batch.count == 63


def test_every_tensor_of_a_batch_moves_to_the_device():
    narrow, flags = torch.zeros(2, 3, dtype=torch.int16), torch.ones(2, 3, dtype=torch.bool)
    batch = Batch(narrow, narrow, 6, positions=narrow, types=narrow, padding=flags).to(
        torch.device("meta")
    )
    assert batch.count == 6
    assert batch.documents is None
    tensors = {"inputs": batch.inputs, "targets": batch.targets, **batch.keywords}
    assert {name: (x.device.type, x.dtype) for name, x in tensors.items()} == {
        **dict.fromkeys(("inputs", "targets", "positions", "types"), ("meta", torch.int64)),
        "padding": ("meta", torch.bool),
    }


def test_each_pass_uses_every_window_once_in_another_order(tmp_path):
    batches = tiny_batches(tmp_path)
    windows = (len(batches.split.tokens) - 1) // 7 - 1
    first, second = (batches.starts(np.arange(windows) + windows * n, 7) for n in (0, 1))
    for starts in (first, second):
        # an offset may put the last window into the next
        assert len(set(starts // 7)) >= windows - 1
        assert len(set(starts)) == windows
        assert np.diff(np.sort(starts)).tolist() == [7] * (windows - 1)
        assert starts.max() + 8 <= len(batches.split.tokens)
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, tiny_batches(tmp_path, seed=1).starts(np.arange(windows), 7))


def test_inputs_are_the_tokens_of_the_split_from_their_starts(tmp_path):
    batches = tiny_batches(tmp_path)
    batch = batches.batch(np.array([3, 5]), 7)
    for row, start in zip(batch.inputs, batches.starts(np.array([3, 5]), 7), strict=True):
        assert row.tolist() == batches.split.tokens[start : start + 7].tolist()


def test_the_document_index_rises_after_each_separator(tmp_path):
    corpus = tiny_corpus(tmp_path)
    batches = TextBatches(corpus.train, 264, "", documents=True)
    batch = batches.batch(np.arange(40), 50)
    for row, numbers in zip(batch.inputs, batch.documents, strict=True):
        # the separator 0 ends a document
        assert torch.equal(
            numbers - numbers[0],
            torch.cat((torch.zeros(1), (row[:-1] == 0).float())).cumsum(0).long(),
        )
    assert (batch.documents[:, 0] != batch.documents[:, -1]).any()


def test_a_length_of_half_the_split_or_more_is_refused(tmp_path):
    with pytest.raises(RopeError, match="less than half of the"):
        tiny_batches(tmp_path).batch(np.arange(2), 10**5)


def test_masking_changes_80_10_and_10_percent_of_the_targets():
    rows = np.full((400, 100), ord("x"), dtype=np.uint8)
    inputs, targets = mask_tokens(rows, np.arange(400), Bytes(), share=0.2)
    asked = targets != IGNORED
    assert abs(asked.float().mean() - 0.2) < 0.01
    assert (targets[asked] == ord("x")).all()
    assert (inputs[~asked] == ord("x")).all()
    shown = inputs[asked]
    assert abs((shown == 256).float().mean() - 0.8) < 0.02
    assert abs((shown == ord("x")).float().mean() - 0.1) < 0.015
    others = shown[(shown != 256) & (shown != ord("x"))]
    assert others.unique().numel() > 200
    assert others.max() < 256


def test_with_whole_words_all_tokens_of_a_word_are_targets_or_none():
    text = (b"walk along a rope " * 6)[:100]
    rows = np.frombuffer(text, dtype=np.uint8)[None].repeat(50, 0)
    _, targets = mask_tokens(rows, np.arange(50), Bytes(), share=0.3, whole_words=True)
    asked = (targets != IGNORED).numpy()
    words = np.cumsum(Bytes().starts_word(rows), axis=1)
    for row in range(50):
        for word in np.unique(words[row]):
            assert len(set(asked[row][words[row] == word])) == 1
    assert 0.2 < asked.mean() < 0.4


def test_masking_a_sample_does_not_depend_on_its_batch(tmp_path):
    masked = MaskedBatches(tiny_batches(tmp_path), Bytes())
    whole, part = masked.batch(np.arange(8), 11), masked.batch(np.array([5]), 11)
    assert torch.equal(whole.inputs[5:6], part.inputs)
    assert torch.equal(whole.targets[5:6], part.targets)
    assert whole.count == int((whole.targets != IGNORED).sum())


def test_the_source_of_a_mixed_sample_follows_its_share_and_not_its_batch(tmp_path):
    text, task = tiny_batches(tmp_path), TaskBatches("copy")
    mixed = MixedBatches((text, task), (0.75, 0.25), seed=3)
    index = np.arange(400)
    from_task = uniform(3, index, 5, 1)[:, 0] >= 0.75
    assert abs(from_task.mean() - 0.25) < 0.08
    one_by_one = [mixed.batch(np.array([i]), 12) for i in range(30)]
    for i, batch in enumerate(one_by_one):
        source = task if from_task[i] else text
        assert torch.equal(batch.inputs, source.batch(np.array([i]), 12).inputs.int())
    whole = mixed.batch(np.arange(30), 12)
    assert whole.count == sum(batch.count for batch in one_by_one)
    assert sorted(whole.inputs.tolist()) == sorted(batch.inputs[0].tolist() for batch in one_by_one)


def test_shares_must_add_up(tmp_path):
    with pytest.raises(RopeError, match="add up to 1"):
        MixedBatches((TaskBatches("copy"), TaskBatches("sort")), (0.5, 0.4))


def test_an_unknown_task_lists_the_known():
    with pytest.raises(RopeError, match="copy, reverse, sort"):
        TaskBatches("nap").batch(np.arange(2), 9)


def test_passes_begin_at_different_offsets(tmp_path):
    """Otherwise a model would only ever see the same windows."""
    batches = tiny_batches(tmp_path)
    windows = (len(batches.split.tokens) - 1) // 7 - 1
    offsets = batches.starts(windows * np.arange(60), 7) % 7
    assert set(offsets.tolist()) == set(range(7))


def test_mixtures_of_another_seed_have_another_fingerprint(tmp_path):
    parts = (tiny_batches(tmp_path), TaskBatches("passkey"))
    one, other = (MixedBatches(parts, (0.5, 0.5), seed) for seed in (0, 1))
    index = np.arange(40)
    assert not torch.equal(one.batch(index, 96).inputs, other.batch(index, 96).inputs)
    assert one.fingerprint != other.fingerprint == MixedBatches(parts, (0.5, 0.5), 1).fingerprint


def test_a_mask_is_moved_with_the_other_tensors():
    tokens = torch.zeros(2, 3, dtype=torch.int32)
    moved = Batch(tokens, tokens, 6, padding=tokens == 0).to(torch.device("meta"))
    assert moved.padding is not None
    assert (moved.padding.device.type, moved.padding.dtype) == ("meta", torch.bool)


def test_any_word_of_the_vocabulary_may_replace_a_token_and_no_special_one():
    """A random token is one of the words, the first and the last among them."""

    class Four(Bytes):
        num_text_ids = 4

    rows = np.full((400, 200), 9, dtype=np.uint8)
    inputs, targets = mask_tokens(rows, np.arange(400), Four(), share=0.5)
    seen = inputs[(targets == 9) & (inputs != 9) & (inputs != Four().mask_id)]
    assert seen.unique().tolist() == [0, 1, 2, 3]


def test_the_share_of_masked_tokens_is_that_of_bert_unless_another_is_given(tmp_path):
    text = tiny_batches(tmp_path)
    assert MaskedBatches(text, Bytes()).share == 0.15
    rows = np.full((200, 200), 9, dtype=np.uint8)
    _, targets = mask_tokens(rows, np.arange(200), Bytes())
    assert abs((targets != IGNORED).double().mean() - 0.15) < 0.01


def fingerprints(tmp_path):
    text, task = tiny_batches(tmp_path), TaskBatches("copy")
    mixed = MixedBatches((text, task), (0.5, 0.5))
    return {
        "masked": [
            MaskedBatches(text, Bytes()),
            MaskedBatches(text, Bytes(), share=0.2),
            MaskedBatches(text, Bytes(), whole_words=True),
            MaskedBatches(text, Bytes(), seed=1),
            MaskedBatches(task, Bytes()),
        ],
        "task": [
            task,
            TaskBatches("sort"),
            TaskBatches("copy", seed=1),
            TaskBatches("copy", options=(("least", 0.5),)),
        ],
        "mixed": [
            mixed,
            MixedBatches((text, task), (0.5, 0.5), seed=1),
            MixedBatches((text, task), (0.4, 0.6)),
            MixedBatches((task, text), (0.5, 0.5)),
        ],
    }


@pytest.mark.parametrize("kind", ["masked", "task", "mixed"])
def test_batches_with_other_settings_have_other_samples_and_fingerprints(tmp_path, kind):
    made = fingerprints(tmp_path)[kind]
    assert len({each.fingerprint for each in made}) == len(made)
    samples = []
    for each in made:
        batch = each.batch(np.arange(40), 16)
        samples.append((batch.inputs.tolist(), batch.targets.tolist()))
    assert all(samples.count(each) == 1 for each in samples)


def test_a_mixture_has_the_larger_vocabulary():
    small, large = TaskBatches("copy", vocab_size=264), TaskBatches("sort", vocab_size=300)
    assert MixedBatches((small, large), (0.5, 0.5)).vocab_size == 300


def test_every_tensor_of_a_batch_is_passed_by_its_name_and_booleans_stay_booleans():
    tensors = {
        "positions": torch.zeros(1, 2, dtype=torch.int16),
        "types": torch.ones(1, 2, dtype=torch.int8),
        "padding": torch.tensor([[True, False]]),
        "documents": torch.full((1, 2), 3, dtype=torch.int32),
    }
    batch = Batch(torch.ones(1, 2, dtype=torch.uint8), torch.ones(1, 2), 2, **tensors)
    moved = batch.to(torch.device("cpu"))
    assert list(moved.keywords) == list(tensors)
    for name, tensor in tensors.items():
        assert torch.equal(moved.keywords[name].to(tensor.dtype), tensor)
        expected = torch.bool if name == "padding" else torch.int64
        assert moved.keywords[name].dtype == expected
    assert moved.inputs.dtype == torch.int64
    assert list(Batch(batch.inputs, batch.targets, 2).keywords) == []
