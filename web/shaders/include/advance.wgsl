// advance(index, chosen, logprob, is_bad): the end of a step for one row, by one thread. Needs step, sampling and out bound.
// An idle row only reports itself. A bad row keeps token, position, kv_len and draw, and gets BAD | DONE. Any other takes the
// chosen id (a stop id too) and moves on; DONE when it is a stop id or the new kv_len reached limit. out shows the row after.
fn advance(index: u32, chosen: u32, logprob: f32, is_bad: bool) {
    var row = step[index];
    var shown = 0.0;
    if (!is_idle(row.flags)) {
        if (is_bad) {
            row.flags |= BAD | DONE;
        } else {
            shown = logprob;
            row.token = chosen;
            row.position += 1u;
            row.kv_len += 1u;
            row.draw += 1u;
            var ends = row.kv_len >= row.limit;
            for (var i = 0u; i < 8u; i++) {
                ends = ends || sampling[row.slot].stop[i] == chosen;
            }
            row.flags |= select(0u, DONE, ends);
        }
        step[index] = row;
    }
    out[index] = OutRow(row.token, row.kv_len, row.flags, shown);
}
