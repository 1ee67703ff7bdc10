# SPDX-License-Identifier: Apache-2.0
"""Binary glTF files of Gaussians, read back by trimesh."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import trimesh
from exported_rows import K, rows_of, write
from trimesh.exchange.gltf import extensions

from gs_train.errors import InputError
from gs_train.files.gltf import GltfFormat
from gs_train.files.row_file import Announced
from gs_train.files.survey import survey_rows

FORM = GltfFormat()
NAME = "KHR_gaussian_splatting"


_FOUND: dict[str, np.ndarray] = {}


@extensions.register_handler(NAME, scope="primitive_preprocess")
def _note(context: Any) -> None:
    for name, index in context["primitive"]["attributes"].items():
        _FOUND[name] = context["accessors"][index]


@pytest.fixture
def attributes() -> Iterator[dict[str, np.ndarray]]:
    """What trimesh reads into the attributes of a primitive with the extension."""
    _FOUND.clear()
    yield _FOUND
    _FOUND.clear()


def document_of(path: Path) -> tuple[dict[str, Any], bytes]:
    """The JSON and the bytes of a file, by the layout that glTF's specification has."""
    data = path.read_bytes()
    magic, version, length, n_text, kind = struct.unpack_from("<4sIII4s", data)
    assert (magic, version, length, kind) == (b"glTF", 2, len(data), b"JSON")
    assert n_text % 4 == 0
    n_bytes, kind = struct.unpack_from("<I4s", data, 20 + n_text)
    assert (n_bytes, kind) == (len(data) - 28 - n_text, b"BIN\0")
    return json.loads(data[20 : 20 + n_text]), data[28 + n_text :]


def linear(shown: np.ndarray) -> np.ndarray:
    return np.where(shown <= 0.04045, shown / 12.92, ((shown + 0.055) / 1.055) ** 2.4)


@pytest.mark.parametrize("degree", [0, 1, 2, 3])
@pytest.mark.parametrize(("n", "size"), [(1, 1), (200, 200), (200, 7)])
def test_a_reader_finds_every_value(
    tmp_path: Path, attributes: dict[str, np.ndarray], degree: int, n: int, size: int
) -> None:
    rows = rows_of(n, degree)
    write(tmp_path / "a.glb", rows, FORM, size=size)
    scene = trimesh.load_scene(tmp_path / "a.glb")
    (cloud,) = scene.geometry.values()
    assert np.allclose(scene.graph[scene.graph.nodes_geometry[0]][0], np.eye(4))
    wanted = {name: values.double().numpy() for name, values in rows.items()}
    turn = np.array([1, -1, -1])
    np.testing.assert_array_equal(cloud.vertices, wanted["means"] * turn)
    np.testing.assert_array_equal(attributes["POSITION"], rows["means"].numpy() * turn)
    x, y, z, w = attributes[f"{NAME}:ROTATION"].T.astype(np.float64)
    quats = wanted["quats"] / np.linalg.norm(wanted["quats"], axis=1, keepdims=True)
    np.testing.assert_allclose(np.stack([w, x, -y, -z], 1), quats, rtol=0, atol=1e-7)
    scales = attributes[f"{NAME}:SCALE"]
    np.testing.assert_allclose(scales, np.exp(wanted["scales"]), rtol=1e-6)
    alphas = 1 / (1 + np.exp(-wanted["opacities"]))
    np.testing.assert_allclose(attributes[f"{NAME}:OPACITY"].ravel(), alphas, rtol=1e-6)
    colours = np.clip(0.5 + wanted["sh0"][:, 0] * np.sqrt(0.25 / np.pi), 0, 1)
    shown = np.concatenate([linear(colours), alphas[:, None]], 1)
    np.testing.assert_allclose(attributes["COLOR_0"] / 255, shown, rtol=0, atol=0.501 / 255)
    np.testing.assert_array_equal(attributes[f"{NAME}:SH_DEGREE_0_COEF_0"], wanted["sh0"][:, 0])
    signs = [-1, -1, 1, -1, 1, 1, -1, 1, -1, 1, -1, -1, 1, -1, 1]
    names = [f"SH_DEGREE_{d}_COEF_{c}" for d in (1, 2, 3) for c in range(2 * d + 1)]
    for index in range(K[degree]):
        found = attributes[f"{NAME}:{names[index]}"]
        np.testing.assert_array_equal(found, signs[index] * wanted["shN"][:, index])
    assert len(attributes) == 6 + K[degree]


def test_the_document_is_that_of_the_extension(tmp_path: Path) -> None:
    rows = rows_of(11, 1)
    write(tmp_path / "a.glb", rows, FORM)
    document, content = document_of(tmp_path / "a.glb")
    assert document["asset"]["version"] == "2.0"
    assert document["extensionsUsed"] == [NAME]
    assert document["buffers"] == [{"byteLength": len(content)}]
    ((primitive,),) = [mesh["primitives"] for mesh in document["meshes"]]
    assert primitive["mode"] == 0
    assert primitive["extensions"][NAME] == {
        "kernel": "ellipse",
        "colorSpace": "srgb_rec709_display",
        "projection": "perspective",
        "sortingMethod": "cameraDistance",
    }
    place = 0
    for view, accessor in zip(document["bufferViews"], document["accessors"], strict=True):
        assert (view["buffer"], view["byteOffset"], accessor["count"]) == (0, place, 11)
        assert view["byteLength"] % 4 == 0  # where the next attribute begins
        place += view["byteLength"]
    assert place == len(content)
    positions = document["accessors"][primitive["attributes"]["POSITION"]]
    turned = rows["means"].double() * torch.tensor([1.0, -1.0, -1.0])
    assert positions["min"] == turned.amin(0).tolist()
    assert positions["max"] == turned.amax(0).tolist()
    assert (positions["componentType"], positions["type"]) == (5126, "VEC3")


def test_values_that_are_no_numbers_of_the_extension_become_the_nearest(
    tmp_path: Path, attributes: dict[str, np.ndarray]
) -> None:
    rows = rows_of(3, 0)
    rows["scales"][0] = torch.tensor([1e5, -1e5, 0.0])
    rows["opacities"][:] = torch.tensor([-1e30, 1e30, 0.0])
    rows["quats"][0] = 0
    rows["quats"][1] *= 1e30
    rows["means"][:] = 0
    write(tmp_path / "a.glb", rows, FORM)
    trimesh.load_scene(io.BytesIO((tmp_path / "a.glb").read_bytes()), file_type="glb")
    assert attributes[f"{NAME}:OPACITY"].ravel() == pytest.approx([0, 1, 0.5], abs=1e-30)
    scales = attributes[f"{NAME}:SCALE"]
    assert np.isfinite(scales).all()
    assert scales[0, 1:].tolist() == [0, 1]
    assert attributes[f"{NAME}:ROTATION"][0].tolist() == [0, 0, 0, 1]
    norms = np.linalg.norm(attributes[f"{NAME}:ROTATION"], axis=1)
    np.testing.assert_allclose(norms, 1, rtol=1e-6)
    assert b"-0.0" not in (tmp_path / "a.glb").read_bytes()  # the least position is no -0


@pytest.mark.parametrize("degree", [0, 3])
def test_more_bytes_than_a_file_can_count_are_one_line(tmp_path: Path, degree: int) -> None:
    survey = survey_rows([rows_of(3, degree)])
    row_bytes = FORM.row_bytes(K[degree])
    assert row_bytes == 12 + 4 + 16 + 12 + 4 + 12 * (1 + K[degree])

    def announced(n: int) -> Announced:
        return Announced(tmp_path / "a.glb", n, K[degree], survey._replace(n_rows=n))

    with pytest.raises(InputError, match=r"a.glb must hold at most [\d,]+ Gaussians of ") as found:
        FORM.require_room(announced(2**32 // row_bytes))
    most = int(str(found.value).split(" at most ")[1].split()[0].replace(",", ""))
    assert 2**32 - most * row_bytes < 8192
    FORM.require_room(announced(most))
    with pytest.raises(InputError):
        FORM.require_room(announced(most + 1))
