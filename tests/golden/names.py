"""Names of the product for the neutral ids of the record: edited by a rename, as `parameters.json`.

Ids never change: s = architecture, t = task (of one modality), p = preset, v = variant of an architecture, r = training run
with other settings, m = metric, a = field of a prediction. `parameters.json` maps parameter names to ids.
"""

from __future__ import annotations

from typing import Any

SYSTEMS: dict[str, str] = {
    "s01": "transformer", "s02": "decoder", "s03": "gpt1", "s04": "gpt2", "s05": "gpt3", "s06": "bert", "s07": "roformer",
    "s08": "longformer", "s09": "vit", "s10": "hybrid", "s11": "resnet", "s12": "bit", "s13": "swin", "s14": "imagegpt",
    "s15": "dpt", "s16": "rnn", "s17": "rnnsearch", "s18": "convs2s", "s19": "universal", "s20": "universal-encoder",
    "s21": "caption-fixed", "s22": "caption-attend", "s23": "caption-transformer", "s24": "caption-vit", "s25": "point",
    "s26": "modernbert", "s27": "deberta",
}  # fmt: skip

TASKS: dict[str, tuple[str, str]] = {
    "t01": ("translate", "text"), "t02": ("algorithmic", "text"), "t03": ("lm", "text"), "t04": ("mlm", "text"),
    "t05": ("classify", "text"), "t06": ("tag", "text"), "t07": ("qa", "text"), "t08": ("choose", "text"),
    "t09": ("embed", "text"), "t10": ("classify", "image"), "t11": ("segment", "image"), "t12": ("depth", "image"),
    "t13": ("draw", "image"), "t14": ("caption", "image"), "t15": ("classify", "points"), "t16": ("segment", "points"),
}  # fmt: skip
"""Task name and modality; several tasks share a name."""

# -- tiny models

SEQ: dict[str, Any] = {"width": 12, "depth": 2, "heads": 3, "ffn_dim": 20, "dropout": 0.2, "max_length": 48}
ENCODER: dict[str, Any] = {**SEQ, "attention_dropout": 0.1, "head_dropout": 0.1}
GPT: dict[str, Any] = {**SEQ, "attention_dropout": 0.1, "embedding_dropout": 0.1}
REPEATED: dict[str, Any] = {"width": 12, "num_steps": 3, "act_max_steps": 4, "heads": 3, "ffn_dim": 20, "dropout": 0.2}
VIT: dict[str, Any] = {
    "image_size": 16, "patch_size": 4, "width": 12, "depth": 4, "heads": 3, "ffn_dim": 20, "dropout": 0.2,
}  # fmt: skip
RESNET: dict[str, Any] = {"stem_channels": 4, "widths": [4, 8, 8, 12], "depths": [1, 1, 1, 1]}
CAPTION: dict[str, Any] = {
    "image_size": 32, "max_length": 24, "encoder": "resnet-tiny",
    "encoder_config": {**RESNET, "stem_stride": 2},
}  # fmt: skip
EYES: dict[str, Any] = {"patch_size": 8, "width": 12, "depth": 2, "heads": 3, "ffn_dim": 20}

TINY: dict[str, tuple[str, dict[str, Any]]] = {
    "s01": ("transformer-tiny", {**SEQ, "decoder_depth": 2, "attention_dropout": 0.1, "ffn_dropout": 0.1}),
    "s02": ("decoder-tiny", {**SEQ, "attention_dropout": 0.1}),
    "s03": ("gpt1", {**GPT, "ffn_dim": 48}),
    "s04": ("gpt2-mini", GPT),
    "s05": ("gpt3-mini", {**GPT, "local_window": 3}),
    "s06": ("bert-mini", ENCODER),
    "s07": ("roformer-mini", {**ENCODER, "embedding_dim": 8}),
    "s08": ("longformer-mini", {**ENCODER, "attention_window": [4, 8]}),
    "s09": ("vit-tiny", {**VIT, "attention_dropout": 0.1, "head_dropout": 0.1}),
    "s10": ("hybrid-tiny", {
        "image_size": 16, "backbone_depths": [1, 1], "stem_channels": 8, "norm_groups": 4, "width": 12, "depth": 2,
        "heads": 3, "ffn_dim": 20, "dropout": 0.2, "attention_dropout": 0.1,
    }),
    "s11": ("resnet-18", {**RESNET, "image_size": 32, "head_dropout": 0.2}),
    "s12": ("bit-50", {
        "image_size": 16, "stem_channels": 8, "widths": [32, 32, 32, 32], "depths": [1, 1, 1, 1], "norm_groups": 4,
        "head_dropout": 0.2,
    }),
    "s13": ("swin-mini", {
        "image_size": 16, "patch_size": 2, "width": 8, "depths": [2, 2, 1, 1], "heads": [2, 1, 4, 8], "window_size": 3,
        "dropout": 0.2, "attention_dropout": 0.1, "drop_path": 0.2,
    }),
    "s14": ("imagegpt-mini", {
        "image_size": 5, "num_colors": 11, "width": 12, "depth": 2, "heads": 3, "ffn_dim": 20, "dropout": 0.2,
        "attention_dropout": 0.1, "embedding_dropout": 0.1,
    }),
    "s15": ("dpt-small", {**VIT, "out_layers": [0, 1, 2, 3], "neck_dims": [8, 8, 8, 8], "fusion_dim": 8}),
    "s16": ("rnn-tiny", {
        "width": 10, "embedding_dim": 7, "depth": 2, "dropout": 0.2, "tie_embeddings": "source_target",
    }),
    "s17": ("rnnsearch-tiny", {
        "width": 10, "encoder_width": 6, "embedding_dim": 7, "attention_dim": 8, "maxout_dim": 9, "dropout": 0.2,
        "tie_embeddings": "source_target",
    }),
    "s18": ("convs2s-tiny", {
        "encoder_stages": ["10x3x2", "14x1"], "decoder_stages": ["8x3", "11x2"], "embedding_dim": 12, "output_dim": 9,
        "dropout": 0.2, "tie_embeddings": "source_target",
    }),
    "s19": ("universal-tiny-halting", {**REPEATED, "attention_dropout": 0.1, "ffn_dropout": 0.1}),
    "s26": ("modernbert-mini", {**ENCODER, "heads": 2, "depth": 3, "local_attention": 8}),
    "s27": ("deberta-mini", {**ENCODER, "position_buckets": 8, "conv_kernel_size": 3, "share_att_key": False}),
    "s20": ("universal-encoder-mini-halting", {**REPEATED, "max_length": 48, "head_dropout": 0.1}),
    "s21": ("caption-fixed-tiny", {**CAPTION, "width": 10, "embedding_dim": 7}),
    "s22": ("caption-attend-tiny", {**CAPTION, "width": 10, "embedding_dim": 7, "attention_dim": 9}),
    "s23": ("caption-transformer-tiny", {
        **CAPTION, "width": 16, "depth": 2, "decoder_depth": 2, "heads": 4, "ffn_dim": 20, "attention_dropout": 0.1,
    }),
    "s24": ("caption-vit-tiny", {
        **CAPTION, "encoder": "vit-tiny", "encoder_config": EYES, "width": 15, "depth": 2, "heads": 3, "ffn_dim": 20,
    }),
    "s25": ("point-tiny", {
        "widths": [8, 16], "depths": [1, 1], "downsample": [1, 4], "num_neighbors": [4, 4], "share_planes": 4,
    }),
}  # fmt: skip
"""Preset and configuration overrides of each tiny model."""

TASKS_OF: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("s01", "s16", "s17", "s18", "s19"), ("t01", "t02")),
    **dict.fromkeys(("s02", "s03", "s04", "s05"), ("t03", "t05", "t08")),
    **dict.fromkeys(("s06", "s07", "s08", "s20", "s26", "s27"), ("t04", "t05", "t06", "t07", "t08", "t09")),
    **dict.fromkeys(("s09", "s10", "s11", "s12", "s13"), ("t10", "t11", "t12")),
    "s14": ("t13", "t10"), "s15": ("t12", "t11"), "s25": ("t15", "t16"),
    **dict.fromkeys(("s21", "s22", "s23", "s24"), ("t14",)),
}  # fmt: skip

UNPUBLISHED: tuple[str, ...] = (
    *(f"{system}.{task}" for system in ("s02", "s05", "s16", "s17", "s18", "s19", "s20", "s21", "s22", "s23", "s25")
      for task in TASKS_OF[system]),
    *(f"{system}.{task}" for system in ("s09", "s10", "s11", "s12", "s13") for task in ("t11", "t12")), "s07.t08", "s08.t08",
)  # fmt: skip
"""Cases without a Hugging Face format."""

POSITIVE = ("running_var", "typical")
"""Suffixes of the names of buffers with positive values."""
GAIN = ("weight", "gain")
"""Suffixes of the names of multiplicative vectors, for example in norms."""

TRAINING: dict[str, Any] = {
    "train.epochs": 0, "train.steps": 4, "train.eval_every": 4, "train.log_every": 1, "train.grad_accum": 2,
    "train.warmup_steps": 2, "train.batch_tokens": 256, "train.precision": "float32", "data.valid_fraction": 0.2,
    "data.eval_samples": 2, "decode.num_beams": 1,
}  # fmt: skip
"""Settings of every training run of the record."""
STEP_SIZE: dict[str, dict[str, Any]] = {"float64": {"train.lr": 1e-3}, "float32": {"train.lr": 1e-4, "train.eps": 1e-6}}
"""In float32 small steps, and a large eps so that rounding errors in gradients do not cause full steps: CPUs then agree."""

TASK_SETTINGS: dict[str, dict[str, Any]] = {
    **{f"t0{number}": {"data.vocab_size": 300, "data.max_length": 48} for number in range(3, 10)},
    "t01": {"data.vocab_size": 300, "decode.max_extra_tokens": 2},
    "t02": {"decode.max_extra_tokens": 2},
    **{task: {"train.batch_size": 4} for task in ("t10", "t11", "t12", "t13")},
    "t14": {"train.batch_size": 4, "data.vocab_size": 300, "decode.max_new_tokens": 4},
    **{task: {"train.batch_size": 4, "data.num_points": 32} for task in ("t15", "t16")},
}
CASE_SETTINGS: dict[str, dict[str, Any]] = {"s15.t12": {"data.metric_depth": "false"}}
"""The Hugging Face format of this architecture supports relative depth only."""

RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "r01": ("s01.t01", {"train.packing": "on", "train.lr_schedule": "cosine", "train.weight_decay": 0.1}),
    "r02": ("s01.t01", {
        "train.ema_decay": 0, "train.lr_schedule": "linear", "train.label_smoothing": 0, "train.average_checkpoints": 2,
        "train.eval_every": 2,
    }),
    "r03": ("s06.t05", {
        "train.freeze": "*position*", "train.lr_overrides": {"head.*": 0.01}, "train.grad_clip": 0.1,
        "train.lr_schedule": "constant",
    }),
    "r04": ("s04.t05", {
        "train.lm_loss_weight": 0.5, "train.betas": [0.8, 0.9], "train.eps": 1e-6, "data.tokenizer_type": "char",
    }),
    "r05": ("s06.t04", {"data.whole_word_mask": "true", "data.mask_prob": 0.3, "train.packing": "on", "train.seed": 5}),
    "r06": ("s09.t10", {
        "data.crop_scale": 0.5, "data.flip": "true", "data.color_jitter": 0.3, "data.random_erasing": 0.2,
        "data.mixup": 0.4, "data.shift": 0.1,
    }),
    "r07": ("s15.t11", {"data.crop_scale": 0.5, "data.flip": "true", "data.color_jitter": 0.3}),
    "r08": ("s25.t15", {
        "data.rotate": "any", "data.scale": [0.8, 1.2], "data.jitter": 0.01, "data.point_dropout": 0.2,
        "data.tilt": 5.0, "data.stretch": 0.1, "data.shift": 0.1, "data.flip": "true",
    }),
    "r09": ("s19.t01", {
        "model.act": "false", "model.max_position_offset": 5, "model.norm_position": "pre",
        "model.step_embedding": "learned",
    }),
    "r10": ("s03.t03", {"train.packing": "on", "model.relative_position": "shaw"}),
}  # fmt: skip
"""Cases trained with other settings."""

STOPPED: dict[str, tuple[str, dict[str, Any]]] = {
    "r11": ("s01.t01", {"train.ema_decay": 0.2, "train.lr_schedule": "constant"}),
    "r12": ("s11.t10", {"data.crop_scale": 0.5, "data.mixup": 0.4, "train.lr_schedule": "constant"}),
}
"""Runs stopped after the second of four steps and resumed."""

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "v01": ("s01.t01", {"norm_position": "pre", "position_embedding": "interleaved", "output_bias": True}),
    "v02": ("s01.t01", {"relative_position": "rotary", "norm_position": "pre", "activation": "swish"}),
    "v03": ("s01.t01", {"position_embedding": "none", "relative_position": "t5", "scale_embedding": False}),
    "v04": ("s01.t01", {"position_embedding": "none", "relative_position": "shaw", "activation": "gelu"}),
    "v05": ("s02.t03", {"position_embedding": "halves", "activation": "gelu", "eos_id": 39}),
    "v06": ("s02.t03", {"position_embedding": "none", "relative_position": "rotary", "eos_id": 39}),
    "v07": ("s04.t03", {"position_embedding": "none", "relative_position": "rotary-halves", "eos_id": 39}),
    "v08": ("s04.t03", {"relative_position": "t5", "eos_id": 39}),
    "v09": ("s05.t03", {"local_window": 0, "eos_id": 39}),
    "v10": ("s06.t04", {"activation": "relu", "type_vocab_size": 1, "nsp": False}),
    "v11": ("s07.t04", {"rotary_value": True}),
    "v12": ("s08.t04", {"dilation": [1, 2, 1], "undilated_layers": 1}),
    "v13": ("s08.t04", {"relative_position": "rotary", "attention_window": [4]}),
    "v14": ("s16.t01", {"cell": "rnn", "reverse_source": False}),
    "v15": ("s16.t01", {"cell": "gru", "bidirectional": True}),
    "v16": ("s16.t01", {"feed_context": True}),
    "v17": ("s17.t01", {"attention_score": "dot", "encoder_width": 5}),
    "v18": ("s17.t01", {"attention_score": "general", "maxout_dim": 7, "tie_embeddings": "all"}),
    "v19": ("s18.t01", {"encoder_stages": ["7x4", "7x2x2"], "decoder_stages": ["7x3"]}),
    "v20": ("s19.t01", {"act_mixing": "accumulated", "norm_position": "pre", "act_epsilon": 0.1}),
    "v21": ("s19.t01", {
        "act": False, "norm_position": "pre", "step_embedding": "learned", "position_embedding": "halves",
    }),
    "v22": ("s20.t04", {"act_mixing": "accumulated", "norm_position": "pre"}),
    "v23": ("s20.t04", {
        "act": False, "step_embedding": "learned", "position_embedding": "halves", "type_vocab_size": 1,
    }),
    "v24": ("s23.t14", {"norm_position": "post", "position_embedding": "learned"}),
    "v25": ("s14.t13", {"image_size": 4}),
}  # fmt: skip
"""Architectures with other configuration fields, recorded as logits and gradients."""

# -- outputs of a run, and predictions

UNCOMPARED = (
    "kind", "step", "elapsed", "samples", "signature", "averaged_checkpoints", "confusion_matrix", "per_class",
)  # fmt: skip
"""Keys of log lines and final scores that are not metrics."""

METRICS: dict[str, str] = {
    "m00": "loss", "m01": "bleu", "m02": "chrf", "m03": "exact_match", "m04": "token_accuracy", "m05": "perplexity",
    "m06": "word_perplexity",
    "m07": "bits_per_byte", "m08": "accuracy", "m09": "macro_f1", "m10": "mcc", "m11": "chance_accuracy", "m12": "mlm_loss",
    "m13": "nsp_accuracy", "m14": "f1", "m15": "precision", "m16": "recall", "m17": "answerable_exact_match",
    "m18": "answerable_f1", "m19": "best_exact_match", "m20": "best_exact_match_threshold", "m21": "best_f1", 
    "m22": "best_f1_threshold",
    "m23": "mrr", "m24": "miou", "m25": "pixel_accuracy", "m26": "abs_rel", "m27": "rmse", "m28": "log10", "m29": "delta1",
    "m30": "delta2", "m31": "delta3", "m32": "bits_per_pixel", "m33": "cider", "m34": "bleu4", "m35": "bleu3", "m36": "bleu2",
    "m37": "bleu1", "m38": "point_accuracy", "m39": "unanswerable_exact_match", "m40": "unanswerable_f1",
}  # fmt: skip

QUESTIONS: dict[str, tuple[Any, ...]] = {
    "t04": ("the cat [MASK] fish .",), "t05": ("dog finds milk",), "t06": (("dog", "finds", "milk"),),
    "t07": (("what does the cat eat ?", "today cat eats fish here"),),
    "t08": ({"context": "a cow came", "question": "who ?", "choices": ["cow", "hen", "fox"]},),
    "t09": ("cat eats fish", {"query": "cat eats fish", "corpus": ["dog sees milk", "fish eats cat", "owl"], "top_k": 2}),
}  # fmt: skip
"""Inputs of text tasks without generation; image and point tasks use the first file of the data."""
PROMPTS: dict[str, str] = {"t01": "cat eats fish", "t02": "1 2 3", "t03": "the cat"}
OFFERED = {"t03": ("eats fish", "sees a dog", "milk")}
"""Continuations for ranking by a language model."""

PLAIN = {"a1": "value", "a2": "score"}
THIRD = {
    **dict.fromkeys(("t01", "t02", "t03", "t14"), "token_ids"), **dict.fromkeys(("t05", "t10", "t15"), "probabilities"),
    "t07": "start", "t08": "index", "t11": "mask",
}  # fmt: skip
FIELDS: dict[str, dict[str, str]] = {
    **dict.fromkeys(("t04", "t06", "t09"), PLAIN),
    **{task: {**PLAIN, "a3": f"extra.{name}"} for task, name in THIRD.items()},
    "t12": {"a1": "value.low", "a2": "value.median", "a3": "value.high", "a4": "extra.depth"},
    "t13": {"a2": "score", "a3": "extra.images"},
    "t16": {**PLAIN, "a3": "extra.classes", "a4": "extra.probabilities"},
}
DECODING: dict[str, dict[str, Any]] = {
    "greedy": {"num_beams": 1},
    "beam": {"num_beams": 3},
    "sampled": {"do_sample": True, "temperature": 0.9, "top_k": 8, "seed": 3},
}
LENGTH: dict[str, dict[str, Any]] = {
    "t01": {"max_extra_tokens": 3}, "t02": {"max_extra_tokens": 3}, "t03": {"max_new_tokens": 6}, "t13": {},
    "t14": {"max_new_tokens": 6},
}  # fmt: skip
"""Length limits of the generating tasks."""

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
    "caption-vit-base", "point-tiny", "point-small", "point-base", "point-paper", "modernbert-mini",
    "modernbert-base", "modernbert-large", "deberta-mini", "deberta-v3-small", "deberta-v3-base", "deberta-v3-large",
    "deberta-v2-xlarge",
)  # fmt: skip
"""Preset n has the id `p` and n, from p01 on: new presets are appended, removed presets become an empty string."""
SINE_TABLE = "roformer.encoder.embed_positions.weight"
"""Exported tensor that is computed from the config alone."""
