"""Setting names of other tools, accepted or explained.

A name in `SYNONYMS` has the same meaning as the setting of regard and is accepted. A name in `RELATED` has no exact
counterpart: the error names the setting to use."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from regard.errors import SettingError

_NAMES_ELSEWHERE = {
    "train.lr": "learning_rate max_lr peak_lr base_lr",
    "train.epochs": "num_train_epochs num_epochs max_epochs max_epoch",
    "train.steps": "max_steps max_iters max_update num_steps train_steps total_steps",
    "train.grad_accum": "gradient_accumulation_steps accumulate_grad_batches update_freq grad_accum_steps",
    "train.grad_clip": "max_grad_norm gradient_clip_val clip_norm clip_grad",
    "train.warmup_steps": "warmup warmup_ratio warmup_iters warmup_updates",
    "train.lr_schedule": "lr_scheduler_type lr_scheduler scheduler sched",
    "train.label_smoothing": "label_smoothing_factor smoothing",
    "train.betas": "adam_betas",
    "train.eps": "adam_epsilon adam_eps",
    "train.weight_decay": "wd",
    "train.ema_decay": "model_ema_decay",
    "train.average_checkpoints": "average_last",
    "train.patience": "early_stopping_patience",
    "train.eval_every": "eval_steps eval_interval val_check_interval validate_interval_updates",
    "train.log_every": "logging_steps log_interval",
    "train.keep_checkpoints": "save_total_limit save_top_k keep_last_epochs",
    "train.precision": "dtype",
    "train.batch_tokens": "max_tokens",
    "train.compile": "torch_compile",
    "train.deterministic": "use_deterministic_algorithms",
    "train.seed": "random_seed",
    "train.packing": "pack",
    "data.max_length": "max_len max_seq_length max_source_length",
    "data.vocab_size": "vocabulary_size",
    "data.tokenizer_type": "bpe",
    "data.valid_fraction": "val_split valid_split test_size",
    "data.mask_prob": "mlm_probability",
    "data.num_workers": "workers dataloader_num_workers",
    "model.image_size": "imgsz img_size",
    "data.color_jitter": "jitter_color",
    "data.random_erasing": "reprob",
    "data.mixup": "mixup_alpha",
    "data.stride": "doc_stride",
    "decode.num_beams": "beam_size beam",
    "decode.num_return_sequences": "nbest n",
    "decode.length_penalty": "lenpen",
    "decode.max_new_tokens": "max_tokens",
    "decode.stop_strings": "stop",
    "decode.repetition_penalty": "rep_pen",
}
SYNONYMS = {
    f"{'data' if setting == 'model.image_size' else setting.partition('.')[0]}.{name}": setting
    for setting, names in _NAMES_ELSEWHERE.items()
    for name in names.split()
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


_TASK_NAMES_ELSEWHERE = {
    "translate": "translation seq2seq text2text-generation",
    "lm": "text-generation causal-lm language-modeling",
    "mlm": "fill-mask masked-lm",
    "classify": "text-classification sequence-classification image-classification point-classification",
    "tag": "token-classification ner pos",
    "qa": "question-answering squad",
    "choose": "multiple-choice",
    "embed": "sentence-similarity feature-extraction",
    "algorithmic": "copy babi",
    "segment": "image-segmentation semantic-segmentation point-segmentation",
    "depth": "depth-estimation",
    "draw": "image-generation unconditional-image-generation",
    "caption": "image-to-text image-captioning",
}


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
