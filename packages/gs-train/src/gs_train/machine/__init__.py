# SPDX-License-Identifier: Apache-2.0
"""The machine that a process runs on: its memory, streams, threads, terminal and interrupts."""
