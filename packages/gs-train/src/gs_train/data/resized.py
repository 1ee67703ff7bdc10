# SPDX-License-Identifier: Apache-2.0
"""Cameras of photographs that are smaller or larger than those that were reconstructed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from gs_train.data.colmap_records import CAMERA_MODELS, Camera, Image, Model

Size = tuple[int, int]
"""Width and height, pixels."""

_WITH_TWO_FOCALS = {
    "SIMPLE_PINHOLE": "PINHOLE",
    "SIMPLE_RADIAL": "OPENCV",
    "RADIAL": "OPENCV",
    "SIMPLE_RADIAL_FISHEYE": "OPENCV_FISHEYE",
    "RADIAL_FISHEYE": "OPENCV_FISHEYE",
    "SIMPLE_DIVISION": "DIVISION",
    "SIMPLE_FISHEYE": "FISHEYE",
}
"""The model that sees the same and has a focal length for each side."""

_PANORAMA = "EQUIRECTANGULAR"


def has_shape_of(size: Size, camera: Camera) -> bool:
    """Whether a photograph of this size may be the camera's, made smaller or larger: both sides by
    one ratio, with the smaller copy's sides rounded, up or down, to whole pixels."""
    own = camera.width, camera.height
    longer, shorter = (0, 1) if own[0] >= own[1] else (1, 0)
    small, large = sorted((size, own), key=lambda sides: (sides[longer], sides[shorter]))
    # From the longer side: less than a pixel there is no more than that of the shorter one.
    return abs(small[shorter] - large[shorter] * small[longer] / large[longer]) < 1


def model_of_sizes(model: Model, sizes: Sequence[Size | None]) -> tuple[Model, list[str]]:
    """The model with a camera of its own size for every photograph.

    Args:
        sizes: of the photograph of each image, of its camera's shape; None where the size is not
            known: as the first known one of the same camera.

    Returns:
        The model, ``model`` itself where no size differs, and a line where one does.
    """
    known: dict[int, Size] = {}
    for image, size in zip(model.images, sizes):
        if size is not None:
            known.setdefault(image.camera_id, size)
    cameras = dict(model.cameras)
    ids: dict[tuple[int, Size], int] = {}
    unused = max(cameras) + 1
    images: list[Image] = []
    differing: list[tuple[Image, Size]] = []
    for image, size in zip(model.images, sizes):
        camera = model.cameras[image.camera_id]
        own = size or known.get(camera.id) or (camera.width, camera.height)
        if own != (camera.width, camera.height):
            differing.append((image, own))
            key = camera.id, own
            if key not in ids:
                ids[key] = unused + len(ids)
                cameras[ids[key]] = resized(camera, own, ids[key])
            images.append(dataclasses.replace(image, camera_id=ids[key]))
        else:
            images.append(image)
    if not differing:
        return model, []
    first, size = differing[0]
    camera = model.cameras[first.camera_id]
    line = (
        f"{len(differing)} of {len(images)} photographs have another size than their camera (first "
        f"{first.name}: {size[0]}x{size[1]}, camera {camera.id} has "
        f"{camera.width}x{camera.height}): intrinsics are scaled"
    )
    return dataclasses.replace(model, cameras=cameras, images=tuple(images)), [line]


def resized(camera: Camera, size: Size, id: int) -> Camera:
    """The camera whose photographs were made smaller or larger to ``size``."""
    if camera.model == _PANORAMA:
        return dataclasses.replace(camera, id=id, width=size[0], height=size[1])
    across, down = size[0] / camera.width, size[1] / camera.height
    K, model = camera.K, _WITH_TWO_FOCALS.get(camera.model, camera.model)
    params = (K[0, 0] * across, K[1, 1] * down, K[0, 2] * across, K[1, 2] * down)
    distortion = camera.distortion
    zeros = (0.0,) * (dict(CAMERA_MODELS)[model] - len(params) - len(distortion))
    return Camera(id, model, *size, (*map(float, params), *distortion, *zeros))
