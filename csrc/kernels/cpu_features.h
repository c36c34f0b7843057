// SPDX-License-Identifier: Apache-2.0
//
// What the processor can execute and the operating system lets us use.
#pragma once

#include <cstdint>

namespace anvil::kernels {

// Groups as the instruction sets in isa/ need them; each implies the one before it.
struct CpuFeatures {
  bool avx2 = false;         // AVX2, FMA, F16C, BMI1, BMI2
  bool avx512 = false;       // AVX-512 F, BW, CD, DQ, VL
  bool avx512_bf16 = false;  // AVX-512 BF16
};

// The raw registers that the answer depends on. All zero on processors without CPUID.
struct CpuidRegisters {
  uint32_t leaf1_ecx = 0;
  uint32_t leaf7_ebx = 0;
  uint32_t leaf7_1_eax = 0;  // leaf 7, subleaf 1
  uint64_t xcr0 = 0;         // register state that the operating system saves; 0 without OSXSAVE
};

CpuidRegisters read_cpuid();

// Pure, so that tests can describe any machine.
CpuFeatures decode_cpu_features(const CpuidRegisters& registers);

// This machine's features, read once.
const CpuFeatures& cpu_features();

}  // namespace anvil::kernels
