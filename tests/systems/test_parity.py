"""Every system with a Hugging Face format against transformers: outputs, gradients, padding, checkpoints both ways."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import regard
from parity import HYBRID_DPT, Case, assert_gradients, assert_saved_alike, load_peer, weighted_sum
from tiny import near

SINGLE = 5e-7
"""Tolerance for Longformer, whose softmax is in float32 in transformers."""
FOUR = {"num_labels": 4}
SEGMENT = {"use_batch_norm_in_fusion_residual": True}
DEPTH = {"use_batch_norm_in_fusion_residual": False}
AS_PUBLISHED = {"activation_function": "swish", "pad_token_id": 22, "decoder_start_token_id": 22, "eos_token_id": 0}
CASES = [
    Case("BertModel", "embed"), Case("BertModel", "embed", {"hidden_act": "gelu_new"}),
    Case("BertModel", "embed", {"hidden_act": "relu", "layer_norm_eps": 1e-2}),
    Case("BertForSequenceClassification", "classify", FOUR), Case("BertForMultipleChoice", "choose"),
    Case("BertForTokenClassification", "tag", FOUR), Case("BertForQuestionAnswering", "qa"),
    Case("BertForMaskedLM", "mlm"), Case("BertForPreTraining", "mlm"),
    Case("ModernBertModel", "embed"), Case("ModernBertModel", "embed", {"local_attention": 4, "norm_eps": 1e-2}),
    Case("ModernBertForSequenceClassification", "classify", FOUR),
    Case("ModernBertForSequenceClassification", "classify", {**FOUR, "classifier_pooling": "mean"}),
    Case("ModernBertForMultipleChoice", "choose"), Case("ModernBertForTokenClassification", "tag", FOUR),
    Case("ModernBertForQuestionAnswering", "qa"), Case("ModernBertForMaskedLM", "mlm"),
    Case("ModernBertForMaskedLM", "mlm", {"hidden_activation": "gelu_new", "global_attn_every_n_layers": 2}),
    Case("DebertaV2Model", "embed"), Case("DebertaV2Model", "embed", {"type_vocab_size": 2, "position_biased_input": True}),
    Case("DebertaV2Model", "embed", {"position_buckets": -1, "max_relative_positions": -1, "norm_rel_ebd": "none"}),
    Case("DebertaV2Model", "embed", {"pos_att_type": ["c2p"], "num_attention_heads": 6, "share_att_key": False}),
    Case("DebertaV2Model", "embed", {"pos_att_type": "p2c", "num_attention_heads": 6}),
    Case("DebertaV2ForSequenceClassification", "classify", FOUR), Case("DebertaV2ForMultipleChoice", "choose"),
    Case("DebertaV2ForTokenClassification", "tag", FOUR), Case("DebertaV2ForQuestionAnswering", "qa"),
    Case("DebertaV2ForMaskedLM", "mlm"), Case("DebertaV2ForMaskedLM", "mlm", {"legacy": False, "share_att_key": False}),
    Case("DebertaV2ForMaskedLM", "mlm", {"conv_kernel_size": 3, "conv_act": "gelu"}),
    Case("RoFormerModel", "embed"), Case("RoFormerForSequenceClassification", "classify", FOUR),
    Case("RoFormerForTokenClassification", "tag", FOUR), Case("RoFormerForQuestionAnswering", "qa"),
    Case("RoFormerForMaskedLM", "mlm"), Case("RoFormerForMaskedLM", "mlm", {"rotary_value": True}),
    Case("RoFormerForMaskedLM", "mlm", {"embedding_size": None, "hidden_act": "relu"}),
    Case("LongformerModel", "embed", {}, SINGLE), Case("LongformerForSequenceClassification", "classify", FOUR, SINGLE),
    Case("LongformerForTokenClassification", "tag", FOUR, SINGLE), Case("LongformerForQuestionAnswering", "qa", {}, SINGLE),
    Case("LongformerForMaskedLM", "mlm", {}, SINGLE),
    Case("LongformerForMaskedLM", "mlm", {"attention_window": [4, 4, 4]}, SINGLE),
    Case("LongformerForMaskedLM", "mlm", {"attention_window": [64, 64, 64]}, SINGLE),
    Case("OpenAIGPTLMHeadModel", "lm"), Case("OpenAIGPTLMHeadModel", "lm", {"layer_norm_epsilon": 1e-2, "n_head": 2}),
    Case("GPT2LMHeadModel", "lm"), Case("GPT2LMHeadModel", "lm", {"layer_norm_epsilon": 1e-2, "resid_pdrop": 0.3}),
    Case("GPT2LMHeadModel", "lm", {"n_inner": None, "n_head": 2}),
    Case("OpenAIGPTForSequenceClassification", "classify", {**FOUR, "pad_token_id": 1}),
    Case("GPT2ForSequenceClassification", "classify", {**FOUR, "pad_token_id": 1}),
    Case("OpenAIGPTDoubleHeadsModel", "choose"), Case("GPT2DoubleHeadsModel", "choose"),
    Case("MarianMTModel", "translate"), Case("MarianMTModel", "translate", {"activation_function": "swish"}),
    Case("MarianMTModel", "translate", {"activation_function": "gelu", "scale_embedding": False}),
    Case("MarianMTModel", "translate", AS_PUBLISHED, logit_bias=True),
    Case("ViTModel", "classify"), Case("ViTForImageClassification", "classify"),
    Case("ViTForImageClassification", "classify", {"layer_norm_eps": 1e-2, "hidden_act": "gelu_new"}),
    Case("ViTForImageClassification", "classify", {"hidden_act": "relu", "num_channels": 3, "patch_size": 2}),
    Case("ResNetForImageClassification", "classify"), Case("BitForImageClassification", "classify"),
    Case("SwinModel", "classify"), Case("SwinForImageClassification", "classify"),
    Case("SwinForImageClassification", "classify", {"layer_norm_eps": 1e-3, "hidden_act": "gelu_new"}),
    Case("DPTForDepthEstimation", "depth", DEPTH, 1e-10), Case("DPTForSemanticSegmentation", "segment", SEGMENT, 1e-10),
    Case("DPTForDepthEstimation", "depth", {**HYBRID_DPT, **DEPTH}, 1e-10),
    Case("DPTForSemanticSegmentation", "segment", {**HYBRID_DPT, **SEGMENT}, 1e-10),
    Case("ImageGPTForCausalImageModeling", "draw"), Case("ImageGPTForImageClassification", "classify"),
    Case("ImageGPTForCausalImageModeling", "draw", {"layer_norm_epsilon": 1e-2, "n_head": 2, "resid_pdrop": 0.3}),
]  # fmt: skip
SWIN, SMALL = "SwinForImageClassification", {"image_size": 32, "drop_path_rate": 0.0}
MORE = [  # (36, 4) has as many patches as there are positions, in another shape
    *(Case("ViTModel", "classify", sides=sides) for sides in ((20, 20), (8, 24), (16, 4), (36, 4))),
    Case("ResNetModel", "classify", sides=(37, 53)), Case("BitModel", "classify", sides=(37, 53)),
    *(Case("SwinModel", "classify", SMALL, sides=sides) for sides in ((48, 48), (57, 43))),
    Case(SWIN, "classify", SMALL), Case(SWIN, "classify", {**SMALL, "window_size": 2}, sides=(32, 32)),
    Case(SWIN, "classify", SMALL, sides=(57, 43)), Case(SWIN, "classify", {**SMALL, "hidden_act": "relu"}, sides=(43, 90)),
    Case(SWIN, "classify", {**SMALL, "patch_size": 1, "window_size": 4, "num_channels": 1}, sides=(29, 26)),
    Case(SWIN, "classify", {**SMALL, "window_size": 7}, sides=(57, 43)),
    Case(SWIN, "classify", {**SMALL, "patch_size": 4, "window_size": 7}, sides=(57, 43)),
    Case(SWIN, "classify", {**SMALL, "window_size": 5}, sides=(30, 12)),
    Case(SWIN, "classify", {**SMALL, "window_size": 4, "depths": [1, 2, 1, 1]}, sides=(5, 3)),
    Case(SWIN, "classify", {**SMALL, "depths": [1, 1, 1, 1]}, sides=(1, 1)),
    Case("DPTForDepthEstimation", "depth", {**DEPTH, "readout_type": "add"}, 1e-10),
    Case("DPTForDepthEstimation", "depth", {**DEPTH, "readout_type": "ignore"}, 1e-10),
    Case("DPTForSemanticSegmentation", "segment", {**SEGMENT, "use_bias_in_fusion_residual": True}, 1e-10),
    Case("DPTForSemanticSegmentation", "segment", DEPTH, 1e-10),
    Case("DPTForSemanticSegmentation", "segment", {**SEGMENT, "use_auxiliary_head": False}, 1e-10),
    *(Case(f"ImageGPTFor{head}", task, {"n_positions": 25, "vocab_size": 13})  # rows shorter than the images
      for head, task in (("CausalImageModeling", "draw"), ("ImageClassification", "classify"))),
]  # fmt: skip


def cases(given: list[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", given, ids=lambda case: f"{case.model} {' '.join(case.changes)}".strip())


@cases([*CASES, *MORE])
def test_outputs_and_gradients_equal_transformers(case: Case, tmp_path: Path) -> None:
    peer = case.peer()
    model = load_peer(peer, tmp_path / "peer")
    assert model.task.name == case.task and not model.training and (not model.notes or case.model.endswith("Model"))
    ours, right = case.outputs(model, peer)
    for own, theirs in zip(ours, right, strict=True):
        near(own, theirs, case.tolerance)
    if case.family != "Longformer":  # its gradients are NaN in transformers for padded rows
        assert_gradients(model, peer, weighted_sum(ours), weighted_sum(right), tmp_path / "gradients")


@pytest.mark.every(2)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float32])
@cases(CASES)
def test_checkpoints_are_read_and_written_unchanged(case: Case, dtype: torch.dtype, tmp_path: Path) -> None:
    peer = case.peer().to(dtype)
    model = load_peer(peer, tmp_path / "peer", dtype="stored")
    if case.model == "ViTModel":  # the pooler is not read
        regard.save(model, tmp_path / "own", layout="huggingface")
    else:
        assert_saved_alike(model, peer, tmp_path / "own")
    has_labels = case.task in ("classify", "tag", "segment") and not case.model.endswith("Model")
    assert model.spec.options.labels == (tuple(peer.config.id2label.values()) if has_labels else ())
    back = regard.load(tmp_path / "own", dtype="stored")
    assert back.config == model.config and back.task.name == case.task
    assert back.spec.options.labels == model.spec.options.labels
    if dtype == torch.float64:
        for own, right in zip(*case.outputs(back, peer), strict=True):
            near(own, right, case.tolerance)
