// SPDX-License-Identifier: Apache-2.0
#include "core/generator.h"

#include <vector>

#include "core/wait.h"

namespace anvil {

AnvilGenerator::AnvilGenerator(c10::DeviceIndex device, uint64_t seed)
    : c10::GeneratorImpl(c10::Device(kAnvil, device),
                         c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
      host_(at::detail::createCPUGenerator(seed)) {}

// Queued commands draw from the host generator when they run: whoever looks at its state, or sets
// it, comes after them. They hold it until then.
const at::Generator& AnvilGenerator::settled() const {
  if (host_.getIntrusivePtr().use_count() > 1) synchronize_device(device().index());
  return host_;
}

void AnvilGenerator::set_current_seed(uint64_t seed) {
  settled().unsafeGetGeneratorImpl()->set_current_seed(seed);
}
void AnvilGenerator::set_offset(uint64_t offset) {
  settled().unsafeGetGeneratorImpl()->set_offset(offset);
}
uint64_t AnvilGenerator::get_offset() const { return settled().get_offset(); }
uint64_t AnvilGenerator::current_seed() const { return settled().current_seed(); }
uint64_t AnvilGenerator::seed() { return settled().unsafeGetGeneratorImpl()->seed(); }

void AnvilGenerator::set_state(const c10::TensorImpl& state) {
  settled().unsafeGetGeneratorImpl()->set_state(state);
}

c10::intrusive_ptr<c10::TensorImpl> AnvilGenerator::get_state() const {
  return settled().unsafeGetGeneratorImpl()->get_state();
}

AnvilGenerator* AnvilGenerator::clone_impl() const {
  settled();
  auto* copy = new AnvilGenerator(device().index());
  copy->host_ = host_.clone();
  return copy;
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  static const auto* generators = [] {
    auto* all = new std::vector<at::Generator>;  // leaked, as torch's own default generators are
    for (c10::DeviceIndex index = 0; index < device_count(); ++index) {
      all->push_back(at::make_generator<AnvilGenerator>(index));
      all->back().seed();
    }
    return all;
  }();
  const c10::DeviceIndex index = device < 0 ? current_device() : device;
  TORCH_CHECK(static_cast<size_t>(index) < generators->size(), "anvil:", static_cast<int>(index),
              " does not exist: this process sees ", generators->size(), " anvil device(s).");
  return (*generators)[index];
}

at::Generator host_generator(const std::optional<at::Generator>& generator,
                             c10::DeviceIndex device) {
  const at::Generator& chosen =
      generator.has_value() && generator->defined() ? *generator : default_generator(device);
  TORCH_CHECK(chosen.device().type() == kAnvil,
              "Expected a 'anvil' device type for generator but found '", chosen.device().type(),
              "'");
  return at::check_generator<AnvilGenerator>(chosen)->host();
}

}  // namespace anvil
