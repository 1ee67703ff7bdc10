# SPDX-License-Identifier: Apache-2.0
"""What does a trace say? How much of the time each thread and stream was busy, and on what.

Decides what a preset waits for: a line of ``bench_engine.py --trace``, or a run of
``gs-train fit --trace``.

    python benchmarks/train/trace_shares.py out.json
"""

from __future__ import annotations

import argparse
import json
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Span:
    """Times in microseconds."""

    track: str
    kind: str  # its name without numbers
    start: float
    end: float


def read(path: Path) -> list[Span]:
    """The spans of a file that `gs_train.engine.trace.Trace` wrote."""
    events = json.loads(path.read_text())["traceEvents"]
    tracks = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    return [
        Span(
            tracks[event["tid"]],
            " ".join(re.sub(r"[\d,]+", "", event["name"]).split()),
            event["ts"],
            event["ts"] + event["dur"],
        )
        for event in events
        if event["ph"] == "X"
    ]


def shares(spans: Iterable[Span]) -> dict[str, float]:
    """Share of the time from the first span to the last in which each track has one; without
    spans nothing."""
    by_track: dict[str, list[Span]] = defaultdict(list)
    for span in sorted(spans, key=lambda span: span.start):
        by_track[span.track].append(span)
    every = [span for track in by_track.values() for span in track]
    length = max((s.end for s in every), default=0.0) - min((s.start for s in every), default=0.0)
    return {track: _covered(own) / length for track, own in by_track.items()}


def _covered(spans: Iterable[Span]) -> float:
    """Length of the union of spans that come by their start."""
    total, reached = 0.0, float("-inf")
    for span in spans:
        total += max(0.0, span.end - max(span.start, reached))
        reached = max(reached, span.end)
    return total


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("traces", type=Path, nargs="+")
    for path in parser.parse_args().traces:
        spans = read(path)
        print(path.name)
        lengths: dict[tuple[str, str], list[float]] = defaultdict(list)
        for span in spans:
            lengths[span.track, span.kind].append(1e-3 * (span.end - span.start))
        for track, share in shares(spans).items():
            print(f"  {track:9s} busy {share:5.2f}")
            for (of, kind), ms in lengths.items():
                if of == track:
                    print(
                        f"    {kind:26s} {len(ms):6d} times, {sum(ms) / len(ms):8.3f} ms each, "
                        f"at most {max(ms):8.3f}"
                    )


if __name__ == "__main__":
    main()
