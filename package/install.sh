#!/usr/bin/env bash
# Installs the shared and the static library, the libraries for NCCL, the public headers and the pkg-config
# file. See usage().
set -euo pipefail

usage() {
    cat <<EOT
usage: ./bazelw run //:install -- --prefix DIR [--libdir DIR] [--destdir DIR]

  --prefix DIR    where to: DIR/include/thinwire, DIR/lib, DIR/lib/pkgconfig (default: /usr/local)
  --libdir DIR    another place for the libraries, absolute (default: PREFIX/lib)
  --destdir DIR   put everything below DIR, for those who make packages (default: nothing)
  --help          this text

For a job under NCCL (docs/nccl.md): LD_LIBRARY_PATH=PREFIX/lib NCCL_NET_PLUGIN=thinwire.
For a program of yours (with PKG_CONFIG_PATH=PREFIX/lib/pkgconfig where that is not searched anyway):

  cc program.c \$(pkg-config --cflags --libs thinwire) -o program
  cc program.c \$(pkg-config --cflags thinwire) \$(pkg-config --variable=archive thinwire) -o program    # static
EOT
}

fail() {
    printf 'install: %s\n' "$*" >&2
    exit 1
}

# Arguments before "--" come from the build, arguments after it from the caller.
headers=()
nccl=()
while [ "${1:-}" != -- ]; do
    case "${1:-}" in
    --library) library=$2 && shift ;;
    --archive) archive=$2 && shift ;;
    --soname) soname=$2 && shift ;;
    --pc) pc=$2 && shift ;;
    --help) usage && exit ;;
    --header=*) headers+=("${1#--header=}") ;;
    --nccl=*) nccl+=("${1#--nccl=}") ;;
    *) fail "run me by ./bazelw run //:install" ;;
    esac
    shift
done
shift

prefix=/usr/local
libdir=
destdir=
while [ $# -gt 0 ]; do
    case "$1" in
    --prefix=* | --libdir=* | --destdir=*) set -- "${1%%=*}" "${1#*=}" "${@:2}" && continue ;;
    --prefix) prefix=${2:?install: --prefix needs a folder} && shift ;;
    --libdir) libdir=${2:?install: --libdir needs a folder} && shift ;;
    --destdir) destdir=${2:?install: --destdir needs a folder} && shift ;;
    -h | --help) usage && exit 0 ;;
    *) fail "unknown argument \"$1\"; --help lists them" ;;
    esac
    shift
done

# The caller's relative paths start at the folder in which the caller ran Bazel.
absolute() { case "$1" in /*) printf '%s' "$1" ;; *) printf '%s' "${BUILD_WORKING_DIRECTORY:-$PWD}/$1" ;; esac; }
prefix=$(absolute "$prefix")
libdir=$(absolute "${libdir:-$prefix/lib}")
[ -z "$destdir" ] || destdir=$(absolute "$destdir")
includedir=$prefix/include

put() { # put MODE FROM TO
    install -D -m "$1" "$2" "$destdir$3" || fail "cannot write $destdir$3"
}

version=
for header in "${headers[@]}"; do
    put 644 "$header" "$includedir/thinwire/$header"
    found=$(sed -n 's/^#define TW_VERSION "\(.*\)"$/\1/p' "$header")
    version=${found:-$version}
done
[ -n "$version" ] || fail "no header defines TW_VERSION"

put 755 "$library" "$libdir/libthinwire.so.$version"
ln -sfn "libthinwire.so.$version" "$destdir$libdir/$soname"
ln -sfn "$soname" "$destdir$libdir/libthinwire.so"
for one in "${nccl[@]}"; do
    put 755 "$one" "$libdir/${one##*/}"
done
put 644 "$archive" "$libdir/libthinwire.a"
filled=$(mktemp)
trap 'rm -f "$filled"' EXIT
sed -e "s|@prefix@|$prefix|" -e "s|@libdir@|$libdir|" -e "s|@includedir@|$includedir|" -e "s|@version@|$version|" "$pc" >"$filled"
put 644 "$filled" "$libdir/pkgconfig/thinwire.pc"

printf 'installed thinwire %s: %s, %s, %s\n' "$version" "$destdir$libdir/$soname" "$destdir$includedir/thinwire" \
    "$destdir$libdir/pkgconfig/thinwire.pc"
