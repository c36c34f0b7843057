// SPDX-License-Identifier: Apache-2.0
#include "distributed/rendezvous.h"

#include "core/device.h"
#include "core/workers.h"

namespace anvil {
namespace {

const std::string kAddress = "anvil/address";
std::string answer_of(int rank) { return "anvil/rank" + std::to_string(rank); }

// Values begin with what they are.
const std::string kFine = "+";
const std::string kRefused = "-";

std::string await(c10d::Store& store, const std::string& key, std::chrono::milliseconds timeout) {
  store.wait({key}, timeout);
  return store.get_to_str(key);
}

// This rank's view of the segment; null, with the reason, where it has none, and where there is a
// reason from the start.
std::shared_ptr<comm::Segment> attach(c10d::Store& store, int rank, int size, int workers,
                                      std::chrono::milliseconds timeout, std::string& reason) {
  try {
    if (rank == 0) {
      if (!reason.empty()) throw comm::CommError(reason);
      auto segment = comm::Segment::Create(size, comm::SharedGroup::SlotBytes(size, workers));
      store.set(kAddress, kFine + segment->address());
      return segment;
    }
    const std::string address = await(store, kAddress, timeout);
    if (!reason.empty()) return nullptr;
    if (address.starts_with(kFine)) return comm::Segment::Attach(address.substr(1));
    reason = address.substr(1);
  } catch (const comm::CommError& error) {
    reason = error.what();
    if (rank == 0) store.set(kAddress, kRefused + reason);
  }
  return nullptr;
}

}  // namespace

Rendezvous share_memory(c10d::Store& store, int rank, int size, const std::string& name,
                        std::chrono::milliseconds timeout, const std::string& refusal) {
  const c10::DeviceIndex device = current_device();
  std::string reason = refusal;
  const auto segment = attach(store, rank, size, worker_count(device), timeout, reason);
  store.set(answer_of(rank), (segment != nullptr ? kFine : kRefused) + reason);
  for (int other = 0; other < size; ++other) {
    const std::string answer = await(store, answer_of(other), timeout);
    if (answer.starts_with(kRefused)) {
      return {nullptr, "rank " + std::to_string(other) + ": " + answer.substr(1)};
    }
  }
  // All are in.
  segment->close_entrance();
  return {std::make_shared<comm::SharedGroup>(segment, rank,
                                              comm::SharedGroup::Options{name, timeout, device}),
          ""};
}

}  // namespace anvil
