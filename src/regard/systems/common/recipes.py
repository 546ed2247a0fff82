"""Recipes: default settings of presets and of fine-tuning, by group (train, data, decode).

All recipes use Adam. Where a paper uses another optimizer, the learning rate is replaced by one for Adam."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Recipe = dict[str, dict[str, Any]]  # `{"train": {...}, "data": {...}, "decode": {...}}`


@dataclass(frozen=True)
class TaskRecipes:
    """Tasks of a system, with their default settings."""

    tasks: tuple[str, ...]
    recipes: Mapping[str, Recipe] = field(default_factory=dict)
    """settings by task, in place of the recipe of the preset"""
    finetuning: Mapping[str, Recipe] = field(default_factory=dict)
    """settings by task for pretrained weights without a preset"""


_ADAM: dict[str, Any] = {"betas": "0.9,0.999", "eps": 1e-8, "grad_clip": 1.0, "label_smoothing": 0.0}
_GPT: dict[str, Any] = {**_ADAM, "lr_schedule": "cosine", "betas": "0.9,0.95", "weight_decay": 0.1}
_BERT: dict[str, Any] = {**_ADAM, "lr_schedule": "linear", "weight_decay": 0.01}
_IMAGES: dict[str, Any] = {**_ADAM, "lr_schedule": "cosine"}
TRAIN: dict[str, dict[str, Any]] = {
    # 50,000 tokens per step, learning rate 1 / √(512 · step) after warmup
    "transformer": {
        "steps": 100_000, "batch_tokens": 50_000, "lr": 512**-0.5 * 4000**-0.5, "warmup_steps": 4000,
        "lr_schedule": "inverse_sqrt", "label_smoothing": 0.1, "betas": "0.9,0.98", "eps": 1e-9, "grad_clip": 0.0,
        "weight_decay": 0.0,
    },
    # Gehring et al. use Nesterov momentum of 0.99 with a learning rate of 0.25, divided by 10 when the validation loss stops
    # to fall, without label smoothing
    "convs2s": {
        "steps": 300_000, "batch_tokens": 32_000, "lr": 5e-4, "warmup_steps": 4000, "lr_schedule": "inverse_sqrt",
        "label_smoothing": 0.1, "grad_clip": 0.1, "weight_decay": 0.0,
    },
    # Sutskever et al. (7.5 epochs of 12 million pairs, gradient norm at most 5) and Bahdanau et al. (80 pairs of up to 50
    # words per batch, gradient norm at most 1)
    "recurrent": {**_ADAM, "lr": 5e-4, "warmup_steps": 1000, "lr_schedule": "linear", "weight_decay": 0.0},
    "recurrent_tiny": {
        **_ADAM, "steps": 6000, "batch_tokens": 8192, "warmup_steps": 300, "lr_schedule": "linear", "weight_decay": 0.0,
        "label_smoothing": 0.1, "ema_decay": 0.999,
    },
    # answers are exact, so label smoothing, EMA and beam search are off
    "algorithmic": {
        "steps": 6000, "batch_tokens": 8192, "lr": 1e-3, "warmup_steps": 500, "lr_schedule": "linear",
        "label_smoothing": 0.0, "grad_clip": 1.0, "ema_decay": 0.0,
    },
    "decoder": {**_ADAM, "lr_schedule": "inverse_sqrt", "betas": "0.9,0.98", "eps": 1e-9, "weight_decay": 0.0},
    # 64 rows of 512 tokens per step, 100 epochs
    "gpt1": {
        **_ADAM, "epochs": 100, "batch_tokens": 8192, "grad_accum": 4, "lr": 2.5e-4, "warmup_steps": 2000,
        "lr_schedule": "cosine", "weight_decay": 0.01,
    },
    # settings of common reproductions, with the sampling of the paper
    "gpt2": _GPT,
    # 512 rows of 1024 tokens per step, half a million tokens
    "gpt2_paper": {**_GPT, "steps": 100_000, "batch_tokens": 16_384, "grad_accum": 32, "warmup_steps": 2000},
    # three epochs at 6.25e-5, linear decay after 0.2 % of warmup
    "gpt_task": {
        **_ADAM, "epochs": 3, "lr": 6.25e-5, "warmup_steps": 0.002, "lr_schedule": "linear", "lm_loss_weight": 0.5,
        "weight_decay": 0.01, "grad_accum": 1, "eval_every": 500,
    },
    # a low learning rate, so that pretrained weights change slowly
    "gpt_finetuning": {**_GPT, "steps": 2000, "batch_tokens": 8192, "lr": 5e-5, "warmup_steps": 100, "eval_every": 250},
    # 256 rows of 512 tokens per step, one million steps, linear decay after warmup
    "bert": {
        **_BERT, "steps": 1_000_000, "batch_tokens": 8192, "grad_accum": 16, "lr": 1e-4, "warmup_steps": 10_000, "eps": 1e-6,
    },
    # small encoders on a laptop
    "bert_small": {
        **_BERT, "steps": 10_000, "batch_tokens": 8192, "grad_accum": 1, "lr": 1e-4, "warmup_steps": 1000, "eps": 1e-6,
    },
    # first phase: 1.7 trillion tokens in rows of 1024, here at a constant batch size of half a million tokens with linear
    # decay; 30 % of the tokens are masked. The paper uses StableAdamW and a trapezoidal schedule
    "modernbert": {
        **_BERT, "steps": 3_400_000, "batch_tokens": 16_384, "grad_accum": 32, "lr": 8e-4, "warmup_steps": 6000, "eps": 1e-6,
    },
    "bert_task": {**_BERT, "warmup_steps": 0.1, "grad_accum": 1, "eval_every": 500},
    "mlm_finetuning": {
        **_BERT, "steps": 2000, "batch_tokens": 8192, "grad_accum": 1, "lr": 5e-5, "warmup_steps": 100, "eval_every": 250,
    },
    # 4096 images per step, 300 epochs at 3e-3, cosine decay after 10,000 steps of warmup
    "imagenet": {
        **_IMAGES, "epochs": 300, "batch_size": 256, "grad_accum": 16, "lr": 3e-3, "warmup_steps": 10_000,
        "weight_decay": 0.3,
    },
    # the 90 epochs of the ResNet papers, with smooth decay of the learning rate
    "resnet": {
        **_IMAGES, "epochs": 90, "batch_size": 128, "grad_accum": 8, "lr": 2e-3, "warmup_steps": 0.05, "weight_decay": 0.05,
        "label_smoothing": 0.1,
    },
    # 300 epochs of ImageNet with 1024 images per step, 20 of them warmup
    "swin": {
        **_IMAGES, "epochs": 300, "warmup_steps": 20 / 300, "batch_size": 128, "grad_accum": 8, "lr": 1e-3,
        "weight_decay": 0.05, "label_smoothing": 0.1, "grad_clip": 5.0,
    },
    # depth: 16 images per step, learning rate 1e-5, 1e-4 for new layers, 60 epochs
    "dpt": {
        **_IMAGES, "epochs": 60, "batch_size": 16, "grad_accum": 1, "lr": 1e-5, "lr_overrides": {"head.*": 1e-4},
        "warmup_steps": 0.0, "lr_schedule": "constant", "weight_decay": 0.0,
    },
    # training from scratch on a few thousand images at most
    "dpt_small": {
        **_IMAGES, "epochs": 100, "batch_size": 16, "grad_accum": 1, "lr": 3e-4, "lr_overrides": {}, "warmup_steps": 0.05,
        "weight_decay": 0.05,
    },
    # warmup over one epoch of ImageNet, cosine decay to 0, no dropout and no weight decay
    "imagegpt": {**_GPT, "steps": 1_000_000, "warmup_steps": 10_000, "weight_decay": 0.0},
    "imagegpt_finetuning": {**_GPT, "batch_size": 32, "grad_accum": 1, "warmup_steps": 0.05, "weight_decay": 0.0},
    # from scratch on a few thousand images with several captions each
    "captions": {
        **_IMAGES, "steps": 4000, "batch_size": 64, "grad_accum": 1, "lr": 1e-3, "warmup_steps": 0.05, "weight_decay": 0.05,
        "betas": "0.9,0.98", "label_smoothing": 0.1, "eval_every": 500,
    },
    "captions_long": {
        **_IMAGES, "steps": 50_000, "batch_size": 64, "grad_accum": 1, "warmup_steps": 0.05, "weight_decay": 0.05,
        "betas": "0.9,0.98", "label_smoothing": 0.1, "eval_every": 2000,
    },
    # Zhao et al. use SGD with momentum 0.9 and weight decay 1e-4: 200 epochs of ModelNet40 at 0.05, 40,000 steps of S3DIS
    # at 0.5, both divided by 10 at 60 % and 80 %
    "points": {**_IMAGES, "epochs": 60, "grad_accum": 1, "lr": 2e-3, "warmup_steps": 0.05, "weight_decay": 0.05},
}  # fmt: skip

DATA: dict[str, dict[str, Any]] = {
    "transformer": {"vocab_size": 37_000}, "convs2s": {"vocab_size": 40_000}, "recurrent": {},
    "recurrent_tiny": {"vocab_size": 10_000}, "decoder": {}, "gpt1": {"vocab_size": 40_478},
    "gpt2": {"tokenizer_type": "byte_bpe"}, "gpt2_paper": {"vocab_size": 50_257, "tokenizer_type": "byte_bpe"},
    "bert": {"tokenizer_type": "wordpiece", "vocab_size": 30_522, "max_length": 512},
    "bert_small": {"tokenizer_type": "wordpiece", "vocab_size": 8000, "max_length": 128},
    "modernbert": {"tokenizer_type": "byte_bpe", "vocab_size": 50_368, "max_length": 1024, "mask_prob": 0.3},
    "captions": {"vocab_size": 2000}, "captions_long": {},
}  # fmt: skip

_BEAM_SEARCH: dict[str, Any] = {"num_beams": 4, "length_penalty": 0.6, "length_penalty_type": "wu"}
_SAMPLING: dict[str, Any] = {"do_sample": True, "top_k": 40}
DECODE: dict[str, dict[str, Any]] = {
    "transformer": _BEAM_SEARCH, "convs2s": {"num_beams": 5, "length_penalty": 1.0, "length_penalty_type": "power"},
    "recurrent": {"num_beams": 12, "length_penalty": 0.0}, "recurrent_tiny": _BEAM_SEARCH, "decoder": _BEAM_SEARCH,
    "gpt1": _SAMPLING, "gpt2": _SAMPLING, "gpt2_paper": _SAMPLING, "imagegpt": {"do_sample": True},
    "captions": {**_BEAM_SEARCH, "num_beams": 3}, "captions_long": {**_BEAM_SEARCH, "num_beams": 3},
}  # fmt: skip


TOKEN_SETTINGS = ("vocab_size", "tokenizer_type", "max_length")  # Settings of the group data.


def get(name: str, data: dict[str, Any] | None = None, decode: dict[str, Any] | None = None, **changes: Any) -> Recipe:
    """Recipe of a name, updated by `changes` of training and of tokens; `data` and `decode` replace these groups."""
    tokens = {key: changes.pop(key) for key in TOKEN_SETTINGS if key in changes}
    groups = {
        "train": {**TRAIN[name], **changes},
        "data": {**DATA[name], **tokens} if data is None and name in DATA else data,
        "decode": DECODE.get(name) if decode is None else decode,
    }
    return {group: values for group, values in groups.items() if values is not None}


# -- text

TRANSLATION = TaskRecipes(
    ("translate", "algorithmic"),
    {"algorithmic": {"train": TRAIN["algorithmic"], "decode": {"num_beams": 1, "length_penalty": 0.0}}},
)
TINY_TRANSLATION: dict[str, Any] = {
    "steps": 6000, "batch_tokens": 16_384, "lr": 4e-3, "warmup_steps": 1500, "lr_schedule": "linear", "grad_clip": 1.0,
    "ema_decay": 0.999,
}  # fmt: skip


def gpt3(lr: float, micro_batches: int, vocab_size: int = 50_257, **changes: Any) -> Recipe:
    """300 billion tokens in steps of `micro_batches` x 16,384 tokens, warmup over 375 million tokens.

    In the paper the batch size grows during the first billions of tokens and the learning rate decays to a tenth; here the
    batch size is constant and the learning rate decays to 0."""
    steps, warmup = (round(tokens / (micro_batches * 16_384)) for tokens in (300e9, 375e6))
    train = {"steps": steps, "batch_tokens": 16_384, "grad_accum": micro_batches, "lr": lr, "warmup_steps": warmup}
    return get("gpt2", {"vocab_size": vocab_size}, {"do_sample": True, "top_p": 0.9}, **{**train, **changes})


_GPT_TASKS = {
    # 32 texts of 32 tokens are 1024 tokens
    task: {"train": {**TRAIN["gpt_task"], "batch_tokens": tokens}, "data": {"max_length": 512}}
    for task, tokens in (("classify", 1024), ("choose", 4096))
}
GPT = TaskRecipes(
    ("lm", "classify", "choose"),
    _GPT_TASKS,
    {**_GPT_TASKS, "lm": {"train": TRAIN["gpt_finetuning"], "decode": _SAMPLING}},
)


_ENCODER_TASKS: list[dict[str, Recipe]] = [
    {
        task: {
            "train": {**TRAIN["bert_task"], "epochs": epochs, "batch_tokens": 2 * long or tokens, "lr": lr},
            "data": {"max_length": long or length},
        }
        for task, epochs, tokens, lr, length, long in (
            ("classify", 3, 1024, 3e-5, 256, longest),
            ("choose", 3, 4096, 2e-5, 256, longest),
            ("tag", 3, 1024, 5e-5, 256, longest),
            ("qa", 2, 8192, 3e-5, 384, longest),
            ("embed", 1, 8192, 2e-5, 256, 0),
        )
    }
    for longest in (0, 4096, 8192)
]
"""Two to four epochs at 2e-5 to 5e-5 in the paper, with 16 or 32 texts per batch; batch_tokens fits texts of typical
length, or two full documents of a long-document encoder."""
_MLM: dict[str, Recipe] = {"mlm": {"train": TRAIN["mlm_finetuning"], "data": {"max_length": 512}}}
BERT, LONGFORMER, MODERNBERT = (
    TaskRecipes(("mlm", "classify", "tag", "qa", "choose", "embed"), tasks, tasks | _MLM) for tasks in _ENCODER_TASKS
)

# -- images

_IMAGE_TASKS = ("classify", "segment", "depth")
SMALL_IMAGES: dict[str, Any] = {"grad_accum": 1, "warmup_steps": 0.1, "weight_decay": 0.05, "label_smoothing": 0.1}
# the paper uses SGD with 512 images per step, cosine decay and no weight decay
_VIT: dict[str, Any] = {**TRAIN["imagenet"], "grad_accum": 1, "warmup_steps": 0.1}
_VIT_CLASSES: Recipe = {"train": {**_VIT, "epochs": 5, "batch_size": 128, "lr": 5e-5, "weight_decay": 0.0}}
_VIT_DENSE: dict[str, Recipe] = {
    task: {"train": {**_VIT, "epochs": epochs, "batch_size": 16, "lr": 1e-4, "weight_decay": 0.05}}
    for task, epochs in (("segment", 100), ("depth", 50))
}
VIT = TaskRecipes(_IMAGE_TASKS, _VIT_DENSE, {"classify": _VIT_CLASSES, **_VIT_DENSE})

BIT_DATA: dict[str, Any] = {"crop_scale": 0.08, "flip": True}
RESNET_DATA: dict[str, Any] = {**BIT_DATA, "color_jitter": 0.4}
_FEW: dict[str, Any] = {"epochs": 10, "batch_size": 64, "grad_accum": 1}
_BIT_CLASSES: Recipe = {
    "train": {**TRAIN["resnet"], **_FEW, "lr": 1e-4, "weight_decay": 0.0},
    "data": {**BIT_DATA, "crop_scale": 0.5, "mixup": 0.1},
}
_RESNET_CLASSES: Recipe = {
    "train": {**TRAIN["resnet"], **_FEW, "lr": 2e-4, "warmup_steps": 0.1, "weight_decay": 0.01},
    "data": {**RESNET_DATA, "crop_scale": 0.5},
}
_DENSE: dict[str, Any] = {**TRAIN["resnet"], "batch_size": 16, "grad_accum": 1, "label_smoothing": 0.0}
# depth takes half as many epochs, and its images are not cropped, because scale implies depth
_CONV_DENSE: list[dict[str, Recipe]] = [
    {
        task: {"train": {**_DENSE, "epochs": count, "lr": lr}, "data": {**data, "crop_scale": crop}}
        for task, crop, count in (("segment", 0.5, epochs), ("depth", 1.0, epochs // 2))
    }
    for data in (BIT_DATA, RESNET_DATA)
    for epochs, lr in ((100, 5e-4), (50, 1e-4))
]
BIT = TaskRecipes(_IMAGE_TASKS, _CONV_DENSE[0], {"classify": _BIT_CLASSES, **_CONV_DENSE[1]})
RESNET = TaskRecipes(_IMAGE_TASKS, _CONV_DENSE[2], {"classify": _RESNET_CLASSES, **_CONV_DENSE[3]})
_SWIN_DENSE = {
    task: {**_VIT_DENSE[task], "data": {"crop_scale": crop, "flip": True, "color_jitter": 0.4, "mixup": 0.0}}
    for task, crop in (("segment", 0.5), ("depth", 1.0))
}
"""No mixup of target maps; no crops for depth, because an enlarged part is not nearer."""
SWIN = TaskRecipes(_IMAGE_TASKS, _SWIN_DENSE, _SWIN_DENSE)

_SMOOTH: dict[str, Any] = {"lr_schedule": "cosine", "warmup_steps": 0.05}
DPT = TaskRecipes(
    ("depth", "segment"),
    finetuning={
        "depth": {"train": {**TRAIN["dpt"], **_SMOOTH, "epochs": 10}},
        # the paper uses SGD with 48 images per step, 240 epochs, and a learning rate of 0.002 that decays to 0
        "segment": {"train": {**TRAIN["dpt"], **_SMOOTH, "epochs": 50, "lr": 3e-5, "lr_overrides": {"head.*": 3e-4}}},
    },
)
IMAGEGPT = TaskRecipes(
    ("draw", "classify"),
    finetuning={
        "draw": {
            "train": {**TRAIN["imagegpt_finetuning"], "steps": 2000, "lr": 1e-4, "eval_every": 500},
            "decode": {"do_sample": True},
        },
        "classify": {"train": {**TRAIN["imagegpt_finetuning"], "epochs": 10, "lr": 5e-4}},
    },
)
CAPTIONS = TaskRecipes(("caption",), finetuning={"caption": {"train": {**TRAIN["captions"], "lr": 1e-4}}})

# -- point clouds

POINT_CLASSES: Recipe = {
    "train": {**TRAIN["points"], "batch_size": 32, "label_smoothing": 0.1},
    "data": {"scale": "0.8,1.25", "jitter": 0.005},
}
POINTS = TaskRecipes(
    ("classify", "segment"),
    {
        "segment": {
            "train": {**TRAIN["points"], "batch_size": 8},
            "data": {"rotate": "up", "scale": "0.9,1.1", "jitter": 0.005},
        }
    },
)
