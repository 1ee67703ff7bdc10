# SPDX-License-Identifier: Apache-2.0
"""Where the decoded photographs of a run are: in memory, and beyond that in a file."""

from __future__ import annotations

from gs_train.data import Capture
from gs_train.data.pixel_file import PixelSize, file_bytes, pixel_bytes


def decoded_bytes(capture: Capture) -> int:
    """Of all training photographs."""
    return sum(pixel_bytes(size) for size in training_sizes(capture).values())


def scratch_bytes(capture: Capture, image_cache: int, n_images: int) -> int:
    """Bytes of the file that a run keeps decoded training photographs in.

    Args:
        image_cache: bytes of memory for decoded photographs.
        n_images: that the run trains on, repeats counted.

    Returns:
        0 where memory or the caller of `capture_from_arrays` holds all, or where no photograph is
        needed twice.
    """
    if capture.in_memory or decoded_bytes(capture) <= image_cache:
        return 0
    if n_images <= len(capture.train):
        return 0
    return file_bytes(training_sizes(capture).values())


def training_sizes(capture: Capture) -> dict[int, PixelSize]:
    """Sizes by index of the views that are trained on."""
    return {index: capture.views[index].pixel_size for index in capture.train}
