# SPDX-License-Identifier: Apache-2.0
"""What a loss may have besides colours: a capture with all of it, and options that turn it on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
from PIL import Image

TERMS = {
    "carve": ("--mask", "carve"),
    "ignore": ("--mask", "ignore"),
    "depth": ("--mask", "off", "--depth-weight", "2:0.5"),
    "white": ("--mask", "off", "--background", "white"),
    "random": ("--mask", "off", "--background", "random"),
    "all": (
        *("--mask", "carve", "--depth-weight", "2:0.5", "--background", "random"),
        "--exposure",
    ),
}
"""Options by the name of their term."""

COLOURS = ("--mask", "off")
"""Options of a loss of colours alone."""


def with_terms(tiny_capture: Path, folder: Path) -> Path:
    """A copy of the capture with a mask and a depth map of each photograph."""
    made = Path(shutil.copytree(tiny_capture, folder))
    params = {}
    for i, path in enumerate(sorted((made / "images").iterdir())):
        with Image.open(path) as photograph:
            width, height = photograph.size
        kept = np.full((height, width), 255, np.uint8)
        kept[:, : width // 4 + i] = 0
        v, u = np.mgrid[:height, :width]
        depths = np.uint16(20_000 + 300 * u + 100 * v + 500 * i)
        for kind, pixels in (("masks", kept), ("depths", depths)):
            (made / kind).mkdir(exist_ok=True)
            Image.fromarray(pixels).save(made / kind / f"{path.stem}.png")
        params[path.stem] = {"scale": 0.5 + 0.01 * i, "offset": 0.02}
    (made / "depth_params.json").write_text(json.dumps(params))
    return made
