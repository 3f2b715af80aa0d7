/** What NCCL's library has inside and does not export: its own socket transport, to be measured beside ours.
 *  Its symbols are in the file's symbol table as long as nobody has stripped it. */
#pragma once

#include "core/core.h"

TW_C_BEGIN

/** Where a symbol of the file from which `library` (dlopen's) was loaded is now, exported or not. NULL: there
 *  is none, and `why` says so. */
void *nccl_library_symbol(void *library, const char *name, char *why, size_t why_bytes);

/** From now on whoever calls the function at `old` runs `instead`, which takes the same: its first bytes
 *  become a jump (x86-64 alone). For calls inside a library, which no other library can come before. Nobody
 *  may be in it meanwhile. 0: it cannot be done, errno is set. */
int nccl_library_replace(void *old, const void *instead);

TW_C_END
