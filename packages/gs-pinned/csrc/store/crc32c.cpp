// SPDX-License-Identifier: Apache-2.0
#include "store/crc32c.hpp"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <arm_acle.h>
#include <sys/auxv.h>
#endif

namespace gs::pinned::store {
namespace {

constexpr std::uint32_t kPolynomial = 0x82f63b78u;

using Table = std::array<std::uint32_t, 256>;

constexpr Table make_table() {
  Table table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    table[byte] = crc;
  }
  return table;
}

constexpr Table kTable = make_table();

std::uint32_t table_steps(std::uint32_t crc, const unsigned char* data, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) crc = (crc >> 8) ^ kTable[(crc ^ data[i]) & 0xff];
  return crc;
}

#if defined(__x86_64__) || (defined(__aarch64__) && defined(__linux__))
#define GS_CRC_INSTRUCTION 1
#if defined(__x86_64__)
#define GS_CRC_TARGET __attribute__((target("sse4.2")))
GS_CRC_TARGET inline std::uint32_t eight(std::uint32_t crc, std::uint64_t word) {
  return static_cast<std::uint32_t>(_mm_crc32_u64(crc, word));
}
bool has_instruction() { return __builtin_cpu_supports("sse4.2"); }
#else
#define GS_CRC_TARGET __attribute__((target("+crc")))
GS_CRC_TARGET inline std::uint32_t eight(std::uint32_t crc, std::uint64_t word) {
  return __crc32cd(crc, word);
}
bool has_instruction() { return (getauxval(AT_HWCAP) & (1u << 7)) != 0; }
#endif

// An instruction takes three cycles, and one can start in each: three streams of kStream bytes run
// side by side. The checksum of the first, moved over the bytes of the others, is added to theirs.
constexpr std::size_t kStream = 1024;

// What kStream zero bytes make of a checksum: linear in its bits, so four lookups.
struct Shift {
  std::array<Table, 4> tables{};

  Shift() {
    std::array<std::uint32_t, 32> of_bit{};
    const std::array<unsigned char, kStream> zeros{};
    for (int bit = 0; bit < 32; ++bit)
      of_bit[bit] = table_steps(std::uint32_t{1} << bit, zeros.data(), zeros.size());
    for (int byte = 0; byte < 4; ++byte)
      for (std::uint32_t value = 0; value < 256; ++value)
        for (int bit = 0; bit < 8; ++bit)
          if (((value >> bit) & 1) != 0) tables[byte][value] ^= of_bit[8 * byte + bit];
  }

  std::uint32_t operator()(std::uint32_t crc) const {
    return tables[0][crc & 0xff] ^ tables[1][(crc >> 8) & 0xff] ^ tables[2][(crc >> 16) & 0xff] ^
           tables[3][crc >> 24];
  }
};

std::uint64_t word_at(const unsigned char* data) {
  std::uint64_t word;
  std::memcpy(&word, data, sizeof(word));
  return word;
}

GS_CRC_TARGET std::uint32_t instruction_steps(std::uint32_t crc, const unsigned char* data,
                                              std::size_t bytes) {
  static const Shift shift;
  for (; bytes >= 3 * kStream; data += 3 * kStream, bytes -= 3 * kStream) {
    std::uint32_t second = 0, third = 0;
    for (std::size_t i = 0; i < kStream; i += 8) {
      crc = eight(crc, word_at(data + i));
      second = eight(second, word_at(data + kStream + i));
      third = eight(third, word_at(data + 2 * kStream + i));
    }
    crc = shift(shift(crc) ^ second) ^ third;
  }
  for (; bytes >= 8; data += 8, bytes -= 8) crc = eight(crc, word_at(data));
  return table_steps(crc, data, bytes);
}
#endif

}  // namespace

std::uint32_t crc32c_by_table(const void* data, std::size_t bytes, std::uint32_t crc) {
  return ~table_steps(~crc, static_cast<const unsigned char*>(data), bytes);
}

std::uint32_t crc32c(const void* data, std::size_t bytes, std::uint32_t crc) {
#if defined(GS_CRC_INSTRUCTION)
  static const bool fast = has_instruction();
  if (fast) return ~instruction_steps(~crc, static_cast<const unsigned char*>(data), bytes);
#endif
  return crc32c_by_table(data, bytes, crc);
}

}  // namespace gs::pinned::store
