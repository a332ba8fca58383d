/* libamd_smi.so over the GPUs of node.h, written from AMD SMI's public API. What the binding needs besides is generated. */
#include <errno.h>

#include "node.h"

enum { OK = 0, INVALID = 1, NO_PERMISSION = 10, OUT_OF_BOUNDS = 17, NOT_LOADED = 34 };

static gpu_t *gpu_of(void *handle) {
    intptr_t i = (intptr_t)handle - 0x1000;
    return N && i >= 0 && i < (intptr_t)N->gpus ? &N->gpu[i] : 0;
}

static int begin(void *handle, gpu_t **g) {
    if (!(*g = gpu_of(handle))) return INVALID;
    wait_for((*g)->read_delay_s);
    if ((*g)->read_fault) return (int)(*g)->read_fault;
    take();
    follow(*g);
    return OK;
}

int amdsmi_init(uint64_t flags) {
    (void)flags;
    return attach("STANDIN_NODE") ? NOT_LOADED : (int)N->init_fault;
}
int amdsmi_shut_down(void) { return OK; }
int amdsmi_status_code_to_string(int status, const char **text) {
    static char said[32];
    snprintf(said, sizeof said, "stand-in status %d", status);
    *text = said;
    return OK;
}
int amdsmi_get_socket_handles(uint32_t *count, void **handles) {
    for (uint32_t i = 0; handles && i < *count && i < N->gpus; i++) handles[i] = (void *)(intptr_t)(0x2000 + i);
    *count = N->gpus;
    return OK;
}
int amdsmi_get_processor_handles(void *socket, uint32_t *count, void **handles) {
    if (handles) handles[0] = (void *)((intptr_t)socket - 0x1000);
    *count = 1;
    return OK;
}
int amdsmi_get_processor_type(void *handle, uint32_t *type) {
    (void)handle;
    *type = 1; /* an AMD GPU */
    return OK;
}
int amdsmi_get_gpu_device_uuid(void *handle, uint32_t *size, char *out) {
    snprintf(out, *size, "57a4d1f0-%04x-0000-0000-%012d", N->base, (int)((intptr_t)handle - 0x1000));
    return OK;
}
int amdsmi_get_power_cap_info(void *handle, uint32_t sensor, amdsmi_power_cap_info_t *out) {
    gpu_t *g;
    int r = begin(handle, &g);
    (void)sensor;
    if (r) return r;
    memset(out, 0, sizeof *out);
    out->power_cap = g->limit_mw * 1000ull;
    out->default_power_cap = g->default_mw * 1000ull;
    out->min_power_cap = g->min_mw * 1000ull;
    out->max_power_cap = g->max_mw * 1000ull;
    leave();
    return OK;
}
static int power(void *handle, amdsmi_power_info_t *out) {
    gpu_t *g;
    int r = begin(handle, &g);
    if (r) return r;
    memset(out, 0, sizeof *out);
    uint32_t watts = (uint32_t)(draw_w(g) + .5);
    out->current_socket_power = g->no_instant ? 0xFFFF : watts;
    out->average_socket_power = watts;
    out->power_limit = g->limit_mw / 1000;
#ifdef HAS_SOCKET_POWER
    out->socket_power = watts;
#endif
    leave();
    return OK;
}
int amdsmi_get_power_info(void *handle, amdsmi_power_info_t *out) { return power(handle, out); }
int amdsmi_get_power_info_v2(void *handle, uint32_t sensor, amdsmi_power_info_t *out) {
    (void)sensor;
    return power(handle, out);
}
int amdsmi_get_energy_count(void *handle, uint64_t *count, float *unit_uj, uint64_t *at) {
    gpu_t *g;
    int r = begin(handle, &g);
    if (r) return r;
    *unit_uj = 15.3f;
    *at = 0;
    *count = (uint64_t)(g->energy_j * 1e6 / 15.3);
    leave();
    return OK;
}
int amdsmi_set_power_cap(void *handle, uint32_t sensor, uint64_t uw) {
    (void)sensor;
    if (!gpu_of(handle)) return INVALID;
    return set_limit((unsigned)((intptr_t)handle - 0x1000), (uint32_t)(uw / 1000), NO_PERMISSION, OUT_OF_BOUNDS);
}
