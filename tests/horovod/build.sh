#!/usr/bin/env bash
# Build Horovod for TensorFlow and gloo into a virtual environment of its own: build.sh VENV WHEELS CONSTRAINTS
#
# The wheel is kept in WHEELS, and built again only where there is none. Horovod 0.28.1 needs Python 3.11 or older (for
# TensorFlow 2.15), cmake < 4 and setuptools < 70, which it must see while it is built (no build isolation).
set -euo pipefail
venv=$1 wheels=$2 constraints=$3

fail() {
  echo "make test-horovod: $1" >&2
  exit 1
}
find_python() {
  local name
  for name in "${HOROVOD_PYTHON:-python3.11}" python3; do
    if "$name" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
      "$name" -c 'import sys; print(sys.executable)'
      return
    fi
  done
}
python=$(find_python)
[ -n "$python" ] || fail "no Python 3.11 here, and TensorFlow 2.15 has none newer: install it (Debian: apt install \
python3.11-venv python3.11-dev), or name it: HOROVOD_PYTHON=/path/to/python3.11"
"$python" -c 'import ensurepip' 2>/dev/null || fail "$python has no venv: apt install python3.11-venv"
header=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h
[ -e "$header" ] || fail "$python has no headers ($header): apt install python3.11-dev"
for tool in g++ make; do
  command -v "$tool" >/dev/null || fail "$tool is missing: apt install build-essential"
done

"$python" -m venv --clear "$venv"
pip=("$venv/bin/python" -m pip --disable-pip-version-check)
"${pip[@]}" install -q -c "$constraints" cmake 'setuptools<70' wheel tensorflow-cpu cloudpickle psutil pyyaml packaging

if ! compgen -G "$wheels/horovod-*.whl" >/dev/null; then
  mkdir -p "$wheels"
  # A build for tests: without debug information and with less optimisation it takes half of the time.
  cat >"$venv/bin/cmake-for-tests" <<'CMAKE'
#!/usr/bin/env bash
here=$(cd "$(dirname "$0")" && pwd)
case " $* " in
  *" -DCMAKE_BUILD_TYPE="*) exec "$here/cmake" "$@" -DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O1 ;;
  *" --build . --config "*) shift 2 && exec "$here/cmake" --build . --target tensorflow "$@" ;;
  *) exec "$here/cmake" "$@" ;;
esac
CMAKE
  chmod +x "$venv/bin/cmake-for-tests"
  echo "building Horovod, which takes some minutes; the log is in $wheels/build.log"
  began=$SECONDS
  PATH="$(cd "$venv/bin" && pwd):$PATH" HOROVOD_CMAKE="$(cd "$venv/bin" && pwd)/cmake-for-tests" \
    MAKEFLAGS="-j$(nproc)" HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 \
    HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1 \
    "${pip[@]}" wheel -v --no-deps --no-build-isolation -c "$constraints" -w "$wheels" horovod \
    >"$wheels/build.log" 2>&1 || {
    tail -n 30 "$wheels/build.log" >&2
    fail "Horovod was not built; all of it is in $wheels/build.log"
  }
  echo "built in $((SECONDS - began)) s"
fi
"${pip[@]}" install -q --no-deps "$wheels"/horovod-*.whl
"$venv/bin/python" -c 'import horovod.tensorflow as hvd; assert hvd.gloo_built()'
