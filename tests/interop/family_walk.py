"""Patch a tiny model of each family and compare it with itself unpatched;
`python tests/interop/family_walk.py --out FILE`.

A row has the family, the class, a verdict and its reason:

equal        outputs, gradients and greedy tokens are those of the unpatched model, and they depend
             on the rotation
no rotation  patch says that the model does not rotate
refused      patch says why it does not support the model, which stays unchanged
not built    no tiny model of the family was built or run
wrong        the results differ
crash        patch or the patched model fails
unused       the results are equal, but no rotation took part in them
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from rotary_specs import spec_verdicts
from tiny_configs import model_class, tiny_config
from tiny_inputs import inputs_for, part_of, tokens
from torch import Tensor
from transformers import PreTrainedModel
from transformers.models.auto.configuration_auto import (
    CONFIG_MAPPING_NAMES,
    model_type_to_module_name,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from ropewalk import RopeError
from ropewalk.interop.patch.functions import RotationFunction
from ropewalk.interop.patch.model import patch, patched, unpatch

#: largest difference of outputs and of gradients, in parts of the largest entry of each tensor
NEAR, GRADIENTS_NEAR = 1e-4, 3e-3
#: the least difference that leaving the rotation out must make
NOTICEABLE = 1e-2
LARGEST = 30_000_000
#: what a model's own code raises for a config or an input that it does not take
UNFIT = (Exception,)
NO_ROTATION = "no module of this model calls one"
#: scores of this size and more mark tokens that a model rules out; they would hide differences of
#: the other scores
MASKED = 1e30
BATCH = 40


def families() -> list[str]:
    """Return each model_type with a causal language model, or whose code names rotary positions."""
    folder = Path(transformers.__file__).parent / "models"
    rotary = {
        path.parent.name
        for path in folder.glob("*/modeling_*.py")
        if re.search(r"rotary|rotate_half", path.read_text())
    }
    return [
        name
        for name in sorted(CONFIG_MAPPING_NAMES)
        if name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES or model_type_to_module_name(name) in rotary
    ]


def tiny_model(family: str) -> PreTrainedModel:
    """Return a model with random weights, so large that a wrong rotation changes the outputs."""
    kind, config = model_class(family), tiny_config(family)
    if kind is None:
        raise LookupError("has no model class of its own")
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in kind._from_config(config).parameters())
    if size > LARGEST:
        raise LookupError(f"has {size:,} parameters with a tiny config")
    torch.manual_seed(1)
    model = kind._from_config(config, attn_implementation="eager").eval()
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(0.2 * noise if parameter.ndim > 1 else parameter + 0.1 * noise)
    return model


def compare(family: str) -> dict[str, Any]:
    """Return the row of one family: its verdict, and what was measured or the reason."""
    try:
        model = tiny_model(family)
    except UNFIT as error:
        return {"family": family, "verdict": "not built", "reason": _short(error)}
    row = {"family": family, "class": type(model).__name__}
    try:
        unpatch(patch(model))
    except RopeError as error:
        return {
            **row,
            "verdict": "no rotation" if NO_ROTATION in str(error) else "refused",
            "reason": str(error),
        }
    except Exception as error:  # any failure is a row
        return {**row, "verdict": "crash", "reason": _short(error)}
    try:
        given, plain = _first_run(model)
    except LookupError as error:
        return {**row, "verdict": "not built", "reason": _short(error)}
    return {**row, **_verdict(model, given, plain), "from_hf": spec_verdicts(model)}


def _verdict(model: PreTrainedModel, given: dict[str, Any], plain: list[Tensor]) -> dict[str, Any]:
    """Return the verdict on a patched model, compared with the unpatched outputs, and the measured
    differences.
    """
    slopes, generated = _gradients(model, plain), _generated(model)
    try:
        with patched(model):
            ours = _run(model, given)
            measured = {
                "outputs": _gap(ours, plain),
                "gradients": _gap(_gradients(model, ours), slopes, least=1e-4),
            }
            again = _generated(model)
            with without_rotation(), torch.no_grad():
                noticed = _gap(_run(model, given), plain)
    except Exception as error:  # any failure is a row
        return {"verdict": "crash", "reason": _short(error)}
    same = (
        again is None if generated is None else again is not None and torch.equal(generated, again)
    )
    measured = {name: float(f"{value:.1g}") for name, value in measured.items()}
    measured["tokens"] = None if generated is None else generated.shape[-1]
    if not same or measured["outputs"] > NEAR or measured["gradients"] > GRADIENTS_NEAR:
        return {"verdict": "wrong", "reason": "" if same else "other tokens", **measured}
    return {"verdict": "equal" if noticed > NOTICEABLE else "unused", **measured}


def _first_run(model: PreTrainedModel) -> tuple[dict[str, Any], list[Tensor]]:
    """Return the first inputs that the unpatched model accepts, and its outputs."""
    reasons = []
    for given in inputs_for(model):
        try:
            found = _run(model, given)
        except UNFIT as error:
            reasons.append(_short(error))
            continue
        if any(each.requires_grad for each in found) and all(
            each.isfinite().all() for each in found
        ):
            return given, found
        reasons.append("random weights give no finite outputs")
    raise LookupError(
        "; ".join(dict.fromkeys(reasons))
        or f"takes {', '.join(inspect.signature(model.forward).parameters)}"
    )


def _run(model: PreTrainedModel, given: dict[str, Any]) -> list[Tensor]:
    torch.manual_seed(5)
    return list(_tensors(part_of(model)(**given)))


def _tensors(found: Any) -> Iterator[Tensor]:
    """Yield the floating-point tensors in outputs of any nesting, with masked values set to 0."""
    if isinstance(found, Tensor) and found.is_floating_point() and found.numel():
        yield found.masked_fill(found.abs() >= MASKED, 0)
    elif isinstance(found, dict | list | tuple):
        for each in found.values() if isinstance(found, dict) else found:
            yield from _tensors(each)


def _gradients(model: PreTrainedModel, outputs: list[Tensor]) -> list[Tensor]:
    loss = sum(each.square().mean() for each in outputs if each.requires_grad)
    wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [
        each
        for each in torch.autograd.grad(loss, wanted, allow_unused=True)
        if each is not None and each.numel()
    ]


def _gap(ours: list[Tensor], theirs: list[Tensor], least: float = 0.0) -> float:
    """Return the largest difference of two lists of tensors; each tensor's difference is divided by
    its largest entry plus `least` times the largest entry of all.
    """
    if [each.shape for each in ours] != [each.shape for each in theirs]:
        return float("inf")
    floor = least * max((each.abs().max().item() for each in theirs), default=0.0) + 1e-12
    gaps = [
        ((a - b).abs().max() / (b.abs().max() + floor)).item()
        for a, b in zip(ours, theirs, strict=True)
    ]
    return max((float("inf") if gap != gap else gap for gap in gaps), default=0.0)


def _generated(model: PreTrainedModel) -> Tensor | None:
    """Return greedy tokens; None if this class does not generate from tokens alone."""
    if not model.can_generate() or "input_ids" not in inspect.signature(model.forward).parameters:
        return None
    prompt = tokens(5)
    try:
        found = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=6,
            min_new_tokens=6,
            do_sample=False,
            disable_compile=True,
        )
    except UNFIT:
        return None
    return found if isinstance(found, Tensor) else None


@contextmanager
def without_rotation() -> Iterator[None]:
    """Context manager: patched functions return their inputs unrotated, which the comparison must
    notice.
    """
    call = RotationFunction.__call__

    def unrotated(self: RotationFunction, *args: Any, **kwargs: Any) -> Any:
        arguments = dict(zip(self.names, args, strict=False), **kwargs)
        inputs = [arguments.get(name) for name in self.rotated_names]
        return self._result(inputs, tuple(x for x in inputs if x is not None))

    RotationFunction.__call__ = unrotated
    try:
        yield
    finally:
        RotationFunction.__call__ = call


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]


def walk(
    names: list[str], see: Callable[[dict[str, Any]], None] = lambda row: None
) -> list[dict[str, Any]]:
    """Return the rows of some families, each batch in a process of its own."""
    rows = []
    for start in range(0, len(names), BATCH):
        command = [sys.executable, "-W", "ignore", __file__, *names[start : start + BATCH]]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            for line in process.stdout:  # type: ignore[union-attr]  # it is a pipe
                rows.append(json.loads(line))
                see(rows[-1])
        done = {row["family"] for row in rows}
        rows += [
            {"family": name, "verdict": "crash", "reason": "the process ended"}
            for name in names[start : start + BATCH]
            if name not in done
        ]
    return rows


def main() -> None:
    """Print the rows of the named families, or walk all of them and write their rows to a file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="families; all if none is named")
    parser.add_argument("--out", type=Path, help="write the rows to this file, as JSON lines")
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    if options.names:
        for name in options.names:
            print(json.dumps(compare(name)), flush=True)
        return
    rows = walk(
        families(),
        lambda row: print(row["family"], row["verdict"], row.get("reason", ""), flush=True),
    )
    if options.out is not None:
        facts = {"transformers": transformers.__version__, "torch": torch.__version__}
        options.out.write_text("".join(json.dumps({**row, **facts}) + "\n" for row in rows))


if __name__ == "__main__":
    main()
