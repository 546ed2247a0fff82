"""PLY files of other programs, compared with the written bytes and with trimesh."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regard.data.points.cloud import PointCloud
from regard.data.points.cloud_files import read_cloud, write_ply
from regard.errors import DataError

WORDS = {"f4": "float", "f8": "double", "u1": "uchar", "i4": "int", "u2": "ushort"}
ORDERS = {"<": "binary_little_endian", ">": "binary_big_endian", "": "ascii"}


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
    assert cloud.colors is not None and cloud.normals is not None and cloud.labels is not None
    x, y, z, nx, ny, nz, red, green, blue, label = made.values()
    np.testing.assert_array_equal(cloud.coordinates, np.stack([x, y, z], 1))
    np.testing.assert_array_equal(cloud.colors, np.stack([red, green, blue], 1))
    np.testing.assert_allclose(cloud.normals, np.stack([nx, ny, nz], 1), atol=1e-6)
    np.testing.assert_array_equal(cloud.labels, label)
    assert cloud.num_dropped == 0 and not cloud.from_mesh and not cloud.origin.any()


@pytest.mark.parametrize(
    "name", ["label", "class", "Classification", "scalar_Label", "scalar_Classification", "semantic"]
)
def test_a_label_is_recognized_by_its_usual_names(name: str) -> None:
    made = points()
    made[name] = made.pop("label").astype("f4")
    cloud = read_cloud(ply(made, "<"))
    assert cloud.labels is not None and cloud.labels.dtype == np.int64
    np.testing.assert_array_equal(cloud.labels, made[name])


def test_a_property_of_any_name_is_a_label_and_colors_of_more_than_bytes_become_bytes() -> None:
    made = points()
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
        assert found is not None
        np.testing.assert_array_equal(found[:, 0], [0, 128, 255])


@pytest.mark.parametrize("order", ORDERS)
def test_bytes_that_are_all_dark_stay_dark(order: str) -> None:
    dark = {name: np.array([0, 1, 1], "u1") for name in ("red", "green", "blue")}
    assert read_cloud(ply({**bare(3), **dark}, order)).colors.max() == 1  # type: ignore[union-attr]


@pytest.mark.parametrize("order", ["<", ""])
def test_faces_may_precede_their_vertices(order: str) -> None:
    head = (
        f"ply\nformat {ORDERS[order]} 1.0\nelement face 1\nproperty list uchar int vertex_indices\nelement vertex 3\n"
    )
    head += "property float x\nproperty float y\nproperty float z\nend_header\n"
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
        assert cloud.normals is not None
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


FULL, TEXT = ply(points(10), "<"), ply(bare(), "")
LATE_LINE = TEXT.splitlines()[-3]


@pytest.mark.parametrize(
    "content, problem",
    [
        (FULL[:-7], "'vertex'"),
        (FULL.replace(b"element vertex 10", b"element vertex 1000000000000"), "'vertex'"),
        (ply(bare(), "<", [[0, 1, 2]]).replace(b"element face 1", b"element face 900000000000"), "'face'"),
        (FULL[:60], "header"),
        (FULL.replace(b"binary_little_endian", b"binary_middle_endian"), "line 2"),
        (FULL.replace(b"property int label", b"property colour label"), "line 15"),
        (FULL.replace(b"property float y", b"property float x"), "line 7"),
        (FULL.replace(b"property float z", b"property float w"), "vertices"),
        (TEXT.replace(LATE_LINE, b"1.0 two 3.0"), "line 17"),
        (TEXT.replace(LATE_LINE, b"1.0 2.0"), "line 17"),
        (b"\n".join(TEXT.splitlines()[:-2]), "'vertex'"),
        (ply(bare(), "<", [[0, 1, 2], [0, 1, 10]]), "10"),
        (b"ply\nformat ascii 1.0\nelement vertex 0\nproperty float x\nend_header\n", "vertices"),
        (ply(bare(), "<", [[0, 1, 2]])[:-13] + b"\xff" + b"\0" * 12, "'face'"),
        (FULL.replace(b"obj_info nothing", b"elements vertex"), "line 4"),
        (
            b"ply\nformat ascii 1.0\nelement vertex 1\nproperty float x\nproperty float y\nproperty float z\n"
            b"property list uchar int more\nend_header\n0 0 0 1 5\n",
            "list properties",
        ),
    ],
    ids=[
        "cut", "promise", "faces", "heading", "format", "type", "twice", "no z", "text", "short", "lines", "corner",
        "no vertices", "list", "odd line", "list of vertices",
    ],
)  # fmt: skip
def test_invalid_files_are_reported_without_large_allocations(content: bytes, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.ply"
    path.write_bytes(content)
    with pytest.raises(DataError, match=problem) as error:
        read_cloud(str(path))
    assert error.value.path == str(path)


# -- writing


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


# -- trimesh, which reads and writes the same files


@pytest.fixture
def trimesh() -> Any:
    return pytest.importorskip("trimesh")


def test_trimesh_reads_written_files(trimesh: Any, tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    places, colors = random.normal(size=(20, 3)).astype(np.float32), random.integers(0, 256, (20, 3)).astype(np.uint8)
    write_ply(tmp_path / "a.ply", PointCloud(places), np.arange(20), colors, ("one", "two"))
    found = trimesh.load(tmp_path / "a.ply")
    np.testing.assert_array_equal(np.asarray(found.vertices, np.float32), places)
    np.testing.assert_array_equal(np.asarray(found.colors)[:, :3], colors)
    labels = found.metadata["_ply_raw"]["vertex"]["data"]["label"]
    np.testing.assert_array_equal(np.asarray(labels).ravel(), np.arange(20))


@pytest.mark.parametrize("encoding", ["ascii", "binary"])
def test_files_of_trimesh_are_read(trimesh: Any, encoding: str) -> None:
    mesh = trimesh.creation.torus(2, 0.5)
    cloud = read_cloud(mesh.export(file_type="ply", encoding=encoding), num_points=5000)
    assert cloud.from_mesh and len(cloud) == 5000
    x, y, z = cloud.coordinates.T
    assert np.abs(np.hypot(np.hypot(x, y) - 2, z) - 0.5).max() < 0.02
    places = np.random.default_rng(0).normal(size=(30, 3))
    written = trimesh.PointCloud(places).export(file_type="ply", encoding=encoding)
    np.testing.assert_allclose(read_cloud(written).coordinates, places, atol=1e-6)
