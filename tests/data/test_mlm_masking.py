"""Masked tokens and next-sentence pairs for the pretraining of encoders."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from regard.data.batching.windows import PretrainingSampler, TokenMasker, segment_pairs, single_segments
from regard.errors import DataError
from regard.types import IGNORE

SPECIAL, MASK, VOCABULARY = 5, 4, 105
HIDING = TokenMasker(MASK, np.arange(VOCABULARY) >= SPECIAL, 0.15)
PARTS = np.array([[0, 200, 1], [230, 300, 1], [300, 420, 2], [420, 424, 3], [424, 425, 4], [500, 900, 5]])
"""Spans with document numbers: the first document has a held-out part, the fourth has one token."""


def random(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def some(lengths: list[int], seed: int = 1) -> list[np.ndarray]:
    return [random(seed + i).integers(SPECIAL, VOCABULARY, n) for i, n in enumerate(lengths)]


def framed(rows: list[np.ndarray]) -> list[np.ndarray]:
    return [np.concatenate([[2], row, [3]]) for row in rows]


# -- masked tokens


def test_each_row_has_a_rounded_fraction_of_masked_tokens_and_at_least_one() -> None:
    rows = framed(some([1, 2, 3, 9, 10, 11, 30, 100, 126, 127]))
    hidden = HIDING(rows, random())
    assert [len(places) for places in hidden.positions] == [1, 1, 1, 1, 2, 2, 4, 15, 19, 19]
    for row, read, places, right in zip(rows, *hidden, strict=True):
        assert len(read) == len(row) and len(set(places.tolist())) == len(places)
        assert (row[places] == right).all() and (np.delete(read, places) == np.delete(row, places)).all()


def test_special_tokens_are_never_masked_counted_or_used_as_replacements() -> None:
    unknown = np.concatenate([some([10])[0], [1] * 30])  # one token in four can be masked
    hidden = HIDING([unknown, np.array([2, 3]), np.array([2, 1, 1, 3])], random())
    assert [len(places) for places in hidden.positions] == [2, 0, 0] and (hidden.positions[0] < 10).all()
    many = HIDING(framed(some([1000] * 300)), random(2))
    assert not set(np.concatenate(many.labels).tolist()) & set(range(SPECIAL))
    put = np.concatenate([read[places] for read, places in zip(many.inputs, many.positions, strict=True)])
    assert set(put.tolist()) == {MASK, *range(SPECIAL, VOCABULARY)}


def test_of_the_masked_positions_eight_in_ten_are_masks_one_is_another_token_and_one_stays() -> None:
    rows = some([200] * 2000)
    hidden = HIDING(rows, random(3))
    right = np.concatenate(hidden.labels)
    put = np.concatenate([read[places] for read, places in zip(hidden.inputs, hidden.positions, strict=True)])
    assert len(right) == 0.15 * 200 * 2000
    shares = {"mask": (put == MASK).mean(), "stays": (put == right).mean()}
    shares["other"] = 1 - sum(shares.values())
    for name, share in {"mask": 0.8, "other": 0.1, "stays": 0.1}.items():
        assert abs(shares[name] - share) < 4 * (share * (1 - share) / len(right)) ** 0.5
    others = put[(put != MASK) & (put != right)] - SPECIAL
    assert np.bincount(others, minlength=100).min() > 0.6 * len(others) / 100  # uniformly distributed


def test_every_position_is_masked_equally_often() -> None:
    hidden = HIDING(framed(some([40] * 4000)), random(4))
    often = np.bincount(np.concatenate(hidden.positions), minlength=42)
    assert often[0] == often[41] == 0 and often.sum() == 6 * 4000
    assert abs(often[1:41] / 4000 - 0.15).max() < 5 * (0.15 * 0.85 / 4000) ** 0.5


def starts(ids: np.ndarray) -> np.ndarray:
    """Word starts: in these tests, even tokens."""
    found = (ids % 2 == 0) | (ids < SPECIAL)
    found[:1] = True
    return found


def words(row: np.ndarray) -> list[tuple[int, ...]]:
    begins = [*np.flatnonzero(starts(row)).tolist(), len(row)]
    return [tuple(range(a, b)) for a, b in pairwise(begins)]


def test_whole_words_are_masked_with_all_their_pieces_and_no_more_tokens_in_all() -> None:
    whole = TokenMasker(MASK, HIDING.maskable, 0.15, starts)
    rows = framed(some([60] * 300))
    hidden, often = whole(rows, random(5)), 0
    for row, places in zip(rows, hidden.positions, strict=True):
        chosen = set(places.tolist())
        assert all(not chosen & set(word) or chosen >= set(word) for word in words(row))
        assert len(chosen) <= 9
        often += len(chosen)
    assert often > 0.99 * 9 * 300
    one = np.array([2, 5, 7, 9, 11, 3])  # a single word of four pieces, with a budget of one token
    (places,) = whole([one], random()).positions
    assert len(places) == 1 and 0 < places[0] < 5


def test_no_rows_within_a_token_limit_have_more_labels_than_computed() -> None:
    draw = random(6)
    for share in (0.05, 0.15, 0.4):
        hiding = TokenMasker(MASK, HIDING.maskable, share)
        for around, longest in ((2, 16), (3, 12), (3, 64)):
            most, highest = hiding.max_masked(512, 60, longest, around), 0
            for _ in range(200):
                lengths = draw.integers(around + 1, draw.integers(around + 2, longest + 1) + 1, 60)
                lengths = lengths[np.cumsum(lengths) <= 512]
                highest = max(highest, int(hiding.num_masked(lengths - around).sum()))
            assert highest <= most <= 512 * share + 61


# -- next-sentence pairs


def part_of(first: int, last: int) -> int:
    (found,) = [i for i, (a, b, _) in enumerate(PARTS.tolist()) if a <= first and last <= b]
    return found


@pytest.mark.parametrize("seed", range(20))
def test_a_second_text_follows_in_its_document_or_is_one_of_another(seed: int) -> None:
    rows = segment_pairs(PARTS[PARTS[:, 1] - PARTS[:, 0] > 1], 30, random(seed))
    follow, other = ([row for row in rows.tolist() if row[4] == label] for label in (0, 1))
    assert follow and other and len(follow) + len(other) == len(rows)
    for a, b, c, d, _ in follow:
        assert a < b == c < d and d - a <= 30 and part_of(a, d) == part_of(a, b)
    for a, b, c, d, _ in other:
        assert a < b and c < d and b - a + d - c <= 30
        assert PARTS[part_of(a, b), 2] != PARTS[part_of(c, d), 2]


def test_half_of_the_second_texts_follow() -> None:
    rows = np.concatenate([segment_pairs(PARTS, 30, random(seed)) for seed in range(200)])
    assert abs(rows[:, 4].mean() - 0.5) < 4 * 0.5 / len(rows) ** 0.5
    first = rows[:, 1] - rows[:, 0]
    assert set(first.tolist()) == set(range(1, 30))  # all lengths occur


def test_neither_length_nor_the_end_of_the_text_reveals_the_nsp_label() -> None:
    documents = np.array([[10 * n * n, 10 * n * n + 20, n] for n in range(1, 60)])
    rows = np.concatenate([segment_pairs(documents, 40, random(seed)) for seed in range(30)])
    ends = np.isin(rows[:, 3], documents[:, 1])
    assert ends.all() and (rows[:, 1] - rows[:, 0] + rows[:, 3] - rows[:, 2] == 20).all()
    long = np.array([[0, 5000, 0], [5000, 9000, 1]])
    rows = np.concatenate([segment_pairs(long, 40, random(seed)) for seed in range(100)])
    ends, other = np.isin(rows[:, 3], long[:, 1]), rows[:, 4] == 1
    assert 0 < ends[other].mean() < 3 * ends[~other].mean() + 0.01
    lengths = rows[:, 1] - rows[:, 0] + rows[:, 3] - rows[:, 2]
    assert abs(lengths[other].mean() - lengths[~other].mean()) < 0.5


def test_negative_second_texts_come_from_all_positions_of_other_documents() -> None:
    documents = np.array([[0, 5000, 0], [5000, 5500, 1], [5500, 7000, 2]])
    rows = np.concatenate([segment_pairs(documents, 20, random(seed)) for seed in range(80)])
    other = rows[rows[:, 4] == 1]
    from_first = other[other[:, 0] < 5000]
    often = np.histogram(from_first[:, 2], bins=20, range=(5000, 7000))[0] / len(from_first)
    assert abs(often - 1 / 20).max() < 0.01


def test_a_text_that_is_too_short_is_drawn_again_and_used_if_there_is_no_other() -> None:
    documents = np.array([[0, 1000, 0], [1000, 1003, 1]])
    rows = segment_pairs(documents, 100, random())
    other = rows[(rows[:, 4] == 1) & (rows[:, 1] <= 1000)]
    assert len(other) and (other[:, 2] >= 1000).all() and (other[:, 3] <= 1003).all()
    short = [[1000 + 3 * n, 1003 + 3 * n, n + 1] for n in range(200)]
    documents = np.array([[0, 1000, 0], *short, [1600, 2600, 300]])
    rows = np.concatenate([segment_pairs(documents, 100, random(seed)) for seed in range(40)])
    other = rows[(rows[:, 4] == 1) & (rows[:, 1] <= 1000) & (rows[:, 1] - rows[:, 0] < 90)]
    assert len(other) > 100 and (other[:, 2] >= 1600).mean() > 0.97


def test_one_document_has_no_negative_pairs_and_no_nsp_labels() -> None:
    rows = segment_pairs(PARTS[:2], 30, random())
    assert (rows[:, 4] == IGNORE).all() and (rows[:, 1] == rows[:, 2]).all()
    with pytest.raises(DataError, match=r"model\.nsp"):
        PretrainingSampler(PARTS[:2], 30, 3, 300, 1, False, True)
    PretrainingSampler(PARTS[:2], 30, 2, 300, 1, False, False)
    with pytest.raises(DataError, match="document"):
        PretrainingSampler(PARTS[4:5], 30, 3, 300, 1, False, True)


def test_single_texts_cover_every_token_once_per_epoch_with_other_cuts() -> None:
    cuts = set()
    for seed in range(5):
        rows = single_segments(PARTS, 30, random(seed))
        read = sorted(place for a, b, c, d, _ in rows.tolist() for place in range(a, b))
        assert read == [place for a, b, _ in PARTS.tolist() for place in range(a, b)]
        assert (rows[:, 2] == rows[:, 3]).all() and all(part_of(a, b) >= 0 for a, b in rows[:, :2].tolist())
        cuts.add(tuple(rows[:, 0].tolist()))
    assert len(cuts) == 5


def test_packed_micro_batches_have_one_shape_and_padded_ones_little_padding() -> None:
    packed, padded = (PretrainingSampler(PARTS, 33, 3, 132, 1, packed, True) for packed in (True, False))
    assert padded.micro_batch(7)[1][:, 5:].tolist() == [[1, 7]] * len(padded.micro_batch(7)[1])  # seed and number
    assert packed.static_shape and packed.shape is not None and not padded.static_shape and padded.shape is None
    assert packed.padded_size(packed.micro_batch(0)[1]) == packed.shape.row_lengths[0]
    assert all(len(packed.micro_batch(n)[1]) < packed.shape.num_documents for n in range(60))
    assert 0 <= packed.padding_fraction() < 0.4 and 0 <= padded.padding_fraction() < 0.2
    assert "text pairs" in padded.description and "packed" in packed.description
