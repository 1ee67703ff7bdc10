# SPDX-License-Identifier: Apache-2.0
"""Stores of rows made from point clouds that are larger than memory."""
