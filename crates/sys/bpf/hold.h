/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Holds a frame until its release time and records when it was released. layout/hold.h states the offsets at which user
 * space reads the records.
 */
#pragma once
#include "kernel.h"

#define SLOTS 4096u

struct slot {
	u64 at;		/* release time of the frame; 0 if it was not held */
	u64 entered;	/* when the program got the frame */
	u64 released;	/* the clock reading at which the wait ended; 0 if the frame failed */
	u64 left;	/* the clock reading after that */
	u64 gaps;	/* bitwise OR of the times between clock readings: has the highest bit of the longest one */
	u64 pad[3];
};

/*
 * Spins until the release time and returns the clock reading that reached it. The verifier walks through every
 * iteration and accepts only some thousands. So while the release time is more than NEAR ns away, an iteration reads
 * the clock 17 times and compares once. At 30 ns a reading, FAR_TURNS last 1.5 ms (nothing waits longer than 1 ms, see
 * src/hold.rs) and NEAR_TURNS 30 us.
 */
#define NEAR 4000ull
#define FAR_TURNS 3000
#define NEAR_TURNS 1000

#include "layout/hold.h"

INLINE u64 look(u64 before, u64 *gaps)
{
	u64 now = bpf_ktime_get_ns();
	*gaps |= now - before;
	return now;
}

INLINE u64 hold(u64 at, u64 now, u64 *gaps)
{
#pragma clang loop unroll(disable)
	for (int i = 0; i < FAR_TURNS; i++) {
		if (now + NEAR >= at)
			break;
		/* These readings only let time pass. */
#pragma clang loop unroll(full)
		for (int j = 0; j < 16; j++)
			bpf_ktime_get_ns();
		now = look(now, gaps);
	}
#pragma clang loop unroll(disable)
	for (int i = 0; i < NEAR_TURNS; i++) {
		if (now >= at)
			break;
		now = look(now, gaps);
	}
	return now;
}
