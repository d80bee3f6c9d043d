/* src/model/safetensors.h -- internal to src/model: the header of a *.safetensors file. Weights are never read.
 *
 * File: 8 bytes little-endian length n, n bytes of JSON {name: {dtype, shape, data_offsets: [begin, end]}}, then the data.
 *   errors  LS_EINPUT: truncated, header over 100 MB, bad JSON, duplicate names, sizes that differ from dtype x shape,
 *           overlaps, holes, data that ends before or after the file does
 *   source  the format's description in huggingface/safetensors */
#ifndef LS_MODEL_SAFETENSORS_H
#define LS_MODEL_SAFETENSORS_H

#include "base/vec.h"
#include "model/build.h"

struct ls_safetensor { const char *name; enum ls_dtype dtype; unsigned dims; uint64_t dim[LS_DIMS_MAX]; uint64_t elements, begin, end; };
typedef LS_VEC(struct ls_safetensor) ls_tensor_vec;

/* Appends the tensors of a file; names live in the arena. */
LS_MUST_USE enum ls_code ls_safetensors_read(const char *path, struct ls_arena *arena, ls_tensor_vec *out, struct ls_error *err);

#endif
