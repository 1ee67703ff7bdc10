# SPDX-License-Identifier: Apache-2.0
"""Image files in, RGB out. What cannot be read is the user's to correct."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gs_train.errors import InputError

# Pillow refuses images above 179 megapixels as possible attacks. Aerial cameras exceed that, the
# files are the user's own, and their size is compared with the camera's before they are decoded.
Image.MAX_IMAGE_PIXELS = None


def image_size(path: Path) -> tuple[int, int]:
    """Width and height from the file's header; nothing is decoded.

    Any EXIF orientation is ignored, as COLMAP does: width and height are those of the stored rows.

    Raises:
        FileNotFoundError: there is no such file.
        InputError: it is not an image.
    """
    try:
        with Image.open(path) as image:
            return image.size
    except FileNotFoundError:
        raise
    except Exception as error:
        raise _unreadable(path, error) from error


def decode_rgb(path: Path) -> NDArray[np.uint8]:
    """Decode an image file.

    Greyscale becomes three equal channels, 16 bits are rounded to 8, palettes are looked up, and
    transparent pixels are blended with black, as renderers do with what nothing covers. EXIF
    orientation is ignored.

    Returns:
        (H, W, 3) uint8 RGB, contiguous and writable.

    Raises:
        InputError: the file is missing, truncated, corrupt or of a kind that has no RGB meaning.

    Cost: one thread, GIL mostly released.
    """
    try:
        with Image.open(path) as image:
            image.load()
            return _to_rgb(image)
    except MemoryError:
        raise
    except Exception as error:  # Pillow's decoders raise many types on corrupt data
        raise _unreadable(path, error) from error


def _to_rgb(image: Image.Image) -> NDArray[np.uint8]:
    if image.mode.startswith("I"):
        grey = np.asarray(image).astype(np.int64)
        if grey.min() < 0 or grey.max() > 65535:
            raise ValueError(f"grey values must fit 16 bits, got {grey.min()} to {grey.max()}")
        return np.repeat(((grey * 255 + 32767) // 65535).astype(np.uint8)[:, :, None], 3, axis=2)
    if image.mode == "F":
        raise ValueError("pixels must be integers, got floating point")
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        opaque = image.convert("RGBA")
        image = Image.new("RGB", opaque.size)
        image.paste(opaque, mask=opaque.getchannel("A"))
    return np.array(image.convert("RGB"))


def _unreadable(path: Path, error: Exception) -> InputError:
    reason = str(error).replace("\n", " ") or type(error).__name__
    return InputError(f"{path} must be a readable image, got: {reason}")
