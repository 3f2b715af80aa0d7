/* /proc/net/dev, and what its counters may show. */
#include "bench/collectives/netdev.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define PATH "/proc/self/net/dev"
#define TEXT_BYTES 32768

#define ACK_BYTES 66
#define FRAME_BYTES 1514
#define MESSAGE_BYTES 300
#define PAUSE_BYTES 2048

/* A line is "  eth0: rx_bytes rx_packets 6 others tx_bytes tx_packets 6 others". */
static int parse_line(const char *line, const char *device, tw_netdev_counters_t *out)
{
    size_t n = strlen(device);
    line += strspn(line, " ");
    if (strncmp(line, device, n) != 0 || line[n] != ':') {
        return 0;
    }
    return sscanf(line + n + 1, "%" SCNu64 " %" SCNu64 " %*u %*u %*u %*u %*u %*u %" SCNu64 " %" SCNu64,
                  &out->rx_bytes, &out->rx_packets, &out->tx_bytes, &out->tx_packets) == 4
               ? 1
               : -1;
}

tw_status_t tw_netdev_parse(const char *text, const char *device, tw_netdev_counters_t *out)
{
    for (const char *line = text; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        int found = parse_line(line, device, out);
        if (found != 0) {
            return found > 0 ? TW_OK : TW_ERR_FORMAT;
        }
    }
    return TW_ERR_NOT_FOUND;
}

tw_status_t tw_netdev_read(const char *device, tw_netdev_counters_t *out)
{
    char text[TEXT_BYTES];
    FILE *file = fopen(PATH, "re");
    if (!file) {
        tw_error(PATH ": %s", strerror(errno));
        return TW_ERR_IO;
    }
    size_t n = fread(text, 1, sizeof(text) - 1, file);
    fclose(file);
    text[n] = '\0';
    tw_status_t status = tw_netdev_parse(text, device, out);
    if (status != TW_OK) {
        tw_error(PATH ": interface '%s': %s", device, tw_status_string(status));
    }
    return status;
}

int tw_netdev_fits(const tw_netdev_counters_t *delta, const tw_netdev_claim_t *claim)
{
    double acks = ACK_BYTES * ((double)delta->rx_packets + (double)delta->rx_bytes / (2 * FRAME_BYTES));
    double most = 1.1 * (double)claim->sent_bytes + acks + MESSAGE_BYTES * (double)claim->sent_messages +
                  PAUSE_BYTES * (double)claim->n_pauses;
    return delta->tx_bytes >= claim->sent_bytes && (double)delta->tx_bytes <= most;
}
