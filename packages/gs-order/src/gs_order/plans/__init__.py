# SPDX-License-Identifier: Apache-2.0
"""Batches, planned: from bits that say which view sees which row to the lists of each microbatch.

    plan          checks its arguments and asks one of the makers below; the public `plan`
    checks        what it refuses
    tensors       which maker serves torch's tensors
    cpu/          compiled loops over chunks of rows, on threads
    cuda/         Triton kernels over blocks of rows
    rules         how rows stay between microbatches
    lists, slots  what both makers return
    steps         what callers get, microbatch by microbatch; host_plan: its ids in host memory

Imports run one way: plan -> tensors -> cuda, cpu -> lists, slots, checks, rules. The two makers do
not import each other, and give the same arrays.
"""
