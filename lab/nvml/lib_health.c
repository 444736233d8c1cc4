/* Copyright: gpuops.nvidia contributors
 * GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * How well a GPU is: memory that is replaced, links, clocks that are reduced, what the driver recommends. All healthy
 * unless a fault says otherwise. */
#include "lib.h"
#include <stdlib.h>

enum { LANES = 16, MAX_NVLINKS = 18, GPU_IDLE = 1, FIELD_RECOVERY_ACTION = 230, TYPE_UNSIGNED_INT = 1, RECOVERY_BRANCH = 570 };

static unsigned value_of(const State *state, const char *fault, int gpu, unsigned otherwise) {
    const Fault *found = fault_find(state, fault, gpu);
    return found ? (unsigned)found->value : otherwise;
}

API(nvmlDeviceGetRetiredPagesPendingStatus)(Handle handle, unsigned *pending) {
    GPU_CALL("nvmlDeviceGetRetiredPagesPendingStatus", handle);
    if (!pending) return INVALID_ARGUMENT;
    if (d.g->board->architecture >= ARCH_AMPERE) return NOT_SUPPORTED;
    *pending = fault_find(call.state, "pages-pending", d.gpu) != NULL;
    return OK;
}

/* NVIDIA GPU Memory Error Management, "Supported GPUs"; NVML: not while MIG instances exist. */
API(nvmlDeviceGetRemappedRows)(Handle handle, unsigned *correctable, unsigned *uncorrectable, unsigned *pending, unsigned *failed) {
    GPU_CALL("nvmlDeviceGetRemappedRows", handle);
    if (!correctable || !uncorrectable || !pending || !failed) return INVALID_ARGUMENT;
    if (d.g->board->architecture < ARCH_AMPERE || d.g->gi_count) return NOT_SUPPORTED;
    *correctable = 0;
    *uncorrectable = value_of(call.state, "rows-remapped", d.gpu, 0);
    *pending = fault_find(call.state, "remap-pending", d.gpu) != NULL;
    *failed = fault_find(call.state, "remap-failed", d.gpu) != NULL;
    return OK;
}

/* Links of SXM boards: 6 of V100, 12 of A100, 18 of later ones (NVIDIA's data sheets). */
static unsigned nvlinks(const Board *b) {
    if (b->architecture < ARCH_AMPERE) return b->cc_minor ? 0 : 6;
    return !b->fabric && !b->nvswitch_device ? 0 : b->architecture == ARCH_AMPERE ? 12 : MAX_NVLINKS;
}

API(nvmlDeviceGetNvLinkState)(Handle handle, unsigned link, unsigned *active) {
    GPU_CALL("nvmlDeviceGetNvLinkState", handle);
    unsigned links = nvlinks(d.g->board);
    if (!active || (links && link >= links)) return INVALID_ARGUMENT;
    if (!links) return NOT_SUPPORTED;
    /* Fabric Manager user guide, "Interoperability with MIG": the links of an A100 in MIG mode are off. */
    bool off = d.g->mig_current && d.g->board->architecture == ARCH_AMPERE;
    *active = !off && value_of(call.state, "nvlink-down", d.gpu, MAX_NVLINKS) != link;
    return OK;
}

static unsigned best_generation(const Board *b) {
    return b->architecture >= ARCH_HOPPER ? 5 : b->architecture >= ARCH_AMPERE ? 4 : 3;
}

#define LINK_CALL(name, expression)                                 \
    API(name)(Handle handle, unsigned *value) {                     \
        GPU_CALL(#name, handle);                                    \
        if (!value) return INVALID_ARGUMENT;                        \
        *value = (expression);                                      \
        return OK;                                                  \
    }
LINK_CALL(nvmlDeviceGetMaxPcieLinkWidth, LANES)
LINK_CALL(nvmlDeviceGetCurrPcieLinkWidth, value_of(call.state, "pcie-width", d.gpu, LANES))
LINK_CALL(nvmlDeviceGetMaxPcieLinkGeneration, best_generation(d.g->board))
/* An idle GPU reduces it (nvidia-smi(1), "GPU Link information"). */
LINK_CALL(nvmlDeviceGetCurrPcieLinkGeneration,
          is_busy(call.state, d.gpu, -1, -1) ? value_of(call.state, "pcie-generation", d.gpu, best_generation(d.g->board)) : 1)

static int clock_reasons(Call call, Handle handle, unsigned long long *reasons) {
    Device d;
    int rc = call.rc ? call.rc : device_find(call.state, handle, &d);
    if (rc || !reasons) return rc ? rc : INVALID_ARGUMENT;
    *reasons = value_of(call.state, "slowdown", d.gpu, 0) | (is_busy(call.state, d.gpu, -1, -1) ? 0 : GPU_IDLE);
    return OK;
}

API(nvmlDeviceGetCurrentClocksEventReasons)(Handle handle, unsigned long long *reasons) {
    CALL_RAW("nvmlDeviceGetCurrentClocksEventReasons");
    return clock_reasons(call, handle, reasons);
}

API(nvmlDeviceGetCurrentClocksThrottleReasons)(Handle handle, unsigned long long *reasons) {
    CALL_RAW("nvmlDeviceGetCurrentClocksThrottleReasons");
    return clock_reasons(call, handle, reasons);
}

/* Each value has its own error. Assumed: drivers know the recovery action since R570. */
API(nvmlDeviceGetFieldValues)(Handle handle, int count, FieldValue *values) {
    GPU_CALL("nvmlDeviceGetFieldValues", handle);
    if (count < 0 || !values) return INVALID_ARGUMENT;
    char driver[32];
    kernel_version(call.state, driver);
    for (int i = 0; i < count; i++) {
        bool known = values[i].fieldId == FIELD_RECOVERY_ACTION && atoi(driver) >= RECOVERY_BRANCH;
        values[i].nvmlReturn = known ? OK : NOT_SUPPORTED;
        values[i].valueType = TYPE_UNSIGNED_INT;
        values[i].value.ull = 0;
        if (known) values[i].value.ui = value_of(call.state, "recovery", d.gpu, 0);
    }
    return OK;
}
