"""Check `audit` by runs of the engines with random configs: draw them, run every engine, count the
wrong verdicts.

    make engines                                           # once: an environment for each engine
                                                           under build/engines
    python tools/audit_draw.py --seed 1 --out build/draw   # exit status 1 if a verdict is wrong
    # the configs of a file, which is a JSON list of {name, config, length}
    python tools/audit_draw.py --rows FILE --out build/draw

A cell is one layer type of one config in one engine. Its verdict is right if audit's angles, axes
and magnitude are those of the run, or if audit says that the engine refuses the config and the
engine raises an error.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import draw_configs
import draw_mistakes
import draw_recent
from ropewalk.engines import ENGINES
from ropewalk.engines.audit import Audit, EngineFinding, audit
from ropewalk.errors import RopeError
from ropewalk_lab.engines_run.installed import RUNNERS, SCRIPTS
from ropewalk_lab.engines_run.measured import (
    KEYS,
    LayerRope,
    ServedConfig,
    cells,
    first_difference,
    verdict,
)

#: engine: the environment that runs it; transformers runs in this one
ENVIRONMENTS = {"vllm": "vllm", "sglang": "vllm", "mlx-lm": "mlx", "llama.cpp": "llama"}
#: what a cell can be: "not known" is audit's own word, "not run" a config without weights or a
#: model that needs a GPU, "refused" one that `from_hf` refuses
KINDS = ("right", "right error", "wrong", "not known", "not run", "refused")
#: what errors say if the engine did not run at all
NOT_RUN = (
    "no weights",
    "not supported on CPU",
    "not compiled with CUDA",
    "Cannot access accelerator device",
    "is supported only for CUDA",
    # a small checkpoint whose sizes llama.cpp takes for those of another model
    "check_tensor_dims",
    "wrong number of tensors",
    "No Unquantized MoE backend",  # for the sizes of a small checkpoint on a CPU
    "module 'triton' has no attribute",  # which is empty in an environment without a GPU
    "Unrecognized configuration class",  # a text model that runs only inside another one
    "ImportError",  # of a package for images
    "Can't load image processor",  # which is no part of a small checkpoint
    "'Conv2d' object has no attribute 'num_embeddings'",  # an image tower
    # the padding token of a class is not in the small vocabulary
    "Padding_idx must be within num_embeddings",
    "Failed to load the processor",
    "VisionConfig' object has no attribute",  # keys of an image or sound tower
    "VisionEncoderConfig' object has no attribute",
    "AudioEncoderLayer' object has no attribute",
    "VisionEncoderLayer' object has no attribute",
    "VoxtralEncoderConfig' object has no attribute",
    "Can't load feature extractor",
    "'NoneType' object has no attribute 'vocab'",  # of a tokenizer, which is not written
    "No module named 'cutlass'",  # which is for a GPU
    "can't allocate memory",  # for the sizes of a class that the config does not give
    # a layer that picks blocks of keys, of which the short test sequence has one
    "is out of bounds for dimension 3 with size 1",
    # a small model has not the number of layers by which llama.cpp tells one without this part
    "key not found in model: deepseek2.attention.q_lora_rank",
    # tensors of small checkpoints, which transformers 5 names otherwise than published ones do
    "Can not map tensor 'model.hc_pre.",
    "Can not map tensor 'model.blocks.0.",
    "block_sparse_moe.down_proj.weight'",
    "Missing hash routing tensor",
    "this runner does not find the layers",
    "does not name its layer",  # of a node in llama.cpp's graph, by which its rotation is found
)
Rope = Mapping[str, Any] | str | None


def run(engine: str, rows: Path, engines: Path, out: Path) -> None:
    """Run one engine with the rows of a file; llama.cpp converts small checkpoints, which
    transformers writes first.
    """
    python = (
        engines / ENVIRONMENTS[engine] / "bin" / "python"
        if engine in ENVIRONMENTS
        else sys.executable
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if engine == "llama.cpp":
        weights = out.parent / "weights"
        (source,) = engines.resolve().glob("xllamacpp-*/thirdparty/llama.cpp")
        environment |= {"LLAMA_CPP": str(source), "WEIGHTS": str(weights.resolve())}
        subprocess.run(
            [sys.executable, Path(__file__).parent / "engines" / "make_weights.py", rows, weights],
            env=environment,
            check=True,
        )
    # engines print on both streams; the counts alone go to stdout
    subprocess.run(
        [python, RUNNERS / SCRIPTS[engine][0], rows, out],
        env=environment,
        stdout=sys.stderr,
        check=True,
    )


def kind_of(finding: EngineFinding, rope: Rope) -> str:
    """Return one of KINDS for what audit says and what was run: a rope, the text of an error, or
    None for no rotation.
    """
    if finding.problem is not None and finding.problem.startswith("not known"):
        return "not known"
    if isinstance(rope, str) and "the model has no rotary module" in rope:
        rope = None
    if isinstance(rope, Mapping) and any(map(math.isnan, rope["radians"])):
        rope = "no angle is a number"
    if isinstance(rope, str) and any(reason in rope for reason in NOT_RUN):
        return "not run"
    if isinstance(rope, str):
        return "wrong" if finding.problem is None else "right error"
    if finding.problem is not None:
        return "wrong"
    # a run shows the angle of one step, within a turn
    if isinstance(rope, Mapping) and not rope["magnitude"]:  # cos and sin are 0
        return "wrong" if finding.magnitude else "right"
    radians = [math.remainder(each, 2 * math.pi) for each in finding.radians]
    ours = LayerRope.of(radians, finding.magnitude or 0.0, finding.axis_of_pair, None)
    theirs = None if rope is None else LayerRope.read(rope)
    return "right" if verdict(ours if ours.radians else None, theirs) == "same" else "wrong"


def compare(rows: Sequence[ServedConfig], output: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the kind of every cell of a runner's output, and one line about it."""
    name: str = output["engine"]
    engine = KEYS.get(name, name)
    by_id = {row.id: row for row in rows}
    audited: dict[str, Audit | RopeError] = {row.id: _audited(row) for row in rows}
    types = {
        name: () if isinstance(found, RopeError) else _layer_types(found, engine)
        for name, found in audited.items()
    }
    for row, layer_type, rope in cells(output, by_id, types):
        found = audited[row.id]
        if isinstance(found, RopeError):
            yield "refused", f"{row.id}: {found}"
            continue
        for finding in found.of(engine):
            if row.axes == 1:  # a run with one position for each token does not show the axes
                finding = replace(finding, axis_of_pair=(0,) * len(finding.radians))
            if finding.layer_type == layer_type:
                yield (
                    kind_of(finding, rope),
                    f"{engine}: {row.id}, {layer_type}: {_in_words(finding, rope)}",
                )


def _audited(row: ServedConfig) -> Audit | RopeError:
    """Return what audit says by its rules alone, or its error."""
    try:
        return audit(row.config, length=row.length, max_model_len=row.max_model_len, records={})
    except RopeError as error:
        return error


def _layer_types(found: Audit, engine: str) -> tuple[str, ...]:
    return tuple(finding.layer_type for finding in found.of(engine))


def _in_words(finding: EngineFinding, rope: Rope) -> str:
    """Return a line with what audit says and what the engine did, to explain a wrong cell."""
    if isinstance(rope, str):
        return f"audit: {finding.problem or 'rotates'}; the engine: {rope}"
    if finding.problem is not None or rope is None:
        return (
            f"audit: {finding.problem or 'rotates'}; the engine: "
            f"{'rotates' if rope else 'does not rotate'}"
        )
    ours = LayerRope.of(finding.radians, finding.magnitude or 0.0, finding.axis_of_pair, None)
    theirs = LayerRope.read(rope)
    pair = first_difference(ours, theirs)
    sizes = (
        f"{len(ours.radians)} and {len(theirs.radians)} pairs, magnitude {ours.magnitude:.5g} and "
        f"{theirs.magnitude:.5g}"
    )
    radians = [] if pair is None else [each.radians[pair : pair + 1] for each in (ours, theirs)]
    return f"{sizes}, first other pair {pair} {radians}"


def main() -> None:
    """Draw, run and compare; print the counts of every engine and its wrong cells."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    source_of_rows = parser.add_mutually_exclusive_group(required=True)
    source_of_rows.add_argument("--seed", type=int)
    source_of_rows.add_argument(
        "--rows", type=Path, help="JSON list of configs to use instead of drawn ones"
    )
    parser.add_argument(
        "--mistakes", action="store_true", help="draw configs with mistakes that people make"
    )
    parser.add_argument(
        "--recent", action="store_true", help="draw published-looking configs of recent families"
    )
    parser.add_argument("--count", type=int, default=300, help="configs to draw")
    parser.add_argument(
        "--engines",
        type=Path,
        default=Path("build/engines"),
        help="folder that `make engines` filled",
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for what the engines computed"
    )
    parser.add_argument("--only", choices=ENGINES, action="append", help="run this engine alone")
    parser.add_argument(
        "--again", action="store_true", help="run nothing; compare with what is in the folder"
    )
    parser.add_argument(
        "--record", type=Path, help="file to which a line of JSON is added for each engine"
    )
    parser.add_argument("--date", help="month of the run in the recorded lines, such as 2026-11")
    given = parser.parse_args()
    drawn = draw_mistakes if given.mistakes else draw_recent if given.recent else draw_configs
    if given.rows:
        listed = json.loads(given.rows.read_text(encoding="utf-8"))
        rows = [ServedConfig(**row) for row in listed]
    else:
        rows = drawn.draw(given.seed, given.count)
    given.out.mkdir(parents=True, exist_ok=True)
    source = given.out / "rows.json"
    source.write_text(json.dumps([asdict(row) for row in rows]), encoding="utf-8")
    wrong = 0
    for engine in given.only or ENGINES:
        target = given.out / f"{engine}.json"
        if not given.again:
            run(engine, source, given.engines, target)
        output = json.loads(target.read_text(encoding="utf-8"))
        compared = list(compare(rows, output))
        counts = Counter(kind for kind, _ in compared)
        wrong += counts["wrong"]
        print(
            f"{ENGINES[engine].title} {output['version']}:",
            ", ".join(f"{counts[kind]} {kind}" for kind in KINDS),
        )
        for kind, line in compared:
            if kind == "wrong":
                print(f"    {line}")
        if given.record:
            about = {
                "draw": given.rows.stem if given.rows else drawn.__name__,
                "seed": given.seed,
                "configs": len(rows),
                "engine": ENGINES[engine].title,
                "version": output["version"],
            }
            with given.record.open("a", encoding="utf-8") as file:
                file.write(
                    json.dumps(
                        {**about, "date": given.date, **{kind: counts[kind] for kind in KINDS}}
                    )
                    + "\n"
                )
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
