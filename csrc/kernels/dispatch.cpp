// SPDX-License-Identifier: Apache-2.0
#include "dispatch.h"

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "cpu_features.h"

namespace anvil::kernels {

namespace scalar {
extern const KernelTable table;
}
#if defined(ANVIL_X86_TABLES)
namespace avx2 {
extern const KernelTable table;
}
namespace avx512 {
extern const KernelTable table;
}
namespace avx512_bf16 {
extern const KernelTable table;
}
#endif

namespace {

constexpr std::string_view kKnownIsas[] = {"avx512_bf16", "avx512", "avx2", "scalar"};

std::vector<const KernelTable*> runnable_tables() {
  std::vector<const KernelTable*> tables;
#if defined(ANVIL_X86_TABLES)
  const CpuFeatures& features = cpu_features();
  if (features.avx512_bf16) tables.push_back(&avx512_bf16::table);
  if (features.avx512) tables.push_back(&avx512::table);
  if (features.avx2) tables.push_back(&avx2::table);
#endif
  tables.push_back(&scalar::table);
  return tables;
}

std::string refusal(std::string_view requested) {
  const bool known = std::ranges::find(kKnownIsas, requested) != std::end(kKnownIsas);
  std::string message =
      "ANVIL_ISA=" + std::string(requested) +
      (known ? ": this machine cannot run that instruction set" : ": no such instruction set") +
      "; choose one of ";
  const std::vector<std::string_view> choices = supported_isas();
  for (size_t i = 0; i < choices.size(); ++i) {
    message.append(i ? ", " : "").append(choices[i]);
  }
  return message + ", or unset ANVIL_ISA to get " + std::string(choices.front());
}

}  // namespace

std::vector<std::string_view> supported_isas() {
  std::vector<std::string_view> names;
  for (const KernelTable* table : runnable_tables()) names.emplace_back(table->isa);
  return names;
}

const KernelTable* table_for(std::string_view isa) {
  for (const KernelTable* table : runnable_tables()) {
    if (isa == table->isa) return table;
  }
  return nullptr;
}

const KernelTable& select_table(std::string_view requested) {
  if (requested.empty()) return *runnable_tables().front();
  const KernelTable* table = table_for(requested);
  if (table == nullptr) throw std::invalid_argument(refusal(requested));
  return *table;
}

const KernelTable& active_table() {
  static const KernelTable& table = []() -> const KernelTable& {
    const char* requested = std::getenv("ANVIL_ISA");
    return select_table(requested == nullptr ? "" : requested);
  }();
  return table;
}

std::string_view active_isa() { return active_table().isa; }

}  // namespace anvil::kernels
