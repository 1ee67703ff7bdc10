# SPDX-License-Identifier: Apache-2.0
"""What a capture's folder holds and training does not use, one line each."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from gs_train.data.colmap import count_images
from gs_train.data.colmap_records import Model
from gs_train.names import printable

_PARTS = ("cameras", "images", "points3D")

REDUCED = ("images_2", "images_4", "images_8")
"""Folders of photographs at a half, a quarter and an eighth of their sides."""

_FOLDERS = (
    (("depth", "normals"), "training does not use them"),
    (REDUCED, "--max-side reduces the photographs in images/"),
)
_FILES = (
    (
        ("transforms.json", "transforms_train.json"),
        "cameras are those of the COLMAP model; name the file in place of the folder to use it",
    ),
)


def unused_lines(folder: Path, model: Model, models: Sequence[Path], images: Path) -> list[str]:
    """One line for each kind of thing that a capture holds and training passes over.

    Args:
        folder: the capture.
        model: its model that is used.
        models: the folders of all models there.
        images: the folder of its photographs.

    Returns:
        Printable lines; none for a capture of photographs and one model.

    Cost: a walk over the names in ``images``.
    """
    lines = folder_lines(folder, images.name)
    for names, why in _FILES:
        lines += _found([name for name in names if (folder / name).is_file()], why)
    lines += _of_model(folder, model, models)
    lines += _of_images(images, {image.name for image in model.images})
    return [printable(line) for line in lines]


def folder_lines(folder: Path, *used: str) -> list[str]:
    """One line for each kind of folder in a capture that training passes over.

    Args:
        used: names of folders of photographs, or of what the capture's own file names.
    """
    lines = []
    for names, why in _FOLDERS:
        others = [name for name in names if name not in used and (folder / name).is_dir()]
        lines += _found([f"{name}/" for name in others], why)
    return lines


def found_line(names: list[str], why: str) -> str:
    """The line about what is found and not used."""
    return f"{', '.join(names)} found, not used: {why}"


def _of_model(folder: Path, model: Model, models: Sequence[Path]) -> list[str]:
    lines = []
    others = [path for path in models if path != model.folder]
    if others:
        shown = [f"{_inside(folder, p)} ({count_images(p)} images)" for p in others[:3]]
        more = [f"{len(others) - 3} more"] if len(others) > 3 else []
        taken = f"{_inside(folder, model.folder)} is taken ({len(model.images)} images)"
        lines += _found(shown + more, taken)
    both = [f"{part}.txt" for part in _PARTS if _is_both(model.folder / part)]
    rigs = ["rigs.bin", "frames.bin", "rigs.txt", "frames.txt"]
    both, rigs, clouds = (
        [_inside(folder, model.folder / name) for name in names if (model.folder / name).is_file()]
        for names in (both, rigs, ["points3D.ply"])
    )
    lines += _found(both, "the .bin files are")
    lines += _found(rigs, "every image has its whole pose in the images file")
    return lines + _found(clouds, "points are those of the model; --init FILE takes others")


def _of_images(images: Path, used: set[str]) -> list[str]:
    more, first = 0, ""
    for root, folders, files in os.walk(images):
        folders.sort()
        inside = os.path.relpath(root, images)
        for name in sorted(files):
            path = name if inside == "." else f"{inside}/{name}"
            if path not in used:
                more, first = more + 1, first or path
    return (
        _found([f"{images.name}/{first}"], f"{more} files there are not in the model")
        if more
        else []
    )


def _is_both(part: Path) -> bool:
    return part.with_suffix(".bin").is_file() and part.with_suffix(".txt").is_file()


def _inside(folder: Path, path: Path) -> str:
    return path.relative_to(folder).as_posix()


def _found(names: list[str], why: str) -> list[str]:
    return [found_line(names, why)] if names else []
