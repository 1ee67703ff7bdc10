# SPDX-License-Identifier: Apache-2.0
"""One page of a browser: its controls, its camera, and the pictures that it asks for."""

from __future__ import annotations

from typing import Any

import numpy as np

from gs_train.names import printable
from gs_train.rows.view_parts import Box, Quantity
from gs_train.scene.scene import view_in_frame
from gs_train.viewer.opened import OpenedScene
from gs_train.viewer.path_controls import PathControls
from gs_train.viewer.path_keys import Keys
from gs_train.viewer.places import Place, nearest_camera, place_of, place_of_page, rotation_of
from gs_train.viewer.request import Panel, Picture, Request, reduced
from gs_train.viewer.services import Services
from gs_train.viewer.shapes import FRUSTUM, box_lines, draw_lines, frustum_lines

_QUANTITIES: dict[str, Quantity] = {"Colour": "color", "Depth": "depth", "Opacity": "alpha"}
_PANELS: dict[str, tuple[Panel, ...]] = {
    "Free flight": ("render",),
    "Photograph": ("photograph",),
    "Render": ("render",),
    "Error": ("error",),
    "Side by side": ("photograph", "render", "error"),
}
_FREE = "Free flight"
_COLOURS = {"with exposure": True, "the scene's own": False}
_UP = {
    "-y": (0, -1, 0), "+y": (0, 1, 0), "+z": (0, 0, 1), "-z": (0, 0, -1), "+x": (1, 0, 0),
    "-x": (-1, 0, 0),
}  # fmt: skip
_LEAST_SIDE, _MOST_SIDE = 256, 3840  # of the longer side
_COARSE_QUALITY, _FINE_QUALITY = 60, 90  # of JPEG


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
        self._colours: Any = None
        if scene.cameras:
            self._add_views(scene)
        else:
            self._add_up()
        self._add_box()
        self._path = PathControls(client, services, self._place)
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

    def show_keys(self, keys: Keys) -> None:
        """Show the cameras of the path."""
        self._path.show_keys(keys)

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
            is_exposed = self._colours is not None and _COLOURS[self._colours.value]
            request = Request(
                view, canvas, photograph=index, panels=panels, is_exposed=is_exposed, **what
            )
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
            if scene.exposures:
                self._colours = gui.add_dropdown(
                    "Colours",
                    tuple(_COLOURS),
                    initial_value="with exposure",
                    hint="of the render of a training view: as its photograph was exposed, or not",
                )
                self._colours.on_update(self._changed)
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
            lines = frustum_lines(cameras, scene.frame, FRUSTUM)
            draw_lines(self._client, "/views", lines, (90, 160, 250))

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
        draw_lines(self._client, "/box/edges", box_lines(self._edges.value), (250, 200, 60))

        @self._boxed.on_update
        def _(_: Any) -> None:
            self._gizmo.visible = self._boxed.value
            self._ask()

        @self._edges.on_update
        def _(_: Any) -> None:
            draw_lines(self._client, "/box/edges", box_lines(self._edges.value), (250, 200, 60))
            self._ask()

        self._gizmo.on_update(self._changed)

    def _box(self) -> Box | None:
        if not self._boxed.value:
            return None
        rotation = rotation_of(self._gizmo.wxyz)
        x, y, z = (float(value) for value in self._gizmo.position)
        return Box((x, y, z), tuple(map(tuple, rotation.tolist())), tuple(self._edges.value))


def as_markdown(text: str) -> str:
    """A line of Markdown that shows a text as it is."""
    text = printable(text)
    return "".join(f"\\{letter}" if letter in "\\`*_{}[]<>()#+-.!|" else letter for letter in text)
