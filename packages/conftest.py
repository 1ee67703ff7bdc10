# SPDX-License-Identifier: Apache-2.0
"""Each worker of pytest-xdist keeps what numba compiles in a folder of its own.

Two processes that compile one function for different types at the same time write both results to
the same file of numba's cache, whose index then names one for the other's types.
"""

import os

_folder, _worker = os.environ.get("NUMBA_CACHE_DIR"), os.environ.get("PYTEST_XDIST_WORKER")
if _folder and _worker:
    os.environ["NUMBA_CACHE_DIR"] = os.path.join(os.path.dirname(_folder), _worker)
