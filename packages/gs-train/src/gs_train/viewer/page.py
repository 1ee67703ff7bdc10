# SPDX-License-Identifier: Apache-2.0
"""One page of a browser: its controls, its camera, and the pictures that it asks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gs_train.errors import InputError
from gs_train.names import printable
from gs_train.rows.view_parts import Box, Quantity
from gs_train.scene.path_file import camera_of, save_path
from gs_train.scene.scene import view_in_frame
from gs_train.viewer.opened import OpenedScene
from gs_train.viewer.path_keys import Keys, PathKeys
from gs_train.viewer.places import Place, nearest_camera, place_of, place_of_page, rotation_of
from gs_train.viewer.request import Panel, Picture, Request, reduced
from gs_train.viewer.shapes import box_lines, frustum_lines

_QUANTITIES: dict[str, Quantity] = {"Colour": "color", "Depth": "depth", "Opacity": "alpha"}
_PANELS: dict[str, tuple[Panel, ...]] = {
    "Free flight": ("render",),
    "Photograph": ("photograph",),
    "Render": ("render",),
    "Error": ("error",),
    "Side by side": ("photograph", "render", "error"),
}
_FREE = "Free flight"
_UP = {
    "-y": (0, -1, 0), "+y": (0, 1, 0), "+z": (0, 0, 1), "-z": (0, 0, -1), "+x": (1, 0, 0),
    "-x": (-1, 0, 0),
}  # fmt: skip
_LEAST_SIDE, _MOST_SIDE = 256, 3840  # of the longer side
_LEAST_FRAME, _MOST_FRAME = 16, 8192  # sides of frames of a camera path
_COARSE_QUALITY, _FINE_QUALITY = 60, 90  # of JPEG
_FRUSTUM = 0.06  # depth, in training units, of which cameras are about 1 from what they look at


@dataclass(frozen=True, eq=False)
class Services:
    """What pages share.

    Attributes:
        scene: of the moment.
        ask: wants a picture for a page.
        keys: of the camera path.
        path_file: where the path is saved.
        render_hint: the command that renders a saved path; None: there is none.
    """

    scene: Callable[[], OpenedScene]
    ask: Callable[[int, Request], None]
    keys: PathKeys
    path_file: Path
    render_hint: str | None


class Page:
    """A client of viser, with controls of its own.

    Args:
        client: viser's handle of the browser's page.
        services: what pages share.
    """

    def __init__(self, client: Any, services: Services) -> None:
        self._client = client
        self._services = services
        scene = services.scene()
        gui = client.gui
        self._status = gui.add_markdown("drawing")
        with gui.add_folder("Picture"):
            self._quantity = gui.add_dropdown("Draw", tuple(_QUANTITIES), initial_value="Colour")
            self._longest = gui.add_slider(
                "Pixels",
                _LEAST_SIDE,
                _MOST_SIDE,
                64,
                1600,
                hint="most pixels of the picture's longer side",
            )
        self._panels: Any = None
        if scene.cameras:
            self._add_views(scene)
        else:
            self._add_up()
        self._add_box()
        self._add_path()
        for handle in (self._quantity, self._longest):
            handle.on_update(self._changed)

    def begin(self) -> None:
        """Ask for pictures from now on."""
        self._client.camera.on_update(self._moved)
        self._ask()

    # What is asked for

    def show(self, picture: Picture) -> None:
        """Send a picture; called in the thread that draws."""
        quality = _FINE_QUALITY if picture.is_final else _COARSE_QUALITY
        height, width = picture.pixels.shape[:2]
        level = "full size" if picture.is_final else "coarse"
        lines = [
            f"{self._services.scene().model.n_rows:,} Gaussians",
            f"{width} x {height}, {level}, {picture.seconds * 1000:.0f} ms",
        ]
        lines += [picture.note] if picture.note else []
        with self._client.atomic():
            self._client.scene.set_background_image(
                picture.pixels, format="jpeg", jpeg_quality=quality
            )
            self._status.content = "  \n".join(map(as_markdown, lines))
        self._client.flush()

    def show_error(self, error: Exception) -> None:
        """Say why there is no picture; called in the thread that draws."""
        self._status.content = as_markdown(f"not drawn: {error}")
        self._client.flush()

    def _ask(self) -> None:
        place = self._place()
        if place is None:
            return
        scene = self._services.scene()
        # viser does not check what a page sends.
        longest = min(max(int(self._longest.value), _LEAST_SIDE), _MOST_SIDE)
        canvas = (place.width, place.height)
        what: dict[str, Any] = {
            "quantity": _QUANTITIES[self._quantity.value],
            "box": self._box(),
        }
        index = self._chosen()
        if index is None:
            request = Request(place.view(longest), canvas, **what)
        else:
            view = view_in_frame(scene.cameras[index], scene.frame)
            view = reduced(view, min(1.0, longest / max(view.width, view.height)))
            panels = _PANELS[self._panels.value]
            if "error" in panels:  # which is one of colours
                what["quantity"] = "color"
            request = Request(view, canvas, photograph=index, panels=panels, **what)
        self._services.ask(self._client.client_id, request)

    def _changed(self, _: Any) -> None:
        self._ask()

    def _moved(self, _: Any) -> None:
        if self._chosen() is None:
            self._ask()

    def _place(self) -> Place | None:
        return place_of_page(self._client.camera)

    def _go_to(self, place: Place) -> None:
        pose = place.camera_to_world
        with self._client.atomic():
            self._client.camera.position = pose[:3, 3]
            self._client.camera.look_at = pose[:3, 3] + pose[:3, 2]
            self._client.camera.fov = place.fov_y

    def _add_up(self) -> None:
        """For scenes whose cameras do not tell what is up."""
        gui = self._client.gui
        with gui.add_folder("Scene"):
            up = gui.add_dropdown("Up", tuple(_UP), initial_value="-y")

        @up.on_update
        def _(_: Any) -> None:
            self._client.camera.up_direction = np.array(_UP[up.value], float)

    # Views of the run

    def _add_views(self, scene: OpenedScene) -> None:
        gui = self._client.gui
        held_out = set(scene.test)
        self._names = tuple(
            f"{index}: {printable(camera.name)}" + (" (held out)" if index in held_out else "")
            for index, camera in enumerate(scene.cameras)
        )
        with gui.add_folder("Views of the run"):
            self._panels = gui.add_dropdown("Show", tuple(_PANELS), initial_value=_FREE)
            self._name = gui.add_dropdown("View", self._names, initial_value=self._names[0])
            step = gui.add_button_group("Go", ("previous", "next", "nearest"))
            fly = gui.add_button("Fly from here", hint="move the camera to this view")
            shown = gui.add_checkbox("Cameras", False, hint="draw those of all views")
        self._panels.on_update(self._changed)

        @self._name.on_update
        def _(_: Any) -> None:
            if self._chosen() is not None:
                self._ask()

        @step.on_click
        def _(_: Any) -> None:
            place = self._place()
            index = self._names.index(self._name.value)
            if step.value == "nearest":
                index = index if place is None else nearest_camera(scene, place)
            else:
                index += 1 if step.value == "next" else -1
            self._name.value = self._names[index % len(self._names)]

        @fly.on_click
        def _(_: Any) -> None:
            index = self._names.index(self._name.value)
            self._panels.value = _FREE
            self._go_to(place_of(scene.cameras[index], scene.frame))
            self._ask()

        @shown.on_update
        def _(_: Any) -> None:
            cameras = scene.cameras if shown.value else ()
            self._draw_lines(
                "/views", frustum_lines(cameras, scene.frame, _FRUSTUM), (90, 160, 250)
            )

    def _chosen(self) -> int | None:
        """The view of the run that is shown; None in free flight."""
        if self._panels is None or self._panels.value == _FREE:
            return None
        return self._names.index(self._name.value)

    # The box

    def _add_box(self) -> None:
        gui, scene = self._client.gui, self._services.scene()
        with gui.add_folder("Crop box", expand_by_default=False):
            self._boxed = gui.add_checkbox("Crop", False, hint="leave out what is outside")
            self._edges = gui.add_vector3("Edges", (1.0, 1.0, 1.0), min=(0.0, 0.0, 0.0), step=0.01)
        self._gizmo = self._client.scene.add_transform_controls(
            "/box", scale=0.35, position=scene.focus, visible=False
        )
        self._draw_lines("/box/edges", box_lines(self._edges.value), (250, 200, 60))

        @self._boxed.on_update
        def _(_: Any) -> None:
            self._gizmo.visible = self._boxed.value
            self._ask()

        @self._edges.on_update
        def _(_: Any) -> None:
            self._draw_lines("/box/edges", box_lines(self._edges.value), (250, 200, 60))
            self._ask()

        self._gizmo.on_update(self._changed)

    def _box(self) -> Box | None:
        if not self._boxed.value:
            return None
        rotation = rotation_of(self._gizmo.wxyz)
        x, y, z = (float(value) for value in self._gizmo.position)
        return Box((x, y, z), tuple(map(tuple, rotation.tolist())), tuple(self._edges.value))

    # The camera path

    def _add_path(self) -> None:
        gui, services = self._client.gui, self._services
        with gui.add_folder("Camera path", expand_by_default=False):
            self._n_keys = gui.add_markdown("")
            change = gui.add_button_group("Camera", ("add", "remove last", "remove all"))
            self._frame_size = gui.add_vector2(
                "Frames",
                (1920, 1080),
                min=(_LEAST_FRAME, _LEAST_FRAME),
                max=(_MOST_FRAME, _MOST_FRAME),
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
            2 * round(min(max(side, _LEAST_FRAME), _MOST_FRAME) / 2)  # as videos want them
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
        lines = frustum_lines(keys, self._services.scene().frame, _FRUSTUM)
        self._draw_lines("/path", lines, (250, 120, 90))

    # Drawing and telling

    def _draw_lines(self, name: str, lines: np.ndarray, color: tuple[int, int, int]) -> None:
        if len(lines):
            self._client.scene.add_line_segments(
                name, lines, color, thickness=2.0, thickness_units="screen"
            )
        else:
            self._client.scene.remove_by_name(name)

    def _tell(self, title: str, body: str) -> None:
        self._client.add_notification(title, printable(body), auto_close_seconds=10.0)


def as_markdown(text: str) -> str:
    """A line of Markdown that shows a text as it is."""
    text = printable(text)
    return "".join(f"\\{letter}" if letter in "\\`*_{}[]<>()#+-.!|" else letter for letter in text)
