"""Configs, bodies and tasks have typed attributes: the source does not probe them for attributes by name."""

import ast
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "regard"
PROBED = re.compile(r"(^|[._])(config|body|task|traits)$")


def probes(source: str) -> list[str]:
    """Calls of hasattr and getattr with a literal name on a config, a body or a task."""
    return [
        ast.unparse(node)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("hasattr", "getattr")
        and isinstance(node.args[1], ast.Constant)
        and PROBED.search(ast.unparse(node.args[0]))
    ]


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_configs_bodies_and_tasks_are_not_probed_for_attributes(path: Path) -> None:
    assert not probes(path.read_text(encoding="utf-8"))


def test_a_probe_is_detected() -> None:
    found = probes(
        'getattr(model.config, "act", False); hasattr(body, "grid"); getattr(config, name); hasattr(item, "x")'
    )
    assert found == ["getattr(model.config, 'act', False)", "hasattr(body, 'grid')"]
