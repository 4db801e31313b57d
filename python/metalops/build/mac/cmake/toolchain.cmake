# What CMake projects see in `python -m metalops build-mac`: Linux's tools and file formats, and APPLE.

# CMake reads this file several times, and before 3.29 CMAKE_PROJECT_INCLUDE is one file and not a list.
set(METALOPS_APPLE "${CMAKE_CURRENT_LIST_DIR}/apple.cmake")
if(CMAKE_PROJECT_INCLUDE AND NOT CMAKE_PROJECT_INCLUDE STREQUAL METALOPS_APPLE)
  set(METALOPS_PROJECT_INCLUDE "${CMAKE_PROJECT_INCLUDE}")
endif()
set(CMAKE_PROJECT_INCLUDE "${METALOPS_APPLE}")
# Frameworks that find_library() looks for; the compiler's wrapper drops them.
list(APPEND CMAKE_LIBRARY_PATH "$ENV{METALOPS_BUILD_MAC}/frameworks")
