# SPDX-License-Identifier: Apache-2.0
"""What ran when, as a file that Perfetto reads."""

import json
from pathlib import Path

import pytest

from gs_train.data.synthetic import write_demo_capture
from gs_train.densify import AdcConfig
from gs_train.options.config import FitConfig
from gs_train.runs.training import fit


@pytest.mark.parametrize(
    "renderer",
    ["cpu", *(pytest.param(name, marks=pytest.mark.gpu) for name in ("raster", "gsplat"))],
)
@pytest.mark.parametrize("offload", ["none", "naive", "clm", "gs-scale", "best"])
def test_a_trace_has_all_that_a_run_does(tmp_path: Path, offload: str, renderer: str) -> None:
    capture = write_demo_capture(tmp_path / "capture", n_views=8, width=128, height=96)
    path = tmp_path / "trace.json"
    batch_size = 1 if offload == "gs-scale" else 2
    fit(
        FitConfig(
            data=capture,
            out=tmp_path / "run",
            steps=6,
            batch_size=batch_size,
            resort_every=1e-6,
            adc=AdcConfig(refine_start=1, refine_every=2 * batch_size, grow_grad2d=1e-7),
            checkpoint_every=3,
            renderer=renderer,  # type: ignore[arg-type]
            offload=offload,  # type: ignore[arg-type]
            trace=path,
        )
    )
    events = json.loads(path.read_text())["traceEvents"]
    tracks = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    spans = [e for e in events if e["ph"] == "X"]
    assert all(e["ts"] >= 0 and e["dur"] >= 0 for e in spans)
    seen = {tracks[e["tid"]] for e in spans}
    names = {e["name"] for e in spans}
    assert {"host", "compute"} <= seen
    assert {"wait for photographs", "densify", "sort rows", "log", "write trace"} <= names
    assert sum(e["name"] == "checkpoint" for e in spans) == 2
    if offload == "naive":
        assert (
            sum(e["name"].startswith("draw ") and tracks[e["tid"]] == "host" for e in spans) == 12
        )
    elif offload in ("none", "best"):
        assert "cull" in seen
        assert ("load" in seen) == (offload == "best")
        assert {"draw 0", "draw 1", "wake", "update appearance", "list the next"} <= names
        assert any(name.startswith("load ") for name in names) == (offload == "best")
    else:
        assert {"load", "store", "worker"} <= seen
        assert {"draw 0", "load 0", "store 0"} <= names
        assert ("update untouched" in names) == (offload == "clm")
        assert any(name.startswith("update ") for name in names)
        # Dense semantics has no rows that sleep.
        assert any(name.startswith("look ahead ") for name in names) == (offload == "gs-scale")
