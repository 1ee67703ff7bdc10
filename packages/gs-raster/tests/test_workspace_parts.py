# SPDX-License-Identifier: Apache-2.0
"""Where the arrays of a drawing lie in its workspace: those that live together, apart."""

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from gs_raster.cuda.workspace import Parts, rounded

SIZES = st.integers(0, 1 << 20).map(rounded)

TOGETHER = {
    "sorting": ("sort", "lists"),
    "blending": ("pixels", "image", "lists"),
    "the loss": ("gradient", "pixels", "image", "lists"),
    "backward": ("gradient", "pixels", "slots", "lists"),
}


@settings(deadline=None)
@given(sort=SIZES, image=SIZES, holds=st.booleans(), pixels=SIZES, slots=SIZES, lists=SIZES)
def test_arrays_that_live_together_lie_apart(
    sort: int, image: int, holds: bool, pixels: int, slots: int, lists: int
) -> None:
    asked = {"sort": sort, "image": image, "pixels": pixels, "slots": slots, "lists": lists}
    asked["gradient"] = image if holds else 0
    parts = Parts.of(**asked)
    taken = {name: getattr(parts, name) for name in asked}
    for name, n_bytes in asked.items():
        assert taken[name][1] >= n_bytes
    for names in TOGETHER.values():
        for a, b in combinations(names, 2):
            (begin_a, n_a), (begin_b, n_b) = taken[a], taken[b]
            assert begin_a + n_a <= begin_b or begin_b + n_b <= begin_a, (a, b)
        assert all(0 <= sum(taken[name]) <= parts.n_bytes for name in names)
    # No more than the fullest moment takes, with the larger of image and slots.
    least = asked["gradient"] + pixels + max(image, slots)
    assert parts.n_bytes == lists + max(sort, least)


def test_images_and_what_is_sorted_stay_where_they_are_whatever_the_room() -> None:
    images = {"image": 1024, "gradient": 1024, "pixels": 512}
    one = Parts.of(**images, sort=512, slots=256, lists=256)
    other = Parts.of(**images, sort=4096, slots=8192, lists=2048)
    assert (one.gradient, one.image, one.pixels) == (other.gradient, other.image, other.pixels)
    assert one.sort[0] == other.sort[0] == 0
