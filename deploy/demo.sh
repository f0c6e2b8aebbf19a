#!/usr/bin/env bash
# A whole federation on this machine, as in deploy/README.md: certificates, an authenticated
# SuperLink, four SuperNodes with data folders of their own, one of them with flipped labels. One is
# late, and its reply counts; another goes away, and the report says so.
# Results stay in $OUTPUT/deploy-demo, the pages that members get in $OUTPUT/deploy-demo-pages
# (default: runs); everything else is removed.
# Exit status 0: the run completed.
set -euo pipefail

deploy=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repository=$(dirname "$deploy")
command -v flwr >/dev/null || PATH="$repository/.venv/bin:$PATH"
rounds=${ROUNDS:-9}
mkdir -p "${OUTPUT:=$repository/runs}"
output=$(cd "$OUTPUT" && pwd)
pages="$output/deploy-demo-pages"
rm -rf "$pages" "$output/deploy-demo" # of an earlier demo, signed by another key
home=$(mktemp -d "${TMPDIR:-/tmp}/fedif-demo.XXXXXX")
export FLWR_HOME="$home/flower" XDG_CONFIG_HOME="$home/config" FEDIF_DEMO="$home"
export PYTHONPATH="$repository"
# Four clients and a server share this machine's cores.
export OMP_NUM_THREADS=1

processes() ( # ids of everything that was started here, helpers that detached themselves included
  unset FEDIF_DEMO # which would mark this function's own commands
  set +e # a process that ends while it is looked at is no error
  if [ -r /proc/self/environ ]; then
    grep -lszxF "FEDIF_DEMO=$home" /proc/[0-9]*/environ | cut -d/ -f3
  else
    ps axeww -o pid=,command= | awk -v mark="FEDIF_DEMO=$home" 'index($0, mark) && !/awk/ {print $1}'
  fi
  return 0
)

started=()
finish() {
  status=$?
  trap - EXIT
  # SuperNodes first: without a SuperLink they would retry for a minute. Each is its own group.
  for group in "${started[@]}"; do
    kill -- "-$group" 2>/dev/null || true
  done
  for _ in $(seq 50); do
    [ -n "$(processes)" ] || break
    sleep 0.2
  done
  left=$(processes)
  if [ -n "$left" ]; then
    # shellcheck disable=SC2086 # a list of numbers
    kill -9 $left 2>/dev/null || true
  fi
  if [ "$status" -ne 0 ] && [ -s "$home/superlink.log" ]; then
    echo "--- the SuperLink's last words:" >&2
    tail -n 20 "$home/superlink.log" >&2
  fi
  rm -rf "$home"
  exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

free_ports() { # COUNT
  python -c 'import socket, sys
sockets = [socket.socket() for _ in range(int(sys.argv[1]))]
for s in sockets: s.bind(("127.0.0.1", 0))
print(*(s.getsockname()[1] for s in sockets))' "$1"
}

background() { # LOG COMMAND...
  local log=$1
  shift
  set -m # a process group for each, so that Ctrl-C does not reach it before its turn
  "$@" >"$log" 2>&1 </dev/null &
  set +m
  started=("$!" "${started[@]}")
}

step() { echo; echo "== $*"; }

# Python reads it before an app: on this node they wait as long as there is a file "hold".
mkdir "$home/slow"
cat >"$home/slow/sitecustomize.py" <<END
import os, sys, time
class Held:
    def find_spec(self, name, path=None, target=None):
        while name == "fedif_flower" and os.path.exists("$home/slow/hold"):
            time.sleep(0.2)
if any(word.endswith("flwr-clientapp") for word in sys.orig_argv):
    sys.meta_path.insert(0, Held())
END

replied() { # PARTITION STATUS: whether clients.csv has such a line
  [ -f "$output/deploy-demo/clients.csv" ] &&
    awk -F, -v p="$1" -v s="$2" '$2 == p && $14 == s {found = 1} END {exit !found}' \
      "$output/deploy-demo/clients.csv"
}

late_and_missing() { # GROUP: hospital 1 is late once, then the processes of hospital 0 end
  until replied 1 accepted; do sleep 0.2; done
  touch "$home/slow/hold"
  until replied 1 late; do sleep 0.2; done
  echo "-- hospital-1 is late"
  rm "$home/slow/hold"
  until grep -q "trained on the model of round" "$output/deploy-demo/clients.csv"; do sleep 0.2; done
  echo "-- a late reply counts; now hospital-0 goes away"
  kill -9 -- "-$1"
}

read -r port local0 local1 local2 local3 < <(free_ports 5)
local_ports=("$local0" "$local1" "$local2" "$local3")
address="127.0.0.1:$port"

step "data: four folders, one per member"
python "$repository/simulation.py" export-partitions "$home/data" -c "num-clients=4"

step "certificates and keys"
"$deploy/federation.sh" ca "$home/server"
"$deploy/federation.sh" server-certificate "$home/server" localhost
for i in 0 1 2 3; do
  "$deploy/federation.sh" node-key "$home/keys/hospital-$i"
done

step "SuperLink on $address, for registered nodes only"
background "$home/superlink.log" "$deploy/federation.sh" superlink "$home/server" "$address"
for _ in $(seq 300); do
  grep -q "Uvicorn running" "$home/superlink.log" && break
  kill -0 "${started[0]}" 2>/dev/null || exit 1
  sleep 0.2
done
"$deploy/federation.sh" connect demo "$address" "$home/server/ca.crt"
"$deploy/federation.sh" register demo "$home"/keys/*.pub

step "four SuperNodes; the labels of number 3 are flipped"
for i in 0 1 2 3; do
  config="partition-id=$i data-dir='$home/data/partition-$i' statement-dir='$pages/hospital-$i'"
  [ "$i" -ne 3 ] || config="$config attack='label-noise'"
  [ "$i" -ne 1 ] || export PYTHONPATH="$home/slow:$repository"
  background "$home/node-$i.log" "$deploy/federation.sh" supernode "$address" \
    "$home/server/ca.crt" "$home/keys/hospital-$i" "$config" "${local_ports[$i]}"
  export PYTHONPATH="$repository"
  [ "$i" -ne 0 ] || leaver=${started[0]}
done

step "a run of $rounds rounds, which wait for three of four"
set -m # a group of its own, which ends with the others
late_and_missing "$leaver" &
set +m
started=("$!" "${started[@]}")
"$deploy/federation.sh" run demo num-clients=4 fraction-train=1.0 "num-server-rounds=$rounds" \
  local-epochs=1 'attribution="simpson"' 'statement-budget="1000"' round-timeout=120.0 \
  round-quorum=0.6 late-rounds=9 least-participation=0.2 \
  "output-dir=\"$output\"" 'run-name="deploy-demo"' overwrite=true 'device="cpu"'

step "the same report as in simulation"
python -c 'import sys, pathlib
from fedif_flower.run.report import print_summary
print_summary(pathlib.Path(sys.argv[1]))' "$output/deploy-demo"
sed -n '/^## Members/,$p' "$output/deploy-demo/report.md"

step "a signed statement, and for each hospital its own page"
python "$repository/simulation.py" verify "$output/deploy-demo"
ls "$pages"/*/*/statement.html || echo "no node answered in time"
