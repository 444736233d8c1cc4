/* Copyright: gpuops.nvidia contributors
 * GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * The rules of MIG on a State: where instances go, what they are called, what fits. */
#ifndef MIG_H
#define MIG_H
#include "state.h"

typedef struct { unsigned id, slices, instances, sm, start_count, starts[MAX_STARTS], size; } CiProfile;

enum { ANY_START = 0xffffffffu, CI_PROFILE_COUNT = 9, CI_WIDE_1_SLICE = 7 };

Gi *gi_find(Gpu *gpu, unsigned id);
Ci *ci_find(Gi *gi, unsigned id);
unsigned gi_remaining(const Gpu *gpu, const Profile *profile);
bool gi_start_free(const Gpu *gpu, const Profile *profile, unsigned start);
/* NULL = no room, or the start is not one of the profile's. */
Gi *gi_create(Gpu *gpu, const Profile *profile, unsigned start);
void gi_destroy(Gpu *gpu, Gi *gi);

bool ci_profile(const Gpu *gpu, const Profile *gi_profile, unsigned ci_enum, CiProfile *out);
unsigned ci_remaining(const Gi *gi, const CiProfile *profile);
Ci *ci_create(Gi *gi, const CiProfile *profile, unsigned start);
void ci_destroy(Gi *gi, Ci *ci);

/* "1g.10gb", or "1c.3g.40gb" where the compute instance does not fill its GPU instance. */
void mig_profile_name(const Profile *gi_profile, const CiProfile *ci, char *out, size_t size);
/* MIG-8-4-4-4-12, the same for the same slot of the same GPU. */
void mig_uuid(const Gpu *gpu, unsigned gi, unsigned ci, char out[96]);
/* A UUID's 8-4-4-4-12 from a text: stable, version nibble as given. */
void uuid_from(const char *text, char version, char out[37]);
#endif
