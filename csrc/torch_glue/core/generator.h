// SPDX-License-Identifier: Apache-2.0
// Random number generators of the device.
//
// A device generator wraps a CPU generator, which CPU kernels draw from when they run on the
// device's behalf; the state format is therefore torch's CPU format. Random commands draw when they
// run, in their order: a graph that draws goes on, at each replay, where the draws before it ended,
// just as the same ops would without a graph. Reading or setting
// the state waits for the draws that are queued.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>

#include "core/device.h"

namespace anvil {

class AnvilGenerator final : public c10::GeneratorImpl {
 public:
  explicit AnvilGenerator(c10::DeviceIndex device, uint64_t seed = at::default_rng_seed_val);

  static c10::DeviceType device_type() { return kAnvil; }

  void set_current_seed(uint64_t seed) override;
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override;
  uint64_t current_seed() const override;
  uint64_t seed() override;
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;

  // The generator that CPU kernels draw from.
  const at::Generator& host() const { return host_; }

 private:
  AnvilGenerator* clone_impl() const override;
  const at::Generator& settled() const;

  at::Generator host_;
};

// The device's default generator; index -1 is the current device.
const at::Generator& default_generator(c10::DeviceIndex device = -1);

// The CPU generator to run a CPU kernel with, for an optional argument of an op on `device`.
at::Generator host_generator(const std::optional<at::Generator>& generator,
                             c10::DeviceIndex device);

}  // namespace anvil
