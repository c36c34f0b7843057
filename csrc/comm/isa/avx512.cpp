// SPDX-License-Identifier: Apache-2.0
#define ANVIL_COMM_ISA avx512
#include "reduce-inl.h"
