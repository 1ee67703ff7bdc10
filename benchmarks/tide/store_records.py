# SPDX-License-Identifier: Apache-2.0
"""Which records of a run's store has training left as they were?

    PYTHONPATH=benchmarks python benchmarks/tide/store_records.py RUN --note RECORDS.npz
    PYTHONPATH=benchmarks python benchmarks/tide/store_records.py RUN --against RECORDS.npz

The first line notes the checksum of every record of the newest checkpoint, and the blocks that some
training view lists. The second one compares, and prints one line of JSON:

``blocks``   of the store
``unlisted`` of them, that no training view listed when the records were noted. A view updates rows
             of blocks that it lists alone, and a row that was never updated stays where it is: so
             these must stay as they were
``changed``  blocks with another record now; ``changed_unlisted``: of these, the unlisted ones

Checksums are those of the index, as docs/store-format.md has it, which this script reads by itself.
The checksum of a header covers the number of the write and the checksums of all rows. `gs-train
store check` says whether the rows still have them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gs_train.machine.interrupt import StopRequest
from gs_train.renderers import Renderer
from gs_train.runs.run import Run
from gs_train.scene.scene import Scene
from gs_train.tide.model import StoredModel

_HEADER = 64
_ENTRY = np.dtype(
    [("block", "<u4"), ("step", "<u4"), ("seq", "<u8"), ("segment", "<u4"), ("page", "<u4"),
     ("pages", "<u2"), ("rows", "<u2"), ("crc", "<u4")]
)  # fmt: skip
_VIEWS_AT_ONCE = 32


def checksums(snapshot: Path) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Numbers of all blocks, and the checksum of the record of each."""
    with open(snapshot, "rb") as file:
        header = file.read(_HEADER)
        if header[:8] != b"GSSNAPSH":
            raise RuntimeError(f"{snapshot} must be an index of a store, got {header[:8]!r}")
        n = int.from_bytes(header[40:48], "little")
        entries = np.frombuffer(file.read(n * _ENTRY.itemsize), _ENTRY)
    return entries["block"].copy(), entries["crc"].copy()


def listed(run: Run, renderer: Renderer) -> NDArray[np.bool_]:
    """By number of a block, whether a training view lists it."""
    with StopRequest() as stop:
        capture = run.capture(stop)
    scene = Scene.load(capture, renderer.device, run.frame)
    views = [scene.views[i] for i in capture.train]
    model = run.model(renderer.device)
    assert isinstance(model, StoredModel)
    found = np.zeros(len(model.rows.boxes), bool)
    for first in range(0, len(views), _VIEWS_AT_ONCE):
        seen = model.rows.candidates(views[first : first + _VIEWS_AT_ONCE], renderer)
        found[np.asarray(seen.ids).astype(np.int64)] = True
    model.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--note", type=Path, help="file to write")
    how.add_argument("--against", type=Path, help="file that --note has written")
    parser.add_argument("--renderer", default="auto", help="as gs-train's")
    options = parser.parse_args()
    run = Run.open(options.run)
    assert run.store is not None
    index = run.store_folder / f"snap-{run.store.snapshot:010d}"
    blocks, crcs = checksums(index)
    if options.note is not None:
        is_listed = listed(run, run.renderer(options.renderer))[blocks]
        np.savez(options.note, blocks=blocks, crcs=crcs, is_listed=is_listed)
        print(json.dumps({"blocks": len(blocks), "unlisted": int((~is_listed).sum())}))
        return
    before = np.load(options.against)
    if not np.array_equal(before["blocks"], blocks):
        raise RuntimeError("the store must have the blocks that it had")
    has_changed, is_listed = before["crcs"] != crcs, before["is_listed"]
    said = {
        "blocks": len(blocks),
        "unlisted": int((~is_listed).sum()),
        "changed": int(has_changed.sum()),
        "changed_unlisted": int((has_changed & ~is_listed).sum()),
    }
    print(json.dumps(said))


if __name__ == "__main__":
    main()
