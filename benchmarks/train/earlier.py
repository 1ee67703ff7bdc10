# SPDX-License-Identifier: Apache-2.0
"""``gs-train fit`` of another commit, in a process of its own.

The packages of that commit lie in a folder, where pip installs them with ``--target``. Other
packages are those of this process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gs_train.options.config import FitConfig

# The command line's function and not the command, so that the run that is timed finds the kernels
# loaded by a run before it.
_PROGRAM = """
import json, sys
from gs_train.cli import main
for arguments in json.loads(sys.argv[1]):
    status = main(arguments)
    if status:
        sys.exit(status)
"""


def fit(site: Path, config: FitConfig, *, warm_up: int) -> dict[str, Any]:
    """What the run's metrics.json holds.

    Args:
        site: the folder of the packages.
        config: of the run, whose ``out`` is another folder.
        warm_up: steps of a run before it in the same process; 0: none.

    Raises:
        FileNotFoundError: no gs-train is in ``site``.
        RuntimeError: the run failed.
    """
    if not (site / "gs_train").is_dir():
        raise FileNotFoundError(f"--before must hold gs_train, got {site}")
    path = os.pathsep.join(filter(None, [str(site.resolve()), os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryDirectory() as folder:
        runs = {"warm": min(warm_up, config.steps), "run": config.steps}
        commands = [
            _command(config, steps, Path(folder) / name) for name, steps in runs.items() if steps
        ]
        done = subprocess.run(
            [sys.executable, "-P", "-c", _PROGRAM, json.dumps(commands)],
            env=os.environ | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"gs-train of {site} failed: {done.stderr[-2000:]}")
        found: dict[str, Any] = json.loads((Path(folder) / "run" / "metrics.json").read_text())
    return found


def _command(config: FitConfig, steps: int, out: Path) -> Sequence[str]:
    """Options that every version has."""
    options: dict[str, Any] = {
        "out": out,
        "steps": steps,
        "seed": config.seed,
        "strategy": config.strategy,
        "cap": config.cap,
        "offload": config.offload,
        "device-memory": config.device_memory,
        "checkpoint-every": 0,
    }
    if config.adc.absgrad:
        options |= {"adc.absgrad": True, "adc.grow-grad2d": config.adc.grow_grad2d}
    return [
        "fit",
        str(config.data.resolve()),
        *(
            word
            for name, value in options.items()
            if value is not None
            for word in ([f"--{name}"] if value is True else [f"--{name}", str(value)])
        ),
    ]
