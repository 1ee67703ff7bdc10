// SPDX-License-Identifier: Apache-2.0
#include "layout.hpp"

#include <algorithm>
#include <cstdint>

namespace gs::adam {
namespace {

// Of wider rows the processor itself fetches the rest.
constexpr std::int64_t kMostLines = 16;
constexpr std::int64_t kLineBytes = 64;

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

/// Adds `columns` floats of every row, to the stream before where they continue it.
int add_stream(Stream* streams, int n, const float* start, std::int64_t stride, std::int64_t* bytes,
               std::int64_t columns, bool by_position, bool is_written) {
  const auto* at = reinterpret_cast<const char*>(start);
  const auto row_bytes = static_cast<std::int64_t>(stride * sizeof(float));
  const auto column_bytes = static_cast<std::int64_t>(columns * sizeof(float));
  if (n > 0 && streams[n - 1].start + bytes[n - 1] == at && streams[n - 1].stride == row_bytes &&
      streams[n - 1].by_position == by_position) {
    bytes[n - 1] += column_bytes;
    return n;
  }
  bytes[n] = column_bytes;
  streams[n] = Stream{at, row_bytes, 0, by_position, is_written};
  return n + 1;
}

/// Lines that any row of a stream may touch; of rows that come one after the other those that begin
/// in it, for the next row fetches the last one.
std::int32_t lines_of(const Stream& stream, std::int64_t bytes) {
  const auto start = reinterpret_cast<std::uintptr_t>(stream.start);
  const auto before = static_cast<std::int64_t>(start % kLineBytes);
  std::int64_t lines = (bytes + kLineBytes - 1) / kLineBytes;
  if (stream.stride % kLineBytes == 0)
    lines = (before + bytes + kLineBytes - 1) / kLineBytes;
  else if (!stream.by_position && bytes > static_cast<std::int64_t>(sizeof(float)))
    ++lines;
  return static_cast<std::int32_t>(std::min(lines, kMostLines));
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

int cut_streams(const Job& job, Stream* streams) {
  std::int64_t bytes[kMostStreams];
  int n = 0;
  const bool is_written = job.segments[0].out == nullptr;
  const auto add_table = [&](float* Segment::* tensor, std::int64_t Segment::* stride) {
    for (std::int32_t k = 0; k < job.n_segments; ++k) {
      const Segment& s = job.segments[k];
      n = add_stream(streams, n, s.*tensor, s.*stride, bytes, s.width, false, is_written);
    }
  };
  add_table(&Segment::param, &Segment::param_stride);
  add_table(&Segment::exp_avg, &Segment::exp_avg_stride);
  add_table(&Segment::exp_avg_sq, &Segment::exp_avg_sq_stride);
  if (job.has_grads && !job.use_pending) {
    for (std::int32_t k = 0; k < job.n_segments; ++k) {
      const Segment& s = job.segments[k];
      n = add_stream(streams, n, s.grad, s.grad_stride, bytes, s.width, !job.grads_by_row, false);
    }
  }
  for (int k = 0; k < n; ++k) streams[k].lines = lines_of(streams[k], bytes[k]);
  if (job.last_step != nullptr) {
    constexpr auto kStepBytes = static_cast<std::int64_t>(sizeof(std::int32_t));
    streams[n++] =
        Stream{reinterpret_cast<const char*>(job.last_step), kStepBytes, 1, false, is_written};
  }
  return n;
}

}  // namespace gs::adam
