/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Declarations of the kernel that the programs need, so that no kernel header has to be installed. The numbers
 * are those of linux/bpf.h.
 */
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

struct xdp_md {
	u32 data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex;
};

enum { XDP_ABORTED, XDP_DROP, XDP_PASS, XDP_TX, XDP_REDIRECT };

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static u64 (*bpf_ktime_get_ns)(void) = (void *)5;
static u32 (*bpf_get_smp_processor_id)(void) = (void *)8;
static long (*bpf_redirect)(u32 ifindex, u64 flags) = (void *)23;
static long (*bpf_xdp_adjust_tail)(struct xdp_md *ctx, int delta) = (void *)65;
static u64 (*bpf_xdp_get_buff_len)(struct xdp_md *ctx) = (void *)188;
static long (*bpf_xdp_load_bytes)(struct xdp_md *ctx, u32 offset, void *buf, u32 len) = (void *)189;
static long (*bpf_xdp_store_bytes)(struct xdp_md *ctx, u32 offset, void *buf, u32 len) = (void *)190;

#define SEC(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))
#define READ_ONCE(x) (*(volatile typeof(x) *)&(x))
#define WRITE_ONCE(x, v) (*(volatile typeof(x) *)&(x) = (v))
#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)
/*
 * Makes the compiler use the register whose value was checked. Otherwise it may use a copy, whose bounds the
 * verifier does not know.
 */
#define PIN(x) asm volatile("" : "+r"(x))

/*
 * Frames up to this length, in bytes, are copied word by word: this is faster than the helper, which copies any length.
 */
#define SHORT 128u

/*
 * READ_SHORT copies a frame of 8 to SHORT bytes into memory of at least SHORT + 8 bytes. WRITE_SHORT copies such memory
 * into the frame. The last word overlaps the word before it. The result is zero if the frame is shorter than `len`.
 * Both are macros, because the verifier must see each comparison with the end of the frame, and it loses the bounds of
 * a pointer that is passed as an argument.
 */
#define READ_SHORT(ctx, len, to) ({ \
	const u8 *frame_ = (void *)(long)(ctx)->data, *end_ = (void *)(long)(ctx)->data_end; \
	u8 *to_ = (to); \
	COPY_WORDS(len, frame_, end_, to_, frame_); \
})
#define WRITE_SHORT(ctx, len, from) ({ \
	u8 *frame_ = (void *)(long)(ctx)->data, *end_ = (void *)(long)(ctx)->data_end; \
	const u8 *from_ = (from); \
	COPY_WORDS(len, frame_, end_, frame_, from_); \
})
#define COPY_WORDS(len, frame, end, to, from) ({ \
	u32 last_ = (len) - 8; \
	int done_ = 0; \
	_Pragma("unroll") \
	for (u32 i_ = 0; i_ < SHORT; i_ += 8) { \
		if (i_ + 8 > (len) || (frame) + i_ + 8 > (end)) \
			break; \
		*(u64 *)((to) + i_) = *(const u64 *)((from) + i_); \
	} \
	PIN(last_); \
	last_ &= SHORT - 1; \
	if ((frame) + last_ + 8 <= (end)) { \
		*(u64 *)((to) + last_) = *(const u64 *)((from) + last_); \
		done_ = 1; \
	} \
	done_; \
})

/*
 * PUBLISH adds to a counter that another processor reads (a release store). A processor that sees the new value also
 * sees all writes before PUBLISH, and may overwrite what was read before it. OBSERVE reads such a counter (an acquire
 * load): later reads see at least what was written before that value was published.
 *
 * On processors that keep loads and stores in order (build.rs says which), a plain store and a plain load are
 * enough. Other processors need an atomic addition that returns the old value: it is a full barrier, and -mcpu=v3
 * has no weaker one. It halves the receive rate (decision 0005), so it is used only where it is needed.
 * tests/memory_order explores both variants.
 */
#ifdef ORDERED_STORES
#define PUBLISH(counter, more) do { \
	asm volatile("" ::: "memory"); \
	WRITE_ONCE(counter, counter + (more)); \
} while (0)
#define OBSERVE(counter) ({ \
	u64 observed = READ_ONCE(counter); \
	asm volatile("" ::: "memory"); \
	observed; \
})
#else
#define PUBLISH(counter, more) do { \
	u64 before = __sync_fetch_and_add(&(counter), (more)); \
	PIN(before); \
} while (0)
#define OBSERVE(counter) ({ \
	u64 observed = __sync_fetch_and_add(&(counter), 0); \
	PIN(observed); \
	observed; \
})
#endif

/* Maps are created by the loader, which finds them by the names of these symbols. */
#define MAP(name) struct map_symbol name SEC("maps")
struct map_symbol {
	u32 unused;
};
