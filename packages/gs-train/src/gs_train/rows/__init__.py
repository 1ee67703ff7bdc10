# SPDX-License-Identifier: Apache-2.0
"""The Gaussians as rows: keys, attributes, optimizer state, and the memories that they live in."""
