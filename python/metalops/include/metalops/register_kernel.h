// REGISTER_KERNEL("host_name", function, template arguments...) instantiates a kernel function
// template under the name by which the host finds it. The parameters are the function's own.
// <metalops/registration.h> includes this and has the macros for elementwise functors.
#pragma once

#define REGISTER_KERNEL(HOST_NAME, FUNCTION, ...) \
  template [[host_name(HOST_NAME)]] [[kernel]] decltype(FUNCTION<__VA_ARGS__>) FUNCTION<__VA_ARGS__>
