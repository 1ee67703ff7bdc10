# SPDX-License-Identifier: Apache-2.0
"""Train 3D Gaussian Splatting scenes from photographs with known poses.

The command line is ``gs-train``; the same things from Python:

>>> from gs_train.config import FitConfig  # doctest: +SKIP
>>> from gs_train.fit import fit  # doctest: +SKIP
>>> metrics = fit(FitConfig(data=Path("capture"), out=Path("run"), steps=7000))  # doctest: +SKIP
"""

from __future__ import annotations

import importlib.metadata
from typing import Any

from gs_train.errors import InputError as InputError

__all__ = ["InputError", "build_info"]
__version__ = importlib.metadata.version("gs-train")


def build_info() -> dict[str, Any]:
    """Versions of this package and of what a result depends on."""
    from gs_train.metrics import package_versions

    return {"version": __version__, "packages": package_versions()}
