"""CIDEr-D of captions (Vedantam et al. 2015), as in the COCO evaluation.

N-grams of one to four words are weighted by inverse document frequency over the references of all images and compared as
vectors. Counts are clipped to the counts of the reference, and length differences are penalized. The maximum is 10, for a
prediction equal to its only reference. With a single image all weights and the score are 0."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

MAX_NGRAM = 4  # maximum n-gram length
SIGMA = 6.0  # standard deviation of the length penalty, in words

_WORD_PATTERN = re.compile(
    r"n['’]t\b|['’](?:s|m|d|ll|re|ve)\b"  # suffixes that the Penn Treebank tokenizer splits off
    r"|[^\W_](?:(?!n['’]t\b)(?:[^\W_]|[.,:/_&@+-](?=[^\W_])|['’](?!(?:s|m|d|ll|re|ve)\b)(?=[^\W_])))*"
    r"|[^\w\s.,:;!?'’‘\"“”`()\[\]{}…–—-]"  # symbols other than punctuation
)

Words = Sequence[str]
IntArray = NDArray[np.int64]


def tokenize_words(text: str) -> list[str]:
    """Lowercased words without punctuation, with `don't` split in two: approximates the tokenizer of COCO evaluation."""
    return _WORD_PATTERN.findall(text.lower())


def cider(predictions: Sequence[Words], reference_sets: Sequence[Sequence[Words]]) -> NDArray[np.float64]:
    """CIDEr-D of each image, 0 to 10, from tokenized predictions and references."""
    if len(predictions) != len(reference_sets) or not all(reference_sets):
        raise ValueError("Every image must have a prediction and at least one reference.")
    many = np.array([len(references) for references in reference_sets], dtype=np.int64)
    picture = np.concatenate([np.arange(len(predictions)), np.repeat(np.arange(len(predictions)), many)])
    sentences = [*predictions, *(reference for references in reference_sets for reference in references)]
    lengths = np.array([len(sentence) for sentence in sentences], dtype=np.float64)
    references = np.arange(len(predictions), len(sentences))
    near = np.exp(-((lengths[picture[references]] - lengths[references]) ** 2) / (2 * SIGMA**2))
    total = np.zeros(len(references))
    for ngrams in _ngrams(sentences):
        total += _cosine_similarity(*ngrams, picture, len(predictions), len(references))
    sums = np.bincount(picture[references], total * near, minlength=len(predictions))
    return 10 * sums / (MAX_NGRAM * many)


def _cosine_similarity(
    sentence: IntArray, ngram_id: IntArray, occurrences: IntArray, picture: IntArray, many: int, references: int
) -> NDArray[np.float64]:
    """Cosine similarity between each reference and the prediction for its image."""
    own, kinds = sentence < many, int(ngram_id.max(initial=-1)) + 1
    where = picture[sentence] * max(kinds, 1) + ngram_id  # n-gram of an image
    occurs = np.unique(where[~own]) % max(kinds, 1)
    rare = np.log(max(many, 1)) - np.log(np.maximum(np.bincount(occurs, minlength=kinds), 1))
    weight = occurrences * rare[ngram_id]
    norms = np.sqrt(np.bincount(sentence, weight**2, minlength=many + references))
    order = np.argsort(where[own], kind="stable")
    spoken, heavy = where[own][order], weight[own][order]
    at = np.minimum(np.searchsorted(spoken, where[~own]), max(len(spoken) - 1, 0))
    same = spoken[at] == where[~own] if len(spoken) else np.zeros((~own).sum(), dtype=bool)
    theirs = weight[~own][same]
    shared = np.minimum(heavy[at[same]], theirs) * theirs
    owners = sentence[~own][same] - many
    products = np.bincount(owners, shared, minlength=references)
    both = norms[picture[many:]] * norms[many:]
    return np.divide(products, both, out=np.zeros(references), where=both > 0)


def _ngrams(sentences: Sequence[Words]) -> Iterator[tuple[IntArray, IntArray, IntArray]]:
    """Distinct n-grams of each sentence, for n = 1, 2, …: sentence index, n-gram index and count in the sentence. The key of
    an n-gram is the id of its prefix and its last word."""
    number: dict[str, int] = {}
    tokens = np.array([number.setdefault(word, len(number)) for row in sentences for word in row], dtype=np.int64)
    lengths = np.array([len(row) for row in sentences], dtype=np.int64)
    owner = np.repeat(np.arange(len(sentences)), lengths)
    last = np.repeat(np.cumsum(lengths), lengths)  # end of the sentence of each word
    kinds = tokens
    begins = np.arange(len(tokens))
    for length in range(1, MAX_NGRAM + 1):
        if length > 1:
            inside = begins + length <= last[begins]
            begins = begins[inside]
            keys = kinds[inside] * max(len(number), 1) + tokens[begins + length - 1]
            kinds = np.unique(keys, return_inverse=True)[1].astype(np.int64)
        most = int(kinds.max(initial=-1)) + 1
        each, count = np.unique(owner[begins] * max(most, 1) + kinds, return_counts=True)
        yield each // max(most, 1), each % max(most, 1), count.astype(np.int64)
