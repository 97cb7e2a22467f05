// Job mode (?job=1): take the job of GET /job, do it through window.app.call as a click does, report every event.
// The protocol is in docs/architecture.md, "Jobs".

import { asAppError, bundled, call, initArgs, loadArgs, on, start, AppError } from "./app.js";
import { Reporter } from "./report.js";

const RESULT = ["prompt_ids", "ids", "text", "finish_reason", "ttft_ms", "prefill_tok_s", "decode_tok_s", "dispatches_per_token", "top1"];

/** Do the page's job to its end; every failure is the last report. @param {(text: string) => void} show  stages, for a person */
export async function runJob(show) {
  const reporter = new Reporter();
  try {
    const answer = await fetch(new URL("job", document.baseURI));
    if (!answer.ok) throw new AppError("no_job", `The server has no job for this page (${answer.status}).`);
    const job = await answer.json();
    if (job.op !== "chat") throw new AppError("bad_request", `This page does chat jobs, not ${job.op}.`);
    on("progress", (event) => reporter.add(progressReport(event)));
    on("progress", (event) => show(event.stage));
    start();
    await reporter.end({ ev: "result", ...(await chat(job, reporter)), done: true });
    show("done");
  } catch (error) {
    const { code, message, hint } = asAppError(error);
    show(`${message} ${hint}`);
    await reporter.end({ ev: "error", code, message, hint, done: true });
  }
}

async function chat(job, reporter) {
  const device = await call("init", initArgs());
  const model = job.model ?? (await bundled(null)).model;
  const loaded = await call("load", loadArgs(model));
  const asked = Object.fromEntries(["messages", "raw", "options", "force_ids"].filter((key) => key in job).map((key) => [key, job[key]]));
  const onEvent = (event) => event.ev === "token" && reporter.add({ ev: "token", text: event.text });
  const result = await call("chat", asked, onEvent);
  const figures = Object.fromEntries(RESULT.filter((key) => key in result).map((key) => [key, result[key]]));
  const { load_ms, bytes_loaded } = loaded;
  return { ...figures, adapter: device.adapter, features: device.features, load_ms, bytes_loaded };
}

/** @param {{stage: string, done?: number, total?: number, unit?: string}} event */
export function progressReport(event) {
  const report = { ev: "progress", stage: event.stage };
  return event.unit === "bytes" ? { ...report, bytes: event.done, total: event.total } : report;
}
