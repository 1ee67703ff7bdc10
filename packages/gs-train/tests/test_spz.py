# SPDX-License-Identifier: Apache-2.0
"""SPZ files, read back by GaussForge, which has the reference reader of the format inside."""

from __future__ import annotations

import math
import struct
import sys
from pathlib import Path

import gaussforge
import numpy as np
import pytest
import torch
import zstandard
from exported_rows import K, rows_of, write
from torch import Tensor

from gs_train.errors import InputError
from gs_train.files.ply import load_ply
from gs_train.files.row_file import Announced, write_rows
from gs_train.files.spz import SpzFormat, fractional_bits
from gs_train.files.survey import survey_rows

FORM = SpzFormat(is_antialiased=False)
WIDTHS = (9, 1, 3, 3, 4)  # bytes of a row in each stream but the harmonics'


def read(path: Path, *, strict: bool = True) -> dict[str, np.ndarray]:
    """Rows in the convention of PLY files, y down and z forward, float64.

    GaussForge's ``read`` fails where there are no harmonics, so GaussForge writes a PLY file.

    Args:
        strict: whether opacities of 0 and 1, whose logits are infinite, are refused.
    """
    found = gaussforge.GaussForge().convert(path.read_bytes(), "spz", "ply", strict=strict)
    assert "error" not in found, found
    ply = path.with_suffix(".read.ply")
    ply.write_bytes(found["data"])
    rows = {name: values.double().numpy() for name, values in load_ply(ply).items()}
    ply.unlink()
    signs = [-1, -1, 1, -1, 1, 1, -1, 1, -1, 1, -1, -1, 1, -1, 1][: rows["shN"].shape[1]]
    rows["means"] *= [1, -1, -1]
    rows["quats"] *= [1, 1, -1, -1]
    rows["shN"] *= np.array(signs).reshape(-1, 1)
    return rows


def bits_of(path: Path) -> int:
    return path.read_bytes()[13]


def streams_of(path: Path) -> list[bytes]:
    """The content of all streams, by the layout that the format's description has."""
    data = path.read_bytes()
    n_streams = data[15]
    sizes = [struct.unpack_from("<QQ", data, 32 + 16 * i) for i in range(n_streams)]
    place, contents = 32 + 16 * n_streams, []
    for stored, n_bytes in sizes:
        stream = data[place : place + stored]
        assert zstandard.frame_content_size(stream) == n_bytes
        contents.append(zstandard.ZstdDecompressor().decompress(stream))
        assert len(contents[-1]) == n_bytes
        place += stored
    assert place == len(data)
    return contents


def assert_close(found: dict[str, np.ndarray], rows: dict[str, Tensor], bits: int) -> None:
    """To half a step of each attribute, as GaussForge computes in float32."""
    wanted = {name: values.double().numpy() for name, values in rows.items()}
    half = 0.5 * (1 + 1e-4)
    np.testing.assert_allclose(found["means"], wanted["means"], rtol=0, atol=half * 2.0**-bits)
    np.testing.assert_allclose(found["scales"], wanted["scales"], rtol=0, atol=half / 16)
    np.testing.assert_allclose(found["sh0"], wanted["sh0"], rtol=0, atol=half / 255 / 0.15)
    if wanted["shN"].size:
        np.testing.assert_allclose(found["shN"], wanted["shN"], rtol=0, atol=half / 128)
    sigmoids = [1 / (1 + np.exp(-each["opacities"])) for each in (found, wanted)]
    np.testing.assert_allclose(*sigmoids, rtol=0, atol=half / 255)
    quats = wanted["quats"] / np.linalg.norm(wanted["quats"], axis=1, keepdims=True)
    assert np.allclose(np.linalg.norm(found["quats"], axis=1), 1, atol=1e-6)
    # Three components to half a step; the fourth, at least 1/2, is what they leave of the length.
    step = math.sqrt(0.5) / 511
    signs = np.sign((found["quats"] * quats).sum(axis=1, keepdims=True))
    errors = np.sort(np.abs(found["quats"] * signs - quats), axis=1)
    assert errors[:, 2].max() <= half * step
    assert errors[:, 3].max() <= 3 * half * step


@pytest.mark.parametrize("degree", [0, 1, 2, 3])
@pytest.mark.parametrize("n", [1, 2, 500])
def test_a_reader_finds_the_rows_to_the_precision_of_the_format(
    tmp_path: Path, degree: int, n: int
) -> None:
    rows = rows_of(n, degree)
    write(tmp_path / "a.spz", rows, FORM, size=120)
    assert_close(read(tmp_path / "a.spz"), rows, bits_of(tmp_path / "a.spz"))


def test_rows_lie_together_whatever_the_chunks(tmp_path: Path) -> None:
    rows = rows_of(600, 3)
    write(tmp_path / "whole.spz", rows, FORM)
    wanted = streams_of(tmp_path / "whole.spz")
    for size, chunk_rows in ((1, 1000), (7, 3), (599, 600), (600, 599)):
        write(tmp_path / "a.spz", rows, FORM, size=size, chunk_rows=chunk_rows)
        assert streams_of(tmp_path / "a.spz") == wanted


@pytest.mark.parametrize("is_antialiased", [False, True])
@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_the_header_is_that_of_version_4(tmp_path: Path, degree: int, is_antialiased: bool) -> None:
    path = tmp_path / "a.spz"
    write(path, rows_of(5, degree), SpzFormat(is_antialiased))
    n_streams = 6 if degree else 5
    magic, version, n_rows, *small, table, rest = struct.unpack(
        "<4sII4BI12s", path.read_bytes()[:32]
    )
    assert (magic, version, n_rows, table, rest) == (b"NGSP", 4, 5, 32, bytes(12))
    assert small == [degree, fractional_bits(read_reach(path)), int(is_antialiased), n_streams]
    sizes = [len(content) for content in streams_of(path)]
    assert sizes == [5 * width for width in (*WIDTHS, 3 * K[degree])[:n_streams]]
    info = gaussforge.GaussForge().get_model_info(path.read_bytes(), "spz")["data"]
    assert info["rendering"] == {"shDegree": degree, "antialiased": is_antialiased}


def read_reach(path: Path) -> float:
    return float(np.abs(read(path)["means"]).max())


def test_bytes_are_those_of_the_formats_description(tmp_path: Path) -> None:
    """One row, by hand."""
    rows = {
        "means": torch.tensor([[1.0, -0.5, 3.0]]),
        "scales": torch.tensor([[-10.0, 0.0, 5.9]]),
        "quats": torch.tensor([[2.0, 0.0, 0.0, -2.0]]),  # w and z equally large: y up, z is +
        "opacities": torch.tensor([0.0]),
        "sh0": torch.tensor([[[0.0, 9.0, -9.0]]]),
        "shN": torch.tensor([[[0.5, -0.5, 2.0], [0.25, 0.0, -2.0], [1 / 128, 0.0, 0.0]]]),
    }
    write(tmp_path / "a.spz", rows, FORM)
    assert bits_of(tmp_path / "a.spz") == 21  # 3 * 2**21 is the most below 2**23
    found = [list(content) for content in streams_of(tmp_path / "a.spz")]
    fixed = [round(value * 2**21) % 2**24 for value in (1.0, 0.5, -3.0)]
    assert found[0] == [byte for value in fixed for byte in value.to_bytes(3, "little")]
    assert found[1] == [128]
    assert found[2] == [128, 255, 0]
    assert found[3] == [0, 160, 254]
    # z (number 2) is the largest, then x, y and w: 0, 0 and sqrt(1/2), which is 511 of 511.
    assert found[4] == list((2 << 30 | 511).to_bytes(4, "little"))
    assert found[5] == [64, 192, 0, 96, 128, 255, 129, 128, 128]  # y and z have the other sign


def test_values_beyond_the_format_become_its_nearest(tmp_path: Path) -> None:
    rows = rows_of(4, 1)
    rows["scales"][:] = torch.tensor([[-80.0, 80.0, -4.0]])
    rows["opacities"][:] = torch.tensor([-1e30, 1e30, -200.0, 200.0])
    rows["quats"][0] = 0
    rows["quats"][1] *= 1e30
    rows["quats"][2] *= 1e-30
    rows["shN"][:] = 3e38
    write(tmp_path / "a.spz", rows, FORM)
    found = read(tmp_path / "a.spz", strict=False)
    assert found["scales"].tolist() == [[-10.0, 255 / 16 - 10, -4.0]] * 4
    assert found["quats"][0].tolist() == [1, 0, 0, 0]
    assert streams_of(tmp_path / "a.spz")[1] == bytes([0, 255, 0, 255])
    assert set(streams_of(tmp_path / "a.spz")[5]) == {0, 255}


@pytest.mark.parametrize("reach", [1e-3, 0.4999, 0.5, 1.0, 100.0, 4095.9, 1e5, 4194303.5])
@pytest.mark.parametrize("sign", [-1, 1])
def test_no_position_overflows(tmp_path: Path, reach: float, sign: int) -> None:
    rows = rows_of(3, 0)
    rows["means"] *= reach / rows["means"].abs().max()
    rows["means"][0] = sign * reach
    rows["scales"][:] = 1.0
    write(tmp_path / "a.spz", rows, FORM)
    bits = bits_of(tmp_path / "a.spz")
    assert 2 ** (23 - bits) > reach
    assert bits == 24 or 2 ** (22 - bits) <= reach
    assert_close(read(tmp_path / "a.spz"), rows, bits)


@pytest.mark.parametrize(
    ("reach", "log_scale", "step"), [(1e5, -5.0, "0.016"), (4194304.0, 3.0, "0.5")]
)
def test_positions_coarser_than_gaussians_are_one_line(
    tmp_path: Path, reach: float, log_scale: float, step: str
) -> None:
    rows = rows_of(3, 0)
    rows["means"][1, 2] = -reach
    rows["scales"][:] = log_scale
    message = (
        rf"^SPZ must have steps between positions below the size of a Gaussian, .* in the mean; 24 "
        rf"bits for coordinates up to {reach:.6g} have steps of {step}: leave far Gaussians out "
        r"with --crop, or choose --frame local or another --layout$".replace("+", r"\+")
    )
    with pytest.raises(InputError, match=message):
        write(tmp_path / "a.spz", rows, FORM)
    assert not list(tmp_path.iterdir())


def test_more_rows_than_the_reference_reader_counts_are_one_line(tmp_path: Path) -> None:
    found = survey_rows([rows_of(3, 0)])._replace(n_rows=2**31)
    with pytest.raises(InputError, match=r"must hold 1 to 2,147,483,647 .*, got 2,147,483,648$"):
        FORM.require_room(Announced(tmp_path / "a.spz", 2**31, 0, found))


def test_a_row_more_than_the_survey_has_stops_the_file(tmp_path: Path) -> None:
    rows = rows_of(3, 0)
    fewer = survey_rows([{name: values[:2] for name, values in rows.items()}])
    with pytest.raises(ValueError, match="survey must be of the rows, which are 3, got 2"):
        write_rows(tmp_path / "a.spz", [rows], form=FORM, n_rows=3, survey=fewer)
    assert not list(tmp_path.iterdir())


def test_a_missing_package_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(InputError, match=r"zstandard, which is not installed: pip install 'gs-"):
        FORM.require_available()
