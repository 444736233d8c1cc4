/* Copyright: gpuops.nvidia contributors
 * GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * What a GPU does at the moment: memory, processes, sensors, modes, fabric. */
#include "lib.h"
#include <string.h>

#define MIB 1048576ull

/* total, reserved, used by clients; in bytes. A MIG device has its instance's memory. */
static int memory_of(const Call *call, const Device *d, MemoryV2 *out) {
    if (fault_find(call->state, "memory-not-supported", d->gpu)) return NOT_SUPPORTED;
    unsigned long long total = d->gi ? profile_by_enum(d->g->board, d->gi->profile)->memory_mib : d->g->memory_mib;
    unsigned long long reserved = total / 128, used = 0;   /* about what drivers since R510 keep for themselves */
    for (unsigned i = 0; i < call->state->client_count; i++) {
        const Client *c = &call->state->clients[i];
        if (c->gpu == d->gpu && (!d->gi || c->gi == (int)d->gi->id) && client_alive(c)) used += c->memory_mib;
    }
    if (used > total - reserved) used = total - reserved;
    out->total = total * MIB;
    out->reserved = reserved * MIB;
    out->used = used * MIB;
    out->free = (total - reserved - used) * MIB;
    return OK;
}

API(nvmlDeviceGetMemoryInfo)(Handle handle, Memory *out) {
    DEVICE_CALL("nvmlDeviceGetMemoryInfo", handle);
    MemoryV2 m;
    if (!out) return INVALID_ARGUMENT;
    int rc = memory_of(&call, &d, &m);
    if (!rc) *out = (Memory){m.total, m.free, m.used + m.reserved};
    return rc;
}

API(nvmlDeviceGetMemoryInfo_v2)(Handle handle, MemoryV2 *out) {
    DEVICE_CALL("nvmlDeviceGetMemoryInfo_v2", handle);
    if (!out) return INVALID_ARGUMENT;
    if (out->version != VERSION_WORD(MemoryV2, 2)) return ARGUMENT_VERSION_MISMATCH;
    return memory_of(&call, &d, out);
}

API(nvmlDeviceGetBAR1MemoryInfo)(Handle handle, Memory *out) {
    GPU_CALL("nvmlDeviceGetBAR1MemoryInfo", handle);
    if (!out) return INVALID_ARGUMENT;
    unsigned long long total = 256 * MIB;
    while (total < d.g->memory_mib * MIB) total *= 2;   /* a BAR's size is a power of two */
    *out = (Memory){total, total - MIB, MIB};
    return OK;
}

/* Processes of one kind on a GPU or a MIG device, as all versions of these calls list them. */
static int processes(Call call, Handle handle, char kind, unsigned *count, void *out, bool with_instances) {
    Device d;
    int rc = call.rc ? call.rc : device_find(call.state, handle, &d);
    if (rc || !count) return rc ? rc : INVALID_ARGUMENT;
    unsigned room = *count, found = 0;
    for (unsigned i = 0; i < call.state->client_count; i++) {
        const Client *c = &call.state->clients[i];
        if (c->gpu != d.gpu || c->kind != kind || !client_alive(c)) continue;
        if (d.gi && (c->gi != (int)d.gi->id || c->ci != (int)d.ci->id)) continue;
        if (found < room && out) {
            if (with_instances)
                ((ProcessInfo *)out)[found] = (ProcessInfo){c->pid, c->memory_mib * MIB, (unsigned)c->gi, (unsigned)c->ci};
            else
                ((ProcessInfoV1 *)out)[found] = (ProcessInfoV1){c->pid, c->memory_mib * MIB};
        }
        found++;
    }
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : OK;
}

#define PROCESS_CALL(name, kind, with_instances)                     \
    API(name)(Handle handle, unsigned *count, void *out) {           \
        CALL_RAW(#name);                                             \
        return processes(call, handle, kind, count, out, with_instances); \
    }
PROCESS_CALL(nvmlDeviceGetComputeRunningProcesses, 'C', false)
PROCESS_CALL(nvmlDeviceGetComputeRunningProcesses_v2, 'C', true)
PROCESS_CALL(nvmlDeviceGetComputeRunningProcesses_v3, 'C', true)
PROCESS_CALL(nvmlDeviceGetGraphicsRunningProcesses, 'G', false)
PROCESS_CALL(nvmlDeviceGetGraphicsRunningProcesses_v2, 'G', true)
PROCESS_CALL(nvmlDeviceGetGraphicsRunningProcesses_v3, 'G', true)
PROCESS_CALL(nvmlDeviceGetMPSComputeRunningProcesses, 'M', false)
PROCESS_CALL(nvmlDeviceGetMPSComputeRunningProcesses_v2, 'M', true)
PROCESS_CALL(nvmlDeviceGetMPSComputeRunningProcesses_v3, 'M', true)

/* Readings that are numbers: idle or busy, never random, so that tests can name them. */
#define NUMBER_CALL(name, expression)                 \
    API(name)(Handle handle, unsigned *value) {       \
        GPU_CALL(#name, handle);                      \
        bool busy = is_busy(call.state, d.gpu, -1, -1); \
        (void)busy;                                   \
        if (!value) return INVALID_ARGUMENT;          \
        *value = (expression);                        \
        return OK;                                    \
    }
static unsigned idle_power_mw(const Board *b) { return b->power_limit_w * 150; }
static int celsius(bool busy, int gpu) { return (busy ? 58 : 31) + gpu % 4; }

NUMBER_CALL(nvmlDeviceGetPowerUsage, busy ? d.g->power_limit_mw / 10 * 8 : idle_power_mw(d.g->board))
NUMBER_CALL(nvmlDeviceGetPowerManagementDefaultLimit, d.g->board->power_limit_w * 1000)
NUMBER_CALL(nvmlDeviceGetEnforcedPowerLimit, d.g->power_limit_mw)
NUMBER_CALL(nvmlDeviceGetPerformanceState, 0)
NUMBER_CALL(nvmlDeviceGetDisplayMode, 0)
NUMBER_CALL(nvmlDeviceGetDisplayActive, 0)
NUMBER_CALL(nvmlDeviceGetVirtualizationMode, 0)

API(nvmlDeviceGetTemperature)(Handle handle, unsigned sensor, unsigned *value) {
    GPU_CALL("nvmlDeviceGetTemperature", handle);
    if (sensor != 0 || !value) return INVALID_ARGUMENT;
    *value = (unsigned)celsius(is_busy(call.state, d.gpu, -1, -1), d.gpu);
    return OK;
}

API(nvmlDeviceGetTemperatureV)(Handle handle, Temperature *out) {
    GPU_CALL("nvmlDeviceGetTemperatureV", handle);
    if (!out || out->sensorType != 0) return INVALID_ARGUMENT;
    if (out->version != VERSION_WORD(Temperature, 1)) return ARGUMENT_VERSION_MISMATCH;
    out->temperature = celsius(is_busy(call.state, d.gpu, -1, -1), d.gpu);
    return OK;
}

API(nvmlDeviceGetUtilizationRates)(Handle handle, Utilization *out) {
    GPU_CALL("nvmlDeviceGetUtilizationRates", handle);
    if (!out) return INVALID_ARGUMENT;
    if (d.g->mig_current) return NOT_SUPPORTED;
    *out = is_busy(call.state, d.gpu, -1, -1) ? (Utilization){97, 40} : (Utilization){0, 0};
    return OK;
}

API(nvmlDeviceGetTotalEccErrors)(Handle handle, unsigned kind, unsigned counter, unsigned long long *count) {
    GPU_CALL("nvmlDeviceGetTotalEccErrors", handle);
    if (kind > 1 || counter > 1 || !count) return INVALID_ARGUMENT;
    const Fault *fault = fault_find(call.state, "ecc-errors", d.gpu);
    if (!fault && counter == 1) fault = fault_find(call.state, "ecc-aggregate", d.gpu);
    *count = fault && kind == 1 ? (unsigned long long)fault->value : 0;   /* uncorrected ones */
    return OK;
}

static int fabric_state(const Call *call, const Device *d) { return d->g->board->fabric ? (int)call->state->fabric : -1; }
/* Known only once the GPU has registered. */
static void fabric_ids(const State *state, unsigned char cluster[16], unsigned *clique) {
    if (state->fabric != 3) return;
    memcpy(cluster, state->cluster, sizeof state->cluster);
    *clique = state->clique;
}

API(nvmlDeviceGetGpuFabricInfo)(Handle handle, FabricInfo *out) {
    GPU_CALL("nvmlDeviceGetGpuFabricInfo", handle);
    int state = fabric_state(&call, &d);
    if (!out) return INVALID_ARGUMENT;
    if (state < 0) return NOT_SUPPORTED;
    const Fault *failed = fault_find(call.state, "fabric-failed", d.gpu);
    *out = (FabricInfo){.state = (unsigned char)state, .status = failed ? (unsigned)failed->value : OK};
    fabric_ids(call.state, out->clusterUuid, &out->cliqueId);
    return OK;
}

API(nvmlDeviceGetGpuFabricInfoV)(Handle handle, FabricInfoV3 *out) {
    GPU_CALL("nvmlDeviceGetGpuFabricInfoV", handle);
    int state = fabric_state(&call, &d);
    if (!out) return INVALID_ARGUMENT;
    unsigned version = out->version;
    if (version != VERSION_WORD(FabricInfoV2, 2) && version != VERSION_WORD(FabricInfoV3, 3)) return ARGUMENT_VERSION_MISMATCH;
    if (state < 0) return NOT_SUPPORTED;
    memset(out, 0, version & 0xffffff);   /* version 2 is the beginning of version 3 */
    out->version = version;
    out->state = (unsigned char)state;
    fabric_ids(call.state, out->clusterUuid, &out->cliqueId);
    return OK;
}

static int reset(State *state, void *argument) {
    int gpu = *(int *)argument;
    if (fault_find(state, "reboot-only", gpu)) return NOT_SUPPORTED;
    if (is_busy(state, gpu, -1, -1) || fault_find(state, "reset-fails", gpu)) return IN_USE;
    gpu_reset(state, gpu);
    return OK;
}

/* Not part of NVML: the vendor's nvidia-smi asks the kernel module for a reset by another road. Works on a GPU that
 * answers nothing else (faults reset-required, corrupted-inforom), not on a lost one. */
API(gpusimResetGpu)(unsigned index) {
    CALL("gpusimResetGpu");
    int gpu = gpu_at(call.state, index);
    if (gpu < 0 || fault_find(call.state, "gpu-lost", gpu)) return GPU_IS_LOST;
    if (check_privilege(call.state, gpu)) return NO_PERMISSION;
    return change_state(reset, &gpu);
}
