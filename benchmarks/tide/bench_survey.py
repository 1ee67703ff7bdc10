# SPDX-License-Identifier: Apache-2.0
"""Does a scene larger than memory train, from the points of a survey to an export?

Decides whether a scene of a given size can be trained on a machine at hand, and what each part
takes. A survey of the synthetic city is written as a capture. Every command after that is a process
of its own, as a user starts it:

    gs-train fit --offload tide    from the file of all points; killed as by kill -9, and continued
                                   with --resume, as often as ``--kills`` says: first when the store
                                   has been made
    gs-train plan                  what it foretells of the same scene, order and memory
    gs-train store check           every record
    store_records.py               records of blocks that no view lists, before and after; see there
    large_store.py                 every row, without the boxes of blocks; see there
    gs-train eval, and gs-train export --crop of a part
    gs-train fit, same_stores.py   with ``--twin``, again without a kill: the same bits

The benchmark fails where a row is missed, a record changes that no view lists, a row that sleeps
moves by more than 1e-5, a step in blocks differs from torch's Adam by more than the order of sums
makes, or by more than 1e-5 with the gradients of torch's Adam.

    PYTHONPATH=benchmarks:benchmarks/train \\
        python benchmarks/tide/bench_survey.py --n 1_000_000_000 --folder /tmp

``--device-left`` has a process of its own hold the rest of the GPU's memory meanwhile, and
``--host-left`` limits host memory where a cgroup v2 can be made, which a line says.

That needs 15 bytes of the drive for each point until the store is made, 48 for each Gaussian, and
716 for each that the photographs show. ``--points-folder /dev/shm`` puts the points elsewhere. On a
CPU try

    ... bench_survey.py --n 1_000_000 --seen 5000 --views 24 --size 160 90 --steps 40
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from memory_left import device_left, host_left
from watched import Watched, watch

from gs_train.sizes import parse_bytes
from harness import Record, add_json_option

PARTS = ("writing points", "making the store", "training", "waiting for the drive",
         "snapshots", "resume", "first step", "store check",
         "sweep over all rows", "eval", "export of a part")  # fmt: skip


MOST_ASLEEP = 1e-5
"""Of max(abs(value), rate): a row's momentum is added up in one go, or step by step in float32. Of
rows that sleep, and of all rows where both sides take the same gradients."""

MOST_TWIN = 1_000_000
"""Gaussians of a run that has a twin where nobody says whether."""


class Survey:
    """The commands of one run, and what came of each.

    Attributes:
        parts: seconds by part, one for each time.
        facts: of the whole.
    """

    def __init__(self, folder: Path, points: Path, options: argparse.Namespace) -> None:
        self.folder, self.points, self.options = folder, points, options
        self.capture, self.run = folder / "capture", folder / "run"
        self.records = folder / "records.npz"
        self.parts: dict[str, list[float]] = {part: [] for part in PARTS}
        self.facts: dict[str, Any] = {"peak_host_bytes": {}}
        self._n_commands = 0

    def do(self) -> None:
        """All parts but `make`, one after another."""
        options, started = self.options, 0
        for k in range(options.kills + 1):
            last = k == options.kills
            until = None if last else k * options.steps // options.kills
            seen = self._fit(self.run, ["--resume"] if k else self._fit_options(), until)
            ready = seen.ready
            _check(ready[2] == started, f"step {started} must go on, got {ready[2]}")
            self.parts["resume" if k else "making the store"].append(ready[0] - seen.started)
            if k:
                self.parts["first step"].append(seen.first_step - ready[0])
            started = options.steps if last else max(seen.saved)
            if not k and not last:
                self._note_records(started)
        self._note_metrics()
        self._foretell()
        self._look()
        if options.twin:
            self._compare_twin()

    def make(self) -> None:
        """The capture."""
        options = self.options
        command = [sys.executable, str(Path(__file__).with_name("survey_on_disk.py"))]
        command += [str(self.capture), f"--renderer={options.renderer}", f"--points={self.points}"]
        command += [f"--{name}={getattr(options, name)}" for name in ("n", "seen", "views")]
        seen = watch([*command, "--size", *map(str, options.size)], self.folder / "make.log")
        made = json.loads(seen.lines[-1][1])
        self.parts["writing points"].append(made["seconds"])
        self.facts |= {"psnr_of_one_colour": made["psnr"], "points_below": made["below"]}

    def _fit_options(self) -> list[str]:
        options = self.options
        given = {
            "init": self.points, "offload": "tide", "strategy": "fixed",
            "order": "tiles", "renderer": options.renderer, "steps": options.steps,
            "batch-size": options.batch_size, "max-side": "off", "keep-checkpoints": 1,
            "checkpoint-every": max(1, options.steps // (2 * (options.kills + 1))),
            "sh-every": max(1, options.steps * options.batch_size // 4), "host-memory":
            options.host_memory, "tide.arena": options.arena, "tide.slots": options.slots,
        }  # fmt: skip
        chosen = [f"--{name}={value}" for name, value in given.items() if value is not None]
        return ["--no-point-cloud", *chosen, *options.fit]

    def _fit(self, run: Path, more: list[str], until: int | None) -> Watched:
        """Train, and kill the process once a checkpoint of step ``until`` or later is there."""

        def is_time(seen: Watched) -> bool:
            if run == self.run and not any(run.glob("store/snap-*")):
                self.facts["making_host_bytes"] = seen.peak_host_bytes
            return until is not None and max(seen.saved, default=-1) >= until

        command = ["fit", self.capture, "--out", run, *more]
        seen = self._command("fit", command, run=run, until=is_time)
        killed = seen.status == -signal.SIGKILL
        _check(killed == (until is not None), "the run must end when it is killed, and not before")
        return seen

    def _command(self, name: str, arguments: list[Any], **watching: Any) -> Watched:
        return self._watch(name, ["-m", "gs_train", *map(str, arguments)], **watching)

    def _script(self, name: str, *arguments: Any) -> Any:
        """What a script of this folder prints."""
        script = str(Path(__file__).with_name(f"{name}.py"))
        return json.loads(self._watch(name, [script, *map(str, arguments)]).lines[-1][1])

    def _watch(self, name: str, arguments: list[str], **watching: Any) -> Watched:
        self._n_commands += 1
        output = self.folder / f"{self._n_commands}-{name}.log"
        seen = watch([sys.executable, *arguments], output, **watching)
        peaks = self.facts["peak_host_bytes"]
        peaks[name] = max(peaks.get(name, 0), seen.peak_host_bytes)
        print(f"{name}: {seen.seconds:.1f} s, status {seen.status}", file=sys.stderr, flush=True)
        return seen

    def _note_records(self, step: int) -> None:
        """Of the store as it was made; its points go, where nothing needs them again."""
        _check(step == 0, f"the first kill must come before the first step ends, got {step}")
        renderer = f"--renderer={self.options.renderer}"
        self._script("store_records", self.run, f"--note={self.records}", renderer)
        if not self.options.twin:
            self.points.unlink()

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
                 "peak_device_bytes", "peak_device_reserved_bytes", "predicted", "real",
                 )  # fmt: skip
        self.facts |= {name: metrics[name] for name in names} | {"store": store}

    def _foretell(self) -> None:
        options = self.options
        given = {
            "gaussians": options.n, "view-rows": options.seen, "order": "tiles",
            "batch-size": options.batch_size, "max-side": "off", "renderer": options.renderer,
            "steps": options.steps, "store": self.folder / "planned",
            "device-memory": options.device_left,
            "host-memory": options.host_memory, "tide.arena": options.arena,
            "tide.slots": options.slots,
        }  # fmt: skip
        chosen = [f"--{name}={value}" for name, value in given.items() if value is not None]
        seen = self._command("plan", ["plan", self.capture, "--json", *chosen])
        lines = [line for _, line in seen.lines]
        planned = json.loads("\n".join(lines[lines.index("{") :]))["tide"]
        names = ("images_per_second", "bound", "device_bytes", "host_bytes", "pinned_bytes",
                 "bytes_read", "bytes_written", "blocks")  # fmt: skip
        self.facts["plan"] = {name: planned[name] for name in names}

    def _look(self) -> None:
        seen = self._command("store check", ["store", "check", self.run])
        self.parts["store check"].append(seen.seconds)
        files = (self.run / "store").iterdir()
        self.facts["store_bytes"] = sum(path.stat().st_size for path in files)
        if self.records.exists():
            records = self._script("store_records", self.run, f"--against={self.records}")
            self.facts["records"] = records
            _check(records["unlisted"] > 0, f"views must leave blocks out, got {records}")
            is_so = records["changed_unlisted"] == 0
            _check(is_so, f"a block that no view lists must stay as it was, got {records}")
        renderer, slots = ["--renderer", self.options.renderer], self.options.slots
        blocks = [] if slots is None else [f"--blocks={slots}"]
        views = f"--views={self.options.sweep_views}"
        found = self._script("large_store", self.run, *renderer, *blocks, views)
        self.parts["sweep over all rows"].append(found["sweep_s"])
        self.facts["rows"] = found
        _check(found["rows"] == self.facts["n_gaussians"], f"keys must be all, got {found}")
        _check(found["missed"] == found["added"] == 0, f"no row may be missed, got {found}")
        _check(found["asleep"] <= MOST_ASLEEP, f"no row that sleeps may move, got {found}")
        is_same = found["given"] <= MOST_ASLEEP
        _check(is_same, f"with its gradients a step must be that of torch's Adam, got {found}")
        is_near = found["difference"] <= found["reordered"]
        _check(is_near, f"a step must be as near as another order of sums is, got {found}")
        seen = self._command("eval", ["eval", self.run, *renderer])
        self.parts["eval"].append(seen.seconds)
        box = ["-50", "-50", "-1000", "50", "50", "1000"]
        command = ["export", self.run, "--to", self.folder / "part", "--crop", *box]
        seen = self._command("export", command)
        self.parts["export of a part"].append(seen.seconds)
        self.facts["exported"] = seen.lines[-1][1]

    def _compare_twin(self) -> None:
        """Train again, without a kill, and compare all that is stored."""
        twin = self.folder / "twin"
        self._fit(twin, self._fit_options(), None)
        found = self.facts["twin"] = self._script("same_stores", self.run, twin)
        _check(
            found["rows"] == self.facts["n_gaussians"], f"all rows must be compared, got {found}"
        )
        _check(found["different"] == 0, f"kills must change no bit, got {found}")


def _check(is_so: bool, rule: str) -> None:
    if not is_so:
        raise RuntimeError(rule)


def report(survey: Survey, record: Record) -> None:
    """Print the table, as far as the run came, and add it to the record."""
    options = survey.options
    names = ("n", "seen", "views", "size", "steps", "batch_size", "slots", "arena", "host_memory",
             "device_left", "host_left", "kills")  # fmt: skip
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
    parser.add_argument("--host-left", help="bytes of host memory, such as 16GiB (all)")
    parser.add_argument(
        "--twin",
        action=argparse.BooleanOptionalAction,
        help=f"train again without a kill (where there are up to {MOST_TWIN:,} Gaussians)",
    )
    parser.add_argument(
        "--sweep-views", type=int, default=64, help="that all rows are held against"
    )
    parser.add_argument("--renderer", default="auto")
    parser.add_argument("--points-folder", type=Path, help="for the file of points (FOLDER)")
    parser.add_argument("--folder", type=Path, help="where a temporary folder is made")
    parser.add_argument("fit", nargs="*", help="after --: more options of gs-train fit")
    add_json_option(parser)
    options = parser.parse_args()
    record = Record(options.json)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the folders go
    if options.twin is None:
        options.twin = options.n <= MOST_TWIN
    left = {
        name: None if (given := getattr(options, f"{name}_left")) is None
        else parse_bytes(given, option=f"--{name}-left")
        for name in ("device", "host")
    }  # fmt: skip
    with contextlib.ExitStack() as held:
        folder, points = (
            held.enter_context(tempfile.TemporaryDirectory(dir=where, prefix="survey-"))
            for where in (options.folder, options.points_folder or options.folder)
        )
        for where in (folder, points):
            free = shutil.disk_usage(where).free
            print(f"{free / 1e9:.1f} GB are free in {where}", file=sys.stderr, flush=True)
        survey = Survey(Path(folder), Path(points) / "points.ply", options)
        try:
            survey.make()
            with device_left(left["device"]), host_left(left["host"]) as is_limited:
                survey.facts["host_is_limited"] = is_limited
                survey.do()
        finally:
            report(survey, record)
        record.write()


if __name__ == "__main__":
    main()
