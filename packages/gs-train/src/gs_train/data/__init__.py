# SPDX-License-Identifier: Apache-2.0
"""Captures, on disk or given from Python, and their images in bounded memory."""

from gs_train.data.arrays import FROM_PYTHON, capture_from_arrays
from gs_train.data.capture import Capture, CaptureView, load_capture, read_image
from gs_train.data.images import CacheStats, ImageCache
from gs_train.data.kept_photographs import KeptPhotographs
from gs_train.data.photo_reader import PhotoReader
from gs_train.data.pixels import BrokenPhotographError
from gs_train.data.synthetic import write_demo_capture

__all__ = [
    "FROM_PYTHON",
    "BrokenPhotographError",
    "CacheStats",
    "Capture",
    "CaptureView",
    "ImageCache",
    "KeptPhotographs",
    "PhotoReader",
    "capture_from_arrays",
    "load_capture",
    "read_image",
    "write_demo_capture",
]
