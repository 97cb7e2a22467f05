// A part of one row's softmax: greatest logit, its lowest id, sum exp(logit - maximum), count of logits that are not finite.
// Maximum, id and count do not depend on the order of merging; the sum does, within rounding.
struct Partial {
    maximum: f32,
    id: u32,
    total: f32,
    bad: u32,
}

fn empty_part() -> Partial {
    return Partial(ABSENT, NO_TOKEN, 0.0, 0u);
}

// exp(-gap), gap >= 0; a gap may overflow.
fn decay(gap: f32) -> f32 {
    return exp(-min(gap, 200.0));
}

// Ids come in rising order, so that an equal logit leaves the lower id.
fn add_logit(part: Partial, id: u32, logit: f32) -> Partial {
    var next = part;
    if ((bitcast<u32>(logit) & 0x7f800000u) == 0x7f800000u) {
        next.bad += 1u;
    } else if (logit > part.maximum) {
        next.total = part.total * decay(logit - part.maximum) + 1.0;
        next.maximum = logit;
        next.id = id;
    } else if (logit > ABSENT) {
        next.total += decay(part.maximum - logit);
    }
    return next;
}

fn merge(a: Partial, b: Partial) -> Partial {
    let top = max(a.maximum, b.maximum);
    let id = select(select(b.id, a.id, a.maximum > b.maximum), min(a.id, b.id), a.maximum == b.maximum);
    return Partial(top, id, a.total * decay(top - a.maximum) + b.total * decay(top - b.maximum), a.bad + b.bad);
}
