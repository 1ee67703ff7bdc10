// SPDX-License-Identifier: Apache-2.0
// SSIM's window: sums across a row and down its rows, and what a window's means say.
#pragma once

namespace gs::raster {
namespace {

constexpr int kWindow = 11, kReach = kWindow - 1;
constexpr int kChannels = 3;
/// Numbers of a row that a window spans beyond its first: channels are interleaved.
constexpr int kHalo = kReach * kChannels;
constexpr float kC1 = 0.01f * 0.01f, kC2 = 0.03f * 0.03f;

/// Weight k of the Gaussian of sigma 1.5, exp(-(k - 5)^2 / 4.5) over the sum of all 11.
__host__ __device__ constexpr float window_weight(int k) {
  constexpr float kWeights[] = {0.00102838008447911f, 0.007598758135239185f, 0.03600077212843083f,
                                0.10936068950970002f, 0.2130055377112537f,   0.26601172486179436f};
  return kWeights[k < kWindow - k ? k : kReach - k];
}

/// The windows of one column that are open while its rows come one by one.
class OpenWindows {
 public:
  /// The weighted sum of the 11 rows that end with this one; rows before the first count as 0.
  __device__ __forceinline__ float push(float row) {
    const float complete = sums_[kReach - 1] + window_weight(kReach) * row;
    // From the last to the first, so that each sum can take the register of the one before it.
#pragma unroll
    for (int k = kReach - 1; k > 0; --k) sums_[k] = sums_[k - 1] + window_weight(k) * row;
    sums_[0] = window_weight(0) * row;
    return complete;
  }

 private:
  float sums_[kReach] = {};  // number k has seen k + 1 rows
};

/// A number of the photograph, and how far the image is above it.
struct alignas(8) Pixel {
  float truth, error;
  __device__ __forceinline__ float image() const { return truth + error; }
  /// One that does not count is minus zero, without an error: it adds nothing to any sum.
  __device__ __forceinline__ bool counts() const { return !signbit(truth); }
};

/// Weighted means of a window, or of one of its rows. With the error in place of the image, small
/// losses are not differences of large numbers.
struct Means {
  float truth, error;
  float squares;   // of the error
  float products;  // of image and truth
};

/// Means of the row of a window that begins at `from`.
__device__ __forceinline__ Means means_across(const Pixel* from) {
  const Pixel middle = from[kHalo / 2];
  const float truth = window_weight(kReach / 2) * middle.truth;
  const float error = window_weight(kReach / 2) * middle.error;
  Means means{truth, error, error * middle.error, truth * middle.image()};
#pragma unroll
  for (int k = kReach / 2 - 1; k >= 0; --k) {
    // Two pixels that weigh the same.
    const Pixel a = from[k * kChannels], b = from[kHalo - k * kChannels];
    const float weight = window_weight(k);
    means.truth += weight * (a.truth + b.truth);
    means.error += weight * (a.error + b.error);
    means.squares += weight * (a.error * a.error + b.error * b.error);
    means.products += weight * (a.truth * a.image() + b.truth * b.image());
  }
  return means;
}

/// What the pixels that count weigh, in the row of a window that begins at `from`.
__device__ __forceinline__ float weight_across(const Pixel* from) {
  float sum = 0.0f;
#pragma unroll
  for (int k = 0; k < kWindow; ++k) sum += from[k * kChannels].counts() ? window_weight(k) : 0.0f;
  return sum;
}

/// Of one window: 1 - SSIM, and the derivative of SSIM by pixel i of the window, which is
/// weight_i (constant - by_error error_i + by_image image_i).
struct WindowTerms {
  float loss, constant, by_error, by_image;
};

/// SSIM = luminance x structure; what each lacks to 1 is computed from the error.
__device__ __forceinline__ WindowTerms window_terms(const Means& means) {
  const float image = means.truth + means.error, error2 = means.error * means.error;
  const float per_means = __fdividef(1.0f, image * image + means.truth * means.truth + kC1);
  const float luminance_lost = error2 * per_means, luminance = 1.0f - luminance_lost;
  const float covariance = means.products - image * means.truth;
  const float variance = means.squares - error2;  // of the error
  const float per_variances = __fdividef(1.0f, 2.0f * covariance + kC2 + variance);
  const float structure_lost = variance * per_variances, structure = 1.0f - structure_lost;
  WindowTerms terms;
  terms.loss = luminance_lost + luminance * structure_lost;
  terms.by_error = 2.0f * luminance * per_variances;
  terms.by_image = terms.by_error * structure_lost;
  terms.constant = 2.0f * structure * per_means * (luminance_lost * image - means.error) +
                   terms.by_error * means.error - terms.by_image * image;
  return terms;
}

/// Of a window whose pixels that count weigh `weight` together; `means` are over this.
__device__ __forceinline__ WindowTerms masked_window_terms(const Means& means, float weight) {
  const float per_weight = 1.0f / weight;
  WindowTerms terms = window_terms({per_weight * means.truth, per_weight * means.error,
                                    per_weight * means.squares, per_weight * means.products});
  terms.constant *= per_weight;
  terms.by_error *= per_weight;
  terms.by_image *= per_weight;
  return terms;
}

/// A sum that keeps what rounding takes from it (Kahan 1965).
class CompensatedSum {
 public:
  __device__ __forceinline__ void add(float term) {
    const float complete = term - excess_, next = sum_ + complete;
    excess_ = (next - sum_) - complete;
    sum_ = next;
  }
  __device__ __forceinline__ double value() const {
    return static_cast<double>(sum_) - static_cast<double>(excess_);
  }

 private:
  float sum_ = 0.0f, excess_ = 0.0f;
};

}  // namespace
}  // namespace gs::raster
