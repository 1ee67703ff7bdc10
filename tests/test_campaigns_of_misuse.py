# SPDX-License-Identifier: Apache-2.0
"""Some cases of the campaigns `misuse` and `ends`, and that `misuse` leaves nothing public out."""

import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from campaigns.misuse import ENTRIES, MADE_BY_OTHERS
from campaigns.runner import run_apart

PACKAGES = (
    "gs_cull",
    "gs_order",
    "gs_pinned",
    "gs_adam",
    "gs_raster",
    "gs_raster.cpu",
    "gs_raster.torch",
    "gs_train",
)


def _public(package: str) -> Iterator[str]:
    """Functions, classes, and what classes define themselves, by their full names."""
    module = importlib.import_module(package)
    for name in module.__all__:
        value: Any = getattr(module, name)
        is_class = inspect.isclass(value)
        if isinstance(value, str | int) or (is_class and issubclass(value, BaseException)):
            continue
        yield f"{package}.{name}"
        for kind in value.__mro__ if is_class else ():
            for method, made in vars(kind).items():
                made = getattr(made, "__func__", made)
                is_ours = kind.__module__.startswith(package) and inspect.isfunction(made)
                if is_ours and not method.startswith("_"):
                    yield f"{package}.{name}.{method}"


@pytest.mark.parametrize("package", PACKAGES)
def test_everything_public_is_misused(package: str) -> None:
    known = {entry.name for entry in ENTRIES}
    missing = sorted(set(_public(package)) - known - set(MADE_BY_OTHERS))
    assert not missing, f"campaigns/misuse needs entries for {', '.join(missing)}"


@pytest.mark.parametrize(("name", "count"), [("misuse", 150), ("ends", 6)])
def test_some_cases_are_good(name: str, count: int, tmp_path: Path) -> None:
    outcomes = run_apart(f"campaigns.{name}", range(count), tmp_path / "work")
    bad = [f"{outcome.seed}: {outcome.bad} {outcome.said}" for outcome in outcomes if outcome.bad]
    assert not bad, "\n".join(bad)
