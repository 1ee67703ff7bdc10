# SPDX-License-Identifier: Apache-2.0
"""Masks of photographs that a caller in Python holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from one_thread import one_threaded
from planes import HEIGHT, OPTIONS, WIDTH, Stored, arrays_with, folder_with, has_plane, same

import gs_train
from gs_train.data import Capture, capture_from_arrays, load_capture, read_image
from gs_train.data.fingerprint import changes
from gs_train.data.photo_reader import PhotoReader
from gs_train.errors import InputError
from gs_train.losses.mask import CARVED, IGNORED, KEPT


def plane(i: int) -> np.ndarray:
    """(HEIGHT, WIDTH) uint8 that hides a rectangle; what is kept has other values than 255, too."""
    kept = np.full((HEIGHT, WIDTH), 1 + i, np.uint8)
    kept[10:30, 4 * i : 4 * i + 20] = 0
    return kept


@pytest.fixture(scope="module")
def masked(tiny_capture: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with masks on all photographs but every third."""
    return folder_with(tiny_capture, tmp_path_factory.mktemp("masked") / "c", "masks", plane)


@pytest.fixture(scope="module")
def arrays(masked: Path) -> dict[str, Any]:
    """The same capture as arguments of `capture_from_arrays`."""
    capture = load_capture(masked, cache_dir=masked.parent / "cache", mask="off")
    return arrays_with(capture, "masks", plane)


@pytest.mark.parametrize("mode", ["ignore", "carve"])
@one_threaded
def test_arrays_train_to_the_bits_of_the_folder_that_holds_them(
    mode: str, masked: Path, arrays: dict[str, Any], tmp_path: Path
) -> None:
    of_folder = gs_train.fit(data=masked, out=tmp_path / "folder", steps=4, mask=mode, **OPTIONS)
    capture = capture_from_arrays(**arrays, mask=mode)
    given = gs_train.fit(capture=capture, out=tmp_path / "given", steps=4, **OPTIONS)
    assert same(tmp_path / "given", tmp_path / "folder")
    assert given.metrics["images"] == of_folder.metrics["images"]


@one_threaded
def test_a_loaded_capture_is_carved_as_it_was_loaded(masked: Path, tmp_path: Path) -> None:
    for mode in ("ignore", "carve"):
        capture = load_capture(masked, cache_dir=tmp_path / "cache", mask=mode)
        gs_train.fit(capture=capture, out=tmp_path / mode, steps=4, **OPTIONS)
    assert not same(tmp_path / "ignore", tmp_path / "carve")


@pytest.mark.parametrize("kind", [bool, np.uint8])
@pytest.mark.parametrize(("mode", "hidden"), [("ignore", IGNORED), ("carve", CARVED)])
def test_false_and_0_hide_and_all_else_keeps(
    kind: type, mode: str, hidden: int, arrays: dict[str, Any]
) -> None:
    masks = [None if given is None else given.astype(kind) for given in arrays["masks"]]
    names = [f"{(7 * i) % 12:02}" for i in range(12)]  # in another order
    capture = capture_from_arrays(**{**arrays, "masks": masks, "names": names}, mask=mode)
    assert capture.mask == mode
    for view in capture.views:
        i = names.index(view.name)
        pixels = read_image(view)
        np.testing.assert_array_equal(pixels[..., :3], arrays["images"][i])
        if not has_plane(i):
            assert pixels.shape == (HEIGHT, WIDTH, 3)
        else:
            np.testing.assert_array_equal(pixels[..., 3], np.where(plane(i), KEPT, hidden))


def test_masks_may_be_read_one_at_a_time(arrays: dict[str, Any]) -> None:
    stored = Stored(list(arrays["masks"]))
    capture = capture_from_arrays(**{**arrays, "masks": stored})
    assert stored.n_read == 12
    assert not capture.in_memory
    read_image(capture.views[2])
    assert stored.n_read == 13
    stored.planes[2] = plane(2)[:, :20]
    with pytest.raises(InputError, match=r"masks must be bool or uint8 of shape \(48, 64\), got u"):
        read_image(capture.views[2])


def test_one_array_holds_the_masks_of_all(arrays: dict[str, Any]) -> None:
    masks = np.stack([plane(i) for i in range(12)])
    capture = capture_from_arrays(**{**arrays, "masks": masks})
    assert capture.in_memory
    assert all(view.pixel_size == (HEIGHT, WIDTH, 4) for view in capture.views)


def _without_last(arrays: dict[str, Any]) -> dict[str, Any]:
    return {"masks": arrays["masks"][:-1]}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (_without_last, ValueError, "masks must be 12, one for each image, got 11"),
        (
            lambda a: {"masks": [plane(0) / 255] * 12},
            TypeError,
            "masks must be bool or uint8, got float64 of mask 0",
        ),
        (
            lambda a: {"masks": [*a["masks"][:-1], plane(0).T]},
            ValueError,
            r"masks must be \(48, 64\), got \(64, 48\) of mask 11",
        ),
        (lambda a: {"mask": "off"}, ValueError, "mask must be ignore or carve, got 'off'"),
    ],
)
def test_masks_that_are_none_are_named(
    arrays: dict[str, Any],
    change: Callable[[dict[str, Any]], dict[str, Any]],
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        capture_from_arrays(**{**arrays, **change(arrays)})


def test_a_run_goes_on_with_its_masks_alone(arrays: dict[str, Any], tmp_path: Path) -> None:
    def given(**others: Any) -> Capture:
        return capture_from_arrays(**{**arrays, **others})

    out = tmp_path / "run"
    gs_train.fit(capture=given(mask="carve"), out=out, steps=2, **OPTIONS)
    with pytest.raises(TypeError, match="or be ignore as of the capture, got carve"):
        gs_train.fit(capture=given(), out=out, resume=True, steps=4)
    fitted = gs_train.fit(capture=given(mask="carve"), out=out, resume=True, steps=4)
    assert fitted.step == 4
    others = [None if mask is None else mask[::-1] for mask in arrays["masks"]]
    reader = PhotoReader(given(mask="carve"))
    for index in range(12):
        reader.load(index)
    changed = changes(reader.fingerprint(), given(mask="carve", masks=others)).photographs
    assert len(changed) == 8
