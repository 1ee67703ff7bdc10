# SPDX-License-Identifier: Apache-2.0
"""The command ``gs-train view``: its server, its end, and what it refuses."""

from __future__ import annotations

import errno
import importlib.util
import io
import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gs_train.checkpoint import SavedCheckpoint, latest_checkpoint
from gs_train.cli import main
from gs_train.commands.view import ViewConfig, open_viewer
from gs_train.machine.interrupt import StopRequest
from gs_train.runs.folder import RunFolder
from gs_train.viewer.live import progress_of
from gs_train.viewer.render_loop import RenderLoop

OPTIONS = ("--renderer", "cpu", "--steps", "4", "--checkpoint-every", "2", "--seed", "3")


@pytest.fixture(scope="module")
def run(tiny_capture: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("viewed") / "run"
    assert main(["fit", str(tiny_capture), "--out", str(out), *OPTIONS]) == 0
    return out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that a refused view ends with."""
    capsys.readouterr()
    assert main(["view", *arguments]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("gs-train: error: ")
    return lines[0]


def test_the_page_is_served_on_this_machine_alone(
    run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    viewer = open_viewer(ViewConfig(run, port=0, renderer="cpu"), StopRequest())
    with viewer:
        with urllib.request.urlopen(viewer.url) as answer:
            assert answer.status == 200
            assert b"<html" in answer.read()
        listening = Path("/proc/net/tcp").read_text()
        assert f"0100007F:{viewer.port:04X}" in listening
        assert f"00000000:{viewer.port:04X}" not in listening
        viewer.check()
    viewer.close()  # again: nothing happens
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(viewer.url)
    assert capfd.readouterr().out == ""  # viser would print


def test_a_run_is_followed_to_its_next_checkpoint(run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    newest = copy / "checkpoints" / "step_000004"
    newest.rename(tmp_path / "later")
    config = ViewConfig(copy, port=0, renderer="cpu", live=True)
    with open_viewer(config, StopRequest()) as viewer:
        assert viewer.scene.title == "run, step 2"
        before = viewer.scene.model.params["means"].detach().clone()
        (tmp_path / "later").rename(newest)
        viewer.look_at_run()
        assert viewer.scene.title == "run, step 4"
        assert not torch.equal(viewer.scene.model.params["means"], before)
        viewer.look_at_run()
        viewer.check()


@pytest.mark.long
def test_a_run_is_followed_while_it_trains(tiny_capture: Path, tmp_path: Path) -> None:
    """The viewer's own thread looks at the run; each line that the run prints on a terminal is a
    moment to see what the viewer has found."""
    out, printed = tmp_path / "run", []
    options = ["--renderer", "cpu", "--cap", "2000", "--steps", "100000", "--checkpoint-every", "2"]
    command = [sys.executable, "-m", "gs_train", "fit", str(tiny_capture), "--out", str(out)]
    terminal, stderr = pty.openpty()
    with subprocess.Popen(
        [*command, *options], stderr=stderr, env={**os.environ, "OMP_NUM_THREADS": "1"}
    ) as training:
        os.close(stderr)

        def wait_for_output() -> None:
            try:
                printed.append(os.read(terminal, 1 << 16).decode(errors="replace"))
            except OSError:  # nobody has it open any more
                raise AssertionError("".join(printed)) from None

        try:
            while latest_checkpoint(out / "checkpoints") is None:
                wait_for_output()
            titles, lines, means = [], [], []
            config = ViewConfig(out, port=0, renderer="cpu", live=True)
            with open_viewer(config, StopRequest()) as viewer:
                while len(set(titles)) < 3 or len(set(lines)) < 3:
                    wait_for_output()
                    viewer.check()
                    scene = viewer.scene
                    titles.append(scene.title)
                    lines.append(progress_of(RunFolder(out), 100_000).line)
                    means.append(scene.model.params["means"].detach().clone())
        finally:
            training.terminate()
            training.wait()
            os.close(terminal)
    for told, begin in ((titles, "run, step "), (lines, "step ")):
        steps = [int(re.match(f"{begin}([0-9,]+)", text)[1].replace(",", "")) for text in told]
        assert steps == sorted(steps)
    assert not torch.equal(means[-1], means[0])
    assert all(mean.isfinite().all() for mean in means)


def test_a_damaged_checkpoint_of_a_live_run_is_passed_over(run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    newest = copy / "checkpoints" / "step_000004"
    newest.rename(tmp_path / "later")
    config = ViewConfig(copy, port=0, renderer="cpu", live=True)
    with open_viewer(config, StopRequest()) as viewer:
        for shard in (tmp_path / "later").glob("*.safetensors"):
            shard.write_bytes(bytes(shard.stat().st_size))
        (tmp_path / "later").rename(newest)
        for _ in range(2):
            viewer.look_at_run()
            assert viewer.scene.title == "run, step 2"
        viewer.check()


def test_a_checkpoint_that_there_is_no_memory_for_is_read_once(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    newest = copy / "checkpoints" / "step_000004"
    newest.rename(tmp_path / "later")
    tried: list[threading.Thread] = []

    def short_of_memory(*_: object) -> None:
        tried.append(threading.current_thread())
        raise MemoryError

    with open_viewer(ViewConfig(copy, port=0, renderer="cpu", live=True), StopRequest()) as viewer:
        monkeypatch.setattr("gs_train.viewer.viewer.reopened", short_of_memory)
        (tmp_path / "later").rename(newest)
        for _ in range(3):
            viewer.look_at_run()
        assert tried.count(threading.main_thread()) <= 1  # the watching thread looks, too
        assert viewer.scene.title == "run, step 2"
        viewer.check()


def watching() -> threading.Thread:
    (found,) = (each for each in threading.enumerate() if each.name == "gs-train watching")
    return found


def test_what_ends_the_watching_of_a_run_is_raised(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with open_viewer(ViewConfig(run, port=0, renderer="cpu", live=True), StopRequest()) as viewer:
        viewer.check()
        monkeypatch.setattr("gs_train.viewer.viewer.progress_of", gone)
        watching().join()
        with pytest.raises(OSError, match="Input/output error"):
            viewer.check()


def test_a_viewer_that_ends_waits_for_no_whole_checkpoint(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    newest = copy / "checkpoints" / "step_000004"
    newest.rename(tmp_path / "later")
    is_reading, is_closing = threading.Event(), threading.Event()
    read_whole: list[Path] = []
    close = RenderLoop.close

    def closing(self: RenderLoop) -> None:
        is_closing.set()
        close(self)

    def slowly(
        self: SavedCheckpoint, targets: object, *, report: Callable[[int], None] = print
    ) -> None:
        is_reading.set()
        is_closing.wait()
        report(1)
        read_whole.append(self.path)

    with open_viewer(ViewConfig(copy, port=0, renderer="cpu", live=True), StopRequest()) as viewer:
        monkeypatch.setattr(SavedCheckpoint, "fill", slowly)
        monkeypatch.setattr(RenderLoop, "close", closing)
        (tmp_path / "later").rename(newest)
        is_reading.wait()
    assert read_whole == []
    assert viewer.scene.title == "run, step 2"
    viewer.check()


class Pressing(io.StringIO):
    """Standard error of somebody who presses Ctrl-C once the last line has come."""

    def write(self, text: str) -> int:
        n = super().write(text)
        if "ssh -L" in text:
            signal.raise_signal(signal.SIGINT)
        return n


def test_ctrl_c_ends_the_viewer(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Pressing())
    assert main(["view", str(run), "--port", "0", "--renderer", "cpu"]) == 0
    lines = sys.stderr.getvalue().splitlines()
    assert lines[-3].startswith("open http://127.0.0.1:")
    assert lines[-1] == "stopped"


@pytest.mark.long
def test_ctrl_c_ends_the_program_without_a_trace(run: Path) -> None:
    command = [sys.executable, "-m", "gs_train", "view", str(run), "--port", "0"]
    with subprocess.Popen(
        [*command, "--renderer", "cpu"],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as viewer:
        assert viewer.stderr is not None
        lines = []
        for line in viewer.stderr:
            lines.append(line)
            if "ssh -L" in line:
                break
        viewer.send_signal(signal.SIGINT)
        out, err = viewer.communicate()
    assert lines[-2].startswith("open http://127.0.0.1:")
    assert (viewer.returncode, out, err) == (0, "", "stopped\n")


def test_what_keeps_the_viewer_from_starting_is_said_in_one_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = refused(capsys, str(run), "--port", str(port))
        assert f"--port {port} cannot be listened on: Address already in use" in line
    assert "--port must be from 0 to 65535" in refused(capsys, str(run), "--port", "65536")
    assert "cannot be listened on" in refused(capsys, str(run), "--host", "no.such.host.invalid")
    assert "does not exist" in refused(capsys, str(tmp_path / "none"), "--port", "0")
    options = ("--port", "0", "--renderer", "cpu")
    line = refused(capsys, str(run), *options, "--device-memory", "much")
    assert "--device-memory must be a size" in line
    ply = next((run / "point_cloud").glob("*/point_cloud.ply"))
    assert "--live follows a run" in refused(capsys, str(ply), *options, "--live")
    (tmp_path / "path.json").write_text("{}")
    line = refused(capsys, str(run), *options, "--camera-path", str(tmp_path / "path.json"))
    assert "must be a camera path" in line
    damaged = Path(shutil.copytree(run, tmp_path / "damaged"))
    (damaged / "camera_path.json").write_text("{}")
    with monkeypatch.context() as patch:
        patch.setattr("gs_train.commands.view.open_scene", None)  # nothing is read before
        for path in (damaged, damaged / "checkpoints" / "step_000002"):
            assert "must be a camera path" in refused(capsys, str(path), *options)
    line = refused(capsys, str(run), *options, "--camera-path", "/proc/none/path.json")
    assert "--camera-path /proc/none/path.json cannot be written" in line

    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "viser" else found(name)
    )
    line = refused(capsys, str(run))
    assert line.endswith("needs the package viser (pip install 'gs-train[view]')")
