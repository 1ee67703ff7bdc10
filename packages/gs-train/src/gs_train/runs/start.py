# SPDX-License-Identifier: Apache-2.0
"""What a run begins with, and how that comes to memory or to a store."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from gs_train.clouds.first_store import first_store, n_first_rows
from gs_train.clouds.stored_splats import stored_splats
from gs_train.machine.interrupt import StopRequest
from gs_train.options.config import FitConfig
from gs_train.renderers import Rows
from gs_train.rows.keys import RowKeys
from gs_train.scene.first_splats import FirstSplats
from gs_train.scene.scene import Scene


@dataclass(frozen=True)
class RunStart:
    """Points, or Gaussians.

    Attributes:
        config: of the run.
        scene: of the run, with the points of the reconstruction.
        splats: of ``--init``; None: it names points, or nothing.
        stop: looked at now and then.
    """

    config: FitConfig
    scene: Scene
    splats: FirstSplats | None
    stop: StopRequest

    def n_streamed(self) -> int | None:
        """Rows, at most, of a store that is made piece by piece; None: rows come to memory.

        Raises:
            InputError: ``--init`` cannot be used.
        """
        if not self.config.is_stored or self.config.init is None:
            return None
        if self.splats is not None:
            return self.splats.n_rows
        return n_first_rows(self.config, self.config.init)

    def in_memory(self) -> tuple[Rows, RowKeys | None]:
        """All rows, and their keys; None: a row's key is its index.

        Raises:
            InputError: what they come from cannot be used.
            Interrupted: a stop was asked for.
        """
        if self.splats is not None:
            return self.splats.in_memory(self.config, self.stop)
        return self.scene.initial_rows(self.config, self.stop), None

    def into_store(self, memory: int) -> Callable[..., object]:
        """What makes the store in so many bytes; see
        :attr:`gs_train.tide.store_use.StoreUse.cloud`."""
        if self.splats is not None:
            return functools.partial(stored_splats, self.splats, memory=memory, stop=self.stop)
        path = self.config.init
        assert path is not None
        return functools.partial(
            first_store, self.scene, self.config, path, memory=memory, stop=self.stop
        )
