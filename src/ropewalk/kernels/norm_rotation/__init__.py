"""qk_norm_rope: RMS-norm of q and k, rotation and KV-cache write in one launch, with a definition
in plain torch.

Triton itself is imported at the first call.
"""

from ropewalk.kernels.norm_rotation.api import qk_norm_rope, why_not
from ropewalk.kernels.norm_rotation.config import CONFIGS, NormRotationConfig
from ropewalk.kernels.norm_rotation.definition import KVSlots, LatentNorm, QKNorm

__all__ = [
    "CONFIGS",
    "KVSlots",
    "LatentNorm",
    "NormRotationConfig",
    "QKNorm",
    "qk_norm_rope",
    "why_not",
]
