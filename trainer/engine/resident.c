/* Reads the process's resident memory, as the system counts it. */
#include <stdlib.h>
#include <string.h>

#include "core/line.h"
#include "trainer/engine/calls.h"

/** Read a count of bytes from /proc/self/status: VmRSS, this process's resident memory, or VmHWM, its peak.
 *  The peak of getrusage would include the launcher's memory before exec. */
static size_t read_status(const char *key)
{
    char line[128];
    int found = tw_line_read("/proc/self/status", key, line, sizeof(line));
    return found ? (size_t)strtoull(line + strlen(key) + 1, NULL, 10) * 1024 : 0;
}

/** Reset VmHWM, so that it does not count memory used before the engine, such as a tokenizer's. If the system
 *  does not allow that, tw_engine_resident_bytes ignores VmHWM until it rises above its old value. */
static void forget_most(void)
{
    FILE *file = fopen("/proc/self/clear_refs", "we");
    if (file) {
        fputs("5\n", file);
        fclose(file);
    }
}

void tw_engine_resident_init(tw_engine_t *engine)
{
    forget_most();
    engine->resident_before = read_status("VmRSS");
    engine->resident_high = read_status("VmHWM");
}

size_t tw_engine_resident_before(const tw_engine_t *engine)
{
    return engine->resident_before;
}

size_t tw_engine_resident_bytes(const tw_engine_t *engine)
{
    size_t most = read_status("VmHWM"), now = read_status("VmRSS");
    most = most > engine->resident_high || engine->resident_high <= engine->resident_before ? most : now;
    return most > engine->resident_before ? most - engine->resident_before : 0;
}

size_t tw_engine_resident_most(const tw_engine_t *engine)
{
    return engine->resident_most;
}
