# SPDX-License-Identifier: Apache-2.0
"""Do two runs on a drive hold the same bits? Every plane of every block, moments included.

    PYTHONPATH=benchmarks python benchmarks/tide/same_stores.py RUN OTHER

Prints one line of JSON: ``blocks`` and ``rows`` that were compared, ``different`` blocks.
"""

from __future__ import annotations

import argparse
import contextlib
import json
from pathlib import Path

from gs_pinned import BlockStore
from gs_train.runs.run import Run

_AT_ONCE = 64  # blocks


def opened(path: Path) -> BlockStore:
    """The store of a run at its newest checkpoint."""
    run = Run.open(path)
    assert run.store is not None
    return BlockStore.open(run.store_folder, snapshot=run.store.snapshot, read_only=True)


def compared(ours: BlockStore, theirs: BlockStore) -> dict[str, int]:
    """What is printed."""
    blocks, n_rows, different = ours.blocks, 0, 0
    if blocks != theirs.blocks or ours.planes != theirs.planes:
        raise RuntimeError("the stores must have the same blocks of the same planes")
    for first in range(0, len(blocks), _AT_ONCE):
        some = blocks[first : first + _AT_ONCE]
        counts = ours.counts(some)
        if counts != theirs.counts(some):
            raise RuntimeError(f"blocks from {some[0]} on must have as many rows in both stores")
        pairs = [(a, b) for a, b in zip(ours.read(some).values(), theirs.read(some).values())]
        at = 0
        for n in counts:
            rows = slice(at, at + n)
            at += n
            different += any(a[rows].tobytes() != b[rows].tobytes() for a, b in pairs)
        n_rows += at
    return {"blocks": len(blocks), "rows": n_rows, "different": different}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("other", type=Path)
    options = parser.parse_args()
    with contextlib.ExitStack() as held:
        stores = [held.enter_context(opened(path)) for path in (options.run, options.other)]
        print(json.dumps(compared(*stores)))


if __name__ == "__main__":
    main()
