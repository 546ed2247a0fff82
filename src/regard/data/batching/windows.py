"""Training rows of long texts: windows of a token stream, pairs of texts for next-sentence prediction, and masked tokens.

A window is (first, last): tokens first … last - 1 are the inputs, tokens first + 1 … last are the targets. No window
crosses a document boundary. A token is the target of at most one window per epoch. Windows are cut at new positions in each
epoch.

Encoders are pretrained on segments: a segment is a contiguous part of a document, the whole document or the text between
held-out passages. For next-sentence prediction (NSP), each window of a segment is divided at a random position; in half of the
windows the second text is replaced by a text of the same length from another document, and the replaced text is not used in
that epoch. Segments and windows too short to be divided are skipped.

Of n non-special tokens of a row, round(mask_prob · n) tokens are masked, at least one. As in BERT, such a token is replaced by
the mask token (80 %) or by a random token (10 %), or kept unchanged (10 %).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from regard.data.batching.samplers import BatchSampler, Indices, LengthBucketed, PackedSampler
from regard.errors import DataError
from regard.types import IGNORE

TokenRanges = npt.NDArray[np.int64]
"""(N, 2) first, last; or (N, 4) with the start of the scored part and the minimum row length"""

MAX_PADDING, MAX_PADDING_PACKED = 1 / 8, 1 / 20
"""Maximum fraction of padding for rows of fixed length; lower if packing, which avoids padding, is available."""


def make_window_sampler(documents: TokenRanges, length: int, tokens: int, seed: int, packed: bool) -> BatchSampler:
    """`FixedWindows` if the expected padding is small, else `VariableWindows`.

    Data with fixed windows under `packed=True` also has fixed windows under `packed=False`: a run can resume with either."""
    documents = documents[documents[:, 1] > documents[:, 0]]
    if not len(documents):
        raise DataError("No text to train on: no document has two tokens.", advice="Add text.")
    if expected_padding(documents, length) <= (MAX_PADDING_PACKED if packed else MAX_PADDING):
        return FixedWindows(documents, length, tokens, seed)
    return VariableWindows(documents, length, tokens, seed, packed)


def expected_padding(documents: TokenRanges, length: int) -> float:
    """Expected fraction of padding if each window has a row of `length` tokens, averaged over all offsets."""
    sizes = documents[:, 1] - documents[:, 0]
    rows = np.where(sizes <= length, 1.0, (sizes + length - 1) / length)
    return 1 - float(sizes.sum()) / (float(rows.sum()) * length)


def cut_windows(documents: TokenRanges, length: int, rng: np.random.Generator) -> tuple[TokenRanges, Indices]:
    """Windows of at most `length` tokens that cover all documents, and the document start of each window.

    Longer documents are cut at a random offset, so that the first and the last window can be shorter."""
    first, last = documents[:, 0], documents[:, 1]
    start = first - np.where(last - first <= length, 0, rng.integers(0, length, len(documents)))
    counts = -(-(last - start) // length)
    which = np.repeat(np.arange(len(documents)), counts)
    place = start[which] + length * (np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts))
    begins = first[which]
    return np.stack([np.maximum(place, begins), np.minimum(place + length, last[which])], axis=1), begins


class RowSampler(BatchSampler):
    """Base of samplers that cut documents into other rows in each epoch: rows of similar length per micro-batch, or packed
    into rows of one shape."""

    packed_sampler: PackedSampler | None = None

    def __init__(self, max_length: int, tokens: int, seed: int, packed: bool) -> None:
        super().__init__(np.array([max_length]), tokens, seed)
        if packed:  # a later epoch may have a longer row
            lengths = np.append(self.row_lengths(self.epoch_rows(0)), max_length)
            self.packed_sampler = PackedSampler(lengths, self.budget, seed)
            self.static_shape, self.shape = True, self.packed_sampler.shape

    def epoch_rows(self, number: int) -> Indices:
        """Rows of an epoch in text order."""
        raise NotImplementedError

    def row_lengths(self, rows: Indices) -> Indices:
        """Number of tokens of each row without padding; for windows, of the targets."""
        return rows[:, 1] - rows[:, 0]

    def epoch(self, number: int) -> list[Indices]:
        rows = self.epoch_rows(number)
        plan: LengthBucketed | PackedSampler
        if self.packed_sampler is None:
            plan = LengthBucketed(self.row_lengths(rows), self.budget, self.seed)
        else:
            plan = PackedSampler(self.row_lengths(rows), self.budget, self.seed)
            plan.shape, plan.max_documents = self.packed_sampler.shape, self.packed_sampler.max_documents
        return [rows[chosen] for chosen in plan.epoch(number)]

    def _cut_rng(self, number: int) -> np.random.Generator:
        # independent of the generator that orders the rows
        return np.random.default_rng([self.seed, number, 1])


class VariableWindows(RowSampler):
    """Windows of similar length per micro-batch, or packed into rows of one shape."""

    def __init__(self, documents: TokenRanges, length: int, tokens: int, seed: int, packed: bool) -> None:
        self.documents, self.length = documents, length
        longest = min(length, int((documents[:, 1] - documents[:, 0]).max()))
        super().__init__(longest, max(tokens, length), seed, packed)
        rows = f"{'packed ' * packed}rows of documents and windows up to {length:,} tokens"
        self.description = f"{rows}, cut at new positions in each epoch,"

    def epoch_rows(self, number: int) -> Indices:
        return cut_windows(self.documents, self.length, self._cut_rng(number))[0]


class FixedWindows(VariableWindows):
    """Rows of one fixed length. The last window of a document is extended backward by context tokens without loss; the
    first window and short documents are padded."""

    static_shape = True

    def __init__(self, documents: TokenRanges, length: int, tokens: int, seed: int) -> None:
        super().__init__(documents, length, tokens, seed, packed=False)
        fewest = int((-(-(documents[:, 1] - documents[:, 0]) // length)).sum())
        self.batch_size = max(min(tokens // length, fewest), 1)
        self.description = f"windows of {length:,} tokens, cut at new positions in each epoch,"

    def epoch(self, number: int) -> list[Indices]:
        """Shuffled micro-batches; windows that do not fill a micro-batch are dropped, different windows in each epoch."""
        windows, begins = cut_windows(self.documents, self.length, self._cut_rng(number))
        count = len(windows) // self.batch_size
        chosen = np.random.default_rng([self.seed, number]).permutation(len(windows))[: count * self.batch_size]
        scored, last = windows[chosen].T
        first = np.maximum(last - self.length, begins[chosen])
        rows = np.stack([first, last, scored, np.full(len(chosen), self.length)], axis=1)
        return list(rows.reshape(count, self.batch_size, 4))

    def row_lengths(self, rows: Indices) -> Indices:
        return rows[:, 1] - rows[:, 2]

    def padded_size(self, micro_batch: Indices) -> int:
        return len(micro_batch) * self.length


def sliding_windows(documents: TokenRanges, length: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """Yield (first, last, start of the scored part) for evaluation; each token is scored once.

    Windows start `stride` tokens apart; in an overlap only the earlier window scores the tokens."""
    for first, last in documents.tolist():
        scored = start = first
        while scored < last:
            end = min(start + length, last)
            yield start, end, scored
            scored, start = end, start + stride


# -- pretraining of encoders

Segments = npt.NDArray[np.int64]  # (N, 3) start, end (exclusive) and document number, in text order
SegmentPairs = npt.NDArray[np.int64]
"""(N, 5) start and end of the first text, start and end of the second text (equal: no second text), and the NSP label: 0
next text, 1 random text, `IGNORE` unlabeled. `PretrainingSampler.micro_batch` appends the seed and the index."""

MAX_DRAWS = 8  # draws for a negative of the requested length; then a shorter negative is accepted


def count_documents(segments: Segments) -> int:
    return len(np.unique(segments[:, 2]))


def single_segments(segments: Segments, max_length: int, rng: np.random.Generator) -> SegmentPairs:
    """Windows of all segments, without second texts."""
    windows, _ = cut_windows(segments[:, :2], max_length, rng)
    return np.concatenate([windows, np.zeros((len(windows), 3), dtype=np.int64)], axis=1)


def segment_pairs(segments: Segments, max_length: int, rng: np.random.Generator) -> SegmentPairs:
    """Pairs of a text and the next text (label 0) or a random text (label 1), each with probability 0.5.

    With a single document, all pairs have the next text and the label `IGNORE`."""
    windows, begins = cut_windows(segments[:, :2], max_length, rng)
    long = windows[:, 1] - windows[:, 0] > 1
    windows, own = windows[long], segments[np.searchsorted(segments[:, 0], begins[long])]
    middle = windows[:, 0] + rng.integers(1, np.maximum(windows[:, 1] - windows[:, 0], 2))
    rows = np.stack([windows[:, 0], middle, middle, windows[:, 1], np.zeros_like(middle)], axis=1)
    if count_documents(segments) < 2:
        rows[:, 4] = IGNORE
        return rows
    other = rng.random(len(rows)) < 0.5
    rows[other, 4] = 1
    last = windows[:, 1] == own[:, 1]
    rows[other, 2:4] = sample_negatives(segments, own[other, 2], (windows[:, 1] - middle)[other], last[other], rng)
    return rows


def sample_negatives(
    segments: Segments, own: Indices, sizes: Indices, last: npt.NDArray[np.bool_], rng: np.random.Generator
) -> npt.NDArray[np.int64]:
    """Start and end of random windows outside the documents `own`, (N, 2), uniform over all tokens of the text.

    Only the content should distinguish a negative from the next text: a negative is shorter than `sizes` only if no
    draw was long enough, and if the next text ends its segment (`last`), the negative ends a segment too."""
    ends = np.cumsum(segments[:, 1] - segments[:, 0])
    starts = ends - (segments[:, 1] - segments[:, 0])
    # segments of a document are contiguous, so all other text is before or after them
    first, behind = (np.searchsorted(segments[:, 2], own, side=side) for side in ("left", "right"))
    before, inside = starts[first], ends[behind - 1] - starts[first]
    negatives, left = np.zeros((len(own), 2), dtype=np.int64), np.arange(len(own))
    for _ in range(MAX_DRAWS):
        place = rng.integers(0, ends[-1] - inside[left])
        place += np.where(place >= before[left], inside[left], 0)
        part = np.searchsorted(ends, place, side="right")
        begin, end = segments[part, 0], segments[part, 1]
        latest = end - sizes[left]
        within = (place - starts[part]) * (latest - begin + 1) // (end - begin)
        start = np.maximum(np.where(last[left], latest, begin + within), begin)
        negatives[left] = np.stack([start, np.minimum(start + sizes[left], end)], axis=1)
        left = left[latest < begin]
    return negatives


class PretrainingSampler(RowSampler):
    """Pretraining rows of similar length per micro-batch, or packed into rows of one shape.

    A row has at most `length` tokens, including `num_special` special tokens."""

    def __init__(
        self, segments: Segments, length: int, num_special: int, tokens: int, seed: int, packed: bool, paired: bool
    ) -> None:
        segments = segments[segments[:, 1] - segments[:, 0] > paired]
        if not len(segments):
            raise DataError("No text to train on: no document has two tokens.", advice="Add text.")
        if paired and count_documents(segments) < 2:
            raise DataError(
                "Next-sentence prediction needs at least two documents, because negatives come from other documents.",
                advice="Put each document in a separate file, or in a separate row of JSONL or Parquet; "
                "or disable next-sentence prediction: --set model.nsp=false",
            )
        self.segments, self.paired = segments, paired
        self.max_text_tokens, self.num_special = length - num_special, num_special
        longest = min(length, int((segments[:, 1] - segments[:, 0]).max()) + num_special)
        super().__init__(longest, tokens, seed, packed)
        self.description = f"{'packed ' * packed}rows of {'text pairs' if paired else 'texts'} up to {length:,} tokens,"

    def epoch_rows(self, number: int) -> SegmentPairs:
        cut = segment_pairs if self.paired else single_segments
        return cut(self.segments, self.max_text_tokens, self._cut_rng(number))

    def row_lengths(self, rows: SegmentPairs) -> Indices:
        return rows[:, 1] - rows[:, 0] + rows[:, 3] - rows[:, 2] + self.num_special

    def micro_batch(self, number: int) -> tuple[int, Indices]:
        """Epoch and rows; seed and index are appended to each row, because the masked tokens are derived from them."""
        epoch, rows = super().micro_batch(number)
        return epoch, np.concatenate([rows, np.broadcast_to([self.seed, number], (len(rows), 2))], axis=1)


# -- masked tokens

MASK_FRACTION, RANDOM_FRACTION = 0.8, 0.1
"""Fractions of the selected tokens replaced by the mask token and by a random token."""


class MaskedRows(NamedTuple):
    """Input ids, selected positions and original ids of each row."""

    inputs: list[Indices]
    positions: list[Indices]
    labels: list[Indices]


@dataclass(frozen=True, eq=False)
class TokenMasker:
    mask_id: int
    maskable: npt.NDArray[np.bool_]
    """(V,) True for non-special ids: only non-special ids are selected or used as random tokens"""
    mask_prob: float
    word_starts: Callable[[Indices], npt.NDArray[np.bool_]] | None = None
    """marks the first token of each word, for whole-word masking"""

    def num_masked(self, num_tokens: npt.ArrayLike) -> Indices:
        """Number of selected tokens in rows with `num_tokens` non-special tokens."""
        many = np.asarray(num_tokens, dtype=np.int64)
        return np.where(many > 0, np.maximum(np.rint(self.mask_prob * many), 1), 0).astype(np.int64)

    def max_masked(self, num_tokens: int, num_rows: int, max_length: int, num_special: int) -> int:
        """Maximum number of selected tokens in `num_rows` rows of `num_tokens` tokens in total, special tokens included."""
        sizes = np.arange(1, max(max_length - num_special, 1) + 1)
        over = float((self.num_masked(sizes) - self.mask_prob * (sizes + num_special)).max())
        return int(self.mask_prob * num_tokens + num_rows * max(over, 0.0)) + 1

    def __call__(self, rows: Sequence[npt.NDArray[np.integer]], rng: np.random.Generator) -> MaskedRows:
        lengths = np.array([len(row) for row in rows], dtype=np.int64)
        ids = np.concatenate(rows).astype(np.int64)
        open_ = self.maskable[ids]
        of = np.repeat(np.arange(len(rows)), lengths)
        wanted = self.num_masked(np.bincount(of[open_], minlength=len(rows)))
        pick = self._pick_tokens if self.word_starts is None else self._pick_words
        places = pick(ids, open_, of, wanted, rng)
        read, right = ids.copy(), ids[places]
        read[places] = self._replacements(right, rng)
        ends = np.cumsum(lengths)
        parts = np.searchsorted(places, ends)
        inside = places - (ends - lengths)[of[places]]
        return MaskedRows(np.split(read, ends[:-1]), np.split(inside, parts[:-1]), np.split(right, parts[:-1]))

    @cached_property
    def _maskable_ids(self) -> Indices:
        return np.flatnonzero(self.maskable)

    def _pick_tokens(
        self, ids: Indices, open_: npt.NDArray[np.bool_], of: Indices, wanted: Indices, random: np.random.Generator
    ) -> Indices:
        """Flat indices of `wanted` random tokens per row, sorted."""
        at = np.flatnonzero(open_)
        at = at[np.lexsort((random.random(len(at)), of[at]))]
        first = np.searchsorted(of[at], np.arange(len(wanted)))
        return np.sort(at[np.arange(len(at)) - first[of[at]] < wanted[of[at]]])

    def _pick_words(
        self, ids: Indices, open_: npt.NDArray[np.bool_], of: Indices, wanted: Indices, random: np.random.Generator
    ) -> Indices:
        """Flat indices of random whole words, sorted; words longer than the remaining number of tokens are skipped.

        If all words of a row are too long, single tokens are selected."""
        assert self.word_starts is not None
        chosen = []
        limits = np.searchsorted(of, np.arange(len(wanted) + 1))
        for first, last, left in zip(limits, limits[1:], wanted, strict=False):
            begins = first + np.flatnonzero(self.word_starts(ids[first:last]))
            begins, ends = begins[open_[begins]], np.append(begins[1:], last)[open_[begins]]
            taken: list[Indices] = []
            for word in random.permutation(len(begins)) if left else ():
                if (size := ends[word] - begins[word]) <= left:
                    taken.append(np.arange(begins[word], ends[word]))
                    left -= size
                if not left:
                    break
            if not taken and left:
                taken.append(random.choice(first + np.flatnonzero(open_[first:last]), left, replace=False))
            chosen += taken
        return np.sort(np.concatenate(chosen)) if chosen else np.zeros(0, dtype=np.int64)

    def _replacements(self, right: Indices, random: np.random.Generator) -> Indices:
        """Input ids that replace the selected tokens `right`."""
        chance, many = random.random(len(right)), len(self._maskable_ids)
        other = random.integers(0, max(many - 1, 1), len(right))
        other += other >= np.searchsorted(self._maskable_ids, right)  # skips the original id
        changed = np.where(
            chance < MASK_FRACTION + RANDOM_FRACTION, self._maskable_ids[np.minimum(other, many - 1)], right
        )
        return np.where(chance < MASK_FRACTION, self.mask_id, changed)
