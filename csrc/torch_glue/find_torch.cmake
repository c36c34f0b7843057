# SPDX-License-Identifier: Apache-2.0
# Finds torch: TORCH_INSTALL_PREFIX, TORCH_INCLUDE_DIRS and the targets torch, torch_cpu and c10.
#
# The package that torch brings ends the configuration of a build for CUDA where the CUDA toolkit is
# missing, as it is beside most wheels. Nothing of CUDA is used here, so there the libraries and
# headers of torch's CPU half are taken as they lie.
find_path(ANVIL_TORCH_CONFIG Torch/TorchConfig.cmake NO_CACHE REQUIRED)
get_filename_component(TORCH_INSTALL_PREFIX "${ANVIL_TORCH_CONFIG}/../.." ABSOLUTE)
if(NOT EXISTS "${TORCH_INSTALL_PREFIX}/lib/libtorch_cuda.so")
  find_package(Torch REQUIRED)
  return()
endif()

message(STATUS "torch in ${TORCH_INSTALL_PREFIX}, without the CUDA toolkit")
set(TORCH_INCLUDE_DIRS "${TORCH_INSTALL_PREFIX}/include"
                       "${TORCH_INSTALL_PREFIX}/include/torch/csrc/api/include")
foreach(library c10 torch_cpu torch)
  add_library(${library} SHARED IMPORTED)
  set_target_properties(${library} PROPERTIES
    IMPORTED_LOCATION "${TORCH_INSTALL_PREFIX}/lib/lib${library}.so"
    INTERFACE_INCLUDE_DIRECTORIES "${TORCH_INCLUDE_DIRS}")
endforeach()
# As torch was compiled itself: some headers declare more with these.
set_target_properties(torch_cpu PROPERTIES
  INTERFACE_COMPILE_DEFINITIONS "USE_DISTRIBUTED;USE_C10D_GLOO;USE_RPC;USE_TENSORPIPE"
  INTERFACE_LINK_LIBRARIES c10)
set_target_properties(torch PROPERTIES INTERFACE_LINK_LIBRARIES torch_cpu)
