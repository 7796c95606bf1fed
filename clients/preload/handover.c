/* The connection to the service, and what becomes of the packets that it takes.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * One lock protects everything here. Whoever holds it has all signals blocked and cannot be cancelled: a signal
 * handler that sends never waits for a lock of its own thread. Nothing here allocates memory. */
#include "preload.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { WAITING = 4096, ANSWER_MS = 5000, PATH = 4096 };
/* ANSWER_MS: the service takes up to 4 s if a next hop does not answer. */
enum { SECOND = 1000000000, GRACE = 2000000000, LONGEST_PAUSE = 60 };

enum topic { NO_SERVICE, REFUSED, BROKEN, BAD_SCHEDULE, NO_REPORTS };

/* A packet that was handed over. */
struct waiting {
    uint64_t cookie, called;
    uint8_t target[16];
    int is_queued; /* accepted, and not reported yet */
};

struct held { sigset_t signals; int cancel; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct held before_fork;
static struct schedule schedule;
static int must_wait, is_quiet, has_reports, report_fd = -1;
static struct stat report_file;
static char report_path[PATH];
static unsigned said;

static struct packetrig_client client = {.fd = -1};
static uint64_t client_cookie, next_try, pause_s = 1;
static pid_t client_process;
static struct socket_packet packet;
static struct waiting waiting[WAITING];
static uint64_t next_cookie = 1, queued, last_planned;

static struct held take_lock(void)
{
    struct held held;
    sigset_t all;
    sigfillset(&all);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &held.cancel);
    pthread_sigmask(SIG_SETMASK, &all, &held.signals);
    pthread_mutex_lock(&lock);
    return held;
}

static void give_lock(struct held held)
{
    pthread_mutex_unlock(&lock);
    pthread_sigmask(SIG_SETMASK, &held.signals, NULL);
    pthread_setcancelstate(held.cancel, NULL);
}

void say_once(unsigned topic, const char *text)
{
    char line[512];
    if (is_quiet || said & 1u << topic)
        return;
    said |= 1u << topic;
    int size = snprintf(line, sizeof line, "libpacketrig_sendto: %s\n", text);
    if (size > 0)
        (void)!packetrig_real_write(2, line, (size_t)size < sizeof line ? (size_t)size : sizeof line - 1);
}

/* Forgets the connection; closes it if its number is still ours, which a program that closes all files changes. */
static void forget_connection(void)
{
    if (client.fd >= 0 && client_cookie && socket_cookie(client.fd) == client_cookie)
        close(client.fd);
    client.fd = -1;
    queued = 0;
    for (unsigned n = 0; n < WAITING; n++)
        waiting[n].is_queued = 0;
}

static void lose_connection(void)
{
    char text[400];
    snprintf(text, sizeof text, "%s; %" PRIu64 " packets may be lost; others are sent without it",
             packetrig_error(&client), queued);
    say_once(BROKEN, text);
    forget_connection();
    next_try = packetrig_now(PACKETRIG_MONOTONIC) + pause_s * SECOND;
}

/* Opens PACKETRIG_REPORTS once more if the program has closed it. Checked, since numbers of files are used again. */
static int open_reports(void)
{
    static const char head[] = "number,target,called,planned,released_lo,released_hi,driver_lo,driver_hi,outcome\n";
    struct stat now;
    if (report_fd >= 0 && fstat(report_fd, &now) == 0 && now.st_ino == report_file.st_ino &&
        now.st_dev == report_file.st_dev)
        return 0;
    report_fd = open(report_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (report_fd < 0 || fstat(report_fd, &report_file) < 0)
        return say_once(NO_REPORTS, "the file of PACKETRIG_REPORTS cannot be written"), -1;
    if (report_file.st_size == 0)
        (void)!packetrig_real_write(report_fd, head, sizeof head - 1);
    return 0;
}

static int is_connected(void)
{
    char text[400], name[32] = "preload";
    uint64_t now = packetrig_now(PACKETRIG_MONOTONIC);
    if (client.fd >= 0 && (client_process != getpid() || socket_cookie(client.fd) != client_cookie))
        forget_connection();
    if (client.fd >= 0)
        return 1;
    if (now < next_try)
        return 0;
    snprintf(name, sizeof name, "%s", program_invocation_short_name);
    if (packetrig_connect(&client, NULL, name, 0) < 0) {
        snprintf(text, sizeof text, "%s; packets are sent without it", packetrig_error(&client));
        say_once(NO_SERVICE, text);
        /* Not from `now`: the attempt itself may have taken two seconds. */
        next_try = packetrig_now(PACKETRIG_MONOTONIC) + pause_s * SECOND;
        pause_s = pause_s * 2 < LONGEST_PAUSE ? pause_s * 2 : LONGEST_PAUSE;
        return 0;
    }
    pause_s = 1;
    client_cookie = socket_cookie(client.fd);
    client_process = getpid();
    if (has_reports)
        open_reports();
    return 1;
}

/* Appends to a line what fits. */
static void append(char *line, size_t room, const char *format, ...)
{
    va_list values;
    size_t used = strlen(line);
    va_start(values, format);
    vsnprintf(line + used, room - used, format, values);
    va_end(values);
}

static void append_stamp(char *line, size_t room, const struct packetrig_stamp *stamp)
{
    if (stamp->clock == 1)
        append(line, room, ",%" PRIu64 ",%" PRIu64, stamp->lo, stamp->hi);
    else
        append(line, room, ",,");
}

static void write_report(const struct packetrig_entry *entry, const struct waiting *of)
{
    char line[400] = "", target[INET6_ADDRSTRLEN] = "";
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    if (!has_reports || open_reports() < 0)
        return;
    append(line, sizeof line, "%" PRIu64, entry->cookie);
    if (of) {
        int is_v4 = !memcmp(of->target, mapped, sizeof mapped);
        inet_ntop(is_v4 ? AF_INET : AF_INET6, of->target + (is_v4 ? 12 : 0), target, sizeof target);
        append(line, sizeof line, ",%s,%" PRIu64, target, of->called);
    } else {
        append(line, sizeof line, ",,");
    }
    append(line, sizeof line, ",%" PRIu64, entry->planned);
    append_stamp(line, sizeof line, &entry->released);
    append_stamp(line, sizeof line, &entry->driver);
    append(line, sizeof line, ",%s\n", packetrig_outcome_name(entry->outcome));
    (void)!packetrig_real_write(report_fd, line, strlen(line));
}

static void take_report(const struct packetrig_entry *entry)
{
    char text[200];
    struct waiting *of = &waiting[entry->cookie % WAITING];
    if (of->cookie != entry->cookie)
        of = NULL;
    write_report(entry, of);
    if (entry->outcome != PACKETRIG_SENT) {
        snprintf(text, sizeof text, "the service did not send packet %" PRIu64 ": %s; what it refuses is sent without it",
                 entry->cookie, packetrig_outcome_name(entry->outcome));
        say_once(REFUSED, text);
    }
    if (of && of->is_queued) {
        of->is_queued = 0;
        queued--;
    }
}

/* Takes events until ACCEPTED of `batch` comes (1), or none is there (0); -1: the connection broke. */
static int take_events(uint64_t batch, int timeout_ms, int *accepted)
{
    struct packetrig_event event;
    int got;
    while ((got = packetrig_next_event(&client, &event, timeout_ms)) > 0) {
        if (event.type == PACKETRIG_EVENT_REPORT)
            take_report(&event.of.report);
        if (event.type == PACKETRIG_EVENT_ERROR)
            say_once(BROKEN, event.of.error.text);
        if (event.type == PACKETRIG_EVENT_ACCEPTED && event.id == batch)
            return *accepted = event.of.accepted.accepted > 0, 1;
    }
    return got;
}

/* Hands `packet` over: its cookie, or 0 if the program has to send it. */
static uint64_t submit(uint64_t release_at, int clock, uint64_t called)
{
    uint64_t cookie = next_cookie++;
    struct waiting *place = &waiting[cookie % WAITING];
    struct packetrig_packet given = {.cookie = cookie, .release_at = release_at, .kind = packet.kind,
        .clock = (uint8_t)clock, .bytes = packet.bytes, .size = packet.size};
    int accepted = 0;
    if (take_events(0, 0, &accepted) < 0 || packetrig_add(&client, &given) < 0)
        return lose_connection(), 0;
    if (place->is_queued) /* so many packets wait that the oldest one's report cannot be told from others */
        queued--;
    /* Queued until the service says otherwise: its report may come before its ACCEPTED. */
    *place = (struct waiting){.cookie = cookie, .called = called, .is_queued = 1};
    memcpy(place->target, packet.target, sizeof place->target);
    queued++;
    uint64_t batch = packetrig_submit(&client);
    int answered = batch ? take_events(batch, ANSWER_MS, &accepted) : -1;
    if (answered == 0)
        snprintf(client.error, sizeof client.error, "the release service did not answer within %d ms", ANSWER_MS);
    if (answered <= 0) /* closing takes the packet out of the queue: it is not sent twice */
        return lose_connection(), 0;
    if (!accepted && place->is_queued) {
        place->is_queued = 0;
        queued--;
    }
    return accepted ? cookie : 0;
}

static void sleep_until(uint64_t at)
{
    struct timespec end = {(time_t)(at / SECOND), (long)(at % SECOND)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, NULL) == EINTR)
        ;
}

/* Waits until a packet was reported. Others may use the connection meanwhile. */
static void wait_for_report(uint64_t cookie, uint64_t planned)
{
    uint64_t end = planned + GRACE;
    int is_there = 1, accepted;
    sleep_until(planned);
    while (is_there && packetrig_now(PACKETRIG_MONOTONIC) < end) {
        struct held held = take_lock();
        const struct waiting *of = &waiting[cookie % WAITING];
        if (client.fd >= 0 && client_process == getpid() && take_events(0, 0, &accepted) < 0)
            lose_connection();
        is_there = of->cookie == cookie && of->is_queued;
        give_lock(held);
        if (is_there)
            sleep_until(packetrig_now(PACKETRIG_MONOTONIC) + 100000);
    }
}

int wants_packets(void) { return schedule.every != 0; }

/* A time of another clock on the monotonic clock. */
static uint64_t to_monotonic(uint64_t time, int clock)
{
    uint64_t now = packetrig_now(clock);
    return packetrig_now(PACKETRIG_MONOTONIC) + (time > now ? time - now : 0);
}

static int build(int fd, const struct msghdr *message, int flags)
{
    return is_connected() ? build_socket_packet(fd, message, flags, &client.welcome, &packet) : PASS;
}

/* Decides when the packet leaves; gives the lock away while a program that is too fast has to wait. */
static int find_time(int fd, const struct msghdr *message, int flags, struct held *held)
{
    struct schedule plan = schedule;
    if (packet.has_time)
        return 0;
    if (!plan.every)
        return PASS;
    if (plan.ahead < 2 * client.welcome.lead_ns)
        plan.ahead = 2 * client.welcome.lead_ns;
    /* Not from the time of the call: the first one has connected since. */
    uint64_t slot = take_slot(&plan, &packet, packetrig_now(PACKETRIG_MONOTONIC), client.welcome.lead_ns);
    if (slot > packetrig_now(PACKETRIG_MONOTONIC) + plan.ahead) {
        give_lock(*held);
        sleep_until(slot - plan.ahead);
        *held = take_lock();
        int built = build(fd, message, flags);
        if (built)
            return built;
    }
    packet.time = slot;
    packet.clock = PACKETRIG_MONOTONIC;
    return 0;
}

ssize_t hand_over(int fd, const struct msghdr *message, int flags)
{
    int error = errno;
    uint64_t called = packetrig_now(PACKETRIG_MONOTONIC), planned = 0, cookie = 0;
    ssize_t payload = 0;
    if (!is_probe_socket(fd))
        return errno = error, PASS;
    struct held held = take_lock();
    int built = build(fd, message, flags);
    if (!built)
        built = find_time(fd, message, flags, &held);
    if (!built) {
        payload = (ssize_t)packet.payload;
        planned = to_monotonic(packet.time, packet.clock);
        cookie = submit(packet.time, packet.clock, called);
        if (cookie && planned > last_planned)
            last_planned = planned;
    }
    int failed = errno;
    give_lock(held);
    if (cookie && must_wait)
        wait_for_report(cookie, planned);
    errno = built == -1 ? failed : error;
    return built ? built : cookie ? payload : PASS;
}

void note_connected(int fd, const struct sockaddr *peer, socklen_t size)
{
    struct sockaddr_storage known;
    socklen_t length = sizeof known;
    int error = errno;
    if (is_probe_socket(fd) && getpeername(fd, (struct sockaddr *)&known, &length) < 0) {
        struct held held = take_lock();
        note_peer(fd, peer, size);
        give_lock(held);
    }
    errno = error;
}

void connect_early(void)
{
    int error = errno;
    if (wants_packets()) {
        struct held held = take_lock();
        is_connected();
        give_lock(held);
    }
    errno = error;
}

/* A packet that was handed over leaves even if the program ends: this waits for the last one, and its report. */
void finish_handover(void)
{
    uint64_t end = packetrig_now(PACKETRIG_MONOTONIC);
    int accepted, is_over = 0;
    end = (last_planned > end ? last_planned : end) + GRACE;
    while (!is_over) {
        struct held held = take_lock();
        if (client.fd < 0 || client_process != getpid() || socket_cookie(client.fd) != client_cookie || !queued)
            is_over = 1;
        else if (take_events(0, 20, &accepted) < 0)
            lose_connection();
        is_over |= packetrig_now(PACKETRIG_MONOTONIC) > end;
        give_lock(held);
    }
}

static void prepare_fork(void) { before_fork = take_lock(); }
static void after_fork(void) { give_lock(before_fork); }

/* The child has its own connection, if it sends. */
static void after_fork_in_child(void)
{
    struct held held = before_fork;
    pthread_mutex_init(&lock, NULL);
    forget_connection();
    pthread_mutex_lock(&lock);
    give_lock(held);
}

__attribute__((constructor)) static void read_environment(void)
{
    const char *text = getenv("PACKETRIG_SCHEDULE"), *wait = getenv("PACKETRIG_WAIT"), *file = getenv("PACKETRIG_REPORTS");
    size_t used = 0;
    is_quiet = getenv("PACKETRIG_QUIET") != NULL;
    must_wait = wait && *wait && strcmp(wait, "0") != 0;
    if (text && *text && parse_schedule(text, &schedule) < 0)
        say_once(BAD_SCHEDULE, "PACKETRIG_SCHEDULE is not every=TIME[,ahead=TIME][,per=target|socket|program] with "
                               "times such as 500us or 10ms; packets are sent without it");
    if (file && *file) {
        if (*file != '/' && getcwd(report_path, PATH / 2)) /* the program may go elsewhere */
            used = strlen(report_path), report_path[used++] = '/';
        if (snprintf(report_path + used, PATH - used, "%s", file) < (int)(PATH - used))
            has_reports = 1;
    }
    pthread_atfork(prepare_fork, after_fork, after_fork_in_child);
}

__attribute__((destructor)) static void finish(void) { finish_handover(); }
