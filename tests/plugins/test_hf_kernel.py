"""The package in the format of Hugging Face's `kernels`: loaded as `kernels` loads it, compared
with the rotation written out in float64.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "tools" / "hf_kernel.py"
pytestmark = pytest.mark.skipif(not TOOL.is_file(), reason="tools/ is not part of an installation")


@pytest.fixture(scope="module")
def variant(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("kernel")
    subprocess.run([sys.executable, str(TOOL), "--out", str(out)], check=True)
    return out / "build" / "torch-cpu"


@pytest.fixture(scope="module")
def kernel(variant):
    """The package, imported from its file under the id in its metadata."""
    name = json.loads((variant / "metadata.json").read_text())["id"]
    spec = importlib.util.spec_from_file_location(name, variant / "__init__.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def angles_of(batch, tokens, pairs):
    return torch.randn(batch, tokens, pairs, dtype=torch.float64)


def written_out(x, angles, interleaved):
    """Rotate the first dims of x [B, H, S, D] by angles [B, S, pairs], pair by pair."""
    y, pairs = x.double().clone(), angles.shape[-1]
    for pair in range(pairs):
        a, b = (2 * pair, 2 * pair + 1) if interleaved else (pair, pairs + pair)
        cos, sin = angles[:, None, :, pair].cos(), angles[:, None, :, pair].sin()
        y[..., a] = x[..., a] * cos - x[..., b] * sin
        y[..., b] = x[..., b] * cos + x[..., a] * sin
    return y


def tables(angles, interleaved):
    both = angles.repeat_interleave(2, -1) if interleaved else torch.cat((angles, angles), -1)
    return both.cos().float(), both.sin().float()


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("pairs", [8, 5])
def test_whole_and_partial_heads_rotate_in_both_layouts(kernel, interleaved, pairs):
    q, k, angles = torch.randn(2, 4, 3, 16), torch.randn(2, 1, 3, 16), angles_of(2, 3, pairs)
    layout = "interleaved" if interleaved else "half"
    found = kernel.apply_rotary_pos_emb(q, k, *tables(angles, interleaved), layout=layout)
    for x, y in zip((q, k), found, strict=True):
        torch.testing.assert_close(
            y.double(), written_out(x, angles, interleaved), atol=1e-6, rtol=0
        )


def test_one_tensor_rotates_by_exact_angles(kernel):
    rope = kernel.Rope(kernel.RopeSpec(6, theta=100.0))
    x, positions = torch.randn(1, 2, 3, 6), torch.tensor([0, 7, 90_000])
    angles = positions[None, :, None] * 100.0 ** (-torch.arange(0, 6, 2, dtype=torch.float64) / 6)
    expected = written_out(x, angles, interleaved=False)
    torch.testing.assert_close(rope.rotate(x, positions).double(), expected, atol=1e-6, rtol=0)


def test_gradients_are_rotated_by_the_opposite_angles(kernel):
    angles = angles_of(1, 3, 4)
    q, k = (torch.randn(1, 2, 3, 8, requires_grad=True) for _ in range(2))
    found = kernel.apply_rotary_pos_emb(q, k, *tables(angles, False))
    grads = torch.autograd.grad(found, (q, k), grad_outputs=[torch.ones_like(q)] * 2)
    for grad in grads:
        expected = written_out(torch.ones(1, 2, 3, 8), -angles, interleaved=False)
        torch.testing.assert_close(grad.double(), expected, atol=1e-6, rtol=0)


def test_the_package_has_ops_of_its_own_and_needs_neither_ropewalk_nor_jaxtyping(variant, tmp_path):
    """Loaded where neither ropewalk nor jaxtyping can be imported, and compiled as one graph."""
    script = tmp_path / "load.py"
    script.write_text(
        "import sys, torch\n"
        "sys.modules['ropewalk'] = sys.modules['jaxtyping'] = None\n"
        f"sys.path.insert(0, {str(variant.parent)!r})\n"
        "import importlib\n"
        f"kernel = importlib.import_module({variant.name!r})\n"
        "x, angles = torch.randn(1, 2, 3, 8), torch.randn(1, 3, 4).repeat(1, 1, 2)\n"
        "call = lambda x: kernel.apply_rotary_pos_emb(x, x, angles.cos(), angles.sin())[0]\n"
        "compiled = torch.compile(call, fullgraph=True, backend='aot_eager')\n"
        "assert torch.equal(compiled(x), call(x))\n"
        "assert hasattr(torch.ops.ropewalk_rotary, 'rotate')\n"
        "assert not hasattr(torch.ops.ropewalk, 'rotate')\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
