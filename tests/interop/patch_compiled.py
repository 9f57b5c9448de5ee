"""What torch.compile makes of a patched model: one graph, the numbers of the eager model. Run by
test_patch.py.
"""

from __future__ import annotations

import copy

import pytest
import torch
from installed import config_of, skip_old_cache
from patch_models import SIZES, model_of, outputs, tokens
from torch.testing import assert_close
from transformers import AutoModelForCausalLM

from ropewalk.interop.patch.model import patch, unpatch


class Counted:
    """A backend that runs the graphs it is given as they are, and counts them."""

    def __init__(self):
        self.graphs = 0

    def __call__(self, graph, inputs):
        self.graphs += 1
        return graph


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(("family", "lengths"), [("llama", (11, 23)), ("gemma-3", (11,))])
def test_a_patched_model_compiles_to_one_graph_for_each_length(family, lengths):
    skip_old_cache(family)
    model, counted = patch(copy.deepcopy(model_of(family))), Counted()
    compiled = torch.compile(model, fullgraph=True, backend=counted)
    with torch.no_grad():
        for length in lengths:
            ids = tokens(2, length)
            assert_close(outputs(compiled, ids), outputs(model, ids), rtol=0, atol=2e-5)
    assert counted.graphs <= len(lengths)


def test_a_model_that_rotates_by_its_own_tables_compiles_to_one_graph():
    """NanoChat has no spec, so its tables are used, and checked in the graph."""
    torch.manual_seed(1)
    model = patch(AutoModelForCausalLM.from_config(config_of("nanochat", **SIZES)).eval())
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        assert_close(outputs(compiled), outputs(model), rtol=0, atol=2e-5)


def test_gradients_of_a_compiled_model_are_those_of_the_eager_one():
    model = patch(copy.deepcopy(model_of("llama")))
    wanted = list(model.parameters())
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    grads = [
        torch.autograd.grad(outputs(each).square().mean(), wanted) for each in (compiled, model)
    ]
    for mine, other in zip(*grads, strict=True):
        assert_close(mine, other, rtol=1e-4, atol=1e-5)


def test_layers_compiled_one_by_one_need_no_more_graphs_than_without_a_patch():
    graphs = []
    for patched_too in (False, True):
        torch._dynamo.reset()
        model, counted = copy.deepcopy(model_of("llama")), Counted()
        if patched_too:
            patch(model)
        with torch.no_grad():
            eager = outputs(model)
            for layer in model.model.layers:
                layer.compile(fullgraph=True, backend=counted)
            assert_close(outputs(model), eager, rtol=0, atol=2e-5)
        graphs.append(counted.graphs)
    assert graphs[1] <= graphs[0]


def test_a_compiled_model_follows_unpatch():
    model = copy.deepcopy(model_of("llama"))
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        plain = outputs(model)
        assert_close(outputs(compiled), plain, rtol=0, atol=2e-5)
        patch(model)
        ours = outputs(model)
        assert torch.equal(outputs(compiled), ours)
        unpatch(model)
        assert_close(outputs(compiled), plain, rtol=0, atol=2e-5)
