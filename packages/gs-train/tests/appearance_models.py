# SPDX-License-Identifier: Apache-2.0
"""Appearance rows in three forms that are trained and edited alike, to be compared."""

import torch
from replaced import sources

import gs_adam
from gs_train.rows.attributes import APPEARANCE, GEOMETRY, SHAPES
from gs_train.rows.gaussians import Gaussians
from gs_train.rows.host_rows import HostRows
from gs_train.rows.keys import RowKeys
from gs_train.rows.restore import InMemory, restored_tiered

RATES = {"sh0": 0.02, "shN": 0.001}
OPTIONS = {"betas": (0.9, 0.999), "eps": 1e-15}


def make_rows(n, seed=0, k=3):
    generator = torch.Generator().manual_seed(seed)
    return {
        "sh0": torch.randn(n, 1, 3, generator=generator),
        "shN": torch.randn(n, k, 3, generator=generator),
    }


def make_host(n, semantics="deferred", *, k=3, **options):
    host = HostRows(make_rows(n, k=k), semantics=semantics, device="cpu", **options)
    host.set_rates(RATES, **OPTIONS)
    return host


def restored_host(tensors, semantics):
    """Rows of the host whose tensors these were, beside a geometry of zeros."""
    n, device = len(tensors["shN"]), torch.device("cpu")
    rest = {name: torch.zeros(n, *SHAPES[name]) for name in GEOMETRY}
    rest |= RowKeys.numbered(n, device).tensors()
    return restored_tiered(InMemory({**rest, **tensors}), device=device, semantics=semantics).host


class Plain64:
    """The same rows and dense Adam in float64, as plainly as can be.

    ``rounding`` bounds what float32 adds: each time a value is written it moves by at most half a
    unit in the last place. Only rows of a step and those that are read or edited are written.
    """

    def __init__(self, rows):
        self.values = {name: values.double() for name, values in rows.items()}
        self.moments = {name: torch.zeros(2, *v.shape).double() for name, v in self.values.items()}
        self.rounding = {name: torch.zeros_like(v) for name, v in self.values.items()}
        self.count = 0

    @property
    def n_rows(self):
        return len(self.values["sh0"])

    def step(self, ids, gradients):
        self.count += 1
        beta1, beta2 = OPTIONS["betas"]
        for name, values in self.values.items():
            first, second = self.moments[name]
            gradient = torch.zeros_like(values)
            gradient[ids.long()] = gradients[name].double()
            first.lerp_(gradient, 1 - beta1)
            second.lerp_(gradient**2, 1 - beta2)
            root = (second / (1 - beta2**self.count)).sqrt() + OPTIONS["eps"]
            values -= RATES[name] / (1 - beta1**self.count) * first / root
        self.written(ids.long())

    def written(self, ids=slice(None)):
        for name, values in self.values.items():
            self.rounding[name][ids] += values[ids].abs() * 2.0**-24

    def read(self, name, ids=slice(None)):
        self.written()
        return self.values[name][ids]

    def replace(self, removed, rows=None):
        places = sources(self.n_rows, removed.tolist(), 0 if rows is None else len(rows["sh0"]))
        for name, values in (rows or {}).items():
            new = torch.zeros(len(values), *values.shape[1:]).double()
            self.values[name] = torch.cat([self.values[name], values.double()])
            self.moments[name] = torch.cat([self.moments[name], new.expand(2, *new.shape)], 1)
            self.rounding[name] = torch.cat([self.rounding[name], new])
        self.permute(torch.tensor(places, dtype=torch.int64))

    def permute(self, order):
        ids = order.long()
        for name in APPEARANCE:
            self.values[name] = self.values[name][ids]
            self.moments[name] = self.moments[name][:, ids]
            self.rounding[name] = self.rounding[name][ids]

    def overwrite(self, ids, rows):
        self.written()
        for name, values in rows.items():
            self.values[name][slice(None) if ids is None else ids.long()] = values.double()

    def zero_moments(self, ids=None, *, names=APPEARANCE):
        self.written()
        for name in names:
            self.moments[name][:, slice(None) if ids is None else ids.long()] = 0


def make_dense(n, k=3):
    """The same rows in ordinary tensors, updated densely in float32."""

    def adam(groups):
        rated = [{**group, "lr": RATES[group["name"]]} for group in groups]
        return gs_adam.HostAdam(rated, semantics="dense", **OPTIONS)

    return Gaussians(make_rows(n, k=k), device="cpu", make_optimizer=adam, names=APPEARANCE)


def some_ids(n, seed, share=0.3, dtype=torch.int32):
    chosen = torch.rand(n, generator=torch.Generator().manual_seed(seed)) < share
    return chosen.nonzero().flatten().to(dtype)


def step_host(host, ids, gradients):
    step = host.begin()
    host.worker.submit(ids, [gradients[name] for name in APPEARANCE], step=step)
    host.end(step)


def step_dense(model, ids, gradients):
    model.zero_gradients()
    for name in APPEARANCE:
        model.params[name].grad[ids.long()] = gradients[name]
    model.optimizer.step()


def k_of(rows):
    """The width of shN; no row that sleeps is read."""
    nothing = torch.arange(0, device=getattr(rows, "device", "cpu"))
    return rows.read("shN", nothing).shape[1]


def train(models, n_steps, seed, *, share=0.3):
    """Steps in which few rows have gradients; the others sleep or get the zero-gradient update."""
    for i in range(n_steps):
        ids = some_ids(models[0].n_rows, seed + i, share)
        gradients = make_rows(len(ids), seed + i, k_of(models[0]))
        for model in models:
            if isinstance(model, HostRows):
                step_host(model, ids, gradients)
            elif isinstance(model, Gaussians):
                step_dense(model, ids, gradients)
            else:
                model.step(ids, gradients)


def without_keys(tensors):
    """A model's tensors but the keys of its rows, which host rows leave to the geometry."""
    return {name: value for name, value in tensors.items() if name not in ("keys", "next_key")}


def copied(tensors):
    return {name: value.clone() for name, value in tensors.items()}


def assert_same(got, expected):
    assert got.keys() == expected.keys()
    for name in got:
        assert torch.equal(got[name], expected[name]), name


def assert_close(got, reference):
    """The bound of the exactness contract, and what storing float32 costs anyone."""
    reference.written()
    for name in APPEARANCE:
        expected = reference.values[name]
        allowed = 1e-5 * expected.abs().clamp(min=RATES[name]) + reference.rounding[name]
        assert ((got[name] - expected).abs() <= allowed).all(), name


def edit(rows, operation, seed):
    """The same random edit of whatever has row operations."""
    generator = torch.Generator().manual_seed(seed)
    n, k = rows.n_rows, k_of(rows)
    ids = some_ids(n, seed, 0.5, dtype=[torch.int32, torch.int64][seed % 2])
    if operation == "add":
        rows.replace(ids[:0], make_rows(seed % 5, seed, k))
    elif operation == "remove":
        rows.replace(ids)
    elif operation == "replace":
        rows.replace(ids, make_rows(seed % (n + 5), seed, k))
    elif operation == "permute":
        rows.permute(torch.randperm(n, generator=generator).to(ids.dtype))
    elif operation == "overwrite":
        new = make_rows(len(ids), seed, k)
        rows.overwrite(ids, {name: new[name] for name in APPEARANCE[: 1 + seed % 2]})
    elif operation == "overwrite_all":
        rows.overwrite(None, {"shN": make_rows(n, seed, k)["shN"]})
    elif operation == "zero_moments":
        rows.zero_moments(ids, names=APPEARANCE[seed % 3 :])
    else:
        rows.zero_moments()


EDITS = ["add", "remove", "replace", "permute", "overwrite", "overwrite_all",
         "zero_moments", "zero_all_moments"]  # fmt: skip
