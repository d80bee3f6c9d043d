#include "model/safetensors.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADER_BYTES_MAX = 100000000 };

/* No 8 or 16 bit integer of ours is signed; only the size matters. */
static const struct { const char *name; enum ls_dtype dtype; } dtypes[] = {
    { "F64", LS_DTYPE_F64 },   { "F32", LS_DTYPE_F32 },      { "F16", LS_DTYPE_F16 },      { "BF16", LS_DTYPE_BF16 },
    { "F8_E4M3", LS_DTYPE_F8 }, { "F8_E5M2", LS_DTYPE_F8 },  { "F8_E8M0", LS_DTYPE_F8 },   { "I64", LS_DTYPE_I64 },
    { "U64", LS_DTYPE_I64 },   { "I32", LS_DTYPE_I32 },      { "U32", LS_DTYPE_I32 },      { "U8", LS_DTYPE_U8 },
    { "I8", LS_DTYPE_U8 },     { "BOOL", LS_DTYPE_BOOL },
};

static bool unsigned_of(const json_t *n, uint64_t *out)
{
    if (!json_is_integer(n) || json_integer_value(n) < 0)
        return false;
    *out = (uint64_t)json_integer_value(n);
    return true;
}

static enum ls_code read_tensor(const char *name, const json_t *n, uint64_t data_bytes, struct ls_loc at, struct ls_safetensor *out,
                                struct ls_error *err)
{
    const char *key = NULL;
    const json_t *value = NULL;
    json_object_foreach((json_t *)(uintptr_t)n, key, value)
        if (strcmp(key, "dtype") != 0 && strcmp(key, "shape") != 0 && strcmp(key, "data_offsets") != 0)
            return ls_fail(err, LS_EINPUT, at, "tensor '%.200s' has the unknown key '%.60s'", name, key);
    const json_t *dtype = json_object_get(n, "dtype"), *shape = json_object_get(n, "shape"), *offsets = json_object_get(n, "data_offsets");
    if (!json_is_string(dtype) || !json_is_array(shape) || !json_is_array(offsets) || json_array_size(offsets) != 2)
        return ls_fail(err, LS_EINPUT, at, "tensor '%.200s' needs a dtype, a shape and two data_offsets", name);
    size_t d = 0;
    while (d < sizeof dtypes / sizeof *dtypes && strcmp(dtypes[d].name, json_string_value(dtype)) != 0)
        d++;
    if (d == sizeof dtypes / sizeof *dtypes)
        return ls_fail(err, LS_EINPUT, at, "tensor '%.200s' has the dtype '%.30s', which is not supported", name, json_string_value(dtype));
    out->dtype = dtypes[d].dtype;
    if (json_array_size(shape) > LS_DIMS_MAX)
        return ls_fail(err, LS_EINPUT, at, "tensor '%.200s' has %zu dimensions, more than %d", name, json_array_size(shape), LS_DIMS_MAX);
    for (size_t i = 0; i < json_array_size(shape); i++)
        if (!unsigned_of(json_array_get(shape, i), &out->dim[out->dims++]))
            return ls_fail(err, LS_EINPUT, at, "tensor '%.200s' has a dimension that is not a number of at least 0", name);
    enum ls_code rc = ls_shape_elements(out->dim, out->dims, name, at, &out->elements, err);
    if (rc != LS_OK)
        return rc;
    if (!unsigned_of(json_array_get(offsets, 0), &out->begin) || !unsigned_of(json_array_get(offsets, 1), &out->end) ||
        out->begin > out->end)
        return ls_fail(err, LS_EINPUT, at, "tensor '%.200s' has data_offsets that are no range", name);
    if (out->end > data_bytes)
        return ls_fail(err, LS_EINPUT, at, "tensor '%.200s' ends at byte %" PRIu64 " of the data, but the file has %" PRIu64, name,
                       out->end, data_bytes);
    uint64_t bytes = out->elements * ls_dtype_bytes(out->dtype);
    if (out->end - out->begin != bytes)
        return ls_fail(err, LS_EINPUT, at, "tensor '%.200s' has %" PRIu64 " bytes of data where its dtype and shape need %" PRIu64, name,
                       out->end - out->begin, bytes);
    return LS_OK;
}

static int by_begin(const void *x, const void *y)
{
    const struct ls_safetensor *a = x, *b = y;
    return a->begin != b->begin ? (a->begin > b->begin) - (a->begin < b->begin) : (a->end > b->end) - (a->end < b->end);
}

/* The data must be covered without gaps: anything else is a damaged or a crafted file. */
static enum ls_code check_cover(const struct ls_safetensor *tensor, size_t count, uint64_t data_bytes, struct ls_loc at, struct ls_error *err)
{
    struct ls_safetensor *sorted = count ? malloc(count * sizeof *sorted) : NULL;
    if (count && !sorted)
        ls_out_of_memory(count * sizeof *sorted);
    if (count)
        memcpy(sorted, tensor, count * sizeof *sorted);
    if (count)
        qsort(sorted, count, sizeof *sorted, by_begin);
    uint64_t end = 0;
    enum ls_code rc = LS_OK;
    for (size_t i = 0; rc == LS_OK && i < count; end = sorted[i++].end) {
        if (sorted[i].begin < end)
            rc = ls_fail(err, LS_EINPUT, at, "tensors '%.150s' and '%.150s' overlap", sorted[i ? i - 1 : 0].name, sorted[i].name);
        else if (sorted[i].begin > end)
            rc = ls_fail(err, LS_EINPUT, at, "%" PRIu64 " bytes before tensor '%.200s' belong to no tensor", sorted[i].begin - end, sorted[i].name);
    }
    if (rc == LS_OK && end != data_bytes)
        rc = ls_fail(err, LS_EINPUT, at, "%" PRIu64 " bytes at the end belong to no tensor", data_bytes - end);
    free(sorted);
    return rc;
}

static enum ls_code read_header(const char *text, size_t length, uint64_t data_bytes, struct ls_loc at, struct ls_arena *arena,
                                ls_tensor_vec *out, struct ls_error *err)
{
    json_error_t problem;
    json_t *root = json_loadb(text, length, JSON_REJECT_DUPLICATES, &problem);
    if (!root)
        return ls_fail(err, LS_EINPUT, at, "the header is not JSON: %s (byte %d)", problem.text, problem.position);
    enum ls_code rc = LS_OK;
    if (!json_is_object(root))
        rc = ls_fail(err, LS_EINPUT, at, "the header is not a JSON object");
    else if (json_object_size(root) > LS_PARAMS_MAX)
        rc = ls_fail(err, LS_EINPUT, at, "the header names more than %d tensors", LS_PARAMS_MAX);
    const char *name = NULL;
    json_t *value = NULL;
    size_t first = out->count;
    if (rc == LS_OK)
        json_object_foreach(root, name, value) {
            if (strcmp(name, "__metadata__") == 0)
                continue;
            struct ls_safetensor t = { .name = ls_arena_str(arena, name) };
            rc = json_is_object(value) ? read_tensor(t.name, value, data_bytes, at, &t, err)
                                       : ls_fail(err, LS_EINPUT, at, "the entry of tensor '%.200s' is not an object", name);
            if (rc != LS_OK)
                break;
            ls_push(out, t);
        }
    if (rc == LS_OK)
        rc = check_cover(out->at + first, out->count - first, data_bytes, at, err);
    json_decref(root);
    return rc;
}

enum ls_code ls_safetensors_read(const char *path, struct ls_arena *arena, ls_tensor_vec *out, struct ls_error *err)
{
    struct ls_loc at = { ls_arena_str(arena, path), 0, 0 };
    unsigned char prefix[8];
    FILE *f = fopen(path, "rb");
    if (!f)
        return ls_fail(err, LS_EINPUT, at, "cannot open the file: %s", strerror(errno));
    enum ls_code rc = LS_OK;
    char *text = NULL;
    long size = fseek(f, 0, SEEK_END) == 0 ? ftell(f) : -1;
    if (size < 0 || fseek(f, 0, SEEK_SET) != 0)
        rc = ls_fail(err, LS_EINPUT, at, "cannot read the file: %s", strerror(errno));
    else if (size < 8 || fread(prefix, 1, 8, f) != 8)
        rc = ls_fail(err, LS_EINPUT, at, "the file is shorter than the 8 bytes that give the header's length");
    uint64_t length = 0;
    for (int i = 7; rc == LS_OK && i >= 0; i--)
        length = length << 8 | prefix[i];
    if (rc == LS_OK && length > HEADER_BYTES_MAX)
        rc = ls_fail(err, LS_EINPUT, at, "the header says it has %" PRIu64 " bytes, more than %d", length, HEADER_BYTES_MAX);
    else if (rc == LS_OK && length > (uint64_t)size - 8)
        rc = ls_fail(err, LS_EINPUT, at, "the header says it has %" PRIu64 " bytes, but the file has %ld", length, size);
    if (rc == LS_OK) {
        text = malloc((size_t)length + 1);
        if (!text)
            ls_out_of_memory((size_t)length + 1);
        if (fread(text, 1, (size_t)length, f) != length)
            rc = ls_fail(err, LS_EINPUT, at, "the header cannot be read");
    }
    if (rc == LS_OK)
        rc = read_header(text, (size_t)length, (uint64_t)size - 8 - length, at, arena, out, err);
    free(text);
    fclose(f);
    return rc;
}
