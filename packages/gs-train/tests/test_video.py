# SPDX-License-Identifier: Apache-2.0
import os
import sys

import numpy as np
import pytest
from PIL import Image

from gs_train.errors import InputError
from gs_train.files.video import require_video_writer, write_frames


def frame(index, height=48, width=64):
    """A grey that tells the index, with a white left half."""
    pixels = np.full((height, width, 3), 20 * index, np.uint8)
    pixels[:, : width // 2] = 255
    return pixels


def decoded(path):
    av = pytest.importorskip("av")
    with av.open(str(path)) as container:
        return [picture.to_ndarray(format="rgb24") for picture in container.decode(video=0)]


def test_png_frames_are_numbered_and_exact(tmp_path):
    folder = tmp_path / "new" / "frames"
    assert write_frames(folder, (frame(i) / 255 for i in range(3))) == 3
    assert sorted(os.listdir(folder)) == [f"frame_0000{i}.png" for i in range(3)]
    for i in range(3):
        assert np.array_equal(np.asarray(Image.open(folder / f"frame_{i:05d}.png")), frame(i))


def test_a_shorter_sequence_replaces_a_longer_one_and_spares_other_files(tmp_path):
    write_frames(tmp_path, (frame(i) for i in range(4)))
    (tmp_path / "00002.png").write_bytes(b"mine")
    write_frames(tmp_path, (frame(i) for i in range(2)))
    assert sorted(os.listdir(tmp_path)) == ["00002.png", "frame_00000.png", "frame_00001.png"]


@pytest.mark.parametrize("target", ["frames", "a.mp4"])
def test_only_one_frame_is_asked_for_at_a_time(tmp_path, target):
    pytest.importorskip("av")
    alive = []

    class Frame(np.ndarray):
        def __del__(self):
            if self.base is None or not isinstance(self.base, Frame):
                alive.append(-1)

    def frames():
        for i in range(8):
            pixels = np.array(frame(i)).view(Frame)
            alive.append(1)
            # The one that the writer may still hold while it asks, and this one.
            assert sum(alive) <= 2
            yield pixels
            del pixels

    assert write_frames(tmp_path / target, frames()) == 8


@pytest.mark.parametrize("size", [(48, 64), (47, 63), (1, 1)])
def test_videos_hold_every_frame_even_of_odd_sizes(tmp_path, size):
    path = tmp_path / "a.mp4"
    assert write_frames(path, (frame(i, *size) for i in range(10)), fps=25) == 10
    pictures = decoded(path)
    assert len(pictures) == 10
    height, width = size
    assert pictures[0].shape == (height + height % 2, width + width % 2, 3)
    if width > 10:
        for i, picture in enumerate(pictures):
            # Lossy 4:2:0 and two colour conversions: a few grey levels away from the edges.
            assert abs(picture[4:-4, width // 2 + 6 : -4].astype(int) - 20 * i).max() <= 6
            assert picture[4:-4, 4 : width // 2 - 6].min() >= 249
    assert os.listdir(tmp_path) == ["a.mp4"]


def test_frames_of_another_size_are_fitted_into_the_first(tmp_path):
    write_frames(tmp_path / "a.mp4", [frame(0), np.full((96, 32, 3), 200, np.uint8)])
    second = decoded(tmp_path / "a.mp4")[1]
    assert second.shape == (48, 64, 3)
    assert abs(second[8:-8, 28:36].astype(int) - 200).max() <= 6
    assert second[:, :16].max() <= 10


def test_a_video_appears_only_when_it_is_complete(tmp_path):
    pytest.importorskip("av")
    path = tmp_path / "a.mp4"
    path.write_bytes(b"old")

    def failing():
        yield frame(1)
        assert path.read_bytes() == b"old"
        raise KeyError("renderer")

    with pytest.raises(KeyError):
        write_frames(path, failing())
    with pytest.raises(ValueError, match="at least one frame"):
        write_frames(path, [])
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.mp4"]


def test_without_pyav_the_remedy_is_told_before_anything_is_rendered(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(InputError, match=r"install 'gs-train\[video\]'; --to .* writes PNG"):
        require_video_writer(tmp_path / "a.mp4")

    def never():
        pytest.fail("a frame was asked for")
        yield

    with pytest.raises(InputError, match=r"gs-train\[video\]"):
        write_frames(tmp_path / "a.mp4", never())
    require_video_writer(tmp_path / "frames")
    assert os.listdir(tmp_path) == []


def test_a_pyav_without_codecs_is_told(tmp_path, monkeypatch):
    av = pytest.importorskip("av")
    monkeypatch.setattr(av, "codecs_available", set())
    with pytest.raises(InputError, match=r"H\.264 or MPEG-4, got neither"):
        require_video_writer(tmp_path / "a.mp4")


def test_mpeg4_is_used_where_there_is_no_h264(tmp_path, monkeypatch):
    av = pytest.importorskip("av")
    monkeypatch.setattr(av, "codecs_available", {"mpeg4"})
    assert write_frames(tmp_path / "a.mp4", (frame(i) for i in range(3))) == 3
    with av.open(str(tmp_path / "a.mp4")) as container:
        assert container.streams.video[0].codec_context.name == "mpeg4"
    assert len(decoded(tmp_path / "a.mp4")) == 3


def test_other_endings_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"a\.gif must end in \.mp4, or be a folder"):
        require_video_writer(tmp_path / "a.gif")
