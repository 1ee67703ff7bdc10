// SPDX-License-Identifier: Apache-2.0
// Every call of the system that the store makes, in one place that tests can listen to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace gs::pinned::store {

/// A call that is about to be made.
struct FileCall {
  const char* name;          // "open", "read", "write", "allocate", "sync", "rename", ...
  const std::string& path;   // or where a rename leads
  const std::string& from;   // of a rename; else empty
  std::uint64_t offset = 0;  // of bytes read, written or allocated
  std::size_t bytes = 0;
  const void* data = nullptr;  // of a write
};

/// May answer a call in the system's place: 0 lets the call go on; -errno fails the call; n > 0
/// makes at most n bytes of a read or write.
using FileHook = std::function<long(const FileCall&)>;

/// A file descriptor and its path. Closes itself.
class File {
 public:
  File() = default;
  File(int descriptor, std::string path, bool is_direct)
      : descriptor_(descriptor), path_(std::move(path)), is_direct_(is_direct) {}
  File(File&& other) noexcept { *this = std::move(other); }
  File& operator=(File&& other) noexcept;
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() { close(); }

  void close() noexcept;
  bool is_open() const { return descriptor_ >= 0; }
  int descriptor() const { return descriptor_; }
  const std::string& path() const { return path_; }
  /// Whether transfers pass the page cache by.
  bool is_direct() const { return is_direct_; }

 private:
  int descriptor_ = -1;
  std::string path_;
  bool is_direct_ = false;
};

/// The folder that a path lies in.
std::string folder_of(const std::string& path);

/// The calls. All throw FileError, repeat what a signal interrupted, and go on after short reads
/// and writes. Thread-safe.
class FileCalls {
 public:
  enum class Mode { kRead, kWrite, kCreate };  // kCreate: for writing, empty

  explicit FileCalls(FileHook hook = nullptr) : hook_(std::move(hook)) {}

  /// `direct`: past the page cache where the file system can.
  File open(const std::string& path, Mode mode, bool direct) const;
  /// Fills `data`, or throws: a file that ends before is an error (EIO).
  void read(const File& file, void* data, std::size_t bytes, std::uint64_t offset) const;
  void write(const File& file, const void* data, std::size_t bytes, std::uint64_t offset) const;
  /// Disk space for a range, beyond the file's end too.
  void allocate(const File& file, std::uint64_t offset, std::uint64_t bytes) const;
  void sync(const File& file) const;
  std::uint64_t size(const File& file) const;
  void rename(const std::string& from, const std::string& to) const;
  void remove(const std::string& path) const;
  void make_folder(const std::string& path) const;
  void sync_folder(const std::string& path) const;
  std::vector<std::string> names(const std::string& folder) const;
  bool exists(const std::string& path) const;
  /// False when another has the lock.
  bool lock(const File& file) const;
  /// Closing the file is not enough: a child process that was forked may still have it open.
  void unlock(const File& file) const noexcept;

  /// A whole file, part after part, that is there after a power cut, or not at all: `path`.tmp,
  /// synced and renamed.
  void replace(const std::string& path, std::initializer_list<std::string_view> parts) const;
  std::vector<char> contents(const std::string& path) const;

 private:
  long ask(const FileCall& call) const;
  const FileHook hook_;
};

}  // namespace gs::pinned::store
