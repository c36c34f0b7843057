// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/empty.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include "activation/activation_args.h"
#include "dispatch.h"
#include "experts/expert_plan.h"
#include "ops/checks.h"
#include "ops/launch.h"
#include "ops/packed_weight.h"

namespace anvil::ops {
namespace {

constexpr Checks kCheck("anvil::mixture_of_experts");

// Tokens go through the experts a few hundred at a time: enough for weights to be read seldom, few
// enough for what lies between the products to stay small. At least so many, and as many as fit:
constexpr int64_t kLeastTokens = 64;
constexpr int64_t kWorkspaceBytes = 128 << 20;

kernels::Gate gate_of(std::string_view name) {
  if (name == "silu") return kernels::Gate::kSilu;
  if (name == "gelu") return kernels::Gate::kGelu;
  TORCH_CHECK_VALUE(name == "gelu_tanh", kCheck.op(),
                    ": activation must be silu, gelu or gelu_tanh, but is ", name);
  return kernels::Gate::kGeluTanh;
}

// That a tensor has the packed weights [columns, depth] of experts, one behind the other.
kernels::ElementType check_experts(const at::Tensor& packed, const char* name, int64_t columns,
                                   int64_t depth) {
  const kernels::ElementType type = kCheck.float_type(packed, name);
  std::vector<int64_t> shape = packed_shape(type, columns, depth);
  shape.insert(shape.begin(), packed.dim() > 0 ? packed.size(0) : 0);
  TORCH_CHECK_VALUE(
      packed.sizes() == shape && packed.is_contiguous(), kCheck.op(), ": ", name,
      " must be what anvil::pack_linear makes of the ", packed.scalar_type(), " weights [", columns,
      ", ", depth, "] of experts, one behind the other: ", at::IntArrayRef(shape),
      ", contiguous; but its shape is ", packed.sizes(), " and its strides are ", packed.strides());
  return type;
}

int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// What a pass over some tokens is made of.
struct Pass {
  kernels::PackedLinearArgs gate_up, down;
  kernels::ExpertChoices chosen;
  kernels::CombineRowsArgs combine;
  int64_t gate_up_bytes, down_bytes;  // of an expert
  int64_t intermediate;
  kernels::Gate gate;
  int64_t gathered_row, gate_up_row, gated_row, down_row;  // bytes; gated_row may be 0

  int64_t row_bytes() const { return gathered_row + gate_up_row + gated_row + down_row; }

  int64_t bytes(int64_t tokens) const {
    const int64_t rows = tokens * chosen.choices;
    return kernels::expert_plan_bytes(tokens, chosen.choices, chosen.experts) +
           aligned(rows * gathered_row) + aligned(rows * gate_up_row) + aligned(rows * gated_row) +
           aligned(rows * down_row);
  }
};

// Computes the tokens [first, first + count).
void run(const Pass& pass, c10::Device device, char* workspace, int64_t first, int64_t count) {
  const kernels::KernelTable& table = kernels::active_table();
  kernels::ExpertChoices chosen = pass.chosen;
  const int64_t id_bytes = chosen.ids_are_int32 ? 4 : 8;
  chosen.ids = static_cast<const char*>(chosen.ids) + first * chosen.ids_stride * id_bytes;
  chosen.tokens = count;
  const kernels::ExpertPlan plan = kernels::plan_experts(chosen, workspace);
  workspace += kernels::expert_plan_bytes(count, chosen.choices, chosen.experts);
  const auto take = [&](int64_t row_bytes) {
    char* const piece = workspace;
    workspace += aligned(count * chosen.choices * row_bytes);
    return piece;
  };

  const auto multiply = [&](const kernels::PackedLinearArgs& product, int64_t expert_bytes) {
    const kernels::ExpertProductArgs args = {product, expert_bytes, plan.blocks, plan.num_blocks};
    const int64_t strip_bytes = expert_bytes / std::max<int64_t>(1, strips_of(product.columns));
    for_ranges(device, kernels::product_cost(plan, product.columns), grain_of(strip_bytes / 8),
               [&](int64_t begin, int64_t end) { table.expert_product(args, begin, end); });
  };

  kernels::PackedLinearArgs gate_up = pass.gate_up;
  const int64_t element = gate_up.input_type == kernels::ElementType::kFloat32 ? 4 : 2;
  gate_up.input = static_cast<const char*>(gate_up.input) + first * gate_up.input_stride * element;
  gate_up.rows = plan.rows;
  gate_up.prepared = take(pass.gathered_row);
  auto* const between = reinterpret_cast<float*>(take(pass.gate_up_row));
  gate_up.output = between;
  const kernels::GatherRowsArgs gather = {gate_up, plan.token_of_row};
  for_ranges(device, plan.rows, grain_of(2 * pass.gathered_row),
             [&](int64_t begin, int64_t end) { table.gather_expert_rows(gather, begin, end); });
  multiply(gate_up, pass.gate_up_bytes);

  kernels::PackedLinearArgs down = pass.down;
  down.input = between;
  down.rows = plan.rows;
  if (pass.gated_row > 0) down.prepared = take(pass.gated_row);
  const kernels::Rows rows = {
      between, kernels::ElementType::kFloat32, 1, {plan.rows}, {2 * pass.intermediate}};
  const kernels::GateAndMulArgs gate = {rows, rows, pass.intermediate, pass.gate};
  // The first half of a row becomes the product of both.
  for_ranges(device, plan.rows, grain_of(2 * pass.gate_up_row), [&](int64_t begin, int64_t end) {
    table.gate_and_mul(gate, begin, end);
    if (pass.gated_row > 0) table.prepare_linear_input(down, begin, end);
  });
  auto* const results = reinterpret_cast<float*>(take(pass.down_row));
  down.output = results;
  multiply(down, pass.down_bytes);

  kernels::CombineRowsArgs combine = pass.combine;
  combine.rows = results;
  combine.row_of_choice = plan.row_of_choice;
  combine.weights += first * combine.weights_stride;
  const int64_t output_element = combine.output_type == kernels::ElementType::kFloat32 ? 4 : 2;
  combine.output = static_cast<char*>(combine.output) + first * combine.size * output_element;
  for_ranges(device, count, grain_of((chosen.choices + 1) * pass.down_row),
             [&](int64_t begin, int64_t end) { table.combine_expert_rows(combine, begin, end); });
}

void check_choices(const at::Tensor& tensor, const char* name, const at::Tensor& input) {
  kCheck.device(tensor, name, input.device());
  kCheck.dim(tensor, name, 2);
  kCheck.last_dim_contiguous(tensor, name);
  TORCH_CHECK_VALUE(tensor.size(0) == input.size(0), kCheck.op(), ": ", name, " has ",
                    tensor.size(0), " rows for ", input.size(0), " tokens");
}

at::Tensor mixture_of_experts(const at::Tensor& input, const at::Tensor& gate_up,
                              const at::Tensor& down, const at::Tensor& weights,
                              const at::Tensor& ids, int64_t intermediate,
                              std::string_view activation,
                              const std::optional<at::Tensor>& expert_map,
                              std::optional<at::ScalarType> input_dtype,
                              const std::optional<at::Tensor>& rows_in_use, bool keep_remainders) {
  const c10::Device device = input.device();
  const kernels::ElementType type = kCheck.float_type(input, "input");
  kCheck.dim(input, "input", 2);
  kCheck.at_least(intermediate, "intermediate", 1);
  const int64_t tokens = input.size(0), depth = input.size(1);
  TORCH_CHECK_VALUE(depth > 0, kCheck.op(), ": input has no columns");
  kCheck.device(gate_up, "gate_up", device);
  kCheck.device(down, "down", device);
  const kernels::ElementType weight_type =
      check_experts(gate_up, "gate_up", 2 * intermediate, depth);
  check_experts(down, "down", depth, intermediate);
  kCheck.dtype(down, "down", gate_up.scalar_type());
  const int64_t experts = gate_up.size(0);
  TORCH_CHECK_VALUE(experts > 0 && down.size(0) == experts, kCheck.op(), ": gate_up has ", experts,
                    " experts and down has ", down.size(0));
  const kernels::InputRounding rounding =
      input_rounding(kCheck, gate_up.scalar_type(), input_dtype, keep_remainders);
  kCheck.dtype(weights, "weights", at::kFloat);
  kCheck.index_type(ids, "ids");
  check_choices(weights, "weights", input);
  check_choices(ids, "ids", input);
  const int64_t choices = ids.size(1);
  TORCH_CHECK_VALUE(weights.size(1) == choices, kCheck.op(), ": weights has ", weights.size(1),
                    " choices, but ids has ", choices);
  const at::Tensor map = expert_map.value_or(at::Tensor());
  if (map.defined()) {
    kCheck.index_array(map, "expert_map", at::kInt);
    kCheck.device(map, "expert_map", device);
  }
  const at::Tensor in_use = rows_in_use.value_or(at::Tensor());
  if (in_use.defined()) kCheck.rows_in_use(in_use, device);

  const kernels::Gate gate = gate_of(activation);
  const at::Tensor rows = depth <= 1 || input.stride(1) == 1 ? input : input.contiguous();
  at::Tensor output = at::empty({tokens, depth}, input.options());
  if (tokens == 0) return output;

  const kernels::KernelTable& table = kernels::active_table();
  Pass pass = {
      .gate_up = {.input = rows.const_data_ptr(),
                  .input_stride = rows.stride(0),
                  .input_type = type,
                  .weight = gate_up.const_data_ptr(),
                  .weight_type = weight_type,
                  .bias = nullptr,
                  .bias_type = type,
                  .output = nullptr,
                  .output_type = kernels::ElementType::kFloat32,
                  .rows = 0,
                  .columns = 2 * intermediate,
                  .depth = depth,
                  .row_blocks = 0,
                  .rounding = rounding},
      .down = {.input = nullptr,
               .input_stride = 2 * intermediate,
               .input_type = kernels::ElementType::kFloat32,
               .weight = down.const_data_ptr(),
               .weight_type = weight_type,
               .bias = nullptr,
               .bias_type = type,
               .output = nullptr,
               .output_type = kernels::ElementType::kFloat32,
               .rows = 0,
               .columns = depth,
               .depth = intermediate,
               .row_blocks = 0,
               .rounding = rounding},
      .chosen = {.ids = ids.const_data_ptr(),
                 .ids_are_int32 = ids.scalar_type() == at::kInt,
                 .ids_stride = ids.stride(0),
                 .tokens = 0,
                 .choices = choices,
                 .expert_map = map.defined() ? map.const_data_ptr<int32_t>() : nullptr,
                 .numbers = map.defined() ? map.size(0) : experts,
                 .experts = experts},
      .combine = {.rows = nullptr,
                  .row_of_choice = nullptr,
                  .weights = weights.const_data_ptr<float>(),
                  .weights_stride = weights.stride(0),
                  .output = output.mutable_data_ptr(),
                  .output_type = type,
                  .choices = choices,
                  .size = depth},
      .gate_up_bytes = static_cast<int64_t>(gate_up.nbytes()) / experts,
      .down_bytes = static_cast<int64_t>(down.nbytes()) / experts,
      .intermediate = intermediate,
      .gate = gate,
      .gathered_row = 0,
      .gate_up_row = 2 * intermediate * 4,
      .gated_row = 0,
      .down_row = depth * 4,
  };
  pass.gathered_row = table.expert_row_bytes(pass.gate_up);
  pass.gated_row = table.linear_input_bytes(pass.down);
  const int64_t token_bytes = std::max<int64_t>(1, choices * pass.row_bytes());
  const int64_t fitting = std::max(kLeastTokens, kWorkspaceBytes / token_bytes);
  const int64_t passes = (tokens + fitting - 1) / fitting;
  const int64_t largest = (tokens + passes - 1) / passes;
  const at::Tensor workspace = at::empty({pass.bytes(largest)}, input.options().dtype(at::kByte));
  char* const memory = static_cast<char*>(workspace.mutable_data_ptr());
  const int32_t* limit = in_use.defined() ? in_use.const_data_ptr<int32_t>() : nullptr;
  launch(kCheck.op(), device, {rows, gate_up, down, weights, ids, map, in_use}, {output, workspace},
         [=] {
           const int64_t count = limit == nullptr ? tokens : std::clamp<int64_t>(*limit, 0, tokens);
           for (int64_t first = 0; first < count; first += largest) {
             run(pass, device, memory, first, std::min(largest, count - first));
           }
         });
  return output;
}

ANVIL_OPS(m) { m.impl("mixture_of_experts", &mixture_of_experts); }

}  // namespace
}  // namespace anvil::ops
