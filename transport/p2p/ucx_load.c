/** Finds and loads UCX, and prevents it from changing another program's process: its signal handlers, and any
 *  log but Thinwire's. */
#include "transport/p2p/ucx_load.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "transport/p2p.h"

/** Loading this library loads all of UCX, because it depends on the rest. */
#define LIBRARY "libucp.so.0"
#define LINE_BYTES 1024

const tw_ucx_t *tw_ucx;
static char why_not[256];

/** Find a function. ISO C cannot convert an object pointer to a function pointer; in POSIX they are alike. */
static int ucx_find(void *library, const char *name, void *function)
{
    void *symbol = dlsym(library, name);
    memcpy(function, &symbol, sizeof(symbol));
    return symbol != NULL;
}

/** Restore the signal handlers. When UCX is loaded it replaces them by its own, which print a stack after a
 *  crash. Leave UCX's in place if the user asks for them. */
static void signals_give_back(void *library)
{
    void (*disable)(void) = NULL;
    if (!getenv("UCX_HANDLE_ERRORS") && ucx_find(library, "ucs_debug_disable_signals", &disable)) {
        disable();
    }
}

/** Values of UCX's ucs_log_func_rc_t. */
enum { LOG_STOP, LOG_CONTINUE };

typedef int (*log_handler_t)(const char *file, unsigned line, const char *function, ucs_log_level_t level,
                             const void *component, const char *format, va_list args);

static tw_log_level_t level_of(ucs_log_level_t level)
{
    return level <= UCS_LOG_LEVEL_ERROR   ? TW_LOG_ERROR
           : level == UCS_LOG_LEVEL_WARN  ? TW_LOG_WARN
           : level <= UCS_LOG_LEVEL_INFO  ? TW_LOG_INFO
           : level == UCS_LOG_LEVEL_DEBUG ? TW_LOG_DEBUG
                                          : TW_LOG_TRACE;
}

/** Log a line of UCX. A fatal line is also printed by UCX itself, which then ends the process. */
static int log_line(const char *file, unsigned line, const char *function, ucs_log_level_t level,
                    const void *component, const char *format, va_list args)
{
    const tw_log_level_t ours = level == UCS_LOG_LEVEL_PRINT ? TW_LOG_INFO : level_of(level);
    char text[LINE_BYTES];
    (void)function, (void)component;
    (void)vsnprintf(text, sizeof(text), format, args);
    if (ours <= tw_log_level()) {
        tw_log(ours, file, (int)line, "UCX: %s", text);
    }
    return level == UCS_LOG_LEVEL_FATAL ? LOG_CONTINUE : LOG_STOP;
}

/** Redirect UCX's log to Thinwire's, from UCX 1.11 on, where handlers have this form. If the user names a
 *  file for UCX's log, do not. */
static void log_take(void *library)
{
    void (*push)(log_handler_t handler) = NULL;
    unsigned major, minor, release;
    tw_ucx->ucp_get_version(&major, &minor, &release);
    if ((major > 1 || minor >= 11) && !getenv("UCX_LOG_FILE") &&
        ucx_find(library, "ucs_log_push_handler", &push)) {
        push(log_line);
    }
}

static int find_all(void *library, tw_ucx_t *found)
{
#define FIND(name)                                                       \
    if (!ucx_find(library, #name, &found->name)) {                       \
        snprintf(why_not, sizeof(why_not), LIBRARY " has no %s", #name); \
        return 0;                                                        \
    }
    TW_UCX_FUNCTIONS(FIND)
#undef FIND
    return 1;
}

static void ucx_open_library(void)
{
    static tw_ucx_t found;
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(why_not, sizeof(why_not), "%s", dlerror());
        return;
    }
    signals_give_back(library);
    if (find_all(library, &found)) {
        tw_ucx = &found;
        log_take(library);
    }
}

const tw_ucx_t *tw_ucx_load(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    (void)pthread_mutex_lock(&lock);
    if (!tw_ucx) {
        ucx_open_library();
    }
    const tw_ucx_t *found = tw_ucx;
    (void)pthread_mutex_unlock(&lock);
    return found;
}

const char *tw_ucx_why_not(void)
{
    return why_not;
}

int tw_p2p_ucx_is_there(void)
{
    return tw_ucx_load() != NULL;
}

const char *tw_p2p_ucx_version(char *text, size_t bytes)
{
    unsigned major, minor, release;
    snprintf(text, bytes, "none");
    if (tw_ucx_load()) {
        tw_ucx->ucp_get_version(&major, &minor, &release);
        snprintf(text, bytes, "%u.%u.%u", major, minor, release);
    }
    return text;
}
