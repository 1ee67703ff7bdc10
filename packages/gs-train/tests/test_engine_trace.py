# SPDX-License-Identifier: Apache-2.0
"""What ran when, as a file that Perfetto reads."""

import json
from pathlib import Path

import pytest

from gs_train.config import FitConfig
from gs_train.data.synthetic import write_demo_capture
from gs_train.fit import fit


@pytest.mark.parametrize("offload", ["none", "best", "gs-scale"])
def test_a_trace_covers_the_steps(tmp_path: Path, offload: str) -> None:
    capture = write_demo_capture(tmp_path / "capture", n_views=8, width=48, height=40)
    path = tmp_path / "trace.json"
    fit(
        FitConfig(
            data=capture,
            out=tmp_path / "run",
            steps=6,
            batch_size=1 if offload == "gs-scale" else 2,
            renderer="cpu",
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
    if offload == "none":
        assert sum(e["name"] == "view" and tracks[e["tid"]] == "host" for e in spans) == 12
    elif offload == "best":
        assert {"load", "cull"} <= seen
        assert {"draw 0", "draw 1", "wake", "update appearance", "plan the next"} <= names
        assert any(name.startswith("load ") for name in names)
    else:
        assert {"load", "store", "worker"} <= seen
        assert {"draw 0", "load 0", "store 0", "plan the next"} <= names
        assert any(name.startswith("update ") for name in names)
        assert any(name.startswith("look ahead ") for name in names)
