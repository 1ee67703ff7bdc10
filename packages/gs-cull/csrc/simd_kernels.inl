// SPDX-License-Identifier: Apache-2.0
// The loops of simd_kernels.hpp, written for the compiler to vectorise. Included by one file per
// instruction set, inside an anonymous namespace.

inline float absolute(float x) { return x < 0 ? -x : x; }
inline float maximum(float a, float b) { return a > b ? a : b; }

// values[i] = e^values[i] for values in [-87, 88], at most 1e-4 above and not below: 2^round(x log2
// e) times the Taylor polynomial of the rest, |rest| <= ln(2) / 2, whose remainder is below 3e-6.
void exp_from_above(int n, float* values) {
  using gs::cull::kTile;
  alignas(64) int bits[kTile];
  alignas(64) float power[kTile];
  for (int i = 0; i < n; ++i) {
    const float x = values[i] < -87.0f ? -87.0f : values[i];
    const float t = x * 1.44269504f;
    const int whole = static_cast<int>(t + (t < 0 ? -0.5f : 0.5f));
    const float r = (t - static_cast<float>(whole)) * 0.693147181f;
    bits[i] = (whole + 127) << 23;
    values[i] =
        1.00003f * (1 + r * (1 + r * (0.5f + r * (1.0f / 6 + r * (1.0f / 24 + r * (1.0f / 120))))));
  }
  __builtin_memcpy(power, bits, sizeof(int) * n);
  for (int i = 0; i < n; ++i) values[i] *= power[i];
}

// The largest of values[0..n), at least 0.
float largest_of(const float* values, int n) {
  float lanes[16] = {};
  int i = 0;
  for (; i + 16 <= n; i += 16)
    for (int l = 0; l < 16; ++l) lanes[l] = maximum(values[i + l], lanes[l]);
  float largest = 0;
  for (; i < n; ++i) largest = maximum(values[i], largest);
  for (float lane : lanes) largest = maximum(lane, largest);
  return largest;
}

void load(const float* __restrict__ means, const float* __restrict__ scales, int n, bool activated,
          float move_scales, gs::cull::Tile* __restrict__ tile) {
  const float kLargest = 3.4028235e38f;
  alignas(64) float norm1[gs::cull::kTile];
  for (int i = 0; i < n; ++i) {
    const float x = means[3 * i], y = means[3 * i + 1], z = means[3 * i + 2];
    const float sum = absolute(x) + absolute(y) + absolute(z);
    tile->x[i] = x;
    tile->y[i] = y;
    tile->z[i] = z;
    norm1[i] = sum <= kLargest ? sum : -1.0f;
  }
  tile->norm1_max = largest_of(norm1, n);
  if (activated) {
    for (int i = 0; i < n; ++i) {
      const float a = absolute(scales[3 * i]), b = absolute(scales[3 * i + 1]),
                  c = absolute(scales[3 * i + 2]);
      tile->s[i] = (maximum(a, maximum(b, c)) + move_scales) * 1.00001f;
      norm1[i] = a + b + c <= 1e38f ? norm1[i] : -1.0f;
    }
  } else {
    for (int i = 0; i < n; ++i) {
      const float a = scales[3 * i], b = scales[3 * i + 1], c = scales[3 * i + 2];
      const float largest = maximum(a, maximum(b, c)) + move_scales;
      // NaN anywhere and -inf - inf make the sum NaN or -inf; scales of e^-inf are for
      // load_place().
      const float sum = (a + b + c) * 0.0f + largest;
      tile->s[i] = sum <= 80.0f ? sum : 0.0f;
      norm1[i] = sum <= 80.0f ? norm1[i] : -1.0f;
    }
    exp_from_above(n, tile->s);
  }
  for (int i = 0; i < n; ++i) tile->odd[i] = norm1[i] < 0;
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
