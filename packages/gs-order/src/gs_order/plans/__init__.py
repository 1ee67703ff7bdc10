# SPDX-License-Identifier: Apache-2.0
"""Planned batches: from a bit for each row and view to the lists of each microbatch.

    plan          checks its arguments and asks one of the makers below; the public `plan`
    checks        refuses bad arguments
    tensors       chooses the maker for torch's tensors
    cpu/          compiled loops over chunks of rows, on threads
    cuda/         Triton kernels over blocks of rows
    rules         how rows stay between microbatches
    lists, slots  the results of both makers
    steps         the result for callers, by microbatch; host_plan: ids of a plan in host memory

Imports run one way: plan -> tensors -> cuda, cpu -> lists, slots, checks, rules. The two makers do
not import each other, and give the same arrays.
"""
