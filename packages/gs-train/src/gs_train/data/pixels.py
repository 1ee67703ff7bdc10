# SPDX-License-Identifier: Apache-2.0
"""Image files in, RGB out. What cannot be read is the user's to correct."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from gs_train.data.file_ends import has_its_end
from gs_train.data.files import NotAFileError, open_file
from gs_train.errors import InputError

FORMATS = ("JPEG", "PNG", "TIFF", "WEBP", "BMP", "PPM", "JPEG2000")
"""What a photograph may be, whatever its name. Pillow goes by content, and some of what else it
knows is a language: an EPS file would start Ghostscript."""

# Pillow refuses images above 179 megapixels as possible attacks. Aerial cameras exceed that;
# `load_capture` has a limit of its own, an option, and the size is compared with the camera's
# before anything is decoded.
Image.MAX_IMAGE_PIXELS = None

# Of what Pillow warns of, the harmless is noise here and the rest ends in an error.
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")


class BrokenPhotographError(InputError):
    """A photograph that is missing, is no image or breaks off: a run can go on without it.

    Attributes:
        path: of its file.
        reason: what is wrong, without the path.
    """

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} must be a readable image, got: {reason}")
        self.path = path
        self.reason = reason


@dataclass(frozen=True)
class Header:
    """What an image file says about itself.

    Attributes:
        size: width and height of the stored rows; any EXIF orientation is ignored, as COLMAP does.
        has_alpha: whether pixels may be transparent.
        is_grey_16: whether pixels are 16 bits of grey.
    """

    size: tuple[int, int]
    has_alpha: bool
    is_grey_16: bool = False


def read_header(
    path: Path, *, may_decode: Callable[[tuple[int, int]], bool] = lambda size: True
) -> Header:
    """The header of an image file that seems whole; as a rule nothing is decoded.

    A file is whole when it ends as its format says (`has_its_end`). Where that is in doubt, such
    as in a JPEG with a film behind it, the image is decoded once to know.

    Args:
        may_decode: whether an image of this width and height may be decoded to know.

    Raises:
        FileNotFoundError: there is no such file.
        BrokenPhotographError: it is no image of `FORMATS`, or it breaks off.
    """
    with _opened(path) as (image, file):
        header = Header(image.size, _has_alpha(image), _is_grey_16(image))
        is_whole = has_its_end(file, image)
    if not is_whole and may_decode(header.size):
        decode_rgb(path)
    return header


def decode_rgb(
    path: Path, *, size: tuple[int, int] | None = None, behind: int = 0
) -> NDArray[np.uint8]:
    """Decode an image file.

    Greyscale becomes three equal channels, 16 bits are rounded to 8, palettes are looked up, and
    transparent pixels are blended with ``behind``, as renderers do with what nothing covers. EXIF
    orientation is ignored.

    Args:
        size: width and height that the header must have, checked before memory is taken for it.
        behind: grey value, 0 is black and 255 white.

    Returns:
        (H, W, 3) uint8 RGB, contiguous and writable.

    Raises:
        BrokenPhotographError: the file is missing, truncated, corrupt, of another size or of a kind
            that has no RGB meaning.

    Cost: one thread, GIL mostly released.
    """
    try:
        with _opened(path) as (image, _):
            if size is not None and image.size != size:
                raise ValueError(f"{_by(image.size)}, not {_by(size)} as when it was loaded")
            image.load()
            return _to_rgb(image, behind)
    except FileNotFoundError as error:
        raise BrokenPhotographError(path, _reason(error)) from error


def decode_alpha(path: Path, *, size: tuple[int, int]) -> NDArray[np.uint8]:
    """The alpha channel of an image file, or its grey values where it has neither alpha nor
    colours.

    Args:
        size: width and height that the header must have.

    Returns:
        (H, W) uint8; 255 is opaque.

    Raises:
        BrokenPhotographError: as of :func:`decode_rgb`.
    """
    try:
        with _opened(path) as (image, _):
            if image.size != size:
                raise ValueError(f"{_by(image.size)}, not {_by(size)} as when it was loaded")
            image.load()
            is_grey = image.mode == "L" and not _has_alpha(image)
            return np.array(image if is_grey else image.convert("RGBA").getchannel("A"))
    except FileNotFoundError as error:
        raise BrokenPhotographError(path, _reason(error)) from error


def decode_grey_16(path: Path, *, size: tuple[int, int] | None = None) -> NDArray[np.uint16]:
    """The grey values of an image file of 16 bits.

    Args:
        size: width and height that the header must have; None: any.

    Returns:
        (H, W) uint16.

    Raises:
        BrokenPhotographError: as of :func:`decode_rgb`, or pixels are not 16 bits of grey.
    """
    try:
        with _opened(path) as (image, _):
            if size is not None and image.size != size:
                raise ValueError(f"{_by(image.size)}, not {_by(size)} as when it was loaded")
            if not _is_grey_16(image):
                raise ValueError("not 16 bits of grey")
            image.load()
            return np.asarray(image).astype(np.uint16)
    except FileNotFoundError as error:
        raise BrokenPhotographError(path, _reason(error)) from error


def decode_nonzero(path: Path) -> NDArray[np.bool_]:
    """Which pixels of an image file are not black, however dark, nor transparent.

    Returns:
        (H, W) bool.

    Raises:
        BrokenPhotographError: the file is missing, truncated or corrupt.
    """
    try:
        with _opened(path) as (image, _):
            image.load()
            if _has_alpha(image):
                values = np.asarray(image.convert("RGBA")) != 0
                return values[..., :3].any(axis=2) & values[..., 3]
            if image.mode not in ("1", "L", "F", "RGB") and not image.mode.startswith("I"):
                image = image.convert("RGB")
            values = np.asarray(image) != 0
            return values if values.ndim == 2 else values.any(axis=2)
    except FileNotFoundError as error:
        raise BrokenPhotographError(path, _reason(error)) from error


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[Image.Image, BinaryIO]]:
    try:
        with open_file(path) as file, Image.open(file, formats=FORMATS) as image:
            yield image, file
    except (MemoryError, FileNotFoundError, BrokenPhotographError):
        raise
    except Exception as error:  # Pillow's decoders raise many types on corrupt data
        raise BrokenPhotographError(path, _reason(error)) from error


def _reason(error: Exception) -> str:
    if isinstance(error, NotAFileError):
        return error.kind
    if isinstance(error, UnidentifiedImageError):
        return f"no {', '.join(FORMATS[:-1])} or {FORMATS[-1]} image"
    text = (isinstance(error, OSError) and error.strerror) or str(error)
    return text.replace("\n", " ") or type(error).__name__


def _by(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"


def _has_alpha(image: Image.Image) -> bool:
    return image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info


def _is_grey_16(image: Image.Image) -> bool:
    # Older versions of Pillow open such a PNG in 32 bits.
    return image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG")


def _to_rgb(image: Image.Image, behind: int) -> NDArray[np.uint8]:
    if image.mode.startswith("I"):
        grey = np.asarray(image).astype(np.int64)
        if grey.min() < 0 or grey.max() > 65535:
            raise ValueError(f"grey values must fit 16 bits, got {grey.min()} to {grey.max()}")
        return np.repeat(((grey * 255 + 32767) // 65535).astype(np.uint8)[:, :, None], 3, axis=2)
    if image.mode == "F":
        raise ValueError("pixels must be integers, got floating point")
    if _has_alpha(image):
        opaque = image.convert("RGBA")
        image = Image.new("RGB", opaque.size, (behind, behind, behind))
        image.paste(opaque, mask=opaque.getchannel("A"))
    return np.array(image.convert("RGB"))
