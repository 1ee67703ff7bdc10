# SPDX-License-Identifier: Apache-2.0
"""Schedules of published systems: rows that come for a batch and are updated by the host."""
