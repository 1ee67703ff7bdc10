# SPDX-License-Identifier: Apache-2.0
"""The command line's subcommands."""
