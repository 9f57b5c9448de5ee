"""All studies by name, one module each."""

from __future__ import annotations

from importlib import import_module

from ropewalk_lab.studies.presets import ABOUT
from ropewalk_lab.studies.study import Study

_MODULES = (
    "decay",
    "encodings",
    "extend",
    "linear",
    "matching",
    "methods",
    "migrate",
    "mlm_lengths",
    "multimodal",
    "norms",
    "passkey",
    "precision",
    "real_extend",
    "real_kv",
    "real_passkey",
    "real_precision",
    "real_tune",
    "relative",
    "rope_variants",
)
# a module has one STUDY, or several in STUDIES
_FOUND = {
    study.name: study
    for module in (import_module(f"ropewalk_lab.studies.{name}") for name in _MODULES)
    for study in getattr(module, "STUDIES", None) or [module.STUDY]
}
STUDIES: dict[str, Study] = {name: _FOUND[name] for name in ABOUT}
