# SPDX-License-Identifier: Apache-2.0
"""What the tracks of a reconstruction say of it: which image observes which point, and where."""
