#!/usr/bin/env bash
# install.sh PYTHON ARGUMENTS does what `PYTHON -m pip install ARGUMENTS` does, with uv, which needs a tenth of the time.
# uv does not read pip's settings, so it gets them here. Where it cannot be had, or fails, pip does the work.
set -euo pipefail
python=$1
shift
settings=$("$python" -m pip config list)

# setting NAME: its value in pip's order of precedence, words separated by spaces; nothing if it is not set
setting() {
  local section value
  for section in :env: install global; do
    value=$(sed -n "s/^$section\.$1='\(.*\)'$/\1/p" <<< "$settings")
    [ -z "$value" ] || { printf '%b' "$value" | xargs; return; }
  done
}

# give VARIABLE VALUE: set for uv, unless it is empty or the user has set it
give() {
  [ -z "$2" ] || [ -n "${!1:-}" ] || export "$1=$2"
}

give UV_FIND_LINKS "$(setting find-links | tr ' ' ',')"
give UV_DEFAULT_INDEX "$(setting index-url)"
give UV_INDEX "$(setting extra-index-url)"
give UV_CONSTRAINT "$(setting constraint)"
give UV_INSECURE_HOST "$(setting trusted-host)"
give SSL_CERT_FILE "$(setting cert)"
export UV_INDEX_STRATEGY=unsafe-best-match # pip's: the newest version of all indexes

uv=$(dirname "$python")/uv
[ -x "$uv" ] || "$python" -m pip --quiet --quiet install 'uv>=0.8' 2> /dev/null || uv=
if [ -n "$uv" ] && "$uv" pip install --quiet --quiet --python "$python" "$@" 2> /dev/null; then
  exit
fi
exec "$python" -m pip --quiet --quiet install "$@"
