// SPDX-License-Identifier: Apache-2.0
#include <chrono>
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
  constexpr int kRounds = 20;
  int passed_over = 0;
  for (int round = 0; round < kRounds; ++round) {
    Lock turns;
    std::atomic<bool> has_had{false}, asks{false};
    turns.lock();
    std::thread other([&] {
      asks = true;
      const std::lock_guard<Lock> turn(turns);
      has_had = true;
    });
    while (!asks) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // until it waits
    turns.unlock();
    turns.lock();
    passed_over += !has_had;
    turns.unlock();
    other.join();
  }
  CHECK(passed_over <= kRounds / 2);  // when it had not come to wait, on a busy machine
}

}  // namespace

int main() {
  one_thread_at_a_time_has_it();
  who_gives_it_up_has_it_again_after_those_who_asked_before();
}
