# SPDX-License-Identifier: Apache-2.0
"""Which 3D Gaussians each view sees, before rendering."""

from gs_cull._core import CudaError, __version__, build_info
from gs_cull.blocks import Blocks
from gs_cull.cull import cull, visible_ids, visible_mask
from gs_cull.mark import mark
from gs_cull.options import Inflate, Rules
from gs_cull.resident import ResidentBlocks
from gs_cull.split import Split, balanced_split
from gs_cull.views import Views
from gs_cull.visibility import Visibility

__all__ = [
    "Blocks",
    "CudaError",
    "Inflate",
    "ResidentBlocks",
    "Rules",
    "Split",
    "Views",
    "Visibility",
    "__version__",
    "balanced_split",
    "build_info",
    "cull",
    "mark",
    "visible_ids",
    "visible_mask",
]
