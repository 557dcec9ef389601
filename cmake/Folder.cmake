# haversack_folder(NAME LINK targets...)
# Library haversack_NAME from src/NAME/*.cc, test NAME_test from src/NAME/*_test.cc and benchmark
# NAME_benchmark from src/NAME/*_benchmark.cc. A new file needs no line here.
include(GoogleTest)

set(HAVERSACK_WARNINGS -Wall -Wextra -Werror)

function(haversack_folder name)
  cmake_parse_arguments(ARG "" "" "LINK" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${name}/*.cc)
  set(tests ${sources})
  set(benchmarks ${sources})
  # A backend is one of several translation units with the same declarations; its CMake line picks it.
  list(FILTER sources EXCLUDE REGEX "_(test|benchmark)\\.cc$|/gemm_(mkl|aten)\\.cc$")
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  list(FILTER benchmarks INCLUDE REGEX "_benchmark\\.cc$")

  add_library(haversack_${name} STATIC ${sources})
  target_include_directories(haversack_${name} PUBLIC ${CMAKE_SOURCE_DIR}/src)
  target_compile_options(haversack_${name} PRIVATE ${HAVERSACK_WARNINGS})
  target_link_libraries(haversack_${name} PUBLIC ${ARG_LINK})

  if(tests)
    add_executable(${name}_test ${tests})
    target_compile_options(${name}_test PRIVATE ${HAVERSACK_WARNINGS})
    target_link_libraries(${name}_test PRIVATE haversack_${name} GTest::gtest_main)
    gtest_discover_tests(${name}_test TEST_PREFIX "${name}." DISCOVERY_MODE PRE_TEST
                         PROPERTIES TIMEOUT 300)
  endif()
  if(benchmarks)
    add_executable(${name}_benchmark ${benchmarks})
    target_link_libraries(${name}_benchmark PRIVATE haversack_${name} benchmark::benchmark_main)
  endif()
endfunction()

# The matrix product of src/kernels/gemm.h: MKL called directly, or LibTorch's operators.
function(haversack_use_gemm_backend)
  if(HAVERSACK_TORCH_EXPORTS_SGEMM)
    target_sources(haversack_kernels PRIVATE ${CMAKE_SOURCE_DIR}/src/kernels/gemm_mkl.cc)
  else()
    set(backend ${CMAKE_SOURCE_DIR}/src/kernels/gemm_aten.cc)
    target_sources(haversack_kernels PRIVATE ${backend})
    # For this file alone: LibTorch's include folder carries another version of fmt.
    set_source_files_properties(${backend} PROPERTIES COMPILE_OPTIONS
      "-Wno-error;-isystem;${HAVERSACK_TORCH}/include;-isystem;${HAVERSACK_TORCH}/include/torch/csrc/api/include")
  endif()
endfunction()
