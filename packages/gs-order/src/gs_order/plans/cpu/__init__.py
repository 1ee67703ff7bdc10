# SPDX-License-Identifier: Apache-2.0
"""Plans of numpy arrays: bits are transposed and counted once, then written out, on threads.

``batch`` calls the other modules in turn: ``bits`` (which rows each microbatch sees, and how many),
``belady`` (which rows do not wait, within a capacity), ``lists``, ``slots``.
"""
