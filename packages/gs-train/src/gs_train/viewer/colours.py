# SPDX-License-Identifier: Apache-2.0
"""Which colours a picture of a scene shows: over which background, with whose exposure."""

from __future__ import annotations

from torch import Tensor

from gs_train.viewer.opened import OpenedScene
from gs_train.viewer.request import Request

_BACKGROUNDS = {
    "black": "",
    "white": "over white",
    "random": "over black, trained over random colours",
}


def exposure_of(scene: OpenedScene, request: Request) -> Tensor | None:
    """(3, 4) that colours of a request get; None: it shows the scene's own."""
    if not request.is_exposed or request.photograph is None:
        return None
    return scene.exposures.get(request.photograph)


def colours_note(scene: OpenedScene, request: Request) -> str:
    """What the colours of a request are, in one line; empty where there is nothing to say."""
    parts = [_BACKGROUNDS[scene.background]]
    if scene.exposures and request.photograph is not None:
        if exposure_of(scene, request) is not None:
            parts.append("with the exposure of the photograph")
        elif request.photograph in scene.exposures:
            parts.append("the scene's own colours")
        else:
            parts.append("the scene's own colours: a held-out photograph has no exposure")
    return "; ".join(filter(None, parts))
