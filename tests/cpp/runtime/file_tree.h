// SPDX-License-Identifier: Apache-2.0
// A directory with files of a test's choice, in place of the machine's /proc and /sys.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

class FileTree {
 public:
  FileTree() {
    std::string name = (std::filesystem::temp_directory_path() / "anvil-tree-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed for " + name);
    root_ = name;
  }
  ~FileTree() { std::filesystem::remove_all(root_); }
  FileTree(const FileTree&) = delete;
  FileTree& operator=(const FileTree&) = delete;

  FileTree& Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
    return *this;
  }

  const std::string& root() const { return root_; }

 private:
  std::string root_;
};
