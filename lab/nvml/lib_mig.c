/* Copyright: gpuops.nvidia contributors
 * GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * MIG: the mode and GPU instances. */
#include "lib.h"
#include <stdlib.h>
#include <string.h>

API(nvmlDeviceGetMigMode)(Handle handle, unsigned *mode, unsigned *pending) {
    GPU_CALL("nvmlDeviceGetMigMode", handle);
    if (!mode || !pending) return INVALID_ARGUMENT;
    if (!d.g->mig_capable) return NOT_SUPPORTED;
    *mode = d.g->mig_current;
    *pending = d.g->mig_pending;
    return OK;
}

typedef struct { int gpu; unsigned mode, activation; } ModeChange;

static int set_mode(State *state, void *argument) {
    ModeChange *m = argument;
    Gpu *g = &state->gpus[m->gpu];
    g->mig_pending = m->mode;
    m->activation = OK;
    if (g->mig_current == m->mode) return OK;
    if (fault_find(state, "mode-pending", m->gpu) || fault_find(state, "reboot-only", m->gpu))
        m->activation = RESET_REQUIRED;
    else if (g->gi_count || is_busy(state, m->gpu, -1, -1) || fault_find(state, "in-use", m->gpu))
        m->activation = IN_USE;
    else
        g->mig_current = m->mode;
    return OK;
}

API(nvmlDeviceSetMigMode)(Handle handle, unsigned mode, unsigned *activation) {
    GPU_CALL("nvmlDeviceSetMigMode", handle);
    if (mode > 1 || !activation) return INVALID_ARGUMENT;
    if (!d.g->mig_capable) return NOT_SUPPORTED;
    if (check_privilege(call.state, d.gpu)) return NO_PERMISSION;
    ModeChange m = {d.gpu, mode, OK};
    int rc = change_state(set_mode, &m);
    *activation = m.activation;
    return rc;   /* success also where only the pending mode changed: the caller has to look at `activation` */
}

/* Before R550, the driver tells profiles and placements only while MIG is on. Source: NVIDIA/mig-parted,
 * pkg/mig/discovery ("older drivers (e.g., 535) that don't support querying MIG profiles when MIG mode is disabled"). */
static bool hides_profiles(const State *state, const Device *d) {
    enum { TELLS_WHILE_OFF = 550 };
    char kernel[32];
    if (d->g->mig_current) return false;
    kernel_version(state, kernel);
    return atoi(kernel) < TELLS_WHILE_OFF;
}

static int profile_info(const State *state, const Device *d, unsigned profile, const Profile **out) {
    if (profile >= PROFILE_COUNT) return INVALID_ARGUMENT;
    if (!d->g->mig_capable || hides_profiles(state, d)) return NOT_SUPPORTED;
    *out = profile_by_enum(d->g->board, profile);
    return *out ? OK : NOT_SUPPORTED;
}

API(nvmlDeviceGetGpuInstanceProfileInfo)(Handle handle, unsigned profile, GiProfileInfo *out) {
    GPU_CALL("nvmlDeviceGetGpuInstanceProfileInfo", handle);
    const Profile *p = NULL;
    int rc = out ? profile_info(call.state, &d, profile, &p) : INVALID_ARGUMENT;
    if (rc) return rc;
    /* A driver bug on A30, where nvidia-smi shows the right counts: NVIDIA/mig-parted, pkg/mig/discovery. */
    const Fault *wrong = fault_find(call.state, "profile-counts", d.gpu);
    unsigned instances = wrong ? (unsigned)wrong->value : p->instances;
    *out = (GiProfileInfo){p->id, 0, p->slices, instances, p->sm, p->ce, p->dec, p->enc, p->jpeg, p->ofa, p->memory_mib};
    return OK;
}

static int profile_info_v(const Profile *p, void *out) {
    enum { GRAPHICS = 1 };
    if (*(unsigned *)out == VERSION_WORD(GiProfileInfoV2, 2)) {
        GiProfileInfoV2 *v = out;
        *v = (GiProfileInfoV2){v->version, p->id, 0, p->slices, p->instances, p->sm, p->ce, p->dec, p->enc, p->jpeg, p->ofa, p->memory_mib, ""};
        snprintf(v->name, sizeof v->name, "MIG %s", p->name);
    } else if (*(unsigned *)out == VERSION_WORD(GiProfileInfoV3, 3)) {
        GiProfileInfoV3 *v = out;
        *v = (GiProfileInfoV3){v->version, p->id, p->slices, p->instances, p->sm, p->ce, p->dec, p->enc, p->jpeg, p->ofa, p->memory_mib, "", 0};
        snprintf(v->name, sizeof v->name, "MIG %s", p->name);
        v->capabilities = strstr(p->name, "+gfx") ? GRAPHICS << 1 : 0;
    } else {
        return ARGUMENT_VERSION_MISMATCH;
    }
    return OK;
}

API(nvmlDeviceGetGpuInstanceProfileInfoV)(Handle handle, unsigned profile, void *out) {
    GPU_CALL("nvmlDeviceGetGpuInstanceProfileInfoV", handle);
    const Profile *p = NULL;
    int rc = out ? profile_info(call.state, &d, profile, &p) : INVALID_ARGUMENT;
    return rc ? rc : profile_info_v(p, out);
}

static int by_id(const State *state, const Device *d, unsigned id, const Profile **out) {
    if (!d->g->mig_capable || hides_profiles(state, d)) return NOT_SUPPORTED;
    *out = profile_by_id(d->g->board, id);
    return *out ? OK : INVALID_ARGUMENT;
}

API(nvmlDeviceGetGpuInstanceProfileInfoByIdV)(Handle handle, unsigned id, void *out) {
    GPU_CALL("nvmlDeviceGetGpuInstanceProfileInfoByIdV", handle);
    const Profile *p = NULL;
    int rc = out ? by_id(call.state, &d, id, &p) : INVALID_ARGUMENT;
    return rc ? rc : profile_info_v(p, out);
}

static int placements(Call call, Handle handle, unsigned id, Placement *out, unsigned *count) {
    Device d;
    const Profile *p = NULL;
    int rc = call.rc ? call.rc : device_find(call.state, handle, &d);
    if (!rc) rc = count && !d.gi ? by_id(call.state, &d, id, &p) : INVALID_ARGUMENT;
    if (!rc && fault_find(call.state, "no-permission", d.gpu)) rc = NO_PERMISSION;
    if (rc) return rc;
    unsigned room = *count;
    *count = p->start_count;
    if (!out) return OK;   /* the caller asks how many there are */
    if (room < p->start_count) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < p->start_count; i++) out[i] = (Placement){p->starts[i], p->size};
    return OK;
}

API(nvmlDeviceGetGpuInstancePossiblePlacements)(Handle handle, unsigned id, Placement *out, unsigned *count) {
    CALL_RAW("nvmlDeviceGetGpuInstancePossiblePlacements");
    return placements(call, handle, id, out, count);
}

API(nvmlDeviceGetGpuInstancePossiblePlacements_v2)(Handle handle, unsigned id, Placement *out, unsigned *count) {
    CALL_RAW("nvmlDeviceGetGpuInstancePossiblePlacements_v2");
    return placements(call, handle, id, out, count);
}

API(nvmlDeviceGetGpuInstanceRemainingCapacity)(Handle handle, unsigned id, unsigned *count) {
    GPU_CALL("nvmlDeviceGetGpuInstanceRemainingCapacity", handle);
    const Profile *p = NULL;
    int rc = count ? by_id(call.state, &d, id, &p) : INVALID_ARGUMENT;
    if (rc) return rc;
    if (!d.g->mig_current) return NOT_SUPPORTED;
    *count = gi_remaining(d.g, p);
    return OK;
}

typedef struct { int gpu; unsigned profile, start, made; int failure; } GiCreation;

static int create(State *state, void *argument) {
    GiCreation *c = argument;
    c->failure = creation_fault(state, c->gpu);
    if (c->failure) return OK;   /* commit: the fault counts the attempts */
    Gpu *g = &state->gpus[c->gpu];
    if (!g->mig_current) return NOT_SUPPORTED;
    const Gi *gi = gi_create(g, profile_by_id(g->board, c->profile), c->start);
    if (!gi) return INSUFFICIENT_RESOURCES;
    c->made = gi->id;
    return OK;
}

static int create_gi(Call call, Handle handle, unsigned id, const Placement *placement, Handle *out) {
    Device d;
    const Profile *p = NULL;
    int rc = call.rc ? call.rc : device_find(call.state, handle, &d);
    if (!rc) rc = out && !d.gi ? OK : INVALID_ARGUMENT;
    if (!rc && !d.g->mig_current) rc = NOT_SUPPORTED;
    if (!rc) rc = by_id(call.state, &d, id, &p);
    if (!rc && check_privilege(call.state, d.gpu)) rc = NO_PERMISSION;
    if (!rc && placement) {
        rc = INVALID_ARGUMENT;
        for (unsigned i = 0; i < p->start_count; i++)
            if (placement->start == p->starts[i] && placement->size == p->size) rc = OK;
    }
    if (rc) return rc;
    GiCreation c = {d.gpu, id, placement ? placement->start : ANY_START, 0, OK};
    rc = change_state(create, &c);
    if (!rc) rc = c.failure;
    if (!rc) *out = gi_handle((unsigned)d.gpu, c.made);
    return rc;
}

API(nvmlDeviceCreateGpuInstance)(Handle handle, unsigned id, Handle *out) {
    CALL_RAW("nvmlDeviceCreateGpuInstance");
    return create_gi(call, handle, id, NULL, out);
}

API(nvmlDeviceCreateGpuInstanceWithPlacement)(Handle handle, unsigned id, const Placement *placement, Handle *out) {
    CALL_RAW("nvmlDeviceCreateGpuInstanceWithPlacement");
    if (!call.rc && !placement) return INVALID_ARGUMENT;
    return create_gi(call, handle, id, placement, out);
}

typedef struct { int gpu; unsigned gi; } GiTarget;

static int destroy(State *state, void *argument) {
    const GiTarget *t = argument;
    Gpu *g = &state->gpus[t->gpu];
    Gi *gi = gi_find(g, t->gi);
    if (!gi) return NOT_FOUND;
    if (gi->ci_count || is_busy(state, t->gpu, (int)t->gi, -1) || fault_find(state, "destroy-in-use", t->gpu)) return IN_USE;
    gi_destroy(g, gi);
    return OK;
}

API(nvmlGpuInstanceDestroy)(Handle handle) {
    CALL("nvmlGpuInstanceDestroy");
    Device d;
    int rc = instance_find(call.state, handle, &d);
    if (rc || d.ci) return rc ? rc : INVALID_ARGUMENT;
    if (check_privilege(call.state, d.gpu)) return NO_PERMISSION;
    return change_state(destroy, &(GiTarget){d.gpu, d.gi->id});
}

API(nvmlDeviceGetGpuInstances)(Handle handle, unsigned id, Handle *out, unsigned *count) {
    GPU_CALL("nvmlDeviceGetGpuInstances", handle);
    const Profile *p = NULL;
    if (!out || !count) return INVALID_ARGUMENT;
    if (!d.g->mig_current) return NOT_SUPPORTED;
    int rc = by_id(call.state, &d, id, &p);
    if (!rc && fault_find(call.state, "no-permission", d.gpu)) rc = NO_PERMISSION;
    if (rc) return rc;
    *count = 0;   /* the caller's array has room for the profile's instanceCount */
    for (unsigned i = 0; i < d.g->gi_count; i++)
        if (d.g->gis[i].profile == p->enum_value) out[(*count)++] = gi_handle((unsigned)d.gpu, d.g->gis[i].id);
    return OK;
}

API(nvmlDeviceGetGpuInstanceById)(Handle handle, unsigned id, Handle *out) {
    GPU_CALL("nvmlDeviceGetGpuInstanceById", handle);
    if (!out) return INVALID_ARGUMENT;
    if (!d.g->mig_current) return NOT_SUPPORTED;
    if (!gi_find(d.g, id)) return NOT_FOUND;
    *out = gi_handle((unsigned)d.gpu, id);
    return OK;
}

API(nvmlGpuInstanceGetInfo)(Handle handle, GiInfo *out) {
    CALL("nvmlGpuInstanceGetInfo");
    Device d;
    int rc = instance_find(call.state, handle, &d);
    if (rc || !out || d.ci) return rc ? rc : INVALID_ARGUMENT;
    unsigned profile = profile_by_enum(d.g->board, d.gi->profile)->id;
    *out = (GiInfo){gpu_handle((unsigned)d.gpu), d.gi->id, profile, {d.gi->start, d.gi->size}};
    return OK;
}
