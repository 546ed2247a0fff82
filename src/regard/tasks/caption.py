"""Task `caption`: image captioning.

Each caption of an image is a training row; the image is decoded once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from regard.data.batching.samplers import BatchSampler, BatchShape, SortedUniform, Uniform
from regard.data.images.captions import (
    CAPTION_SUFFIXES,
    CaptionedImage,
    iterate_captions,
    parse_splits,
    read_uncaptioned,
)
from regard.data.settings import DataSettings
from regard.data.text.files import ErrorHandler
from regard.data.text.tables import SkippedRow
from regard.decode.search import search
from regard.decode.settings import DecodeSettings
from regard.errors import SettingError
from regard.files import write_json
from regard.processors.image import CaptionProcessor
from regard.processors.padding import pad
from regard.processors.tokenizer.tokenizer import END, PAD, START, Role, TextTokenizer
from regard.tasks.base import (
    GENERATION_SETTINGS,
    SEARCH_SETTINGS,
    Encoded,
    EvalResult,
    LossSum,
    LossWeights,
    row_lengths,
)
from regard.tasks.file_task import encode_source, sample_location
from regard.tasks.image_task import (
    IMAGE_AUGMENT_SETTINGS,
    ImageBatchContext,
    ImageTask,
    eval_batch_size,
    read_sample_image,
)
from regard.tasks.metrics.cider import cider, tokenize_words
from regard.tasks.processors import tokenizer_config
from regard.tasks.protocol import ModelProtocol
from regard.tasks.seq2seq import seq2seq_loss, text_prediction
from regard.tasks.special_tokens import SPECIAL_ID_FIELDS
from regard.types import IGNORE, Batch, Prediction

SPECIAL_TOKENS: dict[Role, str] = {"pad": PAD, "start": START, "end": END}
"""Special tokens added to a tokenizer if its role has no token."""
MAX_FIGURE_SAMPLES = 12
"""Maximum number of validation images in the figure."""


@dataclass(frozen=True)
class CaptionContext(ImageBatchContext):
    """Batch context of images with captions."""

    caption_index: list[CaptionIndex] = field(default_factory=list)
    """at most one element, computed at the first use"""


@dataclass(frozen=True)
class CaptionIndex:
    """All captions: sample index, and start and end in the token row of the sample."""

    sample_index: np.ndarray
    start: np.ndarray
    end: np.ndarray

    @classmethod
    def from_ends(cls, ends: Any) -> CaptionIndex:
        """Index from the rows of caption ends of each sample."""
        many = row_lengths(ends)
        last = np.concatenate([np.asarray(row, dtype=np.int64) for row in ends] or [np.zeros(0, dtype=np.int64)])
        first = np.concatenate([[0], last[:-1]]) if len(last) else last
        first[(np.cumsum(many) - many)[many > 0]] = 0
        return cls(np.repeat(np.arange(len(many)), many), first, last)

    @property
    def lengths(self) -> np.ndarray:
        """Number of decoder positions of each caption."""
        return self.end - self.start - 1


class Caption(ImageTask):
    name = "caption"
    description = "Image captioning: images with captions."
    columns = ("image", "captions")
    metric = "cider"
    sample_type = CaptionedImage
    fields = ("image", "captions", "ends")
    count_fields = ("ends",)
    default_model = "caption-attend-tiny"
    generates = True
    has_length_limit = True
    has_text = True
    row_unit = "captions"
    table_suffixes = CAPTION_SUFFIXES
    processor_files = ("preprocessor_config.json", "tokenizer.json", "tokenizer_config.json")
    settings_used = (
        *ImageTask.settings_used,
        *IMAGE_AUGMENT_SETTINGS,
        "data.vocab_size",
        "data.tokenizer",
        "data.max_length",
        "data.pretokenized",
        "train.label_smoothing",
        *SEARCH_SETTINGS,
        *GENERATION_SETTINGS,
    )

    # -- samples

    def paths(self, entry: str) -> Sequence[str]:
        return (parse_splits(entry)[0],)

    def iter_samples(
        self, data: Sequence[str], columns: Mapping[str, str] | None = None
    ) -> Iterator[CaptionedImage | SkippedRow]:
        return iterate_captions(data, columns)

    def iter_table(
        self, entry: str, columns: Mapping[str, str] | None, complain: ErrorHandler
    ) -> Iterator[CaptionedImage | SkippedRow]:
        """Each image once, independent of its number of captions."""
        return read_uncaptioned(entry, columns, complain)

    def fingerprint_texts(self, samples: Iterable[Any]) -> Iterator[str]:
        for sample in samples:
            yield from super().fingerprint_texts((sample,))
            yield from sample.captions

    def tokenizer_texts(self, samples: Iterable[CaptionedImage]) -> Iterator[str]:
        return (caption for sample in samples for caption in sample.captions)

    def check_settings(self, config: Any, tokens: int, data: DataSettings) -> None:
        if data.mixup:
            raise SettingError(
                "data.mixup is not supported by task 'caption', because captions cannot be mixed. Remove data.mixup."
            )
        if data.tokenizer_type != "byte_bpe":
            raise SettingError(
                f"data.tokenizer_type={data.tokenizer_type} is not supported by task 'caption'. Use byte_bpe (the default)."
            )

    # -- processor

    def load_processor(self, folder: Path) -> Any:
        return CaptionProcessor.load(folder)

    def save_processor(self, processor: Any, config: Any, folder: Path) -> None:
        """Save the image processor and the tokenizer, or the existing one of both."""
        pixels, text = (
            (processor.pixels, processor.text) if isinstance(processor, CaptionProcessor) else (processor, processor)
        )
        if not isinstance(pixels, TextTokenizer):
            pixels.save(folder)
        if isinstance(text, TextTokenizer):
            text.save(folder / "tokenizer.json")
            write_json(folder / "tokenizer_config.json", tokenizer_config(text, config))

    def default_processor(self, config: Any, data: DataSettings) -> None:
        return None

    def adapt_tokenizer(self, text: TextTokenizer) -> TextTokenizer:
        """The tokenizer with start, end and padding tokens, which may be missing in tokenizers of other tasks."""
        return text.with_special_tokens(
            [token for role, token in SPECIAL_TOKENS.items() if text.special_id(role) is None]
        )

    def build_processor(self, text: TextTokenizer, config: Any, data: DataSettings) -> CaptionProcessor:
        """Image processor of the encoder (`config.image_processor()`) if the encoder has one, else the default."""
        pixels = config.image_processor() or super().default_processor(config, data)
        assert pixels is not None
        return CaptionProcessor(pixels, text)

    def adapt_processor(self, processor: Any, config: Any, data: DataSettings) -> Any:
        return processor.with_fixed_size(config.image_size)

    def fit_config(self, config: Any, processor: CaptionProcessor) -> Any:
        ids = {
            name: processor.text.special_id(role) for name, role in SPECIAL_ID_FIELDS.items() if role in SPECIAL_TOKENS
        }
        return replace(config, vocab_size=processor.text.size, **ids)

    def describe_processor(self, processor: Any) -> str:
        return f"{super().describe_processor(processor.pixels)}, vocabulary of {processor.text.size:,} tokens"

    def row_encoding(self, processor: CaptionProcessor) -> tuple[int, str]:
        return max(2**16, processor.text.size), processor.text.fingerprint()

    def length_limit(self, config: Any, train: Any) -> tuple[int, str]:
        return config.max_length - 1, "model.max_length"

    # -- batches

    def batch_context(
        self, processor: Any, config: Any, max_length: int, data: DataSettings | None, labels: Sequence[str] = ()
    ) -> CaptionContext:
        seeing = super().batch_context(processor.pixels, config, max_length, data)
        return CaptionContext(seeing.pixels, seeing.augment)

    def encode(
        self,
        samples: Sequence[CaptionedImage],
        processor: CaptionProcessor,
        config: Any,
        max_length: int,
        data: DataSettings | None = None,
        labels: Sequence[str] = (),
    ) -> Encoded:
        """Source of each image, one row with start + caption + end of all its captions, and the end of each caption."""
        room = min(max_length, config.max_length - 1)
        coded = iter(processor.text.encode(list(self.tokenizer_texts(samples))))
        captions, ends, too_long = [], [], []
        for sample in samples:
            found = [ids for ids in (next(coded) for _ in sample.captions) if len(ids) <= room]
            too_long += [sample] * (len(sample.captions) - len(found))
            rows = [[config.bos_id, *ids, config.eos_id] for ids in found]
            captions.append(np.array([token for row in rows for token in row], dtype=np.int32))
            ends.append(np.cumsum([len(row) for row in rows], dtype=np.int32))
        sides = {"image": [encode_source(sample) for sample in samples], "captions": captions, "ends": ends}
        return Encoded(list(samples), sides, too_long, self.batch_context(processor, config, max_length, data))

    def num_rows(self, encoded: Encoded) -> int:
        return len(caption_index(encoded).sample_index)

    def sampler(self, encoded: Encoded, config: Any, tokens: int, seed: int, packed: bool) -> BatchSampler:
        """Batches of captions of similar length; `packed`: padded to the longest caption, for CUDA graph capture."""
        super().sampler(encoded, config, tokens, seed, packed)
        lengths = caption_index(encoded).lengths
        plan = Uniform(len(lengths), tokens, seed) if packed else SortedUniform(lengths, tokens, seed)
        if packed:
            longest = min(-(-int(lengths.max()) // 8) * 8, config.max_length)
            plan.shape = BatchShape((longest,), (longest,), plan.batch_size)
        plan.description = f"{plan.batch_size} caption{'s'[: plan.batch_size != 1]} with images per micro-batch"
        return plan

    def eval_batches(
        self, encoded: Encoded, config: Any, tokens: int, data: DataSettings | None = None
    ) -> Iterator[Batch]:
        for rows in Uniform(
            self.num_rows(encoded), min(tokens, eval_batch_size(encoded.batch_context.pixels)), seed=0
        ).sequential():
            yield self.collate(encoded, rows, config)

    def collate(self, encoded: Encoded, rows: Any, config: Any, shape: BatchShape | None = None) -> Batch:
        """Teacher forcing: decoder inputs start + caption, labels caption + end. `rows` are caption indices."""
        batch = super().collate(encoded, rows, config)
        if shape is None or batch.decoder_inputs is None or batch.labels is None:
            return batch
        more = (0, shape.max_lengths[0] - batch.decoder_inputs.shape[1])
        return replace(
            batch,
            decoder_inputs=F.pad(batch.decoder_inputs, more, value=config.pad_id),
            labels=F.pad(batch.labels, more, value=IGNORE),
        )

    def build_batch(self, encoded: Encoded, rows: np.ndarray, config: Any) -> Batch:
        pairs, learnt = caption_index(encoded), rows.ndim == 2
        numbers = rows[:, 0] if learnt else rows
        owners, shared = pairs.sample_index[numbers], None
        if learnt:
            x, changes = self.load_images(encoded, np.stack([owners, rows[:, 1]], axis=1))
        else:  # captions of an image are consecutive, and the image is encoded once
            different, back = np.unique(owners, return_inverse=True)
            x, changes = self.load_images(encoded, different)
            shared = torch.from_numpy(back)
        side = encoded.fields["captions"]
        said = [
            np.asarray(side[owner][first:last], dtype=np.int64)
            for owner, first, last in zip(owners, pairs.start[numbers], pairs.end[numbers], strict=True)
        ]
        # no mask for the target: padding at the end is hidden by the causal mask, and its labels are ignored
        target, labels = pad([row[:-1] for row in said], config.pad_id)[0], pad([row[1:] for row in said], IGNORE)[0]
        return Batch(
            x,
            decoder_inputs=target,
            image_index=shared,
            labels=labels,
            augment_params=changes,
            augmentation=encoded.batch_context.augment,
        )

    def logits(self, model: ModelProtocol, batch: Batch) -> Tensor:
        return model.body.to_logits(model.body(self.prepare_inputs(model, batch)).sequence)

    def loss(self, model: ModelProtocol, batch: Batch, terms: LossWeights = LossWeights()) -> tuple[Tensor, Tensor]:  # noqa: B008
        return seq2seq_loss(model, model.body(self.prepare_inputs(model, batch)), batch.labels, terms.smoothing)

    # -- inference

    def predict(
        self, model: ModelProtocol, inputs: Sequence[Any], decode: DecodeSettings, first: int = 0
    ) -> list[Prediction]:
        """Caption of each image (a path, bytes, an array or a Pillow image).

        Image i has the random stream `first + i`."""
        answers, pixels = [], model.require_image_processor()
        for start in range(0, len(inputs), most := eval_batch_size(pixels)):
            x = self.open_inputs(inputs[start : start + most], pixels)
            answers += self._generate(model, x, decode, first + start)
        return answers

    def _generate(self, model: ModelProtocol, x: Tensor, decode: DecodeSettings, first: int) -> list[Prediction]:
        text, config = model.require_tokenizer(), model.config
        prompt = torch.full((len(x), 1), config.bos_id)
        batch = self.prepare_inputs(model, Batch(x, decoder_inputs=prompt).to(model.device))
        limits = torch.full((len(x),), min(decode.new_token_limit(1, config.max_length), config.max_length))
        # padding and start token are never generated
        banned = tuple({config.pad_id, config.bos_id} - {config.eos_id})
        numbers = first + np.arange(len(x))
        found = search(model.body, batch, config.eos_id, limits, decode, requests=numbers, banned=banned)
        return [text_prediction(text, options) for options in found]

    # -- scores

    def evaluate(
        self,
        model: ModelProtocol,
        encoded: Encoded,
        decode: DecodeSettings,
        data: DataSettings,
        sums: LossSum,
        max_samples: int | None = None,
    ) -> EvalResult:
        """CIDEr-D × 100, BLEU (sacreBLEU), chrF and exact match in percent, against all captions of an image. CIDEr-D is
        omitted for a single image, because its n-gram weights would be 0."""
        count = len(encoded) if max_samples is None else min(max_samples, len(encoded))
        answers: list[Prediction] = []
        for start in range(0, count, step := eval_batch_size(encoded.batch_context.pixels)):
            x, _ = self.load_images(encoded, np.arange(start, min(start + step, count)))
            answers += self._generate(model, x, decode, start)
        return caption_scores(
            [str(a.value) for a in answers], [s.captions for s in encoded.samples[:count]], data
        ), answers

    def selection_metric(self, scores: Mapping[str, Any]) -> str:
        """CIDEr-D, the automatic metric closest to human judgment here; BLEU-4 for a single image."""
        return self.metric if self.metric in scores else "bleu4"

    def format_scores(self, scores: Mapping[str, Any]) -> str:
        return f"{super().format_scores(scores)}  ({scores['samples']:,} samples, greedy)"

    def format_prediction(self, source: Any, prediction: Prediction) -> str:
        return f"{source}\t{prediction.value}"

    def example_row(self, sample: CaptionedImage, prediction: Prediction) -> dict[str, str]:
        return {"image": sample_location(sample), "prediction": str(prediction.value), "reference": sample.captions[0]}

    def format_example(self, sample: CaptionedImage, prediction: Prediction) -> str:
        return f"    {sample_location(sample)}\n    → {prediction.value}\n    = {sample.captions[0]}\n"

    def save_figures(
        self, folder: Path, samples: Sequence[CaptionedImage], predictions: Sequence[Prediction]
    ) -> list[str]:
        """Figure with evenly spaced validation samples."""
        from regard.draw.panels import CaptionSample, draw_captions

        count = min(MAX_FIGURE_SAMPLES, len(predictions))
        chosen = [number * len(predictions) // count for number in range(count)]
        shown = []
        for sample, answer in ((samples[number], predictions[number]) for number in chosen):
            shown.append(CaptionSample(read_sample_image(sample, 320), str(answer.value), sample.captions[0]))
        return [draw_captions(shown, folder / "captions.png").name] if shown else []


def caption_index(encoded: Encoded) -> CaptionIndex:
    kept = encoded.batch_context.caption_index
    if not kept:
        kept.append(CaptionIndex.from_ends(encoded.fields["ends"]))
    return kept[0]


def caption_scores(
    predictions: Sequence[str], references: Sequence[Sequence[str]], data: DataSettings
) -> dict[str, float | str]:
    """Scores on lowercased words without punctuation (`tokenize_words`), or on pretokenized texts split at spaces."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    split = str.split if data.pretokenized else tokenize_words
    ours, theirs = [split(text) for text in predictions], [[split(text) for text in texts] for texts in references]
    streams = _reference_streams([[" ".join(row) for row in rows] for rows in theirs])
    scores, signature = dict[str, float | str](), ""
    if len(predictions) > 1:
        scores["cider"] = round(100 * float(np.mean(cider(ours, theirs))), 2)
    for order in (4, 3, 2, 1):
        bleu = BLEU(tokenize="none", force=True, effective_order=True, max_ngram_order=order)
        scores[f"bleu{order}"] = round(bleu.corpus_score([" ".join(row) for row in ours], streams).score, 2)
        signature = str(bleu.get_signature()) if order == 4 else signature
    scores["chrf"] = round(CHRF().corpus_score(predictions, _reference_streams(references)).score, 2)
    same = sum(row in rows for row, rows in zip(ours, theirs, strict=True))
    scores["exact_match"] = round(100 * same / max(len(predictions), 1), 2)
    return {
        **scores,
        "samples": len(predictions),
        "signature": signature + ("" if data.pretokenized else "|words:lower-bare"),
    }


def _reference_streams(meant: Sequence[Sequence[str]]) -> list[list[Any]]:
    """First reference of each sample, second reference, …; None for missing references."""
    most = max(map(len, meant))
    return [[texts[n] if n < len(texts) else None for texts in meant] for n in range(most)]
