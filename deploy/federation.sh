#!/usr/bin/env bash
# A federation on real hosts, step by step; deploy/README.md walks through it.
# It only calls openssl, ssh-keygen and Flower's own commands. No private key is ever overwritten.
set -euo pipefail

usage() {
  cat >&2 <<'END'
usage: deploy/federation.sh COMMAND ARGUMENT...

On the server, DIR being a folder for its secrets and results:
  ca DIR                               make a certificate authority: ca.key (secret), ca.crt
  server-certificate DIR HOST...       server.key (secret), server.crt for these names or addresses;
                                       again with the same key to renew it or to add a host
  superlink DIR HOST:PORT [OPTION...]  run the SuperLink there, its database in DIR; options of
                                       flower-superlink, such as --log-file superlink.log
                                       or --health-server-address 127.0.0.1:9095
  connect NAME HOST:PORT CA            tell Flower's commands about it, by a name
  register NAME PUBLIC-KEY...          let nodes with these keys in; each is called as its key's
                                       file: hospital-2.pub, hospital-2
  run NAME [KEY=VALUE...]              run the app to its end; exit status 0 only if it completed

Where the server is to see no update (docs/methods/masked-rounds.md):
  keeper-client DIR                    on the server: keeper-client.key (secret) and
                                       keeper-client.crt, which goes to the keeper
  keeper-certificate DIR HOST...       on the keeper's host: keeper.key (secret) and keeper.crt,
                                       which goes to the server, for these names or addresses
  keeper DIR                           on the keeper's host: keep masks as DIR/keeper.toml says;
                                       deploy/keeper.toml is one to adapt

On a node:
  node-key FILE                        FILE (secret) and FILE.pub, which goes to the operator
  supernode HOST:PORT CA KEY CONFIG [LOCAL-PORT] [OPTION...]
                                       run a SuperNode; CONFIG: "partition-id=0 data-dir='/data'";
                                       --policy FILE, as the first option, guards it by a policy of
                                       its own (docs/member-policy.md, deploy/member-policy.toml);
                                       options of flower-supernode, such as
                                       --trusted-entities keys.yaml (run only apps signed by these)
                                       or --health-server-address 127.0.0.1:9096
END
  exit 2
}

fail() {
  echo "error: $*" >&2
  exit 1
}

need() { # COMMAND...
  for command in "$@"; do
    command -v "$command" >/dev/null || fail "'$command' not found; run 'make lint' once, or" \
      "activate the virtual environment that fedif-flower is installed in"
  done
}

absolute() { # PATH
  echo "$(cd "$(dirname "$1")" && pwd)/$(basename "$1")"
}

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
command -v flwr >/dev/null || PATH="$repository/.venv/bin:$PATH"
umask 077
# Packages come from this environment, not from a registry at every run; the app decides nothing here.
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 FLWR_DISABLE_UPDATE_CHECK=1
export FLWR_TELEMETRY_ENABLED="${FLWR_TELEMETRY_ENABLED:-0}"
# How often a host looks for a task, in seconds: part of every round's length.
export FLWR_SUPEREXEC_TASK_POLL_INTERVAL="${FLWR_SUPEREXEC_TASK_POLL_INTERVAL:-0.2}"
export PYTHONUNBUFFERED=1

ca() { # DIR
  [ $# -eq 1 ] || usage
  need openssl
  mkdir -p "$1"
  [ ! -e "$1/ca.key" ] || fail "$1/ca.key exists already; nothing was changed"
  openssl req -x509 -newkey rsa:3072 -nodes -days 3650 -keyout "$1/ca.key" -out "$1/ca.crt" \
    -subj "/CN=federation CA" -addext "basicConstraints=critical,CA:TRUE" \
    -addext "keyUsage=critical,keyCertSign,cRLSign" 2>/dev/null
  chmod 644 "$1/ca.crt"
  echo "$1/ca.crt: give it to every node; $1/ca.key: keep it secret"
}

alternative_names() { # HOST...
  local names="DNS:localhost,IP:127.0.0.1,IP:::1" host
  for host in "$@"; do
    case $host in
      localhost | 127.0.0.1 | ::1) ;;
      *:*) names="$names,IP:$host" ;;
      *[!0-9.]*) names="$names,DNS:$host" ;;
      *) names="$names,IP:$host" ;;
    esac
  done
  echo "$names"
}

server_certificate() { # DIR HOST...
  [ $# -ge 2 ] || usage
  need openssl
  local directory=$1 names
  shift
  [ -r "$directory/ca.key" ] || fail "$directory/ca.key is missing: run 'ca $directory' first"
  names=$(alternative_names "$@")
  # A handshake costs the server a signature: a hundredth of what it costs with RSA.
  [ -e "$directory/server.key" ] ||
    openssl genpkey -quiet -algorithm EC -pkeyopt ec_paramgen_curve:P-256 \
      -out "$directory/server.key" 2>/dev/null
  printf '%s\n' "basicConstraints=CA:FALSE" "keyUsage=digitalSignature" \
    "extendedKeyUsage=serverAuth" "subjectAltName=$names" >"$directory/server.ext"
  openssl req -new -key "$directory/server.key" -subj "/CN=$1" |
    openssl x509 -req -CA "$directory/ca.crt" -CAkey "$directory/ca.key" -CAcreateserial \
      -days 365 -extfile "$directory/server.ext" -out "$directory/server.crt" 2>/dev/null
  rm "$directory/server.ext"
  chmod 644 "$directory/server.crt"
  echo "$directory/server.crt: for $names, one year"
}

pinned_certificate() { # FILE HOST...: signed by itself, since its one peer has a copy of it
  need openssl
  local file=$1
  shift
  [ ! -e "$file.key" ] || fail "$file.key exists already; nothing was changed"
  mkdir -p "$(dirname "$file")"
  openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 \
    -keyout "$file.key" -out "$file.crt" -subj "/CN=$(basename "$file")" \
    -addext "subjectAltName=$(alternative_names "$@")" 2>/dev/null
  chmod 644 "$file.crt"
}

keeper_client() { # DIR
  [ $# -eq 1 ] || usage
  pinned_certificate "$1/keeper-client"
  echo "$1/keeper-client.crt: send it to the keeper; $1/keeper-client.key: keep it secret"
}

keeper_certificate() { # DIR HOST...
  [ $# -ge 2 ] || usage
  pinned_certificate "$1/keeper" "${@:2}"
  echo "$1/keeper.crt: send it to the operator of the server; $1/keeper.key: keep it secret"
}

keeper() { # DIR
  [ $# -eq 1 ] || usage
  need python
  exec python "$repository/simulation.py" keeper --policy "$1/keeper.toml"
}

node_key() { # FILE
  [ $# -eq 1 ] || usage
  need ssh-keygen
  [ ! -e "$1" ] && [ ! -e "$1.pub" ] || fail "$1 or $1.pub exists already; nothing was changed"
  mkdir -p "$(dirname "$1")"
  ssh-keygen -q -t ecdsa -b 384 -N "" -C "$(basename "$1")" -f "$1"
  echo "$1.pub: send it to the operator; $1: keep it secret"
}

superlink() { # DIR HOST:PORT [OPTION...]
  [ $# -ge 2 ] || usage
  need python flower-superexec
  [ -r "$1/server.key" ] || fail "$1/server.key is missing: run 'server-certificate' first"
  local host=${2%:*} port=${2##*:}
  host=${host#[} host=${host%]}
  # Relative paths in options and in a run's configuration, such as output-dir, are below DIR.
  cd "$1"
  shift 2
  PYTHONPATH="$repository${PYTHONPATH:+:$PYTHONPATH}" exec python -m fedif_flower.runtime.guarded_superlink --host "$host" --port "$port" \
    --ssl-ca-certfile ca.crt --ssl-certfile server.crt --ssl-keyfile server.key \
    --enable-supernode-auth --database superlink.db "$@"
}

connect() { # NAME HOST:PORT CA
  [ $# -eq 3 ] || usage
  [ -r "$3" ] || fail "$3 cannot be read"
  local config="${FLWR_HOME:-$HOME/.flwr}/config.toml"
  mkdir -p "$(dirname "$config")"
  ! grep -qsF "[superlink.$1]" "$config" || fail "$config has a connection '$1' already"
  printf '\n[superlink.%s]\naddress = "%s"\nroot-certificates = "%s"\n' \
    "$1" "$2" "$(absolute "$3")" >>"$config"
  echo "$config: connection '$1'"
}

register() { # NAME PUBLIC-KEY...
  [ $# -ge 2 ] || usage
  need flwr
  local name=$1 key
  shift
  for key in "$@"; do
    flwr supernode register "$key" "$name" --name "$(basename "$key" .pub)"
  done
}

supernode() { # HOST:PORT CA KEY CONFIG [LOCAL-PORT] [OPTION...]
  [ $# -ge 4 ] || usage
  need flower-supernode flower-superexec
  local address=$1 ca=$2 key=$3 config=$4 port=9094 command=(flower-supernode)
  shift 4
  case ${1:-} in
    '' | -*) ;;
    *) port=$1 && shift ;;
  esac
  if [ "${1:-}" = --policy ]; then
    [ $# -ge 2 ] || usage
    need python
    command=(python -m fedif_flower.runtime.guarded_supernode "$(absolute "$2")")
    export PYTHONPATH="$repository${PYTHONPATH:+:$PYTHONPATH}"
    shift 2
  fi
  exec "${command[@]}" --superlink "$address" --root-certificates "$ca" \
    --auth-supernode-private-key "$key" --node-config "$config" --port "$port" "$@"
}

run() { # NAME [KEY=VALUE...]
  [ $# -ge 1 ] || usage
  need flwr python
  local name=$1 submitted id status
  shift
  submitted=$(flwr run "$repository" "$name" --format json ${1:+--run-config "$*"}) ||
    fail "the run was not accepted: $submitted"
  id=$(python -c 'import json, sys; print(json.load(sys.stdin)["run-id"])' <<<"$submitted")
  echo "run $id"
  # Flower's `log` takes Ctrl-C for itself, and the run does not end by it.
  trap 'echo "run $id goes on; follow it: flwr log $id $name, end it: flwr stop $id $name"; exit 130' INT
  # `flwr run` exits with 0 whatever becomes of a run, so its status is asked for.
  while flwr log "$id" "$name" --stream || true; do
    status=$(flwr list "$name" --run-id "$id" --format json |
      python -c 'import json, sys; r = json.load(sys.stdin)["runs"][0]
print(r["status"], r["status-details"])') || fail "the SuperLink '$name' does not answer"
    case $status in
      finished:completed*) return 0 ;;
      finished:*) fail "run $id: $status" ;;
    esac
    sleep 1
  done
}

[ $# -ge 1 ] || usage
command=$1
shift
case $command in
  ca | connect | keeper | register | superlink | supernode | run) "$command" "$@" ;;
  server-certificate) server_certificate "$@" ;;
  node-key) node_key "$@" ;;
  keeper-client) keeper_client "$@" ;;
  keeper-certificate) keeper_certificate "$@" ;;
  *) usage ;;
esac
