# SPDX-License-Identifier: Apache-2.0
"""How ranks share the views of a batch: turns, cuts, and the exchange of splats."""
