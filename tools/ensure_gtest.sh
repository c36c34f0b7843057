#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes GoogleTest available for the C++ tests. Exit status 1, with the reason, where it cannot be.
set -euo pipefail

has_gtest() {
  echo '#include <gtest/gtest.h>' | "${CXX:-c++}" -std=c++20 -fsyntax-only -x c++ - 2>/dev/null
}

has_gtest && exit 0
if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
  echo "==> installing GoogleTest (libgtest-dev)"
  apt-get update -qq || true
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends libgtest-dev || true
  has_gtest && exit 0
fi
echo "==> SKIPPED: the C++ tests need GoogleTest. Install it (Debian: apt install libgtest-dev)" \
  "and run 'make test-cpp'." >&2
exit 1
