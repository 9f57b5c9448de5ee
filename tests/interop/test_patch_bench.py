"""The benchmark of the patch measures what it says, checked on tiny sizes."""

from __future__ import annotations

import torch
from installed import needs_v5
from torch.testing import assert_close

import patch
from ropewalk.interop.patch.model import patched

TINY = {
    **patch.SMALL,
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 16,
}


@needs_v5("has no static cache that can be rewound")
@torch.no_grad()
def test_a_decode_step_repeats_and_a_patched_model_takes_it():
    model = patch.llama(TINY, "cpu", torch.float32)
    step, rewind = patch.decode_step(model, 2)
    rewind()
    first = step()
    rewind()
    assert first.shape == (2, 1, 1024)
    assert_close(step(), first)
    rewind()
    with patched(model):
        ours = step()
    assert not torch.equal(ours, first)
    assert_close(ours, first, rtol=0, atol=1e-5)


@needs_v5("may name the dtype of a new model otherwise")
def test_rows_of_the_cpu_compare_both_models(monkeypatch):
    small = {"num_attention_heads": 4, "num_key_value_heads": 1}
    monkeypatch.setattr(patch, "SMALL", TINY)
    monkeypatch.setattr(patch, "LLAMA_3_8B", {**patch.LLAMA_3_8B, **small})
    rows = list(patch.measure_cpu(rounds=2))
    assert [row["contender"] for row in rows] == ["transformers", "ropewalk, patch"] * 4
    assert all(row["us"] > 0 and row["times_faster"] > 0 for row in rows)


def test_a_lead_is_the_median_over_rounds_with_its_95_percent_interval():
    """By hand: of nine sorted differences the fifth is the median, and the interval ends 0.98 *
    sqrt(9), rounded to three, ranks to either side of it.
    """
    ours = [10.0, 20.0, 30.0, 10.0, 20.0, 30.0, 10.0, 20.0, 30.0]
    ahead = [0.5, 0.1, 0.9, 0.3, 0.7, 0.2, 0.6, 0.4, 0.8]
    found = patch.lead(ours, [our + by for our, by in zip(ours, ahead, strict=True)])
    assert_close(torch.tensor(found), torch.tensor([0.2, 0.5, 0.8]))
