// SPDX-License-Identifier: Apache-2.0
#if !defined(__AVX512F__) || !defined(__AVX512BW__) || !defined(__AVX512CD__) || \
    !defined(__AVX512DQ__) || !defined(__AVX512VL__)
#error "compile with -mavx512f -mavx512bw -mavx512cd -mavx512dq -mavx512vl"
#endif
#define ANVIL_ISA_NAMESPACE avx512
#define ANVIL_VECTOR_BYTES 64
#include "isa/table-inl.h"
