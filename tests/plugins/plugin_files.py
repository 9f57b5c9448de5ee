"""Load a plug-in from its file: the plug-ins are packages of their own, and are not installed
beside ropewalk.
"""

import importlib.util
import logging
import sys
import types
from pathlib import Path

import torch

from ropewalk import frequencies

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


#: ropes that only ropewalk has, as config keys, and their scaling
OWN = {
    "ntk_by_parts": (
        {"factor": 4.0, "original_max_position_embeddings": 4096},
        frequencies.NtkByParts(factor=4.0, original_length=4096),
    ),
    "clipped": (
        {"pairs": 5, "inner": {"rope_type": "linear", "factor": 4.0}},
        frequencies.Clipped(frequencies.Linear(4.0), pairs=5),
    ),
    "linear_frequencies": ({}, frequencies.LinearFrequencies()),
}


def table_of(scaling, rows, dim=64, theta=1e4, length=None):
    """Return the float64 table of cos and sin of a scaling's frequencies, times its magnitude."""
    found = scaling.frequencies(dim, theta, length)
    angles = torch.arange(rows)[:, None].double() * torch.tensor(found.radians, dtype=torch.float64)
    return torch.cat([angles.cos(), angles.sin()], dim=-1) * found.magnitude


def check_switches(engine, version, monkeypatch):
    """Check that a plug-in that cannot be used, or is switched off, raises nothing and logs at most
    one line.
    """
    plugin, said = load(engine), []
    monkeypatch.setattr(plugin, "logger", logging.Logger("plug-in"))
    plugin.logger.addFilter(lambda each: said.append((each.levelname, each.getMessage())))
    switch = f"ROPEWALK_{engine.upper()}"

    def lines():
        said.clear()
        plugin.register()
        return said[:]

    monkeypatch.delenv(switch, raising=False)
    monkeypatch.delenv(f"{switch}_ANY_VERSION", raising=False)
    monkeypatch.setitem(sys.modules, engine, None)  # an import of the engine would raise
    assert lines() == []
    monkeypatch.setenv(switch, "1")
    ((level, text),) = lines()
    assert level == "ERROR"
    assert text.startswith("ropewalk is not used: ")
    # a release of the engine that the plug-in does not know; `installed` records what the plug-in
    # would change in it
    installed = []
    monkeypatch.setattr(plugin, "_install", lambda: installed.append(1))
    fake = types.ModuleType(engine)
    fake.__version__ = "99.1.2"
    monkeypatch.setitem(sys.modules, engine, fake)
    ((level, text),) = lines()
    assert level == "WARNING"
    assert "this is 99.1.2" in text
    assert f"{switch}_ANY_VERSION=1" in text
    assert installed == []
    monkeypatch.setenv(f"{switch}_ANY_VERSION", "1")
    assert (lines(), installed) == ([], [1])
    monkeypatch.delenv(f"{switch}_ANY_VERSION")
    fake.__version__ = version
    assert (lines(), installed) == ([], [1, 1])

    def broken():
        raise ImportError("no module named jaxtyping")

    monkeypatch.setattr(plugin, "_install", broken)
    assert lines() == [("ERROR", "ropewalk is not used: ImportError: no module named jaxtyping")]
