"""How far rotations are from the published formulas at huge positions: random parameters, against
60 digits.
"""

import random

import mpmath
import torch

import ropewalk as rw
from frequency_oracle import oracle, rotations
from ropewalk import frequencies as fq
from ropewalk import rotation

#: the largest error of cos and sin near 2^bits
LIMITS = {20: 2e-7, 31: 2e-7, 36: 2e-7, 40: 5e-7}
#: each rule with random parameters; none has a magnitude, which would scale the errors
RULES = {
    "default": lambda r: fq.Default(),
    "linear": lambda r: fq.Linear(r.uniform(1, 40)),
    "ntk": lambda r: fq.Ntk(r.uniform(1, 40)),
    "yarn": lambda r: fq.Yarn(
        r.randrange(500, 40_000),
        r.uniform(8, 40),
        r.uniform(0.1, 3),
        r.random() < 0.5,
        1.0,
        factor=r.uniform(1, 40),
    ),
    "llama3": lambda r: fq.Llama3(
        r.uniform(1, 40), r.uniform(0.5, 2), r.uniform(2, 8), r.randrange(500, 40_000)
    ),
}


def draw(rule: str, seed: int) -> rw.RopeSpec:
    """Return a spec with random parameters; even seeds have a usual theta and head_dim."""
    r = random.Random(f"{rule} {seed}")
    usual = seed % 2 == 0
    theta = r.choice([10_000.0, 500_000.0, 1_000_000.0]) if usual else 10 ** r.uniform(0.5, 9)
    head_dim = r.choice([64, 128]) if usual else 2 * r.randrange(1, 80)
    return rw.RopeSpec(head_dim, theta, RULES[rule](r))


def near(bits: int, count: int, seed: int = 0) -> list[int]:
    """Return 2^bits, its neighbours, and random positions from half to one and a half times as far,
    some of them negative.
    """
    r = random.Random(seed)
    far = [r.randrange(2 ** (bits - 1), 3 * 2 ** (bits - 1)) for _ in range(count - 3)]
    return [2**bits - 1, 2**bits, 2**bits + 1, *(p if i % 4 else -p for i, p in enumerate(far))]


def expected(spec: rw.RopeSpec, positions: list[int]):
    """Return cos + i sin of the rule's own formula, complex128 [positions, pairs]."""
    with mpmath.workdps(60):
        return rotations(oracle(spec.scaling, spec.head_dim, spec.theta)[0], positions)


def rotated_units(spec: rw.RopeSpec, positions: list[int], backend: str, dtype: torch.dtype):
    """Return (1, 0) of every pair rotated by a backend, as cos + i sin, complex128 [positions,
    pairs].
    """
    x = torch.zeros(1, 1, len(positions), spec.head_dim, dtype=dtype)
    x[..., : spec.pairs] = 1.0
    found = (
        rotation.rotate(x, spec, torch.tensor(positions), backend=backend)[0, 0].double().numpy()
    )
    return found[:, : spec.pairs] + 1j * found[:, spec.pairs :]


def largest_error(found, wanted) -> float:
    """Return the largest difference of a cos or a sin."""
    difference = found - wanted
    return float(max(abs(difference.real).max(), abs(difference.imag).max()))
