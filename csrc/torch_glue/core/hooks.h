// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace anvil {

// Registers allocators, hooks and the host pool with PyTorch, once. Called when the Python module
// loads.
void register_backend();

}  // namespace anvil
