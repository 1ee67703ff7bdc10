// SPDX-License-Identifier: Apache-2.0
#include "cull_cpu.hpp"

#include <algorithm>
#include <memory>

#include "gs/thread_pool.hpp"
#include "simd_kernels.hpp"

namespace gs::cull {

namespace {

constexpr std::int64_t kRowsPerPiece = 16384;
constexpr std::int64_t kMarksPerTask = 4096;

// cull_runs() and mark_rows() decide by these two. Each is compiled once: where a processor has
// fused multiply-add, two inlined copies of an expression may round differently.
[[gnu::noinline]] bool load(const Geometry& geometry, std::int64_t i, const Options& options,
                            Row* row) {
  return load_row(geometry, i, options, row);
}

[[gnu::noinline]] bool sees(const Camera& camera, const Row& row, const Options& options) {
  return shows(camera, row, options);
}

/// One thread's view of at most kTile rows.
class TileCuller {
 public:
  TileCuller(const Geometry& geometry, const std::vector<Camera>& cameras, const Options& options)
      : geometry_(geometry),
        cameras_(cameras),
        options_(options),
        kernels_(simd_kernels()),
        words_((cameras.size() + 31) / 32) {
    mask_.resize(kTile * words_);
  }

  void cull(const Run& run, std::int64_t offset, int n, Piece* piece) {
    load(run, offset, n, piece);
    std::fill(mask_.begin(), mask_.begin() + n * words_, 0u);
    for (std::size_t view = 0; view < cameras_.size(); ++view) {
      if (run.views != nullptr && !(run.views[view / 32] >> (view % 32) & 1)) continue;
      look(static_cast<int>(view), n, piece);
    }
    for (int i = 0; i < n; ++i) {
      const std::uint32_t* words = mask_.data() + i * words_;
      if (std::all_of(words, words + words_, [](std::uint32_t w) { return w == 0; })) continue;
      piece->ids.push_back(
          static_cast<std::int32_t>(run.rows != nullptr ? rows_[i] : run.first_id + offset + i));
      piece->mask.insert(piece->mask.end(), words, words + words_);
    }
  }

 private:
  enum State : std::uint8_t { kUnknown, kReady, kNever };

  void load(const Run& run, std::int64_t offset, int n, Piece* piece) {
    const float *means = geometry_.means, *scales = geometry_.scales;
    if (run.rows != nullptr) {
      for (int i = 0; i < n; ++i) {
        rows_[i] = run.rows[offset + i];
        std::copy_n(means + 3 * rows_[i], 3, gathered_means_ + 3 * i);
        std::copy_n(scales + 3 * rows_[i], 3, gathered_scales_ + 3 * i);
      }
      means = gathered_means_;
      scales = gathered_scales_;
    } else {
      for (int i = 0; i < n; ++i) rows_[i] = run.first_row + offset + i;
      means += 3 * rows_[0];
      scales += 3 * rows_[0];
    }
    kernels_.load(means, scales, n, options_.activated, options_.move_scales, &tile_);
    std::fill(state_, state_ + n, kUnknown);
    odd_.clear();
    for (int i = 0; i < n; ++i) {
      if (!tile_.odd[i]) continue;
      if (load_place(geometry_, rows_[i], options_, &shapes_[i])) {
        odd_.push_back(i);
      } else {
        state_[i] = kNever;
        ++piece->n_not_finite;
      }
    }
  }

  void look(int view, int n, Piece* piece) {
    const Camera& camera = cameras_[view];
    TilePlane planes[kPlanes];
    for (int p = 0; p < camera.n_planes; ++p) {
      const Plane& plane = camera.planes[p];
      const float margin = 2 * kPlaneMargin * (plane.n_abs * tile_.norm1_max + plane.d_abs);
      planes[p] = {plane.n[0], plane.n[1], plane.n[2], plane.d + margin, plane.k};
    }
    kernels_.filter(&tile_, n, planes, camera.n_planes, keep_);
    for (int i = 0; i < n; ++i)
      if (tile_.odd[i]) keep_[i] = 0;
    for (int i : odd_) keep_[i] = 1;
    std::int64_t count = 0;
    for (int i = 0; i < n; ++i) {
      if (!keep_[i] || !sees_row(camera, i)) continue;
      mask_[i * words_ + view / 32] |= 1u << (view % 32);
      ++count;
    }
    piece->counts[view] += count;
  }

  bool sees_row(const Camera& camera, int i) {
    if (state_[i] == kUnknown)
      state_[i] = gs::cull::load(geometry_, rows_[i], options_, &shapes_[i]) ? kReady : kNever;
    return state_[i] == kReady && sees(camera, shapes_[i], options_);
  }

  const Geometry& geometry_;
  const std::vector<Camera>& cameras_;
  const Options& options_;
  const SimdKernels& kernels_;
  const std::size_t words_;
  Tile tile_;
  std::int64_t rows_[kTile];
  float gathered_means_[3 * kTile], gathered_scales_[3 * kTile];
  Row shapes_[kTile];
  State state_[kTile];
  std::uint8_t keep_[kTile];
  std::vector<int> odd_;
  std::vector<std::uint32_t> mask_;
};

/// Whether one of the views whose bits are set sees the row. Stops at the first that does.
bool one_sees(const std::uint32_t* bits, const std::vector<Camera>& cameras, const Row& row,
              const Options& options) {
  const std::size_t n_words = (cameras.size() + 31) / 32;
  for (std::size_t w = 0; w < n_words; ++w)
    for (std::uint32_t left = bits[w]; left != 0; left &= left - 1)
      if (sees(cameras[32 * w + __builtin_ctz(left)], row, options)) return true;
  return false;
}

/// A part of a run that belongs to one piece.
struct Slice {
  std::size_t run;
  std::int64_t offset;
  std::int32_t n;
};

}  // namespace

std::vector<Piece> cull_runs(ThreadPool& pool, const Geometry& geometry,
                             const std::vector<Run>& runs, const std::vector<Camera>& cameras,
                             const Options& options) {
  std::vector<Slice> slices;
  std::vector<std::size_t> starts = {0};  // of each piece in `slices`
  std::int64_t rows = 0;
  for (std::size_t r = 0; r < runs.size(); ++r) {
    for (std::int64_t offset = 0; offset < runs[r].n; offset += kTile) {
      const auto n = static_cast<std::int32_t>(std::min<std::int64_t>(kTile, runs[r].n - offset));
      slices.push_back({r, offset, n});
      rows += n;
      if (rows >= kRowsPerPiece) {
        starts.push_back(slices.size());
        rows = 0;
      }
    }
  }
  if (starts.back() != slices.size()) starts.push_back(slices.size());
  std::vector<Piece> pieces(starts.size() - 1);
  pool.parallel_for(
      0, static_cast<std::int64_t>(pieces.size()), 1, [&](std::int64_t first, std::int64_t last) {
        const auto culler = std::make_unique<TileCuller>(geometry, cameras, options);
        for (std::int64_t p = first; p < last; ++p) {
          pieces[p].counts.assign(cameras.size(), 0);
          for (std::size_t s = starts[p]; s < starts[p + 1]; ++s)
            culler->cull(runs[slices[s].run], slices[s].offset, slices[s].n, &pieces[p]);
        }
      });
  return pieces;
}

std::int64_t total_visible(const std::vector<Piece>& pieces) {
  std::int64_t n = 0;
  for (const Piece& piece : pieces) n += static_cast<std::int64_t>(piece.ids.size());
  return n;
}

std::int64_t join_pieces(ThreadPool& pool, const std::vector<Piece>& pieces, bool sorted,
                         std::int64_t n_rows, int n_views, std::int32_t* ids, std::uint32_t* mask,
                         std::int32_t* counts) {
  const std::int64_t words = (n_views + 31) / 32;
  std::int64_t n_not_finite = 0;
  std::vector<std::int64_t> starts;
  std::fill(counts, counts + n_views, 0);
  for (const Piece& piece : pieces) {
    starts.push_back(starts.empty() ? 0 : starts.back() + (&piece - 1)->ids.size());
    for (int v = 0; v < n_views; ++v) counts[v] += static_cast<std::int32_t>(piece.counts[v]);
    n_not_finite += piece.n_not_finite;
  }
  const auto n_pieces = static_cast<std::int64_t>(pieces.size());
  if (sorted) {
    pool.parallel_for(0, n_pieces, 1, [&](std::int64_t p, std::int64_t) {
      std::copy(pieces[p].ids.begin(), pieces[p].ids.end(), ids + starts[p]);
      std::copy(pieces[p].mask.begin(), pieces[p].mask.end(), mask + starts[p] * words);
    });
    return n_not_finite;
  }
  // The rank of an id among the set bits is its place.
  std::vector<std::uint64_t> bits((n_rows + 63) / 64);
  std::vector<std::int64_t> before(bits.size());
  for (const Piece& piece : pieces)
    for (std::int32_t id : piece.ids) bits[id / 64] |= std::uint64_t{1} << (id % 64);
  std::int64_t sum = 0;
  for (std::size_t w = 0; w < bits.size(); ++w) {
    before[w] = sum;
    sum += __builtin_popcountll(bits[w]);
  }
  pool.parallel_for(0, n_pieces, 1, [&](std::int64_t p, std::int64_t) {
    for (std::size_t i = 0; i < pieces[p].ids.size(); ++i) {
      const std::int32_t id = pieces[p].ids[i];
      const std::uint64_t lower = (std::uint64_t{1} << (id % 64)) - 1;
      const std::int64_t at = before[id / 64] + __builtin_popcountll(bits[id / 64] & lower);
      ids[at] = id;
      std::copy_n(pieces[p].mask.data() + i * words, words, mask + at * words);
    }
  });
  return n_not_finite;
}

void mark_rows(ThreadPool& pool, const Geometry& geometry, const std::int32_t* ids,
               const std::uint32_t* mask, std::int64_t n, const std::vector<Camera>& cameras,
               const Options& options, bool* marks) {
  const auto n_words = static_cast<std::int64_t>((cameras.size() + 31) / 32);
  pool.parallel_for(0, n, kMarksPerTask, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      Row row;
      marks[i] = load(geometry, ids[i], options, &row) &&
                 one_sees(mask + i * n_words, cameras, row, options);
    }
  });
}

void box_rows(ThreadPool& pool, const Geometry& geometry, const std::int32_t* ids, std::int64_t n,
              const Camera& camera, const Options& options, float* boxes) {
  pool.parallel_for(0, n, 4096, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      Row row;
      Box box = {INFINITY, INFINITY, -INFINITY, -INFINITY};
      if (load(geometry, ids[i], options, &row) && passes_planes(camera, row))
        if (!box_of(camera, row, options, &box)) box = {INFINITY, INFINITY, -INFINITY, -INFINITY};
      const float values[4] = {box.x0, box.y0, box.x1, box.y1};
      std::copy_n(values, 4, boxes + 4 * i);
    }
  });
}

}  // namespace gs::cull
