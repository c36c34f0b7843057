// SPDX-License-Identifier: Apache-2.0
// Running one command: its words when it fails, its release, what counts as "inside" it.
#pragma once

#include "anvil/runtime.h"

namespace anvil {

// The stream whose command the calling thread runs or releases; null: none.
extern thread_local constinit anvilStream_t running_stream;

// Whether the calling thread runs a command. Work submitted from inside a command is part of it:
// it runs at once, and nothing is waited for, since that could be a wait for oneself.
inline bool InsideCommand() { return running_stream != nullptr; }

// Marks the calling thread while it runs and releases a command.
class RunningCommand {
 public:
  explicit RunningCommand(anvilStream_t stream) { running_stream = stream; }
  ~RunningCommand() { running_stream = nullptr; }
  RunningCommand(const RunningCommand&) = delete;
  RunningCommand& operator=(const RunningCommand&) = delete;
};

// Runs the command; a failure, thrown or returned, gets the command's name and its own words.
anvilError_t Run(const char* name, anvilError_t (*run)(void*), void* arg);

// Releases what a command keeps alive, unless someone else takes that over.
class CommandOwner {
 public:
  explicit CommandOwner(const anvilCommand& command) : command_(&command) {}
  ~CommandOwner() {
    if (command_ != nullptr && command_->destroy != nullptr) command_->destroy(command_->arg);
  }
  CommandOwner(const CommandOwner&) = delete;
  CommandOwner& operator=(const CommandOwner&) = delete;
  void HandOver() { command_ = nullptr; }

 private:
  const anvilCommand* command_;
};

}  // namespace anvil
