"""Small RoFormers and BERTs of transformers with random weights, and their outputs in the form of
ours.
"""

import torch
import transformers
from transformers.utils import logging

logging.set_verbosity_error()

VOCABULARY, LONGEST = 37, 16
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 30,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 22,
    "max_position_embeddings": LONGEST,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
#: id -> (class without its prefix, what its config says besides SMALL)
ROFORMERS = {
    "bare": ("Model", {}),
    "masked_lm": ("ForMaskedLM", {}),
    "narrow_embeddings": ("ForMaskedLM", {"embedding_size": 14}),
    "rotary_value": ("ForMaskedLM", {"rotary_value": True, "hidden_act": "relu"}),
    "untied": ("ForMaskedLM", {"tie_word_embeddings": False, "type_vocab_size": 3}),
    "decoder": ("ForCausalLM", {"is_decoder": True, "hidden_act": "gelu_new"}),
    "decoder_rotary_value": (
        "ForCausalLM",
        {"is_decoder": True, "rotary_value": True, "embedding_size": 10},
    ),
    "decoder_untied": (
        "ForCausalLM",
        {"is_decoder": True, "tie_word_embeddings": False, "pad_token_id": None},
    ),
    "classification": ("ForSequenceClassification", {"num_labels": 5}),
    "token_classification": ("ForTokenClassification", {"num_labels": 4, "layer_norm_eps": 1e-5}),
    "multiple_choice": ("ForMultipleChoice", {}),
    "multiple_choice_projected": (
        "ForMultipleChoice",
        {"summary_type": "first", "summary_use_proj": True, "summary_activation": "tanh"},
    ),
    "multiple_choice_mean": ("ForMultipleChoice", {"summary_type": "mean"}),
    "question_answering": ("ForQuestionAnswering", {"rotary_value": True}),
}
BERTS = {
    "bare": ("Model", {}),
    "masked_lm": ("ForMaskedLM", {}),
    "pretraining": ("ForPreTraining", {}),
    "decoder": ("LMHeadModel", {"is_decoder": True}),
    "classification": ("ForSequenceClassification", {"num_labels": 5}),
    "token_classification": ("ForTokenClassification", {}),
    "multiple_choice": ("ForMultipleChoice", {}),
    "question_answering": ("ForQuestionAnswering", {}),
}


def theirs(family, name, spread=0.3, **changes):
    """Return a transformers model in evaluation mode with all trained weights drawn anew."""
    ending, extra = (ROFORMERS if family == "RoFormer" else BERTS)[name]
    config = getattr(transformers, family + "Config")(**(SMALL | extra | changes))
    model = getattr(transformers, family + ending)(config).eval()
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=spread)
    return model


def words(shape, name=""):
    """Tokens and types for a model of that name; multiple choice has three choices a row."""
    shape = (shape[0], 3, *shape[1:]) if name.startswith("multiple_choice") else shape
    return torch.randint(1, VOCABULARY, shape), torch.randint(0, 2, shape)


def answer(model, tokens, types, padding=None):
    """Return the output of a transformers model as one tensor."""
    said = model(
        tokens, token_type_ids=types, attention_mask=None if padding is None else padding.long()
    )
    if hasattr(said, "start_logits"):
        return torch.stack((said.start_logits, said.end_logits), dim=-1)
    return next(
        said[key] for key in ("logits", "prediction_logits", "last_hidden_state") if key in said
    )
