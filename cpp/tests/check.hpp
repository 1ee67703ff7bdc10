// SPDX-License-Identifier: Apache-2.0
// The two macros that the tests here need.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

#define CHECK(condition)                                                            \
  do {                                                                              \
    if (!(condition)) {                                                             \
      std::fprintf(stderr, "%s:%d: %s is false\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                                 \
    }                                                                               \
  } while (0)

/// The statement throws `type` with `text` somewhere in its message.
#define CHECK_THROWS(type, text, statement)                               \
  do {                                                                    \
    bool thrown = false;                                                  \
    try {                                                                 \
      statement;                                                          \
    } catch (const type& error) {                                         \
      thrown = std::string(error.what()).find(text) != std::string::npos; \
    }                                                                     \
    CHECK(thrown);                                                        \
  } while (0)
