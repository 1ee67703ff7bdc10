# SPDX-License-Identifier: Apache-2.0
"""A differentiable rasterizer for the CPU, compiled by numba on first use.

Importing this package imports numba; importing ``gs_train`` does not.
"""

from gs_train.renderers.cpu.renderer import CpuRenderer

__all__ = ["CpuRenderer"]
