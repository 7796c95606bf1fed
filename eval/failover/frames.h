/* Packets of conversations: what each packet of a flow carries. Checksums are right, as on a wire. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define TCP 6
#define FRAME_ROOM 1600

struct counts {
	uint64_t packets, bytes, same;
};

struct flow {
	unsigned family, protocol, ports[2], is_steady, is_constant, has_identification, counter_at;
	unsigned replies, has_bare_acks, least, most, closing, life_ms;
	uint8_t addresses[2][16];
	double rate[2];
	uint32_t session, sequence[2], counter[2];
	uint16_t identification[2];
	uint64_t ends_at, on_from, on_until;
	struct counts counts[2];
	/* A hash of the last packet of each direction: whether the next one is the same. */
	uint64_t last[2];
};

static int read_flow(FILE *file, struct flow *flow) {
	char source[64], destination[64];
	if (fscanf(file, "%u %u %63s %63s %u %u %lf %lf %u %u %u %u %u %u %u %u %u %u", &flow->family, &flow->protocol,
		   source, destination, &flow->ports[0], &flow->ports[1], &flow->rate[0], &flow->rate[1],
		   &flow->is_steady, &flow->is_constant, &flow->has_identification, &flow->counter_at,
		   &flow->replies, &flow->has_bare_acks, &flow->least, &flow->most, &flow->closing, &flow->life_ms) != 18)
		return 0;
	int family = flow->family == 4 ? AF_INET : AF_INET6;
	return inet_pton(family, source, flow->addresses[0]) == 1 && inet_pton(family, destination, flow->addresses[1]) == 1;
}

static void put16(uint8_t *at, unsigned value) {
	at[0] = (uint8_t)(value >> 8);
	at[1] = (uint8_t)value;
}

static void put32(uint8_t *at, uint32_t value) {
	put16(at, value >> 16);
	put16(at + 2, value & 0xffff);
}

static uint32_t sum_of(const uint8_t *bytes, size_t length, uint32_t sum) {
	for (size_t at = 0; at + 1 < length; at += 2) sum += (uint32_t)(bytes[at] << 8 | bytes[at + 1]);
	if (length & 1) sum += (uint32_t)(bytes[length - 1] << 8);
	return sum;
}

static unsigned fold(uint32_t sum) {
	while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
	return ~sum & 0xffff;
}

static size_t put_ip(struct flow *flow, int direction, size_t length, uint8_t *at) {
	const uint8_t *source = flow->addresses[direction], *destination = flow->addresses[!direction];
	if (flow->family == 6) {
		put32(at, 0x60000000);
		put16(at + 4, (unsigned)length);
		at[6] = (uint8_t)flow->protocol;
		at[7] = 64;
		memcpy(at + 8, source, 16);
		memcpy(at + 24, destination, 16);
		return 40;
	}
	put16(at, 0x4500);
	put16(at + 2, (unsigned)length + 20);
	put16(at + 4, flow->has_identification ? ++flow->identification[direction] : 0);
	put16(at + 6, 0x4000);
	at[8] = 64;
	at[9] = (uint8_t)flow->protocol;
	put16(at + 10, 0);
	memcpy(at + 12, source, 4);
	memcpy(at + 16, destination, 4);
	put16(at + 10, fold(sum_of(at, 20, 0)));
	return 20;
}

static void put_checksum(const struct flow *flow, uint8_t *ip, uint8_t *at, size_t length, size_t place) {
	size_t size = flow->family == 4 ? 4 : 16;
	uint32_t sum = sum_of(ip + (flow->family == 4 ? 12 : 8), 2 * size, (uint32_t)(flow->protocol + length));
	unsigned sum_found = fold(sum_of(at, length, sum));
	put16(at + place, sum_found ? sum_found : 0xffff);
}

/* Writes the packet of one direction, and tells whether it carries the same as the one before. Of flows that are
 * constant, all do. One segment in a hundred is sent again. */
static size_t build_frame(struct flow *flow, int direction, unsigned flags, uint64_t chance, uint8_t *frame,
			  unsigned *is_same) {
	size_t header = flow->protocol == TCP ? 20 : 8, room = flow->most - flow->least + 1;
	size_t data = flow->is_constant ? flow->least : flow->least + (chance >> 8) % room;
	if (flow->protocol == TCP && !(flags & 0x08)) data = 0;
	uint8_t *ip = frame + 14;
	memcpy(frame, direction ? "\x02\0\0\0\0\1\x02\0\0\0\0\2" : "\x02\0\0\0\0\2\x02\0\0\0\0\1", 12);
	put16(frame + 12, flow->family == 4 ? 0x0800 : 0x86dd);
	uint8_t *at = ip + put_ip(flow, direction, header + data, ip);
	memset(at, 0, header);
	memset(at + header, 0x5a, data);
	if (data >= flow->counter_at + 4 && !flow->is_constant)
		put32(at + header + flow->counter_at, ++flow->counter[direction]);
	put16(at, flow->ports[direction]);
	put16(at + 2, flow->ports[!direction]);
	if (flow->protocol == TCP) {
		put32(at + 4, flow->sequence[direction]);
		put32(at + 8, flags & 0x10 ? flow->sequence[!direction] : 0);
		put16(at + 12, 0x5000 | flags);
		put16(at + 14, 0x1000);
		int is_repeated = (chance & 0xff) < 3 && data;
		if (!flow->is_constant && !is_repeated) flow->sequence[direction] += (uint32_t)data + ((flags & 3) != 0);
	} else {
		put16(at + 4, (unsigned)(header + data));
	}
	put_checksum(flow, ip, at, header + data, flow->protocol == TCP ? 16 : 6);
	size_t length = (size_t)(at - frame) + header + data;
	uint64_t hash = 14695981039346656037ULL;
	for (const uint8_t *byte = ip; byte < frame + length; byte++) hash = (hash ^ *byte) * 1099511628211ULL;
	*is_same = hash == flow->last[direction];
	flow->last[direction] = hash;
	return length;
}
