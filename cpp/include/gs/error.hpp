// SPDX-License-Identifier: Apache-2.0
// The exceptions that native code throws, and the check that throws them.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace gs {

/// A value or shape that the caller got wrong; ValueError in Python.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// An argument of the wrong kind (dtype, device type); TypeError in Python.
struct KindError : Error {
  using Error::Error;
};

/// A row id outside its table; IndexError in Python.
struct RangeError : Error {
  using Error::Error;
};

/// Memory that could not be had; MemoryError in Python. The message names the bytes.
struct MemoryError : Error {
  using Error::Error;
};

/// A call of the CUDA runtime that failed, or CUDA asked of a build without it; RuntimeError in
/// Python.
struct CudaError : Error {
  using Error::Error;
};

namespace detail {
template <class E, class... Parts>
[[noreturn]] void throw_error(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw E(text.str());
}
}  // namespace detail

}  // namespace gs

/// Throws gs::Error built from the remaining arguments when the condition does not hold.
#define GS_CHECK(condition, ...)                                           \
  do {                                                                     \
    if (!(condition)) ::gs::detail::throw_error<::gs::Error>(__VA_ARGS__); \
  } while (0)

/// The same with an exception type of gs/error.hpp.
#define GS_CHECK_AS(type, condition, ...)                                 \
  do {                                                                    \
    if (!(condition)) ::gs::detail::throw_error<::gs::type>(__VA_ARGS__); \
  } while (0)
