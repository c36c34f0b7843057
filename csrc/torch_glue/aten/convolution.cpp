// SPDX-License-Identifier: Apache-2.0
// Convolutions. On a backend outside PyTorch's tree `convolution` ends in an op of its own for the
// backend to implement, before any CPU kernel could be found; these lead back to the CPU's.
#include <torch/library.h>

#include "aten/fallback.h"

namespace anvil {
namespace {

c10::OperatorHandle find(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
}

void convolution(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/,
                 torch::jit::Stack* stack) {
  static FallbackOp fallback(op, find("aten::convolution"));
  fallback.call(stack);
}

// convolution_backward takes one argument more: the sizes of the bias, or none when its gradient is
// not wanted.
void convolution_backward(const c10::OperatorHandle& /*op*/, c10::DispatchKeySet /*keys*/,
                          torch::jit::Stack* stack) {
  static const c10::OperatorHandle kernel = find("aten::convolution_backward");
  static FallbackOp fallback(kernel, kernel);
  constexpr size_t kWeight = 2;
  constexpr size_t kTransposed = 6;
  constexpr size_t kGroups = 8;
  constexpr size_t kMask = 9;
  constexpr std::ptrdiff_t kBiasPosition = 3;
  const auto begin =
      stack->end() - static_cast<std::ptrdiff_t>(kernel.schema().arguments().size() - 1);
  const bool wants_bias = begin[kMask].toBoolList().get(2);
  c10::IValue bias_sizes;
  if (wants_bias) {
    const at::Tensor& weight = begin[kWeight].toTensor();
    const int64_t outputs =
        begin[kTransposed].toBool() ? weight.size(1) * begin[kGroups].toInt() : weight.size(0);
    bias_sizes = c10::List<int64_t>({outputs});
  }
  stack->insert(begin + kBiasPosition, bias_sizes);
  fallback.call(stack);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("convolution_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolution>());
  m.impl("convolution_backward_overrideable",
         torch::CppFunction::makeFromBoxedFunction<&convolution_backward>());
}

}  // namespace
}  // namespace anvil
