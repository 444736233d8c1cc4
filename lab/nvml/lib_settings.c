/* Copyright: gpuops.nvidia contributors
 * GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Settings of a GPU: persistence, limit of power, clocks, compute mode, ECC (facts: NVML API reference, "Device
 * Commands"). NVML has no call that reads locked clocks: gpusim show does. */
#include "lib.h"

enum { CLOCK_GRAPHICS = 0, CLOCK_SM = 1, CLOCK_MEMORY = 2, EXCLUSIVE_THREAD = 1, HIGHEST_COMPUTE_MODE = 3, WATT = 1000 };

typedef struct { int gpu; unsigned first, second; } Values;

/* A call that changes one GPU: `statement` works on Gpu *g and Values *v, under the lock of the state. */
#define CHANGE(name, statement)                        \
    static int name(State *state, void *argument) {    \
        const Values *v = argument;                    \
        Gpu *g = &state->gpus[v->gpu];                 \
        (void)v;                                       \
        statement;                                     \
        return OK;                                     \
    }
CHANGE(set_persistence, g->persistence = v->first)
CHANGE(set_power, g->power_limit_mw = v->first)
CHANGE(set_applications, (g->memory_application = v->first, g->graphics_application = v->second))
CHANGE(reset_applications, (g->memory_application = g->board->memory_application, g->graphics_application = g->board->graphics_application))
CHANGE(lock_graphics, (g->graphics_lock[0] = v->first, g->graphics_lock[1] = v->second))
CHANGE(lock_memory, (g->memory_lock[0] = v->first, g->memory_lock[1] = v->second))
CHANGE(set_compute_mode, g->compute_mode = v->first)
CHANGE(set_ecc, g->ecc_pending = v->first)

static int write_values(const Call *call, const Device *d, int (*change)(State *, void *), unsigned first, unsigned second) {
    if (check_privilege(call->state, d->gpu)) return NO_PERMISSION;
    return change_state(change, &(Values){d->gpu, first, second});
}

#define READ_CALL(name, expression)                         \
    API(name)(Handle handle, unsigned *value) {        \
        GPU_CALL(#name, handle);                       \
        if (!value) return INVALID_ARGUMENT;           \
        *value = (expression);                         \
        return OK;                                     \
    }
READ_CALL(nvmlDeviceGetPersistenceMode, d.g->persistence)
READ_CALL(nvmlDeviceGetPowerManagementLimit, d.g->power_limit_mw)
READ_CALL(nvmlDeviceGetComputeMode, d.g->compute_mode)

API(nvmlDeviceSetPersistenceMode)(Handle handle, unsigned mode) {
    GPU_CALL("nvmlDeviceSetPersistenceMode", handle);
    if (mode > 1) return INVALID_ARGUMENT;
    return write_values(&call, &d, set_persistence, mode, 0);
}

API(nvmlDeviceGetPowerManagementLimitConstraints)(Handle handle, unsigned *lowest, unsigned *highest) {
    GPU_CALL("nvmlDeviceGetPowerManagementLimitConstraints", handle);
    if (!lowest || !highest) return INVALID_ARGUMENT;
    *lowest = d.g->board->power_min_w * WATT;
    *highest = d.g->board->power_limit_w * WATT;
    return OK;
}

API(nvmlDeviceSetPowerManagementLimit)(Handle handle, unsigned limit) {
    GPU_CALL("nvmlDeviceSetPowerManagementLimit", handle);
    if (limit < d.g->board->power_min_w * WATT || limit > d.g->board->power_limit_w * WATT) return INVALID_ARGUMENT;
    return write_values(&call, &d, set_power, limit, 0);
}

/* A list in the array of the caller, as NVML gives it: INSUFFICIENT_SIZE with the number that is needed. */
static int give_list(unsigned *count, unsigned *array, unsigned needed, unsigned (*at)(const Board *, unsigned), const Board *board) {
    if (!count) return INVALID_ARGUMENT;
    unsigned room = *count;
    *count = needed;
    if (room < needed || !array) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < needed; i++) array[i] = at(board, i);
    return OK;
}
static unsigned memory_clock(const Board *b, unsigned i) { return b->memory_clocks[i]; }
static unsigned graphics_clock(const Board *b, unsigned i) { return b->graphics_high - i * CLOCK_STEP; }
static unsigned graphics_count(const Board *b) { return (b->graphics_high - b->graphics_low) / CLOCK_STEP + 1; }
static bool has_memory_clock(const Board *b, unsigned mhz) {
    for (unsigned i = 0; i < b->memory_clock_count; i++)
        if (b->memory_clocks[i] == mhz) return true;
    return false;
}
static bool has_graphics_clock(const Board *b, unsigned mhz) {
    return mhz >= b->graphics_low && mhz <= b->graphics_high && (b->graphics_high - mhz) % CLOCK_STEP == 0;
}

API(nvmlDeviceGetSupportedMemoryClocks)(Handle handle, unsigned *count, unsigned *clocks) {
    GPU_CALL("nvmlDeviceGetSupportedMemoryClocks", handle);
    return give_list(count, clocks, d.g->board->memory_clock_count, memory_clock, d.g->board);
}

API(nvmlDeviceGetSupportedGraphicsClocks)(Handle handle, unsigned memory, unsigned *count, unsigned *clocks) {
    GPU_CALL("nvmlDeviceGetSupportedGraphicsClocks", handle);
    if (!has_memory_clock(d.g->board, memory)) return NOT_FOUND;
    return give_list(count, clocks, graphics_count(d.g->board), graphics_clock, d.g->board);
}

static int application(Call call, Handle handle, unsigned type, unsigned *mhz, bool standard) {
    Device d;
    int rc = call.rc ? call.rc : device_find(call.state, handle, &d);
    if (rc) return rc;
    if (d.gi || !mhz || type > 3) return INVALID_ARGUMENT;
    if (!d.g->board->memory_application || (type != CLOCK_GRAPHICS && type != CLOCK_SM && type != CLOCK_MEMORY)) return NOT_SUPPORTED;
    if (type == CLOCK_MEMORY)
        *mhz = standard ? d.g->board->memory_application : d.g->memory_application;
    else
        *mhz = standard ? d.g->board->graphics_application : d.g->graphics_application;
    return OK;
}

API(nvmlDeviceGetApplicationsClock)(Handle handle, unsigned type, unsigned *mhz) {
    CALL_RAW("nvmlDeviceGetApplicationsClock");
    return application(call, handle, type, mhz, false);
}

API(nvmlDeviceGetDefaultApplicationsClock)(Handle handle, unsigned type, unsigned *mhz) {
    CALL_RAW("nvmlDeviceGetDefaultApplicationsClock");
    return application(call, handle, type, mhz, true);
}

API(nvmlDeviceSetApplicationsClocks)(Handle handle, unsigned memory, unsigned graphics) {
    GPU_CALL("nvmlDeviceSetApplicationsClocks", handle);
    if (!d.g->board->memory_application) return NOT_SUPPORTED;
    if (!has_memory_clock(d.g->board, memory) || !has_graphics_clock(d.g->board, graphics)) return INVALID_ARGUMENT;
    return write_values(&call, &d, set_applications, memory, graphics);
}

API(nvmlDeviceResetApplicationsClocks)(Handle handle) {
    GPU_CALL("nvmlDeviceResetApplicationsClocks", handle);
    if (!d.g->board->memory_application) return NOT_SUPPORTED;
    return write_values(&call, &d, reset_applications, 0, 0);
}

/* Volta and later: every board here. */
API(nvmlDeviceSetGpuLockedClocks)(Handle handle, unsigned lowest, unsigned highest) {
    GPU_CALL("nvmlDeviceSetGpuLockedClocks", handle);
    if (lowest > highest || lowest < d.g->board->graphics_low || highest > d.g->board->graphics_high) return INVALID_ARGUMENT;
    return write_values(&call, &d, lock_graphics, lowest, highest);
}

API(nvmlDeviceResetGpuLockedClocks)(Handle handle) {
    GPU_CALL("nvmlDeviceResetGpuLockedClocks", handle);
    return write_values(&call, &d, lock_graphics, 0, 0);
}

API(nvmlDeviceSetMemoryLockedClocks)(Handle handle, unsigned lowest, unsigned highest) {
    GPU_CALL("nvmlDeviceSetMemoryLockedClocks", handle);
    const Board *b = d.g->board;
    if (b->architecture < ARCH_AMPERE) return NOT_SUPPORTED;
    if (lowest > highest || lowest < b->memory_clocks[b->memory_clock_count - 1] || highest > b->memory_clocks[0]) return INVALID_ARGUMENT;
    return write_values(&call, &d, lock_memory, lowest, highest);
}

API(nvmlDeviceResetMemoryLockedClocks)(Handle handle) {
    GPU_CALL("nvmlDeviceResetMemoryLockedClocks", handle);
    if (d.g->board->architecture < ARCH_AMPERE) return NOT_SUPPORTED;
    return write_values(&call, &d, lock_memory, 0, 0);
}

/* While MIG is on, the handle must be that of a MIG device; those are not simulated here. */
API(nvmlDeviceSetComputeMode)(Handle handle, unsigned mode) {
    GPU_CALL("nvmlDeviceSetComputeMode", handle);
    if (mode > HIGHEST_COMPUTE_MODE) return INVALID_ARGUMENT;
    if (mode == EXCLUSIVE_THREAD || d.g->mig_current) return NOT_SUPPORTED;
    return write_values(&call, &d, set_compute_mode, mode, 0);
}

API(nvmlDeviceGetEccMode)(Handle handle, unsigned *current, unsigned *pending) {
    GPU_CALL("nvmlDeviceGetEccMode", handle);
    if (!current || !pending) return INVALID_ARGUMENT;
    *current = d.g->ecc_current;
    *pending = d.g->ecc_pending;
    return OK;
}

API(nvmlDeviceSetEccMode)(Handle handle, unsigned mode) {
    GPU_CALL("nvmlDeviceSetEccMode", handle);
    if (mode > 1) return INVALID_ARGUMENT;
    return write_values(&call, &d, set_ecc, mode, 0);
}
