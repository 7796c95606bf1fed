/* sender IF FLOWS TRUTH LOG: sends the conversations of the file FLOWS at IF until SIGTERM, and writes what it sent.
 *
 * The truth of a trial: TRUTH has a line for each flow and direction (packets, bytes of IP, packets that carry the
 * same as the one before), LOG an entry for each packet. A packet counts when the kernel has taken it. What the link
 * then loses is counted at its ends by the lab. frames.h builds packets; this file says when they leave. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <math.h>
#include <net/if.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "frames.h"

#define MILLI 1000000ULL
#define SECOND 1000000000ULL
#define BATCH 64
/* Standing still for so long moves the plan instead of sending all at once: no link carries such a burst. */
#define MOST_LATE (20 * MILLI)

enum kind { BEGIN, DRIVEN, REPLY, ACKNOWLEDGE, SYN, SYN_ACK, FIN, RST };

struct event {
	uint64_t at;
	uint32_t flow, session;
	uint8_t direction, kind;
};

struct entry {
	uint64_t at;
	uint32_t flow;
	uint16_t length;
	uint8_t direction, flags;
};

static struct flow *flows;
static struct event *heap;
static size_t flow_count, heap_count, heap_room;
static volatile sig_atomic_t is_over;
static uint64_t random_state;

static void end(int signal) {
	(void)signal;
	is_over = 1;
}

/* splitmix64 */
static uint64_t draw(void) {
	uint64_t value = random_state += 0x9e3779b97f4a7c15ULL;
	value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9ULL;
	value = (value ^ value >> 27) * 0x94d049bb133111ebULL;
	return value ^ value >> 31;
}

static double draw_share(void) { return (double)(draw() >> 11) / 9007199254740992.0; }

/* As many between 10 and 20 ms as between 1 and 2 s. */
static uint64_t draw_span(double least_ms, double most_ms) {
	return (uint64_t)(least_ms * pow(most_ms / least_ms, draw_share()) * MILLI);
}

static uint64_t now_of(clockid_t clock) {
	struct timespec now;
	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * SECOND + (uint64_t)now.tv_nsec;
}

static void plan(uint64_t at, uint32_t flow, uint8_t direction, enum kind kind) {
	if (heap_count == heap_room) heap = realloc(heap, (heap_room = heap_room * 2 + 1024) * sizeof *heap);
	size_t place = heap_count++;
	for (; place && heap[(place - 1) / 2].at > at; place = (place - 1) / 2) heap[place] = heap[(place - 1) / 2];
	heap[place] = (struct event){at, flow, flows[flow].session, direction, (uint8_t)kind};
}

static struct event take_first(void) {
	struct event first = heap[0], last = heap[--heap_count];
	size_t place = 0;
	for (size_t child; (child = 2 * place + 1) < heap_count; place = child) {
		if (child + 1 < heap_count && heap[child + 1].at < heap[child].at) child++;
		if (heap[child].at >= last.at) break;
		heap[place] = heap[child];
	}
	heap[place] = last;
	return first;
}

/* When a direction sends again. Both directions of a flow are quiet in its pauses. */
static uint64_t next_departure(struct flow *flow, uint64_t at, int direction) {
	double interval = (double)SECOND / flow->rate[direction];
	double share = flow->is_steady ? 0.9 + 0.2 * draw_share() : 0.3 + 1.4 * draw_share();
	uint64_t next = at + (uint64_t)(interval * share);
	if (flow->is_steady) return next;
	while (next > flow->on_until) {
		flow->on_from = flow->on_until + draw_span(10, 3000);
		flow->on_until = flow->on_from + draw_span(50, 3000);
		if (next < flow->on_from) break;
	}
	if (next < flow->on_from) next = flow->on_from + (uint64_t)(draw_share() * (interval < 3e7 ? interval : 3e7));
	return next;
}

static void begin_session(uint32_t number, uint64_t at) {
	struct flow *flow = &flows[number];
	flow->session++;
	flow->ends_at = flow->life_ms ? at + draw_span(flow->life_ms * 0.5, flow->life_ms * 2.0) : UINT64_MAX;
	flow->on_from = at;
	flow->on_until = at + draw_span(50, 3000);
	for (int direction = 0; direction < 2; direction++) flow->sequence[direction] = (uint32_t)draw();
	uint64_t first = at;
	if (flow->protocol == TCP && flow->closing) {
		plan(at, number, 0, SYN);
		plan(at + MILLI, number, 1, SYN_ACK);
		first = at + 3 * MILLI;
	}
	plan(first, number, 0, DRIVEN);
	if (!flow->replies) plan(next_departure(flow, first, 1), number, 1, DRIVEN);
}

/* Closes the conversation and plans the next one with the same ports. */
static void end_session(uint32_t number, uint64_t at) {
	struct flow *flow = &flows[number];
	flow->session++;
	if (flow->protocol == TCP && flow->closing == 1) {
		plan(at, number, 0, FIN);
		plan(at + MILLI, number, 1, FIN);
	} else if (flow->protocol == TCP && flow->closing == 2) {
		plan(at, number, 0, RST);
	}
	plan(at + draw_span(20, 5000), number, 0, BEGIN);
}

static unsigned flags_of(enum kind kind) {
	static const unsigned flags[] = {[SYN] = 0x02, [SYN_ACK] = 0x12, [FIN] = 0x11, [RST] = 0x14, [ACKNOWLEDGE] = 0x10};
	return kind == DRIVEN || kind == REPLY || kind == BEGIN ? 0x18 : flags[kind];
}

/* What follows from a departure is planned before the packet is built. Says whether there is a packet. */
static int plan_next(const struct event *event) {
	struct flow *flow = &flows[event->flow];
	if (event->kind == BEGIN) {
		begin_session(event->flow, event->at);
		return 0;
	}
	if (event->session != flow->session) return 0;
	if (event->at >= flow->ends_at && event->kind == DRIVEN) {
		end_session(event->flow, event->at);
		return 0;
	}
	if (event->kind != DRIVEN) return 1;
	plan(next_departure(flow, event->at, event->direction), event->flow, event->direction, DRIVEN);
	for (unsigned reply = 0; reply < flow->replies; reply++)
		plan(event->at + draw_span(0.2, 20), event->flow, 1, flow->has_bare_acks ? ACKNOWLEDGE : REPLY);
	return 1;
}

struct batch {
	struct mmsghdr messages[BATCH];
	struct iovec parts[BATCH];
	uint8_t frames[BATCH][FRAME_ROOM];
	struct entry entries[BATCH];
	uint8_t is_same[BATCH];
	unsigned count;
};

static void add_packet(struct batch *batch, const struct event *event) {
	unsigned place = batch->count++, is_same;
	unsigned flags = flags_of(event->kind);
	uint8_t *frame = batch->frames[place];
	size_t length = build_frame(&flows[event->flow], event->direction, flags, draw(), frame, &is_same);
	batch->parts[place] = (struct iovec){frame, length};
	batch->messages[place].msg_hdr = (struct msghdr){.msg_iov = &batch->parts[place], .msg_iovlen = 1};
	batch->entries[place] = (struct entry){0, event->flow, (uint16_t)(length - 14), event->direction, (uint8_t)flags};
	batch->is_same[place] = (uint8_t)is_same;
}

/* Waits until the kernel has taken all of them; counts what it took. */
static void send_batch(int link, struct batch *batch, FILE *log) {
	for (unsigned sent = 0; sent < batch->count;) {
		int taken = sendmmsg(link, batch->messages + sent, batch->count - sent, 0);
		if (taken < 0) {
			usleep(200);
			continue;
		}
		for (; taken > 0; taken--, sent++) {
			struct entry *entry = &batch->entries[sent];
			entry->at = now_of(CLOCK_REALTIME);
			struct counts *counts = &flows[entry->flow].counts[entry->direction];
			counts->packets++;
			counts->bytes += entry->length;
			counts->same += batch->is_same[sent];
			fwrite(entry, sizeof *entry, 1, log);
		}
	}
	batch->count = 0;
}

static void send_until_over(int link, FILE *log) {
	static struct batch batch;
	uint64_t moved = now_of(CLOCK_MONOTONIC);
	for (uint32_t number = 0; number < flow_count; number++) plan(draw() % (2 * SECOND), number, 0, BEGIN);
	while (!is_over) {
		uint64_t now = now_of(CLOCK_MONOTONIC) - moved;
		if (now > heap[0].at + MOST_LATE) {
			moved += now - heap[0].at;
			now = heap[0].at;
		}
		while (heap[0].at <= now && batch.count < BATCH) {
			struct event event = take_first();
			if (plan_next(&event)) add_packet(&batch, &event);
		}
		send_batch(link, &batch, log);
		if (heap[0].at > now) usleep((useconds_t)((heap[0].at - now) / 1000 + 200));
	}
}

static int open_link(const char *name) {
	int link = socket(AF_PACKET, SOCK_RAW, 0);
	struct sockaddr_ll place = {.sll_family = AF_PACKET, .sll_ifindex = (int)if_nametoindex(name)};
	if (link < 0 || bind(link, (struct sockaddr *)&place, sizeof place)) {
		perror(name);
		exit(1);
	}
	return link;
}

static void read_flows(const char *path) {
	FILE *file = fopen(path, "r");
	unsigned long long seed;
	if (!file || fscanf(file, "%zu %llu", &flow_count, &seed) != 2) exit(1);
	random_state = seed;
	flows = calloc(flow_count, sizeof *flows);
	for (size_t number = 0; number < flow_count; number++)
		if (!read_flow(file, &flows[number])) exit(1);
	fclose(file);
}

static void write_truth(const char *path) {
	FILE *file = fopen(path, "w");
	if (!file) exit(1);
	for (size_t number = 0; number < flow_count; number++)
		for (int direction = 0; direction < 2; direction++) {
			const struct counts *counts = &flows[number].counts[direction];
			fprintf(file, "%zu\t%d\t%llu\t%llu\t%llu\n", number, direction, (unsigned long long)counts->packets,
				(unsigned long long)counts->bytes, (unsigned long long)counts->same);
		}
	fclose(file);
}

int main(int argc, char **argv) {
	if (argc != 5) return 2;
	read_flows(argv[2]);
	FILE *log = fopen(argv[4], "w");
	if (!log) return 1;
	struct sigaction action = {.sa_handler = end};
	sigaction(SIGTERM, &action, NULL);
	int link = open_link(argv[1]);
	puts("sending");
	fflush(stdout);
	send_until_over(link, log);
	fclose(log);
	write_truth(argv[3]);
	return 0;
}
