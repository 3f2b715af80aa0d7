#!/bin/sh
# abi.sh PREFIX: what the headers that are installed there declare, one line of code after the other, and the size
# of every type. The file of a version is made with
#   ./bazelw run //:install -- --prefix=/tmp/thinwire && tests/package/abi.sh /tmp/thinwire >tests/package/abi-0.3.txt
set -e
cd "$1/include/thinwire"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for header in */*.h; do
    echo "#include \"$header\""
done >"$work/all.h"
cc -E -I. -x c - <"$work/all.h" | awk '/^# [0-9]+ "/ { own = $3 !~ /^"[\/<]/; next }
    own && NF { gsub(/[ \t]+/, " "); print }' | tee "$work/text"
{
    echo '#include <stdio.h>'
    cat "$work/all.h"
    echo 'int main(void)'
    echo '{'
    grep -oE '\} ?tw_[a-z0-9_]+_t;' "$work/text" | sed -E 's/\} ?(.*);/printf("sizeof(\1) %zu\\n", sizeof(\1));/'
    echo 'return 0;'
    echo '}'
} >"$work/sizes.c"
cc -I. "$work/sizes.c" -o "$work/sizes"
"$work/sizes"
