// SPDX-License-Identifier: Apache-2.0
#include "layout.hpp"

#include <algorithm>
#include <cstdint>

namespace gs::adam {
namespace {

constexpr std::int64_t kLineBytes = 64;
constexpr auto kValueBytes = static_cast<std::int64_t>(sizeof(float));

bool is_beside(const Segment& left, const Segment& right) {
  return right.param == left.param + left.width && right.exp_avg == left.exp_avg + left.width &&
         right.exp_avg_sq == left.exp_avg_sq + left.width &&
         right.param_stride == left.param_stride && right.exp_avg_stride == left.exp_avg_stride &&
         right.exp_avg_sq_stride == left.exp_avg_sq_stride &&
         right.step.from_gradient == left.step.from_gradient;
}

/// A step's constants from a lane on.
void fill(const Step& step, int lane, StepLanes* lanes) {
  const auto set = [lane](float (&constants)[kMostLanes], float value) {
    std::fill(constants + lane, constants + kMostLanes, value);
  };
  set(lanes->blend, step.blend);
  set(lanes->beta2, step.beta2);
  set(lanes->weight2, step.weight2);
  set(lanes->inverse_root, step.inverse_root);
  set(lanes->eps, step.eps);
  set(lanes->minus_rate, -step.rate);
  set(lanes->keep, step.keep);
}

/// What follows from an item's tensors.
void complete(const Segment* segments, Item* item) {
  const Segment* first = segments + item->segment;
  item->from_gradient = first->step.from_gradient;
  item->grads_apart = item->outs_apart = false;
  fill(first->step, 0, &item->step);
  for (int part = 1; part < item->parts; ++part) {
    const Segment& left = first[part - 1];
    const Segment& right = first[part];
    fill(right.step, item->lane[part], &item->step);
    if (left.grad != nullptr)
      item->grads_apart |=
          right.grad != left.grad + left.width || right.grad_stride != left.grad_stride;
    if (left.out != nullptr)
      item->outs_apart |= right.out != left.out + left.width || right.out_stride != left.out_stride;
  }
}

/// Columns of every row that lie side by side.
struct Stream {
  const char* start;
  std::int64_t stride;
  std::int64_t bytes;
};

/// Lines that any row of a stream may touch. Of rows that come one after the other those that begin
/// in it are enough, for the next row's cover its end.
std::int64_t lines_of(const Stream& stream, bool in_order) {
  const auto before =
      static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(stream.start) % kLineBytes);
  const auto whole = [](std::int64_t bytes) { return (bytes + kLineBytes - 1) / kLineBytes; };
  if (stream.stride % kLineBytes == 0) return whole(before + stream.bytes);
  return whole(stream.bytes) + (in_order || stream.bytes <= kValueBytes ? 0 : 1);
}

/// The lines of one tensor of every segment.
template <class Start, class Stride>
void add_lines(const Job& job, Start start, Stride stride, bool in_order, Line* lines,
               std::int32_t* n) {
  for (std::int32_t k = 0; k < job.n_segments;) {
    const auto at = [&](std::int32_t segment) {
      return reinterpret_cast<const char*>(start(job.segments[segment]));
    };
    Stream stream{at(k), stride(job.segments[k]) * kValueBytes, 0};
    do {
      stream.bytes += job.segments[k].width * kValueBytes;
      ++k;
    } while (k < job.n_segments && at(k) == stream.start + stream.bytes &&
             stride(job.segments[k]) * kValueBytes == stream.stride);
    const std::int64_t lines_here = lines_of(stream, in_order);
    for (std::int64_t line = 0; line < lines_here && *n < kMostLines; ++line)
      lines[(*n)++] = Line{stream.start + line * kLineBytes, stream.stride};
  }
}

}  // namespace

int cut_items(const Segment* segments, int n_segments, int lanes, Item* items) {
  int n = 0, k = 0;
  std::int64_t offset = 0;
  while (k < n_segments) {
    Item& item = items[n];
    item.segment = k;
    item.parts = 1;
    item.offset = offset;
    item.columns = segments[k].width - offset;
    const bool is_last = k + 1 == n_segments || !is_beside(segments[k], segments[k + 1]);
    if (is_last) {
      ++k;
      offset = 0;
    } else if (item.columns >= lanes) {
      item.columns -= item.columns % lanes;
      offset += item.columns;
    } else {
      offset = item.columns;  // columns taken of the whole item
      std::int64_t taken = item.columns;
      while (taken < lanes && item.parts < kMostParts && k + 1 < n_segments &&
             is_beside(segments[k], segments[k + 1])) {
        item.lane[item.parts++] = static_cast<std::int32_t>(taken);
        ++k;
        offset = std::min<std::int64_t>(lanes - taken, segments[k].width);
        taken += offset;
      }
      item.columns = taken;
    }
    if (k < n_segments && offset == segments[k].width) {
      ++k;
      offset = 0;
    }
    if (item.columns == 0) continue;
    complete(segments, &item);
    ++n;
  }
  return n;
}

void list_lines(const Job& job, Ahead* ahead) {
  ahead->n_written = ahead->n_read = ahead->n_by_position = 0;
  const bool is_written = !job.writes_elsewhere;
  Line* const lines = is_written ? ahead->written : ahead->read;
  std::int32_t* const n = is_written ? &ahead->n_written : &ahead->n_read;
  if (job.last_step != nullptr)
    lines[(*n)++] = Line{reinterpret_cast<const char*>(job.last_step), sizeof(std::int32_t)};
  const auto add_rows = [&](float* Segment::* tensor, std::int64_t Segment::* stride) {
    add_lines(
        job, [=](const Segment& s) { return s.*tensor; },
        [=](const Segment& s) { return s.*stride; }, false, lines, n);
  };
  add_rows(&Segment::param, &Segment::param_stride);
  add_rows(&Segment::exp_avg, &Segment::exp_avg_stride);
  add_rows(&Segment::exp_avg_sq, &Segment::exp_avg_sq_stride);
  if (!job.has_grads || job.use_pending) return;
  const bool in_order = !job.grads_by_row;
  add_lines(
      job, [](const Segment& s) { return s.grad; }, [](const Segment& s) { return s.grad_stride; },
      in_order, in_order ? ahead->by_position : ahead->read,
      in_order ? &ahead->n_by_position : &ahead->n_read);
}

}  // namespace gs::adam
