# SPDX-License-Identifier: Apache-2.0
"""A scene before its first step: cameras, first Gaussians, paths."""
