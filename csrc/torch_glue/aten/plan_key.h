// SPDX-License-Identifier: Apache-2.0
// What the result of an op depends on besides its arguments' values: a key of 128 bits over shapes,
// strides, dtypes and plain arguments.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/AutogradState.h>
#include <c10/core/DefaultDtype.h>

namespace anvil {

struct PlanKey {
  uint64_t low = 0;
  uint64_t high = 0;
  bool operator==(const PlanKey& other) const = default;

  struct Hash {
    size_t operator()(const PlanKey& key) const { return key.low; }
  };
};

// Two independent 64-bit mixes: keys that differ have the same hash once in 2^128, so that the key
// itself need not be kept.
class PlanKeyHasher {
 public:
  // Starts with what every result may depend on.
  PlanKeyHasher() {
    const auto dtype = c10::typeMetaToScalarType(c10::get_default_dtype());
    const auto state = c10::AutogradState::get_tls_state();
    word(static_cast<uint64_t>(dtype) | uint64_t{state.get_grad_mode()} << 8 |
         uint64_t{state.get_inference_mode()} << 9);
  }

  void word(uint64_t value) {
    low_ = (low_ ^ value) * 0x9E3779B97F4A7C15u;
    low_ ^= low_ >> 32;
    high_ = (high_ + value) * 0xC2B2AE3D27D4EB4Fu;
    high_ ^= high_ >> 29;
  }

  void tensor(const at::Tensor& tensor) {
    if (!tensor.defined()) return word(kUndefined);
    const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    word(static_cast<uint64_t>(impl->dim()) |
         static_cast<uint64_t>(c10::typeMetaToScalarType(impl->dtype())) << 16 |
         uint64_t{impl->is_conj()} << 24 | uint64_t{impl->is_neg()} << 25 |
         uint64_t{impl->is_wrapped_number()} << 26);
    for (const int64_t size : impl->sizes()) word(static_cast<uint64_t>(size));
    for (const int64_t stride : impl->strides()) word(static_cast<uint64_t>(stride));
  }

  // False for values that a key cannot describe. With `kind_only` the value of a number does not
  // count, only what kind of number it is.
  bool value(const c10::IValue& value, bool kind_only);

  PlanKey key() const { return {low_, high_}; }

 private:
  static constexpr uint64_t kUndefined = 0xFFFF;
  uint64_t low_ = 0x243F6A8885A308D3u;
  uint64_t high_ = 0x13198A2E03707344u;
};

}  // namespace anvil
