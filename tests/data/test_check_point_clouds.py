"""Findings of `regard check` in point cloud folders with deliberate errors, without false findings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_files import kinds
from regard.data.check.point_clouds import CloudSurvey, LabeledCloudSurvey, count_outliers, degenerate_shape
from regard.data.check.report import Report
from regard.data.points.cloud import PointCloud
from regard.data.points.cloud_files import write_ply
from regard.data.settings import DataSettings

MANY = 104
BLACK, AXES = np.zeros((80, 3), np.uint8), np.eye(3, dtype=np.float32)[np.arange(80) % 3]


def points(seed: int, many: int = 80) -> np.ndarray:
    return np.random.default_rng(seed).random((many, 3)).astype(np.float32)


def put(path: Path, places: np.ndarray, **beside: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    labels = beside.pop("labels", None)
    write_ply(path, PointCloud(places, **beside), labels)


def clean(folder: Path, many: int = MANY, first: int = 0) -> Path:
    for number in range(many):
        put(folder / ("cube" if number % 2 else "ball") / f"{number:03}.ply", points(first + number))
    return folder


def labelled(folder: Path, many: int = MANY, first: int = 0) -> Path:
    for number in range(many):
        put(folder / f"{number:03}.ply", points(first + number), labels=np.arange(80) % 3)
    return folder


def found(report: Report) -> dict[str, tuple[str, int]]:
    return {name: value for name, value in kinds(report).items() if name != "classes"}


def classify(folder: Path, valid: Path | None = None) -> Report:
    return CloudSurvey.check([str(folder)], [] if valid is None else [str(valid)], None, DataSettings())


def segment(folder: Path, valid: Path | None = None, columns: Any = None) -> Report:
    return LabeledCloudSurvey.check([str(folder)], [] if valid is None else [str(valid)], columns, DataSettings())


def test_clean_point_clouds_have_only_class_statistics(tmp_path: Path) -> None:
    report = classify(clean(tmp_path))
    assert found(report) == {} and report.counts == {"point_clouds": MANY, "entries": 1, "classes": 2}
    assert report.class_counts[0].train == {"ball": 52, "cube": 52}
    said = str(report)
    assert "classes (ball: 52, cube: 52)" in said and said.splitlines()[-1].startswith("Found no errors")
    assert report.as_dict()["sizes"]["points"]["median"] == 80 and "longest side" in said
    assert report.as_dict()["sizes"]["longest_side"]["max"] < 1


def with_nan(folder: Path) -> None:
    places = points(900)
    places[:7] = np.nan
    put(folder / "ball/z.ply", places)


def flat(folder: Path) -> None:
    places = points(901)
    places[:, 2] = 0.5 * places[:, 0] - 0.2 * places[:, 1]
    put(folder / "ball/z.ply", places)


def spread(folder: Path) -> None:
    places = points(902)
    places[3] = (40, 0, 0)
    put(folder / "ball/z.ply", places)


SPOILT: list[tuple[str, Any, dict[str, tuple[str, int]]]] = [
    (
        "cut off", lambda f: (f / "cube/z.ply").write_bytes((f / "cube/001.ply").read_bytes()[:-5]),
        {"decode_error": ("error", 1)},
    ),
    ("no cloud", lambda f: (f / "cube/z.xyz").write_text("<html>"), {"decode_error": ("error", 1)}),
    ("no points", lambda f: np.save(f / "cube/z.npy", np.zeros((0, 3))), {"decode_error": ("error", 1)}),
    ("hidden", lambda f: [(f / name).write_text("x") for name in (".x.ply", "cube/a.md")], {"skipped": ("note", 2)}),
    ("beside", lambda f: put(f / "z.ply", points(903)), {"empty": ("warning", 1)}),
    ("few points", lambda f: put(f / "cube/z.ply", points(904, 20)), {"few_points": ("warning", 1)}),
    ("nowhere", with_nan, {"non_finite": ("warning", 1)}),
    ("plane", flat, {"coplanar": ("warning", 1)}),
    ("line", lambda f: put(f / "ball/z.ply", points(905)[:, :1].repeat(3, 1)), {"collinear": ("warning", 1)}),
    ("place", lambda f: put(f / "ball/z.ply", np.full((80, 3), 7, np.float32)), {"single_location": ("warning", 1)}),
    ("outside", spread, {"outliers": ("warning", 1), "scale_outliers": ("warning", 1)}),
    ("millimetres", lambda f: put(f / "ball/z.ply", 1000 * points(906)), {"scale_outliers": ("warning", 1)}),
    ("kilometres", lambda f: put(f / "ball/z.ply", points(907) / 1000), {"scale_outliers": ("warning", 1)}),
    ("coloured", lambda f: put(f / "ball/z.ply", points(908), colors=BLACK), {"partial_colors": ("warning", 1)}),
    ("normals", lambda f: put(f / "ball/z.ply", points(909), normals=AXES), {"partial_normals": ("warning", 1)}),
    ("again", lambda f: np.save(f / "cube/z.npy", points(3)), {"duplicates": ("warning", 1)}),
    ("shuffled", lambda f: put(f / "cube/z.ply", points(3)[::-1]), {"duplicates": ("warning", 1)}),
    ("otherwise", lambda f: put(f / "ball/z.ply", points(3)), {"conflicting_labels": ("warning", 1)}),
    ("rare", lambda f: put(f / "cone/z.ply", points(910)), {"rare": ("warning", 1)}),
]  # fmt: skip


@pytest.mark.parametrize(("spoil", "wanted"), [case[1:] for case in SPOILT], ids=[case[0] for case in SPOILT])
def test_deliberate_errors_are_found_and_nothing_else(
    spoil: Any, wanted: dict[str, tuple[str, int]], tmp_path: Path
) -> None:
    spoil(clean(tmp_path))
    report = classify(tmp_path)
    assert found(report) == wanted
    for finding in report.findings:
        if finding.locations:
            place = str(finding.locations[0])
            assert "z." in place or finding.id == "skipped"


def test_frequent_warnings_become_errors(tmp_path: Path) -> None:
    clean(tmp_path, 30)
    for number in range(30):
        put(tmp_path / f"cube/z{number}.ply", points(500 + number, 9))
    assert found(classify(tmp_path))["few_points"] == ("error", 30)


def test_training_data_in_the_validation_set_is_found(tmp_path: Path) -> None:
    train, valid = clean(tmp_path / "train"), clean(tmp_path / "valid", 20, first=1000)
    put(valid / "ball/same.ply", points(2)[::-1])
    put(valid / "ball/other.ply", points(3))
    put(valid / "cone/new.ply", points(5000))
    expected = {"leak": ("error", 1), "leak_conflicting_labels": ("warning", 1), "unseen_classes": ("error", 1)}
    assert expected.items() <= found(classify(train, valid)).items()


def test_a_set_that_is_made_is_clean_and_brings_its_validation() -> None:
    report = CloudSurvey.check(["solids#samples=120,points=100"], [], None, DataSettings())
    assert found(report) == {} and report.counts["validation_point_clouds"] == 500
    rooms = LabeledCloudSurvey.check(
        ["rooms#samples=101,points=400"], ["rooms#part=test,samples=9,points=400"], None, DataSettings()
    )
    assert found(rooms) == {} and rooms.counts == {
        "point_clouds": 101, "entries": 1, "classes": 5, "validation_point_clouds": 9, "validation_entries": 1,
    }  # fmt: skip


# -- points with labels


def test_clean_labels_have_only_class_statistics(tmp_path: Path) -> None:
    report = segment(labelled(tmp_path))
    assert found(report) == {} and report.counts["classes"] == 3
    assert report.class_counts[0].train == {"0": 27 * MANY, "1": 27 * MANY, "2": 26 * MANY}


def test_labels_are_held_against_the_classes(tmp_path: Path) -> None:
    labelled(tmp_path)
    (tmp_path / "classes.txt").write_text("floor\nwall\nlamp\nchair\nvoid\n")
    put(tmp_path / "z.ply", points(900), labels=np.full(80, 9))
    put(tmp_path / "zz.ply", points(901), labels=np.array([4, -1] * 40))
    put(tmp_path / "zzz.ply", points(902))
    assert found(segment(tmp_path)) == {
        "unknown_values": ("error", 1), "unlabeled": ("error", 1), "void": ("note", 0),
        "classes_without_samples": ("warning", 1),
    }  # fmt: skip


def test_labels_that_are_not_classes_are_found(tmp_path: Path) -> None:
    for number in range(4):
        put(tmp_path / "many" / f"{number}.ply", points(number), labels=np.arange(80) + 80 * number)
        put(tmp_path / "one" / f"{number}.ply", points(number), labels=np.zeros(80))
        put(tmp_path / "none" / f"{number}.ply", points(number), labels=np.full(80, -1))
    assert found(segment(tmp_path / "many"))["too_many_classes"] == ("error", 320)
    assert found(segment(tmp_path / "one"))["single_class"] == ("error", 1)
    assert found(segment(tmp_path / "none"))["unlabeled"] == ("error", 4)


def test_the_same_points_with_other_labels_are_a_contradiction(tmp_path: Path) -> None:
    train, valid = labelled(tmp_path / "train"), labelled(tmp_path / "valid", 9, first=1000)
    put(train / "z.ply", points(5), labels=np.arange(80) % 2)
    order = np.random.default_rng(0).permutation(80)
    put(train / "zz.ply", points(6)[order], labels=(np.arange(80) % 3)[order])
    put(valid / "z.ply", points(7), labels=np.arange(80) % 2 + 3)
    assert found(segment(train, valid)) == {
        "conflicting_labels": ("warning", 1), "duplicates": ("warning", 1),
        "leak_conflicting_labels": ("warning", 1), "unseen_classes": ("error", 2),
    }  # fmt: skip


def test_a_column_named_by_the_user_is_checked(tmp_path: Path) -> None:
    for number in range(3):
        rows = np.concatenate([points(number), np.full((80, 6), 0.5), np.arange(80)[:, None] % 2], axis=1)
        np.savetxt(tmp_path / f"{number}.txt", rows, fmt="%.5f")
    assert found(segment(tmp_path))["decode_error"] == ("error", 3)  # unnamed columns are ambiguous
    assert segment(tmp_path, columns={"label": "9"}).class_counts[0].train == {"0": 120, "1": 120}


# -- file formats


def test_statistics_do_not_depend_on_size_and_position() -> None:
    for factor, shift in ((1, 0), (1e-3, 0), (1e4, 0), (1, 30)):
        cube = factor * points(1, 500) + np.float32(shift)
        assert degenerate_shape(cube) == ""
        flat_one = cube.copy()
        flat_one[:, 1] = shift
        assert degenerate_shape(flat_one) == "coplanar"
        assert degenerate_shape(cube[:, :1].repeat(3, axis=1)) == "collinear"
        assert degenerate_shape(np.full((10, 3), shift + factor, np.float32)) == "single_location"


def test_elongated_point_clouds_have_no_outliers() -> None:
    assert count_outliers(points(1, 1000) * np.float32([50, 1, 1])) == 0
    assert count_outliers(np.concatenate([points(1, 1000), [[20, 0, 0], [0, 30, 0]]]).astype(np.float32)) == 2
    assert count_outliers(np.zeros((5, 3), np.float32)) == 0
