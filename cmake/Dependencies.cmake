# Packaged libraries: docs/dependencies.md says why each is here; `make setup` installs them.
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(ZLIB REQUIRED)
find_package(GTest REQUIRED)
find_package(benchmark REQUIRED)
find_package(MPI REQUIRED COMPONENTS C)
pkg_check_modules(HWY REQUIRED IMPORTED_TARGET libhwy)
pkg_check_modules(CBC REQUIRED IMPORTED_TARGET cbc)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
pkg_check_modules(ZSTD REQUIRED IMPORTED_TARGET libzstd)

# LibTorch from the wheel in .venv. Not find_package(Torch): that one insists on the CUDA and MKL of
# the machine that built the wheel.
set(HAVERSACK_TORCH "" CACHE PATH "The `torch` package's folder; default: the one in .venv")
if(NOT HAVERSACK_TORCH)
  file(GLOB torch_candidates ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
  if(NOT torch_candidates)
    message(FATAL_ERROR "No torch wheel in .venv: run `make setup`, or pass -DHAVERSACK_TORCH=DIR")
  endif()
  list(GET torch_candidates 0 HAVERSACK_TORCH)
endif()
set(torch_lib ${HAVERSACK_TORCH}/lib)

# One OpenMP runtime in the process: the one the wheel brings (its name carries a hash in some builds).
file(GLOB torch_gomp ${torch_lib}/libgomp*.so* ${HAVERSACK_TORCH}/../torch.libs/libgomp*.so*)
if(NOT torch_gomp)
  message(FATAL_ERROR "The torch wheel in ${HAVERSACK_TORCH} has no libgomp")
endif()
list(GET torch_gomp 0 torch_gomp)
get_filename_component(torch_gomp_folder ${torch_gomp} DIRECTORY)

add_library(torch_openmp INTERFACE)
target_link_libraries(torch_openmp INTERFACE ${torch_gomp})
target_link_options(torch_openmp INTERFACE -Wl,-rpath,${torch_lib} -Wl,-rpath,${torch_gomp_folder})

add_library(torch_cpu INTERFACE)
target_link_libraries(torch_cpu INTERFACE torch_openmp ${torch_lib}/libtorch_cpu.so
                                          ${torch_lib}/libc10.so)

# The wheel's MKL, called directly where the wheel exports it (src/kernels/gemm_mkl.cc); through
# at::addmm_out elsewhere (src/kernels/gemm_aten.cc).
include(CheckCXXSourceCompiles)
set(CMAKE_REQUIRED_LIBRARIES ${torch_lib}/libtorch_cpu.so ${torch_lib}/libc10.so ${torch_gomp})
set(CMAKE_REQUIRED_LINK_OPTIONS -Wl,-rpath,${torch_lib} -Wl,-rpath,${torch_gomp_folder})
check_cxx_source_compiles(
  "extern \"C\" void SGEMM(); int main() { SGEMM(); }" HAVERSACK_TORCH_EXPORTS_SGEMM)
unset(CMAKE_REQUIRED_LIBRARIES)
unset(CMAKE_REQUIRED_LINK_OPTIONS)
