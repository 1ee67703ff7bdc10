# SPDX-License-Identifier: Apache-2.0
"""What must agree across the repository."""

import ast
import itertools
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parent.parent
PARTS = ("gs-cull", "gs-order", "gs-pinned", "gs-adam", "gs-raster")
PACKAGES = (*PARTS, "gs-train")


def _project(package: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / "packages" / package / "pyproject.toml").read_text())["project"]


def _imports(file: Path) -> set[str]:
    """Top-level names that a file imports anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_carries_the_licence(package: str) -> None:
    licence = (ROOT / "LICENSE").read_bytes()
    assert (ROOT / "packages" / package / "LICENSE").read_bytes() == licence
    assert _project(package)["license"] == "Apache-2.0"


@pytest.mark.parametrize("package", PACKAGES)
def test_the_installed_version_is_the_declared_one(package: str) -> None:
    module = __import__(package.replace("-", "_"))
    assert module.__version__ == _project(package)["version"]
    assert module.build_info()["version"] == _project(package)["version"]


@pytest.mark.parametrize("package", PACKAGES)
def test_the_changelog_speaks_of_the_version(package: str) -> None:
    changelog = (ROOT / "packages" / package / "CHANGELOG.md").read_text()
    heading = re.search(r"^## (.*)$", changelog, re.MULTILINE)
    assert heading is not None
    assert _project(package)["version"] in heading[1]


def test_requirements_on_siblings_admit_the_versions_here() -> None:
    wanted = {
        requirement.name: requirement.specifier
        for requirement in map(Requirement, _project("gs-train")["dependencies"])
    }
    for part in PARTS:
        assert Version(_project(part)["version"]) in wanted[part]


@pytest.mark.parametrize("package", PARTS)
def test_parts_import_neither_each_other_nor_the_trainer(package: str) -> None:
    others = {name.replace("-", "_") for name in PACKAGES if name != package}
    for file in (ROOT / "packages" / package / "src").rglob("*.py"):
        assert not _imports(file) & others, file


@pytest.mark.parametrize("package", PARTS)
def test_parts_need_torch_only_where_they_say_so(package: str) -> None:
    dependencies = {Requirement(text).name for text in _project(package)["dependencies"]}
    allowed = {"numpy", "numba"} | ({"torch"} if package == "gs-adam" else set())
    assert dependencies <= allowed


def test_every_source_file_names_its_licence() -> None:
    kinds = ("*.py", "*.cpp", "*.hpp", "*.cu", "*.cuh", "*.cmake")
    folders = [ROOT / name for name in ("packages", "cpp", "cmake", "tests", "benchmarks", "docs")]
    files = [f for folder in folders for kind in kinds for f in folder.rglob(kind)]
    assert len(files) > 50
    for file in files:
        if not {"build", ".nox", "_build"} & set(file.relative_to(ROOT).parts):
            assert "SPDX-License-Identifier: Apache-2.0" in file.read_text()[:200], file


def test_the_readme_names_files_that_exist() -> None:
    text = (ROOT / "README.md").read_text()
    links = re.findall(r"\]\((?!http)([^)#]+)\)", text)
    assert links
    for link in links:
        assert (ROOT / link).exists(), link


@pytest.mark.parametrize("package", PACKAGES)
def test_the_readme_names_the_version_of_each_package(package: str) -> None:
    text = (ROOT / "README.md").read_text()
    row = rf"^\| \[{package}\]\(packages/{package}\) \| `(\w+)` \|.*\| (\S+) \|$"
    found = re.search(row, text, re.MULTILINE)
    assert found is not None
    assert found[1] == package.replace("-", "_")
    assert found[2] == _project(package)["version"]


@pytest.mark.parametrize("page", ["README.md", "docs/building.md", "packages/gs-train/README.md"])
def test_an_install_command_names_packages_alone(page: str) -> None:
    patterns = re.findall(
        r"pip install [^`\n]*?(?:\./)?(packages/[a-z-]*\*[^\s`]*)", (ROOT / page).read_text()
    )
    assert patterns
    for pattern in patterns:
        named = list(ROOT.glob(pattern))
        assert len(named) > 1
        assert [path.name for path in named if not (path / "pyproject.toml").exists()] == []


def test_ci_runs_the_readmes_test_command() -> None:
    readme, ci = (ROOT / "README.md").read_text(), (ROOT / ".ci" / "run").read_text()
    command = next(line for line in readme.splitlines() if line.endswith(".venv/bin/nox"))
    assert command in ci


def test_constraints_hold_one_version_of_all_that_packages_and_tests_declare() -> None:
    lines = (ROOT / ".ci" / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"==[^*,]+", str(pin.specifier)) for pin in pins)
    versions = {pin.name: Version(str(pin.specifier)[2:]) for pin in pins}
    for package in PACKAGES:
        project = _project(package)
        extras = project.get("optional-dependencies", {}).values()
        for text in itertools.chain(project["dependencies"], *extras):
            wanted = Requirement(text)
            if wanted.name not in PACKAGES:
                assert versions[wanted.name] in wanted.specifier, f"{package}: {text}"


def _workflows() -> dict[str, dict[str, Any]]:
    folder = ROOT / ".github" / "workflows"
    return {file.name: yaml.safe_load(file.read_text()) for file in folder.glob("*.yml")}


def test_workflows_may_only_read_and_pin_their_actions_by_commit() -> None:
    assert _workflows()
    for name, workflow in _workflows().items():
        assert workflow["permissions"] == {"contents": "read"}, name
        for job in workflow["jobs"].values():
            for step in job["steps"]:
                if "uses" in step:
                    assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step["uses"]), step


def test_a_pull_request_reaches_our_own_machines_by_label_alone() -> None:
    ours = {
        name: workflow
        for name, workflow in _workflows().items()
        if any("self-hosted" in job["runs-on"] for job in workflow["jobs"].values())
    }
    assert ours
    for name, workflow in ours.items():
        events = workflow[True]  # what YAML makes of "on"
        assert set(events) == {"push", "pull_request_target"}, name  # the file is main's
        assert events["push"] == {"branches": ["main"]}
        assert events["pull_request_target"] == {"types": ["labeled"]}
        for job in workflow["jobs"].values():
            assert job["if"] == "github.event_name == 'push' || github.event.label.name == 'gpu'"
