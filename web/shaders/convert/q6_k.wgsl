//!include quant_source
//!include quant_store
// Q6_K: w = d s * (q - 32), block of 256 {ql 128, qh 64, 16 signed scales, d f16}; s is shared by 16 weights; f32 pairs only.
// Halves of 128: quarter n of 32 takes nibble n / 2 of ql[32 (n % 2) + l] and bits 2n, 2n + 1 of qh[l].
const BLOCK: u32 = 256u;
const BYTES: u32 = 210u;
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
@group(0) @binding(1) var<storage, read_write> q: array<u32>;   // [dst rows, columns * BITS / 32]
@group(0) @binding(2) var<storage, read_write> sb: array<u32>;  // [dst rows, columns / GROUP], f32 pairs two words each
@group(0) @binding(3) var<uniform> params: Params;

fn store_pair(group: u32, block: u32, k: u32) {
    let s = i32(byte_at(block + 192u + k / 16u) << 24u) >> 24u;
    let scale = bitcast<f32>(half_to_float(half_at(block + 208u))) * f32(s);
    sb[2u * group] = bitcast<u32>(scale);
    sb[2u * group + 1u] = bitcast<u32>(scale * -32.0);
}

// codes of weights e .. e + 3 of a block
fn codes(block: u32, e: u32) -> u32 {
    let n = e % 128u / 32u;
    let low = (word_at(block + e / 128u * 64u + n % 2u * 32u + e % 32u) >> (n / 2u * 4u)) & 0x0f0f0f0fu;
    let high = (word_at(block + 128u + e / 128u * 32u + e % 32u) >> (2u * n)) & 0x03030303u;
    return low | (high << 4u);
}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) wg: vec3u, @builtin(num_workgroups) grid: vec3u, @builtin(local_invocation_index) local: u32) {
    convert((wg.y * grid.x + wg.x) * WG + local);
}
