# SPDX-License-Identifier: Apache-2.0
"""Training with rows in more than one memory: presets, what they need, and the engine."""
