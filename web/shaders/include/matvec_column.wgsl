// The body of the matvec family where a thread has whole columns: no barrier, no reduction. A workgroup works on one row.
// Made for SwiftShader: each 4-byte read is a gather with bounds checks (one costs about 8 multiply-adds), so 16 columns
// share the reads of x; what is indexed in a loop lives in memory, so the 16 sums have names (25 % faster than a loop).
override WG: u32 = 16u;
const COLUMNS: u32 = 16u;   // weight rows a thread works on; the text below knows no other number
const ROWS: u32 = 1u;       // as in matvec_lanes; here every row has its own workgroups

fn one_sum(row: u32, unit: u32, units: u32, u: Unit, total: f32) -> f32 {
    return meet(pair_of(row, unit, units), unpack(load_unit(row, unit, units)), u, total);
}

// What a unit adds to the sums of weight rows row .. row + 3.
fn four_sums(row: u32, unit: u32, units: u32, u: Unit, total: f32) -> vec4f {
    return vec4f(one_sum(row, unit, units, u, total), one_sum(row + 1u, unit, units, u, total),
                 one_sum(row + 2u, unit, units, u, total), one_sum(row + 3u, unit, units, u, total));
}

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) local: u32, @builtin(workgroup_id) wg: vec3u, @builtin(num_workgroups) groups: vec3u) {
    let first = ((wg.y * groups.x + wg.x) * WG + local) * OUTPUTS;
    if (first >= params.N) {
        return;
    }
    let units = params.K / (4u * UNIT);
    let at = (wg.z * params.x_stride + params.x_offset) / 4u;
    var s0 = vec4f(0.0);
    var s1 = vec4f(0.0);
    var s2 = vec4f(0.0);
    var s3 = vec4f(0.0);
    var squares = 0.0;
    for (var unit = 0u; unit < units; unit++) {
        let raw = read_unit(at + unit * UNIT);
        let weighed = weigh_unit(raw, unit * UNIT);
        let total = sum_unit(weighed);
        let u = scale_unit(weighed, UNPACK);
        if (NORMED) {
            squares += square_unit(raw);
        }
        s0 += four_sums(weight_row(first, 0u), unit, units, u, total);
        s1 += four_sums(weight_row(first, 4u), unit, units, u, total);
        s2 += four_sums(weight_row(first, 8u), unit, units, u, total);
        s3 += four_sums(weight_row(first, 12u), unit, units, u, total);
    }
    let scale = norm_scale(squares);
    var sums = array<vec4f, 4>(s0 * scale, s1 * scale, s2 * scale, s3 * scale);
    for (var o = 0u; o < OUTPUTS; o++) {
        let n = first + o;
        let other = o + COLUMNS - OUTPUTS;
        if (n < params.N) {
            y[wg.z * params.N + n] = finish(wg.z, n, sums[o / 4u][o % 4u], sums[other / 4u][other % 4u]);
        }
    }
}
