// SPDX-License-Identifier: Apache-2.0
// What a collective that cannot be finished throws.
#pragma once

#include <stdexcept>

namespace anvil::comm {

// Names the operation, the rank that ran it and the one that stands in its way. A group that has
// thrown one is broken: what its ranks have and have not received is unknown.
class CommError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The time that was given to an operation is up.
class CommTimeout : public CommError {
 public:
  using CommError::CommError;
};

}  // namespace anvil::comm
