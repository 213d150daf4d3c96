# libgdn_cuda.so and gdn_cuda/_C, and where they are installed:
#     gdn_cuda/_C.*.so   gdn_cuda/lib/libgdn_cuda.so   gdn_cuda/lib/cmake/gdn_cuda/   gdn_cuda/include/gdn_cuda/**
gdn_find_pybind11()

# The search path of libtorch, for C++ programs; in Python it is already loaded. A wheel is beside torch in site-packages. An editable
# install runs from the source tree, so the libraries are built into it; a path to a torch in the same tree is relative.
set(gdn_torch_rpath "$ORIGIN/../../torch/lib")
if("${SKBUILD_STATE}" STREQUAL "editable")
  get_filename_component(gdn_package ${CMAKE_CURRENT_SOURCE_DIR}/gdn_cuda REALPATH)
  get_filename_component(gdn_torch ${GDN_TORCH_DIR} REALPATH)
  file(RELATIVE_PATH gdn_torch_rpath ${gdn_package}/lib ${gdn_torch}/lib)
  string(FIND "${gdn_torch_rpath}" "../../../" gdn_outside)
  if(gdn_outside EQUAL 0)
    set(gdn_torch_rpath "${gdn_torch}/lib")
  else()
    set(gdn_torch_rpath "$ORIGIN/${gdn_torch_rpath}")
  endif()
endif()

# Keeps paths of this machine, which assertions in headers insert by __FILE__, out of the libraries. The last matching option wins.
set(gdn_harden
  -ffile-prefix-map=${CMAKE_CURRENT_SOURCE_DIR}/= -ffile-prefix-map=${GDN_CUDA_INCLUDE}/= -ffile-prefix-map=${GDN_TORCH_DIR}/include/=
  -fstack-protector-strong -U_FORTIFY_SOURCE $<$<NOT:$<CONFIG:Debug>>:-D_FORTIFY_SOURCE=3>)  # fortify needs an optimizer

file(GLOB gdn_api_sources CONFIGURE_DEPENDS csrc/api.cpp csrc/operators/*.cpp csrc/families/*/*.cpp)
add_library(gdn_cuda SHARED ${gdn_api_sources})
target_compile_definitions(gdn_cuda PUBLIC TORCH_TARGET_VERSION=0x020a000000000000)  # the stable ABI as of torch 2.10
target_link_libraries(gdn_cuda PUBLIC gdn_core)
gdn_precompile_headers(gdn_cuda csrc/launch/spec.hpp csrc/operators/operator.hpp)
# DT_NEEDED has only names, so the torch that is installed at run time is used.
target_link_libraries(gdn_cuda PRIVATE -Wl,--no-as-needed ${GDN_TORCH_DIR}/lib/libtorch_cpu.so ${GDN_TORCH_DIR}/lib/libc10.so
                      -Wl,--as-needed)
target_link_options(gdn_cuda PRIVATE -Wl,--no-undefined -Wl,--version-script=${CMAKE_CURRENT_SOURCE_DIR}/cmake/exports.map)
set_target_properties(gdn_cuda PROPERTIES
  INSTALL_RPATH "${gdn_torch_rpath}"
  LINK_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/cmake/exports.map)

# Visible symbols are the functions of api.hpp, which are marked there, and the runtime (csrc/jit), which gdn_cuda._C controls.
set_target_properties(gdn_cuda PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
set_target_properties(gdn_core PROPERTIES VISIBILITY_INLINES_HIDDEN ON)
set_property(SOURCE ${gdn_launch_sources} APPEND PROPERTY COMPILE_OPTIONS -fvisibility=hidden)

pybind11_add_module(_C MODULE csrc/python_api.cpp csrc/python_explanation.cpp csrc/python_gil.cpp csrc/python_interrupt.cpp
                    csrc/python_operators.cpp csrc/python_tuning.cpp)
target_include_directories(_C PRIVATE include csrc)
target_include_directories(_C SYSTEM PRIVATE ${GDN_CUDA_INCLUDE})
target_compile_options(_C PRIVATE ${gdn_warnings})
target_link_libraries(_C PRIVATE $<TARGET_FILE:gdn_cuda>)
gdn_precompile_headers(_C <pybind11/functional.h> <pybind11/stl.h>)
add_dependencies(_C gdn_cuda)
set_target_properties(_C PROPERTIES INSTALL_RPATH "$ORIGIN/lib")

target_compile_options(gdn_core PRIVATE ${gdn_harden})
foreach(library gdn_cuda _C)
  target_compile_options(${library} PRIVATE ${gdn_harden})
  target_link_options(${library} PRIVATE -Wl,-z,relro -Wl,-z,now)
  # Linked with the installed RPATH: CMake would reserve room for a second path, and an empty entry means the current folder.
  set_target_properties(${library} PROPERTIES BUILD_WITH_INSTALL_RPATH ON)
endforeach()

if("${SKBUILD_STATE}" STREQUAL "editable")
  # Renamed into the source tree: a process that starts meanwhile finds either the old or the new libraries, both complete.
  set(gdn_here ${CMAKE_CURRENT_SOURCE_DIR}/gdn_cuda)
  add_custom_command(
    OUTPUT ${gdn_here}/lib/libgdn_cuda.so
    COMMAND ${CMAKE_COMMAND} -E make_directory ${gdn_here}/lib
    COMMAND ${CMAKE_COMMAND} -E copy $<TARGET_FILE:_C> ${gdn_here}/lib/_C.new
    COMMAND ${CMAKE_COMMAND} -E copy $<TARGET_FILE:gdn_cuda> ${gdn_here}/lib/libgdn_cuda.new
    COMMAND ${CMAKE_COMMAND} -E rename ${gdn_here}/lib/_C.new ${gdn_here}/$<TARGET_FILE_NAME:_C>
    COMMAND ${CMAKE_COMMAND} -E rename ${gdn_here}/lib/libgdn_cuda.new ${gdn_here}/lib/libgdn_cuda.so
    DEPENDS gdn_cuda _C
    VERBATIM)
  add_custom_target(in_place ALL DEPENDS ${gdn_here}/lib/libgdn_cuda.so)
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
