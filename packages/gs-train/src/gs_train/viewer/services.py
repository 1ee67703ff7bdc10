# SPDX-License-Identifier: Apache-2.0
"""What the pages of a viewer share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gs_train.viewer.opened import OpenedScene
from gs_train.viewer.path_keys import PathKeys
from gs_train.viewer.request import Request


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
