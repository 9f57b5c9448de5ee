"""Selective RoPE and PaTH with shared keys, padding anywhere, packed documents and sequences in
pieces.
"""

import pytest
import torch
from torch.testing import assert_close

from ropewalk.attention import PathAttention, SelectiveAttention
from ropewalk.attention.path import path_scores
from ropewalk.errors import RopeError

MAKERS = {
    "softmax": lambda **options: SelectiveAttention(24, 4, 8, **options),
    "linear": lambda **options: SelectiveAttention(24, 4, 8, form="linear", **options),
    "path": lambda **options: PathAttention(24, 4, 8, chunk=4, **options),
}


def made(name: str, seed: int = 0, **options):
    torch.manual_seed(seed)
    layer = MAKERS[name](**options).double()
    for parameter in layer.parameters():  # convolutions begin as the identity
        torch.nn.init.normal_(parameter, std=0.5)
    return layer


def written(layer, x):
    """Attention written out head by head: what each head shares with others is indexed, never
    repeated.
    """
    heads = layer.qkv_proj(x).unflatten(-1, (-1, 8)).transpose(1, 2)
    q, k, v = heads.split((4, layer.num_kv_heads, layer.num_kv_heads), dim=1)
    group, outs = 4 // layer.num_kv_heads, []
    hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    for head in range(4):
        shared = head // group
        if isinstance(layer, PathAttention):
            w = torch.nn.functional.silu(layer.w_conv(layer.w_proj(x))[0]).unflatten(-1, (-1, 8))[
                :, :, shared
            ]
            beta = 2 * layer.beta_proj(x)[:, :, shared].sigmoid()
            scores = path_scores(q[:, head], k[:, shared], w / w.norm(dim=-1, keepdim=True), beta)
        else:
            angles = layer.phases(x)[1][:, shared]
            both = (
                torch.polar(torch.ones_like(angles), angles) * torch.complex(*each.split(4, -1))
                for each in (q[:, head], k[:, shared])
            )
            left, right = both
            scores = (left.unsqueeze(2) * right.unsqueeze(1).conj()).real.sum(-1)
        if getattr(layer, "form", "softmax") == "linear":
            decay = torch.nn.functional.logsigmoid(layer.decay_proj(x))[..., head].cumsum(-1) / 16
            weights = (scores * (decay.unsqueeze(2) - decay.unsqueeze(1)).exp()).masked_fill(
                hidden, 0
            )
            outs.append(layer.norm(weights @ v[:, shared]))
        else:
            outs.append(
                (scores / 8**0.5).masked_fill(hidden, float("-inf")).softmax(-1) @ v[:, shared]
            )
    return layer.o_proj(torch.cat(outs, dim=-1))


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("name", MAKERS)
def test_every_layer_with_shared_keys_equals_the_definition(name, kv_heads):
    layer = made(name, num_kv_heads=kv_heads)
    x = torch.randn(2, 9, 24, dtype=torch.float64)
    assert_close(layer(x)[0], written(layer, x), rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", MAKERS)
def test_a_padded_row_equals_the_row_alone_also_when_continued(name):
    layer = made(name, num_kv_heads=2)
    real = torch.tensor(
        [
            [0, 0, 0, 1, 1, 1, 1],
            [1, 1, 1, 1, 1, 1, 1],
            [1, 0, 1, 1, 0, 1, 0],
            [0, 0, 0, 0, 0, 0, 1],
        ],
        dtype=torch.bool,
    )
    x, more = torch.randn(4, 7, 24, dtype=torch.float64), torch.randn(4, 3, 24, dtype=torch.float64)
    also = torch.tensor([[1, 1, 1], [0, 0, 1], [1, 0, 1], [0, 1, 1]], dtype=torch.bool)
    out, state = layer(x, padding=real)
    assert not out[~real].any()
    then, state = layer(more, state, padding=also)
    last, _ = layer(more[:, :1], state)
    for row in range(4):
        alone = torch.cat((x[row, real[row]], more[row, also[row]], more[row, :1]))
        expected = layer(alone.unsqueeze(0))[0][0]
        found = torch.cat((out[row, real[row]], then[row, also[row]], last[row]))
        assert_close(found, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", MAKERS)
def test_packed_documents_equal_each_document_alone(name):
    layer = made(name, num_kv_heads=2)
    # neighbours or not
    documents = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 2], [5, 3, 5, 5, 3, 3, 0, 5]])
    real = torch.tensor([[1] * 8, [1, 1, 0, 1, 1, 1, 1, 1]], dtype=torch.bool)
    x = torch.randn(2, 8, 24, dtype=torch.float64, requires_grad=True)
    out, state = layer(x, padding=real, documents=documents)
    assert state is None
    for row in range(2):
        for document in documents[row].unique():
            own = (documents[row] == document) & real[row]
            assert_close(out[row, own], layer(x[row : row + 1, own])[0][0], rtol=0, atol=1e-10)
    (gradient,) = torch.autograd.grad(out[0, 3:7].sum(), x)
    assert gradient[0, 3:7].abs().min() > 0
    assert gradient[0, :3].abs().max() < 1e-12


def test_a_row_of_padding_alone_gives_zeros_and_finite_gradients():
    for name in MAKERS:
        layer, x = made(name), torch.randn(2, 5, 24, dtype=torch.float64, requires_grad=True)
        out, _ = layer(x, padding=torch.tensor([[False] * 5, [True] * 5]))
        out.square().sum().backward()
        assert not out[0].any()
        assert all(p.grad.isfinite().all() for p in layer.parameters())
        assert x.grad is not None
        assert not x.grad[0].any()


@pytest.mark.parametrize("name", MAKERS)
def test_no_tokens_give_no_output_and_keep_the_state(name):
    layer, x = made(name), torch.randn(2, 6, 24, dtype=torch.float64)
    out, state = layer(x[:, :0])
    assert out.shape == (2, 0, 24)
    _, state = layer(x[:, :3], state)
    assert layer(x[:, :0], state, padding=torch.ones(2, 0, dtype=torch.bool))[1] is state
    assert_close(layer(x[:, 3:], state)[0], layer(x)[0][:, 3:], rtol=0, atol=1e-10)
    assert layer(x[:, :0], documents=torch.zeros(2, 0, dtype=torch.int64))[0].shape == (2, 0, 24)


def test_documents_with_a_state_and_bad_sizes_are_refused():
    layer, x = made("path"), torch.randn(1, 4, 24, dtype=torch.float64)
    state = layer(x)[1]
    with pytest.raises(RopeError, match="give each document its own row"):
        layer(x, state, documents=torch.zeros(1, 4, dtype=torch.int64))
    with pytest.raises(RopeError, match="padding: must be boolean"):
        layer(x, padding=torch.ones(1, 3, dtype=torch.bool))
    for make in (SelectiveAttention, PathAttention):
        with pytest.raises(RopeError, match="num_kv_heads: must divide num_heads = 4"):
            make(24, 4, 8, num_kv_heads=3)
        with pytest.raises(RopeError, match="head_dim: must be given"):
            make(22, 4)
