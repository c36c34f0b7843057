// SPDX-License-Identifier: Apache-2.0
// Where a thread is in the user's Python program: "file.py:12 in step". Both functions write at
// most `capacity` bytes, terminator included; "" when the thread runs no Python.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace anvil {

// Names the innermost frame outside the packages that stand between the program and the device, or
// the innermost one where there is none other. Never waits for the GIL.
void call_site(char* text, size_t capacity);

// The same inside a signal handler.
void signal_safe_call_site(char* text, size_t capacity);

// Called once, before the other two. `folders`: those of the packages in between (torch's and
// vllm_anvil's), each with a slash at its end.
void prepare_call_sites(std::vector<std::string> folders);

}  // namespace anvil
