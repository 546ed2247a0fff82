"""Built-in captioning set: one caption per scene, correct regions, disjoint splits."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from regard.data.images.image_io import read_image
from regard.demos import scenes
from regard.demos.scenes import SPLIT_SIZES, SceneObject, ShapeScene, caption, render_scene, sort_objects

CHECKSUM = "18a22513f6361b8e7f2da1ace937fb6eb8b9b623d664e873c9d6b6519adc23f2"

STAR, SUN = SceneObject("large", "green", "star", 1, 0), SceneObject("middle", "blue", "triangle", 1, 2)
CROSS = SceneObject("small", "black", "cross", 0, 0)


@pytest.fixture(scope="module")
def made() -> dict[str, list[ShapeScene]]:
    return scenes.generate_splits()


def test_the_set_is_the_same_everywhere(made: dict[str, list[ShapeScene]]) -> None:
    digest = hashlib.sha256()
    for name in SPLIT_SIZES:
        digest.update("\n".join(caption(scene.objects) for scene in made[name]).encode())
        for scene in made[name][:40]:
            picture, boxes = render_scene(scene)
            digest.update(picture.tobytes() + repr([tuple(box) for box in boxes]).encode())
    assert digest.hexdigest() == CHECKSUM


def test_words_refer_to_their_objects() -> None:
    things = sort_objects([CROSS, SUN, STAR])
    told = [(word.text, word.kind, word.objects) for word in scenes.caption_words(things) if word.kind]
    assert told == [
        ("large", "size", (0,)), ("green", "color", (0,)), ("star", "shape", (0,)), ("left", "relation", (0, 1)),
        ("blue", "color", (1,)), ("triangle", "shape", (1,)), ("below", "relation", (0, 2)), ("small", "size", (2,)),
        ("black", "color", (2,)), ("cross", "shape", (2,)),
    ]  # fmt: skip


def test_written_scenes_are_images_and_captions(made: dict[str, list[ShapeScene]], tmp_path: Path) -> None:
    some = {name: items[:2] for name, items in made.items()}
    places = scenes.write_dataset(tmp_path, 48, some)
    assert {name: place.parent.name for name, place in places.items()} == {name: name for name in some}
    names = set()
    for name, items in some.items():
        rows = [json.loads(line) for line in places[name].read_text().splitlines()]
        for row, scene in zip(rows, items, strict=True):
            names.add(row["image"])
            picture, boxes = render_scene(scene, 48)
            assert np.array_equal(read_image(str(places[name].parent / row["image"])), picture)
            assert row["captions"] == [caption(scene.objects)]
            assert [tuple(thing["box"]) for thing in row["objects"]] == [tuple(box) for box in boxes]
            assert row["words"] == [
                [word.text, word.kind, list(word.objects)] for word in scenes.caption_words(scene.objects)
            ]
    assert len(names) == 2 * len(made)  # no two splits have images of one name
    scenes.write_dataset(tmp_path, 48, {"train": made["train"][5:8]})  # given scenes are written even if files exist
    assert len(places["train"].read_text().splitlines()) == 3


def test_the_set_is_written_once_and_again_if_anything_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"train": (1, 1, 0, 0, 0), "test": (0, 1, 0, 0, 0)}
    drawn_parts, asked, write = scenes.generate_splits, [], scenes._write_split
    monkeypatch.setattr(scenes, "SPLIT_SIZES", small)
    monkeypatch.setattr(scenes, "generate_splits", lambda: asked.append(0) or drawn_parts(sizes=small))

    def counts(size: int, drawn: int, **more: Any) -> list[int]:
        """Captions of each split; the scenes were drawn so many times since the beginning."""
        places = scenes.write_dataset(tmp_path, size, **more)
        assert len(asked) == drawn and read_image(str(tmp_path / "train/images/train-00001.png")).shape[0] == size
        return [len(place.read_text().splitlines()) for place in places.values()]

    scenes.write_dataset(tmp_path, 40, {"train": drawn_parts(sizes=small)["test"]})  # an incomplete set
    assert counts(40, 1) == counts(40, 1) == counts(48, 2) == [2, 1]
    for _ in range(2):  # simpler scenes only
        assert counts(48, 3, max_objects=1) == [1, 0]
    assert counts(48, 4) == [2, 1]
    with monkeypatch.context() as broken, pytest.raises(ZeroDivisionError):  # another size, and an interrupted write
        broken.setattr(scenes, "_write_split", lambda to, *rest: write(to, *rest) if to.name == "train" else 1 / 0)
        scenes.write_dataset(tmp_path, 40)
    assert counts(48, 6) == [2, 1]
    for number, rubbish in enumerate((b'{"seed": 20', b"\xff")):
        (tmp_path / "scenes.json").write_bytes(rubbish)
        (tmp_path / "test/captions.jsonl").unlink()
        assert counts(48, 7 + number) == [2, 1]
