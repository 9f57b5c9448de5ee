"""A captured decode step against the model itself in float64, its kernels in the interpreter and
its graph replaced by Python.

`test_triton.py` starts this file in a process of its own; tests/gpu captures real graphs.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest
import torch

from ropewalk.models import Decoder, DecoderConfig, decode_step, generation
from ropewalk.models.decode_step import DecodeStep, captured_step

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu captures the step")
SIZES = {
    "vocab_size": 11,
    "hidden_size": 16,
    "intermediate_size": 12,
    "num_layers": 1,
    "num_heads": 2,
    "num_kv_heads": 1,
}


@pytest.fixture(autouse=True)
def _steps_run_in_python(monkeypatch):
    """A replay of the graph becomes a call of what it would have captured."""
    monkeypatch.setattr(
        DecodeStep,
        "_capture",
        lambda self, model: setattr(
            self, "graph", SimpleNamespace(replay=partial(self._run, model))
        ),
    )


@pytest.mark.parametrize("multiprocessors", [1, 4])
@pytest.mark.parametrize(
    ("rows", "options"), [(1, {}), (2, {"qk_norm": True, "window": 4, "qkv_bias": True})], ids=str
)
def test_every_captured_step_gives_the_logits_of_the_whole_text(
    rows, options, multiprocessors, monkeypatch
):
    """First after a given token, then after the most likely one; the last row is padded on the
    left.

    With four multiprocessors attention divides the keys of a row, and reads the earlier ones before
    the QKV product ends.
    """
    monkeypatch.setattr(
        "ropewalk.kernels.decode_step.config.multiprocessors", lambda device: multiprocessors
    )
    torch.manual_seed(4)
    model = Decoder(DecoderConfig(**SIZES, head_dim=8, init_std=0.3, **options)).eval()
    exact = Decoder(model.config).eval().double()
    exact.load_state_dict({name: value.double() for name, value in model.state_dict().items()})
    text, padding, token = (
        torch.randint(0, 11, (rows, 5)),
        torch.ones(rows, 5, dtype=torch.bool),
        torch.tensor([7, 2])[:rows],
    )
    padding[-1, :2] = False
    with torch.no_grad(), captured_step(model, rows, 9) as step:
        caches = model.caches()
        model(text, padding=padding, caches=caches)
        step.start(caches)
        for given in (token, None):
            text = torch.cat((text, token[:, None]), dim=1)
            padding = torch.nn.functional.pad(padding, (0, 1), value=True)
            logits = step(given)
            expected = exact(text, padding=padding)[:, -1]
            torch.testing.assert_close(logits.double(), expected, atol=2e-5, rtol=0)
            token = expected.argmax(-1)
            assert torch.equal(step.token, token)


def test_yielded_tokens_outlive_the_next_generation(monkeypatch):
    """The step of a model is used again, and with it the memory in which it writes tokens."""
    monkeypatch.setattr(generation, "why_not_graph", lambda *_: None)
    torch.manual_seed(5)
    model = Decoder(DecoderConfig(**SIZES, head_dim=8, init_std=1.0)).eval()
    prompts = torch.randint(0, 11, (2, 1, 4))
    plain = [
        generation.generate(model, prompt, 3, graph=False)[0, 4:].tolist() for prompt in prompts
    ]
    assert plain[0] != plain[1]
    streamed: list[torch.Tensor] = []
    first = list(generation.steps(model, prompts[0], 3, graph=True))
    whole = generation.generate(model, prompts[0], 3, graph=True, stream=streamed.append)
    assert generation.generate(model, prompts[1], 3, graph=True)[0, 4:].tolist() == plain[1]
    assert (
        [int(token) for token in first]
        == [int(token) for token in streamed]
        == whole[0, 4:].tolist()
        == plain[0]
    )


def test_a_captured_step_is_kept_for_one_stream(monkeypatch):
    """A generation on another CUDA stream would overwrite keys that the first has not read yet."""
    model, steps = Decoder(DecoderConfig(**SIZES, head_dim=8)).eval(), []
    for stream in (1, 2, 1):
        monkeypatch.setattr(decode_step, "_stream", lambda device, stream=stream: stream)
        with captured_step(model, 1, 9) as step:
            steps.append(step)
    assert steps[0] is steps[2]
    assert steps[0] is not steps[1]


@pytest.mark.parametrize("layers", [0.5, 2, 9])
def test_the_keys_of_every_layer_of_the_prompt_are_copied(monkeypatch, layers):
    """Keys are copied in parts of limited size: `layers` says how many layers' keys fit into one."""
    torch.manual_seed(6)
    model = Decoder(DecoderConfig(**SIZES | {"num_layers": 3}, head_dim=8)).eval()
    caches = model.caches()
    with torch.no_grad(), captured_step(model, 2, 9) as step:
        model(torch.randint(0, 11, (2, 5)), caches=caches)
        monkeypatch.setattr(decode_step, "STACKED_BYTES", int(layers * caches[0].seen.k.nbytes))
        step.start(caches)
    for layer, cache in enumerate(caches):
        assert torch.equal(step.keys[layer, :, :, :5], cache.seen.k)
        assert torch.equal(step.values[layer, :, :, :5], cache.seen.v)
        assert not step.keys[layer, :, :, 5:].any()
