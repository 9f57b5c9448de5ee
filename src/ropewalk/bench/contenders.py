"""Who is timed: ropewalk in its forms, and the peers found on this machine.

A contender is prepared once for a case (tables are built there) and is then a function of q and k.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from ropewalk.bench.cases import GATE, Case, rms_error
from ropewalk.kernels.reference import join_pairs, split_pairs
from ropewalk.rope import Rope

Turned = tuple[Tensor, Tensor]
Call = Callable[[Tensor, Tensor], Turned]


def ropewalk(case: Case) -> Call:
    """The library as a user calls it, counted positions."""
    rope, seq_dim = Rope(case.spec), case.seq_dim
    if case.decode:
        return ropewalk_positions(case)
    return lambda q, k: rope(q, k, seq_dim=seq_dim)


def ropewalk_inplace(case: Case) -> Call:
    """In place: allocates nothing (the memory-efficient form)."""
    rope, seq_dim = Rope(case.spec), case.seq_dim
    positions = case.positions if case.decode else None
    return lambda q, k: rope(q, k, positions, seq_dim=seq_dim, inplace=True)


def ropewalk_positions(case: Case) -> Call:
    """With explicit positions [B, S]."""
    rope, seq_dim, positions = Rope(case.spec), case.seq_dim, case.positions
    return lambda q, k: rope(q, k, positions, seq_dim=seq_dim)


def ropewalk_interleaved(case: Case) -> Call:
    """The other layout: pairs side by side, as the complex product has them."""
    return ropewalk(replace(case, spec=replace(case.spec, layout="interleaved", layout_out="interleaved")))


def ropewalk_basic(case: Case) -> Call:
    """The definition in plain torch (the basic form)."""
    rope, seq_dim, positions = Rope(case.spec, backend="reference"), case.seq_dim, case.positions
    return lambda q, k: rope(q, k, positions, seq_dim=seq_dim)


def ropewalk_eager(case: Case) -> Call:
    """Plain torch with kept tables: what runs where no kernel does."""
    rope, seq_dim, positions = Rope(case.spec, backend="eager"), case.seq_dim, case.positions
    return lambda q, k: rope(q, k, positions, seq_dim=seq_dim)


def hf_tables(case: Case) -> tuple[Tensor, Tensor]:
    """cos and sin as transformers makes them: float32 angles, the model's dtype, every entry twice."""
    pairs = case.q.shape[-1] // 2
    inv_freq = 1.0 / (10_000.0 ** (torch.arange(0, 2 * pairs, 2, device=case.q.device).float() / (2 * pairs)))
    angles = case.positions[..., None].float() * inv_freq
    angles = torch.cat((angles, angles), dim=-1)
    heads = 2 if case.order == "bshd" else 1
    return angles.cos().to(case.q.dtype).unsqueeze(heads), angles.sin().to(case.q.dtype).unsqueeze(heads)


def hf_turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x cos + rotate_half(x) sin."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def hf_eager(case: Case) -> Call:
    """What transformers runs: two products and a rotate_half in the model's dtype."""
    cos, sin = hf_tables(case)
    return lambda q, k: (hf_turn(q, cos, sin), hf_turn(k, cos, sin))


def hf_compiled(case: Case) -> Call:
    """The same under torch.compile."""
    cos, sin = hf_tables(case)
    torch.compiler.reset()  # else the shapes before count as recompilations
    return torch.compile(lambda q, k: (hf_turn(q, cos, sin), hf_turn(k, cos, sin)), dynamic=False)


def complex_form(case: Case) -> Call:
    """The complex product in float32, on interleaved pairs of permuted vectors (the permutation is not timed)."""
    pairs = case.q.shape[-1] // 2
    radians = 10_000.0 ** (-torch.arange(pairs, dtype=torch.float64, device=case.q.device) / pairs)
    angles = case.positions[..., None] * radians
    turns = torch.polar(torch.ones_like(angles), angles).to(torch.complex64).unsqueeze(2 if case.order == "bshd" else 1)

    def turn(x: Tensor) -> Tensor:
        pairs_of = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs_of * turns).flatten(-2).to(x.dtype)

    return lambda q, k: (turn(q), turn(k))


def lucidrains(case: Case) -> Call:
    """rotary-embedding-torch, interleaved; tables frozen outside the timing."""
    from rotary_embedding_torch import RotaryEmbedding, apply_rotary_emb

    rotary = RotaryEmbedding(case.q.shape[-1]).to(case.q.device)
    freqs = rotary.forward(case.positions.flatten().float()).detach().unflatten(0, case.positions.shape)
    freqs = freqs.unsqueeze(2 if case.order == "bshd" else 1)
    return lambda q, k: (apply_rotary_emb(freqs, q).to(q.dtype), apply_rotary_emb(freqs, k).to(k.dtype))


def liger(case: Case) -> Call:
    """liger-kernel's Triton kernel; it wants [B, H, S, D] views of [B, S, H, D] memory and writes in place."""
    from liger_kernel.ops.rope import LigerRopeFunction  # type: ignore[import-not-found]  # a peer, not an extra

    cos, sin = (table.squeeze(2 if case.order == "bshd" else 1) for table in hf_tables(case))
    if case.order == "bshd":

        def call(q: Tensor, k: Tensor) -> Turned:
            turned_q, turned_k = LigerRopeFunction.apply(q.transpose(1, 2), k.transpose(1, 2), cos, sin)
            return turned_q.transpose(1, 2), turned_k.transpose(1, 2)

        return call
    return lambda q, k: LigerRopeFunction.apply(q, k, cos, sin)


#: name -> prepare
CONTENDERS: dict[str, Callable[[Case], Call]] = {
    "ropewalk": ropewalk,
    "ropewalk, in place": ropewalk_inplace,
    "ropewalk, positions": ropewalk_positions,
    "ropewalk, interleaved": ropewalk_interleaved,
    "ropewalk, eager": ropewalk_eager,
    "ropewalk, basic": ropewalk_basic,
    "transformers, eager": hf_eager,
    "transformers, compiled": hf_compiled,
    "complex product": complex_form,
    "rotary-embedding-torch": lucidrains,
    "liger-kernel": liger,
}
INTERLEAVED = ("ropewalk, interleaved", "complex product", "rotary-embedding-torch")
MODULES = {"rotary-embedding-torch": "rotary_embedding_torch", "liger-kernel": "liger_kernel"}


def why_not(name: str, case: Case) -> str | None:
    """Why a contender cannot run here, or None."""
    module = MODULES.get(name)
    if module and importlib.util.find_spec(module) is None:
        return f"{name} is not installed; pip install ropewalk[bench]"
    if name == "liger-kernel" and case.q.device.type != "cuda":
        return "liger-kernel needs a GPU"
    return None


def agrees(name: str, call: Call, case: Case) -> tuple[bool, float]:
    """Whether a contender agrees with the definition on this case, and its relative rms error."""

    def relayout(x: Tensor, source: str, target: str) -> Tensor:
        return x if source == target else join_pairs(*split_pairs(x, source), target)

    layout = "interleaved" if name in INTERLEAVED else "half"
    rotated = call(relayout(case.q.clone(), "half", layout), relayout(case.k.clone(), "half", layout))
    error = rms_error((relayout(rotated[0], layout, "half"), relayout(rotated[1], layout, "half")), case)
    return error < GATE[case.q.dtype], error
