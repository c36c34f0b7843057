// SPDX-License-Identifier: Apache-2.0
//
// Baseline instructions of the target, always built: the oracle for the others.
#define ANVIL_ISA_NAMESPACE scalar
#define ANVIL_VECTOR_BYTES 8
#include "isa/table-inl.h"
