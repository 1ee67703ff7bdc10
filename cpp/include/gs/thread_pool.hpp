// SPDX-License-Identifier: Apache-2.0
// A fixed pool of threads with one operation: parallel_for.
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "gs/awaited.hpp"
#include "gs/error.hpp"
#include "gs/of_process.hpp"
#include "gs/turns.hpp"

namespace gs {

/// Runs ranges on a fixed number of threads, the calling one included.
///
/// No thread starts before the first parallel_for that needs one. Calls from several threads are
/// served one after the other, in the order in which they come. A parallel_for inside another's
/// body runs on the calling thread alone. In a child process after fork the threads are started
/// anew.
class ThreadPool {
 public:
  /// n_threads 0 means one per processor that this process may use.
  explicit ThreadPool(int n_threads = 0) : n_threads_(n_threads > 0 ? n_threads : usable_cpus()) {}
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  ~ThreadPool() { stop(); }

  int size() const { return n_threads_; }

  /// Calls body(first, last) for consecutive pieces of [begin, end) of at most `grain` items, in no
  /// order, and returns when all are done. The first exception that a piece throws is thrown here
  /// after the others have ended.
  template <class Body>
  void parallel_for(std::int64_t begin, std::int64_t end, std::int64_t grain, Body&& body) {
    if (begin >= end) return;
    grain = std::max<std::int64_t>(grain, 1);
    const std::int64_t pieces = (end - begin + grain - 1) / grain;
    const auto run_piece = [&](std::int64_t piece) {
      const std::int64_t first = begin + piece * grain;
      body(first, std::min(first + grain, end));
    };
    if (pieces == 1 || n_threads_ == 1 || inside()) {
      for (std::int64_t piece = 0; piece < pieces; ++piece) run_piece(piece);
      return;
    }
    Job job;
    job.pieces = pieces;
    job.run = run_piece;
    run(job);
  }

  /// Processors that this process may run on.
  static int usable_cpus() {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
    return std::max(1u, std::thread::hardware_concurrency());
  }

 private:
  struct Job {
    std::function<void(std::int64_t)> run;
    std::int64_t pieces = 0;
    std::atomic<std::int64_t> next{0};
    std::exception_ptr error;
    std::mutex error_mutex;

    void work() {
      for (std::int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < pieces;) {
        try {
          run(i);
        } catch (...) {
          std::lock_guard<std::mutex> lock(error_mutex);
          if (!error) error = std::current_exception();
          next.store(pieces, std::memory_order_relaxed);
        }
      }
    }
  };

  // Threads enter and leave a job by counting themselves in `entered`; a closed one lets nobody in,
  // so that its end need not wait for threads that have not woken.
  struct Shared {
    static constexpr std::uint32_t kClosed = 1u << 31;
    Awaited round;    // counts jobs: idle threads wait for the next
    Awaited entered;  // of this job, and whether it is closed
    Job* job = nullptr;
    std::atomic<bool> ends{false};
    std::vector<std::thread> threads;

    Shared() { entered.value.store(kClosed); }

    void help() {
      if ((entered.value.fetch_add(1) & kClosed) == 0) job->work();
      if (entered.value.fetch_sub(1) == (kClosed | 1u)) entered.wake(1);
    }
  };

  static bool& inside() {
    static thread_local bool flag = false;
    return flag;
  }

  void run(Job& job) {
    renew_after_fork();
    const std::lock_guard<Turns> turn(*turn_);
    if (!shared_) start();
    Shared& shared = *shared_;
    shared.job = &job;
    shared.entered.value.fetch_and(~Shared::kClosed);
    shared.round.value.fetch_add(1);
    shared.round.wake(static_cast<int>(std::min<std::int64_t>(job.pieces - 1, n_threads_ - 1)));
    inside() = true;
    job.work();
    inside() = false;
    std::uint32_t entered = shared.entered.value.fetch_or(Shared::kClosed) | Shared::kClosed;
    while (entered != Shared::kClosed) entered = shared.entered.wait(entered);
    if (job.error) std::rethrow_exception(job.error);
  }

  // The parent's locks may be held by threads that do not exist in the child, so the child leaves
  // them alone for good.
  void renew_after_fork() {
    process_.renewed([this] {
      (void)turn_.release();
      (void)shared_.release();
      turn_ = std::make_unique<Turns>();
    });
  }

  void start() {
    shared_ = std::make_unique<Shared>();
    Shared* shared = shared_.get();
    const auto help = [shared] {
      inside() = true;
      for (std::uint32_t seen = 0;;) {
        seen = shared->round.wait(seen);
        if (shared->ends.load()) return;
        shared->help();
      }
    };
    for (int i = 1; i < n_threads_; ++i) {
      try {
        shared_->threads.emplace_back(help);
      } catch (const std::system_error&) {
        return;  // of a user or a group who may have no more: these do the work as well
      }
    }
  }

  void stop() {
    renew_after_fork();
    if (!shared_) return;
    shared_->ends.store(true);
    shared_->round.value.fetch_add(1);
    shared_->round.wake(n_threads_);
    for (std::thread& thread : shared_->threads) thread.join();
  }

  const int n_threads_;
  OfProcess process_;
  // Held while one caller's job runs.
  std::unique_ptr<Turns> turn_ = std::make_unique<Turns>();
  std::unique_ptr<Shared> shared_;
};

}  // namespace gs
