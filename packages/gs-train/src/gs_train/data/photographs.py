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
        with_alpha: those of the rest that may have transparent pixels.
        note: one line about the broken ones; None without any.
        sizes: width and height of each photograph; None of a broken one.
    """

    broken: frozenset[int]
    with_alpha: frozenset[int]
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
    absent = listed((("missing", missing), ("broken", unreadable)))
    problems = listed((("of another shape than the camera", reshaped),))
    if problems or (absent and not skip_broken):
        # True of every command that looks at a run: fit keeps the option in the run's folder.
        remedy = (
            "; put them back, leave them out of a new run with --allow-missing, or go on without "
            "the missing and broken: gs-train fit --skip-broken, with --resume where the run exists"
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
        frozenset(
            index
            for index, header in enumerate(found)
            if isinstance(header, Header) and header.has_alpha
        ),
        f"--skip-broken: of {len(model.images)} photographs {printable(absent)} are left out"
        if absent
        else None,
        tuple(header.size if isinstance(header, Header) else None for header in found),
    )


def check_masks(
    model: Model,
    sizes: Sequence[Size | None],
    masks: Sequence[Path | None],
    *,
    max_pixels: int,
    skip_broken: bool,
) -> dict[int, BrokenPhotographError]:
    """Look at the header and the end of every image of a mask.

    Args:
        sizes: of the photographs of the model's images; None: not to be looked at.
        masks: one for each of the model's images, None without one.

    Returns:
        The broken ones by index; none unless ``skip_broken``.

    Raises:
        InputError: one for all masks of another shape than their photograph, or for the first that
            is broken or has too many pixels.
    """
    broken, reshaped = {}, []

    def look(index: int) -> Found | None:
        path = masks[index]
        camera = model.cameras[model.images[index].camera_id]
        return None if path is None or not sizes[index] else _look(path, camera, max_pixels)

    with ThreadPoolExecutor(_N_THREADS, thread_name_prefix="gs-headers") as pool:
        found = list(pool.map(look, range(len(masks))))
    for index, (path, header, size) in enumerate(zip(masks, found, sizes)):
        if header is None or path is None or size is None:
            continue
        if isinstance(header, FileNotFoundError):
            header = BrokenPhotographError(path, "no such file")
        if isinstance(header, BrokenPhotographError):
            if not skip_broken:
                raise InputError(f"{header}; put it back, or go on with --mask off") from header
            broken[index] = header
            continue
        camera = model.cameras[model.images[index].camera_id]
        if not has_shape_of(header.size, camera):
            reshaped.append(f"{path}: {_sizes(header.size, camera)}")
        elif header.size[0] * header.size[1] > max_pixels:
            raise _too_large(header.size, model.images[index], max_pixels)
    if reshaped:
        raise InputError(
            f"masks must have the shape of their photographs, got {len(reshaped)} of another "
            f"(first {'; '.join(reshaped[:_SHOWN])})"
        )
    return broken


def _look(path: Path, camera: Camera, max_pixels: int) -> Found:
    def may_decode(size: Size) -> bool:
        return has_shape_of(size, camera) and size[0] * size[1] <= max_pixels

    try:
        return read_header(path, may_decode=may_decode)
    except (FileNotFoundError, BrokenPhotographError) as error:
        return error


def camera_headers(model: Model, photographs: Sequence[Path]) -> list[Header | None]:
    """One header a camera, for what may be known without the others.

    Args:
        photographs: one for each of the model's images.

    Returns:
        None for a photograph that is not the first of its camera, cannot be read, or is of another
        shape than its camera.
    """
    first: dict[int, int] = {}
    for index, image in enumerate(model.images):
        first.setdefault(image.camera_id, index)

    def header_of(index: int) -> Header | None:
        camera = model.cameras[model.images[index].camera_id]
        header = _look(photographs[index], camera, 0)
        if isinstance(header, Header) and has_shape_of(header.size, camera):
            return header
        return None

    headers: list[Header | None] = [None] * len(model.images)
    with ThreadPoolExecutor(_N_THREADS, thread_name_prefix="gs-headers") as pool:
        for index, header in zip(first.values(), pool.map(header_of, first.values())):
            headers[index] = header
    return headers


def _too_large(size: Size, image: Image, max_pixels: int) -> InputError:
    n_pixels = size[0] * size[1]
    gib = n_pixels * _DECODING_BYTES / 2**30
    return InputError(
        f"photographs must have at most {max_pixels:,} pixels, got {size[0]}x{size[1]} of camera "
        f"{image.camera_id} (first {image.name}); decoding one takes about {gib:.1f} GiB of "
        f"memory, with --max-side too: allow it with --max-pixels {n_pixels}, or reduce the "
        "photographs and reconstruct again"
    )


def listed(kinds: Sequence[tuple[str, list[str]]]) -> str:
    """How many there are of each kind, the first of them, and what names all; nothing of an empty
    kind."""
    return ", ".join(f"{len(found)} {kind} ({_first(found)})" for kind, found in kinds if found)


def _first(found: list[str]) -> str:
    rest = "; gs-train check --json names all" if len(found) > _SHOWN else ""
    return f"first {'; '.join(found[:_SHOWN])}{rest}"


def _sizes(size: Size, camera: Camera) -> str:
    return f"{size[0]}x{size[1]}, camera {camera.id} has {camera.width}x{camera.height}"
