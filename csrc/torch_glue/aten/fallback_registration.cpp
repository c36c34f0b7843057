// SPDX-License-Identifier: Apache-2.0
// Which ops fall back, and under which names PyTorch's dispatcher finds the fallback.
#include <torch/library.h>

#include "aten/fallback.h"

namespace anvil {
namespace {

class HostFallback final : public c10::OperatorKernel {
 public:
  explicit HostFallback(const c10::OperatorHandle& op) : op_(op, op) {}

  void operator()(const c10::OperatorHandle& /*op*/, c10::DispatchKeySet /*keys*/,
                  torch::jit::Stack* stack) {
    op_.call(stack);
  }

 private:
  FallbackOp op_;
};

// For ops registered after this library: custom operators with a CPU kernel, which may be written
// in Python and do anything. The caller waits for them.
void fallback_for_any(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/,
                      torch::jit::Stack* stack) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU), "Operator ",
      c10::toString(op.operator_name()),
      " has neither an anvil kernel nor a CPU kernel that could run on anvil's memory.");
  run_on_host(op, OpTraits(op.schema()), op, stack);
}

// These describe or change where memory lives, which only the device itself can do; a CPU kernel
// would act on the alias.
bool is_about_storage(const std::string& name) {
  return name == "aten::set_" || name == "aten::_copy_from" ||
         name == "aten::_copy_from_and_resize" || name == "aten::empty" ||
         name == "aten::empty_strided" || name == "aten::_pin_memory";
}

}  // namespace

void register_fallbacks() {
  static torch::Library* aten = nullptr;  // registrations last as long as the process
  static torch::Library* any = nullptr;
  if (aten != nullptr) return;
  auto& dispatcher = c10::Dispatcher::singleton();
  aten = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__,
                            __LINE__);
  for (const c10::OperatorName& name :
       dispatcher.getRegistrationsForDispatchKey(c10::DispatchKey::CPU)) {
    const auto op = dispatcher.findSchema(name);
    if (!op.has_value() || name.getNamespace() != "aten" || is_about_storage(name.name)) continue;
    if (op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) continue;
    aten->impl(c10::toString(name).substr(std::string("aten::").size()).c_str(),
               torch::CppFunction::makeFromBoxedFunctor(std::make_unique<HostFallback>(*op)));
  }
  // No CPU kernel, but one for every device that asks for a device it knows.
  const auto mode = dispatcher.findSchemaOrThrow("aten::mode", "values");
  aten->impl("mode.values",
             torch::CppFunction::makeFromBoxedFunctor(std::make_unique<HostFallback>(mode)));
  any = new torch::Library(torch::Library::IMPL, "_", c10::DispatchKey::PrivateUse1, __FILE__,
                           __LINE__);
  any->fallback(torch::CppFunction::makeFromBoxedFunction<&fallback_for_any>());
}

}  // namespace anvil
