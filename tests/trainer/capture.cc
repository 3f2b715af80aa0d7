/* capture COMMAND [ARG...]: runs it, and says how often bfloat16 ones stand eight in a row in what goes over
 * eth0 meanwhile, as the first weights of norms do, and how many bytes that was. As root of a network
 * namespace. */
#include <cstdio>
#include <string>

#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    const int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, htons(ETH_P_ALL)), room = 64 << 20;
    sockaddr_ll device = {};
    device.sll_family = AF_PACKET;
    device.sll_protocol = htons(ETH_P_ALL);
    device.sll_ifindex = (int)if_nametoindex("eth0");
    if (argc < 2 || fd < 0 || bind(fd, (const sockaddr *)&device, sizeof(device))) {
        perror("capture");
        return 125;
    }
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof(room));
    const pid_t child = fork();
    if (child == 0) {
        execvp(argv[1], argv + 1);
        _exit(127);
    }
    std::string seen, frame(262144, '\0'), ones;
    for (int i = 0; i < 8; i++) {
        ones += "\x80\x3f";
    }
    int status = 0;
    for (bool over = false; !over;) {
        over = waitpid(child, &status, WNOHANG) != 0;
        pollfd pollfd = {fd, POLLIN, 0};
        (void)poll(&pollfd, 1, 20);
        ssize_t got;
        while ((got = recv(fd, &frame[0], frame.size(), MSG_DONTWAIT)) > 0) {
            seen.append(frame, 0, (size_t)got);
        }
    }
    size_t n = 0;
    for (size_t at = 0; (at = seen.find(ones, at)) != std::string::npos; at += ones.size()) {
        n++;
    }
    printf("captured %s, ones %s\n", seen.size() > 100000 ? "much" : "little", n ? "seen" : "unseen");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}
