"""qk_norm_rope: RMS-norm of q and k, rotation and KV-cache write in one launch, with a definition
in plain torch.

Triton itself is imported at the first call.
"""

from ropewalk.kernels.fused.api import qk_norm_rope, why_not
from ropewalk.kernels.fused.config import CONFIGS, Config
from ropewalk.kernels.fused.definition import KVSlots, LatentNorm, QKNorm

__all__ = ["CONFIGS", "Config", "KVSlots", "LatentNorm", "QKNorm", "qk_norm_rope", "why_not"]
