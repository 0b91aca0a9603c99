#!/usr/bin/env bash
# Every opcode that the device sends and every kind of answer, over IPv4 and IPv6: tshark finds in
# each packet what the product says of it, and the ICRC is right by a second opinion.
# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need_product
need_programs python3 timeout tshark

cat >"$work/plan.toml" <<'PLAN'
[[fault]]  # the rest of its message is answered by a sequence error
what = "drop"
direction = "send"
opcode = "RC_SEND_MIDDLE"
nth = 1

[[fault]]  # a responder that cannot reach its own memory
what = "fail_translation"
region = 2
access = "write"
nth = 1
PLAN

packet_text=$build/tests/apps/packet_text_main
judge() { python3 -B "$apps/judge_packets.py" "$capture" "$1" 2>"$work/judge.err"; }

gids=(0)
if grep -q lo /proc/net/if_inet6 2>/dev/null; then gids+=(1); fi
for gid in "${gids[@]}"; do
  what="GID $gid"
  capture=$work/$gid.pcap
  start opcodes "$softhca" run --pcap "$capture" --faults "$work/plan.toml" -- \
    "$build/tests/apps/opcodes_main" "$gid"
  if ! finish opcodes || ! says opcodes through; then
    flunk "$what: every operation, and refusals" "$work/opcodes.out" "$work/opcodes.err"
    continue
  fi
  if verdict=$(judge "$packet_text"); then
    pass "$what: tshark reads them as the product does: $verdict"
  else
    flunk "$what: tshark: $verdict" "$work/judge.err"
  fi
  if verdict=$(python3 -B "$apps/check_icrc.py" "$capture" 2>&1); then
    pass "$what: ICRC of $verdict"
  else
    flunk "$what: ICRC: $verdict"
  fi
done

# The judge is not blind.
printf '#!/bin/sh\n"%s" "$@" | sed "s/psn 0x000003/psn 0x000004/"\n' "$packet_text" >"$work/liar"
chmod +x "$work/liar"
if verdict=$(judge "$work/liar"); then
  flunk "a wrong PSN is not noticed: $verdict"
else
  pass "a wrong PSN is noticed: $verdict"
fi
conclude
