"""Settings from dicts, command-line arguments and files, also by names of other tools; invalid ones are refused."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import pytest

from data_files import refused
from regard import index
from regard.config import as_dict, from_dict, override
from regard.data.settings import DataSettings
from regard.data.training_files import DataSources
from regard.decode.settings import DecodeSettings
from regard.errors import SettingError, UnknownColumnError, UnknownFolderError, suggest
from regard.index import PRESET_ALIASES, RELATED, SYNONYMS, load_index, print_note, resolve_setting
from regard.runs.info import info
from regard.runs.settings import GROUPS, collect_overrides, diff_settings, read_settings, resolve
from regard.runs.spec import new_spec
from regard.systems import SYSTEMS, find_preset
from regard.tasks import find_task
from regard.training.settings import TrainSettings
from write_index import describe

KINDS = [DataSettings, TrainSettings, DecodeSettings, *(system.config for system in SYSTEMS.values())]


@dataclass(frozen=True)
class Parent:
    size: int = 3
    """how large
    it is"""
    silent: int = 0


@dataclass(frozen=True)
class Child(Parent):
    """Not a field's."""

    share: float = 0.5
    """a part"""
    name: str = "it"
    likes: Literal["tea", "milk"] = "tea"
    rates: tuple[float, ...] = (0.1,)
    steps: tuple[int, ...] = ()
    most: int | None = None
    either: int | str = 0
    warm: bool = False


def read(field: str, value: Any) -> Any:
    return getattr(from_dict(Child, {field: value}), field)


GOOD: list[tuple[str, Any, Any]] = [
    ("size", "3e5", 300_000), ("size", "1_000", 1000), ("size", " 7 ", 7), ("size", "-2", -2), ("size", 5.0, 5),
    ("size", "9007199254740993", 9007199254740993), ("size", 9007199254740993, 9007199254740993),
    ("share", "1e-3", 0.001), ("share", 1, 1.0), ("share", "0.25", 0.25), ("share", "2", 2.0),
    ("name", "3", "3"), ("name", "", ""), ("name", "None", "None"), ("name", 3, "3"),
    ("likes", "milk", "milk"),
    ("rates", "0.9,0.98", (0.9, 0.98)), ("rates", "0.9, 0.98", (0.9, 0.98)), ("rates", [1, "2"], (1.0, 2.0)),
    ("rates", "", ()), ("rates", (0.5,), (0.5,)), ("steps", "1e3,5", (1000, 5)),
    ("most", None, None), ("most", "none", None), ("most", "NULL", None), ("most", "4", 4), ("most", 4, 4),
    ("either", "5", 5), ("either", "five", "five"),
    ("warm", True, True), ("warm", "yes", True), ("warm", "ON", True), ("warm", "1", True), ("warm", 1, True),
    ("warm", "false", False), ("warm", "No", False), ("warm", "off", False), ("warm", 0, False), ("warm", "0", False),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value", "right"), GOOD)
def test_a_value_is_read_in_the_type_of_its_field(field: str, value: Any, right: Any) -> None:
    found = read(field, value)
    assert found == right and type(found) is type(right)
    assert override(Child(), {field: value}) == from_dict(Child, {field: value})


BAD: list[tuple[str, Any]] = [
    ("size", "3.5"), ("size", 3.5), ("size", "many"), ("size", True), ("size", None), ("size", "inf"), ("size", "nan"),
    ("size", float("nan")), ("size", float("inf")), ("size", [1]), ("size", ""), ("size", "none"), ("share", "a half"),
    ("share", False), ("share", None), ("share", [0.5]), ("share", ""), ("name", None), ("name", True), ("name", ["a"]),
    ("likes", "Tea"), ("likes", "coffee"), ("likes", None), ("likes", ["tea"]), ("rates", "0.9;0.98"), ("rates", 0.9),
    ("rates", None), ("rates", ["a"]), ("rates", [True]), ("steps", "1.5"), ("most", "four"), ("most", 4.5),
    ("most", True), ("either", None), ("warm", "maybe"), ("warm", 2), ("warm", None), ("warm", ""),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value"), BAD)
def test_a_value_without_meaning_is_refused_by_the_name_of_its_setting_and_valid_values(field: str, value: Any) -> None:
    message = rf"'thing\.{field}'.*" + {"warm": "false", "share": "number", "likes": "tea"}.get(field, "")
    refused(message, from_dict, Child, {field: value}, "thing.", error=SettingError)
    refused(message, override, Child(), {field: value}, "thing.", error=SettingError)


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_key_is_refused_with_the_nearest_right_one(kind: type[Any]) -> None:
    for item in fields(kind):
        for wrong in (item.name + "s", item.name[:-1] + "x" + item.name[-1]):
            if wrong in {other.name for other in fields(kind)}:
                continue
            for make in (lambda key: from_dict(kind, {key: 1}, "it."), lambda key: override(kind(), {key: 1}, "it.")):
                refused(rf"'it\.{item.name}'", make, wrong, error=SettingError)


def test_near_names_are_suggested_columns_listed_once_and_folders_compared_by_their_names() -> None:
    assert suggest("zzz", ["b", "a", "a"]) == "Available: a, b." and suggest("zzz", []) == "None available."
    assert suggest("trian", ["train", "data"]) == "Did you mean 'train'?"
    assert str(UnknownColumnError("bild", ["image"], "a.csv has: image.")) == "Unknown column 'bild'. a.csv has: image."
    near = str(UnknownColumnError("imge", ["image"], "a.csv has: image."))
    assert near == "Unknown column 'imge'. Did you mean 'image'? a.csv has: image."
    beside = [Path("/a/long/way/shapes"), Path("/a/long/way/resnet-18")]
    told = str(UnknownFolderError("folder", Path("/a/long/way/resnet-50"), beside, "Train one."))
    assert told == "Unknown folder '/a/long/way/resnet-50'. Did you mean '/a/long/way/resnet-18'? Train one."
    told = str(UnknownFolderError("run", Path("mnie"), [Path("mine"), Path("x")]))
    assert told == "Unknown run 'mnie'. Did you mean 'mine'?"


@pytest.mark.parametrize("kind", KINDS)
def test_settings_survive_json_and_are_documented(kind: type[Any]) -> None:
    assert from_dict(kind, json.loads(json.dumps(as_dict(kind())))) == kind()
    assert describe(Child) == {"size": "how large it is", "share": "a part"}  # the text under the field, also inherited
    docs = describe(kind)
    assert list(docs) == [item.name for item in fields(kind)]
    assert all(text and text == " ".join(text.split()) and text.endswith(".") for text in docs.values())


def test_assignments_are_grouped_and_the_last_wins_and_other_arguments_are_refused() -> None:
    said = ["train.steps=1", " model.width = 64 ", "train.steps=2", "data.tokenizer=a=b.json", "decode.stop_strings="]
    train, decode = {"steps": "2"}, {"stop_strings": ""}
    expected = {"train": train, "model": {"width": "64"}, "data": {"tokenizer": "a=b.json"}, "decode": decode}
    assert collect_overrides(said) == expected
    assert collect_overrides([]) == {}
    for text in ("train.steps", ".steps=3", "train.=3", "=3", "", "train steps 3"):
        refused(r"train\.steps=1000", collect_overrides, [text], error=SettingError)


FILES = {
    "a.yaml": "train:\n  steps: 3e5\n  betas: [0.9, 0.98]\ndecode: {num_beams: 4}\n",
    "a.yml": "# a remark\ntrain: {steps: 300000, betas: '0.9,0.98'}\ndecode:\n  num_beams: 4\n",
    "a.json": '{"train": {"steps": "3e5", "betas": [0.9, 0.98]}, "decode": {"num_beams": 4}}',
}


@pytest.mark.parametrize("name", FILES)
def test_a_settings_file_is_read_and_words_win_over_it(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(FILES[name])
    said = collect_overrides(["decode.num_beams=2", "model.width=64"], tmp_path / name)
    made = resolve({"train": {"steps": 5, "lr": 0.25}}, said)
    assert made.train == TrainSettings(steps=300_000, lr=0.25, betas=(0.9, 0.98))
    assert made.decode == DecodeSettings(num_beams=2) and made.data == DataSettings() and made.model == {"width": "64"}
    assert set(as_dict(made)) == {*GROUPS, "model"} and as_dict(made)["train"]["steps"] == 300_000


CODE = "train: {steps: !!python/object/apply:os.mkdir ['sprung']}"
BROKEN = {
    "a.yaml": ["train: [", "- train", "train: 3", "3", "", "train:\n  - steps: 3", b"\xff\xfe\x00", CODE],
    "a.json": ["{", "[]", '{"train": 3}', "", "train: {steps: 3}", "null"],
}
STRANGE = ["trian: {steps: 3}", "train: {stesp: 3}", "1: {steps: 3}", "train: {1: 3}", "train: {~: 3}"]


def test_a_file_without_settings_or_with_unknown_names_is_refused_by_its_path_and_never_runs(folder: Path) -> None:
    for name, text in [(file, text) for file, texts in BROKEN.items() for text in texts]:
        Path(name).write_bytes(text if isinstance(text, bytes) else text.encode())
        refused(name.replace(".", r"\."), read_settings, Path(name), error=SettingError)
    for name in ("none.yaml", "."):
        refused(r"settings|YAML", read_settings, Path(name), error=SettingError)
    assert not Path("sprung").exists()
    for text in STRANGE:
        Path("a.yaml").write_text(text)
        with pytest.raises(SettingError, match="Unknown"):
            resolve({}, collect_overrides([], Path("a.yaml")))
    Path("a.yaml").write_text("data.vocab_size: 400\ntrain: {steps: 5}\ntrain.lr: 0.1\n")  # as on a command line
    assert read_settings(Path("a.yaml")) == {"data": {"vocab_size": 400}, "train": {"steps": 5, "lr": 0.1}}


def test_differences_are_named_by_their_path_and_settings_of_the_tokenizer_cannot_be_set() -> None:
    old, new = {"train": {"lr": 0.1, "betas": [0.9, 0.98]}, "seed": 1}, {"train": {"lr": 0.2, "betas": (0.9, 0.98)}}
    assert diff_settings(old, new) == ["seed: 1 -> None", "train.lr: 0.1 -> 0.2"] and diff_settings(old, old) == []
    for name in ("vocab_size", "pad_id", "bos_id", "eos_id"):
        with pytest.raises(SettingError, match=rf"model\.{name}"):
            new_spec(find_task("translate"), None, DataSources(("a.tsv",)), {"model": {name: 3}})


SETTINGS = {row["setting"] for row in index.load_index()["settings"]}


def test_ninety_six_names_are_supported_and_values_of_synonyms_are_checked() -> None:
    """One of the names, decode.max_length, is also a setting of the same meaning."""
    assert len(SYNONYMS) + len(RELATED) + ("decode.max_length" in SETTINGS) == 96
    assert not SYNONYMS.keys() & RELATED.keys()
    refused(r"train\.lr", collect_overrides, ["train.learning_rate=fast"], error=SettingError)


@pytest.mark.parametrize("name", SYNONYMS)
def test_a_synonym_sets_the_setting_of_regard(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_note.cache_clear()
    setting = SYNONYMS[name]
    assert setting in SETTINGS and name not in SETTINGS
    assert resolve_setting(name, "7") == (setting, "7") and resolve_setting(name, [7, 8]) == (setting, [7, 8])
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and name in told and setting in told


@pytest.mark.parametrize("name", RELATED)
def test_a_related_name_sets_nothing_and_names_the_setting(name: str) -> None:
    setting = RELATED[name][0]
    assert setting in SETTINGS
    if name in SETTINGS:  # data.block_size is a setting of point clouds
        return
    refused(setting, collect_overrides, [f"{name}=7"], error=SettingError)


def test_pipeline_names_are_tasks_and_presets_have_the_name_of_their_paper() -> None:
    aliases = {alias: row["task"] for row in load_index()["tasks"] for alias in row["aliases"]}
    for name, task in aliases.items():
        assert find_task(name).name == task
        index.check_task(name)
    for alias, preset in PRESET_ALIASES.items():
        assert find_preset(alias) == find_preset(preset) and alias not in index.presets()
        index.check_preset(alias)
        assert index.list_rows("settings", model=alias) == index.list_rows("settings", model=preset)
    assert info("seq2seq-lstm").recipes == info("rnn-sutskever").recipes != {}
