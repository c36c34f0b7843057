// SPDX-License-Identifier: Apache-2.0
#if !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__) || !defined(__BMI2__)
#error "compile with -mavx2 -mfma -mf16c -mbmi -mbmi2"
#endif
#define ANVIL_ISA_NAMESPACE avx2
#define ANVIL_VECTOR_BYTES 32
#include "isa/table-inl.h"
