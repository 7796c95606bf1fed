/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#include "check.h"
FIELD(gate, cookie, 0)
FIELD(gate, most, 8)
FIELD(gate, passed, 16)
FIELD(gate, slots, 4096)
SIZE(gate, 266240)
