# SPDX-License-Identifier: Apache-2.0
"""Sums of gradients, and the columns they belong to, stay in place from batch to batch."""

import pytest
import torch
from cloud import cloud_rows

from gs_train.engine.sums import BatchSums
from gs_train.rows.attributes import GEOMETRY, GEOMETRY_WIDTH, NAMES, SHAPES
from gs_train.rows.tiered import TieredGaussians

CPU = torch.device("cpu")


@pytest.mark.parametrize("width", [0, 3, 48])
def test_sums_are_apart_and_zero_at_the_beginning_of_each_batch(width: int) -> None:
    sums = BatchSums(width, CPU)
    for n_rows in (5, 5, 0, 3, 9):
        of = sums.zeros(n_rows)
        assert not of.whole.any()
        assert of.whole.numel() == n_rows * (GEOMETRY_WIDTH + width)
        assert list(of.by_attribute) == list(NAMES if width else GEOMETRY)
        for k, (name, part) in enumerate(of.by_attribute.items()):
            assert part.shape[0] == n_rows
            if name in SHAPES:
                assert part.shape[1:] == SHAPES[name]
            part.fill_(k + 1)
        values = [value for part in of.by_attribute.values() for value in part.flatten().tolist()]
        assert sorted(values) == sorted(of.whole.tolist())  # no value is in two parts


def test_batches_of_equally_many_rows_have_the_same_tensors() -> None:
    sums = BatchSums(48, CPU)
    first = sums.zeros(7)
    assert sums.zeros(7) is first
    assert sums.zeros(6) is not first
    assert sums.n_bytes == BatchSums.bytes(7, 48)
    sums.release()
    assert sums.n_bytes == 0
    assert len(sums.zeros(7).appearance) == 7


def test_columns_are_the_same_tensors_until_rows_come_or_go() -> None:
    model = TieredGaussians(cloud_rows(20), device="cpu", semantics="deferred", home="device")
    geometry = model.geometry
    before = geometry.columns
    assert geometry.columns is before
    model.in_place("means").add_(1.0)
    assert torch.equal(before["means"], geometry.params["means"])
    model.replace(torch.tensor([3], dtype=torch.int32))
    after = geometry.columns
    assert {len(column) for column in after.values()} == {19}
    for name, param in geometry.params.items():
        assert after[name].data_ptr() == param.data_ptr()
        assert not after[name].requires_grad
