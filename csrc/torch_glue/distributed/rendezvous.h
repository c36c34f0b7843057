// SPDX-License-Identifier: Apache-2.0
// How the ranks of a group find the memory that they share.
#pragma once

#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "shared_group.h"

namespace anvil {

struct Rendezvous {
  std::shared_ptr<comm::Group> group;  // null where the ranks do not share memory
  std::string reason;                  // why they do not
};

// All ranks call it with the group's own store. The first makes a segment, the others try to reach
// it, and all go by what all have found: either every rank gets a group over shared memory, or none
// does, for the same reason. `refusal`: why this rank does not want to, "" where it does.
Rendezvous share_memory(c10d::Store& store, int rank, int size, const std::string& name,
                        std::chrono::milliseconds timeout, const std::string& refusal);

}  // namespace anvil
