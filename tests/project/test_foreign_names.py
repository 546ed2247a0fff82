"""Setting and task names of other tools: accepted if the meaning is equal, otherwise explained."""

from __future__ import annotations

import pytest

from regard import index
from regard.errors import SettingError
from regard.index import PRESET_ALIASES, RELATED, SYNONYMS, print_note, task_aliases
from regard.runs.info import info
from regard.runs.settings import check_groups, collect_overrides
from regard.systems import find_preset
from regard.tasks import find_task

SETTINGS = {row["setting"] for row in index.load_index()["settings"]}


def test_ninety_six_names_are_supported() -> None:
    """One of the names, decode.max_length, is also a setting of the same meaning."""
    assert len(SYNONYMS) + len(RELATED) + ("decode.max_length" in SETTINGS) == 96
    assert not SYNONYMS.keys() & RELATED.keys()


@pytest.mark.parametrize("name", SYNONYMS)
def test_a_synonym_sets_the_setting_of_regard(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_note.cache_clear()
    setting = SYNONYMS[name]
    assert setting in SETTINGS and name not in SETTINGS
    group, _, key = setting.partition(".")
    assert collect_overrides([f"{name}=7"])[group] == {key: "7"}
    assert collect_overrides({name: [7, 8]})[group] == {key: [7, 8]}
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and name in told and setting in told


@pytest.mark.parametrize("name", RELATED)
def test_a_related_name_sets_nothing_and_names_the_setting(name: str) -> None:
    setting = RELATED[name][0]
    assert setting in SETTINGS
    if name in SETTINGS:  # data.block_size is a setting of point clouds
        return
    with pytest.raises(SettingError, match=setting):
        collect_overrides([f"{name}=7"])


def test_values_of_synonyms_are_checked_like_those_of_settings() -> None:
    with pytest.raises(SettingError, match=r"train\.lr"):
        check_groups(collect_overrides(["train.learning_rate=fast"]))


@pytest.mark.parametrize("name", task_aliases())
def test_pipeline_names_are_tasks(name: str) -> None:
    assert find_task(name).name == task_aliases()[name]
    index.check_task(name)


def test_presets_by_the_name_of_their_paper() -> None:
    for alias, preset in PRESET_ALIASES.items():
        assert find_preset(alias) == find_preset(preset) and alias not in index.presets()
        index.check_preset(alias)
        assert index.list_rows("settings", model=alias) == index.list_rows("settings", model=preset)
    assert info("seq2seq-lstm").recipes == info("rnn-sutskever").recipes != {}
