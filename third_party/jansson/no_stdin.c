/* What the archive has for stdin; see BUILD. Nothing here reads that. */
#include <stdio.h>

extern FILE *tw_no_stdin;
FILE *tw_no_stdin;
