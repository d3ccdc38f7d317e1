#!/usr/bin/env bash
# The laws and the benchmarks on a GPU. The machine may be bare: PyTorch and the core dependencies are enough.
#   OUT=DIR     where the JSON goes (default benchmarks/results)
#   DEVICE=...  a torch device (default cuda)
#   PYTHON=...  the interpreter (default .venv/bin/python if there is one, else python3)
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

OUT=${OUT:-benchmarks/results}
DEVICE=${DEVICE:-cuda}
if [ -z "${PYTHON:-}" ]; then
    PYTHON=python3
    [ -x .venv/bin/python ] && PYTHON=.venv/bin/python
fi
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}"
export OMP_WAIT_POLICY=PASSIVE PYTHONUNBUFFERED=1

mkdir -p "$OUT" || exit 1
"$PYTHON" - "$DEVICE" <<'CHECK' || exit 1
import platform, sys
import torch
import lapwing

device = torch.device(sys.argv[1])
torch.ones(1, device=device)
name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
sys.stdout.write(f"Python {platform.python_version()}, torch {torch.__version__}, device {name}\n")
CHECK

failed=0
if "$PYTHON" -c 'import pytest' 2>/dev/null; then
    # addopts is cleared: the shape checker needs beartype, which a bare machine lacks.
    "$PYTHON" -m pytest -o addopts= --import-mode=importlib -p no:cacheprovider -m gpu tests/laws || failed=1
else
    echo "pytest is not installed for $PYTHON: the laws were not run."
fi

for name in structures products sampling tuning; do
    "$PYTHON" -m "benchmarks.$name" --device "$DEVICE" --json "$OUT/$name-${DEVICE//:/-}.json" || failed=1
done
exit "$failed"
