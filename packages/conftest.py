# SPDX-License-Identifier: Apache-2.0
"""Each worker of pytest-xdist keeps what numba compiles in a folder of its own.

Two processes that compile one function for different types at the same time write both results to
the same file of numba's cache, whose index then names one for the other's types. A worker's folder
begins with what is in ``NUMBA_CACHE_DIR``: what one process has compiled there, no worker compiles.
"""

import os
import shutil
from pathlib import Path


def _begun(compiled: Path, own: Path) -> Path:
    """The worker's folder, which is there whole or not at all."""
    if compiled.exists() and not own.exists():
        copy = own.with_name(f"{own.name}.{os.getpid()}")
        try:
            shutil.copytree(compiled, copy)
            copy.rename(own)
        except OSError:  # a worker of another run was first, or another run is compiling there
            shutil.rmtree(copy, ignore_errors=True)
    return own


_folder, _worker = os.environ.get("NUMBA_CACHE_DIR"), os.environ.get("PYTEST_XDIST_WORKER")
if _folder and _worker:
    _compiled = Path(_folder).resolve()
    os.environ["NUMBA_CACHE_DIR"] = str(
        _begun(_compiled, _compiled.with_name(f"{_compiled.name}-{_worker}"))
    )
