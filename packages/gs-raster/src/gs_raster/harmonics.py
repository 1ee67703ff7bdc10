# SPDX-License-Identifier: Apache-2.0
"""Normalisation of the real spherical harmonics up to degree 3, named after their polynomials."""

# sqrt((2l+1)/(4 pi) (l-m)!/(l+m)!), times sqrt(2) for m > 0, and the polynomials' own factors.
L0 = 0.28209479177387814
L1 = 0.4886025119029199
L2_XY = 1.0925484305920792
L2_ZZ = 0.31539156525252005
L2_XX_YY = 0.5462742152960396
L3_X3 = 0.5900435899266435
L3_XYZ = 2.890611442640554
L3_XZZ = 0.4570457994644658
L3_ZZZ = 0.3731763325901154
L3_XXZ = 1.445305721320277
