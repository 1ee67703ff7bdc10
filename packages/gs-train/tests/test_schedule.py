# SPDX-License-Identifier: Apache-2.0
import math

import pytest

from gs_train.options.schedule import active_sh_degree, adam_options, means_decay


def test_the_means_rate_ends_at_one_percent_whatever_the_batch() -> None:
    assert means_decay(0, 7000) == 1.0
    assert means_decay(7000, 7000) == pytest.approx(0.01)
    # gsplat multiplies by 0.01 ** (1 / steps) after every step.
    assert means_decay(3, 100) == pytest.approx((0.01 ** (1 / 100)) ** 3)


def test_one_sh_degree_more_every_so_many_images() -> None:
    assert [active_sh_degree(i, 1000, 3) for i in (0, 999, 1000, 2500, 9000)] == [0, 0, 1, 2, 3]
    assert active_sh_degree(5, 0, 2) == 2


def test_adam_follows_the_batch_size() -> None:
    one, four = adam_options(1, scaled=True), adam_options(4, scaled=True)
    assert (one.lr_factor, one.betas, one.eps) == (1.0, (0.9, 0.999), 1e-15)
    assert four.lr_factor == 2.0
    assert four.betas == pytest.approx((0.9**4, 0.999**4))
    assert four.eps == pytest.approx(1e-15 / math.sqrt(4))
    assert adam_options(4, scaled=False) == one
