#include "ir/system.h"

#include "cases.h"

#include <criterion/criterion.h>

/* Two ranks are in one group iff their coordinates outside the communicator's dimensions, their blocks and their parts agree. */
static bool together(const struct ls_case *c, uint32_t comm, const size_t size[2], size_t a, size_t b)
{
    const struct ls_comm_info *info = &c->tables.comm.at[comm];
    size_t roles = c->t->base.roles, at[2][2] = { { a / roles / size[1], a / roles % size[1] }, { b / roles / size[1], b / roles % size[1] } };
    if (c->comm[comm].part[a % roles] != c->comm[comm].part[b % roles])
        return false;
    size_t along[2] = { 0, 0 };
    for (size_t d = 0; d < 2; d++) {
        if (!(info->free_dims >> d & 1) && at[0][d] != at[1][d])
            return false;
        for (size_t i = 0; i < 2 && (info->free_dims >> d & 1); i++)
            along[i] = along[i] * size[d] + at[i][d];
    }
    return !info->small || along[0] / info->small == along[1] / info->small;
}

Test(system, groups_are_the_partition_that_the_mesh_defines)
{
    static const char *const parts[] = { "00", "01" };
    for (uint32_t spans = 0; spans <= 3; spans++)
        for (size_t p = 0; p < 2; p++)
            for (uint32_t small = 0; small <= 3; small++)
                for (size_t r = 1; r <= 4; r++)
                    for (size_t s = 1; s <= 4; s++) {
                        struct ls_case c;
                        struct ls_groups g;
                        size_t size[2] = { r, s }, ranks = r * s * 2;
                        case_open(&c, 3, 1, 1, 1, 2);
                        case_comm(&c, 'A', spans, parts[p]);
                        c.tables.comm.at[0].small = small;
                        ls_system_groups(&c.system, 0, size, &c.arena, &g);
                        for (size_t a = 0; a < ranks; a++) {
                            cr_assert_eq(g.rank[g.first[g.group[a]] + g.member[a]], a);
                            for (size_t b = 0; b < ranks; b++)
                                cr_assert_eq(g.group[a] == g.group[b], together(&c, 0, size, a, b), "%u %s %u %zux%zu: %zu, %zu", spans,
                                             parts[p], small, r, s, a, b);
                        }
                        case_close(&c);
                    }
}

Test(system, members_in_the_given_order_and_roles_in_no_group)
{
    struct ls_case c;
    struct ls_groups g;
    case_open(&c, 0, 1, 1, 1, 4);
    case_comm(&c, 'A', 0, "0000");
    uint32_t part[] = { 0, LS_NO_ID, 0, 0 }, order[] = { 2, 0, 1, 0 };
    c.comm[0] = (struct ls_comm_roles){ part, order };
    ls_system_groups(&c.system, 0, (const size_t[]){ 1, 1 }, &c.arena, &g);
    cr_assert(g.groups == 1 && g.group[1] == LS_NO_ID && g.member[1] == LS_NO_ID);
    cr_assert(g.rank[0] == 3 && g.rank[1] == 2 && g.rank[2] == 0 && g.member[0] == 2);
    case_close(&c);
}

Test(system, a_job_of_16384_ranks_shares_its_segments)
{
    struct ls_case c;
    struct ls_job job;
    struct ls_error err;
    enum { R = 8, S = 2048, ROUNDS = 4 };
    case_open(&c, 3, 2, 1, 2, 1);
    case_comm(&c, 'A', 2, "0");
    case_driver(&c, "0*:0");
    for (size_t z = 0; z < 2; z++) {
        case_step(&c, 0, 0, z, (uint32_t)z, z ? "A" : "A A", NULL);
        case_step(&c, 1, 0, z, 1, "A A A", NULL);
    }
    uint32_t node[ROUNDS] = { 0 }, *letter = LS_NEW(&c.arena, uint32_t, R * S * ROUNDS);
    for (size_t i = 0; i < R * S * ROUNDS; i++)
        letter[i] = i * 7 % 5 == 0;
    struct ls_assignment a = { { R, S }, ROUNDS, node, letter };
    cr_assert_eq(ls_system_job(&c.system, &a, &c.arena, &job, &err), LS_OK);
    cr_assert(job.ranks == R * S && job.comm[0].groups == R);
    for (size_t x = 0; x < R * S; x++) {
        uint32_t state = 0;
        for (size_t i = 0; i < ROUNDS; i++) {
            uint32_t z = letter[i * R * S + x];
            cr_assert_eq(job.rank[x].segment[i], *ls_table_segment(c.t, state, 0, z, 0));
            state = *ls_table_next(c.t, state, 0, z);
        }
    }
    case_close(&c);
}
