# The rxe machine's part of rxe_interop.sh: runs what the host leaves in the folder that both share.
#
# NAME.command is a script: its output goes to NAME.out and NAME.err, its exit status to
# NAME.status. NAME.stop asks it to end, and none takes longer than ten minutes. The file
# `host-done` ends this.
# shellcheck shell=bash
cd "${COMMON:-/common}" || exit 1
{
  uname -r
  rdma link
  modinfo -F version rdma_rxe
} >machine 2>/dev/null
# shellcheck disable=SC2154  # the machine's own environment
{
  gid_of rxe0 "$GUEST_IP"
  gid_of rxe0 "$GUEST_IP6"
} >gids.new
mv gids.new gids

declare -A pid_of=()
exec {nothing}<> <(:)  # `read` waits on it, which needs no process
run() {
  timeout -k 5 600 bash "$1.running" >"$1.out" 2>"$1.err" </dev/null
  echo $? >"$1.ended"
  mv "$1.ended" "$1.status"
}
shopt -s nullglob
until [ -e host-done ]; do
  for file in *.command; do
    name=${file%.command}
    mv "$file" "$name.running"
    run "$name" &
    pid_of[$name]=$!
  done
  for file in *.stop; do
    name=${file%.stop}
    rm -f "$file"
    # The process below `run` is `timeout`, which passes the signal on.
    [ -z "${pid_of[$name]:-}" ] || pkill -TERM -P "${pid_of[$name]}"
  done
  read -rt 0.1 -u "$nothing"
done
exit 0
