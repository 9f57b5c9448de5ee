"""`ropewalk.jax` and `ropewalk.mlx`, where JAX and MLX are installed: rotations against exact angles,
and under jit, vmap and grad.
"""

import importlib
import subprocess
import sys
from types import SimpleNamespace

import mpmath
import numpy as np
import pytest
import torch

import ropewalk as rw
from helpers import sample_scaling
from ropewalk import RopeError, RopeSpec, axes, levels
from ropewalk.frequencies import Dynamic, Learnable, LongRope, XPos, Yarn
from ropewalk.tensor_frequencies import ladder
from tensor_forms import tensors

FAR = [
    0,
    1,
    5,
    2047,
    2048,
    4_194_303,
    4_194_304,
    9_999_999,
    10_000_000,
    2**31 - 1,
    -1,
    -3,
    -(2**31),
]
LIBRARIES = ("jax", "mlx")


@pytest.fixture(params=LIBRARIES)
def library(request):
    """Return (ropewalk's module for the library, the library's module of arrays)."""
    arrays = pytest.importorskip("jax.numpy" if request.param == "jax" else "mlx.core")
    return importlib.import_module(f"ropewalk.{request.param}"), arrays


def exact(positions, radians):
    """cos and sin of the exact angles, in float64."""
    with mpmath.workdps(40):
        angles = [[mpmath.mpf(int(p)) * mpmath.mpf(float(w)) for w in radians] for p in positions]
        return tuple(
            np.array([[float(f(a)) for a in row] for row in angles])
            for f in (mpmath.cos, mpmath.sin)
        )


def rotated(x, cos, sin, spec):
    """x [..., S, H, D] rotated by the definition, pair by pair, in float64."""
    out, n = np.array(x, dtype=np.float64), spec.pairs
    source = out.copy()
    for i in range(n):
        place = {"half": (i, i + n), "interleaved": (2 * i, 2 * i + 1)}
        a, b = (spec.rotary_start + at for at in place[spec.layout])
        c, d = (spec.rotary_start + at for at in place[spec.output_layout])
        angle_cos, angle_sin = cos[..., i, None], sin[..., i, None]
        out[..., c] = source[..., a] * angle_cos - source[..., b] * angle_sin
        out[..., d] = source[..., b] * angle_cos + source[..., a] * angle_sin
    return out


def test_the_tables_are_exact_at_every_32_bit_position():
    spec = RopeSpec(12, theta=5e5)
    found = levels.cos_sin(np, spec, np.array(FAR), None, False)
    for ours, theirs in zip(found, exact(FAR, tensors(spec).radians), strict=True):
        assert ours.dtype == np.float32
        np.testing.assert_allclose(ours, theirs, atol=5e-7)


def test_cos_and_sin_are_exact_far_away(library):
    module, xp = library
    spec = RopeSpec(12, theta=5e5)
    for ours, theirs in zip(
        module.cos_sin(xp.array(FAR), spec), exact(FAR, tensors(spec).radians), strict=True
    ):
        np.testing.assert_allclose(np.array(ours), theirs, atol=1e-6)


SPECS = {
    "half": RopeSpec(10), "interleaved": RopeSpec(10, layout="interleaved"),
    "two layouts": RopeSpec(10, layout="interleaved", layout_out="half"),
    "a part": RopeSpec(14, rotary_dim=6),
    "a part from the middle": RopeSpec(14, rotary_dim=6, rotary_start=4, layout="interleaved"),
    "magnitude": RopeSpec(10, scaling=Yarn(64, factor=4.0)),
}  # fmt: skip


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("rows", [1, 2])
def test_q_and_k_are_rotated_by_the_definition(library, name, rows):
    module, xp = library
    spec = SPECS[name]
    draw = np.random.default_rng(0)
    q, k = (
        draw.standard_normal((2, 5, heads, spec.head_dim)).astype(np.float32) for heads in (3, 1)
    )
    positions = draw.integers(0, 10_000_000, (rows, 5)) if rows == 2 else np.arange(5) + 9_999_990
    frequencies = tensors(spec)
    cos, sin = (
        t.reshape(*positions.shape, -1) * frequencies.magnitude
        for t in exact(positions.ravel(), frequencies.radians)
    )
    done = module.rotate(xp.array(q), xp.array(k), xp.array(positions), spec)
    for ours, x in zip(done, (q, k), strict=True):
        np.testing.assert_allclose(np.array(ours), rotated(x, cos, sin, spec), atol=3e-6)


def test_axes_and_lengths_follow_the_definition(library):
    module, xp = library
    q = np.random.default_rng(0).standard_normal((2, 5, 3, 12)).astype(np.float32)
    grid = np.random.default_rng(1).integers(0, 10_000_000, (3, 2, 5))
    spec = RopeSpec(12, axes=rw.axes.chunked([2, 3, 1]))
    radians = tensors(RopeSpec(12)).radians
    per_axis = [exact(each.ravel(), radians) for each in grid]
    cos, sin = (
        np.stack([per_axis[axis][i][:, p] for p, axis in enumerate(spec.axis_of_pair)], -1).reshape(
            2, 5, 6
        )
        for i in (0, 1)
    )
    np.testing.assert_allclose(
        np.array(module.rotate(xp.array(q), None, xp.array(grid), spec)),
        rotated(q, cos, sin, spec),
        atol=3e-6,
    )
    longrope = RopeSpec(12, scaling=LongRope((1.0,) * 6, (4.0,) * 6, 64, 8.0))
    near, far = (
        np.array(module.cos_sin(xp.array([3]), longrope, length=length)[1])[0, 0]
        for length in (64, 65)
    )
    assert np.arcsin(near / tensors(longrope).magnitude) == pytest.approx(np.pi - 3, rel=1e-5)
    assert np.arcsin(far / tensors(longrope).magnitude) == pytest.approx(0.75, rel=1e-5)
    with pytest.raises(RopeError, match="length: must be given"):
        module.rotate(xp.array(q), None, None, longrope)


def test_a_magnitude_on_q_is_squared_there_and_leaves_k(library):
    module, xp = library
    spec = RopeSpec(4, scaling=Yarn(64, factor=4.0), magnitude_on="q")
    q, k = module.rotate(xp.ones((1, 1, 4)), xp.ones((1, 1, 4)), None, spec)
    assert np.array(q)[0, 0, 0] == pytest.approx(tensors(spec).magnitude ** 2, rel=1e-6)
    assert np.array(k)[0, 0, 0] == 1


def test_bfloat16_results_of_jax_and_mlx_are_rounded_once(library):
    module, xp = library
    spec = RopeSpec(64)
    x = np.random.default_rng(0).standard_normal((7, 2, 64))
    ours = module.rotate(xp.array(x).astype(xp.bfloat16), None, None, spec)
    assert ours.dtype == xp.bfloat16
    theirs = rw.Rope(spec).rotate(torch.tensor(x).to(torch.bfloat16), seq_dim=-3)
    differ = np.array(ours.astype(xp.float32)) != theirs.float().numpy()
    assert differ.mean() < 0.002  # the last bit of a float32 product may decide a rounding


def test_jit_vmap_and_grad_of_jax_give_the_rotation():
    jax = pytest.importorskip("jax")
    from ropewalk.jax import rotate

    spec, jnp = RopeSpec(12), jax.numpy
    q = jnp.asarray(np.random.default_rng(0).standard_normal((2, 5, 3, 12)), dtype=jnp.float32)
    positions = jnp.array([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]]) + 9_000_000
    whole = rotate(q, q[:, :, :1], positions, spec)
    compiled = jax.jit(rotate, static_argnames="spec")(q, q[:, :, :1], positions, spec)
    mapped = jax.vmap(lambda q, p: rotate(q, q[:, :1], p, spec))(q, positions)
    for each, other, third in zip(whole, compiled, mapped, strict=True):
        np.testing.assert_allclose(each, other, atol=1e-6)
        np.testing.assert_allclose(each, third, atol=1e-6)
    weight = jnp.asarray(np.random.default_rng(1).standard_normal(q.shape), dtype=jnp.float32)
    gradient = jax.grad(lambda x: (rotate(x, None, positions, spec) * weight).sum())(q)
    back = rotate(gradient, None, positions, spec)  # the gradient is `weight` rotated backwards
    np.testing.assert_allclose(back, weight, atol=2e-6)
    assert rotate(q, None, jnp.arange(5), spec).shape == q.shape


def test_compile_vmap_and_grad_of_mlx_give_the_rotation():
    mx = pytest.importorskip("mlx.core")
    from ropewalk.mlx import rotate

    spec = RopeSpec(12)
    q, weight = (
        mx.array(np.random.default_rng(seed).standard_normal((2, 5, 3, 12)).astype(np.float32))
        for seed in (0, 1)
    )
    positions = mx.array([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]]) + 9_000_000
    whole = np.array(rotate(q, None, positions, spec))
    np.testing.assert_allclose(
        np.array(mx.compile(lambda q, p: rotate(q, None, p, spec))(q, positions)), whole, atol=1e-6
    )
    np.testing.assert_allclose(
        np.array(mx.vmap(lambda q, p: rotate(q, None, p, spec))(q, positions)), whole, atol=1e-6
    )
    gradient = mx.grad(lambda x: (rotate(x, None, positions, spec) * weight).sum())(q)
    np.testing.assert_allclose(
        np.array(rotate(gradient, None, positions, spec)), np.array(weight), atol=2e-6
    )


WRONG = {
    "learned": (RopeSpec(4, scaling=Learnable()), {}, "spec: must have fixed frequencies"),
    "axes of each head": (
        RopeSpec(8, axes=axes.by_head([1, 1], 4)),
        {},
        "axes: must be the same for all heads",
    ),
    "hf": (RopeSpec(4, precision="hf"), {}, "precision: must be"),
    "xpos": (RopeSpec(4, scaling=XPos()), {}, "scaling: must have the same magnitude"),
    "no length": (RopeSpec(4, scaling=Dynamic(2.0, 64)), {}, "length: must be given"),
    "length": (RopeSpec(4, scaling=Dynamic(2.0, 64)), {"length": 0}, "length: must be an integer"),
}


@pytest.mark.parametrize("name", WRONG)
def test_specs_that_cannot_be_rotated_without_torch_are_refused(name):
    spec, options, message = WRONG[name]
    with pytest.raises(RopeError, match=message):
        levels.check_spec(spec, options.get("length"))


@pytest.mark.parametrize(
    ("q", "k", "positions", "field"),
    [
        ((5, 4), None, (5,), "q"),
        ((5, 2, 6), None, (5,), "q"),
        ((5, 2, 4), (4, 2, 4), (5,), "k"),
        ((5, 2, 4), None, (4,), "positions"),
        ((2, 5, 2, 4), None, (3, 5), "positions"),
        ((5, 2, 4), None, (), "positions"),
    ],
)
def test_wrong_shapes_are_refused(q, k, positions, field):
    with pytest.raises(RopeError, match=f"^{field}: must"):
        levels.check_shapes(
            np.ones(q), None if k is None else np.ones(k), np.ones(positions), RopeSpec(4)
        )


def test_real_positions_are_refused(library):
    module, xp = library
    with pytest.raises(RopeError, match="positions: must be integers"):
        module.rotate(xp.ones((5, 2, 4)), None, xp.ones((5,)), RopeSpec(4))


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_missing_library_is_named_with_its_extra(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, f"ropewalk.{name}", raising=False)
    with pytest.raises(RopeError, match=rf"pip install 'ropewalk\[{name}\]'"):
        importlib.import_module(f"ropewalk.{name}")


@pytest.mark.parametrize("kind", ["int64", "uint32", "uint64", "int32", "int16", "uint8"])
def test_positions_of_any_width_have_their_own_angles(library, kind):
    """Positions are not cut to 32 bits, and unsigned ones do not become negative; JAX has 64-bit
    integers only if that is switched on.
    """
    module, xp = library
    limits = np.iinfo(kind)
    positions = np.array([0, 1, limits.max // 3, limits.max - 1, limits.min], dtype=kind)
    spec = RopeSpec(12)
    if "64" in kind and module.__name__ == "ropewalk.jax":
        with pytest.raises(RopeError, match="jax_enable_x64"):
            module.cos_sin(positions, spec)
        return
    found = module.cos_sin(xp.array(positions), spec)
    digits = spec.ladder_frequencies().digits
    for row, position in enumerate(positions.tolist()):
        for pair, exact_radians in enumerate(digits):
            with mpmath.workdps(60):
                angle = mpmath.mpf(str(exact_radians)) * position
                wanted = float(mpmath.cos(angle)), float(mpmath.sin(angle))
            ours = float(np.array(found[0])[row, pair]), float(np.array(found[1])[row, pair])
            # a step is off by half of 2^-64 turns: 0.8 radians at 2^63
            bound = 1e-6 + abs(position) * 2.0**-64 * np.pi
            assert ours == pytest.approx(wanted, abs=min(bound, 4.0))


@pytest.mark.parametrize("kind", [np.int32, np.uint32])
@pytest.mark.parametrize("form", [list, np.array])
def test_a_library_of_32_bits_refuses_what_it_would_wrap(kind, form):
    """As JAX does without jax_enable_x64: its arrays keep the lower 32 bits of an integer."""
    library = SimpleNamespace(
        __name__="of 32 bits",
        asarray=lambda values: np.asarray(values).astype(kind),
        issubdtype=np.issubdtype,
        integer=np.integer,
    )
    least, most = np.iinfo(kind).min, np.iinfo(kind).max
    kept = levels.integers(library, form([least, 7, most]))
    assert (kept.dtype, kept.tolist()) == (kind, [least, 7, most])
    for outside in (least - 1, most + 1, -(2**40), 2**40):
        with pytest.raises(RopeError, match=rf"32 bits.* {outside}\b"):
            levels.integers(library, form([0, outside]))


def test_integers_are_not_rotated_and_real_positions_are_refused(library):
    module, xp = library
    spec = RopeSpec(8)
    with pytest.raises(RopeError, match="q: must be floating point"):
        module.rotate(xp.array(np.ones((2, 1, 8), np.int32)), None, None, spec)
    ones = xp.array(np.ones((2, 1, 8), np.float32))
    with pytest.raises(RopeError, match="k: must be floating point"):
        module.rotate(ones, xp.array(np.ones((2, 1, 8), np.int32)), None, spec)
    with pytest.raises(RopeError, match="positions: must be integers"):
        module.cos_sin(xp.array(np.array([1.9], np.float32)), spec)


@pytest.mark.parametrize("name", [name for name in rw.frequencies.SCALINGS if name != "learnable"])
def test_float32_frequencies_without_torch_are_those_of_transformers_order(name):
    """NumPy's power may differ from torch's in the last bit of a float32, which two more roundings
    can carry into the last but one; the exact frequencies, rounded once, differ by more.
    """
    spec = RopeSpec(24, scaling=sample_scaling(name, 12), precision="hf_frequencies")
    length = 5000 if spec.needs_length else None
    ours = np.array(levels.float32_radians(spec, length))
    theirs = ladder(spec, length).radians.numpy().astype(np.float32)
    exact = np.array(spec.frequencies(length).radians, np.float32)
    assert np.array_equal(ours, ours.astype(np.float32))
    roundings = _float32_steps(ours.astype(np.float32), theirs)
    assert roundings.max() <= 2
    assert roundings.sum() <= _float32_steps(exact, theirs).sum()


def _float32_steps(a, b):
    """Return how many float32 numbers lie between two positive ones, elementwise."""
    return np.abs(a.view(np.int32).astype(np.int64) - b.view(np.int32))


NO_TORCH = """
import sys
from types import SimpleNamespace

class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "jaxtyping"):
            raise ImportError(f"{name} is not installed here")

sys.meta_path.insert(0, Refused())
import numpy as np
import ropewalk as rw
import ropewalk.levels
print(ropewalk.levels.cos_sin(np, rw.RopeSpec(8), np.arange(3), None, False)[0][1, 0])
"""


def test_arrays_need_no_torch():
    done = subprocess.run(
        [sys.executable, "-c", NO_TORCH], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(np.cos(1.0), abs=1e-6)
