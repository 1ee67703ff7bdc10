// SPDX-License-Identifier: Apache-2.0
// A view's camera in the form that every row needs it.
#pragma once

#include "vec3.cuh"
#include "view.hpp"

namespace gs::raster {

/// A pinhole camera at x_camera = W x + t. A row's place in the camera and its direction from the
/// camera are differences of coordinates that may be far larger: both begin in float64.
struct Camera {
  Double3 across, down, ahead;  // the rows of W
  Double3 shift;                // t
  Double3 centre;               // of projection, in the world
  Float3 right, below, front;   // the rows of W again
  float fx, fy, cx, cy;         // pixels
  // x / z and y / z beyond which the projection's Jacobian is held, 15 % outside of the image.
  float least_x, most_x, least_y, most_y;
  float width, height;
  bool is_valid;  // a faulty view shows nothing
};

/// W^-1 (-t), with the rows of W^-1's transpose as cross products of the rows of W (Cramer's rule).
GS_RASTER_HD Double3 centre_of_projection(const Double3& across, const Double3& down,
                                          const Double3& ahead, const Double3& shift) {
  const Double3 by_x = cross(down, ahead);
  const Double3 sum =
      by_x * shift.x + cross(ahead, across) * shift.y + cross(across, down) * shift.z;
  return sum * (-1.0 / dot(across, by_x));
}

/// viewmat: (4, 4); K: (3, 3).
GS_RASTER_HD Camera make_camera(const float* viewmat, const float* K, int width, int height) {
  Camera camera;
  camera.right = {viewmat[0], viewmat[1], viewmat[2]};
  camera.below = {viewmat[4], viewmat[5], viewmat[6]};
  camera.front = {viewmat[8], viewmat[9], viewmat[10]};
  camera.across = {viewmat[0], viewmat[1], viewmat[2]};
  camera.down = {viewmat[4], viewmat[5], viewmat[6]};
  camera.ahead = {viewmat[8], viewmat[9], viewmat[10]};
  camera.shift = {viewmat[3], viewmat[7], viewmat[11]};
  camera.centre = centre_of_projection(camera.across, camera.down, camera.ahead, camera.shift);
  camera.fx = K[0];
  camera.fy = K[4];
  camera.cx = K[2];
  camera.cy = K[5];
  camera.width = static_cast<float>(width);
  camera.height = static_cast<float>(height);
  const float margin_x = 0.15f * camera.width, margin_y = 0.15f * camera.height;
  camera.least_x = (-camera.cx - margin_x) / camera.fx;
  camera.most_x = (camera.width - camera.cx + margin_x) / camera.fx;
  camera.least_y = (-camera.cy - margin_y) / camera.fy;
  camera.most_y = (camera.height - camera.cy + margin_y) / camera.fy;

  double pose = 0.0;
  for (int k = 0; k < 16; ++k) pose += fabs(static_cast<double>(viewmat[k]));
  const Double3& centre = camera.centre;
  camera.is_valid =
      is_finite(pose) && is_finite(fabs(centre.x) + fabs(centre.y) + fabs(centre.z)) &&
      is_finite(camera.fx) && is_finite(camera.fy) && camera.fx != 0.0f && camera.fy != 0.0f;
  return camera;
}

/// Where a point is from the camera: x right, y down, z forward.
GS_RASTER_HD Float3 to_camera(const Camera& camera, const Float3& point) {
  const Double3 p{point.x, point.y, point.z};
  return to_float(Double3{dot(camera.across, p), dot(camera.down, p), dot(camera.ahead, p)} +
                  camera.shift);
}

/// From the camera to a point, in the world.
GS_RASTER_HD Float3 from_camera(const Camera& camera, const Float3& point) {
  return to_float(Double3{point.x, point.y, point.z} - camera.centre);
}

}  // namespace gs::raster
