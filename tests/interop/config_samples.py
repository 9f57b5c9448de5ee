"""Small configs that the tests of this folder vary, and how they check a refusal."""

from __future__ import annotations

import pytest

from ropewalk import RopeError
from ropewalk.config.hf import from_hf

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "max_position_embeddings": 4096,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 512}  # fmt: skip
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 8,
    "long_factor": [2.0] * 8,
    "original_max_position_embeddings": 1024,
}


def refused(config, field: str, **keywords) -> RopeError:
    """Check that from_hf refuses a config with an error about `field`; return the error."""
    with pytest.raises(RopeError) as error:
        from_hf(config, **keywords)
    assert error.value.field == field
    assert field in str(error.value)
    return error.value
