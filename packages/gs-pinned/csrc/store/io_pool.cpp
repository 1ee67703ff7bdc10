// SPDX-License-Identifier: Apache-2.0
#include "store/io_pool.hpp"

#include <chrono>
#include <system_error>
#include <utility>

#include "store/errors.hpp"

namespace gs::pinned::store {

void Ticket::report(std::exception_ptr error) {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (error && !error_) error_ = error;
  if (--left_ == 0) done_.notify_all();
}

bool Ticket::wait(double seconds) {
  std::unique_lock<std::mutex> guard(mutex_);
  return done_.wait_for(guard, std::chrono::duration<double>(seconds),
                        [this] { return left_ == 0; });
}

void Ticket::wait() {
  std::unique_lock<std::mutex> guard(mutex_);
  done_.wait(guard, [this] { return left_ == 0; });
}

void Ticket::raise() {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (error_) std::rethrow_exception(error_);
}

void IoPool::finish() {
  std::vector<std::thread> threads;
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    ends_ = true;
    threads.swap(threads_);
  }
  asked_.notify_all();
  for (std::thread& thread : threads) thread.join();
}

void IoPool::submit(std::shared_ptr<Ticket> ticket, Task task) {
  const std::lock_guard<std::mutex> guard(mutex_);
  GS_CHECK_AS(pinned::store::ClosedError, !ends_, "the store was closed meanwhile");
  if (threads_.empty()) start();
  queue_.push_back({std::move(ticket), std::move(task)});
  asked_.notify_one();
}

void IoPool::start() {
  for (int i = 0; i < n_threads_; ++i) {
    try {
      threads_.emplace_back([this] { work(); });
    } catch (const std::system_error&) {
      if (threads_.empty()) throw;
      return;  // of a user or a group who may have no more: these do the work as well
    }
  }
}

void IoPool::work() {
  IoBuffer buffer(buffer_bytes_);
  for (;;) {
    Asked asked;
    {
      std::unique_lock<std::mutex> guard(mutex_);
      asked_.wait(guard, [this] { return ends_ || !queue_.empty(); });
      if (queue_.empty()) return;
      asked = std::move(queue_.front());
      queue_.pop_front();
    }
    std::exception_ptr error;
    try {
      asked.task(buffer);
    } catch (...) {
      error = std::current_exception();
    }
    asked.task = nullptr;  // what it holds goes before its caller knows
    asked.ticket->report(error);
  }
}

}  // namespace gs::pinned::store
