/** Reaches what NCCL's library does not export: its own socket transport, to measure it beside ours. The
 *  file's symbol table has its symbols, unless the file was stripped. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** Return the address of a symbol, exported or not, of the file that `library` (from dlopen) was loaded from.
 *  NULL: there is none, and `why` says so. */
void *nccl_library_symbol(void *library, const char *name, char *why, size_t why_bytes);

/** Overwrite the first bytes of the function at `old` with a jump to `instead`, which has the same signature
 *  (x86-64 alone). This catches calls inside a library, which a preloaded library cannot. No thread may be in
 *  `old` meanwhile. Returns 0, with errno, if it cannot be done. */
int nccl_library_replace(void *old, const void *instead);

TW_C_END
