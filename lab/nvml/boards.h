/* Copyright: gpuops.nvidia contributors
 * GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * The device tables, generated from boards.json by lab/nvml/tables.py. */
#ifndef BOARDS_H
#define BOARDS_H
#include <stdbool.h>

enum { MAX_STARTS = 8, PROFILE_COUNT = 18, CLOCK_STEP = 15, ARCH_AMPERE = 7, ARCH_HOPPER = 9 };

typedef struct {
    const char *name;          /* without the "MIG " that NVML puts before it */
    unsigned enum_value, id;   /* the profile enum and the profile id: not the same numbers */
    unsigned slices, instances, memory_mib;
    unsigned sm, ce, dec, enc, jpeg, ofa;
    unsigned start_count, starts[MAX_STARTS], size;
    unsigned default_ci;       /* compute instance profile that fills the GPU instance */
} Profile;

typedef struct {
    const char *model, *name;
    unsigned device, subsystem_device, subsystem_vendor;
    unsigned architecture, cc_major, cc_minor, memory_mib, brand, power_limit_w, power_min_w;
    const unsigned *memory_clocks;   /* MHz, the highest first */
    unsigned memory_clock_count;
    unsigned graphics_low, graphics_high;          /* MHz; supported in steps of CLOCK_STEP, with every memory clock */
    unsigned memory_application, graphics_application; /* the defaults; 0: no application clocks */
    const char *vbios;
    const unsigned *buses;
    unsigned nvswitch_device;  /* 0: no NVSwitch on the PCI bus of a host with these boards */
    const unsigned *nvswitch_buses;
    unsigned nvswitch_count;
    bool fabric;               /* the GPU registers with an NVLink fabric */
    unsigned units;            /* memory units of the placement grid; 0: not MIG capable */
    bool swapped;              /* the half with three usable slices is the physically first one */
    const Profile *profiles;
    unsigned profile_count;
} Board;

extern const Board boards[];
extern const unsigned board_count;

const Board *board_by_model(const char *model);
const Board *board_by_name(const char *name);
const Profile *profile_by_id(const Board *board, unsigned id);
const Profile *profile_by_enum(const Board *board, unsigned enum_value);
unsigned board_max_slices(const Board *board);
#endif
