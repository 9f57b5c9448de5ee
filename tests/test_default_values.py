"""The values that are used if none is given, written out a second time, from the papers and the
models that they come from.
"""

import importlib
import inspect
from dataclasses import MISSING, fields
from pathlib import Path

import pytest
import torch

import ropewalk as rw
from command_line import all_functions
from ropewalk import axes, frequencies, layout, positions, rotation, temperatures
from ropewalk.analysis import Facts, exactness
from ropewalk.attention import linear, linear_decay
from ropewalk.kernels.rotation import definition
from ropewalk.spec import PRECISIONS
from ropewalk_lab import analysis as lab_analysis
from ropewalk_lab import (
    batches,
    corpus,
    evaluation,
    finetuning,
    labelled,
    long_ce,
    matching,
    needle,
    objectives,
    recalibration,
    samples,
    schedule,
    scores,
    settings,
    sources,
    tasks,
    text_tasks,
    tsne,
)
from ropewalk_lab.analysis import exactness as lab_exactness

#: scaling -> its fields, in order
SCALINGS = {
    "Default": {},
    "Linear": {"factor": 1.0},
    "Ntk": {"factor": 1.0},
    "Riflex": {"frames": 128, "repeat": 48, "share": 0.9},
    "Dynamic": {"factor": 1.0, "original_length": 2048},
    "Proportional": {"factor": 1.0, "fraction": 1.0},
    "LinearFrequencies": {},
    "LongRope": {
        "short_factor": (1.0,),
        "long_factor": (1.0,),
        "original_length": 4096,
        "factor": 1.0,
        "attention_factor": None,
    },
    "XPos": {"scale_base": 512.0, "center": 0},
    "Given": {"radians": (1.0,), "magnitude": 1.0},
    "Learnable": {"start": frequencies.Default()},
}
AXES = {
    "AxisMap": {"ladder": "shared", "fractional": False, "scaled": None},
    "MixedAxes": {"theta": 10.0, "seed": 0, "num_axes": 2, "fractional": True},
    "HeadAxes": {"fractional": False},
    "GoldenAxes": {"num_axes": 2, "fractional": True},
}


def field_values(cls):
    """Return the default values of a dataclass by field; fields without a default are left out."""
    return {each.name: each.default for each in fields(cls) if each.default is not MISSING}


def defaults(function):
    """Return the default values of a function by parameter; those without a default are left out."""
    return {
        name: each.default
        for name, each in inspect.signature(inspect.unwrap(function)).parameters.items()
        if each.default is not each.empty
    }


@pytest.mark.parametrize("name", SCALINGS)
def test_a_scaling_has_these_values_unless_others_are_given(name):
    assert (
        field_values(getattr(frequencies, name, None) or getattr(frequencies.per_pair, name))
        == (SCALINGS[name])
    )


@pytest.mark.parametrize("name", AXES)
def test_axes_have_these_values_unless_others_are_given(name):
    assert field_values(getattr(axes, name)) == AXES[name]


FUNCTIONS = {
    positions.grid: {"merge": 1, "start": 0, "device": None},
    positions.patch_centres: {
        "scale": 1.0,
        "dtype": torch.float64,
        "device": None,
        "normalise": "separate",
    },
    positions.augmented: {"shift": None, "jitter": None, "rescale": None, "generator": None},
    positions.stretched_grid: {"dtype": torch.float64, "device": None},
    positions.flux: {"text": 0, "device": None},
    positions.flux2: {"text": 0, "references": (), "step": 10, "device": None},
    positions.qwen_image: {"text": 0, "device": None},
    positions.multimodal: {
        "merge": 1,
        "time_merge": 1,
        "padding": "right",
        "origin": "start",
        "resume": None,
        "device": None,
    },
    positions.decode_positions: {"tokens": 1},
    positions.consecutive: {"offset": 0, "device": None},
    positions.packed: {"total": None},
    frequencies.geometric: {"zeros": 0},
    layout.convert_layout: {
        "rotary_dim": None,
        "rotary_start": 0,
        "dim": -1,
        "num_heads": None,
    },
    layout.convert_qkv: {
        "packing": "concatenated",
        "rotary_dim": None,
        "rotary_start": 0,
        "dim": 0,
    },
    layout.convert_lora: {"rotary_dim": None, "rotary_start": 0, "num_heads": None},
    layout.probe_layout: {"threshold": 0.1},
    definition.rotate_vector: {"theta": 10_000.0, "layout": "interleaved"},
    rotation.rotate_by_phase: {"layout": "half", "seq_dim": -2},
    rotation.rotate_by: {
        "layout_out": None,
        "start": 0,
        "seq_dim": -2,
        "inplace": False,
        "backend": None,
    },
    rotation.rotate: {
        "positions": None,
        "offset": 0,
        "seq_dim": -2,
        "length": None,
        "key": False,
        "inverse": False,
        "inplace": False,
        "backend": None,
        "tables": "auto",
    },
    rotation.apply_rotary_pos_emb: {
        "sin": None,
        "position_ids": None,
        "unsqueeze_dim": 1,
        "layout": "half",
    },
    rotation.rerotate: {
        "to": None,
        "seq_dim": -2,
        "from_length": None,
        "to_length": None,
        "match_magnitude": False,
        "inplace": False,
        "backend": None,
        "tables": "auto",
    },
    linear.linear_attention: {
        "positions": None,
        "form": "numerator",
        "phi": "elu",
        "scale": 1.0,
        "causal": True,
        "padding": None,
        "documents": None,
        "state": None,
        "chunk": 128,
        "eps": 1e-6,
        "backend": None,
    },
    linear_decay.decaying_linear_attention: {
        "phi": "elu",
        "causal": True,
        "chunk": 128,
        "eps": 1e-6,
    },
    tsne.tsne: {"perplexity": 15.0, "steps": 400},
    samples.write_sample: {"form": "cail", "count": 200, "characters": 60, "seed": 0},
    lab_analysis.query_path: {"length": None},
}


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_a_function_has_these_values_unless_others_are_given(function):
    assert defaults(function) == FUNCTIONS[function]


#: options of a training
TRAINING = {
    "folder": Path("run"),
    "change": None,
    "device": None,
    "parallel": None,
    "threads": None,
    "tensorboard": False,
}
OFF = {"json": False}
#: words that call a command -> its options
COMMANDS = {
    "inspect": {
        "config": None,
        "example": None,
        "trained": None,
        "served": None,
        "plot": None,
        "guide": False,
        "details": False,
        **OFF,
    },
    "doctor": {
        "config": None,
        "example": None,
        "engine": None,
        "length": None,
        "draft": None,
        "language": "en",
        "out": None,
        **OFF,
    },
    "audit": {
        "config": None,
        "example": None,
        "length": None,
        "max_model_len": None,
        "run": False,
        "details": False,
        **OFF,
    },
    "conformance": {"module": None, "group": None, "arrays": None, "dtype": "float32", **OFF},
    "engines": {"only": None, "match": "", **OFF},
    "figures": {
        "format": "png",
        "dark": False,
        "language": "en",
        "only": None,
        "config": None,
        **OFF,
    },
    "explore": {"port": 8501, "report": None, "browser": True, "model": None, "share": None},
    "convert": {
        "target": None,
        "from_layout": None,
        "to_layout": None,
        "config": None,
        "which": False,
        "dry_run": False,
        **OFF,
    },
    "extend": {
        "option": None,
        "original_length": None,
        "layer_type": None,
        "overwrite": False,
        "out": None,
        **OFF,
    },
    "fit": {
        "text": None,
        "method": None,
        "windows": 6,
        "passkeys": 10,
        "search": 0,
        "long_ppl": True,
        "trained": None,
        "seed": 0,
        "out": Path("fit"),
        "device": "auto",
        **OFF,
    },
    "lab list": OFF,
    "lab run": {
        "preset": "cpu",
        "seeds": None,
        "out": Path("lab"),
        "change": None,
        "device": "auto",
        "models": None,
        "workers": None,
        **OFF,
    },
    "lab report": OFF,
    "lab train": {**TRAINING, **OFF},
    "lab finetune": {
        "valid": None,
        "test": None,
        "tokenizer": None,
        "columns": None,
        "length": 512,
        "batch": 16,
        "epochs": 3.0,
        "learning_rate": 2e-5,
        **TRAINING,
        **OFF,
    },
    "lab evaluate": {"predictions": None, "length": None, "device": "auto", **OFF},
    "lab sample": {"form": "cail", "count": 200, "characters": 60, "seed": 0, **OFF},
    "lab fetch": {"folder": None, "archive": None, "dry_run": False, **OFF},
    "train": {**TRAINING, **OFF},
    "demo": {
        "out": Path("demo"),
        "tokens": 1024,
        "device": "auto",
        "preset": "cpu",
        "check_only": False,
        "full": False,
        **OFF,
    },
    "bench": {
        "device": "auto",
        "shape": None,
        "contender": None,
        "names": False,
        "out": None,
        "plot": None,
        **OFF,
    },
    "info": OFF,
    "completion": {},
}


def test_every_command_has_these_options_unless_others_are_given():
    assert {words: defaults(each) for words, each in all_functions().items()} == COMMANDS


#: functions of the lab that are called with the values that articles and papers used
OF_THE_LAB = {
    finetuning.finetuning_preset: {
        "tokenizer": None,
        "length": 512,
        "batch": 16,
        "epochs": 3.0,
        "learning_rate": 2e-5,
        "changes": (),
    },
    finetuning.evaluate_file: {"length": None, "device": "cpu", "progress": False},
    matching.read_triplets: {"unlabelled": "B"},
    needle.answer_loss: {"count": 10, "seed": 0, "task": "passkey", "device": None},
    recalibration.recalibrate: {
        "batch": 8,
        "rate": 1e-4,
        "warmup": 100,
        "seed": 0,
        "log": None,
    },
    long_ce.chunked_loss: {"short": None, "context": 1},
    objectives.triplets: {"margin": 0.2},
    scores.compare: {"sigmas": 2.0, "floor": 0.0},
    scores.rank: {"sigmas": 2.0, "floor": 0.0},
    schedule.roformer_stages: {"factor": 1},
    evaluation.sliding_losses: {"stride": None, "device": None},
    evaluation.task_hits: {"first": 2**40, "device": None},
    evaluation.depth_grid: {"task": "passkey", "seed": 0, "device": None},
    batches.mask_tokens: {"share": 0.15, "whole_words": False, "seed": 0},
    corpus.open_corpus: {"source": "code", "tokenizer": None, "cache": None, "field": "text"},
    lab_exactness.error_curves: {
        "methods": tuple(lab_exactness.MEASURED),
        "length": None,
        "width": 5,
    },
    exactness.error_curves: {
        "methods": tuple(exactness.COS_SIN_METHODS),
        "length": None,
        "width": 5,
    },
    tasks.induction: {"depth": None},
    tasks.recall: {"pairs": 8, "depth": None},
    tasks.addition: {"digits": None},
    text_tasks.passkey: {"depth": None},
    text_tasks.needle: {"depth": None, "needles": 3},
    text_tasks.planted: {"distance": None},
}


@pytest.mark.parametrize("function", OF_THE_LAB, ids=lambda function: function.__qualname__)
def test_a_function_of_the_lab_has_these_values_unless_others_are_given(function):
    assert defaults(function) == OF_THE_LAB[function]


DATA = {
    batches.TextBatches: {"seed": 0, "documents": False},
    batches.TaskBatches: {"vocab_size": 264, "seed": 0, "options": ()},
    batches.MixedBatches: {"seed": 0},
    batches.MaskedBatches: {"share": 0.15, "whole_words": False, "seed": 0},
    matching.TripletBatches: {"form": "pairs", "seed": 0, "shuffle": True},
    labelled.ExampleBatches: {"seed": 0, "shuffle": True},
    finetuning.Files: {"valid": None, "test": None, "columns": ()},
    Facts: {"window": None, "methods": PRECISIONS, "width": 8, "trained_given": False},
}


@pytest.mark.parametrize("cls", DATA, ids=lambda cls: cls.__name__)
def test_data_have_these_values_unless_others_are_given(cls):
    assert field_values(cls) == DATA[cls]


def test_limits_of_the_lab_are_these():
    assert (batches.IGNORED, batches.BEYOND_TRAINING) == (-100, 2**40)
    assert (needle.FIRST, long_ce.MOST, scores.SIGMAS) == (2**41, 5.0, 2.0)
    assert (labelled.MAX_CLASSES, corpus.HELD_OUT) == (1000, 0.1)
    assert (sources.FEW_FILES, sources.SHORTEST_PROSE) == (20, 200)
    assert (sources.LONGEST_PIECE, sources.SHORTEST_PIECE) == (2**20, 2048)
    assert (evaluation.MAX_TOKENS, schedule.MOST_TOKENS) == (2**14, 2**28)
    assert (finetuning.MOST_TOKENS, finetuning.MOST_EPOCHS) == (2**20, 10**6)
    assert (samples.MOST_LINES, samples.MOST_CHARACTERS) == (100_000, 20_000_000)
    assert samples.SPLITS == {"train": 0.7, "valid": 0.15, "test": 0.15}
    assert (text_tasks.KEY_DIGITS, text_tasks.COPIED, text_tasks.CUE) == (5, 16, 3)
    lab = settings.Settings
    assert (lab.learning_rate, lab.betas, lab.eps, lab.clip) == (3e-3, (0.9, 0.95), 1e-8, 1.0)
    assert (lab.schedule, lab.warmup, lab.final, lab.weight_decay) == ("cosine", 40, 0.1, 0.1)
    assert (temperatures.FloorLog().length, temperatures.Power().length) == (8192, 2048)
    assert finetuning.TRAIN == {
        "schedule": "linear",
        "final": 0.0,
        "weight_decay": 0.01,
        "betas": (0.9, 0.999),
        "clip": 1.0,
    }


def test_a_geometric_series_goes_from_slow_to_fast_after_its_zeros():
    found = frequencies.geometric(6, 0.5, 8.0, zeros=1).radians
    assert found == pytest.approx((0.0, 0.5, 1.0, 2.0, 4.0, 8.0))
    assert frequencies.geometric(3, 8.0, 2.0).radians == pytest.approx((8.0, 4.0, 2.0))


@pytest.mark.parametrize("key", [False, True])
@pytest.mark.parametrize(
    "scaling",
    [
        frequencies.Yarn(factor=4.0, original_length=32),
        frequencies.XPos(scale_base=64.0),
        frequencies.Given((1.0, 0.5, 0.2), magnitude=1.7),
    ],
)
def test_a_rotation_is_undone_with_its_magnitude_for_queries_and_for_keys(scaling, key):
    spec = rw.RopeSpec(6, scaling=scaling)
    x, places = torch.randn(1, 2, 5, 6, dtype=torch.float64), torch.arange(5) + 7
    turned = rotation.rotate(x, spec, places, key=key)
    assert not torch.allclose(turned.norm(dim=-1), x.norm(dim=-1), rtol=1e-4)
    torch.testing.assert_close(rotation.unrotate(turned, spec, places, key=key), x)
    torch.testing.assert_close(rotation.rotate(turned, spec, places, key=key, inverse=True), x)


#: module of the lab's studies -> its constants, by which claims are decided and samples made
STUDIES = {
    "decay": {"HEAD_DIM": 128},
    "findings": {"SEED_NOISE": 0.015},
    "matching": {"EARLY": 0.25, "TEMPERATURE": 0.05},
    "multimodal": {"COLOURS": 16, "MARK": 16, "VOCABULARY": 24},
    "norms": {"UNCHANGED": 1e-3},
    "relative": {"UNCHANGED": 1e-3},
    "passkey": {"FOUND": 0.95},
    "precision": {"WIDTH": 5, "BOUND": 1e-6},
    "real": {"CHARACTERS": 3_000_000, "FEWEST_WINDOWS": 5},
    "real_tune": {"CLOSE": 0.02, "FOUND": 0.9},
    "linear": {
        "MODELS": {
            "softmax, rope": {"encoding": "rope"},
            "linear, rope": {"encoding": "rope", "attention": "linear"},
            "linear, none": {"encoding": "none", "attention": "linear"},
        }
    },
    "rows": {"NOT_FINITE": 1e30},
}


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_decides_by_these_numbers(name):
    module = importlib.import_module(f"ropewalk_lab.studies.{name}")
    assert {each: getattr(module, each) for each in STUDIES[name]} == STUDIES[name]
