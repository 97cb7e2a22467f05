// Reports to the runner: one POST at a time, in order; what piled up meanwhile goes together, the last one alone.

/** Sends JSON lines to /report. */
export class Reporter {
  constructor() {
    /** @type {object[]} */ this.pile = [];
    /** @type {Promise<void> | null} */ this.sending = null;
  }

  /** Report something soon. @param {object} event */
  add(event) {
    const last = this.pile.at(-1);
    if (event.ev === "progress" && last?.ev === "progress" && last.stage === event.stage) this.pile.pop();
    this.pile.push(event);
    this.sending ??= this.drain();
  }

  /** Report the last event and return when it has arrived. @param {object} event */
  async end(event) {
    await this.sending;
    await send(JSON.stringify(event));
  }

  async drain() {
    while (this.pile.length) {
      const lines = this.pile.splice(0).map((event) => JSON.stringify(event));
      await send(lines.join("\n"));
    }
    this.sending = null;
  }
}

/** @param {string} body */
async function send(body) {
  for (let attempt = 0; ; attempt++) {
    try {
      const answer = await fetch(new URL("report", document.baseURI), { method: "POST", body });
      if (answer.ok || attempt === 2) return;
    } catch (error) {
      if (attempt === 2) return console.error("report failed", error);
    }
  }
}
