# SPDX-License-Identifier: Apache-2.0
"""Is the store of a run what it says? Every row is looked at, without the boxes of blocks.

    PYTHONPATH=benchmarks python benchmarks/tide/large_store.py RUN --views 64

Prints one line of JSON.

``rows``        with different keys
``seen``        rows that ``views`` views see, added up, by a test of every row against each view
``missed``      of them, where blocks do not lead to the row; ``added``: the other way round
``difference``  a batch of views takes a step in blocks, and with torch's Adam over copies of all
                rows of the blocks that it may see, moments included: the largest difference of a
                value afterwards, in units of max(abs(value), rate)
``asleep``      the same of rows that the batch does not draw
``reordered``   the same as ``difference`` of torch's Adam and torch's Adam with rows in the
                opposite order: what the order of sums alone makes of gradients that nearly cancel
``given``       all batches of training views in turn, in blocks and with torch's Adam over copies
                of all rows of all blocks that they may see, with the same gradients:
                ``difference`` of these ``given_rows`` rows after ``given_steps`` steps, which drew
                ``given_drawn``

No snapshot is made, so the run stays as it is.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from gs_pinned import BlockStore
from gs_train.backends import mirror_engine
from gs_train.blocks.block_planes import MOMENTS
from gs_train.blocks.stored_rows import StoredRows
from gs_train.data import Capture
from gs_train.engine.settings import StepSettings
from gs_train.machine.interrupt import StopRequest
from gs_train.options.schedule import adam_options
from gs_train.renderers import Renderer, Rows, View
from gs_train.renderers.culling import cameras_of, cull
from gs_train.rows.attributes import APPEARANCE, GEOMETRY, NAMES
from gs_train.rows.gaussians import Gaussians
from gs_train.runs.run import Run
from gs_train.scene.scene import Scene
from gs_train.tide.engine import block_engine

_VIEWS_AT_ONCE = 32  # of one word of a mask


class Keys:
    """Numbers from 0 to n - 1, each of which may come once."""

    def __init__(self, n: int) -> None:
        self._has_come = np.zeros(n, bool)
        self._n_added = 0

    def add(self, keys: np.ndarray) -> None:
        """Raises RuntimeError where a key is out of range."""
        n = len(self._has_come)
        if len(keys) and not 0 <= keys.min() <= keys.max() < n:
            raise RuntimeError(f"keys must be from 0 to {n - 1}, got {keys.min()} to {keys.max()}")
        self._has_come[keys] = True
        self._n_added += len(keys)

    def count(self) -> int:
        """Of all that came. Raises RuntimeError where one came twice."""
        n = int(self._has_come.sum())
        if n != self._n_added:
            raise RuntimeError(f"keys must be different, got {n} in {self._n_added} rows")
        return n


def swept(rows: StoredRows, views: Sequence[View], renderer: Renderer) -> tuple[int, list[Any]]:
    """The number of rows, and for each view the sorted keys of the rows that it sees."""
    cameras, keys = cameras_of(views), Keys(len(rows))
    seen: list[list[np.ndarray]] = [[] for _ in views]
    for own, values in rows.pieces():
        keys.add(own.cpu().numpy())
        found = cull(values, cameras, renderer)
        of_piece = own[found.ids.long()].cpu().numpy()
        for k, some in enumerate(seen):
            some.append(of_piece[_bit(found.mask, k)])
    return keys.count(), [np.sort(np.concatenate(some)) for some in seen]


def _bit(mask: Tensor, k: int) -> np.ndarray:
    return ((mask[:, k // 32] >> (k % 32)) & 1).bool().cpu().numpy()


def looked(rows: StoredRows, view: View, renderer: Renderer) -> np.ndarray:
    """Sorted keys of the rows that a view sees, by way of blocks."""
    look = rows.look([view], renderer)
    keys = look.keys[torch.from_numpy(_bit(look.mask, 0)).to(look.keys.device)]
    rows.leave(look)
    return np.sort(keys.cpu().numpy())


def settings_of(run: Run, rows: StoredRows) -> StepSettings:
    """Those of a step of the run, with the rates that it began with."""
    config = run.config
    factor = adam_options(config.batch_size, scaled=config.scale_with_batch).lr_factor
    rates = {name: factor * getattr(config.lr, name) for name in NAMES}
    rates["means"] = rows.reach["means"].ceiling
    return StepSettings(config.sh_degree, rates, rows.betas, rows.eps, config.ssim_lambda)


def dense(
    rows: StoredRows, blocks: np.ndarray, settings: StepSettings, *, flipped: bool = False
) -> tuple[Tensor, Gaussians]:
    """Copies of all rows of some blocks, by torch's Adam with their moments; and their keys.

    Args:
        flipped: the last row comes first.
    """
    keys, values = (list(part) for part in zip(*rows.pieces(blocks)))
    whole = {name: torch.cat([part[name] for part in values]) for name in NAMES}

    def optimizer(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        for group in groups:
            group["lr"] = settings.rates[group["name"]]
        return torch.optim.Adam(groups, betas=settings.betas, eps=settings.eps)

    order = torch.arange(len(whole["means"]))
    order = order.flip(0) if flipped else order
    whole = {name: values[order.to(rows.device)] for name, values in whole.items()}
    model = Gaussians(whole, device=rows.device, make_optimizer=optimizer)
    planes = {name: torch.from_numpy(own) for name, own in rows.store.read(blocks).items()}
    if not torch.equal(planes["key"][:, 0], torch.cat(keys).cpu()):
        raise RuntimeError("rows must come in the order of their records")
    slept = (rows.step - planes["last_step"]).double()
    states: dict[str, Tensor] = {}
    for plane, names in (("geometry", GEOMETRY), ("appearance", APPEARANCE)):
        for moment, beta in zip(MOMENTS[1:], settings.betas, strict=True):
            table = (planes[plane + moment].double() * beta**slept).float()
            states |= _by_name(table[order], names, moment, whole)
    step = torch.tensor(float(rows.step))
    model.take(states | {f"{name}.step": step.clone() for name in NAMES})
    return torch.cat(keys)[order.to(rows.device)], model


def _by_name(
    table: Tensor, names: Sequence[str], moment: str, whole: dict[str, Tensor]
) -> dict[str, Tensor]:
    parts = table.split([whole[name][0].numel() for name in names], 1)
    return {
        f"{name}{moment}": part.reshape(whole[name].shape).contiguous()
        for name, part in zip(names, parts, strict=True)
    }


class Differences:
    """Between rows and those of a model, the largest of a value, in units of max(|value|, rate).

    Attributes:
        every: of all rows. asleep: of those without a gradient in the model.
    """

    def __init__(self) -> None:
        self.every = self.asleep = 0.0

    def add(self, values: Rows, model: Gaussians, at: Tensor, rates: Mapping[str, float]) -> None:
        """Rows that are those at ``at`` of the model."""
        for name in NAMES:
            param = model.params[name]
            theirs = param.detach()[at].reshape(len(at), -1)
            unit = theirs.abs().clamp_min(rates[name])
            worst = ((values[name].reshape(len(at), -1) - theirs).abs() / unit).amax(1)
            assert param.grad is not None
            sleeps = (param.grad[at].reshape(len(at), -1) == 0).all(1)
            self.every = max(self.every, float(worst.max()))
            self.asleep = max(self.asleep, float(torch.where(sleeps, worst, 0.0).max()))


def photographs(capture: Capture, indices: Sequence[int], device: torch.device) -> list[Tensor]:
    """(height, width, 3) uint8 of some views, which must have the sizes of the files."""
    files = [capture.folder / "images" / capture.views[i].name for i in indices]
    return [torch.from_numpy(np.array(Image.open(path))).to(device) for path in files]


def batch_difference(
    path: Path, run: Run, scene: Scene, capture: Capture, renderer: Renderer, n_slots: int
) -> dict[str, float]:
    """See the head of this file."""
    indices = list(capture.train[: run.config.batch_size])
    views = [scene.views[i] for i in indices]
    batch = list(zip(views, photographs(capture, indices, renderer.device), strict=True))
    with StoredRows.open(path, slots=n_slots, host_blocks=n_slots, device=renderer.device) as rows:
        settings = settings_of(run, rows)
        blocks = np.asarray(rows.candidates(views, renderer).ids).astype(np.int64)
        keys, model = dense(rows, blocks, settings)
        _, flipped = dense(rows, blocks, settings, flipped=True)
        engines = [mirror_engine(model, renderer), mirror_engine(flipped, renderer)]
        engines.append(block_engine(rows, renderer))
        losses = [
            float(engine.step(batch, settings, lambda ids, splats: None)) for engine in engines
        ]
        ours, theirs, place = Differences(), Differences(), keys.argsort()
        for own, values in rows.pieces(blocks):
            at = place[torch.searchsorted(keys, own, sorter=place)]
            ours.add(values, model, at, settings.rates)
    other = {name: param.detach().flip(0) for name, param in flipped.params.items()}
    theirs.add(other, model, torch.arange(len(keys), device=keys.device), settings.rates)
    return {"difference": ours.every, "asleep": ours.asleep, "reordered": theirs.every,
            "rows_of_batch": len(keys), "loss": losses[2],
            "loss_difference": abs(losses[2] - losses[0])}  # fmt: skip


def given_difference(
    path: Path, run: Run, scene: Scene, capture: Capture, renderer: Renderer, n_slots: int
) -> dict[str, float]:
    """See ``given`` at the head of this file."""
    size, train = run.config.batch_size, list(capture.train)
    batches = [train[k : k + size] for k in range(0, len(train), size)]
    found = Differences()
    with StoredRows.open(path, slots=n_slots, host_blocks=n_slots, device=renderer.device) as rows:
        settings = settings_of(run, rows)
        listed = [
            np.asarray(rows.candidates([scene.views[i] for i in batch], renderer).ids)
            for batch in batches
        ]
        blocks = np.unique(np.concatenate(listed).astype(np.int64))
        keys, model = dense(rows, blocks, settings)
        engine, place = mirror_engine(model, renderer), keys.argsort()
        is_drawn = torch.zeros(len(keys), dtype=torch.bool, device=keys.device)

        def at(own: Tensor) -> Tensor:
            return place[torch.searchsorted(keys, own, sorter=place)]

        for batch in batches:
            views = [scene.views[i] for i in batch]
            truths = photographs(capture, batch, renderer.device)
            look = rows.look(views, renderer)  # of rows as they are before the step
            engine.step(list(zip(views, truths, strict=True)), settings, lambda ids, splats: None)
            chosen, gradients = at(look.keys), {}
            for name in NAMES:
                gradient = model.params[name].grad
                assert gradient is not None
                gradients[name] = gradient[chosen]
            is_drawn[chosen] = True
            rows.update(look, gradients, settings.rates)
        for own, values in rows.pieces(blocks):
            found.add(values, model, at(own), settings.rates)
    return {"given": found.every, "given_steps": len(batches), "given_rows": len(keys),
            "given_drawn": int(is_drawn.sum())}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--views", type=int, default=64, help="evenly over all")
    parser.add_argument("--blocks", type=int, default=4096, help="in memory")
    parser.add_argument("--renderer", default="auto", help="as gs-train's")
    options = parser.parse_args()
    run = Run.open(options.run)
    renderer = run.renderer(options.renderer)
    with StopRequest() as stop:
        capture = run.capture(stop)
    scene = Scene.load(capture, renderer.device, run.frame)
    chosen = np.linspace(0, len(scene.views) - 1, min(options.views, len(scene.views)))
    views = [scene.views[i] for i in chosen.astype(np.int64).tolist()]
    store = BlockStore.open(run.store_folder, read_only=True)
    n = min(options.blocks, len(store.blocks))
    said: dict[str, Any] = {}
    with StoredRows(store, slots=n, host_blocks=n, device=renderer.device) as rows:
        started = time.perf_counter()
        said["rows"], by_rows = swept(rows, views, renderer)
        said["sweep_s"] = time.perf_counter() - started
        by_blocks = [looked(rows, view, renderer) for view in views]
    pairs = list(zip(by_rows, by_blocks, strict=True))
    said["views"], said["seen"] = len(views), sum(len(keys) for keys in by_rows)
    said["missed"] = sum(len(np.setdiff1d(a, b, assume_unique=True)) for a, b in pairs)
    said["added"] = sum(len(np.setdiff1d(b, a, assume_unique=True)) for a, b in pairs)
    said |= batch_difference(run.store_folder, run, scene, capture, renderer, n)
    said |= given_difference(run.store_folder, run, scene, capture, renderer, n)
    print(json.dumps(said))


if __name__ == "__main__":
    main()
