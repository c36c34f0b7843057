// SPDX-License-Identifier: Apache-2.0
// Names for what memory is used for. A tag is a small number, the same on every device.
#pragma once

namespace anvil {

inline constexpr int kDefaultTag = 0;
inline constexpr const char* kGraphTag = "graphs";  // what the arenas of graph pools count under

// The tag of that name, made if there is none yet.
int InternTag(const char* name);

// The calling thread's tag.
int CurrentTag() noexcept;

// "weights"; valid for good.
const char* TagName(int tag);

}  // namespace anvil
