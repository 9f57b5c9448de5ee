"""DecodeStep: one decode step of a Decoder on a GPU, captured as a CUDA graph with a static cache.

For one row a layer is five launches: norm + QKV product + head norm + rotation + cache write;
attention; output product + residual; norm + gate and up products + gate; down product + residual.
With several rows, the two norms are launches of their own, and a product may be another launch than
the operations before and after it. After the last layer come a norm, the product that gives the
logits, and a launch that picks the next token and loads its embedding.

Words of this module:
  row         a sequence of the batch; the step adds one token to each row
  slot        the place of a token in the cache, numbered through all rows: row * capacity + index
  invariant   the bits of a row's results depend on that row alone; `models.invariant` computes the
              prompt so, and an invariant step has kernels with the same sums
  network     the feed-forward network of a layer
  first_keys  for each row, the index of its first key that is not padding
  num_keys    how many keys the cache has in each row, with that of this step
  mixed       the attention output of each head, before the output product
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.attention import KVCache
from ropewalk.caches import Cache
from ropewalk.kernels.decode_step import launch
from ropewalk.kernels.decode_step.config import few_programs, pick_splits, pick_vocabulary_splits
from ropewalk.kernels.decode_step.workspace import DecodeWorkspace
from ropewalk.kernels.invariant import launch as invariant_launch
from ropewalk.kernels.norm_rotation import qk_norm_rope
from ropewalk.kernels.norm_rotation.definition import KVSlots
from ropewalk.kernels.qkv.launch import qkv_product
from ropewalk.kernels.support import power_of_two, why_no_triton
from ropewalk.models.plain_layers import fixed_config, plain_spec, why_not_layer

#: captured steps by model; a step holds its key-value cache, so few are kept
_STEPS = Cache("decode graphs", entries=4)
#: the most rows of a captured step: above, matrix products are no longer limited by reading the
#: weights
MOST_ROWS = 256
#: about the most bytes that the keys of several layers may have to be copied at once
STACKED_BYTES = 64 << 20
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def why_not(model: Any, tokens: Tensor) -> str | None:
    """Return why the steps after the prompt `tokens` [B, S] cannot be captured, or None if they
    can.
    """
    if not hasattr(model, "embed_tokens"):
        return "only a Decoder has decode kernels"
    weight = model.embed_tokens.weight
    if reason := why_no_triton(weight):
        return reason
    if not weight.is_cuda:
        return "CUDA graphs need a GPU"
    if tokens.shape[0] > MOST_ROWS:
        return f"a captured step has at most {MOST_ROWS} rows"
    if torch.cuda.is_current_stream_capturing() or torch.is_autocast_enabled("cuda"):
        return "another capture or autocast is active"
    if model.encoding is not None:
        return "the encoding is added to the embeddings"
    if model.training:
        return "the model is in training mode; call model.eval()"
    for module in model.modules():
        if isinstance(module, nn.Module) and (module._forward_hooks or module._forward_pre_hooks):
            return f"{type(module).__name__} has forward hooks, which a graph would skip"
    for name, parameter in model.named_parameters():
        if (
            type(parameter.data) is not Tensor
            or parameter.dtype not in DTYPES
            or parameter.dtype != weight.dtype
        ):
            return f"{name} must be a plain {weight.dtype} tensor"
        if not parameter.is_contiguous() or parameter.device != weight.device:
            return f"{name} must be contiguous and on {weight.device}"
    return next((reason for layer in model.layers if (reason := why_not_layer(layer))), None)


def _norm(module: Any) -> launch.Norm:
    """Return an nn.RMSNorm as the kernels take it."""
    return launch.Norm(module.weight, module.eps)


@contextmanager
def captured_step(model: Any, rows: int, capacity: int) -> Iterator[DecodeStep]:
    """Give the caller the captured step of `model` for `rows` rows and at least `capacity` tokens;
    the latest steps are cached.

    A step holds the keys and values of one generation, so a second generation at the same time gets
    a step of its own. Within the context the step is `busy`, and nothing else uses it. A generation
    on another CUDA stream also gets its own, since it would not wait for the work of this one.
    """
    capacity = max(256, power_of_two(capacity))  # few different sizes, so that steps can be reused
    # the key has `invariant`, because a copy of the model that computes invariantly shares its
    # layers
    invariant = model.invariant
    key = (id(model.layers), invariant, rows, capacity, _stream(model.embed_tokens.weight.device))
    step = _STEPS.newest(key)
    pointers = tuple(parameter.data_ptr() for parameter in model.parameters())
    # a graph reads the parameters at the addresses they had when it was captured
    if step is None or step.busy or step.pointers != pointers:
        if step is None:  # drop the step when the model is deleted
            weakref.finalize(model.layers, _STEPS.pop, key, None)
        step = _STEPS.keep(key, DecodeStep(model, rows, capacity, pointers))
    step.busy = True
    try:
        yield step
    finally:
        step.busy = False


def _stream(device: torch.device) -> int:
    """Return a number that identifies the current CUDA stream; 0 on a CPU, which has none."""
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


class DecodeStep:
    """The buffers and the graph of one decode step.

    Run the prompt through the model with growing caches, pass them to `start`, then call the step
    with each new token to get the next logits. `pointers` are the addresses of the parameters that
    the graph reads.
    """

    def __init__(self, model: Any, rows: int, capacity: int, pointers: tuple[int, ...]) -> None:
        """Allocate the buffers for `rows` rows of at most `capacity` tokens, and capture the graph
        that uses them. `pointers` are the addresses of the model's parameters, which the graph
        reads.
        """
        config, weight = model.config, model.embed_tokens.weight
        device, dtype = weight.device, weight.dtype
        self.pointers, self.busy, self.invariant = pointers, False, model.invariant
        shape = (len(model.layers), rows, config.num_kv_heads, capacity, config.head_dim)
        self.keys, self.values = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))
        integers: dict[str, Any] = {"dtype": torch.int64, "device": device}
        # the index of each row's first real token
        self.first_keys = torch.zeros(rows, **integers)
        #: for each slot of the cache, the most likely token after the one in it
        self.tokens = torch.zeros(rows, capacity, **integers)
        # each row's next position, each row's next cache slot, the number of keys: one tensor, so
        # that one launch adds 1 to all
        self.counters = torch.zeros(2 * rows + 1, **integers)
        self.positions, self.slots, self.num_keys = self.counters.split((rows, rows, 1))
        self.row_starts = torch.arange(rows, **integers) * capacity
        heads = (config.num_heads, config.num_kv_heads, config.head_dim)
        self.workspace = DecodeWorkspace(
            rows,
            *heads,
            # into how many parts attention divides the keys, and the search for the next token the
            # logits
            splits=pick_splits(rows, config.num_kv_heads, capacity, device),
            vocabulary_splits=pick_vocabulary_splits(rows, device),
            device=device,
        )
        self.embedding = weight
        # first the embedding of the latest token; the products of each layer add to it in place
        self.x = weight.new_zeros(rows, config.hidden_size)
        # `mixed` is the attention output of each head
        self.q, self.mixed = (
            weight.new_empty(rows, config.num_heads, config.head_dim) for _ in range(2)
        )
        self.normed = torch.empty_like(self.x)
        # the gated product in the middle of a feed-forward network
        self.middle = weight.new_empty(rows, config.intermediate_size)
        self.logits = weight.new_empty(rows, model.head_weight.shape[0])
        self._capture(model)

    def _capture(self, model: Any) -> None:
        """Capture one decode step as a CUDA graph, after a run on another stream that compiles the
        kernels.
        """
        stream = torch.cuda.Stream(self.x.device)
        stream.wait_stream(torch.cuda.current_stream(self.x.device))
        with torch.no_grad(), torch.cuda.stream(stream):
            self._run(model)  # compiles the kernels
        torch.cuda.current_stream(self.x.device).wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(self.graph):
            self._run(model)

    def _run(self, model: Any) -> None:
        """Write the logits to `logits`, the most likely token to `tokens`, its embedding to `x`;
        add 1 to `counters`.
        """
        for layer, k, v in zip(model.layers, self.keys, self.values, strict=True):
            self._run_layer(layer, k, v)
        x, norm = self.x, _norm(model.norm)
        if not self.invariant:  # torch's product is faster here, and does not norm
            x, norm = launch.normed(x, norm, self.normed), None
        self._product(x, model.head_weight, self.logits, norm=norm)
        launch.next_token(
            self.logits, self.embedding, self.tokens, self.x, self.counters, self.workspace
        )

    def _run_layer(self, layer: Any, k: Tensor, v: Tensor) -> None:
        """Run one layer: self.x is its input and becomes its output; k and v are its cache."""
        attention, network = layer.self_attn, layer.mlp
        # for one row, or in an invariant step, x itself and the norm, which the product applies; for
        # several rows x normed and None
        x, norm = self._normed(self.x, layer.input_layernorm)
        if self.invariant:
            self._attend_invariantly(attention, x, norm, k, v)
        else:
            self._attend(attention, x, norm, k, v)
        out, down = attention.o_proj, network.down_proj
        # `mixed`: the attention output of each head
        self._product(self.mixed.flatten(1), out.weight, self.x, bias=out.bias, residual=self.x)
        # the gated network, added to self.x
        gate_up = network.gate_up_proj
        x, norm = self._normed(self.x, layer.post_attention_layernorm)
        self._product(x, gate_up.weight, self.middle, norm=norm, bias=gate_up.bias, gate=True)
        self._product(self.middle, down.weight, self.x, bias=down.bias, residual=self.x)

    def _attend(
        self, attention: Any, x: Tensor, norm: launch.Norm | None, k: Tensor, v: Tensor
    ) -> None:
        """Write the attention output of each head to `mixed`; keys and values go into the cache.

        x     [rows, hidden], the input of the QKV product; `norm` is applied to it first if given
        k, v  the cache of this layer, [rows, heads, capacity, head_dim]

        Positions, slots and earlier keys were written before this replay, so a kernel may read them
        before the previous kernel has ended (`early`); with many programs attention is faster if it
        waits.
        """
        # KVSlots takes pages [pages, page_size, heads, head_dim]; here a page is a row of the cache
        qkv_product(
            x,
            attention.qkv_proj.weight,
            self.q,
            KVSlots(k.transpose(1, 2), v.transpose(1, 2)),
            self.slots,
            self.positions,
            plain_spec(attention),
            norm=norm,
            bias=attention.qkv_proj.bias,
            head_norm=attention.head_norm(),
            workspace=self.workspace,
            early=True,
        )
        launch.attend(
            self.q,
            k,
            v,
            self.mixed,
            self.first_keys,
            self.num_keys,
            attention.scale,
            self.workspace,
            window=attention.window,
            early=few_programs(len(self.x), attention.num_kv_heads, self.x.device),
        )

    def _attend_invariantly(
        self, attention: Any, x: Tensor, norm: launch.Norm | None, k: Tensor, v: Tensor
    ) -> None:
        """Do what `_attend` does, with kernels whose sums have the order of those that compute a
        prompt, so that a token gets the same bits in either.
        """
        linear, spec = attention.qkv_proj, plain_spec(attention)
        axes = (spec.num_axes,) if spec.num_axes > 1 else ()
        packed = x.new_empty(len(x), linear.weight.shape[0])
        self._product(x, linear.weight, packed, norm=norm, bias=linear.bias)
        qk_norm_rope(
            packed,
            spec=spec,
            # the same position on every axis
            positions=self.positions.expand(*axes, -1),
            heads=(attention.num_heads, attention.num_kv_heads),
            norm=attention.head_norm(),
            cache=KVSlots(k.transpose(1, 2), v.transpose(1, 2)),
            slots=self.slots,
            q_out=self.q,
            config=fixed_config(attention),
        )
        invariant_launch.decode(
            self.q,
            k,
            v,
            self.mixed,
            self.first_keys,
            self.num_keys,
            attention.scale,
            attention.window,
        )

    def _product(
        self, x: Tensor, weight: Tensor, out: Tensor, *, gate: bool = False, **finish: Any
    ) -> None:
        """Write x @ weight^T into `out`; with `gate`, silu(first half) * second half of its
        columns. `finish` holds the norm, bias and residual of `launch.product`.
        """
        if self.invariant:
            invariant_launch.product_into(x, weight, out, gate=gate, **finish)
        else:
            launch.product(x, weight, out, gate=gate, **finish)

    def _normed(self, x: Tensor, module: Any) -> tuple[Tensor, launch.Norm | None]:
        """Return (x, norm) if `_product` is to apply the norm: for a single row and in an invariant
        step, where it may need a launch for it. Otherwise return (normed x, None).
        """
        if len(x) == 1 or self.invariant:
            return x, _norm(module)
        return launch.normed(x, _norm(module), self.normed), None

    def start(self, prompt_caches: list[KVCache]) -> None:
        """Copy the keys and values of the prompt from the cache of each layer, and set the counters
        after the prompt. Its rows may be padded on the left.
        """
        #: how many tokens the cache holds
        self.size = size = len(prompt_caches[0])
        # several layers at a time, because a small model would wait for many small copies
        prompts = [cache.seen for cache in prompt_caches]
        layers = max(1, STACKED_BYTES // prompts[0].k.nbytes)
        for first in range(0, len(prompts), layers):
            some = slice(first, first + layers)
            self.keys[some, :, :, :size] = torch.stack([prompt.k for prompt in prompts[some]])
            self.values[some, :, :, :size] = torch.stack([prompt.v for prompt in prompts[some]])
        # the same in all layers: the first real token of each row, the next positions, and the next
        # slot of each row
        seen = prompts[0]
        self.first_keys.copy_(seen.valid.int().argmax(dim=-1))
        # after a prompt, `next_positions` is a tensor
        self.positions.copy_(prompt_caches[0].next_positions)  # type: ignore[arg-type]
        # in a step, the keys include that of its own token
        self.num_keys.fill_(size + 1)
        torch.add(self.row_starts, size, out=self.slots)

    def __call__(self, token: Tensor | None = None) -> Tensor:
        """Return the logits [B, V] after `token` [B], by default the most likely token of the
        previous call; every call writes its logits to the same memory.

        Afterwards `self.token` is the most likely next token, in memory that the next generation
        overwrites.
        """
        if token is not None:
            torch.index_select(self.embedding, 0, token, out=self.x)
        self.graph.replay()
        # the step has written it to the slot of the token that it read
        self.token = self.tokens[:, self.size]
        self.size += 1
        return self.logits
