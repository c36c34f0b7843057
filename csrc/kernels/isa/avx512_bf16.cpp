// SPDX-License-Identifier: Apache-2.0
#if !defined(__AVX512BF16__) || !defined(__AVX512BW__) || !defined(__AVX512VL__)
#error "compile with the flags of avx512 and -mavx512bf16"
#endif
#define ANVIL_ISA_NAMESPACE avx512_bf16
#define ANVIL_VECTOR_BYTES 64
#include "isa/table-inl.h"
