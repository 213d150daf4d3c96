# libgdn_cuda.so and gdn_cuda/_C, and where they are installed:
#     gdn_cuda/_C.*.so   gdn_cuda/lib/libgdn_cuda.so   gdn_cuda/lib/cmake/gdn_cuda/   gdn_cuda/include/gdn_cuda/**
gdn_find_pybind11()

# Python has loaded torch before us and needs no path to it; C++ programs do. Beside each other in site-packages.
set(gdn_library_rpath "$ORIGIN/../../torch/lib")

file(GLOB gdn_api_sources CONFIGURE_DEPENDS csrc/apis/*.cpp)
add_library(gdn_cuda SHARED ${gdn_api_sources})
target_compile_definitions(gdn_cuda PUBLIC TORCH_TARGET_VERSION=0x020a000000000000)  # the stable ABI as of torch 2.10
target_link_libraries(gdn_cuda PUBLIC gdn_core)
# By name in DT_NEEDED, whichever torch is there then; the version script keeps what we took from headers to ourselves.
target_link_libraries(gdn_cuda PRIVATE -Wl,--no-as-needed ${GDN_TORCH_DIR}/lib/libtorch_cpu.so ${GDN_TORCH_DIR}/lib/libc10.so
                      -Wl,--as-needed)
target_link_options(gdn_cuda PRIVATE -Wl,--no-undefined -Wl,--version-script=${CMAKE_CURRENT_SOURCE_DIR}/cmake/exports.map)
set_target_properties(gdn_cuda PROPERTIES
  INSTALL_RPATH "${gdn_library_rpath}"
  LINK_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/cmake/exports.map)

pybind11_add_module(_C MODULE csrc/python_api.cpp csrc/python_interrupt.cpp csrc/python_tuning.cpp)
target_include_directories(_C PRIVATE include csrc)
target_include_directories(_C SYSTEM PRIVATE ${GDN_CUDA_INCLUDE})
target_compile_options(_C PRIVATE -Wall -Wextra)
target_link_libraries(_C PRIVATE $<TARGET_FILE:gdn_cuda>)
add_dependencies(_C gdn_cuda)
set_target_properties(_C PROPERTIES INSTALL_RPATH "$ORIGIN/lib")

# An editable install runs from the source tree, so the libraries are built into it.
if("${SKBUILD_STATE}" STREQUAL "editable")
  set_target_properties(gdn_cuda PROPERTIES
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}/gdn_cuda/lib
    BUILD_RPATH "${GDN_TORCH_DIR}/lib")
  set_target_properties(_C PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}/gdn_cuda BUILD_RPATH "$ORIGIN/lib")
endif()

install(TARGETS gdn_cuda LIBRARY DESTINATION gdn_cuda/lib)
install(TARGETS _C LIBRARY DESTINATION gdn_cuda)
install(DIRECTORY include/gdn_cuda DESTINATION gdn_cuda/include)

include(CMakePackageConfigHelpers)
set(gdn_config_folder gdn_cuda/lib/cmake/gdn_cuda)
configure_package_config_file(cmake/gdn_cudaConfig.cmake.in ${CMAKE_CURRENT_BINARY_DIR}/gdn_cudaConfig.cmake
                              INSTALL_DESTINATION ${gdn_config_folder} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/gdn_cudaConfigVersion.cmake COMPATIBILITY SameMajorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/gdn_cudaConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/gdn_cudaConfigVersion.cmake
        DESTINATION ${gdn_config_folder})
