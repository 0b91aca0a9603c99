#!/usr/bin/env bash
# on_rxe.sh COMMAND...: runs the command on the rxe machine (rxe_agent.sh) as if it were here:
# output, exit status, and TERM. Needs COMMON, the folder that both share.
set -u
name=$COMMON/$$-$RANDOM
# shellcheck disable=SC2317  # the trap calls it
stop_there() {
  : >"$name.stop"
}
trap stop_there TERM INT
{
  printf 'exec '  # TERM is for the program, not for a shell above it
  printf '%q ' "$@"
} >"$name.new"
mv "$name.new" "$name.command"
until [ -e "$name.status" ]; do
  sleep 0.05
  [ ! -e "$COMMON/host-done" ] || exit 125
done
cat "$name.out"
cat "$name.err" >&2
exit "$(cat "$name.status")"
