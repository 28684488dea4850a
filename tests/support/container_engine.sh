#!/usr/bin/env bash
# A Docker engine of one's own for tests/e2e/containers, on a Debian machine, as root.
#
#   container_engine.sh prepare           install what it needs, make the base image, build the image of this source
#   container_engine.sh prepare pipeline  build the image of the data pipeline, too, which is large
#   container_engine.sh run COMMAND...    run a command beside the engine, which ends with it
#   container_engine.sh remove            delete its data
#
# The engine has namespaces for its network, mounts and processes: it changes no firewall rule, route or mount of the
# machine, and can live beside another engine. slirp4netns connects it to registries of packages. COMMAND runs in the
# engine's network, where the published ports are on localhost. Where an engine answers already, `prepare` has nothing to
# do, `prepare pipeline` builds its image there, and `run` just runs the command. Exit code 3: no engine can be had here.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
DATA=${CONTAINER_ENGINE_DATA:-$PWD/.venv/container-engine}
BASE=$(sed -n 's/^ARG PYTHON_IMAGE=//p' Dockerfile)
IMAGE=odradek:test
PIPELINE_IMAGE=odradek-pipeline:test
PACKAGES=(docker.io iptables iproute2 slirp4netns mmdebstrap ca-certificates)
DNS=10.0.2.3 # of slirp4netns
# A signal to this script's process group does not reach the engine, which `stop` stops; and it never outlives the script.
BOUND=(setpriv --pdeathsig KILL setsid)

unable() { echo "$*" >&2; exit 3; }

install_packages() {
  local package missing=()
  for package in "${PACKAGES[@]}"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q ' installed' || missing+=("$package")
  done
  [ ${#missing[@]} = 0 ] && return
  { timeout --foreground 300 apt-get update -q &&
    DEBIAN_FRONTEND=noninteractive timeout --foreground 600 apt-get install -qy --no-install-recommends "${missing[@]}"; } \
    >/dev/null 2>&1 || unable "${missing[*]} could not be installed"
}

# Its sockets are in $sockets, as the path of a Unix socket must be short.
start() {
  sockets=$(mktemp -d /tmp/container-engine.XXXXXX)
  trap 'code=$?; stop; exit $code' EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
  mkdir -p "$DATA/engine"
  # What the engine writes into /run, /etc and /opt is in memory, and nobody else sees it.
  # shellcheck disable=SC2016 # expanded by the inner shell
  "${BOUND[@]}" unshare --net --mount --pid --fork --kill-child --mount-proc bash -ec '
    mount -t tmpfs tmpfs /opt
    mount -t tmpfs tmpfs /run
    mkdir /run/upper /run/work
    mount -t overlay -o lowerdir=/etc,upperdir=/run/upper,workdir=/run/work overlay /etc
    rm -f /etc/resolv.conf && echo "nameserver $2" >/etc/resolv.conf
    ip link set lo up
    echo 1 >/proc/sys/net/ipv4/ip_forward # by whoever is first: an engine would also drop what it forwards
    exec dockerd --data-root "$0" --host "unix://$1/docker.sock" --storage-driver overlay2 --dns "$2" \
      --exec-root /run/docker --pidfile /run/docker.pid --cgroup-parent /odradek-test
  ' "$DATA/engine" "$sockets" "$DNS" >"$DATA/engine.log" 2>&1 &
  namespaces=$!
  for _ in {1..50}; do
    engine=$(pgrep -P "$namespaces" -x dockerd) && break
    sleep 0.1
  done
  [ -n "$engine" ] || unable "the engine does not start: $(tail -1 "$DATA/engine.log")"
  "${BOUND[@]}" slirp4netns --configure --mtu=1500 --disable-host-loopback "$engine" tap0 >"$DATA/network.log" 2>&1 &
  network=$!
  export DOCKER_HOST=unix://$sockets/docker.sock DOCKER_CONFIG=$DATA/config
  for _ in {1..300}; do
    docker info >/dev/null 2>&1 && return
    kill -0 "$engine" 2>/dev/null || break
    sleep 0.1
  done
  unable "the engine does not start: $(tail -1 "$DATA/engine.log")"
}

stop() {
  if [ -n "${engine:-}" ] && kill -0 "$engine" 2>/dev/null; then
    docker ps --all --quiet 2>/dev/null | xargs --no-run-if-empty docker rm --force --volumes >/dev/null 2>&1 || true
    kill "$engine" 2>/dev/null || true
    timeout 20 tail --pid="$engine" --follow /dev/null || true
  fi
  # And with it all that is left in its namespaces.
  [ -z "${namespaces:-}" ] || kill -KILL "$namespaces" 2>/dev/null || true
  [ -z "${network:-}" ] || kill "$network" 2>/dev/null || true
  wait 2>/dev/null || true
  find /sys/fs/cgroup -depth -type d -path '*/odradek-test*' -exec rmdir {} + 2>/dev/null || true
  rm -rf "${sockets:?}"
}

# The official image where a registry of containers can be reached; otherwise Debian's Python, with what this machine
# trusts, and with pip as in the official image.
make_base() {
  docker image inspect "$BASE" >/dev/null 2>&1 && return
  timeout --foreground 60 docker pull --quiet "$BASE" >/dev/null 2>&1 && return
  local suite=${BASE##*-} certificates=/usr/local/share/ca-certificates
  # shellcheck disable=SC2016 # $1 is the new root, which mmdebstrap's shell knows.
  timeout --foreground 600 mmdebstrap --quiet --variant=apt --include=ca-certificates,python3,python3-dev,python3-venv,python3-pip \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    --customize-hook="sync-in $certificates $certificates" \
    --customize-hook='chroot "$1" update-ca-certificates >/dev/null 2>&1' \
    --customize-hook='printf "[global]\ncert = /etc/ssl/certs/ca-certificates.crt\n" >"$1/etc/pip.conf"' \
    --customize-hook='rm -f "$1"/usr/lib/python3*/EXTERNALLY-MANAGED' \
    --customize-hook='ln -s /usr/bin/python3 "$1/usr/local/bin/python"' \
    "$suite" - 2>"$DATA/base.log" | docker import --change 'CMD ["python3"]' - "$BASE" >/dev/null \
    || unable "the base image could not be made: $(tail -1 "$DATA/base.log")"
}

# Debian had no second version of compose before trixie, whose program needs nothing of its release.
fetch_compose() {
  docker compose version >/dev/null 2>&1 && return
  local apt=$DATA/apt uri options
  # shellcheck disable=SC2016 # expanded by apt-get
  uri=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -m 1 -E '/debian/?$') || true
  mkdir -p "$apt"/{lists/partial,archives/partial,unpacked} "$DATA/config/cli-plugins"
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $uri trixie main" >"$apt/sources.list"
  options=(-o Dir::Etc::sourcelist="$apt/sources.list" -o Dir::Etc::sourceparts=/dev/null -o Dir::State::lists="$apt/lists"
    -o Dir::Cache="$apt" -o APT::Sandbox::User=root)
  (cd "$apt" && timeout --foreground 120 apt-get "${options[@]}" update -q && timeout --foreground 120 apt-get "${options[@]}" download docker-compose &&
    dpkg -x docker-compose_*.deb unpacked && cp unpacked/usr/libexec/docker/cli-plugins/docker-compose ../config/cli-plugins/) \
    >"$DATA/compose.log" 2>&1 || echo "no compose plugin could be fetched: its test will be skipped"
  rm -rf "$apt"
}

build() { # TAG DOCKERFILE
  DOCKER_BUILDKIT=0 timeout --foreground 900 docker build --quiet --tag "$1" --file "$2" . >"$DATA/image.log" 2>&1 \
    || unable "the image $1 could not be built: $(tail -1 "$DATA/image.log")"
}

prepare() {
  mkdir -p "$DATA"
  if ! answers; then
    [ "$(id -u)" = 0 ] || unable "this is not root"
    command -v apt-get >/dev/null || unable "this is not Debian"
    [ -c /dev/net/tun ] || unable "no /dev/net/tun"
    install_packages
    start
    make_base
    fetch_compose
    build "$IMAGE" Dockerfile
  fi
  [ "${1:-}" != pipeline ] || build "$PIPELINE_IMAGE" pipeline/Dockerfile
}

run() {
  if answers; then exec "$@"; fi
  start
  export ODRADEK_TEST_IMAGE=$IMAGE
  local code=0
  nsenter --net="/proc/$engine/ns/net" "$@" || code=$?
  exit "$code"
}

answers() { command -v docker >/dev/null && timeout 20 docker info >/dev/null 2>&1; }

case ${1:-} in
  prepare) prepare "${2:-}" ;;
  run) shift; run "$@" ;;
  remove) rm -rf "$DATA" ;;
  *) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0"; exit 2 ;;
esac
