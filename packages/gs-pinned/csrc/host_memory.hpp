// SPDX-License-Identifier: Apache-2.0
// How much host memory there is, and how much of it a process may still take.
#pragma once

#include <cstddef>
#include <string>

namespace gs::pinned {

/// Bytes of RAM of this machine.
std::size_t physical_bytes();

/// Bytes that can be committed now without swapping, as the kernel estimates them, and within the
/// limits of this process's control groups (version 2).
///
/// @param root where /proc and /sys are.
std::size_t available_bytes(const std::string& root = "");

}  // namespace gs::pinned
