# SPDX-License-Identifier: Apache-2.0
"""How soon does a host thread know that a stream has come so far, and what does waiting cost?

Decides whether an optimizer thread may sleep on a signal or must spin. The host opens a latch that
a stream waits for, the stream then raises a signal, and a thread waits for that: a round trip. The
round trip with spinning, the floor, crosses the link twice; half of it is taken as the time to
wake when spinning, and what sleeping adds to it as the price of sleeping.

    PYTHONPATH=benchmarks python benchmarks/pinned/bench_signal.py --json signal.json
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable

import torch
from samples import arguments_of

from gs_pinned import Signal
from harness import Record


def round_trips(
    count: int, spin_s: float, start: Callable[[Signal, Signal, int], None], asleep_s: float = 0.003
) -> list[float]:
    """Seconds from opening the latch to the wake of a thread that has waited so long, each time."""
    latch, done = Signal(), Signal()
    woken = [0.0] * (count + 1)

    def wait() -> None:
        for value in range(1, count + 1):
            done.wait(value, spin_s=spin_s)
            woken[value] = time.perf_counter()

    thread = threading.Thread(target=wait)
    thread.start()
    samples = []
    for value in range(1, count + 1):
        start(latch, done, value)
        time.sleep(asleep_s)
        opened = time.perf_counter()
        latch.set(value)
        while woken[value] == 0.0:
            time.sleep(0.0005)
        samples.append(woken[value] - opened)
    thread.join()
    return samples


def processor_share(seconds: float, start: Callable[[Signal, Signal, int], None]) -> float:
    """Share of a processor that a thread takes while it waits without spinning."""
    latch, done = Signal(), Signal()
    share = 0.0

    def wait() -> None:
        nonlocal share
        used, passed = time.thread_time(), time.perf_counter()
        done.wait(1)
        share = (time.thread_time() - used) / (time.perf_counter() - passed)

    start(latch, done, 1)
    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(seconds)
    latch.set(1)
    thread.join()
    return share


def main() -> None:
    parser = arguments_of(__doc__)
    parser.add_argument("--count", type=int, default=200)
    arguments = parser.parse_args()
    record = Record(arguments.json)
    if torch.cuda.is_available():
        stream = torch.cuda.Stream()

        def start(latch: Signal, done: Signal, value: int) -> None:
            latch.wait_on(stream, value)
            done.set_on(stream, value)

    else:

        def start(latch: Signal, done: Signal, value: int) -> None:
            def serve() -> None:
                latch.wait(value)
                done.set(value)

            threading.Thread(target=serve).start()

    spinning = round_trips(arguments.count, 1.0, start)
    sleeping = round_trips(arguments.count, 0.0, start)
    long_asleep = round_trips(arguments.count // 5, 0.0, start, asleep_s=0.05)
    floor = statistics.median(spinning)
    wake_spinning = floor / 2
    wake_sleeping = statistics.median(sleeping) - wake_spinning
    share = processor_share(1.0, start)
    for name, seconds, target in (
        ("round trip, spinning", floor, ""),
        ("round trip, sleeping", statistics.median(sleeping), ""),
        ("set to wake, spinning", wake_spinning, "<= 10"),
        ("set to wake, after 3 ms asleep", wake_sleeping, "<= 60"),
        ("set to wake, after 50 ms asleep", statistics.median(long_asleep) - wake_spinning, ""),
    ):
        print(f"{name:32s} {seconds * 1e6:8.1f} us {target}")
    print(f"{'processor while asleep for 1 s':32s} {share * 100:8.2f} %  < 2")
    for name, samples in (
        ("round trip, spinning", spinning),
        ("round trip, sleeping", sleeping),
        ("round trip, after 50 ms asleep", long_asleep),
    ):
        record.add(name, samples, "s")
    record.add("processor while asleep for 1 s", [share], "of one core")
    record.write()


if __name__ == "__main__":
    main()
