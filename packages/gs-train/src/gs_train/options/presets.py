# SPDX-License-Identifier: Apache-2.0
"""Where numbers live and in which order they move: the named combinations."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from gs_train.errors import InputError
from gs_train.rows.attributes import Semantics

Placement = Literal["device", "mirror", "split", "blocks"]


@dataclass(frozen=True)
class Preset:
    """One way to run the engine; what is computed is the same in all of them.

    Attributes:
        name: on the command line.
        placement: ``device``: everything is on the device. ``mirror``: parameters and gradients
            are on the device, a master copy and the moments in host memory. ``split``: geometry is
            on the device, appearance and its moments in host memory. ``blocks``: rows with their
            moments are in a store on a drive, of which parts are in host memory and on the device.
        semantics: of the appearance's optimizer, both with the result of dense Adam: ``dense``
            updates all rows every step, ``deferred`` catches up rows when they are next needed.
        order: of the views of a batch that the host updates: ``given``, or along a short path
            (``tsp``). Other batches have the canonical order, see `ViewCosts`.
        retain: rows that stay on the device within a batch: those that the ``previous`` view shares
            with the next, or all up to their ``last_use``.
        residents: rows that a batch sees are updated on the device. With placement ``split`` they
            come there with their moments and stay until others need their room; what follows says
            what becomes of batches that see more rows than there is room for. Else the host
            updates them all.
        early_cull: find rows that the next batch may see while this one renders.
        overlapped: host updates run while the device renders.
        split_share: rows of one view, as a share of the scene, above which the view is split into
            crops; None: only where memory forces it.
        single_view: a batch is one view.
    """

    name: str
    placement: Placement
    semantics: Literal["dense", "deferred"]
    order: Literal["given", "tsp"]
    retain: Literal["previous", "last_use"]
    early_cull: bool
    overlapped: bool
    split_share: float | None = None
    single_view: bool = False
    residents: bool = False

    @property
    def is_stored(self) -> bool:
        """Whether the rows are in a store on a drive, which outlasts the process."""
        return self.placement == "blocks"

    @property
    def takes_sparse(self) -> bool:
        """Whether rows that no view sees can be left alone: where all moments are on the host they
        decay in every step."""
        return self.placement != "mirror"

    def splitting_above(self, share: float) -> Preset:
        """The same with ``--mem-limit``, which concerns presets that split views by themselves."""
        return self if self.split_share is None else replace(self, split_share=share)

    def host_semantics(self, wanted: str) -> Semantics:
        """Semantics of the host optimizer when the run wants ``dense`` or ``sparse`` results."""
        return "sparse" if wanted == "sparse" else self.semantics


PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset(
            "none",
            placement="device",
            semantics="deferred",
            order="given",
            retain="previous",
            early_cull=True,
            overlapped=True,
            residents=True,
        ),
        Preset(
            "naive",
            placement="mirror",
            semantics="dense",
            order="given",
            retain="previous",
            early_cull=False,
            overlapped=False,
        ),
        Preset(
            "clm",
            placement="split",
            semantics="dense",
            order="tsp",
            retain="previous",
            early_cull=True,
            overlapped=True,
        ),
        Preset(
            "gs-scale",
            placement="split",
            semantics="deferred",
            order="given",
            retain="previous",
            early_cull=False,
            overlapped=True,
            split_share=0.3,
            single_view=True,
        ),
        Preset(
            "best",
            placement="split",
            semantics="deferred",
            order="tsp",
            retain="last_use",
            early_cull=True,
            overlapped=True,
            residents=True,
        ),
    )
}
"""The presets that ``auto`` chooses from, by name, from the simplest to the one that it falls back
to."""

NAMED: dict[str, Preset] = {
    **PRESETS,
    "tide": Preset(
        "tide",
        placement="blocks",
        semantics="deferred",
        order="given",
        retain="last_use",
        early_cull=True,
        overlapped=True,
    ),
}
"""All presets by name: also those that are taken only where they are named."""


def preset_named(name: str) -> Preset:
    """The preset of that name.

    Raises:
        InputError: there is none; ``auto`` is a choice among them, not one of them.
    """
    if name not in NAMED:
        raise InputError(f"--offload must be auto, {', '.join(NAMED)}, got {name}")
    return NAMED[name]
