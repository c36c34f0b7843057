// SPDX-License-Identifier: Apache-2.0
#define ANVIL_COMM_ISA baseline
#include "reduce-inl.h"
