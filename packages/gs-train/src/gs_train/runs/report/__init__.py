# SPDX-License-Identifier: Apache-2.0
"""``report.html``: what a run reached, in one file that needs no network."""
