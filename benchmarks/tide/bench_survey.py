# SPDX-License-Identifier: Apache-2.0
"""Does a scene larger than memory train, from the points of a survey to an export?

Decides whether a scene of a given size can be trained on a machine at hand, and what each part
takes. A survey of the synthetic city is written as a capture. Every command after that is a process
of its own, as a user starts it:

    gs-train fit --offload tide    from the file of all points; killed as by kill -9, and continued
                                   with --resume, as often as ``--kills`` says
    gs-train store check           every record
    large_store.py                 every row, without the boxes of blocks; see there
    gs-train eval, and gs-train export --crop of a part

    PYTHONPATH=benchmarks:benchmarks/train \\
        python benchmarks/tide/bench_survey.py --n 1_000_000_000 --folder /tmp

``--device-left`` has a process of its own hold the rest of the GPU's memory meanwhile.

That needs 15 bytes of the drive for each point, 48 for each Gaussian, and 716 for each that the
photographs show. On a CPU try

    ... bench_survey.py --n 1_000_000 --seen 5000 --views 24 --size 160 90 --steps 40
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from watched import Watched, watch

from gs_train.sizes import parse_bytes
from harness import Record, add_json_option

PARTS = ("writing points", "making the store", "training", "waiting for the drive",
         "snapshots", "resume", "store check",
         "sweep over all rows", "eval", "export of a part")  # fmt: skip


class Survey:
    """The commands of one run, and what came of each.

    Attributes:
        parts: seconds by part, one for each time.
        facts: of the whole.
    """

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder, self.options = folder, options
        self.capture, self.run = folder / "capture", folder / "run"
        self.parts: dict[str, list[float]] = {part: [] for part in PARTS}
        self.facts: dict[str, Any] = {"peak_host_bytes": {}}
        self._n_commands = 0

    def do(self) -> None:
        """All parts but `make`, one after another."""
        options, started = self.options, 0
        for k in range(options.kills + 1):
            last = k == options.kills
            until = options.steps if last else (k + 1) * options.steps // (options.kills + 1)
            seen = self._fit(["--resume"] if k else self._fit_options(), None if last else until)
            ready = seen.ready
            _check(ready[2] == started, f"step {started} must go on, got {ready[2]}")
            self.parts["resume" if k else "making the store"].append(ready[0] - seen.started)
            started = options.steps if last else max(seen.saved)
        self._note_metrics()
        self._look()

    def make(self) -> None:
        """The capture."""
        options = self.options
        command = [sys.executable, str(Path(__file__).with_name("survey_on_disk.py"))]
        command += [str(self.capture), f"--renderer={options.renderer}"]
        command += [f"--{name}={getattr(options, name)}" for name in ("n", "seen", "views")]
        seen = watch([*command, "--size", *map(str, options.size)], self.folder / "make.log")
        made = json.loads(seen.lines[-1][1])
        self.parts["writing points"].append(made["seconds"])
        self.facts |= {"psnr_of_one_colour": made["psnr"], "points_below": made["below"]}

    def _fit_options(self) -> list[str]:
        options = self.options
        given = {
            "init": self.capture / "points.ply", "offload": "tide", "strategy": "fixed",
            "order": "tiles", "renderer": options.renderer, "steps": options.steps,
            "batch-size": options.batch_size, "max-side": "off", "keep-checkpoints": 1,
            "checkpoint-every": max(1, options.steps // (2 * (options.kills + 1))),
            "sh-every": max(1, options.steps * options.batch_size // 4), "host-memory":
            options.host_memory, "tide.arena": options.arena, "tide.slots": options.slots,
        }  # fmt: skip
        chosen = [f"--{name}={value}" for name, value in given.items() if value is not None]
        return ["--no-point-cloud", *chosen, *options.fit]

    def _fit(self, more: list[str], until: int | None) -> Watched:
        """Train, and kill the process once a checkpoint of step ``until`` or later is there."""

        def is_time(seen: Watched) -> bool:
            return until is not None and max(seen.saved, default=0) >= until

        command = ["fit", self.capture, "--out", self.run, *more]
        seen = self._command("fit", command, run=self.run, until=is_time)
        killed = seen.status == -signal.SIGKILL
        _check(killed == (until is not None), "the run must end when it is killed, and not before")
        return seen

    def _command(self, name: str, arguments: list[Any], **watching: Any) -> Watched:
        return self._watch(name, ["-m", "gs_train", *map(str, arguments)], **watching)

    def _watch(self, name: str, arguments: list[str], **watching: Any) -> Watched:
        self._n_commands += 1
        output = self.folder / f"{self._n_commands}-{name}.log"
        seen = watch([sys.executable, *arguments], output, **watching)
        peaks = self.facts["peak_host_bytes"]
        peaks[name] = max(peaks.get(name, 0), seen.peak_host_bytes)
        print(f"{name}: {seen.seconds:.1f} s, status {seen.status}", file=sys.stderr, flush=True)
        return seen

    def _note_metrics(self) -> None:
        metrics = json.loads((self.run / "metrics.json").read_text())
        options = self.options
        _check(metrics["steps"] == options.steps, f"all steps must be done, got {metrics['steps']}")
        least = self.facts["psnr_of_one_colour"]
        _check(metrics["psnr"] > least, f"PSNR must exceed {least}, got {metrics['psnr']}")
        self.parts["training"].append(metrics["seconds"])
        store = metrics["store"]
        self.parts["waiting for the drive"].append(store["blocks_wait_s"])
        self.parts["snapshots"].append(store["snapshot_pause_s"])
        names = ("psnr", "ssim", "renderer", "images_per_second", "n_gaussians",
                 "peak_device_bytes", "peak_device_reserved_bytes")  # fmt: skip
        self.facts |= {name: metrics[name] for name in names} | {"store": store}

    def _look(self) -> None:
        seen = self._command("store check", ["store", "check", self.run])
        self.parts["store check"].append(seen.seconds)
        files = (self.run / "store").iterdir()
        self.facts["store_bytes"] = sum(path.stat().st_size for path in files)
        script = str(Path(__file__).with_name("large_store.py"))
        renderer, slots = ["--renderer", self.options.renderer], self.options.slots
        blocks = [] if slots is None else [f"--blocks={slots}"]
        seen = self._watch("large_store", [script, str(self.run), *renderer, *blocks])
        found = json.loads(seen.lines[-1][1])
        self.parts["sweep over all rows"].append(found["sweep_s"])
        self.facts["rows"] = found
        _check(found["rows"] == self.facts["n_gaussians"], f"keys must be all, got {found}")
        _check(found["missed"] == found["added"] == 0, f"no row may be missed, got {found}")
        seen = self._command("eval", ["eval", self.run, *renderer])
        self.parts["eval"].append(seen.seconds)
        box = ["-50", "-50", "-1000", "50", "50", "1000"]
        command = ["export", self.run, "--to", self.folder / "part", "--crop", *box]
        seen = self._command("export", command)
        self.parts["export of a part"].append(seen.seconds)
        self.facts["exported"] = seen.lines[-1][1]


_HOLDER = """
import sys, torch
free, _ = torch.cuda.mem_get_info()
held = torch.empty(max(0, free - int(sys.argv[1])), dtype=torch.uint8, device="cuda")
print("held", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def device_left(n_bytes: int | None) -> Iterator[None]:
    """While another process holds the device's memory but for so many bytes."""
    if n_bytes is None:
        yield
        return
    command = [sys.executable, "-c", _HOLDER, str(n_bytes)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        _check(holder.stdout.readline() == b"held\n", "the rest of the device must be held")
        try:
            yield
        finally:
            holder.stdin.close()


def _check(is_so: bool, rule: str) -> None:
    if not is_so:
        raise RuntimeError(rule)


def report(survey: Survey, record: Record) -> None:
    """Print the table, as far as the run came, and add it to the record."""
    options = survey.options
    names = ("n", "seen", "views", "size", "steps", "batch_size", "slots", "arena", "host_memory",
             "device_left", "kills")  # fmt: skip
    axes = {name: getattr(options, name) for name in names}
    for part, seconds in survey.parts.items():
        if seconds:
            print(f"{part:22s} " + ", ".join(f"{s:.2f} s" for s in seconds))
            record.add(part, seconds, "s", axes=axes)
    for name, value in survey.facts.items():
        print(f"{name}: {value}")
    record.facts |= survey.facts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=1_000_000_000, help="Gaussians")
    parser.add_argument("--seen", type=int, default=480_000, help="that a view sees, about")
    parser.add_argument("--views", type=int, default=340)
    parser.add_argument("--size", type=int, nargs=2, default=[1920, 1080])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--slots", type=int, help="as gs-train's --tide.slots")
    parser.add_argument("--arena", help="as gs-train's --tide.arena")
    parser.add_argument("--host-memory", help="as gs-train's")
    parser.add_argument("--device-left", help="bytes of the device, such as 24GiB (all)")
    parser.add_argument("--renderer", default="auto")
    parser.add_argument("--folder", type=Path, help="where a temporary folder is made")
    parser.add_argument("fit", nargs="*", help="after --: more options of gs-train fit")
    add_json_option(parser)
    options = parser.parse_args()
    record = Record(options.json)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the folder goes
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="survey-") as folder:
        free = shutil.disk_usage(folder).free
        print(f"{free / 1e9:.1f} GB are free in {folder}", file=sys.stderr, flush=True)
        survey = Survey(Path(folder), options)
        left = options.device_left
        left = None if left is None else parse_bytes(left, option="--device-left")
        try:
            survey.make()
            with device_left(left):
                survey.do()
        finally:
            report(survey, record)
        record.write()


if __name__ == "__main__":
    main()
