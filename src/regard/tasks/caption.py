"""Objective `caption`: image captioning.

Each caption of an image is a training row; the image is decoded once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from regard.data.batching.padding import pad
from regard.data.batching.samplers import BatchSampler, BatchShape, SortedUniform, Uniform
from regard.data.images.captions import CaptionedImage
from regard.data.settings import DataSettings
from regard.decode.search import search
from regard.decode.settings import DecodeSettings
from regard.draw.panels import draw_captions
from regard.errors import SettingError
from regard.processors.image import CaptionProcessor
from regard.processors.tokenizer.tokenizer import END, PAD, START, Role, TextTokenizer
from regard.tasks import base
from regard.tasks.metrics.cider import cider, tokenize_words
from regard.tasks.modality.base import Export, readable_batch, sample_ids, sample_location
from regard.tasks.modality.image import Image, prepare_images, read_sample_image
from regard.tasks.modality.text import SPECIAL_ID_FIELDS, Text
from regard.tasks.translate import format_pair
from regard.types import IGNORE, Batch, DecoderInputs, Prediction

SPECIAL_TOKENS: dict[Role, str] = {"pad": PAD, "start": START, "end": END}
"""Special tokens added to a tokenizer if its role has no token."""
MAX_FIGURE_SAMPLES = 12  # maximum number of validation images in the figure


class CaptionedImages(Image):
    """Images with texts as targets: an image processor and a tokenizer."""

    text = Text(tokenizer="sentence")
    processor_files = (*Image.processor_files, *Text.processor_files)
    has_text = True

    def default_processor(self, config: Any, data: DataSettings) -> None:
        return None

    def train_tokenizer(self, texts: Iterable[str], data: DataSettings) -> TextTokenizer:
        """New tokenizer, trained on captions."""
        return self.text.train_tokenizer(texts, data)

    def build_processor(self, text: TextTokenizer, config: Any, data: DataSettings | None = None) -> CaptionProcessor:
        """Image processor of the encoder if the encoder has one, else the default, and the tokenizer with start, end and
        padding tokens, which may be missing in tokenizers of other tasks."""
        pixels = config.image_processor() or super().default_processor(config, data or DataSettings())
        assert pixels is not None
        missing = [token for role, token in SPECIAL_TOKENS.items() if text.special_id(role) is None]
        return CaptionProcessor(pixels, text.with_special_tokens(missing))

    def load_processor(self, folder: Path) -> Any:
        return CaptionProcessor.load(folder)

    def save_processor(self, processor: Any, config: Any, folder: Path, export: Export | None = None) -> None:
        """Save the image processor and the tokenizer, or the existing one of both."""
        both = isinstance(processor, CaptionProcessor)
        for part in (processor.pixels, processor.text) if both else (processor,):
            if isinstance(part, TextTokenizer):
                self.text.save_processor(part, config, folder, export)
            else:
                part.save(folder)

    def adapt_processor(self, processor: Any, config: Any, data: DataSettings) -> Any:
        return processor.with_fixed_size(config.image_size)

    def fit_config(self, config: Any, processor: CaptionProcessor) -> Any:
        roles = {name: role for name, role in SPECIAL_ID_FIELDS.items() if role in SPECIAL_TOKENS}
        ids = {name: processor.text.special_id(role) for name, role in roles.items()}
        return replace(config, vocab_size=processor.text.size, **ids)

    def describe_processor(self, processor: Any) -> str:
        return f"{super().describe_processor(processor.pixels)}, {self.text.describe_processor(processor.text)}"

    def row_encoding(self, processor: CaptionProcessor) -> tuple[int, str]:
        return max(2**16, processor.text.size), processor.text.fingerprint()


def caption_index(encoded: base.Encoded) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sample index of each caption, and start and end in the token row of the sample; computed at the first use."""
    if "captions" not in encoded.context.cache:
        ends = encoded.fields["ends"]
        many = base.row_lengths(ends)
        last = np.concatenate([np.zeros(0, dtype=np.int64), *(np.asarray(row, dtype=np.int64) for row in ends)])
        first = np.concatenate([[0], last[:-1]]) if len(last) else last
        first[(np.cumsum(many) - many)[many > 0]] = 0
        encoded.context.cache["captions"] = np.repeat(np.arange(len(many)), many), first, last
    sample_index, first, last = encoded.context.cache["captions"]
    return sample_index, first, last


class Caption(base.Objective):
    metrics = ("cider", "bleu4")  # CIDEr-D, the metric closest to human judgment here; BLEU-4 for a single image
    modality_class = CaptionedImages
    fields = ("image", "captions", "ends")
    count_fields = ("ends",)
    generates = has_decoder_inputs = True
    row_unit = "captions"
    settings = (
        *base.AUGMENT_SETTINGS,
        "data.vocab_size",
        "data.tokenizer",
        "data.split_special_tokens",
        "data.max_length",
        "data.pretokenized",
        *base.GENERATION_SETTINGS,
    )

    def check_settings(self, config: Any, tokens: int, data: DataSettings) -> None:
        if data.mixup:
            raise SettingError(
                "data.mixup is not supported by task 'caption', because captions cannot be mixed. Remove data.mixup."
            )
        if data.tokenizer_type != "byte_bpe":
            raise SettingError(
                f"data.tokenizer_type={data.tokenizer_type} is not supported by task 'caption'. Use byte_bpe (the default)."
            )

    # -- batches

    def encode(self, samples: Sequence[CaptionedImage], config: Any, context: base.EncodingContext) -> base.Encoded:
        """Source of each image, one row with start + caption + end of all its captions, and the end of each caption."""
        room = min(context.max_length, config.max_length - 1)
        texts = [caption for sample in samples for caption in sample.captions]
        coded = iter(context.processor.text.encode(texts))
        captions, ends, too_long = [], [], []
        for sample in samples:
            found = [ids for ids in (next(coded) for _ in sample.captions) if len(ids) <= room]
            too_long += [sample] * (len(sample.captions) - len(found))
            rows = [[config.bos_id, *ids, config.eos_id] for ids in found]
            captions.append(np.array([token for row in rows for token in row], dtype=np.int32))
            ends.append(np.cumsum([len(row) for row in rows], dtype=np.int32))
        fields, _ = self.modality.encode(samples, config, context)
        return base.Encoded(list(samples), {**fields, "captions": captions, "ends": ends}, too_long, context)

    def sampler(self, encoded: base.Encoded, config: Any, tokens: int, seed: int, packed: bool) -> BatchSampler:
        """Batches of captions of similar length; `packed`: padded to the longest caption, for CUDA graph capture."""
        super().sampler(encoded, config, tokens, seed, packed)
        _, first, last = caption_index(encoded)
        lengths = last - first - 1  # decoder positions
        plan = Uniform(len(lengths), tokens, seed) if packed else SortedUniform(lengths, tokens, seed)
        if packed:
            longest = min(-(-int(lengths.max()) // 8) * 8, config.max_length)
            plan.shape = BatchShape((longest,), (longest,), plan.batch_size)
        plan.description = f"{plan.batch_size} caption{'s'[: plan.batch_size != 1]} with images per micro-batch"
        return plan

    def collate(self, encoded: base.Encoded, rows: Any, config: Any, shape: BatchShape | None = None) -> Batch:
        """Teacher forcing: decoder inputs start + caption, labels caption + end. `rows` are caption indices."""
        batch = readable_batch(lambda rows: self._build_batch(encoded, rows, config), rows, self)
        target = batch.require_decoder()
        if shape is None or batch.labels is None:
            return batch
        more = (0, shape.max_lengths[0] - target.inputs.shape[1])
        return replace(
            batch,
            decoder=replace(target, inputs=F.pad(target.inputs, more, value=config.pad_id)),
            labels=F.pad(batch.labels, more, value=IGNORE),
        )

    def _build_batch(self, encoded: base.Encoded, rows: np.ndarray, config: Any) -> Batch:
        numbers = sample_ids(rows)
        owners, first, last = (values[numbers] for values in caption_index(encoded))
        image_index = None
        if rows.ndim == 2:  # training
            images = np.stack([owners, rows[:, 1]], axis=1)
        else:  # captions of an image are consecutive, and the image is encoded once
            images, back = np.unique(owners, return_inverse=True)
            image_index = torch.from_numpy(back)
        batch = self.modality.collate(encoded, images, config, None)
        side = encoded.fields["captions"]
        texts = [np.asarray(side[i][a:b], dtype=np.int64) for i, a, b in zip(owners, first, last, strict=True)]
        # no mask for the target: padding at the end is hidden by the causal mask, and its labels are ignored
        target = pad([row[:-1] for row in texts], config.pad_id)[0]
        labels = pad([row[1:] for row in texts], IGNORE)[0]
        return replace(batch, decoder=DecoderInputs(target, image_index=image_index), labels=labels)

    def logits(self, model: base.Model, batch: Batch) -> Tensor:
        return super().logits(model, prepare_images(model, batch))

    def loss(self, model: base.Model, batch: Batch, terms: base.LossWeights = base.NO_WEIGHTS) -> base.Loss:
        return super().loss(model, prepare_images(model, batch), terms)

    # -- predictions

    def predict(
        self,
        model: base.Model,
        inputs: base.Inputs,
        decode: DecodeSettings,
        first: int = 0,
        max_samples: int | None = None,
    ) -> list[Prediction]:
        """Caption of each image (a path, bytes, an array or a Pillow image), or of the first `max_samples` encoded samples.

        Image i has the random stream `first + i`."""
        count = len(inputs) if max_samples is None else max_samples
        text, config, predictions = base.require_tokenizer(model), model.config, list[Prediction]()
        # padding and start token are never generated
        banned = tuple({config.pad_id, config.bos_id} - {config.eos_id})
        limit = min(decode.new_token_limit(1, config.max_length), config.max_length)
        for rows, batch in self.modality.input_batches(model, inputs, count, decode):
            prompt, limits = torch.full((len(rows), 1), config.bos_id), torch.full((len(rows),), limit)
            batch = prepare_images(model, replace(batch, decoder=DecoderInputs(prompt)).to(model.device))
            found = search(model.body, batch, config.eos_id, limits, decode, requests=first + rows, banned=banned)
            predictions += [base.text_prediction(text, hypotheses) for hypotheses in found]
        return predictions

    # -- metrics

    def evaluate(self, model: base.Model, encoded: base.Encoded, spec: base.EvalSpec) -> base.EvalResult:
        """CIDEr-D × 100, BLEU (sacreBLEU), chrF and exact match in percent, against all captions of an image. CIDEr-D is
        omitted for a single image, because its n-gram weights would be 0."""
        count = spec.count(encoded)
        predictions = self.predict(model, encoded, spec.decode, max_samples=count)
        references = [sample.captions for sample in encoded.samples[:count]]
        return caption_scores([str(one.value) for one in predictions], references, spec.data), predictions

    def format_prediction(self, source: Any, prediction: Prediction) -> str:
        return f"{source}\t{prediction.value}"

    def example_row(self, sample: CaptionedImage, prediction: Prediction) -> dict[str, str]:
        return {"image": sample_location(sample), "prediction": str(prediction.value), "reference": sample.captions[0]}

    format_example = format_pair

    def save_figures(self, folder: Path, samples: Sequence[Any], predictions: Sequence[Prediction]) -> list[str]:
        """Figure with evenly spaced validation samples."""
        count = min(MAX_FIGURE_SAMPLES, len(predictions))
        chosen = [number * len(predictions) // count for number in range(count)]
        shown = [
            (read_sample_image(samples[number], 320), str(predictions[number].value), samples[number].captions[0])
            for number in chosen
        ]
        return [draw_captions(shown, folder / "captions.png").name]


def caption_scores(predictions: Sequence[str], references: Sequence[Sequence[str]], data: DataSettings) -> base.Scores:
    """Scores on lowercased words without punctuation (`tokenize_words`), or on pretokenized texts split at spaces."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    split = str.split if data.pretokenized else tokenize_words
    ours, theirs = [split(text) for text in predictions], [[split(text) for text in texts] for texts in references]
    # first reference of each sample, second reference, …; None for missing references
    streams = [*map(list, zip_longest(*([" ".join(row) for row in rows] for rows in theirs)))]
    scores, signature = base.Scores(), ""
    if len(predictions) > 1:
        scores["cider"] = round(100 * float(np.mean(cider(ours, theirs))), 2)
    for order in (4, 3, 2, 1):
        bleu = BLEU(tokenize="none", force=True, effective_order=True, max_ngram_order=order)
        scores[f"bleu{order}"] = round(bleu.corpus_score([" ".join(row) for row in ours], streams).score, 2)
        signature = str(bleu.get_signature()) if order == 4 else signature
    scores["chrf"] = round(CHRF().corpus_score(predictions, [*map(list, zip_longest(*references))]).score, 2)
    same = sum(row in rows for row, rows in zip(ours, theirs, strict=True))
    scores["exact_match"] = round(100 * same / max(len(predictions), 1), 2)
    return {
        **scores,
        "samples": len(predictions),
        "signature": signature + ("" if data.pretokenized else "|words:lower-bare"),
    }
