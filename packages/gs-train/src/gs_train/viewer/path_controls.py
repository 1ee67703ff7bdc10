# SPDX-License-Identifier: Apache-2.0
"""The controls of a page that change, show and save the camera path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gs_train.errors import InputError
from gs_train.names import printable
from gs_train.scene.path_file import camera_of, save_path
from gs_train.viewer.path_keys import Keys
from gs_train.viewer.places import Place, place_of
from gs_train.viewer.services import Services
from gs_train.viewer.shapes import FRUSTUM, draw_lines, frustum_lines

_LEAST_SIDE, _MOST_SIDE = 16, 8192  # of frames


class PathControls:
    """The folder of controls, in a page.

    Args:
        client: viser's handle of the browser's page.
        services: what pages share.
        place: gives the page's camera; None where there is none.
    """

    def __init__(self, client: Any, services: Services, place: Callable[[], Place | None]) -> None:
        self._client = client
        self._services = services
        self._place = place
        gui = client.gui
        with gui.add_folder("Camera path", expand_by_default=False):
            self._n_keys = gui.add_markdown("")
            change = gui.add_button_group("Camera", ("add", "remove last", "remove all"))
            self._frame_size = gui.add_vector2(
                "Frames",
                (1920, 1080),
                min=(_LEAST_SIDE, _LEAST_SIDE),
                max=(_MOST_SIDE, _MOST_SIDE),
                step=2,
                hint="in pixels",
            )
            save = gui.add_button("Save", hint=f"write {printable(str(services.path_file))}")

        @change.on_click
        def _(_: Any) -> None:
            place = self._place()
            if change.value == "add" and place is not None:
                services.keys.add(place.key(services.scene().frame))
            elif change.value == "remove last":
                services.keys.remove_last()
            elif change.value == "remove all":
                services.keys.remove_all()

        @save.on_click
        def _(_: Any) -> None:
            self._save_keys()

    def _save_keys(self) -> None:
        services, frame = self._services, self._services.scene().frame
        shared = services.keys.all  # another page may change the path meanwhile
        if not shared:
            self._tell("Nothing is saved", "the path has no cameras yet: add some")
            return
        size = [
            2 * round(min(max(side, _LEAST_SIDE), _MOST_SIDE) / 2)  # as videos want them
            for side in self._frame_size.value
        ]
        keys = [
            camera_of("", key.world_to_camera, place_of(key, frame).fov_y, size[0], size[1])
            for key in shared
        ]
        try:
            save_path(services.path_file, keys)
        except (InputError, OSError) as error:
            self._tell("Nothing is saved", str(error))
            return
        hint = f"; {services.render_hint}" if services.render_hint else ""
        self._tell("The path is saved", f"in {services.path_file}{hint}")

    def show_keys(self, keys: Keys) -> None:
        """Show the cameras of the path."""
        self._n_keys.content = f"{len(keys)} cameras"
        lines = frustum_lines(keys, self._services.scene().frame, FRUSTUM)
        draw_lines(self._client, "/path", lines, (250, 120, 90))

    def _tell(self, title: str, body: str) -> None:
        self._client.add_notification(title, printable(body), auto_close_seconds=10.0)
