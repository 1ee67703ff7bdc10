# SPDX-License-Identifier: Apache-2.0
"""Densification on rows that are not tensors of one device gives the same rows."""

import numpy as np
import pytest
import torch
from replaced import sources

from gs_train.densify import Adc, AdcConfig, Densifier, Mcmc, McmcConfig
from gs_train.renderers.protocol import Splats, View
from gs_train.rows.attributes import NAMES
from gs_train.rows.gaussians import Gaussians
from gs_train.rows.keys import RowKeys
from gs_train.rows.operations import RowOperations

COLUMNS = {"means": (3,), "scales": (3,), "quats": (4,), "opacities": (), "sh0": (1, 3),
           "shN": (3, 3)}  # fmt: skip


class TableRows:
    """Rows and moments as columns of one numpy table, with only what the protocol names."""

    def __init__(self, rows):
        self.device = torch.device("cpu")
        self.table = self.packed(rows)
        self.moments = np.ones_like(self.table)
        self.keys = RowKeys.numbered(len(self.table), self.device)

    @property
    def n_rows(self):
        return len(self.table)

    def packed(self, rows):
        return np.concatenate(
            [rows[name].numpy().reshape(len(rows[name]), -1) for name in NAMES], 1
        )

    def columns(self, name):
        widths = [int(np.prod(COLUMNS[other])) for other in NAMES]
        start = sum(widths[: NAMES.index(name)])
        return slice(start, start + widths[NAMES.index(name)])

    def read(self, name, ids=None):
        values = self.table[:, self.columns(name)]
        values = values if ids is None else values[ids.numpy()]
        return torch.from_numpy(values.copy()).reshape(-1, *COLUMNS[name])

    def read_rows(self, ids):
        return {name: self.read(name, ids) for name in NAMES}

    def replace(self, removed, rows=None, keys=None, labels=None):
        new = self.packed(rows)
        places = sources(self.n_rows, removed.tolist(), len(new))
        self.table = np.concatenate([self.table, new])
        self.moments = np.concatenate([self.moments, 0 * new])
        self.keys.values = torch.cat([self.keys.values, keys])
        self.permute(torch.tensor(places))

    def permute(self, order):
        self.table, self.moments = self.table[order.numpy()], self.moments[order.numpy()]
        self.keys.select(order)

    def overwrite(self, ids, rows):
        chosen = np.arange(self.n_rows) if ids is None else ids.numpy()
        for name, values in rows.items():
            self.table[chosen, self.columns(name)] = values.numpy().reshape(len(chosen), -1)

    def in_place(self, name):
        return torch.from_numpy(self.table[:, self.columns(name)])

    def zero_moments(self, ids=None, *, names=None):
        chosen = np.arange(self.n_rows) if ids is None else ids.numpy()
        for name in NAMES if names is None else names:
            self.moments[chosen, self.columns(name)] = 0


def make_rows(n):
    generator = torch.Generator().manual_seed(0)
    rows = {name: torch.randn(n, *COLUMNS[name], generator=generator) for name in NAMES}
    rows["scales"] -= 4.0
    rows["opacities"] = 3 * rows["opacities"] - 2
    return rows


def make_tensors(rows):
    model = Gaussians(rows, device="cpu", make_optimizer=torch.optim.Adam)
    for param in model.params.values():
        ones = torch.ones_like(param)
        model.optimizer.state[param] = {
            "step": torch.tensor(1.0),
            "exp_avg": ones,
            "exp_avg_sq": ones.clone(),
        }
    return model


def make_densifier(kind, n) -> Densifier:
    if kind == "adc":
        config = AdcConfig(refine_start=0, refine_every=5, reset_every=10)
        return Adc(config, scene_scale=1.0, seed=3, n_rows=n, device="cpu")
    return Mcmc(McmcConfig(refine_start=0, refine_every=5), seed=3)


def observe(densifier, step, n):
    generator = torch.Generator().manual_seed(step)
    means2d = torch.zeros(n, 2, requires_grad=True)
    means2d.grad = torch.randn(n, 2, generator=generator) * 5e-6
    densifier.observe(
        None,
        Splats(
            means2d=means2d,
            conics=torch.zeros(n, 3),
            depths=torch.zeros(n),
            radii=torch.ones(n, 2, dtype=torch.int32),
            opacities=torch.zeros(n),
            colors=torch.zeros(n, 3),
            view=View("a", torch.eye(4), torch.eye(3), 64, 48),
        ),
        batch_size=1,
    )


@pytest.mark.parametrize("kind", ["adc", "mcmc"])
def test_tables_and_tensors_get_the_same_rows_and_moments(kind):
    table = TableRows(make_rows(80))
    model = make_tensors(make_rows(80))
    rows: RowOperations
    histories = []
    for rows in (table, model):
        densifier = make_densifier(kind, 80)
        history = []
        for step in range(16):
            observe(densifier, step, rows.n_rows)
            history.append(
                densifier.after_step(
                    rows, step=step, images_before=step, images_after=step + 1, means_lr=1e-6
                )
            )
        histories.append(history)
    assert histories[0] == histories[1]
    assert sum(changed.grown for changed in histories[0]) > 5
    assert sum(changed.pruned + changed.relocated for changed in histories[0]) > 5
    assert torch.equal(table.keys.values, model.keys.values)
    for name in NAMES:
        assert torch.equal(table.read(name), model.read(name)), name
        flat = model.tensors()[f"{name}.exp_avg"].numpy().reshape(model.n_rows, -1)
        np.testing.assert_array_equal(table.moments[:, table.columns(name)], flat, err_msg=name)
