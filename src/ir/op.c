#include "ir/op.h"

#include <assert.h>
#include <string.h>

enum { CLASS_C = 1, CLASS_P, CLASS_S, CLASS_H };

#define KIND_NAME(id, name, class) name,
static const char *const kind_name[] = { LS_OP_KINDS(KIND_NAME) };
#define KIND_CLASS(id, name, class) CLASS_##class,
static const unsigned char kind_class[] = { LS_OP_KINDS(KIND_CLASS) };
#define DTYPE_NAME(id, name, bytes) name,
static const char *const dtype_name[] = { LS_DTYPES(DTYPE_NAME) };
#define DTYPE_BYTES(id, name, bytes) bytes,
static const unsigned char dtype_bytes[] = { LS_DTYPES(DTYPE_BYTES) };
#define PLAIN_NAME(id, name) name,
static const char *const reduce_name[] = { LS_REDUCES(PLAIN_NAME) };
static const char *const pass_name[] = { LS_PASSES(PLAIN_NAME) };
static const char *const layout_name[] = { LS_LAYOUTS(PLAIN_NAME) };

const char *ls_op_kind_name(enum ls_op_kind kind)
{
    assert((unsigned)kind < LS_OP_COUNT);
    return kind_name[kind];
}

const char *ls_dtype_name(enum ls_dtype dtype)
{
    assert((unsigned)dtype < LS_DTYPE_COUNT);
    return dtype_name[dtype];
}

size_t ls_dtype_bytes(enum ls_dtype dtype)
{
    assert((unsigned)dtype < LS_DTYPE_COUNT);
    return dtype_bytes[dtype];
}

const char *ls_reduce_name(enum ls_reduce reduce)
{
    assert((unsigned)reduce < LS_REDUCE_COUNT);
    return reduce_name[reduce];
}

const char *ls_pass_name(enum ls_pass pass)
{
    assert((unsigned)pass < LS_PASS_COUNT);
    return pass_name[pass];
}

const char *ls_layout_name(enum ls_layout layout)
{
    assert((unsigned)layout < LS_LAYOUT_COUNT);
    return layout_name[layout];
}

static bool find(const char *const *names, size_t count, const char *name, size_t *out)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0) {
            *out = i;
            return true;
        }
    return false;
}

bool ls_op_kind_find(const char *name, enum ls_op_kind *out)
{
    size_t i;
    bool found = find(kind_name, LS_OP_COUNT, name, &i);
    if (found)
        *out = (enum ls_op_kind)i;
    return found;
}

bool ls_dtype_find(const char *name, enum ls_dtype *out)
{
    size_t i;
    bool found = find(dtype_name, LS_DTYPE_COUNT, name, &i);
    if (found)
        *out = (enum ls_dtype)i;
    return found;
}

bool ls_reduce_find(const char *name, enum ls_reduce *out)
{
    size_t i;
    bool found = find(reduce_name, LS_REDUCE_COUNT, name, &i);
    if (found)
        *out = (enum ls_reduce)i;
    return found;
}

static unsigned char class_of(const struct ls_op *op)
{
    assert(op->kind < LS_OP_COUNT);
    return kind_class[op->kind];
}

bool ls_op_is_collective(const struct ls_op *op)
{
    return class_of(op) == CLASS_C;
}

bool ls_op_is_p2p(const struct ls_op *op)
{
    return class_of(op) == CLASS_P;
}

bool ls_op_is_host(const struct ls_op *op)
{
    return class_of(op) == CLASS_H;
}

bool ls_op_gives_nothing(const struct ls_op *op)
{
    return op->kind == LS_OP_COMPUTE && op->factor.den && !op->factor.num;
}

bool ls_op_uses_comm(const struct ls_op *op)
{
    return class_of(op) == CLASS_C || class_of(op) == CLASS_P;
}

struct ls_op ls_op_make(enum ls_op_kind kind)
{
    return (struct ls_op){
        .kind = (uint8_t)kind, .peer = -1, .counts = LS_NO_ID, .symbol = LS_NO_ID, .payload = LS_NO_ID,
        .event = LS_NO_ID, .range = LS_NO_ID, .unit = LS_NO_ID, .module = LS_NO_ID, .cause = LS_NO_ID, .kernel = LS_NO_ID,
        .sources = LS_NO_COMM,
    };
}
