"""Generation on a CUDA device: the captured decode step gives the tokens of the plain path, with
less work on the host.
"""

import numpy as np
import pytest
import torch

import ropewalk as rw
from ropewalk.attention.remap import ReRope
from ropewalk.caches import cache_infos
from ropewalk.models import Decoder, DecoderConfig
from ropewalk.models.generation import why_not_graph

pytestmark = pytest.mark.gpu
SIZES = {
    "vocab_size": 499,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_layers": 3,
    "num_heads": 6,
    "num_kv_heads": 2,
    "head_dim": 32,
}
OPTIONS = {
    "plain": {},
    "head norm": {"qk_norm": True},
    "biases": {"qkv_bias": True, "o_bias": True, "mlp_bias": True},
    "window": {"window": 20},
    "layers without positions": {"layer_types": ("full", "nope", "full")},
    "yarn": {"encoding": rw.RopeSpec(32, scaling=rw.frequencies.Yarn(64, 4.0))},
    "part of the head, interleaved": {
        "encoding": rw.RopeSpec(32, rotary_dim=16, layout="interleaved")
    },
    "untied": {"tie_embeddings": False},
}


def make(dtype=torch.float32, **options):
    torch.manual_seed(5)
    return Decoder(DecoderConfig(**SIZES, init_std=0.2, **options)).to("cuda", dtype).eval()


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("rows", [1, 3, 20])
def test_a_captured_step_generates_the_tokens_of_the_plain_path(options, rows):
    model = make(**options)
    prompt = torch.randint(0, 499, (rows, 40), device="cuda")
    padding = torch.ones_like(prompt, dtype=torch.bool)
    padding[rows // 2, :13] = False
    plain = model.generate(prompt, 48, padding=padding, graph=False)
    assert torch.equal(model.generate(prompt, 48, padding=padding, graph=True), plain)
    # a second call reuses the graph
    assert torch.equal(model.generate(prompt, 48, padding=padding, graph=True), plain)


def test_stop_tokens_and_streamed_tokens_are_those_of_the_plain_path():
    model, prompt = make(), torch.randint(0, 499, (2, 9), device="cuda")
    stop = int(model.generate(prompt, 30, graph=False)[0, 20])
    plain = model.generate(prompt, 30, stop=stop, pad=7, graph=False)
    assert torch.equal(model.generate(prompt, 30, stop=np.int64(stop), pad=7, graph=True), plain)
    streamed = torch.stack(
        [token.clone() for token in model.stream(prompt, 30, stop=stop, pad=7)], dim=1
    )
    assert torch.equal(torch.cat((prompt, streamed), dim=1), plain)


def test_two_generations_streamed_in_turn_give_the_tokens_of_each_alone():
    model, prompts = make(), torch.randint(0, 499, (2, 1, 9), device="cuda")
    together = list(zip(*(model.stream(prompt, 30) for prompt in prompts), strict=True))
    for prompt, tokens in zip(prompts, zip(*together, strict=True), strict=True):
        assert torch.equal(
            model.generate(prompt, 30, graph=False)[:, 9:], torch.stack(tokens, dim=1)
        )


def test_generations_on_two_cuda_streams_give_the_tokens_of_the_plain_path():
    model, prompts = make(), torch.randint(0, 499, (2, 1, 9), device="cuda")
    plain = [model.generate(prompt, 30, graph=False) for prompt in prompts]
    streams, large = (
        [torch.cuda.Stream() for _ in prompts],
        torch.zeros(16384, 16384, device="cuda"),
    )
    for stream, prompt in zip(streams, prompts, strict=True):  # captures a step for each stream
        with torch.cuda.stream(stream):
            model.generate(prompt, 30, graph=True)
    torch.cuda.synchronize()
    found = []
    for stream, prompt in zip(streams, prompts, strict=True):
        with torch.cuda.stream(stream):
            # this product takes so long that the first generation is still waiting when the second
            # one is started
            large @ large
            found.append(model.generate(prompt, 30, graph=True))
    torch.cuda.synchronize()
    assert torch.equal(found[0], plain[0])
    assert torch.equal(found[1], plain[1])


def test_sampling_with_a_seed_gives_the_same_tokens_with_and_without_a_graph():
    model, prompt = make(), torch.randint(0, 499, (2, 9), device="cuda")
    sampled = [
        model.generate(prompt, 20, temperature=1.0, top_k=20, seed=4, graph=graph)
        for graph in (True, True, False)
    ]
    assert torch.equal(sampled[0], sampled[1])
    assert torch.equal(sampled[0], sampled[2])


def test_a_captured_step_uses_weights_that_were_changed_or_replaced():
    model, prompt = make(), torch.randint(0, 499, (1, 9), device="cuda")
    before = model.generate(prompt, 20, graph=True)
    with torch.no_grad():
        model.layers[0].mlp.down_proj.weight.neg_()
    after = model.generate(prompt, 20, graph=True)
    assert not torch.equal(before, after)
    assert torch.equal(after, model.generate(prompt, 20, graph=False))
    # other memory: the graph is captured anew
    model.lm_head = torch.nn.Linear(96, 499, bias=False).cuda()
    assert torch.equal(
        model.generate(prompt, 20, graph=True), model.generate(prompt, 20, graph=False)
    )


def test_bfloat16_logits_of_a_captured_step_are_as_near_to_float64_as_the_plain_path():
    model, exact = make(torch.bfloat16, qk_norm=True), make(torch.float64, qk_norm=True)
    exact.load_state_dict({name: value.double() for name, value in model.state_dict().items()})
    from ropewalk.models.decode_step import captured_step

    prompt = torch.randint(0, 499, (1, 60), device="cuda")
    with torch.no_grad():
        want = exact(prompt)[:, -1]
        caches = model.caches()
        model(prompt[:, :-1], caches=caches)
        with captured_step(model, 1, 64) as step:
            step.start(caches)
            error = (step(prompt[:, -1]).double() - want).norm() / want.norm()
        plain = (model(prompt)[:, -1].double() - want).norm() / want.norm()
    assert error < 1.5 * plain


@pytest.mark.parametrize("rows", [1, 2, 17, 40, 64, 65, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("middle", [1000, 4224])
def test_a_captured_step_at_the_width_of_a_model_is_as_exact_as_the_plain_path(
    rows, dtype, middle, monkeypatch
):
    """The model is so wide that tiles have their full depth and fill the shared memory."""
    sizes = {"hidden_size": 1024, "intermediate_size": middle, "head_dim": 128, "num_layers": 2}
    monkeypatch.setattr(f"{__name__}.SIZES", SIZES | sizes)
    model, exact = make(dtype, qk_norm=True), make(torch.float64, qk_norm=True)
    exact.load_state_dict({name: value.double() for name, value in model.state_dict().items()})
    from ropewalk.models.decode_step import captured_step

    prompt = torch.randint(0, 499, (rows, 30), device="cuda")
    with torch.no_grad():
        want = exact(prompt)[:, -1]
        caches = model.caches()
        model(prompt[:, :-1], caches=caches)
        with captured_step(model, rows, 64) as step:
            step.start(caches)
            error = (step(prompt[:, -1]).double() - want).norm() / want.norm()
        plain = (model(prompt)[:, -1].double() - want).norm() / want.norm()
    assert error < max(1.5 * plain, 1e-5)


def test_why_not_graph_names_what_keeps_a_step_from_being_captured():
    prompt = torch.randint(0, 499, (1, 9), device="cuda")
    assert why_not_graph(make(), prompt) is None
    assert "gelu" in why_not_graph(make(activation="gelu"), prompt)
    assert "cache" in why_not_graph(make(), prompt, "sliding")
    other_norm = make(qk_norm=True)
    other_norm.layers[1].self_attn.k_norm = torch.nn.LayerNorm(32, device="cuda")
    assert "LayerNorm" in why_not_graph(other_norm, prompt)
    hooked = make()
    hooked.layers[1].register_forward_hook(lambda *_: None)
    assert "hooks" in why_not_graph(hooked, prompt)
    with pytest.raises(rw.RopeError, match="graph"):
        hooked.generate(prompt, 3, graph=True)
    assert hooked.generate(prompt, 3).shape == (1, 12)


def test_the_graph_of_a_deleted_model_is_dropped():
    rw.caches.clear_caches()
    model = make()
    model.generate(torch.randint(0, 499, (1, 9), device="cuda"), 3)
    sizes = lambda: {info.name: info.entries for info in cache_infos()}["decode graphs"]
    assert sizes() == 1
    del model
    assert sizes() == 0


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
def test_the_host_never_waits_for_a_step():
    model, prompt = make(), torch.randint(0, 499, (1, 9), device="cuda")
    model.generate(prompt, 4)
    with torch.no_grad():
        steps = model.stream(prompt, 8)
        next(steps)
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in steps:
                pass
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_a_remapped_model_reads_a_long_prompt_with_a_cache():
    """Its cache holds keys that are not rotated, so the fused kernels, which rotate, are not used."""
    model = make(remapping=ReRope(16))
    prompt = torch.randint(0, 499, (1, 300), device="cuda")
    cached = model.generate(prompt, 4)
    assert torch.equal(cached, model.cpu().generate(prompt.cpu(), 4, cache="none").cuda())
