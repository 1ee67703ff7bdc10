# SPDX-License-Identifier: Apache-2.0
"""Damaged captures, photographs, point clouds and runs: refused in one line, or without effect.

Each case damages one file of a capture, of points to start from or of a run, and gives it to the
command line. Good are: an end in order with finite results; or exit status 2 and one line that
names what is wrong, with nothing half-written. A damaged checkpoint or store is refused, or what
comes of it is what comes of the good one to the last bit.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import struct
import unicodedata
import zlib
from pathlib import Path

import numpy as np

from campaigns.case import Case
from campaigns.checkpoints import damage_checkpoint, keeps_values, make_right, split_newest
from campaigns.commands import Ended, run_command
from campaigns.good_files import (
    IN_STORE,
    MORE_STEPS,
    OPTIONS,
    STEPS,
    write_captures,
    write_points,
    write_run,
)
from campaigns.mutations import NAMES, damage, damage_folder
from gs_train.files.ply import load_ply

SECONDS = 300.0

_CAPTURES = ("binary", "distorted", "text")
_STORED = "stored"
"""The run whose rows are in a store, of the capture ``binary``."""
_AFTER = ("resume", "eval", "export", "export-gsplat", "render", "inspect")
"""What is done with a run."""


def prepare(shared: Path) -> None:
    """Captures; points; of each capture a run; and what comes of these runs."""
    write_captures(shared)
    write_points(shared / "binary", shared)
    for name in _CAPTURES:
        run = shared / f"run-{name}"
        write_run(shared / name, run)
        split_newest(run)
        _use_good(shared, name, shared / name)
    write_run(shared / "binary", shared / f"run-{_STORED}", *IN_STORE)
    _use_good(shared, _STORED, shared / "binary")


def _use_good(shared: Path, name: str, capture: Path) -> None:
    for what in _AFTER:
        out = shared / "results" / name / what
        shutil.copytree(shared / f"run-{name}", out)
        ended = run_command(_after(what, out, capture), shared)
        assert ended.status == 0, ended


def run(case: Case) -> None:
    kinds = (*[_bad_capture] * 5, *[_bad_run] * 4, *[_bad_folder] * 2, _bad_points, _bad_name)
    kinds = (*kinds, *[_bad_checkpoint] * 4)
    kinds = (*kinds, _bad_out, _bomb, *[_bad_store] * 3)
    kinds[case.rng.integers(len(kinds))](case)


def _bad_capture(case: Case) -> None:
    name, capture = _copied_capture(case)
    kinds = ["cameras.*", "images.*", "images.*", "points3D.*", "*.jpg", "*.png"]
    files = sorted(capture.rglob(str(case.rng.choice(kinds)))) or sorted(capture.rglob("*.*"))
    file = files[case.rng.integers(len(files))]
    said = damage(file, case.rng, others=_files(case.shared / name))
    _use(case, name, capture, said)


def _bad_run(case: Case) -> None:
    """One of its files, of every checkpoint or the newest, checksums made right or not."""
    name = _CAPTURES[case.rng.integers(len(_CAPTURES))]
    out = case.folder / "run"
    shutil.copytree(case.shared / f"run-{name}", out)
    kinds = ["manifest.json", "*.safetensors", "*.safetensors", "config.yml", "log.csv"]
    kinds += ["metrics.json", "events*", "*.csv", "manifest.json"]
    files = sorted(out.rglob(str(case.rng.choice(kinds))))
    file = files[case.rng.integers(len(files))]
    said = damage(file, case.rng, others=_files(case.shared / f"run-{name}"))
    is_checkpoint = "checkpoints" in file.parts
    if is_checkpoint and file.is_file() and not file.is_symlink() and case.rng.random() < 0.3:
        said += ", checksums made right"
        make_right(file.parent)
        is_checkpoint = False
    _go_on(case, name, out, case.shared / name, said, is_same=is_checkpoint)


def _bad_checkpoint(case: Case) -> None:
    """The newest checkpoint of a run: bytes, whole files, or what its manifest and headers say."""
    name = _CAPTURES[case.rng.integers(len(_CAPTURES))]
    out = case.folder / "run"
    shutil.copytree(case.shared / f"run-{name}", out)
    newest = out / "checkpoints" / f"step_{STEPS:06}"
    said, is_told = damage_checkpoint(newest, case.rng)
    if case.rng.random() < 0.5:
        case.say(f"{said}; inspect of {name}")
        ended = run_command(["inspect", str(newest), "--verify"], case.folder)
        assert ended.status == 2 or not is_told, "checksums must tell what is damaged"
    else:
        _go_on(case, name, out, case.shared / name, said, is_same=keeps_values(said))


def _bad_store(case: Case) -> None:
    """A file of the store that holds the rows of a run: its name says which, and its bytes what."""
    out = case.folder / "run"
    shutil.copytree(case.shared / f"run-{_STORED}", out)
    files = _files(out / "store")
    file = files[case.rng.integers(len(files))]
    if not file.stat().st_size:  # the lock, of which there is nothing to damage else
        file.write_bytes(b"locked")
    said = f"store, {damage(file, case.rng, others=files)}"
    _go_on(case, _STORED, out, case.shared / "binary", said, is_same=True)


def _bad_folder(case: Case) -> None:
    """A folder of a capture or of a run: its permissions, its name, what it is, what it holds."""
    if case.rng.random() < 0.5:
        name, capture = _copied_capture(case)
        _use(case, name, capture, damage_folder(capture, case.rng))
        return
    name = _CAPTURES[case.rng.integers(len(_CAPTURES))]
    out = case.folder / "run"
    shutil.copytree(case.shared / f"run-{name}", out)
    said = damage_folder(out, case.rng)
    if out.exists():
        _go_on(case, name, out, case.shared / name, said, is_same=False)


def _bad_out(case: Case) -> None:
    """A place for results as it should not be."""
    names = [*map(os.fsdecode, NAMES), "7" * 300, "a/" * 3000]
    # A message may repeat what was typed.
    names = [name for name in names if all(unicodedata.category(c) != "Cc" for c in name)]
    name = names[case.rng.integers(len(names))]
    out = case.folder / "results" / name
    kind = str(case.rng.choice(["fine", "fine", "file", "unwritable", "holds others"]))
    with contextlib.suppress(OSError):
        if kind == "file":
            out.parent.mkdir(parents=True)
            out.touch()
        elif kind == "unwritable":
            out.mkdir(parents=True)
            out.chmod(0o500)
        elif kind == "holds others":
            out.mkdir(parents=True)
            (out / "log.csv").write_text("others'")
    case.say(f"--out {name!r:.60} {kind}; fit")
    fit = ["fit", str(case.shared / "binary"), f"--out={out}", "--steps", "2", *OPTIONS]
    ended = run_command(fit, case.folder)
    if ended.status == 0:
        _check_results(out, ended)


def _bad_points(case: Case) -> None:
    file = case.folder / str(case.rng.choice(["binary.ply", "ascii.ply"]))
    shutil.copy(case.shared / file.name, file)
    said = damage(file, case.rng, others=_files(case.shared / "binary"))
    _fit(case, case.shared / "binary", said, "--init", str(file))


def _bad_name(case: Case) -> None:
    """A photograph under a name as other machines make them: in the model, on disk, or both."""
    name, capture = _copied_capture(case)
    (model,) = capture.rglob("images.[bt]*")
    photographs = _files(capture / "images")
    old = photographs[case.rng.integers(len(photographs))]
    new = NAMES[case.rng.integers(len(NAMES))] + os.fsencode(old.suffix)
    where = str(case.rng.choice(["both", "both", "model", "disk"]))
    if where != "disk":
        model.write_bytes(model.read_bytes().replace(os.fsencode(old.name), new))
    if where != "model":
        path = old.parent / os.fsdecode(new)
        path.parent.mkdir(parents=True, exist_ok=True)
        old.rename(path)
    _fit(case, capture, f"{old.name} named {new!r} in {where} of {name}")


def _bomb(case: Case) -> None:
    """A photograph of some hundred kilobytes and a billion pixels that its camera announces."""
    if case.rng.random() < 0.9:  # they take long to make
        return _bad_name(case)
    capture = case.folder / "capture"
    shutil.copytree(case.shared / "binary", capture)
    side = 30_000
    cameras = capture / "sparse/0/cameras.bin"
    data = cameras.read_bytes()
    cameras.write_bytes(data[:16] + struct.pack("<QQ", side, side) + data[32:])
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    pixels = zlib.compress(bytes(side * (side // 8 + 1)), 1)
    png = b"\x89PNG\r\n\x1a\n"
    for kind, content in ((b"IHDR", header), (b"IDAT", pixels), (b"IEND", b"")):
        crc = struct.pack(">I", zlib.crc32(kind + content))
        png += struct.pack(">I", len(content)) + kind + content + crc
    for file in _files(capture / "images"):
        file.write_bytes(png)
    _fit(case, capture, "photographs of a billion pixels", "--max-side", "32")


def _copied_capture(case: Case) -> tuple[str, Path]:
    name = _CAPTURES[case.rng.integers(len(_CAPTURES))]
    shutil.copytree(case.shared / name, case.folder / "capture")
    return name, case.folder / "capture"


def _use(case: Case, name: str, capture: Path, said: str) -> None:
    """Train on a capture, plan for it, or do something with a run that was trained on the good."""
    share = case.rng.random()
    if share < 0.75:
        _fit(case, capture, said)
    elif share < 0.77:  # which takes long
        case.say(f"{said}; plan")
        command = ["plan", str(capture), "--renderer", "cpu", "--gaussians", "200"]
        run_command(command, case.folder)
    else:
        _go_on(case, name, case.folder / "run", capture, said, is_same=False)


def _fit(case: Case, capture: Path, said: str, *more: str) -> None:
    case.say(f"{said}; fit")
    out = case.folder / "run"
    strategy = str(case.rng.choice(["adc", "mcmc"]))
    command = ["fit", str(capture), "--out", str(out), "--steps", "2", *OPTIONS]
    ended = run_command([*command, "--strategy", strategy, *more], case.folder)
    if ended.status == 0:
        _check_results(out, ended)
    elif out.exists():
        saved = list((out / "checkpoints").glob("step_*/manifest.json"))
        others = {path.name for path in out.iterdir()} - {"cache"}
        assert saved or not others, f"a run that was refused must leave nothing, got {others}"


def _go_on(case: Case, name: str, out: Path, capture: Path, said: str, *, is_same: bool) -> None:
    """Do something with a run.

    Args:
        is_same: whether what comes of it must be what comes of the good run.
    """
    if not out.exists():
        shutil.copytree(case.shared / f"run-{name}", out)
    what = str(case.rng.choice(_AFTER))
    case.say(f"{said}; {what} of {name}")
    ended = run_command(_after(what, out, capture), case.folder)
    if ended.status:
        return
    if what == "resume":
        _check_results(out, ended)
    elif what == "eval":
        _check_scores(out)
    if is_same and not _says_so(ended):
        good = case.shared / "results" / name / what
        for result in _results(what):
            (theirs,), (ours,) = good.rglob(result), out.rglob(result)
            assert _content(ours) == _content(theirs), f"{result} must be as without the damage"


def _after(what: str, out: Path, capture: Path) -> list[str]:
    if what == "resume":
        return ["fit", str(capture), "--out", str(out), "--resume", "--steps", str(MORE_STEPS)]
    if what == "eval":
        return ["eval", str(out), "--renderer", "cpu", "--data", str(capture)]
    if what == "inspect":
        return ["inspect", str(out), "--verify"]
    if what == "render":
        of_test = ["--renderer", "cpu", "--path", "test"]
        return ["render", str(out), *of_test, "--data", str(capture)]
    layout = "gsplat" if what == "export-gsplat" else "inria"
    return ["export", str(out), "--layout", layout, "--data", str(capture)]


def _results(what: str) -> tuple[str, ...]:
    return {
        "resume": (f"iteration_{MORE_STEPS}/point_cloud.ply", "metrics.json"),
        "eval": ("metrics.json",),
        "export": ("export/inria/point_cloud/*/point_cloud.ply", "cameras.json"),
        "export-gsplat": ("export/gsplat/ply/*.ply",),
        "render": ("renders/test/*.png",),
        "inspect": (),
    }[what]


def _says_so(ended: Ended) -> bool:
    """Whether it went on from an earlier checkpoint and named the newest."""
    return any(f"step_{STEPS:06}" in line for line in ended.lines)


def _content(file: Path) -> object:
    if file.name != "metrics.json":
        return file.read_bytes()
    metrics = json.loads(file.read_text())
    return {name: metrics[name] for name in ("psnr", "ssim", "images", "n_gaussians", "steps")}


def _check_scores(out: Path) -> int:
    """The number of Gaussians that metrics.json tells."""
    metrics = json.loads((out / "metrics.json").read_text())
    for name in ("psnr", "ssim"):
        value = metrics[name]
        assert value == "n/a" or np.isfinite(value), f"{name} must be finite, got {value}"
    return int(metrics["n_gaussians"])


def _check_results(out: Path, ended: Ended) -> None:
    clouds = sorted(out.glob("point_cloud/*/*.ply"), key=lambda path: path.stat().st_mtime_ns)
    rows = load_ply(clouds[-1])
    said = re.findall(
        r"^([\d,]+) Gaussians are not finite and left out", "\n".join(ended.lines), re.M
    )
    n_lost = sum(int(number.replace(",", "")) for number in said)
    n = len(rows["means"])
    assert n + n_lost == _check_scores(out) > 0, f"{clouds[-1]} must hold all, got {n}"
    for attribute, values in rows.items():
        assert values.isfinite().all(), f"{attribute} must be finite"


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())
