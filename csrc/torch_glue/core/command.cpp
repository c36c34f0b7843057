// SPDX-License-Identifier: Apache-2.0
#include "core/command.h"

#include <ATen/Parallel.h>
#include <c10/core/AutogradState.h>

#include <stdexcept>

#include "core/storage.h"
#include "core/stream.h"

namespace anvil {
namespace {

// Bytes from the first to behind the last element.
size_t extent(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return 0;
  int64_t last = 0;
  for (int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
  return static_cast<size_t>(last + 1) * tensor.element_size();
}

const char* python_name(const c10::Error& error) {
  if (dynamic_cast<const c10::IndexError*>(&error) != nullptr) return "IndexError: ";
  if (dynamic_cast<const c10::ValueError*>(&error) != nullptr) return "ValueError: ";
  if (dynamic_cast<const c10::TypeError*>(&error) != nullptr) return "TypeError: ";
  if (dynamic_cast<const c10::NotImplementedError*>(&error) != nullptr)
    return "NotImplementedError: ";
  return "";
}

}  // namespace

void Accesses::add(const at::Tensor& tensor, unsigned flags) {
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  const c10::StorageImpl* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  const bool ours = impl->device_type() == kAnvil;
  anvilBlock_t block = ours ? use_on_stream(*storage, stream_) : nullptr;
  if (C10_LIKELY(!wanted_)) return;
  const size_t bytes = extent(tensor);
  const bool known = ours || anvilHostIsPinned(storage->data()) != 0;
  if (bytes == 0 || !known) return;
  const auto* begin = static_cast<const char*>(storage->data()) +
                      tensor.storage_offset() * static_cast<int64_t>(tensor.element_size());
  list_.push_back({block, begin, bytes, flags});
}

void Accesses::note_host_use(const char* name) const {
  if (anvilSanitizerEnabled() == 0 || anvilStreamIsCapturing(stream_) != 0) return;
  if (size() > 0) submit(name, *this, [] {});
}

// Autocast and autograd have had their turn when an op arrives here, and the default dtype is the
// process's: what a CPU kernel can still ask the thread for is this.
CallerState::CallerState()
    : grad_mode_(c10::AutogradState::get_tls_state().get_grad_mode()),
      inference_mode_(c10::AutogradState::get_tls_state().get_inference_mode()),
      num_threads_(at::get_num_threads()) {}

void CallerState::adopt() const {
  c10::AutogradState& state = c10::AutogradState::get_tls_state();
  state.set_grad_mode(grad_mode_);
  state.set_inference_mode(inference_mode_);
  if (C10_UNLIKELY(at::get_num_threads() != num_threads_)) at::set_num_threads(num_threads_);
}

anvilError_t run_guarded(void (*body)(void*), void* arg) noexcept {
  try {
    body(arg);
    return ANVIL_SUCCESS;
  } catch (const c10::OutOfMemoryError& error) {
    return anvilReportError(ANVIL_ERROR_OUT_OF_MEMORY, error.what_without_backtrace());
  } catch (const c10::Error& error) {
    const std::string words = std::string(python_name(error)) + error.what_without_backtrace();
    return anvilReportError(ANVIL_ERROR_COMMAND, words.c_str());
  } catch (const std::exception& error) {
    return anvilReportError(ANVIL_ERROR_COMMAND, error.what());
  } catch (...) {
    return anvilReportError(ANVIL_ERROR_COMMAND, "an exception that is no std::exception");
  }
}

namespace detail {

void submit(anvilStream_t stream, const anvilCommand& command) {
  const LaunchSection section(stream);
  check(anvilStreamSubmit(stream, &command));
}

}  // namespace detail

}  // namespace anvil
