# SPDX-License-Identifier: Apache-2.0
"""Kinds of files that say where photographs were taken; one reader each, all with one result."""
