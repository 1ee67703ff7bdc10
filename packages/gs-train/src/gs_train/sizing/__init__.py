# SPDX-License-Identifier: Apache-2.0
"""What fits into the memory there is, how fast it will be, and what to choose."""
