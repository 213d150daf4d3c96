# Finds what the build needs through the Python interpreter. Not find_package(Torch): it asks for the CUDA toolkit, which nothing here needs.

set(gdn_python_parts Interpreter)
if(GDN_BUILD_LIBRARY)
  list(APPEND gdn_python_parts Development.Module)
endif()
find_package(Python 3.10 REQUIRED COMPONENTS ${gdn_python_parts})
find_package(Threads REQUIRED)

# The folder of an installed Python package, empty when there is none; does not import it.
function(gdn_python_package name result)
  execute_process(
    COMMAND ${Python_EXECUTABLE} -c "import importlib.util as u; s = u.find_spec('${name}'); print(next(iter(s.submodule_search_locations)) if s else '')"
    OUTPUT_VARIABLE folder OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  set(${result} "${folder}" PARENT_SCOPE)
endfunction()

macro(gdn_find_torch)
  if(NOT GDN_TORCH_DIR)
    gdn_python_package(torch gdn_torch_found)
    set(GDN_TORCH_DIR "${gdn_torch_found}" CACHE PATH "Folder of the torch package" FORCE)
  endif()
  if(NOT EXISTS "${GDN_TORCH_DIR}/include/fmt/format.h")
    message(FATAL_ERROR "torch: expected a package with headers for ${Python_EXECUTABLE}, found '${GDN_TORCH_DIR}'. "
                        "pip install torch, choose another interpreter with -DPython_EXECUTABLE=..., or set -DGDN_TORCH_DIR=...")
  endif()
endmacro()

# cuda.h: types of the driver interface only, nothing is linked. It comes with torch's CUDA wheels.
macro(gdn_find_cuda_header)
  get_filename_component(gdn_site "${GDN_TORCH_DIR}" DIRECTORY)
  find_path(GDN_CUDA_INCLUDE cuda.h
    HINTS ${gdn_site}/nvidia/cu13/include ${gdn_site}/nvidia/cuda_runtime/include $ENV{GDN_CUDA_HOME}/include $ENV{CUDA_HOME}/include
    PATHS /usr/local/cuda/include
    DOC "Folder of cuda.h")
  if(NOT GDN_CUDA_INCLUDE)
    message(FATAL_ERROR "cuda.h: expected it in ${gdn_site}/nvidia/cu13/include, ${gdn_site}/nvidia/cuda_runtime/include, CUDA_HOME or "
                        "/usr/local/cuda. pip install nvidia-cuda-runtime, or set -DGDN_CUDA_INCLUDE=...")
  endif()
endmacro()

macro(gdn_find_pybind11)
  if(NOT pybind11_DIR)
    execute_process(COMMAND ${Python_EXECUTABLE} -m pybind11 --cmakedir OUTPUT_VARIABLE gdn_pybind11_dir
                    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(gdn_pybind11_dir)
      set(pybind11_DIR "${gdn_pybind11_dir}" CACHE PATH "Folder of pybind11Config.cmake")
    endif()
  endif()
  set(PYBIND11_FINDPYTHON ON)
  find_package(pybind11 2.13 CONFIG REQUIRED)
endmacro()
