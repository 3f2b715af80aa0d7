/* The symbol `stdin` for the archive of Jansson; see BUILD. Nothing reads it. */
#include <stdio.h>

__attribute__((visibility("hidden"))) FILE *stdin;
