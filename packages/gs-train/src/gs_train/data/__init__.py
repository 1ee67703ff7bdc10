# SPDX-License-Identifier: Apache-2.0
"""Captures on disk, and their images in bounded memory."""

from gs_train.data.capture import Capture, CaptureView, load_capture, read_image
from gs_train.data.images import CacheStats, ImageCache
from gs_train.data.photo_reader import PhotoReader
from gs_train.data.pixels import BrokenPhotographError
from gs_train.data.synthetic import write_demo_capture

__all__ = [
    "BrokenPhotographError",
    "CacheStats",
    "Capture",
    "CaptureView",
    "ImageCache",
    "PhotoReader",
    "load_capture",
    "read_image",
    "write_demo_capture",
]
