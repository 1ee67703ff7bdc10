// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>
#include <unistd.h>

#include "bindings/arguments.hpp"

namespace gs::adam {
namespace {

/// Asks for large pages where [address, address + bytes) has not been touched yet: rows far apart
/// otherwise each cost a walk through the page tables. A hint, not every kernel has them.
void prefer_huge_pages(std::uintptr_t address, std::size_t bytes) {
#if defined(MADV_HUGEPAGE)
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const std::uintptr_t begin = (address + page - 1) / page * page;
  const std::uintptr_t end = (address + bytes) / page * page;
  if (begin < end) (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#else
  (void)address;
  (void)bytes;
#endif
}

}  // namespace

void register_memory(py::module_& module) {
  module.def("prefer_huge_pages", &prefer_huge_pages, py::arg("address"), py::arg("bytes"));
}

}  // namespace gs::adam
