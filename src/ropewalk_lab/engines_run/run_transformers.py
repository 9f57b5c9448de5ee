"""Run transformers: build the small model of a config, run it, and read what its code does to unit
vectors in every layer.

    python run_transformers.py rows.json results.json

A row is a config with its length. The matrix of a rotation has as its column i the unit vector e_i,
rotated; a rope, as plain data, has the frequencies, axes, magnitude and layout read from it.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import importlib
import inspect
from typing import Any

import probe
import torch
import transformers
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

#: how functions that rotate are named in the modeling files
ROTATES = ("apply_rotary", "apply_multimodal_rotary")
#: how their argument for the keys is named
KEY_ARGUMENTS = ("k", "xk", "key")
#: sizes that a class sets itself where a config has none, and as large as a small model needs them
LARGEST = {"vocab_size": 256, "intermediate_size": 256, "num_hidden_layers": 12}
#: tokens of a test sequence: a number of heads that few models have, to tell the two axes apart
TOKENS = 11


def measure(row: dict[str, Any]) -> dict[str, Any]:
    """Return the ropes of the layers of one row: run its model, and record how each layer rotates
    unit vectors.
    """
    config = AutoConfig.for_model(**row["config"]).get_text_config()
    config._attn_implementation = "eager"
    for key, largest in LARGEST.items():
        size = getattr(config, key, None)
        if isinstance(size, int) and size > largest:
            setattr(config, key, largest)
    for key in ("pad_token_id", "bos_token_id", "eos_token_id"):
        setattr(config, key, 0)
    torch.manual_seed(0)
    try:
        model = AutoModel.from_config(config).eval()
    except ValueError:  # a text model without a class for its hidden states alone
        model = AutoModelForCausalLM.from_config(config).eval()
    names = ("layers", "h", "blocks")
    found = [module for name, module in model.named_modules() if name.split(".")[-1] in names]
    if not found:  # the models of BERT's kind, such as ESM
        raise ValueError("this runner does not find the layers of the model")
    layers = found[0]
    axes = 3 if row.get("axes") == 3 else 1
    # layer -> the matrix of its rotation at each position
    recorded: dict[int, list[torch.Tensor]] = {}
    current = [0]  # the layer that runs; a list, because the hooks and the recorder share it

    def enter(index: int):
        """Return a hook that notes in `current` that layer `index` runs."""

        def hook(*_: Any) -> None:
            current[0] = index

        return hook

    hooks = [layer.register_forward_pre_hook(enter(index)) for index, layer in enumerate(layers)]
    code = importlib.import_module(type(model).__module__)
    names = [name for name in vars(code) if name.startswith(ROTATES) and "vision" not in name]
    originals = {name: getattr(code, name) for name in names}
    inside = [False]  # whether a recorder runs: one function that rotates may call another
    for name, function in originals.items():
        setattr(code, name, _recording(function, recorded, current, inside))
    try:
        positions = _positions(axes, row["length"])
        with torch.no_grad():
            tokens = torch.zeros(1, positions.shape[-1], dtype=torch.long)
            model(input_ids=tokens, position_ids=positions, use_cache=False)
    finally:
        for name, function in originals.items():
            setattr(code, name, function)
        for hook in hooks:
            hook.remove()
    ropes = []
    for index in range(len(layers)):
        matrices = recorded.get(index)
        # position 0 comes first
        steps = None if matrices is None else [matrix.numpy() for matrix in matrices[1 : 1 + axes]]
        ropes.append(None if steps is None else probe.rope_of_matrices(steps))
    return probe.distinct(ropes)


def _positions(axes: int, length: int) -> torch.Tensor:
    """Return the TOKENS positions to run, [1, S], or [3, 1, S] if there are three axes: 0, one step
    on each axis, and length - 1 for all others.

    The steps are measured; the last make a scaling that depends on the length see `length` tokens.
    """
    steps = torch.full((TOKENS, axes), length - 1)
    steps[0] = 0
    steps[1 : 1 + axes] = torch.eye(axes, dtype=torch.long)
    return steps.T if axes == 1 else steps.T[:, None]


def _recording(
    function: Any, recorded: dict[int, list[torch.Tensor]], current: list[int], inside: list[bool]
) -> Any:
    """Return a function that does what `function` does, and also records the matrices of its
    rotation for layer current[0].

    recorded  layer -> the matrix of its rotation at each position; only its first call counts
    current   [the layer that runs]
    inside    [whether such a function runs already]
    """
    parameters = list(inspect.signature(function).parameters)

    def call(q: torch.Tensor, *others: Any, **named: Any) -> Any:
        """Run the rotation on unit vectors, which gives its matrix, record that, and return its
        usual result.
        """
        if inside[0]:  # called by another rotation, which is recorded
            return function(q, *others, **named)
        inside[0] = True
        try:
            size = q.shape[-1]
            # axis 1 has the tokens or the heads; a size of TOKENS is taken for the tokens, which is
            # wrong only for a model with TOKENS heads
            tokens_first = q.ndim == 4 and q.shape[1] == TOKENS
            # each unit vector is a head, the same for all tokens
            units = torch.eye(size, dtype=q.dtype)
            shape = (1, q.shape[1], size, size) if tokens_first else (1, size, q.shape[2], size)
            basis = (
                (units[None, None] if tokens_first else units[None, :, None])
                .expand(shape)
                .contiguous()
            )
            arguments = list(others)
            if others and parameters[1] in KEY_ARGUMENTS:
                arguments[0] = basis
            named_arguments = {
                name: basis if name in KEY_ARGUMENTS else value for name, value in named.items()
            }
            result = function(basis, *arguments, **named_arguments)
            result = result[0] if isinstance(result, tuple) else result
            # [tokens, size, size]: column i is the unit vector e_i, rotated
            columns = result[0].permute(0, 2, 1) if tokens_first else result[0].permute(1, 2, 0)
            recorded.setdefault(current[0], list(columns.float()))
            return function(q, *others, **named)
        finally:
            inside[0] = False

    return call


if __name__ == "__main__":
    probe.serve("transformers", lambda: transformers.__version__, measure)
