# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import torch
from PIL import Image

from gs_train.files.pictures import error_colors, to_uint8, write_comparison


def test_images_become_bytes_by_clamping_and_rounding():
    values = np.array([[[-1.0, 0.0, 0.5], [1.0, 2.0, np.nan]]])
    expected = np.array([[[0, 0, 128], [255, 255, 0]]], np.uint8)
    assert np.array_equal(to_uint8(values), expected)
    assert np.array_equal(to_uint8(torch.tensor(values, requires_grad=True)), expected)
    assert np.array_equal(to_uint8(torch.tensor(values, dtype=torch.bfloat16)), expected)
    assert to_uint8(expected) is expected
    every = np.arange(256, dtype=np.uint8).reshape(1, 256, 1).repeat(3, 2)
    assert np.array_equal(to_uint8(every.astype(np.float32) / 255), every)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_every_device_rounds_alike(device):
    halves = (np.arange(-2, 514, dtype=np.float32) / 2) / 255
    values = np.concatenate([halves, np.linspace(-0.1, 1.1, 30_000, dtype=np.float32), [np.inf]])
    values = values.astype(np.float32)[: len(values) // 3 * 3].reshape(1, -1, 3)
    on_device = torch.from_numpy(values).to(device)
    assert np.array_equal(to_uint8(on_device), to_uint8(values))


def test_a_larger_error_is_brighter_and_none_is_black():
    colors = error_colors(np.linspace(0, 0.3, 50)[None])[0].astype(float)
    luminance = colors @ [0.2126, 0.7152, 0.0722]
    assert colors[0].tolist() == [0, 0, 0]
    assert (np.diff(luminance[:42]) > 0).all()  # up to 0.25
    assert (colors[42:] == [255, 250, 200]).all()


def views():
    y, x = np.mgrid[:40, :60] / 60
    truth = np.stack([x, y, 0.5 + 0 * x], axis=-1)
    wrong = truth.copy()
    wrong[10:20, 30:50] += 0.25
    return [("a/first.jpg", truth, truth), ("b.jpg", truth, torch.tensor(wrong))]


def test_the_sheet_shows_truth_render_and_error_of_every_view(tmp_path):
    write_comparison(tmp_path / "c.png", views())
    sheet = np.asarray(Image.open(tmp_path / "c.png"))
    assert sheet.shape == (2 * (40 + 26) + 6, 3 * 66 + 6, 3)
    truth = to_uint8(views()[0][1])
    top, second = 6 + 20, 6 + 20 + 66
    assert np.array_equal(sheet[top : top + 40, 6:66], truth)
    assert np.array_equal(sheet[top : top + 40, 72:132], truth)
    assert not sheet[top : top + 40, 138:198].any()
    error = sheet[second : second + 40, 138:198]
    assert (error[12:18, 32:48] > [240, 200, 100]).all()
    assert not error[25:].any()
    assert len(np.unique(sheet[6:26, 6:66].reshape(-1, 3), axis=0)) > 5  # a name was written


def test_the_same_input_gives_the_same_bytes(tmp_path):
    write_comparison(tmp_path / "1.png", views())
    write_comparison(tmp_path / "2.png", views())
    assert (tmp_path / "1.png").read_bytes() == (tmp_path / "2.png").read_bytes()


def test_large_images_are_reduced_and_views_may_differ_in_size(tmp_path):
    sizes = ((100, 400), (300, 100))
    sheets = [("a", np.zeros((*s, 3)), np.zeros((*s, 3))) for s in sizes]
    write_comparison(tmp_path / "c.png", sheets, max_side=50)
    with Image.open(tmp_path / "c.png") as image:
        assert image.size == (3 * (50 + 6) + 6, (13 + 26) + (50 + 26) + 6)


def test_what_cannot_be_compared_is_refused_and_leaves_no_file(tmp_path):
    with pytest.raises(ValueError, match="at least one view"):
        write_comparison(tmp_path / "c.png", [])
    image = np.zeros((4, 5, 3))
    with pytest.raises(ValueError, match=r"truth and render of x must have the same shape, got"):
        write_comparison(tmp_path / "c.png", [("x", image, image[:3])])
    assert not (tmp_path / "c.png").exists()


def test_names_that_the_font_cannot_write_are_told_apart_by_their_escapes(tmp_path):
    image = np.zeros((4, 300, 3))
    drawn = set()
    for name in ("\u4e2d\u6587", "\u65e5\u672c", "\xe9\xe8", "\xe0\xe1"):
        write_comparison(tmp_path / "c.png", [(name, image, image)])
        drawn.add((tmp_path / "c.png").read_bytes())
    assert len(drawn) == 4
