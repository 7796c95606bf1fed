/* libpacketrig_sendto.so: an unmodified program sends on time. LD_PRELOAD puts these functions before those of libc.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * A packet that has a time, or a schedule, is handed over to `packetrig probe serve`; everything else, and everything
 * that fails, is done by the real function. See docs/book/release-clients.md. */
#include "preload.h"

#include <dlfcn.h>
#include <errno.h>
#include <linux/net_tstamp.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
/* Finds the function behind ours: once, before the program starts or at its first use. */
#define REAL(result, name, ...)                                        \
    typedef result (*name##_type)(__VA_ARGS__);                        \
    static name##_type real_##name(void)                               \
    {                                                                  \
        static name##_type found;                                      \
        name##_type known = __atomic_load_n(&found, __ATOMIC_ACQUIRE); \
        if (!known) {                                                  \
            void *symbol = dlsym(RTLD_NEXT, #name);                    \
            memcpy(&known, &symbol, sizeof known);                     \
            __atomic_store_n(&found, known, __ATOMIC_RELEASE);         \
        }                                                              \
        return known;                                                  \
    }

REAL(ssize_t, send, int, const void *, size_t, int)
REAL(ssize_t, sendto, int, const void *, size_t, int, const struct sockaddr *, socklen_t)
REAL(ssize_t, sendmsg, int, const struct msghdr *, int)
REAL(int, sendmmsg, int, struct mmsghdr *, unsigned, int)
REAL(ssize_t, write, int, const void *, size_t)
REAL(ssize_t, writev, int, const struct iovec *, int)
REAL(int, setsockopt, int, int, int, const void *, socklen_t)
REAL(int, connect, int, const struct sockaddr *, socklen_t)
REAL(int, chroot, const char *)
REAL(int, setuid, uid_t)
REAL(int, setreuid, uid_t, uid_t)
REAL(int, setresuid, uid_t, uid_t, uid_t)
REAL(void, _exit, int)

ssize_t packetrig_real_send(int fd, const void *bytes, size_t size, int flags)
{
    return real_send()(fd, bytes, size, flags);
}

int packetrig_real_connect(int fd, const struct sockaddr *peer, socklen_t size)
{
    return real_connect()(fd, peer, size);
}

ssize_t packetrig_real_write(int fd, const void *bytes, size_t size) { return real_write()(fd, bytes, size); }

/* A call without control messages: there must be a schedule. */
static ssize_t try_bytes(int fd, const void *bytes, size_t size, int flags, const struct sockaddr *to, socklen_t length)
{
    struct iovec part = {(void *)(uintptr_t)bytes, size};
    struct msghdr message = {.msg_name = (void *)(uintptr_t)to, .msg_namelen = length, .msg_iov = &part, .msg_iovlen = 1};
    return wants_packets() ? hand_over(fd, &message, flags) : PASS;
}

static ssize_t try_message(int fd, const struct msghdr *message, int flags)
{
    if (!message || (!wants_packets() && (!message->msg_controllen || !has_transmit_time(message))))
        return PASS;
    return hand_over(fd, message, flags);
}

EXPORT ssize_t send(int fd, const void *bytes, size_t size, int flags)
{
    ssize_t done = try_bytes(fd, bytes, size, flags, NULL, 0);
    return done == PASS ? real_send()(fd, bytes, size, flags) : done;
}

EXPORT ssize_t sendto(int fd, const void *bytes, size_t size, int flags, const struct sockaddr *to, socklen_t length)
{
    ssize_t done = try_bytes(fd, bytes, size, flags, to, length);
    return done == PASS ? real_sendto()(fd, bytes, size, flags, to, length) : done;
}

EXPORT ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    ssize_t done = try_message(fd, message, flags);
    return done == PASS ? real_sendmsg()(fd, message, flags) : done;
}

static int any_has_time(const struct mmsghdr *messages, unsigned count)
{
    for (unsigned n = 0; n < count; n++)
        if (messages[n].msg_hdr.msg_controllen && has_transmit_time(&messages[n].msg_hdr))
            return 1;
    return 0;
}

/* As the kernel's: stops at the first message that fails, and returns its error only if it is the first. */
EXPORT int sendmmsg(int fd, struct mmsghdr *messages, unsigned count, int flags)
{
    unsigned done = 0;
    if (!messages || !count || (!wants_packets() && !any_has_time(messages, count)))
        return real_sendmmsg()(fd, messages, count, flags);
    for (; done < count; done++) {
        ssize_t size = try_message(fd, &messages[done].msg_hdr, flags);
        if (size == PASS) {
            int one = real_sendmmsg()(fd, &messages[done], 1, flags);
            if (one < 1)
                return done ? (int)done : one;
        } else if (size < 0) {
            return done ? (int)done : -1;
        } else {
            messages[done].msg_len = (unsigned)size;
        }
    }
    return (int)done;
}

EXPORT ssize_t write(int fd, const void *bytes, size_t size)
{
    ssize_t done = try_bytes(fd, bytes, size, 0, NULL, 0);
    return done == PASS ? real_write()(fd, bytes, size) : done;
}

EXPORT ssize_t writev(int fd, const struct iovec *parts, int count)
{
    struct msghdr message = {.msg_iov = (struct iovec *)(uintptr_t)parts, .msg_iovlen = (size_t)(count > 0 ? count : 0)};
    ssize_t done = wants_packets() && count > 0 && count <= 1024 ? hand_over(fd, &message, 0) : PASS;
    return done == PASS ? real_writev()(fd, parts, count) : done;
}

EXPORT int setsockopt(int fd, int level, int name, const void *value, socklen_t size)
{
    struct sock_txtime option;
    int done = real_setsockopt()(fd, level, name, value, size);
    if (done == 0 && level == SOL_SOCKET && name == SO_TXTIME && value && size >= sizeof option) {
        memcpy(&option, value, sizeof option);
        note_transmit_clock(fd, (int)option.clockid);
    }
    return done;
}

EXPORT int connect(int fd, const struct sockaddr *peer, socklen_t size)
{
    int done = real_connect()(fd, peer, size);
    if (done == 0 && peer && size >= sizeof peer->sa_family && peer->sa_family != AF_UNIX)
        note_connected(fd, peer, size);
    return done;
}

/* A program that gives up its rights, or locks itself up, could not connect afterwards. */
EXPORT int chroot(const char *path)
{
    connect_early();
    return real_chroot()(path);
}

EXPORT int setuid(uid_t user)
{
    if (user)
        connect_early();
    return real_setuid()(user);
}

EXPORT int setreuid(uid_t real, uid_t effective)
{
    if (effective && effective != (uid_t)-1)
        connect_early();
    return real_setreuid()(real, effective);
}

EXPORT int setresuid(uid_t real, uid_t effective, uid_t saved)
{
    if (effective && effective != (uid_t)-1)
        connect_early();
    return real_setresuid()(real, effective, saved);
}

EXPORT void _exit(int status)
{
    finish_handover();
    real__exit()(status);
    __builtin_unreachable();
}

EXPORT void _Exit(int status) { _exit(status); }
