// SPDX-License-Identifier: Apache-2.0
#include "store/file_calls.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>

#include "store/errors.hpp"

namespace gs::pinned::store {
namespace {

const std::string kNone;

[[noreturn]] void fail(int code, const char* name, const std::string& path,
                       const std::string& where = "", bool is_sync = false) {
  throw FileError(code, path,
                  std::string(name) + " of " + path + where + ": " + std::strerror(code), is_sync);
}

std::string range(std::uint64_t offset, std::uint64_t bytes) {
  return " at byte " + std::to_string(offset) + " for " + std::to_string(bytes) + " bytes";
}

// Direct transfers go on at a sector's start, wherever the last one stopped.
constexpr long kSector = 512;

// What a call of the system returned, the call repeated while signals interrupt it.
template <class Call>
long answered(Call&& call) {
  for (;;) {
    const long result = static_cast<long>(call());
    if (result >= 0) return result;
    if (errno != EINTR) return -errno;
  }
}

}  // namespace

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.find_last_of('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

File& File::operator=(File&& other) noexcept {
  if (this != &other) {
    close();
    descriptor_ = std::exchange(other.descriptor_, -1);
    path_ = std::move(other.path_);
    is_direct_ = other.is_direct_;
  }
  return *this;
}

void File::close() noexcept {
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
}

long FileCalls::ask(const FileCall& call) const { return hook_ ? hook_(call) : 0; }

File FileCalls::open(const std::string& path, Mode mode, bool direct) const {
  const char* name = mode == Mode::kCreate ? "create" : "open";
  // O_NONBLOCK: a pipe in a file's place is then an error, not a wait for its other end.
  int flags = O_CLOEXEC | O_NONBLOCK | (mode == Mode::kRead ? O_RDONLY : O_RDWR);
  if (mode == Mode::kCreate) flags |= O_CREAT | O_TRUNC;
  long result = ask({name, path, kNone, 0, direct ? 1u : 0u});
#if defined(O_DIRECT)
  if (direct && result == 0) {
    result = answered([&] { return ::open(path.c_str(), flags | O_DIRECT, 0666); });
    if (result >= 0) return {static_cast<int>(result), path, true};
  }
#endif
  // EINVAL: a file system without direct transfers.
  if (result == 0 || (direct && result == -EINVAL))
    result = answered([&] { return ::open(path.c_str(), flags, 0666); });
  if (result < 0) fail(static_cast<int>(-result), name, path);
  return {static_cast<int>(result), path, false};
}

void FileCalls::read(const File& file, void* data, std::size_t bytes, std::uint64_t offset) const {
  const std::uint64_t first = offset;
  const std::size_t all = bytes;
  for (char* to = static_cast<char*>(data); bytes > 0;) {
    long done = ask({"read", file.path(), kNone, offset, bytes});
    const std::size_t most = done > 0 ? std::min(bytes, static_cast<std::size_t>(done)) : bytes;
    if (done >= 0)
      done = answered(
          [&] { return ::pread(file.descriptor(), to, most, static_cast<off_t>(offset)); });
    if (done < 0) fail(static_cast<int>(-done), "read", file.path(), range(first, all));
    if (file.is_direct()) done -= done % kSector;
    if (done == 0) fail(EIO, "read", file.path(), range(first, all) + " beyond the file's end");
    to += done;
    offset += static_cast<std::uint64_t>(done);
    bytes -= static_cast<std::size_t>(done);
  }
  if (!file.is_direct())
    ::posix_fadvise(file.descriptor(), static_cast<off_t>(first), static_cast<off_t>(all),
                    POSIX_FADV_DONTNEED);
}

void FileCalls::write(const File& file, const void* data, std::size_t bytes,
                      std::uint64_t offset) const {
  const std::uint64_t first = offset;
  const std::size_t all = bytes;
  for (const char* from = static_cast<const char*>(data); bytes > 0;) {
    long done = ask({"write", file.path(), kNone, offset, bytes, from});
    const std::size_t most = done > 0 ? std::min(bytes, static_cast<std::size_t>(done)) : bytes;
    if (done >= 0)
      done = answered(
          [&] { return ::pwrite(file.descriptor(), from, most, static_cast<off_t>(offset)); });
    if (done > 0 && file.is_direct()) done -= done % kSector;
    if (done == 0) done = -EIO;
    if (done < 0) fail(static_cast<int>(-done), "write", file.path(), range(first, all));
    from += done;
    offset += static_cast<std::uint64_t>(done);
    bytes -= static_cast<std::size_t>(done);
  }
}

void FileCalls::allocate(const File& file, std::uint64_t offset, std::uint64_t bytes) const {
  long result = ask({"allocate", file.path(), kNone, offset, bytes});
  if (result == 0)
    result = answered([&] {
      return ::fallocate(file.descriptor(), 0, static_cast<off_t>(offset),
                         static_cast<off_t>(bytes));
    });
  if (result == -EOPNOTSUPP)  // then the write meets a full disk
    result = answered(
        [&] { return ::ftruncate(file.descriptor(), static_cast<off_t>(offset + bytes)); });
  if (result < 0) fail(static_cast<int>(-result), "allocate", file.path(), range(offset, bytes));
}

void FileCalls::sync(const File& file) const {
  long result = ask({"sync", file.path(), kNone});
  if (result == 0) result = answered([&] { return ::fdatasync(file.descriptor()); });
  if (result < 0) fail(static_cast<int>(-result), "fdatasync", file.path(), "", true);
  if (!file.is_direct()) ::posix_fadvise(file.descriptor(), 0, 0, POSIX_FADV_DONTNEED);
}

std::uint64_t FileCalls::size(const File& file) const {
  struct stat status{};
  long result = ask({"size", file.path(), kNone});
  if (result == 0) result = answered([&] { return ::fstat(file.descriptor(), &status); });
  if (result < 0) fail(static_cast<int>(-result), "stat", file.path());
  return static_cast<std::uint64_t>(status.st_size);
}

void FileCalls::rename(const std::string& from, const std::string& to) const {
  long result = ask({"rename", to, from});
  if (result == 0) result = answered([&] { return ::rename(from.c_str(), to.c_str()); });
  if (result < 0) fail(static_cast<int>(-result), "rename", to);
}

void FileCalls::remove(const std::string& path) const {
  long result = ask({"remove", path, kNone});
  if (result == 0) result = answered([&] { return ::unlink(path.c_str()); });
  if (result < 0) fail(static_cast<int>(-result), "remove", path);
}

void FileCalls::make_folder(const std::string& path) const {
  long result = ask({"make_folder", path, kNone});
  if (result == 0) result = answered([&] { return ::mkdir(path.c_str(), 0777); });
  if (result < 0) fail(static_cast<int>(-result), "mkdir", path);
}

void FileCalls::sync_folder(const std::string& path) const {
  long result = ask({"sync_folder", path, kNone});
  if (result == 0) {
    result = answered([&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
    const File folder(static_cast<int>(result), path, false);
    if (folder.is_open()) result = answered([&] { return ::fsync(folder.descriptor()); });
  }
  if (result < 0) fail(static_cast<int>(-result), "fsync", path, "", true);
}

std::vector<std::string> FileCalls::names(const std::string& folder) const {
  const long answer = ask({"list", folder, kNone});
  if (answer < 0) fail(static_cast<int>(-answer), "list", folder);
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(::opendir(folder.c_str()), &::closedir);
  if (stream == nullptr) fail(errno, "list", folder);
  std::vector<std::string> result;
  for (;;) {
    errno = 0;
    const dirent* entry = ::readdir(stream.get());
    if (entry == nullptr) break;
    result.emplace_back(entry->d_name);
  }
  if (errno != 0) fail(errno, "list", folder);  // half a list would hide a snapshot
  std::sort(result.begin(), result.end());
  return result;
}

bool FileCalls::exists(const std::string& path) const {
  struct stat status{};
  long result = ask({"exists", path, kNone});
  if (result == 0) result = answered([&] { return ::stat(path.c_str(), &status); });
  if (result < 0 && result != -ENOENT) fail(static_cast<int>(-result), "stat", path);
  return result == 0;
}

bool FileCalls::lock(const File& file) const {
  long result = ask({"lock", file.path(), kNone});
  if (result == 0) result = answered([&] { return ::flock(file.descriptor(), LOCK_EX | LOCK_NB); });
  if (result < 0 && result != -EWOULDBLOCK) fail(static_cast<int>(-result), "flock", file.path());
  return result >= 0;
}

void FileCalls::unlock(const File& file) const noexcept { ::flock(file.descriptor(), LOCK_UN); }

void FileCalls::replace(const std::string& path,
                        std::initializer_list<std::string_view> parts) const {
  const std::string temporary = path + ".tmp";
  {
    const File file = open(temporary, Mode::kCreate, false);
    std::uint64_t offset = 0;
    for (const std::string_view part : parts) {
      if (!part.empty()) write(file, part.data(), part.size(), offset);
      offset += part.size();
    }
    sync(file);
  }
  rename(temporary, path);
  sync_folder(folder_of(path));
}

std::vector<char> FileCalls::contents(const std::string& path) const {
  const File file = open(path, Mode::kRead, false);
  std::vector<char> result(size(file));
  read(file, result.data(), result.size(), 0);
  return result;
}

}  // namespace gs::pinned::store
