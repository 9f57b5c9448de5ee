"""Families of the installed transformers, patched and compared with themselves: some of them, and
with --full all.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import torch
import transformers
from family_walk import compare, families, walk, without_rotation
from installed import HERE, needs_v5
from patch_models import model_of, outputs
from rotary_specs import spec_verdict

from ropewalk.interop.patch.model import patched
from torch_release import OLD_TORCH

pytestmark = needs_v5("has other families; test_patch_families compares what it has")
ROOT = Path(__file__).parents[2]
ROWS = {
    row["family"]: row
    for row in map(json.loads, (ROOT / "results/families.jsonl").read_text().splitlines())
}
#: one family for each way of rotating, and one for each verdict
SAMPLE = (
    "llama",
    "deepseek_v3",
    "qwen2_vl_text",
    "qwen4_exp_text",
    "muse_glimmer_assistant",
    "neomme",
    "nanochat",
    "gemma4_vision",
    "dinov3_vit",
    "hunyuan_vl_text",
    "gpt2",
)
LEAST_EQUAL = 175


def is_fine(row: dict) -> bool:
    """Return whether a row has no wrong result and no crash, from_hf has the model's frequencies or
    refuses, and the verdict is that of the committed row.

    The last is left out for another transformers, and for torch 2.6, with which transformers cannot
    build every model.
    """
    if (
        not OLD_TORCH
        and transformers.__version__ == ROWS["llama"]["transformers"]
        and row["verdict"] != ROWS[row["family"]]["verdict"]
    ):
        return False
    return row["verdict"] not in ("wrong", "crash") and not any(
        each.startswith("wrong") for each in row.get("from_hf", {}).values()
    )


@pytest.mark.parametrize("family", SAMPLE)
def test_a_patched_family_gives_equal_logits_or_is_refused(family):
    row = compare(family)
    assert is_fine(row), row


@pytest.mark.slow
def test_every_patched_family_gives_equal_logits_or_is_refused(full):
    if not full:
        pytest.skip("all families only with --full; a sample of them above")
    rows = walk(families())
    assert [row for row in rows if not is_fine(row)] == []
    assert Counter(row["verdict"] for row in rows)["equal"] >= LEAST_EQUAL


def test_the_committed_rows_are_of_all_families():
    if transformers.__version__ != ROWS["llama"]["transformers"]:
        pytest.skip(f"{HERE} has other families")
    assert sorted(ROWS) == families()
    assert all(is_fine(row) for row in ROWS.values())
    assert Counter(row["verdict"] for row in ROWS.values())["equal"] >= LEAST_EQUAL


def test_the_comparison_notices_a_wrong_rotation(monkeypatch):
    """A rotation by other angles, and none at all, are not equal."""
    from ropewalk.interop.patch import functions

    run = functions.rotation.run
    monkeypatch.setattr(
        functions.rotation, "run", lambda xs, *rest: tuple(1.01 * x for x in run(xs, *rest))
    )
    assert compare("nanochat")["verdict"] in ("wrong", "refused")  # the trials notice it too
    monkeypatch.undo()
    model = model_of("llama")
    with torch.no_grad(), patched(model):
        plain = outputs(model)
        with without_rotation():
            assert not torch.allclose(outputs(model), plain, atol=1e-2)


def test_the_comparison_with_from_hf_notices_other_frequencies():
    module = model_of("llama").model.rotary_emb
    assert spec_verdict(module) == "equal"
    changed = type(module)(module.config)
    changed.inv_freq = changed.inv_freq * 1.0001
    assert spec_verdict(changed).startswith("wrong")
