// The body of the matvec family where a thread has whole columns: no barrier, no reduction. A workgroup works on one row.
// Sums are indexed in a loop, activations are not: software adapters keep what an index reaches in memory.
override WG: u32 = 16u;
const COLUMNS: u32 = 8u;   // weight rows a thread works on
const ROWS: u32 = 1u;      // as in matvec_lanes; here every row has its own workgroups

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) local: u32, @builtin(workgroup_id) wg: vec3u, @builtin(num_workgroups) groups: vec3u) {
    let first = ((wg.y * groups.x + wg.x) * WG + local) * OUTPUTS;
    if (first >= params.N) {
        return;
    }
    let units = params.K / (4u * UNIT);
    let at = (wg.z * params.x_stride + params.x_offset) / 4u;
    var sums: array<f32, COLUMNS>;
    var squares = 0.0;
    for (var unit = 0u; unit < units; unit++) {
        let raw = read_unit(at + unit * UNIT);
        let weighed = weigh_unit(raw, unit * UNIT);
        let total = sum_unit(weighed);
        let u = scale_unit(weighed, UNPACK);
        if (NORMED) {
            squares += square_unit(raw);
        }
        for (var c = 0u; c < COLUMNS; c++) {
            let row = weight_row(first, c);
            sums[c] += meet(pair_of(row, unit, units), unpack(load_unit(row, unit, units)), u, total);
        }
    }
    let scale = norm_scale(squares);
    for (var o = 0u; o < OUTPUTS; o++) {
        let n = first + o;
        if (n < params.N) {
            y[wg.z * params.N + n] = finish(wg.z, n, sums[o] * scale, sums[o + COLUMNS - OUTPUTS] * scale);
        }
    }
}
