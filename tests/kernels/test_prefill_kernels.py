"""The QKV kernels for many tokens: machine code for sm_90, and which form computes a call."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from hopper import CompileInstead, registers_and_spills

import ropewalk as rw
from ropewalk.kernels import qkv
from ropewalk.kernels.fused import KVSlots, QKNorm
from ropewalk.kernels.fused.api import checked_call
from ropewalk.kernels.prefill import forms, launch
from torch_release import needs_triton_3_6

FORMS = {"plain": forms.PLAIN, "one tile": forms.ONE_TILE, "many tiles": forms.MANY_TILES}
zeros = partial(torch.zeros, dtype=torch.bfloat16)


def compiled(form, spec, cache_dtype, normed, monkeypatch):
    """The kernel of a form, compiled for a product without a cache, or with pages of a dtype and a
    bias; normed or not.
    """
    from ropewalk.kernels.prefill import kernel, specialised

    built, width = [], spec.head_dim
    heads = (1024 // width, 512 // width)
    stored = cache_dtype is not None
    caches = (
        [torch.zeros(16, heads[1], 16, width).to(cache_dtype).transpose(1, 2) for _ in range(2)]
        if stored
        else None
    )
    cache, norm = (
        KVSlots(*caches) if stored else None,
        QKNorm(zeros(width), zeros(width)) if normed else None,
    )
    index = torch.zeros((spec.num_axes, 256) if spec.num_axes > 1 else 256, dtype=torch.int64)
    slots = torch.zeros(256, dtype=torch.int64) if stored else None
    call, _ = checked_call(
        zeros(256, 2048), None, None, spec, index, heads, norm, cache, slots, None
    )
    for module, changed in ((kernel, {"QUICK": True}), (specialised, {})):
        monkeypatch.setattr(module, "qkv_tiles", CompileInstead(module.qkv_tiles, built, **changed))
    monkeypatch.setattr(launch, "multiprocessors", lambda device: 132)
    launch.run(form, zeros(256, 512), zeros(2048, 512), zeros(2048) if stored else None, call)
    return built[0][1]


@needs_triton_3_6
@pytest.mark.parametrize(
    ("name", "layout", "cache_dtype", "normed"),
    [
        *((name, "interleaved", None, False) for name in FORMS), *((name, "half", torch.bfloat16, True) for name in FORMS),
        ("one tile", "interleaved", torch.float8_e4m3fn, False), ("one tile", "interleaved", torch.bfloat16, True),
    ],
)  # fmt: skip
def test_the_machine_code_has_no_spills(name, layout, cache_dtype, normed, tmp_path, monkeypatch):
    code = compiled(FORMS[name], rw.RopeSpec(128, layout=layout), cache_dtype, normed, monkeypatch)
    assert registers_and_spills(code, tmp_path)[1] == 0


def call_of(tokens, spec, heads, cache_dtype=None):
    """A call for a product of so many tokens, in bfloat16, and its number of columns."""
    columns = (heads[0] + 2 * heads[1]) * spec.head_dim
    cache = slots = None
    index = torch.zeros(tokens, dtype=torch.int64)
    if cache_dtype is not None:
        cache, slots = (
            KVSlots(*(torch.zeros(8, heads[1], spec.head_dim).to(cache_dtype) for _ in range(2))),
            index,
        )
    return checked_call(
        zeros(columns).expand(tokens, -1), None, None, spec, index, heads, None, cache, slots, None
    )[0], columns


@pytest.fixture
def hopper(monkeypatch):
    """Choose as on a GPU of 132 multiprocessors with Triton 3.6."""
    monkeypatch.setattr(forms, "_has_gluon", lambda: True)
    monkeypatch.setattr(forms, "interpreting", lambda: False)
    monkeypatch.setattr(forms, "multiprocessors", lambda device: 132)


@pytest.mark.parametrize(
    ("tokens", "depth", "head_dim", "cache_dtype", "form"),
    [
        # 6,144 columns are 48 tiles of one head for each 64 tokens
        (128, 512, 128, None, "one tile"),
        (129, 512, 128, None, "many tiles"),
        (128, 512, 64, torch.bfloat16, "one tile"),
        (128, 512, 128, torch.float8_e4m3fn, "one tile"),
        # a cache of another dtype, other dims of a head, and too few blocks of depth
        (128, 512, 128, torch.float16, "plain"),
        (128, 512, 256, None, "plain"),
        (128, 192, 128, None, "plain"),
    ],
)
def test_which_form_computes(tokens, depth, head_dim, cache_dtype, form, hopper):
    call, columns = call_of(
        tokens, rw.RopeSpec(head_dim), (4096 // head_dim, 1024 // head_dim), cache_dtype
    )
    assert forms.pick_form(zeros(tokens, depth), zeros(columns, depth), call) == FORMS[form]


@pytest.mark.parametrize(
    ("tokens", "cached", "kernel"),
    [
        (32, False, None), (33, False, "one tile"), (64, True, "few"), (65, True, "one tile"), (128, False, "one tile"),
        (129, True, None), (2047, True, "many tiles"), (2048, False, "many tiles"), (3072, True, None),
        (4096, True, "many tiles"), (16384, False, "many tiles"),
    ],
)  # fmt: skip
def test_the_kernel_is_the_one_that_docs_fused_names(tokens, cached, kernel, hopper):
    """For the shape of Llama-3-8B."""
    call, columns = call_of(tokens, rw.RopeSpec(128), (32, 8), torch.bfloat16 if cached else None)
    got = qkv._kernel(
        zeros(1).expand(tokens, 4096), zeros(1).expand(columns, 4096), call, any_size=False
    )
    assert got == FORMS.get(kernel, kernel)


def test_other_versions_of_triton_compute_the_plain_form(monkeypatch):
    monkeypatch.setattr(forms, "_has_gluon", lambda: False)
    call, columns = call_of(128, rw.RopeSpec(128), (32, 8))
    assert forms.pick_form(zeros(128, 512), zeros(columns, 512), call) == forms.PLAIN


def swept():
    """(row of the sweep, whether one launch was faster than two), where they differ by more than a
    point.
    """
    file = Path(__file__).parents[2] / "results" / "h200_projection.jsonl"
    for row in (
        row for row in map(json.loads, file.read_text().splitlines()) if row["what"] == "qkv sweep"
    ):
        over = row["over_percent"]
        pairs = [("product, then rotation", "rotation inside")]
        pairs += (
            [("product, then norm, rotation and cache", "norm, rotation and cache inside")]
            if row["rows"] > 64
            else []
        )
        gains = [over[two] - over[one] for two, one in pairs]
        if all(abs(gain) > 1 for gain in gains) and len({gain > 0 for gain in gains}) == 1:
            yield row, gains[0] > 0


def test_one_launch_is_chosen_where_the_sweep_found_it_faster(hopper):
    device, right, total = torch.device("cpu"), 0, 0
    for row, faster in swept():
        tiles = forms.ONE_TILE.tiles(row["rows"], row["columns"])
        chosen = forms.is_faster(
            forms.ONE_TILE if tiles <= 132 else forms.MANY_TILES,
            row["rows"],
            row["columns"],
            device,
        )
        assert faster or not chosen, row  # never the slower one
        right, total = right + (chosen == faster), total + 1
    assert total > 40
    assert right >= 0.9 * total  # a simple rule misses a few places
