# SPDX-License-Identifier: Apache-2.0
"""Decoded photographs that the ranks of a host have together."""
