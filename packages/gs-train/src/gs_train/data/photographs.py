# SPDX-License-Identifier: Apache-2.0
"""The photographs of a model, undecoded: which are there, whole and of their camera's size."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from gs_train.data.colmap_records import Camera, Image, Model
from gs_train.data.pixels import BrokenPhotographError, Header, read_header
from gs_train.data.resized import Size, has_shape_of
from gs_train.errors import InputError
from gs_train.names import printable

MOST_PIXELS = 500_000_000
"""Of one photograph; decoding takes some eight bytes of memory a pixel."""

_DECODING_BYTES = 8  # a pixel: Pillow's four, our three, and a part of the file
_N_THREADS = 8  # waiting for a disk or a network, mostly
_SHOWN = 3


@dataclass(frozen=True)
class Checked:
    """What `check_photographs` found.

    Attributes:
        broken: indices into the model's images: missing, no image, or breaking off.
        with_alpha: how many of the rest may have transparent pixels.
        note: one line about the broken ones; None without any.
        sizes: width and height of each photograph; None of a broken one.
    """

    broken: frozenset[int]
    with_alpha: int
    note: str | None
    sizes: tuple[Size | None, ...]


Found = Header | FileNotFoundError | BrokenPhotographError
"""What a look at a photograph gives."""


def look_at_photographs(
    folder: Path, model: Model, photographs: Sequence[Path], *, max_pixels: int
) -> list[Found]:
    """Look at the header and the end of every photograph of a model.

    Args:
        folder: of the photographs.
        photographs: one for each of the model's images.
        max_pixels: of one photograph.

    Raises:
        InputError: there is no such folder.

    Cost: a few reads of each file, several files at a time.
    """
    if not folder.is_dir():
        raise InputError(f"data must hold its photographs in {folder}, got no such folder")
    with ThreadPoolExecutor(_N_THREADS, thread_name_prefix="gs-headers") as pool:
        return list(
            pool.map(
                lambda path, image: _look(path, model.cameras[image.camera_id], max_pixels),
                photographs,
                model.images,
            )
        )


def check_photographs(
    folder: Path, model: Model, found: Sequence[Found], *, max_pixels: int, skip_broken: bool
) -> Checked:
    """Judge what :func:`look_at_photographs` found of the same model.

    Args:
        folder: of the photographs.
        found: one for each of the model's images.
        max_pixels: of one photograph.
        skip_broken: report the broken ones instead of refusing them.

    Raises:
        InputError: one for all photographs that are missing, unreadable (unless ``skip_broken``)
            or of another shape than their camera, or for the first of too many pixels.
    """
    missing, unreadable, reshaped = [], [], []
    broken = set()
    for index, (image, header) in enumerate(zip(model.images, found)):
        camera = model.cameras[image.camera_id]
        if isinstance(header, Header):
            if not has_shape_of(header.size, camera):
                reshaped.append(f"{image.name}: {_sizes(header.size, camera)}")
            elif header.size[0] * header.size[1] > max_pixels:
                raise _too_large(header.size, image, max_pixels)
            continue
        broken.add(index)
        if isinstance(header, FileNotFoundError):
            missing.append(image.name)
        else:
            unreadable.append(f"{image.name}: {header.reason}")
    absent = _listed((("missing", missing), ("broken", unreadable)))
    problems = _listed((("of another shape than the camera", reshaped),))
    if problems or (absent and not skip_broken):
        # True of every command that looks at a run: fit keeps the option in the run's folder.
        remedy = (
            "; put them back, or go on without the missing and broken: gs-train fit --skip-broken, "
            "with --resume where the run exists"
            if absent
            else ""
        )
        raise InputError(
            f"{folder} must hold the {len(model.images)} images of the model, got "
            + ", ".join(filter(None, (absent, problems)))
            + remedy
        )
    return Checked(
        frozenset(broken),
        sum(isinstance(header, Header) and header.has_alpha for header in found),
        f"--skip-broken: of {len(model.images)} photographs {printable(absent)} are left out"
        if absent
        else None,
        tuple(header.size if isinstance(header, Header) else None for header in found),
    )


def _look(path: Path, camera: Camera, max_pixels: int) -> Found:
    def may_decode(size: Size) -> bool:
        return has_shape_of(size, camera) and size[0] * size[1] <= max_pixels

    try:
        return read_header(path, may_decode=may_decode)
    except (FileNotFoundError, BrokenPhotographError) as error:
        return error


def camera_sizes(model: Model, photographs: Sequence[Path]) -> list[Size | None]:
    """Sizes of photographs for `gs_train.data.resized.model_of_sizes`, from one header a camera.

    Args:
        photographs: one for each of the model's images.

    Returns:
        None for a photograph that is not the first of its camera, cannot be read, or is of another
        shape than its camera.
    """
    first: dict[int, int] = {}
    for index, image in enumerate(model.images):
        first.setdefault(image.camera_id, index)

    def size_of(index: int) -> Size | None:
        camera = model.cameras[model.images[index].camera_id]
        header = _look(photographs[index], camera, 0)
        if isinstance(header, Header) and has_shape_of(header.size, camera):
            return header.size
        return None

    sizes: list[Size | None] = [None] * len(model.images)
    with ThreadPoolExecutor(_N_THREADS, thread_name_prefix="gs-headers") as pool:
        for index, size in zip(first.values(), pool.map(size_of, first.values())):
            sizes[index] = size
    return sizes


def _too_large(size: Size, image: Image, max_pixels: int) -> InputError:
    n_pixels = size[0] * size[1]
    gib = n_pixels * _DECODING_BYTES / 2**30
    return InputError(
        f"photographs must have at most {max_pixels:,} pixels, got {size[0]}x{size[1]} of camera "
        f"{image.camera_id} (first {image.name}); decoding one takes about {gib:.1f} GiB of "
        f"memory, with --max-side too: allow it with --max-pixels {n_pixels}, or reduce the "
        "photographs and reconstruct again"
    )


def _listed(kinds: Sequence[tuple[str, list[str]]]) -> str:
    return ", ".join(
        f"{len(found)} {kind} (first {'; '.join(found[:_SHOWN])})" for kind, found in kinds if found
    )


def _sizes(size: Size, camera: Camera) -> str:
    return f"{size[0]}x{size[1]}, camera {camera.id} has {camera.width}x{camera.height}"
