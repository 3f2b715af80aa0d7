/* Gets the King James Bible from the program of Debian's package bible-kjv. */
#include "trainer/data/kjv.h"

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* prints all verses, one on each line */
#define COMMAND "bible -f gen1:1-rev22:21 2>/dev/null"
#define NAME "kjv-1.txt"
#define LEAST_BYTES 4000000L

static tw_status_t not_there(void)
{
    return tw_fail(
        TW_ERR_NOT_FOUND,
        "data: no text given, and the King James text is not there: apt-get install bible-kjv, or give "
        "a text");
}

/** Copy `in` to `out`, and return the number of bytes. Errors of writing stay in `out` (ferror). */
static long pass_on(FILE *in, FILE *out)
{
    char buffer[65536];
    long total = 0;
    size_t n;
    while ((n = fread(buffer, 1, sizeof(buffer), in)) > 0) {
        total += (long)fwrite(buffer, 1, n, out);
    }
    return total;
}

static tw_status_t write_text(FILE *out)
{
    FILE *bible = popen(COMMAND, "r");
    if (!bible) {
        return not_there();
    }
    long bytes = pass_on(bible, out);
    int code = pclose(bible);
    return code == 0 && (bytes >= LEAST_BYTES || ferror(out)) ? TW_OK : not_there();
}

tw_status_t tw_data_kjv(const char *folder, char *path)
{
    snprintf(path, TW_DATA_PATH_BYTES, "%.*s/%s", TW_DATA_PATH_BYTES - 32, folder, NAME);
    if (access(path, R_OK) == 0) {
        return TW_OK;
    }
    tw_data_writer_t writer;
    tw_status_t status = tw_data_writer_open(&writer, path);
    return status == TW_OK ? tw_data_writer_close(&writer, write_text(writer.out)) : status;
}
