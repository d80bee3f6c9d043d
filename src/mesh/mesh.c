#include "mesh/mesh.h"

#include <assert.h>

/* Bounds products of sizes and padded lengths. */
enum { SIZE_MAX_PER_DIM = 1 << 20 };

static uint64_t one_if_absent(uint64_t size) { return size ? size : 1; }

enum ls_code ls_mesh_make(const struct ls_mesh_input *in, struct ls_mesh *out, struct ls_error *err)
{
    const struct { const char *name; uint64_t size; } given[] = {
        { "dp_size", in->dp }, { "dp_replicate_size", in->dp_replicate }, { "cp_size", in->cp }, { "tp_size", in->tp },
        { "pp_size", in->pp }, { "ep_size", in->ep },                     { "world size", in->world },
    };
    for (size_t i = 0; i < sizeof given / sizeof *given; i++)
        if (given[i].size > SIZE_MAX_PER_DIM)
            return ls_fail(err, LS_EINPUT, in->at, "'%s' is %llu, more than %d", given[i].name, (unsigned long long)given[i].size,
                           SIZE_MAX_PER_DIM);
    const uint64_t cp = one_if_absent(in->cp), tp = one_if_absent(in->tp), pp = one_if_absent(in->pp), ep = one_if_absent(in->ep);
    const uint64_t rest = cp * tp * pp, replicate = one_if_absent(in->dp_replicate); /* at most 2^60 */
    const bool any = in->dp_any || in->replicate_any, dp_given = in->dp > 0 && !in->dp_any;
    uint64_t dp = in->dp;
    if (in->world && in->world % rest)
        return ls_fail(err, LS_EINPUT, in->at, "the world size %llu is not a multiple of cp_size x tp_size x pp_size = %llu",
                       (unsigned long long)in->world, (unsigned long long)rest);
    if (in->world && any)
        return ls_fail(err, LS_EINPUT, in->at, "a size is 'any', so the world size can't be %llu", (unsigned long long)in->world);
    if (!dp_given && !any) {
        if (!in->world) {
            enum ls_code rc = ls_fail(err, LS_EINPUT, in->at, "neither 'dp_size' nor the world size is given");
            ls_hint(err, "write dp_size: 2, or dp_size: any for a proof for every size");
            return rc;
        }
        dp = in->world / rest;
    }
    if (in->world && dp_given && dp * rest != in->world)
        return ls_fail(err, LS_EINPUT, in->at, "'dp_size' %llu x cp_size x tp_size x pp_size %llu is not the world size %llu",
                       (unsigned long long)dp, (unsigned long long)rest, (unsigned long long)in->world);
    struct ls_mesh m = { .cp = (size_t)cp, .tp = (size_t)tp, .pp = (size_t)pp, .ep = (size_t)ep, .ep_shard = 1 };
    m.replicate = in->replicate_any ? (size_t)LS_SIZE_ANY : (size_t)replicate;
    if (in->dp_any) {
        m.shard = LS_SIZE_ANY;
    } else if (in->replicate_any) {
        /* dp_size is the product, so a free replicate size needs a free product or a shard size of its own. */
        if (dp_given)
            return ls_fail(err, LS_EINPUT, in->at, "'dp_size' is %llu, so 'dp_replicate_size' can't be 'any'", (unsigned long long)dp);
        m.shard = LS_SIZE_ANY;
    } else {
        if (dp % replicate)
            return ls_fail(err, LS_EINPUT, in->at, "'dp_replicate_size' is %llu, which does not divide 'dp_size' %llu",
                           (unsigned long long)replicate, (unsigned long long)dp);
        m.shard = (size_t)(dp / replicate);
    }
    if (ep > 1) {
        if (in->replicate_any)
            return ls_fail(err, LS_EINPUT, in->at, "'ep_size' is %llu, so 'dp_replicate_size' can't be 'any'", (unsigned long long)ep);
        if (in->dp_any && (replicate > 1 || rest > 1))
            return ls_fail(err, LS_EINPUT, in->at, "'ep_size' is %llu and 'dp_size' any, so every other size must be 1", (unsigned long long)ep);
        const uint64_t non_pp = in->dp_any ? 0 : dp * cp * tp;
        if (non_pp % ep)
            return ls_fail(err, LS_EINPUT, in->at, "'ep_size' is %llu, which does not divide dp_size x cp_size x tp_size = %llu",
                           (unsigned long long)ep, (unsigned long long)non_pp);
        m.ep_shard = in->dp_any ? (size_t)LS_SIZE_ANY : (size_t)(non_pp / ep);
    }
    *out = m;
    return LS_OK;
}

enum ls_code ls_mesh_regroup(struct ls_mesh *m, struct ls_loc at, struct ls_error *err)
{
    const size_t ranks = m->replicate * m->shard * m->cp * m->tp;
    if (m->ep <= 1)
        return LS_OK;
    if (!ranks || ranks % m->ep)
        return ls_fail(err, LS_EINPUT, at, "'ep_size' is %zu, which does not divide %zu ranks", m->ep, ranks);
    m->ep_shard = ranks / m->ep;
    return LS_OK;
}

size_t ls_mesh_ranks(const struct ls_mesh *m)
{
    return m->replicate * m->shard * m->cp * m->tp * m->pp; /* `any` is 0 */
}
