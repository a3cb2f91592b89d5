#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Installs torch and torch_npusim in the Python that is first on the path, and sets the device up for
# the steps that follow. Reads the inputs of action.yml as SETUP_...; writes the files that GitHub
# names in GITHUB_ENV and GITHUB_OUTPUT.
set -euo pipefail

fail() {
  echo "::error title=setup-npusim::$1"
  exit 1
}

pip() {
  python -m pip --disable-pip-version-check --quiet "$@"
}

torch_options=()
if [[ -n $SETUP_TORCH_INDEX ]]; then
  torch_options=(--index-url "$SETUP_TORCH_INDEX")
fi
pip install ${torch_options[@]+"${torch_options[@]}"} "torch==$SETUP_TORCH"

# Ours from the folder, whatever an index has; then what they need.
ours=(torch-npusim) folders=()
for extra in lab conformance truth course; do
  if [[ ,$SETUP_EXTRAS, == *,$extra,* ]]; then
    ours+=("npusim-$extra")
    folders+=("$SETUP_NPUSIM/$extra")
  fi
done
if compgen -G "$SETUP_NPUSIM/torch_npusim-*.whl" >/dev/null; then
  pip install --no-index --no-deps --find-links "$SETUP_NPUSIM" "${ours[@]}"
  pip install --find-links "$SETUP_NPUSIM" "torch-npusim[$SETUP_EXTRAS]"
elif [[ -f $SETUP_NPUSIM/pyproject.toml ]]; then
  pip install cmake ninja 'pybind11>=3.0'
  pip install --no-build-isolation "$(cd "$SETUP_NPUSIM" && pwd)[$SETUP_EXTRAS]" "${folders[@]}"
else
  fail "npusim: '$SETUP_NPUSIM' is no folder with wheels or the source of torch-npusim"
fi

set_for_job() {
  export "$1=$2"
  echo "$1=$2" >>"$GITHUB_ENV"
}

if [[ -n $SETUP_DEVICES ]]; then set_for_job NPUSIM_DEVICE_COUNT "$SETUP_DEVICES"; fi
if [[ -n $SETUP_MEMORY ]]; then set_for_job NPUSIM_DEVICE_MEMORY "$SETUP_MEMORY"; fi
case $SETUP_AS_CUDA in
  true) set_for_job NPUSIM_AS_CUDA 1 ;;
  false) ;;
  *) fail "as-cuda: '$SETUP_AS_CUDA' is neither true nor false" ;;
esac

version=$(python -c 'from importlib.metadata import version; print(version("torch-npusim"))')
echo "version=$version" >>"$GITHUB_OUTPUT"
npusim doctor
