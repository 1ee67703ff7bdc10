# SPDX-License-Identifier: Apache-2.0
"""``python -m gs_pinned``: one report to paste into an issue."""

import argparse

from gs_pinned.report import report


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m gs_pinned", description="What this machine and this build can do."
    )
    parser.add_argument(
        "--bytes",
        type=int,
        default=1 << 30,
        help="size of the table that the rates are measured on (default: 1 GiB)",
    )
    arguments = parser.parse_args()
    for line in report(arguments.bytes):
        print(line, flush=True)


if __name__ == "__main__":
    main()
