/* Sends and receives messages between the cluster's own processes. */
#include "cluster/state.h"

#include <errno.h>
#include <stdio.h>
#include <sys/socket.h>

int tw_cluster_send(int fd, const tw_cluster_message_t *message)
{
    return send(fd, message, sizeof(*message), MSG_NOSIGNAL) == (ssize_t)sizeof(*message) ? 0 : -1;
}

int tw_cluster_receive(int fd, tw_cluster_message_t *message)
{
    ssize_t n;
    do {
        n = recv(fd, message, sizeof(*message), 0);
    } while (n < 0 && errno == EINTR);
    message->text[TW_CLUSTER_TEXT_BYTES - 1] = '\0';
    return n == (ssize_t)sizeof(*message);
}

void tw_cluster_tell(int fd, tw_cluster_event_t event, const char *text)
{
    tw_cluster_message_t message = {.event = event};
    snprintf(message.text, sizeof(message.text), "%s", text ? text : "");
    tw_cluster_send(fd, &message);
}
