#!/bin/sh
# Find a Python that can make a venv, and let it run bootstrap.py.
#
#     sh tools/bootstrap.sh serve|test|lock
#
# PYTHON=/path/to/python overrides the search. There may be no Python at all, hence sh.
cd "$(dirname "$0")/.." || exit 1

# Python's own switches would follow us into the venv; which venv is active does not matter here.
unset PYTHONHOME PYTHONPATH PYTHONOPTIMIZE PYTHONSTARTUP PYTHONWARNINGS __PYVENV_LAUNCHER__

# The usual case first: everything stands, nothing to search.
if [ -z "${PYTHON:-}" ] && [ -f .venv/.ready ] && [ "$1" != lock ]; then
    .venv/bin/python -I -S tools/bootstrap.py --check "$@" 2>/dev/null && exit 0
fi

probe='
import sys
print("%d.%d" % sys.version_info[:2])
if sys.version_info < (3, 11):
    sys.exit(3)
try:
    import venv
    if sys.argv[1] != "uv":
        from ensurepip import bootstrap
except ImportError:
    sys.exit(4)
'
tool=pip
command -v uv >/dev/null 2>&1 && [ "${FENCEPOST_INSTALLER:-uv}" = uv ] && tool=uv

old='' bare=''
for python in ${PYTHON:+"$PYTHON"} python3 python3.13 python3.12 python3.11 python3.14 python; do
    version=$("$python" -I -c "$probe" $tool 2>/dev/null)
    case $? in
        0) exec "$python" -I tools/bootstrap.py "$@" ;;
        3) old=${old:-"$python is $version"} ;;
        4) bare=${bare:-"$python $version"} ;;
    esac
    [ -z "${PYTHON:-}" ] || break
done

if [ -n "$bare" ]; then
    package=$(echo "$bare" | sed -n 's/^.*\(python3\.[0-9]*\) .*$/\1-venv/p')
    echo "fencepost: ${bare% *} (${bare##* }) cannot make a venv: install its package (Debian, Ubuntu: apt install ${package:-python3-venv})" >&2
elif [ -n "${PYTHON:-}" ]; then
    echo "fencepost: PYTHON=$PYTHON will not do (${old:-it does not run}): needs Python 3.11 or newer" >&2
else
    echo "fencepost: needs Python 3.11 or newer (${old:-there is none on PATH}): install it (Debian, Ubuntu: apt install python3 python3-venv) or name one: make PYTHON=/path/to/python3.11 ..." >&2
fi
exit 1
