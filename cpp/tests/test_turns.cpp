// SPDX-License-Identifier: Apache-2.0
#include <mutex>
#include <thread>
#include <vector>

#include "check.hpp"
#include "gs/turns.hpp"

namespace {

using Lock = gs::Turns;

void one_thread_at_a_time_has_it() {
  Lock turns;
  long total = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 6; ++i)
    threads.emplace_back([&] {
      for (int k = 0; k < 2000; ++k) {
        const std::lock_guard<Lock> turn(turns);
        ++total;
      }
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(total == 12000);
}

void who_gives_it_up_has_it_again_after_those_who_asked_before() {
  for (int round = 0; round < 20; ++round) {
    Lock turns;
    bool has_had = false;
    turns.lock();
    std::thread other([&] {
      const std::lock_guard<Lock> turn(turns);
      has_had = true;
    });
    while (turns.n_waiting() == 0) std::this_thread::yield();
    turns.unlock();
    turns.lock();
    CHECK(has_had);
    turns.unlock();
    other.join();
  }
}

}  // namespace

int main() {
  one_thread_at_a_time_has_it();
  who_gives_it_up_has_it_again_after_those_who_asked_before();
}
