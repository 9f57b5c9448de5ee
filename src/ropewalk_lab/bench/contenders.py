"""The timed contenders: ropewalk with several options, and other installed libraries.

Each function prepares a contender for a case (for example builds its tables) and returns a function
of q and k. A case has a shape, its q, k and positions, and `order`, the order of the axes: "bshd" is
[B, S, H, D], "bhsd" is [B, H, S, D]; `head_axis` and `seq_dim` are the axes of heads and tokens.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from ropewalk.errors import RopeError
from ropewalk.kernels.rotation.definition import join_pairs, split_pairs
from ropewalk.rope import Rope
from ropewalk.rotation import rotate_half
from ropewalk_lab.bench.cases import TOLERANCE, BenchCase, rms_error

#: q and k after the rotation
Rotated = tuple[Tensor, Tensor]
Call = Callable[[Tensor, Tensor], Rotated]


def ropewalk(
    case: BenchCase, *, explicit: bool = False, inplace: bool = False, backend: str | None = None
) -> Call:
    """Return a function that runs `rope(q, k)`, with positions if `explicit` or in a decode step,
    otherwise at 0, 1, 2, ...; `backend` is an argument of `Rope`, `inplace` one of its call.
    """
    rope, seq_dim, positions = Rope(case.spec, backend=backend), case.seq_dim, case.positions
    if explicit or case.decode:
        return lambda q, k: rope(q, k, positions, seq_dim=seq_dim, inplace=inplace)
    return lambda q, k: rope(q, k, seq_dim=seq_dim, inplace=inplace)


def ropewalk_interleaved(case: BenchCase) -> Call:
    """Return a function that runs `rope(q, k)` with the interleaved layout, for comparison with the
    complex product.
    """
    return ropewalk(
        replace(case, spec=replace(case.spec, layout="interleaved", layout_out="interleaved"))
    )


def hf_tables(case: BenchCase) -> tuple[Tensor, Tensor]:
    """Return cos and sin [B, S, head_dim] with an axis of 1 for the heads, as transformers computes
    them: float32 angles, cast to the model's dtype, every entry stored twice.
    """
    pairs = case.q.shape[-1] // 2
    inv_freq = 1.0 / (
        10_000.0 ** (torch.arange(0, 2 * pairs, 2, device=case.q.device).float() / (2 * pairs))
    )
    angles = case.positions[..., None].float() * inv_freq
    angles = torch.cat((angles, angles), dim=-1)
    cos, sin = angles.cos().to(case.q.dtype), angles.sin().to(case.q.dtype)
    return cos.unsqueeze(case.head_axis), sin.unsqueeze(case.head_axis)


def hf_rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return x * cos + rotate_half(x) * sin."""
    return x * cos + rotate_half(x) * sin


def hf_eager(case: BenchCase) -> Call:
    """Return a function that runs the rotation of transformers: two products and a rotate_half in
    the model's dtype.
    """
    cos, sin = hf_tables(case)
    return lambda q, k: (hf_rotate(q, cos, sin), hf_rotate(k, cos, sin))


def hf_compiled(case: BenchCase) -> Call:
    """Return a function that runs the rotation of transformers under torch.compile."""
    torch.compiler.reset()  # earlier shapes would count towards the recompile limit
    return torch.compile(hf_eager(case), dynamic=False)


def complex_form(case: BenchCase) -> Call:
    """Return a function that rotates interleaved pairs by a product of complex numbers in float32;
    its angles are computed in float64.
    """
    pairs = case.q.shape[-1] // 2
    radians = 10_000.0 ** (-torch.arange(pairs, dtype=torch.float64, device=case.q.device) / pairs)
    angles = case.positions[..., None] * radians
    rotations = (
        torch.polar(torch.ones_like(angles), angles).to(torch.complex64).unsqueeze(case.head_axis)
    )

    def rotate(x: Tensor) -> Tensor:
        complex_pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
        return torch.view_as_real(complex_pairs * rotations).flatten(-2).to(x.dtype)

    return lambda q, k: (rotate(q), rotate(k))


def lucidrains(case: BenchCase) -> Call:
    """Return a function that runs rotary-embedding-torch, by the author known as lucidrains. Its
    layout is interleaved; the angles are computed before, their cos and sin in each call.
    """
    from rotary_embedding_torch import RotaryEmbedding, apply_rotary_emb

    rotary = RotaryEmbedding(case.q.shape[-1]).to(case.q.device)
    freqs = (
        rotary.forward(case.positions.flatten().float()).detach().unflatten(0, case.positions.shape)
    )
    freqs = freqs.unsqueeze(case.head_axis)
    return lambda q, k: (
        apply_rotary_emb(freqs, q).to(q.dtype),
        apply_rotary_emb(freqs, k).to(k.dtype),
    )


def liger(case: BenchCase) -> Call:
    """Return a function that runs liger-kernel, which takes [B, H, S, D]. It rotates q and k
    [B, S, H, D], passed as transposed views, in place, and copies contiguous q and k [B, H, S, D]
    first.
    """
    # compared with, not a dependency
    from liger_kernel.ops.rope import LigerRopeFunction  # type: ignore[import-not-found]

    cos, sin = (table.squeeze(case.head_axis) for table in hf_tables(case))
    if case.order == "bshd":

        def call(q: Tensor, k: Tensor) -> Rotated:
            rotated_q, rotated_k = LigerRopeFunction.apply(
                q.transpose(1, 2), k.transpose(1, 2), cos, sin
            )
            return rotated_q.transpose(1, 2), rotated_k.transpose(1, 2)

        return call
    return lambda q, k: LigerRopeFunction.apply(q, k, cos, sin)


#: name of a contender -> the function that prepares it for a case
CONTENDERS: dict[str, Callable[[BenchCase], Call]] = {
    "ropewalk": ropewalk,
    "ropewalk, in place": partial(ropewalk, inplace=True),
    "ropewalk, positions": partial(ropewalk, explicit=True),
    "ropewalk, interleaved": ropewalk_interleaved,
    "ropewalk, eager": partial(ropewalk, explicit=True, backend="eager"),
    "ropewalk, basic": partial(ropewalk, explicit=True, backend="reference"),
    "transformers, eager": hf_eager,
    "transformers, compiled": hf_compiled,
    "complex product": complex_form,
    "rotary-embedding-torch": lucidrains,
    "liger-kernel": liger,
}
#: contenders whose pairs are neighbours; the others have the half layout
INTERLEAVED = ("ropewalk, interleaved", "complex product", "rotary-embedding-torch")
#: contender -> the module of another library that it needs
MODULES = {"rotary-embedding-torch": "rotary_embedding_torch", "liger-kernel": "liger_kernel"}


def contender_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of contenders without repetition; an unknown name is an error."""
    distinct = tuple(dict.fromkeys(names))
    for name in distinct:
        if name not in CONTENDERS:
            raise RopeError("contender", f"must be one of {', '.join(map(repr, CONTENDERS))}", name)
    return distinct


def why_not(name: str, case: BenchCase) -> str | None:
    """Return the reason why a contender cannot run on this machine, or None."""
    module = MODULES.get(name)
    if module and importlib.util.find_spec(module) is None:
        return f"{name} is not installed; run: pip install {name}"
    if name == "liger-kernel" and case.q.device.type != "cuda":
        return "liger-kernel needs a GPU"
    return None


def agrees(name: str, call: Call, case: BenchCase) -> tuple[bool, float]:
    """Return whether a contender agrees with the float64 definition on this case, and its relative
    rms error.
    """

    def relayout(x: Tensor, source: str, target: str) -> Tensor:
        """Return x with the dimensions of its pairs moved from the layout `source` to `target`."""
        return x if source == target else join_pairs(*split_pairs(x, source), target)

    layout = "interleaved" if name in INTERLEAVED else "half"  # the definition uses the half layout
    # clones, because some contenders rotate in place
    q, k = call(relayout(case.q.clone(), "half", layout), relayout(case.k.clone(), "half", layout))
    error = rms_error((relayout(q, layout, "half"), relayout(k, layout, "half")), case)
    return error < TOLERANCE[case.q.dtype], error
