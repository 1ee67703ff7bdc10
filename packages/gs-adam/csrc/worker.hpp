// SPDX-License-Identifier: Apache-2.0
// One thread that runs row updates in an order that keeps every row's history right.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "gs/error.hpp"
#include "kernel.hpp"

namespace gs::adam {

/// A call on a worker that has been closed; RuntimeError in Python.
struct ClosedError : Error {
  using Error::Error;
};

/// A piece of work on some rows.
struct Task {
  std::int64_t step = 0;
  int priority = 0;       // higher first among tasks of one step
  bool is_update = true;  // updates of one step are disjoint; others keep the order of submission
  bool is_apart = false;  // shares no row with any task beside it: its submitter's word
  Ids rows{nullptr, nullptr, 0};
  std::function<bool()> is_ready;  // polled; empty: at once
  std::function<void()> work;
  std::shared_ptr<void> keep;  // what rows and work refer to
};

/// When a task ran.
struct Span {
  std::int64_t step;
  bool is_update;
  std::int64_t rows;
  double start_s, end_s;  // of the steady clock
};

/// Runs tasks one after the other on its own thread. A task waits for those before it that share
/// rows with it; among the others the lowest step goes first, then the highest priority. A task
/// that throws ends the worker: what is queued is dropped, and every later call throws the same.
///
/// The thread starts with the first task. In a child process after fork the queue is empty.
class Worker {
 public:
  /// `look_up` is called ten times a second by a thread that waits, without any lock; what it
  /// throws ends the waiting.
  explicit Worker(std::function<void()> look_up = {});
  ~Worker();  // cancels
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// Returns the task's ticket, from 1 on.
  std::uint64_t submit(Task task);
  /// Return when that task, all tasks, all tasks up to a step, or all tasks that share a row with
  /// `rows` are done.
  void wait(std::uint64_t ticket);
  void wait_all();
  void wait_step(std::int64_t step);
  void wait_rows(const Ids& rows);
  /// True when nothing is queued or running.
  bool is_idle() const;
  bool is_closed() const;
  /// Ends the thread after all tasks (drain) or after the one that runs. May be called again, also
  /// by several threads at once; ClosedError where one of them cancels what another one drains.
  /// From the thread itself: it goes on by itself to its end.
  void close(bool drain);
  /// Cancels, and leaves a thread behind that has not ended after so long: it ends after its task,
  /// or with the process. Calls nobody and throws nothing.
  void abandon(double seconds);
  /// What finished tasks kept, for the caller to let go of where that is safe.
  std::vector<std::shared_ptr<void>> take_finished();
  /// Throws the failure, if there is one.
  void check() const;
  /// Throws the failure, if no call has thrown it yet.
  void check_untold() const;
  /// Notes when tasks run, from now on or no longer.
  void record(bool enabled);
  /// The spans of the tasks that have run since this was last asked.
  std::vector<Span> take_spans();

 private:
  struct State;
  State& state() const;
  /// Returns whether it was cancelled before.
  bool cancel(bool drain);
  template <class HasCome>
  void wait_until(std::unique_lock<std::mutex>& lock, const HasCome& has_come);
  template <class Awaited>
  void wait_while_queued(Awaited is_awaited);

  std::function<void()> look_up_;
  mutable std::shared_ptr<State> state_;  // the thread holds it too
};

/// Whether two sorted sets share a row.
bool overlap(const Ids& a, const Ids& b);

}  // namespace gs::adam
