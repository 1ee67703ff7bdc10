# SPDX-License-Identifier: Apache-2.0
"""Train 3D Gaussian Splatting scenes from photographs with known poses.

The command line is ``gs-train``; the same things from Python:

>>> from gs_train import FitConfig, fit  # doctest: +SKIP
>>> metrics = fit(FitConfig(data=Path("capture"), out=Path("run"), steps=7000))  # doctest: +SKIP
"""

from __future__ import annotations

import importlib.metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gs_train.config import FitConfig as FitConfig
    from gs_train.fit import fit as fit

__all__ = ["FitConfig", "InputError", "build_info", "fit"]
__version__ = importlib.metadata.version("gs-train")

from gs_train.errors import InputError as InputError


def build_info() -> dict[str, Any]:
    """Versions of this package and of what a result depends on."""
    from gs_train.metrics import package_versions

    return {"version": __version__, "packages": package_versions()}


def __getattr__(name: str) -> Any:
    # Imported on use: torch and tyro take seconds.
    if name == "FitConfig":
        from gs_train.config import FitConfig

        return FitConfig
    if name == "fit":
        from gs_train.fit import fit

        return fit
    raise AttributeError(f"module 'gs_train' has no attribute {name!r}")
