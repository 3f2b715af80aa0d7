#!/usr/bin/env bash
# make.sh OUT.tar.gz RUN README PROGRAM...: a folder to carry to a machine that lacks these programs' libraries, packed.
# With every shared library that they and UCX's modules load, but the C library's, the compiler's and the driver's.
set -euo pipefail

out=$1 run=$2 readme=$3
shift 3

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
top=$stage/gpu_bundle
mkdir -p "$top/bin" "$top/lib/ucx"

is_system() { # of glibc and GCC, by name
    case $1 in
    linux-vdso.* | ld-linux* | libc.so.* | libm.so.* | libdl.so.* | librt.so.* | libpthread.so.* | \
        libresolv.so.* | libutil.so.* | libanl.so.* | libstdc++.so.* | libgcc_s.so.* | \
        libcuda.so.* | libnccl.so.*) return 0 ;;
    esac
    return 1
}

# The libraries that a file loads, as "name path".
libraries_of() { ldd "$1" | awk '$2 == "=>" { print $1, $3 }'; }

add_libraries() {
    local name path
    while read -r name path; do
        [ "$path" != not ] || { echo "make.sh: $1 needs $name, which is not here" >&2 && exit 1; }
        is_system "$name" && continue
        [[ $name != libuct_* ]] || continue # a module
        [ -e "$top/lib/$name" ] || cp -L "$path" "$top/lib/$name"
    done < <(libraries_of "$1")
}

for program in "$@"; do # or a library of our own
    case $program in
    *.so) copy=$top/lib/$(basename "$program") ;;
    *) copy=$top/bin/$(basename "$program") ;;
    esac
    cp -L "$program" "$copy"
    chmod 755 "$copy"
    strip -g "$copy"
    add_libraries "$program"
done

# UCX, which they load when they need it: it looks for modules in the folder `ucx` beside its own libraries, under names that end as theirs do.
ucp=$(PATH=$PATH:/sbin ldconfig -p | awk '$1 == "libucp.so.0" && !found { print $NF; found = 1 }')
[ -n "$ucp" ] || { echo "make.sh: UCX is not here" >&2 && exit 1; }
cp -L "$ucp" "$top/lib/libucp.so.0"
add_libraries "$ucp"
ucs=$(libraries_of "$ucp" | awk '$1 ~ /^libucs\.so/ { print $2 }')
shopt -s nullglob # it may have none
for module in "$(dirname "$(readlink -f "$ucs")")"/ucx/libuc*.so.0; do
    cp -L "$module" "$top/lib/ucx/"
    add_libraries "$module"
done
find "$top/lib" -type f -exec chmod 644 {} +

cp -L "$run" "$top/run"
cp -L "$readme" "$top/README.md"
chmod 755 "$top/run"
chmod 644 "$top/README.md"
tar -C "$stage" --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -cf - gpu_bundle | gzip -6n >"$out"
