"""Load a plug-in from its file: the plug-ins are packages of their own, and are not installed
beside ropewalk.
"""

import importlib.util
from pathlib import Path

import torch

FOLDER = Path(__file__).parents[2] / "plugins"


def load(engine):
    """Return the plug-in of an engine, imported from its file."""
    path = FOLDER / engine / f"ropewalk_{engine}.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


#: rope_type: its other parameters, and the length of the rotary module, whose table then has more
#: than 150,000 rows
KINDS = {
    "default": ({}, 160_000),
    "linear": ({"factor": 4.0}, 40_000),
    "yarn": ({"factor": 4.0, "original_max_position_embeddings": 40_000}, 160_000),
    "llama3": (
        {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        160_000,
    ),
}


def error_at(module, kind, position):
    """Return the largest error of a row of the module's table, compared with float64 angles of its
    own frequencies.
    """
    inv_freq = module._compute_inv_freq(
        module.scaling_factor if kind == "yarn" else module.base
    ).double()
    angles = position * inv_freq / (4.0 if kind == "linear" else 1.0)
    table = module.cos_sin_cache.double()
    return float(
        (table[position] - torch.cat([angles.cos(), angles.sin()]) * table[0, 0]).abs().max()
    )
