"""Losses and metrics of dense predictions against NumPy; tag schemes and metrics of tags against `seqeval`."""

from __future__ import annotations

import math
import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from data_files import refused
from regard.data.text import tagged
from regard.errors import RegardError
from regard.nn.vision.dense import inverse_depth, metric_loss, relative_loss
from regard.tasks.metrics.per_class import tagging_metrics
from regard.tasks.metrics.segmentation_depth import SegmentationMetrics, align_depth, depth_scores
from regard.types import IGNORE
from tiny import near, noise

# -- losses: B images of H × W, the last without a known pixel

SAID, TARGET = noise(4, 11, 9, seed=1), noise(4, 11, 9, seed=2).abs() + 0.2
KNOWN = torch.rand(4, 11, 9, generator=torch.Generator().manual_seed(3)) < 0.7
KNOWN[2:] = False
KNOWN[2, 4, 5] = True
KNOWN[0, 0, 0] = not KNOWN[0].flatten()[1:].sum() % 2  # an odd number of pixels in one image, an even number in another
KNOWN[1, 0, 0] = bool(KNOWN[1].flatten()[1:].sum() % 2)


def relative(said: np.ndarray, target: np.ndarray, known: np.ndarray) -> float:
    """Loss of one image: trimmed error of normalized values, and differences between neighbors at four scales."""
    count = int(known.sum())
    if not count:
        return 0.0

    def normalized(x: np.ndarray) -> np.ndarray:
        middle = np.quantile(x[known], 0.5, method="inverted_cdf")  # the lower median
        return (x - middle) / (np.abs(x[known] - middle).mean() or 1.0)

    gap, total = np.where(known, normalized(said) - normalized(target), np.nan), 0.0
    for part in (gap[::step, ::step] for step in (1, 2, 4, 8)):
        total += sum(float(np.nansum(np.abs(np.diff(part, axis=axis)))) for axis in (0, 1))
    return float(np.sort(np.abs(gap[known]))[: int(0.8 * count)].sum()) / (2 * count) + 0.5 * total / count


def metric(said: np.ndarray, target: np.ndarray, known: np.ndarray) -> float:
    """Loss of one image: deviation of log ratios, with 0.85 of their squared mean removed."""
    ratios = np.log(said[known] / target[known])
    return math.sqrt((ratios**2).mean() - 0.85 * ratios.mean() ** 2) if ratios.size else 0.0


@pytest.mark.parametrize(("loss", "right"), [(relative_loss, relative), (metric_loss, metric)])
def test_losses_and_their_gradients_equal_their_definitions(loss: Any, right: Any) -> None:
    said = SAID if loss is relative_loss else SAID.abs() + 0.1
    each = [right(*image) for image in zip(said.numpy(), TARGET.numpy(), KNOWN.numpy(), strict=True)]
    total, count = loss(said, TARGET, KNOWN)
    assert int(count) == 3 and each[0] > 0.1 and each[3] == 0 and (KNOWN.sum((1, 2)) % 2).tolist() == [1, 0, 1, 0]
    near(total, torch.tensor(sum(each), dtype=torch.float64))
    for row in range(4):
        assert float(loss(said[[row]], TARGET[[row]], KNOWN[[row]])[0]) == pytest.approx(each[row], abs=1e-12)
    leaf, wild = said.clone().requires_grad_(), torch.tensor([math.nan, math.inf, -1e300, math.nan])
    total, count = loss(leaf, torch.where(KNOWN, TARGET, wild.double()[:, None, None]), KNOWN)
    near(total, loss(said, TARGET, KNOWN)[0])  # values at unknown pixels change nothing
    (grad,) = torch.autograd.grad(total, leaf)
    assert int(count) == 3 and bool(grad.isfinite().all()) and not bool(grad[~KNOWN].any()) and bool(grad.any())
    total, count = loss(leaf, torch.full_like(TARGET, math.nan), torch.zeros_like(KNOWN))
    (grad,) = torch.autograd.grad(total, leaf)
    assert not bool(total) and int(count) == 0 and not bool(grad.any()) and bool(grad.isfinite().all())
    two = said[:2].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: loss(x, TARGET[:2], KNOWN[:2])[0], (two,), eps=1e-7, atol=1e-6)


def test_a_constant_prediction_has_a_loss_and_a_finite_gradient() -> None:
    said = torch.full_like(SAID, 0.3).requires_grad_()
    total, count = relative_loss(said, TARGET, KNOWN)
    (grad,) = torch.autograd.grad(total, said)
    assert int(count) == 3 and bool(total > 0) and bool(grad.isfinite().all()) and float(grad.abs().max()) < 10
    assert bool(relative_loss(SAID, torch.full_like(TARGET, 2.0), KNOWN)[0].isfinite())


def test_the_metric_loss_depends_on_the_unit_and_an_exact_prediction_has_no_gradient() -> None:
    said = SAID.abs() + 0.1
    near(*(metric_loss(x, TARGET, KNOWN, variance_weight=1.0)[0] for x in (3 * said, said)), 1e-9)
    assert float(metric_loss(3 * TARGET, TARGET, KNOWN)[0]) > 0.1 > float(metric_loss(TARGET, TARGET, KNOWN)[0])
    exact = TARGET.clone().requires_grad_()
    assert not bool(torch.autograd.grad(metric_loss(exact, TARGET, KNOWN)[0], exact)[0].any())


def test_depth_of_0_is_not_measured() -> None:
    depth = torch.tensor([[[2.0, 0.0, math.inf, math.nan, 4.0]]])
    found, known = inverse_depth(depth, torch.tensor([[[True, True, True, True, False]]]))
    assert known.tolist() == [[[True, False, False, False, False]]] and found.tolist() == [[[0.5, 0, 0, 0, 0]]]


def test_sixteen_bits_are_summed_in_more() -> None:
    said, target = SAID.bfloat16(), TARGET.bfloat16()
    near(relative_loss(said, target, KNOWN)[0], relative_loss(said.float(), target.float(), KNOWN)[0])


# -- metrics


def test_overlaps_equal_their_definition() -> None:
    random = np.random.default_rng(4)
    right, said = random.integers(0, 4, (3, 7, 5)), random.integers(0, 4, (3, 7, 5))
    right[right == 2] = 3  # class 2 is predicted and never present
    right[0, :3] = 255
    found = SegmentationMetrics(5, ignore_index=255)  # class 4 is neither predicted nor present
    for one, other in zip(said, right, strict=True):
        found.add(one, other)
    said, right = said[right != 255], right[right != 255]
    pairs = [(said == name, right == name) for name in range(5)]
    each = [(a & b).sum() / (a | b).sum() if (a | b).any() else None for a, b in pairs]
    assert each[2] == 0 and each[4] is None
    assert found.iou_by_name("abcde") == dict(zip("abcde", each, strict=True))
    assert found.mean_iou() == pytest.approx(np.mean(each[:4]))
    assert found.accuracy() == pytest.approx((said == right).mean())


def test_void_pixels_and_wrong_maps() -> None:
    found = SegmentationMetrics(2)
    found.add(np.zeros((2, 2), int), np.full((2, 2), IGNORE))
    assert found.mean_iou() == found.accuracy() == 0.0
    refused("class ids", found.add, np.zeros((2, 2), int), np.full((2, 2), 2), error=ValueError)
    refused("does not match target shape", found.add, np.zeros((2, 2), int), np.zeros((2, 3), int), error=ValueError)
    found.add(np.array([0, 1, 255]), np.array([0, 1, IGNORE]))  # predictions at void pixels are ignored
    assert found.mean_iou() == 1


def test_distances_equal_their_definitions() -> None:
    random = np.random.default_rng(6)
    said, right = random.uniform(0.5, 6, (6, 5)), random.uniform(0.5, 6, (6, 5))
    right[0, :2], right[1, 1] = 0.0, np.nan
    d, t = said[right > 0], right[right > 0]
    expected = {
        "abs_rel": (np.abs(d - t) / t).mean(), "rmse": ((d - t) ** 2).mean() ** 0.5,
        "log10": np.abs(np.log10(d / t)).mean(),
        **{f"delta{n}": (np.maximum(d / t, t / d) < 1.25**n).mean() for n in (1, 2, 3)},
    }  # fmt: skip
    assert len(d) == 27 and depth_scores(said, right) == pytest.approx(expected)
    assert 0 < expected["delta1"] < expected["delta2"] < expected["delta3"] < 1
    assert depth_scores(np.ones((2, 2)), np.zeros((2, 2))) == {}  # no known pixel


def test_a_relative_prediction_is_fitted_to_the_inverse_by_least_squares() -> None:
    random = np.random.default_rng(8)
    said, right = random.uniform(0, 1, (6, 5)), random.uniform(1, 2, (6, 5))
    right[2:4] = 0
    known = right > 0
    said[3] = 1e6  # unknown depth: not used in the alignment
    said[3, 1] = -1e6
    line = np.polyfit(said[known], 1 / right[known], 1)
    depth = align_depth(said, right, 1.6)
    np.testing.assert_allclose(depth[known], 1 / np.maximum(np.polyval(line, said[known]), 1 / 1.6), rtol=1e-9)
    assert depth[3, 1 if line[0] > 0 else 0] == pytest.approx(1.6)  # clipped, because the inverse would be below 0
    assert np.isnan(align_depth(said, np.zeros((6, 5)), 20.0)).all()
    assert align_depth(said[:1, :2], np.array([[4.0, 0.0]]), 20.0).tolist() == [[4.0, 4.0]]  # shift without scale


KINDS = ("PER", "LOC", "A-B")
SAME = {"L": "E", "U": "S"}


def random_tags(draw: random.Random, letters: str, length: int) -> list[str]:
    """Random tags."""
    tags = ["O", *(f"{letter}-{kind}" for letter in letters for kind in KINDS), *letters]
    return [draw.choice(tags) for _ in range(length)]


def some_entities(draw: random.Random, length: int) -> list[tagged.Entity]:
    found, at = [], 0
    while at < length:
        size = draw.randrange(1, 4)
        if draw.random() < 0.6 and at + size <= length:
            found.append(tagged.Entity(draw.choice(KINDS), at, at + size - 1))
        at += size if draw.random() < 0.6 else size + 1
    return found


def theirs(tags: list[str]) -> list[str]:
    """Tags in the letters of BIOES, which are the only letters supported by `seqeval`."""
    return [SAME.get(tag[0], tag[0]) + tag[1:] for tag in tags]


@pytest.mark.parametrize("letters", ["I", "BI", "IE", "BIES", "BILU", "BIESLU"])
def test_entities_of_any_tags_are_those_of_seqeval(letters: str) -> None:
    pytest.importorskip("seqeval", reason="what is compared with")
    from seqeval.metrics.sequence_labeling import get_entities

    draw = random.Random(letters)
    for _ in range(1500):
        tags = random_tags(draw, letters, draw.randrange(12))
        ours = [(entity.type or "_", entity.first, entity.last) for entity in tagged.extract_entities(tags)]
        assert ours == get_entities(theirs(tags)), tags


@pytest.mark.parametrize("scheme", list(tagged.SCHEME_LETTERS))
def test_every_scheme_gives_back_the_entities_it_was_given(scheme: tagged.TagScheme) -> None:
    draw = random.Random(1)
    seen, detector, entities = set[str](), tagged.SchemeDetector(), 0
    for _ in range(400):
        length = draw.randrange(1, 12)
        found = some_entities(draw, length)
        entities += len(found)
        tags = tagged.entities_to_tags(found, length, scheme)
        seen.update(tags)
        assert tagged.extract_entities(tags) == found and tagged.convert_tags(tags, scheme) == tags
        for other in tagged.SCHEME_LETTERS:
            assert tagged.convert_tags(tagged.convert_tags(tags, other), scheme) == tags
        detector.update(tags)
    assert seen == set(tagged.scheme_tags(KINDS, scheme))
    assert tagged.scheme_tags(["Y", "X"], "IOB2") == ["O", "B-X", "I-X", "B-Y", "I-Y"]
    assert tagged.scheme_tags([""], "BIOES") == ["O", "B", "E", "I", "S"]
    assert detector.scheme == scheme and not detector.num_invalid and not detector.ambiguity
    assert sum(detector.type_counts.values()) == entities


def test_strict_seqeval_reads_our_tags() -> None:
    pytest.importorskip("seqeval", reason="what is compared with")
    from seqeval.scheme import BILOU, IOB1, IOB2, IOBES, Entities

    draw = random.Random(2)
    for scheme, its in {"IOB1": IOB1, "IOB2": IOB2, "BIOES": IOBES, "BILOU": BILOU}.items():
        for _ in range(100):
            found = some_entities(draw, 9)
            read = Entities([tagged.entities_to_tags(found, 9, scheme)], its).entities[0]  # type: ignore[arg-type]
            assert [(entity.tag, entity.start, entity.end - 1) for entity in read] == [tuple(e) for e in found]


@pytest.mark.parametrize("letters", ["BI", "BIES", "BILU"])
def test_measures_are_those_of_seqeval(letters: str) -> None:
    """Precision, recall, F1 and support, overall and per entity type, bit for bit."""
    pytest.importorskip("seqeval", reason="what is compared with")
    from seqeval.metrics import sequence_labeling as metrics

    draw = random.Random(letters)
    for round_ in range(150):
        right, said = [], []
        for _ in range(draw.randrange(1, 20)):
            length = draw.randrange(1, 10)
            tags = random_tags(draw, letters, length)
            right.append(tags)
            others = random_tags(draw, letters, length)
            said.append([tag if draw.random() < 0.8 else other for tag, other in zip(tags, others, strict=True)])
        if round_ == 0:
            right, said = [["O"] * 3], [["O"] * 3]  # division by zero
        found = tagging_metrics(right, said, "IOB2")
        ours, its = [list(map(theirs, side)) for side in (right, said)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            each = metrics.precision_recall_fscore_support(ours, its, average=None)
            whole = metrics.precision_recall_fscore_support(ours, its, average="micro")
        by_kind = [hits for _, hits in sorted((kind or "_", hits) for kind, hits in found.by_class.items())]
        assert [(h.precision, h.recall, h.f1, h.actual) for h in by_kind] == list(zip(*each, strict=True))
        assert (found.micro.precision, found.micro.recall, found.micro.f1, found.micro.actual) == whole
        if not set("LU") & set(letters):
            assert found.accuracy == metrics.accuracy_score(ours, its)


def test_measures_by_hand() -> None:
    right = [["B-PER", "I-PER", "O", "B-LOC"], ["B-LOC", "O"]]
    said = [["B-PER", "I-PER", "B-LOC", "O"], ["B-LOC", "O"]]
    found = tagging_metrics(right, said, "IOB2")
    assert found.scores() == {"f1": 66.67, "precision": 66.67, "recall": 66.67, "accuracy": 66.67, "macro_f1": 75.0}
    assert found.table().splitlines()[2:] == [
        "| LOC  |    50 |        50 |     50 |       2 |         2 |",
        "| PER  |   100 |       100 |    100 |       1 |         1 |",
        "| all  | 66.67 |     66.67 |  66.67 |       3 |         3 |",
    ]
    found = tagging_metrics([["B-X", "I-X", "I-X"]], [["B-X", "I-X", "O"]], "IOB2")
    assert found.micro.correct == 0 and found.accuracy == pytest.approx(2 / 3)  # half an entity is not correct


def test_plain_tags_are_measured_by_word() -> None:
    found = tagging_metrics([["NN", "VB", "NN"], ["DT"]], [["NN", "NN", "NN"], ["DT"]], "plain")
    assert found.scores() == {"f1": 75.0, "accuracy": 75.0, "macro_f1": 60.0}
    assert found.by_class["NN"].precision == 2 / 3
    assert found.by_class["NN"].recall == 1.0
    assert found.by_class["VB"].f1 == 0.0
    assert [row.split()[1] for row in found.table().splitlines()[2:]] == ["NN", "DT", "VB", "all"]
    assert found.micro.f1 == found.accuracy


def test_a_figure_of_every_kind_is_drawn(tmp_path: Path) -> None:
    found = tagging_metrics([["B-PER", "O", "B-猫"]], [["B-PER", "O", "O"]], "IOB2")
    assert found.save_figure(tmp_path / "a.png").stat().st_size > 10_000
    drawn = found.save_figure(tmp_path / "a.svg").read_text()
    assert ">PER<" in drawn and ">66.7<" in drawn and ">entities<" in drawn


def test_uneven_sentences_and_strange_tags_are_refused() -> None:
    refused("predicted tags do not match", tagging_metrics, [["O", "O"]], [["O"]], "IOB2", error=RegardError)
    refused("'NN'", tagged.extract_entities, ["NN"], error=RegardError)


SPELLINGS: list[tuple[str, tuple[str, ...], str, int, str]] = [
    ("IOB1", ("I-X I-X O I-Y", "I-X B-X O"), "IOB1", 0, ""),
    ("IOB2", ("B-X I-X O B-Y", "B-X B-X O"), "IOB2", 0, ""),
    ("BIOES", ("B-X E-X O S-Y", "B-X I-X E-X"), "BIOES", 0, ""),
    ("BILOU", ("B-X L-X O U-Y", "B-X I-X L-X"), "BILOU", 0, ""),
    ("plain", ("NN VB", "DT NN S B"), "plain", 0, ""),
    ("letters", ("B I O", "B O"), "IOB2", 0, ""),
    ("one slip", (*["B-X I-X O"] * 20, "O I-X I-X"), "IOB2", 1, ""),
    ("many slips", ("B-X O", "B-X I-X", "I-X O"), "IOB2", 1, "(IOB2: 1, IOB1: 2)"),
    ("no entity", ("O O O",), "IOB2", 0, "no word is part of an entity"),
    ("as many", ("B-X O", "I-X O"), "IOB2", 1, "match IOB1 equally well"),
    ("E without B", (*["B-X E-X O S-X"] * 9, "O E-X O"), "BIOES", 1, ""),
    ("behind", ("PER-B PER-I O",), "plain", 0, "'PER-B' resembles an entity tag in an unsupported format"),
    ("two forms", ("B-X O", "NN VB"), "plain", 0, "'B-X' is an entity tag and 'NN' is not"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("sentences", "scheme", "repaired", "doubt"), [case[1:] for case in SPELLINGS], ids=[case[0] for case in SPELLINGS]
)
def test_the_scheme_is_recognized_by_its_tags(
    sentences: tuple[str, ...], scheme: str, repaired: int, doubt: str
) -> None:
    found = tagged.SchemeDetector()
    for sentence in sentences:
        found.update(sentence.split())
    assert (found.scheme, found.num_invalid) == (scheme, repaired)
    assert doubt in found.ambiguity and bool(doubt) == bool(found.ambiguity)
