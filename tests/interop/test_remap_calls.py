"""The positions of a remapped model belong to one call: other calls, a second computation of a layer
in backward, and gaps between cached tokens do not disturb them.
"""

import copy
import pickle
import threading
import warnings

import pytest
import torch
from extend_tiny import tiny
from installed import V5
from transformers import DynamicCache, StaticCache
from transformers.cache_utils import Cache
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import ropewalk as rw
from ropewalk.errors import RopeError

OPTIONS = {
    "rerope": {"window": 5},
    "leaky_rerope": {"window": 5, "slowdown": 3},
    "self_extend": {"group": 3, "window": 7},
    "dca": {"chunk": 12, "local": 3},
}
kinds = pytest.mark.parametrize("kind", OPTIONS)
pytestmark = pytest.mark.skipif(
    not hasattr(DynamicCache(), "layers"), reason="caches of this release have no layers"
)
TOKENS = torch.arange(3, 27)[None] * 5 % 60
#: ten tokens, then fourteen much later ones
GAP = torch.cat((torch.arange(10), torch.arange(14) + 30))[None]


def remapped(kind="rerope", family="llama", **changed):
    model = tiny(family, **changed)
    for weight in model.parameters():  # larger weights, so that positions matter
        if weight.ndim > 1:
            weight.data = 0.3 * torch.randn(
                weight.shape, generator=torch.Generator().manual_seed(weight.numel())
            )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rw.extend(model, kind, **OPTIONS[kind])
    return model


@torch.no_grad()
def logits(model, tokens=TOKENS, positions=GAP, **inputs):
    out = model(tokens, position_ids=positions, **inputs)
    return out.logits if hasattr(out, "logits") else out.last_hidden_state


def in_parts(model, cache, tokens=TOKENS, positions=GAP):
    """Return the logits of all tokens: the first twelve are read in one call, then one by one."""
    parts = [(0, 12), *((i, i + 1) for i in range(12, tokens.shape[1]))]
    return torch.cat(
        [logits(model, tokens[:, a:b], positions[:, a:b], past_key_values=cache) for a, b in parts],
        dim=1,
    )


def close(got, expected):
    torch.testing.assert_close(got, expected, atol=1e-4 * expected.abs().max().item(), rtol=0)


@kinds
def test_another_call_between_two_layers_changes_nothing(kind):
    model, other = remapped(kind), 3 * torch.arange(24)[None]
    expected, inner = logits(model), logits(model, positions=other)
    results = []

    def call_once(module, args):
        handle.remove()
        results.append(logits(model, positions=other))

    handle = model.model.layers[1].register_forward_pre_hook(call_once)
    assert torch.equal(logits(model), expected)
    assert torch.equal(results[0], inner)
    assert (inner - expected).abs().max() > 1e-2


def test_threads_share_a_model():
    model, places = remapped(), [GAP, 3 * torch.arange(24)[None]]
    expected = [logits(model, positions=each) for each in places]
    right = [0, 0]

    def work(i):
        for _ in range(10):
            right[i] += torch.allclose(logits(model, positions=places[i]), expected[i], atol=1e-4)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == [10, 10]


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("lengths", [(24, 24), (24, 17)])
def test_layers_computed_again_in_backward_have_the_positions_of_their_own_call(reentrant, lengths):
    model = remapped().train()
    places = [torch.arange(24)[None], (torch.arange(24) - 9).clamp(min=0)[None]]  # left padding

    def gradient():
        model.zero_grad()
        total = 0.0
        for positions, length in zip(places, lengths, strict=True):
            inputs = {"position_ids": positions[:, :length], "use_cache": False}
            mask = torch.ones(1, length, dtype=torch.long)
            out = model(TOKENS[:, :length], attention_mask=mask, **inputs).logits
            total = total + out.square().mean()
        total.backward()
        return model.model.layers[0].self_attn.q_proj.weight.grad.clone()

    expected = gradient()
    # reentrant checkpoints need an input with a gradient
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    torch.testing.assert_close(gradient(), expected, rtol=1e-4, atol=1e-6)


@kinds
@pytest.mark.parametrize("make", ["dynamic", "without a config", "static"])
def test_cached_keys_keep_their_positions_across_a_gap(kind, make):
    model = remapped(kind)
    caches = {
        "dynamic": lambda: DynamicCache(config=model.config),
        "without a config": DynamicCache,
        "static": lambda: StaticCache(config=model.config, max_cache_len=30),
    }
    close(in_parts(model, caches[make]()), logits(model, use_cache=True))


#: only the first gives positions to the attention function, and some do not even give them to the
#: attention module; in the last, every layer has a window
FAMILIES = [
    "qwen3",
    "persimmon",
    "ministral3",
    "llama4_text",
    "granitemoehybrid",
    "zaya",
    "mistral",
]


@pytest.mark.skipif(not V5, reason="tiny models of these families need transformers 5")
@pytest.mark.parametrize("family", FAMILIES)
def test_every_way_of_handing_positions_on_is_followed(family):
    if family not in CONFIG_MAPPING:
        pytest.skip(f"this transformers has no {family}")
    model = remapped(family=family)
    close(in_parts(model, DynamicCache(config=model.config)), logits(model, use_cache=True))


@pytest.mark.skipif(not V5 or "gemma4_text" not in CONFIG_MAPPING, reason="has no gemma4")
def test_layers_that_share_the_keys_of_another_layer_have_their_positions():
    kinds = ["sliding_attention", "full_attention"] * 2
    model = remapped(
        family="gemma4_text", num_hidden_layers=4, layer_types=kinds, num_kv_shared_layers=2
    )
    close(in_parts(model, DynamicCache(config=model.config)), logits(model, use_cache=True))


def filled(model, tokens=TOKENS[:, :16], positions=GAP[:, :16]):
    cache = DynamicCache(config=model.config)
    logits(model, tokens, positions, past_key_values=cache)
    return cache


def rows():
    """Two rows with other tokens at other positions."""
    return torch.cat((TOKENS, TOKENS.flip(1))), torch.cat((GAP, 2 * torch.arange(24)[None]))


def test_positions_follow_the_rows_of_a_cache():
    model, (tokens, positions) = remapped(), rows()
    whole, last = logits(model, tokens, positions, use_cache=True)[:, 16:], slice(16, 24)

    def rest(cache, order):
        new = tokens[order][:, last], positions[order][:, last]
        close(logits(model, *new, past_key_values=cache), whole[order])

    cache = filled(model, tokens[:, :16], positions[:, :16])
    cache.reorder_cache(torch.tensor([1, 0]))
    rest(cache, [1, 0])
    cache = filled(model, tokens[:, :16], positions[:, :16])
    cache.batch_select_indices(torch.tensor([1]))
    rest(cache, [1])
    cache = filled(model, tokens[:, :16], positions[:, :16])
    cache.batch_repeat_interleave(2)
    rest(cache, [0, 0, 1, 1])


def test_positions_follow_a_cache_that_is_cropped_reset_copied_or_pickled():
    model = remapped()
    whole = logits(model, use_cache=True)

    def rest(cache, start):
        new = TOKENS[:, start:], GAP[:, start:]
        close(logits(model, *new, past_key_values=cache), whole[:, start:])

    cache = filled(model)
    cache.crop(-5 if V5 else 11)
    rest(cache, 11)
    cache.reset()
    if V5:  # an older cache stays initialized
        rest(cache, 0)
    cache = filled(model)
    other = copy.deepcopy(cache)
    rest(cache, 16)
    rest(other, 16)
    rest(pickle.loads(pickle.dumps(filled(model))), 16)  # noqa: S301 - our own bytes


def test_a_cache_with_keys_of_unknown_positions_is_refused():
    plain = tiny("llama")
    cache, model = DynamicCache(config=plain.config), remapped()
    logits(plain, TOKENS[:, :16], GAP[:, :16], past_key_values=cache)
    with pytest.raises(RopeError, match="past_key_values: must hold only tokens of the remapped"):
        logits(model, TOKENS[:, 16:], GAP[:, 16:], past_key_values=cache)
    cache = filled(model, TOKENS[:, :8], GAP[:, :8])
    # the plain model still runs
    logits(plain, TOKENS[:, 8:16], GAP[:, 8:16], past_key_values=cache)
    with pytest.raises(RopeError, match="past_key_values"):
        logits(model, TOKENS[:, 16:], GAP[:, 16:], past_key_values=cache)


def test_a_cache_without_layers_is_refused():
    class Other(Cache):
        def __init__(self):
            self.layers = None

        def get_seq_length(self, layer_idx=0):
            return 0

        def get_mask_sizes(self, query_length, layer_idx):
            return 24, 0

        @property
        def is_compileable(self):
            return False

        @property
        def is_sliding(self):
            return [False, False]

    with pytest.raises(RopeError, match="past_key_values: must be a transformers Cache with"):
        logits(remapped(), past_key_values=Other())


def test_undo_removes_every_hook():
    model = tiny("llama")

    def hooks():
        return sum(len(m._forward_pre_hooks) + len(m._forward_hooks) for m in model.modules())

    before = hooks()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        extension = rw.extend(model, "rerope", window=5)
    assert hooks() > before
    extension.undo()
    assert hooks() == before
