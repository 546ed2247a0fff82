"""Point cloud files other than PLY: contents, and errors with name and line."""

from __future__ import annotations

import io
import struct
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regard.data.points.cloud_files import CLOUD_SUFFIXES, read_cloud
from regard.errors import DataError

CORNERS = ("0 0 0", "1 0 0", "1 1 0", "0 1 0", "0 0 1", "1 0 1", "1 1 1", "0 1 1")
SIDES = ("4 0 3 2 1", "4 4 5 6 7", "4 0 1 5 4", "4 1 2 6 5", "4 2 3 7 6", "4 3 0 4 7")
CUBE = "\n".join(("OFF", "8 6 0", *CORNERS, *SIDES, ""))


def refused(content: bytes | str, ending: str, problem: str, tmp_path: Path, **how: Any) -> None:
    path = tmp_path / f"bad{ending}"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError, match=problem) as error:
        read_cloud(str(path), **how)
    assert error.value.path == str(path)


def at(content: str | bytes, ending: str, tmp_path: Path, **how: Any) -> Any:
    path = tmp_path / f"good{ending}"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_cloud(str(path), **how)


def on_cube(places: np.ndarray) -> np.ndarray:
    """Side of the unit cube on which each point is located."""
    sides = np.concatenate([np.abs(places) < 1e-6, np.abs(places - 1) < 1e-6], axis=1)
    assert (sides.sum(axis=1) >= 1).all() and (places >= -1e-6).all() and (places <= 1 + 1e-6).all()
    return sides.argmax(axis=1)


# -- meshes


@pytest.mark.parametrize(
    "text",
    [
        CUBE,
        CUBE.replace("OFF\n8 6 0", "OFF8 6 0"),  # the header style of ModelNet
        CUBE.replace("OFF\n8 6 0", "OFF 8 6 0"),
        CUBE.replace("OFF\n", "# a comment\n\nOFF # here too\n").replace("0 0 1\n", "0 0 1 # corner\n\n"),
        CUBE.replace("\n", "\r\n"),
        CUBE.replace("4 0 3 2 1", "4 0 3 2 1 255 0 0"),  # a face with a color
    ],
    ids=["plain", "one line", "one line apart", "comments", "windows", "colored face"],
)
def test_an_off_file_is_read_however_it_begins(text: str, tmp_path: Path) -> None:
    cloud = at(text, ".off", tmp_path, num_points=6000)
    counts = np.bincount(on_cube(cloud.coordinates), minlength=6)
    assert cloud.from_mesh and counts.min() > 850  # about 1,000 points per side


def test_an_off_file_may_have_colors_and_normals(tmp_path: Path) -> None:
    rows = ["0 0 0 0 0 1 255 0 0 255", "1 0 0 0 0 1 255 0 0 255", "0 1 0 0 0 1 0 0 255 255"]
    cloud = at("\n".join(["CNOFF", "3 1 0", *rows, "3 0 1 2"]), ".off", tmp_path, num_points=2000)
    assert cloud.colors is not None and cloud.normals is not None
    # colors are interpolated between vertices: blue grows with y
    np.testing.assert_allclose(cloud.colors[:, 2], 255 * cloud.coordinates[:, 1], atol=1)
    np.testing.assert_array_equal(cloud.normals, np.tile([0, 0, 1], (2000, 1)))
    lone = at("\n".join(["CNOFF", "3 0 0", *rows]), ".off", tmp_path)
    assert len(lone) == 3 and not lone.from_mesh and lone.colors[2].tolist() == [0, 0, 255]


FACET = (
    "solid a\nfacet normal 0 0 1\nouter loop\nvertex 1 0 0\nvertex 2 0 0\nvertex 1 2 0\nendloop\nendfacet\nendsolid a\n"
)

OBJ = "\n".join((
    "# a cube", "mtllib cube.mtl", "o cube", *(f"v {corner}" for corner in CORNERS), "vt 0 0", "vn 0 0 1", "usemtl stone",
    "s off", "f 1/1/1 4/1/1 3/1/1 2/1/1", "f 5//1 6//1 7//1 8//1", "f 1/1 2/1 6/1 5/1", "f -7 -6 -2 -3", "f 3 4 \\", "8 7",
    "f 4 1 5 8", "l 1 2", "",
))  # fmt: skip


def test_an_obj_file_has_slashes_negative_corners_and_ignored_lines_and_colors_or_a_weight(tmp_path: Path) -> None:
    cloud = at(OBJ, ".obj", tmp_path, num_points=6000)
    assert np.bincount(on_cube(cloud.coordinates), minlength=6).min() > 850
    text = "v 0 0 0 1 0 0\nv 1 0 0 1 0 0\nv 0 1 0 0 0 1\nf 1 2 3\n"
    cloud = at(text, ".obj", tmp_path, num_points=1000)
    np.testing.assert_allclose(cloud.colors[:, 2], 255 * cloud.coordinates[:, 1], atol=1)
    weighted = at("v 0 0 0 1.0\nv 1 0 0 1.0\nv 0 1 0 1.0\n", ".obj", tmp_path)
    assert len(weighted) == 3 and weighted.colors is None


def test_sampling_is_a_pure_function_of_the_seed_and_degenerate_meshes_are_their_vertices(tmp_path: Path) -> None:
    first, again, other = (at(CUBE, ".off", tmp_path, seed=seed, num_points=100) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.coordinates, again.coordinates)
    assert len(first) == 100 and (first.coordinates != other.coordinates).any()
    cloud = at("OFF\n3 1 0\n0 0 0\n1 1 1\n2 2 2\n3 0 1 2\n", ".off", tmp_path)
    assert len(cloud) == 3 and not cloud.from_mesh


def test_a_corner_that_is_nowhere_takes_its_faces_away_and_a_far_away_mesh_keeps_its_form(tmp_path: Path) -> None:
    for word in ("nan", "inf", "1e38"):
        cloud = at(CUBE.replace("1 1 1\n", f"1 1 {word}\n"), ".off", tmp_path, num_points=600)
        assert set(on_cube(cloud.coordinates)) == {0, 1, 2, 4} and len(cloud) == 600 and cloud.num_dropped == 0
    far = "\n".join(
        " ".join(str(float(word) + shift) for word, shift in zip(line.split(), (4.5e5, 5.4e6, 3e2), strict=True))
        if 2 <= number < 10 else line
        for number, line in enumerate(CUBE.splitlines())
    )  # fmt: skip
    cloud = at(far, ".off", tmp_path, num_points=3000)
    assert np.bincount(on_cube(cloud.world_coordinates - [4.5e5, 5.4e6, 3e2]).astype(int), minlength=6).min() > 380


@pytest.mark.parametrize("kind", ["stl", "stl_ascii", "glb", "off", "obj"])
def test_meshes_that_trimesh_writes_are_read(kind: str, tmp_path: Path) -> None:
    trimesh = pytest.importorskip("trimesh")
    written = trimesh.creation.icosphere(3, 2.0).export(file_type=kind)
    cloud = at(written, f".{kind.partition('_')[0]}", tmp_path, num_points=3000)
    radii = np.linalg.norm(cloud.coordinates, axis=1)
    assert cloud.from_mesh and radii.min() > 1.95 and radii.max() < 2.001
    outwards = (cloud.normals * cloud.coordinates).sum(axis=1) / radii
    assert outwards.min() > 0.98


def test_an_invalid_glb_file_is_refused_in_silence_and_without_trimesh_the_extra_is_named(
    tmp_path: Path, capfd: Any, monkeypatch: Any
) -> None:
    trimesh = pytest.importorskip("trimesh")
    good = trimesh.creation.box().export(file_type="glb")
    for content in (b"glTF\2\0\0\0\xff\xff\xff\xff", good[:-60], good[:200] + b"\xff" * 40 + good[240:]):
        refused(content, ".glb", "not a GLB file, or damaged|no vertices", tmp_path)
    assert capfd.readouterr().err == ""
    monkeypatch.setitem(sys.modules, "trimesh", None)
    (tmp_path / "a.glb").write_bytes(b"glTF" * 20)
    with pytest.raises(DataError, match=r"a\.glb"):
        read_cloud(str(tmp_path / "a.glb"))
    assert at(CUBE, ".off", tmp_path).from_mesh and len(at("1 2 3\n4 5 6\n", ".xyz", tmp_path)) == 2


# -- text columns


@pytest.mark.parametrize(
    "text",
    [
        "1 2 3\n4 5 6\n", "1,2,3\n4, 5, 6", "1\t2\t3\r\n4\t5\t6\r\n", "1;2;3\n4;5;6\n",
        "# a comment\n\n  1 2 3  \n// another\n4 5 6\n\n", "2\n1 2 3\n4 5 6\n", "x y z\n1 2 3\n4 5 6\n",
        '"X","Y","Z"\n1,2,3\n4,5,6\n', "\ufeffz y x\n3 2 1\n6 5 4\n", "//X Y Z\n1 2 3\n4 5 6\n",
    ],
)  # fmt: skip
def test_points_are_separated_by_any_separator(text: str, tmp_path: Path) -> None:
    for ending in (".xyz", ".txt", ".pts", ".csv", ".asc"):
        cloud = at(text, ending, tmp_path)
        np.testing.assert_array_equal(cloud.coordinates, [[1, 2, 3], [4, 5, 6]])
        assert cloud.colors is None and cloud.normals is None and cloud.labels is None


def lines(*columns: Any) -> str:
    return "\n".join(" ".join(map(str, row)) for row in np.stack(np.broadcast_arrays(*columns), axis=1).tolist())


X, Y, Z = np.arange(9) / 7, np.arange(9) ** 2 / 3, -np.arange(9) / 2
RED = np.arange(9) * 31
UP = (np.sin(np.arange(9)), np.cos(np.arange(9)), np.zeros(9))
MEASURED = np.linspace(-1300.5, -7.25, 9)
LABEL = np.arange(9) % 4
COLORS, SHARES = (RED, RED[::-1], 7), (RED / 248, RED[::-1] / 248, 0.5)


@pytest.mark.parametrize(
    "columns, has",
    [
        ((X, Y, Z, LABEL), "l"), ((X, Y, Z, MEASURED), ""), ((X, Y, Z, MEASURED, LABEL), "l"), ((X, Y, Z, *COLORS), "c"),
        ((X, Y, Z, *SHARES), "c"), ((X, Y, Z, *UP), "n"), ((X, Y, Z, *COLORS, LABEL), "cl"), ((X, Y, Z, *UP, LABEL), "nl"),
        ((X, Y, Z, MEASURED, *COLORS), "c"), ((X, Y, Z, MEASURED, *COLORS, LABEL), "cl"), ((X, Y, Z, *COLORS, *UP), "cn"),
        ((X, Y, Z, *UP, *COLORS), "cn"), ((X, Y, Z, *UP, *COLORS, LABEL), "cnl"),
    ],
)  # fmt: skip
def test_columns_are_recognized_by_number_and_values(columns: Any, has: str, tmp_path: Path) -> None:
    text = lines(*columns)
    array = np.stack(np.broadcast_arrays(*columns), axis=1)
    np.save(tmp_path / "good.npy", array)
    for cloud in (at(text, ".txt", tmp_path), read_cloud(str(tmp_path / "good.npy"))):
        np.testing.assert_allclose(cloud.coordinates, np.stack([X, Y, Z], axis=1), rtol=1e-6)
        parts = {"c": cloud.colors, "n": cloud.normals, "l": cloud.labels}
        assert "".join(letter for letter, part in parts.items() if part is not None) == has
        if "c" in has:
            scale = 255 / 248 if columns[3] is SHARES[0] else 1
            np.testing.assert_allclose(cloud.colors[:, 0], RED * scale, atol=0.51)
        if "n" in has:
            np.testing.assert_allclose(cloud.normals, np.stack(UP, axis=1), atol=1e-6)
        if "l" in has:
            np.testing.assert_array_equal(cloud.labels, LABEL)


def test_scanners_write_intensity_before_colors(tmp_path: Path) -> None:
    text = "9\n" + lines(X, Y, Z, RED, *COLORS)
    np.testing.assert_array_equal(at(text, ".pts", tmp_path).colors[:, 0], RED)
    assert at(text, ".txt", tmp_path).labels is not None  # else the last of seven columns is a label


def test_a_header_or_the_user_names_the_columns(tmp_path: Path) -> None:
    text = lines(LABEL, *UP, Z, Y, X, *COLORS)
    named = at(f"class nx ny nz z y x r g b\n{text}", ".txt", tmp_path)
    said = {"x": "6", "y": "5", "z": "4", "label": "0", "red": "7", "green": "8", "blue": "9"}
    told = at(text, ".txt", tmp_path, columns=said)
    for cloud in (named, told):
        np.testing.assert_allclose(cloud.coordinates, np.stack([X, Y, Z], axis=1), rtol=1e-6)
        np.testing.assert_array_equal(cloud.labels, LABEL)
        np.testing.assert_array_equal(cloud.colors[:, 0], RED)
    assert named.normals is not None and told.normals is None
    only = at(lines(X, Y, Z, MEASURED, LABEL, 3, 4, 5), ".txt", tmp_path, columns={"label": "4"})
    np.testing.assert_array_equal(only.labels, LABEL)
    said = r"unknown column 7 for label\. Column indices run from 0 to 2"
    refused("1 2 3\n", ".xyz", said, tmp_path, columns={"label": "7"})
    refused("1 2 3\n", ".xyz", "no header line, so the column 'class' for label", tmp_path, columns={"label": "class"})


def test_points_at_nan_are_dropped_with_their_attributes_and_one_point_is_enough(tmp_path: Path) -> None:
    rows = "1 2 3 9 9 9 1\nnan 2 3 8 8 8 2\n4 inf 6 7 7 7 3\n7 8 1e38 0 0 0 4\n4 5 6 6 6 6 5"
    cloud = at(f"x y z r g b label\n{rows}", ".txt", tmp_path)
    np.testing.assert_array_equal(cloud.coordinates, [[1, 2, 3], [4, 5, 6]])
    assert cloud.num_dropped == 3 and cloud.labels.tolist() == [1, 5] and cloud.colors[:, 0].tolist() == [9, 6]
    assert at("5e5 5e6 7", ".xyz", tmp_path).world_coordinates.tolist() == [[5e5, 5e6, 7]]


# -- arrays


def test_arrays_of_any_kind_of_number_and_named_fields_are_points(tmp_path: Path) -> None:
    places = np.random.default_rng(0).integers(0, 30, (40, 3))
    for kind in (np.uint8, np.int16, np.int64, np.float16, np.float32, np.float64, ">f4"):
        np.save(tmp_path / "a.npy", places.astype(kind))
        np.testing.assert_array_equal(read_cloud(str(tmp_path / "a.npy")).coordinates, places)
    np.save(tmp_path / "a.npy", np.asfortranarray(places[None]))
    assert len(read_cloud(str(tmp_path / "a.npy"))) == 40
    colors = [(name, "u2") for name in "rgb"]
    table = np.zeros(5, dtype=[("y", "f4"), ("x", "f8"), ("z", "f4"), ("Classification", "u1"), *colors])
    table["x"], table["Classification"], table["r"] = np.arange(5), 3, 65535
    np.save(tmp_path / "a.npy", table)
    cloud = read_cloud(str(tmp_path / "a.npy"))
    assert cloud.coordinates[:, 0].tolist() == [0, 1, 2, 3, 4] and cloud.labels.tolist() == [3] * 5  # type: ignore[union-attr]
    assert cloud.colors is not None and cloud.colors[0].tolist() == [255, 0, 0]


def packed(path: Path, **arrays: Any) -> str:
    np.savez_compressed(path, **arrays)
    return str(path)


@pytest.mark.parametrize("name", ["points", "xyz", "pos", "Points", "coord"])
def test_an_archive_has_an_array_for_each_thing(name: str, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    places, colors = random.normal(size=(7, 3)), random.random((7, 4))
    labels = np.arange(7)[:, None]
    path = packed(
        tmp_path / "a.npz", **{name: places}, colors=colors, normals=places, labels=labels, classes=["a", "b"]
    )
    cloud = read_cloud(path)
    np.testing.assert_allclose(cloud.coordinates, places, rtol=1e-6)
    np.testing.assert_allclose(cloud.colors, colors[:, :3] * 255, atol=0.5)  # type: ignore[arg-type]
    assert cloud.labels is not None and cloud.labels.tolist() == list(range(7)) and cloud.classes == ("a", "b")
    assert cloud.normals is not None and np.allclose(np.linalg.norm(cloud.normals, axis=1), 1)


def test_an_archive_may_contain_one_table_and_labels(tmp_path: Path) -> None:
    table = np.concatenate([np.random.default_rng(0).normal(size=(7, 3)), np.arange(21).reshape(7, 3)], axis=1)
    cloud = read_cloud(packed(tmp_path / "a.npz", data=table, thing=np.arange(7)), columns={"label": "thing"})
    assert cloud.colors is not None and cloud.labels is not None and cloud.labels.tolist() == list(range(7))


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=array.dtype.hasobject)
    return file.getvalue()


def zipped(**members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return file.getvalue()


GOOD = npy(np.zeros((4, 3)))
HUGE = GOOD.replace(b"(4, 3), }" + b" " * 12, b"(1000000000000, 3), }")


# -- all formats

REFUSED: dict[str, list[tuple[Any, ...]]] = {
    ".off": [
        (CUBE.replace("1 1 0\n", "1 one 0\n"), "line 5: 'one' is not a number"),
        (CUBE.replace("1 1 0\n", "1 1\n"), "line 5: expected 3 numbers per vertex, got 2"),
        (CUBE.replace("4 4 5 6 7", "4 4 5 6 8"), "face 2 refers to vertex 8, but the file has 8 vertices"),
        (CUBE.replace("4 4 5 6 7", "4 4 5 6"), "line 12: invalid face '4 4 5 6'"),
        (CUBE.replace("8 6 0", "8000000000000 6 0"), "line 2: .* 8,000,000,000,000 vertices and 6 faces, but only 14 lines"),
        (CUBE.replace("8 6 0", "eight"), "line 2: expected the numbers of vertices and faces, got 'eight'"),
        (CUBE.replace("OFF", "4OFF"), "line 1: not an OFF file: the first line is '4OFF'"),
        ("OFF BINARY\n\0\0\0\1", "NUL bytes"),
        ("v 1 2 3\n", "not an OFF file"),
        ("", "is empty"),
        ("# nothing\n", "is empty"),
    ],
    ".obj": [
        (OBJ.replace("v 1 1 0\n", "v 1 x 0\n"), "line 6: 'x' is not a number"),
        (OBJ.replace("v 1 1 0\n", "v 1 1\n"), "line 6: expected 3 numbers per vertex, got 2"),
        (OBJ.replace("f 4 1 5 8", "f 4 1 5 9"), "refers to vertex 8, but the file has 8 vertices"),
        (OBJ.replace("f 4 1 5 8", "f 4 1 5 0"), "line 22: a face refers to vertex 0, but the lines above define 8"),
        (OBJ.replace("f 4 1 5 8", "f 4 1 5 -9"), "line 22: a face refers to vertex -9"),
        (OBJ.replace("f 4 1 5 8", "f 4 1 a/b 8"), "line 22: invalid face corner 'a/b'"),
        ("# nothing\n", "no vertices"),
    ],
    ".stl": [
        (b"x" * 80 + struct.pack("<I", 4_000_000_000) + b"\0" * 200, "4,000,000,000 triangles, but only 200 bytes"),
        (b"x" * 40, "0 triangles, but only 0 bytes follow"),
        (b"x" * 80 + b"\0" * 4, "no triangles"),
        (b"solid a\nfacet normal 0 0 1\nouter loop\nvertex 1 2 3\n", "line 5: the file ends inside a triangle"),
        (b"solid a\nfacet normal 0 0 1\nvertex 1 2 3\nendfacet\n", "line 4: expected 3 corners .* got 1"),
        (FACET.replace("1 0 0", "1 o 0").encode(), "line 4: 'o' is not a number"),
        (FACET.replace("1 0 0", "").encode(), "line 4: expected 3 numbers per corner, got 0"),
        (b"solid a\nfacetted\n", "no triangles"),
    ],
    ".xyz": [
        ("", "is empty"),
        ("\n \n", "is empty"),
        ("# nothing\n", "no numbers"),
        ("1 2 3\n\n# here\n1 2\n", "line 4: expected 3 numbers as in the first row, got 2"),
        ("1 2 3\n1 2 3 4\n", "line 2: expected 3 numbers .* got 4"),
        ("1 2 3\n4 five 6\n", "line 2: 'five' is not a number"),
        ("1 2 3\n4 1_0 6\n", "line 2: '1_0' is not a number"),
        ("1 2\n3 4\n", "expected at least 3 columns .* got 2"),
        ("1,5;2,5;3,5\n", "line 1: semicolons and commas .* decimal separator"),
        ("a b c\n1 2 3\n", "line 1: expected a row of numbers or a header, got 'a b c'"),
        ("x y q\n1 2 3\n", "the header has no column z"),
        ("x y z r\n1 2 3\n", "line 2: the numbers of columns differ: 4 in the header, 3 in the first row"),
        ("1 2 3 4 5 6.5\n7 8 9 1 2 3\n", "6 columns per point, .* do not match normals or colors"),
        (" ".join("1" * 12), "12 columns per point, but only x, y and z are identified"),
        ("x y z label\n1 2 3 0.5\n", "labels must be integers, got 0.5 for point 1"),
        ("nan nan nan\ninf 1 2\n", "all 2 points have NaN or infinite coordinates"),
        ("C 1 2 3\n", "line 1: 'C' is not a number"),
        ("<html>", "not a point cloud: the file is an HTML page"),
        (b"\xff\xfe1\0 \0002\0", "got UTF-16"),
        (b"\x1f\x8b\x08\0", "gzip-compressed"),
        (b"LASF\1\2", "a LAS or LAZ file .convert the file to PLY"),
    ],
    ".npy": [
        (GOOD[:-1], r"declares \(4, 3\) of float64, but only 95 bytes follow"),
        (HUGE, r"declares \(1000000000000, 3\) of float64, but only 96 bytes follow"),
        (GOOD[:50], "damaged array"),
        (GOOD.replace(b"'<f8'", b"'?!'  "), "damaged array"),
        (npy(np.array([[1, 2, None]], dtype=object)), "Python objects are not supported .*unpickle"),
        (npy(np.zeros(4)), r"one row per point, got shape \(4,\), dtype float64.* \(N, 3\)"),
        (npy(np.zeros((3, 500))), r"\(3, 500\) appears to be transposed"),
        (npy(np.zeros((4, 2))), "at least 3 columns .* got 2"),
        (npy(np.zeros((0, 3))), "no points"),
        (npy(np.zeros((4, 3), complex)), "dtype complex128"),
        (npy(np.zeros(4, [("x", "f4"), ("y", "f4")])), "no field is named z"),
        (b"hello", "not a .npy file: the first bytes"),
        (zipped(points=GOOD), "content is .npz, but the extension is .npy. Change the extension to .npz"),
    ],
    ".npz": [
        (zipped(points=GOOD, labels=npy(np.zeros(5))), "4 points, 5 labels"),
        (zipped(points=GOOD, colors=npy(np.zeros((4, 2)))), r"expected colors of shape \(4, 3\), got \(4, 2\)"),
        (zipped(points=GOOD, labels=npy(np.array([None] * 4))), "'labels': arrays of Python objects"),
        (zipped(points=HUGE), r"array 'points': .*(exceed|declares)"),
        (zipped(a=GOOD, b=GOOD), "no array is named points, xyz or pos. Available arrays: a, b"),
        (zipped(points=GOOD, labels=npy(np.zeros((4, 2)))), r"one label per point, got labels of shape \(4, 2\)"),
        (zipped(points=GOOD)[:-30], "not a .npz file, or damaged"),
        (zipped(points=GOOD)[:60], "not a .npz file, or damaged"),
        (zipped(), "not a .npz file|archive contains no arrays"),
    ],
    ".ply": [(GOOD, "content is .npy, but the extension is .ply")],
    ".cld": [("1 2 3", r"unsupported file type '\.cld'. Supported: \.ply")],
}  # fmt: skip
"""Content of invalid files by extension, and the problem."""


@pytest.mark.parametrize(
    ("ending", "number"), [(ending, number) for ending, cases in REFUSED.items() for number in range(len(cases))]
)
def test_invalid_files_are_refused_with_their_line(ending: str, number: int, tmp_path: Path) -> None:
    content, problem = REFUSED[ending][number]
    refused(content, ending, problem, tmp_path)


def test_formats_are_recognized_by_their_first_bytes_and_missing_files_are_reported(tmp_path: Path) -> None:
    contents = (GOOD, zipped(points=GOOD), CUBE.encode(), OBJ.encode()[9:], b"1 2 3")
    assert [len(read_cloud(content)) for content in contents] == [4, 4, 4096, 4096, 1]
    with pytest.raises(DataError, match="line 7"):
        read_cloud(npy(np.zeros((0, 3))), location=("t.parquet", 7))
    for path, problem in ((tmp_path / "none.ply", "file"), (tmp_path, "folder")):
        with pytest.raises(DataError, match=problem):
            read_cloud(str(path))


@pytest.mark.parametrize("ending", CLOUD_SUFFIXES)
def test_no_garbage_makes_anything_but_an_error_that_names_the_file(ending: str, tmp_path: Path) -> None:
    random = np.random.default_rng(7)
    heads = [b"", b"ply\n", b"OFF\n3 1 0\n", GOOD[:100], zipped(points=GOOD)[:80], b"glTF\2\0\0\0"]
    heads += [b"solid x\nfacet ", b"v 1 2 3\nf "]
    path = tmp_path / f"bad{ending}"
    for number in range(40):
        garbage = random.integers(0, 256, int(random.integers(0, 400))).astype(np.uint8).tobytes()
        path.write_bytes(heads[number % len(heads)] + garbage)
        try:
            read_cloud(str(path))
        except DataError as error:
            assert error.path == str(path)
