// SPDX-License-Identifier: Apache-2.0
// Signals that streams were told to wait for, so that the end of the process can release them.
#pragma once

#include <string>

namespace gs::pinned {

class Signal;

/// A stream is about to wait for the signal. Poisons it when the process is ending, so that the
/// stream does not stop. Noting it again is harmless.
void note_held_stream(Signal* signal);

/// The signal is going away.
void forget_held_streams(Signal* signal);

/// Poisons every signal of this process that has not reached a value some stream waits for.
/// `ending` says that nobody will set values any more: later waits are released as they come.
/// Asks nothing of CUDA and never blocks; also called by exit().
void release_streams(const std::string& reason, bool ending);

}  // namespace gs::pinned
