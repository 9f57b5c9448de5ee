"""All studies by name, one module each; the command line, the report and the tests use all entries
of STUDIES.
"""

from __future__ import annotations

from ropewalk_lab.studies import (
    decay,
    encodings,
    extend,
    linear,
    matching,
    methods,
    migrate,
    mlm_lengths,
    multimodal,
    norms,
    passkey,
    precision,
    real_extend,
    real_kv,
    real_passkey,
    real_precision,
    real_tune,
    relative,
    rope_variants,
)
from ropewalk_lab.studies.study import Study, read_study, run_study

STUDIES: dict[str, Study] = {
    study.name: study
    for module in (
        encodings,
        extend,
        rope_variants,
        norms,
        passkey,
        mlm_lengths,
        matching,
        linear,
        migrate,
        multimodal,
        decay,
        relative,
        precision,
        methods,
        real_extend,
        real_passkey,
        real_tune,
        real_precision,
        real_kv,
    )
    for study in getattr(module, "STUDIES", None) or [module.STUDY]
}

__all__ = ["STUDIES", "Study", "read_study", "run_study"]
