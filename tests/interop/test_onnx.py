"""ONNX: exported rotations run in ONNX Runtime, against exact angles. Skipped where the packages
are not installed.
"""

import mpmath
import numpy as np
import pytest
import torch

import ropewalk as rw
from ropewalk import RopeError, RopeSpec
from ropewalk.axes import by_head, normalised
from ropewalk.frequencies import Dynamic, Learnable, XPos, Yarn
from tensor_forms import tensors

for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package)

pytestmark = pytest.mark.filterwarnings("ignore")  # torch.onnx warns about its own imports
FAR = 9_999_990


class Rotation(torch.nn.Module):
    """Nothing but a rotation of q and k."""

    def __init__(self, spec, seq_dim=-2, explicit=True, layers=1):
        super().__init__()
        self.rope, self.seq_dim, self.explicit, self.layers = (
            rw.Rope(spec),
            seq_dim,
            explicit,
            layers,
        )

    def forward(self, q, k, positions):
        for _ in range(self.layers):
            q, k = self.rope(
                q, k, positions=positions if self.explicit else None, seq_dim=self.seq_dim
            )
        return q, k


def run(module, *inputs, **options):
    """Return the outputs of ONNX Runtime, the names of the operators, and the exported program."""
    import onnxruntime

    from ropewalk.interop import onnx

    program = onnx.export(module, inputs, **options)
    session = onnxruntime.InferenceSession(
        program.model_proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    feed = {given.name: x.numpy() for given, x in zip(session.get_inputs(), inputs, strict=False)}
    return session.run(None, feed), [node.op_type for node in program.model.graph], program


def exact(x, positions, spec, seq_dim=-2):
    """x rotated by the definition in float64, with exact angles."""
    frequencies = tensors(spec)
    with mpmath.workdps(40):
        angles = [
            [mpmath.mpf(p) * mpmath.mpf(w) for w in frequencies.radians.tolist()]
            for p in positions.ravel().tolist()
        ]
        cos, sin = (
            np.array([[float(f(a)) for a in row] for row in angles])
            for f in (mpmath.cos, mpmath.sin)
        )
    axis = 1 if seq_dim == -2 else 2
    cos, sin = (
        np.expand_dims(t.reshape(*positions.shape, -1) * frequencies.magnitude, axis)
        for t in (cos, sin)
    )
    wide = x.double().numpy()
    out, n = wide.copy(), spec.pairs
    for i in range(n):
        place = {"half": (i, i + n), "interleaved": (2 * i, 2 * i + 1)}
        a, b = (spec.rotary_start + at for at in place[spec.layout])
        c, d = (spec.rotary_start + at for at in place[spec.output_layout])
        out[..., c] = wide[..., a] * cos[..., i] - wide[..., b] * sin[..., i]
        out[..., d] = wide[..., b] * cos[..., i] + wide[..., a] * sin[..., i]
    return out


CASES = {
    "half": (RopeSpec(12), -2, True), "interleaved": (RopeSpec(12, layout="interleaved"), -2, True),
    "a part": (RopeSpec(20, rotary_dim=12), -2, True),
    "a part, interleaved": (RopeSpec(20, rotary_dim=12, layout="interleaved"), -2, True),
    "magnitude": (RopeSpec(12, scaling=Yarn(64, factor=4.0)), -2, True),
    "a part from the middle": (RopeSpec(20, rotary_dim=12, rotary_start=4), -2, False),
    "two layouts": (RopeSpec(12, layout="interleaved", layout_out="half"), -2, False),
    "[B, S, H, D]": (RopeSpec(12), -3, False),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_onnx_runtime_gives_the_exact_rotation_far_away(name):
    spec, seq_dim, fits = CASES[name]
    shapes = [
        (2, heads, 5, spec.head_dim) if seq_dim == -2 else (2, 5, heads, spec.head_dim)
        for heads in (3, 1)
    ]
    torch.manual_seed(0)
    q, k = (torch.randn(shape).clamp(-2, 2) for shape in shapes)
    positions = torch.randint(0, 10, (2, 5)) + FAR
    (ours_q, ours_k), operators, _ = run(Rotation(spec, seq_dim), q, k, positions)
    np.testing.assert_allclose(ours_q, exact(q, positions, spec, seq_dim), atol=1e-6)
    np.testing.assert_allclose(ours_k, exact(k, positions, spec, seq_dim), atol=1e-6)
    assert operators.count("RotaryEmbedding") == (2 if fits else 0)


@pytest.mark.parametrize("explicit", [True, False])
def test_layers_share_tables_and_consecutive_positions_need_none(explicit):
    spec = RopeSpec(12)
    q, k, positions = torch.randn(1, 3, 5, 12), torch.randn(1, 1, 5, 12), torch.arange(5).view(1, 5)
    (ours, _), operators, program = run(
        Rotation(spec, explicit=explicit, layers=3), q, k, positions
    )
    expected = exact(
        torch.from_numpy(exact(torch.from_numpy(exact(q, positions, spec)), positions, spec)),
        positions,
        spec,
    )
    np.testing.assert_allclose(ours, expected, atol=3e-6)
    assert operators.count("RotaryEmbedding") == 6
    tables = [
        each
        for each in program.model.graph.initializers.values()
        if tuple(each.shape) == (256, 2, 6)
    ]
    # cos and sin of given positions are themselves constants
    assert len(tables) == (4 if explicit else 0)


def test_an_exported_rotation_of_float16_is_rounded_once():
    spec = RopeSpec(12)
    q, k, positions = (
        torch.randn(1, 3, 5, 12).half(),
        torch.randn(1, 1, 5, 12).half(),
        torch.arange(5).view(1, 5) + FAR,
    )
    (ours, _), _, _ = run(Rotation(spec), q, k, positions)
    assert ours.dtype == np.float16
    expected = exact(q, positions, spec)
    np.testing.assert_allclose(ours, expected, atol=1e-6, rtol=2**-11 * 1.01)


def test_a_decoder_is_exported(tmp_path):
    import onnxruntime

    from ropewalk.interop import onnx

    torch.manual_seed(0)
    model = rw.Decoder(
        rw.models.DecoderConfig(
            vocab_size=31, hidden_size=24, intermediate_size=32, num_layers=2, num_heads=2
        )
    ).eval()
    tokens = torch.randint(0, 31, (1, 7))
    onnx.export(model, (tokens,), tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(
        tmp_path / "model.onnx", providers=["CPUExecutionProvider"]
    )
    logits = session.run(None, {session.get_inputs()[0].name: tokens.numpy()})[0]
    with torch.no_grad():
        np.testing.assert_allclose(logits, model(tokens), atol=1e-5)


def test_learned_frequencies_are_exported_as_trained():
    module = Rotation(RopeSpec(12, scaling=Learnable()))
    scale = torch.linspace(-1.0, 1.0, 6)
    with torch.no_grad():
        module.rope.log_scale.copy_(scale)
    q, positions = torch.randn(1, 3, 5, 12), torch.arange(5) + 4000
    found = run(module, q, q, positions)[0][0]
    radians = 10000.0 ** (-torch.arange(6, dtype=torch.float64) / 6) * scale.double().exp()
    angles = positions[:, None] * radians
    first, second = q.double().chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    expected = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (RopeSpec(12, scaling=Dynamic(2.0, 64)), "scaling: must not depend on the length"),
        (RopeSpec(12, precision="hf"), "precision: must be"),
        (RopeSpec(12, scaling=XPos()), "scaling: must have the same magnitude at every position"),
        (RopeSpec(12, axes=normalised(3, 3)), "must have fixed frequencies and integer positions"),
        (RopeSpec(12, axes=by_head([2, 1], 6)), "axes: must be the same for all heads"),
    ],
)
def test_what_a_graph_cannot_hold_is_refused(spec, message):
    from ropewalk.interop import onnx

    positions = torch.arange(5)
    if spec.num_axes > 1:
        positions = torch.rand(2, 1, 5) if spec.fractional else positions.expand(2, 1, 5)
    with pytest.raises((RopeError, RuntimeError), match=message):
        onnx.export(Rotation(spec), (torch.randn(1, 3, 5, 12), torch.randn(1, 3, 5, 12), positions))
    with pytest.raises(RopeError, match="opset_version"):
        onnx.export(Rotation(RopeSpec(12)), (), opset_version=18)
