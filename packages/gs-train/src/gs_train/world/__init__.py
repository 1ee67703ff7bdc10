# SPDX-License-Identifier: Apache-2.0
"""The ranks of a run: processes, each with its own device, that train one scene together."""

from gs_train.world.alone import Alone
from gs_train.world.entry import joined
from gs_train.world.failure import DisagreementError, RankFailedError, ToldError
from gs_train.world.protocol import Pending, World
from gs_train.world.shared_stop import SharedStop

__all__ = [
    "Alone",
    "DisagreementError",
    "Pending",
    "RankFailedError",
    "SharedStop",
    "ToldError",
    "World",
    "joined",
]
