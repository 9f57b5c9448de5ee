"""The scripts in benchmarks/ that need a GPU, on a CPU with clocks of their own: what they time, what
they compare, and what their rows say.
"""

import importlib
import json
import random
import sys
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from ropewalk.models import Decoder, DecoderConfig
from ropewalk_lab.bench import cases

TINY = DecoderConfig(17, 24, 36, 2, 6, 2)


SCRIPTS = sorted(path.stem for path in (Path(__file__).parents[2] / "benchmarks").glob("*.py"))


class TorchOnCPU:
    """torch, but tensors are made on the CPU, and there is no GPU to wait for."""

    MAKERS = ("randn", "randint", "randperm", "arange", "empty", "zeros")

    def __init__(self):
        self.cuda = SimpleNamespace(
            synchronize=lambda: None, empty_cache=lambda: None, is_available=lambda: False
        )

    def __getattr__(self, name):
        found = getattr(torch, name)
        if name not in self.MAKERS:
            return found
        return lambda *args, device=None, **options: found(*args, **options)


@pytest.fixture(autouse=True)
def _without_gpu(monkeypatch):
    for name in SCRIPTS:
        script = importlib.import_module(name)
        if hasattr(script, "torch"):
            monkeypatch.setattr(script, "torch", TorchOnCPU())


class Clock:
    """A clock that a call moves on by its own seconds."""

    def __init__(self, monkeypatch, name="perf_counter"):
        self.now = 0.0
        monkeypatch.setattr(f"time.{name}", lambda: self.now)

    def taking(self, *seconds):
        """Return a call that takes the next of `seconds`, whatever its arguments."""
        left = iter(seconds)

        def call(*_, **__):
            self.now += next(left)

        return call


def test_a_layer_of_attention_is_timed_without_rotation_and_with_two(monkeypatch):
    import attention

    found = []

    def replay_us(calls, replays):
        (call,) = calls
        found.append(call())
        return (100.0, 110.0, 150.0, 400.0, 410.0, 500.0)[len(found) - 1]

    monkeypatch.setattr(attention, "replay_us", replay_us)
    rows = list(attention.measure_rotation(seq=6))
    assert [(row["pass"], row["contender"], row["us"]) for row in rows] == [
        ("forward", "no rotation", 100.0),
        ("forward", "ropewalk", 110.0),
        ("forward", "transformers, eager", 150.0),
        ("forward+backward", "no rotation", 400.0),
        ("forward+backward", "ropewalk", 410.0),
        ("forward+backward", "transformers, eager", 500.0),
    ]
    assert [row["percent_added"] for row in rows] == [0, 10.0, 50.0, 0, 2.5, 25.0]
    plain, ours, theirs = found[:3]
    torch.testing.assert_close(ours, theirs, atol=0.05, rtol=0.05)  # bfloat16
    # the first token attends to itself alone; later ones see another rotation
    torch.testing.assert_close(plain[:, :, 0], ours[:, :, 0])
    assert (plain - ours).abs().max() > 0.1
    assert [len(each) for each in found[3:]] == [3, 3, 3]  # the gradients of q, k and v


def test_linear_attention_on_a_gpu_is_compared_with_softmax(monkeypatch):
    import attention

    times = iter((300.0, 100.0))
    monkeypatch.setattr(attention, "replay_us", lambda calls, replays: (calls[0](), next(times))[1])
    softmax, linear = attention.measure_linear(seq=5)
    assert (softmax["us"], linear["us"], linear["times_faster"]) == (300.0, 100.0, 3.0)
    assert linear["shape"] == "attention 1x5 16x64"


def test_linear_attention_on_a_cpu_is_timed_beside_half_its_length(monkeypatch):
    import attention

    timed = {}

    def alternating_times(calls, rounds):
        timed.update(calls)
        return {"softmax": 40.0, "4": 10.0, "8": 30.0, "16": 45.0}

    monkeypatch.setattr(attention, "alternating_times", alternating_times)
    softmax, first, *longer = attention.measure_cpu(lengths=(4, 8, 16))
    assert (softmax["shape"], softmax["us"]) == ("attention 1x4 1x64", 40.0)
    assert (first["shape"], first["times_faster"]) == ("attention 1x4 1x64", 4.0)
    assert [(row["shape"], row["times_half_the_length"]) for row in longer] == [
        ("attention 1x8 1x64", 3.0),
        ("attention 1x16 1x64", 1.5),
    ]
    q, k, v = timed["softmax"].args
    assert q.shape[-2] == 4
    weights = (q @ k.mT / 8).masked_fill(~torch.ones(4, 4).tril().bool(), -torch.inf).softmax(-1)
    torch.testing.assert_close(timed["softmax"](), weights @ v)


@pytest.mark.parametrize("right", [True, False])
def test_attention_on_one_thread_is_checked_and_counts_scores_that_are_not_masked(
    monkeypatch, right
):
    script = importlib.import_module("cpu_attention")
    clock = Clock(monkeypatch, "thread_time")
    seconds = iter((2e-6, 0.5e-6, 1e-6))
    calls = []

    def attend(q, k, v, scale):
        calls.append((q.shape[1], k.shape[1], v.shape[1]))
        if len(calls) > 1:  # the first call is that of the check
            clock.now += next(seconds)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)
        return out if right else out + 1e-3

    native = SimpleNamespace(why_not=lambda q, k, v: None, attend=attend)
    for name, value in (("attention", native), ("LENGTHS", (6,)), ("ROUNDS", 3)):
        monkeypatch.setattr(script, name, value)
    monkeypatch.setattr(
        script, "sdpa", lambda *qkv, **options: _moving(clock, 4e-6, *qkv, **options)
    )
    script.torch.set_num_threads = lambda _: None
    if not right:
        with pytest.raises(AssertionError, match="ropewalk"):
            list(script.measure())
        return
    ours, theirs = script.measure()
    assert (ours["attention"], theirs["attention"]) == ("ropewalk", "torch")
    # 9 heads of 64; of 6 x 6 scores 21 are not masked; a multiplication and an addition in q k^T
    # and in the product with v
    work = 9 * 21 * 64 * 2 * 2
    assert work / 0.5e-6 / 1e9 == pytest.approx(ours["gflops"], abs=0.006)
    assert work / 4e-6 / 1e9 == pytest.approx(theirs["gflops"], abs=0.006)
    assert set(calls) == {(9, 3, 3)}
    assert (ours["heads"], ours["groups"]) == (9, 3)


def _moving(clock, seconds, *qkv, **options):
    clock.now += seconds
    return F.scaled_dot_product_attention(*qkv, **options)


def test_rates_of_the_memory_count_what_is_read_and_written(monkeypatch):
    import decode

    # a copy of 128 MiB in 100 us reads and writes 2 x 128 MiB; a sum reads 512 MiB in 200 us
    monkeypatch.setattr(decode, "replay_us", lambda calls: 100.0)
    assert decode.copy_rate() == pytest.approx(2 * 128 * 2**20 / 100e-6)
    one = torch.zeros(1)
    monkeypatch.setattr(decode.torch, "zeros", lambda count, **_: one.expand(count), raising=False)
    monkeypatch.setattr(decode, "replay_us", lambda calls: 200.0)
    assert decode.read_rate() == pytest.approx(512 * 2**20 / 200e-6)


def test_the_nominal_rate_is_that_of_the_clock_and_the_bus():
    """An H100: 2,619 MHz, two transfers a clock, 5,120 bits: 3.35 TB/s by its data sheet."""
    import decode

    about = SimpleNamespace(memory_clock_rate=2_619_000, memory_bus_width=5120)
    decode.torch.cuda.get_device_properties = lambda _: about
    assert decode.nominal_rate() == pytest.approx(3.35e12, rel=2e-3)
    decode.torch.cuda.get_device_properties = lambda _: SimpleNamespace()
    assert decode.nominal_rate() is None


def test_the_seconds_of_a_call_are_those_of_the_fastest(monkeypatch):
    import decode

    call = Clock(monkeypatch).taking(3.0, 1.0, 2.0)
    assert decode.seconds(call, repeats=3) == 1.0


def test_a_step_is_what_further_tokens_take(monkeypatch):
    """The prompt takes 10 ms, a step 2 ms."""
    import decode

    clock = Clock(monkeypatch)

    def generate(tokens, new):
        clock.now += (10 + 2 * (new - 1)) / 1e3

    model = SimpleNamespace(generate=generate)
    assert decode.step_milliseconds(model, None, 48) == pytest.approx(2.0)


def test_a_captured_generation_has_room_for_every_number_of_new_tokens():
    import decode

    asked = []
    model = SimpleNamespace(generate=lambda prompt, new, **options: asked.append((new, options)))
    prompt = torch.zeros(1, 7, dtype=torch.int64)
    decode.ours(model, prompt, None, 3)
    decode.ours(model, prompt, False, 4)
    assert asked == [
        (3, {"graph": None, "cache": "static", "capacity": 7 + decode.NEW}),
        (4, {"graph": False}),
    ]


def test_the_sizes_of_other_models_are_the_published_ones():
    """Parameters by each model card: the names say them, but for the tied or second embedding."""
    import decode

    config = decode._other_config("Llama-3.2-1B")
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (32, 8, 64)
    for name, millions in {
        "SmolLM2-135M": 134.5,
        "Qwen2.5-0.5B": 494.0,
        "Llama-3.2-1B": 1235.8,
        "Qwen3-1.7B": 1720.6,
        "Llama-3.2-3B": 3212.7,
        "Qwen3-4B": 4022.5,
        "Qwen2.5-1.5B": 1543.7,
    }.items():
        with torch.device("meta"):
            model = Decoder(decode._other_config(name))
        count = sum(parameter.numel() for parameter in model.parameters())
        # Qwen 2.5 has biases, which the rows do not need
        assert count == pytest.approx(1e6 * millions, rel=1e-3), name
    assert decode._other_config("Qwen3-4B").qk_norm
    assert not decode._other_config("Llama-3.2-3B").qk_norm


def _generation_without_times(monkeypatch):
    """Let `decode` make no model and time nothing; return the list of (case, row) that it asks for."""
    import decode

    timed = []

    def case(model, name, batch, rate, length=decode.PROMPT):
        prompt = torch.zeros(batch, length, dtype=torch.int64)
        return prompt, 1.0, {"shape": name, "batch": batch, "copy_GBps": round(rate / 1e9)}

    def step_row(generate, limit, repeats=5, **row):
        timed.append((generate.func, repeats, row))
        return {"what": "generate", "prompt": 128, **row, "percent_of_limit": 50.0}

    monkeypatch.setattr(decode, "_on_gpu", lambda build: None)
    monkeypatch.setattr(decode, "_case", case)
    monkeypatch.setattr(decode, "step_row", step_row)
    for name, rate in (("copy_rate", 2e12), ("read_rate", 4e12), ("nominal_rate", 5e12)):
        monkeypatch.setattr(decode, name, lambda rate=rate: rate)
    return timed


def test_rows_by_context_have_the_shares_of_three_limits(monkeypatch):
    """Half of the rate of a copy, 2 TB/s, is a quarter of 4 TB/s and a fifth of 5 TB/s."""
    import decode

    timed = _generation_without_times(monkeypatch)
    rows = list(decode.context_rows())
    for row in rows:
        assert row["what"] == "generate, by context"
        assert (row["percent_of_read"], row["percent_of_nominal"]) == (25.0, 20.0)
        assert (row["copy_GBps"], row["read_GBps"], row["nominal_GBps"]) == (2000, 4000, 5000)
    first, *others = dict.fromkeys(row["shape"] for row in rows)
    of_first = [(row["batch"], row["prompt"]) for row in rows if row["shape"] == first]
    assert (1, 120_000) in of_first
    assert (64, 4096) in of_first
    for name in others:
        of_one = [(row["batch"], row["prompt"]) for row in rows if row["shape"] == name]
        assert of_one == [(1, 128), (1, 4096), (1, 32768)]
    # more than 65,536 tokens are generated alone, and once
    for (way, repeats, _), row in zip(timed, rows, strict=True):
        long = row["batch"] * row["prompt"] > 65_536
        assert (way, repeats) == ((decode._alone, 1) if long else (decode.ours, 3))


def test_rows_of_other_models_are_told_from_those_of_the_two_models(monkeypatch):
    import decode

    _generation_without_times(monkeypatch)
    rows = list(decode.other_rows())
    assert {row["what"] for row in rows} == {"generate, other models"}
    assert len(rows) == 2 * len(decode.OTHERS)
    ours = list(decode.generate_rows(peers=False))
    assert {row["what"] for row in ours} == {"generate"}
    plain = [row for row in ours if row["contender"] == "ropewalk without graph"]
    assert [row["batch"] for row in plain] == [1, 1]


@pytest.mark.parametrize(("shape", "family"), [("Llama-3-8B", "Llama"), ("Qwen3-0.6B", "Qwen3")])
def test_the_model_of_transformers_has_the_sizes_of_ours(monkeypatch, shape, family):
    import decode

    _generation_without_times(monkeypatch)
    built = []
    monkeypatch.setattr(decode, "_on_gpu", lambda build: built.append(build()))
    config = getattr(importlib.import_module("transformers"), f"{family}Config")
    fake = {f"{family}Config": config, f"{family}ForCausalLM": lambda config: config}
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(**fake, __version__="5"))
    rows = list(decode._peer_rows(f"{shape} shape", None, 1.0, {}))
    assert [row["contender"].split(", ")[:-1] for row in rows] == [
        ["transformers"],
        ["transformers", "static cache"],
    ]
    (theirs,), ours = built, DecoderConfig(**decode.MODELS[f"{shape} shape"])
    assert theirs.model_type == family.lower()
    assert theirs.tie_word_embeddings == ours.tie_embeddings
    assert (theirs.num_attention_heads, theirs.num_key_value_heads, theirs.head_dim) == (
        ours.num_heads,
        ours.num_kv_heads,
        ours.head_dim,
    )
    assert (theirs.hidden_size, theirs.intermediate_size, theirs.num_hidden_layers) == (
        ours.hidden_size,
        ours.intermediate_size,
        ours.num_layers,
    )
    assert theirs.vocab_size == ours.vocab_size


def test_a_model_on_the_gpu_is_bfloat16_and_the_default_stays_float32():
    import decode

    decode.torch.device = lambda _: nullcontext()
    model = decode._on_gpu(lambda: torch.nn.Linear(2, 2))
    assert model.weight.dtype == torch.bfloat16
    assert not model.training
    assert torch.get_default_dtype() == torch.float32


def test_a_random_case_of_invariance_has_heads_that_share_keys_evenly():
    import invariance

    for seed in range(40):
        draw = invariance.make_draw(seed, torch.float32, "cpu")
        (q, k), (batch, tokens, _) = draw.pair, draw.qkv.shape
        assert (q.shape[1], k.shape[1]) == draw.heads
        assert q.shape[1] % k.shape[1] == 0
        assert q.shape[::2] == k.shape[::2] == (batch, tokens)
        assert len(draw.alone) == min(3, tokens)


def test_differing_bits_are_counted_over_all_pairs(monkeypatch):
    """Zero and minus zero are equal numbers with other bits; NaN has the bits of itself."""
    import invariance

    def other_ways(draw, graph):
        graphs.append(graph)
        one = torch.tensor([0.0, 1.0, torch.nan], dtype=draw.qkv.dtype)
        other = torch.tensor([-0.0, 1.0, torch.nan], dtype=draw.qkv.dtype)
        yield (one, one), (other, one)
        yield (one, one), (one, 2 * one)

    graphs = []
    monkeypatch.setattr(invariance, "other_ways", other_ways)
    counts = invariance._count(list(range(9)), device="cpu")
    # of two pairs of three: the sign of zero, and the 1 that became 2
    assert counts == [
        (str((torch.float32, torch.bfloat16, torch.float16)[seed % 3]), 2, 12) for seed in range(9)
    ]
    assert graphs == [True, *[False] * 7, True]


def test_the_same_tokens_rotated_in_other_ways_are_the_same_tokens():
    """A wrong slice would compare tokens of other positions, so nothing would be equal."""
    import invariance

    ways = 0
    for seed in range(12):
        for expected, found in invariance.other_ways(
            invariance.make_draw(seed, torch.float32, "cpu"), graph=False
        ):
            ways += 1
            for one, other in zip(expected, found, strict=True):
                torch.testing.assert_close(other, one, atol=1e-5, rtol=1e-5)
    assert ways > 12 * 5


def test_logits_of_a_padded_batch_in_chunks_are_those_of_each_text_alone():
    script = importlib.import_module("invariant_decoder")
    model = Decoder(TINY).eval()
    texts = [torch.randint(0, 17, (length,)) for length in (2, 9, 5, 9)]
    with torch.no_grad():
        for seed in range(6):
            found = script.batch_logits(model, texts, random.Random(seed))
            for text, logits in zip(texts, found, strict=True):
                torch.testing.assert_close(logits, model(text[None])[0], atol=1e-5, rtol=1e-4)


@contextmanager
def _plain_step(model, rows, tokens):
    """A decode step that is not captured."""
    step = SimpleNamespace()

    class Step:
        def start(self, caches):
            step.caches = caches

        def __call__(self, token):
            return model(token[:, None], caches=step.caches)[:, -1]

    yield Step()


def test_steps_continue_from_the_last_token_of_the_prompt(monkeypatch):
    script = importlib.import_module("invariant_decoder")
    monkeypatch.setattr(script, "captured_step", _plain_step)
    model = Decoder(TINY).eval()
    tokens = torch.randint(0, 17, (3, 8))
    with torch.no_grad():
        found = script.stepped_logits(model, tokens, 5)
        torch.testing.assert_close(found, model(tokens)[:, 4:], atol=1e-5, rtol=1e-4)
    # the same tokens are compared in a forward with gradients and in steps
    assert script.trainer_and_sampler(model) < 1e-4


def test_rows_that_differ_from_a_text_alone_are_counted(monkeypatch):
    script = importlib.import_module("invariant_decoder")
    monkeypatch.setattr(script, "captured_step", _plain_step)
    monkeypatch.setattr(script, "BATCHES", 3)

    class Model:
        """Logits that are the tokens; `odd`: other ones in a batch of several rows."""

        config = SimpleNamespace(vocab_size=17)

        def __init__(self, odd):
            self.odd = odd

        def __call__(self, tokens):
            return tokens[..., None] + (0.5 if self.odd and len(tokens) > 1 else 0)

    def batch_logits(model, rows, pick):
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        return [each[: len(row)] for each, row in zip(model(padded), rows, strict=True)]

    monkeypatch.setattr(script, "batch_logits", batch_logits)
    monkeypatch.setattr(
        script, "stepped_logits", lambda model, tokens, prompt: model(tokens)[:, prompt - 1 :]
    )
    right, wrong = (script.differences(Model(odd)) for odd in (False, True))
    stepped = 1 + 2 + 16 + 33 + 64
    assert right["different_rows"] == 0
    assert right["stepped_rows"] == wrong["stepped_rows"] == stepped
    # all but the one that is stepped alone
    assert wrong["different_rows"] == wrong["rows"] + stepped - 1


def test_the_cost_of_invariance_is_what_it_adds_to_the_plain_step(monkeypatch):
    """Plain steps take 2 ms and invariant ones 3 ms, after a first turn that compiles."""
    script = importlib.import_module("invariant_decoder")
    turns = []

    def step_milliseconds(model, tokens, new):
        turns.append(model.invariant)
        first = len(turns) % 10 in (1, 2)  # 5 turns of both
        return 100.0 if first else 3.0 if model.invariant else 2.0

    model = SimpleNamespace(invariant=True)
    for name, value in (
        ("step_milliseconds", step_milliseconds),
        ("_on_gpu", lambda build: model),
        ("differences", lambda model: {"rows": 1}),
        ("trainer_and_sampler", lambda model: 0.25),
    ):
        monkeypatch.setattr(script, name, value)
    rows = list(script.measure())
    steps = [row for row in rows if row["what"] == "step of greedy generation"]
    assert len(steps) == 6 * len(script.NAMES)
    for row in steps:
        assert (row["plain_ms"], row["invariant_ms"], row["cost_percent"]) == (2.0, 3.0, 50.0)
    # the largest model has no gradients in memory
    asked = [row["model"] for row in rows if row["what"].startswith("log-probabilities")]
    assert asked == ["Qwen3-0.6B shape", "Llama-3.2-1B shape"]


def test_a_call_is_timed_in_turns_with_and_without_a_kernel(monkeypatch):
    import kernel_worth

    kernel = kernel_worth.KERNELS[2]
    where, attribute, _ = kernel.off
    clock, ours = Clock(monkeypatch), getattr(where, attribute)

    def call():  # 2 ms with the kernel, 5 ms without
        clock.now += 2e-3 if getattr(where, attribute) is ours else 5e-3

    assert kernel_worth.milliseconds(call) == pytest.approx(2.0)
    row = kernel_worth.compare(call, kernel, rounds=3)
    assert (row["with_ms"], row["without_ms"], row["gain_percent"]) == (2.0, 5.0, 150.0)

    def step_milliseconds(model, tokens, new):
        return 2.0 if getattr(where, attribute) is ours else 3.0

    monkeypatch.setattr(kernel_worth, "step_milliseconds", step_milliseconds)
    row = kernel_worth.compare_steps(Decoder(TINY), 4, kernel)
    assert (row["with_ms"], row["without_ms"]) == (2.0, 3.0)


def test_every_model_of_kernel_worth_has_sizes():
    import decode
    import kernel_worth

    shapes = kernel_worth.shapes()
    for kernel in kernel_worth.KERNELS:
        assert set(kernel.models) <= set(shapes)
    for name in decode.OTHERS:
        assert DecoderConfig(**shapes[f"{name} shape"]) == decode._other_config(name)


def test_a_training_step_has_a_backward_pass_and_keeps_no_gradient(monkeypatch):
    import kernel_worth

    model, backwards = Decoder(TINY), []
    backward = torch.Tensor.backward
    monkeypatch.setattr(
        torch.Tensor, "backward", lambda self: (backwards.append(self), backward(self))
    )
    kernel_worth.training_step(model, 2, 5)()
    assert len(backwards) == 1
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_fused_kernel_is_checked_with_the_norm_and_timed_with_and_without(monkeypatch):
    import norm_rotation

    monkeypatch.setitem(norm_rotation.SHAPES, "T5", (5, 4, 2))
    monkeypatch.setattr(norm_rotation, "COLD_BYTES", 3 * 2 * 5 * (4 + 2 + 2) * 128)
    found = norm_rotation.make_cases("T5")
    assert len(found) == 3  # as many as exceed the cache
    case = found[0]
    assert case.qkv.shape == (5, (4 + 2 + 2) * 128)
    normed, plain = (case.run(backend="definition", norm=norm) for norm in (True, False))
    q = case.qkv.unflatten(-1, (-1, 128))[:, :4].float()
    torch.testing.assert_close(plain.float().norm(dim=-1), q.norm(dim=-1), rtol=0.02, atol=0)
    assert (normed.float().norm(dim=-1) / q.norm(dim=-1) - 1).abs().max() > 0.05


@pytest.mark.parametrize("wrong", ["", "q", "k"])
def test_a_fused_kernel_is_right_only_if_q_and_k_are(wrong):
    import norm_rotation

    cache = SimpleNamespace(k=torch.zeros(2, 3))

    def run(backend):
        off = 1.0 if backend == "triton" else 0.0
        cache.k.fill_(2.0 + (off if wrong == "k" else 0.0))
        return torch.ones(2, 3) + (off if wrong == "q" else 0.0)

    assert norm_rotation.agrees(SimpleNamespace(cache=cache, run=run)) == (not wrong)


def test_the_lead_is_a_median_inside_its_interval():
    """Of 100 differences 1 ... 100 the interval reaches 0.98 sqrt(100), 10 ranks, to each side."""
    import patch

    ours = [float(value) for value in range(100, 0, -1)]
    assert patch.lead(ours, [2 * value for value in ours]) == [41.0, 50.5, 61.0]
    # few rounds: the interval ends with them
    assert patch.lead([1.0, 1.0, 1.0], [3.0, 4.0, 7.0]) == [2.0, 3.0, 6.0]


def test_contenders_take_turns_and_one_that_is_wrong_is_not_timed(monkeypatch):
    import patch

    def contender(error, ms):
        logits = torch.tensor([1.0 + error, -1.0 - error])
        return patch.Contender(nullcontext, lambda: logits, lambda: ms)

    contenders = {
        "transformers": contender(0.10, 6.0),
        "ropewalk, patch": contender(0.109, 4.0),  # within 1.1 times
        "worse": contender(0.12, 1.0),
    }
    order, count = [], {}

    def event_ms(call, rewind, loops):
        ms = rewind()
        order.append(ms)
        count[ms] = count.get(ms, 0) + 1
        # the first three are slower: they are not counted
        return ms + (100 if count[ms] <= patch.WARM_UP else 0)

    monkeypatch.setattr(patch, "_event_ms", event_ms)
    expected = torch.tensor([1.0, -1.0])
    worse, theirs, ours = patch._rows({"shape": "x"}, contenders, expected, 1, 4)
    assert (worse["contender"], "ms" in worse) == ("worse", False)
    assert (theirs["ms"], theirs["times_faster"]) == (6.0, 1.0)
    assert (ours["ms"], ours["times_faster"], ours["quartiles_ms"]) == (4.0, 1.5, [4.0, 4.0])
    assert ours["ahead_ms"] == {"transformers": [2.0, 2.0, 2.0]}
    assert ours["rms_error"] == pytest.approx(0.109)
    assert order[:4] == [6.0, 4.0, 4.0, 6.0]


def test_events_are_divided_by_the_calls_between_them():
    import patch

    calls = []

    class Event:
        def __init__(self, enable_timing):
            pass

        def record(self):
            self.at = len(calls)

        def synchronize(self):
            pass

        def elapsed_time(self, stop):
            return 3.0 * (stop.at - self.at)

    patch.torch.cuda.Event = Event
    assert patch._event_ms(lambda: calls.append(1), lambda: None, 8) == 3.0
    assert len(calls) == 1 + 8


def test_the_rotary_part_of_a_patched_model_is_ours(monkeypatch):
    import patch
    from ropewalk.interop.patch.model import patched

    model = patch.llama({**patch.SMALL, "num_hidden_layers": 1}, "cpu", torch.float32)
    q, k = torch.randn(1, 8, 5, 64), torch.randn(1, 4, 5, 64)
    from transformers.models.llama import modeling_llama

    rotations, theirs = [], modeling_llama.apply_rotary_pos_emb

    def counted(*args):
        rotations.append(1)
        return theirs(*args)

    with monkeypatch.context() as changed:
        changed.setattr(modeling_llama, "apply_rotary_pos_emb", counted)
        patch.rotary_part(model, q, k, torch.arange(5)[None], 8)()
    assert len(rotations) == 8
    with patched(model):
        run = patch.rotary_part(model, q, k, torch.arange(5)[None], 8)
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", counted)
    run()
    assert len(rotations) == 8  # none of transformers


@pytest.mark.parametrize("seq", [4, 1])
def test_every_forward_pass_starts_from_the_same_cache(seq):
    import patch

    lengths = []

    class Model(torch.nn.Module):
        config = patch.llama({**patch.SMALL, "num_hidden_layers": 1}, "cpu", torch.float32).config

        def forward(self, ids, past_key_values):
            lengths.append(past_key_values.get_seq_length())
            states = torch.zeros(1, 4, ids.shape[1], 64)
            past_key_values.update(states, states, 0)

    run = patch._forward(Model(), seq)
    run()
    run()
    assert lengths == ([0, 256, 256] if seq == 1 else [0, 0])


def test_times_on_a_cpu_are_compared_with_transformers(monkeypatch):
    import patch

    times = {"transformers": 30.0, "ropewalk, patch": 20.0}
    monkeypatch.setattr(patch, "alternating_times", lambda calls, rounds: times)
    theirs, ours = patch._cpu_rows("x", {}, 3)
    assert (theirs["times_faster"], ours["times_faster"]) == (1.0, 1.5)


def _projection(monkeypatch, **sizes):
    import projection

    monkeypatch.setattr(projection, "multiprocessors", lambda device: 132)
    monkeypatch.setattr(projection, "COLD_BYTES", 0)
    return projection.Projection(5, projection.Shape(24, 4, 2, 16, **sizes))


@pytest.mark.parametrize("sizes", [{}, {"norm": True}, {"bias": True}])
def test_a_projection_agrees_with_float64_and_a_wrong_one_does_not(monkeypatch, sizes):
    case = _projection(monkeypatch, **sizes)
    assert case.count == 2
    assert case.product(0).shape == (5, (4 + 2 + 2) * 16)
    norm = sizes.get("norm", False)

    def call(i):
        return case.inside(i, norm=norm, backend="definition")

    assert case.error(call, norm) < 5e-3
    assert case.error(call, not norm) > 0.05
    # one wrong tensor of three is enough
    assert case.error(lambda i: 1.02 * call(i), norm) == pytest.approx(0.02, abs=5e-3)


def test_ways_inside_the_product_are_there_only_where_it_is_one_launch(monkeypatch):
    case = _projection(monkeypatch)
    for case.in_one_launch in (False, True):
        inside = [way for way in case.ways() if "inside" in way]
        assert bool(inside) == case.in_one_launch


def test_what_a_way_adds_is_measured_round_by_round(monkeypatch):
    """Rounds of the product: 10, 20, 40; of a way: 12, 22, 60, so 20, 10 and 50 per cent more."""
    import projection

    times = {"product": [10.0, 20.0, 40.0], "product, then rotation": [12.0, 22.0, 60.0]}
    assert projection.over_percent(times, "product, then rotation") == pytest.approx([20, 10, 50])

    class Case:
        def __init__(self, rows, shape):
            self.in_one_launch, self.inside = rows == 1, lambda *_, **__: None

        product = ways = lambda self, *_: {}

        def times(self, ways, rounds):
            way = {"product, then rotation": times["product, then rotation"]}
            if ways:
                way = {name: times["product, then rotation"] for name in ways if name != "product"}
            if projection.TWO_LAUNCHES in way:
                way[projection.TWO_LAUNCHES] = [20.0, 40.0, 80.0]
            return {"product": times["product"], **way}

    monkeypatch.setattr(projection, "Projection", Case)
    monkeypatch.setattr(projection, "ROWS", (1,))
    monkeypatch.setattr(projection, "SHAPES_ROWS", (1, 64))
    row, *shapes = projection.measure()
    assert (row["way"], row["us"], row["product_us"]) == ("product, then rotation", 22.0, 20.0)
    # quartiles of 10, 20 and 50 by the default, exclusive method: the smallest and the largest
    assert (row["over_percent"], row["over_percent_quartiles"]) == (20.0, [10.0, 50.0])
    assert len(shapes) == 2 * len(projection.SHAPES)
    for one, two in zip(shapes[::2], shapes[1::2], strict=True):
        assert (one["launches"], one["two_launches_over_percent"]) == (1, 100.0)
        assert (two["launches"], two["two_launches_over_percent"]) == (2, 20.0)
        assert one["over_percent"] == two["over_percent"] == 20.0


#: hidden size, heads of q, heads of k, head_dim, norm of q and k, bias: from the models' configs
PUBLISHED_SIZES = {
    "Llama-3-8B": (4096, 32, 8, 128, False, False),
    "Gemma-3-4B": (2560, 8, 4, 256, True, False),
    "Qwen3-30B-A3B": (2048, 32, 4, 128, True, False),
    "Qwen2.5-0.5B": (896, 14, 2, 64, False, True),
    "Gemma-3-27B": (5376, 32, 16, 128, True, False),
    "Qwen3-32B": (5120, 64, 8, 128, True, False),
    "Phi-4": (5120, 40, 10, 128, False, False),
    "Pythia-410M": (1024, 16, 16, 64, False, True),
    "SmolLM2-135M": (576, 9, 3, 64, False, False),
}


@pytest.mark.parametrize("name", PUBLISHED_SIZES)
def test_a_shape_has_the_sizes_of_its_model(name):
    import projection

    shape = projection.SHAPES[name]
    assert PUBLISHED_SIZES[name] == (
        shape.hidden,
        shape.q_heads,
        shape.k_heads,
        shape.head_dim,
        shape.norm,
        shape.bias,
    )


def test_configurations_of_a_sweep_hold_2_to_16_pairs_and_contiguous_memory():
    import sweep

    for order, pairs, heads, decode in (
        ("bshd", 64, 8, False),
        ("bshd", 64, 32, True),
        ("bhsd", 32, 3, False),
        ("bhsd", 128, 32, False),
    ):
        found = list(sweep.rotation_configs(order, pairs, heads, decode))
        held = {each.tokens * each.heads * pairs / (32 * each.warps) for each in found}
        assert (min(held), max(held)) == (2, 16)
        assert max(each.heads for each in found) <= heads
        if order == "bshd":
            assert {each.tokens for each in found} == {1}
        else:
            assert min(each.tokens for each in found) > 1
            assert not any(each.q_and_k for each in found)
        assert {each.hints for each in found} == ({False} if decode else {False, True})


def _case_on_cpu(name, order, device="cuda", **options):
    return cases.make_case(name, order, **options)


def test_a_sweep_is_in_per_cent_of_a_copy(monkeypatch):
    import sweep

    monkeypatch.setattr(sweep, "replay_us", lambda calls, replays: 4.0)
    (row,) = sweep._sweep({"shape": "x"}, {"config": [None]}, 3.0)
    assert (row["us"], row["percent_of_copy"]) == (4.0, 75.0)


@pytest.mark.parametrize(("inplace", "shape"), [(False, "tiny"), (True, "tiny"), (False, "step")])
def test_a_sweep_rotates_as_a_model_calls_it(monkeypatch, inplace, shape):
    """Positions are the default but in a decode step; in place, the results are the inputs."""
    import sweep

    monkeypatch.setitem(cases.SHAPES, "tiny", (2, 7, 3, 1, 16, torch.float32))
    monkeypatch.setitem(cases.SHAPES, "step", (3, 1, 4, 1, 16, torch.float32))
    launched = []
    launch = importlib.import_module("ropewalk.kernels.rotation.triton.launch")
    monkeypatch.setattr(
        launch,
        "launch",
        lambda xs, outs, request, config: launched.append((xs, outs, request)),
    )
    monkeypatch.setattr(sweep, "rotation_configs", lambda *_: ["config"])
    monkeypatch.setattr(sweep, "make_case", _case_on_cpu)
    monkeypatch.setattr(sweep, "copies", lambda case: [case])
    monkeypatch.setattr(sweep, "ceiling_us", lambda sets: 1.0)
    monkeypatch.setattr(sweep, "replay_us", lambda calls, replays: [each() for each in calls] and 1)
    sweep.sweep_rotation(shape, "bshd", inplace=inplace)
    ((xs, outs, request),) = launched
    assert all((x is out) == inplace for x, out in zip(xs, outs, strict=True))
    assert (request.positions is None) == (shape == "tiny")


def test_the_seconds_of_data_are_those_of_the_steps_after_the_first_row():
    import trainer as script

    rows = [
        {"step": 10, "data_seconds": 5.0},
        {"step": 12, "loss": 1.0},
        {"step": 20, "data_seconds": 0.2},
        {"step": 30, "data_seconds": 0.4},
    ]
    log = SimpleNamespace(rows=lambda: rows)
    assert script._data_seconds(SimpleNamespace(log=log)) == pytest.approx(0.6 / 20)


def test_rows_of_the_trainer_have_tokens_of_all_rows_of_a_batch():
    import trainer as script
    from ropewalk_lab.settings import read_preset

    preset = script._with_many_steps(read_preset("smoke"))
    stage = preset.train.stages[0]
    bare, ours, data = script._rows(preset, {"bare loop": 0.5, "trainer": 0.625}, 0.125)
    assert bare["tokens_per_second"] == 2 * stage.length * stage.batch
    assert (bare["percent_of_bare"], ours["percent_of_bare"]) == (100.0, 80.0)
    assert data["percent_of_step"] == 20.0  # of the trainer's step


def test_a_training_step_counts_tokens_of_all_rows_and_the_spread_of_its_rounds(monkeypatch):
    """Rounds of 2, 4 and 5 seconds: a median of 4 s, and a spread of three quarters of it."""
    import training_step

    seconds = {0: iter((2.0, 4.0, 5.0)), 1: iter((8.0, 8.0, 8.0))}
    turn = []

    def timed(step, steps, device):
        turn.append(1)
        return next(seconds[(len(turn) - 1) % 2])

    monkeypatch.setattr(training_step, "_seconds", timed)
    ours, theirs = training_step.measure(
        TINY, batch=3, seq=8, rounds=3, device="cpu", dtype=torch.bfloat16, compiled=False
    )
    assert (ours["us"], ours["tokens_per_second"], ours["spread_percent"]) == (4e6, 6, 75.0)
    assert (theirs["tokens_per_second"], theirs["spread_percent"]) == (3, 0.0)
    model = Decoder(TINY)
    # parameters and both moments in bfloat16
    assert ours["peak_bytes"] == 3 * 2 * sum(each.numel() for each in model.parameters())
    assert ours["dtype"] == "bfloat16"


def test_the_seconds_of_a_step_are_a_mean_after_one_that_is_not_timed(monkeypatch):
    import training_step

    step = Clock(monkeypatch).taking(100.0, 1.0, 2.0, 6.0)
    assert training_step._seconds(step, 3, "cpu") == 3.0


def test_models_of_a_training_step_with_other_losses_are_an_error():
    import training_step

    tokens = torch.zeros(1, 4, dtype=torch.int64)
    theirs = lambda input_ids, labels: SimpleNamespace(loss=torch.tensor(2.0))
    ours = [SimpleNamespace(loss=lambda _, x=x: torch.tensor(x)) for x in (2.0 + 5e-5, 2.5)]
    assert training_step._loss_error(theirs, ours[0], tokens) == pytest.approx(5e-5, rel=0.01)
    with pytest.raises(AssertionError, match=r"losses differ by 0\.5"):
        training_step._loss_error(theirs, ours[1], tokens)


def test_a_source_tree_is_timed_with_its_own_code(monkeypatch, tmp_path):
    import two_trees

    asked = []

    def run(command, env, **options):
        asked.append((command, env["PYTHONPATH"]))
        done = "bad" if tmp_path.name in env["PYTHONPATH"] and len(asked) > 1 else ""
        return SimpleNamespace(returncode=bool(done), stdout='{"us": 1}\n{"us": 2}\n', stderr="why")

    monkeypatch.setattr(two_trees.subprocess, "run", run)
    assert two_trees.measure(tmp_path, ["cpu mid", "cpu decode"]) == [{"us": 1}, {"us": 2}]
    ((command, path),) = asked
    assert path == str(tmp_path.resolve())
    assert [after for name, after in pairwise(command) if name == "--shape"] == [
        "cpu mid",
        "cpu decode",
    ]
    with pytest.raises(SystemExit, match="why"):
        two_trees.measure(tmp_path, [])


def test_rows_of_two_trees_have_their_tree_and_their_run(monkeypatch, tmp_path, capsys):
    import two_trees

    case = {"order": "bhsd", "dtype": "float32", "pass": "forward", "us": 1.0}
    monkeypatch.setattr(
        two_trees, "measure", lambda source, shapes: [{**case, "shape": name} for name in shapes]
    )
    out = tmp_path / "rows.jsonl"
    options = ["two_trees.py", "--before", "a", "--after", "b", "--out", str(out), "--runs"]
    monkeypatch.setattr("sys.argv", [*options, "2"])
    two_trees.main()
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["tree"], row["run"]) for row in rows[::3]] == [
        ("before", 1),
        ("after", 1),
        ("after", 2),
        ("before", 2),
    ]
    assert [row["shape"] for row in rows[:3]] == list(two_trees.SHAPES)  # by default all
    monkeypatch.setattr("sys.argv", [*options, "1"])
    with pytest.raises(SystemExit):
        two_trees.main()
    assert "at least 2" in capsys.readouterr().err


def test_rows_of_variants_are_timed_on_tensors_of_the_variant(monkeypatch):
    import variants

    monkeypatch.setitem(cases.SHAPES, "tiny", (2, 7, 3, 1, 16, torch.float32))
    monkeypatch.setattr(variants, "make_case", _case_on_cpu)
    monkeypatch.setattr(variants, "copies", lambda case: [case])
    monkeypatch.setattr(variants, "rows_of", lambda contender, sets, row: [(sets[0], row)])
    for case, row in variants.measure(("tiny",)):
        assert (case.positions.ndim == 3) == (row["variant"] == "mrope")
        assert (case.spec.pairs == 2) == (row["variant"] == "partial")
        assert case.order == row["order"]
        assert row["shape"] == "tiny"


def test_a_window_is_timed_by_its_fastest_call_beside_one_mask(monkeypatch):
    import window

    clock = Clock(monkeypatch)
    monkeypatch.setattr(window, "ROUNDS", 3)
    assert window.milliseconds(clock.taking(0.5, 0.25, 1.0), "cpu") == 250.0
    monkeypatch.setitem(window.LENGTHS, "cpu", (6, 12))
    monkeypatch.setitem(window.SIZES, "cpu", (4, 2, 8, torch.float32))
    monkeypatch.setattr(window, "KINDS", {"window 6": {"window": 6}, "documents of 4": {"size": 4}})
    rows = list(window.measure("cpu"))
    # a window of 6 limits nothing in 6 tokens
    assert [(row["kind"], row["length"]) for row in rows[::2]] == [
        ("window 6", 12),
        ("documents of 4", 6),
        ("documents of 4", 12),
    ]
    assert {row["heads"] for row in rows} == {"4/2x8"}
    call = window.make_call("cpu", 6, size=4)
    seen = call.full_mask(torch.bool)[0, 0]
    documents = torch.tensor([0, 0, 0, 0, 1, 1])
    assert torch.equal(seen, (documents[:, None] == documents) & torch.ones(6, 6).tril().bool())


def test_a_way_that_is_not_close_to_one_mask_is_not_timed(monkeypatch):
    import window

    monkeypatch.setitem(window.LENGTHS, "cpu", (12,))
    monkeypatch.setattr(window, "KINDS", {"window 6": {"window": 6}})
    monkeypatch.setattr(window, "milliseconds", lambda run, device: 1.0)
    monkeypatch.setattr(window, "run_sdpa", lambda call: (window.one_mask(call) + 1e-3, None))
    with pytest.raises(AssertionError, match="not close"):
        list(window.measure("cpu"))


def test_a_call_of_jax_is_the_mean_of_its_fastest_round(monkeypatch):
    import jax_rotate

    jax = SimpleNamespace(block_until_ready=lambda out: out)
    monkeypatch.setitem(sys.modules, "jax", jax)
    monkeypatch.setattr(jax_rotate, "CALLS", 4)
    monkeypatch.setattr(jax_rotate, "ROUNDS", 3)
    # one call that compiles, then rounds of 8, 2 and 4 seconds
    call = Clock(monkeypatch).taking(50.0, *[2.0] * 4, *[0.5] * 4, *[1.0] * 4)
    assert jax_rotate.seconds(call) == 0.5


def test_a_page_is_timed_from_its_dials_to_its_answers(monkeypatch):
    """Milliseconds of a page of its own: dials after 400, an answer after 900, others later."""
    import web

    later = iter((60.0, 40.0, 50.0, 70.0, 30.0, 50.0, 50.0, 50.0, 50.0, 90.0))

    class Page:
        def send(self, *_, **__):
            pass

        wait = send

        def js(self, text):
            if text == "seen":
                return {"dials": 400.0, "answers": [900.0, 950.0]}
            return next(later)

    monkeypatch.setattr(web, "browser", lambda: nullcontext(Page()))
    assert web.loaded("http://here") == {
        "dials": 0.4,
        "first answer": 0.9,
        "next answer": 0.05,
        "slowest next answer": 0.09,
    }


def test_every_hostile_link_is_sent_once_and_other_hosts_are_counted(monkeypatch):
    import web

    sent = []

    class Page:
        def send(self, *_, **__):
            pass

        watch = open = send

        def js(self, text):
            return 3 if text.startswith("(async") else 0

        def requests(self):
            return ["http://here/a", "http://there/b", "data:x", "https://else/"]

    monkeypatch.setattr(web, "browser", lambda: nullcontext(Page()))
    monkeypatch.setattr(web, "hashes", lambda start, count: sent.append((start, count)) or [])
    assert web.hostile("http://here", 450) == {
        "hashes": 450,
        "scripts run": 9,
        "requests to other hosts": 2,
    }
    assert sent == [(0, 200), (200, 200), (400, 50)]


def test_rows_of_the_page_have_its_compressed_bytes_and_medians(monkeypatch, tmp_path, capsys):
    import gzip

    import web

    texts = {"index.html": b"a" * 5000, "data/x.json": bytes(range(256))}
    for name, text in texts.items():
        (tmp_path / "web" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "web" / name).write_bytes(text)
    times = iter(({"dials": 0.5}, {"dials": 0.1}, {"dials": 0.2}))
    for name, value in (
        ("BUILT", tmp_path / "web"),
        ("OUT", tmp_path / "rows.jsonl"),
        ("served", lambda: nullcontext("http://here")),
        ("loaded", lambda address: next(times)),
    ):
        monkeypatch.setattr(web, name, value)
    monkeypatch.setattr(sys, "argv", ["web.py", "--rounds", "3"])
    web.main()
    bytes_row, dials = map(json.loads, (tmp_path / "rows.jsonl").read_text().splitlines())
    assert bytes_row["files"] == 2
    assert bytes_row["value"] == sum(len(gzip.compress(text, 9)) for text in texts.values())
    assert (dials["value"], dials["values"]) == (0.2, [0.5, 0.1, 0.2])


@pytest.mark.parametrize(
    ("options", "limits"),
    [
        # each part alone, one after the other
        ([], [{"fit": 240}, {"real_kv": 60}, {"real_tune": 600}, {}]),
        # the fit alone, the others together without a limit of their own
        (["--together"], [{"fit": 240}, {"real_kv": float("inf"), "real_tune": float("inf")}]),
        # 6 of 100 seconds are kept for ending; the fit takes 30 of the others
        (["--together", "--seconds", "100"], [{"fit": 94}, {"real_kv": 64, "real_tune": 64}]),
        (["--limit", "7", "--together"], [{"fit": 7}, {"real_kv": 7, "real_tune": 7}]),
        (["--limit", "7"], [{"fit": 7}, {"real_kv": 7}, {"real_tune": 7}, {}]),
    ],
)
def test_parts_of_real_models_have_their_limits(monkeypatch, tmp_path, options, limits):
    import real_models

    clock, waited = Clock(monkeypatch), []

    def wait_for(running, limit):
        waited.append(dict(limit))
        assert list(running) == list(limit)
        clock.now += 30 if "fit" in limit else 0
        return [{"part": part} for part in limit]

    monkeypatch.setattr(real_models, "start", lambda part, args: part)
    monkeypatch.setattr(real_models, "wait_for", wait_for)
    parts = ["--parts", "fit", "real_kv", "real_tune"]
    monkeypatch.setattr(
        sys, "argv", ["real_models.py", "m.gguf", "texts", str(tmp_path), *parts, *options]
    )
    real_models.main()
    assert waited == limits
    ended = json.loads((tmp_path / "parts.json").read_text())
    assert [each["part"] for each in ended] == ["fit", "real_kv", "real_tune"]


def test_the_fit_of_real_models_gets_its_own_options(monkeypatch, tmp_path, capsys):
    import real_models

    asked = {}
    monkeypatch.setattr(
        "ropewalk_lab.fit.fit", lambda model, to, **options: asked.update(options, to=to)
    )
    monkeypatch.setattr("ropewalk_lab.fit_page.write_page", lambda result, folder: None)
    (tmp_path / "a.txt").write_text("text")
    options = ["--to", "11", "--windows", "12", "--passkeys", "13", "--search", "14"]
    monkeypatch.setattr(
        sys,
        "argv",
        ["real_models.py", "m", str(tmp_path), str(tmp_path), "--only", "fit", *options],
    )
    real_models.main()
    assert (asked["to"], asked["windows"], asked["passkeys"], asked["search"]) == (11, 12, 13, 14)
    assert (asked["trained"], asked["text"]) == (None, [tmp_path / "a.txt"])


def test_a_study_of_real_models_gets_the_settings_that_it_has(monkeypatch, tmp_path):
    import real_models
    from ropewalk_lab import studies

    asked = {}
    found = SimpleNamespace(tables=[], claims=[])
    study = SimpleNamespace(presets={"gpu": {"windows": 1}}, findings=lambda *_: found)
    monkeypatch.setattr(studies, "STUDIES", {"real_kv": study})
    monkeypatch.setattr(studies, "run_study", lambda *_, **options: asked.update(options))
    monkeypatch.setattr(studies, "read_study", lambda folder: ([], {}))
    (tmp_path / "a.txt").write_text("text")
    options = ["--only", "real_kv", "--set", "windows=7", "steps=3"]
    monkeypatch.setattr(sys, "argv", ["x", "m.gguf", str(tmp_path), str(tmp_path), *options])
    real_models.main()
    assert asked["changes"] == ["windows=7"]
    assert asked["models"] == tmp_path / "models"


def test_the_trainer_is_timed_by_the_step(monkeypatch):
    """Rounds of 4 steps take 2 s in the bare loop and 3 s in the trainer."""
    import trainer as script

    seconds = iter((2.0, 3.0) * 3)
    made = SimpleNamespace(step=0, run=lambda stop: None)
    for name, value in (
        ("make_trainer", lambda *_, **__: made),
        ("bare_loop", lambda trainer: lambda count: None),
        ("_seconds", lambda loop, steps, device: next(seconds)),
        ("_data_seconds", lambda trainer: 0.0),
        ("_rows", lambda preset, times, data: [times]),
    ):
        monkeypatch.setattr(script, name, value)
    (times,) = script.measure("smoke", steps=4, rounds=3, device="cpu")
    assert times == {"bare loop": 0.5, "trainer": 0.75}


def test_jax_is_not_timed_if_it_is_inexact(monkeypatch):
    import jax_rotate

    for name in ("jax", "jax.numpy", "ropewalk.jax"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(numpy=None, rotate=None))
    thetas = []
    monkeypatch.setattr(
        jax_rotate, "error_at", lambda position, spec: thetas.append(spec.theta) or 1e-5
    )
    with pytest.raises(SystemExit, match=r"1\.0e-05 at position 10,000,000"):
        list(jax_rotate.measure(jax_rotate.SMALL))
    assert thetas == [500_000.0]  # that of Llama 3
