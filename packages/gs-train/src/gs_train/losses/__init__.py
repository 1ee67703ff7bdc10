# SPDX-License-Identifier: Apache-2.0
"""The training loss, and measures of how close two images are."""
