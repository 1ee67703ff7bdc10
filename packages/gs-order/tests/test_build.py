# SPDX-License-Identifier: Apache-2.0
import json
import subprocess
import sys
from importlib import metadata

import gs_order


def test_build_info_reports_versions():
    info = gs_order.build_info()
    assert info["version"] == gs_order.__version__ == metadata.version("gs-order")
    assert info["numba"] == metadata.version("numba")
    assert info["n_threads"] >= 1
    json.dumps(info)


def test_importing_neither_imports_torch_nor_compiles_nor_starts_threads():
    code = (
        "import sys, threading, gs_order; from gs_order import search, bits;"
        "assert 'torch' not in sys.modules and 'matplotlib' not in sys.modules;"
        "assert threading.active_count() == 1;"
        "assert not search.improve.signatures and not bits.transpose_chunk.signatures"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
