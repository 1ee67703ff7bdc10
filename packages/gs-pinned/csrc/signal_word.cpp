// SPDX-License-Identifier: Apache-2.0
#include "signal_word.hpp"

#include <unistd.h>

#include <memory>
#include <mutex>
#include <vector>

#include "memory.hpp"

namespace gs::pinned {
namespace {

constexpr std::size_t kLine = 64;

struct Words {
  std::mutex mutex;
  std::vector<std::uint32_t*> locked, pageable;  // free ones
  int pid = getpid();

  // A child process after fork has none of its parent's words, nor of its lock.
  static Words& of_this_process() {
    static Words* words = new Words();
    if (words->pid != getpid()) words = new Words();
    return *words;
  }
};

std::vector<std::uint32_t*> new_page(bool locked, int device) {
  const Lock lock = locked ? Lock::kCuda : Lock::kNone;
  auto page = std::make_unique<Memory>(page_bytes(), lock, device, false);
  page->grow(page_bytes(), false);
  std::vector<std::uint32_t*> words;
  for (std::size_t at = 0; at < page_bytes(); at += kLine)
    words.push_back(reinterpret_cast<std::uint32_t*>(page->data() + at));
  // Kept to the end of the process: streams may write words while destructors run.
  (void)page.release();
  return words;
}

std::vector<std::uint32_t*>* home_of(Words& words, bool locked) {
  return locked ? &words.locked : &words.pageable;
}

}  // namespace

std::uint32_t* take_word(bool locked, int device) {
  Words& words = Words::of_this_process();
  std::lock_guard<std::mutex> guard(words.mutex);
  std::vector<std::uint32_t*>* free = home_of(words, locked);
  if (free->empty()) *free = new_page(locked, device);
  std::uint32_t* word = free->back();
  free->pop_back();
  __atomic_store_n(word, 0u, __ATOMIC_RELEASE);
  return word;
}

void give_word(std::uint32_t* word, bool locked) {
  Words& words = Words::of_this_process();
  std::lock_guard<std::mutex> guard(words.mutex);
  home_of(words, locked)->push_back(word);
}

}  // namespace gs::pinned
