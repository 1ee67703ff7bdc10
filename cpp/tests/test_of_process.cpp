// SPDX-License-Identifier: Apache-2.0
#include <sys/wait.h>

#include <chrono>
#include <thread>
#include <vector>

#include "check.hpp"
#include "gs/of_process.hpp"

namespace {

void the_first_process_renews_nothing() {
  gs::OfProcess process;
  bool is_renewed = false;
  process.renewed([&] { is_renewed = true; });
  CHECK(!is_renewed);
}

// Several threads come at once; one renews, and none goes on before that is done.
bool is_renewed_once(gs::OfProcess& process) {
  std::atomic<int> begun{0}, done{0}, early{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([&] {
      process.renewed([&] {
        begun.fetch_add(1);
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        done.fetch_add(1);
      });
      if (done.load() == 0) early.fetch_add(1);
    });
  for (std::thread& thread : threads) thread.join();
  process.renewed([&] { begun.fetch_add(1); });
  return begun.load() == 1 && early.load() == 0;
}

// Runs in a child process and gives its exit status.
template <class Body>
int in_child(Body&& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);  // a hang fails the test instead of the machine
    _exit(body());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

[[maybe_unused]] void a_child_renews_once() {
  gs::OfProcess process;
  CHECK(in_child([&] { return is_renewed_once(process) ? 0 : 1; }) == 0);
}

[[maybe_unused]] void a_child_of_one_that_was_at_it_renews_for_itself() {
  gs::OfProcess process;
  CHECK(in_child([&] {
          int status = 1;
          process.renewed(
              [&] { status = in_child([&] { return is_renewed_once(process) ? 0 : 1; }); });
          return status;
        }) == 0);
}

}  // namespace

int main() {
  the_first_process_renews_nothing();
#if !defined(__SANITIZE_THREAD__)
  a_child_renews_once();
  a_child_of_one_that_was_at_it_renews_for_itself();
#endif
}
