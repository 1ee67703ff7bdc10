// SPDX-License-Identifier: Apache-2.0
// What the row kernels take: plain structs only, because files compiled for other instruction sets
// include this header (an inline function here would be emitted for them too).
#pragma once

#include <cstdint>

namespace gs::adam {

/// One group's constants of one optimizer step, rounded to float32 once.
struct Step {
  float blend;         // exp_avg moves by blend * (gradient - exp_avg) ...
  bool from_gradient;  // ... starting from exp_avg, or from the gradient when 1 - beta1 >= 0.5
  float beta2;
  float weight2;       // 1 - beta2
  float inverse_root;  // 1 / sqrt(1 - beta2^t)
  float eps;
  float rate;  // lr / (1 - beta1^t)
  float keep;  // 1 - lr * weight_decay
};

/// What a row has missed that was last updated at step s and sleeps until step t (docs: "What a
/// sleeping row misses"). The movement of one value is
/// exp_avg * total / y * (1 + rho^2 (skew2 - skew3 rho)) with y = sqrt(exp_avg_sq) + eps and
/// rho = eps / y.
struct CatchUp {
  float total;  // sum of the step sizes, each with its decay
  float eps;    // their mean epsilon
  float skew2;  // second and third central moments of that epsilon, relative to its mean
  float skew3;
  float trust;   // largest rho at which the formula is as exact as float32
  float decay1;  // beta1^(t-s)
  float decay2;  // beta2^(t-s)
  float keep;    // product of 1 - lr * weight_decay
};

/// One group's CatchUp for every sleep that ends at step `target`.
struct Sleep {
  const CatchUp* recent;  // [window + 1], by the steps slept; [0] changes nothing
  std::int32_t window;
  std::int32_t target;
  const void* series;
  /// For sleeps longer than the window.
  void (*distant)(const void* series, std::int32_t slept_since, std::int32_t target, CatchUp* out);
  /// The movement of one value summed term by term, for rho > trust.
  float (*replay)(const void* series, std::int32_t slept_since, std::int32_t target, float exp_avg,
                  float exp_avg_sq);
};

/// One tensor of the rows. Strides are in elements, from row to row.
struct Segment {
  float* param;
  float* exp_avg;
  float* exp_avg_sq;
  const float* grad;  // null: zero for every row
  float* out;         // where the job writes elsewhere
  std::int64_t param_stride;
  std::int64_t exp_avg_stride;
  std::int64_t exp_avg_sq_stride;
  std::int64_t grad_stride;
  std::int64_t out_stride;
  std::int64_t width;
  Step step;
  Sleep before;  // until the step before this one
  Sleep after;   // until this step, its gradient being zero
};

/// Tensors of one job at most, and those that share one vector of columns.
constexpr int kMostSegments = 32;
constexpr int kMostParts = 4;

/// Lanes of the widest vector.
constexpr int kMostLanes = 16;

/// A Step, each constant for every lane.
struct alignas(64) StepLanes {
  float blend[kMostLanes];
  float beta2[kMostLanes];
  float weight2[kMostLanes];
  float inverse_root[kMostLanes];
  float eps[kMostLanes];
  float minus_rate[kMostLanes];
  float keep[kMostLanes];
};

/// Columns of the rows that are worked on together. Tensors that lie side by side in one table are
/// cut into full vectors regardless of where one ends: `parts` tensors from `segment` on share the
/// item's columns, each from its lane on. With one part there may be any number of columns.
struct Item {
  std::int32_t segment;
  std::int32_t parts;
  std::int64_t offset;  // first column within `segment`
  std::int64_t columns;
  std::int32_t lane[kMostParts];
  bool grads_apart;  // the parts' gradients do not lie side by side
  bool outs_apart;
  bool from_gradient;
  StepLanes step;
};

/// A cache line of every row, fetched ahead of its use.
struct Line {
  const char* start;    // of row 0
  std::int64_t stride;  // bytes from row to row
};

/// Of wider rows the processor itself fetches the rest.
constexpr int kMostLines = 64;

/// What is fetched of a row: lines that will be written and others, and of the row at a position of
/// the call (its gradient) lines by that position.
struct Ahead {
  Line written[kMostLines];
  Line read[kMostLines];
  Line by_position[kMostLines];
  std::int32_t n_written;
  std::int32_t n_read;
  std::int32_t n_by_position;
};

/// Row ids of either width; null means row i is i.
struct Ids {
  const std::int32_t* narrow;
  const std::int64_t* wide;
  std::int64_t size;
};

/// What happens to a row that has no gradient of its own.
enum class Absent : std::int32_t {
  kStep,    // one step with gradient zero
  kSleep,   // brought up to date in closed form
  kNothing  // stands still
};

/// One call's work over positions [first, last) of `rows`.
struct Job {
  const Segment* segments;
  const Item* items;
  const Ahead* ahead;
  std::int32_t n_segments;
  std::int32_t n_items;
  Ids rows;
  bool has_grads;
  bool grads_by_row;  // gradient of row r at r, else at the row's position in `rows`
  Ids pending;        // lookahead: sorted rows that have gradients, at their position here
  bool use_pending;
  bool writes_elsewhere;  // to the segments' out, else back to param, exp_avg, exp_avg_sq
  Absent absent;
  bool sleeps;              // rows with a gradient are first brought up to the step before
  std::int32_t* last_step;  // [N] or null
  std::int32_t step;
  bool skip_non_finite;
};

/// Each returns the number of rows whose gradient holds NaN or Inf.
using RunRows = std::int64_t (*)(const Job& job, std::int64_t first, std::int64_t last);

/// A kernel and how many values it works on at once.
struct RowKernel {
  RunRows run;
  int lanes;
};

RowKernel scalar_kernel();
RowKernel avx2_kernel();
RowKernel avx512_kernel();

}  // namespace gs::adam
