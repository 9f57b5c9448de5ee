"""QK-norm, rotation and KV-cache write in one launch."""

from ropewalk.kernels.fused.api import CONFIGS, Config, KVSlots, QKNorm, qk_norm_rope, why_not

__all__ = ["CONFIGS", "Config", "KVSlots", "QKNorm", "qk_norm_rope", "why_not"]
