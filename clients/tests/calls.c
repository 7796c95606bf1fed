/* Calls of libc that send, right and wrong ones, and what they return: with the preload library as without it.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * calls ADDRESS: prints one line per case, the last one with the number of datagrams to port 9 of ADDRESS. */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/net_tstamp.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PORT = 9, THREADS = 4, EACH = 25, BY_SIGNAL = 40 };

static struct sockaddr_in target;
static int sent, signal_fd;
static volatile int signalled;
static void *volatile memory;

/* Prints a result, and the reason of a failure. */
static void show(const char *what, long result)
{
    int error = errno;
    printf("%s: %ld %s\n", what, result, result < 0 ? strerror(error) : "");
    fflush(stdout);
    errno = error;
}

static int open_udp(void) { return socket(AF_INET, SOCK_DGRAM, 0); }

static ssize_t send_one(int fd)
{
    ssize_t size = sendto(fd, "datagram", 8, 0, (struct sockaddr *)&target, sizeof target);
    if (size == 8)
        __atomic_fetch_add(&sent, 1, __ATOMIC_RELAXED);
    return size;
}

static void wrong_calls(void)
{
    static char much[66000];
    struct sockaddr_in no_port = target;
    struct sockaddr_in6 other = {.sin6_family = AF_INET6, .sin6_port = htons(PORT)};
    uint64_t control[3] = {0};
    struct cmsghdr *head = (struct cmsghdr *)(void *)control;
    struct iovec part = {much, 8};
    struct msghdr message = {.msg_name = &target, .msg_namelen = sizeof target, .msg_iov = &part, .msg_iovlen = 1,
        .msg_control = control, .msg_controllen = sizeof control};
    int fd = open_udp();
    no_port.sin_port = 0;
    show("no file", sendto(-1, "x", 1, 0, (struct sockaddr *)&target, sizeof target));
    show("no socket", sendto(1, "x", 1, 0, (struct sockaddr *)&target, sizeof target));
    show("no address", send(fd, "x", 1, 0));
    show("short address", sendto(fd, "x", 1, 0, (struct sockaddr *)&target, 7));
    show("other family", sendto(fd, "x", 1, 0, (struct sockaddr *)&other, sizeof other));
    show("no port", sendto(fd, "x", 1, 0, (struct sockaddr *)&no_port, sizeof no_port));
    show("too long", sendto(fd, much, sizeof much, 0, (struct sockaddr *)&target, sizeof target));
    show("unknown control message", (head->cmsg_len = CMSG_LEN(8), head->cmsg_level = SOL_SOCKET,
                                     head->cmsg_type = 9999, sendmsg(fd, &message, 0)));
    show("time without SO_TXTIME", (head->cmsg_type = SCM_TXTIME, sendmsg(fd, &message, 0)));
    show("control message too long", (head->cmsg_len = 1000, sendmsg(fd, &message, 0)));
    show("control message too short", (head->cmsg_len = 3, sendmsg(fd, &message, 0)));
    show("write without address", write(fd, "x", 1));
    shutdown(fd, SHUT_RDWR);
    close(fd);
    show("closed", send_one(fd));
}

/* A time on the monotonic clock by SCM_TXTIME. */
static void with_time(void)
{
    struct timespec now;
    struct sock_txtime option = {.clockid = CLOCK_MONOTONIC};
    uint64_t control[3] = {0}, at;
    struct cmsghdr *head = (struct cmsghdr *)(void *)control;
    struct iovec part = {(char *)(uintptr_t)"datagram", 8};
    struct msghdr message = {.msg_name = &target, .msg_namelen = sizeof target, .msg_iov = &part, .msg_iovlen = 1,
        .msg_control = control, .msg_controllen = sizeof control};
    int fd = open_udp();
    show("SO_TXTIME", setsockopt(fd, SOL_SOCKET, SO_TXTIME, &option, sizeof option));
    clock_gettime(CLOCK_MONOTONIC, &now);
    at = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec + 20000000;
    head->cmsg_len = CMSG_LEN(8), head->cmsg_level = SOL_SOCKET, head->cmsg_type = SCM_TXTIME;
    memcpy(CMSG_DATA(head), &at, 8);
    show("with a time", sendmsg(fd, &message, 0));
    sent++;
    close(fd);
}

static void several_messages(void)
{
    struct sockaddr_in no_port = target;
    struct iovec part = {(char *)(uintptr_t)"datagram", 8};
    struct mmsghdr messages[3];
    int fd = open_udp();
    no_port.sin_port = 0;
    memset(messages, 0, sizeof messages);
    for (int n = 0; n < 3; n++)
        messages[n].msg_hdr = (struct msghdr){.msg_name = &target, .msg_namelen = sizeof target, .msg_iov = &part, .msg_iovlen = 1};
    show("three messages", sendmmsg(fd, messages, 3, 0));
    show("length of the third", messages[2].msg_len);
    messages[1].msg_hdr.msg_name = &no_port;
    show("the second is wrong", sendmmsg(fd, messages, 3, 0));
    show("the first is wrong", sendmmsg(fd, messages + 1, 2, 0));
    show("no messages", sendmmsg(fd, messages, 0, 0));
    sent += 4;
    close(fd);
}

/* Sockets that have nothing to do with probes. */
static void other_files(void)
{
    struct sockaddr_in local = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof local;
    char got[16];
    int ends[2], near = open_udp(), far = open_udp();
    struct iovec parts[2] = {{(char *)(uintptr_t)"ab", 2}, {(char *)(uintptr_t)"c", 1}};
    bind(far, (struct sockaddr *)&local, sizeof local);
    getsockname(far, (struct sockaddr *)&local, &size);
    show("loopback", sendto(near, "local", 5, 0, (struct sockaddr *)&local, size));
    show("loopback received", recv(far, got, sizeof got, 0));
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) < 0)
        exit(1);
    show("pair send", send(ends[0], "x", 1, 0));
    show("pair write", write(ends[0], "xy", 2));
    show("pair writev", writev(ends[0], parts, 2));
    show("pair received", recv(ends[1], got, sizeof got, 0));
    close(ends[0]), close(ends[1]), close(near), close(far);
    if (pipe(ends) < 0)
        exit(1);
    show("pipe", write(ends[1], "x", 1));
    show("pipe writev", writev(ends[1], parts, 2));
    close(ends[0]), close(ends[1]);
}

static void used_again(void)
{
    struct sockaddr_in local;
    socklen_t size = sizeof local;
    int fd = open_udp();
    show("sent", send_one(fd));
    getsockname(fd, (struct sockaddr *)&local, &size);
    show("has a port", local.sin_port != 0);
    int second = dup(fd);
    close(fd);
    show("duplicate", send_one(second));
    for (int n = 3; n < 256; n++)
        close(n);
    int pair[16][2];
    for (int n = 0; n < 16; n++) /* whatever numbers the library had are other files now */
        if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair[n]) < 0)
            exit(1);
    fd = open_udp();
    show("after all files were closed", send_one(fd));
    char got[8];
    int foreign = 0;
    for (int n = 0; n < 16; n++)
        foreign += recv(pair[n][0], got, 8, MSG_DONTWAIT) >= 0 || recv(pair[n][1], got, 8, MSG_DONTWAIT) >= 0;
    show("messages in files of others", foreign);
    for (int n = 3; n < 256; n++)
        close(n);
}

static void in_a_child(int by_exit)
{
    int fd = open_udp(), status = 1, counts[2];
    if (pipe(counts) < 0)
        exit(1);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        int good = 0;
        for (int n = 0; n < 5; n++)
            good += send_one(fd) == 8;
        if (write(counts[1], &good, sizeof good) != sizeof good)
            _exit(1);
        if (by_exit)
            exit(0);
        _exit(0);
    }
    for (int n = 0; n < 5; n++)
        send_one(fd);
    int good = 0;
    if (read(counts[0], &good, sizeof good) == sizeof good)
        sent += good;
    waitpid(child, &status, 0);
    show("child's end", status);
    show("child's datagrams", good);
    close(fd), close(counts[0]), close(counts[1]);
}

static void *send_many(void *unused)
{
    int fd = open_udp();
    for (int n = 0; n < EACH; n++)
        send_one(fd);
    close(fd);
    return unused;
}

static void in_threads(void)
{
    pthread_t threads[THREADS];
    int before = sent;
    for (int n = 0; n < THREADS; n++)
        pthread_create(&threads[n], NULL, send_many, NULL);
    for (int n = 0; n < THREADS; n++)
        pthread_join(threads[n], NULL);
    show("in threads", sent - before);
}

static void on_signal(int number)
{
    int error = errno;
    (void)number;
    if (signalled < BY_SIGNAL)
        signalled += send_one(signal_fd) == 8;
    errno = error;
}

static void in_a_signal_handler(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    struct itimerval often = {{0, 700}, {0, 700}}, never = {{0, 0}, {0, 0}};
    int before = sent, fd = open_udp();
    signal_fd = open_udp();
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &often, NULL);
    for (int n = 0; n < EACH; n++)
        send_one(fd);
    while (signalled < BY_SIGNAL)
        free(memory = malloc(100)); /* a handler that needs memory would hang here */
    setitimer(ITIMER_REAL, &never, NULL);
    show("in a signal handler", sent - before);
    close(fd), close(signal_fd);
}

int main(int argc, char **argv)
{
    target.sin_family = AF_INET;
    target.sin_port = htons(PORT);
    if (argc != 2 || inet_pton(AF_INET, argv[1], &target.sin_addr) != 1)
        return fprintf(stderr, "usage: calls ADDRESS\n"), 2;
    errno = 0;
    wrong_calls();
    with_time();
    several_messages();
    other_files();
    used_again();
    in_a_child(0);
    in_a_child(1);
    in_threads();
    in_a_signal_handler();
    show("datagrams", sent);
    return 0;
}
