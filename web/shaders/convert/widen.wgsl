//!include quant_source
// Dense rows of two-byte numbers to f32, exact, subnormals and infinities included; a thread writes one number.
const BF16: u32 = 0u;    // 1: bf16, 0: f16
override WG: u32 = 64u;

struct Params {
    src: u32,       // byte offset of the first block in the staging buffer
    rows: u32,
    columns: u32,
    dst_row: u32,   // destination row of row 0 of the tensor
    first: u32,     // row of the tensor that stands at src
    head_dim: u32,  // 0: rows keep their order
}
@group(0) @binding(0) var<storage, read> src: array<u32>;
@group(0) @binding(1) var<storage, read_write> w: array<u32>;  // [dst rows, columns], bits of f32
@group(0) @binding(2) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) wg: vec3u, @builtin(num_workgroups) grid: vec3u, @builtin(local_invocation_index) local: u32) {
    let unit = (wg.y * grid.x + wg.x) * WG + local;
    if (unit >= params.rows * params.columns) {
        return;
    }
    let row = unit / params.columns;
    let out = target_row(row) * params.columns + unit % params.columns;
    let bits = half_at(params.src + 2u * unit);
    if (BF16 == 1u) {
        w[out] = bits << 16u;
    } else {
        w[out] = half_to_float(bits);
    }
}
