/* Mesh sizes: what divides, what contradicts, what is free. */
#include "mesh/mesh.h"

#include <criterion/criterion.h>
#include <string.h>

static struct ls_error err;
static struct ls_mesh mesh;

static enum ls_code make(struct ls_mesh_input in) { return ls_mesh_make(&in, &mesh, &err); }

Test(mesh, sizes_multiply_to_the_world)
{
    for (uint64_t dp = 1; dp <= 8; dp++)
        for (uint64_t replicate = 1; replicate <= dp; replicate++)
            for (uint64_t cp = 1; cp <= 3; cp++)
                for (uint64_t tp = 1; tp <= 2; tp++) {
                    struct ls_mesh_input in = { .dp = dp, .dp_replicate = replicate, .cp = cp, .tp = tp };
                    if (dp % replicate) {
                        cr_assert_eq(make(in), LS_EINPUT);
                        continue;
                    }
                    cr_assert_eq(make(in), LS_OK, "%s", err.text);
                    cr_assert_eq(ls_mesh_ranks(&mesh), dp * cp * tp);
                    cr_assert_eq(mesh.shard * mesh.replicate, dp);
                    in.dp = 0, in.world = dp * cp * tp;
                    struct ls_mesh with_dp = mesh;
                    cr_assert_eq(make(in), LS_OK, "%s", err.text);
                    cr_assert_eq(memcmp(&mesh, &with_dp, sizeof mesh), 0, "dp follows from the world size");
                    in.dp = dp, in.world++;
                    cr_assert_eq(make(in), LS_EINPUT);
                }
}

Test(mesh, free_dimensions)
{
    cr_assert_eq(make((struct ls_mesh_input){ .dp_any = true }), LS_OK);
    cr_assert(mesh.shard == LS_SIZE_ANY && mesh.replicate == 1 && ls_mesh_ranks(&mesh) == 0);
    cr_assert_eq(make((struct ls_mesh_input){ .dp_any = true, .dp_replicate = 2 }), LS_OK);
    cr_assert(mesh.shard == LS_SIZE_ANY && mesh.replicate == 2);
    cr_assert_eq(make((struct ls_mesh_input){ .dp_any = true, .replicate_any = true }), LS_OK);
    cr_assert(mesh.shard == LS_SIZE_ANY && mesh.replicate == LS_SIZE_ANY);
    cr_assert_eq(make((struct ls_mesh_input){ .dp_any = true, .world = 8 }), LS_EINPUT);
    cr_assert_eq(make((struct ls_mesh_input){ .dp = 8, .replicate_any = true }), LS_EINPUT);
    cr_assert_eq(make((struct ls_mesh_input){ .dp_any = true, .ep = 2 }), LS_OK);
    cr_assert(mesh.shard == LS_SIZE_ANY && mesh.ep == 2 && mesh.ep_shard == LS_SIZE_ANY);
    cr_assert_eq(make((struct ls_mesh_input){ .dp_any = true, .replicate_any = true, .ep = 2 }), LS_EINPUT);
    cr_assert_eq(make((struct ls_mesh_input){ .dp_any = true, .dp_replicate = 2, .ep = 2 }), LS_EINPUT);
    cr_assert_eq(make((struct ls_mesh_input){ .dp_any = true, .ep = 1 }), LS_OK);
}

Test(mesh, experts)
{
    cr_assert_eq(make((struct ls_mesh_input){ .dp = 8, .ep = 4 }), LS_OK);
    cr_assert_eq(mesh.ep_shard, 2);
    cr_assert_eq(make((struct ls_mesh_input){ .dp = 2, .cp = 2, .tp = 2, .ep = 8 }), LS_OK);
    cr_assert_eq(mesh.ep_shard, 1);
    cr_assert_eq(make((struct ls_mesh_input){ .dp = 6, .ep = 4 }), LS_EINPUT);
    cr_assert(strstr(err.text, "'ep_size' is 4, which does not divide"), "%s", err.text);
}

Test(mesh, refusals_say_why)
{
    cr_assert_eq(make((struct ls_mesh_input){ 0 }), LS_EINPUT);
    cr_assert(strstr(err.text, "neither 'dp_size' nor the world size"), "%s", err.text);
    cr_assert_eq(make((struct ls_mesh_input){ .world = 8, .tp = 3 }), LS_EINPUT);
    cr_assert(strstr(err.text, "not a multiple"), "%s", err.text);
    cr_assert_eq(make((struct ls_mesh_input){ .dp = (UINT64_C(1) << 20) + 1 }), LS_EINPUT);
    cr_assert(strstr(err.text, "'dp_size' is 1048577"), "%s", err.text);
    cr_assert_eq(make((struct ls_mesh_input){ .dp = 4, .dp_replicate = 3 }), LS_EINPUT);
    cr_assert(strstr(err.text, "'dp_replicate_size' is 3, which does not divide 'dp_size' 4"), "%s", err.text);
}

Test(mesh, expert_groups_follow_the_sizes_that_were_chosen)
{
    for (size_t ep = 1; ep <= 8; ep++)
        for (size_t replicate = 1; replicate <= 3; replicate++)
            for (size_t shard = 1; shard <= 16; shard++) {
                struct ls_mesh m = { .replicate = replicate, .shard = shard, .cp = 1, .tp = 1, .pp = 1, .ep = ep, .ep_shard = ep > 1 ? LS_SIZE_ANY : 1 };
                const bool fits = replicate * shard % ep == 0;
                cr_assert_eq(ls_mesh_regroup(&m, LS_NOWHERE, &err), fits ? LS_OK : LS_EINPUT, "%zu x %zu ranks in groups of %zu", replicate, shard, ep);
                cr_assert(!fits || m.ep_shard == (ep > 1 ? replicate * shard / ep : 1));
            }
}
