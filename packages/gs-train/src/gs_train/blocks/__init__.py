# SPDX-License-Identifier: Apache-2.0
"""Rows in blocks: the partition, boxes that hold sleeping rows, and exact lists through boxes."""
