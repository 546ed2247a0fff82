"""The names of the product behind the neutral ids of the record: the only file, with `product.py`, that a rename edits.

Ids never change: s = architecture, t = task (of one kind of input), p = preset, v = variant of an architecture, r = training
run with other settings, m = metric, a = field of a prediction. `parameters.json` beside this file maps parameter names to ids.
"""

from __future__ import annotations

from typing import Any

SYSTEMS: dict[str, str] = {
    "s01": "transformer", "s02": "decoder", "s03": "gpt1", "s04": "gpt2", "s05": "gpt3", "s06": "bert", "s07": "roformer",
    "s08": "longformer", "s09": "vit", "s10": "hybrid", "s11": "resnet", "s12": "bit", "s13": "swin", "s14": "imagegpt",
    "s15": "dpt", "s16": "rnn", "s17": "rnnsearch", "s18": "convs2s", "s19": "universal", "s20": "universal-encoder",
    "s21": "caption-fixed", "s22": "caption-attend", "s23": "caption-transformer", "s24": "caption-vit", "s25": "point",
}  # fmt: skip

TASKS: dict[str, tuple[str, str]] = {
    "t01": ("translate", "text"), "t02": ("recall", "text"), "t03": ("language", "text"), "t04": ("mask", "text"),
    "t05": ("classify", "text"), "t06": ("tag", "text"), "t07": ("span", "text"), "t08": ("choose", "text"),
    "t09": ("embed", "text"), "t10": ("classify", "pictures"), "t11": ("segment", "pictures"), "t12": ("depth", "pictures"),
    "t13": ("draw", "pictures"), "t14": ("caption", "pictures"), "t15": ("classify", "points"), "t16": ("segment", "points"),
}  # fmt: skip
"""Name of a task, and what it reads: the same name stands for several tasks."""

# -- tiny models

SEQ: dict[str, Any] = {"width": 12, "depth": 2, "heads": 3, "hidden": 20, "dropout": 0.2, "length": 48}
ENCODER: dict[str, Any] = {**SEQ, "attention_dropout": 0.1, "head_dropout": 0.1}
GPT: dict[str, Any] = {**SEQ, "attention_dropout": 0.1, "embedding_dropout": 0.1}
REPEATED: dict[str, Any] = {"width": 12, "steps": 3, "cap": 4, "heads": 3, "hidden": 20, "dropout": 0.2}
VIT: dict[str, Any] = {"size": 16, "patch": 4, "width": 12, "depth": 4, "heads": 3, "hidden": 20, "dropout": 0.2}
RESNET: dict[str, Any] = {"start": 4, "widths": [4, 8, 8, 12], "depths": [1, 1, 1, 1]}
CAPTION: dict[str, Any] = {"size": 32, "length": 24, "encoder": "resnet-tiny", "seeing": {**RESNET, "stride": 2}}
EYES: dict[str, Any] = {"patch": 8, "width": 12, "depth": 2, "heads": 3, "hidden": 20}

TINY: dict[str, tuple[str, dict[str, Any]]] = {
    "s01": ("transformer-tiny", {**SEQ, "decoder_depth": 2, "attention_dropout": 0.1, "feed_dropout": 0.1}),
    "s02": ("decoder-tiny", {**SEQ, "attention_dropout": 0.1}),
    "s03": ("gpt1", {**GPT, "hidden": 48}),
    "s04": ("gpt2-mini", GPT),
    "s05": ("gpt3-mini", {**GPT, "band": 3}),
    "s06": ("bert-mini", ENCODER),
    "s07": ("roformer-mini", {**ENCODER, "embedding": 8}),
    "s08": ("longformer-mini", {**ENCODER, "windows": [4, 8]}),
    "s09": ("vit-tiny", {**VIT, "attention_dropout": 0.1, "head_dropout": 0.1}),
    "s10": ("hybrid-tiny", {
        "size": 16, "stages": [1, 1], "start": 8, "groups": 4, "width": 12, "depth": 2, "heads": 3, "hidden": 20,
        "dropout": 0.2, "attention_dropout": 0.1,
    }),
    "s11": ("resnet-18", {**RESNET, "size": 32, "head_dropout": 0.2}),
    "s12": ("bit-50", {
        "size": 16, "start": 8, "widths": [32, 32, 32, 32], "depths": [1, 1, 1, 1], "groups": 4, "head_dropout": 0.2,
    }),
    "s13": ("swin-mini", {
        "size": 16, "patch": 2, "width": 8, "depths": [2, 2, 1, 1], "heads": [2, 1, 4, 8], "window": 3, "dropout": 0.2,
        "attention_dropout": 0.1, "drop_path": 0.2,
    }),
    "s14": ("imagegpt-mini", {
        "size": 5, "colours": 11, "width": 12, "depth": 2, "heads": 3, "hidden": 20, "dropout": 0.2, "attention_dropout": 0.1,
        "embedding_dropout": 0.1,
    }),
    "s15": ("dpt-small", {**VIT, "taps": [0, 1, 2, 3], "laid": [8, 8, 8, 8], "fusion": 8}),
    "s16": ("rnn-tiny", {"width": 10, "embedding": 7, "depth": 2, "dropout": 0.2, "tables": "two"}),
    "s17": ("rnnsearch-tiny", {
        "width": 10, "encoder_width": 6, "embedding": 7, "inner": 8, "maxout": 9, "dropout": 0.2, "tables": "two",
    }),
    "s18": ("convs2s-tiny", {
        "stages": ["10x3x2", "14x1"], "decoder_stages": ["8x3", "11x2"], "embedding": 12, "output": 9, "dropout": 0.2,
        "tables": "two",
    }),
    "s19": ("universal-tiny-halting", {**REPEATED, "attention_dropout": 0.1, "feed_dropout": 0.1}),
    "s20": ("universal-encoder-mini-halting", {**REPEATED, "length": 48, "head_dropout": 0.1}),
    "s21": ("caption-fixed-tiny", {**CAPTION, "width": 10, "embedding": 7}),
    "s22": ("caption-attend-tiny", {**CAPTION, "width": 10, "embedding": 7, "inner": 9}),
    "s23": ("caption-transformer-tiny", {
        **CAPTION, "width": 16, "depth": 2, "decoder_depth": 2, "heads": 4, "hidden": 20, "attention_dropout": 0.1,
    }),
    "s24": ("caption-vit-tiny", {
        **CAPTION, "encoder": "vit-tiny", "seeing": EYES, "width": 15, "depth": 2, "heads": 3, "hidden": 20,
    }),
    "s25": ("point-tiny", {"widths": [8, 16], "blocks": [1, 1], "rates": [1, 4], "neighbours": [4, 4], "shares": 4}),
}  # fmt: skip
"""The preset that a tiny model is made from, and what is changed of its config."""

TASKS_OF: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("s01", "s16", "s17", "s18", "s19"), ("t01", "t02")),
    **dict.fromkeys(("s02", "s03", "s04", "s05"), ("t03", "t05", "t08")),
    **dict.fromkeys(("s06", "s07", "s08", "s20"), ("t04", "t05", "t06", "t07", "t08", "t09")),
    **dict.fromkeys(("s09", "s10", "s11", "s12", "s13"), ("t10", "t11", "t12")),
    "s14": ("t13", "t10"), "s15": ("t12", "t11"), "s25": ("t15", "t16"),
    **dict.fromkeys(("s21", "s22", "s23", "s24"), ("t14",)),
}  # fmt: skip

UNPUBLISHED: tuple[str, ...] = (
    *(f"{system}.{task}" for system in ("s02", "s05", "s16", "s17", "s18", "s19", "s20", "s21", "s22", "s23", "s25")
      for task in TASKS_OF[system]),
    *(f"{system}.{task}" for system in ("s09", "s10", "s11", "s12", "s13") for task in ("t11", "t12")), "s07.t08", "s08.t08",
)  # fmt: skip
"""Cases without a layout of Hugging Face."""

VOCABULARY = {"vocabulary": 40}
"""Config of variants, which have no tokenizer."""
POSITIVE = ("running_var", "typical")
"""Ends of the names of buffers whose numbers are positive."""
GAIN = ("weight", "gain")
"""End of the names of vectors that multiply, as in a norm."""
MODEL = "model."
"""Stands before the name of a config field among the settings of a run."""

TRAINING: dict[str, Any] = {
    "train.passes": 0, "train.steps": 4, "train.every": 4, "train.log": 1, "train.accumulate": 2, "train.warmup": 2,
    "train.tokens": 256, "train.precision": "float32", "data.share": 0.2, "data.score": 2, "decode.beam": 1,
}  # fmt: skip
"""Settings of every training run of the record."""
STEP_SIZE: dict[str, dict[str, Any]] = {
    "float64": {"train.rate": 1e-3},
    "float32": {"train.rate": 1e-4, "train.eps": 1e-6},
}
"""In float32 small steps, and no full steps along gradients that are only rounding: CPUs then agree on the losses."""

TASK_SETTINGS: dict[str, dict[str, Any]] = {
    **{
        task: {"data.vocabulary": 300, "data.longest": 48} for task in ("t03", "t04", "t05", "t06", "t07", "t08", "t09")
    },
    "t01": {"data.vocabulary": 300, "decode.longer": 2},
    "t02": {"decode.longer": 2},
    **{task: {"train.images": 4} for task in ("t10", "t11", "t12", "t13")},
    "t14": {"train.images": 4, "data.vocabulary": 300, "decode.length": 4},
    **{task: {"train.clouds": 4, "data.points": 32} for task in ("t15", "t16")},
}
CASE_SETTINGS: dict[str, dict[str, Any]] = {"s15.t12": {"data.metric": "false"}}
"""The published layout of this architecture holds relative depth only."""

RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "r01": ("s01.t01", {"train.packed": "on", "train.schedule": "cosine", "train.decay": 0.1}),
    "r02": ("s01.t01", {
        "train.average": 0, "train.schedule": "linear", "train.smoothing": 0, "train.last": 2, "train.every": 2,
    }),
    "r03": ("s06.t05", {
        "train.freeze": "*position*", "train.rates": {"head.*": 0.01}, "train.clip": 0.1, "train.schedule": "constant",
    }),
    "r04": ("s04.t05", {"train.auxiliary": 0.5, "train.betas": [0.8, 0.9], "train.eps": 1e-6, "data.kind": "characters"}),
    "r05": ("s06.t04", {"data.whole_words": "true", "data.hidden": 0.3, "train.packed": "on", "train.seed": 5}),
    "r06": ("s09.t10", {
        "data.crop": 0.5, "data.flip": "true", "data.colour": 0.3, "data.erase": 0.2, "data.mixup": 0.4, "data.shift": 0.1,
    }),
    "r07": ("s15.t11", {"data.crop": 0.5, "data.flip": "true", "data.colour": 0.3}),
    "r08": ("s25.t15", {
        "data.turn": "any", "data.scale": [0.8, 1.2], "data.jitter": 0.01, "data.drop": 0.2, "data.tilt": 5.0,
        "data.stretch": 0.1, "data.shift": 0.1, "data.flip": "true",
    }),
    "r09": ("s19.t01", {"model.halting": "false", "model.shift": 5, "model.norm": "pre", "model.times": "learned"}),
    "r10": ("s03.t03", {"train.packed": "on", "model.relative": "shaw"}),
}  # fmt: skip
"""A case that is trained with other settings."""

STOPPED: dict[str, tuple[str, dict[str, Any]]] = {
    "r11": ("s01.t01", {"train.average": 0.2, "train.schedule": "constant"}),
    "r12": ("s11.t10", {"data.crop": 0.5, "data.mixup": 0.4, "train.schedule": "constant"}),
}
"""The same, stopped after the second of four steps and resumed."""

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "v01": ("s01.t01", {"norm": "pre", "positions": "interleaved", "output_bias": True}),
    "v02": ("s01.t01", {"relative": "rotary", "norm": "pre", "activation": "swish"}),
    "v03": ("s01.t01", {"positions": "none", "relative": "buckets", "scaled": False}),
    "v04": ("s01.t01", {"positions": "none", "relative": "shaw", "activation": "gelu"}),
    "v05": ("s02.t03", {"positions": "halves", "activation": "gelu", "end": 39}),
    "v06": ("s02.t03", {"positions": "none", "relative": "rotary", "end": 39}),
    "v07": ("s04.t03", {"positions": "none", "relative": "rotary-halves", "end": 39}),
    "v08": ("s04.t03", {"relative": "buckets", "end": 39}),
    "v09": ("s05.t03", {"band": 0, "end": 39}),
    "v10": ("s06.t04", {"activation": "relu", "types": 1, "pairs": False}),
    "v11": ("s07.t04", {"values": True}),
    "v12": ("s08.t04", {"dilation": [1, 2, 1], "undilated": 1}),
    "v13": ("s08.t04", {"relative": "rotary", "windows": [4]}),
    "v14": ("s16.t01", {"cell": "rnn", "reversed": False}),
    "v15": ("s16.t01", {"cell": "gru", "both_ways": True}),
    "v16": ("s16.t01", {"feeds": True}),
    "v17": ("s17.t01", {"score": "dot", "encoder_width": 5}),
    "v18": ("s17.t01", {"score": "general", "maxout": 7, "tables": "one"}),
    "v19": ("s18.t01", {"stages": ["7x4", "7x2x2"], "decoder_stages": ["7x3"]}),
    "v20": ("s19.t01", {"mixing": "accumulated", "norm": "pre", "epsilon": 0.1}),
    "v21": ("s19.t01", {"halting": False, "norm": "pre", "times": "learned", "positions": "halves"}),
    "v22": ("s20.t04", {"mixing": "accumulated", "norm": "pre"}),
    "v23": ("s20.t04", {"halting": False, "times": "learned", "positions": "halves", "types": 1}),
    "v24": ("s23.t14", {"norm": "post", "positions": "learned"}),
    "v25": ("s14.t13", {"size": 4}),
}
"""Architectures with other config fields, of which the record holds logits and gradients."""

# -- files that a run reads

COLUMNS = {
    "text": "text", "label": "label", "question": "question", "context": "context", "answer": "answer", "start": "start",
    "choices": "choices", "image": "image", "captions": "captions",
}  # fmt: skip
PLACES = {"images": "images", "masks": "masks", "depth": "depth", "captions": "captions.jsonl"}

# -- what a run leaves, and what a model answers

LOG = {
    "file": "log.jsonl", "kind": "kind", "train": "train", "valid": "valid", "loss": "loss", "norm": "norm", "rate": "rate",
}  # fmt: skip
UNCOMPARED = ("kind", "step", "elapsed", "samples", "sentences", "signature", "merged", "confusion", "each")
"""Keys of a line of the log and of the final scores that are no metric."""
CACHE = "REGARD_CACHE"
SCORES = ("regard.json", "scores")
"""File of a run, and the key of its final metrics there."""

METRICS: dict[str, str] = {
    "m00": "loss", "m01": "bleu", "m02": "chrf", "m03": "exact", "m04": "tokens", "m05": "perplexity", "m06": "word_perplexity",
    "m07": "bits_per_byte", "m08": "accuracy", "m09": "macro_f1", "m10": "matthews", "m11": "by_chance", "m12": "word_loss",
    "m13": "follows_accuracy", "m14": "f1", "m15": "precision", "m16": "recall", "m17": "answerable_exact",
    "m18": "answerable_f1", "m19": "best_exact", "m20": "best_exact_threshold", "m21": "best_f1", "m22": "best_f1_threshold",
    "m23": "mrr", "m24": "miou", "m25": "pixel_accuracy", "m26": "abs_rel", "m27": "rmse", "m28": "log10", "m29": "delta1",
    "m30": "delta2", "m31": "delta3", "m32": "bits_per_pixel", "m33": "cider", "m34": "bleu4", "m35": "bleu3", "m36": "bleu2",
    "m37": "bleu1", "m38": "point_accuracy", "m39": "unanswerable_exact", "m40": "unanswerable_f1",
}  # fmt: skip

QUESTIONS: dict[str, tuple[Any, ...]] = {
    "t04": ("the cat [MASK] fish .",),
    "t05": ("dog finds milk",),
    "t06": (("dog", "finds", "milk"),),
    "t07": (("what does the cat eat ?", "today cat eats fish here"),),
    "t08": ({"context": "a cow came", "question": "who ?", "choices": ["cow", "hen", "fox"]},),
    "t09": ("cat eats fish", {"query": "cat eats fish", "among": ["dog sees milk", "fish eats cat", "owl"], "best": 2}),
}
"""Inputs of text tasks that do not generate; image and point tasks are given the first file of their data."""
PROMPTS: dict[str, str] = {"t01": "cat eats fish", "t02": "1 2 3", "t03": "the cat"}
OFFERED = {"t03": ("eats fish", "sees a dog", "milk")}
"""Continuations that a language model chooses between."""

FIELDS: dict[str, dict[str, str]] = {
    **{task: {"a1": "value", "a2": "scores", "a3": "extra.ids"} for task in ("t01", "t02", "t03", "t14")},
    "t04": {"a1": "value", "a2": "scores"},
    "t05": {"a1": "value", "a2": "scores", "a3": "extra.probabilities"},
    "t06": {"a1": "value", "a2": "scores"},
    "t07": {"a1": "value", "a2": "scores", "a3": "extra.start"},
    "t08": {"a1": "value", "a2": "scores", "a3": "extra.index"},
    "t09": {"a1": "value", "a2": "scores"},
    "t10": {"a1": "value", "a2": "scores", "a3": "extra.probabilities"},
    "t11": {"a1": "value", "a2": "scores", "a3": "extra.mask"},
    "t12": {"a1": "value.low", "a2": "value.median", "a3": "value.high", "a4": "extra.depth"},
    "t13": {"a2": "scores", "a3": "extra.pictures"},
    "t15": {"a1": "value", "a2": "scores", "a3": "extra.probabilities"},
    "t16": {"a1": "value", "a2": "scores", "a3": "extra.classes", "a4": "extra.sure"},
}  # fmt: skip
DECODING: dict[str, dict[str, Any]] = {
    "greedy": {"beam": 1},
    "beam": {"beam": 3},
    "sampled": {"sample": True, "temperature": 0.9, "top_k": 8, "seed": 3},
}
LENGTH: dict[str, dict[str, Any]] = {
    "t01": {"longer": 3}, "t02": {"longer": 3}, "t03": {"length": 6}, "t13": {}, "t14": {"length": 6},
}  # fmt: skip
"""Tasks that generate, and how many tokens they may."""

PRESETS: tuple[str, ...] = (
    "transformer-tiny", "transformer-small", "transformer-base", "transformer-big", "decoder-tiny", "decoder-base", "gpt1",
    "gpt2-tiny-char", "gpt2-char", "gpt2-mini", "gpt2-small", "gpt2-medium", "gpt2-large", "gpt2-xl", "gpt3-mini", "gpt3-small",
    "gpt3-medium", "gpt3-large", "gpt3-xl", "gpt3-2.7b", "gpt3-6.7b", "gpt3-13b", "gpt3-175b", "bert-mini", "bert-small",
    "bert-base", "bert-large", "roformer-mini", "roformer-base", "longformer-mini", "longformer-base", "longformer-large",
    "vit-tiny", "vit-small", "vit-base-32", "vit-base-16", "vit-large-16", "vit-huge-14", "hybrid-tiny", "hybrid-base",
    "resnet-tiny", "resnet-18", "resnet-50", "bit-50", "swin-mini", "swin-tiny", "swin-small", "swin-base", "swin-large",
    "imagegpt-mini", "imagegpt-small", "imagegpt-medium", "imagegpt-large", "dpt-small", "dpt-hybrid-small", "dpt-base",
    "dpt-large", "dpt-hybrid", "rnn-tiny", "rnn-sutskever", "rnnsearch-tiny", "rnnsearch-50", "convs2s-tiny", "convs2s-en-de",
    "universal-tiny", "universal-tiny-halting", "universal-base", "universal-base-halting", "universal-encoder-mini",
    "universal-encoder-mini-halting", "universal-encoder-base", "caption-fixed-tiny", "caption-fixed-base",
    "caption-attend-tiny", "caption-attend-base", "caption-transformer-tiny", "caption-transformer-base", "caption-vit-tiny",
    "caption-vit-base", "point-tiny", "point-small", "point-base", "point-paper",
)  # fmt: skip
"""Preset n has the id `p` and n, from p01 on: a new preset is appended, a removed one is left as an empty string."""
