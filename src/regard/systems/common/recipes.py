"""Recipes: default settings of presets and of fine-tuning, by group (train, data, decode).

All recipes use Adam. Where a paper uses another optimizer, the learning rate is replaced by one for Adam."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Recipe = dict[str, dict[str, Any]]
"""`{"train": {...}, "data": {...}, "decode": {...}}`"""


@dataclass(frozen=True)
class TaskRecipes:
    """Tasks of a system, with their default settings."""

    tasks: tuple[str, ...]
    recipes: Mapping[str, Recipe] = field(default_factory=dict)
    """settings by task, in place of the recipe of the preset"""
    finetuning: Mapping[str, Recipe] = field(default_factory=dict)
    """settings by task for pretrained weights without a preset"""


_BEAM_SEARCH: dict[str, Any] = {"num_beams": 4, "length_penalty": 0.6, "length_penalty_type": "wu"}
_SAMPLING: dict[str, Any] = {"do_sample": True, "top_k": 40}


def make_recipe(
    train: Mapping[str, Any], data: dict[str, Any] | None = None, decode: dict[str, Any] | None = None, **changes: Any
) -> Recipe:
    """Recipe with the training settings `train`, updated by `changes`; groups that are None are omitted."""
    groups = {"train": {**train, **changes}, "data": data, "decode": decode}
    return {name: values for name, values in groups.items() if values is not None}


# -- encoder–decoder

ALGORITHMIC: dict[str, Recipe] = {
    "algorithmic": {
        "train": {
            "steps": 6000, "batch_tokens": 8192, "lr": 1e-3, "warmup_steps": 500, "lr_schedule": "linear",
            "label_smoothing": 0.0, "grad_clip": 1.0, "ema_decay": 0.0,
        },
        "decode": {"num_beams": 1, "length_penalty": 0.0},
    },
}  # fmt: skip
"""Recipe for algorithmic tasks: answers are exact, so label smoothing, EMA and beam search are off."""

TRANSLATION = TaskRecipes(("translate", "algorithmic"), ALGORITHMIC)

TINY_TRANSLATION: dict[str, Any] = {
    "steps": 6000, "batch_tokens": 16_384, "lr": 4e-3, "warmup_steps": 1500, "lr_schedule": "linear", "grad_clip": 1.0,
    "ema_decay": 0.999,
}  # fmt: skip


def transformer(vocab_size: int = 37_000, **changes: Any) -> Recipe:
    """Base model of Vaswani et al.: 50,000 tokens per step, learning rate 1 / √(512 · step) after warmup."""
    train = {
        "steps": 100_000, "batch_tokens": 50_000, "lr": 512**-0.5 * 4000**-0.5, "warmup_steps": 4000,
        "lr_schedule": "inverse_sqrt", "label_smoothing": 0.1, "betas": "0.9,0.98", "eps": 1e-9, "grad_clip": 0.0,
        "weight_decay": 0.0,
    }  # fmt: skip
    return make_recipe(train, {"vocab_size": vocab_size}, _BEAM_SEARCH, **changes)


def convs2s(vocab_size: int = 40_000, **changes: Any) -> Recipe:
    """Beam, gradient clipping and vocabulary of Gehring et al. The paper uses Nesterov momentum of 0.99 with a learning rate
    of 0.25, divided by 10 when the validation loss stops to fall, without label smoothing."""
    train = {
        "steps": 300_000, "batch_tokens": 32_000, "lr": 5e-4, "warmup_steps": 4000, "lr_schedule": "inverse_sqrt",
        "label_smoothing": 0.1, "grad_clip": 0.1, "weight_decay": 0.0,
    }  # fmt: skip
    decode = {"num_beams": 5, "length_penalty": 1.0, "length_penalty_type": "power"}
    return make_recipe(train, {"vocab_size": vocab_size}, decode, **changes)


def recurrent(steps: int, batch_tokens: int, grad_clip: float, data: dict[str, Any], **changes: Any) -> Recipe:
    """Sutskever et al. (7.5 epochs of 12 million pairs, gradient norm at most 5) and Bahdanau et al. (80 pairs of up to 50
    words per batch, gradient norm at most 1)."""
    train = {
        "steps": steps, "batch_tokens": batch_tokens, "lr": 5e-4, "warmup_steps": 1000, "lr_schedule": "linear",
        "label_smoothing": 0.0, "betas": "0.9,0.999", "eps": 1e-8, "grad_clip": grad_clip, "weight_decay": 0.0,
    }  # fmt: skip
    return make_recipe(train, data, {"num_beams": 12, "length_penalty": 0.0}, **changes)


def tiny_recurrent(lr: float) -> Recipe:
    """Recipe for small recurrent models and 10,000 tokens."""
    return recurrent(
        6000, 8192, 1.0, {"vocab_size": 10_000}, lr=lr, warmup_steps=300, label_smoothing=0.1, ema_decay=0.999
    ) | {"decode": _BEAM_SEARCH}


# -- decoder-only


def decoder(vocab_size: int, **changes: Any) -> Recipe:
    train = {
        "lr_schedule": "inverse_sqrt", "label_smoothing": 0.0, "betas": "0.9,0.98", "eps": 1e-9, "weight_decay": 0.0,
        "grad_clip": 1.0,
    }  # fmt: skip
    return make_recipe(train, {"vocab_size": vocab_size}, _BEAM_SEARCH, **changes)


def gpt1() -> Recipe:
    """64 rows of 512 tokens per step, 100 epochs."""
    train = {
        "epochs": 100, "batch_tokens": 8192, "grad_accum": 4, "lr": 2.5e-4, "warmup_steps": 2000, "lr_schedule": "cosine",
        "label_smoothing": 0.0, "betas": "0.9,0.999", "eps": 1e-8, "weight_decay": 0.01, "grad_clip": 1.0,
    }  # fmt: skip
    return make_recipe(train, {"vocab_size": 40_478}, _SAMPLING)


_GPT: dict[str, Any] = {
    "lr_schedule": "cosine", "label_smoothing": 0.0, "betas": "0.9,0.95", "eps": 1e-8, "weight_decay": 0.1, "grad_clip": 1.0,
}  # fmt: skip


def gpt2(vocab_size: int, tokenizer_type: str = "byte_bpe", **changes: Any) -> Recipe:
    """Settings of common reproductions, with the sampling of the paper."""
    return make_recipe(_GPT, {"vocab_size": vocab_size, "tokenizer_type": tokenizer_type}, _SAMPLING, **changes)


def gpt2_paper(lr: float) -> Recipe:
    """512 rows of 1024 tokens per step, half a million tokens."""
    return gpt2(50_257, steps=100_000, batch_tokens=16_384, grad_accum=32, lr=lr, warmup_steps=2000)


def gpt3(lr: float, micro_batches: int, vocab_size: int = 50_257, **changes: Any) -> Recipe:
    """300 billion tokens in steps of `micro_batches` x 16,384 tokens, warmup over 375 million tokens.

    In the paper the batch size grows during the first billions of tokens and the learning rate decays to a tenth; here the
    batch size is constant and the learning rate decays to 0."""
    train = {
        "steps": round(300e9 / (micro_batches * 16_384)), "batch_tokens": 16_384, "grad_accum": micro_batches, "lr": lr,
        "warmup_steps": round(375e6 / (micro_batches * 16_384)), **_GPT,
    }  # fmt: skip
    return make_recipe(train, {"vocab_size": vocab_size}, {"do_sample": True, "top_p": 0.9}, **changes)


def _gpt_task(batch_tokens: int) -> Recipe:
    """GPT-1: three epochs at 6.25e-5, linear decay after 0.2 % of warmup; 32 texts of 32 tokens are 1024 tokens."""
    train = {
        "epochs": 3, "batch_tokens": batch_tokens, "lr": 6.25e-5, "warmup_steps": 0.002, "lr_schedule": "linear",
        "label_smoothing": 0.0, "lm_loss_weight": 0.5, "betas": "0.9,0.999", "eps": 1e-8, "weight_decay": 0.01,
        "grad_clip": 1.0, "grad_accum": 1, "eval_every": 500,
    }  # fmt: skip
    return make_recipe(train, {"max_length": 512})


GPT_TASKS = {"classify": _gpt_task(1024), "choose": _gpt_task(4096)}
GPT_FINETUNING = {
    **GPT_TASKS,
    "lm": {
        "train": {
            "steps": 2000, "batch_tokens": 8192, "lr": 5e-5, "warmup_steps": 100, **_GPT, "eval_every": 250,
        },
        "decode": _SAMPLING,
    },
}  # fmt: skip
"""A low learning rate, so that pretrained weights change slowly."""
GPT = TaskRecipes(("lm", "classify", "choose"), GPT_TASKS, GPT_FINETUNING)


# -- BERT and other text encoders


_BERT: dict[str, Any] = {
    "betas": "0.9,0.999", "eps": 1e-8, "weight_decay": 0.01, "grad_clip": 1.0, "label_smoothing": 0.0,
}  # fmt: skip


def bert(vocab_size: int = 30_522, max_length: int = 512, **changes: Any) -> Recipe:
    """Pretraining of BERT: 256 rows of 512 tokens per step, one million steps, linear decay after warmup."""
    train = {
        "steps": 1_000_000, "batch_tokens": 8192, "grad_accum": 16, "lr": 1e-4, "warmup_steps": 10_000,
        "lr_schedule": "linear", **_BERT, "eps": 1e-6,
    }  # fmt: skip
    data = {"tokenizer_type": "wordpiece", "vocab_size": vocab_size, "max_length": max_length}
    return make_recipe(train, data, **changes)


def modernbert() -> Recipe:
    """First phase of ModernBERT: 1.7 trillion tokens in rows of 1024, here at a constant batch size of half a million tokens
    with linear decay; 30 % of the tokens are masked. The paper uses StableAdamW and a trapezoidal schedule."""
    recipe = bert(50_368, 1024, steps=3_400_000, batch_tokens=16_384, grad_accum=32, lr=8e-4, warmup_steps=6000)
    return {**recipe, "data": {**recipe["data"], "tokenizer_type": "byte_bpe", "mask_prob": 0.3}}


def small_bert(**changes: Any) -> Recipe:
    """Recipe for small encoders on a laptop."""
    return bert(8000, 128, **{"grad_accum": 1, "steps": 10_000, "warmup_steps": 1000, **changes})


def _bert_task(epochs: int, batch_tokens: int, lr: float, max_length: int) -> Recipe:
    train = {
        "epochs": epochs, "batch_tokens": batch_tokens, "lr": lr, "warmup_steps": 0.1, "lr_schedule": "linear",
        "grad_accum": 1, **_BERT, "eval_every": 500,
    }  # fmt: skip
    return make_recipe(train, {"max_length": max_length})


BERT_TASKS = {
    "classify": _bert_task(3, 1024, 3e-5, 256),
    "choose": _bert_task(3, 4096, 2e-5, 256),
    "tag": _bert_task(3, 1024, 5e-5, 256),
    "qa": _bert_task(2, 8192, 3e-5, 384),
    "embed": _bert_task(1, 8192, 2e-5, 256),
}
"""Two to four epochs at 2e-5 to 5e-5 in the paper, with 16 or 32 texts per batch; batch_tokens fits texts of typical
length."""

_MLM_FINETUNING: dict[str, Any] = {
    "steps": 2000, "batch_tokens": 8192, "grad_accum": 1, "lr": 5e-5, "warmup_steps": 100, "lr_schedule": "linear",
    **_BERT, "eval_every": 250,
}  # fmt: skip
BERT_FINETUNING = {**BERT_TASKS, "mlm": make_recipe(_MLM_FINETUNING, {"max_length": 512})}
BERT = TaskRecipes(("mlm", "classify", "tag", "qa", "choose", "embed"), BERT_TASKS, BERT_FINETUNING)


def at_full_length(max_length: int) -> TaskRecipes:
    """Recipes of long-document encoders: two full documents per micro-batch."""
    long = {
        task: {
            "train": {**BERT_TASKS[task]["train"], "batch_tokens": 2 * max_length},
            "data": {"max_length": max_length},
        }
        for task in ("classify", "choose", "tag", "qa")
    }
    return TaskRecipes(BERT.tasks, BERT_TASKS | long, BERT_FINETUNING | long)


LONGFORMER = at_full_length(4096)


# -- images


def imagenet(**changes: Any) -> Recipe:
    """ViT on ImageNet: 4096 images per step, 300 epochs at 3e-3, cosine decay after 10,000 steps of warmup."""
    train = {
        "epochs": 300, "batch_size": 256, "grad_accum": 16, "lr": 3e-3, "warmup_steps": 10_000, "lr_schedule": "cosine",
        "weight_decay": 0.3, "betas": "0.9,0.999", "eps": 1e-8, "grad_clip": 1.0, "label_smoothing": 0.0,
    }  # fmt: skip
    return make_recipe(train, **changes)


SMALL_IMAGES: dict[str, Any] = {"grad_accum": 1, "warmup_steps": 0.1, "weight_decay": 0.05, "label_smoothing": 0.1}
"""Changes for small models on small images."""


def _vit_finetuning(epochs: int, batch_size: int, lr: float, weight_decay: float) -> Recipe:
    return imagenet(
        epochs=epochs, batch_size=batch_size, grad_accum=1, lr=lr, warmup_steps=0.1, weight_decay=weight_decay
    )


VIT_DENSE = {"segment": _vit_finetuning(100, 16, 1e-4, 0.05), "depth": _vit_finetuning(50, 16, 1e-4, 0.05)}
VIT_FINETUNING = {"classify": _vit_finetuning(5, 128, 5e-5, 0.0), **VIT_DENSE}
"""The paper uses SGD with 512 images per step, cosine decay and no weight decay."""
_IMAGE_TASKS = ("classify", "segment", "depth")
VIT = TaskRecipes(_IMAGE_TASKS, VIT_DENSE, VIT_FINETUNING)


def resnet(data: dict[str, Any], **changes: Any) -> Recipe:
    """The 90 epochs of the ResNet papers, with smooth decay of the learning rate."""
    train = {
        "epochs": 90, "batch_size": 128, "grad_accum": 8, "lr": 2e-3, "warmup_steps": 0.05, "lr_schedule": "cosine",
        "weight_decay": 0.05, "betas": "0.9,0.999", "eps": 1e-8, "grad_clip": 1.0, "label_smoothing": 0.1,
    }  # fmt: skip
    return make_recipe(train, data, **changes)


def _resnet_dense(augmentation: dict[str, Any], epochs: int, lr: float) -> dict[str, Recipe]:
    """Segmentation for `epochs` and depth for half as many; depth images are not cropped, because scale implies depth."""
    return {
        task: resnet(
            {**augmentation, "crop_scale": crop}, epochs=count, batch_size=16, grad_accum=1, lr=lr, label_smoothing=0.0
        )
        for task, crop, count in (("segment", 0.5, epochs), ("depth", 1.0, epochs // 2))
    }


BIT_DATA: dict[str, Any] = {"crop_scale": 0.08, "flip": True}
BIT_DENSE = _resnet_dense(BIT_DATA, 100, 5e-4)
BIT_FINETUNING = {
    "classify": resnet(
        {**BIT_DATA, "crop_scale": 0.5, "mixup": 0.1}, epochs=10, batch_size=64, grad_accum=1, lr=1e-4, weight_decay=0.0
    ),
    **_resnet_dense(BIT_DATA, 50, 1e-4),
}
BIT = TaskRecipes(_IMAGE_TASKS, BIT_DENSE, BIT_FINETUNING)
RESNET_DATA: dict[str, Any] = {**BIT_DATA, "color_jitter": 0.4}
RESNET_DENSE = _resnet_dense(RESNET_DATA, 100, 5e-4)
_RESNET_FINETUNING: dict[str, Any] = {
    "epochs": 10, "batch_size": 64, "grad_accum": 1, "lr": 2e-4, "warmup_steps": 0.1, "weight_decay": 0.01,
}  # fmt: skip
RESNET_FINETUNING = {
    "classify": resnet({**RESNET_DATA, "crop_scale": 0.5}, **_RESNET_FINETUNING),
    **_resnet_dense(RESNET_DATA, 50, 1e-4),
}
RESNET = TaskRecipes(_IMAGE_TASKS, RESNET_DENSE, RESNET_FINETUNING)


def swin(data: dict[str, Any], **changes: Any) -> Recipe:
    """300 epochs of ImageNet with 1024 images per step, 20 of them warmup."""
    train = {
        "betas": "0.9,0.999", "eps": 1e-8, "weight_decay": 0.05, "lr_schedule": "cosine", "label_smoothing": 0.1,
        "epochs": 300, "warmup_steps": 20 / 300, "batch_size": 128, "grad_accum": 8, "lr": 1e-3, "grad_clip": 5.0,
    }  # fmt: skip
    return make_recipe(train, data, **changes)


SWIN_DENSE = {
    task: {**VIT_DENSE[task], "data": {"crop_scale": crop, "flip": True, "color_jitter": 0.4, "mixup": 0.0}}
    for task, crop in (("segment", 0.5), ("depth", 1.0))
}
"""No mixup of target maps; no crops for depth, because an enlarged part is not nearer."""
SWIN = TaskRecipes(_IMAGE_TASKS, SWIN_DENSE, SWIN_DENSE)


def dpt(**changes: Any) -> Recipe:
    """Depth recipe of the paper: 16 images per step, learning rate 1e-5, 1e-4 for new layers, 60 epochs."""
    train = {
        "epochs": 60, "batch_size": 16, "grad_accum": 1, "lr": 1e-5, "lr_overrides": {"head.*": 1e-4}, "warmup_steps": 0.0,
        "lr_schedule": "constant", "betas": "0.9,0.999", "eps": 1e-8, "weight_decay": 0.0, "grad_clip": 1.0,
        "label_smoothing": 0.0,
    }  # fmt: skip
    return make_recipe(train, **changes)


DPT_SMALL = dpt(epochs=100, lr=3e-4, lr_overrides={}, warmup_steps=0.05, lr_schedule="cosine", weight_decay=0.05)
"""Training from scratch on a few thousand images at most."""
DPT_FINETUNING = {
    "depth": dpt(epochs=10, lr_schedule="cosine", warmup_steps=0.05),
    "segment": dpt(epochs=50, lr_schedule="cosine", warmup_steps=0.05, lr=3e-5, lr_overrides={"head.*": 3e-4}),
}
"""For segmentation, the paper uses SGD with 48 images per step, 240 epochs, and a learning rate of 0.002 that decays to 0."""
DPT = TaskRecipes(("depth", "segment"), finetuning=DPT_FINETUNING)

_IMAGEGPT: dict[str, Any] = {
    "lr_schedule": "cosine", "label_smoothing": 0.0, "betas": "0.9,0.95", "eps": 1e-8, "weight_decay": 0.0, "grad_clip": 1.0,
}  # fmt: skip


def imagegpt(batch_size: int, grad_accum: int, lr: float, **changes: Any) -> Recipe:
    """Warmup over one epoch of ImageNet, cosine decay to 0, no dropout and no weight decay."""
    train = {"steps": 1_000_000, "batch_size": batch_size, "grad_accum": grad_accum, "lr": lr, "warmup_steps": 10_000}
    return make_recipe({**train, **_IMAGEGPT}, None, {"do_sample": True}, **changes)


_IMAGEGPT_FINETUNING = {"batch_size": 32, "grad_accum": 1, "warmup_steps": 0.05, **_IMAGEGPT}
IMAGEGPT_FINETUNING = {
    "draw": make_recipe(_IMAGEGPT_FINETUNING, None, {"do_sample": True}, steps=2000, lr=1e-4, eval_every=500),
    "classify": make_recipe(_IMAGEGPT_FINETUNING, epochs=10, lr=5e-4),
}
IMAGEGPT = TaskRecipes(("draw", "classify"), finetuning=IMAGEGPT_FINETUNING)


def captions(vocab_size: int, **changes: Any) -> Recipe:
    """Recipe for training from scratch on a few thousand images with several captions each."""
    train = {
        "steps": 4000, "batch_size": 64, "grad_accum": 1, "lr": 1e-3, "warmup_steps": 0.05, "lr_schedule": "cosine",
        "weight_decay": 0.05, "betas": "0.9,0.98", "eps": 1e-8, "grad_clip": 1.0, "label_smoothing": 0.1, "eval_every": 500,
    }  # fmt: skip
    return make_recipe(train, {"vocab_size": vocab_size}, {**_BEAM_SEARCH, "num_beams": 3}, **changes)


CAPTIONS = TaskRecipes(("caption",), finetuning={"caption": {"train": captions(1, lr=1e-4)["train"]}})

# -- point clouds


def points(data: dict[str, Any], batch_size: int, label_smoothing: float) -> Recipe:
    """60 epochs. The paper uses SGD with momentum 0.9 and weight decay 1e-4: 200 epochs of ModelNet40 at 0.05, 40,000 steps
    of S3DIS at 0.5, both divided by 10 at 60 % and 80 %."""
    train = {
        "betas": "0.9,0.999", "eps": 1e-8, "weight_decay": 0.05, "lr_schedule": "cosine", "warmup_steps": 0.05,
        "grad_clip": 1.0, "grad_accum": 1, "epochs": 60, "batch_size": batch_size, "lr": 2e-3,
        "label_smoothing": label_smoothing,
    }  # fmt: skip
    return make_recipe(train, data)


POINT_CLASSES = points({"scale": "0.8,1.25", "jitter": 0.005}, batch_size=32, label_smoothing=0.1)
POINTS = TaskRecipes(
    ("classify", "segment"),
    {"segment": points({"rotate": "up", "scale": "0.9,1.1", "jitter": 0.005}, batch_size=8, label_smoothing=0.0)},
)
