"""Rows of `fit` in a folder are resumed only for the same model, text and methods, and by one
program at a time.
"""

import json
import subprocess
import sys
import time

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import ropewalk as rw
from ropewalk.errors import RopeError
from ropewalk_lab.fit import METHODS, Method
from ropewalk_lab.fit.fingerprint import model_fingerprint, plain
from ropewalk_lab.fit.ledger import Ledger
from ropewalk_lab.fit.reader import Reader

TEXT = torch.randint(61, (400,), generator=torch.Generator().manual_seed(1))
HEADS = {"q_proj": 4, "k_proj": 2}


def llama(theta=1e4, **keys):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=61,
        hidden_size=48,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=12,
        max_position_embeddings=16,
        initializer_range=0.3,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
        **keys,
    )
    return LlamaForCausalLM(config).eval()


def permuted():
    """The rows of q and k in the interleaved layout, as a conversion writes them."""
    model = llama()
    for layer in model.model.layers:
        for name, heads in HEADS.items():
            weight = getattr(layer.self_attn, name).weight
            rows = weight.data.view(heads, 2, 6, 48).transpose(1, 2)
            weight.data = rows.reshape(heads * 12, 48).contiguous()
    return model


def swapped():
    """Two layers in the other order: the same tensors under other names."""
    model = llama()
    model.model.layers = torch.nn.ModuleList(reversed(model.model.layers))
    for index, layer in enumerate(model.model.layers):
        layer.self_attn.layer_idx = index
    return model


def fit(model, out=None, **options):
    given = {"text": TEXT, "windows": 2, "methods": ["yarn"], "long_ppl": False, **options}
    return rw.fit(model, 48, out=out, report=lambda step: None, **given)


def losses(found):
    return [(row["method"], row["loss"]) for row in found.rows]


@pytest.mark.parametrize(
    "other",
    [
        lambda: llama(theta=5e5),
        lambda: llama(rms_norm_eps=0.1),
        lambda: llama(hidden_act="gelu"),
        permuted,
        swapped,
    ],
    ids=["theta", "epsilon", "activation", "rows permuted", "layers swapped"],
)
def test_rows_of_another_model_are_not_resumed(other, tmp_path):
    first = fit(llama(), tmp_path)
    assert losses(fit(other(), tmp_path)) == losses(fit(other())) != losses(first)
    assert losses(fit(llama(), tmp_path)) == losses(first)


def test_rows_of_a_method_with_other_options_are_not_resumed(tmp_path, monkeypatch):
    def measured(attention_factor, out):
        method = Method("yarn", options={"attention_factor": attention_factor})
        monkeypatch.setitem(METHODS, "mine", method)
        return losses(fit(llama(), out, methods=["mine"]))

    first = measured(1.0, tmp_path)
    assert measured(3.0, tmp_path) == measured(3.0, None) != first
    assert measured(1.0, tmp_path) == first


def test_rows_of_other_tokens_are_not_resumed(tmp_path):
    first = fit(llama(), tmp_path)
    other = TEXT.clone()
    other[0] = (other[0] + 1) % 61
    assert losses(fit(llama(), tmp_path, text=other)) != losses(first)


def test_the_same_model_is_resumed_from_another_path(tmp_path, monkeypatch):
    models = []
    for name in ("one", "two"):
        llama().save_pretrained(tmp_path / name / "model")
        models.append(LlamaForCausalLM.from_pretrained(tmp_path / name / "model").eval())
    first = fit(models[0], tmp_path / "out")
    monkeypatch.setattr(Reader, "losses", lambda *_: pytest.fail("a row is measured again"))
    assert losses(fit(models[1], tmp_path / "out")) == losses(first)


def test_a_fingerprint_sees_names_shapes_dtypes_order_and_one_bit():
    class Model(torch.nn.Module):
        def __init__(self, values, name="weight"):
            super().__init__()
            self.register_parameter(name, torch.nn.Parameter(values))

    values = torch.arange(6.0)
    one_bit = values.clone()
    one_bit.view(torch.int32)[3] ^= 1
    models = [
        Model(values),
        Model(values.flip(0)),
        Model(values.view(2, 3)),
        Model(values.view(3, 2)),
        Model(values.double()),
        Model(values, "other"),
        Model(one_bit),
    ]
    assert len({model_fingerprint(each) for each in models}) == len(models)
    assert model_fingerprint(Model(values.clone())) == model_fingerprint(models[0])
    # a transposed layout in memory has the same values in the same places
    columns = values.view(2, 3).t().contiguous().t()
    assert model_fingerprint(Model(columns)) == model_fingerprint(models[2])


def test_a_row_that_a_file_holds_twice_counts_once(tmp_path):
    alone = fit(llama(), tmp_path, windows=3)
    path = tmp_path / "rows.jsonl"
    path.write_text(path.read_text() * 2)
    again = fit(llama(), tmp_path, windows=3)
    assert again.rows == alone.rows
    assert again.table() == alone.table()
    assert len(Ledger(path, {}).rows) == 0


PROGRAM = """
import sys, time
from pathlib import Path
from ropewalk_lab.fit.ledger import only_writer
with only_writer(Path(sys.argv[1])):
    print("locked", flush=True)
    time.sleep(60)
"""


def test_two_fits_in_one_folder_at_once_are_refused_and_an_ended_one_leaves_no_lock(tmp_path):
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "rows.jsonl")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "locked\n"
        with pytest.raises(RopeError, match="out: must be a folder in which no other fit runs"):
            fit(llama(), tmp_path)
        other.kill()
    time.sleep(0.1)
    assert fit(llama(), tmp_path).recommendation.method in ("none", "yarn")


def test_steps_are_numbered_up_to_the_number_of_those_that_are_missing(tmp_path):
    """Each window is read once with none and with yarn, and twice with dynamic, whose loss at the
    trained length is measured too.
    """
    steps = []
    call = lambda **options: rw.fit(
        llama(), 48, text=TEXT, windows=2, out=tmp_path, report=steps.append, **options
    )
    call(methods=["yarn"], long_ppl=False)
    assert [str(step) for step in steps] == [
        "1/4 none: window 1 of 2, 48 tokens",
        "2/4 none: window 2 of 2, 48 tokens",
        "3/4 yarn: window 1 of 2, 48 tokens",
        "4/4 yarn: window 2 of 2, 48 tokens",
    ]
    steps.clear()
    call(methods=["yarn", "dynamic"], long_ppl=False)
    assert [(step.number, step.total) for step in steps] == [(n, 4) for n in range(1, 5)]
    steps.clear()
    call(methods=["yarn", "longrope"], search=16)  # another setting: all is measured again
    assert [step.number for step in steps] == list(range(1, len(steps) + 1))
    assert {step.total for step in steps} == {len(steps)}
    assert steps[0].text.startswith("longrope: search")
    steps.clear()
    call(methods=["yarn", "longrope"], search=16)
    assert steps == []


def test_progress_is_a_line_for_each_step_in_a_pipe(capsys):
    rw.fit(llama(), 48, text=TEXT, windows=2, methods=[], long_ppl=False)
    assert capsys.readouterr().err.splitlines() == [
        "1/2 none: window 1 of 2, 48 tokens",
        "2/2 none: window 2 of 2, 48 tokens",
    ]


def test_tokens_that_the_model_does_not_have_are_refused():
    with pytest.raises(RopeError, match="text: must have tokens from 0 to 60"):
        fit(llama(), text=torch.arange(400))
    with pytest.raises(RopeError, match="text: must have tokens from 0 to 60"):
        fit(llama(), text=TEXT - 1)
    with pytest.raises(RopeError, match="text: must be a tensor of integers"):
        fit(llama(), text=TEXT + 0.7)
    with pytest.raises(RopeError, match="text: must name at least one file or folder, or be a ten"):
        fit(llama(), text=[1, 2, 3], tokenizer=lambda text: list(text.encode()))
    decoder = rw.Decoder(rw.models.DecoderConfig(61, 24, 32, num_layers=1, num_heads=3, length=16))
    with pytest.raises(RopeError, match="text: must have tokens from 0 to 60"):
        fit(decoder.eval(), text=torch.arange(400))


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused():
    encode = lambda text: [*(byte % 61 for byte in text.encode()), 61]
    with pytest.raises(RopeError, match="text: must have tokens from 0 to 60"):
        rw.fit(llama(), 2048, trained=1024, text=TEXT.repeat(20), tokenizer=encode, windows=2)


@pytest.mark.parametrize("part", ["input", "output"])
def test_a_token_of_one_vocabulary_alone_is_refused(part):
    """The embedding or the head may be padded to more tokens than the other has."""
    model = llama()
    if part == "input":
        model.set_input_embeddings(torch.nn.Embedding(64, 48))
    else:
        model.set_output_embeddings(torch.nn.Linear(48, 64, bias=False))
    text = TEXT.clone()
    text[7] = 61
    with pytest.raises(RopeError, match="text: must have tokens from 0 to 60"):
        fit(model, text=text)


def test_logits_that_are_not_finite_are_refused():
    model = llama()
    model.lm_head.weight.data[5, 5] = float("nan")
    with pytest.raises(RopeError, match="model: must have finite logits"):
        fit(model)


def test_a_loss_far_above_another_is_no_overflow():
    model = llama()
    model.lm_head.weight.data *= 1e4
    found = fit(model, windows=3, methods=None)
    assert any(row["loss"] > 710 for row in found.rows)
    assert found.recommendation.method in found.facts["methods"]


def test_the_files_in_the_folder_hold_the_decision_of_the_fit(tmp_path):
    found = fit(llama(), tmp_path, methods=None)
    kept = json.loads((tmp_path / "fit.json").read_text())
    for name in ("recommended", "best", "in_config"):
        assert kept[name]["method"] == getattr(found.decision, name).method
    has_config = (tmp_path / "fit-config.json").exists()
    assert has_config == (found.in_config.method != "none") == (found.config is not None)
    assert kept["code"]["torch"] == torch.__version__


def test_what_is_no_model_is_refused():
    with pytest.raises(RopeError, match="model: must be a causal language model"):
        rw.fit(3, 48, text=TEXT, trained=16)


def test_a_set_in_a_config_is_written_in_sorted_order():
    class Order(frozenset):
        """A set that is read backwards, as one may be in another process."""

        def __iter__(self):
            return iter(sorted(super().__iter__(), reverse=True))

    assert plain({"names": Order("abc")}) == {"names": ["a", "b", "c"]}
    assert plain({"names": {3, 1, 2}}) == {"names": [1, 2, 3]}
