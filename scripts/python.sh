#!/bin/sh
# The Python package, built and tested in an environment of its own; prints "skipped: why" where
# that cannot be made. scripts/python.sh FOLDER: where environment and build go.
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
    { echo "installing with pip, into $env: maturin numpy pandas pyarrow pytest" >&3; } \
        2>/dev/null || :
    timeout 300 "$env/bin/pip" install --quiet maturin numpy pandas pyarrow pytest \
        >"$folder/pip.log" 2>&1 ||
        skip "pip cannot install maturin, numpy, pandas, pyarrow and pytest, see $folder/pip.log"
fi
set -e
CARGO_TARGET_DIR=$(cd "$folder" && pwd)/python
export CARGO_TARGET_DIR VIRTUAL_ENV="$(cd "$env" && pwd)"
(cd python && timeout 900 "$VIRTUAL_ENV/bin/maturin" develop --quiet && "$VIRTUAL_ENV/bin/python" \
    -m pytest -q)

# The wheel needs no compiler: installed into an environment of its own, with none in PATH.
wheel=$CARGO_TARGET_DIR/wheel-test
rm -rf "$wheel"
(cd python && timeout 900 "$VIRTUAL_ENV/bin/maturin" build --quiet --out "$wheel")
ls "$wheel"/terrace-*-abi3-*.whl >/dev/null
python3 -m venv --system-site-packages "$wheel/env"
# numpy comes from the environment above; the network is not asked.
"$wheel/env/bin/python" -m pip install --quiet --no-index --no-deps "$wheel"/terrace-*.whl
packages=$("$VIRTUAL_ENV/bin/python" -c \
    'import numpy, os; print(os.path.dirname(os.path.dirname(numpy.__file__)))')
(cd / && env -i HOME=/nonexistent PYTHONPATH="$packages" "$wheel/env/bin/python" -c '
import terrace, os
assert os.environ.get("PATH") is None
assert "wheel-test" in terrace.__file__, terrace.__file__
from terrace import alloc
alloc.Memory()
print("the wheel works without a compiler")')
