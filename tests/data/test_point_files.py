"""Point cloud files of every format, also of other programs: contents, and errors with name and line."""

from __future__ import annotations

import io
import struct
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_files import write
from regard.data.points.cloud import PointCloud
from regard.data.points.cloud_files import CLOUD_SUFFIXES, read_cloud, write_ply
from regard.errors import DataError
from tiny_point_models import made

WORDS = {"f4": "float", "f8": "double", "u1": "uchar", "i4": "int", "u2": "ushort"}
ORDERS = {"<": "binary_little_endian", ">": "binary_big_endian", "": "ascii"}


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


def points(many: int = 50, seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    made: dict[str, np.ndarray] = {name: random.normal(size=many).astype("f4") for name in "xyz"}
    normals = random.normal(size=(many, 3))
    normals /= np.linalg.norm(normals, axis=1, keepdims=True)
    made |= {name: normals[:, place].astype("f4") for place, name in enumerate(("nx", "ny", "nz"))}
    made |= {name: random.integers(0, 256, many).astype("u1") for name in ("red", "green", "blue")}
    return {**made, "label": random.integers(0, 5, many).astype("i4")}


def bare(many: int = 10) -> dict[str, np.ndarray]:
    return {name: values for name, values in points(many).items() if name in "xyz"}


def ply(columns: dict[str, np.ndarray], order: str, faces: list[list[int]] | None = None, end: str = "\n") -> bytes:
    """PLY file as written by another program."""
    many = len(next(iter(columns.values())))
    head = ["ply", f"format {ORDERS[order]} 1.0", "comment made by a test", "obj_info nothing"]
    head.append(f"element vertex {many}")
    head += [f"property {WORDS[values.dtype.str[1:]]} {name}" for name, values in columns.items()]
    if faces is not None:
        head += [f"element face {len(faces)}", "property list uchar int vertex_indices"]
    text = end.join([*head, "end_header"]) + end
    if not order:
        rows = [" ".join(repr(values[at].item()) for values in columns.values()) for at in range(many)]
        rows += [" ".join(map(str, [len(face), *face])) for face in faces or ()]
        return (text + end.join(rows) + end).encode()
    table = np.empty(many, dtype=[(name, order + values.dtype.str[1:]) for name, values in columns.items()])
    for name, values in columns.items():
        table[name] = values
    lists = b"".join(struct.pack(f"{order}B{len(face)}i", len(face), *face) for face in faces or ())
    return text.encode() + table.tobytes() + lists


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_points_are_read_as_they_were_written(order: str, end: str) -> None:
    made = points()
    cloud = read_cloud(ply(made, order, end=end))
    x, y, z, nx, ny, nz, red, green, blue, label = made.values()
    np.testing.assert_array_equal(cloud.coordinates, np.stack([x, y, z], 1))
    np.testing.assert_array_equal(cloud.colors, np.stack([red, green, blue], 1))
    np.testing.assert_allclose(cloud.normals, np.stack([nx, ny, nz], 1), atol=1e-6)
    np.testing.assert_array_equal(cloud.labels, label)
    assert cloud.num_dropped == 0 and not cloud.from_mesh and not cloud.origin.any()
    dark = {name: np.array([0, 1, 1], "u1") for name in ("red", "green", "blue")}
    assert read_cloud(ply(bare(3) | dark, order)).colors.max() == 1  # type: ignore[union-attr]


def test_labels_have_usual_or_given_names_and_colors_of_more_than_bytes_become_bytes() -> None:
    made = points()
    for name in ("label", "class", "Classification", "scalar_Label", "scalar_Classification", "semantic"):
        found = read_cloud(ply(bare(50) | {name: made["label"].astype("f4")}, "<")).labels
        assert found is not None and found.dtype == np.int64
        np.testing.assert_array_equal(found, made["label"])
    made["thing"] = made.pop("label")
    assert read_cloud(ply(made, "<")).labels is None
    np.testing.assert_array_equal(read_cloud(ply(made, "<"), columns={"label": "thing"}).labels, made["thing"])
    with pytest.raises(DataError, match="'other'"):
        read_cloud(ply(made, "<"), columns={"label": "other"})
    made = bare(3)
    floats = {name: np.array([0, 0.5, 1], "f4") for name in ("red", "green", "blue")}
    wide = {name: np.array([0, 32768, 65535], "u2") for name in ("red", "green", "blue")}
    for colors in (floats, wide):
        found = read_cloud(ply(made | colors, "<")).colors
        np.testing.assert_array_equal(found[:, 0], [0, 128, 255])


@pytest.mark.parametrize("order", ["<", ""])
def test_faces_may_precede_their_vertices(order: str) -> None:
    head = f"ply\nformat {ORDERS[order]} 1.0\nelement face 1\nproperty list uchar int vertex_indices\n"
    head += "element vertex 3\nproperty float x\nproperty float y\nproperty float z\nend_header\n"
    corners = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0]], "<f4")
    body = struct.pack("<B3i", 3, 0, 1, 2) + corners.tobytes() if order else b"3 0 1 2\n0 0 0\n1 0 0\n0 1 0\n"
    found = read_cloud(head.encode() + body)
    assert found.from_mesh and (found.normals == [0, 0, 1]).all()


@pytest.mark.parametrize("order", ORDERS)
def test_faces_make_a_mesh_and_many_corners_are_cut_into_triangles(order: str) -> None:
    rows = ([0, 2, 2, 0, 9], [0, 0, 2, 2, 9], [1] * 5)
    square = {name: np.array(row, "f4") for name, row in zip("xyz", rows, strict=True)}
    whole = read_cloud(ply(square, order, [[0, 1, 2, 3]]), num_points=500)
    halves = read_cloud(ply(square, order, [[0, 1, 2], [0, 2, 3]]), num_points=500)
    mixed = read_cloud(ply(square, order, [[0, 1], [0, 1, 2], [4], [0, 2, 3], [0, 1, 2, 3], [0, 0, 0]]), num_points=500)
    assert whole.from_mesh and len(whole) == 500
    np.testing.assert_array_equal(whole.coordinates, halves.coordinates)
    for cloud in (whole, mixed):
        # without the isolated vertex
        assert (cloud.coordinates[:, 2] == 1).all() and cloud.coordinates[:, :2].max() <= 2
        np.testing.assert_allclose(np.abs(cloud.normals[:, 2]), 1)


def test_runs_of_faces_of_different_sizes_are_read_and_unused_elements_are_skipped() -> None:
    random = np.random.default_rng(3)
    corners = {name: random.normal(size=40).astype("f4") for name in "xyz"}
    faces = [random.permutation(40)[: random.choice([3, 3, 3, 4, 5])].tolist() for _ in range(400)]
    text, data = (read_cloud(ply(corners, order, faces), num_points=2000) for order in ("", ">"))
    np.testing.assert_array_equal(text.coordinates, data.coordinates)
    cloud = read_cloud(ply(points(4), "<", [[0, 1, 2], [1, 2, 3]]))
    assert len(cloud) == 4 and not cloud.from_mesh and cloud.labels is not None
    made = points(3)
    before, sign, rest = ply(made, "<").partition(b"element vertex")
    heading, end, body = rest.partition(b"end_header\n")
    other = b"element camera 2\nproperty float angle\nproperty list uchar short path\n"
    extra = struct.pack("<fB2h", 1.0, 2, 7, 8) + struct.pack("<fB", 2.0, 0)
    cloud = read_cloud(before + other + sign + heading + end + extra + body)
    np.testing.assert_array_equal(cloud.labels, made["label"])


def test_written_files_are_read_again_and_distant_coordinates_are_restored_exactly(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    places = random.normal(size=(20, 3)).astype(np.float32)
    labels, colors = random.integers(-1, 3, 20), random.integers(0, 256, (20, 3)).astype(np.uint8)
    write_ply(tmp_path / "a.ply", PointCloud(places), labels, colors, ("floor", "green  chair", "Ärm"))
    cloud = read_cloud(str(tmp_path / "a.ply"))
    np.testing.assert_array_equal(cloud.coordinates, places)
    np.testing.assert_array_equal(cloud.labels, labels)
    np.testing.assert_array_equal(cloud.colors, colors)
    assert cloud.classes == ("floor", "green chair", "Ärm") and cloud.normals is None
    found = pytest.importorskip("trimesh").load(tmp_path / "a.ply")
    np.testing.assert_array_equal(np.asarray(found.vertices, np.float32), places)
    np.testing.assert_array_equal(np.asarray(found.colors)[:, :3], colors)
    np.testing.assert_array_equal(np.ravel(found.metadata["_ply_raw"]["vertex"]["data"]["label"]), labels)
    world = np.array([4.5e5, 5.4e6, 100.0]) + np.random.default_rng(2).uniform(-20, 20, (100, 3))
    cloud = read_cloud(ply({name: world[:, place] for place, name in enumerate("xyz")}, "<"))
    assert cloud.origin.any() and np.abs(cloud.coordinates).max() < 41
    # float32 alone would have an error of a quarter of a meter
    np.testing.assert_allclose(cloud.world_coordinates, world, rtol=0, atol=2e-6)
    write_ply(tmp_path / "a.ply", cloud, np.zeros(100))
    np.testing.assert_allclose(read_cloud(str(tmp_path / "a.ply")).world_coordinates, world, rtol=0, atol=4e-6)
    with pytest.raises(DataError, match="labels"):
        write_ply(tmp_path / "b.ply", PointCloud(np.zeros((3, 3), np.float32)), np.zeros(4))
    assert not (tmp_path / "b.ply").exists()


CORNERS = ("0 0 0", "1 0 0", "1 1 0", "0 1 0", "0 0 1", "1 0 1", "1 1 1", "0 1 1")
SIDES = ("4 0 3 2 1", "4 4 5 6 7", "4 0 1 5 4", "4 1 2 6 5", "4 2 3 7 6", "4 3 0 4 7")
CUBE = "\n".join(("OFF", "8 6 0", *CORNERS, *SIDES, ""))


def refused(content: bytes | str, ending: str, problem: str, tmp_path: Path, **how: Any) -> None:
    path = write(tmp_path / f"bad{ending}", content)
    with pytest.raises(DataError, match=problem) as error:
        read_cloud(path, **how)
    assert error.value.path == path


def at(content: str | bytes, ending: str, tmp_path: Path, **how: Any) -> Any:
    return read_cloud(write(tmp_path / f"good{ending}", content), **how)


def on_cube(places: np.ndarray) -> np.ndarray:
    """Side of the unit cube on which each point is located."""
    sides = np.concatenate([np.abs(places) < 1e-6, np.abs(places - 1) < 1e-6], axis=1)
    assert (sides.sum(axis=1) >= 1).all() and (places >= -1e-6).all() and (places <= 1 + 1e-6).all()
    return sides.argmax(axis=1)


@pytest.mark.parametrize("text", [
    CUBE, CUBE.replace("OFF\n8 6 0", "OFF8 6 0"), CUBE.replace("OFF\n8 6 0", "OFF 8 6 0"),  # as in ModelNet
    CUBE.replace("OFF\n", "# a comment\n\nOFF # here too\n").replace("0 0 1\n", "0 0 1 # corner\n\n"),
    CUBE.replace("\n", "\r\n"), CUBE.replace("4 0 3 2 1", "4 0 3 2 1 255 0 0"),  # a face with a color
])  # fmt: skip
def test_an_off_file_is_read_however_it_begins(text: str, tmp_path: Path) -> None:
    cloud = at(text, ".off", tmp_path, num_points=6000)
    counts = np.bincount(on_cube(cloud.coordinates), minlength=6)
    assert cloud.from_mesh and counts.min() > 850  # about 1,000 points per side


def test_an_off_file_may_have_colors_and_normals(tmp_path: Path) -> None:
    rows = ["0 0 0 0 0 1 255 0 0 255", "1 0 0 0 0 1 255 0 0 255", "0 1 0 0 0 1 0 0 255 255"]
    cloud = at("\n".join(["CNOFF", "3 1 0", *rows, "3 0 1 2"]), ".off", tmp_path, num_points=2000)
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


def test_sampling_is_deterministic_and_degenerate_meshes_are_their_vertices(tmp_path: Path) -> None:
    first, again = (at(CUBE, ".off", tmp_path, num_points=100).coordinates for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert len(first) == 100
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


@pytest.mark.parametrize("kind", ["stl", "stl_ascii", "glb", "off", "obj", "ply", "ply ascii"])
def test_meshes_that_trimesh_writes_are_read(kind: str, tmp_path: Path) -> None:
    trimesh = pytest.importorskip("trimesh")
    form, how = kind.split()[0], {"encoding": "ascii"} if "ply " in kind else {}
    written = trimesh.creation.icosphere(3, 2.0).export(file_type=form, **how)
    cloud = at(written, f".{form.partition('_')[0]}", tmp_path, num_points=3000)
    radii = np.linalg.norm(cloud.coordinates, axis=1)
    assert cloud.from_mesh and radii.min() > 1.95 and radii.max() < 2.001
    outwards = (cloud.normals * cloud.coordinates).sum(axis=1) / radii
    assert outwards.min() > 0.98
    if form == "ply":
        places = np.random.default_rng(0).normal(size=(30, 3))
        written = trimesh.PointCloud(places).export(file_type=form, **how)
        np.testing.assert_allclose(read_cloud(written).coordinates, places, atol=1e-6)


def test_an_invalid_glb_file_and_a_missing_trimesh_are_named(tmp_path: Path, capfd: Any, monkeypatch: Any) -> None:
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


@pytest.mark.parametrize("text", [
    "1 2 3\n4 5 6\n", "1,2,3\n4, 5, 6", "1\t2\t3\r\n4\t5\t6\r\n", "1;2;3\n4;5;6\n",
    "# a comment\n\n  1 2 3  \n// another\n4 5 6\n\n", "2\n1 2 3\n4 5 6\n", "x y z\n1 2 3\n4 5 6\n",
    '"X","Y","Z"\n1,2,3\n4,5,6\n', "\ufeffz y x\n3 2 1\n6 5 4\n", "//X Y Z\n1 2 3\n4 5 6\n",
])  # fmt: skip
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


@pytest.mark.parametrize("columns, has", [
    ((X, Y, Z, LABEL), "l"), ((X, Y, Z, MEASURED), ""), ((X, Y, Z, MEASURED, LABEL), "l"), ((X, Y, Z, *COLORS), "c"),
    ((X, Y, Z, *SHARES), "c"), ((X, Y, Z, *UP), "n"), ((X, Y, Z, *COLORS, LABEL), "cl"), ((X, Y, Z, *UP, LABEL), "nl"),
    ((X, Y, Z, MEASURED, *COLORS), "c"), ((X, Y, Z, MEASURED, *COLORS, LABEL), "cl"), ((X, Y, Z, *COLORS, *UP), "cn"),
    ((X, Y, Z, *UP, *COLORS), "cn"), ((X, Y, Z, *UP, *COLORS, LABEL), "cnl"),
])  # fmt: skip
def test_columns_are_recognized_by_number_and_values(columns: Any, has: str, tmp_path: Path) -> None:
    array = np.stack(np.broadcast_arrays(*columns), axis=1)
    for cloud in (at(lines(*columns), ".txt", tmp_path), read_cloud(npy(array))):
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
    text = "9\n" + lines(X, Y, Z, RED, *COLORS)
    # scanners write intensity before colors
    np.testing.assert_array_equal(at(text, ".pts", tmp_path).colors[:, 0], RED)
    assert at(text, ".txt", tmp_path).labels is not None  # else the last of seven columns is a label


def test_points_at_nan_are_dropped_with_their_attributes_and_one_point_is_enough(tmp_path: Path) -> None:
    rows = "1 2 3 9 9 9 1\nnan 2 3 8 8 8 2\n4 inf 6 7 7 7 3\n7 8 1e38 0 0 0 4\n4 5 6 6 6 6 5"
    cloud = at(f"x y z r g b label\n{rows}", ".txt", tmp_path)
    np.testing.assert_array_equal(cloud.coordinates, [[1, 2, 3], [4, 5, 6]])
    assert cloud.num_dropped == 3 and cloud.labels.tolist() == [1, 5] and cloud.colors[:, 0].tolist() == [9, 6]
    assert at("5e5 5e6 7", ".xyz", tmp_path).world_coordinates.tolist() == [[5e5, 5e6, 7]]


def test_arrays_of_any_kind_of_number_and_named_fields_are_points() -> None:
    places = np.random.default_rng(0).integers(0, 30, (40, 3))
    for kind in (np.uint8, np.int16, np.int64, np.float16, np.float32, np.float64, ">f4"):
        np.testing.assert_array_equal(read_cloud(npy(places.astype(kind))).coordinates, places)
    assert len(read_cloud(npy(np.asfortranarray(places[None])))) == 40
    colors = [(name, "u2") for name in "rgb"]
    table = np.zeros(5, dtype=[("y", "f4"), ("x", "f8"), ("z", "f4"), ("Classification", "u1"), *colors])
    table["x"], table["Classification"], table["r"] = np.arange(5), 3, 65535
    cloud = read_cloud(npy(table))
    assert cloud.coordinates[:, 0].tolist() == [0, 1, 2, 3, 4] and cloud.labels.tolist() == [3] * 5  # type: ignore[union-attr]
    assert cloud.colors is not None and cloud.colors[0].tolist() == [255, 0, 0]


@pytest.mark.parametrize("name", ["points", "xyz", "pos", "Points", "coord"])
def test_an_archive_has_an_array_for_each_thing(name: str, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    places, colors = random.normal(size=(7, 3)), random.random((7, 4))
    labels = np.arange(7)[:, None]
    path, arrays = tmp_path / "a.npz", {name: places, "colors": colors, "normals": places, "labels": labels}
    np.savez_compressed(path, **arrays, classes=["a", "b"])
    cloud = read_cloud(str(path))
    np.testing.assert_allclose(cloud.coordinates, places, rtol=1e-6)
    np.testing.assert_allclose(cloud.colors, colors[:, :3] * 255, atol=0.5)  # type: ignore[arg-type]
    assert cloud.labels is not None and cloud.labels.tolist() == list(range(7)) and cloud.classes == ("a", "b")
    assert cloud.normals is not None and np.allclose(np.linalg.norm(cloud.normals, axis=1), 1)
    np.savez_compressed(path, data=np.concatenate([places, np.arange(21).reshape(7, 3)], axis=1), thing=labels)
    cloud = read_cloud(str(path), columns={"label": "thing"})
    assert cloud.colors is not None and cloud.labels is not None and cloud.labels.tolist() == list(range(7))


GOOD = npy(np.zeros((4, 3)))
HUGE = GOOD.replace(b"(4, 3), }" + b" " * 12, b"(1000000000000, 3), }")


FULL, TEXT = ply(points(10), "<"), ply(bare(), "")
LATE_LINE = TEXT.splitlines()[-3]

REFUSED: dict[str, list[tuple[Any, ...]]] = {
    ".off": [
        (CUBE.replace("1 1 0\n", "1 one 0\n"), "line 5: 'one'"), (CUBE.replace("1 1 0\n", "1 1\n"), "line 5: .* got 2"),
        (CUBE.replace("4 4 5 6 7", "4 4 5 6 8"), "face 2 .* vertex 8"),
        (CUBE.replace("4 4 5 6 7", "4 4 5 6"), "line 12: .*'4 4 5 6'"),
        (CUBE.replace("8 6 0", "8000000000000 6 0"), "line 2: .* only 14 lines"),
        (CUBE.replace("8 6 0", "eight"), "line 2: .* 'eight'"), (CUBE.replace("OFF", "4OFF"), "line 1: .* '4OFF'"),
        ("OFF BINARY\n\0\0\0\1", "NUL bytes"), ("v 1 2 3\n", "not an OFF file"), ("", "is empty"),
        ("# nothing\n", "is empty"),
    ],
    ".obj": [
        (OBJ.replace("v 1 1 0\n", "v 1 x 0\n"), "line 6: 'x'"),
        (OBJ.replace("v 1 1 0\n", "v 1 1\n"), "line 6: .* got 2"), (OBJ.replace("f 4 1 5 8", "f 4 1 5 9"), "vertex 8"),
        (OBJ.replace("f 4 1 5 8", "f 4 1 5 0"), "line 22: .* vertex 0"),
        (OBJ.replace("f 4 1 5 8", "f 4 1 5 -9"), "line 22: .* vertex -9"),
        (OBJ.replace("f 4 1 5 8", "f 4 1 a/b 8"), "line 22: .* 'a/b'"), ("# nothing\n", "no vertices"),
    ],
    ".stl": [
        (b"x" * 80 + struct.pack("<I", 4_000_000_000) + b"\0" * 200, "only 200 bytes"), (b"x" * 40, "only 0 bytes"),
        (b"x" * 80 + b"\0" * 4, "no triangles"),
        (b"solid a\nfacet normal 0 0 1\nouter loop\nvertex 1 2 3\n", "line 5: .* triangle"),
        (b"solid a\nfacet normal 0 0 1\nvertex 1 2 3\nendfacet\n", "line 4: .* got 1"),
        (FACET.replace("1 0 0", "1 o 0").encode(), "line 4: 'o'"),
        (FACET.replace("1 0 0", "").encode(), "line 4: .* got 0"), (b"solid a\nfacetted\n", "no triangles"),
    ],
    ".xyz": [
        ("", "is empty"), ("\n \n", "is empty"), ("# nothing\n", "no numbers"),
        ("1 2 3\n\n# here\n1 2\n", "line 4: .* got 2"), ("1 2 3\n1 2 3 4\n", "line 2: .* got 4"),
        ("1 2 3\n4 five 6\n", "line 2: 'five'"), ("1 2 3\n4 1_0 6\n", "line 2: '1_0'"),
        ("1 2\n3 4\n", "3 columns .* got 2"), ("1,5;2,5;3,5\n", "line 1: .* decimal separator"),
        ("a b c\n1 2 3\n", "line 1: .* 'a b c'"), ("x y q\n1 2 3\n", "no column z"),
        ("x y z r\n1 2 3\n", "line 2: .* 4 .* 3"), ("1 2 3 4 5 6.5\n7 8 9 1 2 3\n", "6 columns .* colors"),
        (" ".join("1" * 12), "12 columns"), ("x y z label\n1 2 3 0.5\n", "integers, got 0.5 for point 1"),
        ("nan nan nan\ninf 1 2\n", "all 2 points"), ("C 1 2 3\n", "line 1: 'C'"), ("<html>", "HTML page"),
        (b"\xff\xfe1\0 \0002\0", "got UTF-16"), (b"\x1f\x8b\x08\0", "gzip file"),
        (b"LASF\1\2", "LAS or LAZ .* PLY"),
    ],
    ".npy": [
        (GOOD[:-1], r"only 95 bytes"), (HUGE, r"only 96 bytes"), (GOOD[:50], "damaged array"),
        (GOOD.replace(b"'<f8'", b"'?!'  "), "damaged array"),
        (npy(np.array([[1, 2, None]], dtype=object)), "Python objects .*unpickle"),
        (npy(np.zeros(4)), r"\(4,\), dtype float64.* \(N, 3\)"), (npy(np.zeros((3, 500))), r"transposed"),
        (npy(np.zeros((4, 2))), "3 columns .* got 2"), (npy(np.zeros((0, 3))), "no points"),
        (npy(np.zeros((4, 3), complex)), "dtype complex128"),
        (npy(np.zeros(4, [("x", "f4"), ("y", "f4")])), "no field is named z"), (b"hello", "not a .npy file"),
        (zipped(points=GOOD), "content is .npz, .* to .npz"),
    ],
    ".npz": [
        (zipped(points=GOOD, labels=npy(np.zeros(5))), "4 points, 5 labels"),
        (zipped(points=GOOD, colors=npy(np.zeros((4, 2)))), r"colors .*\(4, 3\), got \(4, 2\)"),
        (zipped(points=GOOD, labels=npy(np.array([None] * 4))), "'labels': .* objects"),
        (zipped(points=HUGE), r"array 'points': .*(exceed|declares)"),
        (zipped(a=GOOD, b=GOOD), "Available arrays: a, b"),
        (zipped(points=GOOD, labels=npy(np.zeros((4, 2)))), r"labels of shape \(4, 2\)"),
        (zipped(points=GOOD)[:-30], "damaged"), (zipped(points=GOOD)[:60], "damaged"),
        (zipped(), "not a .npz file|archive contains no arrays"),
    ],
    ".ply": [
        (GOOD, "content is .npy, but the extension is .ply"), (FULL[:-7], "'vertex'"),
        (FULL.replace(b"element vertex 10", b"element vertex 1000000000000"), "'vertex'"),
        (ply(bare(), "<", [[0, 1, 2]]).replace(b"element face 1", b"element face 900000000000"), "'face'"),
        (FULL[:60], "header"), (FULL.replace(b"binary_little_endian", b"binary_middle_endian"), "line 2"),
        (FULL.replace(b"property int label", b"property colour label"), "line 15"),
        (FULL.replace(b"property float y", b"property float x"), "line 7"),
        (FULL.replace(b"property float z", b"property float w"), "vertices"),
        (TEXT.replace(LATE_LINE, b"1.0 two 3.0"), "line 17"), (TEXT.replace(LATE_LINE, b"1.0 2.0"), "line 17"),
        (b"\n".join(TEXT.splitlines()[:-2]), "'vertex'"), (ply(bare(), "<", [[0, 1, 2], [0, 1, 10]]), "10"),
        (b"ply\nformat ascii 1.0\nelement vertex 0\nproperty float x\nend_header\n", "vertices"),
        (ply(bare(), "<", [[0, 1, 2]])[:-13] + b"\xff" + b"\0" * 12, "'face'"),
        (FULL.replace(b"obj_info nothing", b"elements vertex"), "line 4"),
        (ply(bare(1), "").replace(b"end_header", b"property list uchar int more\nend_header"), "list properties"),
    ],
    ".cld": [("1 2 3", r"unsupported file type '\.cld'. Supported: \.ply")],
}  # fmt: skip
"""Content of invalid files by extension, and the problem."""


@pytest.mark.parametrize("ending", REFUSED)
def test_invalid_files_are_refused_with_their_line_and_without_large_allocations(ending: str, tmp_path: Path) -> None:
    for content, problem in REFUSED[ending]:
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


# -- objects of trimesh

PLACES = np.random.default_rng(5).normal(size=(90, 3)).astype(np.float32)


def test_meshes_of_trimesh_are_sampled() -> None:
    trimesh = pytest.importorskip("trimesh", reason="meshes are optional")
    model = made("classify")
    box = trimesh.creation.box((1, 2, 3))
    box.visual.vertex_colors = np.full((8, 4), 99, np.uint8)
    right = model.predict(box.export(file_type="ply"))
    assert model.predict(box).score == pytest.approx(right.score, abs=1e-5)
    assert model.predict(trimesh.PointCloud(PLACES)).score == model.predict(PLACES).score
    moved = trimesh.Scene(box)
    moved.apply_translation((5, 0, 0))
    assert model.predict(moved).score == pytest.approx(right.score, abs=1e-5)  # centered by the processor
