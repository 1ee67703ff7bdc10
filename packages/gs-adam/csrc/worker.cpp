// SPDX-License-Identifier: Apache-2.0
#include "worker.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "gs/error.hpp"

namespace gs::adam {
namespace {

using Clock = std::chrono::steady_clock;

// A task that becomes ready soon is met without a sleep; after that the thread looks now and then.
constexpr auto kSpin = std::chrono::microseconds(50);
constexpr auto kLook = std::chrono::microseconds(20);

std::int64_t id_at(const Ids& ids, std::int64_t i) {
  if (ids.narrow != nullptr) return ids.narrow[i];
  return ids.wide != nullptr ? ids.wide[i] : i;
}

/// First position from `start` on whose id is not below `row`, by doubling steps.
std::int64_t gallop(const Ids& ids, std::int64_t start, std::int64_t row) {
  std::int64_t step = 1, low = start;
  while (low + step < ids.size && id_at(ids, low + step) < row) {
    low += step;
    step *= 2;
  }
  std::int64_t high = std::min(low + step, ids.size);
  while (low < high) {
    const std::int64_t middle = (low + high) / 2;
    if (id_at(ids, middle) < row)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

}  // namespace

bool overlap(const Ids& a, const Ids& b) {
  for (std::int64_t i = 0, j = 0; i < a.size && j < b.size;) {
    const std::int64_t x = id_at(a, i), y = id_at(b, j);
    if (x == y) return true;
    if (x < y)
      i = gallop(a, i, y);
    else
      j = gallop(b, j, x);
  }
  return false;
}

struct Worker::State {
  struct Queued {
    std::uint64_t ticket;
    Task task;
    std::map<std::uint64_t, bool> shares;  // by the other's ticket; only the thread asks
  };
  using Pointer = std::shared_ptr<Queued>;

  const pid_t pid = getpid();
  std::uint64_t first_ticket = 1;
  mutable std::mutex mutex;
  std::condition_variable wake, done;
  std::vector<Pointer> queue;  // the running task included, in the order of preference
  std::vector<std::shared_ptr<void>> finished;
  std::uint64_t next_ticket = 1;
  std::atomic<std::uint64_t> submitted{0};
  bool closing = false;
  bool cancelled = false;
  std::vector<Pointer> dropped;  // had not run when the worker was cancelled; rows no longer there
  std::exception_ptr failure;
  bool failure_is_told = false;  // some call has thrown it
  bool has_ended = false;        // the thread, but for leaving
  bool is_left_behind = false;   // nobody waits for its end any more
  std::atomic<bool> recording{false};
  std::vector<Span> spans;
  std::thread thread;         // until somebody waits for its end, who takes it
  std::thread::id thread_id;  // of none before the first task

  static bool is_preferred(const Pointer& a, const Pointer& b) {
    if (a->task.step != b->task.step) return a->task.step < b->task.step;
    if (a->task.priority != b->task.priority) return a->task.priority > b->task.priority;
    return a->ticket < b->ticket;
  }

  static bool must_wait_for(Queued& task, const Queued& other) {
    if (task.task.is_apart || other.task.is_apart) return false;
    if (other.task.step > task.task.step) return false;
    if (other.task.step == task.task.step) {
      if (other.ticket >= task.ticket) return false;
      if (other.task.is_update && task.task.is_update) return false;
    }
    const auto known = task.shares.find(other.ticket);
    if (known != task.shares.end()) return known->second;
    const bool shares = overlap(task.task.rows, other.task.rows);
    task.shares.emplace(other.ticket, shares);
    return shares;
  }

  /// The task to run now, or null. Runs without the lock: only this thread removes tasks.
  static Pointer pick(const std::vector<Pointer>& queued) {
    for (const Pointer& task : queued) {
      const bool waits = std::any_of(queued.begin(), queued.end(), [&](const Pointer& other) {
        return other != task && must_wait_for(*task, *other);
      });
      if (!waits && (!task->task.is_ready || task->task.is_ready())) return task;
    }
    return nullptr;
  }

  void throw_failure() {
    if (!failure) return;
    failure_is_told = true;
    std::rethrow_exception(failure);
  }

  bool is_this_thread() const { return thread_id == std::this_thread::get_id(); }
  bool has_begun() const { return thread_id != std::thread::id(); }

  bool is_cancelled() const {
    const std::lock_guard<std::mutex> lock(mutex);
    return cancelled;
  }

  void remove(const Pointer& task) {
    finished.push_back(std::move(task->task.keep));
    queue.erase(std::find(queue.begin(), queue.end(), task));
  }

  void note(const Task& task, Clock::time_point started) {
    const auto seconds = [](Clock::time_point at) {
      return std::chrono::duration<double>(at.time_since_epoch()).count();
    };
    spans.push_back(
        Span{task.step, task.is_update, task.rows.size, seconds(started), seconds(Clock::now())});
  }

  void drop_all() {
    for (const Pointer& task : queue) finished.push_back(std::move(task->task.keep));
    dropped.insert(dropped.end(), queue.begin(), queue.end());
    queue.clear();
  }

  /// Says that the thread has ended, in whatever way it leaves.
  struct AtEnd {
    State& state;
    ~AtEnd() {
      const std::lock_guard<std::mutex> lock(state.mutex);
      state.has_ended = true;
      state.done.notify_all();
    }
  };

  void run() {
    const AtEnd at_end{*this};
    std::unique_lock<std::mutex> lock(mutex);
    Clock::time_point looking_since = Clock::now();
    for (;;) {
      if (queue.empty()) {
        // Tasks often come in quick succession.
        const Clock::time_point idle_since = Clock::now();
        const std::uint64_t seen = submitted;
        lock.unlock();
        while (submitted == seen && Clock::now() - idle_since < kSpin) std::this_thread::yield();
        lock.lock();
        wake.wait(lock, [&] { return closing || !queue.empty(); });
        looking_since = Clock::now();
      }
      if (cancelled || queue.empty()) break;
      const std::vector<Pointer> queued = queue;
      lock.unlock();
      Pointer task;
      Clock::time_point started;
      std::exception_ptr thrown;
      try {
        task = pick(queued);
        // What said that it is ready may have taken long.
        if (task && is_cancelled()) task = nullptr;
        started = Clock::now();
        if (task) task->task.work();
      } catch (...) {
        thrown = std::current_exception();
      }
      const bool worked = task != nullptr || thrown;
      if (!worked && Clock::now() - looking_since < kSpin) std::this_thread::yield();
      lock.lock();
      if (thrown) {
        failure = thrown;
        drop_all();
        done.notify_all();
        return;
      }
      if (worked) {
        if (recording) note(task->task, started);
        remove(task);
        done.notify_all();
        looking_since = Clock::now();
      } else if (Clock::now() - looking_since >= kSpin) {
        const std::size_t known = queue.size();
        wake.wait_for(lock, kLook, [&] { return cancelled || queue.size() != known; });
      }
    }
    drop_all();
    done.notify_all();
  }
};

Worker::Worker(std::function<void()> look_up)
    : look_up_(std::move(look_up)), state_(std::make_shared<State>()) {}

Worker::~Worker() {
  look_up_ = nullptr;  // nothing may throw here
  close(false);
}

Worker::State& Worker::state() const {
  if (state_->pid != getpid()) {
    // The parent's thread does not exist here and may have held the lock: leave both alone.
    const State* parents = (new std::shared_ptr<State>(state_))->get();
    state_ = std::make_shared<State>();
    state_->first_ticket = state_->next_ticket = parents->next_ticket;
    state_->closing = parents->closing;
  }
  return *state_;
}

std::uint64_t Worker::submit(Task task) {
  State& s = state();
  const std::lock_guard<std::mutex> lock(s.mutex);
  s.throw_failure();
  GS_CHECK_AS(adam::ClosedError, !s.closing, "worker must be open, got a task after close()");
  auto queued = std::make_shared<State::Queued>();
  queued->ticket = s.next_ticket;
  queued->task = std::move(task);
  // Where the system has no thread left there is no task either.
  if (!s.has_begun()) {
    s.thread = std::thread([state = state_] { state->run(); });
    s.thread_id = s.thread.get_id();
  }
  s.queue.insert(std::upper_bound(s.queue.begin(), s.queue.end(), queued, &State::is_preferred),
                 queued);
  ++s.next_ticket;
  ++s.submitted;
  s.wake.notify_all();
  return queued->ticket;
}

template <class HasCome>
void Worker::wait_until(std::unique_lock<std::mutex>& lock, const HasCome& has_come) {
  while (!state().done.wait_for(lock, std::chrono::milliseconds(100), has_come)) {
    if (!look_up_) continue;
    lock.unlock();
    look_up_();
    lock.lock();
  }
}

template <class Awaited>
void Worker::wait_while_queued(Awaited is_awaited) {
  State& s = state();
  std::unique_lock<std::mutex> lock(s.mutex);
  const auto has_come = [&] {
    return s.failure || std::none_of(s.queue.begin(), s.queue.end(),
                                     [&](const State::Pointer& task) { return is_awaited(*task); });
  };
  GS_CHECK(
      has_come() || !s.is_this_thread(),
      "wait must be called from another thread than the worker's, got one that waits for itself");
  wait_until(lock, has_come);
  s.throw_failure();
  GS_CHECK_AS(adam::ClosedError,
              std::none_of(s.dropped.begin(), s.dropped.end(),
                           [&](const State::Pointer& task) { return is_awaited(*task); }),
              "worker must be open, got closed before all tasks had run");
}

void Worker::wait(std::uint64_t ticket) {
  const State& s = state();
  {
    const std::lock_guard<std::mutex> lock(s.mutex);
    GS_CHECK(ticket > 0 && ticket < s.next_ticket, "ticket must be one that submit returned, got ",
             ticket);
    GS_CHECK(ticket >= s.first_ticket, "ticket must be of this process, got ", ticket,
             " from before fork");
  }
  wait_while_queued([ticket](const State::Queued& task) { return task.ticket == ticket; });
}

void Worker::wait_all() {
  wait_while_queued([](const State::Queued&) { return true; });
}

void Worker::wait_step(std::int64_t step) {
  wait_while_queued([step](const State::Queued& task) { return task.task.step <= step; });
}

void Worker::wait_rows(const Ids& rows) {
  std::vector<std::uint64_t> tickets;
  {
    State& s = state();
    const std::lock_guard<std::mutex> lock(s.mutex);
    for (const State::Pointer& task : s.queue)
      if (overlap(task->task.rows, rows)) tickets.push_back(task->ticket);
  }
  for (const std::uint64_t ticket : tickets) wait(ticket);
  check();
  State& s = state();
  const std::lock_guard<std::mutex> lock(s.mutex);
  GS_CHECK_AS(adam::ClosedError, s.dropped.empty(),
              "worker must be open, got closed before all tasks had run");
}

bool Worker::is_idle() const {
  const State& s = state();
  const std::lock_guard<std::mutex> lock(s.mutex);
  return s.queue.empty();
}

bool Worker::is_closed() const {
  const State& s = state();
  const std::lock_guard<std::mutex> lock(s.mutex);
  return s.closing;
}

bool Worker::cancel(bool drain) {
  State& s = state();
  const std::lock_guard<std::mutex> lock(s.mutex);
  s.closing = true;
  const bool was_cancelled = std::exchange(s.cancelled, s.cancelled || !drain);
  s.wake.notify_all();
  return was_cancelled;
}

void Worker::close(bool drain) {
  State& s = state();
  const bool was_cancelled = cancel(drain);
  std::thread ended;  // several may wait for it, and only one join it
  {
    std::unique_lock<std::mutex> lock(s.mutex);
    if (!s.has_begun()) return;
    if (s.is_this_thread()) {
      if (s.thread.joinable()) s.thread.detach();
      return;
    }
    wait_until(lock, [&s] { return s.has_ended || s.is_left_behind; });
    ended = std::move(s.thread);
  }
  if (ended.joinable()) ended.join();
  const std::lock_guard<std::mutex> lock(s.mutex);
  const bool is_complete = !drain || was_cancelled || s.failure || s.dropped.empty();
  GS_CHECK_AS(adam::ClosedError, is_complete,
              "worker must be open until all tasks have run, got close(drain=False) meanwhile");
}

void Worker::abandon(double seconds) {
  State& s = state();
  cancel(false);
  std::thread ended;
  {
    std::unique_lock<std::mutex> lock(s.mutex);
    if (!s.has_begun()) return;
    if (!s.is_this_thread())
      s.done.wait_for(lock, std::chrono::duration<double>(seconds),
                      [&s] { return s.has_ended || s.is_left_behind; });
    ended = std::move(s.thread);
    if (!s.has_ended) {
      s.is_left_behind = true;
      s.done.notify_all();
      if (ended.joinable()) ended.detach();
      return;
    }
  }
  if (ended.joinable()) ended.join();
}

std::vector<std::shared_ptr<void>> Worker::take_finished() {
  State& s = state();
  const std::lock_guard<std::mutex> lock(s.mutex);
  return std::move(s.finished);
}

void Worker::record(bool enabled) { state().recording = enabled; }

std::vector<Span> Worker::take_spans() {
  State& s = state();
  const std::lock_guard<std::mutex> lock(s.mutex);
  return std::exchange(s.spans, {});
}

void Worker::check() const {
  State& s = state();
  const std::lock_guard<std::mutex> lock(s.mutex);
  s.throw_failure();
}

void Worker::check_untold() const {
  State& s = state();
  const std::lock_guard<std::mutex> lock(s.mutex);
  if (!s.failure_is_told) s.throw_failure();
}

}  // namespace gs::adam
