// SPDX-License-Identifier: Apache-2.0
// How collectives become commands; collectives.cpp has the collectives.
#include "distributed/process_group.h"

#include "core/stream.h"
#include "core/wait.h"
#include "distributed/gloo_group.h"
#include "distributed/rendezvous.h"

namespace anvil {

// What was called between startCoalescing and endCoalescing: one command that sends and receives
// all messages at once, then runs the collectives one after the other.
struct ProcessGroup::Batch {
  c10::intrusive_ptr<CollectiveWork> work;  // made by the first call
  std::vector<Operands> operands;
  std::vector<Body> bodies;
  std::vector<comm::Transfer> transfers;
  Tensors outputs;
};

ProcessGroup::ProcessGroup(c10d::Store& store, int rank, int size,
                           std::chrono::milliseconds timeout, std::string name,
                           const std::string& refusal)
    : Backend(rank, size), name_(std::move(name)), timeout_(timeout) {
  Rendezvous found = share_memory(store, rank, size, name_, timeout, refusal);
  group_ = std::move(found.group);
  fallback_reason_ = std::move(found.reason);
}

void ProcessGroup::use_gloo(c10::intrusive_ptr<c10d::Backend> gloo) {
  TORCH_CHECK(gloo->getRank() == getRank() && gloo->getSize() == getSize(),
              "The fallback of a group must have the same ranks.");
  group_ = std::make_shared<GlooGroup>(std::move(gloo), name_);
}

void ProcessGroup::abort() {
  if (group_ != nullptr) group_->Abort();
}

std::chrono::milliseconds ProcessGroup::timeout_for(std::chrono::milliseconds asked) const {
  return asked == c10d::kUnsetTimeout || asked == kNoTimeout ? timeout_ : asked;
}

c10::intrusive_ptr<CollectiveWork> ProcessGroup::new_work(c10d::OpType type,
                                                          c10::DeviceIndex device) const {
  return c10::make_intrusive<CollectiveWork>(getRank(), type, current_stream_handle(device), device,
                                             type == c10d::OpType::BARRIER);
}

void ProcessGroup::queue(const char* name, const std::vector<Operands>& operands,
                         CollectiveWork& work, Tensors outputs, Body body) {
  TORCH_CHECK(group_ != nullptr, name, ": the group has no transport (", fallback_reason_, ").");
  const c10::DeviceIndex device = operands.front().device();
  Accesses accesses(current_stream_handle(device));
  for (const Operands& each : operands) each.add_accesses(accesses);
  submit(name, accesses, [group = group_, outcome = work.outcome(), body = std::move(body)] {
    try {
      body(*group);
    } catch (...) {
      outcome->fail(std::current_exception());
      throw;
    }
  });
  for (const Operands& each : operands) each.copy_back();
  work.queued(std::move(outputs));
  ++sequence_;
}

ProcessGroup::Work ProcessGroup::run(c10d::OpType type, Operands operands, Tensors outputs,
                                     Body body) {
  if (batch_ != nullptr) {
    if (batch_->work == nullptr) {
      batch_->work = new_work(c10d::OpType::COALESCED, operands.device());
    }
    batch_->operands.push_back(std::move(operands));
    if (body) batch_->bodies.push_back(std::move(body));
    batch_->outputs.insert(batch_->outputs.end(), outputs.begin(), outputs.end());
    return batch_->work;
  }
  const auto work = new_work(type, operands.device());
  const char* const name = operands.name();
  queue(name, {std::move(operands)}, *work, std::move(outputs), std::move(body));
  return work;
}

ProcessGroup::Work ProcessGroup::transfer(c10d::OpType type, Operands operands,
                                          comm::Transfer transfer, Tensors outputs) {
  if (batch_ != nullptr) {
    batch_->transfers.push_back(transfer);
    return run(type, std::move(operands), std::move(outputs), nullptr);
  }
  const char* const name = operands.name();
  return run(type, std::move(operands), std::move(outputs),
             [name, transfer, timeout = timeout_](comm::Group& group) {
               group.Exchange(name, {&transfer, 1}, timeout);
             });
}

void ProcessGroup::startCoalescing() {
  TORCH_CHECK(batch_ == nullptr, "A batch of collectives cannot be begun inside another one.");
  batch_ = std::make_shared<Batch>();
}

ProcessGroup::Work ProcessGroup::endCoalescing() {
  TORCH_CHECK(batch_ != nullptr, "There is no batch of collectives to end.");
  const std::shared_ptr<Batch> batch = std::exchange(batch_, nullptr);
  if (batch->work == nullptr) {
    // Empty: done when what is queued so far is.
    const auto work = new_work(c10d::OpType::COALESCED, current_device());
    work->queued({});
    return work;
  }
  const char* const name = batch->bodies.empty() ? "batch_isend_irecv" : "coalesced";
  queue(name, batch->operands, *batch->work, std::move(batch->outputs),
        [name, timeout = timeout_, bodies = batch->bodies,
         transfers = batch->transfers](comm::Group& group) {
          if (!transfers.empty()) group.Exchange(name, transfers, timeout);
          for (const Body& body : bodies) body(group);
        });
  return batch->work;
}

}  // namespace anvil
