/* Copyright: gpuops.nvidia contributors
 * GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * MIG: compute instances and the MIG devices that they are seen as. */
#include "lib.h"
#include <string.h>

static int gi_device(const Call *call, Handle handle, Device *d) {
    int rc = call->rc ? call->rc : instance_find(call->state, handle, d);
    return rc ? rc : d->ci ? INVALID_ARGUMENT : OK;
}

static const Profile *gi_profile(const Device *d) { return profile_by_enum(d->g->board, d->gi->profile); }

static int find_profile(const Device *d, unsigned profile, unsigned engine, CiProfile *out) {
    if (profile >= CI_PROFILE_COUNT || engine != 0) return INVALID_ARGUMENT;
    return ci_profile(d->g, gi_profile(d), profile, out) ? OK : NOT_SUPPORTED;
}

static CiProfileInfo info_of(const Device *d, const CiProfile *c) {
    const Profile *p = gi_profile(d);   /* engines are shared by all compute instances of the GPU instance */
    return (CiProfileInfo){c->id, c->slices, c->instances, c->sm, p->ce, p->dec, p->enc, p->jpeg, p->ofa};
}

API(nvmlGpuInstanceGetComputeInstanceProfileInfo)(Handle handle, unsigned profile, unsigned engine, CiProfileInfo *out) {
    CALL_RAW("nvmlGpuInstanceGetComputeInstanceProfileInfo");
    Device d;
    CiProfile c;
    int rc = gi_device(&call, handle, &d);
    if (!rc) rc = out ? find_profile(&d, profile, engine, &c) : INVALID_ARGUMENT;
    if (!rc) *out = info_of(&d, &c);
    return rc;
}

API(nvmlGpuInstanceGetComputeInstanceProfileInfoV)(Handle handle, unsigned profile, unsigned engine, CiProfileInfoV3 *out) {
    CALL_RAW("nvmlGpuInstanceGetComputeInstanceProfileInfoV");
    Device d;
    CiProfile c;
    char name[64];
    int rc = gi_device(&call, handle, &d);
    if (!rc) rc = out ? find_profile(&d, profile, engine, &c) : INVALID_ARGUMENT;
    if (rc) return rc;
    if (out->version != VERSION_WORD(CiProfileInfoV2, 2) && out->version != VERSION_WORD(CiProfileInfoV3, 3)) return ARGUMENT_VERSION_MISMATCH;
    out->info = info_of(&d, &c);
    mig_profile_name(gi_profile(&d), &c, name, sizeof name);
    snprintf(out->name, sizeof out->name, "MIG %s", name);
    if (out->version == VERSION_WORD(CiProfileInfoV3, 3)) out->capabilities = 0;
    return OK;
}

API(nvmlGpuInstanceGetComputeInstanceRemainingCapacity)(Handle handle, unsigned profile, unsigned *count) {
    CALL_RAW("nvmlGpuInstanceGetComputeInstanceRemainingCapacity");
    Device d;
    CiProfile c;
    int rc = gi_device(&call, handle, &d);
    if (!rc) rc = count ? find_profile(&d, profile, 0, &c) : INVALID_ARGUMENT;
    if (!rc) *count = ci_remaining(d.gi, &c);
    return rc;
}

API(nvmlGpuInstanceGetComputeInstancePossiblePlacements)(Handle handle, unsigned profile, Placement *out, unsigned *count) {
    CALL_RAW("nvmlGpuInstanceGetComputeInstancePossiblePlacements");
    Device d;
    CiProfile c;
    int rc = gi_device(&call, handle, &d);
    if (!rc) rc = count ? find_profile(&d, profile, 0, &c) : INVALID_ARGUMENT;
    if (rc) return rc;
    unsigned room = *count;
    *count = c.start_count;
    if (!out) return OK;
    if (room < c.start_count) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < c.start_count; i++) out[i] = (Placement){c.starts[i], c.size};
    return OK;
}

typedef struct { int gpu; unsigned gi, ci, start; int failure; } CiRequest;   /* ci: the profile, then the id made */

static int create(State *state, void *argument) {
    CiRequest *r = argument;
    r->failure = creation_fault(state, r->gpu);
    if (r->failure) return OK;   /* commit: the fault counts the attempts */
    Gpu *g = &state->gpus[r->gpu];
    Gi *gi = gi_find(g, r->gi);
    CiProfile c;
    if (!gi) return NOT_FOUND;
    if (!ci_profile(g, profile_by_enum(g->board, gi->profile), r->ci, &c)) return NOT_SUPPORTED;
    const Ci *ci = ci_create(gi, &c, r->start);
    if (!ci) return INSUFFICIENT_RESOURCES;
    r->ci = ci->id;
    return OK;
}

static int create_ci(Call call, Handle handle, unsigned profile, const Placement *placement, Handle *out) {
    Device d;
    CiProfile c;
    int rc = gi_device(&call, handle, &d);
    if (!rc) rc = out ? find_profile(&d, profile, 0, &c) : INVALID_ARGUMENT;
    if (!rc && check_privilege(call.state, d.gpu)) rc = NO_PERMISSION;
    if (!rc && placement) {
        rc = INVALID_ARGUMENT;
        for (unsigned i = 0; i < c.start_count; i++)
            if (placement->start == c.starts[i] && placement->size == c.size) rc = OK;
    }
    if (rc) return rc;
    CiRequest r = {d.gpu, d.gi->id, profile, placement ? placement->start : ANY_START, OK};
    rc = change_state(create, &r);
    if (!rc) rc = r.failure;
    if (!rc) *out = ci_handle((unsigned)d.gpu, r.gi, r.ci);
    return rc;
}

API(nvmlGpuInstanceCreateComputeInstance)(Handle handle, unsigned profile, Handle *out) {
    CALL_RAW("nvmlGpuInstanceCreateComputeInstance");
    return create_ci(call, handle, profile, NULL, out);
}

API(nvmlGpuInstanceCreateComputeInstanceWithPlacement)(Handle handle, unsigned profile, const Placement *placement, Handle *out) {
    CALL_RAW("nvmlGpuInstanceCreateComputeInstanceWithPlacement");
    if (!call.rc && !placement) return INVALID_ARGUMENT;
    return create_ci(call, handle, profile, placement, out);
}

static int destroy(State *state, void *argument) {
    const CiRequest *r = argument;
    Gi *gi = gi_find(&state->gpus[r->gpu], r->gi);
    Ci *ci = gi ? ci_find(gi, r->ci) : NULL;
    if (!ci) return NOT_FOUND;
    if (is_busy(state, r->gpu, (int)r->gi, (int)r->ci) || fault_find(state, "destroy-in-use", r->gpu)) return IN_USE;
    ci_destroy(gi, ci);
    return OK;
}

static int ci_device(const Call *call, Handle handle, Device *d) {
    int rc = call->rc ? call->rc : instance_find(call->state, handle, d);
    return rc ? rc : d->ci ? OK : INVALID_ARGUMENT;
}

API(nvmlComputeInstanceDestroy)(Handle handle) {
    CALL_RAW("nvmlComputeInstanceDestroy");
    Device d;
    int rc = ci_device(&call, handle, &d);
    if (rc) return rc;
    if (check_privilege(call.state, d.gpu)) return NO_PERMISSION;
    return change_state(destroy, &(CiRequest){.gpu = d.gpu, .gi = d.gi->id, .ci = d.ci->id});
}

API(nvmlGpuInstanceGetComputeInstances)(Handle handle, unsigned profile, Handle *out, unsigned *count) {
    CALL_RAW("nvmlGpuInstanceGetComputeInstances");
    Device d;
    CiProfile c;
    int rc = gi_device(&call, handle, &d);
    if (!rc) rc = out && count ? find_profile(&d, profile, 0, &c) : INVALID_ARGUMENT;
    if (rc) return rc;
    *count = 0;
    for (unsigned i = 0; i < d.gi->ci_count; i++)
        if (d.gi->cis[i].profile == profile) out[(*count)++] = ci_handle((unsigned)d.gpu, d.gi->id, d.gi->cis[i].id);
    return OK;
}

API(nvmlGpuInstanceGetComputeInstanceById)(Handle handle, unsigned id, Handle *out) {
    CALL_RAW("nvmlGpuInstanceGetComputeInstanceById");
    Device d;
    int rc = gi_device(&call, handle, &d);
    if (rc || !out) return rc ? rc : INVALID_ARGUMENT;
    if (!ci_find(d.gi, id)) return NOT_FOUND;
    *out = ci_handle((unsigned)d.gpu, d.gi->id, id);
    return OK;
}

API(nvmlComputeInstanceGetInfo)(Handle handle, CiInfoOld *out) {
    CALL_RAW("nvmlComputeInstanceGetInfo");
    Device d;
    int rc = ci_device(&call, handle, &d);
    if (rc || !out) return rc ? rc : INVALID_ARGUMENT;
    *out = (CiInfoOld){gpu_handle((unsigned)d.gpu), gi_handle((unsigned)d.gpu, d.gi->id), d.ci->id, d.ci->profile};
    return OK;
}

API(nvmlComputeInstanceGetInfo_v2)(Handle handle, CiInfo *out) {
    CALL_RAW("nvmlComputeInstanceGetInfo_v2");
    Device d;
    int rc = ci_device(&call, handle, &d);
    if (rc || !out) return rc ? rc : INVALID_ARGUMENT;
    *out = (CiInfo){gpu_handle((unsigned)d.gpu), gi_handle((unsigned)d.gpu, d.gi->id), d.ci->id, d.ci->profile, {d.ci->start, d.ci->size}};
    return OK;
}

API(nvmlDeviceIsMigDeviceHandle)(Handle handle, unsigned *answer) {
    DEVICE_CALL("nvmlDeviceIsMigDeviceHandle", handle);
    if (!answer) return INVALID_ARGUMENT;
    *answer = d.gi != NULL;
    return OK;
}

API(nvmlDeviceGetGpuInstanceId)(Handle handle, unsigned *id) {
    DEVICE_CALL("nvmlDeviceGetGpuInstanceId", handle);
    if (!id) return INVALID_ARGUMENT;
    if (!d.gi) return NOT_SUPPORTED;
    *id = d.gi->id;
    return OK;
}

API(nvmlDeviceGetComputeInstanceId)(Handle handle, unsigned *id) {
    DEVICE_CALL("nvmlDeviceGetComputeInstanceId", handle);
    if (!id) return INVALID_ARGUMENT;
    if (!d.gi) return NOT_SUPPORTED;
    *id = d.ci->id;
    return OK;
}

API(nvmlDeviceGetMaxMigDeviceCount)(Handle handle, unsigned *count) {
    GPU_CALL("nvmlDeviceGetMaxMigDeviceCount", handle);
    if (!count) return INVALID_ARGUMENT;
    *count = d.g->mig_current ? board_max_slices(d.g->board) : 0;
    return OK;
}

/* MIG devices in the order of (GPU instance id, compute instance id), as nvidia-smi -L lists them. */
API(nvmlDeviceGetMigDeviceHandleByIndex)(Handle handle, unsigned index, Handle *out) {
    GPU_CALL("nvmlDeviceGetMigDeviceHandleByIndex", handle);
    if (!out || index >= board_max_slices(d.g->board)) return INVALID_ARGUMENT;
    for (unsigned i = 0; i < d.g->gi_count; i++)
        for (unsigned k = 0; k < d.g->gis[i].ci_count; k++)
            if (index-- == 0) {
                *out = mig_handle((unsigned)d.gpu, d.g->gis[i].id, d.g->gis[i].cis[k].id);
                return OK;
            }
    return NOT_FOUND;
}

API(nvmlDeviceGetDeviceHandleFromMigDeviceHandle)(Handle handle, Handle *out) {
    DEVICE_CALL("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle);
    if (!out || !d.gi) return INVALID_ARGUMENT;
    *out = gpu_handle((unsigned)d.gpu);
    return OK;
}

static int attributes(Call call, Handle handle, Attributes *out) {
    Device d;
    CiProfile c;
    int rc = call.rc ? call.rc : device_find(call.state, handle, &d);
    if (rc || !out) return rc ? rc : INVALID_ARGUMENT;
    if (!d.gi) return NOT_SUPPORTED;   /* on a whole GPU the vendor's answers only with MIG on, and then for instances */
    const Profile *p = gi_profile(&d);
    if (!ci_profile(d.g, p, d.ci->profile, &c)) return UNKNOWN;
    *out = (Attributes){c.sm, p->ce, p->dec, p->enc, p->jpeg, p->ofa, p->slices, c.slices, p->memory_mib};
    return OK;
}

API(nvmlDeviceGetAttributes)(Handle handle, Attributes *out) {
    CALL_RAW("nvmlDeviceGetAttributes");
    return attributes(call, handle, out);
}

API(nvmlDeviceGetAttributes_v2)(Handle handle, Attributes *out) {
    CALL_RAW("nvmlDeviceGetAttributes_v2");
    return attributes(call, handle, out);
}
