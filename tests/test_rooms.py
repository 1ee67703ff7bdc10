# SPDX-License-Identifier: Apache-2.0
"""The rooms of gs_train: imports run one way, between files and between folders."""

from __future__ import annotations

import ast
import graphlib
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "packages" / "gs-train" / "src" / "gs_train"

# From the ground floor up: a room imports from itself and from rooms before it.
ROOMS = (
    *("names", "errors", "sizes", "machine", "world", "files", "checkpoint", "renderers", "losses"),
    *(
        "rows",
        "blocks",
        "ranks",
        "densify",
        "data",
        "options",
        "engine",
        "published",
        "tide",
        "backends",
        "scene",
        "clouds",
        "sizing",
        "runs",
        "viewer",
    ),
    *("commands", "api", "cli", "__main__"),
)


def _modules() -> dict[str, Path]:
    """Files by dotted name below gs_train; a package by the name of its folder."""
    found = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(part for part in parts if part != "__init__")] = path
    return found


def _imports(path: Path, modules: dict[str, Path]) -> Iterator[str]:
    """Modules of gs_train that a file imports, wherever in the file it does."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "gs_train":
            base = (node.module or "").partition(".")[2]
            for alias in node.names:
                inner = f"{base}.{alias.name}".strip(".")
                yield inner if inner in modules else base
        elif isinstance(node, ast.Import):
            for alias in node.names:
                package, _, name = alias.name.partition(".")
                if package == "gs_train":
                    yield name


def _graph() -> dict[str, set[str]]:
    modules = _modules()
    return {name: set(_imports(path, modules)) - {name} for name, path in modules.items()}


def test_every_module_is_in_a_room() -> None:
    rooms = {name.split(".")[0] for name in _modules()} - {""}
    assert rooms == set(ROOMS)


def test_rooms_import_rooms_below_them() -> None:
    floor = {room: k for k, room in enumerate(ROOMS)}
    upward = [
        f"{name} imports {other}"
        for name, others in _graph().items()
        for other in others
        if name and floor[name.split(".")[0]] < floor[other.split(".")[0]]
    ]
    assert not upward


def test_no_files_import_each_other_in_a_circle() -> None:
    graph = {name: others for name, others in _graph().items() if name}
    assert len(tuple(graphlib.TopologicalSorter(graph).static_order())) >= len(graph)


def test_the_architecture_page_names_every_room() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    folders = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()}
    assert folders <= set(re.findall(r"^\| `(\w+)/` \|", page, re.MULTILINE))
