// SPDX-License-Identifier: Apache-2.0
#include <pthread.h>
#include <sys/wait.h>

#include <numeric>

#include "check.hpp"
#include "gs/thread_pool.hpp"

namespace {

long sum_with(gs::ThreadPool& pool, long n, long grain) {
  std::atomic<long> total{0};
  pool.parallel_for(0, n, grain, [&](long first, long last) {
    CHECK(last - first <= std::max(grain, 1L) && first < last);
    long part = 0;
    for (long i = first; i < last; ++i) part += i;
    total += part;
  });
  return total;
}

void every_item_is_visited_once() {
  for (int threads : {1, 2, 7}) {
    gs::ThreadPool pool(threads);
    for (long n : {0L, 1L, 2L, 1000L})
      for (long grain : {1L, 3L, 1000L, 5000L}) CHECK(sum_with(pool, n, grain) == n * (n - 1) / 2);
  }
}

void an_exception_reaches_the_caller_and_the_pool_lives_on() {
  gs::ThreadPool pool(4);
  CHECK_THROWS(gs::Error, "seven", pool.parallel_for(0, 100, 1, [](long first, long) {
    GS_CHECK(first != 7, "seven");
  }));
  CHECK(sum_with(pool, 100, 1) == 4950);
}

void nested_and_concurrent_calls_end() {
  gs::ThreadPool pool(3);
  std::atomic<long> total{0};
  pool.parallel_for(0, 8, 1, [&](long, long) { total += sum_with(pool, 10, 2); });
  CHECK(total == 8 * 45);
  std::vector<std::thread> callers;
  std::atomic<int> right{0};
  for (int i = 0; i < 6; ++i)
    callers.emplace_back([&] {
      for (int k = 0; k < 50; ++k) right += sum_with(pool, 64, 4) == 2016;
    });
  for (std::thread& caller : callers) caller.join();
  CHECK(right == 300);
}

void calls_right_after_each_other_and_after_sleep_visit_every_item() {
  gs::ThreadPool pool(5);
  for (int k = 0; k < 3000; ++k) {
    const long n = 1 + k % 7;
    CHECK(sum_with(pool, n, 1) == n * (n - 1) / 2);
    if (k % 100 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

[[maybe_unused]] void a_forked_child_gets_its_own_threads() {
  gs::ThreadPool pool(4);
  CHECK(sum_with(pool, 100, 1) == 4950);
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);  // a hang fails the test instead of the machine
    _exit(sum_with(pool, 100, 1) == 4950 ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

// As for a user who may have no more threads: here their stacks would be too large.
[[maybe_unused]] void threads_that_cannot_start_are_done_without() {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, std::size_t{1} << 47);
    pthread_setattr_default_np(&attributes);
    bool is_refused = false;
    try {
      std::thread([] {}).join();
    } catch (const std::system_error&) {
      is_refused = true;
    }
    gs::ThreadPool pool(4);
    _exit(is_refused && sum_with(pool, 100, 1) == 4950 && sum_with(pool, 100, 1) == 4950 ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace

int main() {
  every_item_is_visited_once();
  an_exception_reaches_the_caller_and_the_pool_lives_on();
  nested_and_concurrent_calls_end();
  calls_right_after_each_other_and_after_sleep_visit_every_item();
#if !defined(__SANITIZE_THREAD__)
  a_forked_child_gets_its_own_threads();
  threads_that_cannot_start_are_done_without();
#endif
}
