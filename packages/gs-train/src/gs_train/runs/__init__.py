# SPDX-License-Identifier: Apache-2.0
"""A run from its options to its metrics."""
