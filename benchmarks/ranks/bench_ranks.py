# SPDX-License-Identifier: Apache-2.0
"""How much faster do several GPUs train one scene, and do they wait for each other?

Decides whether a second GPU pays, by preset and batch size. The synthetic city of
``train/bench_engine.py``, in shuffled epochs unless ``--order`` says otherwise, through gs-train's
engine in rounds, one process for each GPU. The ceiling is W times one rank, which is measured in
the same processes: for each line rank 0 first trains all rows alone, with all cores of the host,
while the others wait, and then all ranks train. The peer is gsplat's ``rasterization`` with
``distributed=True`` and torch's fused Adam, whose batches must be multiples of W; alone it is the
same without ``distributed``.

    PYTHONPATH=benchmarks python benchmarks/ranks/bench_ranks.py --json ranks.json
    ... bench_ranks.py --rows 40_000_000 --batch 4 16
    ... bench_ranks.py --size 3840 2160 --views 220 --batch 8 --peer-batch

A sample is the rate of a run of ``--seconds``, from idle devices to idle devices. A run of the same
length is then made with events around each wait: how long compute streams stood still for exchanges
(for the way, and for ranks that came later), and how long main threads waited for integers of
others. Memory is what torch's tensors took at most, of each rank, with the bytes of rows,
gradients and exchanges; the rest is rendering. Beside rates and memory stands what ``gs-train
plan`` foretells. A line that would begin after ``--limit`` seconds is left out and named. On a CPU
try

    ... bench_ranks.py --renderer cpu --rows 2000 --share 0.1 --views 8 --size 64 48 --batch 1 2
"""

from __future__ import annotations

import argparse
import sys
import time

import torch
from foretold import between_gpus
from launching import Line, links, measured, worlds

from gs_train.world.cores import allowed_cores
from harness import Record, add_json_option

PRESETS = ("none", "best")
ORDERS = ("shuffle", "tiles", "path")
SURVEY = 880
"""Views of ``bench_engine.py``."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[20_000_000])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4, 8, 16, 64])
    parser.add_argument("--overlap", type=float, nargs="+", default=[0.67], help="of neighbours")
    parser.add_argument("--presets", nargs="+", choices=PRESETS, default=list(PRESETS))
    parser.add_argument(
        "--ranks", type=int, nargs="+", help="numbers of ranks; 1 and all GPUs by default"
    )
    parser.add_argument(
        "--peer-batch", type=int, nargs="*", default=[8], help="of gsplat; none without a number"
    )
    parser.add_argument("--size", type=int, nargs=2, default=[1920, 1080])
    parser.add_argument("--views", type=int, default=SURVEY, help="of the survey")
    parser.add_argument("--share", type=float, default=0.02, help="of the rows in a view")
    parser.add_argument("--seconds", type=float, default=0.7, help="per sample")
    parser.add_argument("--samples", type=int, default=3, help="runs of a line")
    parser.add_argument("--limit", type=float, default=1e9, help="seconds until no line begins")
    parser.add_argument(
        "--order", choices=ORDERS, default="shuffle", help="of photographs, as bench_engine.py's"
    )
    parser.add_argument("--tile-views", type=int, help="of a tile, with --order tiles")
    parser.add_argument(
        "--balance", choices=("on", "off"), default="on",
        help="off: views are dealt as if all ranks drew alike",
    )  # fmt: skip
    parser.add_argument(
        "--cut-views", choices=("auto", "never"), default="auto", help="as gs-train fit's"
    )
    parser.add_argument(
        "--forecast", choices=("on", "off"), default="on",
        help="what gs-train plan says, beside each line; takes some seconds for each scene",
    )  # fmt: skip
    parser.add_argument("--renderer", choices=("raster", "cpu"), default="raster")
    add_json_option(parser)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    record = Record(options.json, gpus=torch.cuda.device_count(), links=links())
    sizes, ends, status = (
        worlds(options.ranks, options.renderer),
        time.monotonic() + options.limit,
        0,
    )
    between = None
    if options.forecast == "on" and options.renderer != "cpu" and max(sizes) > 1:
        between = between_gpus()
    lines: list[Line] = []
    for rows in options.rows:
        # The largest world first, and one rank beside it.
        for ranks in [n for n in sizes if n > 1][::-1] or [1]:
            plan = vars(options) | {
                "json": None, "rows": rows, "cores": allowed_cores(),
                "limit": ends - time.monotonic(), "between_gpus": between,
                "measures_one": 1 in sizes and ranks == sizes[-1],
            }  # fmt: skip
            print(f"\n{rows:,} Gaussians, {ranks} ranks", flush=True)
            found, ended = measured("training_ranks", ranks, plan)
            lines += found
            status = status or ended
    for line in lines:
        record.add(line["name"], line["samples"], line["unit"], axes=line["axes"], **line["facts"])
    if lines:
        record.write()
    sys.exit(status)


if __name__ == "__main__":
    main()
