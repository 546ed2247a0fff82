"""Setting names of other tools, accepted or explained.

A name in `SYNONYMS` has the same meaning as the setting of regard and is accepted. A name in `RELATED` has no exact
counterpart: the error names the setting to use."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from regard.errors import SettingError

SYNONYMS = {
    "train.learning_rate": "train.lr",
    "train.max_lr": "train.lr",
    "train.peak_lr": "train.lr",
    "train.base_lr": "train.lr",
    "train.num_train_epochs": "train.epochs",
    "train.num_epochs": "train.epochs",
    "train.max_epochs": "train.epochs",
    "train.max_epoch": "train.epochs",
    "train.max_steps": "train.steps",
    "train.max_iters": "train.steps",
    "train.max_update": "train.steps",
    "train.num_steps": "train.steps",
    "train.train_steps": "train.steps",
    "train.total_steps": "train.steps",
    "train.gradient_accumulation_steps": "train.grad_accum",
    "train.accumulate_grad_batches": "train.grad_accum",
    "train.update_freq": "train.grad_accum",
    "train.grad_accum_steps": "train.grad_accum",
    "train.max_grad_norm": "train.grad_clip",
    "train.gradient_clip_val": "train.grad_clip",
    "train.clip_norm": "train.grad_clip",
    "train.clip_grad": "train.grad_clip",
    "train.warmup": "train.warmup_steps",
    "train.warmup_ratio": "train.warmup_steps",
    "train.warmup_iters": "train.warmup_steps",
    "train.warmup_updates": "train.warmup_steps",
    "train.lr_scheduler_type": "train.lr_schedule",
    "train.lr_scheduler": "train.lr_schedule",
    "train.scheduler": "train.lr_schedule",
    "train.sched": "train.lr_schedule",
    "train.label_smoothing_factor": "train.label_smoothing",
    "train.smoothing": "train.label_smoothing",
    "train.adam_betas": "train.betas",
    "train.adam_epsilon": "train.eps",
    "train.adam_eps": "train.eps",
    "train.wd": "train.weight_decay",
    "train.model_ema_decay": "train.ema_decay",
    "train.average_last": "train.average_checkpoints",
    "train.early_stopping_patience": "train.patience",
    "train.eval_steps": "train.eval_every",
    "train.eval_interval": "train.eval_every",
    "train.val_check_interval": "train.eval_every",
    "train.validate_interval_updates": "train.eval_every",
    "train.logging_steps": "train.log_every",
    "train.log_interval": "train.log_every",
    "train.save_total_limit": "train.keep_checkpoints",
    "train.save_top_k": "train.keep_checkpoints",
    "train.keep_last_epochs": "train.keep_checkpoints",
    "train.dtype": "train.precision",
    "train.max_tokens": "train.batch_tokens",
    "train.torch_compile": "train.compile",
    "train.use_deterministic_algorithms": "train.deterministic",
    "train.random_seed": "train.seed",
    "train.pack": "train.packing",
    "data.max_len": "data.max_length",
    "data.max_seq_length": "data.max_length",
    "data.max_source_length": "data.max_length",
    "data.vocabulary_size": "data.vocab_size",
    "data.bpe": "data.tokenizer_type",
    "data.val_split": "data.valid_fraction",
    "data.valid_split": "data.valid_fraction",
    "data.test_size": "data.valid_fraction",
    "data.mlm_probability": "data.mask_prob",
    "data.workers": "data.num_workers",
    "data.dataloader_num_workers": "data.num_workers",
    "data.imgsz": "model.image_size",
    "data.img_size": "model.image_size",
    "data.jitter_color": "data.color_jitter",
    "data.reprob": "data.random_erasing",
    "data.mixup_alpha": "data.mixup",
    "data.doc_stride": "data.stride",
    "decode.beam_size": "decode.num_beams",
    "decode.beam": "decode.num_beams",
    "decode.nbest": "decode.num_return_sequences",
    "decode.lenpen": "decode.length_penalty",
    "decode.max_tokens": "decode.max_new_tokens",
    "decode.stop": "decode.stop_strings",
    "decode.n": "decode.num_return_sequences",
    "decode.rep_pen": "decode.repetition_penalty",
}
"""Name in Hugging Face, fairseq, Lightning, timm, nanoGPT and others: setting of regard."""

VALUES = {"decode.early_stopping": {"true": "always", "false": "heuristic"}}
"""Setting -> value in Hugging Face -> value in regard."""

HINTS = {
    "train.warmup_ratio": "a value below 1 is a fraction of train.steps",
}
"""Difference to mention when a synonym is accepted."""

RELATED = {
    "train.warmup_epochs": ("train.warmup_steps", "counted in steps"),
    "train.adam_beta1": ("train.betas", "two values, 0.9,0.98"),
    "train.beta2": ("train.betas", "two values, 0.9,0.98"),
    "train.ema": ("train.ema_decay", "a decay such as 0.999"),
    "train.early_stopping": ("train.patience", "a number of evaluations"),
    "train.save_steps": ("train.eval_every", "each evaluation saves"),
    "train.bf16": ("train.precision", "train.precision=bfloat16"),
    "train.fp16": ("train.precision", "bfloat16 or float32"),
    "train.amp": ("train.precision", "train.precision=bfloat16"),
    "train.per_device_train_batch_size": ("train.batch_size", "images and point clouds; for text train.batch_tokens"),
    "train.batch": ("train.batch_size", "images and point clouds; for text train.batch_tokens"),
    "train.layer_decay": ("train.lr_overrides", "one rate per pattern"),
    "data.block_size": ("model.max_length", "the context belongs to the model"),
    "data.hflip": ("data.flip", "true or false"),
    "data.random_crop": ("data.crop_scale", "minimum area fraction"),
    "decode.greedy": ("decode.temperature", "decode.temperature=0"),
}
"""Name elsewhere: the related setting of regard, and the difference."""


TASK_ALIASES = {
    "translation": "translate",
    "seq2seq": "translate",
    "text2text-generation": "translate",
    "text-generation": "lm",
    "causal-lm": "lm",
    "language-modeling": "lm",
    "fill-mask": "mlm",
    "masked-lm": "mlm",
    "text-classification": "classify",
    "sequence-classification": "classify",
    "image-classification": "classify",
    "point-classification": "classify",
    "token-classification": "tag",
    "ner": "tag",
    "pos": "tag",
    "question-answering": "qa",
    "squad": "qa",
    "multiple-choice": "choose",
    "sentence-similarity": "embed",
    "feature-extraction": "embed",
    "copy": "algorithmic",
    "babi": "algorithmic",
    "image-segmentation": "segment",
    "semantic-segmentation": "segment",
    "point-segmentation": "segment",
    "depth-estimation": "depth",
    "image-generation": "draw",
    "unconditional-image-generation": "draw",
    "image-to-text": "caption",
    "image-captioning": "caption",
}
"""Pipeline names of Hugging Face and other common names: task of regard."""


@functools.cache
def print_note(line: str) -> None:
    """Print a line to standard error, once per process."""
    print(line, file=sys.stderr)


PRESET_ALIASES = {
    "show-and-tell": "caption-fixed-base",
    "show-attend-tell": "caption-attend-base",
    "seq2seq-lstm": "rnn-sutskever",
}
"""Presets by the name of their paper."""


def resolve_preset_name(name: str) -> str:
    """Preset of regard for the name of a paper; other names are returned unchanged."""
    return PRESET_ALIASES.get(name, name)


def resolve_task_name(name: str) -> str:
    """Task of regard for a pipeline name such as `token-classification`; other names are returned unchanged."""
    return TASK_ALIASES.get(name, name)


def resolve_value(setting: str, value: Any) -> Any:
    """Value of regard for a value such as early_stopping=True; other values are returned unchanged."""
    return VALUES.get(setting, {}).get(str(value).lower(), value)


def resolve_name(name: str, note: Callable[[str], None]) -> str:
    """Setting of regard for a name such as `train.learning_rate`; other names are returned unchanged.

    `note` receives one line if the name was translated. A name without an exact counterpart raises `SettingError`."""
    if name in RELATED and name != "data.block_size":  # also a setting of point clouds
        setting, difference = RELATED[name]
        raise SettingError(f"Unknown setting '{name}'. Use {setting} instead ({difference}).")
    if name not in SYNONYMS:
        return name
    hint = f" ({HINTS[name]})" if name in HINTS else ""
    note(f"note: {name} is called {SYNONYMS[name]}{hint}.")
    return SYNONYMS[name]
