"""What `extend` writes for a family, the family's own code loads and computes; what its code does
not load is refused.
"""

from __future__ import annotations

import copy
import random
import warnings
from dataclasses import replace

import pytest
import torch
from hf_families import CASES
from installed import V5

from ropewalk import RopeError
from ropewalk.config.families import FAMILIES
from ropewalk.interop.extend.keys import kinds
from ropewalk.interop.extend.model import extend
from ropewalk.tensor_frequencies import ladder

#: kinds that a config can hold and that need no list of factors
WRITTEN = sorted(kinds().keys() - {"longrope", "dynamic_yarn"})
ERNIE = CASES["ernie-4.5-vl"]
#: the name of one case of every family
FAMILY_CASES = list({case.model_type: name for name, case in CASES.items()}.values())
new_only = pytest.mark.skipif(
    not V5, reason="older releases refuse scalings in their config classes"
)


@pytest.mark.sampled(every=3)
@new_only
@pytest.mark.parametrize("name", FAMILY_CASES)
def test_the_familys_code_loads_what_is_written_and_computes_it(name):
    case, kind = CASES[name], random.Random(name).choice(WRITTEN)
    config = copy.deepcopy(case.config)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            written = extend(config, kind, factor=4, overwrite=True)
    except RopeError:
        return
    module = case.rotary_class(config)
    prefix = f"{case.layer_type}_" if case.layer_type else ""
    theirs = getattr(module, f"{prefix}inv_freq")
    ours = written.specs.get(case.layer_type or "full_attention")
    if ours is not None:
        # ernie stores its pairs in another order
        wanted = ladder(ours).radians.sort().values.float()
        torch.testing.assert_close(theirs.sort().values, wanted, rtol=1e-5, atol=0)


def ernie_text(**keys):
    return {
        "model_type": "ernie4_5_vl_moe",
        "text_config": {
            "hidden_size": 256,
            "num_attention_heads": 2,
            "max_position_embeddings": 128,
            "rope_theta": 5e5,
            **keys,
        },
    }


@pytest.mark.parametrize("kind", [kind for kind in WRITTEN if kind != "ntk"])
def test_a_family_that_loads_no_scaling_is_refused(kind):
    config = ernie_text()
    before = copy.deepcopy(config)
    with pytest.raises(RopeError, match="kind: must be ntk for ernie4_5_vl_moe_text"):
        extend(config, kind, factor=4)
    assert config == before


@new_only
def test_a_rotary_module_that_refuses_a_scaling_is_named_and_the_model_stays(monkeypatch):
    monkeypatch.setitem(
        FAMILIES, ERNIE.model_type, replace(FAMILIES[ERNIE.model_type], only_default=False)
    )

    class Holder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.config = copy.deepcopy(ERNIE.config)
            self.rotary_emb = ERNIE.rotary_class(self.config)

    model = Holder()
    before = model.rotary_emb.inv_freq.clone()
    with pytest.raises(
        RopeError,
        match=r"kind: must be a scaling that Ernie4_5_VLMoeTextRotaryEmbedding accepts \(Ernie",
    ):
        extend(model, "linear", factor=4)
    assert torch.equal(model.rotary_emb.inv_freq, before)
    assert model.config.rope_parameters["rope_type"] == "default"
