# SPDX-License-Identifier: Apache-2.0
"""The depth maps of a model, undecoded: which are whole, of 16 bits and of their photograph's
shape."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from gs_train.data.colmap_records import Model
from gs_train.data.depths import DepthMap
from gs_train.data.pixels import BrokenPhotographError, Header, read_header
from gs_train.data.resized import Size, has_shape_of
from gs_train.errors import InputError
from gs_train.names import printable

_N_THREADS = 8  # waiting for a disk or a network, mostly
_SHOWN = 3


def check_depths(
    model: Model,
    sizes: Sequence[Size | None],
    maps: Sequence[DepthMap | None],
    *,
    max_pixels: int,
    skip_broken: bool,
) -> tuple[list[DepthMap | None], list[Size | None], list[str]]:
    """Look at the header and the end of every depth map.

    Args:
        model: whose images the photographs are.
        sizes: of the photographs; None: its map is not looked at, and not used.
        maps: one for each of the model's images, None without one.
        max_pixels: of a map.
        skip_broken: photographs whose map is broken go without.

    Returns:
        The maps that are whole; their widths and heights; and a line for each broken one.

    Raises:
        InputError: one for all maps of another shape than their photograph or not of 16 bits of
            grey, or for the first that is broken or has too many pixels.
    """
    whole: list[DepthMap | None] = [None] * len(maps)
    found_sizes: list[Size | None] = [None] * len(maps)
    others, notes = [], []

    def look(index: int) -> Header | BrokenPhotographError | None:
        one = maps[index]
        if one is None or sizes[index] is None:
            return None
        try:
            return read_header(one.path, may_decode=lambda size: size[0] * size[1] <= max_pixels)
        except FileNotFoundError:
            return BrokenPhotographError(one.path, "no such file")
        except BrokenPhotographError as error:
            return error

    with ThreadPoolExecutor(_N_THREADS, thread_name_prefix="gs-headers") as pool:
        found = list(pool.map(look, range(len(maps))))
    for index, (one, header) in enumerate(zip(maps, found)):
        if one is None or header is None:
            continue
        if isinstance(header, BrokenPhotographError):
            if not skip_broken:
                remedy = "put it back, or go on with --skip-broken, which leaves the map out"
                raise InputError(f"{header}; {remedy}") from header
            notes.append(f"--skip-broken: depth map left out: {printable(str(header))}")
            continue
        image = model.images[index]
        camera = model.cameras[image.camera_id]
        width, height = header.size
        if not has_shape_of(header.size, camera):
            size = f"{width}x{height}, camera {camera.id} has {camera.width}x{camera.height}"
            others.append(f"{one.path}: {size}")
        elif width * height > max_pixels:
            raise InputError(
                f"depth maps must have at most {max_pixels:,} pixels, got {width}x{height} of "
                f"{one.path}; --max-pixels {width * height} allows it"
            )
        elif not header.is_grey_16:
            others.append(f"{one.path}: not 16 bits of grey")
        else:
            whole[index], found_sizes[index] = one, header.size
    if others:
        raise InputError(
            "depth maps must be PNG files of 16 bits of grey, of the shape of their photographs, "
            f"got {len(others)} others (first {'; '.join(others[:_SHOWN])})"
        )
    return whole, found_sizes, notes
