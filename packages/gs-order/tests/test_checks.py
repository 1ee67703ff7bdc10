# SPDX-License-Identifier: Apache-2.0
"""Objects of another kind than an argument's get one line that names the argument."""

from typing import Any

import numpy as np
import pytest
import torch

import gs_order

IDS, MASK = np.arange(3, dtype="i4"), np.array([[1], [3], [2]], "u4")
CAMERAS = np.eye(3)
WRONG = [object(), "x", 1.5j, {}, [[1], [2, 3]], np.zeros((2, 2))]


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda wrong: gs_order.and_counts(MASK, n_views=wrong), "n_views"),
        (lambda wrong: gs_order.estimate_xor_counts(wrong, MASK), "ids"),
        (lambda wrong: gs_order.estimate_xor_counts(IDS, MASK, rate=wrong), "rate"),
        (lambda wrong: gs_order.order(MASK, n_views=wrong), "n_views"),
        (lambda wrong: gs_order.order(MASK, start=wrong), "start"),
        (lambda wrong: gs_order.order(MASK, seed=wrong), "seed"),
        (lambda wrong: gs_order.order(MASK, method=wrong), "method"),
        (lambda wrong: gs_order.order(MASK, objective=wrong), "objective"),
        (lambda wrong: gs_order.order(MASK, max_iterations=wrong), "max_iterations"),
        (lambda wrong: gs_order.order(MASK, time_limit_s=wrong), "time_limit_s"),
        (lambda wrong: gs_order.order(counts=wrong, method="count"), "counts"),
        (lambda wrong: gs_order.plan(IDS, MASK, wrong), "order"),
        (lambda wrong: gs_order.plan(IDS, MASK, [0, 1], ahead=wrong), "ahead"),
        (lambda wrong: gs_order.plan(IDS, MASK, [0, 1], retain=wrong), "retain"),
        (lambda wrong: gs_order.plan(IDS, MASK, [0, 1])[wrong], "microbatch"),
        (lambda wrong: gs_order.simulate(wrong), "visibilities"),
        (lambda wrong: gs_order.simulate([(IDS, MASK)], model=wrong), "model"),
        (lambda wrong: gs_order.trajectory(wrong), "cameras"),
        (lambda wrong: gs_order.trajectory(CAMERAS, seed=wrong), "seed"),
        (lambda wrong: gs_order.trajectory(CAMERAS, direction_weight=wrong), "direction_weight"),
        (lambda wrong: gs_order.ViewSampler(wrong), "n_views"),
        (lambda wrong: gs_order.ViewSampler(3, wrong), "batch_size"),
        (lambda wrong: gs_order.ViewSampler(3).batch(wrong), "step"),
        (lambda wrong: gs_order.CostModel(row_bytes=wrong), "row_bytes"),
        (lambda wrong: gs_order.CostModel().cost(wrong, [1], [1]), "loaded"),
        (lambda wrong: gs_order.CachePlan([IDS], wrong), "capacity"),
        (lambda wrong: gs_order.CachePlan([IDS], 3)[wrong], "step"),
    ],
)
def test_a_wrong_kind_is_named_in_one_line(call: Any, argument: str) -> None:
    for wrong in WRONG:
        with pytest.raises((TypeError, ValueError), match=rf"^{argument}\b.* must .*") as caught:
            call(wrong)
        assert "\n" not in str(caught.value)


def test_a_sparse_mask_is_refused() -> None:
    mask = torch.ones(3, 1, dtype=torch.int32).to_sparse()
    with pytest.raises(TypeError, match=r"mask must be a dense tensor, got layout torch\.sparse"):
        gs_order.and_counts(mask)


def test_a_mapping_is_no_sequence_of_cameras() -> None:
    batches = [(np.arange(2, dtype=np.int32), np.ones((2, 1), np.uint32))]
    with pytest.raises(TypeError, match="cameras must be a sequence, got"):
        gs_order.simulate(batches, orders=["camera"], cameras={"x": 1})
