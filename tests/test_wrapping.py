"""Scalings over another scaling: the published numbers, the code of CoPE and LeRoPE, and the
configs that name them.
"""

from __future__ import annotations

import copy
import json
import pickle

import pytest
import torch
from torch.testing import assert_close

import ropewalk as rw
from door import as_users_call, assert_refused
from ropewalk import frequencies as fq
from ropewalk.interop.extend.keys import config_change
from ropewalk.tensor_frequencies import formula
from tensor_forms import tensors

LLAMA = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_attention_heads": 2,
    "max_position_embeddings": 4096,
}


def test_the_published_numbers():
    """Values computed by hand for d = 8."""
    soft, hard = (
        tensors(rw.RopeSpec(8, scaling=fq.Clipped(pairs=n, soft=s))).radians
        for n, s in ((3, True), (2, False))
    )
    assert_close(soft, torch.tensor([1, 0.1, 0.005, 0], dtype=torch.float64), rtol=1e-15, atol=0)
    assert_close(hard, torch.tensor([1, 0.1, 0, 0], dtype=torch.float64), rtol=1e-15, atol=0)


@pytest.mark.parametrize("head_dim", [10, 40, 128])
def test_soft_clipping_is_the_authors_code(head_dim):
    """The mask of CoPE's modeling file, with its default of 20 pairs, over YaRN's final
    frequencies.
    """
    inner = fq.Yarn(4096, factor=4.0)
    theirs = formula(inner, head_dim, 5e5).radians.clone()
    clip = min(20, len(theirs))
    theirs[len(theirs) - clip :] *= 0.5 * (
        1 + torch.cos(torch.linspace(0, torch.pi, clip, dtype=torch.float64))
    )
    assert_close(formula(fq.Clipped(inner), head_dim, 5e5).radians, theirs, rtol=1e-12, atol=1e-18)


def test_learned_is_what_transformers_computes_from_a_checkpoints_alpha():
    """LeRoPE over YaRN in Mistral Large 4; alpha is a buffer of its rotary module."""
    modeling = pytest.importorskip("transformers.models.mistral_large4.modeling_mistral_large4")
    config = modeling.MistralLarge4TextConfig()
    theirs = modeling.MistralLarge4TextRotaryEmbedding(config)
    theirs.alpha.copy_(torch.linspace(-0.6, 0.4, theirs.alpha.numel()))
    spec = rw.from_hf(config, precision="hf")
    # alpha may be a tensor
    with as_users_call():
        spec = spec.with_(scaling=fq.Learned(spec.scaling, alpha=theirs.alpha))
    positions = torch.tensor([[0, 1, 77, 4099]])
    cos, sin = theirs(torch.zeros(1), positions)
    ours = rw.Rope(spec).cos_sin(positions)
    assert spec.pairs == theirs.alpha.numel()
    for found, wanted in zip(ours, (cos, sin), strict=True):
        assert_close(found, wanted[..., : spec.pairs], rtol=0, atol=3e-7)


def test_learned_with_the_log_scale_of_a_learnable_rope_rotates_as_that_rope():
    rope = rw.Rope(rw.RopeSpec(10, scaling=fq.Learnable(fq.Linear(2.0))))
    with torch.no_grad():
        rope.log_scale.copy_(torch.tensor([0.3, -0.2, 0.0, 1.5, -2.0]))
    with as_users_call():
        kept = rw.Rope(
            rope.spec.with_(scaling=fq.Learned(rope.spec.scaling.start, alpha=rope.log_scale))
        )
    q, positions = torch.randn(1, 2, 7, 10, dtype=torch.float64), torch.arange(7) * 31
    assert_close(kept.rotate(q, positions), rope.rotate(q, positions), rtol=0, atol=1e-12)
    assert not list(kept.parameters())
    # a rope with learned frequencies refuses to rerotate
    shifted = kept.rerotate(kept.rotate(q, positions), positions, positions + 5)
    assert_close(shifted, kept.rotate(q, positions + 5), rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    "wrap", [lambda s: fq.Clipped(s, 2), lambda s: fq.Learned(s, (0.1, 0.2, 0.3, 0.4))]
)
@pytest.mark.parametrize(
    "inner", [fq.Default(), fq.Dynamic(2.0, 8), fq.XPos(64.0, 3), fq.Yarn(64, factor=4.0)]
)
def test_magnitude_center_and_needs_length_are_those_of_the_inner_scaling(wrap, inner):
    scaling = wrap(inner)
    assert scaling.needs_length == inner.needs_length
    ours, theirs = (formula(s, 8, 1e4, 20) for s in (scaling, inner))
    assert (ours.magnitude, ours.center, ours.growth is None) == (
        theirs.magnitude,
        theirs.center,
        theirs.growth is None,
    )
    for again in (copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))):  # noqa: S301 - written here
        assert again(scaling) == scaling
        assert again(scaling).needs_length == inner.needs_length


@pytest.mark.parametrize(
    "rope", [{}, {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e7, "factor": 4.0}}]
)
@pytest.mark.parametrize(
    ("flags", "soft"), [({"use_cope": True}, True), ({"use_hardclip": True}, False)]
)
def test_configs_with_copes_flags_are_read_and_written(rope, flags, soft):
    plain = rw.from_hf({**LLAMA, **rope})
    spec = rw.from_hf({**LLAMA, **rope, **flags})
    assert spec == plain.with_(scaling=fq.Clipped(plain.scaling, 20, soft))
    assert rw.from_hf({**LLAMA, **rope, **dict.fromkeys(flags, False)}) == plain
    for version in (4, 5):
        assert rw.from_hf(json.loads(json.dumps(rw.to_hf(spec, version=version)))) == rw.from_hf(
            rw.to_hf(plain)
        ).with_(scaling=spec.scaling)
    assert "soft" in str(rw.explain({**LLAMA, **rope, **flags}))


def test_a_config_with_both_flags_of_cope_clips_softly():
    assert rw.from_hf({**LLAMA, "use_cope": True, "use_hardclip": True}).scaling == fq.Clipped(
        fq.Default(), 20, True
    )
    assert_refused("use_cope", lambda: rw.from_hf({**LLAMA, "use_cope": "yes"}))
    assert_refused("scaling", lambda: rw.to_hf(rw.RopeSpec(8, scaling=fq.Clipped(pairs=3))))


def test_an_extended_config_stays_clipped():
    change = config_change({**LLAMA, "use_cope": True}, "yarn", factor=4.0)
    (spec,) = change.specs.values()
    assert spec.scaling == fq.Clipped(fq.Yarn(4096, factor=4.0))
