# SPDX-License-Identifier: Apache-2.0
"""Train 3D Gaussian Splatting scenes from photographs with known poses.

The command line is ``gs-train``; the same from Python:

>>> import gs_train  # doctest: +SKIP
>>> fitted = gs_train.fit(data="capture", out="run", steps=7000)  # doctest: +SKIP
>>> fitted.metrics["psnr"], fitted.rows()["means"]  # doctest: +SKIP
"""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import TYPE_CHECKING, Any

from gs_train.errors import InputError as InputError

if TYPE_CHECKING:
    from gs_train.api import fit as fit
    from gs_train.options.config import FitConfig as FitConfig
    from gs_train.runs.fitted import Fitted as Fitted
    from gs_train.runs.step_report import StepReport as StepReport
    from gs_train.runs.step_report import StopTraining as StopTraining

__all__ = [
    "FitConfig",
    "Fitted",
    "InputError",
    "StepReport",
    "StopTraining",
    "build_info",
    "fit",
]
__version__ = importlib.metadata.version("gs-train")

# Imported when asked for: they bring in torch, which takes seconds.
_LATER = {
    "FitConfig": "options.config",
    "Fitted": "runs.fitted",
    "StepReport": "runs.step_report",
    "StopTraining": "runs.step_report",
    "fit": "api",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _LATER:
            raise AttributeError(f"module 'gs_train' has no attribute {name!r}")
        value = getattr(importlib.import_module(f"gs_train.{_LATER[name]}"), name)
        globals()[name] = value
        return value


def build_info() -> dict[str, Any]:
    """Versions of this package and of the packages that a result depends on."""
    from gs_train.runs.metrics import package_versions

    return {"version": __version__, "packages": package_versions()}
