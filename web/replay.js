// One GPU device's pipelines, recordings, programs and readbacks. Python builds them once; a step is one call of run().

/**
 * @typedef {{label: string, pipelines: GPUComputePipeline[], groups: GPUBindGroup[], grid: number[]}} Recording
 * @typedef {{buffer: GPUBuffer, offset: number, nbytes: number}} Copy
 * @typedef {{work: (Recording | Copy)[], nbytes: number, perSubmit: number}} Program
 * @typedef {{pipeline: GPUComputePipeline, layout: GPUBindGroupLayout}} Kernel
 */

const KINDS = { r: "read-only-storage", w: "storage", u: "uniform" };
const LATE_MS = 50; // a result of nothing that takes longer waits for the browser's own clock
const NUDGE_MS = 4;
const QUERIES = 2048; // dispatches a query set times; WebGPU allows 4096 queries in one

/** The state of one device. After a fault (device lost, an error nobody caught) nothing runs any more. */
export class Replay {
    /**
     * @param {GPUDevice} device
     * @param {(ticket: number, bytes: Uint8Array | null) => void} deliver called once for every ticket of run(), with null after a fault
     */
    constructor(device, deliver) {
        this.device = device;
        this.queue = device.queue;
        this.deliver = deliver;
        this.fault = null;
        this.pending = new Set();
        this.ticket = 0;
        this.free = new Map();
        this.layouts = new Map();
        this.kicked = 0;
        this.isLazy = false;
        this.waiting = 0;
        this.nudging = null;
        device.addEventListener("uncapturederror", (event) => {
            event.preventDefault();
            this.fail(event.error instanceof GPUOutOfMemoryError ? "memory" : "error", event.error.message);
        });
        device.lost.then((info) => this.fail("lost", info.message || info.reason));
    }

    /** Ends what is pending and all that comes; the first fault stays. */
    fail(kind, message) {
        this.fault ??= { kind, message };
        const pending = [...this.pending];
        this.pending.clear();
        for (const ticket of pending) {
            this.deliver(ticket, null);
        }
    }

    /** A lost device still makes buffers and pipelines that do nothing: throws instead. */
    check() {
        if (this.fault) {
            throw new Error(this.fault.message);
        }
    }

    /**
     * A zeroed buffer.
     * @param {string} label @param {number} size @param {number} usage
     * @throws {Error} with the browser's words when it cannot be made
     */
    async createBuffer(label, size, usage) {
        this.check();
        this.device.pushErrorScope("validation");
        this.device.pushErrorScope("out-of-memory");
        let buffer;
        let thrown = null;
        try {
            buffer = this.device.createBuffer({ label, size, usage });
        } catch (error) {
            thrown = error;
        }
        const errors = await Promise.all([this.device.popErrorScope(), this.device.popErrorScope()]);
        const error = thrown ?? errors[0] ?? errors[1] ?? this.fault;
        if (error) {
            buffer?.destroy();
            throw new Error(error.message);
        }
        return buffer;
    }

    /** Layouts for bindings given as one letter each (r, w, u), made once. */
    layout(kinds) {
        let found = this.layouts.get(kinds);
        if (!found) {
            const entries = [...kinds].map((kind, binding) => ({ binding, visibility: GPUShaderStage.COMPUTE, buffer: { type: KINDS[kind] } }));
            const layout = this.device.createBindGroupLayout({ label: kinds, entries });
            found = { layout, pipeline: this.device.createPipelineLayout({ label: kinds, bindGroupLayouts: [layout] }) };
            this.layouts.set(kinds, found);
        }
        return found;
    }

    /**
     * @param {string} label @param {string} code @param {string} kinds
     * @returns {Promise<Kernel>}
     * @throws {Error} with the compiler's messages
     */
    async compile(label, code, kinds) {
        this.check();
        const { layout, pipeline: pipelineLayout } = this.layout(kinds);
        this.device.pushErrorScope("validation");
        const module = this.device.createShaderModule({ label, code });
        const refused = this.device.popErrorScope();
        try {
            const made = this.device.createComputePipelineAsync({ label, layout: pipelineLayout, compute: { module, entryPoint: "main" } });
            const [pipeline] = await Promise.all([made, refused]);
            this.check();
            return { pipeline, layout };
        } catch (error) {
            const info = await module.getCompilationInfo();
            const lines = info.messages.filter((m) => m.type === "error").map((m) => `line ${m.lineNum}: ${m.message}`);
            throw new Error(lines.join("; ") || (await refused)?.message || error.message);
        }
    }

    /** Whether the compiler takes this text. @param {string} code */
    async accepts(code) {
        this.device.pushErrorScope("validation");
        const module = this.device.createShaderModule({ label: "accepts", code });
        const error = await this.device.popErrorScope();
        const info = await module.getCompilationInfo();
        return !error && !info.messages.some((m) => m.type === "error");
    }

    /** @returns {Recording} */
    recording(label) {
        return { label, pipelines: [], groups: [], grid: [] };
    }

    /**
     * Adds a dispatch to a recording.
     * @param {Recording} recording @param {string} label @param {Kernel} kernel
     * @param {number} x @param {number} y @param {number} z
     * @param {...(GPUBuffer|number)} slices buffer, offset, nbytes (0: to its end) for each binding in order
     */
    add(recording, label, kernel, x, y, z, ...slices) {
        const entries = [];
        for (let i = 0; i < slices.length; i += 3) {
            const [buffer, offset, size] = slices.slice(i, i + 3);
            entries.push({ binding: i / 3, resource: size ? { buffer, offset, size } : { buffer, offset } });
        }
        recording.pipelines.push(kernel.pipeline);
        recording.groups.push(this.device.createBindGroup({ label, layout: kernel.layout, entries }));
        recording.grid.push(x, y, z);
    }

    /** @param {number} perSubmit dispatches a submit may hold, 0 for all @returns {Program} */
    program(perSubmit) {
        return { work: [], nbytes: 0, perSubmit };
    }

    /** @param {Program} program @param {Recording} recording */
    addRecording(program, recording) {
        program.work.push(recording);
    }

    /** @param {Program} program */
    addCopy(program, buffer, offset, nbytes) {
        program.work.push({ buffer, offset, nbytes });
        program.nbytes += nbytes;
    }

    /**
     * Encodes and submits a program; deliver() gets what it copied out.
     * @param {Program} program
     * @param {boolean} kick write 4 bytes again and again until the result is there: Chromium looks at a fence only when something
     *     is sent, and 3 ms later otherwise
     * @returns {number} the ticket; 0 after a fault
     */
    run(program, kick) {
        if (this.fault) {
            return 0;
        }
        const ticket = ++this.ticket;
        this.pending.add(ticket);
        const end = (bytes) => {
            if (kick) {
                this.kicked--;
            }
            if (this.pending.delete(ticket)) {
                this.deliver(ticket, bytes);
            }
        };
        this.submit(program).then(end, (error) => {
            this.fault ??= { kind: "error", message: error.message };
            end(null);
        });
        if (kick && this.kicked++ === 0) {
            this.kickLoop();
        }
        return ticket;
    }

    /** @param {Program} program @returns {Promise<Uint8Array>} what it copied out; rejected after a fault */
    async submit(program) {
        const readback = program.nbytes ? this.takeReadback(program.nbytes) : null;
        this.encode(program, readback);
        if (!readback) {
            await this.idle();
            return new Uint8Array(0);
        }
        await this.nudged(readback.mapAsync(GPUMapMode.READ));
        this.check();
        const bytes = new Uint8Array(readback.getMappedRange()).slice();
        readback.unmap();
        this.free.get(readback.size).push(readback);
        return bytes;
    }

    /** Ends when all that was submitted has run. */
    async idle() {
        await this.nudged(this.queue.onSubmittedWorkDone());
        this.check();
    }

    /**
     * Firefox looks for finished work every 100 ms and at each submit (seen in ESR 153): where probe() found that, empty submits
     * are sent while somebody waits.
     */
    async nudged(promise) {
        this.waiting++;
        if (this.isLazy && this.nudging === null) {
            this.nudging = setInterval(() => {
                if (this.waiting > 0 && !this.fault) {
                    this.queue.submit([]);
                } else {
                    clearInterval(this.nudging);
                    this.nudging = null;
                }
            }, NUDGE_MS);
        }
        try {
            return await promise;
        } finally {
            this.waiting--;
        }
    }

    /** Measures how long the result of nothing takes, twice where it is late; the first one only meets the browser's clock. */
    async probe() {
        const buffer = await this.createBuffer("probe", 4, GPUBufferUsage.COPY_SRC);
        const late = async () => {
            const start = performance.now();
            await this.read(buffer, 0, 4);
            return performance.now() - start > LATE_MS;
        };
        await late();
        this.isLazy = (await late()) && (await late());
        buffer.destroy();
    }

    encode(program, readback) {
        let encoder = this.device.createCommandEncoder();
        let room = program.perSubmit || Infinity;
        let at = 0;
        for (const item of program.work) {
            if (item.buffer) {
                encoder.copyBufferToBuffer(item.buffer, item.offset, readback, at, item.nbytes);
                at += item.nbytes;
                continue;
            }
            const { pipelines, groups, grid } = item;
            let pass = encoder.beginComputePass(item);
            let last = null;
            for (let i = 0, g = 0; i < pipelines.length; i++, g += 3) {
                if (room === 0) {
                    pass.end();
                    this.queue.submit([encoder.finish()]);
                    encoder = this.device.createCommandEncoder();
                    pass = encoder.beginComputePass(item);
                    last = null;
                    room = program.perSubmit;
                }
                if (pipelines[i] !== last) {
                    last = pipelines[i];
                    pass.setPipeline(last);
                }
                pass.setBindGroup(0, groups[i]);
                pass.dispatchWorkgroups(grid[g], grid[g + 1], grid[g + 2]);
                room--;
            }
            pass.end();
        }
        this.queue.submit([encoder.finish()]);
    }

    takeReadback(size) {
        let free = this.free.get(size);
        if (!free) {
            this.free.set(size, (free = []));
        }
        return free.pop() ?? this.device.createBuffer({ label: "readback", size, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST });
    }

    kickLoop() {
        const { port1, port2 } = new MessageChannel();
        this.kickBuffer ??= this.device.createBuffer({ label: "kick", size: 4, usage: GPUBufferUsage.COPY_DST });
        const word = new Uint32Array(1);
        port1.onmessage = () => {
            if (this.kicked > 0 && !this.fault) {
                this.queue.writeBuffer(this.kickBuffer, 0, word);
                port2.postMessage(0);
            } else {
                port1.close();
            }
        };
        port2.postMessage(0);
    }

    /** @returns {Promise<Uint8Array>} bytes of a buffer after all that was submitted; the readback is not kept */
    async read(buffer, offset, nbytes) {
        const program = this.program(0);
        this.addCopy(program, buffer, offset, nbytes);
        this.check();
        const bytes = await this.submit(program);
        this.free.get(nbytes).pop()?.destroy();
        return bytes;
    }

    /**
     * Microseconds of each dispatch of a recording, run `repeats` times on end in a pass of its own: a pass costs about 8 us,
     * so one run says little of a short kernel. Needs timestamp-query.
     * @param {Recording} recording @param {number} repeats
     */
    async profile(recording, repeats) {
        const { pipelines, groups, grid } = recording;
        const times = new Float64Array(pipelines.length);
        for (let first = 0; first < pipelines.length; first += QUERIES) {
            const count = Math.min(QUERIES, pipelines.length - first);
            times.set(await this.timed(count, (pass, i) => {
                const at = first + i;
                pass.setPipeline(pipelines[at]);
                pass.setBindGroup(0, groups[at]);
                for (let n = 0; n < repeats; n++) {
                    pass.dispatchWorkgroups(grid[3 * at], grid[3 * at + 1], grid[3 * at + 2]);
                }
            }), first);
        }
        return times.map((us) => us / repeats);
    }

    /** Microseconds of a whole recording in one pass, `repeats` passes one after another. Needs timestamp-query. */
    profileWhole(recording, repeats) {
        const { pipelines, groups, grid } = recording;
        return this.timed(repeats, (pass) => {
            for (let i = 0; i < pipelines.length; i++) {
                pass.setPipeline(pipelines[i]);
                pass.setBindGroup(0, groups[i]);
                pass.dispatchWorkgroups(grid[3 * i], grid[3 * i + 1], grid[3 * i + 2]);
            }
        });
    }

    /** Microseconds of `count` passes in one submit; encode(pass, i) fills pass i. */
    async timed(count, encode) {
        const querySet = this.device.createQuerySet({ label: "profile", type: "timestamp", count: 2 * count });
        const resolved = this.device.createBuffer({
            label: "profile", size: 16 * count, usage: GPUBufferUsage.QUERY_RESOLVE | GPUBufferUsage.COPY_SRC,
        });
        const encoder = this.device.createCommandEncoder();
        for (let i = 0; i < count; i++) {
            const pass = encoder.beginComputePass({
                timestampWrites: { querySet, beginningOfPassWriteIndex: 2 * i, endOfPassWriteIndex: 2 * i + 1 },
            });
            encode(pass, i);
            pass.end();
        }
        encoder.resolveQuerySet(querySet, 0, 2 * count, resolved, 0);
        this.queue.submit([encoder.finish()]);
        const ticks = new BigUint64Array((await this.read(resolved, 0, 16 * count)).buffer);
        querySet.destroy();
        resolved.destroy();
        return Float64Array.from({ length: count }, (_, i) => Number(ticks[2 * i + 1] - ticks[2 * i]) / 1000);
    }

    /** Gives everything back; what is pending ends with null. */
    close() {
        this.fail("lost", "the device was closed");
        this.device.destroy();
    }
}
