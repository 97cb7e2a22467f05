// Requests for checkpoint bytes: what is at an address, and every way to fail as a WeightsError.

const MOST_PARTS = 100; // model.gguf.00 to .99

/** An error with a code that the page and Python know: "fetch_failed" | "aborted". */
export class WeightsError extends Error {
    constructor(code, message, isUnreachable = false) {
        super(message);
        this.name = "WeightsError";
        this.code = code;
        this.isUnreachable = isUnreachable;
    }
}

/** The segments of a file, their sizes and whether the server answers ranges. */
export async function probe(urls, signal) {
    const found = [];
    const ended = urls.length === 1 && /\.00$/.test(new URL(urls[0]).pathname);
    if (urls.length > 1 || !ended) {
        for (const url of urls) {
            found.push(await probeOne(url, signal).catch((error) => (urls.length === 1 && error.isMissing ? error : Promise.reject(error))));
        }
    }
    if (ended || found[0] instanceof Error) {
        const stem = ended ? urls[0].replace(/\.00(?=[?#]|$)/, "") : urls[0];
        const missing = found.pop();
        for (let k = 0; k < MOST_PARTS; k++) {
            const part = new URL(stem);
            part.pathname += `.${String(k).padStart(2, "0")}`;
            const one = await probeOne(part.href, signal).catch((error) => (error.isMissing ? error : Promise.reject(error)));
            if (one instanceof Error) {
                if (k === 0) {
                    throw missing ?? one;
                }
                break;
            }
            found.push(one);
        }
    }
    const size = found.some((one) => one.size === null) ? null : found.reduce((sum, one) => sum + one.size, 0);
    return { segments: found, size, etag: found.map((one) => one.etag).join(" "), ranged: found.every((one) => one.ranged) };
}

/** One address: a range of one byte tells size, ETag and whether ranges are answered. */
async function probeOne(url, signal) {
    const response = await request(url, { Range: "bytes=0-0" }, signal);
    response.body?.cancel().catch(() => {});
    const etag = response.headers.get("ETag") ?? "";
    if (response.status === 206) {
        const total = /\/(\d+)$/.exec(response.headers.get("Content-Range") ?? "");
        if (total) {
            return { url, size: Number(total[1]), etag, ranged: true };
        }
    }
    const length = response.status === 200 && !response.headers.get("Content-Encoding") ? response.headers.get("Content-Length") : null;
    return { url, size: length === null ? null : Number(length), etag, ranged: false };
}

/** fetch, with every way to fail as a WeightsError. */
export async function request(url, headers, signal) {
    let response;
    try {
        response = await fetch(url, { headers, signal, cache: "no-store" });
    } catch (error) {
        throw broken(url, error, signal);
    }
    const type = response.headers.get("Content-Type") ?? "";
    if (!response.ok || /^text\/html\b/i.test(type)) {
        response.body?.cancel().catch(() => {});
        const said = response.ok ? "sends an HTML page where weights were expected" : `answered ${response.status} ${response.statusText}`.trim();
        const error = new WeightsError("fetch_failed", `${url} ${said}`, response.status >= 500 || response.status === 429);
        error.isMissing = response.ok || [403, 404, 410].includes(response.status);
        throw error;
    }
    return response;
}

export function broken(url, error, signal) {
    if (signal.aborted) {
        return new WeightsError("aborted", `the download of ${url} was stopped`);
    }
    return new WeightsError("fetch_failed", `${url} could not be read: ${error.cause?.message ?? error.message}`, true);
}

