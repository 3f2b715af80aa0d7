/* TW_INTERPOSE: finds and opens the interposer. It stays in the process. */
#include "plugin/nccl/interposer.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "core/core.h"
#include "plugin/interpose/options.h"

#define LIBRARY "libthinwire-nccl.so"
#define REDIRECT "tw_nccl_redirect"
#define PATH_BYTES 4096

/* This library's own folder first. */
static void *open_library(void)
{
    char path[PATH_BYTES];
    Dl_info own;
    void *library = NULL;

    if (dladdr(LIBRARY, &own) != 0 && own.dli_fname != NULL) {
        const char *end = strrchr(own.dli_fname, '/');
        int n = end != NULL ? (int)(end - own.dli_fname + 1) : 0;
        snprintf(path, sizeof(path), "%.*s" LIBRARY, n, own.dli_fname);
        library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    return library != NULL ? library : dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
}

static int (*redirect)(void); /* NULL: not asked for, or it cannot be done */

/* ISO C has no conversion from an object pointer to a function pointer; POSIX says they are alike. */
static int redirect_first(void *library)
{
    int (*function)(void) = NULL;
    void *symbol = dlsym(library, REDIRECT);

    memcpy(&function, &symbol, sizeof(function));
    if (function == NULL) {
        tw_error("TW_INTERPOSE: %s; nothing is quantized", dlerror());
        return -1;
    }
    int n = function();
    if (n >= 0) {
        redirect = function;
    }
    return n;
}

static void open_interposer(void)
{
    void *library = open_library();

    if (library == NULL) {
        tw_error("TW_INTERPOSE: %s; nothing is quantized", dlerror());
        return;
    }
    int n = redirect_first(library);
    if (n == 0) {
        tw_warn(
            "TW_INTERPOSE: no object of this process calls NCCL through a table of addresses that could be "
            "changed; nothing is quantized unless " LIBRARY " was preloaded");
    } else if (n > 0) {
        tw_info("TW_INTERPOSE: %d calls of NCCL redirected", n);
    }
}

static void begin(void)
{
    tw_ip_options_t options;

    if (tw_ip_options_init(&options) != TW_OK) {
        tw_error("TW_INTERPOSE: a variable of the interposer makes no sense; nothing is quantized");
        return;
    }
    if (options.redirects) {
        open_interposer();
    }
    tw_ip_options_cleanup(&options);
}

void tw_interposer_open(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    (void)pthread_once(&once, begin);
    int n = redirect != NULL ? redirect() : 0;
    if (n > 0) {
        tw_info("TW_INTERPOSE: %d calls of NCCL redirected, of objects that were loaded later", n);
    }
}
