/* Reads /proc/net/dev, and judges whether its counters fit what was sent. */
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

/** Add the counters of a line "  eth0: rx_bytes rx_packets 6 others tx_bytes tx_packets 6 others", if it is
 *  of the device whose name is the first `n` characters of `device`. 0: it is not; -1: it is malformed. */
static int coll_add_line(const char *line, const char *device, size_t n, tw_netdev_counters_t *out)
{
    tw_netdev_counters_t one;
    line += strspn(line, " ");
    if (strncmp(line, device, n) != 0 || line[n] != ':') {
        return 0;
    }
    if (sscanf(line + n + 1, "%" SCNu64 " %" SCNu64 " %*u %*u %*u %*u %*u %*u %" SCNu64 " %" SCNu64,
               &one.rx_bytes, &one.rx_packets, &one.tx_bytes, &one.tx_packets) != 4) {
        return -1;
    }
    out->rx_bytes += one.rx_bytes;
    out->rx_packets += one.rx_packets;
    out->tx_bytes += one.tx_bytes;
    out->tx_packets += one.tx_packets;
    return 1;
}

static tw_status_t add_device(const char *text, const char *device, size_t n, tw_netdev_counters_t *out)
{
    for (const char *line = text; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        int found = coll_add_line(line, device, n, out);
        if (found != 0) {
            return found > 0 ? TW_OK : TW_ERR_FORMAT;
        }
    }
    return TW_ERR_NOT_FOUND;
}

tw_status_t tw_netdev_parse(const char *text, const char *devices, tw_netdev_counters_t *out)
{
    *out = (tw_netdev_counters_t){0};
    for (const char *at = devices; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        TW_TRY(add_device(text, at, strcspn(at, ","), out));
    }
    return TW_OK;
}

tw_status_t tw_netdev_read(const char *devices, tw_netdev_counters_t *out)
{
    char text[TEXT_BYTES];
    FILE *file = fopen(PATH, "re");
    TW_FAIL_IF(!file, TW_ERR_IO, PATH ": %s", strerror(errno));
    size_t n = fread(text, 1, sizeof(text) - 1, file);
    fclose(file);
    text[n] = '\0';
    tw_status_t status = tw_netdev_parse(text, devices, out);
    if (status != TW_OK) {
        tw_error(PATH ": interface '%s': %s", devices, tw_status_string(status));
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
