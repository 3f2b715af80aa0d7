/* What the process holds, as the system counts it. */
#include <stdlib.h>
#include <string.h>

#include "trainer/engine/state.h"

/* VmRSS: of this process now; VmHWM: the most so far. Not rusage's, which knows what was there before exec: a launcher. */
static size_t read_status(const char *key)
{
    char line[128];
    size_t length = strlen(key);
    unsigned long long kib = 0;
    FILE *file = fopen("/proc/self/status", "re");
    while (file && kib == 0 && fgets(line, sizeof(line), file)) {
        if (strncmp(line, key, length) == 0) {
            kib = strtoull(line + length + 1, NULL, 10);
        }
    }
    if (file) {
        fclose(file);
    }
    return (size_t)kib * 1024;
}

void tw_engine_resident_init(tw_engine_t *engine)
{
    engine->resident_before = read_status("VmRSS");
}

size_t tw_engine_resident_before(const tw_engine_t *engine)
{
    return engine->resident_before;
}

size_t tw_engine_resident_bytes(const tw_engine_t *engine)
{
    size_t most = read_status("VmHWM");
    return most > engine->resident_before ? most - engine->resident_before : 0;
}

size_t tw_engine_resident_most(const tw_engine_t *engine)
{
    return engine->resident_most;
}
