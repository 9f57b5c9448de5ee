"""lmdeploy: `build_rotary_embedding_from_config` and the default backend's `ApplyRotaryEmbImpl`."""

from types import SimpleNamespace
from typing import Any

import torch
import transformers

from stacks.adapters import Apply, NotExpressible, Rope, at_start, bare, empty

torch.compile = lambda function=None, **_: function or (lambda inner: inner)
bare("lmdeploy", "lmdeploy.pytorch", "lmdeploy.pytorch.backends", "lmdeploy.pytorch.nn")
bare("lmdeploy.pytorch.backends.default", "lmdeploy.pytorch.models")
empty("lmdeploy.pytorch.models.patch")
import lmdeploy.pytorch.backends  # noqa: E402
import lmdeploy.pytorch.models.patch as patch  # noqa: E402

patch.get_build_model_context = lambda: SimpleNamespace(enable_deterministic=False)
from lmdeploy.pytorch.backends.default import apply_rotary_emb, rotary_embedding  # noqa: E402


class Backend:
    """Builds the operations of lmdeploy's default backend, whatever the device."""

    @staticmethod
    def build_op(spec: Any, **_: Any) -> Any:
        if "RotaryEmbedding" in type(spec).__name__:
            return rotary_embedding._build_rotary_embedding(spec)
        return apply_rotary_emb.DefaultApplyRotaryEmbImpl()


lmdeploy.pytorch.backends.get_backend = lambda: Backend
from lmdeploy.pytorch.nn.rotary_embedding import (  # noqa: E402
    ApplyRotaryEmb,
    build_rotary_embedding_from_config,
)

AXES = True


def rope(rope: Rope, config: dict) -> Apply:
    at_start(rope)
    if rope["layout"] == "interleaved":
        raise NotExpressible("interleaved pairs are rotated by the code of single models")
    kind = {"qwen2_vl": "qwen2_vl_text"}.get(config["model_type"], config["model_type"])
    keys = {name: value for name, value in config.items() if name != "model_type"}
    module = build_rotary_embedding_from_config(transformers.AutoConfig.for_model(kind, **keys))
    rotate = ApplyRotaryEmb()

    def apply(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        if rope["axes"] and positions.shape[1] > 1:
            raise NotExpressible("sequences of several axes follow each other in one row")
        # tokens of all sequences follow each other in one row
        row = positions.flatten(1)[:, None] if rope["axes"] else positions.reshape(1, -1)
        flat = x.transpose(1, 2).flatten(0, 1)
        cos, sin = module(flat, row)
        cos, sin = cos.reshape(-1, cos.shape[-1]), sin.reshape(-1, sin.shape[-1])
        part = flat[..., : rope["rotary_dim"]].clone()
        out = rotate(part, part.clone(), cos, sin, False)[0]
        out = torch.cat((out, flat[..., rope["rotary_dim"] :]), -1)
        return out.view(x.shape[0], x.shape[2], *flat.shape[1:]).transpose(1, 2)

    return apply
