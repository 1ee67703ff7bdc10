# SPDX-License-Identifier: Apache-2.0
"""Training with rows in blocks, of which few are in memory."""
