#!/usr/bin/env bash
# A whole federation on this machine, as in deploy/README.md: certificates, an authenticated
# SuperLink, four guarded SuperNodes with data folders of their own, one of them with flipped labels.
# One refuses an app that was changed, and the run goes on without it. One is late, and its reply
# counts; another goes away, and the report says so. Two members sign the statement, too.
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
rm -rf "$pages" "$output/deploy-demo" "$output/deploy-demo-changed" # of an earlier demo, signed by another key
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
watcher=
finish() {
  status=$?
  trap - EXIT
  [ -z "$watcher" ] || kill "$watcher" 2>/dev/null || true # it would wait for ever for a run that failed
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

fedif=(python "$repository/simulation.py")
server="$home/server"
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

replied() { # PARTITION STATUS [TIMES]: whether clients.csv has so many such lines (default: 1)
  [ -f "$output/deploy-demo/clients.csv" ] &&
    awk -F, -v p="$1" -v s="$2" -v n="${3:-1}" '$2 == p && $14 == s {++found} END {exit found < n}' \
      "$output/deploy-demo/clients.csv"
}

late_and_missing() { # GROUP: hospital 1 is late once, then the processes of hospital 0 end
  until replied 1 accepted; do sleep 0.2; done
  touch "$home/slow/hold"
  until replied 1 late; do sleep 0.2; done
  echo "-- hospital-1 is late"
  rm "$home/slow/hold"
  until awk -F, '$2 == 1 && /trained on the model of round/ {found = 1} END {exit !found}' \
    "$output/deploy-demo/clients.csv"; do sleep 0.2; done
  # On a slow machine hospital 0 may itself have been late till now. With fewer than two replies of
  # at most six it would be below least-participation, and the run incomplete, not one with gaps.
  until replied 0 accepted 2; do sleep 0.2; done
  echo "-- a late reply counts; now hospital-0 goes away"
  kill -9 -- "-$1"
}

read -r port inner local0 local1 local2 local3 < <(free_ports 6)
local_ports=("$local0" "$local1" "$local2" "$local3")
address="127.0.0.1:$port"

step "data: four folders, one per member"
python -c 'import sys, pathlib
from PIL import Image
from fedif_flower.tasks.data.datasets import load_dataset
from fedif_flower.tasks.data.partition import dirichlet_partition
digits = load_dataset("digits")
images = (digits.train.images * (255 / digits.max_value)).round().astype("uint8")
for i, part in enumerate(dirichlet_partition(digits.train.labels, 4, 1.0, 0)):
    for name in digits.classes:
        pathlib.Path(sys.argv[1], f"partition-{i}", "train", name).mkdir(parents=True)
    for index in part.tolist():
        name = digits.classes[digits.train.labels[index]]
        path = pathlib.Path(sys.argv[1], f"partition-{i}", "train", name, f"{index:04}.png")
        Image.fromarray(images[index, 0]).save(path)' "$home/data"

step "the operator: keys, certificates, an invitation for each hospital"
proxy=(--superlink "127.0.0.1:$inner")
if ! command -v nginx >/dev/null; then
  echo "-- nginx is not there: members come to the SuperLink itself, as no member elsewhere should"
  proxy=(--no-proxy)
fi
"${fedif[@]}" federation init demo localhost --listen "$address" "${proxy[@]}" --in "$server"
for i in 0 1 2 3; do
  "${fedif[@]}" federation invite "hospital-$i" --in "$server"
done

step "SuperLink on $address, for registered nodes only"
background "$home/superlink.log" "${fedif[@]}" federation superlink --in "$server"
for _ in $(seq 300); do
  grep -q "Uvicorn running" "$home/superlink.log" && break
  kill -0 "${started[0]}" 2>/dev/null || exit 1
  sleep 0.2
done
[ "${proxy[0]}" = --no-proxy ] ||
  background "$home/nginx.log" nginx -e stderr -p "$server/nginx" -c nginx.conf

step "each hospital joins, with a policy of its own; the labels of number 3 are flipped"
for i in 0 1 2 3; do
  mkdir "$home/hospital-$i"
  approved=../approved-apps # by somebody whom the hospitals trust; number 2 looks itself
  [ "$i" -ne 2 ] || approved=approved-apps
  printf '[apps]\napproved = "%s"\n[runs]\nunknown-keys = true\n' "$approved" \
    >"$home/hospital-$i/member-policy.toml"
  config="statement-dir='$pages/hospital-$i'"
  [ "$i" -ne 3 ] || config="$config attack='label-noise'"
  "${fedif[@]}" node join "$server/invitations/hospital-$i.invitation.toml" -c "$config" \
    --data-dir "$home/data/partition-$i" --port "${local_ports[$i]}" --in "$home/hospital-$i" \
    --policy "$home/hospital-$i/member-policy.toml"
done
"${fedif[@]}" app approve "$repository" --policy "$home/hospital-0/member-policy.toml"
"${fedif[@]}" app approve "$home"/approved-apps/*.fab --policy "$home/hospital-2/member-policy.toml"

step "the operator lets them in, and they start"
"${fedif[@]}" federation add-member "$home"/hospital-*/*.answer.toml --in "$server"
for i in 0 1 2 3; do
  [ "$i" -ne 1 ] || export PYTHONPATH="$home/slow:$repository"
  background "$home/node-$i.log" "${fedif[@]}" node start --in "$home/hospital-$i"
  export PYTHONPATH="$repository"
  [ "$i" -ne 0 ] || leaver=${started[0]}
done

step "the app is changed by one byte; number 2 has not approved that, and the run goes on without it"
mkdir "$home/changed"
cp -R "$repository"/{pyproject.toml,README.md,LICENSE,client_app.py,server_app.py,fedif_flower,fedif_consortium} \
  "$home/changed"
printf '#' >>"$home/changed/client_app.py"
"${fedif[@]}" app approve "$home/changed" --policy "$home/hospital-0/member-policy.toml"
"${fedif[@]}" federation run --in "$server" --app "$home/changed" num-clients=4 fraction-train=1.0 \
  num-server-rounds=1 local-epochs=1 'start-without="unfit"' least-participation=0.0 \
  "output-dir=\"$output\"" 'run-name="deploy-demo-changed"' 'device="cpu"'
"${fedif[@]}" node log "$home/hospital-2/member-state/node-log" | grep '"refused"'

step "a run of $rounds rounds with the approved app, which wait for three of four"
late_and_missing "$leaver" &
watcher=$!
"${fedif[@]}" federation run --in "$server" num-clients=4 fraction-train=1.0 \
  "num-server-rounds=$rounds" local-epochs=1 'attribution="simpson"' 'statement.budget="1000"' \
  pace.timeout=120.0 pace.quorum=0.6 pace.late-rounds=9 least-participation=0.2 evidence.receipts=true \
  "output-dir=\"$output\"" 'run-name="deploy-demo"' overwrite=true 'device="cpu"'

step "what the operator sees"
"${fedif[@]}" federation status --in "$server" || true # which is 1 if there is a warning

step "the same report as in simulation"
python -c 'import sys, pathlib
from fedif_flower.run.ending import print_summary
print_summary(pathlib.Path(sys.argv[1]))' "$output/deploy-demo"
sed -n '/^## Members/,$p' "$output/deploy-demo/report.md"

step "each hospital has its own page of the statement; two sign it, too"
ls "$pages"/*/*/statement.html
operator=$(sed -n 's/^statement-key = "\(.*\)"/\1/p' "$server/invitations/hospital-1.invitation.toml")
signed=()
for i in 1 2; do
  page=$(ls "$pages/hospital-$i"/*/statement.html)
  "${fedif[@]}" statement sign "$page" --key "$home/hospital-$i/node.key" --operator "$operator"
  signed+=("${page%/*}/manifest.intoto.json")
done
"${fedif[@]}" statement merge "$output/deploy-demo" "${signed[@]}" --members "$server/members"

step "it is what was signed, follows from the records, and fits what members signed and kept"
"${fedif[@]}" verify "$output/deploy-demo" --key "$operator" --members "$server/members" \
  --receipts "$home/hospital-1/receipts" --receipts "$home/hospital-2/receipts"

step "openssl finds the same three signatures (docs/statement-format.md)"
mkdir "$home/pems"
openssl pkey -in "$server/statement-key.pem" -pubout -out "$home/pems/operator.pem"
for i in 1 2; do
  ssh-keygen -e -m PKCS8 -f "$server/members/hospital-$i.pub" >"$home/pems/hospital-$i.pem"
done
sed '1,/^```sh$/d; /^```$/,$d' "$repository/docs/statement-format.md" >"$home/pems/verify.sh"
cp "$output/deploy-demo/statement/manifest.intoto.json" "$home/pems"
(cd "$home/pems" && sh verify.sh operator.pem hospital-1.pem hospital-2.pem)
