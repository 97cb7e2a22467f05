// Bytes of checkpoints: URL or File -> browser storage -> typed arrays for the GPU queue, in chunks; nothing here knows a model.
//
// A file is kept in CacheStorage in chunks of 16 MiB, each a Response of status 200 (put() refuses a 206), beside a plan
// {segments: [{url, size}], size, etag, sha256, chunk, ranged}. A broken-off download goes on with the chunks that are missing.
// While chunks are read, the next ones are already on their way. A server without ranges is read as one stream.

import { broken, probe, request, WeightsError } from "./weights_net.js";
import { chunks, openShelf } from "./weights_store.js";

/** Bytes of a chunk; a multiple of 4, so that chunk borders are borders of words. */
export const CHUNK = 16 * 1024 * 1024;
const AHEAD = 3; // chunks that are fetched before they are asked for where they cannot be stored
const HELD = 3; // chunks kept in memory
const AT_ONCE = 2; // downloads side by side
const RETRIES = 2;
const PROGRESS_MS = 50;

/**
 * Opens a file by address and starts to download what is not stored.
 * @param {string} url  where `url` does not exist, `url`.00, `url`.01, ... are taken as its parts
 * @param {{parts?: string[], nbytes?: number, sha256?: string, store?: "cache" | "none", chunk?: number, retryMs?: number,
 *     onProgress?: (done: number, total: number) => void, signal?: AbortSignal}} [options]
 *     parts: addresses of the parts in order; nbytes: the size it must have; sha256: names the version (a stored copy of it is used
 *     without asking the server); onProgress counts the bytes that are there, at most every 50 ms
 * @returns {Promise<Remote>}
 * @throws {WeightsError} not found, unreachable, an HTML page in its place, another size than nbytes, aborted
 */
export async function openUrl(url, options = {}) {
    const { parts = [], nbytes = 0, sha256 = "", store = "cache", chunk = CHUNK } = options;
    const urls = (parts.length ? parts : [url]).map((each) => new URL(each, globalThis.location?.href).href);
    const control = new AbortController();
    if (options.signal?.aborted) {
        control.abort();
    }
    options.signal?.addEventListener("abort", () => control.abort(), { once: true });
    const { shelf, notice } = await openShelf(store, urls[0]);
    const kept = await shelf.plan();
    const usable = kept !== null && kept.chunk === chunk && kept.parts === urls.length && (!nbytes || kept.size === nbytes);
    let plan = kept;
    let isChanged = false;
    if (!usable || !sha256 || kept.sha256 !== sha256) {
        try {
            plan = { ...(await probe(urls, control.signal)), sha256, chunk, parts: urls.length };
        } catch (error) {
            if (!error.isUnreachable || !usable || sha256 || (await shelf.present(kept)).size < chunks(kept)) {
                throw error;
            }
        }
        isChanged = kept !== null && (!usable || kept.size !== plan.size || kept.etag !== plan.etag || (sha256 !== "" && kept.sha256 !== sha256));
    }
    if (nbytes && plan.size !== null && plan.size !== nbytes) {
        throw new WeightsError("fetch_failed", `${urls[0]} has ${plan.size} bytes, ${nbytes} were expected`);
    }
    if (isChanged) {
        await shelf.clear();
    } else if (kept !== null) {
        plan.sha256 ||= kept.sha256;
    }
    const remote = new Remote(plan, shelf, control, options);
    remote.notice = notice;
    await remote.start();
    return remote;
}

/**
 * A File or Blob that a person chose; it is read where it is.
 * @param {Blob} file
 * @returns {Local}
 */
export function openFile(file) {
    return new Local(file);
}

/** What reads a file: name, size, notice (for a person, or ""), pieces(offset, n), read(offset, n), close(). */
class Readable {
    notice = "";

    constructor(name, size) {
        this.name = name;
        this.size = size;
    }

    /** The n bytes at offset in one array. @returns {Promise<Uint8Array>} */
    async read(offset, n) {
        return join(await this.views(offset, n)).subarray(0, n);
    }

    /**
     * The n bytes at offset as arrays for GPUQueue.writeBuffer, one after another: every length is a multiple of 4, zeros fill the
     * last word. They are views of chunks where they can be: use them at once, do not write to them.
     * @returns {Promise<Uint8Array[]>}
     */
    async pieces(offset, n) {
        const views = await this.views(offset, n);
        const whole = views.slice(0, -1).every((view) => view.length % 4 === 0) ? views : [join(views)];
        const last = whole.pop();
        const rest = last.length % 4;
        if (last.length > rest) {
            whole.push(last.subarray(0, last.length - rest));
        }
        if (rest) {
            const word = new Uint8Array(4);
            word.set(last.subarray(last.length - rest));
            whole.push(word);
        }
        return whole;
    }

    /** Ends what is still on its way. */
    close() {}
}

class Local extends Readable {
    #file;

    constructor(file) {
        super(file.name ?? "file", file.size);
        this.#file = file;
    }

    async views(offset, n) {
        checkRange(this, offset, n);
        try {
            return [new Uint8Array(await this.#file.slice(offset, offset + n).arrayBuffer())];
        } catch (error) {
            throw new WeightsError("fetch_failed", `${this.name} cannot be read any more: ${error.message}`);
        }
    }
}

class Remote extends Readable {
    #plan;
    #shelf;
    #control;
    #options;
    #present = new Set(); // chunks in storage
    #keeps; // whether new chunks go to storage
    #held = new Map(); // chunks in memory
    #holdsAll = false;
    #loading = new Map();
    #puts = Promise.resolve(); // the writes to storage, one after another
    #putting = new Set();
    #wanted = 0; // the chunk read last
    #wake = () => {};
    #waiting = new Map(); // for chunks of a stream: {promise, resolve, reject}
    #streaming = null;
    #streamAt = 0; // the chunk that the stream is in
    #done = 0;
    #told = 0;

    constructor(plan, shelf, control, options) {
        super(decodeURIComponent(new URL(plan.segments[0].url).pathname.split("/").at(-1)), plan.size);
        this.#plan = plan;
        this.#shelf = shelf;
        this.#control = control;
        this.#options = options;
        this.#keeps = shelf.isLasting;
    }

    /** Finds what is stored and lets the rest come; a stream of unknown length is read to its end first. */
    async start() {
        const isUnknown = this.#plan.size === null;
        if (isUnknown) {
            [this.#keeps, this.#holdsAll] = [false, true];
            await this.#stream();
            [this.#keeps, this.size] = [this.#shelf.isLasting, this.#plan.size];
        }
        this.#present = await this.#shelf.present(this.#plan);
        if (this.#keeps) {
            await this.#keep(() => this.#shelf.setPlan(this.#plan));
        }
        this.#tell(isUnknown ? this.size : [...this.#present].reduce((sum, i) => sum + this.#length(i), 0));
        let next = 0;
        const some = async () => {
            while (next < chunks(this.#plan) && !this.#control.signal.aborted) {
                const i = next++;
                if (this.#present.has(i)) {
                    continue;
                }
                while (!this.#keeps && !this.#holdsAll && i > this.#wanted + AHEAD) {
                    await new Promise((resolve) => (this.#wake = chain(this.#wake, resolve)));
                }
                await this.#load(i);
                await this.#puts;
            }
        };
        for (let k = 0; k < AT_ONCE; k++) {
            some().catch(() => {}); // whoever reads the chunk asks again and gets the error
        }
    }

    async views(offset, n) {
        checkRange(this, offset, n);
        const found = [];
        for (let at = offset; at < offset + n; ) {
            const i = Math.floor(at / this.#plan.chunk);
            const from = at - i * this.#plan.chunk;
            const take = Math.min(this.#plan.chunk - from, offset + n - at);
            found.push((await this.#chunk(i)).subarray(from, from + take));
            at += take;
        }
        return found.length ? found : [new Uint8Array(0)];
    }

    close() {
        this.#control.abort();
        this.#wake();
        this.#held.clear();
    }

    #chunk(i) {
        this.#wanted = i;
        this.#wake();
        this.#wake = () => {};
        const found = this.#held.get(i) ?? this.#load(i);
        if (this.#present.has(i + 1) && !this.#held.has(i + 1)) {
            this.#load(i + 1).catch(() => {}); // read from storage while this one is used; whoever wants it gets the error
        }
        return found;
    }

    #length(i) {
        return Math.min(this.#plan.chunk, this.#plan.size - i * this.#plan.chunk);
    }

    #load(i) {
        let promise = this.#loading.get(i);
        if (!promise) {
            promise = this.#bring(i).finally(() => this.#loading.delete(i));
            this.#loading.set(i, promise);
        }
        return promise;
    }

    /** A chunk from memory, storage or the network. */
    async #bring(i) {
        for (let puts = null; puts !== this.#puts; ) {
            await (puts = this.#puts);
        }
        let bytes = this.#held.get(i) ?? (this.#present.has(i) ? await this.#shelf.get(i) : null);
        if (bytes?.length !== this.#length(i)) {
            this.#present.delete(i); // evicted by the browser, or never there
            bytes = this.#plan.ranged ? await this.#download(i) : await this.#arrival(i);
        }
        if (!this.#present.has(i)) {
            this.#put(i, bytes);
        }
        this.#hold(i, bytes);
        return bytes;
    }

    #hold(i, bytes) {
        if (this.#keeps && Math.abs(i - this.#wanted) > 1) {
            return; // storage has it when it is asked for
        }
        this.#held.set(i, bytes);
        const most = this.#holdsAll ? Infinity : this.#keeps ? HELD : HELD + AHEAD;
        while (this.#held.size > most) {
            const behind = [...this.#held.keys()].filter((k) => k < this.#wanted);
            this.#held.delete(behind.length ? Math.min(...behind) : Math.max(...this.#held.keys()));
        }
    }

    /** Queues a chunk for storage; readers do not wait for it. */
    #put(i, bytes) {
        if (this.#keeps && !this.#putting.has(i)) {
            this.#putting.add(i);
            this.#puts = this.#puts.then(() => this.#keep(async () => {
                await this.#shelf.put(i, bytes);
                this.#present.add(i);
            }).finally(() => this.#putting.delete(i)));
        }
    }

    /** Runs a write to storage; where there is no room the file is used without being kept. */
    async #keep(write) {
        try {
            if (this.#keeps) {
                await write();
            }
        } catch (error) {
            this.#keeps = false;
            this.#holdsAll ||= !this.#plan.ranged;
            const full = error.name === "QuotaExceededError";
            this.notice = full ? "The browser's storage has no room for the model: it is used without being kept." : `The model is not kept: ${error.message}`;
        }
    }

    /** A chunk by range requests, one for each segment it touches. */
    async #download(i) {
        const begin = i * this.#plan.chunk;
        const out = new Uint8Array(this.#length(i));
        let start = 0;
        for (const segment of this.#plan.segments) {
            const from = Math.max(begin, start);
            const to = Math.min(begin + out.length, start + segment.size);
            if (from < to) {
                await this.#range(segment, from - start, to - start, out.subarray(from - begin, to - begin));
            }
            start += segment.size;
        }
        return out;
    }

    /** Bytes [from, to) of a segment into `out`; a broken connection is tried again. */
    async #range(segment, from, to, out) {
        for (let attempt = 0; ; attempt++) {
            try {
                const response = await request(segment.url, { Range: `bytes=${from}-${to - 1}` }, this.#control.signal);
                const told = /^bytes (\d+)-/.exec(response.headers.get("Content-Range") ?? "");
                if (response.status !== 206 || (told && Number(told[1]) !== from)) {
                    throw new WeightsError("fetch_failed", `${segment.url} answered ${response.status} to a range, bytes from ${from} were expected`);
                }
                const etag = response.headers.get("ETag");
                if (etag && segment.etag && etag !== segment.etag) {
                    await this.#shelf.clear();
                    throw new WeightsError("fetch_failed", `${segment.url} has changed on the server while it was read; load it again`);
                }
                await this.#readBody(response, segment.url, out);
                return;
            } catch (error) {
                if (!error.isUnreachable || attempt === RETRIES || this.#control.signal.aborted) {
                    throw error;
                }
                await new Promise((resolve) => setTimeout(resolve, (this.#options.retryMs ?? 500) * 2 ** attempt));
            }
        }
    }

    async #readBody(response, url, out) {
        const reader = response.body.getReader();
        let at = 0;
        try {
            for (;;) {
                const { done, value } = await reader.read().catch((error) => {
                    throw broken(url, error, this.#control.signal);
                });
                if (done) {
                    break;
                }
                if (at + value.length > out.length) {
                    reader.cancel().catch(() => {});
                    throw new WeightsError("fetch_failed", `${url} sends more than the ${out.length} bytes asked for`);
                }
                out.set(value, at);
                at += value.length;
                this.#tell(value.length);
            }
            if (at < out.length) {
                throw new WeightsError("fetch_failed", `${url} ended after ${at} of ${out.length} bytes`, true);
            }
        } catch (error) {
            this.#tell(-at);
            throw error;
        }
    }

    /** A chunk of a server without ranges: the whole file is read once, when the first chunk is missing. */
    async #arrival(i) {
        while (this.#streaming && i < this.#streamAt) {
            await this.#streaming; // it went by and was evicted: once more, after this
        }
        if (!this.#streaming) {
            this.#holdsAll ||= !this.#keeps;
            this.#streaming = this.#stream().catch((error) => {
                this.#waiting.forEach((waiting) => waiting.reject(error));
                this.#waiting.clear();
            }).finally(() => (this.#streaming = null));
        }
        if (!this.#waiting.has(i)) {
            this.#waiting.set(i, deferred());
        }
        return this.#waiting.get(i).promise;
    }

    /** Reads all segments from their beginnings; chunks that are stored already are passed over. */
    async #stream() {
        let [at, total] = [0, 0];
        this.#streamAt = 0;
        let out = new Uint8Array(this.#plan.size === null ? this.#plan.chunk : this.#length(0));
        const finish = async () => {
            const [i, bytes] = [this.#streamAt, out.subarray(0, at)];
            if (!this.#present.has(i)) {
                this.#put(i, bytes);
                this.#hold(i, bytes);
            }
            this.#waiting.get(i)?.resolve(bytes);
            this.#waiting.delete(i);
            this.#streamAt = i + 1;
            at = 0;
            out = new Uint8Array(this.#plan.size === null ? this.#plan.chunk : Math.max(0, this.#length(i + 1)));
            await this.#puts;
        };
        for (const segment of this.#plan.segments) {
            const reader = (await request(segment.url, {}, this.#control.signal)).body.getReader();
            for (;;) {
                const { done, value } = await reader.read().catch((error) => {
                    throw broken(segment.url, error, this.#control.signal);
                });
                if (done) {
                    break;
                }
                total += value.length;
                if (this.#plan.size !== null && total > this.#plan.size) {
                    throw new WeightsError("fetch_failed", `${segment.url} sends more than the ${this.#plan.size} bytes announced`);
                }
                for (let from = 0; from < value.length; ) {
                    const take = Math.min(out.length - at, value.length - from);
                    out.set(value.subarray(from, from + take), at);
                    from += take;
                    at += take;
                    if (this.#plan.size !== null && !this.#present.has(this.#streamAt)) {
                        this.#tell(take);
                    }
                    if (at === out.length) {
                        await finish();
                    }
                }
            }
        }
        if (this.#plan.size === null) {
            this.#plan.size = total;
            if (at) {
                await finish();
            }
        } else if (total < this.#plan.size) {
            throw new WeightsError("fetch_failed", `${this.#plan.segments.at(-1).url} ended after ${total} of ${this.#plan.size} bytes`);
        }
    }

    #tell(more) {
        this.#done += more;
        const now = performance.now();
        if (this.#options.onProgress && !this.#control.signal.aborted && (now - this.#told >= PROGRESS_MS || this.#done === this.#plan.size)) {
            this.#told = now;
            this.#options.onProgress(this.#done, this.#plan.size);
        }
    }
}

function join(views) {
    if (views.length === 1) {
        return views[0];
    }
    const out = new Uint8Array(views.reduce((sum, view) => sum + view.length, 0));
    let at = 0;
    for (const view of views) {
        out.set(view, at);
        at += view.length;
    }
    return out;
}

function checkRange(file, offset, n) {
    if (offset < 0 || n < 0 || offset + n > file.size) {
        throw new WeightsError("bad_checkpoint", `${file.name}: bytes ${offset} to ${offset + n} wanted, the file ends at ${file.size}`);
    }
}

function chain(first, second) {
    return () => {
        first();
        second();
    };
}

function deferred() {
    const made = {};
    made.promise = new Promise((resolve, reject) => Object.assign(made, { resolve, reject }));
    return made;
}
