#!/usr/bin/env bash
# Programs that look for the device under /sys/class/infiniband: by the library that `run` preloads,
# and by the mount of `run --sysfs`; and nothing is left of either.
# shellcheck source=lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need_product
need_programs ls cat cp find stat readlink python3 cc ib_write_bw ss timeout
root=/sys/class/infiniband
port=$root/softhca0/ports/1
# What a run may not leave anywhere: whoever else runs tests here has folders of that name too.
leftovers() {
  find /dev/shm "${TMPDIR:-/tmp}" -maxdepth 1 -name '*softhca*' ! -name 'softhca-apps.*' | sort
}
before=$(leftovers)

# same WHAT EXPECTED GOT
same() {
  if [ "$2" = "$3" ]; then
    pass "$1: $(tr '\n' ' ' <<<"$3" | cut -c 1-60)"
  else
    printf 'expected: %s\n     got: %s\n' "$2" "$3" >"$work/difference"
    flunk "$1" "$work/difference"
  fi
}

same "ls" softhca0 "$(on_device ls $root)"
same "ls, in a child of a child" lo "$(on_device sh -c "sh -c 'ls $root/softhca0/device/net; :'; :")"
same "cat" "4: ACTIVE" "$(on_device cat $port/state)"
same "a shell's pattern" "$port/state" "$(on_device sh -c "echo $root/*/ports/*/state")"
same "a shell's own redirection" "Ethernet" \
  "$(on_device bash -c "test -r $port/link_layer && read -r x <$port/link_layer && echo \$x")"
same "stat" "regular file 444 4096" "$(on_device stat -c '%F %a %s' $port/rate)"
same "readlink" /sys/class/net/lo "$(on_device readlink $root/softhca0/device/net/lo)"
same "find" 16 "$(on_device find $root -path '*/gids/*' -type f | wc -l)"
same "python" "['device', 'ports'] True RoCE v2" "$(on_device python3 -c "
import os
print(sorted(e.name for e in os.scandir('$root/softhca0') if e.is_dir()),
      os.path.realpath('$port/../1/gids') == '$port/gids',
      open('$port/gid_attrs/types/0').read().strip())")"
same "a copy" 40 "$(on_device cp $port/gids/0 "$work/gid" && wc -c <"$work/gid")"
same "SOFTHCA_SYSFS=0" "" "$(SOFTHCA_SYSFS=0 on_device sh -c "ls $root 2>/dev/null; :" |
  grep softhca || true)"
same "another library that is preloaded" "/other.so:$build/lib/softhca-sysfs.so" \
  "$(LD_PRELOAD=/other.so on_device sh -c "echo \$LD_PRELOAD" 2>/dev/null)"

# perftest keeps each counter's file open and reads it again at the end.
counters=counters/port_xmit_data,counters/port_rcv_packets,hw_counters/out_of_sequence
if pair "counters of ib_write_bw" "$softhca" run --local off -- \
  ib_write_bw -F -x 0 -s 65536 -n 100 -W $counters; then
  counted() { sed -n "s|.*$1=\([0-9]*\).*|\1|p" "$work/client.out"; }
  sent=$(counted port_xmit_data) received=$(counted port_rcv_packets)
  # 100 messages in words of four bytes, and their headers; an acknowledgement for a few at least.
  if [ "${sent:-0}" -gt $((100 * 65536 / 4)) ] && [ "$sent" -lt $((200 * 65536 / 4)) ] &&
    [ "${received:-0}" -gt 2 ] && [ "$received" -lt 20000 ]; then
    pass "ib_write_bw counts $sent words sent, $received packets received"
  else
    flunk "ib_write_bw counts" "$work/client.out" "$work/client.err"
  fi
fi

# What loads no libraries finds the same files by a mount of its own.
cat >"$work/static.c" <<'EOF'
#include <stdio.h>
#include <unistd.h>
int main(int argc, char** argv) {
  char text[64];
  FILE* file = fopen(argv[argc - 1], "r");
  if (file == NULL || fgets(text, sizeof text, file) == NULL) return 1;
  printf("%s", text);
  return access("/sys/class/net/lo/mtu", R_OK) != 0;
}
EOF
if ! "$softhca" run --sysfs -- true 2>"$work/mount.err"; then
  if [ "$(wc -l <"$work/mount.err")" = 1 ] && grep -q 'leave --sysfs out' "$work/mount.err"; then
    pass "run --sysfs says in one line what is refused: $(cut -c 1-100 "$work/mount.err")"
  else
    flunk "run --sysfs is refused without a remedy" "$work/mount.err"
  fi
elif cc -static -o "$work/static" "$work/static.c" 2>"$work/cc.err"; then
  for file in ports/1/state ports/1/gids/0 fw_ver node_guid; do
    same "static, $file" "$(on_device cat $root/softhca0/$file)" \
      "$("$softhca" run --sysfs -- "$work/static" $root/softhca0/$file 2>/dev/null)"
  done
  same "the user stays" "$(id -u)" "$("$softhca" run --sysfs -- id -u)"
  same "no counter that does not count" "" "$(SOFTHCA_SYSFS=0 "$softhca" run --sysfs -- \
    find $port -name '*counters')"
fi

same "nothing is left in /dev/shm and /tmp" "$before" "$(leftovers)"
if [ -e $root/softhca0 ]; then
  flunk "the device is in the machine's own /sys"
else
  pass "the machine's own /sys has nothing of it"
fi
conclude
