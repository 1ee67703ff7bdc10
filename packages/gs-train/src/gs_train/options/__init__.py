# SPDX-License-Identifier: Apache-2.0
"""What a run is told: options, presets, schedules and limits."""
