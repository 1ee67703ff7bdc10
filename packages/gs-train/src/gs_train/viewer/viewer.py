# SPDX-License-Identifier: Apache-2.0
"""The viewer as a whole: a web server, the thread that draws, and the one that watches a run."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gs_train.checkpoint import open_checkpoint
from gs_train.data import Capture
from gs_train.errors import InputError
from gs_train.machine.interrupt import Interrupted, StopRequest
from gs_train.machine.out_of_memory import memory_that_ran_out
from gs_train.scene.camera_paths import PathCamera
from gs_train.viewer.live import Progress, progress_of
from gs_train.viewer.opened import Limits, OpenedScene, fits_beside, reopened
from gs_train.viewer.page import Page, as_markdown
from gs_train.viewer.pages import Pages
from gs_train.viewer.path_keys import PathKeys
from gs_train.viewer.photographs import Photographs
from gs_train.viewer.pictures import Pictures
from gs_train.viewer.places import first_place
from gs_train.viewer.render_loop import RenderLoop
from gs_train.viewer.services import Services

_WATCH_S = 2.0


def require_viser() -> None:
    """Check that viser is there.

    Raises:
        InputError: it is not.
    """
    if importlib.util.find_spec("viser") is None:
        raise InputError("gs-train view needs the package viser (pip install 'gs-train[view]')")


class Viewer:
    """Serves pages of a scene until closed.

    Three threads beside viser's: one draws, and is the only one to touch the rows; one opens the
    photographs when a page first wants one; one watches a run that trains.

    Args:
        scene: what is shown; the viewer's to close.
        limits: for later checkpoints of its run.
        host, port: of the server; port 0 takes any free one.
        keys: of the camera path at first.
        path_file: where pages save the path.
        render_hint: the command that renders it.
        live: whether to follow the scene's run.
        data: where the run's capture is, if it was moved.

    Raises:
        InputError: the port was taken meanwhile.
    """

    def __init__(
        self,
        scene: OpenedScene,
        limits: Limits,
        *,
        host: str,
        port: int,
        keys: list[PathCamera],
        path_file: Path,
        render_hint: str | None = None,
        live: bool = False,
        data: Path | None = None,
    ) -> None:
        from gs_train.viewer.server import serve  # which needs viser

        self._scene = scene
        self._limits = limits
        self._stop = StopRequest()  # ends what other threads read
        self._photographs = self._photographs_of(scene, data)
        self._loop = RenderLoop(Pictures(lambda: self._scene, self._photographs))
        self._services = Services(
            lambda: self._scene, self._loop.ask, PathKeys(keys), path_file, render_hint
        )
        self._ended = threading.Event()
        self._watch_error: Exception | None = None
        self._refused: tuple[Path, str] | None = None  # a checkpoint that is not shown, and why
        with _silent():
            self._server = serve(host, port)
        if port not in (0, self._server.get_port()):  # it looks for another one by itself
            self._stop_server()
            raise InputError(f"--port {port} is in use by now; --port 0 takes any free port")
        self._host = host
        self._set_up_page(live)
        self._drawing = threading.Thread(target=self._loop.run, name="gs-train drawing")
        self._threads = [self._drawing]
        if live:
            self._threads.append(threading.Thread(target=self._watch, name="gs-train watching"))
        for thread in self._threads:
            thread.start()

    @property
    def scene(self) -> OpenedScene:
        """What is shown."""
        return self._scene

    @property
    def port(self) -> int:
        """Of the server."""
        return int(self._server.get_port())

    @property
    def url(self) -> str:
        """Of the page, for a browser on this machine."""
        host = "127.0.0.1" if self._host in ("", "0.0.0.0", "::") else self._host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    def check(self) -> None:
        """Raise what has ended the drawing or the watching of the run, if anything has."""
        for error in (self._loop.error, self._watch_error):
            if error is not None:
                raise error

    def close(self) -> None:
        """End the threads and the server, and give the memory back. Idempotent."""
        if self._ended.is_set():
            return
        self._ended.set()
        # Whatever opens photographs or reads a checkpoint ends soon.
        self._stop.signal_number = signal.SIGTERM
        self._loop.close()
        for thread in self._threads:
            thread.join()
        self._stop_server()
        if self._photographs is not None:
            self._photographs.close()
        self._scene.close()

    def __enter__(self) -> Viewer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _stop_server(self) -> None:
        with _silent():
            self._server.stop()

    def _photographs_of(self, scene: OpenedScene, data: Path | None) -> Photographs | None:
        run = scene.run
        if run is None or not scene.cameras:
            return None

        def open_capture() -> Capture:
            return run.capture(self._stop, data=data)

        return Photographs(open_capture, lambda: self._loop.ask_again())

    def _set_up_page(self, live: bool) -> None:
        server, scene = self._server, self._scene
        server.gui.configure_theme(
            dark_mode=True, show_logo=False, show_share_button=False, control_width="large"
        )
        server.gui.main_panel.dock_right()  # nothing of a picture lies behind it
        server.gui.set_panel_label(scene.title)
        server.scene.set_up_direction(scene.up)
        place = first_place(scene)
        pose = place.camera_to_world
        server.initial_camera.position = pose[:3, 3]
        server.initial_camera.look_at = pose[:3, 3] + pose[:3, 2]
        server.initial_camera.fov = place.fov_y
        self._training: Any = None
        if live:
            self._training = server.gui.add_markdown("watching the run", order=-1.0)
            self._bar = server.gui.add_progress_bar(0.0, order=-0.5)
        services = self._services
        pages = Pages(server, self._loop, services.keys, lambda client: Page(client, services))
        server.on_client_connect(pages.join)
        server.on_client_disconnect(pages.leave)

    def _watch(self) -> None:
        try:
            while not self._ended.wait(_WATCH_S):
                self.look_at_run()
        except Exception as error:
            self._watch_error = error
            self._training.content = as_markdown(f"the run is watched no more: {error}")

    def look_at_run(self) -> None:
        """Show how far the run is, and its newest checkpoint where that is another one."""
        run = self._scene.run
        assert run is not None
        progress = progress_of(run.folder, run.config.steps)
        self._tell(progress, self._follow(progress))

    def _follow(self, progress: Progress) -> str:
        """Have a newer checkpoint shown; or a line that says why it is not."""
        run = self._scene.run
        assert run is not None
        newest = progress.newest
        if newest is None or newest == run.checkpoint.path:
            return ""
        try:
            if not fits_beside(self._scene, open_checkpoint(newest)):
                return f"{newest.name} is not shown: there is no memory for it beside this one"
            if self._refused is not None and newest == self._refused[0]:
                return f"{newest.name} is not shown: {self._refused[1]}"
            scene = reopened(self._scene, self._limits, self._stop)
        except Interrupted:  # the viewer ends
            return ""
        except InputError:
            self._refused = (newest, "it cannot be read") if newest.exists() else None
            return ""
        except Exception as error:
            if memory_that_ran_out(error) is None:
                raise
            # Another attempt would read as much again, and take memory from the training.
            self._refused = (newest, "memory ran out")
            return f"{newest.name} is not shown: memory ran out"
        done = threading.Event()

        def show() -> None:
            old, self._scene = self._scene, scene
            old.close()
            self._server.gui.set_panel_label(scene.title)
            self._loop.ask_again()
            done.set()

        self._loop.run_between(show)
        while not done.wait(0.1) and self._drawing.is_alive():
            pass
        if not done.is_set():  # the drawing has ended, and nobody will show the scene
            scene.close()
        return ""

    def _tell(self, progress: Progress, line: str) -> None:
        lines = [progress.line, line] if line else [progress.line]
        self._training.content = "  \n".join(map(as_markdown, lines))
        share = 100.0 * progress.step / max(progress.steps, 1)
        self._bar.value = min(100.0, max(0.0, share))


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """viser prints where it listens, and that it has stopped, whatever it is told."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield
