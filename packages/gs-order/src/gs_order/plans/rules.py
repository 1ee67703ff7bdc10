# SPDX-License-Identifier: Apache-2.0
"""How rows stay on the device between two microbatches that see them."""

PREVIOUS, LAST_USE, CHOSEN = range(3)
"""To the next microbatch, to their last use, or as was chosen within a capacity.

Triton's kernels compare with the numbers: they see no globals.
"""
