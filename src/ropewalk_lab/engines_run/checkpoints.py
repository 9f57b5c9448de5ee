"""Where the weights of a small model are kept: in a folder named by a hash of its config without
the keys of the rope.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import hashlib
import json
from typing import Any

#: keys that change the rope and not the weights
ROPE_KEYS = (
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "partial_rotary_factor",
    "rotary_pct",
    "rotary_emb_base",
    "rotary_dim",
    "rope_local_base_freq",
    "max_position_embeddings",
    "original_max_position_embeddings",
    "rope_interleave",
    "no_rope_layers",
    "initial_context_length",
)


def folder_name(config: dict[str, Any]) -> str:
    """Return the name of the folder with the weights of a config: model_type and a hash of the keys
    that weights depend on.
    """
    text = {**config, **config.get("text_config", {})}
    other_keys = {
        key: value for key, value in text.items() if key not in ROPE_KEYS and key != "text_config"
    }
    digest = hashlib.sha256(json.dumps(other_keys, sort_keys=True).encode()).hexdigest()
    return f"{config['model_type']}-{digest[:12]}"
