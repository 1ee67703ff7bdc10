# SPDX-License-Identifier: Apache-2.0
"""Which reader a capture gets: the first that finds its own kind of files."""

from __future__ import annotations

from pathlib import Path

from gs_train.data.colmap import missing_parts, model_itself, models_in
from gs_train.data.files import readable
from gs_train.data.readers.colmap import ColmapReader
from gs_train.data.readers.source import Reader, Source
from gs_train.data.readers.transforms import TransformsReader
from gs_train.errors import InputError

READERS: tuple[Reader, ...] = (
    ColmapReader(models_in),
    TransformsReader(),
    ColmapReader(lambda path: models_in(path / "colmap")),  # as nerfstudio leaves it
    ColmapReader(model_itself),
)
"""In the order in which they are asked. What a later reader would find is then not used."""


def read_source(path: Path) -> Source:
    """The cameras, poses, photographs and points of a capture.

    Args:
        path: the capture's folder, or a transforms file.

    Raises:
        InputError: there is no capture, or it cannot be read.
    """
    with readable(path):
        reader = reader_of(path)
        if reader is None:
            raise _nothing_at(path)
        return reader.read(path)


def reader_of(path: Path) -> Reader | None:
    """The first reader that finds a capture at ``path``; None where none does.

    Raises:
        OSError: a folder may not be read.
    """
    return next((reader for reader in READERS if reader.finds(path)), None)


def is_transforms(path: Path) -> bool:
    """Whether the capture at ``path``, where one is still there, has its poses in a transforms
    file."""
    try:
        return isinstance(reader_of(path), TransformsReader)
    except OSError:
        return False


def _nothing_at(path: Path) -> InputError:
    if path.is_file():
        return InputError(
            f"data must be a folder, or a transforms file that ends with .json, got {path}"
        )
    if not path.is_dir():
        return InputError(f"data must be a folder with a COLMAP model, got no folder at {path}")
    parts = [
        f"{place} lacks {' and '.join(missing)}"
        for place in (path / "sparse/0", path / "sparse", path / "colmap/sparse/0", path)
        if len(missing := missing_parts(place)) in (1, 2)
    ]
    return InputError(
        "data must hold a COLMAP model (cameras, images and points3D, .bin or .txt) in sparse/0, "
        f"sparse, colmap/sparse/0 or itself, or a transforms.json, got none in {path}"
        + (f"; {parts[0]}" if parts else "")
    )
