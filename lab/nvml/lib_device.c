/* Copyright: gpuops.nvidia contributors
 * GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * Which GPUs there are and what they are called. */
#include "lib.h"
#include <ctype.h>
#include <string.h>
#include <strings.h>

static int count_gpus(const State *state, unsigned *count) {
    if (!count) return INVALID_ARGUMENT;
    *count = 0;
    for (unsigned i = 0; i < state->gpu_count; i++) *count += gpu_present(state, i);
    return OK;
}

API(nvmlDeviceGetCount)(unsigned *count) {
    CALL("nvmlDeviceGetCount");
    return count_gpus(call.state, count);
}

API(nvmlDeviceGetCount_v2)(unsigned *count) {
    CALL("nvmlDeviceGetCount_v2");
    return count_gpus(call.state, count);
}

static int give(State *state, unsigned gpu, Handle *out) {
    Device d;
    int rc = device_find(state, gpu_handle(gpu), &d);
    if (!rc) *out = gpu_handle(gpu);
    return rc;
}

static int by_index(State *state, unsigned index, Handle *out) {
    if (!out) return INVALID_ARGUMENT;
    int gpu = gpu_at(state, index);
    return gpu < 0 ? INVALID_ARGUMENT : give(state, (unsigned)gpu, out);
}

API(nvmlDeviceGetHandleByIndex)(unsigned index, Handle *out) {
    CALL("nvmlDeviceGetHandleByIndex");
    return by_index(call.state, index, out);
}

API(nvmlDeviceGetHandleByIndex_v2)(unsigned index, Handle *out) {
    CALL("nvmlDeviceGetHandleByIndex_v2");
    return by_index(call.state, index, out);
}

static void pci_numbers(const Gpu *g, unsigned *domain, unsigned *bus, unsigned *device) {
    if (sscanf(g->pci, "%x:%x:%x", domain, bus, device) != 3) *domain = *bus = *device = 0;
}

static int by_pci(State *state, const char *text, Handle *out) {
    unsigned want[3], have[3];
    if (!text || !out) return INVALID_ARGUMENT;
    if (sscanf(text, "%x:%x:%x", &want[0], &want[1], &want[2]) != 3) {   /* the domain may be left out */
        want[0] = 0;
        if (sscanf(text, "%x:%x", &want[1], &want[2]) != 2) return INVALID_ARGUMENT;
    }
    for (unsigned i = 0; i < state->gpu_count; i++) {
        pci_numbers(&state->gpus[i], &have[0], &have[1], &have[2]);
        if (gpu_present(state, i) && !memcmp(want, have, sizeof want)) return give(state, i, out);
    }
    return NOT_FOUND;
}

API(nvmlDeviceGetHandleByPciBusId)(const char *text, Handle *out) {
    CALL("nvmlDeviceGetHandleByPciBusId");
    return by_pci(call.state, text, out);
}

API(nvmlDeviceGetHandleByPciBusId_v2)(const char *text, Handle *out) {
    CALL("nvmlDeviceGetHandleByPciBusId_v2");
    return by_pci(call.state, text, out);
}

API(nvmlDeviceGetHandleByUUID)(const char *uuid, Handle *out) {
    CALL("nvmlDeviceGetHandleByUUID");
    if (!uuid || !out) return INVALID_ARGUMENT;
    for (unsigned i = 0; i < call.state->gpu_count; i++) {
        const Gpu *g = &call.state->gpus[i];
        if (!gpu_present(call.state, i)) continue;
        if (!strcasecmp(g->uuid, uuid)) return give(call.state, i, out);
        for (unsigned j = 0; j < g->gi_count; j++)
            for (unsigned k = 0; k < g->gis[j].ci_count; k++) {
                char have[96];
                mig_uuid(g, g->gis[j].id, g->gis[j].cis[k].id, have);
                if (!strcasecmp(have, uuid)) {
                    *out = mig_handle(i, g->gis[j].id, g->gis[j].cis[k].id);
                    return OK;
                }
            }
    }
    return NOT_FOUND;
}

API(nvmlDeviceGetHandleBySerial)(const char *serial, Handle *out) {
    CALL("nvmlDeviceGetHandleBySerial");
    if (!serial || !out) return INVALID_ARGUMENT;
    for (unsigned i = 0; i < call.state->gpu_count; i++)
        if (gpu_present(call.state, i) && !strcmp(call.state->gpus[i].serial, serial)) return give(call.state, i, out);
    return NOT_FOUND;
}

API(nvmlDeviceGetName)(Handle handle, char *name, unsigned length) {
    DEVICE_CALL("nvmlDeviceGetName", handle);
    char text[192], profile[32];
    if (!d.gi) return copy_text(d.g->name, name, length);
    const Profile *gp = profile_by_enum(d.g->board, d.gi->profile);
    CiProfile cp;
    mig_profile_name(gp, ci_profile(d.g, gp, d.ci->profile, &cp) ? &cp : NULL, profile, sizeof profile);
    snprintf(text, sizeof text, "%s MIG %s", d.g->name, profile);
    return copy_text(text, name, length);
}

API(nvmlDeviceGetUUID)(Handle handle, char *uuid, unsigned length) {
    DEVICE_CALL("nvmlDeviceGetUUID", handle);
    char text[96];
    if (!d.gi) return copy_text(d.g->uuid, uuid, length);
    mig_uuid(d.g, d.gi->id, d.ci->id, text);
    return copy_text(text, uuid, length);
}

API(nvmlDeviceGetSerial)(Handle handle, char *serial, unsigned length) {
    GPU_CALL("nvmlDeviceGetSerial", handle);
    return copy_text(d.g->serial, serial, length);
}

API(nvmlDeviceGetVbiosVersion)(Handle handle, char *version, unsigned length) {
    GPU_CALL("nvmlDeviceGetVbiosVersion", handle);
    return copy_text(d.g->board->vbios, version, length);
}

API(nvmlDeviceGetIndex)(Handle handle, unsigned *index) {
    DEVICE_CALL("nvmlDeviceGetIndex", handle);
    if (!index) return INVALID_ARGUMENT;
    *index = 0;
    if (!d.gi) {
        for (int i = 0; i < d.gpu; i++) *index += gpu_present(call.state, (unsigned)i);
        return OK;
    }
    for (const Gi *gi = d.g->gis; gi < d.gi; gi++) *index += gi->ci_count;
    *index += (unsigned)(d.ci - d.gi->cis);
    return OK;
}

API(nvmlDeviceGetMinorNumber)(Handle handle, unsigned *minor) {
    GPU_CALL("nvmlDeviceGetMinorNumber", handle);
    if (!minor) return INVALID_ARGUMENT;
    *minor = d.g->minor;
    return OK;
}

static unsigned pci_id(const Board *b) { return b->device << 16 | 0x10de; }
static unsigned pci_subsystem(const Board *b) { return b->subsystem_device << 16 | b->subsystem_vendor; }

static int pci_old(Call call, Handle handle, PciInfoOld *out) {
    Device d;
    int rc = call.rc ? call.rc : device_find(call.state, handle, &d);
    if (rc || !out) return rc ? rc : INVALID_ARGUMENT;
    *out = (PciInfoOld){.pciDeviceId = pci_id(d.g->board), .pciSubSystemId = pci_subsystem(d.g->board)};
    pci_numbers(d.g, &out->domain, &out->bus, &out->device);
    snprintf(out->busId, sizeof out->busId, "%04X:%02X:%02X.0", out->domain & 0xffff, out->bus & 0xff, out->device & 0xff);
    return OK;
}

API(nvmlDeviceGetPciInfo)(Handle handle, PciInfoOld *out) {
    CALL_RAW("nvmlDeviceGetPciInfo");
    return pci_old(call, handle, out);
}

API(nvmlDeviceGetPciInfo_v2)(Handle handle, PciInfoOld *out) {
    CALL_RAW("nvmlDeviceGetPciInfo_v2");
    return pci_old(call, handle, out);
}

static int pci_info(const Gpu *g, PciInfo *out) {
    if (!out) return INVALID_ARGUMENT;
    *out = (PciInfo){.pciDeviceId = pci_id(g->board), .pciSubSystemId = pci_subsystem(g->board)};
    pci_numbers(g, &out->domain, &out->bus, &out->device);
    snprintf(out->busIdLegacy, sizeof out->busIdLegacy, "%04X:%02X:%02X.0", out->domain & 0xffff, out->bus & 0xff, out->device & 0xff);
    snprintf(out->busId, sizeof out->busId, "%08X:%02X:%02X.0", out->domain, out->bus, out->device);
    return OK;
}

API(nvmlDeviceGetPciInfo_v3)(Handle handle, PciInfo *out) {
    DEVICE_CALL("nvmlDeviceGetPciInfo_v3", handle);
    return pci_info(d.g, out);
}

/* Not part of NVML: the vendor's nvidia-smi also finds a GPU that answers nothing by its PCI address. */
API(gpusimPciInfo)(unsigned index, PciInfo *out) {
    CALL("gpusimPciInfo");
    int gpu = gpu_at(call.state, index);
    return gpu < 0 ? INVALID_ARGUMENT : pci_info(&call.state->gpus[gpu], out);
}

API(nvmlDeviceGetPciInfoExt)(Handle handle, PciInfoExt *out) {
    DEVICE_CALL("nvmlDeviceGetPciInfoExt", handle);
    if (!out) return INVALID_ARGUMENT;
    if (out->version != VERSION_WORD(PciInfoExt, 1)) return ARGUMENT_VERSION_MISMATCH;
    *out = (PciInfoExt){.version = out->version, .pciDeviceId = pci_id(d.g->board), .pciSubSystemId = pci_subsystem(d.g->board),
                        .baseClass = 3, .subClass = 2};
    pci_numbers(d.g, &out->domain, &out->bus, &out->device);
    snprintf(out->busId, sizeof out->busId, "%08X:%02X:%02X.0", out->domain, out->bus, out->device);
    return OK;
}

API(nvmlDeviceGetBrand)(Handle handle, unsigned *brand) {
    DEVICE_CALL("nvmlDeviceGetBrand", handle);
    if (!brand) return INVALID_ARGUMENT;
    *brand = d.g->board->brand;
    return OK;
}

API(nvmlDeviceGetArchitecture)(Handle handle, unsigned *architecture) {
    DEVICE_CALL("nvmlDeviceGetArchitecture", handle);
    if (!architecture) return INVALID_ARGUMENT;
    *architecture = d.g->board->architecture;
    return OK;
}

API(nvmlDeviceGetCudaComputeCapability)(Handle handle, int *major, int *minor) {
    DEVICE_CALL("nvmlDeviceGetCudaComputeCapability", handle);
    if (!major || !minor) return INVALID_ARGUMENT;
    *major = (int)d.g->board->cc_major;
    *minor = (int)d.g->board->cc_minor;
    return OK;
}
