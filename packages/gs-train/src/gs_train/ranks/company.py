# SPDX-License-Identifier: Apache-2.0
"""The ranks that share rows, seen from one of these."""

from __future__ import annotations

from typing import TypeAlias

from gs_train.world.protocol import World

Company: TypeAlias = World
