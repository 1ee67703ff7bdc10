# SPDX-License-Identifier: Apache-2.0
"""Makes the images that training reads: undistorted, reduced, written once beside the results.

They are JPEG, quality 98 without chroma subsampling: 49 to 57 dB from the exact pixels on
photographs, far below any model's error, at a half to a third of a PNG's size, four times faster
to decode and ten times faster to write. Pixels are reduced with Pillow's HAMMING filter: it
averages over the area (as BOX), has no negative lobes that would draw halos around edges (as
LANCZOS has), and its weights vary smoothly, so that details stay in place at any ratio (with BOX
they move by up to half a pixel unless the ratio is whole).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gs_train.data.colmap_records import Camera
from gs_train.data.distortion import Pinhole, is_distorted, undistort
from gs_train.data.masks import Kind, Mask, plane_of
from gs_train.data.pixels import BrokenPhotographError, decode_grey_16, decode_rgb, read_header
from gs_train.errors import InputError
from gs_train.files.atomic import replacing, require_free
from gs_train.machine.usable_cores import usable_cores
from gs_train.names import encoded

Progress = Callable[[int, int], None]
"""Called with the number of images done and the number of all, from the calling thread."""

Part = Literal["colours", "depth", "metric"] | Kind

_QUALITY = 98
_NO_SUBSAMPLING = 0
_KNOWN = 65535  # of a pixel whose depth is known
_BYTES_PER_PIXEL = 1.0  # measured 0.3 to 0.7; noise and foliage are worse
_RULES_VERSION = 1  # to be raised when the same inputs should give other pixels
_WORKING_BYTES = 1 << 30
_MOST_THREADS = 8
_LONGEST_NAME = 240
"""Bytes of a made image's name; file systems take 255. Another limit would rename images with long
names, so that existing caches would be made again."""


@dataclass(frozen=True)
class Job:
    """One image to make.

    Attributes:
        source: the photograph.
        target: where it goes.
        camera: what took it.
        pinhole: what it shall look like.
        part: ``colours`` of the photograph, or the plane of its mask: the ``source`` is then the
            ``image`` of a mask, or the photograph whose ``alpha`` channel is one; or the values of
            a map of inverse ``depth``, or of ``metric`` depth, of which 0 is unknown.
        behind: grey value that transparent pixels of a photograph are blended with.
    """

    source: Path
    target: Path
    camera: Camera
    pinhole: Pinhole
    part: Part = "colours"
    behind: int = 0


def cached_path(
    cache_dir: Path,
    name: str,
    source: Path,
    camera: Camera,
    pinhole: Pinhole,
    *,
    behind: int = 0,
) -> Path:
    """Where the image made from ``source`` belongs.

    The name carries a digest of all that decides the pixels - the source's path, size and time of
    change, both cameras, the rules here - so other settings or a changed source give another file.
    """
    status = source.stat()
    identity = json.dumps(
        [
            _RULES_VERSION,
            str(source.resolve()),
            [status.st_size, status.st_mtime_ns],
            [camera.model, camera.width, camera.height, camera.params],
            [pinhole.width, pinhole.height, pinhole.K.tolist()],
            *([behind] if behind else []),  # caches of black are as they were
        ]
    )
    digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
    made = cache_dir / f"{name}.{digest}.jpg"
    longest = _LONGEST_NAME - len(made.name) + len(source.name)  # bytes left for the source's name
    if len(encoded(source.name)) > longest:
        made = made.with_name(
            encoded(source.name)[:longest].decode("utf-8", "ignore") + f".{digest}.jpg"
        )
    return made


def mask_job(mask: Mask, cache_dir: Path, name: str, camera: Camera, pinhole: Pinhole) -> Job:
    """The plane of a mask for the image that is made from a photograph.

    Args:
        mask: of the photograph.
        name: of the photograph.
    """
    made = cached_path(cache_dir, name, mask.path, camera, pinhole)
    digest = made.name.split(".")[-2]
    target = made.with_name(f"mask.{mask.kind}.{digest}.png")
    return Job(mask.path, target, camera, pinhole, mask.kind)


def depth_job(
    path: Path, cache_dir: Path, name: str, camera: Camera, pinhole: Pinhole, *, is_metric: bool
) -> Job:
    """The values of a depth map for an image of the pinhole's size.

    Args:
        path: of the map, which may be smaller or larger than its photograph.
        name: of the photograph.
        is_metric: whether 0 is unknown.
    """
    made = cached_path(cache_dir, name, path, camera, pinhole)
    part: Part = "metric" if is_metric else "depth"
    target = made.with_name(f"{part}.{made.name.split('.')[-2]}.png")
    return Job(path, target, camera, pinhole, part)


def prepare_images(
    jobs: Sequence[Job],
    cache_dir: Path,
    *,
    skip_broken: bool = False,
    progress: Progress | None = None,
) -> dict[Path, BrokenPhotographError]:
    """Make the images that are not there yet, in threads.

    Each is written under a temporary name and renamed, so what is there is whole. After an error
    or an interrupt no further image is begun; those already made serve the next run.

    Args:
        jobs: targets must be distinct and inside ``cache_dir``.
        cache_dir: made when missing.
        skip_broken: go on without sources that cannot be decoded.
        progress: called before the first image and after each one; not when all are there.

    Returns:
        Targets whose sources cannot be decoded, and why; none unless ``skip_broken``.

    Raises:
        InputError: a source cannot be decoded, the disk has not enough space, or a file cannot be
            written.

    Cost: about 0.1 s per 12 megapixels and thread besides decoding the source; at most about
        1 GiB of decoded pixels at a time.
    """
    broken: dict[Path, BrokenPhotographError] = {}
    missing = [job for job in jobs if not _is_made(job)]
    if not missing:
        return broken
    n_pixels = sum(job.pinhole.width * job.pinhole.height for job in missing)
    require_free(
        cache_dir,
        round(n_pixels * _BYTES_PER_PIXEL),
        f"{len(missing)} undistorted or reduced images",
    )
    # Decoded source, Pillow's own copy of it, and the result.
    largest = max(9 * job.camera.width * job.camera.height for job in missing)
    n_threads = min(_MOST_THREADS, usable_cores(), max(1, _WORKING_BYTES // largest))
    if progress is not None:
        progress(0, len(missing))
    with ThreadPoolExecutor(n_threads, thread_name_prefix="gs-prepare") as pool:
        try:
            made = {pool.submit(_make, job): job for job in missing}
            for done, future in enumerate(as_completed(made), start=1):
                try:
                    future.result()
                except BrokenPhotographError as error:
                    if not skip_broken:
                        raise
                    broken[made[future].target] = error
                if progress is not None:
                    progress(done, len(missing))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return broken


def _is_made(job: Job) -> bool:
    try:
        return read_header(job.target).size == (job.pinhole.width, job.pinhole.height)
    except (FileNotFoundError, BrokenPhotographError):
        return False


def _make(job: Job) -> None:
    own_size = (job.camera.width, job.camera.height)
    size = (job.pinhole.width, job.pinhole.height)
    if job.part == "depth" or job.part == "metric":
        values = decode_grey_16(job.source)
        resampled = _known if job.part == "metric" else _as_photographs
        _save(job, Image.fromarray(resampled(values, job.camera, job.pinhole)))
        return
    if job.part != "colours":
        plane = plane_of(job.source, job.part, own_size)
        pixels = np.repeat(plane[:, :, None], 3, axis=2)  # as all that is resampled here
    else:
        pixels = decode_rgb(job.source, size=own_size, behind=job.behind)
    if is_distorted(job.camera):
        result = Image.fromarray(undistort(pixels, job.camera, job.pinhole))
    else:
        result = Image.fromarray(pixels).resize(size, Image.Resampling.HAMMING)
    _save(job, result if job.part == "colours" else result.getchannel(0))


def _as_photographs(
    values: NDArray[np.uint16], camera: Camera, pinhole: Pinhole
) -> NDArray[np.uint16]:
    """The values of a map where its photograph's pixels go."""
    values = _reduced(values, (camera.width, camera.height))
    if is_distorted(camera):
        three = np.repeat(values[:, :, None], 3, axis=2)
        values = undistort(three, camera, pinhole)[..., 0]
    return _reduced(values, (pinhole.width, pinhole.height))


def _known(values: NDArray[np.uint16], camera: Camera, pinhole: Pinhole) -> NDArray[np.uint16]:
    """The same of a map in which 0 is unknown: means of known values alone, known where these have
    half of the weight."""
    moved = _as_photographs(values, camera, pinhole)
    known = np.where(values > 0, np.uint16(_KNOWN), np.uint16(0))
    share = _as_photographs(known, camera, pinhole) / _KNOWN
    mean = moved / np.maximum(share, 0.5)
    return np.where(share >= 0.5, np.rint(mean).clip(1, 65535), 0).astype(np.uint16)


def _reduced(values: NDArray[np.uint16], size: tuple[int, int]) -> NDArray[np.uint16]:
    """As photographs are reduced."""
    if values.shape == size[::-1]:
        return np.ascontiguousarray(values)
    whole = Image.fromarray(values.astype(np.float32)).resize(size, Image.Resampling.HAMMING)
    return np.rint(np.asarray(whole)).clip(0, 65535).astype(np.uint16)


def _save(job: Job, result: Image.Image) -> None:
    try:
        with replacing(job.target) as file:
            if job.part == "colours":
                result.save(file, format="JPEG", quality=_QUALITY, subsampling=_NO_SUBSAMPLING)
            else:  # what is kept or hidden must stay so, and depths have 16 bits
                result.save(file, format="PNG")
    except OSError as error:
        raise InputError(
            f"{job.target} must be a file that can be written, got: {error.strerror or error}"
        ) from error
