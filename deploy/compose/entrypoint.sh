#!/usr/bin/env bash
# What a container of compose.yml does, by its role. Each step is a command of `fedif`, and what is
# there already stays: a container may be started again at any time.
set -euo pipefail
umask 077
mkdir -p "${HOME:=/tmp/home}"
export HOME
# Packages come from the image; a host looks for a task five times a second.
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1 FLWR_DISABLE_UPDATE_CHECK=1
export FLWR_TELEMETRY_ENABLED=0 FLWR_SUPEREXEC_TASK_POLL_INTERVAL=0.2 PYTHONUNBUFFERED=1

setup() { # every key, certificate and setting; for a federation whose parts are all on this host
  fedif keeper init "$KEEPER" "$KEEPER_HOST"
  local known=() member policy
  ! masked || known=(--keeper-key "$(<"$KEEPER/keeper-state/box-key.pub")")
  fedif federation init "$FEDERATION" "$SUPERLINK_HOST" --listen "0.0.0.0:$SUPERLINK_PORT" \
    --superlink "127.0.0.1:$SUPERLINK_LOCAL" "${known[@]}"
  fedif federation keeper-client
  mkdir -p "$KEEPER/keys" "$FEDIF_FEDERATION/answers"
  cp "$FEDIF_FEDERATION/keeper-client.crt" "$KEEPER/"
  cp "$KEEPER/keeper.crt" "$FEDIF_FEDERATION/"
  for member in $MEMBERS; do
    ! removed "$member" || continue # nobody gets its name, and it no invitation
    fedif federation invite "$member"
    policy=$NODES/$member/member-policy.toml
    mkdir -p "$NODES/$member"
    [ -e "$policy" ] || member_policy >"$policy"
    fedif node join "$FEDIF_FEDERATION/invitations/$member.invitation.toml" \
      --in "$NODES/$member" --port "$NODE_PORT" --no-check --policy "$policy" \
      ${NODE_CONFIG:+--config "$NODE_CONFIG"}
    fedif app approve "$APP" --policy "$policy"
    cp "$NODES/$member/$member.answer.toml" "$FEDIF_FEDERATION/answers/"
    cp "$NODES/$member/node.key.pub" "$KEEPER/keys/$member.pub"
  done
  [ -e "$KEEPER/keeper.toml" ] ||
    sed -e "s|^address = .*|address = \"0.0.0.0:$KEEPER_PORT\"|" \
      -e "s|^health-address = .*|health-address = \"$KEEPER_HEALTH\"|" \
      "$APP/deploy/keeper.toml" >"$KEEPER/keeper.toml"
}

member_policy() { # what a member lets run, take part and leave: this app, with any settings
  sed -e 's|^state = "[^"]*"|state = "member-state"|' \
    -e 's|^unknown-keys = false|unknown-keys = true|' \
    "$APP/deploy/member-policy.toml"
  ! masked || masked_leaves
}

masked_leaves() { # of [leaves], the file's last section: masked updates, and the boxes of their masks
  cat <<'END'
arrays = ["arrays.masked-update uint64"]
config = ["node.partition-id number", "node.attack text[40]", "preflight.time number[10]", "preflight.data text[200]",
          "preflight.training text[200]", "preflight.disk text[200]", "preflight.masking text[200]",
          "preflight.signing-key text[200]", "statement.refused text[200]",
          "mask.box bytes[400] with-updates", "mask.length number[9] with-updates"]
END
}

masked() { # is the keeper among what compose starts?
  [[ ",${PROFILES:-}," == *,masked,* ]]
}

removed() { # MEMBER: was it sent away, by `fedif federation remove-member`?
  grep -qs '^removed = "[^"]' "$FEDIF_FEDERATION/members/$1.toml"
}

superlink() {
  ! masked || export FEDIF_REPLY_BUDGET=2 # A masked reply has 8 bytes for each parameter.
  # Members come by nginx; where one of the two ends, so does the container.
  trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT
  trap 'exit 143' TERM INT
  nginx -e stderr -p "$FEDIF_FEDERATION/nginx" -c nginx.conf &
  fedif federation superlink -- --isolation process &
  wait -n
}

server() { # lets members in, and runs ServerApps when a run is submitted
  local answer answers=()
  for answer in "$FEDIF_FEDERATION"/answers/*.answer.toml; do
    removed "$(basename "$answer" .answer.toml)" || answers+=("$answer")
  done
  # A refused answer (3) keeps out its own member alone.
  [ "${#answers[@]}" -eq 0 ] || fedif federation add-member "${answers[@]}" || [ $? -eq 3 ]
  cd "$FEDIF_FEDERATION"
  export FEDIF_STATEMENT_KEY="$FEDIF_FEDERATION/statement-key.pem"
  exec flower-superexec --runtime-api-address "127.0.0.1:$SUPERLINK_LOCAL" \
    --root-certificates "$FEDIF_FEDERATION/ca.crt"
}

run() { # KEY=VALUE...: a run to its end, in the server's container
  local own=("metrics.port=$METRICS_PORT" "metrics.host=\"$METRICS_HOST\"")
  ! masked || own+=('masking.mode="keeper"' "masking.keeper-url=\"https://$KEEPER_HOST:$KEEPER_PORT\""
    "masking.keeper-certificate=\"$FEDIF_FEDERATION/keeper.crt\""
    "masking.client-certificate=\"$FEDIF_FEDERATION/keeper-client.crt\""
    "masking.client-key=\"$FEDIF_FEDERATION/keeper-client.key\"")
  exec fedif federation run --app "$APP" "${own[@]}" "$@"
}

supernode() {
  exec fedif node start
}

keeper() {
  exec fedif keeper --policy "$KEEPER/keeper.toml"
}

healthy() { # [--or-idle] URL: with --or-idle, a port that is closed is well, too
  exec python -c '
import sys, urllib.error, urllib.request
open_url = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
try:
    open_url(sys.argv[-1], timeout=5).read()
except urllib.error.URLError as error:
    if "--or-idle" not in sys.argv or not isinstance(error.reason, ConnectionRefusedError):
        sys.exit(str(error))' "$@"
}

role=${1:-}
case $role in
  setup | superlink | server | run | supernode | keeper | healthy) shift && "$role" "$@" ;;
  *)
    echo "usage: entrypoint setup|superlink|server|run|supernode|keeper|healthy [ARGUMENT...]" >&2
    exit 2
    ;;
esac
