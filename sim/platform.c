#include "sim/platform.h"

#include "sim/traffic.h"
#include "yaml/yaml.h"

#include <stdint.h>

struct loader { const struct ls_yaml_node *map; const char *what; struct ls_error *err; };

static enum ls_code get(const struct loader *l, const char *key, const struct ls_yaml_node **out)
{
    *out = ls_yaml_get(l->map, key);
    return *out ? LS_OK : ls_fail(l->err, LS_EINPUT, l->map->at, "'%s' is missing in %s", key, l->what);
}

static enum ls_code section(const struct loader *l, const char *key, const char *const *known, struct loader *out)
{
    *out = (struct loader){ .what = key, .err = l->err };
    LS_TRY(get(l, key, &out->map));
    LS_TRY(ls_yaml_map(out->map, key, l->err));
    return ls_yaml_check_keys(out->map, key, known, l->err);
}

static enum ls_code whole(const struct loader *l, const char *key, uint64_t min, uint64_t max, uint64_t *out)
{
    const struct ls_yaml_node *n;
    LS_TRY(get(l, key, &n));
    return ls_yaml_uint(n, key, min, max, out, l->err);
}

/* A real of at least `min`, at most `max`. */
static enum ls_code real(const struct loader *l, const char *key, double min, double max, double *out)
{
    const struct ls_yaml_node *n;
    double v = 0;
    LS_TRY(get(l, key, &n));
    LS_TRY(ls_yaml_real(n, key, &v, l->err));
    if (!(v >= min && v <= max))
        return ls_fail(l->err, LS_EINPUT, n->at, "'%s' is %g, but must be between %g and %g", key, v, min, max);
    *out = v;
    return LS_OK;
}

/* A real times `unit`, as an integer. */
static enum ls_code scaled(const struct loader *l, const char *key, double unit, double min, double max, uint64_t *out)
{
    double v;
    LS_TRY(real(l, key, min, max, &v));
    *out = (uint64_t)(v * unit + 0.5);
    return LS_OK;
}

static enum ls_code choice(const struct loader *l, const char *key, const char *const *names, size_t *out)
{
    const struct ls_yaml_node *n;
    LS_TRY(get(l, key, &n));
    return ls_yaml_choice(n, key, names, out, l->err);
}

static enum ls_code load_gpu(const struct loader *top, struct ls_platform *p)
{
    static const char *const known[] = { "arch", "hbm_MiB", "reserved_MiB", "hbm_TBps", "peak_tflops", "efficiency", NULL };
    static const char *const archs[] = { "ampere", "hopper", "blackwell", NULL };
    static const char *const efficiency[] = { "matmul", "copy", "layer", NULL };
    static const char *const dtypes[] = { "f64", "f32", "f16", "bf16", "f8", NULL };
    struct loader l, part;
    size_t arch;
    LS_TRY(section(top, "gpu", known, &l));
    LS_TRY(choice(&l, "arch", archs, &arch));
    p->arch = (enum ls_gpu_arch)arch;
    LS_TRY(scaled(&l, "hbm_MiB", 1 << 20, 1, 1 << 24, &p->hbm_bytes));
    LS_TRY(scaled(&l, "reserved_MiB", 1 << 20, 0, 1 << 24, &p->reserved_bytes));
    if (p->reserved_bytes >= p->hbm_bytes)
        return ls_fail(l.err, LS_EINPUT, ls_yaml_get(l.map, "reserved_MiB")->at, "'reserved_MiB' leaves nothing of 'hbm_MiB'");
    LS_TRY(scaled(&l, "hbm_TBps", 1e12, 0.001, 1000, &p->hbm_Bps));
    LS_TRY(section(&l, "efficiency", efficiency, &part));
    LS_TRY(real(&part, "matmul", 0.01, 1, &p->matmul_efficiency));
    LS_TRY(real(&part, "copy", 0.01, 1, &p->hbm_efficiency));
    LS_TRY(real(&part, "layer", 0.01, 1, &p->layer_efficiency));
    LS_TRY(section(&l, "peak_tflops", dtypes, &part));
    for (size_t i = 0; dtypes[i]; i++) {
        enum ls_dtype d;
        double tera;
        bool found = ls_dtype_find(dtypes[i], &d), needed = d == LS_DTYPE_BF16 || d == LS_DTYPE_F32;
        if (!found || (!needed && !ls_yaml_get(part.map, dtypes[i])))
            continue;
        LS_TRY(real(&part, dtypes[i], 0.001, 1e6, &tera));
        p->flops[d] = tera * 1e12;
    }
    return LS_OK;
}

static enum ls_code load_links(const struct loader *top, struct ls_platform *p)
{
    static const char *const nvlink[] = { "port_GBps", "ring_GBps", "ring_channels", "nvls_GBps", "nvls_channels", NULL };
    static const char *const net[] = { "nics", "nic_GBps", "nic_latency_us", "ring_GBps", "ring_channels", "ll128", NULL };
    struct loader l;
    LS_TRY(section(top, "nvlink", nvlink, &l));
    LS_TRY(scaled(&l, "port_GBps", 1e9, 0.001, 1e5, &p->nvlink_Bps));
    LS_TRY(scaled(&l, "ring_GBps", 1e9, 0.001, 1e5, &p->ring_Bps));
    LS_TRY(whole(&l, "ring_channels", 1, 64, &p->ring_channels));
    LS_TRY(scaled(&l, "nvls_GBps", 1e9, 0, 1e5, &p->nvls_Bps));
    LS_TRY(whole(&l, "nvls_channels", p->nvls_Bps ? 2 : 0, 64, &p->nvls_channels));
    if (p->nvls_Bps && p->arch == LS_AMPERE)
        return ls_fail(l.err, LS_EINPUT, ls_yaml_get(l.map, "nvls_GBps")->at, "'nvls_GBps': Ampere has no NVLink SHARP");
    LS_TRY(section(top, "network", net, &l));
    LS_TRY(whole(&l, "nics", 1, LS_NICS_MAX, &p->nics));
    if (p->gpus % p->nics != 0 && p->nics % p->gpus != 0)
        return ls_fail(l.err, LS_EINPUT, ls_yaml_get(l.map, "nics")->at, "'nics' %zu and 'gpus_per_node' %zu: neither divides the other",
                       (size_t)p->nics, p->gpus);
    LS_TRY(scaled(&l, "nic_GBps", 1e9, 0.001, 1e5, &p->nic_Bps));
    LS_TRY(scaled(&l, "nic_latency_us", 1e6, 0, 1e6, &p->nic_latency_ps));
    LS_TRY(scaled(&l, "ring_GBps", 1e9, 0.001, 1e5, &p->net_Bps));
    LS_TRY(whole(&l, "ring_channels", 1, 64, &p->net_channels));
    const struct ls_yaml_node *n;
    LS_TRY(get(&l, "ll128", &n));
    return ls_yaml_bool(n, "ll128", &p->ll128_net, l.err);
}

static enum ls_code load_host(const struct loader *top, struct ls_platform *p)
{
    static const char *const known[] = { "cpu", "launch_us", "collective_us", "event_us", "alloc_us", "sync_us", "comm_init_us", NULL };
    static const char *const cpus[] = { "intel", "amd", NULL };
    struct loader l;
    size_t cpu;
    LS_TRY(section(top, "host", known, &l));
    LS_TRY(choice(&l, "cpu", cpus, &cpu));
    p->cpu = (enum ls_host_cpu)cpu;
    LS_TRY(scaled(&l, "launch_us", 1e6, 0, 1e6, &p->launch_ps));
    LS_TRY(scaled(&l, "collective_us", 1e6, 0, 1e6, &p->collective_ps));
    LS_TRY(scaled(&l, "event_us", 1e6, 0, 1e6, &p->event_ps));
    LS_TRY(scaled(&l, "alloc_us", 1e6, 0, 1e6, &p->alloc_ps));
    LS_TRY(scaled(&l, "sync_us", 1e6, 0, 1e6, &p->sync_ps));
    return scaled(&l, "comm_init_us", 1e6, 0, 1e9, &p->comm_init_ps);
}

enum ls_code ls_platform_load(const char *path, size_t nodes, struct ls_arena *arena, struct ls_platform *out, struct ls_error *err)
{
    static const char *const known[] = { "platform", "name", "nodes", "gpus_per_node", "gpu", "nvlink", "network", "host", NULL };
    const struct ls_yaml_node *root, *n;
    uint64_t v;
    *out = (struct ls_platform){ 0 };
    LS_TRY(ls_yaml_load_file(path, arena, &root, err));
    LS_TRY(ls_yaml_map(root, "the platform", err));
    LS_TRY(ls_yaml_check_keys(root, "the platform", known, err));
    struct loader l = { root, "the platform", err };
    LS_TRY(whole(&l, "platform", 1, 1, &v)); /* the version of the format */
    LS_TRY(get(&l, "name", &n));
    LS_TRY(ls_yaml_text(n, "name", &out->name, err));
    LS_TRY(whole(&l, "nodes", 1, LS_PLATFORM_NODES_MAX, &v));
    out->nodes = (size_t)v;
    if (nodes > LS_PLATFORM_NODES_MAX)
        return ls_fail(err, LS_EINPUT, ls_yaml_get(root, "nodes")->at, "%zu nodes are more than the %d that a platform may have", nodes,
                       (int)LS_PLATFORM_NODES_MAX);
    if (nodes)
        out->nodes = nodes;
    LS_TRY(whole(&l, "gpus_per_node", 1, 16, &v));
    out->gpus = (size_t)v;
    LS_TRY(load_gpu(&l, out));
    LS_TRY(load_links(&l, out));
    return load_host(&l, out);
}
