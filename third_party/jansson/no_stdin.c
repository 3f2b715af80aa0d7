/* What the archive finds as `stdin`; see BUILD. Nothing reads it. */
#include <stdio.h>

__attribute__((visibility("hidden"))) FILE *stdin;
