"""What torch.compile makes of the Decoder's loss: one graph, the same loss and gradients. Run by
test_ops.py.
"""

import pytest
import torch
from torch.testing import assert_close

from ropewalk.models import Decoder, DecoderConfig
from ropewalk.models.decoder_loss import token_loss

# dynamo itself instantiates the class of an autograd function that it traces
pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")


@pytest.fixture(autouse=True)
def _fresh():
    torch.manual_seed(0)
    torch._dynamo.reset()


@pytest.mark.parametrize(
    "options",
    [
        {
            "qk_norm": True,
            "num_experts": 3,
            "experts_per_token": 2,
            "router_aux_coef": 0.1,
            "window": 3,
        },
        {"encoding": "learned", "qkv_bias": True, "tie_embeddings": False},
    ],
    ids=["experts", "learned"],
)
def test_one_graph_holds_the_whole_training_step(options):
    model = Decoder(DecoderConfig(41, 20, 24, 1, 6, 2, 10, **options))
    tokens = torch.randint(0, 41, (2, 7))
    parameters = tuple(model.parameters())
    expected = model.loss(tokens)
    wanted = torch.autograd.grad(expected, parameters)
    found = torch.compile(model.loss, fullgraph=True, backend="aot_eager")(tokens)
    assert_close(found, expected)
    for mine, theirs in zip(torch.autograd.grad(found, parameters), wanted, strict=True):
        assert_close(mine, theirs)


def test_a_graph_serves_every_length():
    """The second length compiles once more, with the number of tokens as a symbol; later ones do
    not.
    """
    model, graphs = Decoder(DecoderConfig(41, 20, 24, 1, 2)), []
    compiled = torch.compile(
        model.loss, fullgraph=True, backend=lambda graph, _: graphs.append(graph) or graph.forward
    )
    for length in (7, 9, 30):
        tokens = torch.randint(0, 41, (2, length))
        assert_close(compiled(tokens), model.loss(tokens))
    assert len(graphs) <= 2


def test_lengths_with_as_many_blocks_of_a_window_share_a_graph(monkeypatch):
    monkeypatch.setattr("ropewalk.attention.backends.FEWEST_IN_BLOCK", 8)
    model, graphs = Decoder(DecoderConfig(41, 20, 24, 1, 2, window=3)), []
    compiled = torch.compile(
        model.loss, fullgraph=True, backend=lambda graph, _: graphs.append(graph) or graph.forward
    )
    for length in (20, 21, 24):  # three blocks, of which the last has more than the window
        tokens = torch.randint(0, 41, (2, length))
        assert_close(compiled(tokens), model.loss(tokens))
    assert len(graphs) <= 2


@pytest.mark.parametrize("window", [None, 5])
def test_an_exported_model_serves_every_length(window):
    model = Decoder(DecoderConfig(41, 20, 24, 1, 2, window=window)).eval()
    lengths = {1: torch.export.Dim("length", min=2, max=64)}
    exported = torch.export.export(
        model, (torch.randint(0, 41, (2, 7)),), dynamic_shapes=(lengths,)
    ).module()
    for length in (2, 7, 33):
        tokens = torch.randint(0, 41, (2, length))
        assert_close(exported(tokens), model(tokens))


def test_lengths_with_as_many_chunks_share_a_graph():
    weight, graphs = torch.randn(41, 6), []
    compiled = torch.compile(
        token_loss, fullgraph=True, backend=lambda graph, _: graphs.append(graph) or graph.forward
    )
    for tokens in (10, 11, 12):  # four chunks of three tokens, the last one shorter
        x, targets = torch.randn(tokens, 6), torch.randint(0, 41, (tokens,))
        assert_close(
            compiled(x, weight, targets, 3 * 41),
            torch.nn.functional.cross_entropy(x @ weight.T, targets),
        )
    assert len(graphs) <= 2


def test_one_graph_holds_a_loss_in_chunks():
    x, weight = torch.randn(11, 6, requires_grad=True), torch.randn(41, 6, requires_grad=True)
    targets = torch.randint(0, 41, (11,))
    expected = torch.nn.functional.cross_entropy(x @ weight.T, targets)
    # four chunks
    found = torch.compile(token_loss, fullgraph=True, backend="aot_eager")(
        x, weight, targets, 3 * 41
    )
    assert_close(found, expected)
    for mine, theirs in zip(
        *(torch.autograd.grad(loss, (x, weight)) for loss in (found, expected)), strict=True
    ):
        assert_close(mine, theirs)
