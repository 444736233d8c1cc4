/* Copyright: gpuops.nvidia contributors
 * GNU General Public License v3.0+ (see COPYING or https://www.gnu.org/licenses/gpl-3.0.txt)
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * nvidia-smi mig. */
#include "smi.h"
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { GI_PROFILES = 32, CI_PROFILES = 16, MAX_SLICES = 8 };
static const char *gi_filter, *ci_filter;   /* lists of ids, NULL = all */

static bool chosen(const char *filter, unsigned id) {
    char copy[256], text[12];
    if (!filter) return true;
    snprintf(copy, sizeof copy, "%s", filter);
    snprintf(text, sizeof text, "%u", id);
    for (char *save = NULL, *word = strtok_r(copy, ",", &save); word; word = strtok_r(NULL, ",", &save))
        if (!strcmp(word, text)) return true;
    return false;
}

static bool gi_profile(Handle gpu, unsigned profile, GiProfileInfoV2 *out) {
    out->version = VERSION_WORD(GiProfileInfoV2, 2);
    return nv.gi_profile(gpu, profile, out) == OK;
}

static bool ci_profile(Handle gi, unsigned profile, CiProfileInfoV2 *out) {
    out->version = VERSION_WORD(CiProfileInfoV2, 2);
    return nv.ci_profile(gi, profile, 0, out) == OK;
}

static int by_gi_id(const void *a, const void *b) { return (int)((const GiRow *)a)->info.id - (int)((const GiRow *)b)->info.id; }
static int by_ci_id(const void *a, const void *b) { return (int)((const CiRow *)a)->info.id - (int)((const CiRow *)b)->info.id; }

unsigned list_gis(Handle gpu, GiRow rows[MAX_LISTED]) {
    unsigned n = 0;
    for (unsigned p = 0; p < GI_PROFILES; p++) {
        GiProfileInfoV2 info;
        Handle found[MAX_LISTED];
        unsigned count = 0;
        if (!gi_profile(gpu, p, &info) || nv.gi_list(gpu, info.id, found, &count)) continue;
        for (unsigned i = 0; i < count && n < MAX_LISTED; i++) {
            rows[n] = (GiRow){.handle = found[i], .profile = info};
            n += nv.gi_info(found[i], &rows[n].info) == OK;
        }
    }
    qsort(rows, n, sizeof *rows, by_gi_id);
    return n;
}

unsigned list_cis(Handle gi, CiRow rows[MAX_LISTED]) {
    unsigned n = 0;
    for (unsigned p = 0; p < CI_PROFILES; p++) {
        CiProfileInfoV2 info;
        Handle found[MAX_LISTED];
        unsigned count = 0;
        if (!ci_profile(gi, p, &info) || nv.ci_list(gi, p, found, &count)) continue;
        for (unsigned i = 0; i < count && n < MAX_LISTED; i++) {
            rows[n] = (CiRow){.handle = found[i], .profile = info};
            n += nv.ci_info(found[i], &rows[n].info) == OK;
        }
    }
    qsort(rows, n, sizeof *rows, by_ci_id);
    return n;
}

/* Keep the GPUs with MIG on (or able to). */
static int keep_mig(bool enabled) {
    unsigned kept = 0;
    for (unsigned i = 0; i < gpu_count; i++) {
        unsigned mode = 0, pending = 0;
        if (!nv.mig_mode(gpus[i].handle, &mode, &pending) && (mode || !enabled)) gpus[kept++] = gpus[i];
    }
    gpu_count = kept;
    if (!kept) puts(enabled ? "No MIG-enabled devices found." : "No MIG-supported devices found.");
    return kept ? 0 : NOT_FOUND;
}

/* Before R550, the driver tells profiles and placements only while MIG is on. */
static bool tells_while_off(void) {
    char driver[80] = "";
    return nv.driver_version(driver, sizeof driver) || atoi(driver) >= 550;
}

static int list_gi_profiles(void) {
    int rc = keep_mig(!tells_while_off());
    if (rc) return rc;
    puts("+-----------------------------------------------------------------------------+\n"
         "| GPU instance profiles:                                                      |\n"
         "| GPU   Name             ID    Instances   Memory     P2P    SM    DEC   ENC  |\n"
         "|                              Free/Total   GiB              CE    JPEG  OFA  |\n"
         "|=============================================================================|");
    for (unsigned i = 0; i < gpu_count; i++)
        for (unsigned order = 0; order < MAX_SLICES * GI_PROFILES; order++) {   /* the narrow ones first */
            GiProfileInfoV2 v;
            unsigned left = 0;
            if (!gi_profile(gpus[i].handle, order % GI_PROFILES, &v) || v.sliceCount != order / GI_PROFILES + 1) continue;
            nv.gi_remaining(gpus[i].handle, v.id, &left);
            unsigned long long hundredths = v.memorySizeMB * 100 / 1024;   /* cut, not rounded */
            printf("| %3u  %-17s %2u     %u/%u        %3llu.%02llu      No    %3u   %3u   %3u   |\n", gpus[i].index, v.name, v.id, left, v.instanceCount,
                   hundredths / 100, hundredths % 100, v.multiprocessorCount, v.decoderCount, v.encoderCount);
            printf("|                                                            %3u   %3u   %3u   |\n", v.copyEngineCount, v.jpegCount, v.ofaCount);
            puts("+-----------------------------------------------------------------------------+");
        }
    return 0;
}

static int list_placements(void) {
    int rc = keep_mig(!tells_while_off());
    for (unsigned i = 0; i < gpu_count; i++)
        for (unsigned p = 0; p < GI_PROFILES; p++) {
            GiProfileInfoV2 v;
            Placement places[32];
            unsigned n = 32;
            if (!gi_profile(gpus[i].handle, p, &v)) continue;
            rc = nv.gi_placements(gpus[i].handle, v.id, places, &n);
            if (rc) return printf("Unable to list placements on GPU %2u: %s\n", gpus[i].index, nv.error(rc)), exit_code(rc);
            printf("GPU %2u Profile ID %2u Placement%s", gpus[i].index, v.id, n == 1 ? " " : "s: {");
            for (unsigned k = 0; k < n; k++) printf(n == 1 ? ": {%u" : k ? ",%u" : "%u", places[k].start);
            printf("}:%u\n", places[0].size);
        }
    return rc;
}

static int list_instances(bool compute) {
    unsigned found = 0;
    int rc = keep_mig(true);
    if (rc) return rc;
    for (unsigned i = 0; i < gpu_count; i++) {
        GiRow gis[MAX_LISTED];
        unsigned n = list_gis(gpus[i].handle, gis);
        for (unsigned g = 0; g < n; g++) {
            CiRow cis[MAX_LISTED];
            unsigned m = compute ? list_cis(gis[g].handle, cis) : 0;
            if (!chosen(gi_filter, gis[g].info.id)) continue;
            if (!found && !compute)
                puts("+-------------------------------------------------------+\n"
                     "| GPU instances:                                        |\n"
                     "| GPU   Name             Profile  Instance   Placement  |\n"
                     "|                          ID       ID       Start:Size |\n"
                     "|=======================================================|");
            if (!compute) {
                printf("| %3u  %-19s %2u       %2u         %2u:%u     |\n", gpus[i].index, gis[g].profile.name, gis[g].info.profileId, gis[g].info.id,
                       gis[g].info.placement.start, gis[g].info.placement.size);
                puts("+-------------------------------------------------------+");
                found++;
            }
            for (unsigned c = 0; c < m; c++, found++) {
                if (!found)
                    puts("+--------------------------------------------------------------------+\n"
                         "| Compute instances:                                                 |\n"
                         "| GPU     GPU       Name             Profile   Instance   Placement  |\n"
                         "|       Instance                       ID        ID       Start:Size |\n"
                         "|         ID                                                         |\n"
                         "|====================================================================|");
                printf("| %3u     %2u       %-19s %2u        %2u         %2u:%u     |\n", gpus[i].index, gis[g].info.id, cis[c].profile.name,
                       cis[c].info.profileId, cis[c].info.id, cis[c].info.placement.start, cis[c].info.placement.size);
                puts("+--------------------------------------------------------------------+");
            }
        }
    }
    if (!found) printf("No %s instances found: Not Found\n", compute ? "compute" : "GPU");
    return found ? 0 : NOT_FOUND;
}

/* The default compute instance fills its GPU instance: the widest profile, of two as wide the one with more SMs. */
static unsigned default_ci(Handle gi) {
    unsigned best = 0, width = 0;
    for (unsigned p = 0; p < CI_PROFILES; p++) {
        CiProfileInfoV2 v;
        if (!ci_profile(gi, p, &v) || v.info.multiprocessorCount <= width) continue;
        best = p;
        width = v.info.multiprocessorCount;
    }
    return best;
}

static int list_ci_profiles(void) {
    int rc = keep_mig(true);
    if (rc) return rc;
    puts("+--------------------------------------------------------------------------------------+\n"
         "| Compute instance profiles:                                                           |\n"
         "| GPU     GPU       Name             Profile  Instances   Exclusive       Shared       |\n"
         "|       Instance                       ID     Free/Total     SM       DEC   ENC   OFA  |\n"
         "|         ID                                                          CE    JPEG       |\n"
         "|======================================================================================|");
    for (unsigned i = 0; i < gpu_count; i++) {
        GiRow gis[MAX_LISTED];
        unsigned n = list_gis(gpus[i].handle, gis);
        for (unsigned g = 0; g < n; g++)
            for (unsigned p = 0; chosen(gi_filter, gis[g].info.id) && p < CI_PROFILES; p++) {
                CiProfileInfoV2 v;
                unsigned left = 0;
                if (!ci_profile(gis[g].handle, p, &v)) continue;
                nv.ci_remaining(gis[g].handle, p, &left);
                printf("| %3u     %2u       %-18s %2u%s     %2u/%u         %3u       %3u   %3u   %3u   |\n", gpus[i].index, gis[g].info.id, v.name, v.info.id,
                       p == default_ci(gis[g].handle) ? "*" : " ", left, v.info.instanceCount, v.info.multiprocessorCount, v.info.sharedDecoderCount,
                       v.info.sharedEncoderCount, v.info.sharedOfaCount);
                printf("|                                                                    %3u   %3u         |\n", v.info.sharedCopyEngineCount,
                       v.info.sharedJpegCount);
                puts("+--------------------------------------------------------------------------------------+");
            }
    }
    return 0;
}

static int create_cis(unsigned gpu, const GiRow *gi, const char *profiles) {
    char copy[256], fallback[12];
    snprintf(fallback, sizeof fallback, "%u", default_ci(gi->handle));
    snprintf(copy, sizeof copy, "%s", profiles && *profiles ? profiles : fallback);
    for (char *save = NULL, *word = strtok_r(copy, ",", &save); word; word = strtok_r(NULL, ",", &save)) {
        CiProfileInfoV2 v;
        unsigned p = 0;
        const char *name = !strncmp(word, "MIG ", 4) ? word + 4 : word;
        while (p < CI_PROFILES && !(ci_profile(gi->handle, p, &v) && ((isdigit((unsigned char)*word) && strspn(word, "0123456789") == strlen(word) &&
               (unsigned)atoi(word) == v.info.id) || !strcmp(name, v.name + 4)))) p++;
        Handle made;
        CiInfo info;
        int rc = p < CI_PROFILES ? nv.ci_create(gi->handle, p, &made) : INVALID_ARGUMENT;
        if (!rc) rc = nv.ci_info(made, &info);
        if (rc) {
            printf("Unable to create a compute instance on GPU %2u GPU instance ID %2u using profile %s: %s\nFailed to create compute instances: %s\n", gpu,
                   gi->info.id, word, nv.error(rc), nv.error(rc));
            return exit_code(rc);
        }
        printf("Successfully created compute instance ID %2u on GPU %2u GPU instance ID %2u using profile %s (ID %2u)\n", info.id, gpu, gi->info.id, v.name,
               v.info.id);
    }
    return 0;
}

static int create_gi(const Selected *gpu, const char *word, bool with_ci) {
    GiRow row;
    char name[64];
    unsigned p = 0, start = 0;
    const char *colon = strchr(word, ':');
    snprintf(name, sizeof name, "%.*s", colon ? (int)(colon - word) : (int)strlen(word), word);
    const char *plain = !strncmp(name, "MIG ", 4) ? name + 4 : name;
    bool is_id = strspn(name, "0123456789") == strlen(name);
    while (p < GI_PROFILES && !(gi_profile(gpu->handle, p, &row.profile) && (is_id ? (unsigned)atoi(name) == row.profile.id : !strcmp(plain, row.profile.name + 4)))) p++;
    int rc = p < GI_PROFILES ? OK : INVALID_ARGUMENT;
    if (!rc && colon) {
        Placement places[32];
        unsigned n = 32;
        start = (unsigned)atoi(colon + 1);
        rc = nv.gi_placements(gpu->handle, row.profile.id, places, &n);
        if (!rc) rc = nv.gi_create_at(gpu->handle, row.profile.id, &(Placement){start, places[0].size}, &row.handle);
    } else if (!rc) {
        rc = nv.gi_create(gpu->handle, row.profile.id, &row.handle);
    }
    if (!rc) rc = nv.gi_info(row.handle, &row.info);
    if (rc) {
        printf("Unable to create a GPU instance on GPU %2u using profile %s: %s\nFailed to create GPU instances: %s\n", gpu->index, word, nv.error(rc), nv.error(rc));
        return exit_code(rc);
    }
    printf("Successfully created GPU instance ID %2u on GPU %2u using profile %s (ID %2u)\n", row.info.id, gpu->index, row.profile.name, row.profile.id);
    return with_ci ? create_cis(gpu->index, &row, NULL) : 0;
}

static int create_gis(const char *profiles, bool with_ci) {
    int rc = keep_mig(true);
    for (unsigned i = 0; !rc && i < gpu_count; i++) {
        char copy[512];
        snprintf(copy, sizeof copy, "%s", profiles);
        for (char *save = NULL, *word = strtok_r(copy, ",", &save); !rc && word; word = strtok_r(NULL, ",", &save)) rc = create_gi(&gpus[i], word, with_ci);
    }
    return rc;
}

/* What -cci, -dci and -dgi do to each GPU instance chosen by -gi. */
typedef enum { CREATE_CI, DESTROY_CI, DESTROY_GI } Act;

static int act_on(const Selected *gpu, const GiRow *gi, Act act, const char *profiles, unsigned *done) {
    if (act == CREATE_CI) return (*done)++, create_cis(gpu->index, gi, profiles);
    if (act == DESTROY_GI) {
        int rc = nv.gi_destroy(gi->handle);
        if (rc)
            printf("Unable to destroy GPU instance ID %2u from GPU %2u: %s\nFailed to destroy GPU instances: %s\n", gi->info.id, gpu->index, nv.error(rc), nv.error(rc));
        else
            printf("Successfully destroyed GPU instance ID %2u from GPU %2u\n", gi->info.id, gpu->index);
        return (*done)++, exit_code(rc);
    }
    CiRow cis[MAX_LISTED];
    unsigned n = list_cis(gi->handle, cis);
    for (unsigned c = 0; c < n; c++) {
        if (!chosen(ci_filter, cis[c].info.id)) continue;
        int rc = nv.ci_destroy(cis[c].handle);
        (*done)++;
        if (rc) {
            printf("Unable to destroy compute instance ID %2u from GPU %2u GPU instance ID %2u: %s\nFailed to destroy compute instances: %s\n", cis[c].info.id,
                   gpu->index, gi->info.id, nv.error(rc), nv.error(rc));
            return exit_code(rc);
        }
        printf("Successfully destroyed compute instance ID %2u from GPU %2u GPU instance ID %2u\n", cis[c].info.id, gpu->index, gi->info.id);
    }
    return 0;
}

static int act_on_all(Act act, const char *profiles) {
    unsigned done = 0;
    int rc = keep_mig(true);
    if (rc) return rc;
    for (unsigned i = 0; !rc && i < gpu_count; i++) {
        GiRow gis[MAX_LISTED];
        unsigned n = list_gis(gpus[i].handle, gis);
        for (unsigned g = 0; !rc && g < n; g++)
            if (chosen(gi_filter, gis[g].info.id)) rc = act_on(&gpus[i], &gis[g], act, profiles, &done);
    }
    if (rc || done) return rc;
    printf("No %s instances found: Not Found\n", act == DESTROY_CI ? "compute" : "GPU");
    return NOT_FOUND;
}

static bool is(const char *argument, const char *brief, const char *full) { return !strcmp(argument, brief) || !strcmp(argument, full); }

int mig_command(int argc, char **argv) {
    const char *ids = NULL, *profiles = NULL, *verb = NULL;
    bool with_ci = false;
    for (int i = 0; i < argc; i++) {
        const char *a = argv[i], *next = i + 1 < argc ? argv[i + 1] : NULL;
        if (is(a, "-i", "--id") && next)
            ids = argv[++i];
        else if (is(a, "-gi", "--gpu-instance-id") && next)
            gi_filter = argv[++i];
        else if (is(a, "-ci", "--compute-instance-id") && next)
            ci_filter = argv[++i];
        else if (is(a, "-C", "--default-compute-instance"))
            with_ci = true;
        else if (is(a, "-cgi", "--create-gpu-instance") && next)
            verb = "-cgi", profiles = argv[++i];
        else if (is(a, "-cci", "--create-compute-instance"))
            verb = "-cci", profiles = next && *next != '-' ? argv[++i] : NULL;
        else
            verb = is(a, "-lgip", "--list-gpu-instance-profiles") ? "-lgip" : is(a, "-lgipp", "--list-gpu-instance-possible-placements") ? "-lgipp"
                 : is(a, "-lgi", "--list-gpu-instances") ? "-lgi" : is(a, "-lcip", "--list-compute-instance-profiles") ? "-lcip"
                 : is(a, "-lci", "--list-compute-instances") ? "-lci" : is(a, "-dgi", "--destroy-gpu-instance") ? "-dgi"
                 : is(a, "-dci", "--destroy-compute-instance") ? "-dci" : "?";
        if (verb && *verb == '?') return printf("Option \"%s\" is not recognized.\n", a), 2;
    }
    if (!verb) return puts("nvidia-smi mig needs one of -lgip -lgipp -lgi -lcip -lci -cgi -cci -dgi -dci"), 2;
    int rc = select_gpus(ids);
    if (rc) return rc;
    if (!strcmp(verb, "-lgip")) return list_gi_profiles();
    if (!strcmp(verb, "-lgipp")) return list_placements();
    if (!strcmp(verb, "-lgi")) return list_instances(false);
    if (!strcmp(verb, "-lci")) return list_instances(true);
    if (!strcmp(verb, "-lcip")) return list_ci_profiles();
    if (!strcmp(verb, "-cgi")) return create_gis(profiles, with_ci);
    return act_on_all(!strcmp(verb, "-cci") ? CREATE_CI : !strcmp(verb, "-dci") ? DESTROY_CI : DESTROY_GI, profiles);
}
