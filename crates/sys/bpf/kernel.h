/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What the programs here need of the kernel, so that no header has to be installed. Numbers: linux/bpf.h. */
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
/* Keeps the compiler from merging the checked value with another that the verifier has lost track of. */
#define PIN(x) asm volatile("" : "+r"(x))

/* Frames up to this are copied word by word, which is faster than the helper's way for any length. */
#define SHORT 128u

/*
 * Copies a frame of 8 to SHORT bytes out of or into memory of at least SHORT + 8 bytes; the last word overlaps the one before.
 * Zero if it was not all there.
 */
#define COPY_SHORT(ctx, len, FROM, TO) ({ \
	u8 *frame = (void *)(long)(ctx)->data, *end = (void *)(long)(ctx)->data_end; \
	u32 last = (len) - 8; \
	int done = 0; \
	_Pragma("unroll") \
	for (u32 i = 0; i < SHORT; i += 8) { \
		if (i + 8 > (len) || frame + i + 8 > end) \
			break; \
		*(u64 *)(TO + i) = *(const u64 *)(FROM + i); \
	} \
	PIN(last); \
	last &= SHORT - 1; \
	if (frame + last + 8 <= end) { \
		*(u64 *)(TO + last) = *(const u64 *)(FROM + last); \
		done = 1; \
	} \
	done; \
})

/*
 * PUBLISH: a counter that tells another processor that what was written before it is there, and what was read before it may be written
 * again. OBSERVE: reads such a counter of another processor; what is read behind it is no older. Processors that keep loads and
 * stores in order (build.rs says which) need no more than a store and a load; on others an addition that returns the old value is
 * a barrier. tests/memory_order plays both.
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
