#!/usr/bin/env bash
# Runs the tests that `make test` skipped, where what they need can be had; `make test-extras` installs the libraries.
# Each run takes the tests that the runs before it skipped. What the last one skips is listed.
set -euo pipefail
cd "$(dirname "$0")/.."
skipped=.pytest_cache/d/skipped/tests.tsv
[ -e "$skipped" ] || { echo "run \`make test\` first: $skipped lists what it skipped" >&2; exit 1; }
export OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= TEST_EXTRAS=1
scratch=$(mktemp -d)
rgw=../shared/tools
end() {
  [ ! -d "$scratch/rgw" ] || BASE=$scratch/rgw "$rgw/stop_rgw.sh" > "$scratch/rgw.log"
  rm -rf "$scratch"
}
trap end EXIT

# run ENVIRONMENT [options of pytest]
run() {
  cut -f 1 "$skipped" > "$scratch/tests"
  echo "== $(wc -l < "$scratch/tests") skipped tests and modules in $1"
  [ ! -s "$scratch/tests" ] || "$1/bin/python" -m pytest "${@:2}" "@$scratch/tests"
}

# The image is built on the Debian of this machine, with its settings of pip: there may be no registry of images.
image_base() {
  local container place file
  debootstrap --variant=minbase --include=python3-pip,python3-venv "$(. /etc/os-release; echo "$VERSION_CODENAME")" \
    "$scratch/debian" > "$scratch/debootstrap.log" || { tail "$scratch/debootstrap.log" >&2; return 1; }
  export BUILDAH_ISOLATION=chroot
  export TEST_BUILDAH="buildah --storage-driver vfs --root $scratch/images --runroot $scratch/containers"
  container=$($TEST_BUILDAH from scratch)
  $TEST_BUILDAH add --quiet "$container" "$scratch/debian" / > "$scratch/buildah.log"
  # A container needs no environment of its own to protect Debian's packages. An index that cannot be reached is asked
  # for each package.
  $TEST_BUILDAH config --env PIP_BREAK_SYSTEM_PACKAGES=1 --env PIP_RETRIES=1 "$container"
  $TEST_BUILDAH commit --quiet "$container" zarr-core-base > "$scratch/buildah.log"
  $TEST_BUILDAH rm "$container" > "$scratch/buildah.log"
  rm -rf "$scratch/debian"
  export TEST_IMAGE_BASE=localhost/zarr-core-base TEST_IMAGE_OPTIONS=""
  # Files of an index lie beside its pages.
  for place in $(.venv/bin/pip config debug | sed -n 's/^ *\(.*\), exists: True$/\1/p') \
      $(.venv/bin/pip config list | grep -oE "[= ']/[^ ']+" | tr -d "= '") \
      $(.venv/bin/pip config list | grep -oE "file:///[^ ']+" | sed 's|^file://||; s|/[^/]*$||'); do
    [ ! -e "$place" ] || TEST_IMAGE_OPTIONS+=" --volume $place:$place:ro"
  done
}

packages=(buildah crun debootstrap iproute2 postgresql slurmctld slurmd slurm-client slurm-wlm-basic-plugins)
everything=false
if [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
  everything=true
  export DEBIAN_FRONTEND=noninteractive TEST_NETWORK_NAMESPACES=1
  { apt-get update && apt-get install -y --no-install-recommends "${packages[@]}"; } > "$scratch/apt.log" 2>&1 \
    || { tail -20 "$scratch/apt.log" >&2; exit 1; }
  image_base
else
  echo "skipped: ${packages[*]} (needs root and apt-get)"
fi
run .venv -n 4 --dist loadfile
run .venv-anndata
run .venv-lineage
run .venv-mds
run .venv-hydra
run .venv-recipes
run .venv-docs
if [ "$(id -u)" = 0 ] && [ -x "$rgw/start_rgw.sh" ]; then
  BASE=$scratch/rgw "$rgw/start_rgw.sh" > "$scratch/rgw.log" 2>&1 < /dev/null || { tail -20 "$scratch/rgw.log" >&2; exit 1; }
  (
    set -a
    . "$scratch/rgw/run/creds.env"
    TEST_S3_ENDPOINT=$AWS_ENDPOINT_URL
    unset AWS_ENDPOINT_URL
    make --no-print-directory test-rgw
  )
else
  echo "skipped: the tests of S3 on Ceph's gateway (needs root and its start script in ../shared/tools)"
fi

echo "== still skipped"
sed 's/\t/: /' "$skipped"
if "$everything" && grep -vE 'GPU|chart|/shared|free disk' "$skipped"; then
  echo "these tests must not be skipped" >&2
  exit 1
fi
