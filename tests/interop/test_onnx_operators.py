"""The operators that an ONNX graph is made of, run by torch without the packages of ONNX, against
exact angles.
"""

from __future__ import annotations

import inspect

import mpmath
import pytest
import torch
from torch.testing import assert_close

from ropewalk import RopeError, RopeSpec
from ropewalk.frequencies import Yarn
from ropewalk.interop import onnx
from ropewalk.kernels.request import Request, TableRequest
from tensor_forms import tensors

POSITIONS = torch.tensor([[0, 255, 256, 9_999_991, -3]])
YARN = Yarn(64, factor=4.0)
#: which magnitude queries and keys have, by magnitude_on; m is that of YaRN
MAGNITUDES = {"qk": (1, 1), "q": (2, 0), "scale": (0, 0)}


def rotated(x: torch.Tensor, spec: RopeSpec, magnitude: float, sign: int) -> torch.Tensor:
    """x [..., tokens, head_dim] in halves, rotated by the definition in float64 with exact angles."""
    radians = tensors(spec).radians.tolist()
    with mpmath.workdps(40):
        angles = [[mpmath.mpf(p) * mpmath.mpf(w) for w in radians] for p in POSITIONS[0].tolist()]
        cos, sin = (
            torch.tensor([[float(f(a)) for a in row] for row in angles])
            for f in (mpmath.cos, mpmath.sin)
        )
    first, second = x.double().chunk(2, dim=-1)
    cos, sin = magnitude * cos.double(), sign * magnitude * sin.double()
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("magnitude_on", MAGNITUDES)
def test_q_and_k_are_rotated_and_unrotated_with_their_magnitudes(magnitude_on, sign):
    spec = RopeSpec(12, scaling=YARN, magnitude_on=magnitude_on)
    torch.manual_seed(0)
    q, k = torch.randn(1, 3, 5, 12), torch.randn(1, 1, 5, 12)
    request = Request(spec, -2, POSITIONS, sign=sign, magnitude_power=sign)
    m = 1.1386294361119891  # 1 + 0.1 ln 4
    for x, found, power in zip(
        (q, k), onnx._rotate((q, k), request), MAGNITUDES[magnitude_on], strict=True
    ):
        assert_close(found.double(), rotated(x, spec, m ** (sign * power), sign), rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    ("shape", "seq_dim", "batches"),
    [
        ((2, 5, 8), -2, 2),
        ((2, 5, 8), -2, None),
        ((5, 2, 3, 8), -4, 2),
        ((2, 2, 3, 8), -4, 2),
        ((5, 3, 8), -3, None),
        ((2, 5, 3, 8), -3, 2),
        ((2, 3, 5, 8), -2, 2),
        ((5, 8), -2, None),
    ],
)
def test_tokens_may_be_along_any_axis(shape, seq_dim, batches):
    """Each token is rotated alone, by the definition: batch b, token s by its position; the batch
    is the first other axis.
    """
    torch.manual_seed(0)
    x, count, radians = torch.randn(shape), shape[seq_dim], tensors(RopeSpec(8)).radians
    positions = torch.randint(0, 50, (count,) if batches is None else (batches, count))
    (found,) = onnx._rotate((x,), Request(RopeSpec(8), seq_dim, positions))
    moved, result = x.movedim(seq_dim, 0), found.movedim(seq_dim, 0)  # [S, ..., D]
    for s in range(count):
        for b in range(1 if batches is None else batches):
            part, got = (moved[s], result[s]) if batches is None else (moved[s, b], result[s, b])
            angles = (positions[s] if batches is None else positions[b, s]) * radians
            one, two = part.double().chunk(2, dim=-1)
            cos, sin = angles.cos(), angles.sin()
            assert_close(
                got.double(),
                torch.cat((one * cos - two * sin, two * cos + one * sin), dim=-1),
                rtol=0,
                atol=2e-6,
            )


def test_given_tables_are_used_as_they_are():
    x, cos, sin = torch.randn(1, 3, 5, 8), torch.rand(5, 4), torch.rand(5, 4)
    (found,) = onnx._rotate((x,), TableRequest(cos, sin, -2, "half", "half"))
    a, b = x.chunk(2, dim=-1)
    assert_close(found, torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1))


def test_the_opset_is_the_first_with_the_operator_for_rotary_embeddings():
    """RotaryEmbedding is in ONNX since opset 23."""
    assert inspect.signature(onnx.export).parameters["opset_version"].default == 23
    with pytest.raises(RopeError, match="opset_version: must be an integer from 23 to"):
        onnx.export(torch.nn.Identity(), (), opset_version=22)
