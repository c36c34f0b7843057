// SPDX-License-Identifier: Apache-2.0
#include "distributed/gloo_group.h"

#include <ATen/Context.h>
#include <ATen/ops/from_blob.h>

namespace anvil {

GlooGroup::GlooGroup(c10::intrusive_ptr<c10d::Backend> gloo, std::string name)
    : ExchangeGroup(gloo->getRank(), gloo->getSize()),
      gloo_(std::move(gloo)),
      name_(std::move(name)) {}

// Empty messages are skipped: both ends know that they are.
void GlooGroup::Exchange(const char* name, std::span<const comm::Transfer> transfers,
                         comm::Milliseconds timeout) {
  const auto fail = [&](const std::string& words) {
    return comm::CommError(std::string(name) + " on rank " + std::to_string(rank()) +
                           " of group '" + name_ + "': " + words);
  };
  if (aborted_) throw fail("the group was aborted");
  std::vector<std::pair<c10::intrusive_ptr<c10d::Work>, const comm::Transfer*>> works;
  const comm::Transfer* current = nullptr;
  try {
    for (const comm::Transfer& transfer : transfers) {
      if (transfer.bytes == 0) continue;
      current = &transfer;
      std::vector<at::Tensor> tensors = {
          at::from_blob(transfer.data, {static_cast<int64_t>(transfer.bytes)}, at::kByte)};
      const int tag = static_cast<int>(transfer.tag);
      works.emplace_back(transfer.kind == comm::Transfer::kSend
                             ? gloo_->send(tensors, transfer.peer, tag)
                             : gloo_->recv(tensors, transfer.peer, tag),
                         current);
    }
    for (const auto& [work, transfer] : works) {
      current = transfer;
      work->wait(timeout);
    }
  } catch (const std::exception& error) {
    throw fail("rank " + std::to_string(current->peer) +
               " did not do its part (over gloo: " + error.what() + ")");
  }
}

void GlooGroup::Abort() {
  aborted_ = true;
  gloo_->abort();
}

}  // namespace anvil
