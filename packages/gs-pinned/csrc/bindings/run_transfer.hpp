// SPDX-License-Identifier: Apache-2.0
// A prepared transfer, checked and run: on the host, by kernels, by copy engines or staged.
#pragma once

#include <cstdint>
#include <vector>

#include "bindings/row_arguments.hpp"
#include "gs/cuda/stream_view.hpp"
#include "transfer.hpp"

namespace gs::pinned {

struct Options {
  cuda::StreamView stream;
  int max_blocks;
  bool checked;
  bool copy_engine;  // for dense copies
};

/// What a caller calls the ids of a transfer.
struct Names {
  const char* whole = "ids";
  const char* parts = "slots";
};

/// Checks the ids, moves the rows and returns when done.
void run_on_host(const Transfer& transfer, const Names& names);

/// Enqueues the transfer. Faults of earlier transfers are the caller's to raise, before the first
/// of several.
void run_on_device(const Transfer& transfer, const Rows& rows, int device, const Options& options,
                   const Names& names);

#if defined(GS_WITH_CUDA)

/// Whether kernels on the device can read these rows where they are.
bool is_visible(const Rows& rows, int device);

/// Ids of the device, in the host's memory once the stream has passed; empty where there are none.
std::vector<char> copy_of(const Ids& ids, std::int64_t n, cuda::StreamView stream);

/// In checked mode the ids are looked at on the host, which waits for the stream.
void check_for_device(const Transfer& transfer, int device, const Options& options,
                      const Names& names);

#endif

}  // namespace gs::pinned
