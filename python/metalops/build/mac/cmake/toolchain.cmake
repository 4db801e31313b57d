# What CMake projects see in `python -m metalops build-mac`: Linux's tools and file formats, and APPLE.
list(APPEND CMAKE_PROJECT_INCLUDE "${CMAKE_CURRENT_LIST_DIR}/apple.cmake")
# Frameworks that find_library() looks for; the compiler's wrapper drops them.
list(APPEND CMAKE_LIBRARY_PATH "$ENV{METALOPS_BUILD_MAC}/frameworks")
