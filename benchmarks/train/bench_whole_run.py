# SPDX-License-Identifier: Apache-2.0
"""How long does a whole run of a large scene take from the command line, part by part?

Decides which part of a run is worth making faster: the start from points, training, checkpoints,
going on after ``kill -9``, scores, or export. Photographs of the synthetic city are written as a
capture. Every command after that is a process of its own, as a user starts it:

    gs-train fit             from a file of points; killed as by kill -9 some time after the first
                             checkpoint that has grown
    gs-train fit --resume    from that checkpoint to the end
    gs-train eval, gs-train inspect --verify, gs-train export in both layouts

The ceilings are the disk, for checkpoints, resume and exports, and the rate between refinements
for training; the table names bytes and rates. Checked: the last step, the score against one colour
for all photographs, the rows of every exported file. ``--again`` checks that a run which nobody
kills ends with the same bits, which holds for the renderers raster and cpu.

    PYTHONPATH=benchmarks python benchmarks/train/bench_whole_run.py --n 20_000_000 --folder /tmp

On an H100 that takes about five minutes (seven with ``--again``) and 37 GB of disk. Harmonics,
growth and checkpoints come at fixed shares of the steps, so that a short run has them too. On a CPU
try

    ... bench_whole_run.py --n 4000 --share 0.05 --views 16 --size 64 48 --steps 120 --again
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from watched import Watched, watch

from harness import Record, add_json_option

CAPTURE, ALL = "making the capture", "all of the run"
FIT_OPTIONS = ("steps", "batch_size", "strategy", "cap", "renderer", "offload", "seed",
               "keep_checkpoints")  # fmt: skip
_ROW_BYTES = 236  # of a Gaussian with harmonics of degree 3


class WholeRun:
    """The commands of one run and what came of each.

    Args:
        folder: for everything.
        options: of the command line.

    Attributes:
        parts: seconds of each part in their order, and what is to be said of the part.
        facts: of the whole run.
    """

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder, self.options = folder, options
        self.capture, self.run = folder / "capture", folder / "run"
        self.parts: dict[str, tuple[float, str]] = {}
        self.facts: dict[str, Any] = {"peak_host_bytes": {}}

    def do(self) -> None:
        """All parts, one after another."""
        self._make()
        killed = self._train("fit", self._fit_options(), until=self._is_time)
        rule = "the run must be killed between growth and its end: more --steps, got the end"
        _check(killed.status == -signal.SIGKILL, rule)
        self._killed(killed)
        resumed = self._train("resume", ["--resume"])
        self._resumed(resumed)
        (_, n_first, _), (_, n_saved, saved_step) = killed.ready, resumed.ready
        _check(saved_step == max(killed.saved), f"the last checkpoint must go on, got {saved_step}")
        self.facts["gaussians"] = [n_first, n_saved, self.metrics["n_gaussians"]]
        self.facts["steps_repeated"] = killed.log[-1][1] - saved_step
        self._look_at_results()

    @property
    def metrics(self) -> dict[str, Any]:
        """What metrics.json holds now."""
        found: dict[str, Any] = json.loads((self.run / "metrics.json").read_text())
        return found

    @property
    def checkpoint(self) -> Path:
        """The last one."""
        return max(path.parent for path in self.run.glob("checkpoints/step_*/manifest.json"))

    def _make(self) -> None:
        options = self.options
        given = {name: getattr(options, name) for name in ("n", "points", "share", "views")}
        command = [sys.executable, str(Path(__file__).with_name("city_on_disk.py"))]
        command += [str(self.capture), f"--renderer={options.renderer}"]
        command += [f"--{name}={value}" for name, value in given.items()]
        seen = watch([*command, "--size", *map(str, options.size)], self.folder / "make.log")
        self.facts["psnr_of_one_colour"] = json.loads(seen.lines[-1][1])["psnr"]
        size = "{} x {}".format(*options.size)
        words = f"{options.views} photographs of {size}, {options.points:,} points"
        self.parts[CAPTURE] = seen.seconds, words

    def _train(self, name: str, more: list[str], **watching: Any) -> Watched:
        command = ["fit", self.capture, "--out", self.run, *more]
        return self._command(name, command, run=self.run, **watching)

    def _command(self, name: str, arguments: list[Any], **watching: Any) -> Watched:
        command = [sys.executable, "-m", "gs_train", *map(str, arguments)]
        seen = watch(command, self.folder / f"{name}.log", **watching)
        self.facts["peak_host_bytes"][name] = seen.peak_host_bytes
        print(f"{name}: {seen.seconds:.1f} s, status {seen.status}", file=sys.stderr, flush=True)
        return seen

    def _fit_options(self) -> list[str]:
        """Growth from an eighth to a half of the images; checkpoints at three eighths and six."""
        options = self.options
        images, strategy = options.steps * options.batch_size, options.strategy
        given = {
            **{name: getattr(options, name) for name in FIT_OPTIONS},
            "init": self.capture / "points.ply",
            "checkpoint_every": _period(options),
            "sh_every": max(1, images // 4),
            f"{strategy}.refine_start": images // 8,
            f"{strategy}.refine_every": max(1, images // 40),
            f"{strategy}.refine_stop": images // 2 + 1,
        }
        given_as = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
        return [*given_as, *options.fit]

    def _is_time(self, seen: Watched) -> bool:
        """Whether to kill the run: half a period after the first checkpoint that has grown."""
        if not seen.log:
            return False
        n_first = seen.ready[1]
        grown = min((step for _, step, n in seen.log if n != n_first), default=math.inf)
        saved = min((step for step in seen.saved if step >= grown), default=math.inf)
        return seen.log[-1][1] >= saved + _period(self.options) / 2

    def _killed(self, seen: Watched) -> None:
        """Parts of the process that was killed."""
        (ready, n_rows, _), first = seen.ready, seen.first_step
        step, saved = max(seen.saved.items())
        training = saved - first - seen.busy_between(first, saved)
        lost = seen.ended - saved - seen.busy_between(saved, seen.ended)
        until = f"from step {step:,} to {seen.log[-1][1]:,} or later"
        self.parts |= {
            "start from points": (ready - seen.started, f"{n_rows:,} Gaussians"),
            "first step": (first - ready, ""),
            f"training to step {step:,}": (training, self._rate(step - 1, training)),
            "checkpoints": self._checkpoints(seen),
            "lost by kill -9": (lost, until),
        }

    def _resumed(self, seen: Watched) -> None:
        """Parts of the process that went on."""
        (ready, n_rows, before), first, steps = seen.ready, seen.first_step, self.options.steps
        saved = seen.saved[steps]
        training = saved - first - seen.busy_between(first, saved)
        rest = max([saved, *(stop for _, stop in seen.busy)])
        (ply,) = self.run.glob("point_cloud/*/point_cloud.ply")
        seconds, scored = seen.point_cloud - rest, f"{self._n_test()} photographs"
        self.parts |= {
            "resume": (ready - seen.started, f"{n_rows:,} Gaussians"),
            "first step again": (first - ready, ""),
            f"training to step {steps:,}": (training, self._rate(steps - before - 1, training)),
            "checkpoints again": self._checkpoints(seen),
            "point_cloud.ply": (seconds, _amount(ply.stat().st_size, seconds)),
            "scores of fit": (seen.ended - seen.point_cloud, scored),
        }

    def _checkpoints(self, seen: Watched) -> tuple[float, str]:
        """Seconds of writing, and of removing older ones."""
        seconds = seen.busy_between(seen.started, seen.ended)
        n = len(seen.saved)
        return seconds, f"{n} of {_amount(_bytes_below(self.checkpoint), seconds / n)}"

    def _look_at_results(self) -> None:
        """The commands that read a finished run, and checks of what they say."""
        before = self.metrics
        seen = self._command("eval", ["eval", self.run])
        self.parts["gs-train eval"] = seen.seconds, f"{self._n_test()} photographs"
        metrics = self.metrics
        _check(metrics["steps"] == self.options.steps, f"steps must be all, got {metrics['steps']}")
        psnr, least = metrics["psnr"], self.facts["psnr_of_one_colour"]
        _check(least < psnr < math.inf, f"PSNR must exceed {least}, that of one colour, got {psnr}")
        is_same = abs(psnr - before["psnr"]) < 0.01
        _check(is_same, f"eval must say the {before['psnr']} dB of fit, got {psnr}")
        seen = self._command("inspect", ["inspect", self.run, "--verify"])
        words = _amount(_bytes_below(self.checkpoint), seen.seconds)
        self.parts["gs-train inspect --verify"] = seen.seconds, words
        for layout in ("inria", "gsplat"):
            to = self.folder / layout
            command = ["export", self.run, "--layout", layout, "--to", to]
            seen = self._command(f"export {layout}", command)
            words = _amount(_bytes_below(to), seen.seconds)
            self.parts[f"gs-train export, {layout}"] = seen.seconds, words
            (ply,) = to.rglob("*.ply")
            _check(_rows_of_ply(ply) == metrics["n_gaussians"], f"{ply} must have all Gaussians")
            shutil.rmtree(to)
        names = ("psnr", "ssim", "preset", "renderer", "peak_device_bytes",
                 "peak_device_reserved_bytes")  # fmt: skip
        self.facts |= {name: metrics[name] for name in names}
        self.facts["images_per_second_between_refinements"] = metrics["real"]["images_per_second"]

    def check_bits(self) -> None:
        """Train again without an end in between, and compare what the checkpoints hold."""
        ours = _tensors(self.checkpoint)
        shutil.rmtree(self.run)
        self.facts["seconds_again"] = self._train("again", self._fit_options()).seconds
        theirs = _tensors(self.checkpoint)
        names = sorted(name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name))
        _check(not names, f"an unkilled run must end with the same bits, got others in {names}")

    def _rate(self, n_steps: int, seconds: float) -> str:
        return f"{n_steps * self.options.batch_size / seconds:.0f} images/s"

    def _n_test(self) -> int:
        return len(self.metrics["images"])


def _period(options: argparse.Namespace) -> int:
    """Steps between checkpoints."""
    return max(1, 3 * options.steps // 8)


def _tensors(checkpoint: Path) -> dict[str, Any]:
    """What the manifest says of each tensor: shape, places and checksums."""
    found: dict[str, Any] = json.loads((checkpoint / "manifest.json").read_text())["tensors"]
    return found


def _amount(n_bytes: int, seconds: float) -> str:
    """Bytes, and bytes a second where time was seen to pass."""
    scale, unit = (1e9, "GB") if n_bytes >= 1e9 else (1e6, "MB")
    rate = f", {n_bytes / scale / seconds:.2f} {unit}/s" if seconds > 0 else ""
    return f"{n_bytes / scale:.1f} {unit}{rate}"


def _bytes_below(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _rows_of_ply(path: Path) -> int:
    """The number in the header; -1 where the file has not as many rows as that."""
    with open(path, "rb") as file:
        lines = list(iter(lambda: file.readline().decode(), "end_header\n"))
        start = file.tell()
    (n,) = (int(line.split()[2]) for line in lines if line.startswith("element vertex"))
    row = 4 * sum(line.startswith("property float") for line in lines)
    return n if path.stat().st_size == start + n * row else -1


def _check(is_so: bool, rule: str) -> None:
    if not is_so:
        raise RuntimeError(rule)


def _room(options: argparse.Namespace) -> int:
    """Bytes of disk: checkpoints, the next one, results, and photographs."""
    (width, height), rows = options.size, max(options.cap, options.points)
    copies = 3 * (options.keep_checkpoints + 1) + 1  # a checkpoint has two moments of each value
    return copies * _ROW_BYTES * rows + options.views * width * height + 15 * options.points


def report(run: WholeRun, record: Record) -> None:
    """Print the table, as far as the run came, and add the table to the record."""
    options = run.options
    axes = {name: getattr(options, name) for name in ("n", "points", "views", "size", *FIT_OPTIONS)}
    total = sum(seconds for name, (seconds, _) in run.parts.items() if name != CAPTURE)
    run.parts[ALL] = total, ""
    for name, (seconds, words) in run.parts.items():
        print(f"{name:28s} {seconds:8.2f} s   {words}")
        record.add(name, [seconds], "s", axes=axes, words=words)
    for name, value in run.facts.items():
        print(f"{name}: {value}")
    record.facts |= run.facts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=20_000_000, help="Gaussians of the city")
    parser.add_argument("--points", type=int, help="to start from (0.8 n)")
    parser.add_argument("--share", type=float, default=0.02, help="of the city that a view sees")
    parser.add_argument("--views", type=int, default=200)
    parser.add_argument("--size", type=int, nargs=2, default=[1920, 1080])
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--strategy", choices=("adc", "mcmc"), default="adc")
    parser.add_argument("--cap", type=int, help="most Gaussians (1.1 n)")
    parser.add_argument("--offload", default="auto")
    parser.add_argument("--renderer", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep-checkpoints", type=int, default=1)
    parser.add_argument("--again", action="store_true", help="train unkilled too, compare bits")
    parser.add_argument("--folder", type=Path, help="where a temporary folder is made")
    parser.add_argument("fit", nargs="*", help="after --: more options of gs-train fit")
    add_json_option(parser)
    options = parser.parse_args()
    options.points = options.points or 4 * options.n // 5
    options.cap = options.cap or 11 * options.n // 10
    record = Record(options.json)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the folder goes
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="whole-run-") as folder:
        free = shutil.disk_usage(folder).free
        room = f"{_room(options) / 1e9:.1f} GB of disk, {free / 1e9:.1f} are free in {folder}"
        print(f"takes up to {room}", file=sys.stderr, flush=True)
        if free < _room(options):
            parser.error(f"the run needs {room}; --folder names another place")
        run = WholeRun(Path(folder), options)
        try:
            run.do()
        finally:
            report(run, record)
        record.write()
        if options.again:
            run.check_bits()
            record.facts |= run.facts
            record.write()
            print("a run that nobody killed ends with the same bits")


if __name__ == "__main__":
    main()
