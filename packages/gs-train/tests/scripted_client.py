# SPDX-License-Identifier: Apache-2.0
"""A browser's page as viser tells of it, without a browser: controls that a test sets."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any


class Control:
    """A control, or a thing of the scene, of a page.

    Attributes:
        value, content: what it shows.
        options: of a list.
    """

    def __init__(self, value: Any = None, options: tuple[str, ...] = ()) -> None:
        self.value = value
        self.content = value
        self.options = options
        self.visible = False
        self.position, self.wxyz = (0.0, 0.0, 0.0), (1.0, 0.0, 0.0, 0.0)
        self._told: list[Callable[[Any], None]] = []

    def on_update(self, told: Callable[[Any], None]) -> None:
        self._told.append(told)

    on_click = on_update

    def set(self, value: Any) -> None:
        """As a user does."""
        assert not self.options or value in self.options
        self.value = value
        self.click()

    def click(self) -> None:
        """As a user does."""
        for told in self._told:
            told(SimpleNamespace(target=self))


class Gui:
    """Controls by their labels.

    Attributes:
        controls: that the page has made.
    """

    def __init__(self) -> None:
        self.controls: dict[str, Control] = {}

    @contextlib.contextmanager
    def add_folder(self, label: str, **_: Any) -> Iterator[None]:
        yield

    def add_markdown(self, content: str, **_: Any) -> Control:
        return Control(content)

    def add_button(self, label: str, **_: Any) -> Control:
        return self._added(label, Control())

    def add_checkbox(self, label: str, initial_value: bool, **_: Any) -> Control:
        return self._added(label, Control(initial_value))

    def add_dropdown(
        self, label: str, options: tuple[str, ...], *, initial_value: str, **_: Any
    ) -> Control:
        assert initial_value in options
        return self._added(label, Control(initial_value, options))

    def add_button_group(self, label: str, options: tuple[str, ...], **_: Any) -> Control:
        return self._added(label, Control(options[0], options))

    def add_slider(
        self, label: str, min: int, max: int, step: int, initial_value: int, **_: Any
    ) -> Control:
        return self._added(label, Control(initial_value))

    def add_vector2(self, label: str, initial_value: Any, **_: Any) -> Control:
        return self._added(label, Control(initial_value))

    add_vector3 = add_vector2

    def _added(self, label: str, control: Control) -> Control:
        self.controls[label] = control
        return control


class ScriptedScene:
    """What a page has drawn over its picture.

    Attributes:
        lines: by name.
        picture: that the page shows.
    """

    def __init__(self) -> None:
        self.lines: dict[str, Any] = {}
        self.picture: Any = None
        self.gizmo = Control()

    def add_transform_controls(self, name: str, **_: Any) -> Control:
        return self.gizmo

    def add_line_segments(self, name: str, points: Any, colors: Any, **_: Any) -> None:
        self.lines[name] = points

    def remove_by_name(self, name: str) -> None:
        self.lines.pop(name, None)

    def set_background_image(self, picture: Any, **_: Any) -> None:
        self.picture = picture


class ScriptedClient:
    """viser's handle of a page that looks from the origin along z.

    Attributes:
        gui, scene, camera: as viser's.
        told: titles and texts of notifications.
    """

    client_id = 7

    def __init__(self) -> None:
        self.gui, self.scene, self.camera = Gui(), ScriptedScene(), Control()
        vars(self.camera).update(image_width=64, image_height=48, fov=0.8)
        self.told: list[tuple[str, str]] = []

    def __getitem__(self, label: str) -> Control:
        return self.gui.controls[label]

    def __contains__(self, label: str) -> bool:
        return label in self.gui.controls

    @contextlib.contextmanager
    def atomic(self) -> Iterator[None]:
        yield

    def flush(self) -> None:
        """Nothing waits."""

    def add_notification(self, title: str, body: str, **_: Any) -> None:
        self.told.append((title, body))
