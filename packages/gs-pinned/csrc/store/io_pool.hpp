// SPDX-License-Identifier: Apache-2.0
// Threads that read and write records, and the tickets of what they are asked.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "store/io_buffer.hpp"

namespace gs::pinned::store {

/// Tells when all tasks of a call are done, and whether one failed. Thread-safe.
class Ticket {
 public:
  explicit Ticket(std::size_t tasks) : left_(tasks) {}

  /// One task is done; null: well.
  void report(std::exception_ptr error);
  /// Whether all are done, after at most that time.
  bool wait(double seconds);
  /// Waits for all.
  void wait();
  /// Throws what the first task that failed threw.
  void raise();

 private:
  std::mutex mutex_;
  std::condition_variable done_;
  std::size_t left_;
  std::exception_ptr error_;
};

/// Threads start with the first task. A task gets the buffer of its thread.
class IoPool {
 public:
  using Task = std::function<void(IoBuffer& buffer)>;

  IoPool(int threads, std::size_t buffer_bytes)
      : n_threads_(threads), buffer_bytes_(buffer_bytes) {}
  IoPool(const IoPool&) = delete;
  IoPool& operator=(const IoPool&) = delete;
  ~IoPool() { finish(); }

  /// Does what was asked and ends the threads; later tasks are refused.
  void finish();

  /// Tasks begin in the order of the calls. What a task throws goes to the ticket. Throws where no
  /// thread can be had, and ClosedError after finish.
  void submit(std::shared_ptr<Ticket> ticket, Task task);

 private:
  struct Asked {
    std::shared_ptr<Ticket> ticket;
    Task task;
  };
  void start();
  void work();

  const int n_threads_;
  const std::size_t buffer_bytes_;
  std::mutex mutex_;
  std::condition_variable asked_;
  std::deque<Asked> queue_;
  bool ends_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace gs::pinned::store
