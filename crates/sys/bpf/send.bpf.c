/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Sends test frames. The kernel runs this program on frames that it makes itself ("live frames"); each call makes one
 * test frame or none.
 *
 * User space writes the schedule as *runs*. A run is a number of frames of one shape (a layout of frames) at a
 * fixed interval, with the sequence number and the due time of the first frame. A call without a due frame returns
 * at once, and the kernel calls again. So user space controls the schedule and can stop at any frame, and this
 * program makes the bytes:
 *
 *   image of the shape -> fields that vary -> tag (number, time, mark) -> checksums -> into the frame -> out
 *
 * The kernel reuses the memory of frames, and a receiver may have changed it, so every call writes every byte.
 * layout/send.h states the offsets that user space uses.
 */
#include "kernel.h"

#define IMAGE 256
#define CHECKS 4
#define OPS 32
#define RUNS 4096
#define BUCKETS 320
#define LONGEST_FILL 4096u
#define REUSES 8

struct run {
	u64 due;	/* due time of its first frame, CLOCK_MONOTONIC ns */
	u64 step;	/* time from one frame to the next, ns << 20 */
	u64 number;	/* sequence number of its first frame */
	u64 cutoff;	/* its frames that are not sent before this time stay unsent */
	u32 count;
	u32 shape;
	u64 pad[3];
};

struct control {
	/* user space writes */
	u64 pushed;	/* runs written so far */
	u64 stop;
	u64 key;
	u64 late_after;
	u32 ifindex;
	u32 batch;
	u64 slack;	/* lateness up to which the sender counts as on time, ns */
	u64 part;	/* the lag shrinks by 1/part of the time that passes */
	u64 tolerance;	/* how much closer than planned a frame may be to earlier frames, ns */
	/* the program writes */
	u64 popped;	/* runs begun so far */
	u64 index;	/* frames of the current run that were sent */
	u64 left;	/* frames of the current run that are not sent yet */
	u64 calls;
	u64 built;
	u64 batch_first; /* when the first frame of this batch was made */
	u64 batch_frames;
	u64 failed;	/* frames that could not be made */
	struct run now;
	u64 bounds_max;
	u64 clock;	/* last reading of the clock */
	u64 reused;	/* frames made with this reading */
	u64 lag;	/* how far behind the sender was at `since` */
	u64 since;
	u64 bar;	/* lateness that a frame needs to keep its planned distance from earlier frames */
	u64 ahead;	/* frames that left closer to earlier frames than that */
	u64 ahead_due;	/* due time of the last frame if it left ahead; otherwise 0 */
	u64 bounds[BUCKETS]; /* frames by the longest possible time from their timestamp to the driver */
	u64 window;	/* time over which the sender adds up its hold-ups, ns */
	u64 hold_up;	/* longest hold-up that a starved sender catches up at once, ns */
	u64 window_start;
	u64 lost;	/* sum of the hold-ups in this window */
	u64 excess;	/* delay of the last frame beyond the lag */
	u64 starved;	/* whether the last window lost more time than a window can catch up */
	u64 pad2[4096 / 8 - 8 - 8 - 8 - 8 - BUCKETS - 6];
	struct run runs[RUNS];
};

struct lane {
	u64 frames, bytes, first, last, late, error_max, pad[2];
	u64 errors[BUCKETS]; /* frames by the time from their due time to their making */
};

struct check {
	u32 base;	/* sum of the bytes that do not vary */
	u16 at;
	u8 bad, never_zero;
	u8 tag_words;	/* bit mask of the words of the tag that it covers */
	u8 tag_swapped;	/* the tag is at an odd offset from the first byte that it covers */
	u8 into;	/* bit mask of the later checksums that cover this one */
	u8 pad;
};

struct shape {
	u32 lane, len, image_len, fill, fill_at, fill_len, tag_at, tag_len, ops_from, ops, checks_used, stream;
	u8 tail[16];	/* bytes of the tag that do not vary */
	struct check checks[CHECKS];
	u8 image[IMAGE];
} __attribute__((aligned(8)));

enum { VALUES, STEP_UP, STEP_DOWN, RANDOM, RANDOM_WHOLE };

struct op {
	u64 start_hi, start_lo, step_hi, step_lo, count, seed, mask_hi, mask_lo;
	u32 kind, at, shift, wide, checks, values_from;
	u64 pad;
};

struct value {
	u64 hi, lo;
};

struct scratch {
	u8 image[IMAGE + 32];
	u8 tail[16];
} __attribute__((aligned(8)));

MAP(control);
MAP(lanes);
MAP(shapes);
MAP(ops);
MAP(values);
MAP(fills);
MAP(scratch);

INLINE u64 big64(u64 x) { return __builtin_bswap64(x); }

/*
 * Copies 64 bytes in words of 8. The compiler would copy single bytes, because it cannot know that
 * both pointers are aligned.
 */
INLINE void copy_64(void *to, const void *from)
{
	u64 *a = to;
	const u64 *b = from;
#pragma unroll
	for (int i = 0; i < 8; i++)
		a[i] = b[i];
}

INLINE void copy_16(void *to, const void *from)
{
	((u64 *)to)[0] = ((const u64 *)from)[0];
	((u64 *)to)[1] = ((const u64 *)from)[1];
}

INLINE u64 finalise(u64 w)
{
	w = (w ^ (w >> 30)) * 0xbf58476d1ce4e5b9ull;
	w = (w ^ (w >> 27)) * 0x94d049bb133111ebull;
	return w ^ (w >> 31);
}

/* The same mix as wire::pattern::mix. */
INLINE u64 mix(u64 seed, u64 n)
{
	return finalise(finalise(seed + 0x9e3779b97f4a7c15ull) ^ n * 0x9e3779b97f4a7c15ull);
}

/* The upper half of a 128-bit product, from four products of 32 bits: BPF has no product of more than 64 bits. */
INLINE u64 multiply_high(u64 a, u64 b)
{
	u64 a0 = a & 0xffffffff, a1 = a >> 32, b0 = b & 0xffffffff, b1 = b >> 32;
	u64 low = a0 * b0, m1 = a1 * b0 + (low >> 32), m2 = a0 * b1 + (m1 & 0xffffffff);
	return a1 * b1 + (m1 >> 32) + (m2 >> 32);
}

/* RFC 1071: adds the carries of a one's-complement sum back in. Each width takes two additions, because the first may carry again. */
INLINE u32 fold(u64 sum)
{
	sum = (sum >> 32) + (sum & 0xffffffff);
	sum = (sum >> 32) + (sum & 0xffffffff);
	sum = (sum >> 16) + (sum & 0xffff);
	sum = (sum >> 16) + (sum & 0xffff);
	return (sum >> 16) + (sum & 0xffff);
}

INLINE u32 words_of(u64 w)
{
	return (w >> 48) + ((w >> 32) & 0xffff) + ((w >> 16) & 0xffff) + (w & 0xffff);
}

/* Eight buckets per octave, as in src/xdp/buckets.rs. The exponent is found by halving: BPF cannot count leading zeros. */
INLINE u32 bucket_of(u64 v)
{
	u32 e = 0;
	u64 w = v;
	if (v < 8)
		return v;
	if (w >> 32) { e += 32; w >>= 32; }
	if (w >> 16) { e += 16; w >>= 16; }
	if (w >> 8) { e += 8; w >>= 8; }
	if (w >> 4) { e += 4; w >>= 4; }
	if (w >> 2) { e += 2; w >>= 2; }
	if (w >> 1) { e += 1; }
	u32 bucket = (e - 2) * 8 + ((v >> (e - 3)) & 7);
	return bucket < BUCKETS ? bucket : BUCKETS - 1;
}

/* Computes the value of a field in frame `n`; nonzero on failure. */
INLINE int evaluate(const struct op *op, u64 n, u64 *hi, u64 *lo)
{
	u64 i = op->count ? n % op->count : n;
	if (op->kind == VALUES) {
		u32 at = op->values_from + (u32)i;
		struct value *value = bpf_map_lookup_elem(&values, &at);
		if (!value)
			return -1;
		*hi = value->hi;
		*lo = value->lo;
		return 0;
	}
	/* start +/- step * i, modulo 2^128. A sum that is smaller than one of its parts has carried. */
	if (op->kind == STEP_UP || op->kind == STEP_DOWN) {
		u64 low = op->step_lo * i;
		u64 high = multiply_high(op->step_lo, i) + op->step_hi * i;
		if (op->kind == STEP_UP) {
			*lo = op->start_lo + low;
			*hi = op->start_hi + high + (*lo < low);
		} else {
			*lo = op->start_lo - low;
			*hi = op->start_hi - high - (op->start_lo < low);
		}
		return 0;
	}
	u64 drawn = mix(op->seed, i);
	if (op->kind == RANDOM_WHOLE) {
		*hi = drawn;
		*lo = mix(~op->seed, i);
		return 0;
	}
	/* step_lo is the number of possible values: the upper half of the product scales the draw, which needs no division. */
	u64 part = multiply_high(drawn, op->step_lo);
	*lo = op->start_lo + part;
	*hi = op->start_hi + (*lo < part);
	return 0;
}

struct sums {
	u64 s0, s1, s2, s3;
};

INLINE void add(struct sums *sums, u32 mask, u32 part)
{
	if (mask & 1) sums->s0 += part;
	if (mask & 2) sums->s1 += part;
	if (mask & 4) sums->s2 += part;
	if (mask & 8) sums->s3 += part;
}

INLINE u32 tag_sum(const struct check *check, const u32 *words)
{
	u32 sum = 0;
	u8 mask = check->tag_words;
#pragma unroll
	for (int i = 0; i < 7; i++)
		if (mask & (1 << i))
			sum += words[i];
	sum = fold(sum);
	/* RFC 1071, section 2: a sum of bytes that are shifted by one is the sum with its bytes swapped. */
	return check->tag_swapped ? ((sum << 8) & 0xff00) | (sum >> 8) : sum;
}

INLINE u32 finish(struct scratch *s, const struct check *check, u64 sum, const u32 *words)
{
	u32 value = ~fold(sum + check->base + tag_sum(check, words)) & 0xffff;
	/* A checksum that is wrong on purpose must not be right or zero: in UDP, zero means no checksum (RFC 768). */
	if (check->bad)
		value = value == 0x5555 ? 0xaaaa : value ^ 0x5555;
	else if (value == 0 && check->never_zero)
		value = 0xffff;
	u32 at = check->at & (IMAGE - 1);
	s->image[at] = value >> 8;
	s->image[at + 1] = value;
	return value;
}

INLINE int vary(struct scratch *s, const struct shape *shape, u64 n, struct sums *sums)
{
	for (u32 i = 0; i < OPS; i++) {
		if (i >= shape->ops)
			break;
		u32 which = shape->ops_from + i;
		struct op *op = bpf_map_lookup_elem(&ops, &which);
		u64 hi = 0, lo = 0;
		if (!op || evaluate(op, n, &hi, &lo))
			return -1;
		/*
		 * The offset is even, so that the 16-bit words of the window are words of the checksum. `image` has 32
		 * spare bytes for a window at its end.
		 */
		u32 at = op->at & (IMAGE - 2), shift = op->shift & 63, part;
		u64 *window = (void *)(s->image + at);
		hi &= op->mask_hi;
		lo &= op->mask_lo;
		if (op->wide) {
			window[0] = big64(big64(window[0]) | hi);
			window[1] = big64(big64(window[1]) | lo);
			part = words_of(hi) + words_of(lo);
		} else {
			lo <<= shift;
			window[0] = big64(big64(window[0]) | lo);
			part = words_of(lo);
		}
		add(sums, op->checks, part);
	}
	return 0;
}

/*
 * Makes the tag as wire::tag does (a test compares both), and stores its words for the checksums. words[1] of the tag
 * of 16 bytes is the stream: it does not vary, so it is in the base of the checksum.
 */
INLINE void stamp(struct scratch *s, const struct shape *shape, u64 key, u64 n, u64 now, u32 *words)
{
	u64 *tail = (void *)s->tail;
	u64 *constant = (void *)shape->tail;
	u64 stream = shape->stream;
	if (shape->tag_len == 16) {
		u64 time = now & 0xffffffffffffull, sequence = n & 0xffffffff;
		u64 rotated = (time << 17) | (time >> 47);
		u64 mark = mix(key, (stream << 32 | sequence) ^ rotated) >> 48;
		tail[0] = big64(mark << 48 | stream << 32 | sequence);
		tail[1] = constant[1] | big64(time << 16);
		words[0] = mark;
		words[2] = sequence >> 16;
		words[3] = sequence & 0xffff;
		words[4] = time >> 32;
		words[5] = (time >> 16) & 0xffff;
		words[6] = time & 0xffff;
	} else if (shape->tag_len == 6) {
		u64 sequence = n & 0xfffff, word = stream << 20 | sequence;
		u64 mark = mix(key ^ (1ull << 63), stream << 32 | sequence) >> 48;
		tail[0] = big64(mark << 48 | word << 16);
		words[0] = mark;
		words[1] = word >> 16;
		words[2] = word & 0xffff;
	}
}

INLINE int write_frame(struct xdp_md *ctx, struct scratch *s, const struct shape *shape)
{
	int change = (int)shape->len - (int)(ctx->data_end - ctx->data);
	if (change && bpf_xdp_adjust_tail(ctx, change))
		return -1;
	u32 len = shape->image_len, at = shape->tag_at;
	/* A small frame fits into the image with its tag, so one copy is enough. */
	int whole = shape->fill_len == 0 && at <= IMAGE;
	if (whole && shape->tag_len == 16)
		copy_16(s->image + at, s->tail);
	if (len >= 8 && len <= SHORT) {
		if (!WRITE_SHORT(ctx, len, s->image))
			return -1;
	} else if (len == 0 || len > IMAGE || bpf_xdp_store_bytes(ctx, 0, s->image, len)) {
		return -1;
	}
	if (whole && shape->tag_len != 6)
		return 0;
	len = shape->fill_len;
	if (len > 0) {
		u32 which = shape->fill;
		void *fill = bpf_map_lookup_elem(&fills, &which);
		if (len > LONGEST_FILL)
			return -1;
		PIN(len);
		if (!fill || len == 0 || bpf_xdp_store_bytes(ctx, shape->fill_at, fill, len))
			return -1;
	}
	if (shape->tag_len == 16)
		return bpf_xdp_store_bytes(ctx, shape->tag_at, s->tail, 16);
	if (shape->tag_len == 6)
		return bpf_xdp_store_bytes(ctx, shape->tag_at, s->tail, 6);
	return 0;
}

/* Makes frame `n` of a shape; nonzero on failure. */
INLINE int make(struct xdp_md *ctx, const struct shape *shape, u64 key, u64 n, u64 now)
{
	u32 zero = 0, words[8] = {};
	struct sums sums = {};
	struct scratch *s = bpf_map_lookup_elem(&scratch, &zero);
	if (!s)
		return -1;
	copy_64(s->image, shape->image);
	if (shape->image_len > 64)
		copy_64(s->image + 64, shape->image + 64);
	if (shape->image_len > 128) {
		copy_64(s->image + 128, shape->image + 128);
		copy_64(s->image + 192, shape->image + 192);
	}
	if (vary(s, shape, n, &sums))
		return -1;
	stamp(s, shape, key, n, now, words);
	/* Inner checksums come first, because later ones may cover them (`into`). */
	u32 checks = shape->checks_used;
	if (checks > 0)
		add(&sums, shape->checks[0].into, finish(s, &shape->checks[0], sums.s0, words));
	if (checks > 1)
		add(&sums, shape->checks[1].into, finish(s, &shape->checks[1], sums.s1, words));
	if (checks > 2)
		add(&sums, shape->checks[2].into, finish(s, &shape->checks[2], sums.s2, words));
	if (checks > 3)
		finish(s, &shape->checks[3], sums.s3, words);
	return write_frame(ctx, s, shape);
}

/*
 * The kernel hands a batch to the driver before it begins the next batch. So at the first call of a batch, all frames
 * of the batch before it have been handed over; this gives the upper bound that is counted here.
 */
INLINE void end_batch(struct control *c, u64 now)
{
	if (c->batch_frames) {
		u64 bound = now - c->batch_first;
		u32 bucket = bucket_of(bound);
		if (bucket < BUCKETS)
			c->bounds[bucket] += c->batch_frames;
		if (bound > c->bounds_max)
			c->bounds_max = bound;
		c->batch_frames = 0;
	}
}

INLINE void account(struct control *c, struct lane *lane, u32 len, u64 due, u64 now)
{
	u64 error = now - due;
	u32 bucket = bucket_of(error);
	if (bucket < BUCKETS)
		lane->errors[bucket] += 1;
	if (error > lane->error_max)
		lane->error_max = error;
	if (error > c->late_after)
		lane->late += 1;
	if (!lane->frames)
		lane->first = now;
	lane->last = now;
	lane->bytes += len + 4;	/* with FCS */
	WRITE_ONCE(lane->frames, lane->frames + 1);
	if (!c->batch_frames)
		c->batch_first = now;
	c->batch_frames += 1;
	c->built += 1;
}

INLINE u64 read_clock(struct control *c)
{
	c->clock = bpf_ktime_get_ns();
	c->reused = 0;
	return c->clock;
}

/* How far behind its schedule the sender must stay, so that it does not catch up too fast. */
INLINE u64 lag_at(const struct control *c, u64 now)
{
	u64 made_good = (now - c->since) / (c->part ? c->part : 1);
	return c->lag > made_good ? c->lag - made_good : 0;
}

/*
 * Adds the delay of a frame beyond the lag to the hold-ups of this window. Only its growth since the last frame counts:
 * the rest is an earlier hold-up.
 */
INLINE void add_delay(struct control *c, u64 excess, u64 now)
{
	u64 elapsed = now - c->window_start, held_up;
	if (elapsed > c->window) {
		c->starved = c->lost * (c->part + 1) > elapsed;
		c->window_start = now;
		c->lost = 0;
	}
	held_up = excess > c->excess ? excess - c->excess : 0;
	if (held_up > c->slack)
		c->lost += held_up < c->hold_up ? held_up : c->hold_up;
}

/*
 * Whether the frame that is due at `due` may leave. The rule is that of engine's sender/catch_up.rs: after a stall the
 * sender is at most `1 / part` faster than planned, until it is on time again. If it loses too much time for that, it
 * catches up short hold-ups at once.
 */
INLINE int may_leave(struct control *c, u64 due, u64 now)
{
	u64 behind = now - due, lag, slack;
	if (!c->lag && behind <= c->slack) {
		c->excess = 0;
		return 1;
	}
	lag = c->lag ? lag_at(c, now) : 0;
	add_delay(c, behind > lag ? behind - lag : 0, now);
	slack = c->starved ? c->hold_up : c->slack;
	if (behind > lag + slack) {
		c->since = now;
		lag = behind - slack;
		WRITE_ONCE(c->lag, lag);
	} else if (!lag) {
		WRITE_ONCE(c->lag, 0);
	}
	c->excess = behind > lag ? behind - lag : 0;
	return behind >= lag;
}

/* Counts a frame that leaves closer to earlier frames than planned, as engine's sender/ahead.rs does. */
INLINE void measure_distance(struct control *c, u64 due, u64 now)
{
	u64 late = now - due;
	if (c->ahead_due) {
		u64 step = due - c->ahead_due;
		c->bar = c->bar > step ? c->bar - step : 0;
		c->ahead_due = 0;
	}
	if (late + c->tolerance >= c->bar) {
		if (late > c->bar)
			c->bar = late;
	} else {
		c->ahead_due = due;
		WRITE_ONCE(c->ahead, c->ahead + 1);
	}
}

/* Begins the next run; zero if there is none. */
INLINE int next_run(struct control *c)
{
	u64 popped = c->popped;
	/* Calls without a run are frequent, so the barrier (OBSERVE) is used only after a new run was seen. */
	if (popped == READ_ONCE(c->pushed) || popped == OBSERVE(c->pushed))
		return 0;
	c->now = c->runs[popped & (RUNS - 1)];
	c->index = 0;
	c->left = c->now.count;
	PUBLISH(c->popped, 1);
	return c->left > 0;
}

SEC("xdp")
int send(struct xdp_md *ctx)
{
	u32 zero = 0;
	struct control *c = bpf_map_lookup_elem(&control, &zero);
	if (!c)
		return XDP_DROP;
	u64 calls = c->calls, now = c->clock;
	/* Whether this is the first call of a batch. A batch has `batch` calls, a power of two. */
	int first = !(calls & (c->batch - 1));
	WRITE_ONCE(c->calls, calls + 1);
	if (first) {
		now = read_clock(c);
		end_batch(c, now);
	}
	if (READ_ONCE(c->stop) || (!c->left && !next_run(c)))
		return XDP_DROP;
	/*
	 * Computed from the due time of the run's first frame, so that rounding errors do not add up. A run lasts at
	 * most 20 ms, so the product fits into 64 bits.
	 */
	u64 due = c->now.due + (c->index * c->now.step >> 20);
	/*
	 * If a frame was already due at the last clock reading, that reading is used again, for up to REUSES frames: a
	 * reading takes 30 ns, a fifth of the time for a frame. These frames leave together, later than the reading;
	 * the bound of their batch covers that (decision 0005).
	 */
	if (now < due || c->reused >= REUSES) {
		now = read_clock(c);
		if (now < due)
			return XDP_DROP;
	}
	if (!may_leave(c, due, now)) {
		/* The next call reads the clock again. */
		c->reused = REUSES;
		return XDP_DROP;
	}
	c->reused += 1;
	if (now >= c->now.cutoff) {
		c->left = 0;
		return XDP_DROP;
	}
	u32 which = c->now.shape;
	struct shape *shape = bpf_map_lookup_elem(&shapes, &which);
	if (!shape)
		return XDP_DROP;
	which = shape->lane;
	struct lane *lane = bpf_map_lookup_elem(&lanes, &which);
	if (!lane || make(ctx, shape, c->key, c->now.number + c->index, now)) {
		c->failed += 1;
		return XDP_DROP;
	}
	c->index += 1;
	c->left -= 1;
	measure_distance(c, due, now);
	account(c, lane, shape->len, due, now);
	return bpf_redirect(c->ifindex, 0);
}

#include "layout/send.h"

char licence[] SEC("license") = "Dual BSD/GPL";
