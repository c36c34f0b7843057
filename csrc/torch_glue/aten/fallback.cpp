// SPDX-License-Identifier: Apache-2.0
#include "aten/fallback.h"

#include <torch/library.h>

namespace anvil {
namespace {

class HostFallback final : public c10::OperatorKernel {
 public:
  explicit HostFallback(const c10::FunctionSchema& schema) : traits_(schema) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/,
                  torch::jit::Stack* stack) {
    run_on_host(op, traits_, op, stack);
  }

 private:
  OpTraits traits_;
};

// For ops registered after this library: custom operators with a CPU kernel.
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

void run_on_host(const c10::OperatorHandle& op, const OpTraits& traits,
                 const c10::OperatorHandle& kernel, torch::jit::Stack* stack) {
  HostCall call(op, traits);
  call.arguments_to_host(*stack);
  {
    const HostCallScope scope(call.device().index());
    kernel.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  }
  call.results_to_device(*stack);
}

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
    aten->impl(
        c10::toString(name).substr(std::string("aten::").size()).c_str(),
        torch::CppFunction::makeFromBoxedFunctor(std::make_unique<HostFallback>(op->schema())));
  }
  any = new torch::Library(torch::Library::IMPL, "_", c10::DispatchKey::PrivateUse1, __FILE__,
                           __LINE__);
  any->fallback(torch::CppFunction::makeFromBoxedFunction<&fallback_for_any>());
}

}  // namespace anvil
