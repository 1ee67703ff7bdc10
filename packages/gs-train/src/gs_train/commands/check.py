# SPDX-License-Identifier: Apache-2.0
"""``gs-train check``: what a capture holds, how good its reconstruction is, and what ``fit`` would
do with it."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from gs_train.commands.check_capture import CaptureFacts
from gs_train.commands.check_start import start_of_fit
from gs_train.commands.check_table import print_check
from gs_train.data.masks import Mode
from gs_train.data.photographs import MOST_PIXELS
from gs_train.data.readers.choose import read_source
from gs_train.errors import InputError
from gs_train.options.config import FitConfig
from gs_train.sizes import Count


@dataclass(frozen=True)
class CheckConfig:
    """Say what a capture holds, how well its points fit its photographs, and what fit would do with
    it. Opens photographs for their headers alone, and trains nothing.

    Attributes:
        data: folder with a COLMAP model (sparse/0 or sparse) or a transforms.json, or that file.
        steps: optimizer updates, as fit's.
        batch_size: images a step, as fit's.
        renderer: as fit's.
        max_side: as fit's.
        max_pixels: as fit's.
        skip_broken: as fit's.
        allow_missing: as fit's.
        mask: as fit's.
        depth_weight: as fit's.
        background: as fit's.
        exposure: as fit's.
        strategy: as fit's.
        cap: as fit's.
        sh_degree: as fit's.
        test_every: as fit's.
        test_list: as fit's.
        image_cache: as fit's.
        offload: as fit's.
        device_memory: as fit's.
        host_memory: as fit's.
        json: print one JSON object instead of a table.
    """

    data: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")]
    steps: Count = 30_000
    batch_size: int = 1
    renderer: Literal["auto", "raster", "gsplat", "cpu"] = "auto"
    max_side: int | Literal["off"] = 1600
    max_pixels: int = MOST_PIXELS
    skip_broken: bool = False
    allow_missing: bool = False
    mask: Mode = "auto"
    depth_weight: str | None = None
    background: Literal["black", "white", "random"] = "black"
    exposure: bool = False
    strategy: Literal["adc", "mcmc", "fixed"] = "adc"
    cap: Count | None = None
    sh_degree: int = 3
    test_every: int = 8
    test_list: Path | None = None
    image_cache: str = "4GiB"
    offload: Literal["auto", "none", "naive", "clm", "gs-scale", "best", "tide"] = "auto"
    device_memory: str | None = None
    host_memory: str | None = None
    json: bool = False

    def as_fit(self) -> FitConfig:
        """The options of the run that this is about.

        Raises:
            InputError: an option is out of range.
        """
        options = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "json"}
        return FitConfig(out=Path("RUN"), **options)  # which is never written to


def check(config: CheckConfig) -> dict[str, Any]:
    """Look at a capture and print what is found; what --json prints is returned.

    Raises:
        InputError: fit would refuse the capture, in the same words. What could be found is printed
            before.
    """
    run = config.as_fit()
    result: dict[str, Any] = {"data": str(config.data), "refused": None}
    refusal: InputError | None = None
    try:
        source = read_source(run.data)
    except InputError as error:
        refusal = error
    else:
        facts = CaptureFacts(source, run)
        result |= facts.found()
        result["fit"] = None
        try:
            result["fit"] = start_of_fit(run, facts)
        except InputError as error:
            refusal = error
    result["refused"] = None if refusal is None else str(refusal)
    if config.json:
        print(json.dumps(result, indent=2, allow_nan=False))
    else:
        print_check(result, file=sys.stdout)
    if refusal is not None:
        raise refusal
    return result
