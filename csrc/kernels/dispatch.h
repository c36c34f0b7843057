// SPDX-License-Identifier: Apache-2.0
//
// Picks the instruction set at run time: the best that this machine can run, or what ANVIL_ISA
// says.
#pragma once

#include <string_view>
#include <vector>

#include "kernel_table.h"

namespace anvil::kernels {

// The table that ops use. ANVIL_ISA is read at the first call and fixed from then on. Throws
// std::invalid_argument, which lists the choices, when it names a set that is unknown, was not
// built or cannot run here; the next call then reads it again.
const KernelTable& active_table();

// Name of active_table(); throws as it does.
std::string_view active_isa();

// Names of the tables that this machine can run, best first; "scalar" is always the last.
std::vector<std::string_view> supported_isas();

// The table of that name, or nullptr when this machine or this build has none.
const KernelTable* table_for(std::string_view isa);

// What active_table() would be if ANVIL_ISA were `requested` ("" for unset).
const KernelTable& select_table(std::string_view requested);

}  // namespace anvil::kernels
