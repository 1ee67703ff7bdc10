// SPDX-License-Identifier: Apache-2.0
#include "host_memory.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <optional>

namespace gs::pinned {
namespace {

constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();

// The number after a name at the beginning of a line.
std::optional<std::size_t> number_named(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  std::string word;
  std::size_t value = 0;
  while (file >> word) {
    if (word == name && file >> value) return value;
    file.clear();
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return std::nullopt;
}

std::optional<std::size_t> only_number(const std::string& path) {
  std::ifstream file(path);
  std::size_t value = 0;
  if (file >> value) return value;  // no limit is the word "max"
  return std::nullopt;
}

// What a control group's limit leaves. Files that it has in the page cache make way when asked.
std::size_t left_in(const std::string& group) {
  const auto limit = only_number(group + "/memory.max");
  const auto used = only_number(group + "/memory.current");
  if (!limit || !used) return kNoLimit;
  const std::string stat = group + "/memory.stat";
  const std::size_t cached = number_named(stat, "inactive_file").value_or(0) +
                             number_named(stat, "active_file").value_or(0);
  const std::size_t kept = *used - std::min(*used, cached);
  return *limit - std::min(*limit, kept);
}

// This process's group below the mount point: "/" where it is a container's own.
std::string own_group(const std::string& root) {
  std::ifstream file(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line))
    if (line.rfind("0::", 0) == 0) return line.substr(3);
  return "/";
}

}  // namespace

std::size_t physical_bytes() {
  return static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) *
         static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

std::size_t available_bytes(const std::string& root) {
  const auto kib = number_named(root + "/proc/meminfo", "MemAvailable:");
  std::size_t available = kib ? *kib * 1024 : physical_bytes();
  std::string group = own_group(root);
  while (true) {  // limits of the groups around it hold as well
    available = std::min(available, left_in(root + "/sys/fs/cgroup" + group));
    if (group.empty() || group == "/") return available;
    group.resize(group.rfind('/'));
  }
}

}  // namespace gs::pinned
