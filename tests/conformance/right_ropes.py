"""Random right ropes: the same definition in many forms, types and conventions."""

import random

import numpy as np
import torch

from conformance.plain import Plain

DTYPES = {"float32": torch.float32, "float64": torch.float64}


class Right:
    """One right rope, chosen at random."""

    def __init__(self, seed):
        choose = random.Random(seed).choice
        self.plain = Plain()
        self.library = choose(["torch", "numpy", "list"])
        kinds = {"torch": ["float32", "float64", "bfloat16", "float16"], "list": ["float32"]}
        self.dtype = choose(kinds.get(self.library, ["float32", "float64", "float16"]))
        self.precision = choose(["float32", "float64"])
        self.power = choose(["power", "exponential"])
        self.table = choose(["computed", "gathered"])
        self.form = choose(["pairs", "halves", "complex", "matrix"])
        self.width = choose(["pairs", "halves", "neighbours", "complex", "padded"])
        self.order = choose(["kept", "halves"])
        self.rounding = choose(["once", "table"])
        self.magnitude = choose(["returned", "left out"])
        self.repeat = choose([False, True])

    def __repr__(self):
        return ", ".join(str(value) for name, value in vars(self).items() if name != "plain")

    # numbers in float32 or float64, as other code computes them

    def frequencies(self, config, part, length):
        """Return frequencies and magnitude; without a scaling, or with linear, `self.power` says
        whether frequencies are computed as powers or by exp.
        """
        _, dims, _, theta, scaling, _ = self.plain.read(config, part)
        kind = DTYPES[self.precision]
        exact, size = self.plain.inv_freq(config, part, length)
        if scaling.get("rope_type", scaling.get("type", "default")) not in ("default", "linear"):
            return torch.tensor(np.asarray(exact)).to(kind), size
        steps = torch.arange(0, dims, 2, dtype=torch.int64).to(kind) / dims
        if self.power == "power":
            made = 1.0 / (torch.tensor(float(theta), dtype=kind) ** steps)
        else:
            made = torch.exp(-steps * torch.log(torch.tensor(float(theta), dtype=kind)))
        return made / scaling.get("factor", 1.0), size

    def angles(self, config, positions, part):
        """Return [batch, tokens, pairs] of angles, and the magnitude."""
        positions = torch.as_tensor(np.asarray(positions))
        positions = positions if positions.dim() == 3 else positions[None]
        w, size = self.frequencies(config, part, int(positions.max()) + 1)
        axis = torch.from_numpy(self.plain.axes(config, len(w)))
        if len(positions) == 1:
            axis = axis * 0
        if self.table == "gathered" and positions.max() < 6000:
            rows = torch.arange(int(positions.max()) + 1).to(w.dtype)[:, None] * w
            return rows[positions][axis, ..., torch.arange(len(w))].movedim(0, -1), size
        return positions[axis].movedim(0, -1).to(w.dtype) * w, size

    def out(self, x):
        """Return x as an array of this rope's library."""
        if self.library == "torch":
            return x
        return x.to(torch.float64).numpy() if self.library == "numpy" else x.tolist()

    # the functions

    def inv_freq(self, config, part=None, length=None):
        w, size = self.frequencies(config, part, length)
        if self.repeat:
            w = torch.cat([w, w]) if self.width == "halves" else w.repeat_interleave(2)
        return (self.out(w), size) if self.magnitude == "returned" else self.out(w)

    def cos_sin(self, config, positions, part=None):
        angle, size = self.angles(config, positions, part)
        if self.width == "complex" and self.library != "list":
            return self.complex_out(torch.polar(torch.full_like(angle, size), angle))
        head = self.plain.read(config, part)[0]
        if self.width == "halves":
            angle = torch.cat([angle, angle], -1)
        elif self.width == "neighbours":
            angle = angle.repeat_interleave(2, -1)
        cos, sin = size * angle.cos(), size * angle.sin()
        if self.width == "padded" and size == 1:
            missing = head // 2 - angle.shape[-1]
            cos = torch.nn.functional.pad(cos, (0, missing), value=1.0)
            sin = torch.nn.functional.pad(sin, (0, missing))
        return self.out(cos), self.out(sin)

    def complex_out(self, z):
        return z if self.library == "torch" else z.numpy()

    def rotate(self, config, q, k, positions, part=None, q_scale=1.0, k_scale=1.0):
        angle, size = self.angles(config, positions, part)
        return tuple(
            self.out(self.rotated(config, x, scale, angle, size, part))
            for x, scale in ((q, q_scale), (k, k_scale))
        )

    def rotated(self, config, x, scale, angle, size, part):
        _, dims, start, _, _, layout = self.plain.read(config, part)
        x = x if torch.is_tensor(x) else torch.tensor(np.asarray(x))
        kind = x.dtype
        x = x.to(torch.float64 if kind == torch.float64 else torch.float32) * scale
        before, mine, after = x.split([start, dims, x.shape[-1] - start - dims], -1)
        a, b = (
            (mine[..., : dims // 2], mine[..., dims // 2 :])
            if layout == "half"
            else (mine[..., ::2], mine[..., 1::2])
        )
        cos, sin = (size * angle.cos())[:, None], (size * angle.sin())[:, None]
        if self.rounding == "table":
            cos, sin = cos.to(kind), sin.to(kind)
        cos, sin = cos.to(x.dtype), sin.to(x.dtype)
        if self.form == "complex":
            turned = torch.complex(a.contiguous(), b.contiguous()) * torch.complex(cos, sin)
            a, b = turned.real, turned.imag
        elif self.form == "matrix":
            matrix = torch.stack([torch.stack([cos, -sin], -1), torch.stack([sin, cos], -1)], -2)
            a, b = (matrix @ torch.stack([a, b], -1)[..., None])[..., 0].unbind(-1)
        elif self.form == "halves":
            both, other = torch.cat([a, b], -1), torch.cat([-b, a], -1)
            made = both * torch.cat([cos, cos], -1) + other * torch.cat([sin, sin], -1)
            a, b = made.chunk(2, -1)
        else:
            a, b = a * cos - b * sin, a * sin + b * cos
        if layout == "half" or self.order == "halves":
            made = torch.cat([a, b], -1)
        else:
            made = torch.stack([a, b], -1).flatten(-2)
        return torch.cat([before, made, after], -1).to(kind)
