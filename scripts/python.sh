#!/bin/sh
# The Python package, built and tested in an environment of its own; prints "skipped: why" where that cannot be made.
# scripts/python.sh FOLDER: where environment and build go.
set -u
cd "$(dirname "$0")/.."
folder=${1:-target}
env=$folder/python-env
skip() {
    echo "skipped: $*"
    exit 0
}
command -v python3 >/dev/null 2>&1 || skip "python3 is not installed"
if [ ! -x "$env/bin/maturin" ] || [ ! -x "$env/bin/pytest" ]; then
    python3 -m venv "$env" >/dev/null 2>&1 || skip "python3 -m venv does not work (python3-venv)"
    # The third descriptor, where there is one, is for who started this; the others go to a log.
    { echo "installing with pip, into $env: maturin numpy pandas pyarrow pytest" >&3; } 2>/dev/null || :
    timeout 300 "$env/bin/pip" install --quiet maturin numpy pandas pyarrow pytest >"$folder/pip.log" 2>&1 ||
        skip "pip cannot install maturin, numpy, pandas, pyarrow and pytest, see $folder/pip.log"
fi
set -e
CARGO_TARGET_DIR=$(cd "$folder" && pwd)/python
export CARGO_TARGET_DIR VIRTUAL_ENV="$(cd "$env" && pwd)"
(cd python && timeout 900 "$VIRTUAL_ENV/bin/maturin" develop --quiet && "$VIRTUAL_ENV/bin/python" -m pytest -q)
