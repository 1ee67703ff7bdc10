# SPDX-License-Identifier: Apache-2.0
"""Importing a package is harmless: no torch, no driver, no threads."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys

import pytest

NATIVE = ("gs_cull", "gs_pinned", "gs_adam", "gs_raster")

_PROBE = """
import json, os, sys
import {module}
{module}.build_info()
print(json.dumps({{
    "torch": "torch" in sys.modules,
    "libcuda": "libcuda.so" in open("/proc/self/maps").read(),
    "threads": len(os.listdir("/proc/self/task")),
}}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("module", [*NATIVE, "gs_order"])
def test_importing_brings_in_neither_torch_nor_a_driver_nor_threads(module: str) -> None:
    # numpy's own BLAS starts threads at import unless told not to.
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [sys.executable, "-c", _PROBE.format(module=module)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    if module != "gs_adam":  # HostAdam is a torch.optim.Optimizer
        assert not found["torch"]
        assert found["threads"] == 1
    assert not found["libcuda"]


def _readelf(module: str, *options: str) -> str:
    spec = importlib.util.find_spec(f"{module}._core")
    assert spec is not None
    assert spec.origin is not None
    command = ["readelf", *options, "-W", spec.origin]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(shutil.which("readelf") is None, reason="readelf is not installed")
@pytest.mark.parametrize("module", NATIVE)
def test_native_modules_are_hardened(module: str) -> None:
    assert "BIND_NOW" in _readelf(module, "-d")
    assert "GNU_RELRO" in _readelf(module, "-l")
    assert "__stack_chk_fail" in _readelf(module, "--dyn-syms")


@pytest.mark.skipif(shutil.which("readelf") is None, reason="readelf is not installed")
@pytest.mark.parametrize("module", NATIVE)
def test_native_modules_link_only_the_system(module: str) -> None:
    dynamic = _readelf(module, "-d")
    needed = {line.split("[")[1].split("]")[0] for line in dynamic.splitlines() if "NEEDED" in line}
    system = ("libstdc++", "libgcc_s", "libc.so", "libm.so", "libpthread", "libdl", "librt", "ld-")
    assert all(name.startswith(system) for name in needed), needed


@pytest.mark.skipif(shutil.which("readelf") is None, reason="readelf is not installed")
@pytest.mark.parametrize("module", NATIVE)
def test_native_modules_show_no_cuda_symbols(module: str) -> None:
    symbols = _readelf(module, "--dyn-syms")
    rows = [line.split() for line in symbols.splitlines() if line.strip()[:1].isdigit()]
    defined = [row[7] for row in rows if len(row) > 7 and row[6] != "UND"]
    assert any(name.startswith("PyInit_") for name in defined)
    assert not [name for name in defined if "cuda" in name.lower() and "gs" not in name]
