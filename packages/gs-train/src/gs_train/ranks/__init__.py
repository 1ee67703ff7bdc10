# SPDX-License-Identifier: Apache-2.0
"""How ranks share the views of a batch. Pure arithmetic on numbers that all ranks know."""
