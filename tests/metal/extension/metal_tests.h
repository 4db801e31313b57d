// Parameters shared by metal_tests.metal and metal_tests.mm.
#pragma once

struct AffineParams {
  float scale;
  float shift;
};
