# SPDX-License-Identifier: Apache-2.0
"""The viewer: scenes drawn here for pages in a browser."""
