# SPDX-License-Identifier: Apache-2.0
"""Ways to damage a file: its bytes, its fields, or what it is."""

from __future__ import annotations

import os
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np

from campaigns.fields import Field, fields_of

Generator = np.random.Generator

WORDS = (
    *("0", "-1", "-0.0", "1", "2", "255", "256", "2147483647", "2147483648", "4294967296"),
    *("9223372036854775807", "9223372036854775808", "99999999999999999999", "9" * 5000, "1_0"),
    *("nan", "NaN", "inf", "-inf", "Infinity", "1e39", "-1e39", "1e160", "1e300", "1e-300"),
    *("1e-45", "3.5e38", "1e400", "0x10", "1.5", "²", "٣", "null", "true", "~", "", "-", "--", "#"),
    *("..", "../../x", "/", "/dev/full", "a b", "x" * 300, "x" * 5000, "[" * 5000, "{" * 5000),
    *("\x1b[31m", "\a", "\r", "\n", "\0", "é", "caf\udce9", "\u202e", "'", '"', "&a", "*a", "!!x"),
)
NUMBERS = (
    *(0.0, -0.0, 1.0, -1.0, float("nan"), float("inf"), float("-inf"), 1e39, -1e39, 1e155, 1e160),
    *(1e300, -1e300, 1e-300, 5e-324, 1e-45, 1e-38, 3.4e38, 3.5e38, 1e19, 1e6, -5.2e6, 1e-12),
)
NAMES = (
    b"caf\xe9", b"a\nb", b"\x1b[31mred", b"\x07bell", b"a\tb", b"\xc2\x9bcsi", b"x" * 200,
    b"x" * 245, b"sp ace", b"-dash", b"--out", b"\xff\xfe", "数".encode(), b"'quote\"", b"$HOME",
    b"%s{0}", b"\r", b"..", b"sub/deeper/still", b"\xe2\x80\xae",
)  # fmt: skip
"""Stems of file names as other machines make them."""


def damage(path: Path, rng: Generator, *, others: list[Path]) -> str:
    """Damage a file in one of many ways.

    Args:
        path: of the file.
        others: files whose content may come in place of its own.

    Returns:
        What was done, for the record.
    """
    ways: list[Callable[[], str]] = [
        *[lambda: _change_bytes(path, rng)] * 8,
        *[lambda: _change_field(path, rng)] * 12,
        *[lambda: _replace(path, rng, others)] * 4,
    ]
    return f"{path.name}: {ways[rng.integers(len(ways))]()}"


def damage_folder(root: Path, rng: Generator) -> str:
    """Damage a folder or one of its subfolders; say what was done."""
    folders = [path for path in sorted((root, *root.rglob("*"))) if path.is_dir()]
    path = folders[rng.integers(len(folders))]
    kinds = ["may not be read", "may not be written", "gone", "file", "fifo", "loop"]
    kind = str(rng.choice([*kinds, "renamed", "beside", "leftover", "link"]))
    if kind == "may not be read":
        path.chmod(0)
    elif kind == "may not be written":
        path.chmod(0o500)
    elif kind == "leftover":
        name = str(rng.choice(["step_000001.tmp", "step_000009", "step_000003.1", "step_٣"]))
        (path / name).mkdir()
        kind = f"holds an empty {name}"
    elif kind == "link":
        name = str(rng.choice([".config.yml.tmp", ".metrics.json.tmp", ".log.csv.tmp"]))
        (path / name).symlink_to(root.parent.parent / "victim")
        kind = f"holds the link {name}"
    elif kind in ("renamed", "beside"):
        name = os.fsdecode((*NAMES, "²".encode(), b"7" * 200)[rng.integers(len(NAMES) + 2)])
        new = path.with_name(name.replace("/", "-") if name != ".." else "...")
        if kind == "renamed":
            path.rename(new)
        else:
            new.mkdir()
        kind = f"{kind} {new.name!r:.60}"
    else:
        shutil.rmtree(path)
        if kind == "file":
            path.write_text("file\n")
        elif kind == "fifo":
            os.mkfifo(path)
        elif kind == "loop":
            path.symlink_to(path.name)
    return f"folder {path.relative_to(root.parent)}: {kind}"


def _change_bytes(path: Path, rng: Generator) -> str:
    data = bytearray(path.read_bytes())
    size = len(data)
    start = int(rng.integers(min(size, 200) if rng.random() < 0.3 else size))
    stop = min(size, start + int(rng.integers(1, 64)))
    what = str(rng.choice(["flip", "set", "cut", "remove", "repeat", "zero", "append", "swap"]))
    if what == "flip":
        data[start] ^= 1 << int(rng.integers(8))
    elif what == "set":
        data[start] = int(rng.choice([0, 1, 0x7F, 0x80, 0xFF, 0x0A, 0x20, 0x2D, 0x39]))
    elif what == "cut":
        del data[start:]
    elif what == "remove":
        del data[start:stop]
    elif what == "repeat":
        data[start:start] = data[start:stop] * int(rng.integers(1, 4))
    elif what == "zero":
        data[start:stop] = bytes(stop - start)
    elif what == "append":
        data += rng.bytes(int(rng.integers(1, 64)))
    else:
        at = int(rng.integers(size - (stop - start) + 1))
        data[start:stop], data[at : at + stop - start] = (
            data[at : at + stop - start],
            data[start:stop],
        )
    path.write_bytes(data)
    return f"{what} at byte {start} to {stop} of {size}"


def _change_field(path: Path, rng: Generator) -> str:
    data = path.read_bytes()
    fields = fields_of(path.name, data)
    if not fields:
        return _change_bytes(path, rng)
    names = sorted({field.name for field in fields})
    name = names[rng.integers(len(names))]
    alike = [field for field in fields if field.name == name]
    # The first ones are headers, which many words of a body would hide.
    chosen = alike[: 40 if rng.random() < 0.4 else None]
    chosen = [chosen[rng.integers(len(chosen))]]
    if name != "word" and rng.random() < 0.25:
        chosen = alike
    value = _value(chosen[0], data, rng)
    for field in reversed(chosen):
        new = value if isinstance(value, bytes) else _packed(field.code, value)
        data = data[: field.start] + new + data[field.stop :]
    if path.suffix == ".png":  # a wrong checksum would hide the field
        data = data[:29] + struct.pack(">I", zlib.crc32(data[12:29])) + data[33:]
    path.write_bytes(data)
    where = "each" if len(chosen) > 1 else f"byte {chosen[0].start}"
    return f"{name} at {where} becomes {value!r:.60}"


def _value(field: Field, data: bytes, rng: Generator) -> bytes | float:
    if not field.code:
        if rng.random() < 0.15:  # of another word here
            words = [f for f in fields_of("", data[:4000]) if not f.code]
            other = words[rng.integers(len(words))]
            return data[other.start : other.stop]
        return WORDS[rng.integers(len(WORDS))].encode("utf-8", "surrogateescape")
    (old,) = struct.unpack_from(field.code, data, field.start)
    if field.code[-1] in "df":
        scaled = (-old, old * 1e6, old * 1e-6, old + 5e6, old * 1e12, old * 1.001)
        pool = (*NUMBERS, *scaled)
        return float(pool[rng.integers(len(pool))])
    bits = 8 * struct.calcsize(field.code)
    edges = (0, 1, 2, 3, 1 << 15, 1 << 20, 1 << 31, 1 << 32, 1 << 63, 1 << bits, old, 30_000)
    return int(edges[rng.integers(len(edges))]) + int(rng.integers(-1, 2))


def _packed(code: str, value: float) -> bytes:
    if code[-1] in "df":
        with np.errstate(over="ignore"):
            return np.array(value, code).tobytes()
    size = struct.calcsize(code)
    order: Literal["big", "little"] = "big" if code[0] == ">" else "little"
    return (int(value) % (1 << 8 * size)).to_bytes(size, order)


def _replace(path: Path, rng: Generator, others: list[Path]) -> str:
    kinds = ["nothing", "empty", "folder", "fifo", "dangling", "loop", "device", "other", "format"]
    kind = str(rng.choice([*kinds, "unreadable"]))
    if kind == "unreadable":
        path.chmod(0)
        return "may not be read"
    path.unlink()
    if kind == "empty":
        path.touch()
    elif kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "dangling":
        path.symlink_to("nowhere")
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "other":
        other = others[rng.integers(len(others))]
        path.write_bytes(other.read_bytes())
        kind = f"content of {other.name}"
    elif kind == "format":
        kind, content = _FORMATS[rng.integers(len(_FORMATS))]
        path.write_bytes(content)
    return f"replaced by {kind}"


_FORMATS = (
    ("eps", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 32 24\n%%EndComments\nshowpage\n%%EOF\n"),
    ("gif", b"GIF89a\x20\x00\x18\x00\x80\x00\x00" + bytes(100)),
    ("tiff", b"II*\x00\x08\x00\x00\x00" + bytes(100)),
    ("ppm", b"P6 32 24 255\n" + bytes(32 * 24 * 3)),
    ("text", b"hello\n" * 100),
    ("brackets", b"[" * 100_000),
    ("zip", b"PK\x03\x04" + bytes(100)),
    ("elf", b"\x7fELF" + bytes(100)),
    ("html", b"<html><body>404 Not Found</body></html>\n"),
    ("pickle", b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x05hello\x94."),
    ("nan", b"nan nan nan\n" * 50),
)
