/* Opens the interposer if TW_INTERPOSE asks for it. It is a library with its own log, and is never closed. */
#include "plugin/nccl/interposer.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "core/core.h"
#include "plugin/nccl/interposer_options.h"

#define LIBRARY "libthinwire-nccl.so"
#define REDIRECT "tw_nccl_redirect"
#define IS_WRAPPED "tw_nccl_is_wrapped"
#define LOG_TO "tw_nccl_log_to"
#define SECRET "tw_nccl_secret"
#define PATH_BYTES 4096

/** Open the interposer from the folder of this library, or else where the dynamic linker finds it. */
static void *open_library(void)
{
    char path[PATH_BYTES];
    Dl_info own;
    void *library = NULL;

    if (dladdr(LIBRARY, &own) != 0 && own.dli_fname) {
        const char *end = strrchr(own.dli_fname, '/');
        int n = end ? (int)(end - own.dli_fname + 1) : 0;
        snprintf(path, sizeof(path), "%.*s" LIBRARY, n, own.dli_fname);
        library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    return library ? library : dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
}

typedef void (*log_to_t)(tw_nccl_logger_t logger, int has_named);

static _Atomic(tw_nccl_logger_t) nccl_logger;

/** Pass NCCL's logger to the interposer. has_named: 1 if this library has warned of misspelt variables. */
static void share_log(void *library, int has_named)
{
    log_to_t log_to = NULL;
    void *symbol = dlsym(library, LOG_TO);
    memcpy(&log_to, &symbol, sizeof(log_to));
    if (log_to) {
        log_to(nccl_logger, has_named);
    }
}

void tw_nccl_begin(tw_nccl_logger_t logger)
{
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_NOLOAD);
    tw_nccl_log_install(logger);
    nccl_logger = logger;
    if (!library) {
        tw_config_check_names();
        return;
    }
    share_log(library, 0);
    tw_config_leave_names();
    (void)dlclose(library);
}

static int (*redirect)(void); /* tw_nccl_redirect; NULL: TW_INTERPOSE does not ask for it, or it has failed */
static tw_status_t verdict;

/** Find a function of the library. Returns NULL if it is missing (logged). Copies the bytes of the address,
 *  because ISO C cannot convert dlsym's object pointer; POSIX gives both the same form. */
static int (*find(void *library, const char *name))(void)
{
    int (*function)(void) = NULL;
    void *symbol = dlsym(library, name);
    memcpy(&function, &symbol, sizeof(function));
    if (!function) {
        tw_error("TW_INTERPOSE: %s", dlerror());
    }
    return function;
}

static tw_status_t redirect_first(void *library)
{
    int (*first)(void) = find(library, REDIRECT), (*is_wrapped)(void) = find(library, IS_WRAPPED);
    int n = first && is_wrapped ? first() : -1;
    if (n < 0) {
        return TW_ERR_CONFIG;
    }
    redirect = first;
    TW_FAIL_IF(n == 0 && !is_wrapped(), TW_ERR_CONFIG,
               "TW_INTERPOSE: no object of this process calls NCCL through a table of addresses that could "
               "be changed, and " LIBRARY " was not preloaded");
    if (n > 0) {
        tw_info("TW_INTERPOSE: %d calls of NCCL redirected", n);
    }
    return TW_OK;
}

static tw_status_t open_interposer(void)
{
    void *library = open_library();
    TW_FAIL_IF(!library, TW_ERR_CONFIG, "TW_INTERPOSE: %s", dlerror());
    share_log(library, 1);
    return redirect_first(library);
}

static void interposer_begin(void)
{
    tw_ip_options_t options;
    verdict = tw_ip_options_init(&options);
    if (verdict != TW_OK) {
        tw_error("TW_INTERPOSE: a variable of the interposer makes no sense");
        return;
    }
    if (options.redirects) {
        verdict = open_interposer();
    }
    tw_ip_options_cleanup(&options);
}

tw_status_t tw_interposer_open(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, interposer_begin);
    int n = verdict == TW_OK && redirect ? redirect() : 0;
    if (n > 0) {
        tw_info("TW_INTERPOSE: %d calls of NCCL redirected, of objects that were loaded later", n);
    }
    TW_FAIL_IF(verdict != TW_OK || n < 0, TW_ERR_CONFIG,
               "TW_INTERPOSE is set and cannot be done here, so the net does not begin: other ranks may "
               "count on it");
    return TW_OK;
}

const char *tw_interposer_secret(void)
{
    const char *(*secret)(void) = NULL;
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_NOLOAD),
         *symbol = library ? dlsym(library, SECRET) : NULL;
    memcpy(&secret, &symbol, sizeof(secret));
    if (library) {
        (void)dlclose(library);
    }
    return secret ? secret() : NULL;
}
