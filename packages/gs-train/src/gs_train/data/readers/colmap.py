# SPDX-License-Identifier: Apache-2.0
"""Reads a folder with a COLMAP model and the photographs in ``images/``."""

from __future__ import annotations

from pathlib import Path

from gs_train.data.colmap import find_model, models_in, read_model, read_points
from gs_train.data.readers.source import Source
from gs_train.data.unused import unused_lines


class ColmapReader:
    """See :class:`gs_train.data.readers.source.Reader`."""

    def finds(self, path: Path) -> bool:
        return bool(models_in(path))

    def read(self, path: Path) -> Source:
        model = read_model(find_model(path))
        images = path / "images"
        return Source(
            path,
            model,
            images,
            tuple(images / image.name for image in model.images),
            lambda frame: read_points(model.folder),
            notes=tuple(unused_lines(path, model)),
        )
