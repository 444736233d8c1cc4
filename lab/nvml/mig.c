/* Copyright: gpuops.nvidia contributors
 * GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later */
#include "mig.h"
#include <string.h>

static bool overlaps(unsigned a, unsigned a_size, unsigned b, unsigned b_size) { return a < b + b_size && b < a + a_size; }

Gi *gi_find(Gpu *gpu, unsigned id) {
    for (unsigned i = 0; i < gpu->gi_count; i++)
        if (gpu->gis[i].id == id) return &gpu->gis[i];
    return NULL;
}

Ci *ci_find(Gi *gi, unsigned id) {
    for (unsigned i = 0; i < gi->ci_count; i++)
        if (gi->cis[i].id == id) return &gi->cis[i];
    return NULL;
}

bool gi_start_free(const Gpu *gpu, const Profile *profile, unsigned start) {
    for (unsigned i = 0; i < gpu->gi_count; i++)
        if (overlaps(start, profile->size, gpu->gis[i].start, gpu->gis[i].size)) return false;
    return true;
}

/* An instance with all media engines leaves room only for instances without any. */
static bool media_conflict(unsigned a, unsigned b) {
    enum { ONE_SLICE_NO_ME = 13, TWO_SLICES_NO_ME = 14, ONE_SLICE_ALL_ME = 15, TWO_SLICES_ALL_ME = 16 };
    return (a == ONE_SLICE_ALL_ME || a == TWO_SLICES_ALL_ME) && b != ONE_SLICE_NO_ME && b != TWO_SLICES_NO_ME;
}

unsigned gi_remaining(const Gpu *gpu, const Profile *profile) {
    for (unsigned i = 0; i < gpu->gi_count; i++)
        if (media_conflict(gpu->gis[i].profile, profile->enum_value) || media_conflict(profile->enum_value, gpu->gis[i].profile)) return 0;
    unsigned used = 0, free_starts = 0;
    for (unsigned i = 0; i < gpu->gi_count; i++) used += gpu->gis[i].profile == profile->enum_value;
    for (unsigned i = 0; i < profile->start_count; i++) free_starts += gi_start_free(gpu, profile, profile->starts[i]);
    unsigned left = profile->instances > used ? profile->instances - used : 0;
    return free_starts < left ? free_starts : left;
}

/* How many placements that are still possible, of all profiles, this one would take away. */
static unsigned cost(const Gpu *gpu, const Profile *profile, unsigned start) {
    unsigned count = 0;
    for (unsigned p = 0; p < gpu->board->profile_count; p++) {
        const Profile *other = &gpu->board->profiles[p];
        for (unsigned i = 0; i < other->start_count; i++)
            count += gi_start_free(gpu, other, other->starts[i]) && overlaps(start, profile->size, other->starts[i], other->size);
    }
    return count;
}

/* The firmware's choice is not documented. Taking the free placement that spoils the fewest others, the lowest one
 * on a tie, reproduces the sequences that users and NVIDIA's guide show (tests/conformance/published.yaml). */
static unsigned preferred_start(const Gpu *gpu, const Profile *profile) {
    unsigned best = ANY_START, best_cost = ~0u;
    for (unsigned i = 0; i < profile->start_count; i++) {
        unsigned start = profile->starts[i];
        unsigned c = gi_start_free(gpu, profile, start) ? cost(gpu, profile, start) : ~0u;
        if (c < best_cost) {
            best = start;
            best_cost = c;
        }
    }
    return best;
}

/* The resource manager's partition id: full 0, halves 1-2, quarters 3-6, eighths 7-14; on some boards the halves
 * are exchanged against NVML's start. */
static unsigned gi_id(const Gpu *gpu, unsigned start, unsigned size) {
    unsigned units = gpu->board->units, parts = units / size;
    if (gpu->swapped && parts > 1) start = (start + units / 2) % units;
    return parts - 1 + start / size;
}

Gi *gi_create(Gpu *gpu, const Profile *profile, unsigned start) {
    if (gi_remaining(gpu, profile) == 0 || gpu->gi_count == MAX_GIS) return NULL;
    if (start == ANY_START) start = preferred_start(gpu, profile);
    if (!gi_start_free(gpu, profile, start)) return NULL;
    Gi made = {.id = gi_id(gpu, start, profile->size), .profile = profile->enum_value, .start = start, .size = profile->size};
    unsigned i = gpu->gi_count++;
    for (; i > 0 && gpu->gis[i - 1].id > made.id; i--) gpu->gis[i] = gpu->gis[i - 1];   /* kept in id order, as NVML lists them */
    gpu->gis[i] = made;
    return &gpu->gis[i];
}

void gi_destroy(Gpu *gpu, Gi *gi) {
    size_t i = (size_t)(gi - gpu->gis);
    memmove(gi, gi + 1, (--gpu->gi_count - i) * sizeof *gi);
}

/* NVIDIA MIG User Guide, the compute instance tables, and what nvidia-smi prints: prefix slices x instances. */
bool ci_profile(const Gpu *gpu, const Profile *gp, unsigned ci_enum, CiProfile *out) {
    static const unsigned slices_of[CI_PROFILE_COUNT] = {1, 2, 3, 4, 7, 8, 6, 1, 7};
    if (ci_enum >= CI_PROFILE_COUNT || ci_enum == 8) return false;
    bool wide = ci_enum == CI_WIDE_1_SLICE;   /* the one that fills a 1-slice GPU instance with more SMs than a slice has */
    unsigned n = slices_of[ci_enum], total = gp->slices;
    if (n > total || (wide && gp->default_ci != CI_WIDE_1_SLICE)) return false;
    if (n < total && 2 * n > total + 1) return false;   /* such as 3c in a 4-slice one */
    *out = (CiProfile){.id = ci_enum, .slices = n, .size = n};
    unsigned step = n == 3 && total == 7 ? 4 : n;
    for (unsigned s = 0; s + n <= total; s += step) out->starts[out->start_count++] = s;
    out->instances = out->start_count;
    const Profile *slice = profile_by_enum(gpu->board, 0);
    out->sm = (n == total && gp->default_ci == ci_enum) || !slice ? gp->sm : slice->sm * n;
    return true;
}

static bool ci_start_free(const Gi *gi, const CiProfile *profile, unsigned start) {
    for (unsigned i = 0; i < gi->ci_count; i++)
        if (overlaps(start, profile->size, gi->cis[i].start, gi->cis[i].size)) return false;
    return true;
}

unsigned ci_remaining(const Gi *gi, const CiProfile *profile) {
    unsigned count = 0;
    for (unsigned i = 0; i < profile->start_count; i++) count += ci_start_free(gi, profile, profile->starts[i]);
    return count;
}

Ci *ci_create(Gi *gi, const CiProfile *profile, unsigned start) {
    for (unsigned i = 0; start == ANY_START && i < profile->start_count; i++)
        if (ci_start_free(gi, profile, profile->starts[i])) start = profile->starts[i];
    if (start == ANY_START || !ci_start_free(gi, profile, start) || gi->ci_count == MAX_CIS) return NULL;
    Ci made = {.profile = profile->id, .start = start, .size = profile->size};
    while (ci_find(gi, made.id)) made.id++;
    unsigned i = gi->ci_count++;
    for (; i > 0 && gi->cis[i - 1].id > made.id; i--) gi->cis[i] = gi->cis[i - 1];
    gi->cis[i] = made;
    return &gi->cis[i];
}

void ci_destroy(Gi *gi, Ci *ci) {
    size_t i = (size_t)(ci - gi->cis);
    memmove(ci, ci + 1, (--gi->ci_count - i) * sizeof *ci);
}

void mig_profile_name(const Profile *gp, const CiProfile *ci, char *out, size_t size) {
    if (ci && ci->slices != gp->slices)
        snprintf(out, size, "%uc.%s", ci->slices, gp->name);
    else
        snprintf(out, size, "%s", gp->name);
}

static uint64_t fnv1a(const char *text, uint64_t hash) {
    for (; *text; text++) hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
    hash = (hash ^ hash >> 30) * 0xbf58476d1ce4e5b9u;   /* neighbouring texts must not give look-alike numbers */
    hash = (hash ^ hash >> 27) * 0x94d049bb133111ebu;
    return hash ^ hash >> 31;
}

void uuid_from(const char *text, char version, char out[37]) {
    uint64_t a = fnv1a(text, 0xcbf29ce484222325u), b = fnv1a(text, a * 0x9e3779b97f4a7c15u);
    snprintf(out, 37, "%08x-%04x-%c%03x-%x%03x-%012lx", (unsigned)(a >> 32), (unsigned)(a >> 16) & 0xffff, version, (unsigned)a & 0xfff,
             8 + ((unsigned)(b >> 60) & 3), (unsigned)(b >> 48) & 0xfff, b & 0xffffffffffff);
}

void mig_uuid(const Gpu *gpu, unsigned gi, unsigned ci, char out[96]) {
    char text[128], uuid[37];
    snprintf(text, sizeof text, "%s/%u/%u", gpu->uuid, gi, ci);
    uuid_from(text, '5', uuid);
    snprintf(out, 96, "MIG-%s", uuid);
}
