// SPDX-License-Identifier: Apache-2.0
// The loops of simd_kernels.hpp, written for the compiler to vectorise. Included by one file per
// instruction set, inside an anonymous namespace.

// e^x for x in [-87, 88], not below it and at most 1e-5 above: 2^round(x log2 e) times the Taylor
// polynomial of the rest, |rest| <= ln(2) / 2, whose remainder is below 3e-6.
inline float exp_from_above(float x) {
  const float clamped = x < -87.0f ? -87.0f : x;
  const float t = clamped * 1.44269504f;
  const int whole = static_cast<int>(t + (t < 0 ? -0.5f : 0.5f));
  const float r = (t - static_cast<float>(whole)) * 0.693147181f;
  const float tail = 1 + r * (1 + r * (0.5f + r * (1.0f / 6 + r * (1.0f / 24 + r * (1.0f / 120)))));
  const int bits = (whole + 127) << 23;
  return __builtin_bit_cast(float, bits) * (tail * 1.00003f);
}

inline float absolute(float x) { return x < 0 ? -x : x; }
inline float maximum(float a, float b) { return a > b ? a : b; }

void load(const float* means, const float* scales, int n, bool activated, float move_scales,
          gs::cull::Tile* tile) {
  const float kLargest = 3.4028235e38f;
  float norm1_max = 0;
  if (activated) {
    for (int i = 0; i < n; ++i) {
      const float a = absolute(scales[3 * i]), b = absolute(scales[3 * i + 1]),
                  c = absolute(scales[3 * i + 2]);
      tile->s[i] = (maximum(a, maximum(b, c)) + move_scales) * 1.00001f;
      tile->odd[i] = !(a + b + c <= 1e38f);
    }
  } else {
    for (int i = 0; i < n; ++i) {
      const float a = scales[3 * i], b = scales[3 * i + 1], c = scales[3 * i + 2];
      const float largest = maximum(a, maximum(b, c)) + move_scales;
      const bool plain = (a <= 80.0f) & (b <= 80.0f) & (c <= 80.0f) & (largest <= 80.0f);
      tile->s[i] = exp_from_above(plain ? largest : 0.0f);
      tile->odd[i] = !plain;
    }
  }
  for (int i = 0; i < n; ++i) {
    const float x = means[3 * i], y = means[3 * i + 1], z = means[3 * i + 2];
    const float norm1 = absolute(x) + absolute(y) + absolute(z);
    const bool plain = norm1 <= kLargest;
    tile->x[i] = x;
    tile->y[i] = y;
    tile->z[i] = z;
    tile->odd[i] |= static_cast<std::uint8_t>(!plain);
    norm1_max = maximum(norm1_max, plain ? norm1 : 0.0f);
  }
  tile->norm1_max = norm1_max;
}

void filter(const gs::cull::Tile* tile, int n, const gs::cull::TilePlane* planes, int n_planes,
            std::uint8_t* keep) {
  alignas(64) float lowest[gs::cull::kTile];
  for (int p = 0; p < n_planes; ++p) {
    const gs::cull::TilePlane plane = planes[p];
    if (p == 0) {
      for (int i = 0; i < n; ++i)
        lowest[i] = plane.nx * tile->x[i] + plane.ny * tile->y[i] + plane.nz * tile->z[i] +
                    (plane.d + plane.k * tile->s[i]);
    } else {
      for (int i = 0; i < n; ++i) {
        const float v = plane.nx * tile->x[i] + plane.ny * tile->y[i] + plane.nz * tile->z[i] +
                        (plane.d + plane.k * tile->s[i]);
        // A NaN from overflow must keep the row: it is never below.
        lowest[i] = v < lowest[i] ? v : lowest[i];
      }
    }
  }
  for (int i = 0; i < n; ++i) keep[i] = !(lowest[i] < 0);
}

std::int64_t common_bits(const std::uint64_t* a, const std::uint64_t* b, int n) {
  std::int64_t sum = 0;
  for (int i = 0; i < n; ++i) sum += __builtin_popcountll(a[i] & b[i]);
  return sum;
}
