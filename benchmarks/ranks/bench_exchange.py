# SPDX-License-Identifier: Apache-2.0
"""How fast do ranks exchange what training exchanges, alone and beside drawing?

Decides how many rounds of views must be on their way at once, and feeds ``model.py``, which
foretells rates for other numbers of GPUs. For each view every rank owns a share of its rows:
records of 52 bytes a row travel to the rank that draws the view, and 48 bytes a row come back. The
ceilings are the links between the GPUs, and of copies the links to the host; ``links`` in the
file's facts says which they are.

    PYTHONPATH=benchmarks python benchmarks/ranks/bench_exchange.py --json exchange.json

Rates are of bytes that leave a rank for others, each way, on the slowest rank. Beside drawing,
each exchange begins on a stream of its own with a view that is drawn forward and backward; both
times are given. Copies are between each rank's page-locked memory and its device: one rank at
a time, then all together. Integers travel on the host (gloo), as when a batch begins. On a CPU try

    ... bench_exchange.py --renderer cpu --ranks 2 --visible 600 --rows 2000 --size 64 48
"""

from __future__ import annotations

import argparse
import sys

import torch
from launching import links, measured, worlds

from harness import Record, add_json_option


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--ranks", type=int, nargs="+", help="numbers of ranks; all GPUs by default"
    )
    parser.add_argument(
        "--visible", type=int, nargs="+", default=[60_000, 240_000, 480_000, 1_900_000],
        help="rows that a view shows, of all ranks",
    )  # fmt: skip
    parser.add_argument("--rows", type=int, default=2_000_000, help="of the city that is drawn")
    parser.add_argument("--share", type=float, default=0.24, help="of these rows in its view")
    parser.add_argument("--size", type=int, nargs=2, default=[1920, 1080])
    parser.add_argument("--copied", type=int, default=512 << 20, help="bytes of a copy")
    parser.add_argument("--samples", type=int, default=10)
    parser.add_argument("--renderer", choices=("raster", "cpu"), default="raster")
    add_json_option(parser)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    record = Record(options.json, gpus=torch.cuda.device_count(), links=links())
    sizes = [n for n in worlds(options.ranks, options.renderer) if n > 1]
    if not sizes:
        sys.exit("--ranks must name 2 or more, and as many GPUs must be there")
    status = 0
    for ranks in sizes:
        print(f"\n{ranks} ranks", flush=True)
        lines, ended = measured("exchange_ranks", ranks, vars(options) | {"json": None})
        status = status or ended
        for line in lines:
            record.add(
                line["name"], line["samples"], line["unit"], axes=line["axes"], **line["facts"]
            )
    record.write()
    sys.exit(status)


if __name__ == "__main__":
    main()
