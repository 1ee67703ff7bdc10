// SPDX-License-Identifier: Apache-2.0
// Arrays in device memory by their addresses. The Python modules have checked dtype, shape, device
// and strides of each; torch's allocator gives memory to others in the order of the stream.
#pragma once

#include <array>
#include <cstdint>
#include <tuple>
#include <utility>

#include "blend.hpp"
#include "rows.hpp"
#include "sort.hpp"
#include "view.hpp"

namespace gs::raster {

/// 0: there is no such array.
using Address = std::uintptr_t;

template <class T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

/// Address and pitch in floats.
using ColumnAt = std::pair<Address, std::int64_t>;

/// Means, scales, quats, opacities, sh0 and shN.
using ColumnsAt = std::array<ColumnAt, 6>;

template <class T>
Column<T> column(const ColumnAt& one) {
  return {at<T>(one.first), one.second};
}

/// Rows, and how many basis functions shN has.
class RowsAt {
 public:
  RowsAt(std::int64_t n, Address slots, Address sh_slots, const ColumnsAt& columns, int n_bases)
      : rows_{n,
              at<const std::int32_t>(slots),
              at<const std::int32_t>(sh_slots),
              column<const float>(columns[0]),
              column<const float>(columns[1]),
              column<const float>(columns[2]),
              column<const float>(columns[3]),
              column<const float>(columns[4]),
              column<const float>(columns[5]),
              n_bases} {}
  const Rows& rows() const { return rows_; }

 private:
  Rows rows_;
};

/// Where the gradients of rows go.
class RowGradientsAt {
 public:
  RowGradientsAt(Address skip, Address places, bool add, const ColumnsAt& columns)
      : gradients_{at<const std::int32_t>(skip),
                   at<const std::int32_t>(places),
                   add,
                   column<float>(columns[0]),
                   column<float>(columns[1]),
                   column<float>(columns[2]),
                   column<float>(columns[3]),
                   column<float>(columns[4]),
                   column<float>(columns[5])} {}
  const RowGradients& gradients() const { return gradients_; }

 private:
  RowGradients gradients_;
};

/// A view with the rules by which rows show in it. `options` are (antialiased, eps2d, near plane,
/// far plane, radius clip).
class ProjectionAt {
 public:
  using Rules = std::tuple<bool, float, float, float, float>;
  ProjectionAt(Address viewmat, Address K, int width, int height, const Rules& options,
               int sh_degree)
      : view_{at<const float>(viewmat), at<const float>(K), width, height},
        options_{std::get<0>(options), std::get<1>(options), std::get<2>(options),
                 std::get<3>(options), std::get<4>(options)},
        sh_degree_(sh_degree) {}
  const View& view() const { return view_; }
  const Options& options() const { return options_; }
  int sh_degree() const { return sh_degree_; }

 private:
  View view_;
  Options options_;
  int sh_degree_;
};

/// A workspace: address and bytes.
using Workspace = std::pair<Address, std::size_t>;

/// x0, y0, x1, y1.
using Corners = std::array<int, 4>;

inline Rect rect_of(const Corners& corners) {
  return {corners[0], corners[1], corners[2], corners[3]};
}

/// The tile lists of a rectangle; `room` is the number of instances that the arrays hold.
class TileListsAt {
 public:
  TileListsAt(const Corners& rect, std::int64_t room, Address begins, Address splats, Address slots,
              Address firsts, Address counts)
      : rect_(rect_of(rect)),
        lists_{room,
               at<std::uint32_t>(begins),
               at<std::int32_t>(splats),
               at<std::int32_t>(slots),
               at<std::uint32_t>(firsts),
               at<std::uint32_t>(counts)} {}
  const Rect& rect() const { return rect_; }
  const TileLists& lists() const { return lists_; }

 private:
  Rect rect_;
  TileLists lists_;
};

/// Sums of density control: grad2d, count, extents, scales of x and y, absgrad.
using StatisticsAt = std::tuple<Address, Address, Address, float, float, bool>;

inline Statistics statistics_of(const StatisticsAt& sums, Address radii) {
  const auto [grad2d, count, extents, scale_x, scale_y, absgrad] = sums;
  return {at<float>(grad2d),
          at<float>(count),
          at<float>(extents),
          at<const std::int32_t>(radii),
          scale_x,
          scale_y,
          absgrad};
}

}  // namespace gs::raster
