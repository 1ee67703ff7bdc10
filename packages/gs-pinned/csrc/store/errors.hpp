// SPDX-License-Identifier: Apache-2.0
// What the store throws beside gs/error.hpp.
#pragma once

#include <string>
#include <utility>

#include "gs/error.hpp"

namespace gs::pinned::store {

/// A call of the system that failed; OSError in Python, with its errno and path.
struct FileError : Error {
  FileError(int code_, std::string path_, const std::string& text, bool is_sync_ = false)
      : Error(text), code(code_), path(std::move(path_)), is_sync(is_sync_) {}
  int code;
  std::string path;
  bool is_sync;  // what was written before may be lost
};

/// Bytes on disk that are not what the store wrote; StoreCorruptError in Python.
struct CorruptError : Error {
  using Error::Error;
};

/// A file of another version of the format, and whole; StoreVersionError in Python.
struct VersionError : CorruptError {
  using CorruptError::CorruptError;
};

/// The store was closed while it was in use; ClosedError in Python.
struct ClosedError : Error {
  using Error::Error;
};

/// The store cannot be written; StoreReadOnlyError in Python.
struct ReadOnlyError : Error {
  using Error::Error;
};

}  // namespace gs::pinned::store
