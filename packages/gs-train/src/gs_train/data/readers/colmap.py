# SPDX-License-Identifier: Apache-2.0
"""Reads a folder with a COLMAP model and the photographs in ``images/``, or in ``images_2/`` and so
on where reduced copies are all there is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gs_train.data.colmap import largest, read_model, read_points
from gs_train.data.readers.source import Source
from gs_train.data.unused import REDUCED, unused_lines


class ColmapReader:
    """See :class:`gs_train.data.readers.source.Reader`.

    Args:
        models_of: the model folders of a capture in one kind of place; the largest is taken.
    """

    def __init__(self, models_of: Callable[[Path], list[Path]]) -> None:
        self._models_of = models_of

    def finds(self, path: Path) -> bool:
        return bool(self._models_of(path))

    def read(self, path: Path) -> Source:
        models = self._models_of(path)
        model = read_model(largest(models))
        images, reduced = _image_folder(path)
        return Source(
            path,
            model,
            images,
            tuple(images / image.name for image in model.images),
            lambda frame: read_points(model.folder),
            notes=(*reduced, *unused_lines(path, model, models, images)),
        )


def _image_folder(path: Path) -> tuple[Path, list[str]]:
    """Of the photographs, and a line where these are reduced copies without their originals."""
    images = path / "images"
    if not images.is_dir():
        for name in REDUCED:
            if (path / name).is_dir():
                return path / name, [f"images/ is not there: photographs are those of {name}/"]
    return images, []
