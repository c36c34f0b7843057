#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs one long step of the set-up: its output goes to build/logs/, and a line tells now and then
# how far it is. When it fails, the end of its output is shown and its exit status is kept.
#
#   tools/step.sh TITLE COMMAND [ARGUMENT...]
set -euo pipefail

title=$1
shift
logs=$(dirname "$0")/../build/logs
mkdir -p "$logs"
log=$(realpath "$logs")/$(tr -cs '[:alnum:]' '-' <<<"$title" | sed 's/-*$//').log

echo "==> $title"
"$@" >"$log" 2>&1 </dev/null &
command=$!
trap 'kill "$command" 2>/dev/null || true' EXIT

told=0
while kill -0 "$command" 2>/dev/null; do
  sleep 0.5
  if ((SECONDS - told >= 15)); then
    told=$SECONDS
    printf '    %4d s  %.100s\n' "$SECONDS" "$(tail -n 3 "$log" | tr '\r' '\n' | grep -a . | tail -n 1)"
  fi
done

status=0
wait "$command" || status=$?
if ((status != 0)); then
  tail -n 40 "$log"
  echo "==> $title: failed after $SECONDS s with status $status; all of its output is in $log" >&2
  exit "$status"
fi
echo "==> $title: done in $SECONDS s"
