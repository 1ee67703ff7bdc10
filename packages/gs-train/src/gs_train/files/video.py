# SPDX-License-Identifier: Apache-2.0
"""Rendered frames as numbered PNG files or as an mp4 video, one frame in memory at a time."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from PIL import Image

from gs_train.errors import InputError
from gs_train.files.atomic import replacing
from gs_train.files.pictures import to_uint8

_FRAME = re.compile(r"frame_(\d{5,})\.png")
_CODECS: tuple[tuple[str, dict[str, str]], ...] = (
    ("libx264", {"crf": "18"}),
    ("libopenh264", {}),
    ("mpeg4", {"qscale": "3"}),
)


def require_video_writer(path: str | Path) -> None:
    """Check, before anything is rendered, that ``write_frames`` can write ``path``.

    Raises:
        InputError: ``path`` ends in ``.mp4`` and PyAV is not installed or has no codec, or it has
            another ending.
    """
    path = Path(path)
    if path.suffix.lower() == ".mp4":
        _codec(_import_av())
    elif path.suffix and not path.is_dir():
        raise InputError(f"{path} must end in .mp4, or be a folder for PNG files")


def write_frames(path: str | Path, frames: Iterable[Any], *, fps: int = 30) -> int:
    """Write frames as they come.

    Args:
        path: ending in ``.mp4``: a video (H.264 where PyAV has it, else MPEG-4), which appears when
            it is complete; otherwise a folder that gets ``frame_00000.png``
            and so on; those of an earlier, longer sequence are removed
        frames: (H, W, 3) images as ``to_uint8`` takes them; the iterator is asked for a frame when
            the last one is written. In a video, the first frame's size, made even by repeating the
            last row and column, is the video's; frames of another size are fitted into it.
        fps: frames per second of a video.

    Returns:
        How many frames were written.

    Raises:
        InputError: as ``require_video_writer``; the disk became full.
        ValueError: there is no frame for a video.
    """
    require_video_writer(path)
    path = Path(path)
    return _write_mp4(path, frames, fps) if path.suffix.lower() == ".mp4" else _png(path, frames)


def _png(folder: Path, frames: Iterable[Any]) -> int:
    n = 0
    for n, frame in enumerate(frames, 1):
        with replacing(folder / f"frame_{n - 1:05d}.png") as file:
            # The smallest level: rendered images hardly shrink further, and slowly.
            Image.fromarray(to_uint8(frame)).save(file, format="PNG", compress_level=1)
    # An earlier, longer sequence would otherwise continue this one.
    for old in folder.glob("frame_*.png"):
        match = _FRAME.fullmatch(old.name)
        if match and int(match[1]) >= n:
            old.unlink()
    return n


def _write_mp4(path: Path, frames: Iterable[Any], fps: int) -> int:
    av = _import_av()
    codec, options = _codec(av)
    stream: Any = None
    n = 0
    with replacing(path) as file, av.open(file, "w", format="mp4") as container:
        for frame in frames:
            pixels = to_uint8(frame)
            if stream is None:
                height, width = pixels.shape[:2]
                stream = container.add_stream(codec, rate=fps, options=options)
                stream.width, stream.height = width + width % 2, height + height % 2
                stream.pix_fmt = "yuv420p"
            pixels = _fitted(pixels, width, height)
            pixels = np.pad(pixels, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
            picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), "rgb24")
            container.mux(stream.encode(picture))
            n += 1
        if stream is None:
            raise ValueError("frames must hold at least one frame, got none")
        container.mux(stream.encode())
    return n


def _fitted(pixels: np.ndarray, width: int, height: int) -> np.ndarray:
    """As large as fits into ``width`` x ``height``, centred on black."""
    if pixels.shape[:2] == (height, width):
        return pixels
    factor = min(width / pixels.shape[1], height / pixels.shape[0])
    size = (max(1, round(pixels.shape[1] * factor)), max(1, round(pixels.shape[0] * factor)))
    canvas = Image.new("RGB", (width, height))
    canvas.paste(
        Image.fromarray(pixels).resize(size, Image.Resampling.LANCZOS),
        ((width - size[0]) // 2, (height - size[1]) // 2),
    )
    return np.asarray(canvas)


def _import_av() -> ModuleType:
    try:
        import av
    except ImportError as error:
        raise InputError(
            "an mp4 video must have PyAV, which is not installed: pip install 'gs-train[video]'; "
            "--to with a folder's name writes PNG files without it"
        ) from error
    return av


def _codec(av: ModuleType) -> tuple[str, dict[str, str]]:
    for name, options in _CODECS:
        if name in av.codecs_available:
            return name, options
    raise InputError("an mp4 video must have a PyAV with H.264 or MPEG-4, got neither")
