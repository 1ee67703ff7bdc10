# SPDX-License-Identifier: Apache-2.0
"""Training with rows in more than one memory: the step, and the placements of its rows."""
