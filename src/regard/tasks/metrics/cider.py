"""CIDEr-D: how far a caption agrees with what people say of the picture (Vedantam et al. 2015, as COCO's server computes it).

Stretches of one to four words are weighed by how rare they are among the references of all pictures, and compared as
vectors. What is said more often than in a reference counts no more than there, and captions of another length count less.
10 would be an answer that is its own only reference. One picture alone has no rare words, and 0.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MAX_NGRAM = 4
"""words of a stretch"""
SIGMA = 6.0
"""words that lengths may differ by before it counts much"""

_WORD_PATTERN = re.compile(
    r"n['’]t\b|['’](?:s|m|d|ll|re|ve)\b"  # what Penn's treebank cuts off a word
    r"|[^\W_](?:(?!n['’]t\b)(?:[^\W_]|[.,:/_&@+-](?=[^\W_])|['’](?!(?:s|m|d|ll|re|ve)\b)(?=[^\W_])))*"
    r"|[^\w\s.,:;!?'’‘\"“”`()\[\]{}…–—-]"  # signs that are no punctuation
)

Words = Sequence[str]
IntArray = NDArray[np.int64]


def tokenize_words(text: str) -> list[str]:
    """Lower case, punctuation left out, `don't` in two, as COCO's evaluation does with Penn's tokenizer, roughly."""
    return _WORD_PATTERN.findall(text.lower())


class NGrams(NamedTuple):
    """All stretches of some length in some sentences, each once a sentence."""

    sentence: IntArray
    """the sentence"""
    ngram_id: IntArray
    """which stretch it is"""
    occurrences: IntArray
    """how often it is there"""


def cider(predictions: Sequence[Words], reference_sets: Sequence[Sequence[Words]]) -> NDArray[np.float64]:
    """Of each picture the agreement of what was `said`, in words, with its references: 0 to 10."""
    if len(predictions) != len(reference_sets) or not all(reference_sets):
        raise ValueError("Every image must have a prediction and at least one reference.")
    many = np.array([len(references) for references in reference_sets], dtype=np.int64)
    picture = np.concatenate([np.arange(len(predictions)), np.repeat(np.arange(len(predictions)), many)])
    sentences = [*predictions, *(reference for references in reference_sets for reference in references)]
    lengths = np.array([len(sentence) for sentence in sentences], dtype=np.float64)
    references = np.arange(len(predictions), len(sentences))
    near = np.exp(-((lengths[picture[references]] - lengths[references]) ** 2) / (2 * SIGMA**2))
    total = np.zeros(len(references))
    for found in _ngrams(sentences):
        total += _cosine_similarity(found, picture, len(predictions), len(references))
    sums = np.bincount(picture[references], total * near, minlength=len(predictions))
    return 10 * sums / (MAX_NGRAM * many)


def _cosine_similarity(found: NGrams, picture: IntArray, many: int, references: int) -> NDArray[np.float64]:
    """Of each reference the cosine between what was said and itself."""
    own, kinds = found.sentence < many, int(found.ngram_id.max(initial=-1)) + 1
    where = picture[found.sentence] * max(kinds, 1) + found.ngram_id  # a stretch of a picture
    occurs = np.unique(where[~own]) % max(kinds, 1)
    rare = np.log(max(many, 1)) - np.log(np.maximum(np.bincount(occurs, minlength=kinds), 1))
    weight = found.occurrences * rare[found.ngram_id]
    norms = np.sqrt(np.bincount(found.sentence, weight**2, minlength=many + references))
    order = np.argsort(where[own], kind="stable")
    spoken, heavy = where[own][order], weight[own][order]
    at = np.minimum(np.searchsorted(spoken, where[~own]), max(len(spoken) - 1, 0))
    same = spoken[at] == where[~own] if len(spoken) else np.zeros((~own).sum(), dtype=bool)
    theirs = weight[~own][same]
    shared = np.minimum(heavy[at[same]], theirs) * theirs
    owners = found.sentence[~own][same] - many
    products = np.bincount(owners, shared, minlength=references)
    both = norms[picture[many:]] * norms[many:]
    return np.divide(products, both, out=np.zeros(references), where=both > 0)


def _ngrams(sentences: Sequence[Words]) -> list[NGrams]:
    """Of one word, of two, …; a stretch is known by the number of its beginning and of its last word."""
    number: dict[str, int] = {}
    tokens = np.array([number.setdefault(word, len(number)) for row in sentences for word in row], dtype=np.int64)
    lengths = np.array([len(row) for row in sentences], dtype=np.int64)
    owner = np.repeat(np.arange(len(sentences)), lengths)
    last = np.repeat(np.cumsum(lengths), lengths)  # where the sentence of each word ends
    kinds, made = tokens, []
    begins = np.arange(len(tokens))
    for length in range(1, MAX_NGRAM + 1):
        if length > 1:
            inside = begins + length <= last[begins]
            begins = begins[inside]
            keys = kinds[inside] * max(len(number), 1) + tokens[begins + length - 1]
            kinds = np.unique(keys, return_inverse=True)[1].astype(np.int64)
        most = int(kinds.max(initial=-1)) + 1
        each, count = np.unique(owner[begins] * max(most, 1) + kinds, return_counts=True)
        made.append(NGrams(each // max(most, 1), each % max(most, 1), count.astype(np.int64)))
    return made
